/* SPDX-License-Identifier: Apache-2.0 */
/* Caches (cache.h): blocks, holds, eviction, slabs. */
#include "cache.h"

#include <errno.h>
#include <sodium.h>
#include <stdlib.h>
#include <string.h>

#include "killpoint.h"
#include "ns.h"
#include "realm.h"
#include "watch.h"
#include "restore.h"
#include "seal.h"
#include "slabs.h"

#define NONE ATTND_BLOCK_NONE

#ifndef ATTND_POISON /* 1 in builds with sanitizers */
#define ATTND_POISON 0
#endif

/* ---- The LRU list of evictable leaves ---- */

enum { LRU_LOOK = 16 };

enum { EVICT_SLICE = 512 }; /* blocks of a cache that goes, some 50 us */

static void lru_remove(struct cache *c, uint32_t id)
{
	struct block_aux *a = cache_aux(c, id);
	struct lru_list *l = &c->lru[a->priority];

	*(a->prev == NONE ? &l->first : &cache_aux(c, a->prev)->next) = a->next;
	*(a->next == NONE ? &l->last : &cache_aux(c, a->next)->prev) = a->prev;
	a->prev = a->next = NONE;
}

/* Between prev and next. */
static void lru_link(struct cache *c, uint32_t id, uint32_t prev, uint32_t next)
{
	struct block_aux *a = cache_aux(c, id);
	struct lru_list *l = &c->lru[a->priority];

	a->prev = prev;
	a->next = next;
	*(prev == NONE ? &l->first : &cache_aux(c, prev)->next) = id;
	*(next == NONE ? &l->last : &cache_aux(c, next)->prev) = id;
}

/*
 * By last use. A block that was just released is the newest; a parent whose last child was just
 * evicted is as old as the oldest. Only one that was used later than its children lies between:
 * a few steps from either end are looked at, so that this stays O(1).
 */
static void lru_insert(struct cache *c, uint32_t id)
{
	const struct lru_list *l = &c->lru[cache_aux(c, id)->priority];
	uint64_t use = cache_aux(c, id)->last_use;
	uint32_t at = l->last;

	if (at == NONE || cache_aux(c, at)->last_use <= use) {
		lru_link(c, id, at, NONE);
		return;
	}
	at = l->first;
	for (int i = 0; i < LRU_LOOK && at != NONE; i++) {
		if (cache_aux(c, at)->last_use >= use) {
			lru_link(c, id, cache_aux(c, at)->prev, at);
			return;
		}
		at = cache_aux(c, at)->next;
	}
	at = l->last;
	for (int i = 0; i < LRU_LOOK && at != NONE && cache_aux(c, at)->last_use > use; i++)
		at = cache_aux(c, at)->prev;
	lru_link(c, id, at, at == NONE ? l->first : cache_aux(c, at)->next);
}

/* ---- Holds ---- */

/* Somebody holds it now, or nobody does. */
static void count_held(struct cache *c, uint32_t id, int n)
{
	ns_hold(c->ns, cache_block(c, id)->ns, n * (int64_t)c->share_bytes);
}

/* A block's hold has passed from 0 to 1: so have, perhaps, its ancestors'. */
static void hold_up(struct cache *c, uint32_t id)
{
	while (cache_aux(c, id)->state == BLOCK_PUBLIC) {
		struct block_aux *a = cache_aux(c, id);
		uint32_t parent = cache_block(c, id)->parent;

		c->evictable--;
		count_held(c, id, 1);
		watch_held(c, a);
		if (!a->kids)
			lru_remove(c, id);
		if (parent == NONE || cache_aux(c, parent)->held_kids++ || cache_aux(c, parent)->refs)
			return;
		id = parent;
	}
}

static void release_up(struct cache *c, uint32_t id)
{
	while (cache_aux(c, id)->state == BLOCK_PUBLIC) {
		struct block_aux *a = cache_aux(c, id);
		uint32_t parent = cache_block(c, id)->parent;

		c->evictable++;
		count_held(c, id, -1);
		a->last_use = c->clock;
		watch_released(c, a);
		if (!a->kids)
			lru_insert(c, id);
		if (parent == NONE || --cache_aux(c, parent)->held_kids || cache_aux(c, parent)->refs)
			return;
		id = parent;
	}
}

/* Whoever still reads it gets NaN in every dtype, scales included. */
static void poison(const struct cache *c, uint32_t id)
{
	const struct where w = cache_where(c, id);

	for (uint32_t i = 0; i < c->pool->num_nodes; i++)
		if (cache_stores(c, w.node, i))
			memset(cache_piece(c, w, i), 0xff, c->block_bytes);
	memset(cache_flags(c, id), 1, c->flag_bytes);
}

void cache_put_free(struct cache *c, uint32_t id)
{
	if (ATTND_POISON)
		poison(c, id);
	*cache_aux(c, id) = cache_unlinked(BLOCK_FREE);
	id = slabs_freed(c, id);
	if (id != NONE)
		cache_list_free(c, id);
}

