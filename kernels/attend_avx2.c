/* SPDX-License-Identifier: Apache-2.0 */
/*
 * attend with AVX2, FMA and F16C in f32 arithmetic, for every q and K/V type.
 *
 * In:   tiles from x86.c. Up to four rows widen K/V on load, more rows read a panel of floats
 *       that is widened once; int8 and fp8 always go through the panel.
 * Out:  partials.
 * Next: partial_c.c merges and finishes them.
 *
 * A row of 16 lanes (tokens for scores, dims for values) is two registers. Sums have the orders
 * that x86.h states, so the way through the panel and the direct one give the same bits.
 */
#include <immintrin.h>
#include <math.h>
#include <string.h>
#include "x86.h"
#include "x86_avx2.h"

#define INLINE static inline __attribute__((always_inline))
#define UNROLL _Pragma("GCC unroll 8")

enum { FEW = 4, MANY = 6 }; /* rows at a time: with widening on load, and on floats */

static const float LOG2E = 0x1.715476p+0f;
/* A row's m moves only when a score exceeds it by this much (log2): weights stay below 2^8. */
static const float SLACK = 8.0f;

/* The two halves of 16 lanes. */
struct v16 {
	__m256 lo, hi;
};

INLINE struct v16 load16(const float *p)
{
	return (struct v16){_mm256_load_ps(p), _mm256_load_ps(p + 8)};
}

INLINE void store16(float *p, struct v16 v)
{
	_mm256_store_ps(p, v.lo);
	_mm256_store_ps(p + 8, v.hi);
}

/* ---- exp and tanh ---- */

/*
 * 2^t within 2.5e-7: floor and fraction f, a minimax polynomial of 2^f on [0, 1) (2.0e-9) with 1
 * at 0. 0 exactly below 2^-126 and at -inf; NaN stays NaN.
 */
INLINE __m256 exp2_8(__m256 t)
{
	const __m256 low = _mm256_set1_ps(-126.0f);
	__m256 x = _mm256_max_ps(low, t), n = _mm256_floor_ps(x), f = _mm256_sub_ps(x, n);
	__m256i power = _mm256_slli_epi32(_mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127)), 23);
	__m256 p = _mm256_set1_ps(0x1.c54176p-13f);

	p = _mm256_fmadd_ps(p, f, _mm256_set1_ps(0x1.46d64cp-10f));
	p = _mm256_fmadd_ps(p, f, _mm256_set1_ps(0x1.3d0b92p-7f));
	p = _mm256_fmadd_ps(p, f, _mm256_set1_ps(0x1.c68912p-5f));
	p = _mm256_fmadd_ps(p, f, _mm256_set1_ps(0x1.ebfd58p-3f));
	p = _mm256_fmadd_ps(p, f, _mm256_set1_ps(0x1.62e42cp-1f));
	p = _mm256_fmadd_ps(p, f, _mm256_set1_ps(1.0f));
	p = _mm256_mul_ps(p, _mm256_castsi256_ps(power));
	return _mm256_andnot_ps(_mm256_cmp_ps(t, low, _CMP_LT_OQ), p);
}

/*
 * tanh within 5 units in the last place: x + x^3 Q(x^2) below 0.5625, 1 - 2 / (e^2x + 1) above
 * (from 10 on that is 1). NaN stays NaN.
 */
