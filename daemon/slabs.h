/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A cache's slabs: taken from the pool, given back, and traded with other caches.
 *
 * In:   how many blocks a request needs; shares of the pool.
 * Out:  places for blocks; slabs that leave, while the blocks in them move to the cache's other slabs.
 * Next: cache.c gives places to who writes, pool.c keeps slabs that nobody has.
 *
 * A block's id stays, its place changes (B9). A slab leaves in slices of some 50 us: what is free in it goes
 * first, then each block that is not is copied to a place in another slab. Where none is free, the leaf
 * that goes next is evicted: the cache loses a slab's worth of blocks, whichever these are. Then what still
 * reads the old places comes to its end. One owner: the leader.
 */
#ifndef ATTND_DAEMON_SLABS_H
#define ATTND_DAEMON_SLABS_H

#include "cache.h"

struct plan;

/**
 * Make room for `need` blocks more to be referenced, of which `growth` are new to account `a` (blocks
 * that others hold already among them): with what is guaranteed to others left alone. 0; -ENOMEM: there
 * is none; -EAGAIN: slabs_step is making it, ask again when slabs_waits says so.
 */
int cache_make_room(struct cache *c, const struct account *a, uint64_t need, uint64_t growth);

/** Grant an account so many blocks, backed by slabs of the cache's own. 0, -ENOMEM or -EAGAIN. */
int cache_grant(struct cache *c, struct account *a, uint64_t blocks);

/** Slabs that it could take without anything being evicted. */
uint64_t cache_free_slabs(const struct cache *c);

/** Tokens that the pool could hold of this cache alone. */
uint64_t cache_capacity(const struct cache *c);

/** The pool's shares have changed: take over what is this cache's. */
void cache_set_share(struct cache *c);

/** One slab that it has beyond its maximum begins to leave, if what it holds has room in the others. */
bool cache_shrink(struct cache *c);

/** A slice of the slab that leaves some cache of the pool, or begins for one that wants it. False: nothing to do. */
bool slabs_step(struct pool *p);

/** What a request was told -EAGAIN on. */
struct room_wait {
	const struct cache *cache; /* NULL: none */
	uint64_t moves, idle;
};
void slabs_wait(struct room_wait *w, const struct cache *c);
/** Nothing has changed for it since. */
bool slabs_waits(const struct room_wait *w, const struct cache *c);

/** Jobs of this plan that write wait: a block that it writes to is being copied. Soon over. */
bool slabs_hold(const struct cache *c, const struct plan *p);

/** The bytes or the place of this block are about to change: a copy under way begins anew. */
void slabs_touch(struct cache *c, uint32_t id);

/** Something begins to read blocks, outside the leader; it ends with what that returned. */
uint32_t slabs_read(struct cache *c);
void slabs_read_end(struct cache *c, uint32_t epoch);

/** It evicts its own only because its share of the pool is used up. */
bool slabs_at_share(const struct cache *c);

/* ---- For cache.c ---- */

/** Take a slab of the pool's: 0 or -ENOMEM. */
int slabs_add(struct cache *c);
/** The cache ends, with nothing in it. */
void slabs_return(struct cache *c);

/** `id` stands at `place` of the cache's from now on. `place` in meta is the caller's. */
void slabs_put(struct cache *c, uint32_t id, uint64_t place);

/** A block without a place, in no list, gets one and is free. */
void slabs_give(struct cache *c, uint32_t id, uint64_t place);

/**
 * A block is about to become free: who has its place then, itself, another, or (NONE) nobody because the
 * slab leaves.
 */
uint32_t slabs_freed(struct cache *c, uint32_t id);
/** The place of a free block is used, or not any more. */
void slabs_used(struct cache *c, uint32_t id, int n);

/** Descriptors in e->mem: fill the rest. 0 or -ENOMEM. */
int slabs_extent(struct cache *c, uint32_t i);
/** Its slab's map of places, all of nobody. 0 or -ENOMEM. */
int slabs_map(struct cache *c, uint32_t i);
/** A block without a place, which the next one is for if its extent has a slab. */
void slabs_nowhere(struct cache *c, uint32_t id);

/** After a restart: extents without a slab and without a published block go. */
void slabs_sweep(struct cache *c);

/** Places against who stands there. NULL or a text. */
const char *slabs_check(const struct cache *c);

#endif
