/* SPDX-License-Identifier: Apache-2.0 */
/* Accounts (account.h). */
#include "account.h"

#include <errno.h>
#include <stdlib.h>

#include "cache.h"

static uint64_t claim_of(const struct account *a, uint64_t used)
{
	return a->grant > used ? a->grant : used;
}

static void set_used(struct cache *c, struct account *a, uint64_t used)
{
	c->claimed -= claim_of(a, a->used);
	a->used = used;
	c->claimed += claim_of(a, used);
}

void account_set_grant(struct cache *c, struct account *a, uint64_t grant)
{
	c->claimed -= claim_of(a, a->used);
	c->granted -= a->grant;
	a->grant = grant;
	c->granted += grant;
	c->claimed += claim_of(a, a->used);
}

static uint32_t *count_of(const struct cache *c, const struct account *a, uint32_t id)
{
	return &a->count[id / c->blocks_per_slab][id % c->blocks_per_slab];
}

static int cover(const struct cache *c, struct account *a, uint32_t i)
{
	if (i >= a->num_ext) {
		uint32_t n = a->num_ext ? 2 * a->num_ext : 8;
		uint32_t **p;

		while (n <= i)
			n *= 2;
		p = realloc(a->count, n * sizeof(*p));
		if (!p)
			return -ENOMEM;
		for (uint32_t k = a->num_ext; k < n; k++)
			p[k] = NULL;
		a->count = p;
		a->num_ext = n;
	}
	if (!a->count[i])
		a->count[i] = calloc(c->blocks_per_slab, sizeof(**a->count));
	return a->count[i] ? 0 : -ENOMEM;
}

int accounts_cover(struct cache *c, uint32_t i)
{
	for (struct account *a = c->accounts; a; a = a->next)
		if (cover(c, a, i))
			return -ENOMEM;
	return 0;
}

static void account_free(struct account *a)
{
	for (uint32_t i = 0; a && i < a->num_ext; i++)
		free(a->count[i]);
	if (a)
		free(a->count);
	free(a);
}

static struct account *make(const struct cache *c)
{
	struct account *a = calloc(1, sizeof(*a));

	for (uint32_t i = 0; a && i < c->num_ext; i++) {
		if (c->ext[i].block && cover(c, a, i)) {
			account_free(a);
			return NULL;
		}
	}
	return a;
}

static void put(struct cache *c, struct account *a)
{
	a->next = c->accounts;
	c->accounts = a;
}

/* Until now everybody was in the commons: what blocks' holds say is what it holds. */
static int make_commons(struct cache *c)
{
	struct account *a = make(c);

	if (!a)
		return -ENOMEM;
	for (uint32_t i = 0; i < c->num_ext; i++)
		for (uint32_t b = 0; c->ext[i].block && b < c->blocks_per_slab; b++)
			a->count[i][b] = aux_hold(cache_aux(c, i * c->blocks_per_slab + b));
	put(c, a);
	c->commons = a;
	c->claimed = 0;
	set_used(c, a, c->total - c->free - c->evictable);
	return 0;
}

static void drop_commons(struct cache *c)
{
	account_free(c->commons);
	c->accounts = c->commons = NULL;
	c->claimed = 0;
}

int account_create(struct cache *c, struct account **ret)
{
	struct account *a;

	if (!c->commons && make_commons(c))
		return -ENOMEM;
	a = make(c);
	if (!a) {
		if (c->accounts == c->commons)
			drop_commons(c);
		return -ENOMEM;
	}
	put(c, a);
	*ret = a;
	return 0;
}

void account_destroy(struct cache *c, struct account *a)
{
	struct account **at;

	account_set_grant(c, a, 0);
	for (at = &c->accounts; *at != a; at = &(*at)->next)
		;
	*at = a->next;
	account_free(a);
	if (c->accounts == c->commons && !c->commons->next)
		drop_commons(c);
}

void account_hold(struct cache *c, struct account *a, uint32_t id)
{
	uint64_t used;

	if (!c->commons)
		return;
	a = a ? a : c->commons;
	used = a->used;
	while (id != ATTND_BLOCK_NONE && !(*count_of(c, a, id))++) {
		used++;
		id = cache_aux(c, id)->state == BLOCK_PUBLIC ? cache_block(c, id)->parent : ATTND_BLOCK_NONE;
	}
	set_used(c, a, used);
}

void account_drop(struct cache *c, struct account *a, uint32_t id)
{
	uint64_t used;

	if (!c->commons)
		return;
	a = a ? a : c->commons;
	used = a->used;
	while (id != ATTND_BLOCK_NONE && !--*count_of(c, a, id)) {
		used--;
		id = cache_aux(c, id)->state == BLOCK_PUBLIC ? cache_block(c, id)->parent : ATTND_BLOCK_NONE;
	}
	set_used(c, a, used);
}

uint64_t account_path(const struct cache *c, const struct account *a, uint32_t id)
{
	uint64_t n = 0;

	if (!c->commons)
		return 0;
	for (a = a ? a : c->commons; id != ATTND_BLOCK_NONE && !*count_of(c, a, id); id = cache_block(c, id)->parent)
		n++;
	return n;
}

uint64_t account_claim(const struct cache *c, const struct account *a, uint64_t blocks)
{
	if (!c->commons)
		return 0;
	a = a ? a : c->commons;
	return claim_of(a, a->used + blocks) - claim_of(a, a->used);
}