void cache_list_free(struct cache *c, uint32_t id)
{
	uint32_t *head = &c->free_head[cache_block_node(c, id)];
	struct block_aux *a = cache_aux(c, id);

	a->state = BLOCK_FREE;
	a->prev = NONE;
	a->next = *head;
	if (a->next != NONE)
		cache_aux(c, a->next)->prev = id;
	*head = id;
	c->free++;
}

void cache_ref(struct cache *c, struct account *account, uint32_t id)
{
	struct block_aux *a = cache_aux(c, id);

	account_hold(c, account, id);
	a->refs++;
	if (aux_hold(a) == 1)
		hold_up(c, id);
}

void cache_unref(struct cache *c, struct account *account, uint32_t id)
{
	struct block_aux *a = cache_aux(c, id);

	account_drop(c, account, id);
	a->refs--;
	if (aux_hold(a))
		return;
	a->owner = 0;
	a->frozen = false;
	a->fill = 0;
	if (a->state == BLOCK_PUBLIC) {
		c->clock++;
		release_up(c, id);
	} else {
		count_held(c, id, -1);
		cache_put_free(c, id);
	}
}

/* ---- Publishing and eviction ---- */

static void index_key(void *ctx, uint32_t id, struct attnd_index_key *ret)
{
	struct cache *c = ctx;
	const struct attnd_block *b = cache_block(c, id);

	*ret = (struct attnd_index_key){b->ns, b->parent, b->first, cache_tokens(c, id)[b->first]};
}

static uint32_t *index_next(void *ctx, uint32_t id)
{
	return &cache_aux(ctx, id)->chain;
}

/* The full block before this one. A block that left another at a slot has what comes before that. */
static uint32_t block_before(const struct cache *c, uint32_t id)
{
	while (cache_block(c, id)->first)
		id = cache_block(c, id)->parent;
	return cache_block(c, id)->parent;
}

void cache_filled(struct cache *c, uint32_t id)
{
	uint32_t before = block_before(c, id);
	uint8_t key[ATTND_PEEK_KEY];
	uint64_t hash;

	watch_filled(c, id);
	c->scrub.unhashed += !cache_block(c, id)->hash;
	if (!c->peek || !c->peek->entries)
		return;
	ns_peek_key(c->ns, cache_block(c, id)->ns, c->peek_salt, key);
	hash = attnd_peek_hash(key, before == NONE ? 0 : cache_aux(c, before)->peek, cache_tokens(c, id),
			       c->block_size);
	cache_aux(c, id)->peek = hash;
	if (!attnd_peek_add(c->peek, hash))
		counters_add(c->counters, peek_lost, 1);
}

void cache_publish(struct cache *c, struct account *account, uint32_t id, uint32_t ns, uint32_t parent,
		   uint32_t first, uint32_t count, uint32_t position)
{
	struct attnd_block *b = cache_block(c, id);
	struct block_aux *a = cache_aux(c, id);

	b->parent = parent;
	b->parent_generation = parent == NONE ? 0 : cache_block(c, parent)->generation;
	b->ns = ns;
	b->first = (uint16_t)first;
	b->position = position;
	b->hash = 0;
	a->state = BLOCK_PUBLIC;
	ns_ref(c->ns, ns);
	if (parent != NONE) {
		struct block_aux *p = cache_aux(c, parent);

		if (!p->kids && !aux_hold(p))
			lru_remove(c, parent);
		p->kids++;
		a->kid_next = p->first_kid;
		if (p->first_kid != NONE)
			cache_aux(c, p->first_kid)->kid_prev = id;
		p->first_kid = id;
		account_hold(c, account, parent); /* a publisher holds what it publishes */
		p->held_kids++;
		if (aux_hold(p) == 1)
			hold_up(c, parent);
	}
	KILL_POINT(publish_fields);
	seal_block_next(b, cache_tokens(c, id), count, atomic_load_explicit(&b->place, memory_order_relaxed));
	KILL_POINT(publish_sealed);
	/* B2: all fields first, then count. */
	atomic_store_explicit(&b->count, (uint16_t)count, memory_order_release);
	KILL_POINT(publish_counted);
	attnd_index_insert(&c->index, id);
	watch_published(c, id);
	KILL_POINT(publish_indexed);
	if (count == c->block_size)
		cache_filled(c, id);
}

