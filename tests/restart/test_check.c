/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a daemon left, taken over in this process: metadata altered in every way, seals made right
 * again or not, tiles in a layout that these kernels do not write, and blocks that lie on two nodes.
 *
 * In: a fixed seed. Out: TAP. Next: daemon/restore.c, daemon/repack.c.
 */
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "../../daemon/cache.h"
#include "../../daemon/config.h"
#include "../../daemon/log.h"
#include "../../daemon/ns.h"
#include "../../daemon/realm.h"
#include "../../daemon/repack.h"
#include "../../daemon/scrub.h"
#include "../../daemon/seal.h"
#include "../../kernels/cpu.h"
#include "../daemon/world.h"
#include "prompts.h"

/* What a daemon makes of a pool before it serves, on so many nodes, which the machine need not have. */
static void take(struct world *t, struct kept *k, uint32_t nodes)
{
	const struct config cfg = {.pool_size = 16 << 20, .hugepages = CONFIG_HUGE_OFF, .pool_path = k->pool};

	log_set_level(LOG_LEVEL_ERR);
	memset(t, 0, sizeof(*t));
	world_nodes = nodes;
	world_topology(&t->topology);
	realm_table_init(&t->realms, 1);
	t->realms.peek_entries = 1 << 12;
	assert_int_equal(ns_init(&t->ns), 0);
	assert_int_equal(pool_init(&t->pool, &cfg, &t->topology), 0);
	assert_int_equal(restore_pool(&t->pool, &t->ns, &t->realms, attnd_features()), 0);
	for (uint32_t i = 0; i < ATTND_MAX_POOL_CACHES; i++)
		if (t->pool.caches[i])
			assert_null(cache_check(t->pool.caches[i]));
}

/* If it was killed nobody says that all is in order. */
static void leave(struct world *t, bool killed)
{
	t->pool.restore.ready &= !killed;
	restore_leave(&t->pool);
	pool_destroy(&t->pool);
	ns_destroy(&t->ns);
	realm_table_destroy(&t->realms);
}

static void start(struct kept *k)
{
	static const char *const flags[] = {"--pool-size", "16M", "--numa", "false", NULL};

	kept_start(k, flags);
	prompts_fill(k);
	kept_wait_number(k, "caches.0.blocks_unhashed", 0);
	kept_end(k, SIGKILL);
}

/* Every block, entry and namespace as if it had been written so. */
static void reseal(struct attnd_meta_region *m)
{
	struct attnd_meta_cache *c = &m->caches[0];
	const struct attnd_extent *list = (const struct attnd_extent *)(const void *)((char *)m + m->extents_offset);
	uint32_t n = c->blocks_per_slab, B = c->identity.block_size;

	c->seal = seal_cache(c);
	for (int i = 0; i < ATTND_META_NS_PARTS; i++) {
		struct attnd_meta_ns *ns = (struct attnd_meta_ns *)(void *)((char *)m + m->ns[i].offset);
		for (uint32_t j = 0; m->ns[i].bytes && m->ns[i].offset < m->heap_used && j < 100; j++)
			ns[j].seal = seal_ns(&ns[j]);
	}
	for (uint32_t e = 0; e < c->num_extents && e < m->num_slabs; e++) {
		struct attnd_block *b = (struct attnd_block *)(void *)((char *)m + list[e].offset);
		if (!list[e].bytes || list[e].offset > m->heap_used ||
		    list[e].offset + meta_extent_bytes(&c->identity, n) > m->heap_used)
			continue;
		for (uint32_t i = 0; i < n; i++)
			if (b[i].count && b[i].count <= B)
				b[i].seals[0] = seal_block(&b[i], (uint64_t *)(void *)(b + n) + (size_t)i * B,
							   b[i].count, b[i].place);
	}
}

