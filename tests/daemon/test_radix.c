/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The behaviours that users of radix caches rely on, one by one.
 *
 * In:   short prompts. Out: TAP. Next: daemon/tree.c, cache.c, collapse.c.
 */
#include <errno.h>
#include <string.h>

#include "../../daemon/collapse.h"
#include "../trace.h"
#include "world.h"

enum { B = 16, N = 5 * B + 3, SLABS = 3 };

struct fixture {
	struct world w;
	struct engine *e;
	struct cache *c;
	struct plan *plans;
	uint64_t key, tokens[N];
};

static int setup_slabs(void **state, uint32_t slabs)
{
	static struct fixture f;

	memset(&f, 0, sizeof(f));
	world_open(&f.w, slabs, 64);
	f.e = world_engine(&f.w);
	f.c = f.e->caches[world_cache(&f.w, f.e, "radix", B)].cache;
	for (uint64_t i = 0; i < N; i++)
		f.tokens[i] = 1000 + i;
	*state = &f;
	return 0;
}

static int setup(void **state)
{
	return setup_slabs(state, SLABS);
}

static int setup_for_traces(void **state)
{
	return setup_slabs(state, TRACE_LONGEST / 1024 + 1);
}

static int teardown(void **state)
{
	struct fixture *f = *state;

	while (f->plans)
		plan_end(f->plans);
	world_close(&f->w);
	return 0;
}

static uint64_t open_seq(struct fixture *f, uint32_t ns, const uint64_t *tokens, uint64_t n, uint64_t max)
{
	struct answer a = seq_open(&f->w.engines, f->e, ++f->key, ns, tokens, n, max);

	assert_int_equal(a.res, 0);
	return a.value;
}

static void close_seq(struct fixture *f, uint64_t key)
{
	assert_int_equal(seq_close(f->e, key, NULL).res, 0);
}

/* What a request would find. */
static uint64_t hit(struct fixture *f, uint32_t ns, const uint64_t *tokens, uint64_t n)
{
	uint64_t found = open_seq(f, ns, tokens, n, UINT64_MAX);

	close_seq(f, f->key);
	return found;
}

static struct plan *plan_rows(struct fixture *f, const struct row_request *rows, uint32_t n)
{
	struct plan *p = NULL;

	assert_int_equal(plan_make(f, f->e, 0, 1, rows, n, &f->plans, &p), 0);
	for (uint32_t i = 0; i < n; i++)
		assert_int_equal(p->rows[i].status, 0);
	return p;
}

/* Compute and publish a prompt; its sequence stays open. */
static uint64_t compute(struct fixture *f, uint32_t ns, const uint64_t *tokens, uint32_t n)
{
	uint64_t at = open_seq(f, ns, tokens, n, n - 1);
	struct row_request row = {.wire = {.key = f->key, .start = at, .publish_upto = n}, .tokens = tokens + at};
	struct plan *p;

	row.wire.num_tokens = (uint32_t)(n - at);
	p = plan_rows(f, &row, 1);
	plan_commit(p);
	plan_end(p);
	return f->key;
}

static void check(const struct fixture *f)
{
	const char *bad = cache_check(f->c);

	if (bad)
		fail_msg("%s", bad);
}

static void test_exact_lengths(void **state)
{
	struct fixture *f = *state;
	uint64_t longer[N + 1];

	memcpy(longer, f->tokens, sizeof(f->tokens));
	longer[N] = 7;
	close_seq(f, compute(f, 0, f->tokens, N));
	for (uint64_t n = 0; n <= N; n++)
		assert_int_equal(hit(f, 0, f->tokens, n), n);
	assert_int_equal(hit(f, 0, longer, N + 1), N);
	assert_int_equal(hit(f, 0, longer + 1, N), 0);
	assert_int_equal(open_seq(f, 0, f->tokens, N, 21), 21); /* no more than asked for */
	check(f);
}

