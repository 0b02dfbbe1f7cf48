/* SPDX-License-Identifier: Apache-2.0 */
/* Taking a cache over from an earlier daemon (restore.h). */
#include "restore.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cache.h"
#include "identity.h"
#include "killpoint.h"
#include "log.h"
#include "ns.h"
#include "realm.h"
#include "repack.h"
#include "seal.h"

#define NONE ATTND_BLOCK_NONE

enum { MAX_SLABS = 1 << 24 };

void meta_layout(uint32_t num_slabs, uint64_t *ret_slabs, uint64_t *ret_extents, uint64_t *ret_heap)
{
	uint64_t at = (sizeof(struct attnd_meta_region) + 4095) & ~UINT64_C(4095);

	*ret_slabs = at;
	at += (num_slabs * (uint64_t)sizeof(struct attnd_meta_slab) + 4095) & ~UINT64_C(4095);
	*ret_extents = at;
	at += (num_slabs * (uint64_t)ATTND_MAX_POOL_CACHES * sizeof(struct attnd_extent) + 4095) & ~UINT64_C(4095);
	*ret_heap = at;
}

uint64_t meta_extent_bytes(const struct attnd_wire_cache *id, uint32_t n)
{
	return n * (sizeof(struct attnd_block) + id->block_size * sizeof(uint64_t) +
		    (uint64_t)id->num_layers * id->num_kv_heads);
}

const char *restore_header(const struct attnd_meta_region *m, uint64_t bytes)
{
	uint64_t slabs, extents, heap, used;

	if (bytes < sizeof(*m) || __atomic_load_n(&m->magic, __ATOMIC_ACQUIRE) != ATTND_META_MAGIC)
		return "it is not a finished metadata region";
	if (m->version != ATTND_META_VERSION)
		return "its version is another one";
	if (!m->num_slabs || m->num_slabs > MAX_SLABS || !m->num_nodes || m->num_nodes > ATTND_META_NODES ||
	    !m->slab_bytes || m->slab_bytes % (2 << 20) || m->slab_bytes > UINT64_C(1) << 40)
		return "its slabs are out of range";
	meta_layout(m->num_slabs, &slabs, &extents, &heap);
	used = atomic_load_explicit(&m->heap_used, memory_order_relaxed);
	if (m->bytes != bytes || m->slabs_offset != slabs || m->extents_offset != extents || m->heap_offset != heap ||
	    used < heap || used > bytes)
		return "its tables are not where they should be";
	return NULL;
}

/* ---- Checking ---- */

struct check {
	struct attnd_meta_region *m;
	char *base;
	struct restored *out;
	struct attnd_extent *used; /* all that was found to be right so far, to be looked at for overlaps */
	size_t num_used, cap_used;
	/* of one cache */
	const struct attnd_meta_cache *entry;
	struct restored_cache *r;
	uint32_t n, block_size; /* blocks of a slab; slots */
	uint32_t *slab_ext;	/* [num_slabs]: index + 1 of the cache's extent that has it */
	uint32_t *first_kid;	/* [blocks]: id + 1 */
	uint32_t *next_kid;
	uint8_t *state; /* [blocks] */
	struct attnd_index index;
	uint32_t *chain;
};

enum { GONE, CANDIDATE, DROPPED, ADOPTED };

static bool add_used(struct check *k, const struct attnd_extent *e)
{
	if (k->num_used == k->cap_used) {
		size_t cap = k->cap_used ? k->cap_used * 2 : 64;
		struct attnd_extent *u = realloc(k->used, cap * sizeof(*u));

		if (!u)
			return false;
		k->used = u;
		k->cap_used = cap;
	}
	k->used[k->num_used++] = *e;
	return true;
}

/* Memory of the heap that can hold exactly `bytes`. */
static bool extent_good(const struct check *k, const struct attnd_extent *e, uint64_t bytes)
{
	uint64_t used = atomic_load_explicit(&k->m->heap_used, memory_order_relaxed);

	return e->bytes == ((bytes + 63) & ~UINT64_C(63)) && e->bytes <= used && e->offset >= k->m->heap_offset &&
	       e->offset <= used - e->bytes && !(e->offset & 63);
}

