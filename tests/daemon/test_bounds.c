/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What one client can make the leader do at once, or allocate, has bounds; what ends in the middle
 * of a request leaves nothing.
 *
 * In: engines with many sequences. Out: TAP. Next: daemon/engine.c, twin.c, work.c, heap.h.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "../../daemon/lead.h"
#include "../../daemon/work.h"
#include "world.h"

enum { B = 16, MANY = 8192, PROMPT = 256, LONG = 1500 * B };

static struct world w;
static struct engine *e;
static struct cache *c;
static struct plan *plans;
static uint64_t tokens[LONG];

/* Blocks of 1 KiB, so that there are many. */
static int setup(void **state)
{
	struct attnd_wire_cache id = {.name = "model",
				      .num_layers = 1,
				      .num_heads = 1,
				      .num_kv_heads = 1,
				      .head_dim = 16,
				      .head_dim_v = 16,
				      .block_size = B,
				      .kv_dtype = ATTND_WIRE_BF16};

	(void)state;
	world_open(&w, 4, 2 * MANY);
	e = world_engine(&w);
	assert_int_equal(engine_cache_open(e, &w.pool, &w.ns, &id, true, 0).res, 0);
	c = e->caches[0].cache;
	plans = NULL;
	for (uint32_t i = 0; i < LONG; i++)
		tokens[i] = i;
	return 0;
}

static int teardown(void **state)
{
	(void)state;
	while (plans)
		plan_end(plans);
	world_close(&w);
	return 0;
}

static void open_seq(uint64_t key, uint64_t n)
{
	assert_int_equal(seq_open(&w.engines, e, key, 0, tokens, n, n).res, 0);
}

/* The next n tokens of a sequence that was opened. */
static struct plan *plan_tokens(uint64_t key, uint64_t start, uint32_t n, uint64_t upto)
{
	const struct row_request r = {.wire = {.key = key, .start = start, .num_tokens = n, .publish_upto = upto},
				      .tokens = tokens + start};
	struct plan *p;

	assert_int_equal(world_plan(&w, &plans, e, 0, &r, 1, &plans, &p), 0);
	assert_int_equal(p->rows[0].status, 0);
	return p;
}

static void compute(uint64_t key, uint32_t n, uint64_t upto)
{
	struct plan *p = plan_tokens(key, 0, n, upto);

	plan_commit(p);
	plan_end(p);
}

