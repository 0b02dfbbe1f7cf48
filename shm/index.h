/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The child index: which published block continues a given one at a slot with a token.
 *
 * In:   a key (namespace and parent, slot, token). Out: a block id.
 * Next: daemon/tree.c matches and publishes by it.
 *
 * A chained hash table over ids; the chain stands in an array of the caller's, next[id]. Tokens
 * are compared through the caller's `key`, never only hashes. Keyed by a secret, so that
 * tokens cannot be chosen to collide. Derived: rebuilt from the descriptors. One owner, the leader.
 *
 * A larger table is filled little by little: each insert moves a few buckets of the old one, so that
 * none of them takes long.
 */
#ifndef ATTND_SHM_INDEX_H
#define ATTND_SHM_INDEX_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct attnd_index_key {
	uint32_t ns;
	uint32_t parent;
	uint32_t slot;
	uint64_t token;
};

struct attnd_index {
	uint32_t *heads; /* id + 1; 0: none */
	uint32_t mask;	 /* buckets - 1 */
	uint32_t *old;	 /* the table before; NULL: all of it has been moved */
	uint32_t old_mask;
	uint32_t moved; /* its buckets [0, moved) have been */
	uint32_t want;	/* buckets that it should have; it grows again when the old table is gone */
	uint32_t used;
	uint64_t secret[2];
	/** The key of a block that is in the table, and its link; ctx is the caller's. */
	void (*key)(void *ctx, uint32_t id, struct attnd_index_key *ret);
	uint32_t *(*next)(void *ctx, uint32_t id);
	void *ctx;
};

/** 0 or -ENOMEM. The secret is random. */
int attnd_index_init(struct attnd_index *x, void (*key)(void *, uint32_t, struct attnd_index_key *),
		     uint32_t *(*next)(void *, uint32_t), void *ctx);
void attnd_index_destroy(struct attnd_index *x);

/** Make room for `n` entries in all. 0 or -ENOMEM; inserts cannot fail. */
int attnd_index_reserve(struct attnd_index *x, uint32_t n);

/** `id`, which is in the table, will be removed soon. */
void attnd_index_prefetch(const struct attnd_index *x, uint32_t id);

/** The block under this key, or UINT32_MAX. */
uint32_t attnd_index_find(const struct attnd_index *x, const struct attnd_index_key *key);

/** Add `id`, whose key is not in the table yet. */
void attnd_index_insert(struct attnd_index *x, uint32_t id);
void attnd_index_remove(struct attnd_index *x, uint32_t id);

#endif