static int by_offset(const void *a, const void *b)
{
	uint64_t x = ((const struct attnd_extent *)a)->offset, y = ((const struct attnd_extent *)b)->offset;

	return (x > y) - (x < y);
}

static bool overlap(struct check *k)
{
	if (k->num_used)
		qsort(k->used, k->num_used, sizeof(*k->used), by_offset);
	for (size_t i = 1; i < k->num_used; i++)
		if (k->used[i - 1].offset + k->used[i - 1].bytes > k->used[i].offset)
			return true;
	return false;
}

static struct attnd_meta_ns *ns_at(struct attnd_meta_region *m, uint32_t id)
{
	const struct attnd_extent *e = &m->ns[id / ATTND_META_NS_PART];

	return e->bytes ? (struct attnd_meta_ns *)(void *)((char *)m + e->offset) + id % ATTND_META_NS_PART : NULL;
}

static bool ns_known(struct attnd_meta_region *m, uint32_t id)
{
	const struct attnd_meta_ns *n;

	if (!id || id >= ATTND_META_NS_PARTS * ATTND_META_NS_PART)
		return !id;
	n = ns_at(m, id);
	return n && atomic_load_explicit(&n->used, memory_order_acquire) == 1;
}

static int check_ns(struct check *k)
{
	for (int i = 0; i < ATTND_META_NS_PARTS; i++) {
		struct attnd_extent *e = &k->m->ns[i];
		struct attnd_meta_ns *n;

		if (!extent_good(k, e, ATTND_META_NS_PART * sizeof(struct attnd_meta_ns))) {
			*e = (struct attnd_extent){0};
			continue;
		}
		if (!add_used(k, e))
			return -ENOMEM;
		n = (struct attnd_meta_ns *)(void *)(k->base + e->offset);
		for (uint32_t j = 0; j < ATTND_META_NS_PART; j++)
			if (atomic_load_explicit(&n[j].used, memory_order_acquire) != 1 ||
			    n[j].seal != seal_ns(&n[j]))
				atomic_store_explicit(&n[j].used, 0, memory_order_relaxed);
	}
	return 0;
}

static bool realm_good(const char *realm, size_t size)
{
	size_t n = strnlen(realm, size);

	for (size_t i = 0; i < n; i++)
		if (realm[i] < 0x20 || realm[i] > 0x7e)
			return false;
	/* Nobody can come back to what an engine had for itself alone. */
	return n && n < size && strncmp(realm, "engine:", 7);
}

static bool scales_good(const struct check *k, struct attnd_meta_cache *m)
{
	const struct attnd_meta_scale *s;

	if (m->identity.scale_mode != ATTND_WIRE_SCALE_STATIC) {
		m->scales = (struct attnd_extent){0};
		return true;
	}
	if (!extent_good(k, &m->scales, m->identity.num_layers * sizeof(*s)))
		return false;
	s = (const struct attnd_meta_scale *)(const void *)(k->base + m->scales.offset);
	for (uint32_t i = 0; i < m->identity.num_layers; i++)
		if (atomic_load_explicit(&s[i].set, memory_order_acquire) &&
		    (s[i].seal != seal_scale(&s[i]) || !isfinite(s[i].k) || !isfinite(s[i].v) || !(s[i].k > 0) ||
		     !(s[i].v > 0)))
			return false;
	return true;
}

static bool entry_good(const struct check *k, struct attnd_meta_cache *m)
{
	return m->seal == seal_cache(m) && !identity_check(&m->identity).res &&
	       realm_good(m->realm, sizeof(m->realm)) && m->block_bytes && m->block_bytes <= k->m->slab_bytes &&
	       m->blocks_per_slab ==
		       k->m->slab_bytes / m->block_bytes *
			       (cache_spreads(m->identity.num_kv_heads, k->m->num_nodes) ? k->m->num_nodes : 1) &&
	       meta_extent_bytes(&m->identity, m->blocks_per_slab) <= k->m->bytes && scales_good(k, m);
}

static struct attnd_block *block_at(const struct check *k, uint32_t id)
{
	return (struct attnd_block *)(void *)(k->base + k->r->ext[id / k->n].mem.offset) + id % k->n;
}

