/* SPDX-License-Identifier: Apache-2.0 */
/*
 * write, read and copy of packed tiles with AVX2: the same bits as tile_c.c's.
 *
 * In:   rows [token][head][dim], or tiles.
 * Out:  tiles with flags and scales, or rows.
 * Next: tile_x86.h has the loops; attend reads what they store.
 */
#include <string.h>

#include "kernels.h"
#include "lanes_avx2.h"

static inline __attribute__((always_inline)) VF load(enum attnd_kdtype type, const char *src, uint32_t n)
{
	char some[32] = {0};

	if (n < LANES)
		src = memcpy(some, src, n * attnd_kdtype_bytes(type));
	if (type == ATTND_K_F32)
		return (VF)_mm256_loadu_ps((const void *)src);
	if (type == ATTND_K_F16)
		return (VF)_mm256_cvtph_ps(_mm_loadu_si128((const void *)src));
	return (VF)_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const void *)src)), 16);
}

static inline VU least(VU a, VU b)
{
	return (VU)_mm256_min_epu32((__m256i)a, (__m256i)b);
}

static inline VU most(VU a, VU b)
{
	return (VU)_mm256_max_epu32((__m256i)a, (__m256i)b);
}

static inline uint32_t largest(VU a)
{
	__m128i m = _mm_max_epu32(_mm256_castsi256_si128((__m256i)a), _mm256_extracti128_si256((__m256i)a, 1));

	m = _mm_max_epu32(m, _mm_shuffle_epi32(m, 0x4e));
	m = _mm_max_epu32(m, _mm_shuffle_epi32(m, 0xb1));
	return (uint32_t)_mm_cvtsi128_si32(m);
}

static inline VU integers(VF x)
{
	return (VU)_mm256_cvtps_epi32((__m256)x);
}

static inline void store8(uint8_t *to, VU x)
{
	__m128i u = _mm_and_si128(low_halves(x), _mm_set1_epi16(0xff));

	_mm_storel_epi64((void *)to, _mm_packus_epi16(u, u));
}

/* Stores of single elements: what stands between them is other slots'. */
static inline void put_v_halves(char *to, const char *from, uint32_t slot)
{
	for (uint32_t i = 0; i < 16; i++)
		memcpy(to + i * 4 + slot * 2, from + i * 2, 2);
}

static inline void put_v_bytes(char *to, const char *from, uint32_t slot)
{
	for (uint32_t i = 0; i < 16; i++)
		to[i * 4 + slot] = from[i];
}

static void copy_runs(char *dst, const char *src, uint32_t runs, size_t pitch, size_t bytes)
{
	size_t whole = bytes & ~(size_t)31, words = (bytes - whole) / 4, left = bytes % 4;
	const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
	const __m256i some = _mm256_cmpgt_epi32(_mm256_set1_epi32((int)words), lane);

	for (uint32_t i = 0; i < runs; i++, dst += pitch, src += pitch) {
		for (size_t at = 0; at < whole; at += 32)
			_mm256_storeu_si256((void *)(dst + at), _mm256_loadu_si256((const void *)(src + at)));
		if (words)
			_mm256_maskstore_epi32((void *)(dst + whole), some,
					       _mm256_maskload_epi32((const void *)(src + whole), some));
		for (size_t at = bytes - left; at < bytes; at++)
			dst[at] = src[at];
	}
}

/* Stores of single elements: the others are slots that somebody may be writing. */
static void copy_mixed(char *dst, const char *src, uint32_t lanes, uint32_t ilv, uint32_t n, size_t es)
{
	for (uint32_t i = 0; i < lanes; i++)
		memcpy(dst + i * ilv * es, src + i * ilv * es, n * es);
}

#define COPY_RUNS  copy_runs
#define COPY_MIXED copy_mixed
#include "tile_copy.h"
#include "tile_x86.h"

attnd_write_fn attnd_write_any_avx2;
void attnd_write_any_avx2(const struct attnd_slots_args *a)
{
	write_tiles(a);
}

attnd_read_fn attnd_read_any_avx2;
void attnd_read_any_avx2(const struct attnd_slots_args *a)
{
	read_tiles(a);
}

attnd_copy_fn attnd_copy_any_avx2;
void attnd_copy_any_avx2(const struct attnd_kv_format *fmt, void *dst, uint8_t *dst_flags, const void *src,
			 const uint8_t *src_flags, uint32_t n, uint32_t head, uint32_t num_heads)
{
	copy_tiles(fmt, dst, dst_flags, src, src_flags, n, head, num_heads);
}
