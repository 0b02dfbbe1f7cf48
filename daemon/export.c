/* SPDX-License-Identifier: Apache-2.0 */
/* K and V as data (export.h). */
#include "export.h"

#include "collapse.h"
#include "slabs.h"

enum { ITEM_TOKENS = 64, PART_ALIGN = 64 };

static uint64_t part(uint64_t *at, uint64_t bytes)
{
	uint64_t begin = *at;

	*at += (bytes + PART_ALIGN - 1) / PART_ALIGN * PART_ALIGN;
	return begin;
}

uint64_t export_layout(const struct attnd_wire_cache *id, uint64_t n, uint64_t *ret_v, uint64_t *ret_k_scales,
		       uint64_t *ret_v_scales)
{
	uint64_t heads = n * id->num_kv_heads, esz = attnd_kdtype_bytes((enum attnd_kdtype)id->kv_dtype), at = 0;
	bool scaled = id->scale_mode == ATTND_WIRE_SCALE_DYNAMIC;

	part(&at, heads * id->head_dim * esz);
	*ret_v = part(&at, id->v_in_k ? 0 : heads * id->head_dim_v * esz);
	*ret_k_scales = part(&at, scaled ? heads * sizeof(float) : 0);
	*ret_v_scales = part(&at, scaled && !id->v_in_k ? heads * sizeof(float) : 0);
	return at;
}

int export_begin(struct export *x, struct seq *s, uint32_t cache_index, uint32_t start, uint32_t n, uint64_t serial)
{
	struct engine *e = s->engine;
	struct cache *c = e->caches[cache_index].cache;
	int r;

	*x = (struct export){.engine = e,
			     .cache = c,
			     .cache_index = cache_index,
			     .start = start,
			     .n = n,
			     .items = (start + n - 1) / ITEM_TOKENS - start / ITEM_TOKENS + 1};
	held_init(&x->held, serial, NULL, &e->heap);
	r = held_fork(&x->held, &s->in[cache_index].held, c, (uint64_t)start + n);
	if (r)
		return r;
	collapse_forget(&x->held, c); /* it is no sequence's, and workers read its table */
	x->epoch = slabs_read(c);
	return 0;
}

void export_end(struct export *x)
{
	slabs_read_end(x->cache, x->epoch);
	held_destroy(&x->held, x->cache);
}

void export_phases(struct export *x, struct team_job *t)
{
	t->num_nodes = x->cache->pool->num_nodes;
	for (uint32_t i = 0; i <= t->num_nodes; i++)
		t->phases[0].first[i] = i * x->items;
}

/* Slots of one block on a NUMA node; `token` counts from the export's start. */
static void read_block(const struct export *x, uint32_t node, uint32_t position, uint32_t n)
{
	const struct cache *c = x->cache;
	const struct attnd_wire_cache *id = &c->identity;
	const struct cache_node *m = &c->nodes[node];
	const struct table_entry *e = &x->held.table[position >> c->slots_shift];
	size_t esz = attnd_kdtype_bytes((enum attnd_kdtype)id->kv_dtype), k_row = id->head_dim * esz,
	       v_row = id->head_dim_v * esz, token = position - x->start, head = token * id->num_kv_heads + m->head0;
	const struct attnd_slots_args a = {
		.fmt = &m->fmt,
		.block = cache_piece(c, cache_where(c, e->id), node) + x->layer * m->fmt.layer_bytes,
		.flags = e->flags + (size_t)x->layer * id->num_kv_heads + m->head0,
		.k = x->k + head * k_row,
		.v = x->v ? x->v + head * v_row : NULL,
		.k_token_stride = id->num_kv_heads * k_row,
		.k_head_stride = k_row,
		.v_token_stride = id->num_kv_heads * v_row,
		.v_head_stride = v_row,
		.k_scales = x->k_scales ? x->k_scales + head : NULL,
		.v_scales = x->v_scales ? x->v_scales + head : NULL,
		.scale_token_stride = id->num_kv_heads * sizeof(float),
		.slot = position & (c->block_size - 1),
		.n = n,
		.num_heads = m->heads,
	};

	/* A block of a spread cache may come to another node meanwhile: the first node's items read all. */
	if (!c->spread || !node)
		c->ops.read(&a);
}

void export_run(const struct export *x, uint32_t item)
{
	uint32_t B = x->cache->block_size, node = item / x->items;
	uint32_t from = (x->start / ITEM_TOKENS + item % x->items) * ITEM_TOKENS, to = from + ITEM_TOKENS;

	from = from > x->start ? from : x->start;
	to = to < x->start + x->n ? to : x->start + x->n;
	while (from < to) {
		uint32_t end = (from / B + 1) * B;

		end = end < to ? end : to;
		read_block(x, node, from, end - from);
		from = end;
	}
}