void cache_trade_places(struct cache *c, uint32_t id, uint32_t copy)
{
	uint64_t old = cache_place(c, id), place = cache_place(c, copy);
	uint32_t count = cache_count(c, id);
	uint8_t *mine = cache_flags(c, id), *other = cache_flags(c, copy);

	slabs_touch(c, id);
	slabs_touch(c, copy);
	memcpy(cache_tokens(c, id) + count, cache_tokens(c, copy) + count,
	       (c->block_size - count) * sizeof(uint64_t));
	for (uint32_t i = 0; i < c->flag_bytes; i++) {
		uint8_t f = mine[i];

		mine[i] = other[i];
		other[i] = f;
	}
	/* In between both name the copy's place; only the published one counts. */
	cache_set_place(c, id, place);
	KILL_POINT(place_set);
	atomic_store_explicit(&cache_block(c, copy)->place, old, memory_order_release);
	slabs_put(c, id, place);
	slabs_put(c, copy, old);
}

void cache_copy(struct cache *c, uint32_t from, uint32_t to)
{
	const struct where src = cache_where(c, from), dst = cache_where(c, to);

	for (uint32_t i = 0; i < c->pool->num_nodes; i++)
		if (cache_stores(c, dst.node, i))
			memcpy(cache_piece(c, dst, i), cache_piece(c, src, i), c->block_bytes);
	memcpy(cache_flags(c, to), cache_flags(c, from), c->flag_bytes);
	memcpy(cache_tokens(c, to), cache_tokens(c, from), c->block_size * sizeof(uint64_t));
}

static void prefetch_removal(const struct cache *c, uint32_t id)
{
	const struct block_aux *a = cache_aux(c, id);

	if (a->kids > 1 || aux_hold(a))
		return;
	attnd_index_prefetch(&c->index, id);
	for (int i = 0; a->peek && i < 2; i++)
		__builtin_prefetch((const void *)attnd_peek_bucket(c->peek, a->peek, i), 1);
}

/* Out of the tree; hold is 0 and there are no children. */
static void unpublish(struct cache *c, uint32_t id)
{
	struct attnd_block *b = cache_block(c, id);
	struct block_aux *a = cache_aux(c, id);
	uint32_t parent = b->parent;

	watch_evicted(c, id);
	if (a->peek)
		__builtin_prefetch((const void *)attnd_peek_bucket(c->peek, a->peek, 0), 1);
	if (parent != NONE) /* it may go next */
		prefetch_removal(c, parent);
	if (cache_count(c, id) == c->block_size) {
		c->scrub.unhashed -= !b->hash;
		c->scrub.unverified -= a->verify;
		c->scrub.bad -= a->bad;
	}
	/* B3: recycling is count = 0, unlink, generation + 1, reuse; the compiler keeps to it, too. */
	atomic_store_explicit(&b->count, 0, memory_order_release);
	atomic_signal_fence(memory_order_seq_cst);
	KILL_POINT(recycle_uncounted);
	lru_remove(c, id);
	c->evictable--;
	attnd_index_remove(&c->index, id);
	if (parent != NONE) {
		struct block_aux *p = cache_aux(c, parent);

		*(a->kid_prev == NONE ? &p->first_kid : &cache_aux(c, a->kid_prev)->kid_next) = a->kid_next;
		if (a->kid_next != NONE)
			cache_aux(c, a->kid_next)->kid_prev = a->kid_prev;
		if (!--p->kids && !aux_hold(p)) {
			p->last_use = p->last_use > a->last_use ? p->last_use : a->last_use;
			lru_insert(c, parent);
		}
	}
	if (a->peek)
		attnd_peek_remove(c->peek, a->peek);
	ns_unref(c->ns, b->ns);
	KILL_POINT(recycle_unlinked);
	b->generation++;
	atomic_signal_fence(memory_order_seq_cst);
	KILL_POINT(recycle_generation);
	c->evicted++;
	counters_add(c->counters, evicted_blocks, 1);
}

uint32_t cache_goes_after(const struct cache *c, uint32_t id)
{
	uint32_t p = 0;

	if (id != NONE && cache_aux(c, id)->next != NONE)
		return cache_aux(c, id)->next;
	for (p = id == NONE ? 0 : cache_aux(c, id)->priority + 1u; p < CACHE_PRIORITIES; p++)
		if (c->lru[p].first != NONE)
			return c->lru[p].first;
	return NONE;
}

void cache_raise(struct cache *c, uint32_t id, uint32_t priority)
{
	for (; id != NONE && cache_aux(c, id)->priority < priority; id = cache_block(c, id)->parent)
		cache_aux(c, id)->priority = priority & 31;
}

void cache_level(struct cache *c)
{
	for (uint32_t i = 0; i < c->num_ext; i++) {
		for (uint32_t b = 0; c->ext[i].block && b < c->blocks_per_slab; b++) {
			uint32_t id = i * c->blocks_per_slab + b;
			struct block_aux *a = cache_aux(c, id);
			bool listed = a->state == BLOCK_PUBLIC && !aux_hold(a) && !a->kids && a->priority;

			if (listed)
				lru_remove(c, id);
			a->priority = 0;
			if (listed)
				lru_insert(c, id);
		}
	}
}

