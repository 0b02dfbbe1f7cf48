/* SPDX-License-Identifier: Apache-2.0 */
/* The flat model's memory and its checks (oracle.h). */
#include "oracle.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static uint64_t mix(uint64_t a, uint64_t b)
{
	uint64_t x = (a ^ (b * UINT64_C(0x9e3779b97f4a7c15))) + UINT64_C(0x632be59bd9b4e019);

	x ^= x >> 30;
	x *= UINT64_C(0xbf58476d1ce4e5b9);
	x ^= x >> 27;
	x *= UINT64_C(0x94d049bb133111eb);
	x ^= x >> 31;
	return x ? x : 1;
}

void oracle_open(struct oracle *o, const char *name, uint64_t seed)
{
	memset(o, 0, sizeof(*o));
	o->name = name;
	o->seed = seed;
	o->set_size = 1 << 12;
	o->set = calloc(o->set_size, sizeof(*o->set));
	assert_non_null(o->set);
}

void oracle_close(struct oracle *o)
{
	free(o->set);
}

void oracle_add(struct oracle *o, const struct cache *c)
{
	int i;

	for (i = 0; i < ORACLE_CACHES && o->cache[i]; i++)
		if (o->cache[i] == c)
			return;
	assert_in_range(i, 0, ORACLE_CACHES - 1);
	o->cache[i] = c;
}

void oracle_fail(const struct oracle *o, const char *format, ...)
{
	char text[256];
	va_list args;

	va_start(args, format);
	vsnprintf(text, sizeof(text), format, args);
	va_end(args);
	printf("# %s: seed %#llx, step %llu: %s\n", o->name, (unsigned long long)o->seed, (unsigned long long)o->step,
	       text);
	fflush(stdout);
	fail_msg("%s", text);
	abort();
}

/* ---- Texts ---- */

static uint32_t index_of(const struct oracle *o, const struct cache *c)
{
	uint32_t i = 0;

	while (o->cache[i] != c)
		i++;
	return i;
}

uint64_t text_seed(const struct oracle *o, const struct cache *c, uint32_t ns)
{
	return mix(index_of(o, c) + 1, ns + 1);
}

void text_trim(struct text *t, uint32_t len)
{
	t->len = t->len < len ? t->len : len;
	t->clean = t->clean < len ? t->clean : len;
}

void text_append(struct text *t, uint64_t token, uint64_t salt)
{
	uint32_t at = t->len++;

	t->token[at] = token;
	t->prefix[at] = mix(at ? t->prefix[at - 1] : t->seed, token);
	t->kv[at] = mix(at ? t->kv[at - 1] : t->seed, token) ^ salt;
	t->clean += t->clean == at && !salt;
}

/* ---- The set of published prefixes ---- */

static uint64_t *place(const struct oracle *o, uint64_t prefix)
{
	uint64_t i = prefix & (o->set_size - 1);

	while (o->set[i] && o->set[i] != prefix)
		i = (i + 1) & (o->set_size - 1);
	return &o->set[i];
}

static void grow_set(struct oracle *o)
{
	uint64_t *old = o->set, size = o->set_size;

	o->set_size *= 4;
	o->set = calloc(o->set_size, sizeof(*o->set));
	assert_non_null(o->set);
	for (uint64_t i = 0; i < size; i++)
		if (old[i])
			*place(o, old[i]) = old[i];
	free(old);
}

void oracle_publish(struct oracle *o, const struct text *t, uint32_t from, uint32_t to)
{
	for (; from < to; from++) {
		uint64_t *p = place(o, t->prefix[from]);

		ORACLE_CHECK(o, from < t->clean);
		if (*p)
			continue;
		*p = t->prefix[from];
		if (++o->set_used * 2 > o->set_size)
			grow_set(o);
	}
}

bool oracle_has(const struct oracle *o, uint64_t prefix)
{
	return *place(o, prefix) != 0;
}

uint32_t oracle_match(const struct oracle *o, const struct text *t, uint32_t at, const uint64_t *tokens, uint32_t n)
{
	uint64_t prefix = at ? t->prefix[at - 1] : t->seed;
	uint32_t i;

	for (i = 0; i < n; i++) {
		prefix = mix(prefix, tokens[i]);
		if (!oracle_has(o, prefix))
			break;
	}
	return i;
}

/* ---- Slots ---- */

uint64_t *oracle_at(const struct cache *c, uint64_t offset, uint32_t slot)
{
	return (uint64_t *)(void *)((char *)c->pool->nodes[0].base + offset +
				    slot * (c->block_bytes / c->block_size));
}

uint64_t *oracle_slot(const struct cache *c, uint32_t id, uint32_t slot)
{
	return oracle_at(c, cache_offset(c, id), slot);
}

void oracle_read(const struct oracle *o, const struct cache *c, const struct table_entry *e, uint32_t pos,
		 uint64_t token, uint64_t kv)
{
	uint32_t slot = pos % c->block_size;

	if (cache_tokens(c, e->id)[slot] != token)
		oracle_fail(o, "position %u: block %u has another token", pos, e->id);
	if (*oracle_slot(c, e->id, slot) != kv)
		oracle_fail(o, "position %u: block %u has the K/V of another prefix", pos, e->id);
}

