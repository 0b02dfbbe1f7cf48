/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Metadata that an earlier daemon left: a small tree, altered by the input's edits.
 *
 * In: edits of 6 bytes: what (a byte, a descriptor's field, a slab, an extent, a namespace, the header;
 * from 128 on with seals made right again), where and the new value. Out: what restore_check keeps is
 * a tree in places of its own, and a second check keeps all of it. Next: daemon/restore.c.
 */
#include <string.h>

#include "../../daemon/cache.h"
#include "../../daemon/seal.h"
#include "fuzz.h"

enum { SLABS = 3, BLOCKS = 8, SLOTS = 16, BYTES = 1 << 19 };

static _Alignas(4096) unsigned char meta[BYTES], seed[BYTES];
static uint64_t extent_at[SLABS];

static struct attnd_block *block_at(unsigned char *m, uint32_t id)
{
	return (struct attnd_block *)(void *)(m + extent_at[id / BLOCKS % SLABS]) + id % BLOCKS;
}

static uint64_t *tokens_at(unsigned char *m, uint32_t id)
{
	return (uint64_t *)(void *)(block_at(m, id / BLOCKS * BLOCKS) + BLOCKS) + id % BLOCKS * SLOTS;
}

/* A chain of full blocks, a block that leaves it at each, all in their own namespace. */
static void grow(unsigned char *m)
{
	for (uint32_t id = 0; id < SLABS * BLOCKS; id++) {
		struct attnd_block *b = block_at(m, id);
		uint64_t place = (uint64_t)(id / BLOCKS) << 32 | id % BLOCKS;
		uint32_t parent = id % 2 ? id - 1 : id - 2;

		b->parent = id ? parent : ATTND_BLOCK_NONE;
		b->parent_generation = 0;
		b->ns = 1;
		b->position = id / 2 * SLOTS;
		b->first = (uint16_t)(id % 2 ? 5 : 0);
		for (uint32_t i = 0; i < SLOTS; i++)
			tokens_at(m, id)[i] = b->position + i + (id % 2 && i >= 5 ? 1000 : 0);
		atomic_store(&b->place, place);
		atomic_store(&b->count, (uint16_t)(id % 2 ? 9 : SLOTS));
		seal_block_next(b, tokens_at(m, id), atomic_load(&b->count), place);
	}
}

static void make_seed(void)
{
	struct attnd_meta_region *m = (struct attnd_meta_region *)(void *)seed;
	struct attnd_meta_cache *c = &m->caches[0];
	struct attnd_meta_slab *slabs;
	struct attnd_extent *list;
	struct attnd_meta_ns *ns;
	uint64_t at, bytes;

	*m = (struct attnd_meta_region){.version = ATTND_META_VERSION,
					.num_nodes = 1,
					.num_slabs = SLABS,
					.slab_bytes = 2 << 20,
					.bytes = BYTES};
	meta_layout(SLABS, &m->slabs_offset, &m->extents_offset, &m->heap_offset);
	slabs = (struct attnd_meta_slab *)(void *)(seed + m->slabs_offset);
	list = (struct attnd_extent *)(void *)(seed + m->extents_offset);
	c->identity = (struct attnd_wire_cache){.name = "fuzz",
						.num_layers = 2,
						.num_heads = 2,
						.num_kv_heads = 1,
						.head_dim = 64,
						.head_dim_v = 64,
						.block_size = SLOTS};
	strcpy(c->realm, "uid:1");
	c->block_bytes = (2 << 20) / BLOCKS;
	c->blocks_per_slab = BLOCKS;
	c->seal = seal_cache(c);
	atomic_store(&c->num_extents, SLABS);
	atomic_store(&c->used, 1);
	at = m->heap_offset;
	bytes = (meta_extent_bytes(&c->identity, BLOCKS) + 63) & ~UINT64_C(63);
	for (uint32_t i = 0; i < SLABS; i++, at += bytes) {
		slabs[i] = (struct attnd_meta_slab){.cache = 1, .extent = i};
		list[i] = (struct attnd_extent){.offset = at, .bytes = bytes};
		extent_at[i] = at;
	}
	m->ns[0] = (struct attnd_extent){.offset = at, .bytes = ATTND_META_NS_PART * sizeof(*ns)};
	ns = (struct attnd_meta_ns *)(void *)(seed + at) + 1;
	ns->seal = seal_ns(ns);
	atomic_store(&ns->used, 1);
	atomic_store(&m->heap_used, at + m->ns[0].bytes);
	MUST(at + m->ns[0].bytes <= BYTES);
	grow(seed);
	m->magic = ATTND_META_MAGIC;
}