INLINE __m256 tanh_8(__m256 x)
{
	const __m256 minus0 = _mm256_set1_ps(-0.0f), one = _mm256_set1_ps(1.0f);
	__m256 a = _mm256_andnot_ps(minus0, x), z = _mm256_mul_ps(x, x);
	__m256 e = exp2_8(_mm256_mul_ps(_mm256_min_ps(_mm256_set1_ps(10.0f), a), _mm256_set1_ps(2.0f * LOG2E)));
	__m256 large = _mm256_sub_ps(one, _mm256_div_ps(_mm256_set1_ps(2.0f), _mm256_add_ps(e, one)));
	__m256 q = _mm256_set1_ps(-0x1.94f368p-8f);

	q = _mm256_fmadd_ps(q, z, _mm256_set1_ps(0x1.582d7cp-6f));
	q = _mm256_fmadd_ps(q, z, _mm256_set1_ps(-0x1.b90904p-5f));
	q = _mm256_fmadd_ps(q, z, _mm256_set1_ps(0x1.110c72p-3f));
	q = _mm256_fmadd_ps(q, z, _mm256_set1_ps(-0x1.555548p-2f));
	q = _mm256_fmadd_ps(_mm256_mul_ps(x, z), q, x);
	return _mm256_blendv_ps(_mm256_or_ps(large, _mm256_and_ps(x, minus0)), q,
				_mm256_cmp_ps(a, _mm256_set1_ps(0.5625f), _CMP_LT_OQ));
}

/* ---- Operands: a stored row of 16 lanes as one row of floats, two (bf16 pairs) or four (bytes) ---- */

#define ROW_BYTES(type) ((type) == ATTND_K_F16 ? 32u : 64u)
#define ROW_ILV(type)	((type) <= ATTND_K_F16 ? 1u : (type) == ATTND_K_BF16 ? 2u : 4u)

INLINE __m256 even_bf16(const char *p)
{
	return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_load_si256((const void *)p), 16));
}

INLINE __m256 odd_bf16(const char *p)
{
	__m256i upper = _mm256_set1_epi32((int)0xffff0000);

	return _mm256_castsi256_ps(_mm256_and_si256(_mm256_load_si256((const void *)p), upper));
}

/* The byte in each lane's lowest 8 bits, normal: magnitude << shift plus an exponent; below `least`: times unit. */
INLINE __m256 from_fp8(__m256i x, int shift, uint32_t bias, uint32_t least, float unit, uint32_t special)
{
	__m256i mag = _mm256_and_si256(x, _mm256_set1_epi32(0x7f));
	__m256i sign = _mm256_slli_epi32(_mm256_and_si256(x, _mm256_set1_epi32(0x80)), 24);
	__m256i normal = _mm256_add_epi32(_mm256_slli_epi32(mag, shift), _mm256_set1_epi32((int)(bias << 23)));
	__m256 small = _mm256_mul_ps(_mm256_cvtepi32_ps(mag), _mm256_set1_ps(unit));
	__m256i is_small = _mm256_cmpgt_epi32(_mm256_set1_epi32((int)least), mag);
	__m256i is_special = _mm256_cmpgt_epi32(mag, _mm256_set1_epi32((int)special - 1));

	normal = _mm256_or_si256(normal, _mm256_and_si256(is_special, _mm256_set1_epi32(0x7f800000)));
	normal = _mm256_blendv_epi8(normal, _mm256_castps_si256(small), is_small);
	return _mm256_castsi256_ps(_mm256_or_si256(normal, sign));
}

/* Element e of 8 lanes. e5m2 from 0x7c on is infinite or NaN, e4m3's 0x7f is NaN. */
INLINE __m256 half_row(enum attnd_kdtype type, const char *p, int e)
{
	__m256i fours;

	if (type == ATTND_K_F32)
		return _mm256_load_ps((const void *)p);
	if (type == ATTND_K_F16)
		return _mm256_cvtph_ps(_mm_load_si128((const void *)p));
	if (type == ATTND_K_BF16)
		return e ? odd_bf16(p) : even_bf16(p);
	fours = _mm256_load_si256((const void *)p);
	if (type == ATTND_K_INT8)
		return _mm256_cvtepi32_ps(_mm256_srai_epi32(_mm256_slli_epi32(fours, 24 - 8 * e), 24));
	fours = _mm256_srli_epi32(fours, 8 * e);
	return type == ATTND_K_FP8_E4M3 ? from_fp8(fours, 20, 120, 8, 0x1p-9f, 0x7f)
					: from_fp8(fours, 21, 112, 4, 0x1p-16f, 0x7c);
}

