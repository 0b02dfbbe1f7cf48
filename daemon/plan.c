/* SPDX-License-Identifier: Apache-2.0 */
/* Plans (plan.h). */
#include "plan.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "killpoint.h"
#include "ns.h"
#include "slabs.h"
#include "work.h"

#define NONE ATTND_BLOCK_NONE

/* What is published at a time, some 50 us: each row counts 1, each block of it so much more. */
enum { PUBLISH_SLICE = 512, PUBLISH_BLOCK = 4 };

static struct held *held_of(const struct plan *p, const struct seq *s)
{
	return (struct held *)&s->in[p->cache_index].held;
}

/* ---- One row ---- */

/* Where the row's writing begins and what it needs: found before anything is changed. */
struct need {
	struct held view;	 /* the sequence as the row finds it, rolled back to its start */
	struct table_entry tail; /* its last entry, where that is not whole */
	uint32_t *ids;		 /* blocks taken over, by block index from start on */
	uint32_t stand;		 /* where the match ended */
	uint32_t taken;		 /* tokens */
	uint32_t blocks;	 /* to allocate, the copy included */
	bool copy;		 /* the tail must be copied */
};

static bool tail_writable(const struct plan *p, const struct plan_row *r, const struct need *n, uint64_t at,
			  uint64_t token)
{
	struct held probe = n->view;
	struct table_entry tail = n->tail;

	/* What is rolled back must still be there if the plan is given up. */
	if (r->back && (!n->taken || cache_aux(p->cache, n->stand)->owner == n->view.serial))
		return false;
	if (n->taken)
		tail = (struct table_entry){.id = n->stand};
	probe.table = &tail;
	probe.num = 1;
	probe.length = at;
	return held_writable(&probe, p->cache, r->seq->ns, token);
}

static void see(const struct cache *c, const struct held *h, const struct plan_row *r, struct need *n)
{
	n->view = *h;
	if (r->back)
		n->view = held_view(h, c, r->start, &n->tail);
	else if (h->num)
		n->tail = h->table[h->num - 1];
}

static void find_need(const struct plan *p, const struct plan_row *r, const uint64_t *tokens, struct need *n)
{
	const struct cache *c = p->cache;
	uint32_t end = r->start + r->n, at, B = c->block_size;

	see(c, held_of(p, r->seq), r, n);
	n->stand = n->view.stand;
	n->taken = n->blocks = 0;
	n->copy = false;
	if (!r->mask && !(r->flags & ATTND_WIRE_ROW_NONCAUSAL) && n->view.stand_pos == r->start &&
	    n->view.pub_limit == UINT64_MAX)
		n->taken = (uint32_t)tree_match(c, r->seq->ns, &n->stand, r->start, tokens, r->n, n->ids);
	at = r->start + n->taken;
	if (at == end)
		return;
	n->blocks = (end + B - 1) / B - (at + B - 1) / B;
	if (at % B) {
		n->copy = !tail_writable(p, r, n, at, tokens[n->taken]);
		n->blocks += n->copy;
	}
}

/* Blocks to be written, and those on the way to `stand` that the account does not hold yet. */
static int make_room(const struct plan *p, const struct need *n)
{
	const struct account *a = n->view.account;

	return cache_make_room(p->cache, a, n->blocks + (n->taken ? path_idle(p->cache, n->stand) : 0),
			       n->blocks + (n->taken ? account_path(p->cache, a, n->stand) : 0));
}

static void ext_add(struct plan_row *r, const struct cache *c, uint32_t id, bool own)
{
	r->ext[r->num_ext++] = table_entry(c, id, own);
}

static void drop_row(struct plan *p, struct plan_row *r)
{
	struct cache *c = p->cache;
	struct account *a = held_of(p, r->seq)->account;

	while (r->num_ext)
		if (r->ext[--r->num_ext].own)
			cache_unref(c, a, r->ext[r->num_ext].id);
	if (r->stand != NONE)
		cache_unref(c, a, r->stand);
	r->stand = NONE;
}

