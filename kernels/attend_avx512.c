/* SPDX-License-Identifier: Apache-2.0 */
/*
 * attend with AVX-512 in f32 arithmetic, for every q and K/V type.
 *
 * In:   tiles from x86.c; f32, f16 and bf16 K/V widened on load, int8 and fp8 in L1.
 * Out:  partials.
 * Next: partial_c.c merges and finishes them.
 */
#include "x86_avx512.h"

/* ---- Queries ---- */

/* 16 dims from d on, zero from `dims` on. */
ATTND_INLINE __m512 load_q(enum attnd_kdtype type, const char *q, uint32_t d, uint32_t dims)
{
	uint32_t n = dims - d < 16 ? dims - d : 16;
	__mmask16 some = (__mmask16)((1u << n) - 1);

	if (type == ATTND_K_F32)
		return _mm512_maskz_loadu_ps(some, q + d * sizeof(float));
	if (type == ATTND_K_F16)
		return _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(some, q + d * sizeof(uint16_t)));
	return _mm512_castsi512_ps(_mm512_slli_epi32(
		_mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(some, q + d * sizeof(uint16_t))), 16));
}

ATTND_INLINE void pack_q(enum attnd_kdtype type, const char *const *query, uint32_t rows, uint32_t dims, char *to,
			 size_t q_stride)
{
	for (uint32_t r = 0; r < rows; r++, to += q_stride)
		for (uint32_t d = 0; d < dims; d += 16)
			_mm512_store_ps(to + d * sizeof(float), load_q(type, query[r], d, dims));
}

static void pack_f32(const char *const *query, uint32_t rows, uint32_t dims, char *to, size_t q_stride)
{
	pack_q(ATTND_K_F32, query, rows, dims, to, q_stride);
}

static void pack_f16(const char *const *query, uint32_t rows, uint32_t dims, char *to, size_t q_stride)
{
	pack_q(ATTND_K_F16, query, rows, dims, to, q_stride);
}

static void pack_bf16(const char *const *query, uint32_t rows, uint32_t dims, char *to, size_t q_stride)
{
	pack_q(ATTND_K_BF16, query, rows, dims, to, q_stride);
}

/* ---- Widening: n rows of 16 fours of bytes become 4 n rows of 16 floats ---- */

/* The byte in each lane's lowest 8 bits, normal: magnitude << shift plus an exponent; below `least`: times unit. */
ATTND_INLINE __m512 from_fp8(__m512i x, int shift, uint32_t bias, uint32_t least, float unit, uint32_t special)
{
	__m512i mag = _mm512_and_si512(x, _mm512_set1_epi32(0x7f));
	__m512i sign = _mm512_slli_epi32(_mm512_and_si512(x, _mm512_set1_epi32(0x80)), 24);
	__m512i normal =
		_mm512_add_epi32(_mm512_slli_epi32(mag, (unsigned)shift), _mm512_set1_epi32((int)(bias << 23)));
	__m512 small = _mm512_mul_ps(_mm512_cvtepi32_ps(mag), _mm512_set1_ps(unit));
	__mmask16 is_small = _mm512_cmplt_epi32_mask(mag, _mm512_set1_epi32((int)least));
	__mmask16 is_special = _mm512_cmpge_epi32_mask(mag, _mm512_set1_epi32((int)special));

	normal = _mm512_mask_or_epi32(normal, is_special, normal, _mm512_set1_epi32(0x7f800000));
	normal = _mm512_mask_mov_epi32(normal, is_small, _mm512_castps_si512(small));
	return _mm512_castsi512_ps(_mm512_or_si512(normal, sign));
}

/* Byte e of each lane. e5m2 from 0x7c on is infinite or NaN, e4m3's 0x7f is NaN. */
ATTND_INLINE __m512 from_byte(enum attnd_kdtype type, __m512i fours, unsigned e)
{
	if (type == ATTND_K_INT8)
		return _mm512_cvtepi32_ps(_mm512_srai_epi32(_mm512_slli_epi32(fours, 24 - 8 * e), 24));
	if (type == ATTND_K_FP8_E4M3)
		return from_fp8(_mm512_srli_epi32(fours, 8 * e), 20, 120, 8, 0x1p-9f, 0x7f);
	return from_fp8(_mm512_srli_epi32(fours, 8 * e), 21, 112, 4, 0x1p-16f, 0x7c);
}

ATTND_INLINE void widen(enum attnd_kdtype type, const char *src, const char *next, uint32_t n, char *dst)
{
	for (uint32_t u = 0; u < n; u++) {
		__m512i x = _mm512_load_si512(src + u * 64);

		_mm_prefetch(next + u * 64, _MM_HINT_T1);
		ATTND_UNROLL
		for (unsigned e = 0; e < 4; e++, dst += 64)
			_mm512_store_ps(dst, from_byte(type, x, e));
	}
}

ATTND_INLINE void widen_int8(const char *src, const char *next, uint32_t n, char *dst)
{
	widen(ATTND_K_INT8, src, next, n, dst);
}