static uint32_t count_of(const struct attnd_block *b)
{
	return atomic_load_explicit(&b->count, memory_order_acquire);
}

static uint64_t *tokens_at(const struct check *k, uint32_t id)
{
	const struct restored_extent *e = &k->r->ext[id / k->n];

	return (uint64_t *)(void *)(k->base + e->mem.offset + k->n * sizeof(struct attnd_block)) +
	       (size_t)(id % k->n) * k->block_size;
}

static void index_key(void *ctx, uint32_t id, struct attnd_index_key *ret)
{
	const struct check *k = ctx;
	const struct attnd_block *b = block_at(k, id);

	*ret = (struct attnd_index_key){b->ns, b->parent, b->first, tokens_at(k, id)[b->first]};
}

static uint32_t *index_next(void *ctx, uint32_t id)
{
	return &((struct check *)ctx)->chain[id];
}

/* An extent without a slab and without a published block was about to go: its memory is spare. */
static bool of_use(const struct check *k, uint32_t i)
{
	bool any = k->r->ext[i].slab != UINT32_MAX;

	for (uint32_t b = 0; b < k->n && !any; b++)
		any = count_of(block_at(k, i * k->n + b)) != 0;
	return any;
}

static int use_extents(struct check *k, struct attnd_extent *list)
{
	for (uint32_t i = 0; i < k->r->num_ext; i++) {
		if (!k->r->ext[i].mem.bytes)
			continue;
		if (!of_use(k, i))
			list[i] = k->r->ext[i].mem = (struct attnd_extent){0};
		else if (!add_used(k, &list[i]))
			return -ENOMEM;
	}
	return 0;
}

/* Which slabs are this cache's, with which extents; slabs that are no cache's in the end are set free. */
static int find_extents(struct check *k, uint32_t listed)
{
	struct attnd_extent *list =
		(struct attnd_extent *)(void *)(k->base + k->m->extents_offset) + (size_t)k->r->id * k->m->num_slabs;
	struct attnd_meta_slab *slabs = (struct attnd_meta_slab *)(void *)(k->base + k->m->slabs_offset);
	uint64_t bytes = meta_extent_bytes(&k->entry->identity, k->n);

	listed = listed < k->m->num_slabs ? listed : k->m->num_slabs;
	k->r->ext = malloc((listed ? listed : 1) * sizeof(*k->r->ext));
	if (!k->r->ext)
		return -ENOMEM;
	for (uint32_t i = 0; i < listed; i++) {
		k->r->ext[i] = (struct restored_extent){.slab = UINT32_MAX};
		/* One that has lost its slab may have blocks in others. */
		if (!extent_good(k, &list[i], bytes) || (i + UINT64_C(1)) * k->n >= NONE) {
			list[i] = (struct attnd_extent){0};
			continue;
		}
		k->r->ext[i].mem = list[i];
		k->r->num_ext = i + 1;
	}
	for (uint32_t s = 0; s < k->m->num_slabs; s++) {
		uint32_t e = slabs[s].extent;

		if (slabs[s].cache != k->r->id + 1)
			continue;
		if (e >= listed || k->r->ext[e].slab != UINT32_MAX || !k->r->ext[e].mem.bytes) {
			slabs[s].cache = 0;
			continue;
		}
		k->r->ext[e].slab = s;
		k->slab_ext[s] = e + 1;
	}
	return use_extents(k, list);
}

/* Where it claims to be, among the places of the cache's slabs; NONE: nowhere. */
static uint32_t place_of(const struct check *k, const struct attnd_block *b)
{
	uint64_t place = atomic_load_explicit(&b->place, memory_order_relaxed), slab = place >> 32,
		 index = place & UINT32_MAX;

	if (slab >= k->m->num_slabs || !k->slab_ext[slab] || index >= k->n)
		return NONE;
	return (k->slab_ext[slab] - 1) * k->n + (uint32_t)index;
}

static bool fields_good(const struct check *k, uint32_t id)
{
	const struct attnd_block *b = block_at(k, id);
	uint32_t count = count_of(b);

	return count <= k->block_size && b->first < count && !(b->position & (k->block_size - 1)) &&
	       b->position <= ATTND_MAX_SEQ_TOKENS - k->block_size && ns_known(k->m, b->ns) &&
	       seal_block_good(b, tokens_at(k, id));
}

