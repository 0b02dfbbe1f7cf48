/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Partials in portable C: the state that attend leaves, joined and finished.
 *
 * In:   partials of chunks (partial.h), sinks.
 * Out:  one partial of two; out rows and lse.
 * Next: daemon/exec.c writes them to the arena.
 */
#include "partial.h"
#include "registry.h"

void attnd_init_any_c(const struct attnd_kv_format *fmt, void *partial, uint32_t n)
{
	memset(partial, 0, (size_t)n * fmt->partial_bytes);
	for (uint32_t i = 0; i < n; i++)
		attnd_partial_at(partial, fmt, i)->m = -INFINITY;
}

static void merge_one(const struct attnd_kv_format *fmt, struct attnd_partial *d, const struct attnd_partial *s)
{
	float a, b;

	attnd_partial_join(d, s, &a, &b);
	for (uint32_t i = 0; i < fmt->spec.head_dim_v; i++)
		d->acc[i] = d->acc[i] * a + s->acc[i] * b;
}

void attnd_merge_any_c(const struct attnd_kv_format *fmt, void *dst, const void *src, uint32_t n)
{
	attnd_partials_merge(fmt, dst, src, n, merge_one);
}

static void store_row(enum attnd_kdtype type, const float *x, uint32_t n, void *out)
{
	if (type == ATTND_K_F32)
		memcpy(out, x, n * sizeof(float));
	else if (type == ATTND_K_F16)
		for (uint32_t i = 0; i < n; i++)
			((uint16_t *)out)[i] = attnd_to_f16(x[i]);
	else
		for (uint32_t i = 0; i < n; i++)
			((uint16_t *)out)[i] = attnd_to_bf16(x[i]);
}

static void finish_row(enum attnd_kdtype type, const struct attnd_partial *p, float a, float l, uint32_t dims,
		       void *out)
{
	float row[ATTND_K_MAX_DIM];

	for (uint32_t d = 0; d < dims; d++)
		row[d] = p->acc[d] * a / l;
	store_row(type, row, dims, out);
}

void attnd_finish_any_c(const struct attnd_kv_format *fmt, const void *partial, uint32_t n, const float *sinks,
			enum attnd_kdtype out_dtype, void *out, size_t out_head_stride, float *lse)
{
	attnd_partials_finish(fmt, partial, n, sinks, out_dtype, out, out_head_stride, lse, finish_row);
}
