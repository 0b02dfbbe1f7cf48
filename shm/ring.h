/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The two rings of a session: single producer, single consumer, one sequence number in the
 * payload's own line, so that a hand-over costs one cache-line transfer.
 *
 * In:   an entry to send, or a ring to look at.
 * Out:  the entry on the other side.
 * Next: client/ring.c and daemon/intake.c, daemon/reply.c.
 *
 * Everything the peer can write is hostile: the daemon keeps its own indices and never reads an
 * entry twice. Rules R1 to R6 in shm/README.md.
 */
#ifndef ATTND_SHM_RING_H
#define ATTND_SHM_RING_H

#include <stdatomic.h>
#include <stdbool.h>
#include <string.h>

#include "../proto/wire.h"
#include "copy.h"

/* An entry's first word is its sequence number; the rest is plain memory published by it. */
static inline _Atomic uint32_t *attnd_entry_seq(void *entry)
{
	return (_Atomic uint32_t *)entry;
}

/** One side of one ring: private indices over shared entries. */
struct attnd_ring {
	unsigned char *entries;
	uint32_t mask;	/* entries - 1 */
	uint32_t size;	/* bytes of an entry */
	uint32_t index; /* of the next entry to produce or consume; private to this side */
};

static inline void attnd_ring_init(struct attnd_ring *r, void *entries, uint32_t count, uint32_t size)
{
	*r = (struct attnd_ring){.entries = entries, .mask = count - 1, .size = size};
}

static inline void *attnd_ring_entry(const struct attnd_ring *r, uint32_t index)
{
	return r->entries + (size_t)(index & r->mask) * r->size;
}

/**
 * Store one entry (its seq is ignored) and publish it. The caller knows that there is room.
 * The release store pairs with the acquire load in attnd_ring_take (R1).
 */
static inline void attnd_ring_put(struct attnd_ring *r, const void *entry)
{
	unsigned char *dst = attnd_ring_entry(r, r->index);

	memcpy(dst + sizeof(uint32_t), (const unsigned char *)entry + sizeof(uint32_t), r->size - sizeof(uint32_t));
	atomic_store_explicit(attnd_entry_seq(dst), r->index + 1, memory_order_release);
	r->index++;
}

/** True if an entry waits. */
static inline bool attnd_ring_ready(const struct attnd_ring *r)
{
	return atomic_load_explicit(attnd_entry_seq(attnd_ring_entry(r, r->index)), memory_order_acquire) ==
	       r->index + 1;
}

/** Copy the next entry out, once, and advance; false if there is none. */
static inline bool attnd_ring_take(struct attnd_ring *r, void *ret_entry)
{
	const unsigned char *src = attnd_ring_entry(r, r->index);

	if (!attnd_ring_ready(r))
		return false;
	attnd_copy_in(ret_entry, src, r->size);
	r->index++;
	return true;
}

#endif
