/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The peek table: which full blocks of prompts are cached, for anybody to look without asking.
 *
 * In:   a prefix's hash, chained from block to block under a key that only its namespace's users
 *       have. Out: whether it is there.
 * Next: daemon/cache.c adds and removes, client/peek.c looks.
 *
 * Buckets of a cache line each. A hash stands in one of two buckets; where both are full it takes
 * the place of another, which is lost: the table is a hint. One writer (the leader) and readers in
 * any process, without locks: each entry is one word, and nothing hangs on the order of two.
 */
#ifndef ATTND_SHM_PEEK_H
#define ATTND_SHM_PEEK_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

enum { ATTND_PEEK_BUCKET = 8, ATTND_PEEK_KEY = 16 };

struct attnd_peek_table {
	_Atomic uint64_t *entries; /* NULL: no table; 0: a free entry */
	uint64_t mask;		   /* buckets - 1 */
};

/** The table over `num` entries, a power of two of at least a bucket. */
static inline void attnd_peek_init(struct attnd_peek_table *t, void *entries, uint64_t num)
{
	t->entries = entries;
	t->mask = num / ATTND_PEEK_BUCKET - 1;
}

/** The prefix that ends with these n <= 256 tokens, after what `before` (0: nothing) names. Never 0. */
uint64_t attnd_peek_hash(const uint8_t key[ATTND_PEEK_KEY], uint64_t before, const uint64_t *tokens, uint32_t n);

static inline _Atomic uint64_t *attnd_peek_bucket(const struct attnd_peek_table *t, uint64_t hash, int which)
{
	return t->entries + ((which ? hash >> 32 : hash) & t->mask) * ATTND_PEEK_BUCKET;
}

bool attnd_peek_has(const struct attnd_peek_table *t, uint64_t hash);
/** False: another entry is lost for it. */
bool attnd_peek_add(struct attnd_peek_table *t, uint64_t hash);
/** One entry of this hash, if there is one. */
void attnd_peek_remove(struct attnd_peek_table *t, uint64_t hash);

#endif
