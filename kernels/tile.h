/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where the elements of a token stand inside a tile, for any layout and any packed parameters.
 *
 * In:   a format, a layer slice, a head and a slot.
 * Out:  a walk: runs of elements, `inner` of them at `istride`, `outer` runs at `ostride`.
 * Next: tile_c.c and attend_c.c step along it; the index formulas of kernels.h stand here once.
 */
#ifndef ATTND_KERNELS_TILE_H
#define ATTND_KERNELS_TILE_H

#include "kernels.h"

/* Element i of the padded dims is at base + (i / inner) * ostride + (i % inner) * istride (bytes). */
struct attnd_walk {
	char *base;
	uint32_t inner, outer;
	size_t istride, ostride;
};

static inline uint32_t attnd_div_up(uint32_t n, uint32_t by)
{
	return (n + by - 1) / by;
}

static inline struct attnd_walk attnd_walk_k(const struct attnd_kv_format *f, const void *block, uint32_t head,
					     uint32_t slot)
{
	size_t es = attnd_kdtype_bytes(f->spec.dtype);
	struct attnd_walk w = {.base = (char *)(uintptr_t)block, .istride = es};

	if (f->spec.layout != ATTND_K_PACKED) {
		w.base += slot * f->k_token_stride + head * f->k_head_stride;
		w.inner = f->spec.head_dim;
		w.outer = 1;
		return w;
	}
	w.inner = f->k_ilv;
	w.outer = attnd_div_up(f->spec.head_dim, f->k_ilv);
	w.ostride = (size_t)f->k_lanes * f->k_ilv * es;
	w.base += head * f->tile_bytes + slot / f->k_lanes * (w.outer * w.ostride) +
		  slot % f->k_lanes * (f->k_ilv * es);
	return w;
}

static inline struct attnd_walk attnd_walk_v(const struct attnd_kv_format *f, const void *block, uint32_t head,
					     uint32_t slot)
{
	size_t es = attnd_kdtype_bytes(f->spec.dtype);
	struct attnd_walk w = {.base = (char *)(uintptr_t)block + f->v_off, .istride = es};

	if (f->spec.layout != ATTND_K_PACKED) {
		w.base += slot * f->v_token_stride + head * f->v_head_stride;
		w.inner = f->spec.head_dim_v;
		w.outer = 1;
		return w;
	}
	w.inner = f->v_lanes;
	w.outer = attnd_div_up(f->spec.head_dim_v, f->v_lanes);
	w.istride = f->v_ilv * es;
	w.ostride = (size_t)f->v_lanes * f->spec.block_size * es;
	w.base +=
		head * f->tile_bytes + slot / f->v_ilv * ((size_t)f->v_lanes * f->v_ilv * es) + slot % f->v_ilv * es;
	return w;
}

/* A head's dynamic scales, one a slot. With v_in_k V's are K's. */
static inline float *attnd_tile_scales(const struct attnd_kv_format *f, const void *block, uint32_t head, size_t off)
{
	char *p = (char *)(uintptr_t)block + off;

	if (f->spec.layout == ATTND_K_PACKED)
		return (float *)(void *)(p + head * f->tile_bytes);
	return (float *)(void *)p + (size_t)head * f->spec.block_size;
}

#endif