/* Take hold of what was matched, then allocate. All or nothing. */
static int take_blocks(struct plan *p, struct plan_row *r, const struct need *n)
{
	struct cache *c = p->cache;
	struct account *a = n->view.account;
	uint32_t at = r->start + n->taken, B = c->block_size, blocks = n->blocks;

	r->from = n->view.num;
	r->cached = n->taken;
	if (n->taken) {
		cache_ref(c, a, n->stand);
		r->stand = n->stand;
		r->from = r->start / B;
		for (uint32_t i = r->from; i * B < at; i++)
			ext_add(r, c, n->ids[i - r->from], false);
	}
	r->fresh = (at + B - 1) / B;
	if (n->copy) {
		r->copies = true;
		counters_add(c->counters, copied_blocks, 1);
		r->copy_index = at / B;
		r->copy_slots = at % B;
		r->source = n->taken ? r->ext[r->num_ext - 1] : n->tail;
		r->from = n->taken ? r->from : r->copy_index;
		r->num_ext -= n->taken != 0;
	}
	while (blocks--) {
		uint32_t id = cache_alloc(c, a, r->seq->ns, r->from + r->num_ext);

		if (id == NONE) {
			drop_row(p, r);
			return -ENOMEM;
		}
		ext_add(r, c, id, true);
	}
	return 0;
}

/* The tokens stand in the blocks that will hold their K/V. */
static void store_tokens(struct plan *p, struct plan_row *r, const uint64_t *tokens)
{
	struct cache *c = p->cache;
	uint32_t B = c->block_size, at = r->start + r->cached, end = r->start + r->n;

	if (r->copies)
		memcpy(cache_tokens(c, plan_entry(p, r, r->copy_index)->id), cache_tokens(c, r->source.id),
		       r->copy_slots * sizeof(uint64_t));
	while (at < end) {
		uint32_t id = plan_entry(p, r, at / B)->id, slot = at % B, k = B - slot;
		struct block_aux *a = cache_aux(c, id);

		k = k < end - at ? k : end - at;
		memcpy(cache_tokens(c, id) + slot, tokens + (at - r->start), k * sizeof(uint64_t));
		a->owner = r->seq->serial;
		a->fill = (uint16_t)(slot + k);
		a->writes = true;
		slabs_touch(c, id);
		at += k;
	}
	KILL_POINT(tokens_stored);
}

/* Block indices that its jobs write to, until the plan commits: [first, end). */
static uint32_t writes_from(const struct plan *p, const struct plan_row *r)
{
	return (r->start + r->cached) >> p->cache->slots_shift;
}
static uint32_t writes_to(const struct plan *p, const struct plan_row *r)
{
	return !r->seq || p->committed || r->cached == r->n ? 0
							    : ((r->start + r->n - 1) >> p->cache->slots_shift) + 1;
}

static void stop_writing(const struct plan *p, const struct plan_row *r)
{
	for (uint32_t i = writes_from(p, r); i < writes_to(p, r); i++)
		cache_aux(p->cache, plan_entry(p, r, i)->id)->writes = false;
}

bool plan_writes(const struct plan *p, uint32_t id)
{
	for (uint32_t k = 0; k < p->num_rows; k++)
		for (uint32_t i = writes_from(p, &p->rows[k]); i < writes_to(p, &p->rows[k]); i++)
			if (plan_entry(p, &p->rows[k], i)->id == id)
				return true;
	return false;
}

/* Beyond its quota a namespace or an engine borrows what is free: nothing is evicted for it. */
static bool beyond_quota(const struct plan *p, const struct plan_row *r, const struct need *n)
{
	const struct cache *c = p->cache;
	const struct pool *pool = c->pool;
	uint64_t held = c->ns->entries[r->seq->ns].held, more = n->blocks + (n->taken ? path_idle(c, n->stand) : 0);
	const struct account *a = n->view.account;

	if (n->blocks <= c->free + cache_free_slabs(c) * c->blocks_per_slab)
		return false;
	if (pool->namespace_quota != UINT64_MAX && held + more * c->share_bytes > pool->namespace_quota)
		return true;
	return pool->engine_quota != UINT64_MAX && a &&
	       (a->used + n->blocks + (n->taken ? account_path(c, a, n->stand) : 0)) * c->share_bytes >
		       pool->engine_quota;
}

