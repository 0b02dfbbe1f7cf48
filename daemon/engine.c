/* SPDX-License-Identifier: Apache-2.0 */
/* Engines and sequences (engine.h). */
#include "engine.h"

#include <errno.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ns.h"
#include "plan.h"
#include "scrub.h"
#include "slabs.h"

enum { CLOSE_BLOCKS = 256 }; /* of a sequence that takes as long to close as one without */

/* ---- Engines ---- */

int engine_create(struct engine_table *t, const uint8_t *id, const struct engine_maker *by, struct engine **ret)
{
	struct engine *e = calloc(1, sizeof(*e));

	if (!e)
		return -ENOMEM;
	e->num_buckets = 64;
	e->buckets = calloc(e->num_buckets, sizeof(*e->buckets));
	e->ns = calloc(4, sizeof(*e->ns));
	if (!e->buckets || !e->ns) {
		free(e->buckets);
		free(e->ns);
		free(e);
		return -ENOMEM;
	}
	e->cap_ns = 4;
	e->num_ns = 1;
	e->ns_table = t->ns;
	if (id) {
		memcpy(e->id, id, sizeof(e->id));
		e->named = true;
	}
	e->realm = by->realm;
	e->uid = by->uid;
	e->owner = by->session;
	e->alone = by->alone;
	if (e->alone)
		snprintf(e->shares, sizeof(e->shares), "engine:%llu", (unsigned long long)++t->serial);
	else
		snprintf(e->shares, sizeof(e->shares), "%s", e->realm->name);
	e->sessions = 1;
	e->max_seqs = t->max_seqs;
	e->twins = &t->twins;
	e->heap.heap = &t->heap;
	if (!t->twins.secret)
		randombytes_buf(&t->twins.secret, sizeof(t->twins.secret));
	e->next = t->first;
	t->first = e;
	*ret = e;
	return 0;
}

struct engine *engine_find(struct engine_table *t, const uint8_t *id)
{
	struct engine *e;

	for (e = t->first; e; e = e->next)
		if (e->named && !e->dead && e->sessions && !memcmp(e->id, id, sizeof(e->id)))
			break;
	return e;
}

static void engine_free(struct engine_table *t, struct engine *e)
{
	struct engine **p;

	for (p = &t->first; *p != e; p = &(*p)->next)
		;
	*p = e->next;
	for (uint32_t i = 0; i < e->num_caches; i++) {
		if (e->caches[i].account)
			account_destroy(e->caches[i].cache, e->caches[i].account);
		if (!--e->caches[i].cache->engines && e->alone)
			cache_doom(e->caches[i].cache); /* nobody could ever hit it */
	}
	for (uint32_t i = 1; i < e->num_ns; i++)
		ns_unref(t->ns, e->ns[i]);
	heap_give(&e->heap, e->ns_bytes);
	free(e->buckets);
	free(e->ns);
	free(e);
}

void engine_leave(struct engine_table *t, struct engine *e)
{
	if (--e->sessions)
		return;
	while (engine_close_some(e, UINT32_MAX))
		;
	engine_free(t, e);
}

static struct answer opened(const struct engine *e, uint32_t i)
{
	const struct cache *c = e->caches[i].cache;

	return (struct answer){.value = i | (uint64_t)c->fmt.step << 16 | (uint64_t)c->fmt.chunk << 32,
			       .limit = cache_capacity(c)};
}