/* A field of a descriptor with a count becomes another, most often one that could be. */
static void alter_block(struct attnd_meta_region *m, uint64_t *seed)
{
	const struct attnd_meta_cache *c = &m->caches[0];
	const struct attnd_extent *list = (const struct attnd_extent *)(const void *)((char *)m + m->extents_offset);
	struct attnd_block *b = (struct attnd_block *)(void *)((char *)m + list[0].offset);
	uint32_t n = c->blocks_per_slab, i = (uint32_t)(next_random(seed) % n), v = (uint32_t)next_random(seed);

	for (uint32_t look = 0; look < n && !b[i].count; look++)
		i = (i + 1) % n;
	v = next_random(seed) % 4 ? v % n : v;
	switch (next_random(seed) % 9) {
	case 0:
		b[i].place = next_random(seed) & 1 ? b[v % n].place : v;
		break;
	case 1:
		b[i].parent = v;
		b[i].parent_generation = b[v % n].generation;
		break;
	case 2:
		b[i].parent = ATTND_BLOCK_NONE;
		break;
	case 3:
		b[i].generation++;
		break;
	case 4:
		b[i].ns = v % 5;
		break;
	case 5:
		b[i].position = v % 16 * 16;
		break;
	case 6:
		b[i].count = (uint16_t)(v % 18);
		break;
	case 7:
		b[i].first = (uint16_t)(v % 17);
		break;
	default:
		b[i] = b[v % n]; /* and so its place is doubled, its key, too */
	}
}

static void flip(char *meta, const struct attnd_meta_region *was, uint64_t *seed)
{
	uint64_t from = next_random(seed) & 1 ? was->heap_offset : 0, to = from ? was->heap_used : was->heap_offset;
	uint64_t at = from + next_random(seed) % (to - from);

	for (int look = 0; look < 4096 && !meta[at]; look++)
		at = from + (at - from + 61) % (to - from);
	meta[at] ^= (char)(1 << next_random(seed) % 8);
}

/* With right seals everything behind them is looked at; whatever comes out is a tree. */
static void test_altered(void **state)
{
	int rounds = getenv("TEST_LONG") ? 20000 : 400;
	uint64_t seed = 4711, blocks = 0, lost = 0;
	struct kept k;
	size_t bytes;

	(void)state;
	start(&k);
	char *meta = kept_map(&k, "attnd-meta", &bytes), *copy = malloc(bytes);
	struct attnd_meta_region *m = (struct attnd_meta_region *)(void *)meta;
	assert_non_null(copy);
	memcpy(copy, meta, bytes);
	for (int i = 0; i < rounds; i++) {
		const struct attnd_meta_region *was = (const struct attnd_meta_region *)(const void *)copy;
		int n = 1 + (int)(next_random(&seed) % 6), how = (int)(next_random(&seed) % 3);
		struct world t;
		if (m->bytes != was->bytes || m->heap_used > bytes)
			memcpy(meta, copy, bytes);
		memcpy(meta, copy, was->heap_used);
		while (n--)
			if (how)
				alter_block(m, &seed);
			else
				flip(meta, was, &seed);
		if (how != 1)
			reseal(m);
		take(&t, &k, 1);
		blocks += t.pool.restore.counts.blocks;
		lost += t.pool.restore.counts.orphans + t.pool.restore.counts.below +
			t.pool.restore.counts.bad_places + t.pool.restore.counts.bad_seals;
		leave(&t, false);
		/* A pool that was not taken over has been emptied and grown again: our pages are its pages. */
	}
	assert_true(blocks && lost); /* neither all nor nothing */
	free(copy);
	munmap(meta, bytes);
	kept_clean(&k);
}

/* Rewrite a block's tiles from the kernels' layout into another one. */
static void rewrite(const struct cache *c, uint32_t id, const struct attnd_kv_format *to)
{
	const struct attnd_kv_spec *s = &c->fmt.spec;
	size_t row = s->head_dim * sizeof(float);
	float k[16 * TOY_KV_HEADS * TOY_DIM], v[16 * TOY_KV_HEADS * TOY_DIM];
	struct attnd_ops portable;
	struct attnd_kv_format f;

	assert_int_equal(attnd_format_init(0, s, &f, &portable), 0);
	for (uint32_t layer = 0; layer < c->identity.num_layers; layer++) {
		struct attnd_slots_args a = {
			.fmt = &c->fmt,
			.block = (char *)c->pool->nodes[0].base + cache_offset(c, id) + layer * f.layer_bytes,
			.flags = cache_flags(c, id) + layer * s->num_kv_heads,
			.k = k,
			.v = v,
			.k_token_stride = s->num_kv_heads * row,
			.k_head_stride = row,
			.v_token_stride = s->num_kv_heads * row,
			.v_head_stride = row,
			.n = cache_count(c, id),
			.num_heads = s->num_kv_heads,
			.in = s->dtype,
		};
		c->ops.read(&a);
		a.fmt = to;
		memset(a.block, 0xff, f.layer_bytes); /* NaN where nothing is published */
		portable.write(&a);
	}
}

