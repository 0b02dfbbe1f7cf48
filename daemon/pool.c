/* SPDX-License-Identifier: Apache-2.0 */
/* The pool (pool.h): regions, slabs and the meta heap. */
#include "pool.h"

#include <errno.h>
#include <hugetlbfs.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "config.h"
#include "keep.h"
#include "log.h"
#include "memory.h"
#include "told.h"

#define MIB	  (UINT64_C(1) << 20)
#define HUGE_SLAB (2 * MIB)
#define HEAP_STEP (2 * MIB) /* a huge page */
#define MOVE_NS	  50000

#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25 /* newer than some C libraries */
#endif

enum { PREFAULT_THREADS = 16, VERIFY_PAGES = 256 };

static uint64_t round_up(uint64_t x, uint64_t to)
{
	return (x + to - 1) / to * to;
}

static void choose_sizes(struct pool *p, const struct config *cfg, uint64_t *ret_meta)
{
	uint64_t size = cfg->pool_size / p->num_nodes, slab = cfg->slab_size, meta = cfg->meta_size;

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
		meta = 16 * MIB + p->num_slabs * slab * p->num_nodes / 16;
	*ret_meta = meta;
}

/* ---- Prefaulting, in parallel, by threads on the node's CPUs ---- */

struct prefault {
	struct attnd_region *region;
	size_t step;
	_Atomic size_t next;
	_Atomic int error;
};

static void *prefault_part(void *arg)
{
	struct prefault *f = arg;

	while (!atomic_load(&f->error)) {
		size_t at = atomic_fetch_add(&f->next, f->step), left = f->region->bytes - at;
		int r;

		if (at >= f->region->bytes)
			break;
		r = told_to_end() ? -EINTR : attnd_region_reserve(f->region, at, left < f->step ? left : f->step);
		if (r)
			atomic_store(&f->error, r);
	}
	return NULL;
}

static int prefault(struct pool *p, uint32_t node, struct attnd_region *region)
{
	struct prefault f = {.region = region, .step = 32 * MIB};
	uint32_t n = p->topology->nodes[node].num_cpus, started = 0;
	pthread_t threads[PREFAULT_THREADS];

	f.step = region->page_bytes > f.step ? region->page_bytes : f.step;
	n = n < PREFAULT_THREADS ? n : PREFAULT_THREADS;
	for (uint32_t i = 0; i < n && i * f.step < region->bytes; i++) {
		cpu_set_t set;
		pthread_attr_t attr;

		CPU_ZERO(&set);
		CPU_SET(p->topology->nodes[node].cpus[i], &set);
		pthread_attr_init(&attr);
		pthread_attr_setaffinity_np(&attr, sizeof(set), &set);
		started += !pthread_create(&threads[started], &attr, prefault_part, &f);
		pthread_attr_destroy(&attr);
	}
	if (!started)
		(void)prefault_part(&f);
	while (started)
		pthread_join(threads[--started], NULL);
	return atomic_load(&f.error);
}

/* Bind, then fault in: a shortage is an error here and never a SIGBUS later. */
int pool_settle(struct pool *p, uint32_t node, struct attnd_region *region)
{
	int r = topology_bind(p->topology, node, region->base, region->bytes);

	if (r == -EPERM || r == -ENOSYS)
		r = 0;
	if (!r)
		r = prefault(p, node, region);
	if (r)
		attnd_region_destroy(region);
	return r;
}

/* ---- What backs a node ---- */

/* In small pages; or the kernel would kill somebody in the middle of it. */
static bool fits(uint64_t bytes)
{
	uint64_t group = memory_group_left(), machine = memory_available(), left = group < machine ? group : machine;

	if (bytes > left)
		log_err("pool: %llu MiB (pool-size) are more than the %llu MiB that %s",
			(unsigned long long)(bytes / MIB), (unsigned long long)(left / MIB),
			group < machine ? "the memory limit of the control group leaves"
					: "the machine has available");
	return bytes <= left;
}

/* A file in a directory of the administrator's. */
static int try_path(struct pool *p, const struct config *cfg, struct keep *k, uint32_t node, uint64_t bytes)
{
	int r = keep_file(k, node, bytes, &p->nodes[node]);

	if (!r && !keep_huge(p->nodes[node].fd) && !fits(bytes)) {
		attnd_region_destroy(&p->nodes[node]);
		return -ENOMEM;
	}
	if (!r)
		r = pool_settle(p, node, &p->nodes[node]);
	if (r)
		log_err("pool: cannot take %llu MiB from %s (pool-path): %s", (unsigned long long)(bytes / MIB),
			cfg->pool_path, strerror(-r));
	else
		p->backing = keep_huge(p->nodes[node].fd) ? "hugetlb" : "plain";
	return r;
}

