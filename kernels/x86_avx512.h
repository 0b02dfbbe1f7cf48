/* SPDX-License-Identifier: Apache-2.0 */
/*
 * AVX-512 arithmetic for one tile: 16 tokens (scores) or 16 dims (values) a register.
 *
 * In:   struct attnd_x86_tile; the operand form as a compile-time constant.
 * Out:  scores, softmax and values as always-inline functions, to be instantiated.
 * Next: attend_avx512.c (f32 arithmetic), attend_avx512bf16.c (vdpbf16ps).
 *
 * Operand forms, one row of a K group or V strip each:
 *     F32    16 floats
 *     F16    16 halves, widened on load
 *     PAIRS  16 bf16 pairs, widened on load to the even and the odd element, f32 FMA
 *     DP     16 bf16 pairs, vdpbf16ps
 * One-byte types are widened to F32 or DP rows in an L1-sized panel, a few groups at a time.
 */
#ifndef ATTND_KERNELS_X86_AVX512_H
#define ATTND_KERNELS_X86_AVX512_H

#include <immintrin.h>
#include <math.h>
#include <string.h>
#include "x86.h"

#define ATTND_INLINE static inline __attribute__((always_inline))
#define ATTND_UNROLL _Pragma("GCC unroll 8")

enum attnd_operand { ATTND_OPERAND_F32, ATTND_OPERAND_F16, ATTND_OPERAND_PAIRS, ATTND_OPERAND_DP };

/* Bytes of a row of 16 lanes, and its elements a lane. */
#define ATTND_ROW_BYTES(op) ((op) == ATTND_OPERAND_F16 ? 32u : 64u)
#define ATTND_ROW_ILV(op)   ((op) == ATTND_OPERAND_PAIRS || (op) == ATTND_OPERAND_DP ? 2u : 1u)

static const float ATTND_LOG2E = 0x1.715476p+0f;
/* A row's m moves only when a score exceeds it by this much (log2): weights stay below 2^8. */
static const float ATTND_SLACK = 8.0f;

/* ---- exp and tanh ---- */

/*
 * 2^t: the nearest integer n and f = t - n in [-1/2, 1/2], a minimax polynomial of 2^f with 1 at
 * 0, times 2^n. Adding 1.5 * 2^23 + 127 rounds and leaves n's biased exponent in the lowest bits.
 * 0 exactly below 2^-126.5 and at -inf; NaN stays NaN. t <= 126.
 */
ATTND_INLINE __m512 attnd_exp2(int degree, __m512 t)
{
	static const float c4[] = {0x1.409102p-7f, 0x1.ca9008p-5f, 0x1.ebf1b4p-3f, 0x1.62dfcap-1f};
	static const float c6[] = {0x1.470b48p-13f, 0x1.5f7276p-10f, 0x1.3b270ep-7f,
				   0x1.c6ae72p-5f,  0x1.ebfbe2p-3f,  0x1.62e432p-1f};
	const float *c = degree == 4 ? c4 : c6;
	const __m512 magic = _mm512_set1_ps(0x1.8p23f + 127.0f);
	__m512 x = _mm512_max_ps(_mm512_set1_ps(-127.0f), t), y = _mm512_add_ps(x, magic);
	__m512 f = _mm512_sub_ps(x, _mm512_sub_ps(y, magic)), p = _mm512_set1_ps(c[0]);

	ATTND_UNROLL
	for (int i = 1; i < degree; i++)
		p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(c[i]));
	p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(1.0f));
	return _mm512_mul_ps(p, _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_castps_si512(y), 23)));
}

/* Within 2.1e-7 (polynomial 2.6e-9): f32 weights. */
ATTND_INLINE __m512 attnd_exp2_f32(__m512 t)
{
	return attnd_exp2(6, t);
}

/* Within 3.8e-6 (polynomial 3.6e-6): weights that are rounded to bf16 (2^-9) next. */
ATTND_INLINE __m512 attnd_exp2_bf16(__m512 t)
{
	return attnd_exp2(4, t);
}