void oracle_table(const struct oracle *o, const struct cache *c, const struct held *h, const struct text *t)
{
	ORACLE_CHECK(o, h->length == t->len);
	ORACLE_CHECK(o, h->num == (t->len + c->block_size - 1) / c->block_size);
	ORACLE_CHECK(o, h->stand_pos <= h->length && h->stand_pos <= t->clean);
	ORACLE_CHECK(o, (h->stand == ATTND_BLOCK_NONE) == (h->stand_pos == 0));
	for (uint32_t i = 0; i < h->num; i++) {
		const struct block_aux *a = cache_aux(c, h->table[i].id);

		ORACLE_CHECK(o, a->state >= BLOCK_PRIVATE && aux_hold(a));
		ORACLE_CHECK(o, !h->table[i].own || a->refs);
		ORACLE_CHECK(o, h->table[i].own || a->state == BLOCK_PUBLIC);
		ORACLE_CHECK(o, h->table[i].flags == cache_flags(c, h->table[i].id));
	}
	for (uint32_t p = 0; p < t->len; p++)
		oracle_read(o, c, &h->table[p / c->block_size], p, t->token[p], t->kv[p]);
}

/* ---- Checks of everything ---- */

void oracle_cheap(const struct oracle *o, const struct world *w)
{
	uint64_t slabs = w->pool.num_free;

	for (int i = 0; i < ORACLE_CACHES && o->cache[i]; i++) {
		const struct cache *c = o->cache[i];

		ORACLE_CHECK(o, c->free + c->evictable <= c->total);
		ORACLE_CHECK(o, c->total == (uint64_t)c->num_slabs * c->blocks_per_slab ||
					(c->move.phase && c->total < (uint64_t)c->num_slabs * c->blocks_per_slab));
		slabs += c->num_slabs;
	}
	ORACLE_CHECK(o, slabs == w->pool.num_slabs);
}

/* What holds a block: references, and of each account its references and held children. */
struct holds {
	uint32_t *refs;
	uint32_t *count;
	uint64_t used;
};

static void hold(const struct cache *c, struct holds *n, uint32_t id, bool counted)
{
	n->refs[id]++;
	while (counted && id != ATTND_BLOCK_NONE && !n->count[id]++) {
		n->used++;
		id = cache_aux(c, id)->state == BLOCK_PUBLIC ? cache_block(c, id)->parent : ATTND_BLOCK_NONE;
	}
}

static void count_held(const struct cache *c, struct holds *n, const struct held *h, const struct account *a)
{
	for (uint32_t i = 0; i < h->num; i++)
		if (h->table[i].own)
			hold(c, n, h->table[i].id, h->account == a);
	if (h->stand != ATTND_BLOCK_NONE)
		hold(c, n, h->stand, h->account == a);
}

static void count_plan(const struct cache *c, struct holds *n, const struct plan *p, const struct account *a)
{
	for (uint32_t i = 0; i < p->num_rows && !p->committed; i++) {
		const struct plan_row *r = &p->rows[i];
		bool counted = r->seq && r->seq->in[p->cache_index].held.account == a;

		for (uint32_t k = 0; r->seq && k < r->num_ext; k++)
			if (r->ext[k].own)
				hold(c, n, r->ext[k].id, counted);
		if (r->seq && r->stand != ATTND_BLOCK_NONE)
			hold(c, n, r->stand, counted);
	}
}

/* `a` as an account's holders know it: the commons is nobody's own. */
static void count_all(const struct world *w, const struct cache *c, struct plan *const *plans, uint32_t num_plans,
		      const struct oracle_pin *pins, uint32_t num_pins, const struct account *a, struct holds *n)
{
	for (uint32_t i = 0; i < num_pins; i++)
		if (pins[i].cache == c)
			hold(c, n, pins[i].stand, !a);
	for (const struct engine *e = w->engines.first; e; e = e->next)
		for (uint32_t i = 0; i < e->num_caches; i++)
			for (const struct seq *s = e->seqs; s && e->caches[i].cache == c; s = s->next)
				count_held(c, n, &s->in[i].held, a);
	for (uint32_t k = 0; k < num_plans; k++)
		if (plans[k] && plans[k]->cache == c)
			count_plan(c, n, plans[k], a);
}

static void check_account(const struct oracle *o, const struct cache *c, const struct account *a,
			  const struct holds *n)
{
	ORACLE_CHECK(o, a->used == n->used);
	for (uint32_t id = 0; id < c->num_ext * c->blocks_per_slab; id++)
		if (cache_ext(c, id)->block)
			ORACLE_CHECK(o, a->count[id / c->blocks_per_slab][id % c->blocks_per_slab] == n->count[id]);
}

