/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where the engine is watched: one line in the code that does something, all that follows here.
 *
 * In:   what the leader does: requests, blocks published, held, released and evicted.
 * Out:  counters (metrics.h), KV events (events.h), USDT probes (provider attnd).
 * Next: metrics.c, events.c; docs/probes.bt uses the probes.
 *
 * A pool that nobody watches (the tests of its parts) has no watch. One owner: the leader.
 */
#ifndef ATTND_DAEMON_WATCH_H
#define ATTND_DAEMON_WATCH_H

#include "cache.h"
#include "metrics.h"

struct answer;
struct events;
struct lead_session;
struct plan;
struct request;

struct watch {
	struct metrics metrics;
	struct events *events; /* NULL: none */
	uint32_t now_ms;       /* of the leader's round; never 0 */
	enum metrics_reason why;
};

/* ---- Blocks: cache.c ---- */

/** A block is in the tree now. */
void watch_published(struct cache *c, uint32_t id);
/** A published block has become full. */
void watch_filled(struct cache *c, uint32_t id);
/** A cache and all its blocks have gone. */
void watch_cache_gone(const struct cache *c);
/** About to leave the tree; everything of it still stands. */
void watch_evicted(struct cache *c, uint32_t id);

/** Somebody holds a cached block again. */
static inline void watch_held(const struct cache *c, const struct block_aux *a)
{
	if (c->pool->watch && a->idle_ms)
		histogram_ms(&c->pool->watch->metrics.reuse, c->pool->watch->now_ms - a->idle_ms);
}

static inline void watch_released(const struct cache *c, struct block_aux *a)
{
	if (c->pool->watch)
		a->idle_ms = c->pool->watch->now_ms;
}

/** Why blocks go from now on; returns what held before. */
static inline enum metrics_reason watch_reason(const struct pool *p, enum metrics_reason why)
{
	enum metrics_reason old = METRICS_REASON_room;

	if (p->watch) {
		old = p->watch->why;
		p->watch->why = why;
	}
	return old;
}

/* ---- Requests: intake.c, submit.c, leader.c ---- */

/** A round of the leader begins at this time. True: there is something to do in the next. */
bool watch_round(struct watch *w, uint64_t now_ns);
/** An entry was taken out of a session's ring. */
void watch_submitted(const struct lead_session *ls, const struct attnd_sqe *sqe);
/** The leader begins to work on it (again, if it had to wait). */
void watch_started(const struct lead_session *ls, const struct request *q);
/** It has its answer. */
void watch_done(struct watch *w, struct lead_session *ls, const struct request *q, const struct answer *a);
/** A plan stands. */
void watch_planned(struct watch *w, struct lead_session *ls, const struct plan *p);
/** A job's team has read this much of the pool. */
void watch_read(struct watch *w, struct lead_session *ls, uint64_t bytes);

#endif
