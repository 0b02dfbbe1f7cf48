/* SPDX-License-Identifier: Apache-2.0 */
/* The pool (pool.h): regions, slabs and the meta heap. */
#include "pool.h"

#include <errno.h>
#include <hugetlbfs.h>
#include <stdlib.h>
#include <string.h>

#include "config.h"
#include "log.h"

#define MIB	  (UINT64_C(1) << 20)
#define HUGE_SLAB (2 * MIB)
#define HEAP_STEP (4 * MIB)

static uint64_t round_up(uint64_t x, uint64_t to)
{
	return (x + to - 1) / to * to;
}

static void choose_sizes(struct pool *p, const struct config *cfg, uint64_t *ret_meta)
{
	uint64_t size = cfg->pool_size, slab = cfg->slab_size, meta = cfg->meta_size;

	if (!slab) {
		slab = size / 64;
		slab = slab > 64 * MIB ? 64 * MIB : slab;
	}
	slab = round_up(slab ? slab : 1, HUGE_SLAB);
	p->slab_bytes = slab;
	p->num_slabs = (uint32_t)(size / slab);
	if (!p->num_slabs)
		p->num_slabs = 1;
	if (!meta)
		meta = 16 * MIB + p->num_slabs * slab / 16;
	*ret_meta = meta;
}

/* Huge pages where they are there, else plain ones, announced. */
static int make_node(struct pool *p, const struct config *cfg, uint32_t node)
{
	uint64_t bytes = p->num_slabs * p->slab_bytes;
	long huge = gethugepagesize();
	int r = -ENOMEM;

	if (cfg->hugepages != CONFIG_HUGE_OFF && huge > 0) {
		r = attnd_region_create("attnd-pool", bytes, (size_t)huge, ATTND_REGION_SEAL | ATTND_REGION_POPULATE,
					&p->nodes[node]);
		if (!r) {
			p->backing = "hugetlb";
			return 0;
		}
	}
	if (cfg->hugepages == CONFIG_HUGE_REQUIRE) {
		log_err("pool: %llu MiB of huge pages are not there (hugepages = require): %s",
			(unsigned long long)(bytes / MIB), strerror(-r));
		return r;
	}
	r = attnd_region_create("attnd-pool", bytes, 0, ATTND_REGION_SEAL | ATTND_REGION_POPULATE, &p->nodes[node]);
	if (r) {
		log_err("pool: cannot reserve %llu MiB (pool-size): %s", (unsigned long long)(bytes / MIB),
			strerror(-r));
		return r;
	}
	p->backing = "plain";
	if (cfg->hugepages == CONFIG_HUGE_AUTO)
		log_info("pool: no huge pages for %llu MiB; using plain pages", (unsigned long long)(bytes / MIB));
	return 0;
}

static int make_meta(struct pool *p, uint64_t heap_bytes)
{
	uint64_t slabs = round_up(sizeof(struct attnd_meta_region), 4096);
	uint64_t extents = slabs + round_up(p->num_slabs * sizeof(struct attnd_meta_slab), 4096);
	uint64_t heap = extents +
			round_up((uint64_t)ATTND_MAX_POOL_CACHES * p->num_slabs * sizeof(struct attnd_extent), 4096);
	int r = attnd_region_create("attnd-meta", heap + heap_bytes, 0, ATTND_REGION_SEAL | ATTND_REGION_SPARSE,
				    &p->meta_region);

	if (!r)
		r = attnd_region_reserve(&p->meta_region, 0, heap);
	if (r) {
		log_err("pool: cannot make the meta region of %llu MiB: %s",
			(unsigned long long)((heap + heap_bytes) / MIB), strerror(-r));
		return r;
	}
	p->meta = p->meta_region.base;
	p->meta->version = ATTND_META_VERSION;
	p->meta->num_slabs = p->num_slabs;
	p->meta->slab_bytes = p->slab_bytes;
	p->meta->bytes = p->meta_region.bytes;
	p->meta->slabs_offset = slabs;
	p->meta->extents_offset = extents;
	p->meta->heap_offset = heap;
	p->slabs = (struct attnd_meta_slab *)((char *)p->meta_region.base + slabs);
	p->heap_next = p->heap_ready = heap;
	__atomic_store_n(&p->meta->magic, ATTND_META_MAGIC, __ATOMIC_RELEASE);
	return 0;
}

