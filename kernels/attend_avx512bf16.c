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

/* n rows of 16 byte pairs to rows of 16 bf16 pairs (an odd n writes one more); prefetches as many at `next`. */
ATTND_INLINE void widen(const struct tables *t, bool int8, const char *src, const char *next, uint32_t n, char *dst)
{
	const __m512i up0 = _mm512_load_si512(t->upper), up1 = _mm512_load_si512(t->upper + 64);
	const __m512i lo0 = _mm512_load_si512(t->lower), lo1 = _mm512_load_si512(t->lower + 64);
	const __m512i order = _mm512_setr_epi64(0, 4, 1, 5, 2, 6, 3, 7), sign = _mm512_set1_epi8((char)0x80);

	for (uint32_t i = 0; i < n; i += 2) {
		__m512i row = _mm512_maskz_loadu_epi64(i + 1 < n ? 0xff : 0x0f, src + i * 32);
		__m512i x = _mm512_permutexvar_epi64(order, row);
		__m512i mag = int8 ? _mm512_abs_epi8(x) : x; /* a look-up ignores bit 7 */
		__m512i up = _mm512_permutex2var_epi8(up0, mag, up1), lo = _mm512_permutex2var_epi8(lo0, mag, lo1);

		_mm_prefetch(next + i * 32, _MM_HINT_T1);
		up = _mm512_ternarylogic_epi32(up, x, sign, 0xf8); /* up | (x & sign) */
		_mm512_store_si512(dst + i * 64, _mm512_unpacklo_epi8(lo, up));
		_mm512_store_si512(dst + i * 64 + 64, _mm512_unpackhi_epi8(lo, up));
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

/* ---- The three stages ---- */

static void pack_q(const void *q, uint32_t dims, char *packed, size_t stride)
{
	size_t bytes = dims * sizeof(uint16_t), used = (bytes + 3) & ~(size_t)3;

	(void)stride;
	memcpy(packed, q, bytes);
	memset(packed + bytes, 0, used - bytes);
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

/* ---- One kernel for each K/V type ---- */

#define ATTEND(name, widen)                                                                              \
	static void scores_##name(const struct attnd_x86_tile *t)                                        \
	{                                                                                                \
		attnd_scores(t, widen, 1, score_groups);                                                 \
	}                                                                                                \
	static void values_##name(const struct attnd_x86_tile *t, uint32_t first, uint32_t n)            \
	{                                                                                                \
		attnd_values(t, first, n, widen, 1, value_strips);                                       \
	}                                                                                                \
	attnd_attend_fn attnd_attend_bf16_##name##_avx512bf16;                                           \
	void attnd_attend_bf16_##name##_avx512bf16(const struct attnd_attend_args *a)                    \
	{                                                                                                \
		static const struct attnd_x86_isa isa = {pack_q, scores_##name, softmax, values_##name}; \
		attnd_x86_attend(a, &isa);                                                               \
	}

ATTEND(bf16, NULL)
ATTEND(int8, widen_int8)
ATTEND(e4m3, widen_e4m3)
ATTEND(e5m2, widen_e5m2)