/* Prompts that part at any token share just what is common, in whatever order they come. */
static void test_splits(void **state)
{
	struct fixture *f = *state;
	uint64_t other[N];

	close_seq(f, compute(f, 0, f->tokens, N));
	for (uint32_t at = 0; at < N; at += at < B ? 1 : 5) {
		uint64_t before = f->c->evictable;

		memcpy(other, f->tokens, sizeof(other));
		for (uint32_t i = at; i < N; i++)
			other[i] += 5000 * (at + 1);
		assert_int_equal(hit(f, 0, other, N), at);
		close_seq(f, compute(f, 0, other, N));
		assert_int_equal(hit(f, 0, other, N), N);
		assert_int_equal(hit(f, 0, f->tokens, N), N);
		/* What is common is stored once, but for the block that they part in. */
		assert_int_equal(f->c->evictable - before, (N + B - 1) / B - at / B);
		assert_int_equal(f->c->evicted, 0);
		check(f);
	}
}

static void test_held_is_not_evicted(void **state)
{
	struct fixture *f = *state;
	uint64_t other[N], held;

	memcpy(other, f->tokens, sizeof(other));
	for (uint32_t i = 2 * B; i < N; i++)
		other[i] += 5000;
	held = compute(f, 0, f->tokens, N);
	close_seq(f, compute(f, 0, other, N));
	while (cache_evict(f->c))
		check(f);
	assert_int_equal(hit(f, 0, f->tokens, N), N);
	assert_int_equal(hit(f, 0, other, N), 2 * B);
	assert_int_equal(referenced(f->c), f->c->total - f->c->free);
	close_seq(f, held);
	assert_int_equal(f->c->evictable, (N + B - 1) / B);
}

/* What two hold is let go of when both have left it, whoever is first. */
static void test_held_until_the_last_leaves(void **state)
{
	struct fixture *f = *state;
	uint64_t first = compute(f, 0, f->tokens, N), second;

	assert_int_equal(open_seq(f, 0, f->tokens, N, UINT64_MAX), N);
	second = f->key;
	close_seq(f, first);
	assert_int_equal(f->c->evictable, 0);
	assert_false(cache_evict(f->c));
	close_seq(f, second);
	assert_int_equal(f->c->evictable, (N + B - 1) / B);
	assert_true(cache_evict(f->c));
	check(f);
}

/* A hold protects the way to where it ends, and nothing behind it. */
static void test_hold_ends_with_its_prefix(void **state)
{
	struct fixture *f = *state;

	close_seq(f, compute(f, 0, f->tokens, N));
	assert_int_equal(open_seq(f, 0, f->tokens, N, 2 * B + 1), 2 * B + 1);
	assert_int_equal(referenced(f->c), 3);
	while (cache_evict(f->c))
		check(f);
	assert_int_equal(hit(f, 0, f->tokens, N), 3 * B);
	assert_int_equal(seq_trim(f->e, f->key - 1, B, NULL).res, 0);
	while (cache_evict(f->c))
		check(f);
	assert_int_equal(hit(f, 0, f->tokens, N), B);
}

/* Leaves go first, one block at a time: what is left is always a prefix. */
static void test_leaves_first(void **state)
{
	struct fixture *f = *state;

	close_seq(f, compute(f, 0, f->tokens, N));
	for (uint64_t left = N / B * B;; left -= B) {
		assert_true(cache_evict(f->c));
		assert_int_equal(hit(f, 0, f->tokens, N), left);
		check(f);
		if (!left)
			break;
	}
	assert_false(cache_evict(f->c));
}

/* With two branches it is no leaf before both are gone. */
static void test_branches_before_their_stem(void **state)
{
	struct fixture *f = *state;
	uint64_t other[3 * B];

	for (uint32_t i = 0; i < 3 * B; i++)
		other[i] = f->tokens[i] + (i < 2 * B ? 0 : 5000);
	close_seq(f, compute(f, 0, f->tokens, 3 * B));
	close_seq(f, compute(f, 0, other, 3 * B));
	assert_true(cache_evict(f->c));
	assert_int_equal(hit(f, 0, f->tokens, 3 * B) + hit(f, 0, other, 3 * B), 5 * B);
	assert_true(cache_evict(f->c));
	assert_int_equal(hit(f, 0, f->tokens, 3 * B), 2 * B);
	assert_int_equal(hit(f, 0, other, 3 * B), 2 * B);
	check(f);
}

