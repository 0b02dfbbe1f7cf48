/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Vectors of 8 f32 for the templates tile_x86.h and partial_x86.h.
 *
 * In:   f32, or their bits.
 * Out:  choices lane by lane; 16-bit elements side by side.
 * Next: tile_avx2.c, partial_avx2.c.
 */
#ifndef ATTND_KERNELS_LANES_AVX2_H
#define ATTND_KERNELS_LANES_AVX2_H

#include <immintrin.h>
#include <stdint.h>

enum { LANES = 8 };
typedef float VF __attribute__((vector_size(32)));
typedef uint32_t VU __attribute__((vector_size(32)));

static inline VU pick_less(VU a, VU b, VU x, VU y)
{
	return (VU)_mm256_blendv_epi8((__m256i)y, (__m256i)x, _mm256_cmpgt_epi32((__m256i)b, (__m256i)a));
}

static inline __m128i low_halves(VU x)
{
	__m256i u = _mm256_and_si256((__m256i)x, _mm256_set1_epi32(0xffff));

	return _mm_packus_epi32(_mm256_castsi256_si128(u), _mm256_extracti128_si256(u, 1));
}

static inline void store16(uint16_t *to, VU x)
{
	_mm_storeu_si128((void *)to, low_halves(x));
}

static inline void store_f16(uint16_t *to, VF x)
{
	_mm_storeu_si128((void *)to, _mm256_cvtps_ph((__m256)x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}

#endif