struct answer engine_cache_open(struct engine *e, struct pool *p, struct ns_table *ns,
				const struct attnd_wire_cache *id, bool create, uint64_t features)
{
	struct cache *c = cache_find(p, e->shares, id);
	struct answer a = ANSWER_OK;
	uint32_t i;

	for (i = 0; i < e->num_caches; i++)
		if (e->caches[i].cache == c)
			return opened(e, i);
	if (!c && !create)
		return ANSWER_BAD(ENOENT, CACHE, 0);
	if (e->num_caches == ATTND_MAX_CACHES)
		return ANSWER_BAD(ENOSPC, CACHE, ATTND_MAX_CACHES);
	if (!c) {
		a.res = cache_create(p, ns, e->realm->counters, e->shares, id, features, &a.field, &c);
		if (a.res == -EAGAIN)
			return ANSWER_LATER;
		if (a.res) {
			a.limit = a.field == ATTND_FIELD_BLOCK_BYTES ? p->slab_bytes : 0;
			return a;
		}
		c->peek = &e->realm->peek;
	}
	c->engines++;
	e->caches[e->num_caches] = (struct engine_cache){.cache = c};
	if (p->engine_quota != UINT64_MAX) /* without memory for it the quota is not watched */
		(void)account_create(c, &e->caches[e->num_caches].account);
	e->num_caches++;
	return opened(e, i);
}

/* Do all caches' grants fit the pool's slabs, with this one's changed? */
static bool grants_fit(const struct cache *c, uint64_t granted)
{
	uint64_t slabs = 0;

	for (uint32_t k = 0; k < ATTND_MAX_POOL_CACHES; k++) {
		const struct cache *o = c->pool->caches[k];
		uint64_t g = o == c ? granted : o ? o->granted : 0;

		slabs += o ? (g + o->blocks_per_slab - 1) / o->blocks_per_slab : 0;
	}
	return slabs <= c->pool->num_slabs;
}

struct answer engine_grant(struct engine *e, uint32_t i, uint64_t tokens, uint32_t sequences)
{
	struct engine_cache *ec;
	struct cache *c;
	uint64_t blocks;
	int r;

	if (i >= e->num_caches)
		return ANSWER_BAD(ENOENT, CACHE, e->num_caches);
	ec = &e->caches[i];
	c = ec->cache;
	if (tokens > cache_capacity(c))
		return ANSWER_BAD(ENOMEM, GRANT_TOKENS, cache_capacity(c));
	blocks = ((tokens + c->block_size - 1) >> c->slots_shift) + 2ull * sequences;
	if (!blocks && !ec->account)
		return ANSWER_VALUE(0);
	if (!grants_fit(c, c->granted - (ec->account ? ec->account->grant : 0) + blocks))
		return ANSWER_BAD(ENOMEM, GRANT_TOKENS, cache_capacity(c));
	if (!ec->account && account_create(c, &ec->account))
		return ANSWER_BAD(ENOMEM, META, 0);
	r = cache_grant(c, ec->account, blocks);
	if (r == -EAGAIN)
		return ANSWER_LATER;
	return r ? ANSWER_BAD(ENOMEM, GRANT_TOKENS, 0) : ANSWER_VALUE(blocks);
}

struct answer engine_namespace(struct engine *e, struct ns_table *ns, const void *fields, size_t bytes)
{
	uint32_t id, i;
	int r = ns_get(ns, fields, bytes, &id);

	if (r)
		return (struct answer){.res = r, .field = ATTND_FIELD_NAMESPACE_FIELDS, .limit = ATTND_MAX_NS_BYTES};
	for (i = 0; i < e->num_ns; i++) {
		if (e->ns[i] == id) {
			ns_unref(ns, id);
			return ANSWER_VALUE(i);
		}
	}
	if (e->num_ns == ATTND_MAX_NAMESPACES) {
		ns_unref(ns, id);
		return ANSWER_BAD(ENOSPC, NAMESPACE, ATTND_MAX_NAMESPACES);
	}
	if (!heap_take(&e->heap, bytes + sizeof(struct ns_entry))) {
		ns_unref(ns, id);
		return ANSWER_BAD(ENOMEM, NAMESPACE, 0);
	}
	e->ns_bytes += bytes + sizeof(struct ns_entry);
	if (e->num_ns == e->cap_ns) {
		uint32_t *n = realloc(e->ns, 2ull * e->cap_ns * sizeof(*n));

		if (!n) {
			ns_unref(ns, id);
			return ANSWER_BAD(ENOMEM, NAMESPACE, 0);
		}
		e->ns = n;
		e->cap_ns *= 2;
	}
	e->ns[e->num_ns++] = id;
	return ANSWER_VALUE(i);
}

