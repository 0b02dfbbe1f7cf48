/* SPDX-License-Identifier: Apache-2.0 */
/* The peek table (peek.h). */
#include "peek.h"

#include <sodium.h>
#include <string.h>

enum { MAX_TOKENS = 256 };

/*
 * Token ids fit 32 bits and then take half the time; the text's length, which is part of the hash,
 * tells the two forms apart.
 */
static size_t pack(void *to, const uint64_t *tokens, uint32_t n)
{
	uint32_t *narrow = to;
	uint64_t high = 0;

	for (uint32_t i = 0; i < n; i++) {
		narrow[i] = (uint32_t)tokens[i];
		high |= tokens[i] >> 32;
	}
	if (!high)
		return n * sizeof(*narrow);
	memcpy(to, tokens, n * sizeof(*tokens));
	return n * sizeof(*tokens);
}

uint64_t attnd_peek_hash(const uint8_t key[ATTND_PEEK_KEY], uint64_t before, const uint64_t *tokens, uint32_t n)
{
	uint64_t text[1 + MAX_TOKENS], hash;

	text[0] = before;
	crypto_shorthash_siphash24((unsigned char *)&hash, (const unsigned char *)text,
				   sizeof(before) + pack(text + 1, tokens, n), key);
	return hash ? hash : 1;
}

static _Atomic uint64_t *find(_Atomic uint64_t *bucket, uint64_t hash)
{
	for (int i = 0; i < ATTND_PEEK_BUCKET; i++)
		if (atomic_load_explicit(&bucket[i], memory_order_relaxed) == hash)
			return &bucket[i];
	return NULL;
}

bool attnd_peek_has(const struct attnd_peek_table *t, uint64_t hash)
{
	return find(attnd_peek_bucket(t, hash, 0), hash) || find(attnd_peek_bucket(t, hash, 1), hash);
}

static int free_entries(const _Atomic uint64_t *bucket)
{
	int n = 0;

	for (int i = 0; i < ATTND_PEEK_BUCKET; i++)
		n += atomic_load_explicit(&bucket[i], memory_order_relaxed) == 0;
	return n;
}

/* Into the emptier bucket: so next to nothing is lost before the table is nearly full. */
bool attnd_peek_add(struct attnd_peek_table *t, uint64_t hash)
{
	_Atomic uint64_t *first = attnd_peek_bucket(t, hash, 0), *second = attnd_peek_bucket(t, hash, 1);
	_Atomic uint64_t *at = find(free_entries(first) < free_entries(second) ? second : first, 0);
	bool room = at != NULL;

	if (!room) /* bits that choose no bucket choose the entry */
		at = first + (hash >> 61);
	atomic_store_explicit(at, hash, memory_order_relaxed);
	return room;
}

void attnd_peek_remove(struct attnd_peek_table *t, uint64_t hash)
{
	_Atomic uint64_t *at = find(attnd_peek_bucket(t, hash, 0), hash);

	if (!at)
		at = find(attnd_peek_bucket(t, hash, 1), hash);
	if (at)
		atomic_store_explicit(at, 0, memory_order_relaxed);
}