static double cpu_seconds(void)
{
	struct timespec t;

	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
	return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

/* ---- Ends in the middle ---- */

/* Its deadline passes in the round in which it is closed, before it was looked at. */
static void test_closed_while_it_waits(void **state)
{
	struct opening o = {0};
	struct answer a;

	(void)state;
	open_seq(1, PROMPT); /* announces what is not there */
	a = seq_wait_begin(&w.engines, e, 2, 0, PROMPT, PROMPT, 0, &o);
	assert_int_equal(a.res, 0);
	assert_int_equal(seq_open_step(&o, tokens, PROMPT).res, ANSWER_WAITS.res);
	assert_int_equal(seq_close(e, 2, NULL).res, 0);
	assert_int_equal(seq_wait_end(&o, ATTND_WIRE_WAITED_DEADLINE).res, -ECANCELED);
	assert_null(o.seq);
	assert_int_equal(e->num_seqs, 1);
}

/* A job has ended and its tokens are being published: the sequence is closed, another comes for it. */
static void test_closed_while_it_is_published(void **state)
{
	struct plan *p;
	int slices = 1;

	(void)state;
	open_seq(1, 0);
	p = plan_tokens(1, 0, LONG, UINT64_MAX);
	plan_run(p);
	plan_commit_begin(p);
	assert_false(plan_publish(p));
	assert_true(plan_busy(e, 0, 1));
	assert_int_equal(seq_fork(&w.engines, e, 1, 2, LONG - 5).res, 0);
	assert_int_equal(seq_close(e, 1, NULL).res, 0);
	assert_true(p->orphan);
	while (!plan_publish(p))
		slices++;
	assert_in_range(slices, 5, 50);
	plan_ran(p);
	plan_end(p);
	assert_int_equal(e->num_seqs, 1);
	assert_null(cache_check(c));
	open_seq(3, LONG);
	assert_int_equal(seq_find(e, 3)->answer, LONG);
}

/* ---- Work ---- */

/* These keys would share a bucket of a table that hashes them in a way that is known. */
static void test_chosen_keys(void **state)
{
	uint64_t inverse = 1, odd = UINT64_C(0x9e3779b97f4a7c15);
	uint32_t longest = 0;

	(void)state;
	for (int i = 0; i < 6; i++)
		inverse *= 2 - odd * inverse;
	for (uint64_t i = 1; i <= MANY; i++)
		open_seq((i << 32 | i) * inverse, 0);
	for (uint32_t b = 0; b < e->num_buckets; b++) {
		uint32_t n = 0;

		for (const struct seq *s = e->buckets[b]; s; s = s->bucket_next)
			n++;
		longest = n > longest ? n : longest;
	}
	assert_in_range(longest, 1, 32);
}

/* Many announce the same prompt, and are closed in an order that was bad once. */
static void test_one_prompt_of_many(void **state)
{
	double before;

	(void)state;
	for (uint64_t i = 0; i < MANY; i++)
		open_seq(i, PROMPT);
	assert_int_equal(e->announced, MANY * PROMPT / TWIN_TOKENS);
	before = cpu_seconds();
	for (uint64_t i = 0; i < MANY; i++)
		assert_int_equal(seq_close(e, i, NULL).res, 0);
	assert_true(cpu_seconds() - before < 2);
	assert_int_equal(e->announced, 0);
}

static void fork_many(uint64_t key, uint32_t n)
{
	for (uint64_t i = 1; i < n; i++)
		assert_int_equal(seq_fork(&w.engines, e, key, key + i, LONG).res, 0);
}

/* A plan with the next token of all of them, and its work. */
static const struct work_list *next_of_all(uint64_t key, uint32_t n)
{
	struct row_request *r = calloc(n, sizeof(*r));
	struct plan *p;

	for (uint32_t i = 0; i < n; i++)
		r[i] = (struct row_request){.wire = {.key = key + i, .start = LONG, .num_tokens = 1},
					    .tokens = tokens + i};
	assert_int_equal(world_plan(&w, &plans, e, 0, r, n, &plans, &p), 0);
	free(r);
	p->work = work_make(p);
	assert_non_null(p->work);
	return p->work;
}

/* What the tree holds is found to be shared at once; what only forks hold as far as looking is worth it. */
static void test_shared_blocks(void **state)
{
	const struct work_list *l;

	(void)state;
	open_seq(1, 0);
	compute(1, LONG, UINT64_MAX);
	fork_many(1, 1024);
	l = next_of_all(1, 1024);
	assert_int_equal(l->nodes[0].end, LONG / c->fmt.step * c->fmt.step);
	plan_end(plans);
	for (uint64_t i = 1; i <= 1024; i++)
		assert_int_equal(seq_close(e, i, NULL).res, 0);

	for (uint32_t i = 0; i < LONG; i++)
		tokens[i] += 1000000;
	open_seq(2001, 0);
	compute(2001, LONG, 0);
	fork_many(2001, 1024);
	l = next_of_all(2001, 1024);
	assert_in_range(l->nodes[0].end, 1, LONG / 2);
	assert_int_equal(l->num_nodes, 1 + 1024);
}

/* A large cache goes in slices: an engine's that nobody else can ever hit, */
static void test_cache_of_one_alone(void **state)
{
	const struct engine_maker by = {.realm = w.realm, .uid = 1, .session = 2, .alone = true};
	struct engine *other = e;
	struct cache *mine;
	int slices = 0;

	(void)state;
	assert_int_equal(engine_create(&w.engines, NULL, &by, &e), 0);
	assert_int_equal(engine_cache_open(e, &w.pool, &w.ns, &c->identity, true, 0).res, 0);
	mine = e->caches[0].cache;
	assert_ptr_not_equal(mine, c);
	open_seq(1, 0);
	compute(1, LONG, UINT64_MAX);
	mine->keeps++; /* an administrator looks at it */
	engine_leave(&w.engines, e);
	e = other;
	assert_false(cache_bury(&w.pool));
	mine->keeps--;
	while (cache_bury(&w.pool))
		slices++;
	assert_in_range(slices, 3, 6);
	assert_int_equal(w.pool.num_free, w.pool.num_slabs);
	assert_int_equal(w.pool.doomed, 0);
}

/* and one that nobody has open, for the place it has in a table that is full. */
static void test_cache_gives_way(void **state)
{
	struct attnd_wire_cache id = c->identity;
	struct engine *other = NULL;
	struct answer a = ANSWER_OK;
	int slices = 0;

	(void)state;
	open_seq(1, 0);
	compute(1, LONG, UINT64_MAX);
	engine_leave(&w.engines, e);
	for (uint32_t i = 0; i < ATTND_MAX_POOL_CACHES; i++) {
		if (i % ATTND_MAX_CACHES == 0)
			other = world_engine(&w);
		id.fingerprint[0] = (uint8_t)i;
		id.fingerprint[1] = 1;
		while ((a = engine_cache_open(other, &w.pool, &w.ns, &id, true, 0)).res == ANSWER_LATER.res)
			slices++;
		assert_int_equal(a.res, 0);
	}
	assert_in_range(slices, 2, 6);
	assert_int_equal(w.pool.num_free, w.pool.num_slabs);
}

/* ---- Memory ---- */

static void test_heap(void **state)
{
	struct engine *other;
	uint64_t used, keys = 1;
	struct answer a;

	(void)state;
	open_seq(1, 0);
	compute(1, LONG, UINT64_MAX);
	used = w.engines.heap.used;
	assert_in_range(used, LONG / B * sizeof(struct table_entry), 1 << 20);
	w.engines.heap.max = 4 << 20;
	do
		a = seq_fork(&w.engines, e, 1, ++keys, LONG);
	while (!a.res);
	assert_int_equal(a.res, -ENOMEM);
	assert_in_range(w.engines.heap.used, 3 << 19, 2 << 20);
	/* Others still have some. */
	other = world_engine(&w);
	assert_int_equal(engine_cache_open(other, &w.pool, &w.ns, &c->identity, false, 0).res, 0);
	assert_int_equal(seq_open(&w.engines, other, 1, 0, tokens, LONG, LONG).value, LONG);
	while (--keys > 1)
		assert_int_equal(seq_close(e, keys, NULL).res, 0);
	assert_int_equal(e->heap.used, used);
}

/* A mask grows with its row's square. */
static void test_heap_of_plans(void **state)
{
	enum { ROW = 4096, WORDS = ROW * (ROW / 64) };
	uint64_t *mask = calloc(WORDS, sizeof(*mask));
	const struct row_request r = {.wire = {.key = 1, .num_tokens = ROW}, .tokens = tokens, .mask = mask};
	struct plan *p = NULL;

	(void)state;
	open_seq(1, 0);
	w.engines.heap.max = 4 * WORDS * sizeof(*mask);
	assert_int_equal(world_plan(&w, &plans, e, 0, &r, 1, &plans, &p), 0);
	plan_end(p);
	w.engines.heap.max = 2 * WORDS * sizeof(*mask);
	assert_int_equal(world_plan(&w, &plans, e, 0, &r, 1, &plans, &p), -ENOMEM);
	assert_null(plans);
	free(mask);
}

/* Of one with this tenant, as it comes over the wire: a header, the text, no padding. */
static const char *ns_fields(const char *text)
{
	static char fields[4096];
	const struct attnd_wire_ns_field f = {.tag = ATTND_NS_TENANT, .bytes = (uint16_t)(strlen(text) + 1)};

	memcpy(fields, &f, sizeof(f));
	memcpy(fields + sizeof(f), text, f.bytes);
	return fields;
}

static void test_heap_of_namespaces_and_params(void **state)
{
	static struct session session;
	static struct lead_session ls;
	const struct attnd_wire_params params = {.sm_scale = 1,
						 .kv_in_dtype = ATTND_WIRE_BF16,
						 .q_dtype = ATTND_WIRE_BF16,
						 .sinks = ATTND_OFFSET_NONE,
						 .alibi = ATTND_OFFSET_NONE};
	char salt[3000] = {0};
	uint64_t before = e->heap.used;

	(void)state;
	memset(salt, 'x', sizeof(salt) - 1);
	w.engines.heap.max = 16384;
	assert_int_equal(engine_namespace(e, &w.ns, ns_fields(salt), sizeof(salt) + 4).res, 0);
	assert_in_range(e->heap.used - before, sizeof(salt), 8000);
	salt[0] = 'y';
	assert_int_equal(engine_namespace(e, &w.ns, ns_fields(salt), sizeof(salt) + 4).res, 0);
	salt[0] = 'z';
	assert_int_equal(engine_namespace(e, &w.ns, ns_fields(salt), sizeof(salt) + 4).res, -ENOMEM);
	before = e->heap.used;
	ls = (struct lead_session){.session = &session, .engine = e};
	assert_int_equal(submit_params(&ls, 3, &params).res, 0);
	assert_true(e->heap.used > before);
	assert_int_equal(submit_params(&ls, 3, &params).res, 0);
	params_free(ls.params[3]);
	assert_int_equal(e->heap.used, before);
}

/* ---- Nothing where nothing is asked for ---- */

/* A table without entries needs no array: there is none to compute with. */
static void test_empty_slot_table(void **state)
{
	static struct session session;
	static struct lead_session ls;
	const uint64_t key = 1;
	struct attnd_wire_slots t = {.num = 1,
				     .seq_lens = ATTND_OFFSET_NONE,
				     .kv_indptr = ATTND_OFFSET_NONE,
				     .kv_indices = ATTND_OFFSET_NONE,
				     .qo_indptr = ATTND_OFFSET_NONE};

	(void)state;
	open_seq(1, 0);
	ls = (struct lead_session){.session = &session, .engine = e};
	for (uint32_t unit = 0; unit < ATTND_WIRE_SLOTS_UNITS; unit++) {
		t.unit = (uint16_t)unit;
		ls.slots.begun = false;
		assert_int_equal(slots_table(&ls, &t, &key).res, 0);
	}
}

int main(void)
{
#define TEST(f) cmocka_unit_test_setup_teardown(f, setup, teardown)
	const struct CMUnitTest tests[] = {
		TEST(test_closed_while_it_waits), TEST(test_closed_while_it_is_published),
		TEST(test_chosen_keys),		  TEST(test_one_prompt_of_many),
		TEST(test_shared_blocks),	  TEST(test_cache_of_one_alone),
		TEST(test_cache_gives_way),	  TEST(test_heap),
		TEST(test_heap_of_plans),	  TEST(test_heap_of_namespaces_and_params),
		TEST(test_empty_slot_table),
	};

	return cmocka_run_group_tests_name("bounds", tests, NULL, NULL);
}