/* ---- Sequences by key ---- */

/* With a secret: a client that could choose keys for one bucket would make every look a long one. */
static struct seq **bucket_of(const struct engine *e, uint64_t key)
{
	unsigned __int128 m = (unsigned __int128)(key ^ e->twins->secret) * (e->twins->secret | 1);

	return &e->buckets[((uint64_t)(m >> 64) ^ (uint64_t)m) & (e->num_buckets - 1)];
}

struct seq *seq_find(const struct engine *e, uint64_t key)
{
	struct seq *s = *bucket_of(e, key);

	while (s && s->key != key)
		s = s->bucket_next;
	return s;
}

static void grow_buckets(struct engine *e)
{
	struct seq **b = calloc(2ull * e->num_buckets, sizeof(*b));

	if (!b)
		return; /* longer chains */
	free(e->buckets);
	e->buckets = b;
	e->num_buckets *= 2;
	for (struct seq *s = e->seqs; s; s = s->next) {
		struct seq **p = bucket_of(e, s->key);

		if (s->closed)
			continue;
		s->bucket_next = *p;
		*p = s;
	}
}

static int seq_make(struct engine_table *t, struct engine *e, uint64_t key, uint32_t ns, struct seq **ret)
{
	struct seq *s, **b;

	if (e->num_seqs >= e->max_seqs)
		return -ENOSPC;
	if (!heap_take(&e->heap, sizeof(*s)))
		return -ENOMEM;
	s = calloc(1, sizeof(*s));
	if (!s) {
		heap_give(&e->heap, sizeof(*s));
		return -ENOMEM;
	}
	if (e->num_seqs > e->num_buckets)
		grow_buckets(e);
	s->key = key;
	s->serial = ++t->serial;
	s->engine = e;
	s->ns = ns;
	for (int i = 0; i < ATTND_MAX_CACHES; i++) {
		held_init(&s->in[i].held, s->serial, e->caches[i].account, &e->heap);
		s->in[i].pending_trim = UINT64_MAX;
	}
	b = bucket_of(e, key);
	s->bucket_next = *b;
	*b = s;
	s->next = e->seqs;
	if (e->seqs)
		e->seqs->prev = s;
	e->seqs = s;
	e->num_seqs++;
	realm_count(e->realm, sequences, 1);
	*ret = s;
	return 0;
}

static void forget_twin(struct seq *s)
{
	twin_forget(s->engine->twins, &s->twin, &s->engine->announced);
}

void seq_withdraw(struct seq *s)
{
	if (s->twin.announced)
		twin_withdraw(s->engine->twins, &s->twin, &s->engine->announced);
}

static void seq_free(struct seq *s)
{
	struct engine *e = s->engine;

	for (uint32_t i = 0; i < e->num_caches; i++)
		held_destroy(&s->in[i].held, e->caches[i].cache);
	forget_twin(s);
	*(s->prev ? &s->prev->next : &e->seqs) = s->next;
	if (s->next)
		s->next->prev = s->prev;
	e->num_seqs--;
	heap_give(&e->heap, sizeof(*s));
	free(s);
}

/* Gone by name at once; its blocks stay while a plan uses them. */
static void seq_retire(struct seq *s, const void *by)
{
	struct seq **p;

	for (p = bucket_of(s->engine, s->key); *p != s; p = &(*p)->bucket_next)
		;
	*p = s->bucket_next;
	s->closed = true;
	seq_withdraw(s);
	twin_stir(s->engine->twins, &s->twin);
	realm_count(s->engine->realm, closes, 1);
	realm_count(s->engine->realm, sequences, -1);
	for (uint32_t i = 0; i < s->engine->num_caches; i++)
		if (s->in[i].plan)
			plan_let_go(s->in[i].plan, by);
}