/* What goes after this one lies anywhere: what will be read of the next two is asked for by now. */
static void prefetch_next(const struct cache *c, uint32_t id)
{
	uint32_t next = cache_aux(c, id)->next, parent = cache_block(c, id)->parent;
	const struct block_aux *a = parent == NONE ? NULL : cache_aux(c, parent);

	if (next == NONE || (a && a->kids == 1 && !aux_hold(a))) /* the parent goes next */
		return;
	prefetch_removal(c, next);
	a = cache_aux(c, next);
	if (a->kid_prev != NONE)
		__builtin_prefetch(&cache_aux(c, a->kid_prev)->kid_next, 1);
	if (a->kid_next != NONE)
		__builtin_prefetch(&cache_aux(c, a->kid_next)->kid_prev, 1);
	next = a->next;
	if (next == NONE)
		return;
	__builtin_prefetch(cache_aux(c, next), 1);
	__builtin_prefetch((const char *)(cache_aux(c, next) + 1) - 1, 1);
	__builtin_prefetch(&cache_block(c, next)->parent, 1);
	__builtin_prefetch((const void *)&cache_block(c, next)->count, 1);
	__builtin_prefetch(cache_tokens(c, next));
}

bool cache_evict(struct cache *c)
{
	uint32_t id = cache_goes_after(c, NONE);

	if (id == NONE)
		return false;
	prefetch_next(c, id);
	unpublish(c, id);
	cache_put_free(c, id);
	return true;
}

/* An idle block with everything below it: nothing below an idle block is held. */
static void evict_subtree(struct cache *c, uint32_t top)
{
	uint32_t id = top;

	for (;;) {
		uint32_t kid = cache_aux(c, id)->first_kid, parent = cache_block(c, id)->parent;

		if (kid != NONE) {
			id = kid;
			continue;
		}
		unpublish(c, id);
		cache_put_free(c, id);
		if (id == top)
			return;
		id = parent;
	}
}

uint32_t cache_drop(struct cache *c, uint32_t id)
{
	uint64_t before = c->evicted;

	evict_subtree(c, id);
	return (uint32_t)(c->evicted - before);
}

void cache_set_place(struct cache *c, uint32_t id, uint64_t place)
{
	struct attnd_block *b = cache_block(c, id);

	seal_block_next(b, cache_tokens(c, id), cache_count(c, id), place);
	atomic_store_explicit(&b->place, place, memory_order_release);
}

bool cache_evict_on(struct cache *c, uint32_t node)
{
	uint32_t id = cache_goes_after(c, NONE);

	for (int i = 0; c->spread && i < LRU_LOOK && id != NONE; i++, id = cache_aux(c, id)->next) {
		if (cache_block_node(c, id) == node) {
			(void)cache_drop(c, id);
			return true;
		}
	}
	return cache_evict(c);
}

uint32_t cache_take_free(struct cache *c, uint32_t node)
{
	uint32_t n = c->pool->num_nodes, id;
	struct block_aux *a;

	for (uint32_t i = 0; c->spread && i + 1 < n && c->free_head[node] == NONE; i++)
		node = node + 1 < n ? node + 1 : 0;
	id = c->free_head[node];
	if (id == NONE)
		return NONE;
	a = cache_aux(c, id);
	c->free_head[node] = a->next;
	if (a->next != NONE)
		cache_aux(c, a->next)->prev = NONE;
	c->free--;
	return id;
}

static bool evict_for_room(struct cache *c, uint32_t node)
{
	enum metrics_reason why =
		watch_reason(c->pool, slabs_at_share(c) ? METRICS_REASON_share : METRICS_REASON_room);
	bool gone = cache_evict_on(c, node);

	watch_reason(c->pool, why);
	return gone;
}

uint32_t cache_alloc(struct cache *c, struct account *account, uint32_t ns, uint32_t index)
{
	struct block_aux *a;
	uint32_t id, node = 0;

	if (c->spread)
		node = (index << c->slots_shift) / c->fmt.chunk % c->pool->num_nodes;
	while (!c->free && slabs_add(c))
		if (!evict_for_room(c, node)) /* which frees no place in a slab that leaves */
			return NONE;
	id = cache_take_free(c, node);
	a = cache_aux(c, id);
	slabs_used(c, id, 1);
	cache_block(c, id)->ns = ns;
	count_held(c, id, 1);
	*a = cache_unlinked(BLOCK_PRIVATE);
	a->refs = 1;
	account_hold(c, account, id);
	return id;
}

/* ---- Life ---- */

struct cache *cache_find(struct pool *p, const char *realm, const struct attnd_wire_cache *id)
{
	for (uint32_t i = 0; i < ATTND_MAX_POOL_CACHES; i++) {
		struct cache *c = p->caches[i];

		if (c && !strcmp(c->realm, realm) && !memcmp(&c->identity, id, sizeof(*id)))
			return c;
	}
	return NULL;
}

