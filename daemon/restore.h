/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A cache that outlived its daemon: found, checked, taken over.
 *
 * In:   the meta region of an earlier daemon, whatever stands in it. Out: caches, namespaces, free slabs.
 * Next: pool.c looks at the header first, leader.c takes over what is left; scrub.c checks blocks' bytes.
 *
 * Everything that is read there is checked before it is used, and what is wrong is dropped with all
 * below it and counted. Nobody else writes to the region meanwhile.
 */
#ifndef ATTND_DAEMON_RESTORE_H
#define ATTND_DAEMON_RESTORE_H

#include <stdbool.h>

#include "../shm/meta.h"

struct pool;
struct ns_table;
struct realm_table;

/** What became of it, for the log and administrators. */
struct restore_counts {
	uint32_t caches, caches_dropped, caches_repacked;
	uint64_t blocks;     /* published ones that are there again */
	uint64_t bad_seals;  /* dropped: fields or tokens are not those that were sealed */
	uint64_t bad_places; /* dropped: places out of range, or of two blocks */
	uint64_t orphans;    /* dropped: a parent that is gone, of another generation or does not fit */
	uint64_t below;	     /* dropped: below one of those */
};

struct restored_extent {
	struct attnd_extent mem;
	uint32_t slab; /* UINT32_MAX: none */
};

/** A cache's entry that is right. */
struct restored_cache {
	uint32_t id; /* index of the entry */
	uint32_t num_ext, num_blocks;
	struct restored_extent *ext; /* [num_ext] */
	uint8_t *taken;	 /* [num_ext][blocks_per_slab], by extent whose slab it is: a block is there, or there is no
			    slab */
	uint32_t *order; /* [num_blocks]: published blocks, parents before children */
};

struct restored {
	struct restored_cache *caches; /* [num_caches] */
	uint32_t num_caches;
	struct restore_counts counts;
};

/** Where the tables of a meta region of so many slabs begin. */
void meta_layout(uint32_t num_slabs, uint64_t *ret_slabs, uint64_t *ret_extents, uint64_t *ret_heap);

/** Bytes of descriptors, tokens and flags of n blocks. */
uint64_t meta_extent_bytes(const struct attnd_wire_cache *id, uint32_t n);

/** NULL, or why a region of this size that begins so cannot be read at all. */
const char *restore_header(const struct attnd_meta_region *m, uint64_t bytes);

/**
 * Check a whole region (`meta`, writable, page-aligned) and drop in it what is wrong. 0; -EINVAL if
 * its header is, or -ENOMEM; then there is nothing in *ret.
 */
int restore_check(void *meta, uint64_t bytes, struct restored *ret);
void restored_free(struct restored *r);

/**
 * After pool_init has taken a region over: make caches and namespaces of it and log what it was. 0 or
 * -ENOMEM; then the region is still good for another daemon.
 */
int restore_pool(struct pool *p, struct ns_table *ns, struct realm_table *realms, uint64_t features);

/** The end of a daemon whose pool is kept: leave the caches to the next one. */
void restore_leave(struct pool *p);

/** Let a table's namespaces outlive the daemon, in p's meta region. */
void restore_keep_ns(struct pool *p, struct ns_table *ns);

#endif
