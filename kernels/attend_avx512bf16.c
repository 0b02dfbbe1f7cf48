/* SPDX-License-Identifier: Apache-2.0 */
/*
 * attend for bf16 queries with vdpbf16ps, also for P.V: on weights rounded to bf16.
 *
 * In:   tiles from x86.c; K/V in bf16, or int8 and fp8 widened to bf16 (exactly) in L1.
 * Out:  partials.
 * Next: partial_c.c merges and finishes them.
 *
 * One byte of int8 or fp8 is looked up: its magnitude's bf16 has an upper and a lower byte, two
 * tables of 128 bytes each (vpermi2b); the sign is or-ed in, unpacking joins the bytes.
 */
#include "x86_avx512.h"

/* ---- Widening ---- */

/* Upper and lower bytes of the bf16 of magnitudes 0..127. */
struct tables {
	uint8_t upper[128], lower[128];
};

/* bf16 of the non-negative normal or zero m * 2^e, m < 128, as a constant expression. */
#define LOG2(m)	     ((m) >= 64 ? 6 : (m) >= 32 ? 5 : (m) >= 16 ? 4 : (m) >= 8 ? 3 : (m) >= 4 ? 2 : (m) >= 2 ? 1 : 0)
#define BF16(m, e)   ((m) == 0 ? 0 : ((127 + (e) + LOG2(m)) << 7 | (((m) << (7 - LOG2(m))) & 0x7f)))
#define INT8_BF16(i) BF16(i, 0)
#define E4M3_BF16(i) ((i) == 127 ? 0x7fc0 : (i) < 8 ? BF16(i, -9) : BF16(8 + ((i) & 7), ((i) >> 3) - 10))
#define E5M2_BF16(i) \
	((i) == 124 ? 0x7f80 : (i) > 124 ? 0x7fc0 : (i) < 4 ? BF16(i, -16) : BF16(4 + ((i) & 3), ((i) >> 2) - 17))

#define EACH8(f, b, i) f(i) b, f(i + 1) b, f(i + 2) b, f(i + 3) b, f(i + 4) b, f(i + 5) b, f(i + 6) b, f(i + 7) b
#define EACH64(f, b, i)                                                                                    \
	EACH8(f, b, i), EACH8(f, b, i + 8), EACH8(f, b, i + 16), EACH8(f, b, i + 24), EACH8(f, b, i + 32), \
		EACH8(f, b, i + 40), EACH8(f, b, i + 48), EACH8(f, b, i + 56)
#define TABLES(f)                                                 \
	{                                                         \
		{EACH64(f, >> 8, 0), EACH64(f, >> 8, 64)},        \
		{                                                 \
			EACH64(f, &0xff, 0), EACH64(f, &0xff, 64) \
		}                                                 \
	}

static const struct tables int8_tables __attribute__((aligned(64))) = TABLES(INT8_BF16);
static const struct tables e4m3_tables __attribute__((aligned(64))) = TABLES(E4M3_BF16);
static const struct tables e5m2_tables __attribute__((aligned(64))) = TABLES(E5M2_BF16);

/* What looking up needs in registers. */
struct lookup {
	bool int8;
	__m512i upper[2], lower[2];
};

ATTND_INLINE struct lookup load_tables(const struct tables *t, bool int8)
{
	return (struct lookup){
		.int8 = int8,
		.upper = {_mm512_load_si512(t->upper), _mm512_load_si512(t->upper + 64)},
		.lower = {_mm512_load_si512(t->lower), _mm512_load_si512(t->lower + 64)},
	};
}

/* Two rows of 16 byte pairs to two rows of 16 bf16 pairs. */
ATTND_INLINE void widen_rows(const struct lookup *l, __m512i rows, __m512i *ret_first, __m512i *ret_second)
{
	__m512i x = _mm512_permutexvar_epi64(_mm512_setr_epi64(0, 4, 1, 5, 2, 6, 3, 7), rows);
	__m512i mag = l->int8 ? _mm512_abs_epi8(x) : x; /* a look-up ignores bit 7 */
	__m512i upper = _mm512_permutex2var_epi8(l->upper[0], mag, l->upper[1]);
	__m512i lower = _mm512_permutex2var_epi8(l->lower[0], mag, l->lower[1]);

	upper = _mm512_ternarylogic_epi32(upper, x, _mm512_set1_epi8((char)0x80), 0xf8); /* upper | (x & sign) */
	*ret_first = _mm512_unpacklo_epi8(lower, upper);
	*ret_second = _mm512_unpackhi_epi8(lower, upper);
}