/* Free huge pages of a size, on the node where the kernel counts them so. libhugetlbfs keeps its counters private. */
static long free_huge(const struct topology *t, uint32_t node, long size)
{
	char path[128];
	long n = 0;
	FILE *f;

	if (t->numa)
		snprintf(path, sizeof(path),
			 "/sys/devices/system/node/node%d/hugepages/hugepages-%ldkB/free_hugepages",
			 t->nodes[node].id, size / 1024);
	else
		snprintf(path, sizeof(path), "/sys/kernel/mm/hugepages/hugepages-%ldkB/free_hugepages", size / 1024);
	f = fopen(path, "re");
	if (!f)
		return 0;
	if (fscanf(f, "%ld", &n) != 1)
		n = 0;
	fclose(f);
	return n;
}

static int try_huge(struct pool *p, uint32_t node, uint64_t bytes, long size)
{
	uint64_t need = (bytes + (uint64_t)size - 1) / (uint64_t)size;
	long free_pages = free_huge(p->topology, node, size);
	int r = -ENOMEM;

	if (bytes % (uint64_t)size && size > (long)HUGE_SLAB)
		return r; /* would waste most of a large page */
	if (free_pages >= 0 && (uint64_t)free_pages >= need) {
		r = attnd_region_create("attnd-pool", bytes, (size_t)size, ATTND_REGION_SEAL | ATTND_REGION_SPARSE,
					&p->nodes[node]);
		if (!r)
			r = pool_settle(p, node, &p->nodes[node]);
	}
	if (r && free_pages >= 0 && (uint64_t)free_pages >= need)
		log_info("pool: node %d: %llu huge pages of %ld KiB are free, but not for us: %s (a limit of the "
			 "control group, or somebody was faster)",
			 p->topology->nodes[node].id, (unsigned long long)need, size / 1024, strerror(-r));
	else if (r)
		log_info("pool: node %d: no %llu huge pages of %ld KiB (%ld free)", p->topology->nodes[node].id,
			 (unsigned long long)need, size / 1024, free_pages);
	return r;
}

/* In steps: a large pool's pages take seconds to move. */
static int collapse_pages(const struct attnd_region *r)
{
	const size_t step = 64 * MIB;

	for (size_t at = 0; at < r->bytes; at += step) {
		if (told_to_end())
			return -EINTR;
		if (madvise((char *)r->base + at, r->bytes - at < step ? r->bytes - at : step, MADV_COLLAPSE))
			return -errno;
	}
	return 0;
}

static int try_plain(struct pool *p, const struct config *cfg, uint32_t node, uint64_t bytes)
{
	int r;

	if (!fits(bytes))
		return -ENOMEM;
	r = attnd_region_create("attnd-pool", bytes, 0, ATTND_REGION_SEAL | ATTND_REGION_SPARSE, &p->nodes[node]);
	if (!r)
		r = pool_settle(p, node, &p->nodes[node]);
	if (r == -EINTR)
		return r;
	if (r) {
		log_err("pool: cannot reserve %llu MiB (pool-size): %s", (unsigned long long)(bytes / MIB),
			strerror(-r));
		return r;
	}
	p->backing = "plain";
	if (cfg->hugepages == CONFIG_HUGE_OFF)
		return 0;
	r = collapse_pages(&p->nodes[node]);
	if (r == -EINTR)
		attnd_region_destroy(&p->nodes[node]);
	else if (r)
		log_info("pool: node %d: plain pages, not collapsed: %s", p->topology->nodes[node].id, strerror(-r));
	else
		p->backing = "collapsed";
	return r == -EINTR ? r : 0;
}