static int plan_one(struct plan *p, struct plan_row *r, const struct row_request *q, uint32_t *ids)
{
	struct held *h = held_of(p, r->seq);
	struct need n = {.ids = ids};
	int e;

	if (q->wire.start > h->length)
		return -ERANGE;
	r->seq->used = true;
	r->back = q->wire.start < h->length;
	if (r->back)
		seq_withdraw(r->seq);
	find_need(p, r, q->tokens, &n);
	if (beyond_quota(p, r, &n))
		return -EDQUOT;
	e = make_room(p, &n);
	if (e == -ENOMEM && r->back) {
		/* There is no room to keep what is rolled back until the commit. */
		r->back = false;
		held_trim(h, p->cache, q->wire.start);
		find_need(p, r, q->tokens, &n);
		e = make_room(p, &n);
	}
	if (e)
		return e;
	if (held_reserve(h, (r->start + r->n) / p->cache->block_size + 1) || take_blocks(p, r, &n))
		return -ENOMEM;
	store_tokens(p, r, q->tokens);
	return 0;
}

/* ---- The plan ---- */

static void plan_free(struct plan *p)
{
	heap_give(&p->engine->heap, p->heap);
	free(p->rows);
	free(p->ext);
	free(p->masks);
	free(p);
}

static struct plan *plan_alloc(struct engine *e, const struct cache *c, const struct row_request *rows,
			       uint32_t num_rows)
{
	size_t ext = 0, masks = 0, tokens = 0;
	uint64_t bytes;
	struct plan *p;

	for (uint32_t i = 0; i < num_rows; i++) {
		tokens += rows[i].wire.num_tokens;
		ext += rows[i].wire.num_tokens / c->block_size + 3;
		if (rows[i].mask)
			masks += (size_t)rows[i].wire.num_tokens * ((rows[i].wire.num_tokens + 63) / 64);
	}
	bytes = sizeof(*p) + num_rows * sizeof(*p->rows) + ext * sizeof(*p->ext) + masks * sizeof(uint64_t) +
		tokens * sizeof(struct work_token);
	if (!heap_take(&e->heap, bytes))
		return NULL;
	p = calloc(1, sizeof(*p));
	if (!p) {
		heap_give(&e->heap, bytes);
		return NULL;
	}
	p->engine = e;
	p->heap = bytes;
	p->rows = calloc(num_rows, sizeof(*p->rows));
	p->ext = malloc(ext * sizeof(*p->ext));
	p->masks = masks ? malloc(masks * sizeof(uint64_t)) : NULL;
	if (!p->rows || !p->ext || (masks && !p->masks)) {
		plan_free(p);
		return NULL;
	}
	return p;
}

bool plan_busy(const struct engine *e, uint32_t ci, uint64_t key)
{
	const struct seq *s = seq_find(e, key);

	return s && (s->opening || (s->in[ci].plan && s->in[ci].plan->running));
}

/* Earlier plans of these sequences end; -EBUSY while a job runs on one. */
static int end_earlier(struct engine *e, uint32_t ci, const struct row_request *rows, uint32_t num_rows)
{
	for (uint32_t i = 0; i < num_rows; i++)
		if (plan_busy(e, ci, rows[i].wire.key))
			return -EBUSY;
	for (uint32_t i = 0; i < num_rows; i++) {
		struct seq *s = seq_find(e, rows[i].wire.key);

		if (s && s->in[ci].plan)
			plan_end(s->in[ci].plan);
	}
	return 0;
}

static void row_init(struct plan *p, struct plan_row *r, const struct row_request *q, size_t *ext, size_t *mask)
{
	uint32_t n = q->wire.num_tokens, words = (n + 63) / 64;

	r->seq = seq_find(p->engine, q->wire.key);
	r->start = (uint32_t)q->wire.start;
	r->n = n;
	r->first = p->num_tokens;
	r->flags = q->wire.flags;
	r->upto = q->wire.publish_upto;
	r->stand = NONE;
	r->ext = p->ext + *ext;
	*ext += n / p->cache->block_size + 3;
	if (q->mask) {
		r->mask = p->masks + *mask;
		r->mask_words = words;
		memcpy(p->masks + *mask, q->mask, (size_t)n * words * sizeof(uint64_t));
		*mask += (size_t)n * words;
	}
	p->num_tokens += n;
	p->max_row = n > p->max_row ? n : p->max_row;
}

