/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The tree, sequences and plans against a flat model: random operations, all kinds mixed.
 *
 * In:   $ATTND_TREE_STEPS (100,000; a sanitizer's build fewer), $ATTND_TREE_SEED to replay a run
 *       that failed (with $ATTND_TREE_SHAPE, its index), $ATTND_TREE_VERBOSE to see its steps.
 * Out:  TAP. Next: daemon/tree.c, engine.c, plan.c, cache.c.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "model.h"
#include "world.h"

enum { RUN_STEPS = 4000 };

static const struct model_shape shapes[] = {
	{"nothing evicted", 24, {16, 16, 32}, 2, 2, false, false, false, false},
	{"nothing evicted, large blocks", 40, {64, 32, 64}, 1, 2, false, false, false, false},
	{"few blocks", 3, {16, 32, 16}, 3, 2, false, false, false, false},
	{"very few blocks", 2, {32, 16, 64}, 2, 3, false, false, false, false},
	{"grants", 4, {16, 64, 16}, 2, 2, true, false, false, false},
	{"quotas", 4, {16, 32, 16}, 3, 2, true, true, false, false},
	{"twins", 24, {16, 32, 32}, 2, 4, false, false, true, false},
	{"slabs trade", 9, {64, 32, 128}, 2, 2, true, false, false, true},
};
enum { SHAPES = sizeof(shapes) / sizeof(shapes[0]) };

static void random_operations(uint32_t shape, struct model_counts *counts)
{
	uint64_t steps = env_number("ATTND_TREE_STEPS", sanitized() ? 20000 : 100000) / SHAPES;
	uint64_t seed = env_number("ATTND_TREE_SEED", 0);

	memset(counts, 0, sizeof(*counts));
	if (seed && shape == env_number("ATTND_TREE_SHAPE", 0))
		model_run(&shapes[shape], seed, RUN_STEPS, counts);
	if (seed)
		return;
	seed = UINT64_C(0x9e3779b97f4a7c15) * (shape + 1);
	printf("# %s (shape %u): seed %#llx and following\n", shapes[shape].name, shape, (unsigned long long)seed);
	for (uint64_t done = 0; done < steps; done += RUN_STEPS, seed += 2)
		model_run(&shapes[shape], seed, RUN_STEPS, counts);
	printf("# hits %llu, taken %llu, copies %llu, published %llu, evicted %llu, refused %llu, busy %llu, "
	       "orphans %llu, blocked %llu, collapsed %llu, over quota %llu, pins %llu; slabs that left on their own "
	       "%llu, "
	       "moved blocks %llu, waits for room %llu; waits %llu: alone %llu, done %llu, progress %llu, "
	       "gone %llu, deadline %llu, quiet %llu, cancelled %llu\n",
	       (unsigned long long)counts->hits, (unsigned long long)counts->taken,
	       (unsigned long long)counts->copies, (unsigned long long)counts->published,
	       (unsigned long long)counts->evicted, (unsigned long long)counts->refused,
	       (unsigned long long)counts->busy, (unsigned long long)counts->orphans,
	       (unsigned long long)counts->blocked, (unsigned long long)counts->collapsed,
	       (unsigned long long)counts->over_quota, (unsigned long long)counts->pins,
	       (unsigned long long)counts->slabs, (unsigned long long)counts->moved,
	       (unsigned long long)counts->room_waits, (unsigned long long)counts->waits,
	       (unsigned long long)counts->waited[0], (unsigned long long)counts->waited[1],
	       (unsigned long long)counts->waited[2], (unsigned long long)counts->waited[3],
	       (unsigned long long)counts->waited[4], (unsigned long long)counts->waited[5],
	       (unsigned long long)counts->cancelled);
	assert_true(counts->hits && counts->taken && counts->copies && counts->published && counts->busy);
}

static void test_nothing_evicted(void **state)
{
	struct model_counts counts;

	(void)state;
	random_operations(0, &counts);
	assert_int_equal(counts.evicted + counts.refused, 0);
	assert_true(counts.collapsed || sanitized() || getenv("ATTND_TREE_SEED"));
}

static void test_nothing_evicted_large_blocks(void **state)
{
	struct model_counts counts;

	(void)state;
	random_operations(1, &counts);
	assert_int_equal(counts.evicted + counts.refused, 0);
}

static void test_few_blocks(void **state)
{
	struct model_counts counts;

	(void)state;
	random_operations(2, &counts);
	assert_true(counts.evicted || getenv("ATTND_TREE_SEED"));
}

static void test_very_few_blocks(void **state)
{
	struct model_counts counts;

	(void)state;
	random_operations(3, &counts);
	assert_true((counts.evicted && counts.refused) || getenv("ATTND_TREE_SEED"));
}

static void test_grants(void **state)
{
	struct model_counts counts;

	(void)state;
	random_operations(4, &counts);
}

static void test_quotas(void **state)
{
	struct model_counts counts;

	(void)state;
	random_operations(5, &counts);
	assert_true((counts.over_quota && counts.pins) || getenv("ATTND_TREE_SEED"));
}

/* Every way in which a wait can end, across engines, too. */
static void test_twins(void **state)
{
	struct model_counts counts;

	(void)state;
	random_operations(6, &counts);
	for (int why = 0; why < 6; why++)
		assert_true(counts.waited[why] || sanitized() || getenv("ATTND_TREE_SEED"));
	assert_true(counts.cancelled || sanitized() || getenv("ATTND_TREE_SEED"));
}

static void test_slabs_trade(void **state)
{
	struct model_counts counts;

	(void)state;
	random_operations(7, &counts);
	assert_true((counts.slabs && counts.moved) || getenv("ATTND_TREE_SEED"));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_nothing_evicted), cmocka_unit_test(test_nothing_evicted_large_blocks),
		cmocka_unit_test(test_few_blocks),	cmocka_unit_test(test_very_few_blocks),
		cmocka_unit_test(test_grants),		cmocka_unit_test(test_quotas),
		cmocka_unit_test(test_twins),		cmocka_unit_test(test_slabs_trade),
	};

	return cmocka_run_group_tests_name("tree", tests, NULL, NULL);
}