INLINE struct v16 load_row(enum attnd_kdtype type, const char *p, int e)
{
	return (struct v16){half_row(type, p, e), half_row(type, p + ROW_BYTES(type) / 2, e)};
}

/* n stored rows to rows of floats; prefetches as many stored ones at `next`. */
INLINE void widen(enum attnd_kdtype type, const char *src, const char *next, uint32_t n, float *dst)
{
	for (uint32_t u = 0; u < n; u++) {
		_mm_prefetch(next + u * ROW_BYTES(type), _MM_HINT_T1);
		for (int e = 0; e < (int)ROW_ILV(type); e++, dst += ATTND_X86_LANES)
			store16(dst, load_row(type, src + u * ROW_BYTES(type), e));
	}
}

/* sum[i] += x row i times the stored row at p, element after element. */
INLINE void multiply(enum attnd_kdtype type, int m, struct v16 sum[], const float *x, size_t x_stride, const char *p)
{
	for (int e = 0; e < (int)ROW_ILV(type); e++) {
		struct v16 a = load_row(type, p, e);

		UNROLL
		for (int i = 0; i < m; i++) {
			__m256 y = _mm256_broadcast_ss(x + (size_t)i * x_stride + e);

			sum[i].lo = _mm256_fmadd_ps(a.lo, y, sum[i].lo);
			sum[i].hi = _mm256_fmadd_ps(a.hi, y, sum[i].hi);
		}
	}
}

/* ---- Scores ---- */

INLINE void score_block(enum attnd_kdtype type, int m, const struct attnd_x86_tile *t, uint32_t r, uint32_t k_rows,
			const char *k, const char *next, uint32_t g)
{
	const size_t stride = t->q_stride / sizeof(float);
	const float *q = (const float *)(const void *)(t->q + r * t->q_stride);
	struct v16 sum[MANY];

	UNROLL
	for (int i = 0; i < m; i++)
		sum[i] = (struct v16){_mm256_setzero_ps(), _mm256_setzero_ps()};
	for (uint32_t u = 0; u < k_rows; u++) {
		_mm_prefetch(next + u * ROW_BYTES(type), _MM_HINT_T1);
		multiply(type, m, sum, q + u * ROW_ILV(type), stride, k + u * ROW_BYTES(type));
	}
	UNROLL
	for (int i = 0; i < m; i++)
		store16(t->s + (r + (uint32_t)i) * ATTND_X86_STEP + g * ATTND_X86_LANES, sum[i]);
}

INLINE void score_rows(enum attnd_kdtype type, uint32_t most, const struct attnd_x86_tile *t, uint32_t k_rows,
		       const char *k, const char *next, uint32_t g)
{
	for (uint32_t r = 0; r < t->rows; r += most) {
		switch (t->rows - r < most ? t->rows - r : most) {
		case 1:
			score_block(type, 1, t, r, k_rows, k, next, g);
			break;
		case 2:
			score_block(type, 2, t, r, k_rows, k, next, g);
			break;
		case 3:
			score_block(type, 3, t, r, k_rows, k, next, g);
			break;
		case 4:
			score_block(type, 4, t, r, k_rows, k, next, g);
			break;
		case 5:
			score_block(type, 5, t, r, k_rows, k, next, g);
			break;
		default:
			score_block(type, 6, t, r, k_rows, k, next, g);
		}
	}
}

static __attribute__((noinline)) void score_floats(const struct attnd_x86_tile *t, uint32_t k_rows, const char *k,
						   const char *next, uint32_t g)
{
	score_rows(ATTND_K_F32, MANY, t, k_rows, k, next, g);
}

INLINE bool direct(enum attnd_kdtype type, uint32_t rows)
{
	return type == ATTND_K_F32 || (rows <= FEW && type <= ATTND_K_BF16);
}