int plan_make(const void *session, struct engine *e, uint32_t ci, uint32_t tag, const struct row_request *rows,
	      uint32_t num_rows, struct plan **list, struct plan **ret)
{
	struct cache *c = e->caches[ci].cache;
	size_t ext = 0, mask = 0;
	uint32_t longest = 0, *ids;
	bool waits = false;
	struct plan *p;
	int r = end_earlier(e, ci, rows, num_rows);

	if (r)
		return r;
	for (uint32_t i = 0; i < num_rows; i++)
		longest = rows[i].wire.num_tokens > longest ? rows[i].wire.num_tokens : longest;
	p = plan_alloc(e, c, rows, num_rows);
	ids = malloc((longest / c->block_size + 3) * sizeof(*ids));
	if (!p || !ids) {
		if (p)
			plan_free(p);
		free(ids);
		return -ENOMEM;
	}
	p->session = session;
	p->cache = c;
	p->cache_index = ci;
	p->tag = tag;
	p->num_rows = num_rows;
	p->list = list;
	p->next = *list;
	*list = p;
	for (uint32_t i = 0; i < num_rows && !waits; i++) {
		struct plan_row *row = &p->rows[i];

		row_init(p, row, &rows[i], &ext, &mask);
		row->status = rows[i].refuse	      ? rows[i].refuse
			      : !row->seq	      ? -ENOENT
			      : row->seq->in[ci].plan ? -EINVAL
						      : plan_one(p, row, &rows[i], ids);
		waits = row->status == -EAGAIN;
		if (row->status) {
			row->seq = NULL;
			row->cached = 0;
			continue;
		}
		row->seq->in[ci].plan = p;
		row->seq->plans++;
	}
	free(ids);
	if (waits) {
		plan_end(p);
		return -EAGAIN;
	}
	*ret = p;
	return 0;
}

struct plan *plan_find(struct plan *list, uint32_t tag)
{
	while (list && list->tag != tag)
		list = list->next;
	return list;
}

/*
 * The copy of a published tail of our own that a rolled-back row wrote into, while nobody else holds
 * it: the two trade places, so that the tail goes on with the new tokens instead of beside them.
 */
static void rejoin_tail(struct plan *p, struct plan_row *r)
{
	struct cache *c = p->cache;
	struct held *h = held_of(p, r->seq);
	uint32_t tail = r->source.id, copy = h->table[r->copy_index].id;
	struct block_aux *a = cache_aux(c, tail);

	if (!r->back || !r->copies || h->stand != tail || a->state != BLOCK_PUBLIC || a->refs != 1 || a->held_kids ||
	    a->owner || a->frozen || cache_count(c, tail) > r->copy_slots ||
	    h->stand_pos != (uint64_t)cache_block(c, tail)->position + cache_count(c, tail))
		return;
	cache_trade_places(c, tail, copy);
	a->owner = h->serial;
	a->fill = cache_aux(c, copy)->fill;
	held_set(h, c, r->copy_index, tail, false);
	cache_unref(c, h->account, copy);
}

/* Rolling back let go of the tail that the row wrote into in place, if that was the sequence's before, too. */
static void own_tail(struct plan *p, struct plan_row *r)
{
	uint32_t B = p->cache->block_size, at = r->start + r->cached, end = r->start + r->n;
	struct block_aux *a;

	if (r->cached == r->n || at % B == 0 || r->copies)
		return;
	a = cache_aux(p->cache, plan_entry(p, r, at / B)->id);
	a->owner = r->seq->serial;
	a->fill = (uint16_t)(end / B > at / B ? B : end % B);
}

static void commit_row(struct plan *p, struct plan_row *r)
{
	struct cache *c = p->cache;
	struct held *h = held_of(p, r->seq);

	if (r->back)
		held_trim(h, c, r->start);
	for (uint32_t j = 0; j < r->num_ext; j++)
		held_replace(h, c, r->from + j, &r->ext[j]);
	if (r->back)
		own_tail(p, r);
	h->num = r->num_ext ? r->from + r->num_ext : h->num;
	r->from = h->num;
	r->num_ext = 0;
	if (r->stand != NONE) {
		held_stand(h, c, r->stand);
		cache_unref(c, h->account, r->stand);
		r->stand = NONE;
		h->stand_pos = r->start + r->cached;
	}
	h->length = r->start + r->n;
	if ((r->mask || (r->flags & ATTND_WIRE_ROW_NONCAUSAL)) && h->pub_limit > r->start)
		h->pub_limit = r->start;
	rejoin_tail(p, r);
}