/* A stem was used when its branches were: it does not go before what is older than the last of these. */
static void test_stem_is_as_new_as_its_branches(void **state)
{
	struct fixture *f = *state;
	uint64_t branch[3][2 * B], apart[B];

	for (uint32_t k = 0; k < 3; k++)
		for (uint32_t i = 0; i < 2 * B; i++)
			branch[k][i] = i < B ? 100 + i : 1000 * (k + 1) + i;
	for (uint32_t i = 0; i < B; i++)
		apart[i] = 9000 + i;
	close_seq(f, compute(f, 0, branch[0], 2 * B));
	close_seq(f, compute(f, 0, branch[1], 2 * B));
	close_seq(f, compute(f, 0, apart, B));
	close_seq(f, compute(f, 0, branch[2], 2 * B));
	assert_true(cache_evict(f->c)); /* the first branch, the second, then what stands apart */
	assert_true(cache_evict(f->c));
	assert_true(cache_evict(f->c));
	assert_int_equal(f->c->evictable, 2);
	assert_true(cache_evict(f->c)); /* the last branch, and its stem is left */
	assert_int_equal(hit(f, 0, apart, B), 0);
	assert_int_equal(hit(f, 0, branch[2], 2 * B), B);
	check(f);
}

static void test_oldest_first(void **state)
{
	struct fixture *f = *state;
	uint64_t prompt[3][B];

	for (uint32_t k = 0; k < 3; k++) {
		for (uint32_t i = 0; i < B; i++)
			prompt[k][i] = 100 * k + i;
		close_seq(f, compute(f, 0, prompt[k], B));
	}
	assert_int_equal(hit(f, 0, prompt[0], B), B); /* a hit is a use */
	assert_true(cache_evict(f->c));
	assert_int_equal(f->c->evictable, 2);
	assert_int_equal(hit(f, 0, prompt[1], B), 0);
	assert_true(cache_evict(f->c));
	assert_int_equal(hit(f, 0, prompt[2], B), 0);
	assert_int_equal(hit(f, 0, prompt[0], B), B);
}

/* A full cache evicts what a request needs, not a block more. */
static void test_no_more_than_needed(void **state)
{
	struct fixture *f = *state;
	uint32_t blocks = SLABS * f->c->blocks_per_slab, need = 3;
	uint64_t prompt[B];

	for (uint32_t k = 0; k < blocks; k++) {
		for (uint32_t i = 0; i < B; i++)
			prompt[i] = 1000 * k + i;
		close_seq(f, compute(f, 0, prompt, B));
	}
	assert_int_equal(f->c->evictable, blocks);
	assert_int_equal(f->c->evicted, 0);
	compute(f, 0, f->tokens + 1, need * B);
	assert_int_equal(f->c->evicted, need);
	check(f);
}

static void test_namespaces_apart(void **state)
{
	struct fixture *f = *state;
	uint32_t a = world_ns(&f->w, f->e, "a", "bc"), b = world_ns(&f->w, f->e, "ab", "c");

	assert_int_not_equal(a, b);
	close_seq(f, compute(f, a, f->tokens, N));
	assert_int_equal(hit(f, a, f->tokens, N), N);
	assert_int_equal(hit(f, b, f->tokens, N), 0);
	assert_int_equal(hit(f, 0, f->tokens, N), 0);
	close_seq(f, compute(f, b, f->tokens, N)); /* nor are its blocks shared */
	assert_int_equal(f->c->evictable, (uint64_t)2 * ((N + B - 1) / B));
	while (cache_evict(f->c))
		;
	assert_int_equal(hit(f, a, f->tokens, N), 0);
}

/* ---- Duplicates ---- */

/* Two sequences compute the same prompt in one step; the second's blocks are the duplicates. */
static struct plan *compute_twice(struct fixture *f, uint64_t keys[2])
{
	struct row_request rows[2];

	for (int i = 0; i < 2; i++) {
		assert_int_equal(open_seq(f, 0, f->tokens, N, 0), 0);
		keys[i] = f->key;
		rows[i] = (struct row_request){
			.wire = {.key = f->key, .num_tokens = N, .publish_upto = N},
			.tokens = f->tokens,
		};
	}
	return plan_rows(f, rows, 2);
}

