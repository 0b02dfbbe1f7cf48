/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The arena: segments that this process makes and the daemon maps, and memory handed out of them.
 *
 * In:   sizes, pointers. Out: pointers, and their names on the wire.
 * Next: heap.c divides a segment; handshake.c registers it.
 */
#include "internal.h"

#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#define FIRST_SEGMENT (UINT64_C(1) << 20)

/* ---- Segments ---- */

static void segment_destroy(struct cl_segment *s)
{
	cl_heap_destroy(s->heap);
	attnd_region_destroy(&s->region);
	s->heap = NULL;
}

static int segment_create(struct cl_segment *s, size_t bytes)
{
	int rc;

	*s = (struct cl_segment){.region = ATTND_REGION_NONE};
	rc = attnd_region_create("attnd-arena", bytes, 0, ATTND_REGION_SEAL | ATTND_REGION_POPULATE, &s->region);
	if (!rc && madvise(s->region.base, s->region.bytes, MADV_DONTFORK))
		rc = -errno;
	if (!rc)
		rc = cl_heap_create(s->region.bytes, &s->heap);
	if (rc)
		segment_destroy(s);
	return rc;
}

/* Each segment is twice the last, so that 16 of them are enough for any size. */
static uint64_t wished_bytes(const struct attnd *a, uint64_t need)
{
	const struct cl_arena *m = &a->arena;
	uint64_t wish = m->count ? 2 * (uint64_t)m->segment[m->count - 1].region.bytes : FIRST_SEGMENT;

	if (wish > a->max_segment_bytes)
		wish = a->max_segment_bytes & ~((uint64_t)sysconf(_SC_PAGESIZE) - 1);
	return wish > need ? wish : need;
}

static bool is_short(int rc)
{
	return rc == -ENOMEM || rc == -ENOSPC || rc == -EDQUOT;
}

/* A new segment with room for `bytes`: of the wished size, or what can be had of it. */
static int add_segment(struct attnd *a, size_t bytes)
{
	uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE), need, size;
	struct cl_arena *m = &a->arena;
	struct cl_segment s;
	int rc;

	if (m->count >= a->max_segments)
		return cl_fail(a, -ENOSPC, ATTND_FIELD_SEGMENT, a->max_segments);
	need = bytes > PTRDIFF_MAX ? UINT64_MAX : (bytes + page - 1) & ~(page - 1);
	if (need > a->max_segment_bytes)
		return cl_fail(a, -ENOSPC, ATTND_FIELD_SEGMENT_BYTES, a->max_segment_bytes);
	for (size = wished_bytes(a, need);; size = size / 2 > need ? size / 2 & ~(page - 1) : need) {
		rc = segment_create(&s, size);
		if (!rc) {
			rc = cl_segment_add(a, m->count, &s.region);
			if (!rc)
				break;
			segment_destroy(&s);
		}
		if (!is_short(rc) || size <= need)
			return rc;
	}
	m->segment[m->count++] = s;
	return 0;
}

int cl_arena_restore(struct attnd *a)
{
	int rc = 0;

	for (uint32_t i = 0; !rc && i < a->arena.count; i++)
		rc = cl_segment_add(a, i, &a->arena.segment[i].region);
	return rc;
}

void cl_arena_destroy(struct attnd *a)
{
	for (uint32_t i = 0; i < a->arena.count; i++) {
		struct cl_segment *s = &a->arena.segment[i];

		if (cl_forked(a))
			s->region.base = NULL; /* not mapped here; something else may be */
		segment_destroy(s);
	}
	a->arena = (struct cl_arena){0};
}

/* ---- Pointers and offsets ---- */

static const struct cl_segment *segment_of(const struct attnd *a, const void *p, uint32_t *ret_index)
{
	for (uint32_t i = 0; i < a->arena.count; i++) {
		const struct cl_segment *s = &a->arena.segment[i];

		if ((uintptr_t)p - (uintptr_t)s->region.base < s->region.bytes) {
			*ret_index = i;
			return s;
		}
	}
	return NULL;
}