/* References and accounts of one cache, from all that could hold something. */
static void check_refs(const struct oracle *o, const struct world *w, const struct cache *c,
		       struct plan *const *plans, uint32_t num_plans, const struct oracle_pin *pins,
		       uint32_t num_pins)
{
	uint32_t blocks = c->num_ext * c->blocks_per_slab;
	struct holds n = {.refs = calloc(blocks + 1, sizeof(uint32_t)),
			  .count = calloc(blocks + 1, sizeof(uint32_t))};
	const struct account *a = c->accounts;
	uint64_t claimed = 0, granted = 0;

	assert_non_null(n.refs);
	assert_non_null(n.count);
	do {
		memset(n.refs, 0, blocks * sizeof(uint32_t));
		memset(n.count, 0, blocks * sizeof(uint32_t));
		n.used = 0;
		count_all(w, c, plans, num_plans, pins, num_pins, a == c->commons ? NULL : a, &n);
		if (!a)
			break;
		check_account(o, c, a, &n);
		claimed += a->used > a->grant ? a->used : a->grant;
		granted += a->grant;
		a = a->next;
	} while (a);
	ORACLE_CHECK(o, claimed == c->claimed && granted == c->granted &&
				(!granted || claimed <= (uint64_t)c->num_slabs * c->blocks_per_slab));
	for (uint32_t id = 0; id < blocks; id++)
		if (n.refs[id] != (cache_ext(c, id)->block ? cache_aux(c, id)->refs : 0))
			oracle_fail(o, "block %u has %u references, %u hold it", id, cache_aux(c, id)->refs,
				    n.refs[id]);
	free(n.refs);
	free(n.count);
}

/* The text that a published block ends. */
static void path_text(const struct oracle *o, const struct cache *c, uint32_t id, struct text *t)
{
	uint32_t path[TEXT_MAX], n = 0, count = cache_count(c, id);

	for (uint32_t at = id; at != ATTND_BLOCK_NONE;) {
		ORACLE_CHECK(o, cache_aux(c, at)->state == BLOCK_PUBLIC && n < TEXT_MAX);
		path[n++] = at;
		while (cache_block(c, at)->first) {
			uint32_t up = cache_block(c, at)->parent;

			ORACLE_CHECK(o, cache_count(c, up) >= cache_block(c, at)->first);
			ORACLE_CHECK(o, !memcmp(cache_tokens(c, up), cache_tokens(c, at),
						cache_block(c, at)->first * sizeof(uint64_t)));
			at = up;
		}
		at = cache_block(c, at)->parent;
		ORACLE_CHECK(o, at == ATTND_BLOCK_NONE || cache_count(c, at) == c->block_size);
	}
	ORACLE_CHECK(o, cache_block(c, id)->position == (n - 1) * c->block_size);
	while (n--)
		for (uint32_t s = 0; s < (n ? c->block_size : count); s++)
			text_append(t, cache_tokens(c, path[n])[s], 0);
}

/* Nothing is visible that no plan published, and what is visible has its K/V. */
static void check_visible(const struct oracle *o, const struct cache *c, uint64_t *seeds, uint32_t num_seeds)
{
	for (uint32_t id = 0; id < c->num_ext * c->blocks_per_slab; id++) {
		struct text t = {.seed = 0};
		uint32_t from;

		if (!cache_ext(c, id)->block || cache_aux(c, id)->state != BLOCK_PUBLIC)
			continue;
		ORACLE_CHECK(o, cache_block(c, id)->ns < num_seeds);
		t.seed = seeds[cache_block(c, id)->ns];
		path_text(o, c, id, &t);
		from = cache_block(c, id)->position;
		for (uint32_t p = from; p < t.len; p++) {
			if (p >= from + cache_block(c, id)->first && !oracle_has(o, t.prefix[p]))
				oracle_fail(o, "block %u shows position %u, which nobody published", id, p);
			if (*oracle_slot(c, id, p - from) != t.prefix[p])
				oracle_fail(o, "block %u shows wrong K/V at position %u", id, p);
		}
	}
}

/* By namespace id: engines give the same handle to the same name. */
static uint32_t find_seeds(const struct oracle *o, const struct world *w, const struct cache *c, uint64_t *seeds,
			   uint32_t max)
{
	memset(seeds, 0, max * sizeof(*seeds));
	for (const struct engine *e = w->engines.first; e; e = e->next)
		for (uint32_t i = 0; i < e->num_ns; i++)
			if (e->ns[i] < max)
				seeds[e->ns[i]] = text_seed(o, c, i);
	return max;
}

void oracle_full(const struct oracle *o, const struct world *w, struct plan *const *plans, uint32_t num_plans,
		 const struct oracle_pin *pins, uint32_t num_pins)
{
	uint64_t seeds[16];

	for (int i = 0; i < ORACLE_CACHES && o->cache[i]; i++) {
		const struct cache *c = o->cache[i];
		const char *bad = cache_check(c);
		uint32_t n = find_seeds(o, w, c, seeds, 16);

		if (bad)
			oracle_fail(o, "cache_check: %s", bad);
		check_refs(o, w, c, plans, num_plans, pins, num_pins);
		check_visible(o, c, seeds, n);
	}
}
