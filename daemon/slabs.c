/* SPDX-License-Identifier: Apache-2.0 */
/* Slabs of a cache (slabs.h). */
#include "slabs.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "../shm/futex.h"
#include "killpoint.h"
#include "plan.h"
#include "watch.h"

#define NONE ATTND_BLOCK_NONE

enum {
	CLEAR_SLICE = 256,	/* places looked at in one step */
	COPY_SLICE = 64 * 1024, /* bytes copied in one */
};

/* ---- Places ---- */

static struct block_extent *home_of(const struct cache *c, uint64_t place)
{
	return &c->ext[c->pool->slabs[place >> 32].extent];
}

static bool leaving(const struct cache *c, const struct block_extent *e)
{
	return c->move.phase && e == &c->ext[c->move.ext];
}

/* It has a slab: its blocks wait for places, so that there is always one that waits where there is a place. */
static bool settled(const struct cache *c, const struct block_extent *e)
{
	return e->slab != UINT32_MAX && !(leaving(c, e) && c->move.phase == MOVE_UNLIST);
}

void slabs_put(struct cache *c, uint32_t id, uint64_t place)
{
	struct where w = cache_where_is(c, place);

	home_of(c, place)->at[(uint32_t)place] = id;
	/* B9: the bytes are there; pairs with cache_where's load. */
	atomic_store_explicit(&c->where[id / c->blocks_per_slab][id % c->blocks_per_slab],
			      (uint64_t)w.node << 56 | w.offset, memory_order_release);
}

void slabs_used(struct cache *c, uint32_t id, int n)
{
	home_of(c, cache_place(c, id))->used += (uint32_t)n;
}

static void unlist(struct cache *c, uint32_t id)
{
	struct block_aux *a = cache_aux(c, id);

	*(a->prev == NONE ? &c->nowhere_head : &cache_aux(c, a->prev)->next) = a->next;
	if (a->next != NONE)
		cache_aux(c, a->next)->prev = a->prev;
	a->prev = a->next = NONE;
	a->listed = false;
}

void slabs_nowhere(struct cache *c, uint32_t id)
{
	struct block_aux *a = cache_aux(c, id);

	a->state = BLOCK_NOWHERE;
	a->prev = a->next = NONE;
	a->listed = settled(c, cache_ext(c, id));
	if (!a->listed)
		return;
	a->next = c->nowhere_head;
	if (a->next != NONE)
		cache_aux(c, a->next)->prev = id;
	c->nowhere_head = id;
}

void slabs_give(struct cache *c, uint32_t id, uint64_t place)
{
	cache_ext(c, id)->nowhere--;
	c->total++;
	atomic_store_explicit(&cache_block(c, id)->place, place, memory_order_release);
	slabs_put(c, id, place);
	cache_list_free(c, id);
}

/* To any block that waits for one: there is always one for a place that nobody has. */
static void give_any(struct cache *c, uint64_t place)
{
	uint32_t id = c->nowhere_head;

	unlist(c, id);
	memset(cache_flags(c, id), 1, c->flag_bytes); /* who had it may have left what reads as NaN */
	slabs_give(c, id, place);
}

/* ---- Extents ---- */

static int grow_extents(struct cache *c)
{
	uint32_t cap = c->cap_ext ? c->cap_ext * 2 : 4;
	struct block_extent *e = realloc(c->ext, cap * sizeof(*e));

	if (!e)
		return -ENOMEM;
	c->ext = e;
	c->cap_ext = cap;
	return 0;
}

static void list_extent(struct cache *c, uint32_t i)
{
	struct attnd_meta_region *m = c->pool->meta;
	struct attnd_extent *list = (struct attnd_extent *)((char *)m + m->extents_offset);

	list[(size_t)c->id * m->num_slabs + i] = c->ext[i].mem;
	atomic_store_explicit(&m->caches[c->id].num_extents, c->num_ext, memory_order_release);
}

