/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Seals: hashes by which what stands in meta and pool is known to be what was written there.
 *
 * In:   descriptors, tokens, entries, bytes of blocks. Out: 32 or 64 bits.
 * Next: cache.c seals as it publishes, restore.c checks at start, scrub.c the blocks' bytes.
 *
 * They find lost pages and flipped bits. They are no secret: nobody but the daemon writes there.
 */
#ifndef ATTND_DAEMON_SEAL_H
#define ATTND_DAEMON_SEAL_H

#include <stdbool.h>

#include "../shm/meta.h"

/** Of a descriptor as it is, with `count` published tokens at `place`. */
uint32_t seal_block(const struct attnd_block *b, const uint64_t *tokens, uint32_t count, uint64_t place);
/** Whether the block's own `count` and `place` are sealed. */
bool seal_block_good(const struct attnd_block *b, const uint64_t *tokens);
/** Seal what is about to be stored as `count` or `place` (B8). */
void seal_block_next(struct attnd_block *b, const uint64_t *tokens, uint32_t count, uint64_t place);

uint32_t seal_cache(const struct attnd_meta_cache *m);
uint32_t seal_scale(const struct attnd_meta_scale *s);
uint32_t seal_ns(const struct attnd_meta_ns *n);

/** Of bytes, after what `before` stands for. Never 0. */
uint64_t seal_bytes(const void *bytes, size_t n, uint64_t before);

#endif
