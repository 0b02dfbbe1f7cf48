/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The allocator of one segment: segregated free lists by powers of two, joined with their
 * neighbours when freed.
 *
 * In:   sizes from arena.c. Out: blocks. Next: arena.c.
 */
#include "heap.h"

#include <errno.h>
#include <stdlib.h>

#define BINS   48
#define PROBES 16 /* of blocks in the bin of the size itself, before a larger bin is taken */

struct cl_heap {
	size_t granules;
	uint64_t filled; /* bit b: bin[b] is not empty */
	struct cl_block *bin[BINS];
	struct cl_block *first;
	struct cl_block **start; /* [granules]: the block in use or pending that starts here */
};

static unsigned int bin_of(size_t count)
{
	return 63u - (unsigned int)__builtin_clzll(count);
}

static void bin_insert(struct cl_block *b)
{
	struct cl_heap *h = b->heap;
	unsigned int i = bin_of(b->count);

	b->state = CL_BLOCK_FREE;
	b->link_prev = NULL;
	b->link_next = h->bin[i];
	if (b->link_next)
		b->link_next->link_prev = b;
	h->bin[i] = b;
	h->filled |= UINT64_C(1) << i;
}

static void bin_remove(struct cl_block *b)
{
	struct cl_heap *h = b->heap;
	unsigned int i = bin_of(b->count);

	if (b->link_next)
		b->link_next->link_prev = b->link_prev;
	if (b->link_prev)
		b->link_prev->link_next = b->link_next;
	else
		h->bin[i] = b->link_next;
	if (!h->bin[i])
		h->filled &= ~(UINT64_C(1) << i);
}

int cl_heap_create(size_t bytes, struct cl_heap **ret)
{
	struct cl_heap *h = calloc(1, sizeof(*h));
	struct cl_block *b = calloc(1, sizeof(*b));

	if (!h || !b)
		goto fail;
	h->granules = bytes / CL_GRANULE;
	h->start = calloc(h->granules, sizeof(struct cl_block *));
	if (!h->start)
		goto fail;
	*b = (struct cl_block){.heap = h, .count = h->granules};
	h->first = b;
	bin_insert(b);
	*ret = h;
	return 0;
fail:
	free(h);
	free(b);
	return -ENOMEM;
}

void cl_heap_destroy(struct cl_heap *h)
{
	if (!h)
		return;
	while (h->first) {
		struct cl_block *next = h->first->next;

		free(h->first);
		h->first = next;
	}
	free(h->start);
	free(h);
}

static struct cl_block *search(struct cl_block *b, size_t count, unsigned int probes)
{
	for (unsigned int i = 0; b && i < probes; i++, b = b->link_next)
		if (b->count >= count)
			return b;
	return NULL;
}

/* A few of the same bin for a close fit, then any of a larger one, then all of the same bin. */
static struct cl_block *find_free(const struct cl_heap *h, size_t count)
{
	unsigned int i = bin_of(count);
	struct cl_block *b = search(h->bin[i], count, PROBES);
	uint64_t larger = h->filled >> i >> 1;

	if (b)
		return b;
	if (larger)
		return h->bin[i + 1 + (unsigned int)__builtin_ctzll(larger)];
	return search(h->bin[i], count, UINT32_MAX);
}

struct cl_block *cl_heap_alloc(struct cl_heap *h, size_t bytes)
{
	size_t count = bytes / CL_GRANULE + (bytes % CL_GRANULE != 0);
	struct cl_block *b = count && count <= h->granules ? find_free(h, count) : NULL, *rest = NULL;

	if (!b)
		return NULL;
	if (b->count > count) {
		rest = malloc(sizeof(*rest));
		if (!rest)
			return NULL;
	}
	bin_remove(b);
	if (rest) {
		*rest = (struct cl_block){
			.heap = h, .prev = b, .next = b->next, .first = b->first + count, .count = b->count - count};
		if (rest->next)
			rest->next->prev = rest;
		b->next = rest;
		b->count = count;
		bin_insert(rest);
	}
	b->state = CL_BLOCK_USED;
	h->start[b->first] = b;
	return b;
}

struct cl_block *cl_heap_find(const struct cl_heap *h, size_t offset)
{
	if (offset % CL_GRANULE || offset / CL_GRANULE >= h->granules)
		return NULL;
	return h->start[offset / CL_GRANULE];
}

/* Join `next` to the block before it. Neither is in a bin. */
static void absorb(struct cl_block *b, struct cl_block *next)
{
	b->count += next->count;
	b->next = next->next;
	if (b->next)
		b->next->prev = b;
	free(next);
}

void cl_heap_free(struct cl_block *b)
{
	struct cl_block *prev = b->prev, *next = b->next;

	b->heap->start[b->first] = NULL;
	if (next && next->state == CL_BLOCK_FREE) {
		bin_remove(next);
		absorb(b, next);
	}
	if (prev && prev->state == CL_BLOCK_FREE) {
		bin_remove(prev);
		absorb(prev, b);
		b = prev;
	}
	bin_insert(b);
}