int pool_init(struct pool *p, const struct config *cfg)
{
	uint64_t meta_bytes;
	int r;

	*p = (struct pool){.num_nodes = 1, .meta_region = ATTND_REGION_NONE};
	for (int i = 0; i < POOL_MAX_NODES; i++)
		p->nodes[i] = ATTND_REGION_NONE;
	choose_sizes(p, cfg, &meta_bytes);
	p->free = malloc(p->num_slabs * sizeof(*p->free));
	if (!p->free)
		return -ENOMEM;
	for (uint32_t i = 0; i < p->num_slabs; i++)
		p->free[i] = p->num_slabs - 1 - i;
	p->num_free = p->num_slabs;
	for (uint32_t n = 0; n < p->num_nodes; n++) {
		r = make_node(p, cfg, n);
		if (r)
			goto fail;
	}
	r = make_meta(p, meta_bytes);
	if (r)
		goto fail;
	log_info("pool: %u slabs of %llu MiB, %s pages of %zu KiB", p->num_slabs,
		 (unsigned long long)(p->slab_bytes / MIB), p->backing, p->nodes[0].page_bytes / 1024);
	return 0;
fail:
	pool_destroy(p);
	return r;
}

void pool_destroy(struct pool *p)
{
	for (int i = 0; i < POOL_MAX_NODES; i++)
		attnd_region_destroy(&p->nodes[i]);
	attnd_region_destroy(&p->meta_region);
	free(p->free);
	free(p->spare);
	p->free = NULL;
	p->spare = NULL;
}

int64_t pool_take_slab(struct pool *p, uint32_t cache, uint32_t extent)
{
	uint32_t s;

	if (!p->num_free)
		return -ENOMEM;
	s = p->free[--p->num_free];
	p->slabs[s] = (struct attnd_meta_slab){.cache = (uint16_t)(cache + 1), .extent = extent};
	return s;
}

void pool_return_slab(struct pool *p, uint32_t slab)
{
	p->slabs[slab].cache = 0;
	p->free[p->num_free++] = slab;
}

int pool_extent_alloc(struct pool *p, uint64_t bytes, struct attnd_extent *ret)
{
	bytes = round_up(bytes, 64);
	for (uint32_t i = 0; i < p->num_spare; i++) {
		if (p->spare[i].bytes == bytes) {
			*ret = p->spare[i];
			p->spare[i] = p->spare[--p->num_spare];
			memset(pool_extent_at(p, ret), 0, bytes);
			return 0;
		}
	}
	if (bytes > p->meta_region.bytes - p->heap_next)
		return -ENOMEM;
	while (p->heap_next + bytes > p->heap_ready) {
		uint64_t left = p->meta_region.bytes - p->heap_ready, step = left < HEAP_STEP ? left : HEAP_STEP;

		if (attnd_region_reserve(&p->meta_region, p->heap_ready, step))
			return -ENOMEM;
		p->heap_ready += step;
	}
	*ret = (struct attnd_extent){.offset = p->heap_next, .bytes = bytes};
	p->heap_next += bytes;
	return 0;
}

void pool_extent_free(struct pool *p, const struct attnd_extent *e)
{
	if (p->num_spare == p->cap_spare) {
		uint32_t cap = p->cap_spare ? p->cap_spare * 2 : 16;
		struct attnd_extent *s = realloc(p->spare, cap * sizeof(*s));

		if (!s)
			return; /* lost until the next start */
		p->spare = s;
		p->cap_spare = cap;
	}
	p->spare[p->num_spare++] = *e;
}
