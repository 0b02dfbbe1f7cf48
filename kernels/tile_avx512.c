/* SPDX-License-Identifier: Apache-2.0 */
/*
 * write, read and copy of packed tiles with AVX-512: the same bits as tile_c.c's.
 *
 * In:   rows [token][head][dim], or tiles.
 * Out:  tiles with flags and scales, or rows.
 * Next: tile_x86.h has the loops; attend reads what they store.
 */
#include <string.h>

#include "kernels.h"
#include "lanes_avx512.h"

static inline __attribute__((always_inline)) VF load(enum attnd_kdtype type, const char *src, uint32_t n)
{
	__mmask16 some = (__mmask16)((1u << n) - 1);

	if (type == ATTND_K_F32)
		return (VF)_mm512_maskz_loadu_ps(some, src);
	if (type == ATTND_K_F16)
		return (VF)_mm512_cvtph_ps(_mm256_maskz_loadu_epi16(some, src));
	return (VF)_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(some, src)), 16);
}

static inline VU least(VU a, VU b)
{
	return (VU)_mm512_min_epu32((__m512i)a, (__m512i)b);
}

static inline VU most(VU a, VU b)
{
	return (VU)_mm512_max_epu32((__m512i)a, (__m512i)b);
}

static inline uint32_t largest(VU a)
{
	return _mm512_reduce_max_epu32((__m512i)a);
}

static inline VU integers(VF x)
{
	return (VU)_mm512_cvtps_epi32((__m512)x);
}

static inline void store8(uint8_t *to, VU x)
{
	_mm_storeu_si128((void *)to, _mm512_cvtepi32_epi8((__m512i)x));
}

/* Masked stores: what stands between the elements is other slots'. */
static inline void put_v_halves(char *to, const char *from, uint32_t slot)
{
	__m512i x = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const void *)from));

	_mm512_mask_storeu_epi16(to, 0x55555555u << slot, _mm512_sll_epi32(x, _mm_cvtsi32_si128((int)slot * 16)));
}

static inline void put_v_bytes(char *to, const char *from, uint32_t slot)
{
	__m512i x = _mm512_cvtepu8_epi32(_mm_loadu_si128((const void *)from));

	_mm512_mask_storeu_epi8(to, 0x1111111111111111u << slot,
				_mm512_sll_epi32(x, _mm_cvtsi32_si128((int)slot * 8)));
}

static void copy_runs(char *dst, const char *src, uint32_t runs, size_t pitch, size_t bytes)
{
	size_t whole = bytes & ~(size_t)63;
	__mmask64 some = ((uint64_t)1 << (bytes - whole)) - 1;

	for (uint32_t i = 0; i < runs; i++, dst += pitch, src += pitch) {
		for (size_t at = 0; at < whole; at += 64)
			_mm512_storeu_si512(dst + at, _mm512_loadu_si512(src + at));
		if (some)
			_mm512_mask_storeu_epi8(dst + whole, some, _mm512_maskz_loadu_epi8(some, src + whole));
	}
}

/* A row of a strip is 64 bytes: 16 lanes of 4. */
static void copy_mixed(char *dst, const char *src, uint32_t lanes, uint32_t ilv, uint32_t n, size_t es)
{
	__mmask64 first = (((uint64_t)1 << n * es) - 1) * 0x1111111111111111u;

	(void)lanes;
	(void)ilv;
	_mm512_mask_storeu_epi8(dst, first, _mm512_maskz_loadu_epi8(first, src));
}

#define COPY_RUNS  copy_runs
#define COPY_MIXED copy_mixed
#include "tile_copy.h"
#include "tile_x86.h"

attnd_write_fn attnd_write_any_avx512;
void attnd_write_any_avx512(const struct attnd_slots_args *a)
{
	write_tiles(a);
}

attnd_read_fn attnd_read_any_avx512;
void attnd_read_any_avx512(const struct attnd_slots_args *a)
{
	read_tiles(a);
}

attnd_copy_fn attnd_copy_any_avx512;
void attnd_copy_any_avx512(const struct attnd_kv_format *fmt, void *dst, uint8_t *dst_flags, const void *src,
			   const uint8_t *src_flags, uint32_t n, uint32_t head, uint32_t num_heads)
{
	copy_tiles(fmt, dst, dst_flags, src, src_flags, n, head, num_heads);
}