static uint64_t collapse_all(struct fixture *f)
{
	uint64_t before = f->c->collapsed;

	for (int i = 0; collapse_step(f->c); i++)
		assert_true(i < 10000);
	check(f);
	return f->c->collapsed - before;
}

static void test_duplicates(void **state)
{
	struct fixture *f = *state;
	uint64_t keys[2], free;
	struct plan *p = compute_twice(f, keys);

	plan_commit(p);
	free = f->c->free;
	assert_int_equal(collapse_all(f), N / B);
	assert_int_equal(f->c->free, free + N / B);
	assert_int_equal(collapse_all(f), 0);
	for (uint32_t i = 0; i < N / B; i++) {
		const struct held *a = &seq_find(f->e, keys[0])->in[0].held,
				  *b = &seq_find(f->e, keys[1])->in[0].held;

		assert_int_equal(a->table[i].id, b->table[i].id);
	}
	/* The last reader keeps it. */
	plan_end(p);
	close_seq(f, keys[0]);
	while (cache_evict(f->c))
		;
	assert_int_equal(seq_find(f->e, keys[1])->in[0].held.length, N);
	assert_int_equal(hit(f, 0, f->tokens, N), N);
}

static void test_unequal_duplicates(void **state)
{
	struct fixture *f = *state;
	uint64_t keys[2];
	struct plan *p = compute_twice(f, keys);
	const struct table_entry *e;
	char *byte;

	plan_commit(p);
	e = &seq_find(f->e, keys[1])->in[0].held.table[2];
	byte = (char *)f->w.pool.nodes[0].base + cache_offset(f->c, e->id) + f->c->block_bytes - 1;
	*byte ^= 1;
	e = &seq_find(f->e, keys[1])->in[0].held.table[3];
	e->flags[0] ^= 1;
	assert_int_equal(collapse_all(f), N / B - 2);
	*byte ^= 1;
	assert_int_equal(collapse_all(f), 0); /* compared once */
}

/* A running job reads the table: it stays as it is until the job is done. */
static void test_duplicates_of_a_running_job(void **state)
{
	struct fixture *f = *state;
	uint64_t keys[2];
	struct plan *p = compute_twice(f, keys);

	plan_commit(p);
	plan_run(p);
	assert_int_equal(collapse_all(f), 0);
	plan_ran(p);
	assert_int_equal(collapse_all(f), N / B);
}

/* A fork's blocks are its own, too; what is trimmed or closed in between is left alone. */
static void test_duplicates_of_a_fork(void **state)
{
	struct fixture *f = *state;
	uint64_t keys[2];
	struct plan *p = compute_twice(f, keys);

	plan_commit(p);
	plan_end(p);
	assert_int_equal(seq_fork(&f->w.engines, f->e, keys[1], ++f->key, 2 * B + 5).res, 0);
	(void)collapse_step(f->c);
	assert_int_equal(seq_trim(f->e, keys[1], 3 * B + 1, NULL).res, 0);
	assert_int_equal(collapse_all(f), 3 + 2);
	assert_int_equal(seq_trim(f->e, keys[1], B, NULL).res, 0);
	close_seq(f, keys[1]);
	assert_int_equal(collapse_all(f), 0);
}

/* ---- Priorities ---- */

static void leave_with_priority(struct fixture *f, uint32_t priority, const uint64_t *tokens, uint32_t n)
{
	struct opening o = {0};
	struct row_request row = {.wire = {.key = ++f->key, .publish_upto = n}, .tokens = tokens};
	struct plan *p;

	assert_int_equal(seq_open_begin(&f->w.engines, f->e, f->key, 0, n, UINT64_MAX, &o).res, 0);
	seq_set_priority(o.seq, priority);
	while (o.seq)
		assert_true(seq_open_step(&o, tokens + o.at, opening_slice(&o)).res <= 0);
	row.wire.start = seq_find(f->e, f->key)->in[0].held.length;
	if (row.wire.start < n) {
		row.wire.num_tokens = n - (uint32_t)row.wire.start;
		row.tokens = tokens + row.wire.start;
		p = plan_rows(f, &row, 1);
		plan_commit(p);
		plan_end(p);
	}
	close_seq(f, f->key);
	check(f);
}