/*
 * tanh within 5 units in the last place: x + x^3 Q(x^2) below 0.5625, 1 - 2 / (e^2x + 1) above
 * (from 10 on that is 1). NaN stays NaN.
 */
ATTND_INLINE __m512 attnd_tanh_avx512(__m512 x)
{
	const __m512 sign = _mm512_and_ps(x, _mm512_set1_ps(-0.0f));
	__m512 a = _mm512_abs_ps(x), z = _mm512_mul_ps(x, x);
	__m512 b = _mm512_min_ps(_mm512_set1_ps(10.0f), a);
	__m512 e = attnd_exp2_f32(_mm512_mul_ps(b, _mm512_set1_ps(2.0f * ATTND_LOG2E)));
	__m512 q = _mm512_set1_ps(-0x1.94f368p-8f);
	__m512 large = _mm512_sub_ps(_mm512_set1_ps(1.0f),
				     _mm512_div_ps(_mm512_set1_ps(2.0f), _mm512_add_ps(e, _mm512_set1_ps(1.0f))));

	q = _mm512_fmadd_ps(q, z, _mm512_set1_ps(0x1.582d7cp-6f));
	q = _mm512_fmadd_ps(q, z, _mm512_set1_ps(-0x1.b90904p-5f));
	q = _mm512_fmadd_ps(q, z, _mm512_set1_ps(0x1.110c72p-3f));
	q = _mm512_fmadd_ps(q, z, _mm512_set1_ps(-0x1.555548p-2f));
	q = _mm512_fmadd_ps(_mm512_mul_ps(x, z), q, x);
	return _mm512_mask_mov_ps(_mm512_or_ps(large, sign),
				  _mm512_cmp_ps_mask(a, _mm512_set1_ps(0.5625f), _CMP_LT_OQ), q);
}

/* ---- Operands ---- */

ATTND_INLINE __m512 attnd_even(__m512i pairs)
{
	return _mm512_castsi512_ps(_mm512_slli_epi32(pairs, 16));
}

ATTND_INLINE __m512 attnd_odd(__m512i pairs)
{
	return _mm512_castsi512_ps(_mm512_and_si512(pairs, _mm512_set1_epi32((int)0xffff0000)));
}

ATTND_INLINE __m512 attnd_bcast(const char *p)
{
	float x;

	memcpy(&x, p, sizeof(x));
	return _mm512_set1_ps(x);
}

#if defined(__AVX512BF16__)
ATTND_INLINE __m512 attnd_dp(__m512 sum, __m512i a, __m512 b)
{
	return _mm512_dpbf16_ps(sum, (__m512bh)a, (__m512bh)b);
}
#endif

/*
 * sum[i][j] += x row i . operand row j, for m rows and nv vectors. `x` are the m rows' elements
 * for this operand row: 4 bytes each (a float, or a bf16 pair for DP), two floats for PAIRS.
 */
ATTND_INLINE void attnd_multiply(enum attnd_operand op, int m, int nv, __m512 sum[][4], const char *x,
				 size_t x_stride, const char *const *row, size_t at)
{
	__m512 a[4], b[4];

	ATTND_UNROLL
	for (int j = 0; j < nv; j++) {
		const char *p = row[j] + at;

		if (op == ATTND_OPERAND_F16) {
			a[j] = _mm512_cvtph_ps(_mm256_load_si256((const void *)p));
		} else if (op == ATTND_OPERAND_PAIRS) {
			a[j] = attnd_even(_mm512_load_si512(p));
			b[j] = attnd_odd(_mm512_load_si512(p));
		} else {
			a[j] = _mm512_load_ps(p);
		}
	}
	ATTND_UNROLL
	for (int i = 0; i < m; i++) {
		__m512 y = attnd_bcast(x + (size_t)i * x_stride);

		ATTND_UNROLL
		for (int j = 0; j < nv; j++) {
#if defined(__AVX512BF16__)
			if (op == ATTND_OPERAND_DP) {
				sum[i][j] = attnd_dp(sum[i][j], _mm512_castps_si512(a[j]), y);
				continue;
			}
#endif
			sum[i][j] = _mm512_fmadd_ps(a[j], y, sum[i][j]);
		}
	}
	if (op != ATTND_OPERAND_PAIRS)
		return;
	ATTND_UNROLL
	for (int i = 0; i < m; i++) {
		__m512 y = attnd_bcast(x + (size_t)i * x_stride + 4);

		ATTND_UNROLL
		for (int j = 0; j < nv; j++)
			sum[i][j] = _mm512_fmadd_ps(b[j], y, sum[i][j]);
	}
}