static void reseal(void)
{
	struct attnd_meta_cache *c = &((struct attnd_meta_region *)(void *)meta)->caches[0];

	c->seal = seal_cache(c);
	for (uint32_t id = 0; id < SLABS * BLOCKS; id++) {
		struct attnd_block *b = block_at(meta, id);
		uint32_t count = atomic_load(&b->count);

		atomic_store(&b->seals[0], seal_block(b, tokens_at(meta, id), count < SLOTS ? count : SLOTS,
						      atomic_load(&b->place)));
	}
}

static void edit(uint32_t what, uint32_t where, uint32_t value)
{
	struct attnd_meta_region *m = (struct attnd_meta_region *)(void *)meta;
	const struct attnd_meta_region *s = (const struct attnd_meta_region *)(void *)seed;
	uint32_t *block = (uint32_t *)(void *)block_at(meta, where / 16 % (SLABS * BLOCKS));

	switch (what % 6) {
	case 0:
		meta[s->heap_offset + where % (s->heap_used - s->heap_offset)] = (unsigned char)value;
		break;
	case 1: /* small numbers are those that could be */
		block[where % 14] = value < 60000 ? value % 64 : UINT32_MAX;
		break;
	case 2:
		((uint16_t *)(void *)(meta + s->slabs_offset))[where % (4 * SLABS)] = (uint16_t)(value % 8);
		break;
	case 3:
		((uint64_t *)(void *)(meta + s->extents_offset))[where % (2 * SLABS)] ^= (uint64_t)value
											 << where % 48;
		break;
	case 4:
		((uint32_t *)(void *)&m->caches[0])[where % (sizeof(m->caches[0]) / 4)] ^= value;
		break;
	default:
		meta[where % s->heap_offset] ^= (unsigned char)value;
	}
}

static void look(const struct restored *r)
{
	const struct attnd_meta_region *m = (const struct attnd_meta_region *)(void *)meta;

	for (uint32_t i = 0; i < r->num_caches; i++) {
		const struct restored_cache *c = &r->caches[i];
		uint32_t n = m->caches[c->id].blocks_per_slab, taken = 0;

		for (uint32_t b = 0; b < c->num_blocks; b++)
			MUST(c->order[b] < c->num_ext * n && c->ext[c->order[b] / n].mem.bytes);
		for (uint64_t b = 0; b < (uint64_t)c->num_ext * n; b++)
			taken += c->taken[b];
		MUST(taken == c->num_blocks);
	}
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
	struct input in = {data, data + bytes};
	struct restored r, again;
	bool right = false;
	int e;

	if (!extent_at[0])
		make_seed();
	memcpy(meta, seed, BYTES);
	while (in.at < in.end) {
		uint32_t what = next_byte(&in), where = next_byte(&in);

		where |= (uint32_t)next_byte(&in) << 8;
		where |= (uint32_t)next_byte(&in) << 16;
		e = next_byte(&in);
		edit(what, where, (uint32_t)e | (uint32_t)next_byte(&in) << 8);
		right |= what >= 128;
	}
	if (right)
		reseal();
	e = restore_check(meta, BYTES, &r);
	MUST(!e || e == -22 || e == -12);
	if (e)
		return 0;
	MUST(bytes || r.counts.blocks == SLABS * BLOCKS);
	look(&r);
	MUST(restore_check(meta, BYTES, &again) == 0);
	MUST(again.counts.blocks == r.counts.blocks && again.num_caches == r.num_caches);
	MUST(!again.counts.bad_seals && !again.counts.bad_places && !again.counts.orphans && !again.counts.below);
	restored_free(&r);
	restored_free(&again);
	return 0;
}
