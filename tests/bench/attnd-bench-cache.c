/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The cache's own figures: the leader's structures without a leader, on a tree of a million blocks.
 *
 * In:   prompts that share beginnings; K/V as small as can be, since only the tree matters.
 * Out:  match_tokens_per_s, match_hot_tokens_per_s, insert_tokens_per_s, insert_ns_per_block, fork_us,
 *       fork_32k_us, evict_ns_per_block, evict_leaves_ns_per_block, metadata_ratio; peek's (measure_peek).
 * Next: report.h.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../../daemon/config.h"
#include "../../daemon/engine.h"
#include "../../daemon/log.h"
#include "../../daemon/ns.h"
#include "../../daemon/plan.h"
#include "attnd-bench.h"

/* SYSTEMS prompts' beginnings of HALF tokens, CHATS chats under each of HALF tokens more. */
enum { SYSTEMS = 256, CHATS = 30, HALF = 2048, LENGTH = 2 * HALF, HOT = 2000, FORKS = 2000, INSERTS = 300 };
enum { BLOCKS = SYSTEMS * (CHATS + 1) * (HALF / BLOCK), EVICT_AT_ONCE = 1000, LONG = 32768 };
/* Prompts of one block each, under as many parents as there are systems. */
enum { LEAVES = 100000, EVICT_LEAVES = 10000 };
/* What comes beside them: what is inserted, the long prompt, parents, and two slabs that are not quite full. */
enum { MORE_BLOCKS = INSERTS * (HALF / BLOCK) + LONG / BLOCK + 32768, PEEK_ENTRIES = 1 << 21 };

static const struct attnd_wire_cache tree = {.name = "tree",
					     .num_layers = 1,
					     .num_heads = 1,
					     .num_kv_heads = 1,
					     .head_dim = 1,
					     .head_dim_v = 1,
					     .block_size = BLOCK,
					     .kv_dtype = ATTND_WIRE_BF16,
					     .layout = ATTND_WIRE_BHSD};

struct world {
	struct topology topology;
	struct pool pool;
	struct ns_table ns;
	struct realm_table realms;
	struct engine_table engines;
	struct engine *engine;
	struct cache *cache;
	uint64_t next_key;
	uint64_t tokens[LONG];
};

static void open_world(struct world *w, const struct attnd_wire_cache *id, uint64_t pool, uint64_t slab,
		       uint64_t meta)
{
	char none[] = "";
	const struct config cfg = {.pool_size = pool,
				   .slab_size = slab,
				   .meta_size = meta,
				   .hugepages = CONFIG_HUGE_AUTO,
				   .pool_path = none};
	struct engine_maker by = {.uid = 1, .session = 1};
	struct answer a;

	memset(w, 0, sizeof(*w));
	log_set_level(LOG_LEVEL_ERR);
	topology_init(&w->topology, false);
	if (pool_init(&w->pool, &cfg, &w->topology) || ns_init(&w->ns))
		die("no pool");
	realm_table_init(&w->realms, 1);
	w->realms.peek_entries = PEEK_ENTRIES;
	w->engines.ns = &w->ns;
	w->engines.max_seqs = 1 << 16;
	if (realm_get(&w->realms, "bench", &by.realm) || engine_create(&w->engines, NULL, &by, &w->engine))
		die("no engine");
	a = engine_cache_open(w->engine, &w->pool, &w->ns, id, true, 0);
	if (a.res)
		die("no cache: %s", strerror(-a.res));
	w->cache = w->engine->caches[0].cache;
	w->next_key = 1;
}

static void close_world(struct world *w)
{
	engine_leave(&w->engines, w->engine);
	cache_destroy(w->cache);
	pool_destroy(&w->pool);
	ns_destroy(&w->ns);
	realm_table_destroy(&w->realms);
}

/* ---- Prompts ---- */

/* The same numbers for the same prompt, without keeping them. */
static uint64_t mix(uint64_t x)
{
	x ^= x >> 31;
	x *= UINT64_C(0x7fb5d329728ea185);
	x ^= x >> 27;
	x *= UINT64_C(0x81dadef4bc2dd44d);
	return (x ^ x >> 33) % 128000;
}