INLINE void scores(enum attnd_kdtype type, const struct attnd_x86_tile *t)
{
	for (uint32_t g = 0; g < t->groups; g++) {
		if (type == ATTND_K_F32) {
			score_floats(t, t->k_rows, t->k[g], t->next_k[g], g);
		} else if (direct(type, t->rows)) {
			score_rows(type, FEW, t, t->k_rows, t->k[g], t->next_k[g], g);
		} else {
			widen(type, t->k[g], t->next_k[g], t->k_rows, (float *)(void *)t->panel);
			score_floats(t, t->k_rows * ROW_ILV(type), t->panel, t->panel, g);
		}
	}
}

/* ---- Values ---- */

/* acc strip j of m rows; group g's part of the strip stands at v[g]. */
INLINE void value_block(enum attnd_kdtype type, int m, const struct attnd_x86_tile *t, uint32_t r,
			const char *const *v, const char *const *next, uint32_t j)
{
	const float *p = t->s + r * ATTND_X86_STEP;
	const __m256 zero = _mm256_setzero_ps();
	struct v16 sum[MANY];

	UNROLL
	for (int i = 0; i < m; i++)
		sum[i] = load16(t->partial[r + (uint32_t)i]->acc + j * ATTND_X86_LANES);
	for (uint32_t g = 0; g < t->groups; g++)
		for (uint32_t u = 0; u < ATTND_X86_LANES / ROW_ILV(type); u++, p += ROW_ILV(type)) {
			_mm_prefetch(next[g] + u * ROW_BYTES(type), _MM_HINT_T1);
			multiply(type, m, sum, p, ATTND_X86_STEP, v[g] + u * ROW_BYTES(type));
		}
	/* Adding 0 turns -0 into +0, so that tokens of weight 0 leave no trace. */
	UNROLL
	for (int i = 0; i < m; i++)
		store16(t->partial[r + (uint32_t)i]->acc + j * ATTND_X86_LANES,
			(struct v16){_mm256_add_ps(sum[i].lo, zero), _mm256_add_ps(sum[i].hi, zero)});
}

INLINE void value_rows(enum attnd_kdtype type, uint32_t most, const struct attnd_x86_tile *t, uint32_t first,
		       uint32_t n, const char *const *v, const char *const *next, uint32_t j)
{
	for (uint32_t r = first; r < first + n; r += most) {
		switch (first + n - r < most ? first + n - r : most) {
		case 1:
			value_block(type, 1, t, r, v, next, j);
			break;
		case 2:
			value_block(type, 2, t, r, v, next, j);
			break;
		case 3:
			value_block(type, 3, t, r, v, next, j);
			break;
		case 4:
			value_block(type, 4, t, r, v, next, j);
			break;
		case 5:
			value_block(type, 5, t, r, v, next, j);
			break;
		default:
			value_block(type, 6, t, r, v, next, j);
		}
	}
}

static __attribute__((noinline)) void value_floats(const struct attnd_x86_tile *t, uint32_t first, uint32_t n,
						   const char *const *v, const char *const *next, uint32_t j)
{
	value_rows(ATTND_K_F32, MANY, t, first, n, v, next, j);
}

/* 8 rows of 8, 16 floats apart, turned around. */
INLINE void transpose8(const float *src, float *dst)
{
	__m256 x[8];

	UNROLL
	for (int i = 0; i < 8; i++)
		x[i] = _mm256_load_ps(src + i * 16);
	attnd_turn8(x);
	UNROLL
	for (int i = 0; i < 8; i++)
		_mm256_store_ps(dst + i * 16, x[i]);
}

/* V is the first dims of K: a strip's 16 dims of 16 tokens become 16 tokens of 16 floats. */
INLINE void flip(enum attnd_kdtype type, const char *k, uint32_t rows, float *dst)
{
	float wide[16 * 16] __attribute__((aligned(64))) = {0};

	widen(type, k, k, rows < 16 / ROW_ILV(type) ? rows : 16 / ROW_ILV(type), wide);
	for (int i = 0; i < 16; i += 8)
		for (int j = 0; j < 16; j += 8)
			transpose8(wide + i * 16 + j, dst + j * 16 + i);
}

