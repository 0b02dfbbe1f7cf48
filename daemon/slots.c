/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Block tables in other systems' words: req_to_token, kv_indptr and kv_indices, block_table,
 * qo_indptr, for sequences or for a plan's rows.
 *
 * In:   a checked copy of a SLOT_TABLE payload. Out: arrays in the arena; how many entries.
 * Next: reply.c.
 */
#include <errno.h>
#include <string.h>

#include "lead.h"

enum { SLICE = 16384 }; /* entries at a time: some 50 us */

struct tables {
	const struct attnd_wire_slots *w;
	const struct cache *c;
	const uint64_t *keys;	 /* of sequences, or: */
	const struct plan *plan; /* its rows */
	int32_t *seq_lens, *kv_indptr, *kv_indices, *qo_indptr;
};

/* One of the batch. */
struct member_table {
	const struct held *held;    /* NULL: there is none */
	const struct plan_row *row; /* NULL: only what the sequence holds */
	uint64_t length;
};

static struct member_table member_at(const struct tables *t, const struct engine *e, uint32_t i)
{
	const struct plan_row *r = t->plan ? &t->plan->rows[i] : NULL;
	const struct seq *s = r ? r->seq : seq_find(e, t->keys[i]);

	if (!s)
		return (struct member_table){.held = NULL};
	return (struct member_table){.held = &s->in[t->w->cache].held,
				     .row = r,
				     .length = r ? (uint64_t)r->start + r->n : s->in[t->w->cache].held.length};
}

static uint64_t units(const struct tables *t, uint64_t length)
{
	return t->w->unit == ATTND_WIRE_SLOTS_BLOCKS ? (length + t->c->block_size - 1) >> t->c->slots_shift : length;
}

/* Every limit, before anything is written. */
static struct answer measure(const struct tables *t, const struct engine *e)
{
	uint64_t sum = 0, slots = (uint64_t)t->c->num_ext * t->c->blocks_per_slab * t->c->block_size;

	if (t->w->unit == ATTND_WIRE_SLOTS_TOKENS && slots > INT32_MAX)
		return ANSWER_BAD(EOVERFLOW, BLOCKS, INT32_MAX);
	for (uint32_t i = 0; i < t->w->num; i++) {
		struct member_table m = member_at(t, e, i);

		if (!m.held && !t->plan)
			return ANSWER_BAD(ENOENT, SEQUENCE, i);
		if (t->w->width && units(t, m.length) > t->w->width)
			return ANSWER_BAD(ERANGE, LENGTH, units(t, m.length));
		sum += t->w->width ? t->w->width : units(t, m.length);
	}
	return sum > t->w->capacity ? ANSWER_BAD(ENOSPC, LENGTH, sum) : ANSWER_VALUE(sum);
}

/* Entries of one of the batch from token j->pos on, about `most`; how many tokens that were. */
static uint64_t put_units(const struct tables *t, const struct member_table *m, const struct slots_job *j,
			  uint64_t most)
{
	bool blocks = t->w->unit == ATTND_WIRE_SLOTS_BLOCKS;
	uint32_t B = t->c->block_size;
	int32_t *first = t->kv_indices + j->at + (blocks ? j->pos >> t->c->slots_shift : j->pos), *to = first;
	uint64_t p = j->pos;

	for (; p < m->length && (uint64_t)(to - first) < most; p += B) {
		uint32_t i = (uint32_t)(p >> t->c->slots_shift);
		uint32_t id = m->row ? plan_entry(t->plan, m->row, i)->id : m->held->table[i].id;

		if (blocks) {
			*to++ = (int32_t)id;
			continue;
		}
		for (uint32_t slot = 0; slot < B && p + slot < m->length; slot++)
			*to++ = (int32_t)(id * B + slot);
	}
	return p - j->pos;
}