/* Bytes of packed q, or of weights, that one operand row takes. */
#define ATTND_X_BYTES(op) ((op) == ATTND_OPERAND_PAIRS ? 8u : 4u)

/* ---- Turning K around ---- */

/* Four 4 x 4 blocks in each 128-bit lane of four rows. */
ATTND_INLINE void attnd_transpose_lanes(__m512 x[4])
{
	__m512 a = _mm512_unpacklo_ps(x[0], x[1]), b = _mm512_unpackhi_ps(x[0], x[1]);
	__m512 c = _mm512_unpacklo_ps(x[2], x[3]), d = _mm512_unpackhi_ps(x[2], x[3]);

	x[0] = _mm512_shuffle_ps(a, c, 0x44);
	x[1] = _mm512_shuffle_ps(a, c, 0xee);
	x[2] = _mm512_shuffle_ps(b, d, 0x44);
	x[3] = _mm512_shuffle_ps(b, d, 0xee);
}

/* The 128-bit lanes of four rows: lane i of row j becomes lane j of row i. */
ATTND_INLINE void attnd_transpose_quarters(__m512 *p, __m512 *q, __m512 *r, __m512 *s)
{
	__m512 a = _mm512_shuffle_f32x4(*p, *q, 0x88), b = _mm512_shuffle_f32x4(*p, *q, 0xdd);
	__m512 c = _mm512_shuffle_f32x4(*r, *s, 0x88), d = _mm512_shuffle_f32x4(*r, *s, 0xdd);

	*p = _mm512_shuffle_f32x4(a, c, 0x88);
	*q = _mm512_shuffle_f32x4(b, d, 0x88);
	*r = _mm512_shuffle_f32x4(a, c, 0xdd);
	*s = _mm512_shuffle_f32x4(b, d, 0xdd);
}

/* 16 rows of 16. */
ATTND_INLINE void attnd_transpose16(__m512 x[16])
{
	ATTND_UNROLL
	for (int i = 0; i < 16; i += 4)
		attnd_transpose_lanes(x + i);
	ATTND_UNROLL
	for (int i = 0; i < 4; i++)
		attnd_transpose_quarters(&x[i], &x[i + 4], &x[i + 8], &x[i + 12]);
}

/* One-byte types: rows of 16 tokens x 4 dims (`rows` of four exist) become 16 dims x 4 tokens. */
ATTND_INLINE void attnd_turn_fours(const char *k, uint32_t rows, char *dst)
{
	const __m512i turn =
		_mm512_broadcast_i32x4(_mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15));
	__m512 x[4];

	ATTND_UNROLL
	for (uint32_t u = 0; u < 4; u++) {
		__m512i row = u < rows ? _mm512_load_si512(k + u * 64) : _mm512_setzero_si512();

		x[u] = _mm512_castsi512_ps(_mm512_shuffle_epi8(row, turn));
	}
	attnd_transpose_quarters(&x[0], &x[1], &x[2], &x[3]);
	ATTND_UNROLL
	for (int u = 0; u < 4; u++)
		_mm512_store_ps(dst + u * 64, x[u]);
}

/* ---- Scores ---- */