INLINE void values_in_k(enum attnd_kdtype type, const struct attnd_x86_tile *t, uint32_t first, uint32_t n)
{
	const char *v[ATTND_X86_GROUPS];

	for (uint32_t j = 0; j < t->strips; j++) {
		for (uint32_t g = 0; g < t->groups; g++) {
			float *to = (float *)(void *)t->panel + g * ATTND_X86_LANES * ATTND_X86_LANES;

			flip(type, t->v[g] + j * t->v_stride, t->k_rows - j * t->v_rows, to);
			v[g] = (const char *)to;
		}
		value_floats(t, first, n, v, v, j);
	}
}

INLINE void values(enum attnd_kdtype type, const struct attnd_x86_tile *t, uint32_t first, uint32_t n)
{
	const char *v[ATTND_X86_GROUPS], *next[ATTND_X86_GROUPS];

	for (uint32_t j = 0; j < t->strips; j++) {
		for (uint32_t g = 0; g < t->groups; g++) {
			float *to = (float *)(void *)t->panel + g * ATTND_X86_LANES * ATTND_X86_LANES;

			v[g] = t->v[g] + j * t->v_stride;
			next[g] = t->next_v[g] + j * t->v_stride;
			if (direct(type, n))
				continue;
			widen(type, v[g], next[g], t->v_rows, to);
			v[g] = next[g] = (const char *)to;
		}
		if (direct(type, n) && type != ATTND_K_F32)
			value_rows(type, FEW, t, first, n, v, next, j);
		else
			value_floats(t, first, n, v, next, j);
	}
}

/* ---- Softmax ---- */

/* The lanes whose bit is set, as all ones. */
INLINE __m256 lanes_of(uint32_t bits)
{
	const __m256i each = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);

	return _mm256_castsi256_ps(_mm256_cmpeq_epi32(_mm256_and_si256(_mm256_set1_epi32((int)bits), each), each));
}

INLINE float reduce_max(__m256 x)
{
	__m128 y = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));

	y = _mm_max_ps(y, _mm_movehl_ps(y, y));
	return _mm_cvtss_f32(_mm_max_ss(y, _mm_movehdup_ps(y)));
}

INLINE float reduce_add(__m256 x)
{
	__m128 y = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));

	y = _mm_add_ps(y, _mm_movehl_ps(y, y));
	return _mm_cvtss_f32(_mm_add_ss(y, _mm_movehdup_ps(y)));
}

/* Scale, cap and ALiBi in the order of the formula; afterwards the scale is 1. */
static void shape_scores(const struct attnd_x86_tile *t, uint32_t r, float *s)
{
	const struct attnd_attn *attn = t->args->attn;
	const __m256 cap = _mm256_set1_ps(attn->logit_cap), scale = _mm256_set1_ps(t->scale);
	const __m256 lane = _mm256_setr_ps(0, 1, 2, 3, 4, 5, 6, 7);

	for (uint32_t i = 0; i < t->groups * ATTND_X86_LANES; i += 8) {
		__m256 x = _mm256_load_ps(s + i), by = scale;

		if (t->dynamic)
			by = _mm256_mul_ps(by, _mm256_loadu_ps(t->k_scales + i));
		x = _mm256_mul_ps(x, by);
		if (attn->logit_cap > 0.0f)
			x = _mm256_mul_ps(cap, tanh_8(_mm256_div_ps(x, cap)));
		if (attn->alibi) {
			int64_t far = (int64_t)t->position + i - t->row[r]->pos;
			__m256 distance = _mm256_add_ps(_mm256_set1_ps((float)far), lane);

			x = _mm256_fmadd_ps(_mm256_set1_ps(t->slope[r]), distance, x);
		}
		_mm256_store_ps(s + i, x);
	}
}

