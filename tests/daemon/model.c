/* SPDX-License-Identifier: Apache-2.0 */
/* Random operations beside a flat model (model.h). */
#include "model.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../../daemon/collapse.h"
#include "oracle.h"

enum {
	SEQS = 24, /* of both engines */
	PLANS = 10,
	ROWS = 4,
	ROW_MAX = 72,
	ENGINES = 2,
	RANKS = 2, /* caches of an engine */
	PINS = 4,
	WAITERS = 6,
	SESSIONS = 2,  /* of an engine */
	MAX_SEQS = 14, /* of an engine: sometimes too few */
};

struct mplan;
struct mseq;

/* A request that waits for a twin: seq_wait_look is due when something has happened to that. */
struct waiter {
	struct opening open;	 /* seq NULL: none */
	struct mseq *seq, *twin; /* twin NULL: it is gone */
	uint64_t want;
	uint32_t session, limit, first, end;
	bool resumed, grown, due;
	uint64_t tokens[TEXT_MAX];
};

struct mseq {
	bool there; /* the daemon still has it */
	bool named; /* it can be found by key */
	bool used;
	uint32_t engine, ns, plans;
	uint64_t key, answer;
	struct seq *seq;
	struct waiter *waiter;	   /* it waits */
	uint64_t prompt[TEXT_MAX]; /* what it was opened on */
	uint32_t asked, limit;
	/* It lets others know that it computes prompt[first * TWIN_TOKENS .. asked), whole units. */
	bool announced;
	uint32_t first;
	struct {
		struct text text;
		uint64_t pending;
		struct mplan *plan;
	} in[RANKS];
};

struct mrow {
	struct mseq *seq; /* NULL: refused */
	uint32_t start, n, cached;
	bool tainted;
	uint64_t upto;
	struct text after;		/* the sequence with the row */
	uint64_t at[TEXT_MAX / 16 + 1]; /* where its blocks stood when the job began */
};

struct mplan {
	struct plan *plan; /* NULL: free */
	uint32_t engine, rank, session, num_rows;
	bool committed, orphan;
	uint32_t running, stored;
	struct mrow row[ROWS];
};

struct model {
	const struct model_shape *shape;
	struct model_counts *counts;
	struct world world;
	struct oracle oracle;
	uint64_t random, keys;
	bool verbose;
	struct engine *engine[ENGINES];
	struct plan *lists[ENGINES][SESSIONS];
	struct mseq seq[SEQS];
	struct mplan plan[PLANS];
	struct oracle_pin pin[PINS];
	struct waiter waiter[WAITERS];
};

#define CHECK(m, cond) ORACLE_CHECK(&(m)->oracle, cond)
#define SAY(m, ...)                               \
	do {                                      \
		if ((m)->verbose)                 \
			printf("# " __VA_ARGS__); \
	} while (0)

static uint32_t pick(struct model *m, uint32_t n)
{
	return (uint32_t)(next_random(&m->random) >> 33) % n;
}

static bool chance(struct model *m, uint32_t percent)
{
	return pick(m, 100) < percent;
}

static struct cache *cache_of(const struct model *m, uint32_t engine, uint32_t rank)
{
	return m->engine[engine]->caches[rank].cache;
}

static struct held *held_of(const struct mseq *s, uint32_t rank)
{
	return &s->seq->in[rank].held;
}

static void *session_of(struct model *m, uint32_t engine, uint32_t session)
{
	return &m->lists[engine][session];
}

static int number(const struct model *m, const struct mseq *s)
{
	return (int)(s - m->seq);
}

/* ---- Tokens ---- */

static const struct mseq *any_seq(struct model *m)
{
	for (uint32_t i = 0, k = pick(m, SEQS); i < SEQS; i++)
		if (m->seq[(i + k) % SEQS].there)
			return &m->seq[(i + k) % SEQS];
	return NULL;
}

/* What some sequence holds, or will hold when its plan is through. */
static const struct text *any_text(struct model *m)
{
	const struct mseq *s = any_seq(m);
	uint32_t rank = pick(m, RANKS);
	const struct mplan *p = s ? s->in[rank].plan : NULL;

	for (uint32_t i = 0; p && i < p->num_rows; i++)
		if (p->row[i].seq == s)
			return &p->row[i].after;
	return s ? &s->in[rank].text : NULL;
}

/* Tokens from position `at` on: another sequence's as far as it goes, then new ones; sometimes one is changed. */
static void make_tokens(struct model *m, uint32_t at, uint32_t n, uint64_t *ret)
{
	const struct text *t = any_text(m);

	for (uint32_t i = 0; i < n; i++)
		ret[i] = t && at + i < t->len ? t->token[at + i] : 100 + pick(m, m->shape->alphabet);
	if (n && chance(m, 20))
		ret[pick(m, n)] = 100 + pick(m, m->shape->alphabet);
}

/* ---- Twins ---- */

/* Tokens of its prompt that it announces. */
static uint32_t announced_end(const struct mseq *s)
{
	return s->asked / TWIN_TOKENS * TWIN_TOKENS;
}

static uint32_t computed(const struct mseq *s)
{
	uint32_t n = s->in[0].text.len;

	for (uint32_t i = 1; i < RANKS; i++)
		n = s->in[i].text.len < n ? s->in[i].text.len : n;
	return n;
}

/* Who waits for it is to look; `gone`: it computes no more of what it announced. */
static void stir(struct model *m, struct mseq *s, bool gone)
{
	for (uint32_t i = 0; s->announced && i < WAITERS; i++) {
		struct waiter *w = &m->waiter[i];

		if (!w->open.seq || w->twin != s)
			continue;
		w->due = true;
		w->twin = gone ? NULL : s;
	}
	s->announced &= !gone;
}

static void withdraw(struct model *m, struct mseq *s)
{
	stir(m, s, true);
}

/* A step of it is through. */
static void advanced(struct model *m, struct mseq *s)
{
	stir(m, s, computed(s) >= announced_end(s));
}

/* What it was opened on is known, and how much of that was there. */
static void announce(struct mseq *s, uint32_t first)
{
	s->first = first;
	s->announced = first < s->asked / TWIN_TOKENS;
}

/* May `s` wait for `o`, and up to where? 0: no. */
static uint32_t twin_end_of(const struct model *m, const struct mseq *s, const struct mseq *o, uint32_t first,
			    uint32_t length)
{
	uint32_t unit = length / TWIN_TOKENS, n = 0;

	if (o == s || !o->there || !o->announced || o->ns != s->ns || (o->engine != s->engine && !m->shape->twins))
		return 0;
	while (n < announced_end(s) && n < announced_end(o) && s->prompt[n] == o->prompt[n])
		n++;
	n = n / TWIN_TOKENS * TWIN_TOKENS;
	return unit >= first && unit >= o->first && n > unit * TWIN_TOKENS ? n : 0;
}

/* ---- What ends ---- */

static void drop_seq(struct model *m, struct mseq *s)
{
	SAY(m, "  seq %d is gone\n", number(m, s));
	s->there = false;
}

