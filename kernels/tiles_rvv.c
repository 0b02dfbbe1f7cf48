/* SPDX-License-Identifier: Apache-2.0 */
/*
 * RVV kinds that need no extension: everything is multiplied as f32.
 *
 * In:   tiles of any dtype; q widened to f32; weights in f32.
 * Out:  attnd_attend_*_rvv, and attnd_attend_{f32,f16}_bf16_rvvbf for unpaired bf16.
 * Next: attend_rvv.c walks; registry.h lists them.
 *
 * bf16 without Zvfbfwma stands in pairs: a 32-bit word holds dims (V: tokens) 2i and 2i + 1, and a
 * shift and a mask make an f32 of each.
 *
 * f16 and fp8 become f32 by moving exponent and mantissa into place and multiplying with a power
 * of two, which makes denormals right, too. That reads Inf and NaN as finite: tiles flagged as
 * holding such values are read by a second, checking kind.
 */
#include <riscv_vector.h>
#include <string.h>
#include "rvv.h"
#include "registry.h"

/* ---- Weights ---- */

#define WEIGHTS		weights_f32
#define WEIGHT		float
#define STORE(p, w, vl) __riscv_vse32_v_f32m8(p, w, vl)
#include "weights_rvv.h"

/* V's scale goes into the weights; an invisible token's may be NaN. */
RVV_INLINE vfloat32m8_t scale_weights(vfloat32m8_t w, const struct rvv_shape *shape, const struct rvv_query *q,
				      size_t i, size_t vl)
{
	const uint8_t *bits = (const uint8_t *)q->row->visible + i / 8;

	if (!shape->v_scales)
		return __riscv_vfmul_vf_f32m8(w, shape->v_scale, vl);
	w = __riscv_vfmul_vv_f32m8(w, __riscv_vle32_v_f32m8(shape->v_scales + i, vl), vl);
	return __riscv_vfmerge_vfm_f32m8(w, 0.0f, __riscv_vmnot_m_b4(__riscv_vlm_v_b4(bits, vl), vl), vl);
}

#define WEIGHTS		weights_scaled
#define WEIGHT		float
#define STORE(p, w, vl) __riscv_vse32_v_f32m8(p, scale_weights(w, shape, q, i, vl), vl)
#include "weights_rvv.h"

/* ---- Elements to f32 ---- */

#define F(u) __riscv_vreinterpret_v_u32m4_f32m4(u)
#define U(x) __riscv_vreinterpret_v_f32m4_u32m4(x)

RVV_INLINE vuint32m4_t sign_extended(vuint16m2_t h, size_t vl)
{
	return __riscv_vreinterpret_v_i32m4_u32m4(__riscv_vsext_vf2_i32m4(__riscv_vreinterpret_v_u16m2_i16m2(h), vl));
}

RVV_INLINE vuint32m4_t sign_extended_byte(vuint8m1_t b, size_t vl)
{
	return __riscv_vreinterpret_v_i32m4_u32m4(__riscv_vsext_vf4_i32m4(__riscv_vreinterpret_v_u8m1_i8m1(b), vl));
}

/* A sign-extended number of few bits to f32: its fields shifted up, the copies of the sign cut. */
RVV_INLINE vfloat32m4_t placed(vuint32m4_t u, unsigned shift, uint32_t mask, float power, size_t vl)
{
	u = __riscv_vand_vx_u32m4(__riscv_vsll_vx_u32m4(u, shift, vl), mask, vl);
	return __riscv_vfmul_vf_f32m4(F(u), power, vl);
}

/* What `placed` read as |x| >= limit was not finite: or `bits` to it. */
RVV_INLINE vfloat32m4_t checked(vfloat32m4_t x, float limit, uint32_t bits, size_t vl)
{
	vbool8_t odd = __riscv_vmfge_vf_f32m4_b8(__riscv_vfabs_v_f32m4(x, vl), limit, vl);

	return F(__riscv_vor_vx_u32m4_mu(odd, U(x), U(x), bits, vl));
}

RVV_INLINE vfloat32m4_t from_bf16(vuint16m2_t h, size_t vl)
{
	return F(__riscv_vsll_vx_u32m4(__riscv_vzext_vf2_u32m4(h, vl), 16, vl));
}

RVV_INLINE vfloat32m4_t from_f16(vuint16m2_t h, size_t vl)
{
	return placed(sign_extended(h, vl), 13, 0x8fffe000u, 0x1p112f, vl);
}

RVV_INLINE vfloat32m4_t from_f16_checked(vuint16m2_t h, size_t vl)
{
	return checked(from_f16(h, vl), 0x1p16f, 0x7f800000u, vl);
}