uint32_t engine_close_some(struct engine *e, uint32_t n)
{
	uint64_t blocks = 0;
	uint32_t done = 0;

	for (struct seq *s; done + blocks / CLOSE_BLOCKS < n; done++) {
		for (s = e->seqs; s && s->closed; s = s->next)
			;
		if (!s)
			break;
		for (uint32_t i = 0; i < e->num_caches; i++)
			blocks += s->in[i].held.num;
		seq_close(e, s->key, NULL);
	}
	return done;
}

static void trim_in(struct seq *s, uint32_t i, uint64_t length)
{
	held_trim(&s->in[i].held, s->engine->caches[i].cache, length);
}

void seq_plan_done(struct seq *s, uint32_t i)
{
	s->in[i].plan = NULL;
	if (s->in[i].pending_trim != UINT64_MAX) {
		trim_in(s, i, s->in[i].pending_trim);
		s->in[i].pending_trim = UINT64_MAX;
	}
	if (!--s->plans && s->closed)
		seq_free(s);
}

/* ---- Requests ---- */

/* What two sequences must share to be twins, beside their tokens. */
static uint64_t begin_hash(const struct seq *s)
{
	const struct engine *e = s->engine;
	uint64_t parts[ATTND_MAX_CACHES + 1] = {s->ns};

	for (uint32_t i = 0; i < e->num_caches; i++)
		parts[i + 1] = e->caches[i].cache->id;
	return twin_hash_begin(e->twins, parts, e->num_caches + 1);
}

/* All caches, or those opened before it was, hold `length` tokens of it and no more. */
static void hold_only(struct seq *s, uint32_t caches, uint64_t length)
{
	for (uint32_t i = 0; i < caches; i++)
		trim_in(s, i, length);
}

static void begin_opening(struct seq *s, uint64_t n, uint64_t max_match, struct opening *ret)
{
	s->opening = true;
	s->plans++; /* so that a close does not free it under the steps */
	*ret = (struct opening){.seq = s,
				.caches = s->engine->num_caches,
				.asked = n,
				.limit = n < max_match ? n : max_match,
				.hash = begin_hash(s),
				.matches = true};
}

void seq_set_priority(struct seq *s, uint32_t priority)
{
	for (uint32_t i = 0; i < s->engine->num_caches; i++)
		s->in[i].held.priority = priority;
}

struct answer seq_open_begin(struct engine_table *t, struct engine *e, uint64_t key, uint32_t ns_handle, uint64_t n,
			     uint64_t max_match, struct opening *ret)
{
	struct seq *s = seq_find(e, key);
	int r;

	if (s && s->opening)
		return ANSWER_LATER;
	if (s)
		return s->used ? ANSWER_BAD(EEXIST, SEQUENCE, 0) : ANSWER_VALUE(s->answer);
	if (!e->num_caches)
		return ANSWER_BAD(EINVAL, CACHE, 0);
	if (ns_handle >= e->num_ns)
		return ANSWER_BAD(ENOENT, NAMESPACE, e->num_ns);
	r = seq_make(t, e, key, e->ns[ns_handle], &s);
	if (r)
		return (struct answer){.res = r, .field = ATTND_FIELD_SEQUENCES, .limit = e->max_seqs};
	begin_opening(s, n, max_match, ret);
	return ANSWER_OK;
}

struct answer seq_wait_begin(struct engine_table *t, struct engine *e, uint64_t key, uint32_t ns_handle, uint64_t n,
			     uint64_t max_match, uint64_t want, struct opening *ret)
{
	struct seq *s = seq_find(e, key);
	struct answer a = ANSWER_OK;

	if (!s || s->opening || s->used) {
		a = seq_open_begin(t, e, key, ns_handle, n, max_match, ret);
	} else {
		if (ns_handle >= e->num_ns || e->ns[ns_handle] != s->ns)
			return ANSWER_BAD(ENOENT, NAMESPACE, e->num_ns);
		if (n < s->answer || max_match < s->answer)
			return ANSWER_BAD(EINVAL, TOKENS, s->answer);
		seq_withdraw(s);
		forget_twin(s);
		begin_opening(s, n, max_match, ret);
		ret->done = s->answer;
		ret->resumed = true;
		for (ret->caches = 0; ret->caches < e->num_caches; ret->caches++)
			if (s->in[ret->caches].held.length < s->answer)
				break; /* opened later */
	}
	if (ret->seq) {
		ret->waits = true;
		ret->want = want;
	}
	return a;
}

