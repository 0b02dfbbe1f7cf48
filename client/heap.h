/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which ranges of a segment are in use. The bookkeeping lies outside the segment, since its
 * memory is written by the daemon and by jobs that may still run.
 *
 * In:   sizes. Out: blocks (offset, bytes). Next: arena.c adds the segment's address.
 */
#ifndef ATTND_CLIENT_HEAP_H
#define ATTND_CLIENT_HEAP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Two cache lines: neighbours in different jobs share neither a line nor a prefetched pair. */
#define CL_GRANULE 128u

struct cl_heap;

struct cl_block {
	struct cl_heap *heap;
	struct cl_block *prev, *next;		/* in the order of addresses */
	struct cl_block *link_prev, *link_next; /* in a free list; link_next in the queue of pending frees */
	size_t first, count;			/* granules */
	uint64_t serial;			/* pending: the newest job at the time of the free */
	enum { CL_BLOCK_FREE, CL_BLOCK_USED, CL_BLOCK_PENDING } state;
};

/** A heap over `bytes`, all free. -ENOMEM. */
int cl_heap_create(size_t bytes, struct cl_heap **ret);
/** NULL is fine. */
void cl_heap_destroy(struct cl_heap *h);
/** A block of at least `bytes` (> 0), or NULL. */
struct cl_block *cl_heap_alloc(struct cl_heap *h, size_t bytes);
/** The block that starts at this offset and is not free, or NULL. */
struct cl_block *cl_heap_find(const struct cl_heap *h, size_t offset);
/** Give a block back; it joins its free neighbours. */
void cl_heap_free(struct cl_block *b);

#endif
