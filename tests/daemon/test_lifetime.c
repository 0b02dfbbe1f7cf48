/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Faults that users of comparable caches reported, and rules of the tree, one by one.
 *
 * In: a small pool. Out: TAP. Next: daemon/cache.c, tree.c, engine.c, plan.c.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "../../daemon/collapse.h"
#include "../../daemon/export.h"
#include "world.h"

enum { B = 16, SLAB = 64 /* blocks of 16 tokens */, MOST = 4096 };

static struct world w;
static struct engine *e;
static struct cache *c;
static struct plan *plans;
static uint64_t keys;

static int setup_slabs(uint32_t slabs)
{
	world_open(&w, slabs, 64);
	e = world_engine(&w);
	world_cache(&w, e, "model", B);
	c = e->caches[0].cache;
	plans = NULL;
	return 0;
}

static int setup(void **state)
{
	(void)state;
	return setup_slabs(1);
}

static int setup_three(void **state)
{
	(void)state;
	return setup_slabs(3);
}

static int teardown(void **state)
{
	(void)state;
	while (plans)
		plan_end(plans);
	world_close(&w);
	return 0;
}

/* n tokens that begin with `first` and go on by counting. */
static const uint64_t *tokens(uint64_t first, uint32_t n)
{
	static uint64_t t[MOST];

	assert_in_range(n, 0, MOST);
	for (uint32_t i = 0; i < n; i++)
		t[i] = first * 1000000 + i;
	return t;
}

static uint64_t open_in(struct engine *en, uint32_t ns, uint64_t key, const uint64_t *t, uint32_t n)
{
	struct answer a = seq_open(&w.engines, en, key, ns, t, n, UINT64_MAX);

	assert_int_equal(a.res, 0);
	return a.value;
}

static uint64_t open_seq(uint64_t key, const uint64_t *t, uint32_t n)
{
	return open_in(e, 0, key, t, n);
}

static void close_seq(uint64_t key)
{
	assert_int_equal(seq_close(e, key, &plans).res, 0);
}

/* One row: its status; *ret (may be NULL) stays open, else it is ended. */
static int32_t plan_in(struct engine *en, uint32_t cache, uint64_t key, uint32_t start, const uint64_t *t, uint32_t n,
		       uint64_t upto, struct plan **ret)
{
	const struct row_request r = {.wire = {.key = key, .start = start, .num_tokens = n, .publish_upto = upto},
				      .tokens = t};
	struct plan *p;
	int32_t status;

	assert_int_equal(world_plan(&w, &plans, en, cache, &r, 1, &plans, &p), 0);
	status = p->rows[0].status;
	if (ret)
		*ret = p;
	else
		plan_end(p);
	return status;
}

/* Extend and publish up to `upto`. */
static void extend_in(struct engine *en, uint32_t cache, uint64_t key, uint32_t start, const uint64_t *t, uint32_t n,
		      uint64_t upto)
{
	struct plan *p;

	assert_int_equal(plan_in(en, cache, key, start, t, n, upto, &p), 0);
	plan_commit(p);
	plan_end(p);
	assert_null(cache_check(en->caches[cache].cache));
}

static void extend(uint64_t key, uint32_t start, const uint64_t *t, uint32_t n, uint64_t upto)
{
	extend_in(e, 0, key, start, t, n, upto);
}

/* Publish n tokens and let go of them. */
static void leave_cached(uint64_t first, uint32_t n)
{
	open_seq(++keys, NULL, 0);
	extend(keys, 0, tokens(first, n), n, UINT64_MAX);
	close_seq(keys);
}

/* How many of these tokens are cached, looked up without trace. */
static uint64_t cached(uint64_t first, uint32_t n)
{
	uint64_t before = referenced(c), hit = open_seq(++keys, tokens(first, n), n);

	close_seq(keys);
	assert_int_equal(referenced(c), before);
	return hit;
}

/* ---- Holding ---- */

static void test_abandoned_lookup(void **state)
{
	(void)state;
	leave_cached(1, 10 * B);
	assert_int_equal(referenced(c), 0);
	assert_int_equal(c->evictable, 10);
	open_seq(101, tokens(1, 7 * B), 7 * B);
	assert_int_equal(referenced(c), 7);
	close_seq(101);
	assert_int_equal(referenced(c), 0);
	assert_int_equal(c->evictable, 10);
	assert_int_equal(open_in(e, world_ns(&w, e, "t", NULL), 102, tokens(1, 7 * B), 7 * B), 0);
	assert_int_equal(referenced(c), 0);
}

