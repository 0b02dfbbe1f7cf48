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

static struct attnd_partial *partial_at(const void *base, const struct attnd_kv_format *fmt, uint32_t i)
{
	return (struct attnd_partial *)((uintptr_t)base + (size_t)i * fmt->partial_bytes);
}

void attnd_init_any_c(const struct attnd_kv_format *fmt, void *partial, uint32_t n)
{
	memset(partial, 0, (size_t)n * fmt->partial_bytes);
	for (uint32_t i = 0; i < n; i++)
		partial_at(partial, fmt, i)->m = -INFINITY;
}

static void merge_one(struct attnd_partial *d, const struct attnd_partial *s, uint32_t dims)
{
	float a, b;

	attnd_partial_join(d, s, &a, &b);
	for (uint32_t i = 0; i < dims; i++)
		d->acc[i] = d->acc[i] * a + s->acc[i] * b;
}

void attnd_merge_any_c(const struct attnd_kv_format *fmt, void *dst, const void *src, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++) {
		struct attnd_partial *d = partial_at(dst, fmt, i);
		const struct attnd_partial *s = partial_at(src, fmt, i);

		if (attnd_partial_empty(s))
			continue;
		if (attnd_partial_empty(d))
			memcpy(d, s, fmt->partial_bytes);
		else
			merge_one(d, s, fmt->spec.head_dim_v);
	}
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

void attnd_finish_any_c(const struct attnd_kv_format *fmt, const void *partial, uint32_t n, const float *sinks,
			enum attnd_kdtype out_dtype, void *out, size_t out_head_stride, float *lse)
{
	uint32_t dims = fmt->spec.head_dim_v;
	float row[ATTND_K_MAX_DIM];

	for (uint32_t i = 0; i < n; i++) {
		const struct attnd_partial *p = partial_at(partial, fmt, i);
		const float *sink = sinks ? &sinks[i] : NULL;
		float a, l, e;

		if (attnd_partial_empty(p)) {
			e = attnd_partial_none(sink);
			memset(row, 0, dims * sizeof(*row));
		} else {
			e = attnd_partial_close(p, sink, &a, &l);
			for (uint32_t d = 0; d < dims; d++)
				row[d] = p->acc[d] * a / l;
		}
		store_row(out_dtype, row, dims, (char *)out + i * out_head_stride);
		if (lse)
			lse[i] = e;
	}
}