/* Up to so many more blocks of a row, whole ones; what that cost. True: it is done. */
static bool publish_row(struct plan *p, struct plan_row *r, uint32_t blocks, uint32_t *ret_cost)
{
	const struct cache *c = p->cache;
	struct held *h = held_of(p, r->seq);
	uint64_t before = h->stand_pos, end = ((before >> c->slots_shift) + blocks) << c->slots_shift;
	uint64_t n = held_publish(h, p->cache, r->seq->ns, r->upto < end ? r->upto : end);

	realm_count(p->engine->realm, published_tokens, n);
	*ret_cost = (uint32_t)(n >> c->slots_shift) * PUBLISH_BLOCK + 1;
	return h->stand_pos < end || r->upto <= end;
}

static void rows_advanced(struct plan *p)
{
	for (uint32_t i = 0; i < p->num_rows; i++)
		if (p->rows[i].seq)
			seq_advanced(p->rows[i].seq);
}

void plan_commit_begin(struct plan *p)
{
	for (uint32_t i = 0; i < p->num_rows; i++)
		stop_writing(p, &p->rows[i]);
	p->committed = p->publishing = true;
	for (uint32_t i = 0; i < p->num_rows; i++)
		if (p->rows[i].seq)
			commit_row(p, &p->rows[i]);
}

bool plan_publish(struct plan *p)
{
	int64_t left = PUBLISH_SLICE;

	while (left > 0 && p->publish_row < p->num_rows) {
		struct plan_row *r = &p->rows[p->publish_row];
		uint32_t cost = 0;

		if (!r->seq || publish_row(p, r, (uint32_t)left / PUBLISH_BLOCK + 1, &cost))
			p->publish_row++;
		left -= cost;
	}
	if (p->publish_row < p->num_rows)
		return false;
	p->publishing = false;
	rows_advanced(p);
	return true;
}

void plan_commit(struct plan *p)
{
	plan_commit_begin(p);
	while (!plan_publish(p))
		;
}

/* A block that was taken over and written in place is not this sequence's any more. */
static void leave_tail(struct plan *p, struct plan_row *r)
{
	uint32_t B = p->cache->block_size, at = r->start + r->cached;

	if (r->cached && r->cached < r->n && at % B && !r->copies)
		block_disown(p->cache, plan_entry(p, r, at / B)->id, r->seq->serial);
}

void plan_end(struct plan *p)
{
	struct plan **link;

	for (link = p->list; *link != p; link = &(*link)->next)
		;
	*link = p->next;
	for (uint32_t i = 0; i < p->num_rows; i++) {
		struct plan_row *r = &p->rows[i];
		struct seq *s = r->seq;

		if (!s)
			continue;
		if (!p->committed) {
			stop_writing(p, r);
			leave_tail(p, r);
			drop_row(p, r);
			held_unfill(held_of(p, s), p->cache);
		}
		seq_plan_done(s, p->cache_index);
	}
	work_free(p->work);
	plan_free(p);
}

void plan_let_go(struct plan *p, const void *by)
{
	if (!p->committed && by && by != p->session)
		return;
	if (p->running)
		p->orphan = true;
	else
		plan_end(p);
}

void plan_run(struct plan *p)
{
	struct cache *c = p->cache;

	if (p->running++)
		return;
	p->epoch = slabs_read(c);
	p->run_prev = NULL;
	p->run_next = c->running;
	if (c->running)
		c->running->run_prev = p;
	c->running = p;
}

void plan_ran(struct plan *p)
{
	if (--p->running)
		return;
	slabs_read_end(p->cache, p->epoch);
	*(p->run_prev ? &p->run_prev->run_next : &p->cache->running) = p->run_next;
	if (p->run_next)
		p->run_next->run_prev = p->run_prev;
}

int plan_missing_layer(const struct plan *p)
{
	for (uint32_t l = 0; l < p->cache->identity.num_layers; l++)
		if (!(p->written[l / 64] >> (l % 64) & 1))
			return (int)l;
	return -1;
}
