/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One case of attend: a stored sequence and rows that look at it.
 *
 * In:   a kernel, a format, a character of values.
 * Out:  partials of any way to call the kernel; what float64 says of them.
 * Next: check_attend.c compares.
 */
#ifndef ATTND_TESTS_KERNELS_CHECK_ATTEND_H
#define ATTND_TESTS_KERNELS_CHECK_ATTEND_H

#include "check.h"

enum shape {
	SHAPE_PLAIN,
	SHAPE_LARGE,   /* scores in the hundreds */
	SHAPE_FALLING, /* by more than 88 from step to step */
	SHAPE_RISING,
	SHAPE_ALTERNATING, /* from token to token and step to step */
	SHAPE_DENORMAL,
	SHAPES,
};

enum { MAX_ROWS = 66 };

struct row {
	uint32_t lo, hi, pos, mask_start;
	uint64_t *mask; /* guarded, or NULL */
	char *q;	/* guarded */
};

struct attend_case {
	struct rng r;
	const struct attnd_kernel *k;
	struct attnd_kv_format fmt;
	struct attnd_attn attn;
	enum shape shape;
	uint32_t base, tokens;				  /* position of the first token, a multiple of chunk */
	uint32_t num_blocks, num_chunks, num_rows, heads; /* heads: query heads */
	void **blocks;
	uint8_t **flags;
	double *k_values, *v_values; /* what is stored, times scale: [token][kv head][dim] */
	struct row rows[MAX_ROWS];
	void *scratch;
	char *partials; /* of the row-by-row run: [row][chunk][head] */
};

/* How a run is cut. */
enum cut { CUT_NONE, CUT_STEPS, CUT_RANDOM };

struct run {
	const struct attnd_kernel *first, *then; /* `then` takes over after the first call of a chunk, if not NULL */
	enum cut steps, heads;
	uint32_t row, num_rows; /* rows of each call */
};

size_t case_partials_bytes(const struct attend_case *c);
struct attnd_partial *case_partial(const struct attend_case *c, char *partials, uint32_t row, uint32_t chunk,
				   uint32_t head);

/* False if the kernel does not serve the spec. */
bool case_make(struct attend_case *c, const struct attnd_kernel *k, const struct attnd_kv_spec *s, uint32_t tokens,
	       uint32_t num_rows, enum shape shape, uint64_t seed);
void case_free(struct attend_case *c);

/* Continue `partials` with the rows of `run` over all stored tokens. */
void case_run(struct attend_case *c, const struct run *run, char *partials);

bool case_visible(const struct row *row, uint32_t j);

/* Compare rows' partials, merged and finished, with float64. */
void case_compare_reference(struct attend_case *c, const struct attnd_kernel *k, char *partials);

/* Make slot memory NaN but for the tokens, and the tokens in `poison` (one a token) NaN or garbage too. */
void case_poison(struct attend_case *c, const bool *poison);

#endif