static void test_open_pins(void **state)
{
	(void)state;
	leave_cached(1, 8 * B);
	assert_int_equal(open_seq(101, tokens(1, 8 * B), 8 * B), 8 * B);
	for (uint64_t i = 2; i < 40; i++)
		leave_cached(i, 10 * B); /* evicts all that it may */
	assert_true(c->evicted);
	assert_int_equal(cached(1, 8 * B), 8 * B);
	for (uint32_t i = 0; i < 8 * B; i++)
		assert_int_equal(cache_tokens(c, seq_find(e, 101)->in[0].held.table[i / B].id)[i % B], 1000000 + i);
	close_seq(101);
}

static void test_open_twice(void **state)
{
	(void)state;
	leave_cached(1, 3 * B);
	assert_int_equal(open_seq(101, tokens(1, 6 * B), 6 * B), 3 * B);
	leave_cached(1, 6 * B); /* more is there now */
	assert_int_equal(open_seq(101, tokens(1, 6 * B), 6 * B), 3 * B);
	assert_int_equal(open_seq(101, tokens(9, 1), 1), 3 * B);
	assert_int_equal(seq_trim(e, 101, B, &plans).res, 0);
	assert_int_equal(seq_open(&w.engines, e, 101, 0, tokens(1, B), B, UINT64_MAX).res, -EEXIST);
	close_seq(101);
}

/* ---- Eviction ---- */

static void test_exactly_what_is_needed(void **state)
{
	(void)state;
	for (uint64_t i = 0; i < 4; i++)
		leave_cached(i, SLAB / 4 * B);
	assert_int_equal(c->free, 0);
	assert_int_equal(c->evictable, SLAB);
	open_seq(101, NULL, 0);
	extend(101, 0, tokens(9, 5 * B - 3), 5 * B - 3, UINT64_MAX);
	assert_int_equal(c->evicted, 5);
	extend(101, 5 * B - 3, tokens(8, 3), 3, UINT64_MAX);
	assert_int_equal(c->evicted, 5);
	extend(101, 5 * B, tokens(8, 1), 1, UINT64_MAX);
	assert_int_equal(c->evicted, 6);
	close_seq(101);
}

static void test_oldest_leaf_first(void **state)
{
	(void)state;
	for (uint64_t i = 0; i < 4; i++)
		leave_cached(i, SLAB / 4 * B);
	assert_int_equal(cached(0, MOST), SLAB / 4 * B); /* used again: the newest now */
	leave_cached(9, 3 * B);
	assert_int_equal(cached(0, MOST), SLAB / 4 * B);
	assert_int_equal(cached(1, MOST), (SLAB / 4 - 3) * B); /* from its end: leaves only */
	assert_int_equal(cached(2, MOST), SLAB / 4 * B);
	assert_int_equal(cached(3, MOST), SLAB / 4 * B);
}

/* Nearly everything is evictable: nothing is "full". */
static void test_progress(void **state)
{
	(void)state;
	leave_cached(1, SLAB * B);
	open_seq(101, NULL, 0);
	extend(101, 0, tokens(2, (SLAB - 1) * B), (SLAB - 1) * B, 0);
	assert_int_equal(c->evicted, SLAB - 1);
	assert_int_equal(cached(1, B), B);
	assert_int_equal(plan_in(e, 0, 101, (SLAB - 1) * B, tokens(3, B + 1), B + 1, 0, NULL), -ENOMEM);
	assert_int_equal(c->evicted, SLAB - 1); /* refused as a whole: nothing was evicted for it */
	assert_int_equal(referenced(c), SLAB - 1);
	close_seq(101);
	assert_int_equal(c->free, SLAB - 1);
}

/* ---- Names and collisions ---- */

static void test_namespaces(void **state)
{
	uint32_t a = world_ns(&w, e, "a", "bc"), b = world_ns(&w, e, "ab", "c"), d = world_ns(&w, e, "abc", NULL);
	struct plan *p;

	(void)state;
	assert_true(a != b && b != d && a != d && a && b && d);
	assert_int_equal(world_ns(&w, e, "a", "bc"), a);
	assert_int_equal(open_in(e, a, 101, NULL, 0), 0);
	assert_int_equal(plan_in(e, 0, 101, 0, tokens(1, 3 * B), 3 * B, UINT64_MAX, &p), 0);
	plan_commit(p);
	assert_int_equal(open_in(e, a, 102, tokens(1, 3 * B), 3 * B), 3 * B);
	assert_int_equal(open_in(e, b, 103, tokens(1, 3 * B), 3 * B), 0);
	assert_int_equal(open_in(e, d, 104, tokens(1, 3 * B), 3 * B), 0);
	assert_int_equal(open_in(e, 0, 105, tokens(1, 3 * B), 3 * B), 0);
}

static void test_collisions(void **state)
{
	(void)state;
	leave_cached(99, 1);
	while (cache_evict(c))
		;
	assert_int_equal(c->index.used, 0);
	c->index.mask = 0; /* one bucket for all */
	for (uint64_t i = 0; i < 20; i++)
		leave_cached(i, 2 * B + 5);
	for (uint64_t i = 0; i < 20; i++)
		assert_int_equal(cached(i, 3 * B), 2 * B + 5);
	assert_int_equal(cached(20, 3 * B), 0);
	while (cache_evict(c))
		assert_null(cache_check(c));
}