/* Tiles of another layout are brought into the kernels' own; of one that nobody knows, dropped. */
static void test_layouts(void **state)
{
	static const uint16_t lanes[4] = {8, 2, 8, 2}, unknown[4] = {7, 1, 8, 1};
	static const char *const flags[] = {"--pool-size", "16M", "--numa", "false", NULL};
	struct attnd_kv_format f;
	attnd_read_fn *read;
	struct world t;
	struct kept k;
	size_t bytes;

	(void)state;
	start(&k);
	take(&t, &k, 1);
	struct cache *c = t.pool.caches[0];
	assert_non_null(c);
	assert_int_equal(attnd_format_stored(&c->fmt.spec, 1, 1, unknown, &f, &read), -22);
	assert_int_equal(attnd_format_stored(&c->fmt.spec, 1, 1, lanes, &f, &read), 0);
	assert_int_equal(f.layer_bytes, c->fmt.layer_bytes);
	for (uint32_t id = 0; id < c->num_ext * c->blocks_per_slab; id++)
		if (cache_aux(c, id)->state == BLOCK_PUBLIC) {
			rewrite(c, id, &f);
			cache_block(c, id)->hash = 0;
		}
	struct attnd_meta_cache *m = &t.pool.meta->caches[0];
	m->k_lanes = m->v_lanes = 8;
	m->k_ilv = m->v_ilv = 2;
	m->seal = seal_cache(m);
	leave(&t, false);
	assert_int_equal(kept_again(&k, flags), 0);
	assert_int_equal(daemon_number(&k.daemon, "restore.caches_repacked"), 1);
	assert_int_equal(prompts_look(&k), prompts_all());
	kept_restart(&k, SIGKILL, flags);
	assert_int_equal(daemon_number(&k.daemon, "restore.caches_repacked"), 0);
	assert_int_equal(prompts_look(&k), prompts_all());
	kept_end(&k, SIGKILL);
	struct attnd_meta_region *r = kept_map(&k, "attnd-meta", &bytes);
	r->caches[0].layout_version++;
	r->caches[0].seal = seal_cache(&r->caches[0]);
	munmap(r, bytes);
	assert_int_equal(kept_again(&k, flags), 0);
	assert_true(kept_logged(&k, "is dropped: the layout of its tiles is unknown"));
	assert_int_equal(prompts_look(&k), 0);
	prompts_fill(&k);
	assert_int_equal(prompts_look(&k), prompts_all());
	kept_clean(&k);
}

/* ---- A cache whose blocks lie on two nodes ---- */

enum { SPREAD_PROMPTS = 3, SPREAD_BLOCKS = 40, SPREAD_TOKENS = SPREAD_BLOCKS * 16 };

static int spread_byte(uint64_t prompt, uint32_t block)
{
	return (int)(prompt * SPREAD_BLOCKS + block);
}

/* Publish a prompt; each block's bytes say which it is. */
static void spread_fill(struct world *w, struct engine *e, uint64_t prompt, const uint64_t *tokens)
{
	struct row_request row = {.wire = {.key = prompt, .num_tokens = SPREAD_TOKENS, .publish_upto = SPREAD_TOKENS},
				  .tokens = tokens};
	const struct cache *c = e->caches[0].cache;
	struct plan *list = NULL, *p;

	assert_int_equal(seq_open(&w->engines, e, prompt, 0, tokens, 0, 0).res, 0);
	assert_int_equal(world_plan(w, w, e, 0, &row, 1, &list, &p), 0);
	assert_int_equal(p->rows[0].status, 0);
	for (uint32_t i = 0; i < SPREAD_BLOCKS; i++)
		memset(cache_piece(c, cache_where(c, plan_entry(p, p->rows, i)->id), 0), spread_byte(prompt, i),
		       c->block_bytes);
	plan_commit(p);
	plan_end(p);
	assert_int_equal(seq_close(e, prompt, NULL).res, 0);
}

