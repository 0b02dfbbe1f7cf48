/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A cache: one KV geometry in a realm, its blocks, who holds them and which go first.
 *
 * In:   an identity; the pool's slabs.
 * Out:  blocks with their places; free + evictable + referenced == total after every call.
 * Next: tree.c links published blocks, engine.c and plan.c hold them.
 *
 * A block is free, private (held, unpublished) or public (in the tree).
 * hold = refs + held children; a public block with hold 0 is evictable, and stands in the LRU
 * list when it is a leaf. One owner: the leader.
 */
#ifndef ATTND_DAEMON_CACHE_H
#define ATTND_DAEMON_CACHE_H

#include <stdbool.h>
#include <stdint.h>

#include "../kernels/kernels.h"
#include "../shm/index.h"
#include "../shm/meta.h"
#include "../shm/peek.h"
#include "account.h"
#include "pool.h"

struct ns_table;
struct held;

enum { CACHE_PRIORITIES = 8 };

enum block_state { BLOCK_FREE, BLOCK_PRIVATE, BLOCK_PUBLIC };

/* What is derived from the descriptors, or lives no longer than the sequences. */
struct block_aux {
	uint64_t last_use;
	uint64_t peek;	/* hash of the prefix that it ends, once full and published; else 0 */
	uint64_t owner; /* serial of the sequence that may write in place; 0: none */
	uint32_t refs;
	uint32_t held_kids;
	uint32_t kids;
	uint32_t chain;	     /* child index */
	uint32_t prev, next; /* LRU list; free list by next */
	uint32_t first_kid, kid_prev, kid_next;
	uint32_t born_ms, idle_ms; /* watch.c's: when it was published, and last released; 0: not yet */
	uint16_t fill;		   /* slots [count, fill) hold private tokens of the owner, or of several if frozen */
	uint8_t state;
	bool frozen : 1; /* several sequences hold private slots: nobody writes in place */
	bool verify : 1; /* its bytes are not known to be its hash's: it serves nobody before they are (scrub.c) */
	bool bad : 1;	 /* they are others: held, else it would be gone */
	uint8_t priority : 5; /* of it and all that follows it the highest; the lowest goes first */
};

struct block_extent {
	struct attnd_block *block;
	uint64_t *tokens;
	uint8_t *flags; /* [blocks][layers][kv heads] */
	struct block_aux *aux;
	struct attnd_extent mem;
	uint32_t slab; /* UINT32_MAX: it has lost it, and its blocks are none */
	uint32_t held; /* blocks that somebody holds */
};

struct layer_scales {
	float k, v;
	bool set, written;
};

struct cache_node {
	uint32_t head0, heads;
	struct attnd_kv_format fmt;
};

struct cache {
	struct pool *pool;
	struct ns_table *ns;
	uint32_t id; /* in pool->caches */
	char realm[80];
	struct attnd_counters *counters; /* of the realm */
	struct attnd_peek_table *peek;	 /* of the realm; NULL: none */
	uint8_t peek_salt[16];		 /* its identity, as peek keys mix it */
	struct attnd_wire_cache identity;
	/*
	 * What a node stores of a block: KV heads [head0, head0 + heads). With fewer heads than nodes a
	 * block lies whole on one (`spread`), chunk after chunk on another, as long as there is room.
	 */
	struct cache_node nodes[POOL_MAX_NODES];
	bool spread;
	struct attnd_kv_format fmt; /* of all heads: constants, and what a block would be on one node */
	struct attnd_ops ops;
	uint32_t block_size;
	uint32_t slots_shift; /* log2(block_size) */
	uint64_t block_bytes; /* on each node that stores of it: the pitch of its pieces */
	uint64_t share_bytes; /* that a block takes of each node, in the mean */
	uint32_t blocks_per_slab;
	uint32_t blocks_per_node; /* of a slab */
	uint32_t flag_bytes;	  /* of a block */
	double flops_a_ns;	  /* of a thread with these kernels, about: to cut work by */
	struct block_extent *ext;
	uint32_t num_ext, cap_ext;
	struct attnd_index index;
	uint32_t free_head[POOL_MAX_NODES]; /* by the node that stores it, if it is spread; else the first */
	struct lru_list {
		uint32_t first, last;
	} lru[CACHE_PRIORITIES]; /* evictable leaves, oldest first */
	uint64_t clock;
	uint64_t total, free, evictable;	    /* blocks; referenced = total - free - evictable */
	struct account *accounts;		    /* account.h's: none without a grant */
	struct account *commons;		    /* of these, everybody's without one */
	uint32_t min_slabs, max_slabs;		    /* that it keeps, that it may have */
	uint64_t claimed;			    /* blocks: what accounts use, or are guaranteed if that is more */
	uint64_t granted;			    /* blocks, sum of the grants */
	uint64_t evicted, collapsed;		    /* blocks, since the start */
	struct held *twins;			    /* sequences with blocks that the tree has, too (collapse.c) */
	struct layer_scales *scales;		    /* [layers] */
	uint32_t engines;			    /* that opened it */
	uint32_t keeps;				    /* pins and administrators' work: it is not destroyed */
	struct scrub {				    /* scrub.c's */
		uint32_t unhashed, unverified, bad; /* full published blocks; the latter of `verify`, of `bad` */
		uint32_t cursor, id, generation, layer;
		uint32_t want;	  /* to be verified next; NONE */
		uint64_t hash;	  /* so far */
		uint64_t corrupt; /* blocks dropped because of their hash, with those below */
	} scrub;
};

