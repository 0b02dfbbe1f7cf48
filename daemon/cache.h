/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A cache: one KV geometry in a realm, its blocks, who holds them and which go first.
 *
 * In:   an identity; the pool's slabs.
 * Out:  blocks with their places; free + evictable + referenced == total after every call.
 * Next: tree.c links published blocks, engine.c and plan.c hold them.
 *
 * A block is free, private (held, unpublished) or public (in the tree); or it has no place, and waits for one.
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

enum block_state { BLOCK_NOWHERE, BLOCK_FREE, BLOCK_PRIVATE, BLOCK_PUBLIC };

/* What is derived from the descriptors, or lives no longer than the sequences. */
struct block_aux {
	uint64_t last_use;
	uint64_t peek;	/* hash of the prefix that it ends, once full and published; else 0 */
	uint64_t owner; /* serial of the sequence that may write in place; 0: none */
	uint32_t refs;
	uint32_t held_kids;
	uint32_t kids;
	uint32_t chain;	     /* child index */
	uint32_t prev, next; /* LRU list; free list; list of those without a place */
	uint32_t first_kid, kid_prev, kid_next;
	uint32_t born_ms, idle_ms; /* watch.c's: when it was published, and last released; 0: not yet */
	uint16_t fill;		   /* slots [count, fill) hold private tokens of the owner, or of several if frozen */
	uint8_t state;
	bool frozen : 1; /* several sequences hold private slots: nobody writes in place */
	bool verify : 1; /* its bytes are not known to be its hash's: it serves nobody before they are (scrub.c) */
	bool bad : 1;	 /* they are others: held, else it would be gone */
	bool writes : 1; /* jobs of a plan that has not committed may write to it */
	bool listed : 1; /* it has no place, and gets the next one */
	uint8_t priority : 5; /* of it and all that follows it the highest; the lowest goes first */
};

/*
 * A slab's worth of blocks, and a slab's worth of places. They are made together, but a block keeps its id
 * wherever it moves: an extent may have blocks and no slab, and its blocks may stand in any slab of the cache.
 */