uint64_t cl_arena_offset(const struct attnd *a, const void *p)
{
	uint32_t index;
	const struct cl_segment *s = segment_of(a, p, &index);

	if (!s)
		return ATTND_OFFSET_NONE;
	return (uint64_t)index << ATTND_OFFSET_SHIFT | ((uintptr_t)p - (uintptr_t)s->region.base);
}

static struct cl_block *block_of(const struct attnd *a, const void *p)
{
	uint32_t index;
	const struct cl_segment *s = segment_of(a, p, &index);
	struct cl_block *b;

	if (!s)
		return NULL;
	b = cl_heap_find(s->heap, (uintptr_t)p - (uintptr_t)s->region.base);
	return b && b->state == CL_BLOCK_USED ? b : NULL;
}

/* ---- Allocation ---- */

static void *alloc_existing(struct attnd *a, size_t bytes)
{
	for (uint32_t i = 0; i < a->arena.count; i++) {
		const struct cl_segment *s = &a->arena.segment[i];
		const struct cl_block *b = cl_heap_alloc(s->heap, bytes);

		if (b)
			return (char *)s->region.base + b->first * CL_GRANULE;
	}
	return NULL;
}

/* The caller has entered: a new segment may be registered. */
int cl_arena_alloc(struct attnd *a, size_t bytes, void **ret)
{
	void *p = alloc_existing(a, bytes);
	int rc;

	if (!p) {
		rc = add_segment(a, bytes);
		if (rc)
			return rc;
		p = alloc_existing(a, bytes);
		if (!p)
			return -ENOMEM;
	}
	*ret = p;
	return 0;
}

void cl_arena_release(struct attnd *a, void *p)
{
	struct cl_block *b = p ? block_of(a, p) : NULL;

	if (b)
		cl_heap_free(b);
}

void cl_arena_settle(struct attnd *a)
{
	uint64_t oldest = cl_jobs_oldest(&a->jobs);

	while (a->arena.pending && a->arena.pending->serial < oldest) {
		struct cl_block *b = a->arena.pending;

		a->arena.pending = b->link_next;
		cl_heap_free(b);
	}
}

int attnd_alloc(attnd_t *a, size_t bytes, void **ret)
{
	void *p;
	int rc;

	if (cl_forked(a))
		return -ECHILD;
	if (!bytes)
		return cl_fail_text(a, -EINVAL, "an allocation of 0 bytes");
	cl_ring_reap(a); /* what has completed may hold what is asked for */
	p = alloc_existing(a, bytes);
	if (p) {
		*ret = p;
		return 0;
	}
	rc = cl_enter(a, 0, CL_WAIT);
	return rc ? rc : cl_arena_alloc(a, bytes, ret);
}

void attnd_free(attnd_t *a, void *p)
{
	struct cl_block *b;

	if (!p || cl_forked(a))
		return;
	b = block_of(a, p);
	if (!b)
		return;
	if (!a->jobs.in_flight) {
		cl_heap_free(b);
		return;
	}
	b->state = CL_BLOCK_PENDING;
	b->serial = a->jobs.serial;
	b->link_next = NULL;
	if (a->arena.pending)
		a->arena.pending_last->link_next = b;
	else
		a->arena.pending = b;
	a->arena.pending_last = b;
}

int attnd_reserve(attnd_t *a, size_t bytes)
{
	int rc = cl_enter(a, 0, CL_WAIT);

	if (rc)
		return rc;
	return bytes ? add_segment(a, bytes) : 0;
}

int attnd_in_arena(const attnd_t *a, const void *p, size_t bytes)
{
	uint32_t index;
	const struct cl_segment *s = cl_forked(a) ? NULL : segment_of(a, p, &index);

	return s && bytes <= s->region.bytes - ((uintptr_t)p - (uintptr_t)s->region.base);
}
