/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The truth about the cache in shared memory: who owns which slab, and which published blocks
 * follow which. Everything else (child index, lists, holds) is derived from it.
 *
 * In:   the leader's decisions (and workers' block hashes).
 * Out:  what a new daemon, or an administrator's tool, reads.
 * Next: daemon/pool.c lays the region out, daemon/cache.c and daemon/tree.c change it.
 *
 * Only offsets and ids, never pointers. Rules B1 to B5 in shm/README.md.
 */
#ifndef ATTND_SHM_META_H
#define ATTND_SHM_META_H

#include <stdatomic.h>

#include "../proto/wire.h"

#define ATTND_META_MAGIC   UINT64_C(0x6174656d646e7461) /* "atndmeta" */
#define ATTND_META_VERSION 1
#define ATTND_BLOCK_NONE   UINT32_MAX

enum { ATTND_MAX_POOL_CACHES = 256 };

/**
 * A block. Its id is its index in its cache: extent id / blocks_per_slab, entry id % that.
 * Published by the release store of `count` after all else is in place (B2).
 */
struct attnd_block {
	_Atomic uint64_t place; /* slab << 32 | index in it, or ATTND_PLACE_NONE */
	uint64_t hash;		/* of its bytes, once full and published; 0: none yet */
	uint32_t parent;	/* block id or ATTND_BLOCK_NONE */
	uint32_t parent_generation;
	uint32_t generation;	/* grows when the block is recycled */
	uint32_t ns;		/* namespace id */
	uint32_t position;	/* position of slot 0 */
	_Atomic uint16_t count; /* published slots: [0, count); 0: private or free */
	uint16_t first;		/* where its own tokens begin; > 0: it left `parent` at that slot */
	uint32_t reserved[4];
};
ATTND_WIRE_SIZE(struct attnd_block, 56);
ATTND_WIRE_AT(struct attnd_block, parent, 16);
ATTND_WIRE_AT(struct attnd_block, position, 32);
ATTND_WIRE_AT(struct attnd_block, count, 36);

#define ATTND_PLACE_NONE UINT64_MAX

/** What one slab's worth of blocks needs in the meta region: [blocks] descriptors, tokens, flags. */
struct attnd_extent {
	uint64_t offset; /* of the extent in the meta region; 0: none */
	uint64_t bytes;
};

/** A cache's entry: its identity and where its extents are listed. */
struct attnd_meta_cache {
	_Atomic uint32_t used; /* stored last, with release */
	uint32_t num_extents;
	struct attnd_wire_cache identity;
	char realm[80];
	uint32_t layout_id, layout_version;
	uint16_t k_lanes, k_ilv, v_lanes, v_ilv;
	uint32_t blocks_per_slab;
	uint32_t block_bytes;
};

struct attnd_meta_slab {
	uint16_t cache; /* index + 1; 0: free */
	uint16_t reserved;
	uint32_t extent; /* of that cache */
};

struct attnd_meta_region {
	uint64_t magic; /* stored last, with release */
	uint32_t version;
	uint32_t num_slabs;
	uint64_t slab_bytes;
	uint64_t bytes;
	uint64_t slabs_offset;	 /* struct attnd_meta_slab [num_slabs] */
	uint64_t extents_offset; /* struct attnd_extent [ATTND_MAX_POOL_CACHES][num_slabs] */
	uint64_t heap_offset;	 /* extents, from here on */
	struct attnd_meta_cache caches[ATTND_MAX_POOL_CACHES];
};

#endif
