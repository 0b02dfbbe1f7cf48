/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the files of the RVV kernels share.
 *
 * In:   attend_rvv.c walks rows, heads and steps.
 * Out:  a struct rvv_kind: the inner loops for one way to multiply (tiles_rvv*.c).
 * Next: each of those files defines its attnd_attend_* by calling attnd_rvv_attend().
 *
 * Both products are one loop: y[r][lane] += x[r][i] * row_i[lane], x a scalar, rows contiguous.
 * For Q.K the rows are dims, the lanes tokens, x is q; for P.V the rows are tokens, the lanes
 * dims, x the weights. So nothing is reduced, gathered or strided, and every byte of a tile is
 * read in address order, once for up to RVV_PASS queries.
 *
 * The same bits: lanes are independent and the order over i is fixed. A step's softmax always
 * runs over all RVV_STEP lanes, with weight 0 exactly for an invisible token. So the bits of a
 * query depend neither on the others of its pass nor on which of a kind's loops ran. Adding 0 * v
 * may turn -0 into +0, so a pass over V ends with adding +0: an accumulator is never -0.
 */
#ifndef ATTND_KERNELS_RVV_H
#define ATTND_KERNELS_RVV_H

#include "kernels.h"

#define RVV_INLINE	    static inline __attribute__((always_inline))
#define RVV_PASTE2(a, b)    a##b
#define RVV_PASTE(a, b)	    RVV_PASTE2(a, b)
#define RVV_PASTE3(a, b, c) RVV_PASTE(RVV_PASTE(a, b), c)

enum {
	RVV_STEP = 256,	  /* format.c's step */
	RVV_PASS = 4,	  /* queries whose accumulators fit in registers, at LMUL 4 */
	RVV_QUERIES = 64, /* queries that share a step's tiles while they are in the cache */
	RVV_MIN_BLOCK = 16,
};

enum rvv_loop { RVV_ROWS, RVV_WHOLE, RVV_TWO, RVV_HALVES };

/* Queries that share the reading of a tile. */
struct rvv_pass {
	const void *x[RVV_PASS]; /* q, or the weights of the first block's first token */
	float *y[RVV_PASS];	 /* scores of the step, or the accumulator */
	float alpha[RVV_PASS];	 /* P.V: what the accumulator is multiplied with first */
};

/* What a pass over V reads: strips of `lanes` dims, [token][lane], in each block. */
struct rvv_values {
	const char *const *blocks;
	size_t num_blocks, block_size;
	size_t strip_bytes; /* from one strip of a block to the next */
	size_t lanes;
};

/* Scores y[r][at ...] of the tokens of k[0] (and k[1]), chunks of `lanes` tokens, over n dims. */
typedef void rvv_qk_fn(const struct rvv_pass *pass, const char *const *k, size_t at, size_t n, size_t lanes);
/* y[r][at ... at + vl] of the strip (or two) that starts `off` bytes into each block. */
typedef void rvv_pv_fn(const struct rvv_pass *pass, const struct rvv_values *v, size_t off, size_t at, size_t vl);

/* How a step's scores become weights. */
struct rvv_shape {
	float scale;			  /* sm_scale, times a static scale of K */
	float logit_cap;		  /* 0: none */
	float v_scale;			  /* static, else 1 */
	const float *k_scales, *v_scales; /* [RVV_STEP], dynamic, else NULL */
};

/* One query in one step. */
struct rvv_query {
	const struct rvv_row *row;
	const void *q;
	float *scores; /* [RVV_STEP]; the weights take their place, in the kind's type */
	struct attnd_partial *partial;
	float slope;
	float alpha;
};

/* A row's view of one step. */
struct rvv_row {
	const struct attnd_qrow *row;
	uint64_t visible[RVV_STEP / 64]; /* bit t: token t of the step */
	uint32_t lo, hi;		 /* none outside of [lo, hi) */
	int32_t distance;		 /* of the step's first token from the row's own position */
	bool whole;			 /* all of the step is visible */
};

/*
 * One way to multiply: element type and instructions. Tables are indexed by queries - 1; NULL:
 * there is no such loop, and a plainer one serves.
 */
struct rvv_kind {
	rvv_qk_fn *qk_rows[RVV_PASS];	/* a load a row; any number of lanes */
	rvv_qk_fn *qk_whole[RVV_PASS];	/* loads of eight registers; lanes = VLEN / 8 */
	rvv_qk_fn *qk_two[RVV_PASS];	/* the same, two chunks side by side */
	rvv_qk_fn *qk_halves[RVV_PASS]; /* lanes = VLEN / 16, two chunks in one register group */
	rvv_pv_fn *pv_rows[RVV_PASS];
	rvv_pv_fn *pv_whole[RVV_PASS];
	rvv_pv_fn *pv_two[RVV_PASS];
	rvv_pv_fn *pv_narrow[RVV_PASS]; /* loads of eight registers; lanes = VLEN / 16 */
	float (*weights)(const struct rvv_shape *shape, struct rvv_query *q); /* returns alpha */
	const struct rvv_kind *checked; /* for tiles with non-finite values, if this one cannot tell them */
	uint32_t x_bytes;		/* of a weight and an element of q: 4, f32, or 2, q's own type */
};

#define RVV_EACH_R(name) {name##_1, name##_2, name##_3, name##_4}
/* The loops of a kind that has them all; m2 is its half at LMUL 2. *_two stand for fewer queries. */
#define RVV_FULL_LOOPS(m4, m2)                                                        \
	.qk_rows = RVV_EACH_R(m4##_qk_rows), .qk_whole = RVV_EACH_R(m4##_qk_whole),   \
	.qk_halves = RVV_EACH_R(m4##_qk_halves), .pv_rows = RVV_EACH_R(m4##_pv_rows), \
	.pv_whole = RVV_EACH_R(m4##_pv_whole), .pv_narrow = RVV_EACH_R(m2##_pv_whole)

/* The dims of a tile's K in memory, padding included. */
static inline uint32_t rvv_padded_dim(const struct attnd_kv_format *f)
{
	return (f->spec.head_dim + f->k_ilv - 1u) / f->k_ilv * f->k_ilv;
}

void attnd_rvv_attend(const struct attnd_attend_args *a, const struct rvv_kind *kind);
uint32_t attnd_rvv_scratch(const struct attnd_kv_format *fmt);

/* Scale, cap, ALiBi and visibility, in place. Returns the maximum of the visible scores. */
float attnd_rvv_shape_scores(const struct rvv_shape *shape, const struct rvv_query *q);

/* n elements of the tile's type to f32: what the kinds that widen do, with non-finite values. */
void attnd_rvv_widen(enum attnd_kdtype type, const void *src, size_t n, float *dst);

#endif
