/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The pool: memory for KV on each node, cut into slabs, and the meta region that describes it.
 *
 * In:   sizes from the configuration. Out: slabs and metadata extents for caches.
 * Next: cache.c cuts slabs into blocks.
 *
 * Each node's memory is bound to it and prefaulted by threads on its CPUs: huge pages where there
 * are enough, else plain pages collapsed into huge ones, else plain ones, each step down logged.
 *
 * A slab has the same number on every node; a block's piece has the same offset on every node.
 * One owner: the leader.
 */
#ifndef ATTND_DAEMON_POOL_H
#define ATTND_DAEMON_POOL_H

#include <stdint.h>

#include "../shm/meta.h"
#include "../shm/region.h"
#include "topology.h"

#include "restore.h"

struct config;
struct cache;
struct watch;

/* What caches of a name keep and may take at most, in percent of the pool. */
struct cache_share {
	char name[64]; /* NUL-padded, as in a cache's identity */
	uint32_t min, max;
};
enum { POOL_MAX_SHARES = 16 };

enum { POOL_MAX_NODES = TOPOLOGY_MAX_NODES };

struct pool {
	struct attnd_region nodes[POOL_MAX_NODES];
	const struct topology *topology;
	uint32_t num_nodes;
	uint32_t sampled, misplaced; /* pages looked at when it was made, and those not on their node */
	uint64_t slab_bytes;	     /* on each node */
	uint32_t num_slabs;
	uint32_t num_free;
	uint32_t *free; /* stack of slab numbers */
	struct attnd_region meta_region;
	struct attnd_meta_region *meta;
	struct attnd_meta_slab *slabs;
	uint64_t heap_next, heap_ready; /* first unused, first unreserved byte of the meta heap */
	bool huge_meta;			/* its pages are made huge ones if the kernel can */
	struct attnd_extent *spare;	/* given back; by offset, neighbours joined */
	uint32_t num_spare, cap_spare;
	struct cache *caches[ATTND_MAX_POOL_CACHES];
	uint32_t doomed;     /* of these */
	struct cache *mover; /* slabs.c's: a slab of it leaves; NULL: none does */
	bool wanted;	     /* requests wait for slabs */
	uint64_t move_ns;    /* of a slice of that */
	uint64_t moves;	     /* that came to an end, or were found to be of no use */
	uint64_t moved;	     /* blocks, in them */
	struct watch *watch; /* NULL: none */
	struct cache_share shares[POOL_MAX_SHARES];
	uint32_t num_shares;
	uint64_t namespace_quota; /* bytes on each node that its sequences may hold; UINT64_MAX: any */
	uint64_t engine_quota;	  /* the same, in one cache */
	const char *backing;	  /* "hugetlb", "collapsed" or "plain": of the last node that fell short */
	struct {
		const char *by;	 /* who keeps the memory when we end: "fd-store", "pool-path"; NULL: nobody */
		const char *why; /* what was kept could not be used; NULL: there was nothing, or it could */
		bool taken;	 /* an earlier daemon's */
		bool clean;	 /* which had ended orderly */
		bool ready;	 /* all that was to be taken over has been */
		struct restore_counts counts;
	} restore;
};

/** Make and reserve everything; logs what it got. 0 or a negative errno, logged. */
int pool_init(struct pool *p, const struct config *cfg, const struct topology *t);
void pool_destroy(struct pool *p);

/** Bind a node's memory and fault it in. 0 or a negative errno; then the region is destroyed. */
int pool_settle(struct pool *p, uint32_t node, struct attnd_region *region);

/** Take a free slab for cache index `cache` and its extent: the number, or -ENOMEM. */
int64_t pool_take_slab(struct pool *p, uint32_t cache, uint32_t extent);
void pool_return_slab(struct pool *p, uint32_t slab);

/** Metadata memory, zeroed, 64-byte aligned. 0 or -ENOMEM. */
int pool_extent_alloc(struct pool *p, uint64_t bytes, struct attnd_extent *ret);
void pool_extent_free(struct pool *p, const struct attnd_extent *e);
static inline void *pool_extent_at(const struct pool *p, const struct attnd_extent *e)
{
	return (char *)p->meta_region.base + e->offset;
}

#endif
