/* SPDX-License-Identifier: Apache-2.0 */
/* Seals (seal.h): XXH3 over the fields, in an order that is part of the meta region's version. */
#include "seal.h"

#include <stddef.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

static uint32_t fold(uint64_t h)
{
	return (uint32_t)(h ^ h >> 32);
}

uint32_t seal_block(const struct attnd_block *b, const uint64_t *tokens, uint32_t count, uint64_t place)
{
	const uint32_t fields[] = {b->parent,	    b->parent_generation,   b->generation, b->ns,
				   b->position,	    (uint32_t)b->first,	    count,	   0,
				   (uint32_t)place, (uint32_t)(place >> 32)};

	return fold(XXH3_64bits_withSeed(tokens, count * sizeof(*tokens), XXH3_64bits(fields, sizeof(fields))));
}

bool seal_block_good(const struct attnd_block *b, const uint64_t *tokens)
{
	uint32_t seal = seal_block(b, tokens, atomic_load_explicit(&b->count, memory_order_relaxed),
				   atomic_load_explicit(&b->place, memory_order_relaxed));

	return atomic_load_explicit(&b->seals[0], memory_order_relaxed) == seal ||
	       atomic_load_explicit(&b->seals[1], memory_order_relaxed) == seal;
}

void seal_block_next(struct attnd_block *b, const uint64_t *tokens, uint32_t count, uint64_t place)
{
	/* The first is the present one's: it moves aside before the next takes its place. */
	atomic_store_explicit(&b->seals[1], atomic_load_explicit(&b->seals[0], memory_order_relaxed),
			      memory_order_release);
	atomic_store_explicit(&b->seals[0], seal_block(b, tokens, count, place), memory_order_release);
}

uint32_t seal_cache(const struct attnd_meta_cache *m)
{
	const size_t from = offsetof(struct attnd_meta_cache, identity);

	return fold(XXH3_64bits((const char *)m + from, offsetof(struct attnd_meta_cache, seal) - from));
}

uint32_t seal_scale(const struct attnd_meta_scale *s)
{
	return fold(XXH3_64bits(s, offsetof(struct attnd_meta_scale, set)));
}

uint32_t seal_ns(const struct attnd_meta_ns *n)
{
	return fold(XXH3_64bits(n, sizeof(n->digest)));
}

uint64_t seal_bytes(const void *bytes, size_t n, uint64_t before)
{
	uint64_t h = XXH3_64bits_withSeed(bytes, n, before);

	return h ? h : 1;
}
