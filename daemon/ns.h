/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Namespaces: the part of a cache's tree that a request may see.
 *
 * In:   canonical fields (tenant, adapter, salt). Out: an id that stands in the tree's keys.
 * Next: engine.c hands ids out; cache.c counts a reference a published block and hashes with its
 *       peek key.
 *
 * Known by a 256-bit BLAKE2b digest of its tagged, length-prefixed fields. Id 0 is the one
 * without fields and is never freed. One owner: the leader.
 */
#ifndef ATTND_DAEMON_NS_H
#define ATTND_DAEMON_NS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "metrics.h"

struct ns_entry {
	uint8_t digest[32];
	uint8_t peek_key[16]; /* random, its own for as long as it lives */
	uint64_t held;	      /* bytes on each node that its sequences hold, of all caches */
	uint32_t refs;	      /* 0: free */
	uint32_t bytes;
	unsigned char *fields; /* as they came; NULL: none */
	struct metrics_use use;
	uint32_t next; /* bucket chain, or free list */
};

struct ns_table {
	struct ns_entry *entries;
	uint32_t num, cap, free;
	uint32_t buckets[4096];
	/** Where ids are written down before they are used; digest NULL: crossed out. 0 or a negative errno. */
	int (*record)(void *ctx, uint32_t id, const uint8_t *digest);
	void *record_ctx;
};

int ns_init(struct ns_table *t);
void ns_destroy(struct ns_table *t);
/**
 * Check and digest a run of struct attnd_wire_ns_field (fields in any order, each tag once), and
 * take a reference on its id. 0, -EINVAL or -ENOMEM.
 */
int ns_get(struct ns_table *t, const void *fields, size_t bytes, uint32_t *ret_id);
/** Find a field of such a run, as far as that is well-formed. False: it is not there. */
bool ns_field(const void *fields, size_t bytes, uint16_t tag, const char **ret, size_t *ret_bytes);
/** What a cache's prefixes of this namespace are hashed with; `salt` tells caches apart. */
void ns_peek_key(const struct ns_table *t, uint32_t id, const uint8_t salt[16], uint8_t ret[16]);
/** A field of a live namespace; without it 0 bytes. */
void ns_entry_field(const struct ns_entry *e, uint16_t tag, const char **ret, uint32_t *ret_bytes);
/** Its sequences hold so many bytes more. */
static inline void ns_hold(struct ns_table *t, uint32_t id, int64_t bytes)
{
	t->entries[id].held += (uint64_t)bytes;
}
void ns_ref(struct ns_table *t, uint32_t id);
void ns_unref(struct ns_table *t, uint32_t id);

/** An earlier daemon's namespace keeps its id; held until ns_restored. 0 or -ENOMEM. */
int ns_restore(struct ns_table *t, uint32_t id, const uint8_t digest[32]);
/** All are there again: those that no block refers to are gone. */
void ns_restored(struct ns_table *t);

#endif