void seq_open_abort(struct opening *o)
{
	struct seq *s = o->seq;

	if (!s)
		return;
	o->seq = NULL;
	s->opening = false;
	twin_wait(&s->twin, NULL);
	if (o->resumed && !s->closed) /* its answer stays what it was */
		hold_only(s, o->caches, s->answer);
	if (o->resumed && !s->closed && o->at == o->asked)
		twin_announce(s->engine->twins, &s->twin);
	else
		forget_twin(s);
	if (!s->closed && !o->resumed)
		seq_retire(s, NULL);
	if (!--s->plans && s->closed)
		seq_free(s);
}

struct answer seq_wait_end(struct opening *o, enum attnd_wire_waited why)
{
	struct seq *s = o->seq;
	struct engine *e = s->engine;

	if (s->closed) { /* meanwhile: this was what kept it */
		seq_open_abort(o);
		return ANSWER_BAD(ECANCELED, SEQUENCE, 0);
	}
	o->seq = NULL;
	twin_wait(&s->twin, NULL);
	twin_announce(e->twins, &s->twin);
	s->opening = false;
	s->plans--;
	s->answer = o->done;
	if (!o->resumed) {
		realm_count(e->realm, opens, 1);
		realm_count(e->realm, query_tokens, o->asked);
		realm_count(e->realm, hit_tokens, o->done);
	}
	return (struct answer){.value = o->done, .limit = o->waits ? why | o->end << 8 : 0};
}

/* All caches hold what the one with the smallest hit does. */
static struct answer open_end(struct opening *o)
{
	struct seq *s = o->seq;
	struct twin *other;

	hold_only(s, o->caches, o->done);
	other = o->waits && o->done < o->limit ? twin_find(s->engine->twins, &s->twin, o->done, &o->end) : NULL;
	if (!other)
		return seq_wait_end(o, ATTND_WIRE_WAITED_ALONE);
	o->end = o->end < o->limit ? o->end : o->limit;
	if (o->want && o->done >= o->want)
		return seq_wait_end(o, ATTND_WIRE_WAITED_PROGRESS);
	realm_count(s->engine->realm, waits, 1);
	twin_wait(&s->twin, other);
	s->twin.stirred = false;
	return ANSWER_WAITS;
}

/* A block that was not verified yet has ended a match: some of that, and the match goes on where it stands. */
static bool verify_next(struct opening *o)
{
	bool wanted = false;

	for (uint32_t i = 0; i < o->caches; i++)
		wanted |= scrub_wanted(o->seq->engine->caches[i].cache);
	if (wanted)
		hold_only(o->seq, o->caches, o->done);
	return wanted;
}

/* Match tokens from o->done on, in all caches. 0, -ENOMEM, or -EAGAIN with nothing changed. */
static int match_on(struct opening *o, const uint64_t *tokens, uint64_t n)
{
	struct seq *s = o->seq;
	struct engine *e = s->engine;
	uint64_t hit = o->done + n;
	uint32_t ids[OPEN_SLICE + 2];

	for (uint32_t i = 0; i < o->caches; i++) {
		struct held *h = &s->in[i].held;
		int r = held_match(h, e->caches[i].cache, s->ns, tokens, hit - o->done, ids);

		if (r == -EAGAIN)
			hold_only(s, o->caches, o->done);
		if (r)
			return r;
		hit = h->length < hit ? h->length : hit;
	}
	o->done = hit;
	return 0;
}