/* The rows from u on of n, the second zero if there is none. */
ATTND_INLINE __m512i load_rows(const char *src, uint32_t u, uint32_t n)
{
	return _mm512_maskz_loadu_epi64(u + 1 < n ? 0xff : 0x0f, src + u * 32);
}

/* n rows of byte pairs to rows of bf16 pairs (an odd n writes one more); prefetches as many at `next`. */
ATTND_INLINE void widen(const struct tables *t, bool int8, const char *src, const char *next, uint32_t n, char *dst)
{
	const struct lookup l = load_tables(t, int8);

	for (uint32_t u = 0; u < n; u += 2) {
		__m512i a, b;

		_mm_prefetch(next + u * 32, _MM_HINT_T1);
		widen_rows(&l, load_rows(src, u, n), &a, &b);
		_mm512_store_si512(dst + u * 64, a);
		_mm512_store_si512(dst + u * 64 + 64, b);
	}
}

ATTND_INLINE void widen_int8(const char *src, const char *next, uint32_t n, char *dst)
{
	widen(&int8_tables, true, src, next, n, dst);
}

ATTND_INLINE void widen_e4m3(const char *src, const char *next, uint32_t n, char *dst)
{
	widen(&e4m3_tables, false, src, next, n, dst);
}

ATTND_INLINE void widen_e5m2(const char *src, const char *next, uint32_t n, char *dst)
{
	widen(&e5m2_tables, false, src, next, n, dst);
}

/* ---- V in K: 16 dims of 16 tokens become 8 token pairs of 16 dims ---- */

/* Eight rows of eight 64-bit elements. */
ATTND_INLINE void transpose8(__m512i x[8])
{
	__m512 y[8];

	ATTND_UNROLL
	for (int i = 0; i < 8; i += 2) {
		y[i / 2] = _mm512_castsi512_ps(_mm512_unpacklo_epi64(x[i], x[i + 1]));
		y[4 + i / 2] = _mm512_castsi512_ps(_mm512_unpackhi_epi64(x[i], x[i + 1]));
	}
	attnd_transpose_quarters(&y[0], &y[1], &y[2], &y[3]);
	attnd_transpose_quarters(&y[4], &y[5], &y[6], &y[7]);
	ATTND_UNROLL
	for (int i = 0; i < 8; i++)
		x[i] = _mm512_castps_si512(y[i % 2 * 4 + i / 2]);
}

static void flip_bf16(const char *k, uint32_t rows, char *dst)
{
	/* Two tokens' (dim, dim + 1) to two dims' (token, token + 1). */
	const __m512i join =
		_mm512_broadcast_i32x4(_mm_setr_epi8(0, 1, 4, 5, 2, 3, 6, 7, 8, 9, 12, 13, 10, 11, 14, 15));
	__m512i x[8];

	for (uint32_t u = 0; u < 8; u++)
		x[u] = u < rows ? _mm512_shuffle_epi8(_mm512_load_si512(k + u * 64), join) : _mm512_setzero_si512();
	transpose8(x);
	for (uint32_t u = 0; u < 8; u++)
		_mm512_store_si512(dst + u * 64, x[u]);
}

ATTND_INLINE void flip_bytes(attnd_widen_fn *widen, const char *k, uint32_t rows, char *dst)
{
	char wide[8 * 64] __attribute__((aligned(64)));

	widen(k, k, rows < 8 ? rows : 8, wide);
	flip_bf16(wide, rows, dst);
}

static void flip_int8(const char *k, uint32_t rows, char *dst)
{
	flip_bytes(widen_int8, k, rows, dst);
}

static void flip_e4m3(const char *k, uint32_t rows, char *dst)
{
	flip_bytes(widen_e4m3, k, rows, dst);
}

static void flip_e5m2(const char *k, uint32_t rows, char *dst)
{
	flip_bytes(widen_e5m2, k, rows, dst);
}

/* ---- The three stages ---- */

static void pack_q(const struct attnd_x86_tile *t)
{
	uint32_t dims = t->args->fmt->spec.head_dim;

	for (uint32_t r = 0; r < t->rows; r++)
		for (uint32_t d = 0; d < dims; d += 32) {
			__mmask32 some = dims >= d + 32 ? UINT32_MAX : (1u << (dims - d)) - 1;
			__m512i x = _mm512_maskz_loadu_epi16(some, t->query[r] + d * sizeof(uint16_t));

			_mm512_store_si512(t->q + r * t->q_stride + d * sizeof(uint16_t), x);
		}
}