/* The daemon has ended this plan, whatever the reason. */
static void plan_over(struct model *m, struct mplan *p)
{
	p->plan = NULL;
	for (uint32_t i = 0; i < p->num_rows; i++) {
		struct mseq *s = p->row[i].seq;

		if (!s)
			continue;
		s->in[p->rank].plan = NULL;
		text_trim(&s->in[p->rank].text,
			  s->in[p->rank].pending < TEXT_MAX ? (uint32_t)s->in[p->rank].pending : TEXT_MAX);
		s->in[p->rank].pending = UINT64_MAX;
		if (!--s->plans && !s->named)
			drop_seq(m, s);
	}
}

/* A sequence of it is closed or trimmed by a session of its engine, or by nobody (UINT32_MAX). */
static void let_go(struct model *m, struct mplan *p, uint32_t session)
{
	if (!p || (!p->committed && session != UINT32_MAX && session != p->session))
		return;
	if (p->running) {
		m->counts->orphans += !p->orphan;
		p->orphan = true;
	} else {
		plan_over(m, p);
	}
}

static void close_seq(struct model *m, struct mseq *s, uint32_t session)
{
	s->named = false;
	withdraw(m, s);
	if (s->waiter)
		s->waiter->due = true;
	s->plans++;
	for (uint32_t i = 0; i < RANKS; i++)
		let_go(m, s->in[i].plan, session);
	if (!--s->plans)
		drop_seq(m, s);
}

/* ---- Sequences ---- */

static struct mseq *free_seq(struct model *m)
{
	for (uint32_t i = 0; i < SEQS; i++)
		if (!m->seq[i].there)
			return &m->seq[i];
	return NULL;
}

static struct mseq *named_seq(struct model *m, uint32_t engine)
{
	for (uint32_t i = 0, k = pick(m, SEQS); i < SEQS; i++) {
		struct mseq *s = &m->seq[(i + k) % SEQS];

		if (s->there && s->named && s->engine == engine)
			return s;
	}
	return NULL;
}

static void begin_seq(struct model *m, struct mseq *s, uint32_t engine, uint32_t ns)
{
	memset(s, 0, sizeof(*s));
	s->there = s->named = true;
	s->engine = engine;
	s->ns = ns;
	s->key = ++m->keys;
	for (uint32_t i = 0; i < RANKS; i++) {
		s->in[i].pending = UINT64_MAX;
		s->in[i].text.seed = text_seed(&m->oracle, cache_of(m, engine, i), ns);
	}
}

/* What a match must find at least: what living sequences hold published. */
static uint32_t certain_hit(struct model *m, const struct cache *c, uint64_t seed, const uint64_t *tokens, uint32_t n)
{
	uint32_t best = 0;

	for (uint32_t i = 0; i < SEQS; i++) {
		const struct mseq *s = &m->seq[i];

		for (uint32_t r = 0; s->there && s->seq && r < RANKS; r++) {
			uint32_t k = 0, most = (uint32_t)held_of(s, r)->stand_pos;

			if (s->in[r].text.seed != seed || cache_of(m, s->engine, r) != c)
				continue;
			while (k < n && k < most && s->in[r].text.token[k] == tokens[k])
				k++;
			best = k > best ? k : best;
		}
	}
	return best;
}

/* Does every prefix that was ever published still stand in the tree? */
static bool nothing_lost(const struct model *m, uint32_t engine)
{
	for (uint32_t i = 0; i < RANKS; i++)
		if (cache_of(m, engine, i)->evicted)
			return false;
	return !m->shape->grants;
}

/* It holds the same of all caches; of the tokens it has found so many now. */
static void check_hit(struct model *m, struct mseq *s, const uint64_t *tokens, uint32_t n, uint64_t hit)
{
	uint32_t most = n, least = n, from = s->in[0].text.len;

	for (uint32_t i = 0; i < RANKS; i++) {
		const struct cache *c = cache_of(m, s->engine, i);

		most = from + oracle_match(&m->oracle, &s->in[i].text, from, tokens + from, most - from);
		least = certain_hit(m, c, s->in[i].text.seed, tokens, least);
	}
	CHECK(m, hit <= most);
	CHECK(m, hit >= least || m->shape->grants);
	CHECK(m, hit == most || !nothing_lost(m, s->engine));
	m->counts->hits += hit > from;
	for (uint32_t i = 0; i < RANKS; i++)
		for (uint32_t k = from; k < hit; k++)
			text_append(&s->in[i].text, tokens[k], 0);
}

static void set_prompt(struct mseq *s, const uint64_t *tokens, uint32_t n, uint64_t max)
{
	memcpy(s->prompt, tokens, n * sizeof(*tokens));
	s->asked = n;
	s->limit = n < max ? n : (uint32_t)max;
}

static void op_job(struct model *m);

static struct answer open_with_priority(struct model *m, uint32_t engine, uint64_t key, uint32_t ns,
					const uint64_t *tokens, uint32_t n, uint64_t max)
{
	struct opening o = {0};
	struct answer a = seq_open_begin(&m->world.engines, m->engine[engine], key, ns, n, max, &o);

	if (o.seq)
		seq_set_priority(o.seq, chance(m, 50) ? 0 : pick(m, CACHE_PRIORITIES));
	while (o.seq) {
		a = seq_open_step(&o, tokens + o.at, opening_slice(&o));
		if (a.res == ANSWER_LATER.res && !slabs_step(&m->world.pool))
			op_job(m);
	}
	return a;
}

static void op_open(struct model *m, uint32_t engine)
{
	uint64_t tokens[TEXT_MAX], max = UINT64_MAX;
	uint32_t n = pick(m, TEXT_MAX - ROW_MAX), ns = pick(m, m->shape->namespaces);
	struct mseq *s = free_seq(m), probe;
	bool full = m->engine[engine]->num_seqs >= MAX_SEQS;
	struct answer a;

	if (!s)
		return;
	make_tokens(m, 0, n, tokens);
	if (chance(m, 20))
		max = pick(m, n + 1);
	begin_seq(m, &probe, engine, ns);
	a = open_with_priority(m, engine, probe.key, ns, tokens, n, max);
	SAY(m, "open %d engine %u ns %u n %u: %d %llu\n", number(m, s), engine, ns, n, a.res,
	    (unsigned long long)a.value);
	CHECK(m, a.res == (full ? -ENOSPC : 0));
	if (full)
		return;
	*s = probe;
	check_hit(m, s, tokens, n < max ? n : (uint32_t)max, a.value);
	s->answer = a.value;
	s->seq = seq_find(m->engine[engine], s->key);
	CHECK(m, s->seq);
	set_prompt(s, tokens, n, max);
	announce(s, (uint32_t)a.value / TWIN_TOKENS);
}

/* The same key: the same answer until it is used. */
static void op_reopen(struct model *m, uint32_t engine)
{
	struct mseq *s = named_seq(m, engine);
	uint64_t tokens[4];
	struct answer a;

	if (!s)
		return;
	make_tokens(m, 0, 4, tokens);
	a = seq_open(&m->world.engines, m->engine[engine], s->key, s->ns, tokens, 4, UINT64_MAX);
	CHECK(m, a.res == (s->waiter ? ANSWER_LATER.res : s->used ? -EEXIST : 0));
	CHECK(m, a.res || a.value == s->answer);
}