/* Each published block for itself; what claims one place with another is dropped, and so is the other. */
static void find_candidates(struct check *k)
{
	struct restore_counts *c = &k->out->counts;
	uint32_t all = k->r->num_ext * k->n, place;

	for (uint32_t id = 0; id < all; id++) {
		if (!k->r->ext[id / k->n].mem.bytes) {
			id += k->n - 1;
			continue;
		}
		if (!count_of(block_at(k, id)))
			continue;
		k->state[id] = DROPPED;
		if (!fields_good(k, id)) {
			c->bad_seals++;
			continue;
		}
		place = place_of(k, block_at(k, id));
		if (place == NONE) {
			c->bad_places++;
			continue;
		}
		k->state[id] = CANDIDATE;
		if (k->r->taken[place] < 2)
			k->r->taken[place]++;
	}
	for (uint32_t id = 0; id < all; id++) {
		if (k->state[id] != CANDIDATE || k->r->taken[place_of(k, block_at(k, id))] == 1)
			continue;
		k->state[id] = DROPPED;
		c->bad_places++;
	}
	memset(k->r->taken, 0, all);
}

static bool follows(const struct check *k, uint32_t id, uint32_t parent)
{
	const struct attnd_block *b = block_at(k, id), *p = block_at(k, parent);

	if (b->parent_generation != p->generation || b->ns != p->ns)
		return false;
	if (!b->first)
		return count_of(p) == k->block_size && p->position + k->block_size == b->position;
	return p->position == b->position && p->first < b->first && count_of(p) >= b->first &&
	       !memcmp(tokens_at(k, id), tokens_at(k, parent), b->first * sizeof(uint64_t));
}

/* Into the tree, unless another has its place there. */
static bool adopt(struct check *k, uint32_t id)
{
	struct attnd_index_key key;

	index_key(k, id, &key);
	if (attnd_index_find(&k->index, &key) != NONE)
		return false;
	attnd_index_insert(&k->index, id);
	k->state[id] = ADOPTED;
	k->r->taken[place_of(k, block_at(k, id))] = 1;
	k->r->order[k->r->num_blocks++] = id;
	return true;
}

/* From the roots down, breadth first: a parent before its children. */
static void grow_tree(struct check *k)
{
	struct restore_counts *c = &k->out->counts;
	uint32_t all = k->r->num_ext * k->n, parent;

	for (uint32_t id = 0; id < all; id++) {
		const struct attnd_block *b = k->state[id] == CANDIDATE ? block_at(k, id) : NULL;

		if (!b)
			continue;
		if (b->parent == NONE && !b->first && !b->position && adopt(k, id))
			continue;
		if (b->parent >= all || k->state[b->parent] == GONE) {
			k->state[id] = DROPPED;
			c->orphans++;
			continue;
		}
		k->next_kid[id] = k->first_kid[b->parent];
		k->first_kid[b->parent] = id + 1;
	}
	for (uint32_t i = 0; i < k->r->num_blocks; i++) {
		parent = k->r->order[i];
		for (uint32_t kid = k->first_kid[parent]; kid; kid = k->next_kid[kid - 1]) {
			if (follows(k, kid - 1, parent) && adopt(k, kid - 1))
				continue;
			k->state[kid - 1] = DROPPED;
			c->orphans++;
		}
	}
}

/* What is not in the tree is free from now on, in meta, too. */
static void drop_others(struct check *k)
{
	uint32_t all = k->r->num_ext * k->n;

	for (uint32_t id = 0; id < all; id++) {
		struct attnd_block *b;

		if (k->state[id] != CANDIDATE && k->state[id] != DROPPED)
			continue;
		b = block_at(k, id);
		atomic_store_explicit(&b->count, 0, memory_order_release);
		b->generation++;
		k->out->counts.below += k->state[id] == CANDIDATE;
	}
	k->out->counts.blocks += k->r->num_blocks;
}

