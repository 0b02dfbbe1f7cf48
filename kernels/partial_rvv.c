/* SPDX-License-Identifier: Apache-2.0 */
/*
 * merge and finish on RVV 1.0: the same arithmetic, and so the same bits, as partial_c.c's.
 *
 * In:   partials of chunks (partial.h), sinks.
 * Out:  one partial of two; out rows and lse.
 * Next: daemon/exec.c writes them to the arena.
 */
#include "convert_rvv.h"
#include "partial.h"
#include "registry.h"

static void merge_one(const struct attnd_kv_format *fmt, struct attnd_partial *d, const struct attnd_partial *s)
{
	size_t dims = fmt->spec.head_dim_v;
	float a, b;

	attnd_partial_join(d, s, &a, &b);
	for (size_t i = 0, vl; i < dims; i += vl) {
		vl = __riscv_vsetvl_e32m8(dims - i);
		vfloat32m8_t x = __riscv_vfmul_vf_f32m8(__riscv_vle32_v_f32m8(d->acc + i, vl), a, vl);
		vfloat32m8_t y = __riscv_vfmul_vf_f32m8(__riscv_vle32_v_f32m8(s->acc + i, vl), b, vl);

		__riscv_vse32_v_f32m8(d->acc + i, __riscv_vfadd_vv_f32m8(x, y, vl), vl);
	}
}

void attnd_merge_any_rvv(const struct attnd_kv_format *fmt, void *dst, const void *src, uint32_t n)
{
	attnd_partials_merge(fmt, dst, src, n, merge_one);
}

static void finish_row(enum attnd_kdtype type, const struct attnd_partial *p, float a, float l, uint32_t dims,
		       void *out)
{
	size_t es = attnd_kdtype_bytes(type);

	for (size_t i = 0, vl; i < dims; i += vl) {
		vl = __riscv_vsetvl_e32m4(dims - i);
		vfloat32m4_t x = __riscv_vfmul_vf_f32m4(__riscv_vle32_v_f32m4(p->acc + i, vl), a, vl);

		x = __riscv_vfdiv_vf_f32m4(x, l, vl);
		if (type == ATTND_K_F32)
			__riscv_vse32_v_f32m4((float *)out + i, x, vl);
		else
			rvv_store16((char *)out + i * es,
				    type == ATTND_K_F16 ? rvv_to_f16(x, vl) : rvv_to_bf16(x, vl), vl);
	}
}

void attnd_finish_any_rvv(const struct attnd_kv_format *fmt, const void *partial, uint32_t n, const float *sinks,
			  enum attnd_kdtype out_dtype, void *out, size_t out_head_stride, float *lse)
{
	attnd_partials_finish(fmt, partial, n, sinks, out_dtype, out, out_head_stride, lse, finish_row);
}
