/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The child index: what is in it is found, whatever has been moved into a larger table so far, and
 * nothing else; no single insert moves much.
 *
 * In: nothing; times of a table of 10^6 are printed. Out: TAP. Next: shm/index.c.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <time.h>
#include <cmocka.h>

#include "../../shm/index.h"

enum { FEW = 3000, MANY = 1 << 20 };

static struct attnd_index_key *keys;
static uint32_t *chain;
static uint64_t looked; /* calls of `key`: a link moved, or one looked at */

static void key(void *ctx, uint32_t id, struct attnd_index_key *ret)
{
	(void)ctx;
	looked++;
	*ret = keys[id];
}

static uint32_t *next(void *ctx, uint32_t id)
{
	(void)ctx;
	return &chain[id];
}

/* Of this thread: others may keep it waiting. */
static uint64_t cpu_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
	return (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec;
}

static void begin(struct attnd_index *x, uint32_t n)
{
	keys = malloc(n * sizeof(*keys));
	chain = malloc(n * sizeof(*chain));
	assert_non_null(keys);
	assert_non_null(chain);
	for (uint32_t i = 0; i < n; i++)
		keys[i] = (struct attnd_index_key){i % 3, i / 2, i % 16, i * UINT64_C(0x9e3779b97f4a7c15)};
	assert_int_equal(attnd_index_init(x, key, next, NULL), 0);
}

static void end(struct attnd_index *x)
{
	attnd_index_destroy(x);
	free(keys);
	free(chain);
}

/* It grows while ids come and go. */
static void test_found(void **state)
{
	static bool in[FEW];
	struct attnd_index x;
	uint32_t used = 0, reserved = 0;
	uint64_t random = 1;

	(void)state;
	begin(&x, FEW);
	for (uint32_t step = 0; step < 20000; step++) {
		uint32_t id;

		random = random * UINT64_C(6364136223846793005) + 1442695040888963407;
		id = (uint32_t)(random >> 33) % FEW;
		if (step % 50 == 0 && reserved < FEW)
			assert_int_equal(attnd_index_reserve(&x, reserved += 40), 0);
		if (in[id])
			attnd_index_remove(&x, id);
		else
			attnd_index_insert(&x, id);
		used += in[id] ? (uint32_t)-1 : 1;
		in[id] = !in[id];
		assert_int_equal(x.used, used);
		for (uint32_t i = step % 97; i < FEW; i += 97)
			assert_int_equal(attnd_index_find(&x, &keys[i]), in[i] ? i : UINT32_MAX);
	}
	for (uint32_t i = 0; i < FEW; i++) {
		attnd_index_prefetch(&x, i);
		assert_int_equal(attnd_index_find(&x, &keys[i]), in[i] ? i : UINT32_MAX);
	}
	end(&x);
}

/* Slab by slab, as a cache grows. */
static void test_no_pause(void **state)
{
	uint64_t worst = 0, worst_ns = 0, start = cpu_ns();
	struct attnd_index x;

	(void)state;
	begin(&x, MANY);
	for (uint32_t id = 0; id < MANY; id++) {
		uint64_t before = looked, at = cpu_ns(), ns;

		if (id % 1024 == 0)
			assert_int_equal(attnd_index_reserve(&x, id + 1024), 0);
		attnd_index_insert(&x, id);
		ns = cpu_ns() - at;
		worst = looked - before > worst ? looked - before : worst;
		worst_ns = ns > worst_ns ? ns : worst_ns;
	}
	print_message("# 2^20 inserts: %.0f ns each, the longest %.1f us; at most %llu links in one\n",
		      (double)(cpu_ns() - start) / (double)MANY, (double)worst_ns / 1e3, (unsigned long long)worst);
	assert_in_range(worst, 1, 200);
	assert_null(x.old);
	for (uint32_t id = 0; id < MANY; id += 1001)
		assert_int_equal(attnd_index_find(&x, &keys[id]), id);
	end(&x);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_found),
		cmocka_unit_test(test_no_pause),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