static uint64_t longest(const struct mseq *s)
{
	uint64_t n = 0, k;

	for (uint32_t i = 0; i < RANKS; i++) {
		k = s->in[i].text.len < s->in[i].pending ? s->in[i].text.len : s->in[i].pending;
		n = k > n ? k : n;
	}
	return n;
}

static void op_fork(struct model *m, uint32_t engine)
{
	struct mseq *s = named_seq(m, engine), *f = free_seq(m), probe;
	bool full = m->engine[engine]->num_seqs >= MAX_SEQS;
	struct answer a;
	uint64_t n;

	if (!s || !f)
		return;
	n = chance(m, 30) ? longest(s) : pick(m, (uint32_t)longest(s) + 2);
	begin_seq(m, &probe, engine, s->ns);
	if (chance(m, 5))
		probe.key = s->key;
	a = seq_fork(&m->world.engines, m->engine[engine], s->key, probe.key, n);
	SAY(m, "fork %d of %d at %llu: %d\n", number(m, f), number(m, s), (unsigned long long)n, a.res);
	CHECK(m, a.res == (s->waiter		 ? ANSWER_LATER.res
			   : probe.key == s->key ? -EEXIST
			   : n > longest(s)	 ? -ERANGE
			   : full		 ? -ENOSPC
						 : 0));
	if (a.res)
		return;
	*f = probe;
	f->used = s->used = true;
	f->seq = seq_find(m->engine[engine], f->key);
	CHECK(m, f->seq);
	for (uint32_t i = 0; i < RANKS; i++) {
		f->in[i].text = s->in[i].text;
		text_trim(&f->in[i].text, (uint32_t)(n < s->in[i].pending ? n : s->in[i].pending));
	}
}

static void op_trim(struct model *m, uint32_t engine)
{
	struct mseq *s = named_seq(m, engine);
	uint32_t session = pick(m, SESSIONS), n;
	struct answer a;

	if (!s)
		return;
	n = pick(m, (uint32_t)longest(s) + 2);
	a = seq_trim(m->engine[engine], s->key, n, session_of(m, engine, session));
	SAY(m, "trim %d to %u: %d\n", number(m, s), n, a.res);
	CHECK(m, a.res == (s->waiter ? ANSWER_LATER.res : n > longest(s) ? -ERANGE : 0));
	if (a.res)
		return;
	s->used = true;
	withdraw(m, s);
	for (uint32_t i = 0; i < RANKS; i++) {
		let_go(m, s->in[i].plan, session);
		if (!s->in[i].plan)
			text_trim(&s->in[i].text, n);
		else if (n < s->in[i].pending)
			s->in[i].pending = n;
	}
}

static void op_close(struct model *m, uint32_t engine)
{
	struct mseq *s = named_seq(m, engine);
	uint32_t session = pick(m, SESSIONS);

	if (!s)
		return;
	SAY(m, "close %d by session %u\n", number(m, s), session);
	CHECK(m, !seq_close(m->engine[engine], s->key, session_of(m, engine, session)).res);
	CHECK(m, !seq_find(m->engine[engine], s->key));
	close_seq(m, s, session);
}

/* ---- Waiting for a twin ---- */

/* Its request is answered or given up. */
static void stop_waiting(struct model *m, struct waiter *w)
{
	struct mseq *s = w->seq;

	s->waiter = NULL;
	if (!--s->plans && !s->named)
		drop_seq(m, s);
}

static void check_waited(struct model *m, struct waiter *w, struct answer a, enum attnd_wire_waited why)
{
	struct mseq *s = w->seq;

	SAY(m, "  %d has waited: %d %llu, why %u\n", number(m, s), a.res, (unsigned long long)a.value,
	    (unsigned)(a.limit & 255));
	CHECK(m, !a.res && a.value == computed(s) && (a.limit & 255) == why && a.limit >> 8 == w->end);
	m->counts->waited[why]++;
	s->answer = a.value;
	announce(s, w->first);
	stop_waiting(m, w);
}

/* Up to where it may wait for this one; 0: not at all. */
static uint32_t wait_end(const struct model *m, const struct waiter *w, const struct mseq *o, uint32_t length)
{
	uint32_t end = length < w->limit ? twin_end_of(m, w->seq, o, w->first, length) : 0;

	return end < w->limit ? end : w->limit;
}

/* The daemon has told it to wait: for one that computes the same, and just as long as that goes. */
static void check_waits(struct model *m, struct waiter *w, uint32_t length)
{
	const struct twin *other = w->open.seq->twin.waits_for;

	CHECK(m, other && (!w->want || length < w->want));
	for (uint32_t i = 0; i < SEQS; i++) {
		struct mseq *o = &m->seq[i];

		if (o->there && o->seq && &o->seq->twin == other)
			w->twin = o;
	}
	CHECK(m, w->twin);
	w->end = wait_end(m, w, w->twin, length);
	CHECK(m, w->end && w->open.end == w->end);
	m->counts->waits++;
}

/* It did not have to wait: nobody computes more of it, or as much as it wants is there. */
static enum attnd_wire_waited at_once(struct model *m, struct waiter *w, uint32_t length, uint32_t end)
{
	bool twin = false;

	w->end = 0;
	for (uint32_t i = 0; i < SEQS; i++) {
		uint32_t e = wait_end(m, w, &m->seq[i], length);

		twin |= e != 0;
		w->end = e == end ? e : w->end;
	}
	CHECK(m, !twin || (w->want && length >= w->want));
	return twin ? ATTND_WIRE_WAITED_PROGRESS : ATTND_WIRE_WAITED_ALONE;
}

/* Tokens to ask for: those that somebody is computing, often. */
static uint32_t wait_tokens(struct model *m, uint64_t *ret, uint32_t *ns)
{
	uint32_t n = pick(m, TEXT_MAX - ROW_MAX);

	for (uint32_t i = 0, k = pick(m, SEQS); i < SEQS && chance(m, 90); i++) {
		const struct mseq *s = &m->seq[(i + k) % SEQS];

		if (!s->there || !s->announced)
			continue;
		n = chance(m, 60) ? s->asked : n;
		make_tokens(m, 0, n, ret);
		memcpy(ret, s->prompt, (n < s->asked ? n : s->asked) * sizeof(*ret));
		if (chance(m, 30) && n)
			ret[pick(m, n)] = 100 + pick(m, m->shape->alphabet);
		*ns = s->ns;
		return n;
	}
	make_tokens(m, 0, n, ret);
	return n;
}

static struct waiter *free_waiter(struct model *m)
{
	for (uint32_t i = 0; i < WAITERS; i++)
		if (!m->waiter[i].open.seq)
			return &m->waiter[i];
	return NULL;
}

static struct waiter *any_waiter(struct model *m)
{
	for (uint32_t i = 0, k = pick(m, WAITERS); i < WAITERS; i++)
		if (m->waiter[(i + k) % WAITERS].open.seq)
			return &m->waiter[(i + k) % WAITERS];
	return NULL;
}

/* One that is open, and has not been used. */
static struct mseq *unused_seq(struct model *m, uint32_t engine)
{
	struct mseq *s = named_seq(m, engine);