static void make_prompt(uint64_t *to, uint64_t system, uint64_t chat)
{
	for (uint64_t i = 0; i < HALF; i++) {
		to[i] = mix(system * HALF + i + 1);
		to[HALF + i] = mix(((system * CHATS + chat + 1) << 32) + i);
	}
}

static struct seq *open_prompt(struct world *w, uint64_t n)
{
	uint64_t key = w->next_key++;
	struct answer a = seq_open(&w->engines, w->engine, key, 0, w->tokens, n, UINT64_MAX);

	if (a.res)
		die("opening a sequence: %s", strerror(-a.res));
	return seq_find(w->engine, key);
}

static void close_prompt(struct world *w, const struct seq *s)
{
	if (seq_close(w->engine, s->key, NULL).res)
		die("closing a sequence");
}

/* A step of a prompt from the first token that is not there, as if its K/V had been computed. Seconds. */
static double insert(struct world *w, const struct seq *s, uint32_t n)
{
	struct plan *list = NULL, *plan;
	struct row_request row = {.wire = {.key = s->key, .start = s->in[0].held.length, .publish_upto = n}};
	double start = now_seconds();

	row.wire.num_tokens = (uint32_t)(n - row.wire.start);
	row.tokens = w->tokens + row.wire.start;
	if (plan_make(w, w->engine, 0, 1, &row, 1, &list, &plan) || plan->rows[0].status)
		die("no room for a prompt");
	plan_commit(plan);
	plan_end(plan);
	return now_seconds() - start;
}

static double add_prompt(struct world *w, uint32_t n)
{
	struct seq *s = open_prompt(w, n);
	double seconds = insert(w, s, n);

	close_prompt(w, s);
	return seconds;
}

/* ---- Measuring ---- */

static double match(const struct world *w)
{
	double start = now_seconds();
	uint32_t stand = ATTND_BLOCK_NONE;
	uint64_t n = tree_match(w->cache, 0, &stand, 0, w->tokens, LENGTH, NULL);

	if (n != LENGTH)
		die("a chat has lost tokens");
	return now_seconds() - start;
}

static void measure_match(struct world *w, double end)
{
	static struct samples cold, hot;

	cold.n = hot.n = 0;
	while (more(end, &cold)) {
		make_prompt(w->tokens, random_below(SYSTEMS), random_below(CHATS));
		sample_add(&cold, (double)LENGTH / match(w));
	}
	for (int i = 0; i < HOT; i++)
		sample_add(&hot, (double)LENGTH / match(w));
	report_goal("match_tokens_per_s", sample_median(&cold), "tokens/s", 100e6, true);
	report_goal("match_hot_tokens_per_s", sample_median(&hot), "tokens/s", 400e6, true);
}

/* Chats that are new, under prompts that are not. */
static void measure_insert(struct world *w)
{
	static struct samples seconds;
	double median;

	seconds.n = 0;
	for (uint64_t i = 0; i < INSERTS; i++) {
		make_prompt(w->tokens, random_below(SYSTEMS), CHATS + SYSTEMS * CHATS + i);
		sample_add(&seconds, add_prompt(w, LENGTH));
	}
	median = sample_median(&seconds);
	report_figure("insert_tokens_per_s", (double)HALF / median, "tokens/s");
	report_figure("insert_ns_per_block", median * 1e9 * (double)BLOCK / (double)HALF, "ns");
}

/* Of the prompt in w->tokens, which is published. */
static double median_fork(struct world *w, uint64_t n)
{
	static struct samples us;
	struct seq *s = open_prompt(w, n);

	us.n = 0;
	for (int i = 0; i < FORKS; i++) {
		uint64_t key = w->next_key++;
		double start = now_seconds();

		if (seq_fork(&w->engines, w->engine, s->key, key, n).res)
			die("forking");
		sample_add(&us, (now_seconds() - start) * 1e6);
		close_prompt(w, seq_find(w->engine, key));
	}
	close_prompt(w, s);
	return sample_median(&us);
}

static void measure_fork(struct world *w)
{
	make_prompt(w->tokens, 1, 1);
	report_figure("fork_us", median_fork(w, LENGTH), "us");
	for (uint64_t i = 0; i < LONG; i++)
		w->tokens[i] = 1000000 + i;
	(void)add_prompt(w, LONG);
	report_goal("fork_32k_us", median_fork(w, LONG), "us", 2, false);
}