/* The lowest goes first, however new it is; what a child needs is as high as the child. */
static void test_priority(void **state)
{
	struct fixture *f = *state;
	uint64_t low[N], high[N], next[N];
	uint64_t blocks = (N + B - 1) / B;

	for (uint64_t i = 0; i < N; i++) {
		low[i] = 5000 + i;
		high[i] = 6000 + i;
		next[i] = i < 2 * B ? low[i] : 7000 + i;
	}
	leave_with_priority(f, 3, high, N);
	leave_with_priority(f, 0, low, N);
	leave_with_priority(f, 5, next, 3 * B); /* raises the two blocks that it shares with `low` */
	assert_int_equal(hit(f, 0, high, N), N);
	for (uint64_t i = 0; i < blocks - 2; i++)
		assert_true(cache_evict(f->c));
	check(f);
	assert_int_equal(hit(f, 0, low, N), 2 * B);
	assert_int_equal(hit(f, 0, high, N), N);
	for (uint64_t i = 0; i < blocks; i++)
		assert_true(cache_evict(f->c));
	assert_int_equal(hit(f, 0, high, N), 0);
	assert_int_equal(hit(f, 0, next, N), 3 * B);
	/* A hit by one of a higher priority raises what it hits, and only that. */
	leave_with_priority(f, 0, high, N);
	leave_with_priority(f, 7, high, 2 * B);
	while (f->c->evictable > 2)
		assert_true(cache_evict(f->c));
	check(f);
	assert_int_equal(hit(f, 0, high, N), 2 * B);
	assert_int_equal(hit(f, 0, next, N), 0);
	cache_level(f->c);
	check(f);
	while (cache_evict(f->c))
		check(f);
	assert_int_equal(f->c->total, f->c->free);
}

/* A branch that leaves inside a block raises the block that it left, and all before it. */
static void test_priority_of_a_branch(void **state)
{
	struct fixture *f = *state;
	uint64_t branch[2 * B];

	for (uint32_t i = 0; i < 2 * B; i++)
		branch[i] = f->tokens[i] + (i < B + 5 ? 0 : 5000);
	leave_with_priority(f, 0, f->tokens, 4 * B);
	leave_with_priority(f, 4, branch, 2 * B);
	for (int left = 4 + 1; left > 3; left--)
		assert_true(
			cache_evict(f->c)); /* the first prompt's end, though the newest of it is the rest's age */
	assert_int_equal(hit(f, 0, f->tokens, 4 * B), 2 * B);
	assert_int_equal(hit(f, 0, branch, 2 * B), 2 * B);
	/* A low one that comes later changes nothing. */
	leave_with_priority(f, 0, branch, 2 * B);
	leave_with_priority(f, 2, f->tokens + 1, B);
	assert_true(cache_evict(f->c));
	assert_int_equal(hit(f, 0, f->tokens + 1, B), 0);
	assert_int_equal(hit(f, 0, branch, 2 * B), 2 * B);
}

/* ---- Quotas ---- */

static int32_t plan_status(struct fixture *f, uint64_t key, const uint64_t *tokens, uint32_t n)
{
	const struct row_request row = {.wire = {.key = key, .num_tokens = n, .publish_upto = n}, .tokens = tokens};
	struct plan *p = NULL;
	int32_t status;

	assert_int_equal(plan_make(f, f->e, 0, 1, &row, 1, &f->plans, &p), 0);
	status = p->rows[0].status;
	if (!status)
		plan_commit(p);
	plan_end(p);
	return status;
}