/* Invisible tokens score -inf, whatever their K held. */
static void hide_scores(const struct attnd_x86_tile *t, uint32_t r, float *s)
{
	const __m256 never = _mm256_set1_ps(-INFINITY);

	for (uint32_t i = 0; i < t->groups * ATTND_X86_LANES; i += 8) {
		__m256 seen = lanes_of((uint32_t)t->visible[r][i / ATTND_X86_LANES] >> i % ATTND_X86_LANES);

		_mm256_store_ps(s + i, _mm256_blendv_ps(never, _mm256_load_ps(s + i), seen));
	}
}

/* m moves up to the largest score; returns it as a power of two. */
static float raise_m(const struct attnd_x86_tile *t, struct attnd_partial *part, float scale, __m256 largest)
{
	float m = reduce_max(largest) * scale;

	if (!(m > part->m) && !(m != m))
		return part->m == -INFINITY ? 0.0f : part->m * LOG2E;
	if (part->m != -INFINITY) {
		__m256 down = exp2_8(_mm256_set1_ps(part->m * LOG2E - m * LOG2E));

		part->l *= _mm256_cvtss_f32(down);
		for (uint32_t j = 0; j < t->strips * ATTND_X86_LANES; j += 8)
			_mm256_store_ps(part->acc + j, _mm256_mul_ps(_mm256_load_ps(part->acc + j), down));
	}
	part->m = m;
	return m * LOG2E;
}

/* V's scale goes into the weights; invisible tokens' scales (NaN maybe) count as 0. */
static void scale_weights(const struct attnd_x86_tile *t, uint32_t r, float *s)
{
	for (uint32_t i = 0; i < t->groups * ATTND_X86_LANES; i += 8) {
		uint32_t g = i / ATTND_X86_LANES, at = i % ATTND_X86_LANES;
		__m256 by = _mm256_set1_ps(t->v_scale);

		if (t->dynamic)
			by = _mm256_loadu_ps(t->v_scales + i);
		if (t->visible[r])
			by = _mm256_and_ps(by, lanes_of((uint32_t)t->visible[r][g] >> at));
		_mm256_store_ps(s + i, _mm256_mul_ps(_mm256_load_ps(s + i), by));
	}
}

/* One row's scores become weights. */
static void softmax_row(const struct attnd_x86_tile *t, uint32_t r)
{
	struct attnd_partial *part = t->partial[r];
	float *s = t->s + r * ATTND_X86_STEP, scale = t->shaped ? 1.0f : t->scale, ref = part->m * LOG2E;
	__m256 scale2 = _mm256_set1_ps(scale * LOG2E), largest = _mm256_set1_ps(-INFINITY), m2, above;
	struct v16 sum = {_mm256_setzero_ps(), _mm256_setzero_ps()};

	if (t->shaped)
		shape_scores(t, r, s);
	if (t->visible[r])
		hide_scores(t, r, s);
	for (uint32_t i = 0; i < t->groups * ATTND_X86_LANES; i += 8)
		largest = _mm256_max_ps(largest, _mm256_load_ps(s + i));
	above = _mm256_fmsub_ps(largest, scale2, _mm256_set1_ps(ref));
	if (_mm256_movemask_ps(_mm256_cmp_ps(above, _mm256_set1_ps(SLACK), _CMP_NLE_UQ)))
		ref = raise_m(t, part, scale, largest);
	m2 = _mm256_set1_ps(ref);
	for (uint32_t g = 0; g < t->groups; g++) {
		struct v16 x = load16(s + g * ATTND_X86_LANES);

		x.lo = exp2_8(_mm256_fmsub_ps(x.lo, scale2, m2));
		x.hi = exp2_8(_mm256_fmsub_ps(x.hi, scale2, m2));
		sum.lo = _mm256_add_ps(sum.lo, x.lo);
		sum.hi = _mm256_add_ps(sum.hi, x.hi);
		store16(s + g * ATTND_X86_LANES, x);
	}
	part->l += reduce_add(_mm256_add_ps(sum.lo, sum.hi));
	if (t->dynamic || t->v_scale != 1.0f)
		scale_weights(t, r, s);
}