static int check_blocks(struct check *k)
{
	size_t all = (size_t)k->r->num_ext * k->n + 1;
	int r;

	k->r->taken = calloc(all, 1);
	k->r->order = malloc(all * sizeof(uint32_t));
	k->first_kid = calloc(all, sizeof(uint32_t));
	k->next_kid = calloc(all, sizeof(uint32_t));
	k->chain = malloc(all * sizeof(uint32_t));
	k->state = calloc(all, 1);
	r = k->r->taken && k->r->order && k->first_kid && k->next_kid && k->chain && k->state ? 0 : -ENOMEM;
	if (!r)
		r = attnd_index_init(&k->index, index_key, index_next, k);
	if (!r) {
		r = attnd_index_reserve(&k->index, (uint32_t)all);
		if (!r) {
			find_candidates(k);
			grow_tree(k);
			drop_others(k);
		}
		attnd_index_destroy(&k->index);
	}
	free(k->first_kid);
	free(k->next_kid);
	free(k->chain);
	free(k->state);
	return r;
}

static int check_cache(struct check *k, uint32_t id)
{
	struct attnd_meta_cache *m = &k->m->caches[id];
	uint32_t listed = atomic_load_explicit(&m->num_extents, memory_order_acquire);
	int r;

	if (atomic_load_explicit(&m->used, memory_order_acquire) != 1 || !entry_good(k, m)) {
		k->out->counts.caches_dropped +=
			atomic_load_explicit(&m->used, memory_order_relaxed) && strncmp(m->realm, "engine:", 7);
		atomic_store_explicit(&m->used, 0, memory_order_release);
		return 0;
	}
	if (m->scales.bytes && !add_used(k, &m->scales))
		return -ENOMEM;
	k->entry = m;
	k->r = &k->out->caches[k->out->num_caches++];
	k->r->id = id;
	k->n = m->blocks_per_slab;
	k->block_size = m->identity.block_size;
	memset(k->slab_ext, 0, k->m->num_slabs * sizeof(*k->slab_ext));
	r = find_extents(k, listed);
	return r ? r : check_blocks(k);
}

static int check_all(struct check *k)
{
	struct attnd_meta_slab *slabs = (struct attnd_meta_slab *)(void *)(k->base + k->m->slabs_offset);
	int r = check_ns(k);

	for (uint32_t i = 0; i < ATTND_MAX_POOL_CACHES && !r; i++)
		r = check_cache(k, i);
	if (r)
		return r;
	for (uint32_t s = 0; s < k->m->num_slabs; s++)
		if (slabs[s].cache > ATTND_MAX_POOL_CACHES ||
		    (slabs[s].cache &&
		     !atomic_load_explicit(&k->m->caches[slabs[s].cache - 1].used, memory_order_relaxed)))
			slabs[s].cache = 0;
	return overlap(k) ? -EINVAL : 0;
}

int restore_check(void *meta, uint64_t bytes, struct restored *ret)
{
	struct restored out = {.num_caches = 0};
	struct check k = {.m = meta, .base = meta, .out = &out};
	int r;

	if (restore_header(meta, bytes))
		return -EINVAL;
	out.caches = calloc(ATTND_MAX_POOL_CACHES, sizeof(*out.caches));
	k.slab_ext = malloc(k.m->num_slabs * sizeof(*k.slab_ext));
	r = out.caches && k.slab_ext ? check_all(&k) : -ENOMEM;
	free(k.slab_ext);
	free(k.used);
	out.counts.caches = out.num_caches;
	if (r)
		restored_free(&out);
	else
		*ret = out;
	return r;
}

void restored_free(struct restored *r)
{
	for (uint32_t i = 0; i < r->num_caches; i++) {
		free(r->caches[i].ext);
		free(r->caches[i].taken);
		free(r->caches[i].order);
	}
	free(r->caches);
	*r = (struct restored){0};
}

/* ---- Taking over ---- */

static void drop_entry(struct pool *p, uint32_t id)
{
	atomic_store_explicit(&p->meta->caches[id].used, 0, memory_order_release);
	for (uint32_t s = 0; s < p->num_slabs; s++)
		if (p->slabs[s].cache == id + 1)
			p->slabs[s].cache = 0;
}