/* ---- Publishing ---- */

static void test_failed_write_is_invisible(void **state)
{
	struct plan *p;

	(void)state;
	open_seq(101, NULL, 0);
	extend(101, 0, tokens(1, B + 3), B + 3, UINT64_MAX);
	assert_int_equal(plan_in(e, 0, 101, B + 3, tokens(1, 4 * B) + B + 3, 2 * B, UINT64_MAX, &p), 0);
	plan_end(p); /* no LAST job */
	assert_int_equal(cached(1, 4 * B), B + 3);
	assert_int_equal(referenced(c), 2);
	/* Another may now write where the plan would have. */
	open_seq(102, tokens(1, B + 3), B + 3);
	close_seq(101);
	extend(102, B + 3, tokens(2, 5), 5, UINT64_MAX);
	assert_int_equal(referenced(c), 2);
	close_seq(102);
}

static void test_drafts(void **state)
{
	(void)state;
	open_seq(101, NULL, 0);
	extend(101, 0, tokens(1, B), B, B);
	extend(101, B, tokens(1, B + 6) + B, 6, B + 2);
	assert_int_equal(cached(1, 2 * B), B + 2);
	extend(101, B + 3, tokens(7, 2), 2, B + 5); /* the fourth draft was rejected */
	assert_int_equal(cached(1, 2 * B), B + 3);
	close_seq(101);
	assert_int_equal(cached(1, 2 * B), B + 3);
}

/* Two clients prefill the same prompt at once: one copy remains. */
static void test_twins(void **state)
{
	const uint32_t n = 5 * B + 3;
	const struct row_request r[2] = {
		{.wire = {.key = 101, .num_tokens = n, .publish_upto = UINT64_MAX}, .tokens = tokens(1, n)},
		{.wire = {.key = 102, .num_tokens = n, .publish_upto = UINT64_MAX}, .tokens = tokens(1, n)}};
	struct plan *p;

	(void)state;
	open_seq(101, NULL, 0);
	open_seq(102, NULL, 0);
	assert_int_equal(plan_make(&plans, e, 0, 1, r, 2, &plans, &p), 0);
	assert_int_equal(referenced(c), 12);
	plan_commit(p);
	plan_end(p);
	/* The second one's continuation is taken over from the first. */
	extend(101, n, tokens(2, 4), 4, UINT64_MAX);
	assert_int_equal(plan_in(e, 0, 102, n, tokens(2, 4), 4, UINT64_MAX, &p), 0);
	assert_int_equal(p->rows[0].cached, 4);
	plan_end(p);
	close_seq(101);
	close_seq(102);
	assert_int_equal(c->evictable, 6);
	assert_int_equal(referenced(c), 0);
}

/* What an EXPORT reads stays as it is, though the sequence's blocks become the tree's meanwhile. */
static void test_twins_exported(void **state)
{
	const uint32_t n = 5 * B;
	const struct row_request r[2] = {
		{.wire = {.key = 101, .num_tokens = n, .publish_upto = UINT64_MAX}, .tokens = tokens(1, n)},
		{.wire = {.key = 102, .num_tokens = n, .publish_upto = UINT64_MAX}, .tokens = tokens(1, n)}};
	uint32_t ids[5];
	struct export x;
	struct plan *p;

	(void)state;
	open_seq(101, NULL, 0);
	open_seq(102, NULL, 0);
	assert_int_equal(plan_make(&plans, e, 0, 1, r, 2, &plans, &p), 0);
	plan_commit(p);
	plan_end(p);
	assert_non_null(c->twins);
	assert_int_equal(export_begin(&x, seq_find(e, 102), 0, 1, n - 1, 99), 0);
	x.layer = 3;
	for (int i = 0; i < 5; i++)
		ids[i] = x.held.table[i].id;
	while (collapse_step(c))
		;
	assert_int_equal(c->collapsed, 5);
	for (int i = 0; i < 5; i++)
		assert_int_equal(x.held.table[i].id, ids[i]);
	assert_int_equal(referenced(c), 10);
	export_end(&x);
	assert_int_equal(referenced(c), 5);
	close_seq(101);
	close_seq(102);
}

/* What is acknowledged is seen at once, though another has computed the same in the tail's place, for itself so far.
 */
