/* SPDX-License-Identifier: Apache-2.0 */
/* The prefix tree (tree.h): match, hold, publish. */
#include "tree.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "collapse.h"
#include "killpoint.h"
#include "scrub.h"
#include "seal.h"
#include "slabs.h"

#define NONE ATTND_BLOCK_NONE

static uint32_t find_child(const struct cache *c, uint32_t ns, uint32_t parent, uint32_t slot, uint64_t token)
{
	const struct attnd_index_key key = {ns, parent, slot, token};

	return attnd_index_find(&c->index, &key);
}

static uint64_t common_prefix(const uint64_t *a, const uint64_t *b, uint64_t n)
{
	uint64_t i = 0;

	if (!memcmp(a, b, n * sizeof(*a)))
		return n;
	while (a[i] == b[i])
		i++;
	return i;
}

/* Where a block's own tokens begin. */
static uint64_t begins_at(const struct cache *c, uint32_t id)
{
	return (uint64_t)cache_block(c, id)->position + cache_block(c, id)->first;
}

/* Tokens of `at` that continue at position p, which lies in it. */
static uint64_t match_block(const struct cache *c, uint32_t at, uint64_t p, const uint64_t *tokens, uint64_t n)
{
	uint32_t slot = (uint32_t)(p & (c->block_size - 1)), count = cache_count(c, at);
	uint64_t run = slot < count ? count - slot : 0;

	return common_prefix(cache_tokens(c, at) + slot, tokens, run < n ? run : n);
}

/*
 * Blocks that were filled one after the other mostly have ids one after the other: whole blocks are
 * followed so, without the index, as long as the next id is the one that continues this. A block with
 * a count is published, and its parent was not recycled since.
 */
static uint64_t match_run(const struct cache *c, uint32_t ns, uint32_t *stand, const uint64_t *tokens, uint64_t n,
			  uint32_t *ids)
{
	const struct block_extent *e = cache_ext(c, *stand);
	uint32_t at = *stand % c->blocks_per_slab, left = c->blocks_per_slab - 1 - at, B = c->block_size, k = 0;
	const struct attnd_block *b = e->block + at + 1;
	const uint64_t *mine = e->tokens + (size_t)(at + 1) * B;

	for (; k < left && (uint64_t)(k + 1) * B <= n; k++, b++, mine += B) {
		__builtin_prefetch(b + 8);
		__builtin_prefetch(mine + 8 * (size_t)B);
		__builtin_prefetch(mine + 8 * (size_t)B + 8);
		if (b->parent != *stand || b->ns != ns || b->first ||
		    atomic_load_explicit(&b->count, memory_order_relaxed) != B ||
		    memcmp(mine, tokens + (size_t)k * B, B * sizeof(*mine)))
			break;
		++*stand;
		if (ids)
			ids[k] = *stand;
	}
	return (uint64_t)k * B;
}

uint64_t tree_match(const struct cache *c, uint32_t ns, uint32_t *stand, uint64_t pos, const uint64_t *tokens,
		    uint64_t n, uint32_t *ids)
{
	uint64_t done = 0;

	while (done < n) {
		uint64_t p = pos + done;
		uint32_t slot = (uint32_t)(p & (c->block_size - 1)), child;

		if (ids && scrub_keeps_back(c, *stand))
			break;
		if (*stand != NONE && cache_block(c, *stand)->position + c->block_size > p) {
			uint64_t k = match_block(c, *stand, p, tokens + done, n - done);

			if (k) {
				if (ids)
					ids[(p >> c->slots_shift) - (pos >> c->slots_shift)] = *stand;
				done += k;
				continue;
			}
		}
		if (*stand != NONE && !slot) {
			uint64_t k = match_run(c, ns, stand, tokens + done, n - done,
					       ids ? ids + ((p >> c->slots_shift) - (pos >> c->slots_shift)) : NULL);

			done += k;
			if (k)
				continue;
		}
		child = find_child(c, ns, *stand, slot, tokens[done]);
		if (child == NONE || (ids && scrub_keeps_back(c, child)))
			break;
		*stand = child;
	}
	return done;
}

/* ---- The table ---- */

void held_init(struct held *h, uint64_t serial, struct account *account, struct heap_use *heap)
{
	*h = (struct held){
		.stand = NONE, .pub_limit = UINT64_MAX, .serial = serial, .account = account, .heap = heap};
}

