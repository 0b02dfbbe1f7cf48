/* SPDX-License-Identifier: Apache-2.0 */
/*
 * write and read of packed tiles with AVX2: the same bits as tile_c.c's.
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