/* m rows from r, nv groups from g of `k_rows` operand rows: each score adds its dims in order. */
ATTND_INLINE void attnd_score_block(enum attnd_operand op, int m, int nv, const struct attnd_x86_tile *t, uint32_t r,
				    uint32_t k_rows, const char *const *k, const char *const *next, uint32_t g)
{
	const char *q = t->q + r * t->q_stride;
	__m512 sum[4][4];

	ATTND_UNROLL
	for (int i = 0; i < m; i++) {
		ATTND_UNROLL
		for (int j = 0; j < nv; j++)
			sum[i][j] = _mm512_setzero_ps();
	}
	for (uint32_t d = 0; d < k_rows; d++) {
		size_t at = d * (size_t)ATTND_ROW_BYTES(op);

		if (next != k) {
			ATTND_UNROLL
			for (int j = 0; j < nv; j++)
				_mm_prefetch(next[j] + at, _MM_HINT_T1);
		}
		attnd_multiply(op, m, nv, sum, q + d * ATTND_X_BYTES(op), t->q_stride, k, at);
	}
	ATTND_UNROLL
	for (int i = 0; i < m; i++) {
		float *s = t->s + (r + (uint32_t)i) * ATTND_X86_STEP + g * ATTND_X86_LANES;

		ATTND_UNROLL
		for (int j = 0; j < nv; j++)
			_mm512_store_ps(s + j * ATTND_X86_LANES, sum[i][j]);
	}
}

ATTND_INLINE void attnd_score_rows(enum attnd_operand op, int nv, const struct attnd_x86_tile *t, uint32_t k_rows,
				   const char *const *k, const char *const *next, uint32_t g)
{
	for (uint32_t r = 0; r < t->rows; r += 4, next = k) {
		switch (t->rows - r) {
		case 1:
			attnd_score_block(op, 1, nv, t, r, k_rows, k, next, g);
			break;
		case 2:
			attnd_score_block(op, 2, nv, t, r, k_rows, k, next, g);
			break;
		case 3:
			attnd_score_block(op, 3, nv, t, r, k_rows, k, next, g);
			break;
		default:
			attnd_score_block(op, 4, nv, t, r, k_rows, k, next, g);
		}
	}
}

/* Groups [g, g + n), n <= ATTND_X86_PANEL, whose operand rows stand at k[]. */
ATTND_INLINE void attnd_score_groups(enum attnd_operand op, const struct attnd_x86_tile *t, uint32_t k_rows,
				     const char *const *k, const char *const *next, uint32_t g, uint32_t n)
{
	if (n == 4) {
		attnd_score_rows(op, 4, t, k_rows, k, next, g);
		return;
	}
	if (n & 2)
		attnd_score_rows(op, 2, t, k_rows, k, next, g);
	if (n & 1)
		attnd_score_rows(op, 1, t, k_rows, k + (n & 2), next + (n & 2), g + (n & 2));
}

/* ---- Values ---- */

/* acc of m rows from r, nv strips from j: each element adds its tokens in order. */
ATTND_INLINE void attnd_value_block(enum attnd_operand op, int m, int nv, const struct attnd_x86_tile *t, uint32_t r,
				    const char *const *v, const char *const *next, size_t stride, uint32_t j)
{
	const uint32_t rows = ATTND_X86_LANES / ATTND_ROW_ILV(op);
	const char *p = (const char *)(t->s + r * ATTND_X86_STEP);
	__m512 sum[4][4];

	ATTND_UNROLL
	for (int i = 0; i < m; i++) {
		ATTND_UNROLL
		for (int c = 0; c < nv; c++)
			sum[i][c] = _mm512_load_ps(t->partial[r + (uint32_t)i]->acc +
						   (j + (uint32_t)c) * ATTND_X86_LANES);
	}
	for (uint32_t g = 0; g < t->groups; g++) {
		const char *strip[4], *ahead[4];

		ATTND_UNROLL
		for (int c = 0; c < nv; c++) {
			strip[c] = v[g] + (size_t)c * stride;
			ahead[c] = next[g] + (size_t)c * stride;
		}
		for (uint32_t u = 0; u < rows; u++) {
			size_t at = u * (size_t)ATTND_ROW_BYTES(op);

			if (next != v) {
				ATTND_UNROLL
				for (int c = 0; c < nv; c++)
					_mm_prefetch(ahead[c] + at, _MM_HINT_T1);
			}
			attnd_multiply(op, m, nv, sum, p, ATTND_X86_STEP * sizeof(float), strip, at);
			p += ATTND_X_BYTES(op);
		}
	}
	/* Adding 0 turns -0 into +0, so that tokens of weight 0 leave no trace. */
	ATTND_UNROLL
	for (int i = 0; i < m; i++) {
		ATTND_UNROLL
		for (int c = 0; c < nv; c++)
			_mm512_store_ps(t->partial[r + (uint32_t)i]->acc + (j + (uint32_t)c) * ATTND_X86_LANES,
					_mm512_add_ps(sum[i][c], _mm512_setzero_ps()));
	}
}

