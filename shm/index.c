/* SPDX-License-Identifier: Apache-2.0 */
/* The child index (index.h): chained hashing with a secret multiply-fold. */
#include "index.h"

#include <errno.h>
#include <sys/random.h>

#include "region.h"

enum { MOVE = 8 }; /* buckets, with each insert: done long before the next table is full */

static uint64_t fold(uint64_t a, uint64_t b)
{
	unsigned __int128 m = (unsigned __int128)a * b;

	return (uint64_t)m ^ (uint64_t)(m >> 64);
}

static uint32_t hash(const struct attnd_index *x, const struct attnd_index_key *k)
{
	uint64_t a = fold(k->token ^ x->secret[0], ((uint64_t)k->parent << 32 | k->slot) ^ x->secret[1]);

	return (uint32_t)fold(a ^ x->secret[1], k->ns ^ x->secret[0]);
}

/* The head of its chain, wherever that stands now. */
static uint32_t *head_of(const struct attnd_index *x, const struct attnd_index_key *k)
{
	uint32_t h = hash(x, k);

	return x->old && (h & x->old_mask) >= x->moved ? &x->old[h & x->old_mask] : &x->heads[h & x->mask];
}

static bool equal(const struct attnd_index_key *a, const struct attnd_index_key *b)
{
	return a->token == b->token && a->parent == b->parent && a->slot == b->slot && a->ns == b->ns;
}

static size_t heads_bytes(uint32_t mask)
{
	return ((size_t)mask + 1) * sizeof(uint32_t);
}

int attnd_index_init(struct attnd_index *x, void (*key)(void *, uint32_t, struct attnd_index_key *),
		     uint32_t *(*next)(void *, uint32_t), void *ctx)
{
	struct attnd_index t = {.key = key, .next = next, .ctx = ctx, .mask = 255};

	if (getrandom(t.secret, sizeof(t.secret), 0) != sizeof(t.secret))
		return -EIO;
	t.secret[0] |= 1;
	t.secret[1] |= 1;
	t.heads = attnd_table_alloc(heads_bytes(t.mask));
	if (!t.heads)
		return -ENOMEM;
	*x = t;
	return 0;
}

void attnd_index_destroy(struct attnd_index *x)
{
	attnd_table_free(x->heads, heads_bytes(x->mask));
	attnd_table_free(x->old, heads_bytes(x->old_mask));
	x->heads = x->old = NULL;
}

static void link_in(struct attnd_index *x, uint32_t id)
{
	struct attnd_index_key k;
	uint32_t *head;

	x->key(x->ctx, id, &k);
	head = head_of(x, &k);
	*x->next(x->ctx, id) = *head - 1;
	*head = id + 1;
}

/* Up to n buckets of the old table. */
static void move_buckets(struct attnd_index *x, uint32_t n)
{
	for (; x->old && n; n--) {
		uint32_t id = x->old[x->moved++] - 1;

		for (uint32_t next; id != UINT32_MAX; id = next) {
			next = *x->next(x->ctx, id);
			link_in(x, id);
		}
		if (x->moved <= x->old_mask)
			continue;
		attnd_table_free(x->old, heads_bytes(x->old_mask));
		x->old = NULL;
	}
}

/* Untouched pages: a large table takes no time. */
static int grow(struct attnd_index *x)
{
	uint32_t buckets = x->mask + 1, *heads;

	while (buckets < x->want && buckets < (UINT32_C(1) << 31))
		buckets *= 2;
	heads = buckets > x->mask + 1 ? attnd_table_alloc(heads_bytes(buckets - 1)) : x->heads;
	if (!heads)
		return -ENOMEM;
	if (heads == x->heads)
		return 0;
	x->old = x->heads;
	x->old_mask = x->mask;
	x->moved = 0;
	x->heads = heads;
	x->mask = buckets - 1;
	if (!x->used)
		move_buckets(x, UINT32_MAX);
	return 0;
}

/* Two buckets an entry: each other entry in a chain is a cache miss. */
int attnd_index_reserve(struct attnd_index *x, uint32_t n)
{
	uint32_t want = n < UINT32_MAX / 2 ? 2 * n : UINT32_MAX;

	x->want = want > x->want ? want : x->want;
	return x->old ? 0 : grow(x);
}

void attnd_index_prefetch(const struct attnd_index *x, uint32_t id)
{
	struct attnd_index_key k;

	x->key(x->ctx, id, &k);
	__builtin_prefetch(head_of(x, &k), 1);
}

uint32_t attnd_index_find(const struct attnd_index *x, const struct attnd_index_key *key)
{
	uint32_t id = *head_of(x, key) - 1;

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
	move_buckets(x, MOVE);
	if (!x->old)
		(void)grow(x); /* else chains are longer for now */
	link_in(x, id);
	x->used++;
}

void attnd_index_remove(struct attnd_index *x, uint32_t id)
{
	struct attnd_index_key k;
	uint32_t *head, at;

	x->key(x->ctx, id, &k);
	head = head_of(x, &k);
	at = *head - 1;
	if (at == id) {
		*head = *x->next(x->ctx, id) + 1;
		x->used--;
		return;
	}
	for (uint32_t *p; at != UINT32_MAX; at = *p) {
		p = x->next(x->ctx, at);
		if (*p == id) {
			*p = *x->next(x->ctx, id);
			x->used--;
			return;
		}
	}
}