/* Beyond its quota a namespace takes what is free, and nothing of what others have cached. */
static void test_namespace_quota(void **state)
{
	struct fixture *f = *state;
	uint32_t ns = world_ns(&f->w, f->e, "tenant", NULL), all = SLABS * 1024;
	static uint64_t mine[SLABS * 1024], other[SLABS * 1024];
	uint64_t key;

	for (uint64_t i = 0; i < SLABS * 1024; i++) {
		mine[i] = 10000 + i;
		other[i] = 20000 + i;
	}
	f->w.pool.namespace_quota = (uint64_t)all / 4 * 2048; /* a block takes 2 KiB a token */
	(void)open_seq(f, ns, mine, 0, 0);
	assert_int_equal(plan_status(f, f->key, mine, all / 2), 0); /* the pool is empty */
	close_seq(f, f->key);
	close_seq(f, compute(f, 0, other, all / 2));
	assert_int_equal(f->c->free, 0);
	(void)open_seq(f, ns, other, 0, 0);
	key = f->key;
	assert_int_equal(plan_status(f, key, other, all / 4 + 1), -EDQUOT);
	assert_int_equal(hit(f, 0, other, all), all / 2);
	assert_int_equal(hit(f, ns, mine, all), all / 2);
	assert_int_equal(plan_status(f, key, other, all / 4), 0);
	close_seq(f, key);
	f->w.pool.namespace_quota = UINT64_MAX;
	(void)open_seq(f, ns, other, 0, 0);
	assert_int_equal(plan_status(f, f->key, other, all / 2), 0);
	close_seq(f, f->key);
	check(f);
}

static void test_session_quota(void **state)
{
	struct fixture *f = *state;
	struct engine *first = f->e;
	uint32_t all = SLABS * 1024;
	static uint64_t mine[SLABS * 1024];

	for (uint64_t i = 0; i < SLABS * 1024; i++)
		mine[i] = 10000 + i;
	close_seq(f, compute(f, 0, mine, all)); /* nothing is free */
	f->w.pool.engine_quota = (uint64_t)all / 4 * 2048;
	f->e = world_engine(&f->w);
	world_cache(&f->w, f->e, "radix", B);
	(void)open_seq(f, 0, mine + 1, 0, 0);
	assert_int_equal(plan_status(f, f->key, mine + 1, all / 4 + 1), -EDQUOT);
	assert_int_equal(plan_status(f, f->key, mine + 1, all / 4), 0);
	/* What its own sequences share counts once. */
	for (int i = 0; i < 8; i++)
		assert_int_equal(seq_fork(&f->w.engines, f->e, f->key, f->key + 1 + (uint64_t)i, all / 4).res, 0);
	assert_int_equal(f->e->caches[0].account->used, all / 4 / B);
	while (engine_close_some(f->e, 100))
		;
	assert_int_equal(f->e->caches[0].account->used, 0);
	engine_leave(&f->w.engines, f->e);
	f->e = first;
	assert_null(f->c->accounts);
	check(f);
}

/* ---- Memory ---- */

/* Eight samples of one prompt of 2k tokens store it once. */
static void test_parallel_sampling(void **state)
{
	enum { PROMPT = 2000, SAMPLES = 8, NEW = 40 };
	struct fixture *f = *state;
	static uint64_t prompt[PROMPT];
	uint64_t key, before;
	struct row_request rows[SAMPLES];
	struct plan *p;

	for (uint64_t i = 0; i < PROMPT; i++)
		prompt[i] = 30000 + i;
	key = compute(f, 0, prompt, PROMPT);
	before = referenced(f->c);
	assert_int_equal(before, (PROMPT + B - 1) / B);
	for (uint64_t s = 0; s < SAMPLES; s++) {
		assert_int_equal(seq_fork(&f->w.engines, f->e, key, ++f->key, PROMPT).res, 0);
		rows[s] = (struct row_request){
			.wire = {.key = f->key, .start = PROMPT, .num_tokens = NEW, .publish_upto = PROMPT + NEW},
			.tokens = prompt + 100 * s};
	}
	assert_int_equal(referenced(f->c), before);
	p = plan_rows(f, rows, SAMPLES);
	plan_commit(p);
	plan_end(p);
	assert_true(referenced(f->c) <= before + SAMPLES * (NEW / B + 1));
	for (uint64_t k = key; k <= f->key; k++)
		close_seq(f, k);
	check(f);
}