static void test_published_before_the_owner(void **state)
{
	(void)state;
	open_seq(101, NULL, 0);
	extend(101, 0, tokens(1, 5), 5, 5);
	open_seq(102, tokens(1, 5), 5);
	extend(101, 5, tokens(2, 3), 3, 5); /* in place, private */
	extend(102, 5, tokens(2, 3), 3, UINT64_MAX);
	assert_int_equal(c->index.used, 2);
	assert_int_equal(seq_find(e, 102)->in[0].held.stand_pos, 8);
	extend(101, 8, tokens(3, 1), 1, UINT64_MAX); /* not in place: those slots are behind 102's block now */
	assert_int_equal(seq_find(e, 101)->in[0].held.stand_pos, 9);
	extend(102, 8, tokens(3, 2), 2, UINT64_MAX);
	assert_int_equal(seq_find(e, 102)->in[0].held.stand_pos, 10);
	close_seq(101);
	close_seq(102);
}

/* So with a plan under way that writes in the tail's place: what it has beyond the other's is published, too. */
static void test_published_beside_a_writer(void **state)
{
	struct plan *p;

	(void)state;
	open_seq(101, NULL, 0);
	extend(101, 0, tokens(1, 5), 5, 5);
	open_seq(102, tokens(1, 5), 5);
	assert_int_equal(plan_in(e, 0, 101, 5, tokens(2, B), B, UINT64_MAX, &p), 0);
	assert_false(p->rows[0].copies);
	extend(102, 5, tokens(2, 3), 3, UINT64_MAX);
	assert_int_equal(seq_find(e, 102)->in[0].held.stand_pos, 8);
	plan_commit(p);
	plan_end(p);
	assert_int_equal(seq_find(e, 101)->in[0].held.stand_pos, B + 5);
	assert_int_equal(c->index.used,
			 4); /* the tail, 102's from its sixth token on, 101's from its ninth, the next */
	assert_null(cache_check(c));
	close_seq(101);
	close_seq(102);
	assert_int_equal(referenced(c), 0);
}

/* After a fork over private slots neither side writes in the block that both read. */
static void test_frozen_tail(void **state)
{
	struct plan *p, *q;

	(void)state;
	open_seq(101, NULL, 0);
	extend(101, 0, tokens(1, 9), 9, 4);
	assert_int_equal(seq_fork(&w.engines, e, 101, 102, 9).res, 0);
	assert_int_equal(plan_in(e, 0, 101, 9, tokens(2, 1), 1, 0, &p), 0);
	assert_true(p->rows[0].copies && p->rows[0].copy_slots == 9);
	assert_int_equal(plan_in(e, 0, 102, 9, tokens(3, 1), 1, 0, &q), 0);
	assert_true(q->rows[0].copies && q->rows[0].copy_slots == 9);
	plan_end(p);
	plan_end(q);
	close_seq(101);
	close_seq(102);
}

/* So with a fork at a block's end, where the block is not even the tail. */
static void test_frozen_full_block(void **state)
{
	struct plan *p;

	(void)state;
	open_seq(101, NULL, 0);
	extend(101, 0, tokens(1, B), B, 10); /* slots 10.. are private */
	assert_int_equal(seq_fork(&w.engines, e, 101, 102, B).res, 0);
	close_seq(101);
	assert_int_equal(open_seq(103, tokens(1, B), B), 10);
	assert_int_equal(plan_in(e, 0, 103, 10, tokens(2, 2), 2, 0, &p), 0);
	assert_true(p->rows[0].copies);
	plan_end(p);
	close_seq(102);
	close_seq(103);
}

/* An abandoned row that had taken a block over leaves no claim on it. */
static void test_abandoned_in_place(void **state)
{
	struct plan *p;

	(void)state;
	leave_cached(1, 6);
	open_seq(101, tokens(1, 2), 2);
	open_seq(102, tokens(1, 6), 6);
	assert_int_equal(plan_in(e, 0, 101, 2, tokens(1, 12) + 2, 10, UINT64_MAX, &p), 0);
	assert_int_equal(p->rows[0].cached, 4);
	assert_false(p->rows[0].copies);
	plan_end(p);
	assert_int_equal(plan_in(e, 0, 102, 6, tokens(1, 12) + 6, 6, UINT64_MAX, &p), 0);
	assert_false(p->rows[0].copies);
	plan_commit(p);
	plan_end(p);
	assert_int_equal(cached(1, B), 12);
	close_seq(101);
	close_seq(102);
}

/* ---- Plans and jobs ---- */

static void test_busy(void **state)
{
	const struct row_request r = {.wire = {.key = 101, .num_tokens = 3}, .tokens = tokens(1, 3)};
	struct plan *p, *q = NULL;

	(void)state;
	open_seq(101, NULL, 0);
	assert_int_equal(plan_in(e, 0, 101, 0, tokens(1, 3), 3, 0, &p), 0);
	plan_run(p);
	assert_true(plan_busy(e, 0, 101));
	assert_int_equal(plan_make(&plans, e, 0, 2, &r, 1, &plans, &q), -EBUSY);
	assert_null(q);
	assert_ptr_equal(plans, p);
	/* The engine's owner dies while the job runs: the plan ends with the job. */
	assert_int_equal(engine_close_some(e, 8), 1);
	assert_true(p->orphan);
	assert_null(seq_find(e, 101));
	assert_int_equal(referenced(c), 1);
	plan_ran(p);
	plan_end(p);
	assert_int_equal(referenced(c), 0);
	assert_int_equal(e->num_seqs, 0);
}