static void drop_parts(struct cache *c, uint32_t i)
{
	free(c->ext[i].at);
	free(c->where[i]);
	c->where[i] = NULL;
	c->ext[i] = (struct block_extent){.slab = UINT32_MAX};
}

int slabs_extent(struct cache *c, uint32_t i)
{
	uint32_t n = c->blocks_per_slab;
	struct block_extent *e = &c->ext[i];

	e->block = pool_extent_at(c->pool, &e->mem);
	e->tokens = (uint64_t *)(e->block + n);
	e->flags = (uint8_t *)(e->tokens + (size_t)n * c->block_size);
	e->slab = UINT32_MAX;
	e->nowhere = n;
	c->where[i] = calloc(n, sizeof(**c->where));
	if (!c->where[i]) {
		drop_parts(c, i);
		return -ENOMEM;
	}
	for (uint32_t b = 0; b < n; b++)
		c->aux[i * n + b] = cache_unlinked(BLOCK_NOWHERE);
	return 0;
}

int slabs_map(struct cache *c, uint32_t i)
{
	struct block_extent *e = &c->ext[i];

	e->at = malloc(c->blocks_per_slab * sizeof(*e->at));
	if (!e->at)
		return -ENOMEM;
	memset(e->at, 0xff, c->blocks_per_slab * sizeof(*e->at));
	return 0;
}

/* Descriptors, tokens and flags of a slab's blocks. */
static int make_extent(struct cache *c, uint32_t i)
{
	struct block_extent *e = &c->ext[i];
	struct attnd_extent mem;

	*e = (struct block_extent){.slab = UINT32_MAX};
	if (pool_extent_alloc(c->pool, meta_extent_bytes(&c->identity, c->blocks_per_slab), &mem))
		return -ENOMEM;
	e->mem = mem;
	if (slabs_extent(c, i)) {
		pool_extent_free(c->pool, &mem);
		return -ENOMEM;
	}
	for (uint32_t b = 0; b < c->blocks_per_slab; b++)
		atomic_store_explicit(&e->block[b].place, ATTND_PLACE_NONE, memory_order_relaxed);
	KILL_POINT(extent_allocated);
	c->num_ext += i == c->num_ext;
	list_extent(c, i);
	KILL_POINT(extent_listed);
	return 0;
}

/* Nobody's, and of no use: other caches may need the memory. Its blocks have no children any more. */
static void empty_extent(struct cache *c, uint32_t i)
{
	pool_extent_free(c->pool, &c->ext[i].mem);
	KILL_POINT(extent_freed);
	drop_parts(c, i);
	list_extent(c, i);
}

/* A block that is in no list gives its place up: nobody stands there now. Its extent may go with it. */
static uint64_t lose(struct cache *c, uint32_t id)
{
	uint64_t place = cache_place(c, id);
	struct block_extent *home = home_of(c, place);

	home->at[(uint32_t)place] = NONE;
	atomic_store_explicit(&cache_block(c, id)->place, ATTND_PLACE_NONE, memory_order_release);
	c->total--;
	c->move.left -= leaving(c, home);
	slabs_nowhere(c, id);
	if (++cache_ext(c, id)->nowhere == c->blocks_per_slab && cache_ext(c, id)->slab == UINT32_MAX)
		empty_extent(c, id / c->blocks_per_slab);
	return place;
}

static uint64_t lose_free(struct cache *c, uint32_t id)
{
	struct block_aux *a = cache_aux(c, id);

	*(a->prev == NONE ? &c->free_head[cache_block_node(c, id)] : &cache_aux(c, a->prev)->next) = a->next;
	if (a->next != NONE)
		cache_aux(c, a->next)->prev = a->prev;
	c->free--;
	return lose(c, id);
}