static __attribute__((noinline)) void score_groups(const struct attnd_x86_tile *t, uint32_t k_rows,
						   const char *const *k, const char *const *next, uint32_t g,
						   uint32_t n)
{
	attnd_score_groups(ATTND_OPERAND_DP, t, k_rows, k, next, g, n);
}

static __attribute__((noinline)) void value_strips(const struct attnd_x86_tile *t, uint32_t first, uint32_t n,
						   const char *const *v, const char *const *next, size_t stride,
						   uint32_t j, uint32_t num)
{
	attnd_value_strips(ATTND_OPERAND_DP, t, first, n, v, next, stride, j, num);
}

static void softmax(const struct attnd_x86_tile *t)
{
	attnd_softmax_rows(true, t);
}

/* ---- Up to four rows on bytes: widened in registers, on the way to the products ---- */

enum { FEW = 4, SIDE = 2 };

/* sum[i] += x row i . a; x are the m rows' pairs for this row of K or V. */
ATTND_INLINE void multiply_row(int m, __m512 sum[], const char *x, size_t x_stride, __m512i a)
{
	ATTND_UNROLL
	for (int i = 0; i < m; i++)
		sum[i] = attnd_dp(sum[i], a, attnd_bcast(x + (size_t)i * x_stride));
}

/* m rows' scores of n groups (1 or 2) from g on. */
ATTND_INLINE void score_bytes(const struct lookup *l, int m, const struct attnd_x86_tile *t, uint32_t g, uint32_t n)
{
	const char *k[SIDE] = {t->k[g], t->k[g + n - 1]}, *next[SIDE] = {t->next_k[g], t->next_k[g + n - 1]};
	const char *q = t->q;
	const uint32_t pairs = t->k_rows / 2 * 2;
	__m512 sum[SIDE][FEW];
	__m512i a, b;

	ATTND_UNROLL
	for (int i = 0; i < m; i++)
		sum[0][i] = sum[1][i] = _mm512_setzero_ps();
	for (uint32_t u = 0; u < pairs; u += 2, q += 8) {
		ATTND_UNROLL
		for (uint32_t c = 0; c < n; c++) {
			_mm_prefetch(next[c] + u * 32, _MM_HINT_T1);
			widen_rows(l, _mm512_loadu_si512(k[c] + u * 32), &a, &b);
			multiply_row(m, sum[c], q, t->q_stride, a);
			multiply_row(m, sum[c], q + 4, t->q_stride, b);
		}
	}
	for (uint32_t c = 0; pairs < t->k_rows && c < n; c++) {
		widen_rows(l, _mm512_maskz_loadu_epi64(0x0f, k[c] + pairs * 32), &a, &b);
		multiply_row(m, sum[c], q, t->q_stride, a);
	}
	ATTND_UNROLL
	for (int i = 0; i < m; i++) {
		ATTND_UNROLL
		for (uint32_t c = 0; c < n; c++)
			_mm512_store_ps(t->s + i * ATTND_X86_STEP + (g + c) * ATTND_X86_LANES, sum[c][i]);
	}
}

/* m rows' acc of n strips (1 or 2) from j on. */
ATTND_INLINE void value_bytes(const struct lookup *l, int m, const struct attnd_x86_tile *t, uint32_t first,
			      uint32_t j, uint32_t n)
{
	const char *p = (const char *)(t->s + first * ATTND_X86_STEP);
	const size_t p_stride = ATTND_X86_STEP * sizeof(float);
	__m512 sum[SIDE][FEW];
	__m512i a, b;

	ATTND_UNROLL
	for (int i = 0; i < m; i++) {
		ATTND_UNROLL
		for (uint32_t c = 0; c < n; c++)
			sum[c][i] = _mm512_load_ps(t->partial[first + (uint32_t)i]->acc + (j + c) * ATTND_X86_LANES);
	}
	for (uint32_t g = 0; g < t->groups; g++) {
		const char *v = t->v[g] + j * t->v_stride, *next = t->next_v[g] + j * t->v_stride;

		for (uint32_t u = 0; u < ATTND_X86_LANES / 2; u += 2, p += 8) {
			ATTND_UNROLL
			for (uint32_t c = 0; c < n; c++) {
				_mm_prefetch(next + c * t->v_stride + u * 32, _MM_HINT_T1);
				widen_rows(l, _mm512_loadu_si512(v + c * t->v_stride + u * 32), &a, &b);
				multiply_row(m, sum[c], p, p_stride, a);
				multiply_row(m, sum[c], p + 4, p_stride, b);
			}
		}
	}
	ATTND_UNROLL
	for (int i = 0; i < m; i++) {
		ATTND_UNROLL
		for (uint32_t c = 0; c < n; c++)
			_mm512_store_ps(t->partial[first + (uint32_t)i]->acc + (j + c) * ATTND_X86_LANES,
					_mm512_add_ps(sum[c][i], _mm512_setzero_ps()));
	}
}

