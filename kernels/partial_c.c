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
#include "scalar.h"

static struct attnd_partial *partial_at(const void *base, const struct attnd_kv_format *fmt, uint32_t i)
{
	return (struct attnd_partial *)((uintptr_t)base + (size_t)i * fmt->partial_bytes);
}

static bool is_empty(const struct attnd_partial *p)
{
	return p->m == -INFINITY && p->l == 0.0f;
}

void attnd_init_any_c(const struct attnd_kv_format *fmt, void *partial, uint32_t n)
{
	memset(partial, 0, (size_t)n * fmt->partial_bytes);
	for (uint32_t i = 0; i < n; i++)
		partial_at(partial, fmt, i)->m = -INFINITY;
}

static void merge_one(struct attnd_partial *d, const struct attnd_partial *s, uint32_t dims)
{
	float m = d->m > s->m ? d->m : s->m;
	/* Only a NaN score leaves m at -inf in a partial that is not empty. */
	float ref = m == -INFINITY ? 0.0f : m;
	float a = attnd_exp(d->m - ref), b = attnd_exp(s->m - ref);

	d->m = m;
	d->l = d->l * a + s->l * b;
	for (uint32_t i = 0; i < dims; i++)
		d->acc[i] = d->acc[i] * a + s->acc[i] * b;
}

void attnd_merge_any_c(const struct attnd_kv_format *fmt, void *dst, const void *src, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++) {
		struct attnd_partial *d = partial_at(dst, fmt, i);
		const struct attnd_partial *s = partial_at(src, fmt, i);

		if (is_empty(s))
			continue;
		if (is_empty(d))
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

/* The state with the sink's term added: row = acc / l'. Returns lse. */
static float finish_one(const struct attnd_partial *p, const float *sink, uint32_t dims, float *row)
{
	float m = p->m, l = p->l, a = 1.0f;

	if (is_empty(p)) {
		memset(row, 0, dims * sizeof(*row));
		return sink ? *sink : -INFINITY;
	}
	if (sink) {
		m = *sink > m ? *sink : m;
		a = m == -INFINITY ? 1.0f : attnd_exp(p->m - m);
		l = l * a + (m == -INFINITY ? 0.0f : attnd_exp(*sink - m));
	}
	for (uint32_t i = 0; i < dims; i++)
		row[i] = p->acc[i] * a / l;
	return (float)((double)m + log((double)l));
}

void attnd_finish_any_c(const struct attnd_kv_format *fmt, const void *partial, uint32_t n, const float *sinks,
			enum attnd_kdtype out_dtype, void *out, size_t out_head_stride, float *lse)
{
	float row[ATTND_K_MAX_DIM];

	for (uint32_t i = 0; i < n; i++) {
		float e =
			finish_one(partial_at(partial, fmt, i), sinks ? &sinks[i] : NULL, fmt->spec.head_dim_v, row);

		store_row(out_dtype, row, fmt->spec.head_dim_v, (char *)out + i * out_head_stride);
		if (lse)
			lse[i] = e;
	}
}
