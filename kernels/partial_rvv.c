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

static void merge_one(struct attnd_partial *d, const struct attnd_partial *s, size_t dims)
{
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
	for (uint32_t i = 0; i < n; i++) {
		struct attnd_partial *d = (void *)((char *)dst + (size_t)i * fmt->partial_bytes);
		const struct attnd_partial *s = (const void *)((const char *)src + (size_t)i * fmt->partial_bytes);

		if (attnd_partial_empty(s))
			continue;
		if (attnd_partial_empty(d))
			memcpy(d, s, fmt->partial_bytes);
		else
			merge_one(d, s, fmt->spec.head_dim_v);
	}
}

static void finish_row(enum attnd_kdtype type, const struct attnd_partial *p, float a, float l, size_t dims,
		       char *out)
{
	size_t es = attnd_kdtype_bytes(type);

	for (size_t i = 0, vl; i < dims; i += vl) {
		vl = __riscv_vsetvl_e32m4(dims - i);
		vfloat32m4_t x = __riscv_vfmul_vf_f32m4(__riscv_vle32_v_f32m4(p->acc + i, vl), a, vl);

		x = __riscv_vfdiv_vf_f32m4(x, l, vl);
		if (type == ATTND_K_F32)
			__riscv_vse32_v_f32m4((float *)(void *)out + i, x, vl);
		else
			rvv_store16(out + i * es, type == ATTND_K_F16 ? rvv_to_f16(x, vl) : rvv_to_bf16(x, vl), vl);
	}
}

void attnd_finish_any_rvv(const struct attnd_kv_format *fmt, const void *partial, uint32_t n, const float *sinks,
			  enum attnd_kdtype out_dtype, void *out, size_t out_head_stride, float *lse)
{
	uint32_t dims = fmt->spec.head_dim_v;

	for (uint32_t i = 0; i < n; i++) {
		const struct attnd_partial *p =
			(const void *)((const char *)partial + (size_t)i * fmt->partial_bytes);
		const float *sink = sinks ? &sinks[i] : NULL;
		char *row = (char *)out + i * out_head_stride;
		float a, l, e;

		if (attnd_partial_empty(p)) {
			e = attnd_partial_none(sink);
			memset(row, 0, (size_t)dims * attnd_kdtype_bytes(out_dtype));
		} else {
			e = attnd_partial_close(p, sink, &a, &l);
			finish_row(out_dtype, p, a, l, dims, row);
		}
		if (lse)
			lse[i] = e;
	}
}
