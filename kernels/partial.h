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
#include <stddef.h>
#include <stdint.h>

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

#endif
