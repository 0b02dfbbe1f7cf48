/* SPDX-License-Identifier: Apache-2.0 */
/*
 * RVV kinds for f16 tiles with Zvfh: f32 += f16 * f16, exact products, or f16 widened to f32.
 *
 * In:   f16 q as it is and weights rounded to f16; other q and weights in f32.
 * Out:  attnd_attend_*_f16_rvvh.
 * Next: attend_rvv.c walks; registry.h lists them.
 */
#include <riscv_vector.h>
#include "rvv.h"
#include "registry.h"

#define WEIGHTS		weights_f16
#define WEIGHT		_Float16
#define STORE(p, w, vl) __riscv_vse16_v_f16m4(p, __riscv_vfncvt_f_f_w_f16m4(w, vl), vl)
#include "weights_rvv.h"

#define WEIGHTS		weights_f32
#define WEIGHT		float
#define STORE(p, w, vl) __riscv_vse32_v_f32m8(p, w, vl)
#include "weights_rvv.h"

#define NAME	     f16_m4
#define X	     _Float16
#define RAW	     vfloat16m2_t
#define LOAD(p, vl)  __riscv_vle16_v_f16m2((const _Float16 *)(p), vl)
#define RAW_BYTES    2
#define OPERAND	     vfloat16m2_t
#define OP0(raw, vl) (raw)
#define FMA	     __riscv_vfwmacc_vf_f32m4
#define WIDE	     vfloat16m8_t
#define GETS	     4
#define GET(w, j)    __riscv_vget_v_f16m8_f16m2(w, j)
#define AHEAD	     2
#define HALVES(p, q) __riscv_vcreate_v_f16m1_f16m2(*(const vfloat16m1_t *)(p), *(const vfloat16m1_t *)(q))
#include "tile_rvv.h"

#define NAME	     f16_m2
#define LM	     2
#define X	     _Float16
#define RAW	     vfloat16m1_t
#define LOAD(p, vl)  __riscv_vle16_v_f16m1((const _Float16 *)(p), vl)
#define RAW_BYTES    2
#define OPERAND	     vfloat16m1_t
#define OP0(raw, vl) (raw)
#define FMA	     __riscv_vfwmacc_vf_f32m2
#define WIDE	     vfloat16m8_t
#define GETS	     8
#define GET(w, j)    __riscv_vget_v_f16m8_f16m1(w, j)
#define AHEAD	     2
#include "tile_rvv.h"

#define NAME	     widened
#define RAW	     vfloat16m2_t
#define LOAD(p, vl)  __riscv_vle16_v_f16m2((const _Float16 *)(p), vl)
#define RAW_BYTES    2
#define OP0(raw, vl) __riscv_vfwcvt_f_f_v_f32m4(raw, vl)
#include "tile_rvv.h"

static const struct rvv_kind kind_f16 = {
	RVV_FULL_LOOPS(f16_m4, f16_m2),
	.qk_two = {f16_m4_qk_two_1, f16_m4_qk_two_2},
	.pv_two = {f16_m4_pv_two_1, f16_m4_pv_two_2},
	.weights = weights_f16,
	.x_bytes = 2,
};

static const struct rvv_kind kind_widened = {
	.qk_rows = RVV_EACH_R(widened_qk_rows),
	.pv_rows = RVV_EACH_R(widened_pv_rows),
	.weights = weights_f32,
	.x_bytes = 4,
};

void attnd_attend_f16_f16_rvvh(const struct attnd_attend_args *a)
{
	attnd_rvv_attend(a, &kind_f16);
}

void attnd_attend_f32_f16_rvvh(const struct attnd_attend_args *a)
{
	attnd_rvv_attend(a, &kind_widened);
}

void attnd_attend_bf16_f16_rvvh(const struct attnd_attend_args *a)
{
	attnd_rvv_attend(a, &kind_widened);
}