/* Up to so many blocks of a cache that goes. True: all that could go has gone. */
static bool evict_some(struct cache *c, uint32_t blocks)
{
	bool more = true;

	watch_reason(c->pool, METRICS_REASON_dropped);
	while (more && blocks--)
		more = cache_evict(c);
	watch_reason(c->pool, METRICS_REASON_room);
	return !more;
}

/* A place in the table: unused, else that of a cache nobody has open. -EAGAIN: once more, that one is large. */
static int table_slot(struct pool *p)
{
	struct cache *idle = NULL;

	for (int i = 0; i < ATTND_MAX_POOL_CACHES; i++) {
		struct cache *c = p->caches[i];

		if (!c)
			return i;
		if (!c->engines && !c->keeps && (!idle || c->total < idle->total))
			idle = c;
	}
	if (!idle)
		return -ENOSPC;
	if (!evict_some(idle, EVICT_SLICE))
		return -EAGAIN;
	int i = (int)idle->id;
	cache_destroy(idle);
	return i;
}

/* Orders of magnitude are enough: results do not depend on how work is cut. */
static double thread_speed(uint64_t features)
{
	static const struct {
		const char *isa;
		double flops_a_ns;
	} speeds[] = {{"avx2", 50}, {"avx512", 120}, {"amx", 700}, {"rvv", 10}};

	for (size_t i = 0; i < sizeof(speeds) / sizeof(*speeds); i++)
		if (!strcmp(attnd_isa_name(features), speeds[i].isa))
			return speeds[i].flops_a_ns;
	return 5;
}

/* KV heads over nodes, unevenly where they do not divide; all of them on each if a block lies on one. */
int cache_formats(const struct pool *p, const struct attnd_wire_cache *id, uint64_t features,
		  struct cache_node nodes[POOL_MAX_NODES], struct attnd_kv_format *ret_all, uint64_t *ret_block_bytes,
		  struct attnd_ops *ret_ops)
{
	struct attnd_kv_spec spec = {
		.num_kv_heads = id->num_kv_heads,
		.group = id->num_heads / id->num_kv_heads,
		.head_dim = id->head_dim,
		.head_dim_v = id->head_dim_v,
		.block_size = id->block_size,
		.dtype = (enum attnd_kdtype)id->kv_dtype,
		.scale = (enum attnd_kscale)id->scale_mode,
		.layout = (enum attnd_klayout)id->layout,
		.v_in_k = id->v_in_k,
	};
	uint32_t n = p->num_nodes, all = id->num_kv_heads, head = 0;
	size_t layer = 0;
	int r = attnd_format_init(features, &spec, ret_all, ret_ops);

	for (uint32_t i = 0; i < n && !r; i++) {
		struct cache_node *node = &nodes[i];

		*node = (struct cache_node){.head0 = head, .heads = all};
		if (!cache_spreads(all, n)) {
			node->heads = all / n + (i < all % n);
			head += node->heads;
		}
		spec.num_kv_heads = node->heads;
		r = attnd_format_init(features, &spec, &node->fmt, ret_ops);
		layer = node->fmt.layer_bytes > layer ? node->fmt.layer_bytes : layer;
	}
	*ret_block_bytes = (uint64_t)id->num_layers * layer;
	return r;
}

static int set_format(struct cache *c, uint64_t features, enum attnd_wire_field *field)
{
	const struct attnd_wire_cache *id = &c->identity;
	int r = cache_formats(c->pool, id, features, c->nodes, &c->fmt, &c->block_bytes, &c->ops);

	if (r) {
		*field = ATTND_FIELD_KV_DTYPE;
		return r;
	}
	c->flops_a_ns = thread_speed(features);
	c->block_size = id->block_size;
	while ((UINT32_C(1) << c->slots_shift) < c->block_size)
		c->slots_shift++;
	c->spread = cache_spreads(id->num_kv_heads, c->pool->num_nodes);
	c->blocks_per_node = (uint32_t)(c->pool->slab_bytes / c->block_bytes);
	c->blocks_per_slab = c->blocks_per_node * (c->spread ? c->pool->num_nodes : 1);
	c->share_bytes = c->spread ? c->block_bytes / c->pool->num_nodes : c->block_bytes;
	c->flag_bytes = id->num_layers * id->num_kv_heads;
	if (!c->blocks_per_slab) {
		*field = ATTND_FIELD_BLOCK_BYTES;
		return -EINVAL;
	}
	return 0;
}

void cache_describe_layout(const struct cache *c, struct attnd_meta_cache *m)
{
	m->layout_id = c->fmt.layout_id;
	m->layout_version = c->fmt.layout_version;
	m->k_lanes = c->fmt.k_lanes;
	m->k_ilv = c->fmt.k_ilv;
	m->v_lanes = c->fmt.v_lanes;
	m->v_ilv = c->fmt.v_ilv;
}