/* Sequences of a published trace's lengths take hardly more than their tokens. */
static void test_memory_overhead(void **state)
{
	enum { SEQUENCES = 200 };
	struct fixture *f = *state;
	static uint64_t tokens[TRACE_LONGEST];
	uint64_t random = 77, blocks = 0, ideal = 0;
	struct row_request row = {.tokens = tokens};

	for (uint64_t i = 0; i < SEQUENCES; i++) {
		uint32_t n = trace_length((uint32_t)(next_random(&random) >> 32));
		struct plan *p;

		for (uint64_t k = 0; k < n; k++)
			tokens[k] = (i << 32) + k;
		(void)open_seq(f, 0, tokens, 0, 0);
		row.wire = (struct attnd_wire_row){.key = f->key, .num_tokens = n, .publish_upto = n};
		p = plan_rows(f, &row, 1);
		plan_commit(p);
		plan_end(p);
		blocks += referenced(f->c);
		ideal += n;
		close_seq(f, f->key);
	}
	assert_true(ideal >= UINT64_C(400) * SEQUENCES);
	assert_true((double)(blocks * B) <= 1.04 * (double)ideal);
}

/* With fewer KV heads than nodes a chunk lies on one node, the next on the next, as long as there is room. */
static void test_chunks_on_nodes(void **state)
{
	static uint64_t tokens[4 * 512 + B];
	struct fixture f = {0};
	struct plan *p;
	struct row_request row = {.tokens = tokens};
	uint32_t n = sizeof(tokens) / sizeof(tokens[0]), on[2] = {0};

	(void)state;
	world_nodes = 2;
	world_open(&f.w, SLABS, 64);
	world_nodes = 1;
	f.e = world_engine(&f.w);
	f.c = f.e->caches[world_cache(&f.w, f.e, "nodes", B)].cache;
	assert_true(f.c->spread);
	assert_int_equal(f.c->blocks_per_slab, 2 * 1024 / B);
	for (uint64_t k = 0; k < n; k++)
		tokens[k] = k;
	(void)open_seq(&f, 0, tokens, 0, 0);
	row.wire = (struct attnd_wire_row){.key = f.key, .num_tokens = n, .publish_upto = n};
	p = plan_rows(&f, &row, 1);
	for (uint32_t i = 0; i * B < n; i++)
		assert_int_equal(cache_block_node(f.c, plan_entry(p, p->rows, i)->id), i * B / f.c->fmt.chunk % 2);
	plan_commit(p);
	plan_end(p);
	/* What does not find room on its node lies on the other. */
	while (cache_free_slabs(f.c) || f.c->free) {
		uint32_t id = cache_alloc(f.c, NULL, 0, 0);

		on[cache_block_node(f.c, id)]++;
	}
	assert_true(on[0] && on[1]);
	assert_int_equal(referenced(f.c), SLABS * f.c->blocks_per_slab);
	assert_null(cache_check(f.c));
	for (uint32_t id = 0; id < SLABS * f.c->blocks_per_slab; id++)
		if (cache_aux(f.c, id)->state == BLOCK_PRIVATE)
			cache_unref(f.c, NULL, id);
	close_seq(&f, f.key);
	world_close(&f.w);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
#define TEST(f) cmocka_unit_test_setup_teardown(f, setup, teardown)
		TEST(test_exact_lengths),
		TEST(test_splits),
		TEST(test_held_is_not_evicted),
		TEST(test_held_until_the_last_leaves),
		TEST(test_hold_ends_with_its_prefix),
		TEST(test_leaves_first),
		TEST(test_branches_before_their_stem),
		TEST(test_stem_is_as_new_as_its_branches),
		TEST(test_oldest_first),
		TEST(test_no_more_than_needed),
		TEST(test_namespaces_apart),
		TEST(test_duplicates),
		TEST(test_unequal_duplicates),
		TEST(test_duplicates_of_a_running_job),
		TEST(test_duplicates_of_a_fork),
		TEST(test_priority),
		TEST(test_priority_of_a_branch),
		TEST(test_namespace_quota),
		TEST(test_session_quota),
		TEST(test_parallel_sampling),
		cmocka_unit_test_setup_teardown(test_memory_overhead, setup_for_traces, teardown),
		cmocka_unit_test(test_chunks_on_nodes),
	};

	return cmocka_run_group_tests_name("radix", tests, NULL, NULL);
}