RVV_INLINE vfloat32m4_t from_int8(vuint8m1_t b, size_t vl)
{
	return __riscv_vfwcvt_f_x_v_f32m4(__riscv_vsext_vf2_i16m2(__riscv_vreinterpret_v_u8m1_i8m1(b), vl), vl);
}

RVV_INLINE vfloat32m4_t from_e4m3(vuint8m1_t b, size_t vl)
{
	return placed(sign_extended_byte(b, vl), 20, 0x87f00000u, 0x1p120f, vl);
}

RVV_INLINE vfloat32m4_t from_e4m3_checked(vuint8m1_t b, size_t vl)
{
	return checked(from_e4m3(b, vl), 480.0f, 0x7fc00000u, vl);
}

RVV_INLINE vfloat32m4_t from_e5m2(vuint8m1_t b, size_t vl)
{
	return placed(sign_extended_byte(b, vl), 21, 0x8fe00000u, 0x1p112f, vl);
}

RVV_INLINE vfloat32m4_t from_e5m2_checked(vuint8m1_t b, size_t vl)
{
	return checked(from_e5m2(b, vl), 0x1p16f, 0x7f800000u, vl);
}

/* q to f32, once for a step. */
#define WIDEN(from)                                                                   \
	for (size_t i = 0, vl; i < n; i += vl) {                                      \
		vl = __riscv_vsetvl_e16m2(n - i);                                     \
		vuint16m2_t h = __riscv_vle16_v_u16m2((const uint16_t *)src + i, vl); \
		__riscv_vse32_v_f32m4(dst + i, from(h, vl), vl);                      \
	}

void attnd_rvv_widen(enum attnd_kdtype type, const void *src, size_t n, float *dst)
{
	if (type == ATTND_K_F32)
		memcpy(dst, src, n * sizeof(*dst));
	else if (type == ATTND_K_BF16)
		WIDEN(from_bf16)
	else
		WIDEN(from_f16_checked)
}

/* ---- Loops ---- */

#define NAME	     f32_m4
#define RAW	     vfloat32m4_t
#define LOAD(p, vl)  __riscv_vle32_v_f32m4((const float *)(p), vl)
#define RAW_BYTES    4
#define OP0(raw, vl) (raw)
#define WIDE	     vfloat32m8_t
#define GETS	     2
#define GET(w, j)    __riscv_vget_v_f32m8_f32m4(w, j)
#define AHEAD	     2
#define HALVES(p, q) __riscv_vcreate_v_f32m2_f32m4(*(const vfloat32m2_t *)(p), *(const vfloat32m2_t *)(q))
#include "tile_rvv.h"

#define NAME	     f32_m2
#define LM	     2
#define RAW	     vfloat32m2_t
#define LOAD(p, vl)  __riscv_vle32_v_f32m2((const float *)(p), vl)
#define RAW_BYTES    4
#define OP0(raw, vl) (raw)
#define WIDE	     vfloat32m8_t
#define GETS	     4
#define GET(w, j)    __riscv_vget_v_f32m8_f32m2(w, j)
#define AHEAD	     2
#include "tile_rvv.h"

#define NAME	     pairs_m4
#define RAW	     vuint32m4_t
#define LOAD(p, vl)  __riscv_vle32_v_u32m4((const uint32_t *)(p), vl)
#define RAW_BYTES    4
#define OPS	     2
#define OP0(raw, vl) __riscv_vreinterpret_v_u32m4_f32m4(__riscv_vsll_vx_u32m4(raw, 16, vl))
#define OP1(raw, vl) __riscv_vreinterpret_v_u32m4_f32m4(__riscv_vand_vx_u32m4(raw, 0xffff0000u, vl))
#define WIDE	     vuint32m8_t
#define GETS	     2
#define GET(w, j)    __riscv_vget_v_u32m8_u32m4(w, j)
#define AHEAD	     1
#define HALVES(p, q) __riscv_vcreate_v_u32m2_u32m4(*(const vuint32m2_t *)(p), *(const vuint32m2_t *)(q))
#include "tile_rvv.h"

#define NAME	     pairs_m2
#define LM	     2
#define RAW	     vuint32m2_t
#define LOAD(p, vl)  __riscv_vle32_v_u32m2((const uint32_t *)(p), vl)
#define RAW_BYTES    4
#define OPS	     2
#define OP0(raw, vl) __riscv_vreinterpret_v_u32m2_f32m2(__riscv_vsll_vx_u32m2(raw, 16, vl))
#define OP1(raw, vl) __riscv_vreinterpret_v_u32m2_f32m2(__riscv_vand_vx_u32m2(raw, 0xffff0000u, vl))
#define WIDE	     vuint32m8_t
#define GETS	     4
#define GET(w, j)    __riscv_vget_v_u32m8_u32m2(w, j)
#define AHEAD	     1
#include "tile_rvv.h"

