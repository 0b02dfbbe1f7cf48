/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Block hashes: made when blocks are full and published, compared after a sudden end.
 *
 * In:   full published blocks without a hash, or with one that nobody has compared yet.
 * Out:  hashes in meta; blocks that are what they were; the others dropped with all below them.
 * Next: leader.c does a slice when it has nothing else to do, engine.c before a match hands blocks out.
 *
 * One owner: the leader.
 */
#ifndef ATTND_DAEMON_SCRUB_H
#define ATTND_DAEMON_SCRUB_H

#include "cache.h"

/** A slice in the background, about 10 us. False: there is nothing to do. */
bool scrub_step(struct cache *c);

/** Whether a block must not serve anybody yet, or ever. Then it is the next to be looked at. */
static inline bool scrub_keeps_back(const struct cache *c, uint32_t id)
{
	const struct block_aux *a;

	if (!c->scrub.unverified && !c->scrub.bad)
		return false;
	a = id == ATTND_BLOCK_NONE ? NULL : cache_aux(c, id);
	if (a && a->verify)
		((struct scrub *)(uintptr_t)&c->scrub)->want = id;
	return a && (a->verify || a->bad);
}

/** After a match that a block ended: verify it, for up to 50 us. False: none did. */
bool scrub_wanted(struct cache *c);

/** The hash of a block's bytes, flags and tokens. */
uint64_t scrub_hash(const struct cache *c, uint32_t id);

#endif