int held_reserve(struct held *h, uint32_t blocks)
{
	struct table_entry *t;
	uint32_t cap = h->cap ? h->cap : 16;

	if (blocks <= h->cap)
		return 0;
	while (cap < blocks)
		cap *= 2;
	if (!heap_take(h->heap, (cap - h->cap) * sizeof(*t)))
		return -ENOMEM;
	t = realloc(h->table, cap * sizeof(*t));
	if (!t) {
		heap_give(h->heap, (cap - h->cap) * sizeof(*t));
		return -ENOMEM;
	}
	h->table = t;
	h->cap = cap;
	return 0;
}

/* The entry is another one now: only those before it are known. */
static void unsettle(struct held *h, uint32_t i)
{
	h->settled = h->settled < i ? h->settled : i;
}

void held_set(struct held *h, const struct cache *c, uint32_t i, uint32_t id, bool own)
{
	unsettle(h, i);
	h->table[i] = table_entry(c, id, own);
}

void held_stand(struct held *h, struct cache *c, uint32_t stand)
{
	uint32_t old = h->stand;

	if (stand != NONE)
		cache_ref(c, h->account, stand);
	if (stand != NONE && h->priority)
		cache_raise(c, stand, h->priority);
	h->stand = stand;
	if (old != NONE)
		cache_unref(c, h->account, old);
}

/* What lies beyond its published slots is then nobody's. */
void block_disown(struct cache *c, uint32_t id, uint64_t serial)
{
	struct block_aux *a = cache_aux(c, id);

	if (a->owner == serial) {
		a->owner = 0;
		a->fill = 0;
	}
}

void held_replace(struct held *h, struct cache *c, uint32_t i, const struct table_entry *e)
{
	struct table_entry old = i < h->num ? h->table[i] : (struct table_entry){.id = e->id};

	unsettle(h, i);
	h->table[i] = *e;
	if (old.id != e->id)
		block_disown(c, old.id, h->serial);
	if (old.own)
		cache_unref(c, h->account, old.id);
}

static void drop_entries(struct held *h, struct cache *c, uint32_t keep)
{
	while (h->num > keep) {
		struct table_entry *e = &h->table[--h->num];

		block_disown(c, e->id, h->serial);
		if (e->own)
			cache_unref(c, h->account, e->id);
	}
}

void held_unfill(struct held *h, struct cache *c)
{
	uint32_t slot = (uint32_t)(h->length & (c->block_size - 1));
	struct block_aux *a = slot ? cache_aux(c, h->table[h->num - 1].id) : NULL;

	if (a && a->owner == h->serial)
		a->fill = (uint16_t)slot;
}

void held_destroy(struct held *h, struct cache *c)
{
	collapse_forget(h, c);
	drop_entries(h, c, 0);
	held_stand(h, c, NONE);
	free(h->table);
	heap_give(h->heap, h->cap * sizeof(*h->table));
	h->table = NULL;
	h->cap = 0;
}

struct held held_view(const struct held *h, const struct cache *c, uint64_t length, struct table_entry *ret_tail)
{
	struct held v = *h;

	v.num = (uint32_t)((length + c->block_size - 1) >> c->slots_shift);
	while (v.stand != NONE && begins_at(c, v.stand) >= length)
		v.stand = cache_block(c, v.stand)->parent;
	v.length = length;
	v.stand_pos = v.stand_pos < length ? v.stand_pos : length;
	if (v.pub_limit >= length)
		v.pub_limit = UINT64_MAX;
	if (length & (c->block_size - 1)) {
		*ret_tail = h->table[v.num - 1];
		/* A tail that begins after the new end left the path: the stand serves the same slots. */
		if (!ret_tail->own && begins_at(c, ret_tail->id) >= length)
			*ret_tail = table_entry(c, v.stand, false);
	}
	return v;
}

void held_trim(struct held *h, struct cache *c, uint64_t length)
{
	struct table_entry tail;
	struct held v;

	if (length >= h->length)
		return;
	v = held_view(h, c, length, &tail);
	collapse_restart(h);
	unsettle(h, (uint32_t)(length >> c->slots_shift));
	drop_entries(h, c, v.num);
	if ((length & (c->block_size - 1)) && h->table[v.num - 1].id != tail.id) {
		block_disown(c, h->table[v.num - 1].id, h->serial);
		h->table[v.num - 1] = tail;
	}
	held_stand(h, c, v.stand);
	h->length = length;
	h->stand_pos = v.stand_pos;
	h->pub_limit = v.pub_limit;
	held_unfill(h, c);
}

/* ---- Matching and holding ---- */

uint64_t path_idle(const struct cache *c, uint32_t stand)
{
	uint64_t n = 0;

	for (; stand != NONE && !aux_hold(cache_aux(c, stand)); stand = cache_block(c, stand)->parent)
		n++;
	return n;
}