static void describe(const struct cache *c)
{
	struct attnd_meta_cache *m = &c->pool->meta->caches[c->id];

	atomic_store_explicit(&m->num_extents, 0, memory_order_relaxed);
	m->identity = c->identity;
	memcpy(m->realm, c->realm, sizeof(m->realm));
	cache_describe_layout(c, m);
	m->blocks_per_slab = c->blocks_per_slab;
	m->block_bytes = c->block_bytes;
	m->seal = seal_cache(m);
	KILL_POINT(cache_described);
	atomic_store_explicit(&m->used, 1, memory_order_release);
	KILL_POINT(cache_used);
}

/* Static scales outlive the daemon. */
static int make_scales(struct cache *c, uint32_t slot)
{
	struct attnd_meta_cache *m = &c->pool->meta->caches[slot];

	m->scales = (struct attnd_extent){0};
	if (c->identity.scale_mode != ATTND_WIRE_SCALE_STATIC)
		return 0;
	return pool_extent_alloc(c->pool, c->identity.num_layers * sizeof(struct attnd_meta_scale), &m->scales);
}

void cache_set_scale(struct cache *c, uint32_t layer, float k, float v)
{
	struct attnd_meta_scale *s = pool_extent_at(c->pool, &c->pool->meta->caches[c->id].scales);

	s += layer;
	c->scales[layer] = (struct layer_scales){.k = k, .v = v, .set = true};
	if (atomic_load_explicit(&s->set, memory_order_relaxed))
		return;
	s->k = k;
	s->v = v;
	s->seal = seal_scale(s);
	KILL_POINT(scale_written);
	atomic_store_explicit(&s->set, 1, memory_order_release);
	KILL_POINT(scale_set);
}

/* Of realm and identity: the same prefix has another hash in every cache. */
static void set_peek_salt(struct cache *c)
{
	crypto_generichash_state h;

	crypto_generichash_init(&h, NULL, 0, sizeof(c->peek_salt));
	crypto_generichash_update(&h, (const unsigned char *)&c->identity, sizeof(c->identity));
	crypto_generichash_update(&h, (const unsigned char *)c->realm, strlen(c->realm));
	crypto_generichash_final(&h, c->peek_salt, sizeof(c->peek_salt));
}

/* Of as many extents as the pool has slabs: there are never more. */
static size_t aux_bytes(const struct cache *c)
{
	return (size_t)c->pool->num_slabs * c->blocks_per_slab * sizeof(*c->aux);
}

static void cache_free(struct cache *c)
{
	for (uint32_t i = 0; i < c->num_ext; i++) {
		free(c->ext[i].at);
		free(c->where[i]);
	}
	free(c->where);
	attnd_table_free(c->aux, aux_bytes(c));
	attnd_index_destroy(&c->index);
	free(c->ext);
	free(c->scales);
	free(c);
}

/* What does not need a place in the table. */
static int cache_make(struct pool *p, struct ns_table *ns, struct attnd_counters *counters, const char *realm,
		      const struct attnd_wire_cache *id, uint64_t features, enum attnd_wire_field *field,
		      struct cache **ret)
{
	struct cache *c = calloc(1, sizeof(*c));
	int r;

	if (!c)
		return -ENOMEM;
	c->pool = p;
	c->ns = ns;
	c->identity = *id;
	c->counters = counters;
	strncpy(c->realm, realm, sizeof(c->realm) - 1);
	set_peek_salt(c);
	cache_set_share(c);
	for (uint32_t i = 0; i < POOL_MAX_NODES; i++)
		c->free_head[i] = NONE;
	c->nowhere_head = NONE;
	for (int i = 0; i < CACHE_PRIORITIES; i++)
		c->lru[i] = (struct lru_list){NONE, NONE};
	c->scrub.id = c->scrub.want = NONE;
	r = set_format(c, features, field);
	if (!r) {
		c->aux = attnd_table_alloc(aux_bytes(c));
		c->scales = calloc(id->num_layers, sizeof(*c->scales));
		c->where = calloc(p->num_slabs, sizeof(*c->where));
		r = c->aux && c->scales && c->where ? attnd_index_init(&c->index, index_key, index_next, c) : -ENOMEM;
	}
	if (r) {
		cache_free(c);
		return r;
	}
	*ret = c;
	return 0;
}

int cache_create(struct pool *p, struct ns_table *ns, struct attnd_counters *counters, const char *realm,
		 const struct attnd_wire_cache *id, uint64_t features, enum attnd_wire_field *field,
		 struct cache **ret)
{
	struct cache *c;
	int slot, r;

	*field = ATTND_FIELD_NONE;
	r = cache_make(p, ns, counters, realm, id, features, field, &c);
	if (r)
		return r;
	slot = table_slot(p);
	r = slot < 0 ? slot : make_scales(c, (uint32_t)slot);
	if (r) {
		*field = slot < 0 ? ATTND_FIELD_CACHE : ATTND_FIELD_NONE;
		cache_free(c);
		return r;
	}
	c->id = (uint32_t)slot;
	p->caches[slot] = c;
	describe(c);
	*ret = c;
	return 0;
}

