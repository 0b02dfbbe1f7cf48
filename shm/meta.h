/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The truth about the cache in shared memory: who owns which slab, and which published blocks
 * follow which. Everything else (child index, lists, holds) is derived from it.
 *
 * In:   the leader's decisions (and workers' block hashes).
 * Out:  what a new daemon, or an administrator's tool, reads.
 * Next: daemon/pool.c lays the region out, daemon/cache.c and daemon/tree.c change it.
 *
 * Only offsets and ids, never pointers. Rules B1 to B9 in shm/README.md.
 */
#ifndef ATTND_SHM_META_H
#define ATTND_SHM_META_H

#include <stdatomic.h>

#include "../proto/wire.h"

#define ATTND_META_MAGIC   UINT64_C(0x6174656d646e7461) /* "atndmeta" */
#define ATTND_META_VERSION 3				/* another one cannot be read: start empty */
#define ATTND_META_CLEAN   UINT64_C(0x6e61656c636e7461) /* "atnclean" */
#define ATTND_BLOCK_NONE   UINT32_MAX

enum {
	ATTND_MAX_POOL_CACHES = 256,
	ATTND_META_NODES = 8,
	ATTND_META_NS_PARTS = 64,
	ATTND_META_NS_PART = 4096, /* namespaces of a part */
};

/**
 * A block. Its id is its index in its cache: extent id / blocks_per_slab, entry id % that.
 * Published by the release store of `count` after all else is in place (B2).
 */
struct attnd_block {
	_Atomic uint64_t place; /* slab << 32 | index in it, or ATTND_PLACE_NONE */
	uint64_t hash;		/* of its bytes, once full and published; 0: none yet */
	uint32_t parent;	/* block id or ATTND_BLOCK_NONE */
	uint32_t parent_generation;
	uint32_t generation;	   /* grows when the block is recycled */
	uint32_t ns;		   /* namespace id */
	uint32_t position;	   /* position of slot 0 */
	_Atomic uint16_t count;	   /* published slots: [0, count); 0: private or free */
	uint16_t first;		   /* where its own tokens begin; > 0: it left `parent` at that slot */
	_Atomic uint32_t seals[2]; /* one of them is that of `count` (B8) */
	uint32_t reserved[2];
};
ATTND_WIRE_SIZE(struct attnd_block, 56);
ATTND_WIRE_AT(struct attnd_block, parent, 16);
ATTND_WIRE_AT(struct attnd_block, position, 32);
ATTND_WIRE_AT(struct attnd_block, count, 36);
ATTND_WIRE_AT(struct attnd_block, seals, 40);

#define ATTND_PLACE_NONE UINT64_MAX

/** What one slab's worth of blocks needs in the meta region: [blocks] descriptors, tokens, flags. */
struct attnd_extent {
	uint64_t offset; /* of the extent in the meta region; 0: none */
	uint64_t bytes;
};

/** A layer's static scales. */
struct attnd_meta_scale {
	float k, v;
	_Atomic uint32_t set; /* stored last, with release */
	uint32_t seal;
};

/** A namespace: its id is its index, over all parts. Its fields' digest is all that is known of it. */
struct attnd_meta_ns {
	uint8_t digest[32];
	_Atomic uint32_t used; /* stored last, with release */
	uint32_t seal;
};

/** A cache's entry: its identity and where its extents are listed. */
struct attnd_meta_cache {
	_Atomic uint32_t used; /* stored last, with release */
	_Atomic uint32_t num_extents;
	struct attnd_extent scales; /* struct attnd_meta_scale [num_layers], or none */
	/* From here on sealed. */
	struct attnd_wire_cache identity;
	char realm[80];
	uint32_t layout_id, layout_version;
	uint16_t k_lanes, k_ilv, v_lanes, v_ilv;
	uint64_t block_bytes;
	uint32_t blocks_per_slab;
	uint32_t seal; /* wrong while tiles are brought from one layout into another: nobody can read them */
};
static_assert(offsetof(struct attnd_meta_cache, seal) + 4 == sizeof(struct attnd_meta_cache) &&
		      offsetof(struct attnd_meta_cache, realm) ==
			      offsetof(struct attnd_meta_cache, identity) + sizeof(struct attnd_wire_cache) &&
		      offsetof(struct attnd_meta_cache, block_bytes) ==
			      offsetof(struct attnd_meta_cache, layout_id) + 16,
	      "what is sealed has no padding");

/** Stored as a whole, with one atomic store. */
struct attnd_meta_slab {
	uint16_t cache; /* index + 1; 0: free */
	uint16_t reserved;
	uint32_t extent; /* of that cache */
};
ATTND_WIRE_SIZE(struct attnd_meta_slab, 8);

/** Which file a node's memory is. */
struct attnd_meta_file {
	uint64_t dev, ino, bytes;
};

struct attnd_meta_region {
	uint64_t magic; /* stored last, with release */
	uint32_t version;
	uint32_t pid;		/* of the daemon that has it */
	_Atomic uint64_t clean; /* ATTND_META_CLEAN from an orderly end to the next start */
	uint32_t num_nodes;
	uint32_t num_slabs;
	uint64_t slab_bytes;
	uint64_t bytes;
	uint64_t slabs_offset;	    /* struct attnd_meta_slab [num_slabs] */
	uint64_t extents_offset;    /* struct attnd_extent [ATTND_MAX_POOL_CACHES][num_slabs] */
	uint64_t heap_offset;	    /* extents, from here on */
	_Atomic uint64_t heap_used; /* and not beyond */
	struct attnd_meta_file nodes[ATTND_META_NODES];
	struct attnd_extent ns[ATTND_META_NS_PARTS]; /* struct attnd_meta_ns [ATTND_META_NS_PART] each, or none */
	struct attnd_meta_cache caches[ATTND_MAX_POOL_CACHES];
};
ATTND_WIRE_AT(struct attnd_meta_region, version, 8); /* where every version has it */
ATTND_WIRE_AT(struct attnd_meta_region, pid, 12);

#endif