/* An extent without a slab: one whose blocks moved into others, one that lost all, else a new one. */
static int vacant_extent(struct cache *c, uint32_t *ret)
{
	uint32_t n = c->blocks_per_slab, i = c->num_ext;

	for (uint32_t k = 0; k < c->num_ext; k++)
		if (c->ext[k].slab == UINT32_MAX && (i == c->num_ext || (c->ext[k].block && !c->ext[i].block)))
			i = k;
	if (i == c->num_ext && ((i + 1ull) * n >= NONE || (i == c->cap_ext && grow_extents(c)) ||
				attnd_index_reserve(&c->index, (i + 1) * n)))
		return -ENOMEM;
	*ret = i;
	if (i < c->num_ext && c->ext[i].block)
		return 0;
	return accounts_cover(c, i) || make_extent(c, i) ? -ENOMEM : 0;
}

/* ---- Shares ---- */

static uint32_t stays(const struct cache *c)
{
	return c->num_slabs - (c->move.phase != MOVE_NONE);
}

/* Blocks that can be had without another slab, with what is in one that leaves having its place. */
static uint64_t idle_blocks(const struct cache *c)
{
	uint64_t have = c->free + c->evictable + (c->move.phase && c->move.place != ATTND_PLACE_NONE);
	uint64_t left = c->move.phase ? c->move.left : 0;

	return have > left ? have - left : 0;
}

/* Slabs that other caches have too little of: their minima. */
static uint32_t kept_from(const struct cache *c)
{
	uint32_t kept = 0;

	for (uint32_t i = 0; i < ATTND_MAX_POOL_CACHES; i++) {
		const struct cache *o = c->pool->caches[i];

		kept += o && o != c && o->min_slabs > stays(o) ? o->min_slabs - stays(o) : 0;
	}
	return kept;
}

static uint32_t free_for(const struct cache *c)
{
	uint32_t kept = kept_from(c);

	return c->pool->num_free > kept ? c->pool->num_free - kept : 0;
}

/* Slabs whose loss neither grants nor the minimum of `c` feel. */
static uint64_t spare_slabs(const struct cache *c)
{
	uint64_t idle = idle_blocks(c) / c->blocks_per_slab, all = (uint64_t)stays(c) * c->blocks_per_slab;
	uint64_t claimed = c->granted ? c->claimed : 0, kept = (uint64_t)c->min_slabs * c->blocks_per_slab;
	uint64_t spare;

	claimed = claimed > kept ? claimed : kept;
	spare = all > claimed ? (all - claimed) / c->blocks_per_slab : 0;
	return idle < spare ? idle : spare;
}

/* Slabs that `c` could have, of the pool and of other caches. */
static uint64_t supply(const struct cache *c)
{
	const struct pool *p = c->pool;
	uint64_t have = p->num_free, kept = kept_from(c),
		 room = c->max_slabs > c->num_slabs ? c->max_slabs - c->num_slabs : 0;

	have += p->mover && p->mover != c && !p->mover->move.keep;
	for (uint32_t i = 0; i < ATTND_MAX_POOL_CACHES; i++)
		have += p->caches[i] && p->caches[i] != c ? spare_slabs(p->caches[i]) : 0;
	have = have > kept ? have - kept : 0;
	return have < room ? have : room;
}

void cache_set_share(struct cache *c)
{
	const struct pool *p = c->pool;

	c->min_slabs = 0;
	c->max_slabs = p->num_slabs;
	for (uint32_t i = 0; i < p->num_shares; i++) {
		if (memcmp(p->shares[i].name, c->identity.name, sizeof(c->identity.name)))
			continue;
		c->min_slabs = p->num_slabs * p->shares[i].min / 100;
		c->max_slabs = p->num_slabs * p->shares[i].max / 100;
		c->max_slabs = c->max_slabs ? c->max_slabs : 1;
	}
}

uint64_t cache_capacity(const struct cache *c)
{
	return (uint64_t)c->max_slabs * c->blocks_per_slab * c->block_size;
}

