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

static void put_units(const struct tables *t, const struct member_table *m, int32_t *to)
{
	uint32_t B = t->c->block_size;

	for (uint64_t p = 0; p < m->length; p += B) {
		uint32_t i = (uint32_t)(p >> t->c->slots_shift);
		uint32_t id = m->row ? plan_entry(t->plan, m->row, i)->id : m->held->table[i].id;

		if (t->w->unit == ATTND_WIRE_SLOTS_BLOCKS) {
			*to++ = (int32_t)id;
			continue;
		}
		for (uint32_t slot = 0; slot < B && p + slot < m->length; slot++)
			*to++ = (int32_t)(id * B + slot);
	}
}

static void put_all(const struct tables *t, const struct engine *e)
{
	uint64_t at = 0, queries = 0;

	for (uint32_t i = 0; i < t->w->num; i++) {
		struct member_table m = member_at(t, e, i);
		uint64_t n = units(t, m.length), room = t->w->width ? t->w->width : n;

		if (t->seq_lens)
			t->seq_lens[i] = (int32_t)m.length;
		if (t->kv_indptr)
			t->kv_indptr[i] = (int32_t)at;
		if (t->qo_indptr)
			t->qo_indptr[i] = (int32_t)queries;
		put_units(t, &m, t->kv_indices + at);
		memset(t->kv_indices + at + n, 0xff, (room - n) * sizeof(int32_t)); /* -1 */
		at += room;
		queries += t->plan ? t->plan->rows[i].n : 0;
	}
	if (t->kv_indptr)
		t->kv_indptr[t->w->num] = (int32_t)at;
	if (t->qo_indptr)
		t->qo_indptr[t->w->num] = (int32_t)queries;
}

/* An array of int32_t, or none. */
static bool array_at(const struct lead_session *ls, uint64_t offset, uint64_t num, int32_t **ret)
{
	*ret = offset == ATTND_OFFSET_NONE ? NULL : arena_at(ls, offset, num * sizeof(int32_t), sizeof(int32_t));
	return *ret || offset == ATTND_OFFSET_NONE;
}

struct answer slots_table(const struct lead_session *ls, const struct attnd_wire_slots *w, const uint64_t *keys)
{
	const struct engine *e = ls->engine;
	struct tables t = {.w = w, .c = e->caches[w->cache].cache, .keys = keys};
	struct answer a;

	if (!keys) {
		t.plan = plan_find(ls->plans, w->plan);
		if (!t.plan)
			return ANSWER_BAD(ESTALE, PLAN, w->plan);
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
	a = measure(&t, e);
	if (!a.res)
		put_all(&t, e);
	return a;
}
