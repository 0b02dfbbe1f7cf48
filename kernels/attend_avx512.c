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
	__mmask16 some = dims >= d + 16 ? 0xffff : dims > d ? (__mmask16)((1u << (dims - d)) - 1) : 0;

	if (type == ATTND_K_F32)
		return _mm512_maskz_loadu_ps(some, q + d * sizeof(float));
	if (type == ATTND_K_F16)
		return _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(some, q + d * sizeof(uint16_t)));
	return _mm512_castsi512_ps(_mm512_slli_epi32(
		_mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(some, q + d * sizeof(uint16_t))), 16));
}

ATTND_INLINE void pack_q(enum attnd_kdtype type, const struct attnd_x86_tile *t)
{
	uint32_t dims = t->args->fmt->spec.head_dim;

	for (uint32_t r = 0; r < t->rows; r++)
		for (uint32_t d = 0; d < dims + dims % 2; d += 16)
			_mm512_store_ps(t->q + r * t->q_stride + d * sizeof(float),
					load_q(type, t->query[r], d, dims));
}

static void pack_f32(const struct attnd_x86_tile *t)
{
	pack_q(ATTND_K_F32, t);
}

static void pack_f16(const struct attnd_x86_tile *t)
{
	pack_q(ATTND_K_F16, t);
}

static void pack_bf16(const struct attnd_x86_tile *t)
{
	pack_q(ATTND_K_BF16, t);
}

/* ---- Widening: n rows of 16 byte pairs become 2 n rows of 16 floats ---- */

ATTND_INLINE __m256i load_pairs(const char *src, const char *next)
{
	_mm_prefetch(next, _MM_HINT_T1);
	return _mm256_loadu_si256((const void *)src);
}

ATTND_INLINE void widen_int8(const char *src, const char *next, uint32_t n, char *dst)
{
	for (uint32_t i = 0; i < n; i++) {
		__m512i x = _mm512_cvtepu16_epi32(load_pairs(src + i * 32, next + i * 32));
		__m512i a = _mm512_srai_epi32(_mm512_slli_epi32(x, 24), 24);
		__m512i b = _mm512_srai_epi32(_mm512_slli_epi32(x, 16), 24);

		_mm512_store_ps(dst + i * 128, _mm512_cvtepi32_ps(a));
		_mm512_store_ps(dst + i * 128 + 64, _mm512_cvtepi32_ps(b));
	}
}

/* The byte in each upper half: e4m3 as a half is 2^-8 of its value, but for NaN. */
ATTND_INLINE __m512 from_e4m3(__m256i upper)
{
	__m256i sign = _mm256_and_si256(upper, _mm256_set1_epi16((short)0x8000));
	__m256i mag = _mm256_and_si256(_mm256_srli_epi16(upper, 1), _mm256_set1_epi16(0x3f80));
	__mmask16 nan = _mm256_cmpeq_epi16_mask(mag, _mm256_set1_epi16(0x3f80));

	mag = _mm256_mask_mov_epi16(mag, nan, _mm256_set1_epi16(0x7e00));
	return _mm512_mul_ps(_mm512_cvtph_ps(_mm256_or_si256(sign, mag)), _mm512_set1_ps(256.0f));
}

ATTND_INLINE void widen_e4m3(const char *src, const char *next, uint32_t n, char *dst)
{
	for (uint32_t i = 0; i < n; i++) {
		__m256i x = load_pairs(src + i * 32, next + i * 32);

		_mm512_store_ps(dst + i * 128, from_e4m3(_mm256_slli_epi16(x, 8)));
		_mm512_store_ps(dst + i * 128 + 64, from_e4m3(_mm256_and_si256(x, _mm256_set1_epi16((short)0xff00))));
	}
}

/* e5m2 is the upper half of an f16. */
ATTND_INLINE void widen_e5m2(const char *src, const char *next, uint32_t n, char *dst)
{
	for (uint32_t i = 0; i < n; i++) {
		__m256i x = load_pairs(src + i * 32, next + i * 32);
		__m256i odd = _mm256_and_si256(x, _mm256_set1_epi16((short)0xff00));

		_mm512_store_ps(dst + i * 128, _mm512_cvtph_ps(_mm256_slli_epi16(x, 8)));
		_mm512_store_ps(dst + i * 128 + 64, _mm512_cvtph_ps(odd));
	}
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
	char wide[16 * 64] __attribute__((aligned(64)));

	widen(k, k, rows < 8 ? rows : 8, wide);
	flip_f32(wide, 2 * rows, dst);
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

#define ATTEND(qname, kvname)                                                                                      \
	attnd_attend_fn attnd_attend_##qname##_##kvname##_avx512;                                                  \
	void attnd_attend_##qname##_##kvname##_avx512(const struct attnd_attend_args *a)                           \
	{                                                                                                          \
		static const struct attnd_x86_isa isa = {pack_##qname, scores_##kvname, softmax, values_##kvname}; \
		attnd_x86_attend(a, &isa);                                                                         \
	}

#define KV_TYPE(name, widen, operand)                                                         \
	static void scores_##name(const struct attnd_x86_tile *t)                             \
	{                                                                                     \
		attnd_scores(t, widen, 2, score_groups_##operand);                            \
	}                                                                                     \
	static void values_##name(const struct attnd_x86_tile *t, uint32_t first, uint32_t n) \
	{                                                                                     \
		if (t->args->fmt->spec.v_in_k)                                                \
			attnd_values_in_k(t, first, n, flip_##name, 1, value_strips_f32);     \
		else                                                                          \
			attnd_values(t, first, n, widen, 2, value_strips_##operand);          \
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