	return s && !s->used && !s->waiter ? s : NULL;
}

/* As far as it goes without others. */
static struct answer begin_wait(struct model *m, struct waiter *w, uint64_t max)
{
	struct mseq *s = w->seq;
	struct answer a = seq_wait_begin(&m->world.engines, m->engine[s->engine], s->key, s->ns, s->asked, max,
					 w->want, &w->open);

	if (w->open.seq && !w->resumed)
		seq_set_priority(w->open.seq, chance(m, 50) ? 0 : pick(m, CACHE_PRIORITIES));
	while (w->open.seq && a.res != ANSWER_WAITS.res) {
		a = seq_open_step(&w->open, w->tokens + w->open.at, opening_slice(&w->open));
		if (a.res == ANSWER_LATER.res && !slabs_step(&m->world.pool))
			op_job(m);
	}
	SAY(m, "wait %d engine %u n %u again %d: %d %llu\n", number(m, s), s->engine, s->asked, w->resumed, a.res,
	    (unsigned long long)(w->open.seq ? w->open.done : a.value));
	return a;
}

/* It was opened, and waits or has been answered at once. */
static void wait_begun(struct model *m, struct waiter *w, uint64_t max, struct answer a)
{
	struct mseq *s = w->seq;
	uint64_t hit = w->open.seq ? w->open.done : a.value;

	set_prompt(s, w->tokens, s->asked, max);
	w->limit = s->limit;
	w->first = (uint32_t)hit / TWIN_TOKENS;
	check_hit(m, s, w->tokens, w->limit, hit);
	s->seq = seq_find(m->engine[s->engine], s->key);
	CHECK(m, s->seq);
	s->waiter = w;
	s->plans++;
	if (w->open.seq) {
		check_waits(m, w, (uint32_t)hit);
		return;
	}
	check_waited(m, w, a, at_once(m, w, (uint32_t)hit, (uint32_t)(a.limit >> 8)));
}

static void op_wait(struct model *m, uint32_t engine)
{
	struct waiter *w = free_waiter(m);
	struct mseq *s = free_seq(m);
	bool full = m->engine[engine]->num_seqs >= MAX_SEQS;
	uint32_t ns = pick(m, m->shape->namespaces), n;
	uint64_t max = UINT64_MAX;
	struct answer a;

	if (!w || !s)
		return;
	*w = (struct waiter){.seq = s, .session = pick(m, SESSIONS)};
	w->want = chance(m, 30) ? 0 : chance(m, 50) ? UINT64_MAX : pick(m, TEXT_MAX);
	n = wait_tokens(m, w->tokens, &ns);
	if (chance(m, 20))
		max = pick(m, n + 1);
	begin_seq(m, s, engine, ns);
	s->asked = n;
	a = begin_wait(m, w, max);
	CHECK(m, (a.res == -ENOSPC) == full);
	if (full)
		s->there = false;
	else
		wait_begun(m, w, max, a);
}

/* With one that has been open: on the same tokens as before, or (-EINVAL) on others. */
static void op_wait_again(struct model *m, uint32_t engine)
{
	struct waiter *w = free_waiter(m);
	struct mseq *s = unused_seq(m, engine);
	uint64_t max = UINT64_MAX;
	struct answer a;
	bool changed;

	if (!w || !s)
		return;
	*w = (struct waiter){.seq = s, .session = pick(m, SESSIONS), .resumed = true};
	w->want = chance(m, 30) ? 0 : chance(m, 50) ? UINT64_MAX : pick(m, TEXT_MAX);
	memcpy(w->tokens, s->prompt, sizeof(w->tokens));
	changed = s->answer && chance(m, 10);
	if (changed)
		w->tokens[pick(m, (uint32_t)s->answer)]++;
	else if (chance(m, 20))
		max = s->answer + pick(m, s->asked - (uint32_t)s->answer + 1);
	withdraw(m, s);
	a = begin_wait(m, w, max);
	CHECK(m, (a.res == -EINVAL) == changed);
	if (!changed)
		wait_begun(m, w, max, a);
}

/* What the leader does when something has happened to its twin. */
static void look(struct model *m, struct waiter *w)
{
	struct mseq *s = w->seq;
	uint32_t before = computed(s);
	struct answer a = seq_wait_look(&w->open, w->tokens + before, seq_wait_slice(&w->open));
	uint64_t hit = w->open.seq ? w->open.done : a.value;

	if (a.res == ANSWER_LATER.res) { /* a slab is on its way: again */
		CHECK(m, m->shape->grants && w->open.done == before);
		m->counts->room_waits++;
		return;
	}
	w->due = false;
	if (!s->named) {
		CHECK(m, a.res == -ECANCELED && !w->open.seq);
		m->counts->cancelled++;
		stop_waiting(m, w);
		return;
	}
	check_hit(m, s, w->tokens, w->limit, hit);
	w->grown |= hit > before;
	if (hit >= w->end)
		check_waited(m, w, a, ATTND_WIRE_WAITED_DONE);
	else if (w->want ? hit >= w->want : w->grown)
		check_waited(m, w, a, ATTND_WIRE_WAITED_PROGRESS);
	else if (!w->twin || computed(w->twin) >= w->end)
		check_waited(m, w, a, ATTND_WIRE_WAITED_GONE);
	else
		CHECK(m, a.res == ANSWER_WAITS.res);
}

/* Its time is over. */
static void op_deadline(struct model *m)
{
	enum attnd_wire_waited why = chance(m, 50) ? ATTND_WIRE_WAITED_DEADLINE : ATTND_WIRE_WAITED_QUIET;
	struct waiter *w = any_waiter(m);

	if (w && w->due)
		look(m, w);
	if (w && w->open.seq)
		check_waited(m, w, seq_wait_end(&w->open, why), why);
}

/* The request is cancelled, or its session ends. A sequence that had been open is as it was. */
static void give_up(struct model *m, struct waiter *w)
{
	struct mseq *s = w->seq;

	SAY(m, "  %d waits no more\n", number(m, s));
	seq_open_abort(&w->open);
	m->counts->cancelled++;
	for (uint32_t i = 0; w->resumed && i < RANKS; i++)
		text_trim(&s->in[i].text, (uint32_t)s->answer);
	if (w->resumed && s->named)
		announce(s, w->first);
	else
		s->named = false;
	stop_waiting(m, w);
}

static void op_cancel(struct model *m)
{
	struct waiter *w = any_waiter(m);

	if (w)
		give_up(m, w);
}

/* Who has something to look at knows it, and looks sooner or later. */
static void look_at_twins(struct model *m)
{
	for (uint32_t i = 0; i < WAITERS; i++) {
		struct waiter *w = &m->waiter[i];

		if (!w->open.seq)
			continue;
		CHECK(m, seq_wait_stirred(&w->open) == w->due);
		if (w->due && chance(m, 60))
			look(m, w);
	}
}

/* ---- Plans ---- */

/* Which of the engine's sequences went, as after engine_close_some. */
static void close_missing(struct model *m, uint32_t engine)
{
	for (uint32_t i = 0; i < SEQS; i++) {
		struct mseq *s = &m->seq[i];

		if (s->there && s->named && s->engine == engine && !seq_find(m->engine[engine], s->key))
			close_seq(m, s, UINT32_MAX);
	}
}

