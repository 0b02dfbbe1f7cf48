/* SPDX-License-Identifier: Apache-2.0 */
/*
 * merge and finish: the template of partial_avx2.c and partial_avx512.c. The same arithmetic, and
 * so the same bits, as partial_c.c's.
 *
 * In:   VF and VU (vectors of LANES f32 and of their bits), and static functions:
 *       pick_less(a, b, x, y)    lane by lane a < b (signed) ? x : y
 *       store16, store_f16       the low halves of VU, or VF as f16, side by side
 * Out:  merge_one() and finish_row(), for the loops of partial.h.
 * Next: daemon/exec.c writes rows to the arena.
 */
#include "partial.h"

/* acc ends at a cache line: what pads it is finite and merged, too. */
static void merge_one(const struct attnd_kv_format *fmt, struct attnd_partial *d, const struct attnd_partial *s)
{
	size_t floats = (fmt->partial_bytes - offsetof(struct attnd_partial, acc)) / sizeof(float);
	float a, b;

	attnd_partial_join(d, s, &a, &b);
	for (size_t i = 0; i < floats; i += LANES) {
		VF *x = (VF *)(void *)(d->acc + i);

		*x = *x * a + *(const VF *)(const void *)(s->acc + i) * b;
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

static inline __attribute__((always_inline)) void store_all(enum attnd_kdtype type, const struct attnd_partial *p,
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

static void finish_row(enum attnd_kdtype type, const struct attnd_partial *p, float a, float l, uint32_t dims,
		       void *out)
{
	if (type == ATTND_K_F32)
		store_all(ATTND_K_F32, p, a, l, dims, out);
	else if (type == ATTND_K_F16)
		store_all(ATTND_K_F16, p, a, l, dims, out);
	else
		store_all(ATTND_K_BF16, p, a, l, dims, out);
}
