/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The same kernels without a daemon: what a model runner would gain by calling them itself.
 *
 * In:   rows with block tables over a pool of this process; threads.
 * Out:  decode steps, written and attended as the daemon's kernels do it.
 * Next: the bench's goals set it beside remote.h.
 *
 * A plain loop: whole rows are dealt out to threads (heads, where rows are too few), no partial
 * leaves its thread, and threads meet once a layer.
 */
#ifndef ATTND_TESTS_BENCH_LOCAL_H
#define ATTND_TESTS_BENCH_LOCAL_H

#include <stdatomic.h>

#include "../../kernels/kernels.h"
#include "attnd-bench.h"

enum { LOCAL_THREADS = 2, LOCAL_ROWS = 64 };

struct local_row {
	const uint32_t *blocks; /* of the sequence */
	uint32_t length;	/* tokens, the one of this step included */
};

struct local_thread {
	void *scratch, *partial, *sum;
	const void **blocks[2]; /* slices of this chunk and the next */
};

struct local {
	struct shape shape;
	struct attnd_kv_format fmt;
	struct attnd_ops ops;
	struct attnd_attn attn;
	char *pool;
	size_t block_bytes;
	uint32_t num_blocks, used;
	uint32_t *tables; /* of all sequences */
	uint8_t *no_flags;
	const uint8_t **flags;
	uint16_t *source;	   /* what projections would leave: [LOCAL_ROWS] of q, of k, of v */
	uint16_t *q, *k, *v, *out; /* of a layer */
	struct local_thread thread[LOCAL_THREADS];

	/* The step that runs. */
	const struct local_row *rows;
	uint32_t num_rows, parts, num_jobs;
	_Alignas(64) _Atomic uint32_t claimed; /* items of the layer */
	_Alignas(64) _Atomic uint32_t arrived;
};

/** A pool of this many tokens, all written. */
void local_init(struct local *l, const struct shape *s, uint64_t tokens);
void local_free(struct local *l);
/** The block tables of n new sequences; their blocks lie scattered among each other's, as remote_fill does it. */
void local_sequences(struct local *l, uint32_t n, uint64_t tokens, const uint32_t **ret);

/**
 * Seconds of `jobs` layers (going round those there are) on `threads` threads: each begins with
 * q, k and v stored by this thread and ends with out read by it.
 */
double local_step(struct local *l, const struct local_row *rows, uint32_t num_rows, uint32_t jobs, int threads);

/** One layer on this thread alone: q, k and v stand in the fields of their names, out is left in its. */
void local_layer(struct local *l, const struct local_row *rows, uint32_t num_rows, uint32_t layer);

#endif