struct batch {
	struct row_request request[ROWS];
	uint64_t tokens[ROWS][ROW_MAX];
	uint64_t mask[ROWS][ROW_MAX * 2];
	struct mseq *seq[ROWS]; /* NULL: an unknown key */
	uint32_t num;
};

/* A sequence that holds just what stands before row i of the batch. */
static struct mseq *twin_of(struct model *m, const struct batch *b, uint32_t i, uint32_t engine, uint32_t rank)
{
	uint32_t start = (uint32_t)b->request[i].wire.start;
	const struct mseq *s = b->seq[i];

	for (uint32_t k = 0; s && start <= s->in[rank].text.len && k < SEQS; k++) {
		struct mseq *o = &m->seq[k];

		if (o != s && o->there && o->named && o->engine == engine && o->in[rank].text.len == start &&
		    o->in[rank].text.seed == s->in[rank].text.seed &&
		    (!start || o->in[rank].text.prefix[start - 1] == s->in[rank].text.prefix[start - 1]))
			return o;
	}
	return NULL;
}

/* Twice in a batch only where no row is refused for want of room: then it is plain what the second one is told. */
static bool stands_once(const struct model *m, const struct batch *b, uint32_t i, const struct mseq *s)
{
	for (uint32_t k = 0; k < i && m->shape->slabs < 10; k++)
		if (b->seq[k] == s)
			return false;
	return true;
}

/* The same step as the row before it, for a twin of its sequence. */
static bool make_twin_row(struct model *m, struct batch *b, uint32_t i, uint32_t engine, uint32_t rank)
{
	struct mseq *s = i && chance(m, 40) ? twin_of(m, b, i - 1, engine, rank) : NULL;

	if (!s || !stands_once(m, b, i, s))
		return false;
	b->seq[i] = s;
	memcpy(b->tokens[i], b->tokens[i - 1], sizeof(b->tokens[i]));
	b->request[i] = b->request[i - 1];
	b->request[i].wire.key = s->key;
	b->request[i].tokens = b->tokens[i];
	return true;
}

static void make_row(struct model *m, struct batch *b, uint32_t i, uint32_t engine, uint32_t rank)
{
	struct mseq *any = chance(m, 3) ? NULL : named_seq(m, engine),
		    *s = any && stands_once(m, b, i, any) ? any : NULL;
	uint32_t len = s ? s->in[rank].text.len : 0, n = chance(m, 30) ? 1 : 1 + pick(m, ROW_MAX), start = len;
	struct row_request *q = &b->request[i];
	bool follow = s && s->announced && chance(m, 70); /* what it was opened on */

	if (len && chance(m, 18))
		start = chance(m, 50) ? len - 1 - pick(m, len < 4 ? len : 4) : pick(m, len);
	else if (chance(m, 3))
		start = len + 1;
	if (start + n > TEXT_MAX)
		start = TEXT_MAX - n;
	make_tokens(m, start, n, b->tokens[i]);
	for (uint32_t k = 0; follow && k < n && start + k < s->asked; k++)
		b->tokens[i][k] = s->prompt[start + k];
	b->seq[i] = s;
	*q = (struct row_request){.wire = {.key = s ? s->key : 0, .start = start, .num_tokens = n},
				  .tokens = b->tokens[i]};
	q->wire.publish_upto = chance(m, 60) ? UINT64_MAX : pick(m, start + n + 4);
	if (chance(m, 3))
		q->wire.flags = ATTND_WIRE_ROW_NONCAUSAL;
	if (chance(m, 3))
		q->mask = b->mask[i];
}

static struct mplan *free_plan(struct model *m)
{
	for (uint32_t i = 0; i < PLANS; i++)
		if (!m->plan[i].plan)
			return &m->plan[i];
	return NULL;
}

static bool batch_busy(const struct batch *b, uint32_t rank)
{
	for (uint32_t i = 0; i < b->num; i++)
		if (b->seq[i] &&
		    (b->seq[i]->waiter || (b->seq[i]->in[rank].plan && b->seq[i]->in[rank].plan->running)))
			return true;
	return false;
}

/* How many of a row's tokens are taken over: exactly what is published, if its place in the tree is known. */
static void check_taken(struct model *m, const struct mplan *p, const struct mrow *r, const struct plan_row *got,
			const struct row_request *q)
{
	const struct held *h = held_of(r->seq, p->rank);
	const struct text *t = &r->seq->in[p->rank].text;
	uint32_t most = 0;

	if (!r->tainted && h->stand_pos >= r->start && t->clean >= r->start)
		most = oracle_match(&m->oracle, t, r->start, q->tokens, r->n);
	CHECK(m, got->cached <= most);
	CHECK(m, got->cached == most || !nothing_lost(m, p->engine));
	m->counts->taken += got->cached;
}

/* New blocks hold garbage until a job has written them. */
static void poison(const struct mplan *p, const struct plan_row *r)
{
	const struct cache *c = p->plan->cache;

	for (uint32_t k = 0; k < r->num_ext; k++)
		for (uint32_t s = 0; r->ext[k].own && s < c->block_size; s++)
			*oracle_slot(c, r->ext[k].id, s) = 0;
}

static void begin_row(struct model *m, struct mplan *p, uint32_t i, const struct batch *b)
{
	const struct plan_row *got = &p->plan->rows[i];
	const struct row_request *q = &b->request[i];
	struct mrow *r = &p->row[i];
	uint64_t salt;

	*r = (struct mrow){.seq = b->seq[i],
			   .start = (uint32_t)q->wire.start,
			   .n = q->wire.num_tokens,
			   .cached = got->cached,
			   .tainted = q->mask || q->wire.flags,
			   .upto = q->wire.publish_upto};
	check_taken(m, p, r, got, q);
	m->counts->copies += got->copies;
	r->after = r->seq->in[p->rank].text;
	text_trim(&r->after, r->start);
	salt = r->tainted ? next_random(&m->random) | 1 : 0;
	for (uint32_t k = 0; k < r->n; k++)
		text_append(&r->after, q->tokens[k], salt);
	r->seq->in[p->rank].plan = p;
	r->seq->plans++;
	poison(p, got);
}

/* A row may be refused only if there was no room for it. */
static void check_refused(struct model *m, const struct mplan *p, const struct row_request *q)
{
	const struct cache *c = cache_of(m, p->engine, p->rank);
	uint64_t have = c->free + c->evictable + (uint64_t)m->world.pool.num_free * c->blocks_per_slab;
	uint64_t need = q->wire.num_tokens / c->block_size + 2 + TEXT_MAX / c->block_size;

	CHECK(m, have < need || (c->commons && c->total + (uint64_t)m->world.pool.num_free * c->blocks_per_slab <
						       c->claimed + need));
	m->counts->refused++;
}

/* What is rolled back stays until the commit, unless there is no room for both. */
static void check_length(struct model *m, const struct mplan *p, struct mseq *s, uint32_t start, int32_t status)
{
	uint64_t length = held_of(s, p->rank)->length;

	CHECK(m, length == s->in[p->rank].text.len || (length == start && !nothing_lost(m, p->engine)));
	CHECK(m, status != -ENOMEM || length == start);
	text_trim(&s->in[p->rank].text, (uint32_t)length);
}