static void test_close_and_trim_by_another(void **state)
{
	int other;
	struct plan *p;

	(void)state;
	open_seq(101, NULL, 0);
	extend(101, 0, tokens(1, 2 * B), 2 * B, 0);
	assert_int_equal(plan_in(e, 0, 101, 2 * B, tokens(2, B), B, 0, &p), 0);
	assert_int_equal(seq_trim(e, 101, B, &other).res, 0);
	assert_int_equal(seq_trim(e, 101, B + 1, &other).res, -ERANGE); /* the trim counts already */
	assert_int_equal(referenced(c), 3);
	plan_commit(p);
	assert_int_equal(referenced(c), 3);
	plan_end(p);
	assert_int_equal(referenced(c), 1);
	assert_int_equal(plan_in(e, 0, 101, B, tokens(2, 1), 1, 0, &p), 0);
	assert_int_equal(seq_close(e, 101, &other).res, 0);
	assert_int_equal(seq_close(e, 101, &other).res, -ENOENT);
	assert_int_equal(referenced(c), 2);
	plan_end(p);
	assert_int_equal(referenced(c), 0);
}

/* ---- Several caches, several engines ---- */

static void test_slabs_move(void **state)
{
	struct engine *f = world_engine(&w);
	uint32_t other = world_cache(&w, f, "other", 64);
	struct cache *o = f->caches[other].cache;

	(void)state;
	leave_cached(1, 3 * SLAB * B);
	assert_int_equal(w.pool.num_free, 0);
	open_seq(101, tokens(1, B), B); /* one block of one slab is held */
	open_in(f, 0, 201, NULL, 0);
	for (uint32_t slab = 1; slab <= 2; slab++) {
		assert_int_equal(plan_in(f, other, 201, 0, tokens(2, slab * 1024), slab * 1024, 0, NULL), 0);
		assert_int_equal(o->total, slab * 16);
		assert_int_equal(c->total, (3 - slab) * SLAB);
		assert_null(cache_check(c));
		assert_null(cache_check(o));
	}
	assert_int_equal(plan_in(f, other, 201, 0, tokens(2, 2049), 2049, 0, NULL), -ENOMEM);
	assert_int_equal(c->total, SLAB);
	assert_int_equal(cached(1, B), B);
	close_seq(101);
	leave_cached(3, 3 * SLAB * B); /* and back */
	assert_int_equal(c->total, 3 * SLAB);
	assert_int_equal(o->total, 0);
	assert_null(cache_check(o));
}

/* The byte that stands for a slot's K/V, of a block wherever it stands. */
static char *byte_of(const struct cache *o, uint32_t id, uint32_t slot)
{
	return (char *)o->pool->nodes[0].base + cache_offset(o, id) + slot * (o->block_bytes / o->block_size);
}

/* Until the copy of this block is under way. */
static void copy_begins(struct cache *o, uint32_t id)
{
	while (o->move.id != id || !o->move.done)
		assert_true(slabs_step(&w.pool));
}

/* The tail of sequence 202, in a slab that leaves; there is room for it in the cache's other one. */
static uint32_t tail_in_leaving_slab(struct engine *f, struct cache *o)
{
	uint32_t tail;

	open_in(f, 0, 201, NULL, 0);
	extend_in(f, 1, 201, 0, tokens(1, 1024), 1024, 0);
	open_in(f, 0, 202, NULL, 0);
	extend_in(f, 1, 202, 0, tokens(3, 10), 10, 0);
	assert_int_equal(o->num_slabs, 2);
	assert_int_equal(seq_trim(f, 201, 512, NULL).res, 0);
	tail = seq_find(f, 202)->in[1].held.table[0].id;
	for (uint32_t i = 0; i < 10; i++)
		*byte_of(o, tail, i) = (char)i;
	o->max_slabs = 1;
	assert_true(cache_shrink(o));
	return tail;
}