/*
 * Of the path root..stand, how many of *n tokens may be held: blocks that nobody holds yet cost room, and
 * those that are new to the account count beside the grants of others. -EAGAIN: room is being made.
 */
static int holdable(struct cache *c, const struct account *a, uint32_t *stand, uint64_t *n)
{
	uint64_t idle = path_idle(c, *stand), growth = account_path(c, a, *stand);
	int r = 0;

	while (*stand != NONE && growth && (r = cache_make_room(c, a, idle, growth)) == -ENOMEM) {
		*n = begins_at(c, *stand);
		*stand = cache_block(c, *stand)->parent;
		idle -= idle != 0;
		growth--;
	}
	return r == -EAGAIN ? r : 0;
}

int held_match(struct held *h, struct cache *c, uint32_t ns, const uint64_t *tokens, uint64_t n, uint32_t *ids)
{
	uint32_t from = (uint32_t)(h->length >> c->slots_shift), blocks, stand = h->stand;
	uint64_t k = tree_match(c, ns, &stand, h->length, tokens, n, ids), end;

	if (!k)
		return 0;
	end = h->length + k;
	if (c->granted && holdable(c, h->account, &stand, &end))
		return -EAGAIN;
	if (end <= h->length)
		return 0;
	blocks = (uint32_t)((end + c->block_size - 1) >> c->slots_shift);
	if (held_reserve(h, blocks))
		return -ENOMEM;
	held_stand(h, c, stand);
	if (end & (c->block_size - 1))
		ids[blocks - 1 - from] = stand; /* a shortened path ends in the stand */
	for (uint32_t i = from; i < blocks; i++)
		held_set(h, c, i, ids[i - from], false);
	h->num = blocks;
	h->length = h->stand_pos = end;
	held_settle(h, c); /* in the slices in which it is matched */
	return 0;
}

/* Two sequences hold private slots of this block: neither writes in place any more. */
static void freeze(struct cache *c, uint32_t id, uint32_t slots)
{
	struct block_aux *a = cache_aux(c, id);

	if (slots <= cache_count(c, id))
		return;
	a->owner = 0;
	a->frozen = true;
}

uint32_t held_settle(struct held *h, const struct cache *c)
{
	while (h->settled < h->num && !h->table[h->settled].own &&
	       cache_count(c, h->table[h->settled].id) == c->block_size)
		h->settled++;
	return h->settled;
}

int held_fork(struct held *to, struct held *from, struct cache *c, uint64_t length)
{
	uint32_t blocks = (uint32_t)((length + c->block_size - 1) >> c->slots_shift);
	uint32_t stand = from->stand, whole = (uint32_t)(length >> c->slots_shift), settled = held_settle(from, c);
	int r = held_reserve(to, blocks);

	if (r)
		return r;
	while (stand != NONE && begins_at(c, stand) >= length)
		stand = cache_block(c, stand)->parent;
	to->priority = from->priority;
	to->account = from->account; /* so that no private block counts in two */
	held_stand(to, c, stand);
	to->num = blocks;
	to->length = length;
	to->stand_pos = from->stand_pos < length ? from->stand_pos : length;
	to->pub_limit = from->pub_limit < length ? from->pub_limit : UINT64_MAX;
	to->settled = settled < whole ? settled : whole;
	if (to->settled)
		memcpy(to->table, from->table, to->settled * sizeof(*to->table));
	for (uint32_t i = to->settled; i < blocks; i++) {
		uint64_t left = length - ((uint64_t)i << c->slots_shift);

		to->table[i] = from->table[i];
		if (to->table[i].own)
			cache_ref(c, to->account, to->table[i].id);
		else if (begins_at(c, to->table[i].id) >= length) /* left the path: as in held_trim */
			held_set(to, c, i, stand, false);
		freeze(c, to->table[i].id, left < c->block_size ? (uint32_t)left : c->block_size);
		if (to->table[i].twin)
			collapse_note(to, c, i);
	}
	return 0;
}

/* ---- Writing and publishing ---- */

bool held_writable(const struct held *h, const struct cache *c, uint32_t ns, uint64_t token)
{
	uint32_t slot = (uint32_t)(h->length & (c->block_size - 1));
	const struct table_entry *e = &h->table[h->num - 1];
	const struct block_aux *a = cache_aux(c, e->id);
	uint32_t count = cache_count(c, e->id);

	if (a->state == BLOCK_PRIVATE)
		return e->own && a->refs == 1;
	if (slot < count || a->frozen || (a->owner && a->owner != h->serial) || h->stand != e->id)
		return false;
	return slot > count || find_child(c, ns, e->id, slot, token) == NONE;
}