static void check_status(struct model *m, struct mplan *p, uint32_t i, const struct batch *b)
{
	int32_t status = p->plan->rows[i].status;
	struct mseq *s = b->seq[i];
	struct text *t = s ? &s->in[p->rank].text : NULL;

	p->row[i].seq = NULL;
	if (!s || s->in[p->rank].plan || b->request[i].wire.start > t->len) {
		CHECK(m, status == (!s ? -ENOENT : s->in[p->rank].plan ? -EINVAL : -ERANGE));
		return;
	}
	s->used = true;
	if (b->request[i].wire.start < t->len)
		withdraw(m, s);
	CHECK(m, status == 0 || status == -ENOMEM || (status == -EDQUOT && m->shape->quotas));
	m->counts->over_quota += status == -EDQUOT;
	check_length(m, p, s, (uint32_t)b->request[i].wire.start, status);
	if (status == -ENOMEM)
		check_refused(m, p, &b->request[i]);
	else if (!status)
		begin_row(m, p, i, b);
}

static void check_slabs(const struct model *m)
{
	for (int i = 0; i < ORACLE_CACHES && m->oracle.cache[i]; i++) {
		const char *bad = slabs_check(m->oracle.cache[i]);

		if (bad)
			oracle_fail(&m->oracle, "slabs_check: %s", bad);
	}
}

static void plan_batch(struct model *m, struct mplan *p, const struct batch *b, uint32_t engine, uint32_t rank)
{
	uint32_t session = pick(m, SESSIONS);
	bool busy = batch_busy(b, rank);
	struct plan *made;
	int r;

	*p = (struct mplan){.engine = engine, .rank = rank, .session = session, .num_rows = b->num};
	for (uint32_t i = 0; i < b->num && !busy; i++)
		if (b->seq[i] && b->seq[i]->in[rank].plan)
			plan_over(m, b->seq[i]->in[rank].plan);
	while ((r = plan_make(session_of(m, engine, session), m->engine[engine], rank, (uint32_t)(p - m->plan),
			      b->request, b->num, &m->lists[engine][session], &made)) == -EAGAIN) {
		m->counts->room_waits++;
		if (!slabs_step(&m->world.pool) || chance(m, 20))
			op_job(m);
		check_slabs(m);
	}
	p->plan = r ? NULL : made;
	SAY(m, "plan %d engine %u rank %u rows %u: %d\n", (int)(p - m->plan), engine, rank, b->num, r);
	CHECK(m, r == (busy ? -EBUSY : 0));
	m->counts->busy += busy;
	for (uint32_t i = 0; i < b->num && !busy; i++) {
		check_status(m, p, i, b);
		SAY(m, "  row %d: start %u n %u cached %u status %d\n", b->seq[i] ? number(m, b->seq[i]) : -1,
		    (uint32_t)b->request[i].wire.start, b->request[i].wire.num_tokens, p->plan->rows[i].cached,
		    p->plan->rows[i].status);
	}
}

static void op_plan(struct model *m, uint32_t engine)
{
	struct mplan *p = free_plan(m);
	struct batch b = {.num = 1 + pick(m, ROWS)};
	uint32_t rank = pick(m, RANKS);

	if (!p)
		return;
	for (uint32_t i = 0; i < b.num; i++)
		if (!make_twin_row(m, &b, i, engine, rank))
			make_row(m, &b, i, engine, rank);
	plan_batch(m, p, &b, engine, rank);
}

/* ---- Jobs ---- */

/* What the write phase of a job does, of every layer at once. */
static void write_row(struct model *m, const struct mplan *p, const struct mrow *r, const struct plan_row *pr)
{
	const struct cache *c = p->plan->cache;
	uint32_t B = c->block_size;

	for (uint32_t s = 0; pr->copies && s < pr->copy_slots; s++)
		*oracle_slot(c, plan_entry(p->plan, pr, pr->copy_index)->id, s) = *oracle_slot(c, pr->source.id, s);
	for (uint32_t pos = r->start + r->cached; pos < r->start + r->n; pos++) {
		uint32_t id = plan_entry(p->plan, pr, pos / B)->id;

		CHECK(m, pos % B >= cache_count(c, id));
		*oracle_slot(c, id, pos % B) = r->after.kv[pos];
	}
}

/* What was there before stays where a job found it, until the job is done; what it writes to does not move. */
static void begin_job(struct mplan *p)
{
	const struct cache *c = p->plan->cache;

	plan_run(p->plan);
	p->running = 1;
	for (uint32_t i = 0; i < p->num_rows; i++) {
		struct mrow *r = &p->row[i];

		for (uint32_t k = 0; r->seq && k * c->block_size < r->start + r->n; k++)
			r->at[k] = cache_offset(c, plan_entry(p->plan, &p->plan->rows[i], k)->id);
	}
}

static void check_old_places(struct model *m, const struct mplan *p)
{
	const struct cache *c = p->plan->cache;

	for (uint32_t i = 0; i < p->num_rows; i++) {
		const struct plan_row *pr = &p->plan->rows[i];
		const struct mrow *r = &p->row[i];

		for (uint32_t k = (r->start + r->cached) / c->block_size;
		     r->seq && !p->committed && r->cached < r->n && k * c->block_size < r->start + r->n; k++)
			CHECK(m, r->at[k] == cache_offset(c, plan_entry(p->plan, pr, k)->id));
		for (uint32_t pos = 0; r->seq && pos < r->start + r->cached; pos++)
			CHECK(m, (pr->copies && !p->stored && pos / c->block_size == pr->copy_index) ||
					 *oracle_at(c, r->at[pos / c->block_size], pos % c->block_size) ==
						 r->after.kv[pos]);
	}
}

static void run_job(struct model *m, struct mplan *p)
{
	for (uint32_t i = 0; i < p->num_rows; i++)
		if (p->row[i].seq && !p->committed)
			write_row(m, p, &p->row[i], &p->plan->rows[i]);
	p->stored = true;
	for (uint32_t i = 0; i < p->num_rows; i++) {
		const struct mrow *r = &p->row[i];

		for (uint32_t pos = 0; r->seq && pos < r->start + r->n; pos++)
			oracle_read(&m->oracle, p->plan->cache,
				    plan_entry(p->plan, &p->plan->rows[i], pos / p->plan->cache->block_size), pos,
				    r->after.token[pos], r->after.kv[pos]);
	}
}

/* What it needs for that, a hold or a copy, may take what is guaranteed to others, or there is no room for it. */
static bool blocked(const struct cache *c, const struct held *h)
{
	return c->commons || cache_aux(c, h->table[h->stand_pos / c->block_size].id)->state == BLOCK_PUBLIC;
}