/* Written to while it is being copied: what was copied before does not count. */
static void test_move_written(void **state)
{
	struct engine *f = world_engine(&w);
	struct cache *o;
	struct plan *p;
	uint32_t tail;

	(void)state;
	world_cache(&w, f, "model", B);
	o = f->caches[world_cache(&w, f, "large", 128)].cache;
	tail = tail_in_leaving_slab(f, o);
	/* Its turn comes last while a plan may write to it, and that is given up. */
	assert_int_equal(plan_in(f, 1, 202, 10, tokens(5, 5), 5, 0, &p), 0);
	while (o->move.phase != MOVE_WRITTEN)
		assert_true(slabs_step(&w.pool));
	plan_end(p);
	copy_begins(o, tail);
	/* The plan came after the copy had begun: the whole block is copied again. */
	assert_int_equal(plan_in(f, 1, 202, 10, tokens(4, 5), 5, 0, &p), 0);
	assert_int_equal(plan_entry(p, p->rows, 0)->id, tail); /* in place */
	assert_false(slabs_hold(o, p));
	plan_run(p);
	for (uint32_t i = 10; i < 15; i++)
		*byte_of(o, tail, i) = (char)i;
	/* A job that writes runs: the block stays. Then the next one waits for its copy. */
	world_settle(&w);
	assert_true(slabs_hold(o, p));
	assert_int_equal(o->num_slabs, 2);
	plan_ran(p);
	copy_begins(o, tail);
	assert_true(slabs_hold(o, p));
	world_settle(&w);
	assert_false(slabs_hold(o, p));
	assert_int_equal(o->num_slabs, 1);
	for (uint32_t i = 0; i < 15; i++)
		assert_int_equal(*byte_of(o, tail, i), (char)i);
	plan_commit(p);
	plan_end(p);
	assert_null(cache_check(o));
}

/* A job that reads keeps the old places until it has ended, and holds up nobody. */
static void test_move_read(void **state)
{
	struct engine *f = world_engine(&w);
	struct cache *o;
	struct plan *p;
	uint32_t tail;
	char *old;

	(void)state;
	world_cache(&w, f, "model", B);
	o = f->caches[world_cache(&w, f, "large", 128)].cache;
	tail = tail_in_leaving_slab(f, o);
	old = byte_of(o, tail, 0);
	assert_int_equal(plan_in(f, 1, 202, 9, tokens(4, 1), 1, 0, &p), 0); /* writes to a copy */
	assert_int_not_equal(plan_entry(p, p->rows, 0)->id, tail);
	plan_run(p);
	world_settle(&w);
	assert_ptr_not_equal(byte_of(o, tail, 0), old);
	assert_int_equal(o->num_slabs, 2);
	for (uint32_t i = 0; i < 9; i++)
		assert_int_equal(*byte_of(o, tail, i), old[i * (o->block_bytes / o->block_size)]);
	plan_ran(p);
	world_settle(&w);
	assert_int_equal(o->num_slabs, 1);
	plan_end(p);
	assert_null(cache_check(o));
}

/* A cache keeps its minimum and takes no more than its maximum; both change while it lives. */
static void test_shares(void **state)
{
	struct engine *f = world_engine(&w);
	struct cache *o = f->caches[world_cache(&w, f, "other", B)].cache;

	(void)state;
	w.pool.num_shares = 2;
	strcpy(w.pool.shares[0].name, "model");
	w.pool.shares[0].min = 34; /* one slab of three */
	w.pool.shares[0].max = 67; /* two */
	strcpy(w.pool.shares[1].name, "nobody");
	w.pool.shares[1].max = 1;
	cache_set_share(c);
	cache_set_share(o);
	assert_int_equal(cache_capacity(c), 2 * SLAB * B);
	open_in(f, 0, 201, NULL, 0);
	assert_int_equal(plan_in(f, 0, 201, 0, tokens(1, 2 * SLAB * B + 1), 2 * SLAB * B + 1, 0, NULL), -ENOMEM);
	assert_int_equal(plan_in(f, 0, 201, 0, tokens(1, 2 * SLAB * B), 2 * SLAB * B, 0, NULL), 0);
	assert_int_equal(o->total, 2 * SLAB);
	open_seq(101, NULL, 0);
	assert_int_equal(plan_in(e, 0, 101, 0, tokens(1, 2 * SLAB * B + 1), 2 * SLAB * B + 1, 0, NULL), -ENOMEM);
	extend(101, 0, tokens(1, 2 * SLAB * B), 2 * SLAB * B, UINT64_MAX); /* takes one of the other's */
	assert_int_equal(c->total, 2 * SLAB);
	close_seq(101);
	assert_int_equal(plan_in(f, 0, 201, 0, tokens(1, 2 * SLAB * B), 2 * SLAB * B, 0, NULL), 0);
	assert_int_equal(c->total, SLAB); /* its minimum */
	assert_int_equal(plan_in(f, 0, 201, 0, tokens(1, 2 * SLAB * B + 1), 2 * SLAB * B + 1, 0, NULL), -ENOMEM);
	/* Less is given back when there is room for what is held. */
	strcpy(w.pool.shares[1].name, "other");
	w.pool.shares[1].max = 34;
	cache_set_share(o);
	assert_true(cache_shrink(o));
	assert_false(cache_shrink(o));
	world_settle(&w);
	assert_false(cache_shrink(o));
	assert_int_equal(o->total, SLAB);
	assert_int_equal(w.pool.num_free, 1);
	w.pool.num_shares = 0;
	cache_set_share(o);
	cache_set_share(c);
	assert_int_equal(plan_in(f, 0, 201, 0, tokens(1, 3 * SLAB * B), 3 * SLAB * B, 0, NULL), 0);
	assert_null(cache_check(o));
}