/* Note the hashes of what is not there. */
static void note_units(struct opening *o, const uint64_t *tokens, uint32_t n)
{
	struct seq *s = o->seq;
	struct engine *e = s->engine;

	for (uint32_t i = 0; i + TWIN_TOKENS <= n; i += TWIN_TOKENS) {
		uint64_t first = (o->at + i) / TWIN_TOKENS, left = o->asked / TWIN_TOKENS - first;

		o->hash = twin_hash(e->twins, o->hash, tokens + i);
		if (o->at + i + TWIN_TOKENS <= o->done)
			continue;
		if (s->twin.units || twin_begin(e->twins, &s->twin, (uint32_t)first, (uint32_t)left, &e->announced))
			twin_note(&s->twin, o->hash);
	}
}

/* Are these the tokens that an open sequence holds from `at` on? */
static bool holds(const struct seq *s, uint64_t at, const uint64_t *tokens, uint64_t n)
{
	const struct cache *c = s->engine->caches[0].cache;

	for (uint64_t i = 0; i < n; i++)
		if (cache_tokens(
			    c, s->in[0].held.table[(at + i) >> c->slots_shift].id)[(at + i) & (c->block_size - 1)] !=
		    tokens[i])
			return false;
	return true;
}

struct answer seq_open_step(struct opening *o, const uint64_t *tokens, uint32_t n)
{
	uint64_t known = o->done > o->at ? o->done - o->at : 0;
	uint64_t most = o->limit > o->at && o->limit - o->at < n ? o->limit - o->at : n;

	if (o->seq->closed) {
		seq_open_abort(o);
		return ANSWER_BAD(ECANCELED, SEQUENCE, 0);
	}
	if (known && !holds(o->seq, o->at, tokens, known < n ? known : n)) {
		seq_open_abort(o);
		return ANSWER_BAD(EINVAL, TOKENS, o->done);
	}
	if (o->matches && o->limit > o->at && known < most) {
		int r = match_on(o, tokens + known, most - known);

		if (r == -EAGAIN)
			return ANSWER_LATER;
		if (r) {
			seq_open_abort(o);
			return ANSWER_BAD(ENOMEM, TOKENS, 0);
		}
		if (o->done < o->at + most && verify_next(o))
			return ANSWER_LATER;
		o->matches = o->done == o->at + n;
	}
	note_units(o, tokens, n);
	o->at += n;
	return o->at < o->asked ? ANSWER_LATER : open_end(o);
}

struct answer seq_open(struct engine_table *t, struct engine *e, uint64_t key, uint32_t ns_handle,
		       const uint64_t *tokens, uint64_t n, uint64_t max_match)
{
	struct opening o = {0};
	struct answer a = seq_open_begin(t, e, key, ns_handle, n, max_match, &o);

	while (o.seq) {
		a = seq_open_step(&o, tokens ? tokens + o.at : NULL, opening_slice(&o));
		if (a.res == -EINPROGRESS)
			(void)slabs_step(e->caches[0].cache->pool);
	}
	return a;
}

/* Of all its caches, the tokens that are computed. */
static uint64_t computed(const struct seq *s)
{
	uint64_t n = UINT64_MAX;

	for (uint32_t i = 0; i < s->engine->num_caches; i++)
		n = s->in[i].held.length < n ? s->in[i].held.length : n;
	return n;
}

static const struct seq *seq_of(const struct twin *w)
{
	return (const void *)((const char *)w - offsetof(struct seq, twin));
}

void seq_advanced(struct seq *s)
{
	if (!s->twin.announced)
		return;
	if (computed(s) >= twin_end(&s->twin))
		seq_withdraw(s);
	else
		twin_stir_waiters(s->engine->twins, &s->twin);
}

struct answer seq_wait_look(struct opening *o, const uint64_t *tokens, uint32_t n)
{
	struct seq *s = o->seq;
	uint64_t before = o->done;
	const struct twin *other;
	int r;

