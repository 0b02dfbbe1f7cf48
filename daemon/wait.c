/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Requests that wait for a twin: set aside, so that the session's others go on.
 *
 * In:   SEQ_WAIT entries of intake.c; what happens to the twins (engine.c); time.
 * Out:  their answers, in the order in which they are released.
 * Next: reply.c.
 */
#include <errno.h>
#include <stdlib.h>

#include "lead.h"

enum { LOOKS = 8 }; /* slices matched for a session in one round */

struct waiting {
	struct waiting *next;
	struct request request;
	struct opening open;
	uint64_t last_ns; /* of its beginning or its last progress */
};

static uint64_t over_at(const struct waiting *w)
{
	uint64_t quiet_us = w->request.sqe.wait.quiet_us, quiet = w->last_ns + quiet_us * 1000;

	return quiet_us && quiet < w->request.deadline_ns ? quiet : w->request.deadline_ns;
}

static struct answer set_aside(struct leader *l, struct lead_session *ls)
{
	struct waiting *w = malloc(sizeof(*w));

	if (!w)
		return seq_wait_end(&ls->opening, ATTND_WIRE_WAITED_GONE);
	*w = (struct waiting){.next = ls->waits, .request = ls->job_request, .open = ls->opening, .last_ns = l->now};
	if (!ls->waits || over_at(w) < ls->waits_until)
		ls->waits_until = over_at(w);
	ls->waits = w;
	ls->opening.seq = NULL;
	return ANSWER_WAITS;
}

struct answer wait_open(struct leader *l, struct lead_session *ls, const struct attnd_sqe *sqe)
{
	uint64_t n = sqe->wait.num_tokens;
	struct answer a;

	if (n > ATTND_MAX_SEQ_TOKENS)
		return ANSWER_BAD(EINVAL, TOKENS, ATTND_MAX_SEQ_TOKENS);
	if (sqe->wait.priority > ATTND_MAX_PRIORITY)
		return ANSWER_BAD(EINVAL, PRIORITY, ATTND_MAX_PRIORITY);
	if (n && !arena_at(ls, sqe->wait.tokens, n * sizeof(uint64_t), sizeof(uint64_t)))
		return ANSWER_BAD(EFAULT, OFFSET, sqe->wait.tokens);
	if (!ls->opening.seq) {
		a = seq_wait_begin(&l->engines, ls->engine, sqe->wait.key, sqe->wait.ns, n, sqe->wait.max_match,
				   sqe->wait.want, &ls->opening);
		if (!ls->opening.seq)
			return a;
		if (l->limits.eviction == CONFIG_EVICT_PRIORITY && !ls->opening.resumed)
			seq_set_priority(ls->opening.seq, sqe->wait.priority);
	}
	a = open_slice(l, ls, sqe->wait.tokens);
	return a.res == -EALREADY ? set_aside(l, ls) : a;
}

/* Its tokens are read again from where the match stands: the client may have changed them, to its own loss. */
static struct answer look(struct leader *l, struct lead_session *ls, struct waiting *w)
{
	struct opening *o = &w->open;
	uint32_t n = seq_wait_slice(o);
	uint64_t before = o->done;
	const uint64_t *tokens;
	struct answer a;

	if (o->seq->closed)
		return seq_wait_look(o, NULL, 0);
	tokens = arena_copy(l, ls, w->request.sqe.wait.tokens + o->done * sizeof(*tokens), n * sizeof(*tokens),
			    sizeof(*tokens), 0);
	if (n && !tokens)
		return seq_wait_end(o, ATTND_WIRE_WAITED_GONE);
	a = seq_wait_look(o, tokens, n);
	if (o->seq && o->done > before)
		w->last_ns = l->now;
	return a;
}

static struct answer look_or_time(struct leader *l, struct lead_session *ls, struct waiting *w, int *looks)
{
	struct answer a = ANSWER_WAITS;

	if (seq_wait_stirred(&w->open) && *looks > 0) {
		(*looks)--;
		a = look(l, ls, w);
	}
	if (w->open.seq && l->now >= over_at(w))
		a = seq_wait_end(&w->open, l->now >= w->request.deadline_ns ? ATTND_WIRE_WAITED_DEADLINE
									    : ATTND_WIRE_WAITED_QUIET);
	return a;
}

bool wait_look(struct leader *l, struct lead_session *ls)
{
	uint64_t until = UINT64_MAX;
	int looks = LOOKS;
	bool did = false;

	if (ls->waits_seen == l->engines.twins.stirs && l->now < ls->waits_until)
		return false;
	ls->waits_seen = l->engines.twins.stirs;
	for (struct waiting **at = &ls->waits, *w; (w = *at);) {
		struct answer a = look_or_time(l, ls, w, &looks);

		if (w->open.seq) {
			if (seq_wait_stirred(&w->open)) /* once more */
				ls->waits_seen = UINT64_MAX;
			until = over_at(w) < until ? over_at(w) : until;
			at = &w->next;
			continue;
		}
		*at = w->next;
		watch_done(&l->watch, ls, &w->request, &a);
		reply_put(ls, w->request.sqe.user_data, &a);
		free(w);
		did = true;
	}
	ls->waits_until = until;
	return did || looks < LOOKS;
}

bool wait_cancel(struct lead_session *ls, uint32_t user_data, int32_t why)
{
	struct answer a = {.res = why};

	for (struct waiting **at = &ls->waits, *w; (w = *at); at = &w->next) {
		if (w->request.sqe.user_data != user_data)
			continue;
		*at = w->next;
		seq_open_abort(&w->open);
		reply_put(ls, user_data, &a);
		free(w);
		return true;
	}
	return false;
}

void wait_drop_all(struct lead_session *ls)
{
	while (ls->waits) {
		struct waiting *w = ls->waits;

		ls->waits = w->next;
		seq_open_abort(&w->open);
		free(w);
	}
}
