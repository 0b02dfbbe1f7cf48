/* SPDX-License-Identifier: Apache-2.0 */
/* Tiles from one layout into another (repack.h). */
#include "repack.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "scrub.h"
#include "seal.h"

enum { MAX_THREADS = 16 };

static bool same_layout(const struct attnd_meta_cache *m, const struct attnd_kv_format *f)
{
	return m->layout_id == f->layout_id && m->layout_version == f->layout_version && m->k_lanes == f->k_lanes &&
	       m->k_ilv == f->k_ilv && m->v_lanes == f->v_lanes && m->v_ilv == f->v_ilv;
}

static int stored_format(const struct attnd_meta_cache *m, const struct attnd_kv_spec *spec,
			 struct attnd_kv_format *ret, attnd_read_fn **ret_read)
{
	const uint16_t lanes[4] = {m->k_lanes, m->k_ilv, m->v_lanes, m->v_ilv};

	return attnd_format_stored(spec, m->layout_id, m->layout_version, lanes, ret, ret_read);
}

const char *repack_possible(const struct pool *p, const struct attnd_meta_cache *m, uint64_t features,
			    bool *ret_needed)
{
	struct cache_node nodes[POOL_MAX_NODES];
	struct attnd_kv_format all, old;
	struct attnd_ops ops;
	attnd_read_fn *read;
	uint64_t block_bytes;

	if (cache_formats(p, &m->identity, features, nodes, &all, &block_bytes, &ops))
		return "these kernels do not know its geometry";
	if (stored_format(m, &all.spec, &old, &read))
		return "the layout of its tiles is unknown";
	for (uint32_t i = 0; i < p->num_nodes; i++)
		if (stored_format(m, &nodes[i].fmt.spec, &old, &read) || old.layer_bytes != nodes[i].fmt.layer_bytes)
			return "its tiles have another size in the layout of these kernels";
	if (block_bytes != m->block_bytes)
		return "its blocks have another size";
	*ret_needed = !same_layout(m, &all);
	return NULL;
}

struct repack {
	struct cache *c;
	const struct attnd_meta_cache *m;
	const struct restored_cache *r;
	struct attnd_kv_format old[POOL_MAX_NODES];
	attnd_read_fn *read;
	bool *bad; /* [num_blocks]: its hash says that it is lost already */
	_Atomic uint32_t next;
	_Atomic int error;
};

/* A tile in rows. */
struct rows {
	char *k, *v;
	float *k_scales, *v_scales;
};

static void repack_layer(const struct repack *x, uint32_t id, uint32_t node, uint32_t layer, const struct rows *w)
{
	const struct cache *c = x->c;
	const struct cache_node *n = &c->nodes[node];
	size_t esz = attnd_kdtype_bytes(n->fmt.spec.dtype), k_row = n->fmt.spec.head_dim * esz,
	       v_row = n->fmt.spec.head_dim_v * esz;
	bool scaled = n->fmt.spec.scale == ATTND_K_SCALE_DYNAMIC;
	struct attnd_slots_args a = {
		.fmt = &x->old[node],
		.block = cache_piece(c, cache_where(c, id), node) + layer * n->fmt.layer_bytes,
		.flags = cache_flags(c, id) + (size_t)layer * c->identity.num_kv_heads + n->head0,
		.k = w->k,
		.v = n->fmt.spec.v_in_k ? NULL : w->v,
		.k_token_stride = n->heads * k_row,
		.k_head_stride = k_row,
		.v_token_stride = n->heads * v_row,
		.v_head_stride = v_row,
		.k_scales = scaled ? w->k_scales : NULL,
		.v_scales = scaled && !n->fmt.spec.v_in_k ? w->v_scales : NULL,
		.scale_token_stride = n->heads * sizeof(float),
		.k_scale = 1,
		.v_scale = 1,
		.n = cache_count(c, id),
		.num_heads = n->heads,
		.in = n->fmt.spec.dtype,
	};

	x->read(&a);
	a.fmt = &n->fmt;
	/* Slots that are not published stay finite in the new layout, too. */
	memset(a.block, 0, n->fmt.layer_bytes);
	c->ops.write(&a);
}

static void repack_block(struct repack *x, uint32_t i, const struct rows *w)
{
	const struct cache *c = x->c;
	uint32_t id = x->r->order[i];

	x->bad[i] = cache_aux(c, id)->verify && scrub_hash(c, id) != cache_block(c, id)->hash;
	for (uint32_t node = 0; node < c->pool->num_nodes && !x->bad[i]; node++)
		for (uint32_t layer = 0; layer < c->identity.num_layers; layer++)
			if (cache_stores(c, cache_block_node(c, id), node))
				repack_layer(x, id, node, layer, w);
}

static void *repack_some(void *arg)
{
	struct repack *x = arg;
	const struct attnd_wire_cache *id = &x->c->identity;
	size_t slots = (size_t)id->block_size * id->num_kv_heads, esz = attnd_kdtype_bytes(x->c->fmt.spec.dtype);
	struct rows w = {malloc(slots * id->head_dim * esz), malloc(slots * id->head_dim_v * esz),
			 malloc(slots * sizeof(float)), malloc(slots * sizeof(float))};
	uint32_t i;

	if (!w.k || !w.v || !w.k_scales || !w.v_scales)
		atomic_store(&x->error, -ENOMEM);
	while (!atomic_load(&x->error) && (i = atomic_fetch_add(&x->next, 1)) < x->r->num_blocks)
		repack_block(x, i, &w);
	free(w.k);
	free(w.v);
	free(w.k_scales);
	free(w.v_scales);
	return NULL;
}

static void run_threads(struct repack *x)
{
	uint32_t n = topology_cpus(x->c->pool->topology), started = 0;
	pthread_t threads[MAX_THREADS];

	n = n < MAX_THREADS ? n : MAX_THREADS;
	while (started + 1 < n && !pthread_create(&threads[started], NULL, repack_some, x))
		started++;
	(void)repack_some(x);
	while (started)
		pthread_join(threads[--started], NULL);
}

/* What was verified need not be again; its hash is made again. What is lost stays to be found. */
static void settle_hashes(const struct repack *x)
{
	struct cache *c = x->c;

	for (uint32_t i = 0; i < x->r->num_blocks; i++) {
		uint32_t id = x->r->order[i];
		struct attnd_block *b = cache_block(c, id);

		if (x->bad[i] || !b->hash)
			continue;
		c->scrub.unverified -= cache_aux(c, id)->verify;
		cache_aux(c, id)->verify = false;
		b->hash = 0;
		c->scrub.unhashed++;
	}
}

int repack_run(struct cache *c, const struct restored_cache *r)
{
	struct attnd_meta_cache *m = &c->pool->meta->caches[c->id];
	struct repack x = {.c = c, .m = m, .r = r};
	int e = 0;

	for (uint32_t i = 0; i < c->pool->num_nodes && !e; i++)
		e = stored_format(m, &c->nodes[i].fmt.spec, &x.old[i], &x.read);
	x.bad = calloc(r->num_blocks ? r->num_blocks : 1, sizeof(*x.bad));
	if (e || !x.bad) {
		free(x.bad);
		return -ENOMEM;
	}
	m->seal = ~m->seal;
	atomic_signal_fence(memory_order_seq_cst);
	run_threads(&x);
	e = atomic_load(&x.error);
	if (!e) {
		settle_hashes(&x);
		cache_describe_layout(c, m);
		atomic_signal_fence(memory_order_seq_cst);
		m->seal = seal_cache(m);
	}
	free(x.bad);
	return e;
}