static void commit_row(struct model *m, const struct mplan *p, const struct mrow *r, uint64_t before)
{
	const struct held *h = held_of(r->seq, p->rank);
	struct text *t = &r->seq->in[p->rank].text;
	uint64_t want, lower = before;

	*t = r->after;
	lower = lower < r->start ? lower : r->start;
	lower = r->cached ? r->start + r->cached : lower;
	want = r->upto < t->clean ? r->upto : t->clean;
	want = want > lower ? want : lower;
	CHECK(m, h->stand_pos >= lower && h->stand_pos <= want);
	CHECK(m, h->stand_pos == want || blocked(p->plan->cache, h));
	m->counts->blocked += h->stand_pos != want;
	m->counts->published += h->stand_pos - lower;
	for (uint32_t i = 0; i < lower; i++)
		CHECK(m, oracle_has(&m->oracle, t->prefix[i]));
	oracle_publish(&m->oracle, t, (uint32_t)lower, (uint32_t)h->stand_pos);
}

static void commit(struct model *m, struct mplan *p)
{
	uint64_t before[ROWS];

	for (uint32_t i = 0; i < p->num_rows; i++)
		before[i] = p->row[i].seq ? held_of(p->row[i].seq, p->rank)->stand_pos : 0;
	plan_commit(p->plan);
	p->committed = true;
	for (uint32_t i = 0; i < p->num_rows; i++)
		if (p->row[i].seq)
			commit_row(m, p, &p->row[i], before[i]);
	for (uint32_t i = 0; i < p->num_rows; i++)
		if (p->row[i].seq)
			advanced(m, p->row[i].seq);
}

static struct mplan *any_plan(struct model *m)
{
	for (uint32_t i = 0, k = pick(m, PLANS); i < PLANS; i++)
		if (m->plan[(i + k) % PLANS].plan)
			return &m->plan[(i + k) % PLANS];
	return NULL;
}

/* The daemon's submit_done. */
static void finish_job(struct model *m, struct mplan *p, bool last)
{
	if (!p->running)
		begin_job(p);
	else
		check_old_places(m, p);
	run_job(m, p);
	p->running = 0;
	plan_ran(p->plan);
	if (last && !p->committed)
		commit(m, p);
	CHECK(m, p->plan->orphan == p->orphan);
	if (p->orphan) {
		plan_end(p->plan);
		plan_over(m, p);
	}
}

static void op_job(struct model *m)
{
	struct mplan *p = any_plan(m);
	bool last = chance(m, 60);

	if (!p || (!p->running && !p->committed && slabs_hold(p->plan->cache, p->plan)))
		return;
	if (!p->running && chance(m, 40)) {
		begin_job(p);
		return;
	}
	SAY(m, "job of plan %d, last %d\n", (int)(p - m->plan), last);
	finish_job(m, p, last);
}

/* Somebody waits for it: a step of its prompt in the cache that is behind, or most of it. */
static void op_serve(struct model *m)
{
	struct waiter *w = any_waiter(m);
	struct mseq *s = w ? w->twin : NULL;
	struct mplan *p = free_plan(m);
	struct batch b = {.num = 1};
	uint32_t rank, len, n;

	if (!s || !p)
		return;
	rank = s->in[0].text.len > s->in[1].text.len;
	len = s->in[rank].text.len;
	n = s->asked > len ? s->asked - len : 1;
	n = n < ROW_MAX ? n : ROW_MAX;
	n = chance(m, 60) ? n : 1 + pick(m, n);
	if (len + n > TEXT_MAX)
		return;
	make_tokens(m, len, n, b.tokens[0]);
	for (uint32_t i = 0; i < n && len + i < s->asked; i++)
		b.tokens[0][i] = s->prompt[len + i];
	b.seq[0] = s;
	b.request[0] = (struct row_request){
		.wire = {.key = s->key, .start = len, .num_tokens = n, .publish_upto = UINT64_MAX},
		.tokens = b.tokens[0]};
	plan_batch(m, p, &b, s->engine, rank);
	if (p->plan && p->row[0].seq)
		finish_job(m, p, true);
}

static void check_tables(struct model *m)
{
	for (uint32_t i = 0; i < SEQS; i++) {
		const struct mseq *s = &m->seq[i];

		for (uint32_t r = 0; s->there && r < RANKS; r++)
			oracle_table(&m->oracle, cache_of(m, s->engine, r), held_of(s, r), &s->in[r].text);
	}
}

/* A slab begins to leave: its cache has one too many. Where nothing may be evicted, only out of plenty. */
static void op_move(struct model *m, uint32_t engine)
{
	struct cache *c = cache_of(m, engine, pick(m, RANKS));

	if (!c->num_slabs || (m->shape->slabs >= 10 && c->free < 3 * (uint64_t)c->blocks_per_slab))
		return;
	c->max_slabs = c->num_slabs - 1;
	if (cache_shrink(c))
		m->counts->slabs++;
	cache_set_share(c);
	check_slabs(m);
}

static void step_slabs(struct model *m)
{
	uint64_t before = 0, after = 0;

	for (int i = 0; i < ORACLE_CACHES && m->oracle.cache[i]; i++)
		before += m->oracle.cache[i]->moved;
	(void)slabs_step(&m->world.pool);
	for (int i = 0; i < ORACLE_CACHES && m->oracle.cache[i]; i++)
		after += m->oracle.cache[i]->moved;
	if (after != before && chance(m, 10)) {
		check_slabs(m);
		check_tables(m);
	}
}

static void op_end(struct model *m)
{
	struct mplan *p = any_plan(m);

	if (!p || p->running)
		return;
	SAY(m, "end plan %d\n", (int)(p - m->plan));
	plan_end(p->plan);
	plan_over(m, p);
}

/* ---- What the leader does when it is idle ---- */

/* Tokens and K/V of all tables stay as they are; check_tables sees to it. */
static void op_collapse(struct model *m, uint32_t engine)
{
	struct cache *c = cache_of(m, engine, pick(m, RANKS));
	uint64_t before = c->collapsed;

	for (uint32_t i = pick(m, 40); i && collapse_step(c); i--)
		;
	SAY(m, "collapse: %d blocks\n", (int)(c->collapsed - before));
	m->counts->collapsed += c->collapsed - before;
	if (c->collapsed != before)
		check_tables(m);
}

/* ---- What administrators do ---- */

static void op_pin(struct model *m, uint32_t engine)
{
	struct oracle_pin *p = &m->pin[pick(m, PINS)];
	const struct text *t = any_text(m);
	uint32_t rank = pick(m, RANKS), stand = ATTND_BLOCK_NONE;
	struct cache *c = cache_of(m, engine, rank);

	if (p->cache) {
		cache_unref(p->cache, NULL, p->stand);
		p->cache = NULL;
		return;
	}
	if (!t || !tree_match(c, m->engine[engine]->ns[0], &stand, 0, t->token, t->len, NULL) ||
	    cache_make_room(c, NULL, path_idle(c, stand), account_path(c, NULL, stand)))
		return;
	cache_ref(c, NULL, stand);
	*p = (struct oracle_pin){.cache = c, .stand = stand};
	m->counts->pins++;
}

static void op_evict(struct model *m, uint32_t engine)
{
	for (uint32_t n = pick(m, 8); n && m->shape->slabs < 10; n--)
		(void)cache_evict(cache_of(m, engine, pick(m, RANKS)));
}

/* ---- Sessions and engines ---- */