ATTND_INLINE void attnd_value_rows(enum attnd_operand op, int nv, const struct attnd_x86_tile *t, uint32_t first,
				   uint32_t n, const char *const *v, const char *const *next, size_t stride,
				   uint32_t j)
{
	for (uint32_t r = first; r < first + n; r += 4, next = v) {
		switch (first + n - r) {
		case 1:
			attnd_value_block(op, 1, nv, t, r, v, next, stride, j);
			break;
		case 2:
			attnd_value_block(op, 2, nv, t, r, v, next, stride, j);
			break;
		case 3:
			attnd_value_block(op, 3, nv, t, r, v, next, stride, j);
			break;
		default:
			attnd_value_block(op, 4, nv, t, r, v, next, stride, j);
		}
	}
}

/* Strips [j, j + num), num <= ATTND_X86_PANEL; group g's part of strip j stands at v[g]. */
ATTND_INLINE void attnd_value_strips(enum attnd_operand op, const struct attnd_x86_tile *t, uint32_t first,
				     uint32_t n, const char *const *v, const char *const *next, size_t stride,
				     uint32_t j, uint32_t num)
{
	const char *rest[ATTND_X86_GROUPS], *rest_next[ATTND_X86_GROUPS];

	if (num == 4) {
		attnd_value_rows(op, 4, t, first, n, v, next, stride, j);
		return;
	}
	if (num & 2)
		attnd_value_rows(op, 2, t, first, n, v, next, stride, j);
	if (!(num & 1))
		return;
	for (uint32_t g = 0; g < t->groups; g++) {
		rest[g] = v[g] + (num & 2) * stride;
		rest_next[g] = next[g] + (num & 2) * stride;
	}
	attnd_value_rows(op, 1, t, first, n, rest, rest_next, stride, j + (num & 2));
}

/* ---- Whole tiles ---- */

/* n stored rows to operand rows at dst; prefetches as many stored rows at `next`. */
typedef void attnd_widen_fn(const char *src, const char *next, uint32_t n, char *dst);
typedef void attnd_score_groups_fn(const struct attnd_x86_tile *t, uint32_t k_rows, const char *const *k,
				   const char *const *next, uint32_t g, uint32_t n);
typedef void attnd_value_strips_fn(const struct attnd_x86_tile *t, uint32_t first, uint32_t n, const char *const *v,
				   const char *const *next, size_t stride, uint32_t j, uint32_t num);

/* widen NULL: K is read where it lies. Otherwise a stored row becomes `ilv` operand rows of 64 bytes. */
ATTND_INLINE void attnd_scores(const struct attnd_x86_tile *t, attnd_widen_fn *widen, uint32_t ilv,
			       attnd_score_groups_fn *score_groups)
{
	for (uint32_t g = 0; g < t->groups; g += ATTND_X86_PANEL) {
		uint32_t n = t->groups - g < ATTND_X86_PANEL ? t->groups - g : ATTND_X86_PANEL;
		const char *k[ATTND_X86_PANEL];

		if (!widen) {
			score_groups(t, t->k_rows, t->k + g, t->next_k + g, g, n);
			continue;
		}
		for (uint32_t i = 0; i < n; i++) {
			char *to = t->panel + (size_t)i * (t->k_rows + 1) * ilv * 64;

			widen(t->k[g + i], t->next_k[g + i], t->k_rows, to);
			k[i] = to;
		}
		score_groups(t, t->k_rows * ilv, k, k, g, n);
	}
}