uint64_t cache_free_slabs(const struct cache *c)
{
	uint64_t room = c->max_slabs > c->num_slabs ? c->max_slabs - c->num_slabs : 0, have = free_for(c);

	return have < room ? have : room;
}

/* ---- Taking ---- */

/* Its own blocks without a place first, in order, so that what is filled in order has ids in order. */
static void place_all(struct cache *c, uint32_t i)
{
	struct block_extent *e = &c->ext[i];
	uint32_t own = c->blocks_per_slab;

	for (uint32_t b = c->blocks_per_slab; b-- > 0;) {
		uint64_t place = (uint64_t)e->slab << 32 | b;
		uint32_t id;

		while (own && cache_aux(c, i * c->blocks_per_slab + own - 1)->state != BLOCK_NOWHERE)
			own--;
		if (!own) {
			give_any(c, place);
			continue;
		}
		id = i * c->blocks_per_slab + --own;
		/*
		 * What another cache left in the slab may read as NaN here: every tile is flagged, and so
		 * cleared before its first use.
		 */
		memset(cache_flags(c, id), 1, c->flag_bytes);
		KILL_POINT(slab_flagged);
		slabs_give(c, id, place);
	}
}

int slabs_add(struct cache *c)
{
	int64_t slab;
	uint32_t i;

	if (c->num_slabs >= c->max_slabs || !free_for(c) || vacant_extent(c, &i))
		return -ENOMEM;
	slab = slabs_map(c, i) ? -ENOMEM : pool_take_slab(c->pool, c->id, i);
	if (slab < 0) {
		free(c->ext[i].at);
		c->ext[i].at = NULL;
		if (c->ext[i].nowhere == c->blocks_per_slab)
			empty_extent(c, i);
		return -ENOMEM;
	}
	c->ext[i].slab = (uint32_t)slab;
	c->ext[i].used = 0;
	c->num_slabs++;
	c->wants -= c->wants != 0;
	KILL_POINT(slab_taken);
	place_all(c, i);
	KILL_POINT(slab_placed);
	return 0;
}

void slabs_return(struct cache *c)
{
	if (c->pool->mover == c)
		c->pool->mover = NULL;
	c->pool->moves++;
	for (uint32_t i = 0; i < c->num_ext; i++) {
		if (c->ext[i].slab != UINT32_MAX)
			pool_return_slab(c->pool, c->ext[i].slab);
		if (c->ext[i].block)
			empty_extent(c, i);
	}
}

/* What is set aside for a block that is not moved after all. */
static void put_back(struct cache *c)
{
	if (c->move.place != ATTND_PLACE_NONE)
		give_any(c, c->move.place);
	c->move.place = ATTND_PLACE_NONE;
	c->move.id = c->move.holds = NONE;
}

/* Its slab stays: places that blocks have left are free again once nobody reads them. */
static void cancel(struct cache *c)
{
	struct slab_move *m = &c->move;

	if (!m->phase || m->phase == MOVE_UNLIST)
		return;
	if (m->phase < MOVE_FLIP) {
		put_back(c);
		m->phase = MOVE_FLIP; /* places that blocks have left are still read */
	}
	m->keep = true;
}

/* Slabs until there are so many more blocks. */
static int take_slabs(struct cache *c, uint64_t more)
{
	struct pool *p = c->pool;
	uint64_t want = c->total + more;

	if (c->move.phase) { /* it needs its own, or what is left is known at once */
		cancel(c);
		return -EAGAIN;
	}
	if (supply(c) * c->blocks_per_slab < more) {
		if (p->mover && p->mover->move.keep) { /* what that one keeps may be to be had again */
			p->wanted = true;
			return -EAGAIN;
		}
		p->moves += c->wants != 0; /* others who wait for the same are to ask again */
		c->wants = 0;
		return -ENOMEM;
	}
	while (c->total < want && free_for(c))
		if (slabs_add(c))
			return -ENOMEM;
	if (c->total >= want)
		return 0;
	c->wants = (uint32_t)((want - c->total + c->blocks_per_slab - 1) / c->blocks_per_slab);
	p->wanted = true;
	return -EAGAIN;
}