/* What is granted is there, whatever other engines and other caches hold. */
static void test_grants(void **state)
{
	struct engine *f = world_engine(&w);
	uint32_t same = world_cache(&w, f, "model", B), other = world_cache(&w, f, "other", 64), most = 2 * SLAB * B;
	struct plan *p, *q;

	(void)state;
	assert_int_equal(world_grant(&w, e, 0, 0, 0).res, 0);
	assert_int_equal(world_grant(&w, e, 0, most - 8 * B, 4).res, 0); /* two slabs of three */
	assert_int_equal(c->claimed, 2 * SLAB);
	assert_int_equal(world_grant(&w, f, other, 1025, 0).res, -ENOMEM);
	open_in(f, 0, 201, NULL, 0);
	open_in(f, 0, 202, NULL, 0);
	/* The last slab is anybody's, of either cache, but only once. */
	assert_int_equal(plan_in(f, same, 201, 0, tokens(1, SLAB * B + 1), SLAB * B + 1, 0, NULL), -ENOMEM);
	assert_int_equal(plan_in(f, same, 201, 0, tokens(1, SLAB * B), SLAB * B, 0, &p), 0);
	assert_int_equal(plan_in(f, other, 202, 0, tokens(1, 1), 1, 0, NULL), -ENOMEM);
	open_seq(101, NULL, 0);
	assert_int_equal(plan_in(e, 0, 101, 0, tokens(2, most), most, 0, &q), 0);
	assert_int_equal(e->caches[0].account->used, 2 * SLAB);
	plan_end(q);
	assert_int_equal(e->caches[0].account->used, 0);
	assert_int_equal(c->claimed, 3 * SLAB);
	plan_end(p);
	assert_int_equal(c->claimed, 2 * SLAB);
	/* Used up, a grant leaves what it did before; given back, all of it. */
	assert_int_equal(world_grant(&w, e, 0, most, 1).res, 0);
	assert_int_equal(world_grant(&w, e, 0, 0, 0).res, 0);
	assert_int_equal(plan_in(f, other, 202, 0, tokens(1, 3 * 1024), 3 * 1024, 0, NULL), 0);
	close_seq(101);
}

/* A second grant must be covered beside what the first has left. */
static void test_grant_grows(void **state)
{
	struct engine *f = world_engine(&w);
	uint32_t same = world_cache(&w, f, "model", B);
	struct plan *p;

	(void)state;
	open_in(f, 0, 201, NULL, 0);
	assert_int_equal(plan_in(f, same, 201, 0, tokens(1, SLAB * B), SLAB * B, 0, &p), 0);
	assert_int_equal(world_grant(&w, e, 0, SLAB * B, 0).res, 0);
	assert_int_equal(world_grant(&w, e, 0, 2 * SLAB * B, 0).res, 0);
	assert_int_equal(world_grant(&w, e, 0, (2 * SLAB + 1) * B, 0).res, -ENOMEM);
	assert_int_equal(c->claimed, 3 * SLAB);
	plan_end(p);
	assert_int_equal(world_grant(&w, e, 0, 3 * SLAB * B, 0).res, 0);
	assert_int_equal(world_grant(&w, e, 0, (3 * SLAB + 1) * B, 0).res, -ENOMEM);
}

/* Many sequences of an engine that share a block use it once, and when one goes the others still do. */
static void test_grant_shared(void **state)
{
	struct engine *f = world_engine(&w);
	struct account *a;

	(void)state;
	world_cache(&w, f, "model", B);
	assert_int_equal(world_grant(&w, e, 0, 2 * SLAB * B, 0).res, 0);
	a = e->caches[0].account;
	open_seq(101, NULL, 0);
	extend(101, 0, tokens(1, SLAB * B), SLAB * B, UINT64_MAX);
	assert_int_equal(a->used, SLAB);
	for (uint64_t key = 102; key < 106; key++)
		assert_int_equal(seq_fork(&w.engines, e, 101, key, SLAB * B - (key & 1)).res, 0);
	assert_int_equal(a->used, SLAB);
	for (uint64_t key = 102; key < 106; key++)
		close_seq(key);
	assert_int_equal(a->used, SLAB);
	/* Another engine that shares them takes what nobody is granted, and no more. */
	assert_int_equal(open_in(f, 0, 201, tokens(1, SLAB * B), SLAB * B), SLAB * B);
	assert_int_equal(c->claimed, 3 * SLAB);
	open_in(f, 0, 202, NULL, 0);
	assert_int_equal(plan_in(f, 0, 202, 0, tokens(2, 1), 1, 0, NULL), -ENOMEM);
	close_seq(101);
	assert_int_equal(referenced(c), SLAB);
	open_seq(107, NULL, 0);
	assert_int_equal(plan_in(e, 0, 107, 0, tokens(3, 2 * SLAB * B), 2 * SLAB * B, 0, NULL), 0);
	close_seq(107);
}