/* Our own published tail grows by the tokens up to `end`; false if a child has taken the place. */
static bool publish_in_place(struct held *h, struct cache *c, uint32_t ns, uint32_t id, uint64_t end)
{
	struct attnd_block *b = cache_block(c, id);
	struct block_aux *a = cache_aux(c, id);
	uint32_t slot = (uint32_t)(h->stand_pos - b->position), count = cache_count(c, id), last;

	if (slot < count) { /* a fork has published more of it */
		last = (uint32_t)(end - b->position);
		h->stand_pos = b->position + (last < count ? last : count);
		return true;
	}
	if (find_child(c, ns, id, slot, cache_tokens(c, id)[slot]) != NONE)
		return false;
	last = (uint32_t)(end - b->position);
	seal_block_next(b, cache_tokens(c, id), last, atomic_load_explicit(&b->place, memory_order_relaxed));
	KILL_POINT(grow_sealed);
	atomic_store_explicit(&b->count, (uint16_t)last, memory_order_release);
	KILL_POINT(grow_counted);
	if (a->fill <= last)
		a->frozen = false;
	if (last == c->block_size)
		cache_filled(c, id);
	h->stand_pos = end;
	return true;
}

/*
 * Our slots of a published block, written in place, stand behind a child that another has published
 * meanwhile with the same tokens: what we have beyond it is published from a copy. All of a block is
 * copied here, at once: it takes two that compute the same continuation at the same time.
 */
static bool copy_tail(struct held *h, struct cache *c, uint32_t ns, uint32_t i)
{
	uint32_t old = h->table[i].id,
		 id = cache_make_room(c, h->account, 1, 1) ? NONE : cache_alloc(c, h->account, ns, i);
	uint64_t filled = h->length - ((uint64_t)i << c->slots_shift);
	bool own = h->table[i].own; /* else what we stand in holds it */
	struct block_aux *a;

	if (id == NONE)
		return false;
	cache_copy(c, old, id);
	a = cache_aux(c, id);
	a->owner = h->serial;
	a->fill = (uint16_t)(filled < c->block_size ? filled : c->block_size);
	block_disown(c, old, h->serial);
	held_set(h, c, i, id, true);
	if (own)
		cache_unref(c, h->account, old);
	return true;
}

static void publish_private(struct held *h, struct cache *c, uint32_t ns, struct table_entry *e, uint64_t end)
{
	uint32_t slot = (uint32_t)(h->stand_pos & (c->block_size - 1));
	uint64_t position = h->stand_pos - slot;
	struct block_aux *a = cache_aux(c, e->id);
	uint64_t filled = h->length - position;

	cache_publish(c, h->account, e->id, ns, h->stand, slot, (uint32_t)(end - position), (uint32_t)position);
	a->fill = (uint16_t)(filled < c->block_size ? filled : c->block_size);
	a->owner = a->refs == 1 ? h->serial : 0;
	a->frozen = a->refs > 1 && a->fill > end - position;
	held_stand(h, c, e->id);
	e->own = e->twin = false;
	cache_unref(c, h->account, e->id);
	h->stand_pos = end;
}

uint64_t held_publish(struct held *h, struct cache *c, uint32_t ns, uint64_t upto)
{
	uint64_t before = h->stand_pos;

	upto = upto < h->length ? upto : h->length;
	upto = upto < h->pub_limit ? upto : h->pub_limit;
	while (h->stand_pos < upto) {
		uint32_t i = (uint32_t)(h->stand_pos >> c->slots_shift), stand = h->stand;
		uint32_t slot = (uint32_t)(h->stand_pos & (c->block_size - 1));
		struct table_entry *e = &h->table[i];
		uint64_t end = (uint64_t)(i + 1) << c->slots_shift, k;
		const uint64_t *tokens = cache_tokens(c, e->id) + slot;

		end = end < upto ? end : upto;
		if (e->id == stand && publish_in_place(h, c, ns, stand, end))
			continue;
		k = tree_match(c, ns, &stand, h->stand_pos, tokens, end - h->stand_pos, NULL);
		if (k && c->granted &&
		    cache_make_room(c, h->account, path_idle(c, stand), account_path(c, h->account, stand)))
			break; /* holding it would take from what is guaranteed to others */
		if (k) {
			held_stand(h, c, stand);
			h->stand_pos += k;
			if (!(h->stand_pos & (c->block_size - 1)) && cache_aux(c, e->id)->state == BLOCK_PRIVATE)
				collapse_note(h, c, i);
			continue;
		}
		if (cache_aux(c, e->id)->state == BLOCK_PUBLIC && !copy_tail(h, c, ns, i))
			break;
		publish_private(h, c, ns, e, end);
	}
	return h->stand_pos - before;
}