static inline struct block_extent *cache_ext(const struct cache *c, uint32_t id)
{
	return &c->ext[id / c->blocks_per_slab];
}
static inline struct attnd_block *cache_block(const struct cache *c, uint32_t id)
{
	return &c->ext[id / c->blocks_per_slab].block[id % c->blocks_per_slab];
}
static inline struct block_aux *cache_aux(const struct cache *c, uint32_t id)
{
	return &c->ext[id / c->blocks_per_slab].aux[id % c->blocks_per_slab];
}
static inline uint64_t *cache_tokens(const struct cache *c, uint32_t id)
{
	return cache_ext(c, id)->tokens + (size_t)(id % c->blocks_per_slab) * c->block_size;
}
static inline uint8_t *cache_flags(const struct cache *c, uint32_t id)
{
	return cache_ext(c, id)->flags + (size_t)(id % c->blocks_per_slab) * c->flag_bytes;
}
/** The node that stores a block of a spread cache; else 0. */
static inline uint32_t cache_block_node(const struct cache *c, uint32_t id)
{
	uint64_t place = atomic_load_explicit(&cache_block(c, id)->place, memory_order_relaxed);

	return c->spread ? (uint32_t)place / c->blocks_per_node : 0;
}
/** Offset of a block's piece on each node that stores of it. */
static inline uint64_t cache_offset(const struct cache *c, uint32_t id)
{
	uint64_t place = atomic_load_explicit(&cache_block(c, id)->place, memory_order_relaxed);
	uint32_t at = (uint32_t)place;

	return (place >> 32) * c->pool->slab_bytes + (c->spread ? at % c->blocks_per_node : at) * c->block_bytes;
}
/** Does this node store something of a block that stands on `at` (cache_block_node)? */
static inline bool cache_stores(const struct cache *c, uint32_t at, uint32_t node)
{
	return !c->spread || at == node;
}
/** Of a geometry with so many KV heads. */
static inline bool cache_spreads(uint32_t num_kv_heads, uint32_t num_nodes)
{
	return num_kv_heads < num_nodes;
}
static inline uint32_t cache_count(const struct cache *c, uint32_t id)
{
	return atomic_load_explicit(&cache_block(c, id)->count, memory_order_relaxed);
}
static inline uint32_t aux_hold(const struct block_aux *a)
{
	return a->refs + a->held_kids;
}

/** Find the cache of this realm and identity, or NULL. */
struct cache *cache_find(struct pool *p, const char *realm, const struct attnd_wire_cache *id);

/**
 * Make one. The identity has been validated. `field` names what was wrong: -EINVAL (block larger
 * than a slab), -ENOSPC (caches), -ENOMEM.
 */
int cache_create(struct pool *p, struct ns_table *ns, struct attnd_counters *counters, const char *realm,
		 const struct attnd_wire_cache *id, uint64_t features, enum attnd_wire_field *field,
		 struct cache **ret);
/** Evicts everything and returns its slabs; no engine has it open. */
void cache_destroy(struct cache *c);