int cache_make_room(struct cache *c, const struct account *a, uint64_t need, uint64_t growth)
{
	uint64_t claim = c->claimed + account_claim(c, a, growth), all = (uint64_t)stays(c) * c->blocks_per_slab;
	uint64_t have = idle_blocks(c), more = claim > all ? claim - all : 0;

	if (!c->granted || claim == c->claimed)
		more = 0; /* nothing is guaranteed to others, or this is */
	if (need > have && need - have > more)
		more = need - have;
	return more ? take_slabs(c, more) : 0;
}

int cache_grant(struct cache *c, struct account *a, uint64_t blocks)
{
	uint64_t claim =
		c->claimed - (a->grant > a->used ? a->grant : a->used) + (blocks > a->used ? blocks : a->used);
	uint64_t all = (uint64_t)stays(c) * c->blocks_per_slab;
	int r = blocks > a->grant && claim > all ? take_slabs(c, claim - all) : 0;

	if (!r)
		account_set_grant(c, a, blocks);
	return r;
}

bool slabs_at_share(const struct cache *c)
{
	return c->num_slabs >= c->max_slabs && c->max_slabs < c->pool->num_slabs && free_for(c);
}

void slabs_wait(struct room_wait *w, const struct cache *c)
{
	*w = (struct room_wait){c, c->pool->moves, idle_blocks(c)};
}

bool slabs_waits(const struct room_wait *w, const struct cache *c)
{
	return w->cache == c && w->moves == c->pool->moves && w->idle == idle_blocks(c);
}

/* ---- A slab that leaves ---- */

static void begin(struct cache *c, uint32_t ext, enum metrics_reason why)
{
	c->move = (struct slab_move){.phase = MOVE_CLEAR,
				     .ext = ext,
				     .left = c->blocks_per_slab,
				     .id = NONE,
				     .holds = NONE,
				     .place = ATTND_PLACE_NONE,
				     .why = (uint8_t)why};
	c->pool->mover = c;
}

/* The one with the fewest blocks to copy. */
static uint32_t least_used(const struct cache *c)
{
	uint32_t best = NONE;

	for (uint32_t i = 0; i < c->num_ext; i++)
		if (c->ext[i].slab != UINT32_MAX && (best == NONE || c->ext[i].used < c->ext[best].used))
			best = i;
	return best;
}

/* Whose slab costs least: bytes of cached blocks that go with it, then bytes to be copied. NULL: nobody's. */
static struct cache *cheapest(const struct cache *c)
{
	struct cache *best = NULL;
	uint64_t lost = 0, copied = 0;

	for (uint32_t i = 0; i < ATTND_MAX_POOL_CACHES; i++) {
		struct cache *o = c->pool->caches[i];
		uint64_t n, goes, moves;

		if (!o || o == c || !spare_slabs(o))
			continue;
		n = o->blocks_per_slab;
		goes = (n > o->free ? n - o->free : 0) * o->share_bytes;
		moves = o->ext[least_used(o)].used * o->share_bytes;
		if (best && (goes > lost || (goes == lost && moves >= copied)))
			continue;
		best = o;
		lost = goes;
		copied = moves;
	}
	return best;
}

/* One slab at a time, for the first cache that wants one; those that can take one already are told. */
static void begin_wanted(struct pool *p)
{
	p->wanted = false;
	for (uint32_t i = 0; i < ATTND_MAX_POOL_CACHES; i++) {
		struct cache *c = p->caches[i], *o;

		if (!c || !c->wants)
			continue;
		o = free_for(c) < c->wants ? cheapest(c) : NULL;
		if (o) {
			begin(o, least_used(o), METRICS_REASON_slab);
			p->wanted = true;
			return;
		}
		c->wants = 0;
		p->moves++;
	}
}

