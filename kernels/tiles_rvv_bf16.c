/* SPDX-License-Identifier: Apache-2.0 */
/*
 * RVV kind for bf16 queries on bf16 tiles with Zvfbfwma: f32 += bf16 * bf16, exact products.
 *
 * In:   q as it is; weights rounded to bf16.
 * Out:  attnd_attend_bf16_bf16_rvvbf.
 * Next: attend_rvv.c walks; registry.h lists it.
 */
#include <riscv_vector.h>
#include "rvv.h"
#include "registry.h"

#define WEIGHTS		weights_bf16
#define WEIGHT		__bf16
#define STORE(p, w, vl) __riscv_vse16_v_bf16m4(p, __riscv_vfncvtbf16_f_f_w_bf16m4(w, vl), vl)
#include "weights_rvv.h"

#define NAME	     bf16_m4
#define X	     __bf16
#define RAW	     vbfloat16m2_t
#define LOAD(p, vl)  __riscv_vle16_v_bf16m2((const __bf16 *)(p), vl)
#define RAW_BYTES    2
#define OPERAND	     vbfloat16m2_t
#define OP0(raw, vl) (raw)
#define FMA	     __riscv_vfwmaccbf16_vf_f32m4
#define WIDE	     vbfloat16m8_t
#define GETS	     4
#define GET(w, j)    __riscv_vget_v_bf16m8_bf16m2(w, j)
#define AHEAD	     2
#define HALVES(p, q) __riscv_vcreate_v_bf16m1_bf16m2(*(const vbfloat16m1_t *)(p), *(const vbfloat16m1_t *)(q))
#include "tile_rvv.h"

#define NAME	     bf16_m2
#define LM	     2
#define X	     __bf16
#define RAW	     vbfloat16m1_t
#define LOAD(p, vl)  __riscv_vle16_v_bf16m1((const __bf16 *)(p), vl)
#define RAW_BYTES    2
#define OPERAND	     vbfloat16m1_t
#define OP0(raw, vl) (raw)
#define FMA	     __riscv_vfwmaccbf16_vf_f32m2
#define WIDE	     vbfloat16m8_t
#define GETS	     8
#define GET(w, j)    __riscv_vget_v_bf16m8_bf16m1(w, j)
#define AHEAD	     2
#include "tile_rvv.h"

static const struct rvv_kind kind = {
	RVV_FULL_LOOPS(bf16_m4, bf16_m2),
	.qk_two = {bf16_m4_qk_two_1, bf16_m4_qk_two_2},
	.pv_two = {bf16_m4_pv_two_1, bf16_m4_pv_two_2},
	.weights = weights_bf16,
	.x_bytes = 2,
};

void attnd_attend_bf16_bf16_rvvbf(const struct attnd_attend_args *a)
{
	attnd_rvv_attend(a, &kind);
}
