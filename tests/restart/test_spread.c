/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A cache with fewer KV heads than the machine has NUMA nodes outlives its daemon: chunks take turns on
 * the nodes, and after an orderly end and a sudden one each block stands where it stood.
 *
 * In: two nodes that the machine need not have. Out: TAP. Next: daemon/restore.c, daemon/cache.c.
 */
#include <dirent.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "../../daemon/cache.h"
#include "../../daemon/config.h"
#include "../../daemon/log.h"
#include "../../daemon/realm.h"
#include "../../daemon/scrub.h"
#include "../../kernels/cpu.h"
#include "../daemon/world.h"

static void remove_pool(const char *path)
{
	DIR *dp = opendir(path);

	for (struct dirent *e; dp && (e = readdir(dp));)
		unlinkat(dirfd(dp), e->d_name, 0);
	if (dp)
		closedir(dp);
	rmdir(path);
}

static void take(struct world *t, char *path)
{
	const struct config cfg = {.pool_size = 16 << 20, .hugepages = CONFIG_HUGE_OFF, .pool_path = path};

	log_set_level(LOG_LEVEL_ERR);
	world_nodes = 2;
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

enum { PROMPTS = 3, BLOCKS = 40, TOKENS = BLOCKS * 16 };

static int byte(uint64_t prompt, uint32_t block)
{
	return (int)(prompt * BLOCKS + block);
}

/* Publish a prompt; each block's bytes say which it is. */
static void fill(struct world *w, struct engine *e, uint64_t prompt, const uint64_t *tokens)
{
	struct row_request row = {.wire = {.key = prompt, .num_tokens = TOKENS, .publish_upto = TOKENS},
				  .tokens = tokens};
	const struct cache *c = e->caches[0].cache;
	struct plan *list = NULL, *p;

	assert_int_equal(seq_open(&w->engines, e, prompt, 0, tokens, 0, 0).res, 0);
	assert_int_equal(world_plan(w, w, e, 0, &row, 1, &list, &p), 0);
	assert_int_equal(p->rows[0].status, 0);
	for (uint32_t i = 0; i < BLOCKS; i++)
		memset(cache_piece(c, cache_where(c, plan_entry(p, p->rows, i)->id), 0), byte(prompt, i),
		       c->block_bytes);
	plan_commit(p);
	plan_end(p);
	assert_int_equal(seq_close(e, prompt, NULL).res, 0);
}

/* All of it is there, with its bytes; blocks on each node are counted. */
static void look(struct world *w, struct engine *e, uint64_t prompt, const uint64_t *tokens, uint32_t on[2])
{
	const struct cache *c = e->caches[0].cache;
	const struct seq *s;

	assert_int_equal(seq_open(&w->engines, e, prompt, 0, tokens, TOKENS, UINT64_MAX).value, TOKENS);
	s = seq_find(e, prompt);
	for (uint32_t i = 0; i < BLOCKS; i++) {
		uint32_t id = s->in[0].held.table[i].id;
		const char *piece = cache_piece(c, cache_where(c, id), 0);

		assert_int_equal((unsigned char)piece[0], byte(prompt, i));
		assert_memory_equal(piece, piece + 1, c->block_bytes - 1);
		on[cache_block_node(c, id)]++;
	}
	assert_int_equal(seq_close(e, prompt, NULL).res, 0);
}

static struct engine *open_engine(struct world *w)
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
	uint64_t tokens[PROMPTS][TOKENS];
	uint32_t on[2][2] = {{0}, {0}};
	char path[] = "/dev/shm/attnd-test-XXXXXX";

	(void)state;
	assert_non_null(mkdtemp(path));
	for (uint64_t p = 0; p < PROMPTS; p++)
		for (uint64_t i = 0; i < TOKENS; i++)
			tokens[p][i] = p << 32 | i;
	for (int life = 0; life < 4; life++) {
		static struct world w;
		struct engine *e;

		memset(&w, 0, sizeof(w));
		take(&w, path);
		if (life == 3) /* it was killed: all is verified before it serves */
			assert_int_equal(w.pool.caches[0]->scrub.unverified, PROMPTS * BLOCKS);
		e = open_engine(&w);
		for (uint64_t p = 0; p < PROMPTS; p++)
			if (!life)
				fill(&w, e, p, tokens[p]);
			else
				look(&w, e, p, tokens[p], on[life == 1 ? 0 : 1]);
		assert_int_equal(w.pool.restore.counts.blocks, life ? PROMPTS * BLOCKS : 0);
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
	remove_pool(path);
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(test_spread)};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
