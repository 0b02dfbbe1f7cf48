/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Vectors of 16 f32 for the templates tile_x86.h and partial_x86.h.
 *
 * In:   f32, or their bits.
 * Out:  choices lane by lane; 16-bit elements side by side.
 * Next: tile_avx512.c, partial_avx512.c.
 */
#ifndef ATTND_KERNELS_LANES_AVX512_H
#define ATTND_KERNELS_LANES_AVX512_H

#include <immintrin.h>
#include <stdint.h>

enum { LANES = 16 };
typedef float VF __attribute__((vector_size(64)));
typedef uint32_t VU __attribute__((vector_size(64)));

static inline VU pick_less(VU a, VU b, VU x, VU y)
{
	return (VU)_mm512_mask_mov_epi32((__m512i)y, _mm512_cmplt_epi32_mask((__m512i)a, (__m512i)b), (__m512i)x);
}

static inline void store16(uint16_t *to, VU x)
{
	_mm256_storeu_si256((void *)to, _mm512_cvtepi32_epi16((__m512i)x));
}

static inline void store_f16(uint16_t *to, VF x)
{
	_mm256_storeu_si256((void *)to, _mm512_cvtps_ph((__m512)x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}

#endif
