/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Eight rows of eight 32-bit elements turned around.
 *
 * In:   rows.
 * Out:  columns.
 * Next: attend_avx2.c (V in K), tile_avx2.c (K as it is packed).
 */
#ifndef ATTND_KERNELS_X86_AVX2_H
#define ATTND_KERNELS_X86_AVX2_H

#include <immintrin.h>

static inline __attribute__((always_inline)) void attnd_turn8(__m256 x[8])
{
	__m256 a[8], b[8];

	for (int i = 0; i < 8; i += 2) {
		a[i] = _mm256_unpacklo_ps(x[i], x[i + 1]);
		a[i + 1] = _mm256_unpackhi_ps(x[i], x[i + 1]);
	}
	for (int i = 0; i < 8; i += 4) {
		b[i] = _mm256_shuffle_ps(a[i], a[i + 2], 0x44);
		b[i + 1] = _mm256_shuffle_ps(a[i], a[i + 2], 0xee);
		b[i + 2] = _mm256_shuffle_ps(a[i + 1], a[i + 3], 0x44);
		b[i + 3] = _mm256_shuffle_ps(a[i + 1], a[i + 3], 0xee);
	}
	for (int i = 0; i < 4; i++) {
		x[i] = _mm256_permute2f128_ps(b[i], b[i + 4], 0x20);
		x[i + 4] = _mm256_permute2f128_ps(b[i], b[i + 4], 0x31);
	}
}

#endif