bool cache_shrink(struct cache *c)
{
	uint64_t all = (uint64_t)c->num_slabs * c->blocks_per_slab;

	if (c->pool->mover || c->num_slabs <= c->max_slabs || idle_blocks(c) < c->blocks_per_slab ||
	    (c->granted && all < c->claimed + c->blocks_per_slab))
		return false;
	begin(c, least_used(c), METRICS_REASON_share);
	return true;
}

/* Free blocks in it lose their places. */
static void clear_some(struct cache *c)
{
	struct slab_move *m = &c->move;
	const struct block_extent *e = &c->ext[m->ext];

	for (int i = 0; i < CLEAR_SLICE && m->at < c->blocks_per_slab; i++, m->at++) {
		uint32_t id = e->at[m->at];

		if (id != NONE && cache_aux(c, id)->state == BLOCK_FREE)
			(void)lose_free(c, id);
	}
	if (m->at < c->blocks_per_slab)
		return;
	m->phase = MOVE_FIRST;
	m->at = 0;
}

static bool job_writes(const struct cache *c, uint32_t id)
{
	for (const struct plan *p = c->running; p; p = p->run_next)
		if (plan_writes(p, id))
			return true;
	return false;
}

/* Piece by piece: of each node, or the one of a spread cache. */
static void copy_some(struct cache *c)
{
	struct slab_move *m = &c->move;
	struct where from = cache_where(c, m->id), to = cache_where_is(c, m->place);
	uint32_t node = (uint32_t)(m->done / c->block_bytes);
	uint64_t at = m->done % c->block_bytes, n = c->block_bytes - at;

	n = n < COPY_SLICE ? n : COPY_SLICE;
	memcpy(cache_piece(c, to, node) + at, cache_piece(c, from, node) + at, n);
	m->done += n;
}

/* Its copy is whole: from now on it stands there. What stood here is read by jobs that began before. */
static void move_block(struct cache *c)
{
	struct slab_move *m = &c->move;
	uint32_t id = m->id;
	uint64_t old = cache_place(c, id);

	KILL_POINT(block_copied);
	if (cache_aux(c, id)->state == BLOCK_PUBLIC)
		cache_set_place(c, id, m->place);
	else
		atomic_store_explicit(&cache_block(c, id)->place, m->place, memory_order_release);
	KILL_POINT(block_moved);
	slabs_put(c, id, m->place);
	home_of(c, m->place)->used++;
	home_of(c, old)->at[(uint32_t)old] = NONE;
	home_of(c, old)->used--;
	m->left--;
	c->moved++;
	c->pool->moved++;
	m->place = ATTND_PLACE_NONE;
	m->id = m->holds = NONE;
}

/* A place for the copy of a block, on its node if there is one, by eviction if it must be. False: there is none. */
static bool set_aside(struct cache *c, uint32_t id)
{
	uint32_t node = cache_block_node(c, id), from;

	if (!c->free)
		return cache_evict_on(c, node);
	from = cache_take_free(c, node);
	c->move.place = lose(c, from);
	return true;
}

/* A piece of the block at m->at, or on to the next. False: it must wait for a job. */
static bool move_some(struct cache *c)
{
	struct slab_move *m = &c->move;
	uint32_t id = m->at < c->blocks_per_slab ? c->ext[m->ext].at[m->at] : NONE;
	bool writes = id != NONE && cache_aux(c, id)->writes;

	if (m->at == c->blocks_per_slab) {
		m->at = 0;
		put_back(c);
		m->phase = m->phase == MOVE_FIRST ? MOVE_WRITTEN : MOVE_FLIP;
		return true;
	}
	if (id == NONE || (writes && m->phase == MOVE_FIRST)) {
		m->at++;
		m->id = m->holds = NONE;
		return true;
	}
	m->holds = writes ? id : NONE;
	if (writes && job_writes(c, id))
		return false;
	if (m->place == ATTND_PLACE_NONE) {
		if (!set_aside(c, id))
			cancel(c); /* all is held now */
		return true;
	}
	if (m->id != id) {
		m->id = id;
		m->done = 0;
	}
	copy_some(c);
	if (m->done == c->block_bytes * (c->spread ? 1 : c->pool->num_nodes))
		move_block(c);
	return true;
}

