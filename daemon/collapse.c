/* SPDX-License-Identifier: Apache-2.0 */
/* Duplicates become one copy (collapse.h). */
#include "collapse.h"

#include <string.h>

#include "engine.h"
#include "plan.h"
#include "realm.h"

enum {
	LOOK = 32,  /* sequences, for one that no plan works on */
	CLIMB = 64, /* blocks, in one step */
};

void collapse_note(struct held *h, struct cache *c, uint32_t index)
{
	h->table[index].twin = true;
	collapse_restart(h);
	if (h->collapse.listed) {
		h->collapse.low = index < h->collapse.low ? index : h->collapse.low;
		return;
	}
	h->collapse.low = index;
	h->collapse.listed = true;
	h->collapse.prev = NULL;
	h->collapse.next = c->twins;
	if (c->twins)
		c->twins->collapse.prev = h;
	c->twins = h;
}

void collapse_restart(struct held *h)
{
	h->collapse.at = UINT32_MAX;
	h->collapse.layer = 0;
}

void collapse_forget(struct held *h, struct cache *c)
{
	struct held *prev = h->collapse.prev, *next = h->collapse.next;

	if (!h->collapse.listed)
		return;
	*(prev ? &prev->collapse.next : &c->twins) = next;
	if (next)
		next->collapse.prev = prev;
	h->collapse.listed = false;
}

/* A plan under way names its blocks, or (rolling back) what they are copied from. */
static bool in_use(const struct held *h)
{
	const struct seq_place *p = (const void *)((const char *)h - offsetof(struct seq_place, held));

	return p->plan && (p->plan->running || !p->plan->committed);
}

static bool same_layer(const struct cache *c, const struct table_entry *e, uint32_t other, uint32_t layer)
{
	struct where w = cache_where(c, e->id), o = cache_where(c, other);

	for (uint32_t i = 0; i < c->pool->num_nodes; i++) {
		size_t bytes = c->nodes[i].fmt.layer_bytes;

		if (cache_stores(c, w.node, i) &&
		    memcmp(cache_piece(c, w, i) + layer * bytes, cache_piece(c, o, i) + layer * bytes, bytes))
			return false;
	}
	return true;
}

static void take_over(struct held *h, struct cache *c, uint32_t index, uint32_t id)
{
	uint32_t mine = h->table[index].id;
	struct block_aux *a = cache_aux(c, mine);

	if (a->owner == h->serial) {
		a->owner = 0;
		a->fill = 0;
	}
	held_set(h, c, index, id, false);
	cache_unref(c, h->account, mine);
	c->collapsed++;
	counters_add(c->counters, collapsed_blocks, 1);
}

/* One layer of the pair at index at - 1; what is done with moves `at`. */
static void compare(struct held *h, struct cache *c)
{
	struct table_entry *e = &h->table[h->collapse.at - 1];
	uint32_t other = h->collapse.block, layer = h->collapse.layer++;
	bool same = layer || !memcmp(e->flags, cache_flags(c, other), c->flag_bytes);

	if (same && same_layer(c, e, other, layer)) {
		if (h->collapse.layer < c->identity.num_layers)
			return;
		take_over(h, c, h->collapse.at - 1, other);
	}
	e->twin = false;
	h->collapse.at--;
	h->collapse.layer = 0;
}

bool collapse_step(struct cache *c)
{
	struct held *h = c->twins;

	for (int i = 0; h && in_use(h); h = h->collapse.next)
		if (++i == LOOK)
			return false;
	if (!h)
		return false;
	if (h->collapse.at == UINT32_MAX) {
		h->collapse.at = (uint32_t)(h->stand_pos >> c->slots_shift);
		h->collapse.block = h->stand;
	}
	for (int i = 0; i < CLIMB; i++) {
		const struct table_entry *e;

		if (h->collapse.at <= h->collapse.low) {
			collapse_forget(h, c);
			break;
		}
		e = &h->table[h->collapse.at - 1];
		if (cache_block(c, h->collapse.block)->position >= (uint64_t)h->collapse.at << c->slots_shift) {
			h->collapse.block = cache_block(c, h->collapse.block)->parent;
		} else if (e->twin && e->own && cache_aux(c, e->id)->state == BLOCK_PRIVATE) {
			compare(h, c);
			break;
		} else {
			h->collapse.at--;
		}
	}
	return true;
}