/* The rest has one row loop: the widening, not the load, is what it costs. */
#define LOAD16(p, vl) __riscv_vle16_v_u16m2((const uint16_t *)(p), vl)
#define LOAD8(p, vl)  __riscv_vle8_v_u8m1((const uint8_t *)(p), vl)

#define NAME	      bf16
#define RAW	      vuint16m2_t
#define LOAD	      LOAD16
#define RAW_BYTES     2
#define OP0	      from_bf16
#include "tile_rvv.h"

#define NAME	  f16
#define RAW	  vuint16m2_t
#define LOAD	  LOAD16
#define RAW_BYTES 2
#define OP0	  from_f16
#include "tile_rvv.h"

#define NAME	  f16_checked
#define RAW	  vuint16m2_t
#define LOAD	  LOAD16
#define RAW_BYTES 2
#define OP0	  from_f16_checked
#include "tile_rvv.h"

#define NAME	  int8
#define RAW	  vuint8m1_t
#define LOAD	  LOAD8
#define RAW_BYTES 1
#define OP0	  from_int8
#include "tile_rvv.h"

#define NAME	  e4m3
#define RAW	  vuint8m1_t
#define LOAD	  LOAD8
#define RAW_BYTES 1
#define OP0	  from_e4m3
#include "tile_rvv.h"

#define NAME	  e4m3_checked
#define RAW	  vuint8m1_t
#define LOAD	  LOAD8
#define RAW_BYTES 1
#define OP0	  from_e4m3_checked
#include "tile_rvv.h"

#define NAME	  e5m2
#define RAW	  vuint8m1_t
#define LOAD	  LOAD8
#define RAW_BYTES 1
#define OP0	  from_e5m2
#include "tile_rvv.h"

#define NAME	  e5m2_checked
#define RAW	  vuint8m1_t
#define LOAD	  LOAD8
#define RAW_BYTES 1
#define OP0	  from_e5m2_checked
#include "tile_rvv.h"

/* ---- Kinds and kernels ---- */

static const struct rvv_kind kind_f32 = {
	RVV_FULL_LOOPS(f32_m4, f32_m2),
	.qk_two = {f32_m4_qk_two_1, f32_m4_qk_two_2},
	.pv_two = {f32_m4_pv_two_1, f32_m4_pv_two_2},
	.weights = weights_f32,
	.x_bytes = 4,
};

static const struct rvv_kind kind_pairs = {
	RVV_FULL_LOOPS(pairs_m4, pairs_m2),
	.qk_two = {pairs_m4_qk_two_1},
	.pv_two = {pairs_m4_pv_two_1},
	.weights = weights_f32,
	.x_bytes = 4,
};

#define WIDENING(name, weights_fn, checked_kind)       \
	static const struct rvv_kind kind_##name = {   \
		.qk_rows = RVV_EACH_R(name##_qk_rows), \
		.pv_rows = RVV_EACH_R(name##_pv_rows), \
		.weights = weights_fn,                 \
		.x_bytes = 4,                          \
		.checked = checked_kind,               \
	}

WIDENING(bf16, weights_f32, NULL);
WIDENING(f16_checked, weights_f32, NULL);
WIDENING(f16, weights_f32, &kind_f16_checked);
WIDENING(int8, weights_scaled, NULL);
WIDENING(e4m3_checked, weights_scaled, NULL);
WIDENING(e4m3, weights_scaled, &kind_e4m3_checked);
WIDENING(e5m2_checked, weights_scaled, NULL);
WIDENING(e5m2, weights_scaled, &kind_e5m2_checked);

#define ATTEND(types, suffix, kind)                                             \
	void attnd_attend_##types##_##suffix(const struct attnd_attend_args *a) \
	{                                                                       \
		attnd_rvv_attend(a, &kind);                                     \
	}
#define ATTEND_EACH_Q(kv, kind)     \
	ATTEND(f32_##kv, rvv, kind) \
	ATTEND(f16_##kv, rvv, kind) \
	ATTEND(bf16_##kv, rvv, kind)

ATTEND_EACH_Q(f32, kind_f32)
ATTEND_EACH_Q(bf16, kind_pairs)
ATTEND_EACH_Q(f16, kind_f16)
ATTEND_EACH_Q(int8, kind_int8)
ATTEND_EACH_Q(e4m3, kind_e4m3)
ATTEND_EACH_Q(e5m2, kind_e5m2)
ATTEND(f32_bf16, rvvbf, kind_bf16)
ATTEND(f16_bf16, rvvbf, kind_bf16)
