/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Checks of kernels/scalar.h: conversions, exp and tanh.
 *
 * In:   all narrow values; random and special floats.
 * Out:  TAP.
 * Next: the portable kernels build on what is checked here; bounds are in docs/numerics.md.
 */
#include "check.h"

#include "../../kernels/scalar.h"

static bool same_value(double a, double b)
{
	return isnan(a) ? isnan(b) : a == b && signbit(a) == signbit(b);
}

static double widen(enum attnd_kdtype type, uint32_t bits)
{
	switch (type) {
	case ATTND_K_F16:
		return (double)attnd_from_f16((uint16_t)bits);
	case ATTND_K_BF16:
		return (double)attnd_from_bf16((uint16_t)bits);
	case ATTND_K_FP8_E4M3:
		return (double)attnd_from_e4m3((uint8_t)bits);
	default:
		return (double)attnd_from_e5m2((uint8_t)bits);
	}
}

static uint32_t narrow(enum attnd_kdtype type, float x)
{
	switch (type) {
	case ATTND_K_F16:
		return attnd_to_f16(x);
	case ATTND_K_BF16:
		return attnd_to_bf16(x);
	case ATTND_K_INT8:
		return (uint8_t)attnd_to_int8(x);
	case ATTND_K_FP8_E4M3:
		return attnd_to_e4m3(x);
	default:
		return attnd_to_e5m2(x);
	}
}

static void check_widening(enum attnd_kdtype type)
{
	uint32_t n = 1u << (attnd_kdtype_bytes(type) * 8);

	for (uint32_t i = 0; i < n; i++) {
		uint16_t half = (uint16_t)i;
		uint8_t byte = (uint8_t)i;
		double want = n > 256 ? exact_value(type, &half, 0) : exact_value(type, &byte, 0);

		if (!same_value(widen(type, i), want))
			fail("type %d: 0x%x gives %g, not %g", (int)type, i, widen(type, i), want);
	}
}

static void check_narrowing(enum attnd_kdtype type, float x)
{
	uint32_t got = narrow(type, x), want = exact_round(type, x);

	if (isnan(x) && type != ATTND_K_INT8) {
		if (!isnan(widen(type, got)))
			fail("type %d: NaN 0x%x became 0x%x", (int)type, bits_of(x), got);
	} else if (got != want) {
		fail("type %d: %a gives 0x%x, not 0x%x", (int)type, (double)x, got, want);
	}
}

static void check_exp(float x)
{
	double got = (double)attnd_exp(x), want = exp((double)x);

	if (want < 0x1p-126 ? got > 0x1p-126 : fabs(got - want) > 0x1p-23 * want)
		fail("exp(%a) = %a, not %a", (double)x, got, want);
}

static void check_tanh(float x)
{
	double got = (double)attnd_tanh(x), want = tanh((double)x);

	if (fabs(got - want) > 0x1p-22 * fabs(want) + 0x1p-149 || (want != 0 && signbit(got) != signbit(want)))
		fail("tanh(%a) = %a, not %a", (double)x, got, want);
}

static void check_special(void)
{
	if (attnd_exp(-INFINITY) != 0.0f || attnd_exp(-1e30f) != 0.0f || attnd_exp(-87.34f) != 0.0f ||
	    attnd_exp(-88.0f) != 0.0f)
		fail("exp far below zero is not 0");
	if (attnd_exp(0.0f) != 1.0f || attnd_exp(-0.0f) != 1.0f || attnd_exp(-0x1p-149f) != 1.0f)
		fail("exp around 0 is not 1");
	if (!isnan(attnd_exp(NAN)) || !isnan(attnd_tanh(NAN)))
		fail("NaN is lost");
	if (attnd_tanh(INFINITY) != 1.0f || attnd_tanh(-INFINITY) != -1.0f)
		fail("tanh at infinity is not one");
}

void check_scalar(uint64_t seed)
{
	struct rng r = {seed};

	for (int type = ATTND_K_F16; type < ATTND_K_DTYPES; type++) {
		if (type != ATTND_K_INT8)
			check_widening((enum attnd_kdtype)type);
		for (int i = 0; i < 40000; i++)
			check_narrowing((enum attnd_kdtype)type, rng_any_float(&r));
		for (int i = -1040; i <= 1040; i++) /* every quarter: ties of int8 both ways */
			check_narrowing((enum attnd_kdtype)type, (float)i / 8.0f);
	}
	check_special();
	for (int i = 0; i < 100000; i++) {
		float x = rng_float(&r);

		check_exp(-100.0f * x * x);
		check_exp(ldexpf(x, -(int)rng_below(&r, 100)));
		check_tanh(x * 12.0f);
		check_tanh(ldexpf(x, -(int)rng_below(&r, 140)));
	}
}
