/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory that requests make the daemon allocate for itself: sequences, block tables, plans, parameter
 * sets, the fields of namespaces.
 *
 * In:   bytes that an engine is about to need, or has freed. Out: may it?
 * Next: engine.c, tree.c, plan.c, submit.c.
 *
 * Each of these is limited alone, but their products are more than any machine has. An engine may
 * have as much as it leaves to others, so that one alone gets half and nobody is left with nothing.
 * One owner: the leader.
 */
#ifndef ATTND_DAEMON_HEAP_H
#define ATTND_DAEMON_HEAP_H

#include <stdbool.h>
#include <stdint.h>

#define HEAP_LEAST (UINT64_C(512) << 20)

struct heap {
	uint64_t used, max; /* bytes; max 0: any */
};

/* An engine's part. */
struct heap_use {
	struct heap *heap;
	uint64_t used;
};

/** For a pool of this size. */
static inline uint64_t heap_max(uint64_t pool_bytes)
{
	return pool_bytes / 8 > HEAP_LEAST ? pool_bytes / 8 : HEAP_LEAST;
}

static inline bool heap_take(struct heap_use *u, uint64_t bytes)
{
	struct heap *h = u->heap;
	uint64_t left = h->max > h->used ? h->max - h->used : 0;

	if (h->max && (bytes > left || u->used + bytes > left - bytes))
		return false;
	u->used += bytes;
	h->used += bytes;
	return true;
}

static inline void heap_give(struct heap_use *u, uint64_t bytes)
{
	u->used -= bytes;
	u->heap->used -= bytes;
}

#endif