static int take_cache(struct pool *p, struct ns_table *ns, struct realm_table *realms, const struct restored_cache *r,
		      uint64_t features, bool verify, bool repack)
{
	struct realm *realm;
	struct cache *c;
	int e = realm_get(realms, p->meta->caches[r->id].realm, &realm);

	if (!e)
		e = cache_restore(p, ns, realm->counters, &realm->peek, r, features, verify, &c);
	return e || !repack ? e : repack_run(c, r);
}

/* Tiles as they stand must be what these features' kernels read, or become it. */
static int take_caches(struct pool *p, struct ns_table *ns, struct realm_table *realms, uint64_t features,
		       bool verify, const struct restored *all)
{
	struct restore_counts *c = &p->restore.counts;

	for (uint32_t i = 0; i < all->num_caches; i++) {
		const struct restored_cache *r = &all->caches[i];
		const struct attnd_meta_cache *m = &p->meta->caches[r->id];
		bool repack = false;
		const char *why = repack_possible(p, m, features, &repack);
		int e;

		if (why) {
			log_warn("restore: cache \"%.*s\" of %s is dropped: %s", ATTND_MAX_NAME, m->identity.name,
				 m->realm, why);
			drop_entry(p, r->id);
			c->caches--;
			c->caches_dropped++;
			c->blocks -= r->num_blocks;
			continue;
		}
		e = take_cache(p, ns, realms, r, features, verify, repack);
		if (e)
			return e;
		c->caches_repacked += repack;
	}
	return 0;
}

static int take_ns(struct pool *p, struct ns_table *ns)
{
	for (uint32_t id = 1; id < ATTND_META_NS_PARTS * ATTND_META_NS_PART; id++) {
		const struct attnd_meta_ns *n = ns_at(p->meta, id);
		int r;

		if (!n) { /* none in this part */
			id |= ATTND_META_NS_PART - 1;
			continue;
		}
		r = atomic_load_explicit(&n->used, memory_order_relaxed) ? ns_restore(ns, id, n->digest) : 0;
		if (r)
			return r;
	}
	return 0;
}

static void add_extent(struct attnd_extent *list, uint32_t *n, const struct attnd_extent *e)
{
	if (e->bytes)
		list[(*n)++] = *e;
}

/* What lies between the extents in use is spare. */
static int find_spare(struct pool *p)
{
	uint64_t at = p->meta->heap_offset;
	size_t room = ATTND_META_NS_PARTS + ATTND_MAX_POOL_CACHES + 1;
	struct attnd_extent *list;
	uint32_t n = 0;

	for (uint32_t i = 0; i < ATTND_MAX_POOL_CACHES; i++)
		room += p->caches[i] ? p->caches[i]->num_ext : 0;
	list = malloc(room * sizeof(*list));

	if (!list)
		return -ENOMEM;
	for (int i = 0; i < ATTND_META_NS_PARTS; i++)
		add_extent(list, &n, &p->meta->ns[i]);
	for (uint32_t i = 0; i < ATTND_MAX_POOL_CACHES; i++) {
		const struct cache *c = p->caches[i];

		if (c)
			add_extent(list, &n, &p->meta->caches[i].scales);
		for (uint32_t e = 0; c && e < c->num_ext; e++)
			add_extent(list, &n, &c->ext[e].mem);
	}
	list[n++] = (struct attnd_extent){.offset = p->heap_next};
	qsort(list, n, sizeof(*list), by_offset);
	for (uint32_t i = 0; i < n; i++) {
		if (list[i].offset > at)
			pool_extent_free(p, &(struct attnd_extent){.offset = at, .bytes = list[i].offset - at});
		at = list[i].offset + list[i].bytes;
	}
	free(list);
	return 0;
}

static void find_free_slabs(struct pool *p)
{
	p->num_free = 0;
	for (uint32_t s = p->num_slabs; s-- > 0;)
		if (!p->slabs[s].cache)
			p->free[p->num_free++] = s;
}