static void begin_member(const struct tables *t, const struct member_table *m, struct slots_job *j)
{
	j->pos = 0;
	j->length = m->length;
	if (t->seq_lens)
		t->seq_lens[j->member] = (int32_t)m->length;
	if (t->kv_indptr)
		t->kv_indptr[j->member] = (int32_t)j->at;
	if (t->qo_indptr)
		t->qo_indptr[j->member] = (int32_t)j->queries;
}

/* Of the next one. What was measured may have changed since the last slice: another session of the engine. */
static struct answer put_member(const struct tables *t, const struct engine *e, struct slots_job *j, uint64_t *left)
{
	struct member_table m = member_at(t, e, j->member);
	uint64_t n = units(t, m.length), room = t->w->width ? t->w->width : n;

	if (!m.held && !t->plan)
		return ANSWER_BAD(ENOENT, SEQUENCE, j->member);
	if (n > room)
		return ANSWER_BAD(ERANGE, LENGTH, n);
	if (room > t->w->capacity || j->at > t->w->capacity - room)
		return ANSWER_BAD(ENOSPC, LENGTH, j->at + room);
	if (!j->pos || m.length != j->length)
		begin_member(t, &m, j);
	if (n) /* there is an array */
		j->pos += put_units(t, &m, j, *left);
	*left -= *left < n ? *left : n;
	if (j->pos < m.length)
		return ANSWER_LATER;
	if (room > n)
		memset(t->kv_indices + j->at + n, 0xff, (room - n) * sizeof(int32_t)); /* -1 */
	*left -= *left < room / 16 ? *left : room / 16;
	j->pos = 0;
	j->at += room;
	j->queries += t->plan ? t->plan->rows[j->member].n : 0;
	j->member++;
	return ANSWER_OK;
}

static struct answer put_slice(const struct tables *t, const struct engine *e, struct slots_job *j)
{
	uint64_t left = SLICE;

	while (j->member < t->w->num) {
		struct answer a = left ? put_member(t, e, j, &left) : ANSWER_LATER;

		if (a.res)
			return a;
	}
	if (t->kv_indptr)
		t->kv_indptr[t->w->num] = (int32_t)j->at;
	if (t->qo_indptr)
		t->qo_indptr[t->w->num] = (int32_t)j->queries;
	return ANSWER_VALUE(j->at);
}

/* An array of int32_t, or none. */
static bool array_at(const struct lead_session *ls, uint64_t offset, uint64_t num, int32_t **ret)
{
	*ret = offset == ATTND_OFFSET_NONE ? NULL : arena_at(ls, offset, num * sizeof(int32_t), sizeof(int32_t));
	return *ret || offset == ATTND_OFFSET_NONE;
}

struct answer slots_table(struct lead_session *ls, const struct attnd_wire_slots *w, const uint64_t *keys)
{
	const struct engine *e = ls->engine;
	struct tables t = {.w = w, .c = e->caches[w->cache].cache, .keys = keys};
	struct answer a;

	if (!keys) {
		t.plan = plan_find(ls->plans, w->plan);
		if (!t.plan)
			return ANSWER_BAD(ESTALE, PLAN, 0);
		if (t.plan->cache_index != w->cache)
			return ANSWER_BAD(EINVAL, CACHE, t.plan->cache_index);
		if (t.plan->num_rows != w->num)
			return ANSWER_BAD(EINVAL, ROWS, t.plan->num_rows);
	}
	if (!array_at(ls, w->seq_lens, w->num, &t.seq_lens) ||
	    !array_at(ls, w->kv_indptr, (uint64_t)w->num + 1, &t.kv_indptr) ||
	    !array_at(ls, w->kv_indices, w->capacity, &t.kv_indices) ||
	    !array_at(ls, w->qo_indptr, (uint64_t)w->num + 1, &t.qo_indptr) || (w->capacity && !t.kv_indices))
		return ANSWER_BAD(EFAULT, OFFSET, 0);
	a = ls->slots.begun ? ANSWER_OK : measure(&t, e);
	if (a.res)
		return a;
	if (!ls->slots.begun)
		ls->slots = (struct slots_job){.begun = true};
	return put_slice(&t, e, &ls->slots);
}