static void over(struct cache *c)
{
	c->move.phase = MOVE_NONE;
	c->pool->mover = NULL;
	c->pool->moves++;
}

/* Nobody reads its places any more: they are to be used again. */
static void keep_slab(struct cache *c)
{
	const struct block_extent *e = &c->ext[c->move.ext];

	over(c);
	for (uint32_t b = c->blocks_per_slab; b-- > 0;)
		if (e->at[b] == NONE)
			give_any(c, (uint64_t)e->slab << 32 | b);
}

/* Those of its blocks that wait for a place wait for another slab of theirs. */
static bool unlist_some(struct cache *c)
{
	struct slab_move *m = &c->move;
	uint32_t first = m->ext * c->blocks_per_slab;

	for (int i = 0; i < CLEAR_SLICE && m->at < c->blocks_per_slab; i++, m->at++)
		if (cache_aux(c, first + m->at)->listed)
			unlist(c, first + m->at);
	return m->at == c->blocks_per_slab;
}

static void give_slab(struct cache *c)
{
	uint32_t ext = c->move.ext;
	struct block_extent *e = &c->ext[ext];

	KILL_POINT(slab_emptied);
	pool_return_slab(c->pool, e->slab);
	KILL_POINT(slab_returned);
	over(c);
	c->num_slabs--;
	e->slab = UINT32_MAX;
	free(e->at);
	e->at = NULL;
	if (e->nowhere == c->blocks_per_slab)
		empty_extent(c, ext);
}

/* False: it must wait for jobs. */
static bool step(struct cache *c)
{
	struct slab_move *m = &c->move;

	switch (m->phase) {
	case MOVE_CLEAR:
		clear_some(c);
		return true;
	case MOVE_FIRST:
	case MOVE_WRITTEN:
		return move_some(c);
	case MOVE_FLIP: /* jobs that begin from here on know the new places */
		if (c->readers[(c->epoch + 1) & 1])
			return false;
		c->epoch++;
		m->phase = MOVE_DRAIN;
		return true;
	case MOVE_DRAIN:
		if (c->readers[(c->epoch + 1) & 1])
			return false;
		if (m->keep)
			keep_slab(c);
		else
			m->phase = MOVE_UNLIST;
		m->at = 0;
		return true;
	case MOVE_UNLIST:
		if (unlist_some(c))
			give_slab(c);
		return true;
	default:
		return false;
	}
}

bool slabs_step(struct pool *p)
{
	enum metrics_reason why;
	struct cache *c;
	uint64_t until;
	bool did = false;

	if (!p->mover && p->wanted)
		begin_wanted(p);
	c = p->mover;
	if (!c)
		return false;
	until = attnd_now_ns() + p->move_ns;
	why = watch_reason(p, (enum metrics_reason)c->move.why);
	while (c->move.phase && step(c)) {
		did = true;
		if (attnd_now_ns() >= until)
			break;
	}
	watch_reason(p, why);
	return did;
}

bool slabs_hold(const struct cache *c, const struct plan *p)
{
	return c->move.phase && c->move.holds != NONE && plan_writes(p, c->move.holds);
}

void slabs_touch(struct cache *c, uint32_t id)
{
	if (c->move.phase && c->move.id == id)
		c->move.id = NONE;
}

uint32_t slabs_read(struct cache *c)
{
	uint32_t epoch = c->epoch & 1;

	c->readers[epoch]++;
	return epoch;
}

void slabs_read_end(struct cache *c, uint32_t epoch)
{
	c->readers[epoch]--;
}

