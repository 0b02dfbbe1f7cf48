/* SPDX-License-Identifier: Apache-2.0 */
/* Block hashes (scrub.h). */
#include "scrub.h"

#include "../shm/futex.h"
#include "killpoint.h"
#include "log.h"
#include "seal.h"

#define NONE ATTND_BLOCK_NONE

enum {
	LOOK = 256, /* descriptors, for one that has work */
	SLICE_NS = 50000,
};

/* Flags first: they, too, decide what is read. Tokens are sealed with the descriptor. */
static uint64_t begin(const struct cache *c, uint32_t id)
{
	return seal_bytes(cache_flags(c, id), c->flag_bytes, cache_block(c, id)->position);
}

static uint64_t add_layer(const struct cache *c, uint32_t id, uint32_t layer, uint64_t hash)
{
	struct where w = cache_where(c, id);

	for (uint32_t i = 0; i < c->pool->num_nodes; i++) {
		size_t bytes = c->nodes[i].fmt.layer_bytes;

		if (cache_stores(c, w.node, i))
			hash = seal_bytes(cache_piece(c, w, i) + layer * bytes, bytes, hash);
	}
	return hash;
}

uint64_t scrub_hash(const struct cache *c, uint32_t id)
{
	uint64_t h = begin(c, id);

	for (uint32_t l = 0; l < c->identity.num_layers; l++)
		h = add_layer(c, id, l, h);
	return h;
}

static bool has_work(const struct cache *c, uint32_t id)
{
	return cache_ext(c, id)->block && cache_aux(c, id)->state == BLOCK_PUBLIC &&
	       cache_count(c, id) == c->block_size && (cache_aux(c, id)->verify || !cache_block(c, id)->hash);
}

static void take(struct cache *c, uint32_t id)
{
	struct scrub *s = &c->scrub;

	s->id = id;
	s->generation = cache_block(c, id)->generation;
	s->layer = 0;
	s->hash = begin(c, id);
}

/* The next one that has work, or NONE: not within this look. */
static void find(struct cache *c)
{
	struct scrub *s = &c->scrub;
	uint32_t all = c->num_ext * c->blocks_per_slab;

	for (int i = 0; i < LOOK && all; i++) {
		s->cursor = s->cursor + 1 < all ? s->cursor + 1 : 0;
		if (has_work(c, s->cursor)) {
			take(c, s->cursor);
			return;
		}
	}
}

/* It is not what was written. What is below it cannot be reached without it. */
static void corrupt(struct cache *c, uint32_t id)
{
	struct block_aux *a = cache_aux(c, id);
	uint32_t n = 1;

	if (aux_hold(a)) {
		/* Held by a sequence that computed the same tokens itself: it serves nobody, and goes when it can. */
		a->bad = true;
		c->scrub.bad++;
	} else {
		n = cache_drop(c, id);
	}
	c->scrub.corrupt += n;
	log_warn("restore: a block is not what its hash says: it is dropped, with %u below it", n - 1);
}

static void finish(struct cache *c)
{
	struct scrub *s = &c->scrub;
	struct attnd_block *b = cache_block(c, s->id);
	struct block_aux *a = cache_aux(c, s->id);

	if (a->verify) {
		a->verify = false;
		s->unverified--;
		if (b->hash != s->hash)
			corrupt(c, s->id);
	} else {
		b->hash = s->hash;
		KILL_POINT(hashed);
		s->unhashed--;
	}
	s->id = NONE;
}

/* One layer of one block. */
static void step(struct cache *c)
{
	struct scrub *s = &c->scrub;

	if (s->id != NONE && (s->id >= c->num_ext * c->blocks_per_slab || !has_work(c, s->id) ||
			      cache_block(c, s->id)->generation != s->generation))
		s->id = NONE;
	if (s->id == NONE)
		find(c);
	if (s->id == NONE)
		return;
	s->hash = add_layer(c, s->id, s->layer, s->hash);
	if (++s->layer == c->identity.num_layers)
		finish(c);
}

bool scrub_step(struct cache *c)
{
	if (!c->scrub.unhashed && !c->scrub.unverified)
		return false;
	step(c);
	return true;
}

bool scrub_wanted(struct cache *c)
{
	uint32_t id = c->scrub.want;
	uint64_t until;

	c->scrub.want = NONE;
	if (id == NONE || id >= c->num_ext * c->blocks_per_slab || !has_work(c, id) || !cache_aux(c, id)->verify)
		return false;
	if (c->scrub.id != id)
		take(c, id);
	until = attnd_now_ns() + SLICE_NS;
	do
		step(c);
	while (c->scrub.id == id && attnd_now_ns() < until);
	return true;
}