void cache_destroy(struct cache *c)
{
	struct attnd_meta_cache *m;

	if (!c)
		return;
	m = &c->pool->meta->caches[c->id];
	atomic_store_explicit(&m->used, 0, memory_order_release);
	KILL_POINT(cache_unused);
	c->move.phase = MOVE_NONE;
	while (!evict_some(c, UINT32_MAX))
		;
	c->pool->doomed -= c->doomed;
	watch_cache_gone(c);
	slabs_return(c);
	if (m->scales.bytes)
		pool_extent_free(c->pool, &m->scales);
	c->pool->caches[c->id] = NULL;
	cache_free(c);
}

void cache_doom(struct cache *c)
{
	c->doomed = true;
	c->pool->doomed++;
	if (!c->keeps && evict_some(c, EVICT_SLICE))
		cache_destroy(c);
}

bool cache_bury(struct pool *p)
{
	for (uint32_t i = 0; p->doomed && i < ATTND_MAX_POOL_CACHES; i++) {
		struct cache *c = p->caches[i];

		if (!c || !c->doomed || c->keeps)
			continue;
		if (evict_some(c, EVICT_SLICE))
			cache_destroy(c);
		return true;
	}
	return false;
}

void cache_leave(struct cache *c)
{
	if (!c)
		return;
	c->pool->caches[c->id] = NULL;
	cache_free(c);
}

/* ---- After a restart ---- */

/*
 * Blocks that nobody published are free in the places that the others leave: those of extents with a slab
 * first. What is left of them has no place.
 */
static void restore_free(struct cache *c, const struct restored_cache *r, bool with_slab, uint32_t *place)
{
	uint32_t n = c->blocks_per_slab, all = c->num_ext * n;

	for (uint32_t id = all; id-- > 0;) {
		struct block_extent *e = cache_ext(c, id);

		if (!e->block || cache_aux(c, id)->state == BLOCK_PUBLIC || (e->slab != UINT32_MAX) != with_slab)
			continue;
		while (*place < all && (c->ext[*place / n].slab == UINT32_MAX || r->taken[*place]))
			++*place;
		if (*place == all) {
			atomic_store_explicit(&cache_block(c, id)->place, ATTND_PLACE_NONE, memory_order_relaxed);
			slabs_nowhere(c, id);
			continue;
		}
		/* What a plan left in them, half written, is cleared before their first use. */
		memset(cache_flags(c, id), 1, c->flag_bytes);
		slabs_give(c, id, (uint64_t)c->ext[*place / n].slab << 32 | *place % n);
		++*place;
	}
}

/* Parents come before their children. */
static void restore_block(struct cache *c, uint32_t id, bool verify)
{
	struct attnd_block *b = cache_block(c, id);
	struct block_aux *a = cache_aux(c, id);
	bool full = cache_count(c, id) == c->block_size;

	*a = cache_unlinked(BLOCK_PUBLIC);
	cache_ext(c, id)->nowhere--;
	c->total++;
	slabs_put(c, id, cache_place(c, id));
	slabs_used(c, id, 1);
	if (!full) { /* the hash of a full block only; its flags are not in it */
		b->hash = 0;
		if (verify)
			memset(cache_flags(c, id), 1, c->flag_bytes);
	}
	ns_ref(c->ns, b->ns);
	c->evictable++;
	if (b->parent != NONE) {
		struct block_aux *p = cache_aux(c, b->parent);

		p->kids++;
		a->kid_next = p->first_kid;
		if (p->first_kid != NONE)
			cache_aux(c, p->first_kid)->kid_prev = id;
		p->first_kid = id;
	}
	attnd_index_insert(&c->index, id);
	if (!full)
		return;
	a->verify = verify && b->hash;
	c->scrub.unverified += a->verify;
	cache_filled(c, id);
}

static int restore_extents(struct cache *c, const struct restored_cache *r)
{
	c->ext = calloc(r->num_ext ? r->num_ext : 1, sizeof(*c->ext));
	if (!c->ext)
		return -ENOMEM;
	c->cap_ext = r->num_ext ? r->num_ext : 1;
	c->num_ext = r->num_ext;
	for (uint32_t i = 0; i < r->num_ext; i++) {
		struct block_extent *e = &c->ext[i];

		e->slab = UINT32_MAX;
		e->mem = r->ext[i].mem;
		if (e->mem.bytes && slabs_extent(c, i))
			return -ENOMEM;
		e->slab = r->ext[i].slab;
		if (e->slab == UINT32_MAX)
			continue;
		if (slabs_map(c, i))
			return -ENOMEM;
		c->num_slabs++;
	}
	return attnd_index_reserve(&c->index, c->num_ext * c->blocks_per_slab);
}

