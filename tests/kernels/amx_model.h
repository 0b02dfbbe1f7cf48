/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The AMX tile instructions that attend_amx.c uses, in C, for machines without them.
 *
 * In:   forced in front of attend_amx.c (-include), in whose place these names then stand.
 * Out:  the same arithmetic: tdpbf16ps as Intel's manual defines it, denormals taken and
 *       written as 0, and the shapes of the configured palette enforced.
 * Next: check-kernels-amx.
 */
#ifndef ATTND_TESTS_KERNELS_AMX_MODEL_H
#define ATTND_TESTS_KERNELS_AMX_MODEL_H

#include <assert.h>
#include <immintrin.h>
#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

enum { AMX_TILES = 8, AMX_ROWS = 16, AMX_BYTES = 64 };

struct amx_state {
	bool configured;
	uint16_t bytes[AMX_TILES];
	uint8_t rows[AMX_TILES];
	uint8_t data[AMX_TILES][AMX_ROWS][AMX_BYTES];
};

static _Thread_local struct amx_state amx;

static inline void amx_loadconfig(const void *config)
{
	const uint8_t *c = config;

	assert(c[0] == 1 && c[1] == 0);
	memset(&amx, 0, sizeof(amx));
	amx.configured = true;
	memcpy(amx.bytes, c + 16, sizeof(amx.bytes));
	memcpy(amx.rows, c + 48, sizeof(amx.rows));
	for (int i = 0; i < AMX_TILES; i++)
		assert(amx.rows[i] >= 1 && amx.rows[i] <= AMX_ROWS && amx.bytes[i] >= 4 && amx.bytes[i] <= AMX_BYTES);
}

static inline void amx_release(void)
{
	amx.configured = false;
}

static inline void amx_zero(int t)
{
	assert(amx.configured);
	memset(amx.data[t], 0, sizeof(amx.data[t]));
}

static inline void amx_load(int t, const void *base, size_t stride)
{
	amx_zero(t);
	for (int i = 0; i < amx.rows[t]; i++)
		memcpy(amx.data[t][i], (const char *)base + (size_t)i * stride, amx.bytes[t]);
}

static inline void amx_store(int t, void *base, size_t stride)
{
	assert(amx.configured);
	for (int i = 0; i < amx.rows[t]; i++)
		memcpy((char *)base + (size_t)i * stride, amx.data[t][i], amx.bytes[t]);
}

static inline float amx_flush(float x)
{
	return fabsf(x) < 0x1p-126f ? copysignf(0.0f, x) : x;
}

static inline float amx_bf16(const uint8_t *p)
{
	uint32_t u = (uint32_t)p[0] << 16 | (uint32_t)p[1] << 24;
	float x;

	memcpy(&x, &u, sizeof(x));
	return amx_flush(x);
}

static inline float amx_fma(const uint8_t *a, const uint8_t *b, float c)
{
	return amx_flush(fmaf(amx_bf16(a), amx_bf16(b), c));
}

/* Products of even and of odd elements are summed apart, then together, then into the destination. */
static inline void amx_dpbf16(int dst, int left, int right)
{
	assert(amx.configured && amx.rows[dst] == amx.rows[left] && amx.bytes[dst] == amx.bytes[right] &&
	       amx.bytes[left] == amx.rows[right] * 4);
	for (int m = 0; m < amx.rows[dst]; m++)
		for (int n = 0; n < amx.bytes[dst] / 4; n++) {
			float even = 0, odd = 0, sum;

			for (int k = 0; k < amx.rows[right]; k++) {
				even = amx_fma(&amx.data[left][m][4 * k], &amx.data[right][k][4 * n], even);
				odd = amx_fma(&amx.data[left][m][4 * k + 2], &amx.data[right][k][4 * n + 2], odd);
			}
			memcpy(&sum, &amx.data[dst][m][4 * n], sizeof(sum));
			sum = amx_flush(amx_flush(sum) + amx_flush(even + odd));
			memcpy(&amx.data[dst][m][4 * n], &sum, sizeof(sum));
		}
}

#undef _tile_loadconfig
#undef _tile_release
#undef _tile_zero
#undef _tile_loadd
#undef _tile_stored
#undef _tile_dpbf16ps
#define _tile_loadconfig		 amx_loadconfig
#define _tile_release			 amx_release
#define _tile_zero			 amx_zero
#define _tile_loadd			 amx_load
#define _tile_stored			 amx_store
#define _tile_dpbf16ps(dst, left, right) amx_dpbf16(dst, left, right)

#endif
