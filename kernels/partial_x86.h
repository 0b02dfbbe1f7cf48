/* SPDX-License-Identifier: Apache-2.0 */
/*
 * merge and finish: the template of partial_avx2.c and partial_avx512.c. The same arithmetic, and
 * so the same bits, as partial_c.c's.
 *
 * In:   VF and VU (vectors of LANES f32 and of their bits), and static functions:
 *       pick_less(a, b, x, y)    lane by lane a < b (signed) ? x : y
 *       store16, store_f16       the low halves of VU, or VF as f16, side by side
 * Out:  merge_partials() and finish_partials().
 * Next: daemon/exec.c writes rows to the arena.
 */
#include "kernels.h"
#include "partial.h"

static void merge_one(struct attnd_partial *d, const struct attnd_partial *s, size_t floats)
{
	float a, b;

	attnd_partial_join(d, s, &a, &b);
	for (size_t i = 0; i < floats; i += LANES) {
		VF *x = (VF *)(void *)(d->acc + i);

		*x = *x * a + *(const VF *)(const void *)(s->acc + i) * b;
	}
}

/* acc ends at a cache line: what pads it is finite and merged, too. */
static void merge_partials(const struct attnd_kv_format *fmt, void *dst, const void *src, uint32_t n)
{
	size_t floats = (fmt->partial_bytes - offsetof(struct attnd_partial, acc)) / sizeof(float);

	for (uint32_t i = 0; i < n; i++) {
		struct attnd_partial *d = (void *)((char *)dst + (size_t)i * fmt->partial_bytes);
		const struct attnd_partial *s = (const void *)((const char *)src + (size_t)i * fmt->partial_bytes);

		if (attnd_partial_empty(s))
			continue;
		if (attnd_partial_empty(d))
			memcpy(d, s, fmt->partial_bytes);
		else
			merge_one(d, s, floats);
	}
}

/* scalar.h's, NaN too. */
static inline __attribute__((always_inline)) VU to_bf16(VF x)
{
	VU u = (VU)x, rounded = (u + 0x7fff + ((u >> 16) & 1)) >> 16;

	return pick_less((VU){0} + 0x7f800000u, u & 0x7fffffffu, (u >> 16) | 0x40, rounded);
}

static inline __attribute__((always_inline)) void store_out(enum attnd_kdtype type, void *to, VF x)
{
	if (type == ATTND_K_F32)
		memcpy(to, &x, sizeof(x));
	else if (type == ATTND_K_F16)
		store_f16(to, x);
	else
		store16(to, to_bf16(x));
}

static inline __attribute__((always_inline)) void finish_row(enum attnd_kdtype type, const struct attnd_partial *p,
							     float a, float l, uint32_t dims, char *out)
{
	uint32_t es = attnd_kdtype_bytes(type), d = 0;
	char last[sizeof(VF)];

	for (; d + LANES <= dims; d += LANES)
		store_out(type, out + d * es, *(const VF *)(const void *)(p->acc + d) * a / l);
	if (d < dims) {
		store_out(type, last, *(const VF *)(const void *)(p->acc + d) * a / l);
		memcpy(out + d * es, last, (dims - d) * es);
	}
}

static void finish_partials(const struct attnd_kv_format *fmt, const void *partial, uint32_t n, const float *sinks,
			    enum attnd_kdtype type, void *out, size_t out_head_stride, float *lse)
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
			memset(row, 0, (size_t)dims * attnd_kdtype_bytes(type));
		} else {
			e = attnd_partial_close(p, sink, &a, &l);
			if (type == ATTND_K_F32)
				finish_row(ATTND_K_F32, p, a, l, dims, row);
			else if (type == ATTND_K_F16)
				finish_row(ATTND_K_F16, p, a, l, dims, row);
			else
				finish_row(ATTND_K_BF16, p, a, l, dims, row);
		}
		if (lse)
			lse[i] = e;
	}
}