static void softmax(const struct attnd_x86_tile *t)
{
	for (uint32_t r = 0; r < t->rows; r++)
		softmax_row(t, r);
}

/* ---- Queries ---- */

static void pack_f32(const char *const *query, uint32_t rows, uint32_t dims, char *to, size_t q_stride)
{
	for (uint32_t r = 0; r < rows; r++, to += q_stride) {
		memcpy(to, query[r], dims * sizeof(float));
		memset(to + dims * sizeof(float), 0, (dims + 3) / 4 * 4 * sizeof(float) - dims * sizeof(float));
	}
}

INLINE __m256 widen_q(enum attnd_kdtype type, __m128i x)
{
	if (type == ATTND_K_F16)
		return _mm256_cvtph_ps(x);
	return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(x), 16));
}

/* 8 at a time, the last ones through a copy that does not read beyond the row. */
INLINE void pack_16bit(enum attnd_kdtype type, const char *const *query, uint32_t rows, uint32_t dims, char *to,
		       size_t q_stride)
{
	for (uint32_t r = 0; r < rows; r++, to += q_stride) {
		float *x = (float *)(void *)to;
		__m128i last = _mm_setzero_si128();
		uint32_t d;

		for (d = 0; d + 8 <= dims; d += 8)
			_mm256_store_ps(x + d, widen_q(type, _mm_loadu_si128((const void *)(query[r] + d * 2))));
		if (d == dims)
			continue;
		memcpy(&last, query[r] + d * 2, (dims - d) * 2);
		_mm256_store_ps(x + d, widen_q(type, last));
	}
}

static void pack_f16(const char *const *query, uint32_t rows, uint32_t dims, char *to, size_t q_stride)
{
	pack_16bit(ATTND_K_F16, query, rows, dims, to, q_stride);
}

static void pack_bf16(const char *const *query, uint32_t rows, uint32_t dims, char *to, size_t q_stride)
{
	pack_16bit(ATTND_K_BF16, query, rows, dims, to, q_stride);
}

/* ---- One kernel for each pair of types ---- */

#define ATTEND(qname, kvname)                                                          \
	attnd_attend_fn attnd_attend_##qname##_##kvname##_avx2;                        \
	void attnd_attend_##qname##_##kvname##_avx2(const struct attnd_attend_args *a) \
	{                                                                              \
		static const struct attnd_x86_isa isa = {                              \
			.q_element = 4,                                                \
			.pack_q = pack_##qname,                                        \
			.scores = scores_##kvname,                                     \
			.softmax = softmax,                                            \
			.values = values_##kvname,                                     \
		};                                                                     \
		attnd_x86_attend(a, &isa);                                             \
	}

#define KV_TYPE(name, type)                                                                   \
	static void scores_##name(const struct attnd_x86_tile *t)                             \
	{                                                                                     \
		scores(type, t);                                                              \
	}                                                                                     \
	static void values_##name(const struct attnd_x86_tile *t, uint32_t first, uint32_t n) \
	{                                                                                     \
		if (t->args->fmt->spec.v_in_k)                                                \
			values_in_k(type, t, first, n);                                       \
		else                                                                          \
			values(type, t, first, n);                                            \
	}                                                                                     \
	ATTEND(f32, name)                                                                     \
	ATTEND(f16, name)                                                                     \
	ATTEND(bf16, name)

KV_TYPE(f32, ATTND_K_F32)
KV_TYPE(f16, ATTND_K_F16)
KV_TYPE(bf16, ATTND_K_BF16)
KV_TYPE(int8, ATTND_K_INT8)
KV_TYPE(e4m3, ATTND_K_FP8_E4M3)
KV_TYPE(e5m2, ATTND_K_FP8_E5M2)
