/* SPDX-License-Identifier: Apache-2.0 */
/*
 * exp on vectors, and the template of a step's softmax.
 *
 * In:   WEIGHTS (function name), WEIGHT (type of a weight) and STORE(p, w, vl), which rounds and
 *       stores a vector of weights; attend_rvv.c includes this file without them, for exp alone.
 * Out:  WEIGHTS(): scores to weights in place; the partial's m and l.
 * Next: struct rvv_kind's `weights`; then the weights meet V.
 */
#ifndef ATTND_KERNELS_WEIGHTS_RVV_H
#define ATTND_KERNELS_WEIGHTS_RVV_H

#include <math.h>
#include <riscv_vector.h>
#include "partial.h"
#include "rvv.h"
#include "scalar.h"

/*
 * e^d for d <= 0.5. Relative error (4 + |d|) 2^-24 for results down to 2^-126 (docs/numerics.md),
 * below that the result is less than 2^-126; up to -138 (-inf too) it is 0 exactly; NaN stays NaN.
 *
 * u = d log2(e). 1.5 * 2^23 - u leaves n = round(-u) in the low bits of z; r = u + n is exact;
 * 2^r is a minimax polynomial of degree 5; n is subtracted from the exponent, saturating at 0. The
 * clamp compares bits: among unsigned numbers -inf is above -138 and NaN, whose sign arithmetic
 * leaves 0, below. A NaN's low bits are 0: it passes through the last step.
 */
#define RVV_EXP(LM)                                                                                                  \
	RVV_INLINE vfloat32m##LM##_t rvv_exp_m##LM(vfloat32m##LM##_t d, size_t vl)                                   \
	{                                                                                                            \
		vuint32m##LM##_t e = __riscv_vreinterpret_v_f32m##LM##_u32m##LM(d);                                  \
		e = __riscv_vminu_vx_u32m##LM(e, 0xc30a0000u, vl); /* -138 */                                        \
		d = __riscv_vfmul_vf_f32m##LM(__riscv_vreinterpret_v_u32m##LM##_f32m##LM(e), 0x1.715476p+0f, vl);    \
		vfloat32m##LM##_t z = __riscv_vfrsub_vf_f32m##LM(d, 0x1.8p23f, vl);                                  \
		vfloat32m##LM##_t r = __riscv_vfadd_vv_f32m##LM(d, __riscv_vfsub_vf_f32m##LM(z, 0x1.8p23f, vl), vl); \
		vfloat32m##LM##_t p = __riscv_vfmul_vf_f32m##LM(r, 0x1.5bd97cp-10f, vl);                             \
		p = __riscv_vfadd_vf_f32m##LM(p, 0x1.3ce8b2p-7f, vl);                                                \
		p = __riscv_vfmul_vv_f32m##LM(p, r, vl);                                                             \
		p = __riscv_vfadd_vf_f32m##LM(p, 0x1.c6b6dap-5f, vl);                                                \
		p = __riscv_vfmul_vv_f32m##LM(p, r, vl);                                                             \
		p = __riscv_vfadd_vf_f32m##LM(p, 0x1.ebf9c2p-3f, vl);                                                \
		p = __riscv_vfmul_vv_f32m##LM(p, r, vl);                                                             \
		p = __riscv_vfadd_vf_f32m##LM(p, 0x1.62e42ap-1f, vl);                                                \
		p = __riscv_vfmul_vv_f32m##LM(p, r, vl);                                                             \
		p = __riscv_vfadd_vf_f32m##LM(p, 1.0f, vl);                                                          \
		e = __riscv_vsll_vx_u32m##LM(__riscv_vreinterpret_v_f32m##LM##_u32m##LM(z), 23, vl);                 \
		e = __riscv_vssubu_vv_u32m##LM(__riscv_vreinterpret_v_f32m##LM##_u32m##LM(p), e, vl);                \
		return __riscv_vreinterpret_v_u32m##LM##_f32m##LM(e);                                                \
	}
RVV_EXP(4)
RVV_EXP(8)

/* Do the scores go to the weights without anything but the scale? */
static inline bool rvv_plain(const struct rvv_shape *shape, const struct rvv_query *q)
{
	return q->row->whole && shape->logit_cap <= 0.0f && q->slope == 0.0f && !shape->k_scales &&
	       shape->scale >= 0.0f;
}

/* The largest of n scores that is not NaN; -inf if there is none. */
RVV_INLINE float rvv_max(const float *s)
{
	size_t vl = __riscv_vsetvl_e32m8(RVV_STEP);
	vfloat32m8_t m = __riscv_vle32_v_f32m8(s, vl);

	for (size_t i = vl; i < RVV_STEP; i += vl)
		m = __riscv_vfmax_vv_f32m8(m, __riscv_vle32_v_f32m8(s + i, vl), vl);
	return __riscv_vfmv_f_s_f32m1_f32(
		__riscv_vfredmax_vs_f32m8_f32m1(m, __riscv_vfmv_s_f_f32m1(-INFINITY, 1), vl));
}

#endif

#ifdef WEIGHTS
/*
 * p = exp(s * scale - m) for all of the step, m the larger of the partial's and the step's
 * maximum. l adds them before the rounding of STORE. Only NaN scores leave m at -inf while
 * there are visible tokens: with 0 in its place they become NaN weights.
 */
static float WEIGHTS(const struct rvv_shape *shape, struct rvv_query *q)
{
	struct attnd_partial *part = q->partial;
	size_t vl = __riscv_vsetvl_e32m8(RVV_STEP);
	float scale = shape->scale, m, alpha = 1.0f, ref;
	WEIGHT *p = (WEIGHT *)q->scores;
	vfloat32m8_t sum = __riscv_vfmv_v_f_f32m8(0.0f, vl);

	if (rvv_plain(shape, q)) {
		m = rvv_max(q->scores) * scale;
	} else {
		m = attnd_rvv_shape_scores(shape, q);
		scale = 1.0f;
	}
	if (m > part->m) {
		alpha = attnd_exp(part->m - m);
		part->m = m;
	}
	ref = part->m == -INFINITY ? 0.0f : part->m;
	for (size_t i = 0; i < RVV_STEP; i += vl) {
		vfloat32m8_t w = __riscv_vfmul_vf_f32m8(__riscv_vle32_v_f32m8(q->scores + i, vl), scale, vl);

		w = rvv_exp_m8(__riscv_vfsub_vf_f32m8(w, ref, vl), vl);
		sum = __riscv_vfadd_vv_f32m8(sum, w, vl);
		STORE(p + i, w, vl);
	}
	part->l = part->l * alpha + __riscv_vfmv_f_s_f32m1_f32(__riscv_vfredusum_vs_f32m8_f32m1(
					    sum, __riscv_vfmv_s_f_f32m1(0.0f, 1), vl));
	return alpha;
}
#undef WEIGHTS
#undef WEIGHT
#undef STORE
#endif