	if (s->closed)
		return seq_wait_end(o, ATTND_WIRE_WAITED_GONE);
	s->twin.stirred = false;
	r = match_on(o, tokens, n);
	if (r == -EAGAIN) {
		s->twin.stirred = true;
		return ANSWER_LATER;
	}
	if (r) {
		hold_only(s, o->caches, o->done);
		return seq_wait_end(o, ATTND_WIRE_WAITED_GONE);
	}
	o->grown |= o->done > before;
	if (n && o->done == before + n && o->done < o->limit) {
		s->twin.stirred = true;
		return ANSWER_LATER;
	}
	hold_only(s, o->caches, o->done);
	if (o->done >= o->end)
		return seq_wait_end(o, ATTND_WIRE_WAITED_DONE);
	if (o->want ? o->done >= o->want : o->grown)
		return seq_wait_end(o, ATTND_WIRE_WAITED_PROGRESS);
	other = s->twin.waits_for;
	return other && computed(seq_of(other)) < o->end ? ANSWER_WAITS : seq_wait_end(o, ATTND_WIRE_WAITED_GONE);
}

/* What it holds in cache i; a trim that waits for a plan's end counts already. */
static uint64_t length_in(const struct seq *s, uint32_t i)
{
	uint64_t n = s->in[i].held.length;

	return n < s->in[i].pending_trim ? n : s->in[i].pending_trim;
}

/* Ranks may be a step apart: what the furthest one holds. */
static uint64_t longest(const struct seq *s)
{
	uint64_t n = 0;

	for (uint32_t i = 0; i < s->engine->num_caches; i++)
		n = length_in(s, i) > n ? length_in(s, i) : n;
	return n;
}

struct answer seq_fork(struct engine_table *t, struct engine *e, uint64_t key, uint64_t new_key, uint64_t length)
{
	struct seq *s = seq_find(e, key), *f;
	int r;

	if (!s)
		return ANSWER_BAD(ENOENT, SEQUENCE, 0);
	if (s->opening)
		return ANSWER_LATER;
	if (seq_find(e, new_key))
		return ANSWER_BAD(EEXIST, SEQUENCE, 0);
	if (length > longest(s))
		return ANSWER_BAD(ERANGE, LENGTH, longest(s));
	r = seq_make(t, e, new_key, s->ns, &f);
	if (r)
		return (struct answer){.res = r, .field = ATTND_FIELD_SEQUENCES, .limit = e->max_seqs};
	f->used = s->used = true;
	for (uint32_t i = 0; i < e->num_caches && !r; i++) {
		uint64_t n = length_in(s, i);

		r = held_fork(&f->in[i].held, &s->in[i].held, e->caches[i].cache, length < n ? length : n);
	}
	if (r) {
		seq_retire(f, NULL);
		seq_free(f);
		return ANSWER_BAD(ENOMEM, SEQUENCE, 0);
	}
	realm_count(e->realm, opens, 1);
	return ANSWER_OK;
}

struct answer seq_trim(struct engine *e, uint64_t key, uint64_t length, const void *by)
{
	struct seq *s = seq_find(e, key);

	if (!s)
		return ANSWER_BAD(ENOENT, SEQUENCE, 0);
	if (s->opening)
		return ANSWER_LATER;
	if (length > longest(s))
		return ANSWER_BAD(ERANGE, LENGTH, longest(s));
	s->used = true;
	seq_withdraw(s);
	for (uint32_t i = 0; i < e->num_caches; i++) {
		if (s->in[i].plan)
			plan_let_go(s->in[i].plan, by);
		if (!s->in[i].plan)
			trim_in(s, i, length);
		else if (length < s->in[i].pending_trim)
			s->in[i].pending_trim = length;
	}
	return ANSWER_OK;
}

struct answer seq_close(struct engine *e, uint64_t key, const void *by)
{
	struct seq *s = seq_find(e, key);

	if (!s)
		return ANSWER_BAD(ENOENT, SEQUENCE, 0);
	s->plans++; /* so that a plan's end does not free it under us */
	seq_retire(s, by);
	if (!--s->plans)
		seq_free(s);
	return ANSWER_OK;
}