/* 16 dims of a K group, the first stored row at k and `rows` of them left, to a strip of operand rows. */
typedef void attnd_flip_fn(const char *k, uint32_t rows, char *dst);

/* V is the first dims of K: each strip turned around into the panel, in rows of `ilv` tokens. */
ATTND_INLINE void attnd_values_in_k(const struct attnd_x86_tile *t, uint32_t first, uint32_t n, attnd_flip_fn *flip,
				    uint32_t ilv, attnd_value_strips_fn *value_strips)
{
	const size_t group = (size_t)ATTND_X86_LANES / ilv * 64, strip = group * ATTND_X86_GROUPS;

	for (uint32_t j = 0; j < t->strips; j += ATTND_X86_PANEL) {
		uint32_t num = t->strips - j < ATTND_X86_PANEL ? t->strips - j : ATTND_X86_PANEL;
		const char *v[ATTND_X86_GROUPS];

		for (uint32_t g = 0; g < t->groups; g++) {
			v[g] = t->panel + g * group;
			for (uint32_t c = j; c < j + num; c++)
				flip(t->v[g] + c * t->v_stride, t->k_rows - c * t->v_rows,
				     t->panel + (c - j) * strip + g * group);
		}
		value_strips(t, first, n, v, v, strip, j, num);
	}
}

ATTND_INLINE void attnd_values(const struct attnd_x86_tile *t, uint32_t first, uint32_t n, attnd_widen_fn *widen,
			       uint32_t ilv, attnd_value_strips_fn *value_strips)
{
	const size_t group = (size_t)t->v_rows * ilv * 64, strip = group * ATTND_X86_GROUPS;

	for (uint32_t j = 0; j < t->strips; j += ATTND_X86_PANEL) {
		uint32_t num = t->strips - j < ATTND_X86_PANEL ? t->strips - j : ATTND_X86_PANEL;
		const char *v[ATTND_X86_GROUPS], *next[ATTND_X86_GROUPS];

		for (uint32_t g = 0; g < t->groups; g++) {
			v[g] = t->v[g] + j * t->v_stride;
			next[g] = t->next_v[g] + j * t->v_stride;
			for (uint32_t c = 0; widen && c < num; c++)
				widen(v[g] + c * t->v_stride, next[g] + c * t->v_stride, t->v_rows,
				      t->panel + c * strip + g * group);
			if (widen)
				v[g] = t->panel + g * group;
		}
		if (widen)
			value_strips(t, first, n, v, v, strip, j, num);
		else
			value_strips(t, first, n, v, next, t->v_stride, j, num);
	}
}

/* ---- Softmax ---- */

/* Scale, cap and ALiBi in the order of the formula; afterwards the scale is 1. */
static inline void attnd_shape_scores(const struct attnd_x86_tile *t, uint32_t r, float *s)
{
	const struct attnd_attn *attn = t->args->attn;
	const __m512 lane = _mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
	const __m512 cap = _mm512_set1_ps(attn->logit_cap), scale = _mm512_set1_ps(t->scale);

	for (uint32_t g = 0; g < t->groups; g++) {
		__m512 x = _mm512_load_ps(s + g * ATTND_X86_LANES), by = scale;

		if (t->dynamic)
			by = _mm512_mul_ps(by, _mm512_loadu_ps(t->k_scales + g * ATTND_X86_LANES));
		x = _mm512_mul_ps(x, by);
		if (attn->logit_cap > 0.0f)
			x = _mm512_mul_ps(cap, attnd_tanh_avx512(_mm512_div_ps(x, cap)));
		if (attn->alibi) {
			int64_t far = (int64_t)t->position + g * ATTND_X86_LANES - t->row[r]->pos;
			__m512 distance = _mm512_add_ps(_mm512_set1_ps((float)far), lane);

			x = _mm512_fmadd_ps(_mm512_set1_ps(t->slope[r]), distance, x);
		}
		_mm512_store_ps(s + g * ATTND_X86_LANES, x);
	}
}

