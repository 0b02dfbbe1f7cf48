/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Shared-memory regions: made, sealed, mapped, checked.
 *
 * In:   a size, a wish for huge pages; or a descriptor that a peer sent.
 * Out:  a mapping with its memfd.
 * Next: daemon/pool.c, daemon/session.c, client/conn.c.
 */
#ifndef ATTND_SHM_REGION_H
#define ATTND_SHM_REGION_H

#include <stddef.h>
#include <stdint.h>

struct attnd_region {
	void *base; /* NULL: none */
	size_t bytes;
	size_t page_bytes; /* of the backing: huge page size, or the system's */
	int fd;		   /* -1: none */
};
#define ATTND_REGION_NONE ((struct attnd_region){.fd = -1})

enum attnd_region_flags {
	ATTND_REGION_SEAL = 1,	   /* SHRINK, GROW and SEAL */
	ATTND_REGION_POPULATE = 2, /* reserve all pages now; -ENOMEM instead of a later SIGBUS */
	ATTND_REGION_SPARSE = 4,   /* reserve none: pages come by attnd_region_reserve */
};

/**
 * Make a memfd of `bytes` (rounded up to page_bytes) and map it read-write. page_bytes 0: the
 * system's page size, else a huge page size. Errors: -ENOMEM (pages short), -EINVAL.
 */
int attnd_region_create(const char *name, size_t bytes, size_t page_bytes, int flags, struct attnd_region *ret);

/** Reserve [offset, offset + bytes) of a sparse region: 0, or -ENOMEM without SIGBUS. */
int attnd_region_reserve(struct attnd_region *r, size_t offset, size_t bytes);

/** Seal size and further writable mappings (those that exist stay). Of a region without ATTND_REGION_SEAL. */
int attnd_region_seal_writes(struct attnd_region *r);

/** Map a descriptor from a peer: the whole of it, after checking that it has `bytes`. Takes fd over on success. */
int attnd_region_map(int fd, size_t bytes, int writable, struct attnd_region *ret);

/**
 * Check a client's arena segment and map it read-write: a regular tmpfs file, O_RDWR, sealed
 * SHRINK and GROW and not WRITE, size == bytes, a page multiple; then populate it. -EINVAL,
 * -EPERM (seals), -ENOMEM. Takes fd over on success.
 */
int attnd_region_map_segment(int fd, size_t bytes, struct attnd_region *ret);

/**
 * Zeroed memory of this process that is looked up at random: pages come at first use, huge ones where
 * the system gives them. NULL: there is none.
 */
void *attnd_table_alloc(size_t bytes);
void attnd_table_free(void *table, size_t bytes); /* NULL: nothing */

/** Unmap and close; leaves *r as ATTND_REGION_NONE. Fine on ATTND_REGION_NONE. */
void attnd_region_destroy(struct attnd_region *r);

#endif
