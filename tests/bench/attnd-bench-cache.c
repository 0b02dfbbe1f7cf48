/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The cache's own figures: the leader's structures without a leader, on a tree of a million blocks.
 *
 * In:   prompts that share beginnings; K/V as small as can be, since only the tree matters.
 * Out:  match_tokens_per_s, match_hot_tokens_per_s, evict_ns_per_block, fork_us, metadata_ratio.
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
enum { SYSTEMS = 256, CHATS = 30, HALF = 2048, LENGTH = 2 * HALF, HOT = 2000, FORKS = 2000 };
enum { BLOCKS = SYSTEMS * (CHATS + 1) * (HALF / BLOCK), EVICT_AT_ONCE = 1000 };

struct world {
	struct topology topology;
	struct pool pool;
	struct ns_table ns;
	struct realm_table realms;
	struct engine_table engines;
	struct engine *engine;
	struct cache *cache;
	uint64_t next_key;
	uint64_t tokens[LENGTH];
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

static struct seq *open_prompt(struct world *w)
{
	uint64_t key = w->next_key++;
	struct answer a = seq_open(&w->engines, w->engine, key, 0, w->tokens, LENGTH, UINT64_MAX);

	if (a.res)
		die("opening a sequence: %s", strerror(-a.res));
	return seq_find(w->engine, key);
}

/* A chat's step from the first token that is not there, as if its K/V had been computed. */
static void add_chat(struct world *w, uint64_t system, uint64_t chat)
{
	struct plan *list = NULL, *plan;
	struct row_request row = {.wire = {.num_tokens = LENGTH, .publish_upto = LENGTH}};
	struct seq *s;

	make_prompt(w->tokens, system, chat);
	s = open_prompt(w);
	row.wire.key = s->key;
	row.wire.start = s->in[0].held.length;
	row.wire.num_tokens = (uint32_t)(LENGTH - row.wire.start);
	row.tokens = w->tokens + row.wire.start;
	if (plan_make(w, w->engine, 0, 1, &row, 1, &list, &plan) || plan->rows[0].status)
		die("no room for a chat");
	plan_commit(plan);
	plan_end(plan);
	if (seq_close(w->engine, row.wire.key, NULL).res)
		die("closing a sequence");
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
	report_figure("match_tokens_per_s", sample_median(&cold), "tokens/s");
	report_figure("match_hot_tokens_per_s", sample_median(&hot), "tokens/s");
}

static void measure_fork(struct world *w)
{
	static struct samples us;
	struct seq *s;

	make_prompt(w->tokens, 1, 1);
	s = open_prompt(w);
	us.n = 0;
	for (int i = 0; i < FORKS; i++) {
		uint64_t key = w->next_key++;
		double start = now_seconds();

		if (seq_fork(&w->engines, w->engine, s->key, key, LENGTH).res)
			die("forking");
		sample_add(&us, (now_seconds() - start) * 1e6);
		(void)seq_close(w->engine, key, NULL);
	}
	(void)seq_close(w->engine, s->key, NULL);
	report_figure("fork_us", sample_median(&us), "us");
}

static void measure_evict(struct world *w)
{
	static struct samples ns;

	ns.n = 0;
	while (w->cache->evictable >= EVICT_AT_ONCE) {
		double start = now_seconds();

		for (int i = 0; i < EVICT_AT_ONCE; i++)
			if (!cache_evict(w->cache))
				die("nothing to evict");
		sample_add(&ns, (now_seconds() - start) * 1e9 / (double)EVICT_AT_ONCE);
	}
	report_figure("evict_ns_per_block", sample_median(&ns), "ns");
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
	report_figure("metadata_ratio", bytes / (blocks * (double)w.cache->block_bytes), "");
	for (uint32_t b = 0; b < w.cache->total; b++)
		cache_unref(w.cache, NULL, b);
	close_world(&w);
}

void measure_cache(void)
{
	static struct world w;
	const struct attnd_wire_cache id = {.name = "tree",
					    .num_layers = 1,
					    .num_heads = 1,
					    .num_kv_heads = 1,
					    .head_dim = 1,
					    .head_dim_v = 1,
					    .block_size = BLOCK,
					    .kv_dtype = ATTND_WIRE_BF16,
					    .layout = ATTND_WIRE_BHSD};
	double end = now_seconds() + bench.seconds;

	progress("cache: %d blocks", BLOCKS);
	open_world(&w, &id, (uint64_t)BLOCKS * 128 + ((uint64_t)16 << 20), (uint64_t)2 << 20, (uint64_t)1 << 30);
	for (uint64_t s = 0; s < SYSTEMS; s++)
		for (uint64_t c = 0; c < CHATS; c++)
			add_chat(&w, s, c);
	report_figure("blocks", (double)w.cache->evictable, "");
	progress("cache: match");
	measure_match(&w, now_seconds() + (end - now_seconds()) / 2);
	progress("cache: fork, evict, metadata");
	measure_fork(&w);
	measure_evict(&w);
	measure_metadata();
	close_world(&w);
	measure_peek();
}
