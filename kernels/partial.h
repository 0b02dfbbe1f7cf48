/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A partial: softmax's state of one (row, query head) over the keys seen so far.
 *
 * In:   init makes it empty; attend continues it, step by step.
 * Out:  out = acc / l and lse = m + ln(l).
 * Next: merge joins two, finish turns one into out and lse (partial_c.c).
 *
 * acc = sum of exp(s_j - m) v_j and l = sum of exp(s_j - m) over the visible keys j. m is a
 * reference, in the natural-log domain after scale, cap and ALiBi: the running maximum, or (with
 * lazy rescaling) an older one. Empty is m = -inf and l = 0, with acc all 0.
 */
#ifndef ATTND_KERNELS_PARTIAL_H
#define ATTND_KERNELS_PARTIAL_H

#include <assert.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "kernels.h"
#include "scalar.h"

struct attnd_partial {
	float m, l;
	float pad[14];
	float acc[]; /* [head_dim_v], and padding up to 64 bytes that kernels may overwrite with finite values */
};
static_assert(offsetof(struct attnd_partial, acc) == 64, "acc starts a cache line");

static inline uint32_t attnd_partial_bytes(uint32_t head_dim_v)
{
	return 64 + (head_dim_v * 4 + 63) / 64 * 64;
}

static inline bool attnd_partial_empty(const struct attnd_partial *p)
{
	return p->m == -INFINITY && p->l == 0.0f;
}

/* m and l of d joined with s, neither of them empty; acc becomes d's * *a + s's * *b. */
static inline void attnd_partial_join(struct attnd_partial *d, const struct attnd_partial *s, float *a, float *b)
{
	float m = d->m > s->m ? d->m : s->m;
	/* Only a NaN score leaves m at -inf in a partial that is not empty. */
	float ref = m == -INFINITY ? 0.0f : m;

	*a = attnd_exp(d->m - ref);
	*b = attnd_exp(s->m - ref);
	d->m = m;
	d->l = d->l * *a + s->l * *b;
}

/* The sink's term added to a partial that is not empty: out = acc * *a / *l. Returns lse. */
static inline float attnd_partial_close(const struct attnd_partial *p, const float *sink, float *a, float *l)
{
	float m = p->m;

	*a = 1.0f;
	*l = p->l;
	if (sink) {
		m = *sink > m ? *sink : m;
		*a = m == -INFINITY ? 1.0f : attnd_exp(p->m - m);
		*l = *l * *a + (m == -INFINITY ? 0.0f : attnd_exp(*sink - m));
	}
	return (float)((double)m + log((double)*l));
}

static inline struct attnd_partial *attnd_partial_at(const void *base, const struct attnd_kv_format *fmt, uint32_t i)
{
	return (struct attnd_partial *)((uintptr_t)base + (size_t)i * fmt->partial_bytes);
}

/* What a kernel set's merge does with d and s, neither of them empty: m, l and acc. */
typedef void attnd_partial_merge_fn(const struct attnd_kv_format *fmt, struct attnd_partial *d,
				    const struct attnd_partial *s);
/* And its finish: acc * a / l of `dims` values as `type` at out. */
typedef void attnd_partial_row_fn(enum attnd_kdtype type, const struct attnd_partial *p, float a, float l,
				  uint32_t dims, void *out);

/* The loops of every kernel set's merge and finish, compiled into each with its own functions. */
static inline __attribute__((always_inline)) void attnd_partials_merge(const struct attnd_kv_format *fmt, void *dst,
								       const void *src, uint32_t n,
								       attnd_partial_merge_fn *merge)
{
	for (uint32_t i = 0; i < n; i++) {
		struct attnd_partial *d = attnd_partial_at(dst, fmt, i);
		const struct attnd_partial *s = attnd_partial_at(src, fmt, i);

		if (attnd_partial_empty(s))
			continue;
		if (attnd_partial_empty(d))
			memcpy(d, s, fmt->partial_bytes);
		else
			merge(fmt, d, s);
	}
}

static inline __attribute__((always_inline)) void attnd_partials_finish(const struct attnd_kv_format *fmt,
									const void *partial, uint32_t n,
									const float *sinks, enum attnd_kdtype type,
									void *out, size_t out_head_stride, float *lse,
									attnd_partial_row_fn *store)
{
	uint32_t dims = fmt->spec.head_dim_v;

	for (uint32_t i = 0; i < n; i++) {
		const struct attnd_partial *p = attnd_partial_at(partial, fmt, i);
		const float *sink = sinks ? &sinks[i] : NULL;
		char *row = (char *)out + i * out_head_stride;
		float a, l, e;

		if (attnd_partial_empty(p)) {
			e = sink ? *sink : -INFINITY;
			memset(row, 0, (size_t)dims * attnd_kdtype_bytes(type));
		} else {
			e = attnd_partial_close(p, sink, &a, &l);
			store(type, p, a, l, dims, row);
		}
		if (lse)
			lse[i] = e;
	}
}

#endif