ATTND_INLINE void widen_e4m3(const char *src, const char *next, uint32_t n, char *dst)
{
	widen(ATTND_K_FP8_E4M3, src, next, n, dst);
}

ATTND_INLINE void widen_e5m2(const char *src, const char *next, uint32_t n, char *dst)
{
	widen(ATTND_K_FP8_E5M2, src, next, n, dst);
}

/* ---- V in K: 16 dims of 16 tokens become 16 tokens of 16 dims, as floats ---- */

ATTND_INLINE void store_turned(__m512 x[16], char *dst)
{
	attnd_transpose16(x);
	ATTND_UNROLL
	for (int i = 0; i < 16; i++)
		_mm512_store_ps(dst + i * 64, x[i]);
}

static void flip_f32(const char *k, uint32_t rows, char *dst)
{
	__m512 x[16];

	for (uint32_t d = 0; d < 16; d++)
		x[d] = d < rows ? _mm512_load_ps(k + d * 64) : _mm512_setzero_ps();
	store_turned(x, dst);
}

static void flip_f16(const char *k, uint32_t rows, char *dst)
{
	__m512 x[16];

	for (uint32_t d = 0; d < 16; d++)
		x[d] = d < rows ? _mm512_cvtph_ps(_mm256_load_si256((const void *)(k + d * 32)))
				: _mm512_setzero_ps();
	store_turned(x, dst);
}

static void flip_bf16(const char *k, uint32_t rows, char *dst)
{
	__m512 x[16];

	for (uint32_t u = 0; u < 8; u++) {
		__m512i pairs = u < rows ? _mm512_load_si512(k + u * 64) : _mm512_setzero_si512();

		x[2 * u] = attnd_even(pairs);
		x[2 * u + 1] = attnd_odd(pairs);
	}
	store_turned(x, dst);
}

ATTND_INLINE void flip_bytes(attnd_widen_fn *widen, const char *k, uint32_t rows, char *dst)
{
	char turned[4 * 64] __attribute__((aligned(64)));

	attnd_turn_fours(k, rows, turned);
	widen(turned, turned, 4, dst);
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

#define STAGES(name, operand)                                                                                      \
	static __attribute__((noinline)) void score_groups_##name(const struct attnd_x86_tile *t, uint32_t k_rows, \
								  const char *const *k, const char *const *next,   \
								  uint32_t g, uint32_t n)                          \
	{                                                                                                          \
		attnd_score_groups(operand, t, k_rows, k, next, g, n);                                             \
	}                                                                                                          \
	static __attribute__((noinline)) void value_strips_##name(                                                 \
		const struct attnd_x86_tile *t, uint32_t first, uint32_t n, const char *const *v,                  \
		const char *const *next, size_t stride, uint32_t j, uint32_t num)                                  \
	{                                                                                                          \
		attnd_value_strips(operand, t, first, n, v, next, stride, j, num);                                 \
	}

STAGES(f32, ATTND_OPERAND_F32)
STAGES(f16, ATTND_OPERAND_F16)
STAGES(pairs, ATTND_OPERAND_PAIRS)

static void softmax(const struct attnd_x86_tile *t)
{
	attnd_softmax_rows(false, t);
}

/* ---- One kernel for each pair of types ---- */

#define ATTEND(qname, kvname)                                                            \
	attnd_attend_fn attnd_attend_##qname##_##kvname##_avx512;                        \
	void attnd_attend_##qname##_##kvname##_avx512(const struct attnd_attend_args *a) \
	{                                                                                \
		static const struct attnd_x86_isa isa = {                                \
			.q_element = 4,                                                  \
			.pack_q = pack_##qname,                                          \
			.scores = scores_##kvname,                                       \
			.softmax = softmax,                                              \
			.values = values_##kvname,                                       \
		};                                                                       \
		attnd_x86_attend(a, &isa);                                               \
	}

#define KV_TYPE(name, widen, operand)                                                         \
	static void scores_##name(const struct attnd_x86_tile *t)                             \
	{                                                                                     \
		attnd_scores(t, widen, 4, score_groups_##operand);                            \
	}                                                                                     \
	static void values_##name(const struct attnd_x86_tile *t, uint32_t first, uint32_t n) \
	{                                                                                     \
		if (t->args->fmt->spec.v_in_k)                                                \
			attnd_values_in_k(t, first, n, flip_##name, 1, value_strips_f32);     \
		else                                                                          \
			attnd_values(t, first, n, widen, 4, value_strips_##operand);          \
	}                                                                                     \
	ATTEND(f32, name)                                                                     \
	ATTEND(f16, name)                                                                     \
	ATTEND(bf16, name)

KV_TYPE(f32, NULL, f32)
KV_TYPE(f16, NULL, f16)
KV_TYPE(bf16, NULL, pairs)
KV_TYPE(int8, widen_int8, f32)
KV_TYPE(e4m3, widen_e4m3, f32)
KV_TYPE(e5m2, widen_e5m2, f32)
