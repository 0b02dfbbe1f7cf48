/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Single numbers: conversions between element types, exp and tanh.
 *
 * In:   one element or float.
 * Out:  the other form, rounded to nearest even, the same bits on every machine.
 * Next: the portable kernels, which loop over these (branch-free, so that compilers vectorise);
 *       docs/numerics.md derives the error bounds stated here.
 */
#ifndef ATTND_KERNELS_SCALAR_H
#define ATTND_KERNELS_SCALAR_H

#include <math.h>
#include <stdint.h>
#include <string.h>

static inline uint32_t attnd_bits(float x)
{
	uint32_t u;

	memcpy(&u, &x, sizeof(u));
	return u;
}

static inline float attnd_float(uint32_t u)
{
	float x;

	memcpy(&x, &u, sizeof(x));
	return x;
}

/* ---- To f32: exact ---- */

static inline float attnd_from_bf16(uint16_t h)
{
	return attnd_float((uint32_t)h << 16);
}

static inline float attnd_from_f16(uint16_t h)
{
	uint32_t mag = h & 0x7fffu, sign = (uint32_t)(h & 0x8000u) << 16;
	uint32_t normal = (mag << 13) + (mag >= 0x7c00 ? 0x70000000u : 0x38000000u);
	uint32_t denormal = attnd_bits((float)(int32_t)mag * 0x1p-24f);

	return attnd_float(sign | (mag < 0x400 ? denormal : normal));
}

/* Finite but for 0x7f and 0xff, which are NaN. */
static inline float attnd_from_e4m3(uint8_t b)
{
	uint32_t mag = b & 0x7fu, sign = (uint32_t)(b & 0x80u) << 24;
	uint32_t normal = mag == 0x7f ? 0x7fc00000u : (mag << 20) + 0x3c000000u;
	uint32_t denormal = attnd_bits((float)(int32_t)mag * 0x1p-9f);

	return attnd_float(sign | (mag < 8 ? denormal : normal));
}

/* The upper half of an f16. */
static inline float attnd_from_e5m2(uint8_t b)
{
	return attnd_from_f16((uint16_t)(b << 8));
}

/* ---- From f32: round to nearest even ---- */

/* Drops the lowest `shift` bits of a magnitude; a carry moves into the exponent as it should. */
static inline uint32_t attnd_round_bits(uint32_t mag, unsigned shift)
{
	return (mag + ((1u << (shift - 1)) - 1) + ((mag >> shift) & 1)) >> shift;
}

/* A non-negative float below 2^22 to the nearest integer. */
static inline uint32_t attnd_round_small(float x)
{
	return attnd_bits(x + 0x1p23f) & 0x7fffffu;
}

static inline uint16_t attnd_to_bf16(float x)
{
	uint32_t u = attnd_bits(x), mag = u & 0x7fffffffu;
	uint32_t nan = (u >> 16) | 0x40;

	return (uint16_t)(mag > 0x7f800000u ? nan : ((u >> 16) & 0x8000) | attnd_round_bits(mag, 16));
}

static inline uint16_t attnd_to_f16(float x)
{
	uint32_t u = attnd_bits(x), mag = u & 0x7fffffffu, sign = (u >> 16) & 0x8000;
	uint32_t normal = attnd_round_bits(mag, 13) - (112u << 10);
	uint32_t denormal = attnd_round_small(attnd_float(mag) * 0x1p24f);
	uint32_t nan = 0x7e00 | ((mag >> 13) & 0x3ff);
	uint32_t r = mag < 0x38800000u ? denormal : mag >= 0x477ff000u ? 0x7c00 : normal;

	return (uint16_t)(sign | (mag > 0x7f800000u ? nan : r));
}

/* Saturates to the largest finite value; NaN stays NaN. */
static inline uint8_t attnd_to_e4m3(float x)
{
	uint32_t u = attnd_bits(x), mag = u & 0x7fffffffu, sign = (u >> 24) & 0x80;
	uint32_t sat = mag > 0x43e00000u ? 0x43e00000u : mag; /* 448 */
	uint32_t normal = attnd_round_bits(sat, 20) - (120u << 3);
	uint32_t denormal = attnd_round_small(attnd_float(sat) * 0x1p9f);

	return (uint8_t)(sign | (mag > 0x7f800000u ? 0x7f : sat < 0x3c800000u ? denormal : normal));
}

static inline uint8_t attnd_to_e5m2(float x)
{
	uint32_t u = attnd_bits(x), mag = u & 0x7fffffffu, sign = (u >> 24) & 0x80;
	uint32_t sat = mag > 0x47600000u ? 0x47600000u : mag; /* 57344 */
	uint32_t normal = attnd_round_bits(sat, 21) - (112u << 2);
	uint32_t denormal = attnd_round_small(attnd_float(sat) * 0x1p16f);

	return (uint8_t)(sign | (mag > 0x7f800000u ? 0x7e : sat < 0x38800000u ? denormal : normal));
}

/* Saturates to -127..127; NaN gives 0. */
static inline int8_t attnd_to_int8(float x)
{
	float y = x > -127.0f ? x : -127.0f;

	y = y < 127.0f ? y : 127.0f;
	y = x != x ? 0.0f : y;
	return (int8_t)(int32_t)(attnd_bits(y + 0x1.8p23f) - 0x4b400000u);
}

/* ---- exp and tanh ---- */

/*
 * e^x for x <= 88, within 2 units in the last place; 0 below ln(2^-126), where the result would
 * be denormal, so that -inf and -1e30 give 0 exactly; 1 at 0; NaN stays NaN.
 *
 * x = n ln 2 + r with |r| <= ln(2)/2 (ln 2 in two parts, the first with 9 trailing zeros so that
 * n times it is exact), e^r = 1 + r + r^2 P(r) with P of degree 4, minimax: error 3.1e-9.
 */
static inline float attnd_exp(float x)
{
	const float low = -0x1.5d589ep+6f; /* -87.33654... */
	float y = x < low ? low : x;
	float magic = y * 0x1.715476p+0f + 0x1.8p23f;
	float n = magic - 0x1.8p23f;
	float r = (y - n * 0x1.62e4p-1f) - n * 0x1.7f7d1cp-20f;
	float p = 0x1.6a2434p-10f;
	float e;

	p = p * r + 0x1.1239e2p-7f;
	p = p * r + 0x1.5558f2p-5f;
	p = p * r + 0x1.555492p-3f;
	p = p * r + 0x1.fffffcp-2f;
	e = 1.0f + (r + r * r * p);
	e *= attnd_float((attnd_bits(magic) - 0x4b400000u + 127u) << 23);
	return x < low ? 0.0f : e;
}

/*
 * tanh, within 4 units in the last place. Below 0.5625 x + x^3 Q(x^2) with Q of degree 4,
 * minimax; above 1 - 2 / (e^2x + 1), which 1 absorbs from 10 on.
 */
static inline float attnd_tanh(float x)
{
	float a = fabsf(x), z = x * x;
	float b = a < 10.0f ? a : 10.0f;
	float q = -0x1.94f368p-8f;
	float small, large;

	q = q * z + 0x1.582d7cp-6f;
	q = q * z - 0x1.b90904p-5f;
	q = q * z + 0x1.110c72p-3f;
	q = q * z - 0x1.555548p-2f;
	small = x + x * (z * q);
	large = copysignf(1.0f - 2.0f / (attnd_exp(b + b) + 1.0f), x);
	large = x != x ? x : large;
	return a < 0.5625f ? small : large;
}

#endif