/* A plan that rolls back and is given up leaves the sequence as it was; its commit rolls back. */
static void test_abandoned_roll_back(void **state)
{
	const uint32_t n = 3 * B + 5, back = 2 * B - 3;
	struct held *h;
	struct plan *p;
	uint64_t copied;

	(void)state;
	open_seq(101, NULL, 0);
	extend(101, 0, tokens(1, n), n, back - 2);
	h = &seq_find(e, 101)->in[0].held;
	copied = referenced(c);
	assert_int_equal(plan_in(e, 0, 101, back, tokens(2, 4), 4, 0, &p), 0);
	assert_int_equal(h->length, n);
	plan_end(p);
	assert_int_equal(h->length, n);
	assert_int_equal(referenced(c), copied);
	for (uint32_t i = 0; i < n; i++)
		assert_int_equal(cache_tokens(c, h->table[i / B].id)[i % B], 1000000 + i);
	/* The same again to its end: the tail that was published goes on in its place. */
	extend(101, back, tokens(2, 4), 4, back + 4);
	assert_int_equal(h->length, back + 4);
	assert_int_equal(referenced(c), 3);
	assert_int_equal(c->index.used, 3);
	assert_null(cache_check(c));
	assert_int_equal(cached(1, n), back);
	close_seq(101);
	assert_int_equal(c->evictable, 3);
}

/* Without room to keep what is rolled back the plan is made all the same. */
static void test_roll_back_in_full_pool(void **state)
{
	(void)state;
	open_seq(101, NULL, 0);
	extend(101, 0, tokens(1, SLAB * B), SLAB * B, 0);
	extend(101, SLAB * B - 5, tokens(2, 5), 5, UINT64_MAX);
	assert_int_equal(referenced(c), SLAB);
	assert_int_equal(cached(1, SLAB * B), SLAB * B - 5);
	close_seq(101);
}

/* Ranks: the answer is the smallest hit, held in all. */
static void test_ranks(void **state)
{
	uint32_t rank = world_cache(&w, e, "rank 1", 32);
	struct plan *p;

	(void)state;
	open_seq(101, NULL, 0);
	assert_int_equal(plan_in(e, 0, 101, 0, tokens(1, 100), 100, UINT64_MAX, &p), 0);
	plan_commit(p);
	plan_end(p);
	assert_int_equal(plan_in(e, rank, 101, 0, tokens(1, 70), 70, 50, &p), 0);
	plan_commit(p);
	plan_end(p);
	assert_int_equal(open_seq(102, tokens(1, 100), 100), 50);
	assert_int_equal(seq_find(e, 102)->in[0].held.length, 50);
	assert_int_equal(seq_find(e, 102)->in[rank].held.length, 50);
	assert_int_equal(referenced(c), 7);
	assert_int_equal(referenced(e->caches[rank].cache), 3);
	close_seq(101);
	close_seq(102);
	assert_int_equal(referenced(c) + referenced(e->caches[rank].cache), 0);
}

int main(void)
{
#define ONE(f)	 cmocka_unit_test_setup_teardown(f, setup, teardown)
#define THREE(f) cmocka_unit_test_setup_teardown(f, setup_three, teardown)
	const struct CMUnitTest tests[] = {
		ONE(test_abandoned_lookup),
		ONE(test_open_pins),
		ONE(test_open_twice),
		ONE(test_exactly_what_is_needed),
		ONE(test_oldest_leaf_first),
		ONE(test_progress),
		ONE(test_namespaces),
		ONE(test_collisions),
		ONE(test_failed_write_is_invisible),
		ONE(test_drafts),
		ONE(test_twins),
		ONE(test_twins_exported),
		ONE(test_published_before_the_owner),
		ONE(test_published_beside_a_writer),
		ONE(test_frozen_tail),
		ONE(test_frozen_full_block),
		ONE(test_abandoned_in_place),
		ONE(test_busy),
		ONE(test_close_and_trim_by_another),
		THREE(test_slabs_move),
		THREE(test_move_written),
		THREE(test_move_read),
		THREE(test_shares),
		THREE(test_grants),
		THREE(test_grant_grows),
		THREE(test_grant_shared),
		ONE(test_abandoned_roll_back),
		ONE(test_roll_back_in_full_pool),
		THREE(test_ranks),
	};

	return cmocka_run_group_tests_name("lifetime", tests, NULL, NULL);
}