/* All of it is there, with its bytes; blocks on each node are counted. */
static void spread_look(struct world *w, struct engine *e, uint64_t prompt, const uint64_t *tokens, uint32_t on[2])
{
	const struct cache *c = e->caches[0].cache;
	const struct seq *s;

	assert_int_equal(seq_open(&w->engines, e, prompt, 0, tokens, SPREAD_TOKENS, UINT64_MAX).value, SPREAD_TOKENS);
	s = seq_find(e, prompt);
	for (uint32_t i = 0; i < SPREAD_BLOCKS; i++) {
		uint32_t id = s->in[0].held.table[i].id;
		const char *piece = cache_piece(c, cache_where(c, id), 0);

		assert_int_equal((unsigned char)piece[0], spread_byte(prompt, i));
		assert_memory_equal(piece, piece + 1, c->block_bytes - 1);
		on[cache_block_node(c, id)]++;
	}
	assert_int_equal(seq_close(e, prompt, NULL).res, 0);
}

static struct engine *spread_engine(struct world *w)
{
	struct engine *e;

	w->engines.ns = &w->ns;
	w->engines.max_seqs = 8;
	assert_int_equal(realm_get(&w->realms, "uid:1", &w->realm), 0);
	e = world_engine(w);
	world_cache(w, e, "spread", 16);
	assert_true(e->caches[0].cache->spread);
	while (scrub_step(e->caches[0].cache)) /* hashes are made, or compared */
		;
	return e;
}

/* With fewer KV heads than nodes chunks take turns on the nodes: after any end they stand where they stood. */
static void test_spread(void **state)
{
	uint64_t tokens[SPREAD_PROMPTS][SPREAD_TOKENS];
	uint32_t on[2][2] = {{0}, {0}};
	struct kept k = {.pool = "/dev/shm/attnd-test-XXXXXX"};
	static struct world w;
	char second[128];

	(void)state;
	assert_non_null(mkdtemp(k.pool));
	snprintf(second, sizeof(second), "%s/attnd-pool-1", k.pool);
	for (uint64_t p = 0; p < SPREAD_PROMPTS; p++)
		for (uint64_t i = 0; i < SPREAD_TOKENS; i++)
			tokens[p][i] = p << 32 | i;
	for (int life = 0; life < 4; life++) {
		struct engine *e;

		take(&w, &k, 2);
		if (life == 3) /* it was killed: all is verified before it serves */
			assert_int_equal(w.pool.caches[0]->scrub.unverified, SPREAD_PROMPTS * SPREAD_BLOCKS);
		e = spread_engine(&w);
		for (uint64_t p = 0; p < SPREAD_PROMPTS; p++)
			if (!life)
				spread_fill(&w, e, p, tokens[p]);
			else
				spread_look(&w, e, p, tokens[p], on[life == 1 ? 0 : 1]);
		assert_int_equal(w.pool.restore.counts.blocks, life ? SPREAD_PROMPTS * SPREAD_BLOCKS : 0);
		assert_int_equal(e->caches[0].cache->scrub.corrupt, 0);
		while (scrub_step(e->caches[0].cache))
			;
		engine_leave(&w.engines, e);
		twin_table_destroy(&w.engines.twins);
		leave(&w, life == 2);
	}
	assert_true(on[0][0] && on[0][1]);
	assert_int_equal(on[1][0], 2 * on[0][0]);
	assert_int_equal(on[1][1], 2 * on[0][1]);
	/* With one node less its file goes, and the pages with it. */
	assert_int_equal(access(second, F_OK), 0);
	take(&w, &k, 1);
	assert_int_equal(w.pool.restore.counts.blocks, 0);
	assert_int_equal(access(second, F_OK), -1);
	leave(&w, false);
	kept_clean(&k);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_altered),
		cmocka_unit_test(test_layouts),
		cmocka_unit_test(test_spread),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
