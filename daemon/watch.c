/* SPDX-License-Identifier: Apache-2.0 */
/* Watching the engine (watch.h): counters, events, probes. */
#include "watch.h"

#include <sys/sdt.h>

#include "../shm/futex.h"
#include "events.h"
#include "lead.h"

/* ---- Blocks ---- */

void watch_published(struct cache *c, uint32_t id)
{
	const struct attnd_block *b = cache_block(c, id);

	DTRACE_PROBE5(attnd, publish, c->id, id, b->parent, b->position + b->first, cache_count(c, id));
	if (c->pool->watch)
		cache_aux(c, id)->born_ms = c->pool->watch->now_ms;
}

void watch_filled(struct cache *c, uint32_t id)
{
	struct watch *w = c->pool->watch;

	if (w && w->events)
		events_stored(w->events, c, id);
}

void watch_evicted(struct cache *c, uint32_t id)
{
	const struct block_aux *a = cache_aux(c, id);
	struct watch *w = c->pool->watch;

	DTRACE_PROBE4(attnd, evict, c->id, id, cache_block(c, id)->position, w ? (int)w->why : 0);
	if (!w)
		return;
	w->metrics.evictions[w->why]++;
	if (a->born_ms)
		histogram_ms(&w->metrics.lifetime, w->now_ms - a->born_ms);
	if (w->events)
		events_removed(w->events, c, id);
}

void watch_cache_gone(const struct cache *c)
{
	if (c->pool->watch && c->pool->watch->events)
		events_cache_gone(c->pool->watch->events, c);
}

/* ---- Requests ---- */

bool watch_round(struct watch *w, uint64_t now_ns)
{
	uint32_t ms = (uint32_t)(now_ns / 1000000);

	w->now_ms = ms ? ms : 1; /* wraps after 49 days: differences stay right */
	return w->events && events_round(w->events);
}

static uint64_t taken_at(const struct request *q)
{
	return q->deadline_ns - (uint64_t)q->sqe.deadline_us * 1000;
}

static enum metrics_op op_of(uint8_t opcode)
{
	switch (opcode) {
	case ATTND_OP_DECODE:
		return METRICS_OP_decode;
	case ATTND_OP_EXTEND:
		return METRICS_OP_extend;
	case ATTND_OP_SEQ_OPEN:
		return METRICS_OP_open;
	case ATTND_OP_PLAN:
		return METRICS_OP_plan;
	case ATTND_OP_SEQ_CLOSE:
		return METRICS_OP_close;
	case ATTND_OP_EXPORT:
		return METRICS_OP_export;
	default:
		return METRICS_OP_other;
	}
}

void watch_submitted(const struct lead_session *ls, const struct attnd_sqe *sqe)
{
	DTRACE_PROBE4(attnd, job__submit, ls->session->id, sqe->user_data, sqe->opcode, sqe->layer);
}

void watch_started(const struct lead_session *ls, const struct request *q)
{
	DTRACE_PROBE4(attnd, job__start, ls->session->id, q->sqe.user_data, q->sqe.opcode, q->sqe.layer);
}

static struct metrics_use *use_of(const struct lead_session *ls, uint32_t ns_id)
{
	return &ls->engine->ns_table->entries[ns_id].use;
}

static void count_open(struct lead_session *ls, const struct attnd_sqe *sqe, uint64_t hit)
{
	struct metrics_use *n = use_of(ls, ls->engine->ns[sqe->sequence.ns]);

	ls->use.query_tokens += sqe->sequence.num_tokens;
	ls->use.hit_tokens += hit;
	n->query_tokens += sqe->sequence.num_tokens;
	n->hit_tokens += hit;
}

void watch_done(struct watch *w, struct lead_session *ls, const struct request *q, const struct answer *a)
{
	uint64_t now = attnd_now_ns(), began = taken_at(q), ns = now > began ? now - began : 0;
	enum metrics_op op = op_of(q->sqe.opcode);

	DTRACE_PROBE5(attnd, job__end, ls->session->id, q->sqe.user_data, q->sqe.opcode, a->res, ns);
	histogram_ns(&w->metrics.requests[op], ns);
	ls->use.requests++;
	if (a->res) {
		uint32_t e = a->res < 0 ? (uint32_t)-a->res : 0;

		w->metrics.errors[op]++;
		w->metrics.errnos[e < METRICS_MAX_ERRNO ? e : 0]++;
		ls->use.errors++;
	} else if (op == METRICS_OP_open && ls->engine && q->sqe.sequence.ns < ls->engine->num_ns) {
		count_open(ls, &q->sqe, a->value);
	}
}

void watch_planned(struct watch *w, struct lead_session *ls, const struct plan *p)
{
	for (uint32_t i = 0; i < p->num_rows; i++) {
		const struct plan_row *r = &p->rows[i];
		struct metrics_use *n;

		if (!r->seq)
			continue;
		n = use_of(ls, r->seq->ns);
		*(r->n == 1 ? &w->metrics.decode_tokens : &w->metrics.extend_tokens) += r->n - r->cached;
		ls->use.tokens += r->n;
		ls->use.taken_tokens += r->cached;
		n->tokens += r->n;
		n->taken_tokens += r->cached;
	}
}

void watch_read(struct watch *w, struct lead_session *ls, uint64_t bytes)
{
	w->metrics.bytes_read += bytes;
	ls->use.bytes_read += bytes;
}