static int make_node(struct pool *p, const struct config *cfg, struct keep *k, uint32_t node)
{
	uint64_t bytes = p->num_slabs * p->slab_bytes;
	long sizes[8];
	int n = 0;

	if (*cfg->pool_path)
		return try_path(p, cfg, k, node, bytes);
	if (cfg->hugepages != CONFIG_HUGE_OFF)
		n = gethugepagesizes(sizes, 8);
	for (;;) { /* the largest first */
		int best = -1;

		for (int i = 0; i < n; i++)
			if (sizes[i] && (best < 0 || sizes[i] > sizes[best]))
				best = i;
		if (best < 0)
			break;
		if (told_to_end())
			return -EINTR;
		if ((uint64_t)sizes[best] <= bytes && !try_huge(p, node, bytes, sizes[best])) {
			p->backing = "hugetlb";
			return 0;
		}
		sizes[best] = 0;
	}
	if (told_to_end())
		return -EINTR;
	if (cfg->hugepages == CONFIG_HUGE_REQUIRE) {
		log_err("pool: node %d: %llu MiB of huge pages are not there (hugepages = require); reserve them in "
			"/proc/sys/vm/nr_hugepages or make pool-size smaller",
			p->topology->nodes[node].id, (unsigned long long)(bytes / MIB));
		return -ENOMEM;
	}
	return try_plain(p, cfg, node, bytes);
}

/* Is each node's memory where it was bound? */
static void verify(struct pool *p)
{
	uint32_t on[TOPOLOGY_MAX_NODES], other;

	for (uint32_t n = 0; n < p->num_nodes && p->topology->numa; n++) {
		if (topology_where(p->topology, p->nodes[n].base, p->nodes[n].bytes, p->nodes[n].page_bytes,
				   VERIFY_PAGES, on, &other))
			continue;
		for (uint32_t k = 0; k < p->num_nodes; k++)
			other += k == n ? 0 : on[k];
		p->sampled += on[n] + other;
		p->misplaced += other;
	}
	if (p->misplaced)
		log_warn("pool: %u of %u pages looked at are not on their node", p->misplaced, p->sampled);
}

static int meta_region(struct pool *p, const struct config *cfg, struct keep *k, uint64_t bytes)
{
	if (*cfg->pool_path)
		return keep_file(k, KEEP_META, bytes, &p->meta_region);
	return attnd_region_create("attnd-meta", bytes, 0, ATTND_REGION_SEAL | ATTND_REGION_SPARSE, &p->meta_region);
}

static int make_meta(struct pool *p, const struct config *cfg, struct keep *k, uint64_t heap_bytes)
{
	uint64_t slabs, extents, heap;
	int r;

	meta_layout(p->num_slabs, &slabs, &extents, &heap);
	r = meta_region(p, cfg, k, heap + heap_bytes);
	if (!r)
		r = attnd_region_reserve(&p->meta_region, 0, heap);
	if (r) {
		log_err("pool: cannot make the meta region of %llu MiB: %s",
			(unsigned long long)((heap + heap_bytes) / MIB), strerror(-r));
		return r;
	}
	p->meta = p->meta_region.base;
	p->meta->version = ATTND_META_VERSION;
	p->meta->num_nodes = p->num_nodes;
	p->meta->num_slabs = p->num_slabs;
	p->meta->slab_bytes = p->slab_bytes;
	p->meta->bytes = p->meta_region.bytes;
	p->meta->slabs_offset = slabs;
	p->meta->extents_offset = extents;
	p->meta->heap_offset = heap;
	atomic_store_explicit(&p->meta->heap_used, heap, memory_order_relaxed);
	p->slabs = (struct attnd_meta_slab *)((char *)p->meta_region.base + slabs);
	p->heap_next = p->heap_ready = heap;
	r = keep_name_files(p);
	if (r)
		return r;
	__atomic_store_n(&p->meta->magic, ATTND_META_MAGIC, __ATOMIC_RELEASE);
	return 0;
}

static int make_all(struct pool *p, const struct config *cfg, struct keep *k, uint64_t meta_bytes)
{
	int r = 0;

	for (uint32_t n = 0; n < p->num_nodes && !r; n++)
		r = make_node(p, cfg, k, n);
	if (!r)
		r = make_meta(p, cfg, k, meta_bytes);
	return r;
}