struct block_extent {
	struct attnd_block *block; /* NULL: no blocks */
	uint64_t *tokens;
	uint8_t *flags; /* [blocks][layers][kv heads] */
	struct attnd_extent mem;
	uint32_t nowhere; /* of its blocks, those without a place */
	uint32_t slab;	  /* UINT32_MAX: none */
	uint32_t *at;	  /* [blocks_per_slab]: who stands in the slab; NONE: nobody, while it leaves */
	uint32_t used;	  /* of these, not free */
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
	struct block_aux *aux;	  /* [pool's slabs * blocks_per_slab]: by id */
	_Atomic uint64_t **where; /* [pool's slabs][blocks]: node << 56 | offset; workers read it, too */
	uint32_t num_slabs;
	struct attnd_index index;
	uint32_t free_head[POOL_MAX_NODES]; /* by the node that stores it, if it is spread; else the first */
	uint32_t nowhere_head;
	struct lru_list {
		uint32_t first, last;
	} lru[CACHE_PRIORITIES]; /* evictable leaves, oldest first */
	uint64_t clock;
	uint64_t total, free, evictable; /* blocks with a place; referenced = total - free - evictable */
	uint32_t wants;			 /* slabs that requests wait for (slabs.h) */
	struct slab_move {		 /* a slab of it leaves: slabs.c's */
		enum { MOVE_NONE, MOVE_CLEAR, MOVE_FIRST, MOVE_WRITTEN, MOVE_FLIP, MOVE_DRAIN, MOVE_UNLIST } phase;
		uint32_t ext;	/* whose */
		uint32_t at;	/* the place that is next */
		uint32_t id;	/* whose copy is under way; NONE */
		uint64_t place; /* that it is to have; ATTND_PLACE_NONE: none is set aside */
		uint64_t done;	/* bytes */
		uint32_t left;	/* places in it that somebody has */
		bool keep;	/* it is needed here after all */
		uint8_t why;	/* enum metrics_reason, of what is evicted for it */
		uint32_t holds; /* jobs that write this block wait; NONE */
	} move;
	struct plan *running;			    /* plans with a job running */
	uint64_t epoch;				    /* grows while a slab leaves: */
	uint32_t readers[2];			    /* jobs that began in an even or odd epoch */
	struct account *accounts;		    /* account.h's: none without a grant */
	struct account *commons;		    /* of these, everybody's without one */
	uint32_t min_slabs, max_slabs;		    /* that it keeps, that it may have */
	uint64_t claimed;			    /* blocks: what accounts use, or are guaranteed if that is more */
	uint64_t granted;			    /* blocks, sum of the grants */
	uint64_t evicted, collapsed, moved;	    /* blocks, since the start */
	struct held *twins;			    /* sequences with blocks that the tree has, too (collapse.c) */
	struct layer_scales *scales;		    /* [layers] */
	uint32_t engines;			    /* that opened it */
	uint32_t keeps;				    /* pins and administrators' work: it is not destroyed */
	bool doomed;				    /* cache_doom */
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
	return &c->aux[id];
}
static inline uint64_t *cache_tokens(const struct cache *c, uint32_t id)
{
	return cache_ext(c, id)->tokens + (size_t)(id % c->blocks_per_slab) * c->block_size;
}
static inline uint8_t *cache_flags(const struct cache *c, uint32_t id)
{
	return cache_ext(c, id)->flags + (size_t)(id % c->blocks_per_slab) * c->flag_bytes;
}
/** Where a block stands: the node that stores it (of a spread cache; else 0) and the offset of its piece there. */
struct where {
	uint32_t node;
	uint64_t offset; /* on each node that stores of it */
};
static inline struct where cache_where(const struct cache *c, uint32_t id)
{
	/* Any thread: pairs with slabs_put's store (B9). */
	uint64_t w = atomic_load_explicit(&c->where[id / c->blocks_per_slab][id % c->blocks_per_slab],
					  memory_order_acquire);

	return (struct where){(uint32_t)(w >> 56), w & (UINT64_MAX >> 8)};
}
static inline uint64_t cache_offset(const struct cache *c, uint32_t id)
{
	return cache_where(c, id).offset;
}
static inline uint32_t cache_block_node(const struct cache *c, uint32_t id)
{
	return c->spread ? cache_where(c, id).node : 0; /* unread: it would be a cache miss of its own */
}
static inline struct where cache_where_is(const struct cache *c, uint64_t place)
{
	uint32_t at = (uint32_t)place, node = c->spread ? at / c->blocks_per_node : 0;

	return (struct where){node, (place >> 32) * c->pool->slab_bytes +
					    (at - node * c->blocks_per_node) * c->block_bytes};
}
/** A block's piece on a node; of a spread cache the only one, whatever node is asked for. */
static inline char *cache_piece(const struct cache *c, struct where w, uint32_t node)
{
	return (char *)c->pool->nodes[c->spread ? w.node : node].base + w.offset;
}
static inline uint64_t cache_place(const struct cache *c, uint32_t id)
{
	return atomic_load_explicit(&cache_block(c, id)->place, memory_order_relaxed);
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
/* What is kept of a block that is in no list and has no children. */
static inline struct block_aux cache_unlinked(enum block_state state)
{
	return (struct block_aux){.state = (uint8_t)state,
				  .chain = ATTND_BLOCK_NONE,
				  .prev = ATTND_BLOCK_NONE,
				  .next = ATTND_BLOCK_NONE,
				  .first_kid = ATTND_BLOCK_NONE,
				  .kid_prev = ATTND_BLOCK_NONE,
				  .kid_next = ATTND_BLOCK_NONE};
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
/** The same, in slices of cache_bury() if it is large: nobody can find it any more. */
void cache_doom(struct cache *c);
/** A slice of that. False: there was nothing to do. */
bool cache_bury(struct pool *p);

/** Static scales of a layer, which had none or the same. */
void cache_set_scale(struct cache *c, uint32_t layer, float k, float v);

/** Move a published block, whose bytes stand at `place` already; one release store (B8). For slabs.c. */
void cache_set_place(struct cache *c, uint32_t id, uint64_t place);

/** A block that is in no list any more, and nobody's, is free; or with its place as it is. For slabs.c. */
void cache_put_free(struct cache *c, uint32_t id);
void cache_list_free(struct cache *c, uint32_t id);

/** A block from the free list of this node, else of the next that has any; NONE. For slabs.c. */
uint32_t cache_take_free(struct cache *c, uint32_t node);

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
 * A published block and a private copy of it, which holds the same and more, trade
 * places, flags and tokens: the published one then holds what the copy held. Nobody but the caller
 * uses either.
 */
void cache_trade_places(struct cache *c, uint32_t id, uint32_t copy);

/** All that a block holds, tokens included, into a private one that nobody reads yet. */
void cache_copy(struct cache *c, uint32_t from, uint32_t to);

/** It is held by somebody of this priority: so is all before it. */
void cache_raise(struct cache *c, uint32_t id, uint32_t priority);
/** All are equal from now on. */
void cache_level(struct cache *c);
/** The leaf that goes after this one, or (NONE) the first. NONE: there is none. */
uint32_t cache_goes_after(const struct cache *c, uint32_t id);

/** Evict one leaf. False if there is none. */
bool cache_evict(struct cache *c);
/** The same, of the next of its priority one that lies on this node if there is any. */
bool cache_evict_on(struct cache *c, uint32_t node);

/** Full scan: the counters and links against what they are derived from. Tests; 0 or a text. */
const char *cache_check(const struct cache *c);

#endif