/* Invisible tokens score -inf, whatever their K held. */
static inline void attnd_hide_scores(const struct attnd_x86_tile *t, uint32_t r, float *s)
{
	for (uint32_t g = 0; g < t->groups; g++)
		_mm512_mask_store_ps(s + g * ATTND_X86_LANES, (__mmask16)~t->visible[r][g],
				     _mm512_set1_ps(-INFINITY));
}

/* m moves up to the largest score; returns it as a power of two. */
static __attribute__((noinline)) float attnd_raise(const struct attnd_x86_tile *t, struct attnd_partial *part,
						   float scale, __m512 largest)
{
	float m = _mm512_reduce_max_ps(largest) * scale;
	__m512 down;

	if (!(m > part->m) && !(m != m))
		return part->m == -INFINITY ? 0.0f : part->m * ATTND_LOG2E;
	if (part->m != -INFINITY) {
		down = attnd_exp2_f32(_mm512_set1_ps(part->m * ATTND_LOG2E - m * ATTND_LOG2E));
		part->l *= _mm512_cvtss_f32(down);
		for (uint32_t j = 0; j < t->strips; j++)
			_mm512_store_ps(part->acc + j * ATTND_X86_LANES,
					_mm512_mul_ps(_mm512_load_ps(part->acc + j * ATTND_X86_LANES), down));
	}
	part->m = m;
	return m * ATTND_LOG2E;
}

/* V's scale goes into the weight; invisible tokens' scales (NaN maybe) count as 0. */
ATTND_INLINE __m512 attnd_scale_weight(const struct attnd_x86_tile *t, uint32_t r, uint32_t g, __m512 p)
{
	__mmask16 visible = t->visible[r] ? t->visible[r][g] : 0xffff;

	if (t->dynamic)
		return _mm512_mul_ps(p, _mm512_maskz_loadu_ps(visible, t->v_scales + g * ATTND_X86_LANES));
	return _mm512_mul_ps(p, _mm512_set1_ps(t->v_scale));
}

ATTND_INLINE __m512 attnd_weight(bool bf16, __m512 score, __m512 scale2, __m512 m2)
{
	__m512 x = _mm512_fmsub_ps(score, scale2, m2);

	return bf16 ? attnd_exp2_bf16(x) : attnd_exp2_f32(x);
}

/* A quarter of 1 KB at both. */
ATTND_INLINE void attnd_prefetch_quarters(const char *a, const char *b)
{
	ATTND_UNROLL
	for (int i = 0; i < 256; i += 64) {
		_mm_prefetch(a + i, _MM_HINT_T1);
		_mm_prefetch(b + i, _MM_HINT_T1);
	}
}

/* The lanes' sums of four vectors. */
ATTND_INLINE __m128 attnd_reduce_four(const __m512 x[4])
{
	__m512 a = _mm512_add_ps(_mm512_unpacklo_ps(x[0], x[1]), _mm512_unpackhi_ps(x[0], x[1]));
	__m512 b = _mm512_add_ps(_mm512_unpacklo_ps(x[2], x[3]), _mm512_unpackhi_ps(x[2], x[3]));
	__m512 c = _mm512_add_ps(_mm512_shuffle_ps(a, b, 0x44), _mm512_shuffle_ps(a, b, 0xee));
	__m256 d = _mm256_add_ps(_mm512_castps512_ps256(c), _mm512_extractf32x8_ps(c, 1));

	return _mm_add_ps(_mm256_castps256_ps128(d), _mm256_extractf128_ps(d, 1));
}

