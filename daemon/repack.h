/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tiles in a layout that these kernels do not read, brought into theirs.
 *
 * In:   a cache taken over, and its entry with the layout that it was written in.
 * Out:  the same K and V in the layout of these features; or why that cannot be.
 * Next: restore.c drops the cache, or goes on with it.
 *
 * In place, block by block, by several threads. The entry's seal is wrong meanwhile: a daemon killed
 * in between leaves a cache that the next one drops, and never one that is misread.
 */
#ifndef ATTND_DAEMON_REPACK_H
#define ATTND_DAEMON_REPACK_H

#include "cache.h"

/** NULL, and whether its tiles must be repacked; or why they are of no use. */
const char *repack_possible(const struct pool *p, const struct attnd_meta_cache *m, uint64_t features,
			    bool *ret_needed);

/** Rewrite the published blocks of r. 0, or -ENOMEM: nothing can read the cache any more. */
int repack_run(struct cache *c, const struct restored_cache *r);

#endif
