/* SPDX-License-Identifier: Apache-2.0 */
/* Twins (twin.h): a hash table over the prefixes that live sequences are about to compute. */
#include "twin.h"

#include <sodium.h>
#include <stdlib.h>

static uint64_t fold(uint64_t a, uint64_t b)
{
	unsigned __int128 m = (unsigned __int128)a * b;

	return (uint64_t)m ^ (uint64_t)(m >> 64);
}

uint64_t twin_hash_begin(const struct twin_table *t, const uint64_t *parts, uint32_t num_parts)
{
	uint64_t h = t->secret | 1;

	for (uint32_t i = 0; i < num_parts; i++)
		h = fold(h ^ parts[i], t->secret | 1) + i + 1;
	return h;
}

uint64_t twin_hash(const struct twin_table *t, uint64_t before, const uint64_t *tokens)
{
	uint64_t a = before, b = before + UINT64_C(0x9e3779b97f4a7c15);

	for (int i = 0; i < TWIN_TOKENS; i += 2) {
		a = fold(a ^ tokens[i], t->secret | 1) + UINT64_C(0x632be59bd9b4e019);
		b = fold(b ^ tokens[i + 1], t->secret | 1) + UINT64_C(0x2545f4914f6cdd1d);
	}
	return fold(a ^ t->secret, b | 1);
}

void twin_table_destroy(struct twin_table *t)
{
	free(t->buckets);
	t->buckets = NULL;
}

bool twin_begin(struct twin_table *t, struct twin *w, uint32_t first, uint32_t num, uint32_t *used)
{
	uint32_t left = TWIN_ENGINE_UNITS - *used;

	left = left < TWIN_ALL_UNITS - t->num ? left : TWIN_ALL_UNITS - t->num;
	num = num < left ? num : left;
	num = num < TWIN_SEQ_UNITS ? num : TWIN_SEQ_UNITS;
	w->units = num ? malloc(num * sizeof(*w->units)) : NULL;
	if (!w->units)
		return false;
	w->first = first;
	w->num = 0;
	w->cap = num;
	*used += num;
	t->num += num;
	return true;
}

void twin_forget(struct twin_table *t, struct twin *w, uint32_t *used)
{
	free(w->units);
	w->units = NULL;
	*used -= w->cap;
	t->num -= w->cap;
	w->num = w->cap = 0;
}

static struct twin_unit **bucket(const struct twin_table *t, uint64_t hash)
{
	return &t->buckets[hash >> 40 & (TWIN_BUCKETS - 1)];
}

/* Made at the first use. */
static bool make_table(struct twin_table *t)
{
	if (!t->buckets)
		t->buckets = calloc(TWIN_BUCKETS, sizeof(struct twin_unit *));
	return t->buckets != NULL;
}

void twin_announce(struct twin_table *t, struct twin *w)
{
	if (!w->num || !make_table(t))
		return;
	for (uint32_t i = 0; i < w->num; i++) {
		struct twin_unit *u = &w->units[i], **b = bucket(t, u->hash);

		u->twin = w;
		u->index = i;
		u->next = *b;
		u->pprev = b;
		if (u->next)
			u->next->pprev = &u->next;
		*b = u;
	}
	w->announced = true;
}

void twin_withdraw(struct twin_table *t, struct twin *w, uint32_t *used)
{
	for (uint32_t i = 0; w->announced && i < w->num; i++) {
		struct twin_unit *u = &w->units[i];

		*u->pprev = u->next; /* many may announce the same prompt */
		if (u->next)
			u->next->pprev = u->pprev;
	}
	w->announced = false;
	twin_forget(t, w, used);
	while (w->waiters) {
		struct twin *other = w->waiters;

		twin_stir(t, other);
		twin_wait(other, NULL);
	}
}

struct twin *twin_find(const struct twin_table *t, const struct twin *w, uint64_t length, uint64_t *ret_end)
{
	uint64_t unit = length / TWIN_TOKENS;
	const struct twin_unit *mine, *u;
	uint32_t n = 1;

	if (!t->buckets || unit < w->first || unit >= (uint64_t)w->first + w->num)
		return NULL;
	mine = &w->units[unit - w->first];
	for (u = *bucket(t, mine->hash); u && (u->hash != mine->hash || u->twin == w); u = u->next)
		;
	if (!u)
		return NULL;
	while (mine + n < w->units + w->num && u->index + n < u->twin->num && mine[n].hash == u[n].hash)
		n++;
	*ret_end = (unit + n) * TWIN_TOKENS;
	return u->twin;
}

void twin_wait(struct twin *w, struct twin *other)
{
	if (w->waits_for) {
		*(w->prev ? &w->prev->next : &w->waits_for->waiters) = w->next;
		if (w->next)
			w->next->prev = w->prev;
	}
	w->waits_for = other;
	w->prev = NULL;
	w->next = other ? other->waiters : NULL;
	if (w->next)
		w->next->prev = w;
	if (other)
		other->waiters = w;
}

void twin_stir(struct twin_table *t, struct twin *w)
{
	w->stirred = true;
	t->stirs++;
}

void twin_stir_waiters(struct twin_table *t, struct twin *w)
{
	for (struct twin *other = w->waiters; other; other = other->next)
		twin_stir(t, other);
}