static double median_evict(struct world *w, uint64_t blocks)
{
	static struct samples ns;

	ns.n = 0;
	for (; blocks >= EVICT_AT_ONCE; blocks -= EVICT_AT_ONCE) {
		double start = now_seconds();

		for (int i = 0; i < EVICT_AT_ONCE; i++)
			if (!cache_evict(w->cache))
				die("nothing to evict");
		sample_add(&ns, (now_seconds() - start) * 1e9 / (double)EVICT_AT_ONCE);
	}
	return sample_median(&ns);
}

static void make_leaf(struct world *w, uint64_t i)
{
	for (uint64_t k = 0; k < BLOCK; k++) {
		w->tokens[k] = mix(i % SYSTEMS * BLOCK + k + 1);
		w->tokens[BLOCK + k] = mix((i + 1) << 32) + k;
	}
}

/* Leaves that were used last in another order than they lie in. */
static void measure_leaves(void)
{
	static struct world w;
	static uint32_t order[LEAVES];

	open_world(&w, &tree, ((uint64_t)LEAVES + MORE_BLOCKS) * 128, (uint64_t)2 << 20, (uint64_t)1 << 30);
	for (uint32_t i = 0; i < LEAVES; i++) {
		order[i] = i;
		make_leaf(&w, i);
		(void)add_prompt(&w, 2 * BLOCK);
	}
	shuffle(order, LEAVES);
	for (uint32_t i = 0; i < LEAVES; i++) {
		make_leaf(&w, order[i]);
		close_prompt(&w, open_prompt(&w, 2 * BLOCK));
	}
	report_goal("evict_leaves_ns_per_block", median_evict(&w, EVICT_LEAVES), "ns", 200, false);
	close_world(&w);
}

/* At Llama-3-8B's geometry: all that is kept of a block beside its K/V. */
static void measure_metadata(void)
{
	static struct world w;
	const struct shape s = llama_8b(LLAMA_LAYERS);
	const struct attnd_wire_cache id = {.name = "llama",
					    .num_layers = s.layers,
					    .num_heads = s.heads,
					    .num_kv_heads = s.kv_heads,
					    .head_dim = s.dim,
					    .head_dim_v = s.dim,
					    .block_size = BLOCK,
					    .kv_dtype = ATTND_WIRE_BF16};
	double bytes, blocks;

	open_world(&w, &id, (uint64_t)128 << 20, (uint64_t)32 << 20, 0);
	while (cache_alloc(w.cache, NULL, 0, 0) != ATTND_BLOCK_NONE)
		;
	blocks = (double)w.cache->total;
	bytes = (double)(w.pool.heap_next - w.pool.meta->heap_offset) + blocks * (double)sizeof(struct block_aux) +
		((double)w.cache->index.mask + 1) * sizeof(uint32_t);
	report_goal("metadata_ratio", bytes / (blocks * (double)w.cache->block_bytes), "", 0.001, false);
	for (uint32_t b = 0; b < w.cache->total; b++)
		cache_unref(w.cache, NULL, b);
	close_world(&w);
}

void measure_cache(void)
{
	static struct world w;
	double end = now_seconds() + bench.seconds;

	progress("cache: %d blocks", BLOCKS);
	open_world(&w, &tree, ((uint64_t)BLOCKS + MORE_BLOCKS) * 128, (uint64_t)2 << 20, (uint64_t)1 << 30);
	for (uint64_t s = 0; s < SYSTEMS; s++)
		for (uint64_t c = 0; c < CHATS; c++) {
			make_prompt(w.tokens, s, c);
			(void)add_prompt(&w, LENGTH);
		}
	report_figure("blocks", (double)w.cache->evictable, "");
	progress("cache: match");
	measure_match(&w, now_seconds() + (end - now_seconds()) / 2);
	progress("cache: insert, fork, evict, metadata");
	measure_insert(&w);
	measure_fork(&w);
	report_goal("evict_ns_per_block", median_evict(&w, w.cache->evictable), "ns", 200, false);
	close_world(&w);
	measure_leaves();
	measure_metadata();
	measure_peek();
}