/**
 * Make room for `need` blocks more to be referenced, of which `growth` are new to account `a` (blocks
 * that others hold already among them): with what is guaranteed to others left alone. False: there is none.
 */
bool cache_make_room(struct cache *c, const struct account *a, uint64_t need, uint64_t growth);

/** Slabs that it could take without anything being evicted. */
uint64_t cache_free_slabs(const struct cache *c);
/** Static scales of a layer, which had none or the same. */
void cache_set_scale(struct cache *c, uint32_t layer, float k, float v);

/** Move a published block, whose bytes stand at `place` already; one release store (B8). */
void cache_set_place(struct cache *c, uint32_t id, uint64_t place);

/** Evict an idle block and all below it. Returns how many blocks that were. */
uint32_t cache_drop(struct cache *c, uint32_t id);

struct restored_cache; /* restore.h */
/**
 * Make the cache of entry r->id of meta again from what restore.c found to be right there. Its
 * tiles are readable by these features' kernels. 0, or -ENOMEM: the caller drops the entry.
 */
int cache_restore(struct pool *p, struct ns_table *ns, struct attnd_counters *counters, struct attnd_peek_table *peek,
		  const struct restored_cache *r, uint64_t features, bool verify, struct cache **ret);

/** The layout of its tiles into its entry of meta, which is sealed after that. */
void cache_describe_layout(const struct cache *c, struct attnd_meta_cache *m);

/** Free what is the process's of a cache, and leave pool and meta as they are, for the next daemon. */
void cache_leave(struct cache *c);

/** What an entry's tiles are for these features, as cache_create makes them: its format on a node. 0 or -EINVAL. */
int cache_formats(const struct pool *p, const struct attnd_wire_cache *id, uint64_t features,
		  struct cache_node nodes[POOL_MAX_NODES], struct attnd_kv_format *ret_all, uint64_t *ret_block_bytes,
		  struct attnd_ops *ret_ops);

/** Tokens that the pool could hold of this cache alone. */
uint64_t cache_capacity(const struct cache *c);

/** Grant an account so many blocks, backed by slabs of the cache's own. 0 or -ENOMEM. */
int cache_grant(struct cache *c, struct account *a, uint64_t blocks);

/**
 * A private block of a namespace with one reference, for a block index: free, else a new slab, else by
 * eviction. ATTND_BLOCK_NONE: none.
 */
uint32_t cache_alloc(struct cache *c, struct account *a, uint32_t ns, uint32_t index);

/* `a`: through whose account; NULL: the commons. */
void cache_ref(struct cache *c, struct account *a, uint32_t id);
/** Drop a reference; a private block without any is freed. */
void cache_unref(struct cache *c, struct account *a, uint32_t id);

/**
 * Put a private block into the tree under `parent` (or the namespace's root): its slots
 * [first, count) are its own. Everything else of the descriptor is set here.
 */
void cache_publish(struct cache *c, struct account *a, uint32_t id, uint32_t ns, uint32_t parent, uint32_t first,
		   uint32_t count, uint32_t position);

/** A published block has become full: others may find the prefix that it ends; its bytes are to be hashed. */
void cache_filled(struct cache *c, uint32_t id);

/**
 * A published block and a private copy of it in the same slab, which holds the same and more, trade
 * places, flags and tokens: the published one then holds what the copy held. Nobody but the caller
 * uses either.
 */
void cache_trade_places(struct cache *c, uint32_t id, uint32_t copy);

/** It is held by somebody of this priority: so is all before it. */
void cache_raise(struct cache *c, uint32_t id, uint32_t priority);
/** All are equal from now on. */
void cache_level(struct cache *c);
/** The leaf that goes after this one, or (NONE) the first. NONE: there is none. */
uint32_t cache_goes_after(const struct cache *c, uint32_t id);

/** The pool's shares have changed: take over what is this cache's. */
void cache_set_share(struct cache *c);
/** Give one slab back that it has beyond its maximum, if nobody holds a block of it. False: nothing to do. */
bool cache_shrink(struct cache *c);

/** Evict one leaf. False if there is none. */
bool cache_evict(struct cache *c);

/** Full scan: the counters and links against what they are derived from. Tests; 0 or a text. */
const char *cache_check(const struct cache *c);

#endif
