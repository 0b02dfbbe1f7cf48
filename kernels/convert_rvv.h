/* SPDX-License-Identifier: Apache-2.0 */
/*
 * f32 to the stored types in vectors: scalar.h's conversions, lane by lane, with its bits.
 *
 * In:   f32 (NaN too).
 * Out:  the bits of bf16, f16, e4m3, e5m2 or int8 in 32-bit lanes; narrowed and stored.
 * Next: rows_rvv.c writes tiles, partial_rvv.c outputs. Base V: no extension is needed.
 */
#ifndef ATTND_KERNELS_CONVERT_RVV_H
#define ATTND_KERNELS_CONVERT_RVV_H

#include <riscv_vector.h>
#include <string.h>

#include "rvv.h"

RVV_INLINE vuint32m4_t rvv_bits(vfloat32m4_t x)
{
	return __riscv_vreinterpret_v_f32m4_u32m4(x);
}

RVV_INLINE vfloat32m4_t rvv_floats(vuint32m4_t u)
{
	return __riscv_vreinterpret_v_u32m4_f32m4(u);
}

/* Drops the lowest `shift` bits, to nearest even. */
RVV_INLINE vuint32m4_t rvv_round_bits(vuint32m4_t mag, unsigned shift, size_t vl)
{
	vuint32m4_t odd = __riscv_vand_vx_u32m4(__riscv_vsrl_vx_u32m4(mag, shift, vl), 1, vl);

	mag = __riscv_vadd_vx_u32m4(__riscv_vadd_vv_u32m4(mag, odd, vl), (1u << (shift - 1)) - 1, vl);
	return __riscv_vsrl_vx_u32m4(mag, shift, vl);
}

/* Below 2^22 times `power` to the nearest integer. */
RVV_INLINE vuint32m4_t rvv_round_small(vuint32m4_t mag, float power, size_t vl)
{
	vfloat32m4_t x = __riscv_vfmul_vf_f32m4(rvv_floats(mag), power, vl);

	return __riscv_vand_vx_u32m4(rvv_bits(__riscv_vfadd_vf_f32m4(x, 0x1p23f, vl)), 0x7fffffu, vl);
}

RVV_INLINE vuint32m4_t rvv_to_bf16(vfloat32m4_t x, size_t vl)
{
	vuint32m4_t u = rvv_bits(x), top = __riscv_vsrl_vx_u32m4(u, 16, vl);
	vbool8_t nan = __riscv_vmfne_vv_f32m4_b8(x, x, vl);

	return __riscv_vor_vx_u32m4_mu(nan, rvv_round_bits(u, 16, vl), top, 0x40, vl);
}

RVV_INLINE vuint32m4_t rvv_to_f16(vfloat32m4_t x, size_t vl)
{
	vuint32m4_t u = rvv_bits(x), mag = __riscv_vand_vx_u32m4(u, 0x7fffffffu, vl);
	vuint32m4_t sign = __riscv_vand_vx_u32m4(__riscv_vsrl_vx_u32m4(u, 16, vl), 0x8000, vl);
	vuint32m4_t r = __riscv_vsub_vx_u32m4(rvv_round_bits(mag, 13, vl), 112u << 10, vl);
	vuint32m4_t payload = __riscv_vand_vx_u32m4(__riscv_vsrl_vx_u32m4(mag, 13, vl), 0x3ff, vl);

	r = __riscv_vmerge_vvm_u32m4(r, rvv_round_small(mag, 0x1p24f, vl),
				     __riscv_vmsltu_vx_u32m4_b8(mag, 0x38800000u, vl), vl);
	r = __riscv_vmerge_vxm_u32m4(r, 0x7c00, __riscv_vmsgtu_vx_u32m4_b8(mag, 0x477fefffu, vl), vl);
	r = __riscv_vor_vx_u32m4_mu(__riscv_vmsgtu_vx_u32m4_b8(mag, 0x7f800000u, vl), r, payload, 0x7e00, vl);
	return __riscv_vor_vv_u32m4(r, sign, vl);
}

/* e4m3 and e5m2: largest and smallest normal magnitude as f32 bits, mantissa, bias, NaN, 1 / denormal step. */
RVV_INLINE vuint32m4_t rvv_to_fp8(vfloat32m4_t x, uint32_t most, uint32_t least, unsigned shift, uint32_t rebias,
				  uint32_t nan, float power, size_t vl)
{
	vuint32m4_t u = rvv_bits(x), mag = __riscv_vand_vx_u32m4(u, 0x7fffffffu, vl);
	vuint32m4_t sign = __riscv_vand_vx_u32m4(__riscv_vsrl_vx_u32m4(u, 24, vl), 0x80, vl);
	vuint32m4_t sat = __riscv_vminu_vx_u32m4(mag, most, vl);
	vuint32m4_t r = __riscv_vsub_vx_u32m4(rvv_round_bits(sat, shift, vl), rebias, vl);

	r = __riscv_vmerge_vvm_u32m4(r, rvv_round_small(sat, power, vl), __riscv_vmsltu_vx_u32m4_b8(sat, least, vl),
				     vl);
	r = __riscv_vmerge_vxm_u32m4(r, nan, __riscv_vmsgtu_vx_u32m4_b8(mag, 0x7f800000u, vl), vl);
	return __riscv_vor_vv_u32m4(r, sign, vl);
}

RVV_INLINE vuint32m4_t rvv_to_e4m3(vfloat32m4_t x, size_t vl)
{
	return rvv_to_fp8(x, 0x43e00000u, 0x3c800000u, 20, 120u << 3, 0x7f, 0x1p9f, vl);
}

RVV_INLINE vuint32m4_t rvv_to_e5m2(vfloat32m4_t x, size_t vl)
{
	return rvv_to_fp8(x, 0x47600000u, 0x38800000u, 21, 112u << 2, 0x7e, 0x1p16f, vl);
}

RVV_INLINE vuint32m4_t rvv_to_int8(vfloat32m4_t x, size_t vl)
{
	vbool8_t nan = __riscv_vmfne_vv_f32m4_b8(x, x, vl);

	x = __riscv_vfmin_vf_f32m4(__riscv_vfmax_vf_f32m4(x, -127.0f, vl), 127.0f, vl);
	x = __riscv_vfmerge_vfm_f32m4(x, 0.0f, nan, vl);
	return __riscv_vsub_vx_u32m4(rvv_bits(__riscv_vfadd_vf_f32m4(x, 0x1.8p23f, vl)), 0x4b400000u, vl);
}

RVV_INLINE void rvv_store16(void *to, vuint32m4_t u, size_t vl)
{
	__riscv_vse16_v_u16m2(to, __riscv_vnsrl_wx_u16m2(u, 0, vl), vl);
}

RVV_INLINE void rvv_store8(void *to, vuint32m4_t u, size_t vl)
{
	__riscv_vse8_v_u8m1(to, __riscv_vnsrl_wx_u8m1(__riscv_vnsrl_wx_u16m2(u, 0, vl), 0, vl), vl);
}

#endif
