/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What bf16 arithmetic on AVX-512 registers shares: bytes to bf16, turning K around, queries.
 *
 * In:   stored rows of K and V.
 * Out:  operands of vdpbf16ps and tdpbf16ps.
 * Next: attend_avx512bf16.c, attend_amx.c.
 *
 * One byte of int8 or fp8 is looked up: its magnitude's bf16 has an upper and a lower byte, two
 * tables of 128 bytes each (vpermi2b); the sign is or-ed in, unpacking joins the bytes.
 */
#ifndef ATTND_KERNELS_X86_BF16_H
#define ATTND_KERNELS_X86_BF16_H

#include "x86_avx512.h"

/* ---- Widening: bytes are looked up ---- */

/* Upper and lower bytes of the bf16 of magnitudes 0..127. */
struct attnd_bytes {
	uint8_t upper[128], lower[128];
};

/* bf16 of the non-negative normal or zero m * 2^e, m < 128, as a constant expression. */
#define ATTND_LOG2(m)	   ((m) >= 64 ? 6 : (m) >= 32 ? 5 : (m) >= 16 ? 4 : (m) >= 8 ? 3 : (m) >= 4 ? 2 : (m) >= 2 ? 1 : 0)
#define ATTND_BF16(m, e)   ((m) == 0 ? 0 : ((127 + (e) + ATTND_LOG2(m)) << 7 | (((m) << (7 - ATTND_LOG2(m))) & 0x7f)))
#define ATTND_INT8_BF16(i) ATTND_BF16(i, 0)
#define ATTND_E4M3_BF16(i) \
	((i) == 127 ? 0x7fc0 : (i) < 8 ? ATTND_BF16(i, -9) : ATTND_BF16(8 + ((i) & 7), ((i) >> 3) - 10))
#define ATTND_E5M2_BF16(i)                \
	((i) == 124  ? 0x7f80             \
	 : (i) > 124 ? 0x7fc0             \
	 : (i) < 4   ? ATTND_BF16(i, -16) \
		     : ATTND_BF16(4 + ((i) & 3), ((i) >> 2) - 17))

#define ATTND_EACH8(f, b, i) \
	f(i) b, f(i + 1) b, f(i + 2) b, f(i + 3) b, f(i + 4) b, f(i + 5) b, f(i + 6) b, f(i + 7) b
#define ATTND_EACH64(f, b, i)                                                                                 \
	ATTND_EACH8(f, b, i), ATTND_EACH8(f, b, i + 8), ATTND_EACH8(f, b, i + 16), ATTND_EACH8(f, b, i + 24), \
		ATTND_EACH8(f, b, i + 32), ATTND_EACH8(f, b, i + 40), ATTND_EACH8(f, b, i + 48),              \
		ATTND_EACH8(f, b, i + 56)
#define ATTND_TABLES(f)                                                       \
	{                                                                     \
		{ATTND_EACH64(f, >> 8, 0), ATTND_EACH64(f, >> 8, 64)},        \
		{                                                             \
			ATTND_EACH64(f, &0xff, 0), ATTND_EACH64(f, &0xff, 64) \
		}                                                             \
	}

static const struct attnd_bytes attnd_int8 __attribute__((aligned(64))) = ATTND_TABLES(ATTND_INT8_BF16);
static const struct attnd_bytes attnd_e4m3 __attribute__((aligned(64))) = ATTND_TABLES(ATTND_E4M3_BF16);
static const struct attnd_bytes attnd_e5m2 __attribute__((aligned(64))) = ATTND_TABLES(ATTND_E5M2_BF16);

/* What looking up needs in registers. */
struct attnd_lookup {
	bool int8;
	__m512i upper[2], lower[2];
};

ATTND_INLINE struct attnd_lookup attnd_load_tables(const struct attnd_bytes *t, bool int8)
{
	return (struct attnd_lookup){
		.int8 = int8,
		.upper = {_mm512_load_si512(t->upper), _mm512_load_si512(t->upper + 64)},
		.lower = {_mm512_load_si512(t->lower), _mm512_load_si512(t->lower + 64)},
	};
}

