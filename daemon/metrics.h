/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the engine counts, and how it is told.
 *
 * In:   watch.h's hooks count, on the leader. Out: a copy of it, as Prometheus text or JSON.
 * Next: admin.c and http.c, on the control thread.
 *
 * One owner: the leader counts with plain additions; a reader gets a copy by mail
 * (MAIL_ADMIN "metrics", "stat"), so nothing is locked and nothing is shared.
 */
#ifndef ATTND_DAEMON_METRICS_H
#define ATTND_DAEMON_METRICS_H

#include <stdbool.h>
#include <stdint.h>

#include "../proto/wire.h"
#include "topology.h"

struct control;
struct json_t;
struct leader;

/* X(name) */
#define METRICS_OPS(X) X(decode) X(extend) X(open) X(plan) X(close) X(export) X(other)
#define METRICS_REASONS(X)                                     \
	X(room, "a block was needed, the least recently used") \
	X(slab, "another cache needed the slab")               \
	X(admin, "an administrator's evict or flush")          \
	X(dropped, "the whole cache went")                     \
	X(share, "a cache had used its share of the pool")

enum metrics_op {
#define METRICS_X(name) METRICS_OP_##name,
	METRICS_OPS(METRICS_X)
#undef METRICS_X
		METRICS_NUM_OPS,
};

enum metrics_reason {
#define METRICS_X(name, text) METRICS_REASON_##name,
	METRICS_REASONS(METRICS_X)
#undef METRICS_X
		METRICS_NUM_REASONS,
};

enum { METRICS_NUM_BOUNDS = 42, METRICS_MAX_ERRNO = 134, METRICS_MAX_SERIES = 1024 };

/** Values up to and including bound i are in bucket i; the last has what is above all of them. */
struct histogram {
	uint64_t buckets[METRICS_NUM_BOUNDS + 1];
	uint64_t sum; /* ns, or ms */
};

/** What one session or one namespace has used. */
struct metrics_use {
	uint64_t requests, errors;
	uint64_t query_tokens, hit_tokens; /* of opens */
	uint64_t tokens, taken_tokens;	   /* of plans' rows; of these found cached */
	uint64_t bytes_read;
};

struct metrics {
	struct histogram requests[METRICS_NUM_OPS]; /* ns from the ring to the answer */
	uint64_t errors[METRICS_NUM_OPS];
	uint64_t errnos[METRICS_MAX_ERRNO]; /* answers by error; 0: others */
	uint64_t bytes_read;		    /* K/V that attention read out of the pool */
	uint64_t decode_tokens, extend_tokens;
	uint64_t evictions[METRICS_NUM_REASONS];
	struct histogram lifetime; /* ms from publishing to eviction */
	struct histogram reuse;	   /* ms that a cached block was idle before somebody held it again */
};

/** Of a duration: in ns, bounds from 1 us to 10 s. */
void histogram_ns(struct histogram *h, uint64_t ns);
/** In ms, bounds from 1 ms to 10^4 s. */
void histogram_ms(struct histogram *h, uint64_t ms);

/** A copy of all that the leader has to tell: one allocation, to be freed with free(). */
struct metrics_snapshot;

/** Does an administrator's command ask for a snapshot? */
bool metrics_command(const char *command);

/** On the leader. NULL: no memory, or the command asks for no metrics. */
struct metrics_snapshot *metrics_take(const struct leader *l, const char *command);

/** Prometheus text (version 0.0.4), with control's own part. To be freed; NULL: no memory. */
char *metrics_text(const struct metrics_snapshot *s, const struct control *ctl);

/** The administrators' answer to "metrics" (that text) or "stat" (the numbers). Frees s. NULL: no memory. */
struct json_t *metrics_answer(struct metrics_snapshot *s, const struct control *ctl, const char *command);

#endif
