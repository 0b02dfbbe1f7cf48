/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Conversions between float and the two 16-bit floats.
 *
 * In:   float, or the bits of an f16 or bf16.
 * Out:  the other; narrowing rounds to nearest, ties to even, and NaN stays NaN.
 * Next: safetensors.c widens weights, attention_local.c narrows K/V as a cache would.
 */
#ifndef ATTND_EXAMPLES_HALF_H
#define ATTND_EXAMPLES_HALF_H

#include <stdint.h>
#include <string.h>

static inline uint32_t float_bits(float x)
{
	uint32_t u;
	memcpy(&u, &x, sizeof(u));
	return u;
}

static inline float float_from_bits(uint32_t u)
{
	float x;
	memcpy(&x, &u, sizeof(x));
	return x;
}

static inline float float_from_bf16(uint16_t b)
{
	return float_from_bits((uint32_t)b << 16);
}

static inline uint16_t bf16_from_float(float x)
{
	uint32_t u = float_bits(x);

	if (x != x)
		return (uint16_t)(u >> 16 | 0x40);
	return (uint16_t)((u + 0x7fff + (u >> 16 & 1)) >> 16);
}

static inline float float_from_f16(uint16_t h)
{
	uint32_t sign = (uint32_t)(h & 0x8000) << 16, exponent = h >> 10 & 0x1f, mantissa = h & 0x3ff;

	if (exponent == 0x1f)
		return float_from_bits(sign | 0x7f800000 | mantissa << 13);
	if (exponent)
		return float_from_bits(sign | (exponent + 112) << 23 | mantissa << 13);
	/* Zero and subnormals: mantissa * 2^-24 is exact. */
	float magnitude = (float)mantissa * 0x1p-24f;
	return sign ? -magnitude : magnitude;
}

static inline uint16_t f16_from_float(float x)
{
	uint32_t u = float_bits(x), sign = u >> 16 & 0x8000, a = u & 0x7fffffff;

	if (a > 0x7f800000)
		return (uint16_t)(sign | 0x7e00);
	if (a >= 0x477ff000) /* 65520: halfway to the value after the largest */
		return (uint16_t)(sign | 0x7c00);
	if (a <
	    0x38800000) { /* below 2^-14: adding 0.5 leaves the float's last bit worth 2^-24, rounded as we want */
		float shifted = float_from_bits(a) + 0.5f;
		return (uint16_t)(sign | (float_bits(shifted) - 0x3f000000));
	}
	return (uint16_t)(sign | ((a - 0x38000000 + 0xfff + (a >> 13 & 1)) >> 13));
}

#endif