int pool_init(struct pool *p, const struct config *cfg, const struct topology *t)
{
	struct keep keep;
	uint64_t meta_bytes;
	int r;

	*p = (struct pool){.topology = t,
			   .num_nodes = t->num_nodes,
			   .meta_region = ATTND_REGION_NONE,
			   .huge_meta = cfg->hugepages != CONFIG_HUGE_OFF,
			   .move_ns = MOVE_NS,
			   .namespace_quota = UINT64_MAX,
			   .engine_quota = UINT64_MAX};
	for (int i = 0; i < POOL_MAX_NODES; i++)
		p->nodes[i] = ATTND_REGION_NONE;
	choose_sizes(p, cfg, &meta_bytes);
	r = keep_open(&keep, cfg, p->num_nodes);
	if (r)
		return r;
	if (!keep_take(&keep, cfg, p))
		r = make_all(p, cfg, &keep, meta_bytes);
	if (!r)
		r = keep_give(&keep, p);
	keep_close(&keep);
	p->free = r ? NULL : malloc(p->num_slabs * sizeof(*p->free));
	if (!r && !p->free)
		r = -ENOMEM;
	if (r) {
		pool_destroy(p);
		return r;
	}
	for (uint32_t i = 0; i < p->num_slabs; i++)
		p->free[i] = p->num_slabs - 1 - i;
	p->num_free = p->num_slabs;
	verify(p);
	log_info("pool: %u nodes of %u slabs of %llu MiB, %s, pages of %zu KiB", p->num_nodes, p->num_slabs,
		 (unsigned long long)(p->slab_bytes / MIB), p->backing, p->nodes[0].page_bytes / 1024);
	return 0;
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
	struct attnd_meta_slab slab;
	uint64_t word;
	uint32_t s;

	if (!p->num_free)
		return -ENOMEM;
	s = p->free[--p->num_free];
	/* One store: a slab never has the one's cache and the other's extent. */
	slab = (struct attnd_meta_slab){.cache = (uint16_t)(cache + 1), .extent = extent};
	memcpy(&word, &slab, sizeof(word));
	__atomic_store_n((uint64_t *)(void *)&p->slabs[s], word, __ATOMIC_RELEASE);
	return s;
}

void pool_return_slab(struct pool *p, uint32_t slab)
{
	p->slabs[slab].cache = 0;
	p->free[p->num_free++] = slab;
}

/* The front of the first spare piece that is large enough. */
static bool take_spare(struct pool *p, uint64_t bytes, struct attnd_extent *ret)
{
	for (uint32_t i = 0; i < p->num_spare; i++) {
		struct attnd_extent *e = &p->spare[i];

		if (e->bytes < bytes)
			continue;
		*ret = (struct attnd_extent){.offset = e->offset, .bytes = bytes};
		e->offset += bytes;
		e->bytes -= bytes;
		if (!e->bytes)
			memmove(e, e + 1, (--p->num_spare - i) * sizeof(*e));
		memset(pool_extent_at(p, ret), 0, bytes);
		return true;
	}
	return false;
}

int pool_extent_alloc(struct pool *p, uint64_t bytes, struct attnd_extent *ret)
{
	bytes = round_up(bytes, 64);
	if (take_spare(p, bytes, ret))
		return 0;
	if (bytes > p->meta_region.bytes - p->heap_next)
		return -ENOMEM;
	while (p->heap_next + bytes > p->heap_ready) {
		uint64_t left = p->meta_region.bytes - p->heap_ready, step = HEAP_STEP - p->heap_ready % HEAP_STEP;

		step = left < step ? left : step;
		if (attnd_region_reserve(&p->meta_region, p->heap_ready, step))
			return -ENOMEM;
		/* Descriptors are read one here, one there. Without huge pages it is as before. */
		if (p->huge_meta && step == HEAP_STEP)
			(void)madvise((char *)p->meta + p->heap_ready, step, MADV_COLLAPSE);
		p->heap_ready += step;
	}
	*ret = (struct attnd_extent){.offset = p->heap_next, .bytes = bytes};
	p->heap_next += bytes;
	atomic_store_explicit(&p->meta->heap_used, p->heap_next, memory_order_release);
	return 0;
}

static bool grow_spare(struct pool *p)
{
	uint32_t cap = p->cap_spare ? p->cap_spare * 2 : 16;
	struct attnd_extent *s = realloc(p->spare, cap * sizeof(*s));

	if (!s)
		return false;
	p->spare = s;
	p->cap_spare = cap;
	return true;
}

void pool_extent_free(struct pool *p, const struct attnd_extent *e)
{
	struct attnd_extent *s;
	uint32_t i = 0;

	if (p->num_spare == p->cap_spare && !grow_spare(p))
		return; /* lost until the next start */
	while (i < p->num_spare && p->spare[i].offset < e->offset)
		i++;
	s = &p->spare[i];
	memmove(s + 1, s, (p->num_spare++ - i) * sizeof(*s));
	*s = *e;
	if (i + 1 < p->num_spare && s->offset + s->bytes == s[1].offset) {
		s->bytes += s[1].bytes;
		memmove(s + 1, s + 2, (--p->num_spare - i - 1) * sizeof(*s));
	}
	if (i && s[-1].offset + s[-1].bytes == s->offset) {
		s[-1].bytes += s->bytes;
		memmove(s, s + 1, (--p->num_spare - i) * sizeof(*s));
	}
}