/* Its running job comes to an end without success, then its plans are ended. */
static void end_session(struct model *m, uint32_t engine, uint32_t session)
{
	for (uint32_t i = 0; i < WAITERS; i++)
		if (m->waiter[i].open.seq && m->waiter[i].seq->engine == engine && m->waiter[i].session == session)
			give_up(m, &m->waiter[i]);
	for (uint32_t i = 0; i < PLANS; i++) {
		struct mplan *p = &m->plan[i];

		if (!p->plan || p->engine != engine || p->session != session)
			continue;
		if (p->running)
			finish_job(m, p, false);
		if (p->plan) {
			plan_end(p->plan);
			plan_over(m, p);
		}
	}
	CHECK(m, !m->lists[engine][session]);
}

static void make_engine(struct model *m, uint32_t engine)
{
	static const char *const tenants[3] = {NULL, "a", "ab"}, *const adapters[3] = {NULL, "bc", "c"};
	struct engine *e = world_engine(&m->world);

	m->engine[engine] = e;
	world_cache(&m->world, e, "shared", m->shape->block_size[0]);
	world_cache(&m->world, e, engine && !m->shape->twins ? "other" : "rank",
		    m->shape->block_size[engine && !m->shape->twins ? 2 : 1]);
	for (uint32_t i = 0; i < e->num_caches; i++)
		oracle_add(&m->oracle, e->caches[i].cache);
	for (uint32_t i = 1; i < m->shape->namespaces; i++)
		assert_int_equal(world_ns(&m->world, e, tenants[i], adapters[i]), i);
}

static void op_owner(struct model *m, uint32_t engine)
{
	uint32_t n = 1 + pick(m, 4);

	SAY(m, "engine %u: close some\n", engine);
	(void)engine_close_some(m->engine[engine], n);
	close_missing(m, engine);
}

static void op_leave(struct model *m, uint32_t engine)
{
	SAY(m, "engine %u leaves\n", engine);
	for (uint32_t i = 0; i < SESSIONS; i++)
		end_session(m, engine, i);
	for (uint32_t i = 0; i < SEQS; i++)
		if (m->seq[i].there && m->seq[i].engine == engine) {
			withdraw(m, &m->seq[i]);
			drop_seq(m, &m->seq[i]);
		}
	engine_leave(&m->world.engines, m->engine[engine]);
	make_engine(m, engine);
}

static void op_grant(struct model *m, uint32_t engine)
{
	uint32_t rank = pick(m, RANKS);
	uint64_t tokens = pick(m, 2) * pick(m, (uint32_t)cache_capacity(cache_of(m, engine, rank)));
	uint32_t sequences = pick(m, 4);
	struct answer a;

	if (!m->shape->grants)
		return;
	while ((a = engine_grant(m->engine[engine], rank, tokens, sequences)).res == -EINPROGRESS) {
		m->counts->room_waits++;
		if (!slabs_step(&m->world.pool))
			op_job(m);
	}
	SAY(m, "grant engine %u rank %u of %llu: %d\n", engine, rank, (unsigned long long)tokens, a.res);
	CHECK(m, a.res == 0 || a.res == -ENOMEM);
}

/* ---- A run ---- */

static void one_op(struct model *m)
{
	uint32_t engine = pick(m, ENGINES), what = pick(m, 1000);

	if (what < 80)
		op_open(m, engine);
	else if (what < 135)
		op_wait(m, engine);
	else if (what < 155)
		op_wait_again(m, engine);
	else if (what < 170)
		op_reopen(m, engine);
	else if (what < 205)
		op_serve(m);
	else if (what < 255)
		op_fork(m, engine);
	else if (what < 275)
		op_trim(m, engine);
	else if (what < 350)
		op_close(m, engine);
	else if (what < 650)
		op_plan(m, engine);
	else if (what < 960)
		op_job(m);
	else if (what < 976)
		op_end(m);
	else if (what < 978)
		op_deadline(m);
	else if (what < 980)
		op_cancel(m);
	else if (what < 985)
		end_session(m, engine, pick(m, SESSIONS));
	else if (what < 988)
		op_owner(m, engine);
	else if (what < 990)
		op_leave(m, engine);
	else if (what < 992)
		op_pin(m, engine);
	else if (what < 993)
		op_evict(m, engine);
	else if (what < 995)
		op_collapse(m, engine);
	else if (what < 997)
		op_move(m, engine);
	else
		op_grant(m, engine);
}

static void check_all(struct model *m)
{
	struct plan *plans[PLANS];

	for (uint32_t i = 0; i < PLANS; i++)
		plans[i] = m->plan[i].plan;
	check_tables(m);
	oracle_full(&m->oracle, &m->world, plans, PLANS, m->pin, PINS);
}

static void finish(struct model *m)
{
	for (uint32_t e = 0; e < ENGINES; e++)
		for (uint32_t s = 0; s < SESSIONS; s++)
			end_session(m, e, s);
	for (uint32_t i = 0; i < SEQS; i++) {
		struct mseq *s = &m->seq[i];

		if (s->there) {
			CHECK(m, !seq_close(m->engine[s->engine], s->key, NULL).res);
			close_seq(m, s, UINT32_MAX);
		}
	}
	for (uint32_t i = 0; i < PINS; i++) {
		if (m->pin[i].cache)
			cache_unref(m->pin[i].cache, NULL, m->pin[i].stand);
		m->pin[i].cache = NULL;
	}
	check_all(m);
	for (int i = 0; i < ORACLE_CACHES && m->oracle.cache[i]; i++) {
		CHECK(m, referenced(m->oracle.cache[i]) == 0);
		m->counts->evicted += m->oracle.cache[i]->evicted;
		m->counts->moved += m->oracle.cache[i]->moved;
	}
	world_close(&m->world);
	oracle_close(&m->oracle);
}

void model_run(const struct model_shape *shape, uint64_t seed, uint32_t steps, struct model_counts *counts)
{
	struct model *m = calloc(1, sizeof(*m));

	assert_non_null(m);
	m->shape = shape;
	m->counts = counts;
	m->random = seed | 1;
	m->verbose = env_number("ATTND_TREE_VERBOSE", 0) != 0;
	oracle_open(&m->oracle, shape->name, seed);
	world_open(&m->world, shape->slabs, MAX_SEQS);
	if (shape->quotas)
		m->world.pool.namespace_quota = m->world.pool.engine_quota = ((uint64_t)shape->slabs << 21) / 10;
	for (uint32_t e = 0; e < ENGINES; e++)
		make_engine(m, e);
	for (; m->oracle.step < steps; m->oracle.step++) {
		SAY(m, "step %llu\n", (unsigned long long)m->oracle.step);
		one_op(m);
		look_at_twins(m);
		if (chance(m, 30))
			step_slabs(m);
		if (m->shape->trades && chance(m, 2))
			op_move(m, pick(m, ENGINES));
		if (world_step)
			world_step(&m->world);
		oracle_cheap(&m->oracle, &m->world);
		if (m->verbose || m->oracle.step % 16 == 15)
			check_tables(m);
		if (m->verbose || m->oracle.step % 100 == 99)
			check_all(m);
	}
	finish(m);
	free(m);
}