int cache_restore(struct pool *p, struct ns_table *ns, struct attnd_counters *counters, struct attnd_peek_table *peek,
		  const struct restored_cache *r, uint64_t features, bool verify, struct cache **ret)
{
	const struct attnd_meta_cache *m = &p->meta->caches[r->id];
	enum attnd_wire_field field;
	uint32_t place = 0;
	struct cache *c;
	int e = cache_make(p, ns, counters, m->realm, &m->identity, features, &field, &c);

	if (e)
		return e;
	c->id = r->id;
	c->peek = peek;
	e = restore_extents(c, r);
	if (e) {
		cache_free(c);
		return e;
	}
	for (uint32_t i = 0; m->scales.bytes && i < c->identity.num_layers; i++) {
		const struct attnd_meta_scale *s = pool_extent_at(p, &m->scales);

		if (atomic_load_explicit(&s[i].set, memory_order_relaxed))
			c->scales[i] = (struct layer_scales){.k = s[i].k, .v = s[i].v, .set = true};
	}
	for (uint32_t i = 0; i < r->num_blocks; i++)
		restore_block(c, r->order[i], verify);
	for (uint32_t i = 0; i < r->num_blocks; i++)
		if (!cache_aux(c, r->order[i])->kids)
			lru_insert(c, r->order[i]);
	restore_free(c, r, true, &place);
	restore_free(c, r, false, &place);
	slabs_sweep(c);
	p->caches[c->id] = c;
	*ret = c;
	return 0;
}

/* ---- Checking ---- */

static const char *check_block(const struct cache *c, uint32_t id)
{
	const struct block_aux *a = cache_aux(c, id);
	const struct attnd_block *b = cache_block(c, id);
	uint32_t kids = 0, held = 0;

	if ((a->state == BLOCK_NOWHERE) != (cache_place(c, id) == ATTND_PLACE_NONE))
		return "a place of a block without one";
	if ((a->peek != 0) !=
	    (c->peek && c->peek->entries && a->state == BLOCK_PUBLIC && cache_count(c, id) == c->block_size))
		return "the hashes of prefixes are not those of the full published blocks";
	if (a->state != BLOCK_PUBLIC)
		return cache_count(c, id) ? "an unpublished block has a count" : NULL;
	if (!cache_count(c, id) || cache_count(c, id) > c->block_size || b->first >= cache_count(c, id))
		return "count or first out of range";
	if (b->parent != NONE && b->parent_generation != cache_block(c, b->parent)->generation)
		return "parent of another generation";
	if (b->parent != NONE && cache_aux(c, b->parent)->priority < a->priority)
		return "a parent of lower priority";
	if (b->parent != NONE && b->first && cache_block(c, b->parent)->first >= b->first)
		return "a sibling's parent begins no earlier";
	for (uint32_t k = a->first_kid; k != NONE; k = cache_aux(c, k)->kid_next) {
		kids++;
		held += aux_hold(cache_aux(c, k)) != 0;
		if (cache_block(c, k)->parent != id)
			return "a child of another parent";
	}
	if (kids != a->kids || held != a->held_kids)
		return "children miscounted";
	struct attnd_index_key key;
	index_key((void *)c, id, &key);
	return attnd_index_find(&c->index, &key) == id ? NULL : "a published block is not in the index";
}

const char *cache_check(const struct cache *c)
{
	uint64_t free = 0, idle = 0, total = 0, listed = 0, leaves = 0, pub = 0;

	for (uint32_t id = 0; id < c->num_ext * c->blocks_per_slab; id++) {
		const struct block_aux *a = cache_ext(c, id)->block ? cache_aux(c, id) : NULL;
		const char *bad = a ? check_block(c, id) : NULL;

		if (bad)
			return bad;
		if (!a)
			continue;
		total += a->state != BLOCK_NOWHERE;
		free += a->state == BLOCK_FREE;
		pub += a->state == BLOCK_PUBLIC;
		if (a->state == BLOCK_PRIVATE && !a->refs)
			return "a private block without a reference";
		if (a->state == BLOCK_PUBLIC && !aux_hold(a)) {
			idle++;
			leaves += !a->kids;
		}
	}
	for (int p = 0; p < CACHE_PRIORITIES; p++) {
		for (uint32_t id = c->lru[p].first; id != NONE; id = cache_aux(c, id)->next) {
			listed++;
			if (cache_aux(c, id)->priority != p)
				return "a leaf in another priority's list";
		}
	}
	if (total != c->total || free != c->free || idle != c->evictable)
		return "free + evictable + referenced != total";
	if (slabs_check(c))
		return slabs_check(c);
	if (listed != leaves)
		return "the LRU list is not the evictable leaves";
	return pub == c->index.used ? NULL : "the index holds more than the published blocks";
}