/* One row's scores become weights: floats, or bf16 pairs at the front of the row. Returns lanes' sums. */
ATTND_INLINE __m512 attnd_softmax_row(bool bf16, bool scaled, const struct attnd_x86_tile *t, uint32_t r)
{
	struct attnd_partial *part = t->partial[r];
	float *s = t->s + r * ATTND_X86_STEP, scale = t->shaped ? 1.0f : t->scale, ref = part->m * ATTND_LOG2E;
	__m512 scale2 = _mm512_set1_ps(scale * ATTND_LOG2E), largest, sum = _mm512_setzero_ps(), m2, above;

	if (t->shaped)
		attnd_shape_scores(t, r, s);
	if (t->visible[r])
		attnd_hide_scores(t, r, s);
	largest = _mm512_load_ps(s);
	for (uint32_t g = 1; g < t->groups; g++)
		largest = _mm512_max_ps(largest, _mm512_load_ps(s + g * ATTND_X86_LANES));
	above = _mm512_fmsub_ps(largest, scale2, _mm512_set1_ps(ref));
	if (_mm512_cmp_ps_mask(above, _mm512_set1_ps(ATTND_SLACK), _CMP_NLE_UQ))
		ref = attnd_raise(t, part, scale, largest);
	m2 = _mm512_set1_ps(ref);
	for (uint32_t g = 0; g < t->groups; g += 2) {
		__m512 a = attnd_weight(bf16, _mm512_load_ps(s + g * ATTND_X86_LANES), scale2, m2);
		__m512 b = _mm512_setzero_ps();
		bool two = g + 1 < t->groups;

		/* Or memory would idle meanwhile. */
		if (r < 4)
			attnd_prefetch_quarters(t->next_v[g] + r * 256, t->next_v[g + two] + r * 256);
		if (two)
			b = attnd_weight(bf16, _mm512_load_ps(s + (g + 1) * ATTND_X86_LANES), scale2, m2);
		sum = _mm512_add_ps(_mm512_add_ps(sum, a), b);
		if (scaled) {
			a = attnd_scale_weight(t, r, g, a);
			if (two)
				b = attnd_scale_weight(t, r, g + 1, b);
		}
#if defined(__AVX512BF16__)
		if (bf16) {
			_mm512_store_si512(s + g * ATTND_X86_LANES / 2, (__m512i)_mm512_cvtne2ps_pbh(b, a));
			continue;
		}
#endif
		_mm512_store_ps(s + g * ATTND_X86_LANES, a);
		if (two)
			_mm512_store_ps(s + (g + 1) * ATTND_X86_LANES, b);
	}
	return sum;
}

/* n rows from r on, up to four. */
ATTND_INLINE void attnd_softmax_four(bool bf16, bool scaled, const struct attnd_x86_tile *t, uint32_t r, uint32_t n)
{
	__m512 sum[4] = {_mm512_setzero_ps(), _mm512_setzero_ps(), _mm512_setzero_ps(), _mm512_setzero_ps()};
	float l[4];

	for (uint32_t i = 0; i < n; i++)
		sum[i] = attnd_softmax_row(bf16, scaled, t, r + i);
	_mm_storeu_ps(l, attnd_reduce_four(sum));
	for (uint32_t i = 0; i < n; i++)
		t->partial[r + i]->l += l[i];
}

ATTND_INLINE bool attnd_scaled(const struct attnd_x86_tile *t)
{
	return t->dynamic || t->v_scale != 1.0f;
}

ATTND_INLINE void attnd_softmax_all(bool bf16, bool scaled, const struct attnd_x86_tile *t)
{
	for (uint32_t r = 0; r < t->rows; r += 4)
		attnd_softmax_four(bf16, scaled, t, r, t->rows - r < 4 ? t->rows - r : 4);
}

ATTND_INLINE void attnd_softmax_rows(bool bf16, const struct attnd_x86_tile *t)
{
	if (attnd_scaled(t))
		attnd_softmax_all(bf16, true, t);
	else
		attnd_softmax_all(bf16, false, t);
}

#endif