/* Upper and lower bytes of 64 bytes' bf16. */
ATTND_INLINE void attnd_look_up(const struct attnd_lookup *l, __m512i x, __m512i *ret_upper, __m512i *ret_lower)
{
	/* A look-up ignores bit 7. */
	__m512i mag = l->int8 ? _mm512_min_epu8(x, _mm512_sub_epi8(_mm512_setzero_si512(), x)) : x;
	__m512i upper = _mm512_permutex2var_epi8(l->upper[0], mag, l->upper[1]);

	*ret_lower = _mm512_permutex2var_epi8(l->lower[0], mag, l->lower[1]);
	*ret_upper = _mm512_ternarylogic_epi32(upper, x, _mm512_set1_epi8((char)0x80), 0xf8); /* | (x & sign) */
}

/*
 * A row of 16 fours of bytes to two rows of bf16 pairs. In each 128-bit part i of four, `first`
 * holds lanes 4i and 4i + 1 and `second` lanes 4i + 2 and 4i + 3, both with their two pairs.
 */
ATTND_INLINE void attnd_widen_row(const struct attnd_lookup *l, __m512i x, __m512i *ret_first, __m512i *ret_second)
{
	__m512i upper, lower;

	attnd_look_up(l, x, &upper, &lower);
	*ret_first = _mm512_unpacklo_epi8(lower, upper);
	*ret_second = _mm512_unpackhi_epi8(lower, upper);
}

/* Four bf16, for a broadcast. */
ATTND_INLINE long long attnd_load_four(const char *p)
{
	long long x;

	memcpy(&x, p, sizeof(x));
	return x;
}

/* The sums of those lanes' pairs, in the order of lanes. */
ATTND_INLINE __m512 attnd_join_pairs(__m512 first, __m512 second)
{
	return _mm512_add_ps(_mm512_shuffle_ps(first, second, 0x88), _mm512_shuffle_ps(first, second, 0xdd));
}

/* ---- V in K: 16 dims of 16 tokens become 8 token pairs of 16 dims ---- */

/* Eight rows of eight 64-bit elements. */
ATTND_INLINE void attnd_transpose8(__m512i x[8])
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

static inline void attnd_flip_bf16(const char *k, uint32_t rows, char *dst)
{
	/* Two tokens' (dim, dim + 1) to two dims' (token, token + 1). */
	const __m512i join =
		_mm512_broadcast_i32x4(_mm_setr_epi8(0, 1, 4, 5, 2, 3, 6, 7, 8, 9, 12, 13, 10, 11, 14, 15));
	__m512i x[8];

	for (uint32_t u = 0; u < 8; u++)
		x[u] = u < rows ? _mm512_shuffle_epi8(_mm512_load_si512(k + u * 64), join) : _mm512_setzero_si512();
	attnd_transpose8(x);
	for (uint32_t u = 0; u < 8; u++)
		_mm512_store_si512(dst + u * 64, x[u]);
}

/* ---- Queries ---- */

static inline void attnd_pack_bf16(const char *const *query, uint32_t rows, uint32_t dims, char *to, size_t q_stride)
{
	for (uint32_t r = 0; r < rows; r++, to += q_stride)
		for (uint32_t d = 0; d < dims; d += 32) {
			const char *q = query[r] + d * sizeof(uint16_t);
			const char *ahead = query[r + 8 < rows ? r + 8 : r];
			__m512i x = dims >= d + 32 ? _mm512_loadu_si512(q)
						   : _mm512_maskz_loadu_epi16((1u << (dims - d)) - 1, q);

			_mm_prefetch(ahead + d * sizeof(uint16_t), _MM_HINT_T0); /* rows lie far apart */
			_mm512_store_si512(to + d * sizeof(uint16_t), x);
		}
}

#endif