static void report(const struct pool *p, bool clean)
{
	const struct restore_counts *c = &p->restore.counts;
	uint64_t dropped = c->bad_seals + c->bad_places + c->orphans + c->below;

	log_info("restore: %u caches, %llu blocks after %s end", c->caches, (unsigned long long)c->blocks,
		 clean ? "an orderly" : "a sudden");
	if (c->caches_repacked)
		log_info("restore: tiles of %u caches brought into another layout", c->caches_repacked);
	if (dropped || c->caches_dropped)
		log_warn("restore: dropped %u caches and %llu blocks: %llu altered, %llu in no place of their own, "
			 "%llu "
			 "without their parent, %llu below those",
			 c->caches_dropped, (unsigned long long)dropped, (unsigned long long)c->bad_seals,
			 (unsigned long long)c->bad_places, (unsigned long long)c->orphans,
			 (unsigned long long)c->below);
}

/* Nothing of it is of use. */
static void forget_all(struct pool *p)
{
	for (uint32_t i = 0; i < ATTND_MAX_POOL_CACHES; i++)
		drop_entry(p, i);
	memset(p->meta->ns, 0, sizeof(p->meta->ns));
	log_warn("restore: the metadata contradict themselves: starting empty");
}

int restore_pool(struct pool *p, struct ns_table *ns, struct realm_table *realms, uint64_t features)
{
	bool clean = atomic_load_explicit(&p->meta->clean, memory_order_acquire) == ATTND_META_CLEAN;
	struct restored all = {.num_caches = 0};
	int r;

	p->meta->pid = (uint32_t)getpid();
	if (!p->restore.taken) {
		if (p->restore.by)
			restore_keep_ns(p, ns);
		p->restore.ready = true;
		return 0;
	}
	r = restore_check(p->meta, p->meta_region.bytes, &all);
	if (r == -EINVAL) {
		forget_all(p);
		r = 0;
	}
	if (r)
		return r;
	/* From here on a kill may leave hashes behind that nobody has looked at. */
	atomic_store_explicit(&p->meta->clean, 0, memory_order_release);
	p->restore.clean = clean;
	p->restore.counts = all.counts;
	r = take_ns(p, ns);
	if (!r)
		r = take_caches(p, ns, realms, features, !clean, &all);
	restored_free(&all);
	if (!r)
		r = find_spare(p);
	if (r) {
		for (uint32_t i = 0; i < ATTND_MAX_POOL_CACHES; i++)
			cache_leave(p->caches[i]);
		return r;
	}
	find_free_slabs(p);
	restore_keep_ns(p, ns);
	ns_restored(ns);
	p->restore.ready = true;
	report(p, clean);
	return 0;
}

void restore_leave(struct pool *p)
{
	bool verified = p->restore.ready;

	for (uint32_t i = 0; i < ATTND_MAX_POOL_CACHES; i++) {
		verified &= !p->caches[i] || (!p->caches[i]->scrub.unverified && !p->caches[i]->scrub.bad);
		cache_leave(p->caches[i]);
	}
	if (verified)
		atomic_store_explicit(&p->meta->clean, ATTND_META_CLEAN, memory_order_release);
}

/* ---- Namespaces ---- */

static int record_ns(void *ctx, uint32_t id, const uint8_t *digest)
{
	struct pool *p = ctx;
	struct attnd_extent *part = &p->meta->ns[id / ATTND_META_NS_PART], e;
	struct attnd_meta_ns *n;

	if (id >= ATTND_META_NS_PARTS * ATTND_META_NS_PART)
		return -ENOSPC;
	if (!part->bytes) {
		if (!digest || pool_extent_alloc(p, ATTND_META_NS_PART * sizeof(*n), &e))
			return -ENOMEM;
		*part = e;
	}
	n = ns_at(p->meta, id);
	atomic_store_explicit(&n->used, 0, memory_order_release);
	if (!digest)
		return 0;
	atomic_signal_fence(memory_order_seq_cst);
	memcpy(n->digest, digest, sizeof(n->digest));
	n->seal = seal_ns(n);
	KILL_POINT(ns_written);
	atomic_store_explicit(&n->used, 1, memory_order_release);
	KILL_POINT(ns_used);
	return 0;
}

void restore_keep_ns(struct pool *p, struct ns_table *ns)
{
	ns->record = record_ns;
	ns->record_ctx = p;
}
