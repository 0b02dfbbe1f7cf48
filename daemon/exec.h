/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Execution: one layer of a plan.
 *
 * In:   a plan, a parameter set, pointers into the arena that intake has checked.
 * Out:  K/V in the rows' blocks; out and lse in the arena.
 * Next: kernels (attend, write, ...) by the cache's ops; then reply.c.
 *
 * A job has three phases: write K/V block by block (with the copy-on-write of a row's first
 * block and the clearing of flagged tiles); attend, folding the partials of chunks along the
 * fixed binary tree over chunk indices; merge what several runs of chunks left of a tile. work.h
 * cuts them into items. What an item computes depends on its rows and positions alone, never on
 * who runs it or what else runs.
 */
#ifndef ATTND_DAEMON_EXEC_H
#define ATTND_DAEMON_EXEC_H

#include "export.h"
#include "team.h"
#include "work.h"

/** A parameter set, copied and checked at registration. */
struct params {
	bool used;
	bool causal;
	uint32_t cache_index;
	uint32_t sliding_window;
	struct attnd_attn attn; /* k_scale, v_scale are filled a job */
	enum attnd_kdtype kv_in, out;
	float *sinks, *alibi; /* [num_heads] or NULL */
	uint64_t q_token_stride, k_token_stride, k_head_stride, v_token_stride, v_head_stride;
	uint64_t out_token_stride, out_head_stride;
	uint64_t k_scales_delta, v_scales_delta;
	uint32_t refs; /* running jobs; a replaced set is freed with the last */
	struct heap_use *heap;
	uint64_t bytes; /* of that */
};

struct job {
	struct team_job team;
	struct plan *plan;
	struct params *params;
	struct attnd_attn attn;
	const struct work_list *work;
	const struct attend_list *list; /* NULL: K/V only */
	uint32_t layer, src_layer;
	uint32_t flags; /* ATTND_JOB_* */
	bool store;	/* K/V of this job are to be written */
	const char *q, *k, *v;
	char *out;
	float *lse;
	_Atomic int error;	     /* -ENOMEM of a member; 0 */
	_Atomic uint64_t bytes_read; /* of the pool */
	bool exports;		     /* it is an EXPORT: `export` and `team` are all there is of it */
	struct export export;
};

/** Fill the team's part: items and counts. 0 or -ENOMEM. `threads`: members that will share it. */
int exec_prepare(struct job *j, uint32_t threads);

/**
 * Few tokens to write: do it now, which spares the team a phase. Between exec_prepare and running.
 */
void exec_write_first(struct job *j);

/** The team's part of an EXPORT, whose `export` has begun. */
void exec_prepare_export(struct job *j);

/** Whether the leader should run it alone: less than about 10 us of work. */
bool exec_small(const struct job *j);

#endif