/*
 * So that an extent whose slab went can go, too, its blocks hand their places to blocks of extents
 * that stay.
 */
uint32_t slabs_freed(struct cache *c, uint32_t id)
{
	struct block_extent *home = home_of(c, cache_place(c, id));
	uint32_t i = id / c->blocks_per_slab, other = c->nowhere_head;
	uint64_t place;

	home->used--;
	if (leaving(c, home)) {
		(void)lose(c, id);
		return NONE;
	}
	if (settled(c, &c->ext[i]) || other == NONE)
		return id;
	unlist(c, other);
	memcpy(cache_flags(c, other), cache_flags(c, id), c->flag_bytes);
	place = lose(c, id);
	atomic_store_explicit(&cache_block(c, other)->place, place, memory_order_release);
	slabs_put(c, other, place);
	cache_ext(c, other)->nowhere--;
	c->total++;
	return other;
}

/* restore.c finds their memory as what lies between the others'. */
void slabs_sweep(struct cache *c)
{
	for (uint32_t i = 0; i < c->num_ext; i++) {
		if (!c->ext[i].block || c->ext[i].slab != UINT32_MAX || c->ext[i].nowhere < c->blocks_per_slab)
			continue;
		drop_parts(c, i);
		list_extent(c, i);
	}
}

/* ---- Checking ---- */

static const char *check_slab(const struct cache *c, uint32_t i, uint64_t *stand)
{
	const struct block_extent *e = &c->ext[i];
	uint32_t used = 0;

	if (c->pool->slabs[e->slab].cache != c->id + 1 || c->pool->slabs[e->slab].extent != i)
		return "a slab that is not its extent's";
	for (uint32_t b = 0; b < c->blocks_per_slab; b++) {
		uint32_t id = e->at[b];

		if (id == NONE && !c->move.phase)
			return "a place without a block";
		if (id == NONE)
			continue;
		if (!cache_ext(c, id)->block || cache_place(c, id) != ((uint64_t)e->slab << 32 | b) ||
		    cache_offset(c, id) != cache_where_is(c, (uint64_t)e->slab << 32 | b).offset)
			return "who stands at a place has another";
		used += cache_aux(c, id)->state != BLOCK_FREE;
		++*stand;
	}
	return used == e->used ? NULL : "a slab's used places are miscounted";
}

/* Every block with a place stands in one slab of the cache, alone; every place but of a slab that leaves has one. */
const char *slabs_check(const struct cache *c)
{
	uint64_t stand = 0, placed = 0, listed = 0, waiting = 0;
	uint32_t slabs = 0;

	for (uint32_t i = 0; i < c->num_ext; i++) {
		const struct block_extent *e = &c->ext[i];
		const char *bad = e->slab == UINT32_MAX ? NULL : check_slab(c, i, &stand);
		uint32_t nowhere = 0;

		if (bad)
			return bad;
		slabs += e->slab != UINT32_MAX;
		for (uint32_t b = 0; e->block && b < c->blocks_per_slab; b++) {
			const struct block_aux *a = cache_aux(c, i * c->blocks_per_slab + b);

			nowhere += a->state == BLOCK_NOWHERE;
			waiting += a->listed;
		}
		placed += e->block ? c->blocks_per_slab - nowhere : 0;
		if (nowhere != e->nowhere)
			return "blocks without a place are miscounted";
		if (e->block && nowhere == c->blocks_per_slab && e->slab == UINT32_MAX)
			return "an extent of no use";
	}
	for (uint32_t id = c->nowhere_head; id != NONE; id = cache_aux(c, id)->next, listed++)
		if (cache_aux(c, id)->state != BLOCK_NOWHERE || !cache_aux(c, id)->listed)
			return "a block with a place waits for one";
	if (stand != placed || stand != c->total || listed != waiting)
		return "places are not those of the blocks";
	return slabs == c->num_slabs ? NULL : "slabs are miscounted";
}
