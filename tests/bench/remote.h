/* SPDX-License-Identifier: Apache-2.0 */
/*
 * attnd as a model runner uses it: a daemon, a connection with a cache of one shape, sequences of
 * random tokens, steps of them.
 *
 * In:   a shape; sequences with lengths.
 * Out:  plans and jobs through the client library, timed.
 * Next: the bench's goals set it beside local.h.
 */
#ifndef ATTND_TESTS_BENCH_REMOTE_H
#define ATTND_TESTS_BENCH_REMOTE_H

#include "../../client/attnd.h"
#include "attnd-bench.h"

enum { REMOTE_ROWS = 64 };

/* A private daemon, or the running one. */
struct daemon {
	attnd_t *owner; /* its end is the daemon's; NULL: it is not ours */
	const char *socket;
	uint32_t threads; /* that execute */
	int first_cpu;	  /* of those it may run on */
};

/* Settings of a private one. */
struct daemon_options {
	uint64_t pool_bytes;
	uint32_t threads;
	int first_cpu, cpus; /* of the bench's */
	int spin_us;	     /* negative: its default */
};

/** Start one; with --socket take the running one, whatever the options say. */
void daemon_start(struct daemon *d, const struct daemon_options *o);
void daemon_stop(struct daemon *d);

struct remote {
	attnd_t *a;
	struct shape shape;
	struct attnd_cache_info info;
	uint16_t *q, *k, *v, *out; /* arena, for max_tokens tokens */
	uint32_t max_tokens;
	uint64_t next_key;
	uint64_t *tokens; /* random, as many as the longest sequence has */
	uint64_t max_length;
	uint16_t *source; /* what projections would leave */
};

/* How a client waits, and what it needs. */
struct remote_options {
	int64_t spin_us; /* as attnd_connect_options */
	uint32_t max_tokens;
	uint64_t max_length;
	uint8_t model; /* a number that others give for the same cache; 0: a cache of its own */
};

void remote_open(struct remote *r, const struct daemon *d, const struct shape *s, const struct remote_options *o);
void remote_close(struct remote *r);

/** A new sequence on a prompt (num_tokens >= 1); ret_cached: how much of it the daemon has; NULL: want none. */
uint64_t remote_sequence(struct remote *r, const uint64_t *tokens, uint64_t num_tokens, uint64_t *ret_cached);

/**
 * Store K and V for tokens [from, to) into every layer of up to REMOTE_ROWS sequences; visible to
 * others below `publish`. Block by block, the sequences in a new random order each time: so their
 * blocks lie scattered among each other's.
 */
void remote_fill(struct remote *r, const uint64_t *keys, uint32_t num_keys, const uint64_t *tokens, uint64_t from,
		 uint64_t to, uint64_t publish);

/** A new sequence with the first `length` tokens of another, and its blocks. */
uint64_t remote_fork(struct remote *r, uint64_t key, uint64_t length);

/** A decode step's plan: sequence i's next token is at lengths[i]. On its way when this returns. */
attnd_job_t remote_plan(struct remote *r, const uint64_t *keys, const uint32_t *lengths, uint32_t num_rows);
/** One layer of it: q, k and v stand in the fields of their names, out is left in its. `plan`: to wait for, or 0. */
void remote_attend(struct remote *r, uint32_t layer, bool last, attnd_job_t plan);
/** One layer of it: q, k and v stored, the job, out read. `plan`: 0, or a plan to wait for meanwhile. */
void remote_layer(struct remote *r, uint32_t num_rows, uint32_t layer, bool last, attnd_job_t plan);
void remote_wait(struct remote *r, attnd_job_t job);
/** A prefill's piece: `num_tokens` tokens from `start` on (rolled back to it), in every layer. */
void remote_extend(struct remote *r, uint64_t key, uint64_t start, uint32_t num_tokens);
/** Seconds of one layer of a plan that was made before: what a step of many layers comes to, a layer. */
double remote_job(struct remote *r, const uint64_t *keys, const uint32_t *lengths, uint32_t num_rows);
/** Seconds of a plan and `jobs` layers, going round those there are. */
double remote_step(struct remote *r, const uint64_t *keys, const uint32_t *lengths, uint32_t num_rows, uint32_t jobs);

#endif
