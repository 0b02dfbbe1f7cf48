/* SPDX-License-Identifier: Apache-2.0 */
/* Limits (limits.h). */
#include "limits.h"

#include <errno.h>
#include <stdlib.h>

#include "lead.h"

#define SECOND	 UINT64_C(1000000000)
#define COUNT_NS UINT64_C(1000) /* for each sequence, between two exact counts of an engine's tokens */

/* ---- Users ---- */

/* One whose sessions are gone is forgotten once its rate allows as much as a new one's. */
static bool forgettable(const struct leader *l, const struct user *u)
{
	return !u->sessions && l->now - u->opens.at_ns > SECOND;
}

static struct user *find_user(struct leader *l, uid_t uid)
{
	struct user **at = &l->users, *u, *found = NULL;

	while ((u = *at)) {
		if (u->uid == uid) {
			found = u;
		} else if (forgettable(l, u)) {
			*at = u->next;
			free(u);
			continue;
		}
		at = &u->next;
	}
	return found;
}

int limits_enter(struct leader *l, struct lead_session *ls)
{
	struct user *u = find_user(l, ls->session->uid);

	if (!u) {
		u = calloc(1, sizeof(*u));
		if (!u)
			return -ENOMEM;
		u->uid = ls->session->uid;
		u->next = l->users;
		l->users = u;
	}
	u->sessions++;
	ls->user = u;
	return 0;
}

void limits_leave(struct lead_session *ls)
{
	if (!ls->user)
		return;
	ls->user->in_flight -= ls->unanswered;
	ls->user->sessions--;
}

void limits_destroy(struct leader *l)
{
	for (struct user *u = l->users, *next; u; u = next) {
		next = u->next;
		free(u);
	}
	l->users = NULL;
}

/* ---- Requests in flight ---- */

static int64_t least(int64_t room, uint64_t limit, uint64_t used)
{
	int64_t left = limit > used ? (int64_t)(limit - used) : 0;

	return limit && left < room ? left : room;
}

int64_t limits_in_flight(const struct leader *l, const struct lead_session *ls, int64_t room)
{
	room = least(room, l->cfg->max_in_flight, ls->unanswered);
	return least(room, l->cfg->max_in_flight_per_uid, ls->user->in_flight);
}

/* ---- The rate of opens ---- */

static void refill(struct open_rate *r, uint32_t rate, uint64_t now)
{
	uint64_t most = rate * SECOND, passed = now - r->at_ns;

	if (passed >= SECOND || !r->at_ns)
		r->left = most;
	else
		r->left = r->left + passed * rate < most ? r->left + passed * rate : most;
	r->at_ns = now;
}

static bool may_open(struct open_rate *r, uint32_t rate, uint64_t now)
{
	if (!rate)
		return true;
	refill(r, rate, now);
	return r->left >= SECOND;
}

/* Both or neither. */
static struct answer take_open(struct leader *l, struct lead_session *ls)
{
	uint32_t mine = l->cfg->max_opens_per_second, all = l->cfg->max_opens_per_second_per_uid;

	if (!may_open(&ls->opens, mine, l->now))
		return ANSWER_BAD(EDQUOT, OPEN_RATE, mine);
	if (!may_open(&ls->user->opens, all, l->now))
		return ANSWER_BAD(EDQUOT, OPEN_RATE, all);
	ls->opens.left -= mine ? SECOND : 0;
	ls->user->opens.left -= all ? SECOND : 0;
	return ANSWER_OK;
}

/* ---- Sequences and tokens ---- */

static struct answer check_sequences(const struct leader *l, const struct lead_session *ls)
{
	uint64_t n = 0, most = l->cfg->max_sequences_per_uid;

	for (const struct engine *e = most ? l->engines.first : NULL; e; e = e->next)
		n += e->uid == ls->session->uid ? e->num_seqs : 0;
	return most && n >= most ? ANSWER_BAD(EDQUOT, SEQUENCES, most) : ANSWER_OK;
}

/* Of the cache in which a sequence is longest, with what its plan adds. */
static void count_tokens(const struct leader *l, struct engine *e)
{
	uint64_t sum = 0;

	for (const struct seq *s = e->seqs; s; s = s->next) {
		uint64_t most = 0;

		for (uint32_t i = 0; i < e->num_caches; i++)
			most = s->in[i].held.length > most ? s->in[i].held.length : most;
		sum += most;
	}
	for (const struct lead_session *ls = l->sessions; ls; ls = ls->next)
		for (const struct plan *p = ls->engine == e ? ls->plans : NULL; p; p = p->next)
			sum += p->committed ? 0 : p->num_tokens;
	e->tokens = (struct token_count){.exact = sum, .at_ns = l->now};
}

static uint64_t tokens_of(const struct engine *e)
{
	return e->tokens.exact + e->tokens.since;
}

static uint64_t tokens_of_uid(const struct leader *l, uid_t uid)
{
	uint64_t sum = 0;

	for (const struct engine *e = l->engines.first; e; e = e->next)
		sum += e->uid == uid ? tokens_of(e) : 0;
	return sum;
}

static bool too_many(const struct leader *l, const struct lead_session *ls, uint64_t tokens)
{
	uint64_t mine = l->cfg->max_tokens, all = l->cfg->max_tokens_per_uid;

	return (mine && tokens_of(ls->engine) + tokens > mine) ||
	       (all && tokens_of_uid(l, ls->session->uid) + tokens > all);
}

int limits_tokens(struct leader *l, struct lead_session *ls, uint64_t tokens)
{
	if (!l->cfg->max_tokens && !l->cfg->max_tokens_per_uid)
		return 0;
	if (too_many(l, ls, tokens)) {
		for (struct engine *e = l->engines.first; e; e = e->next)
			if (e->uid == ls->session->uid && l->now - e->tokens.at_ns >= e->num_seqs * COUNT_NS)
				count_tokens(l, e);
		if (too_many(l, ls, tokens))
			return -EDQUOT;
	}
	ls->engine->tokens.since += tokens;
	return 0;
}

void limits_uncount(struct engine *e, const struct token_count *before)
{
	/* An exact count in between begins anew. */
	e->tokens.since = e->tokens.at_ns == before->at_ns ? before->since : 0;
}

static struct answer check_tokens(struct leader *l, struct lead_session *ls, uint64_t tokens)
{
	uint64_t most = l->cfg->max_tokens ? l->cfg->max_tokens : l->cfg->max_tokens_per_uid;

	return limits_tokens(l, ls, tokens) ? ANSWER_BAD(EDQUOT, TOKENS, most) : ANSWER_OK;
}

struct answer limits_open(struct leader *l, struct lead_session *ls, uint64_t tokens)
{
	struct answer a = check_sequences(l, ls);

	if (!a.res)
		a = take_open(l, ls);
	return a.res ? a : check_tokens(l, ls, tokens);
}

struct answer limits_fork(struct leader *l, struct lead_session *ls, uint64_t tokens)
{
	struct answer a = check_sequences(l, ls);

	return a.res ? a : check_tokens(l, ls, tokens);
}
