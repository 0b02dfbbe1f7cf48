/* SPDX-License-Identifier: Apache-2.0 */
/* The leader's structures without a leader (world.h). */
#include "world.h"

#include <stdlib.h>
#include <string.h>

#include "../../daemon/config.h"
#include "../../daemon/log.h"

struct watch *world_watch;
uint32_t world_nodes = 1;
void (*world_step)(struct world *w);
void (*world_end)(struct world *w);

void world_topology(struct topology *t)
{
	topology_init(t, false);
	for (; t->num_nodes < world_nodes; t->num_nodes++)
		t->nodes[t->num_nodes] = t->nodes[0];
}

void world_open(struct world *w, uint32_t slabs, uint32_t max_seqs)
{
	const struct config cfg = {.pool_size = (uint64_t)slabs * world_nodes << 21,
				   .slab_size = 2 << 20,
				   .meta_size = 8 << 20,
				   .hugepages = CONFIG_HUGE_OFF,
				   .pool_path = (char[]){""}};

	log_set_level(LOG_LEVEL_ERR);
	memset(w, 0, sizeof(*w));
	world_topology(&w->topology);
	assert_int_equal(pool_init(&w->pool, &cfg, &w->topology), 0);
	assert_int_equal(w->pool.num_slabs, slabs);
	w->pool.move_ns = 0; /* one step at a time: everything can happen in between */
	w->pool.watch = world_watch;
	assert_int_equal(ns_init(&w->ns), 0);
	realm_table_init(&w->realms, 1);
	w->realms.peek_entries = 1 << 16;
	assert_int_equal(realm_get(&w->realms, "uid:1", &w->realm), 0);
	w->engines.ns = &w->ns;
	w->engines.max_seqs = max_seqs;
}

void world_close(struct world *w)
{
	if (world_end)
		world_end(w);
	while (w->engines.first)
		engine_leave(&w->engines, w->engines.first);
	for (uint32_t i = 0; i < ATTND_MAX_POOL_CACHES; i++) {
		struct cache *c = w->pool.caches[i];

		if (!c)
			continue;
		assert_int_equal(referenced(c), 0);
		assert_int_equal(c->claimed, 0);
		assert_null(c->accounts);
		assert_int_equal(c->granted, 0);
		assert_int_equal(c->engines, 0);
		assert_null(cache_check(c));
		cache_destroy(c);
	}
	assert_int_equal(w->pool.num_free, w->pool.num_slabs);
	/* All descriptors' memory is back, in one piece. */
	assert_in_range(w->pool.num_spare, 0, 1);
	if (w->pool.num_spare)
		assert_int_equal(w->pool.spare[0].offset + w->pool.spare[0].bytes, w->pool.heap_next);
	for (uint32_t i = 1; i < w->ns.num; i++)
		assert_int_equal(w->ns.entries[i].refs + w->ns.entries[i].held, 0);
	assert_int_equal(w->engines.twins.num, 0);
	assert_int_equal(w->engines.heap.used, 0);
	twin_table_destroy(&w->engines.twins);
	pool_destroy(&w->pool);
	ns_destroy(&w->ns);
	realm_table_destroy(&w->realms);
}

struct engine *world_engine(struct world *w)
{
	const struct engine_maker by = {.realm = w->realm, .uid = 1, .session = 1};
	struct engine *e = NULL;

	assert_int_equal(engine_create(&w->engines, NULL, &by, &e), 0);
	return e;
}

uint32_t world_cache(struct world *w, struct engine *e, const char *name, uint32_t block_size)
{
	struct attnd_wire_cache id = {.num_layers = 4,
				      .num_heads = 2,
				      .num_kv_heads = 1,
				      .head_dim = 64,
				      .head_dim_v = 64,
				      .block_size = block_size,
				      .kv_dtype = ATTND_WIRE_F32};
	struct answer a;

	strncpy(id.name, name, sizeof(id.name) - 1);
	a = engine_cache_open(e, &w->pool, &w->ns, &id, true, 0);
	assert_int_equal(a.res, 0);
	return a.value & UINT16_MAX;
}

static size_t put_field(char *to, uint16_t tag, const char *text)
{
	const struct attnd_wire_ns_field f = {.tag = tag, .bytes = (uint16_t)strlen(text)};

	memcpy(to, &f, sizeof(f));
	memcpy(to + sizeof(f), text, f.bytes);
	return sizeof(f) + ((f.bytes + 3u) & ~3u);
}

uint32_t world_ns(struct world *w, struct engine *e, const char *tenant, const char *adapter)
{
	char fields[256] = {0};
	size_t n = 0;
	struct answer a;

	if (tenant)
		n += put_field(fields, ATTND_NS_TENANT, tenant);
	if (adapter)
		n += put_field(fields + n, ATTND_NS_ADAPTER, adapter);
	a = engine_namespace(e, &w->ns, fields, n);
	assert_int_equal(a.res, 0);
	return (uint32_t)a.value;
}

void world_settle(struct world *w)
{
	while (slabs_step(&w->pool))
		;
}

int world_plan(struct world *w, const void *session, struct engine *e, uint32_t cache_index,
	       const struct row_request *rows, uint32_t num_rows, struct plan **list, struct plan **ret)
{
	int r;

	while ((r = plan_make(session, e, cache_index, 1, rows, num_rows, list, ret)) == -EAGAIN)
		world_settle(w);
	return r;
}

struct answer world_grant(struct world *w, struct engine *e, uint32_t cache, uint64_t tokens, uint32_t sequences)
{
	struct answer a;

	while ((a = engine_grant(e, cache, tokens, sequences)).res == -EINPROGRESS)
		world_settle(w);
	return a;
}

uint64_t env_number(const char *name, uint64_t otherwise)
{
	const char *text = getenv(name);

	return text && *text ? strtoull(text, NULL, 0) : otherwise;
}
