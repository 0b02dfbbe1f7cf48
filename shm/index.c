/* SPDX-License-Identifier: Apache-2.0 */
/* The child index (index.h): chained hashing with a secret multiply-fold. */
#include "index.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

static uint64_t fold(uint64_t a, uint64_t b)
{
	unsigned __int128 m = (unsigned __int128)a * b;

	return (uint64_t)m ^ (uint64_t)(m >> 64);
}

static uint32_t bucket(const struct attnd_index *x, const struct attnd_index_key *k)
{
	uint64_t a = fold(k->token ^ x->secret[0], ((uint64_t)k->parent << 32 | k->slot) ^ x->secret[1]);

	return (uint32_t)fold(a ^ x->secret[1], k->ns ^ x->secret[0]) & x->mask;
}

static bool equal(const struct attnd_index_key *a, const struct attnd_index_key *b)
{
	return a->token == b->token && a->parent == b->parent && a->slot == b->slot && a->ns == b->ns;
}

int attnd_index_init(struct attnd_index *x, void (*key)(void *, uint32_t, struct attnd_index_key *),
		     uint32_t *(*next)(void *, uint32_t), void *ctx)
{
	struct attnd_index t = {.key = key, .next = next, .ctx = ctx, .mask = 255};

	if (getrandom(t.secret, sizeof(t.secret), 0) != sizeof(t.secret))
		return -EIO;
	t.secret[0] |= 1;
	t.secret[1] |= 1;
	t.heads = malloc((t.mask + 1) * sizeof(*t.heads));
	if (!t.heads)
		return -ENOMEM;
	memset(t.heads, 0xff, (t.mask + 1) * sizeof(*t.heads));
	*x = t;
	return 0;
}

void attnd_index_destroy(struct attnd_index *x)
{
	free(x->heads);
	x->heads = NULL;
}

static void link_in(struct attnd_index *x, uint32_t id)
{
	struct attnd_index_key k;
	uint32_t b;

	x->key(x->ctx, id, &k);
	b = bucket(x, &k);
	*x->next(x->ctx, id) = x->heads[b];
	x->heads[b] = id;
}

int attnd_index_reserve(struct attnd_index *x, uint32_t n)
{
	uint32_t old = x->mask + 1, buckets = old, *heads = x->heads;

	while (buckets < n && buckets < (UINT32_C(1) << 31))
		buckets *= 2;
	if (buckets == old)
		return 0;
	x->heads = malloc(buckets * sizeof(*x->heads));
	if (!x->heads) {
		x->heads = heads;
		return -ENOMEM;
	}
	memset(x->heads, 0xff, buckets * sizeof(*x->heads));
	x->mask = buckets - 1;
	for (uint32_t b = 0; b < old; b++) {
		for (uint32_t id = heads[b], next; id != UINT32_MAX; id = next) {
			next = *x->next(x->ctx, id);
			link_in(x, id);
		}
	}
	free(heads);
	return 0;
}

void attnd_index_prefetch(const struct attnd_index *x, uint32_t id)
{
	struct attnd_index_key k;

	x->key(x->ctx, id, &k);
	__builtin_prefetch(&x->heads[bucket(x, &k)], 1);
}

uint32_t attnd_index_find(const struct attnd_index *x, const struct attnd_index_key *key)
{
	uint32_t id = x->heads[bucket(x, key)];

	while (id != UINT32_MAX) {
		struct attnd_index_key k;

		x->key(x->ctx, id, &k);
		if (equal(&k, key))
			break;
		id = *x->next(x->ctx, id);
	}
	return id;
}

void attnd_index_insert(struct attnd_index *x, uint32_t id)
{
	link_in(x, id);
	x->used++;
}

void attnd_index_remove(struct attnd_index *x, uint32_t id)
{
	struct attnd_index_key k;
	uint32_t *p;

	x->key(x->ctx, id, &k);
	for (p = &x->heads[bucket(x, &k)]; *p != UINT32_MAX; p = x->next(x->ctx, *p)) {
		if (*p == id) {
			*p = *x->next(x->ctx, id);
			x->used--;
			return;
		}
	}
}