ATTND_INLINE void few_scores(const struct tables *tables, bool int8, int m, const struct attnd_x86_tile *t)
{
	const struct lookup l = load_tables(tables, int8);
	uint32_t g = 0;

	for (; g + 2 <= t->groups; g += 2)
		score_bytes(&l, m, t, g, 2);
	if (g < t->groups)
		score_bytes(&l, m, t, g, 1);
}

ATTND_INLINE void few_values(const struct tables *tables, bool int8, int m, const struct attnd_x86_tile *t,
			     uint32_t first)
{
	const struct lookup l = load_tables(tables, int8);
	uint32_t j = 0;

	for (; j + 2 <= t->strips; j += 2)
		value_bytes(&l, m, t, first, j, 2);
	if (j < t->strips)
		value_bytes(&l, m, t, first, j, 1);
}

ATTND_INLINE void scores_of_bytes(const struct tables *tables, bool int8, attnd_widen_fn *widen,
				  const struct attnd_x86_tile *t)
{
	switch (t->rows) {
	case 1:
		few_scores(tables, int8, 1, t);
		break;
	case 2:
		few_scores(tables, int8, 2, t);
		break;
	case 3:
		few_scores(tables, int8, 3, t);
		break;
	case 4:
		few_scores(tables, int8, 4, t);
		break;
	default:
		attnd_scores(t, widen, 1, score_groups);
	}
}

ATTND_INLINE void values_of_bytes(const struct tables *tables, bool int8, attnd_widen_fn *widen,
				  const struct attnd_x86_tile *t, uint32_t first, uint32_t n)
{
	switch (n) {
	case 1:
		few_values(tables, int8, 1, t, first);
		break;
	case 2:
		few_values(tables, int8, 2, t, first);
		break;
	case 3:
		few_values(tables, int8, 3, t, first);
		break;
	case 4:
		few_values(tables, int8, 4, t, first);
		break;
	default:
		attnd_values(t, first, n, widen, 1, value_strips);
	}
}

/* ---- One kernel for each K/V type ---- */

#define ATTEND(name)                                                                                     \
	attnd_attend_fn attnd_attend_bf16_##name##_avx512bf16;                                           \
	void attnd_attend_bf16_##name##_avx512bf16(const struct attnd_attend_args *a)                    \
	{                                                                                                \
		static const struct attnd_x86_isa isa = {pack_q, scores_##name, softmax, values_##name}; \
		attnd_x86_attend(a, &isa);                                                               \
	}

#define ATTEND_BYTES(name)                                                                          \
	static void scores_##name(const struct attnd_x86_tile *t)                                   \
	{                                                                                           \
		scores_of_bytes(&name##_tables, IS_INT8_##name, widen_##name, t);                   \
	}                                                                                           \
	static void values_##name(const struct attnd_x86_tile *t, uint32_t first, uint32_t n)       \
	{                                                                                           \
		if (t->args->fmt->spec.v_in_k)                                                      \
			attnd_values_in_k(t, first, n, flip_##name, 2, value_strips);               \
		else                                                                                \
			values_of_bytes(&name##_tables, IS_INT8_##name, widen_##name, t, first, n); \
	}                                                                                           \
	ATTEND(name)

#define IS_INT8_int8 true
#define IS_INT8_e4m3 false
#define IS_INT8_e5m2 false

static void scores_bf16(const struct attnd_x86_tile *t)
{
	attnd_scores(t, NULL, 1, score_groups);
}

static void values_bf16(const struct attnd_x86_tile *t, uint32_t first, uint32_t n)
{
	if (t->args->fmt->spec.v_in_k)
		attnd_values_in_k(t, first, n, flip_bf16, 2, value_strips);
	else
		attnd_values(t, first, n, NULL, 1, value_strips);
}

ATTEND(bf16)
ATTEND_BYTES(int8)
ATTEND_BYTES(e4m3)
ATTEND_BYTES(e5m2)
