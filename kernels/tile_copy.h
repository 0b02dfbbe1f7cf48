/* SPDX-License-Identifier: Apache-2.0 */
/*
 * copy: the template of every ISA.
 *
 * In:   COPY_RUNS(dst, src, runs, pitch, bytes)     the first `bytes` of each run, `pitch` apart
 *       COPY_MIXED(dst, src, lanes, ilv, n, es)     the first n (below ilv) of each lane's ilv elements
 * Out:  copy_tiles(): slots [0, n) of heads, scales and flags included, of any layout.
 * Next: tile_c.c, tile_x86.h, rows_rvv.c; the daemon gives a sequence its own copy of a block.
 *
 * What the slots [0, n) of a tile hold is made of runs: of K all of its whole lane groups, and the
 * first tokens of each unit of the last one; of V a part of each strip, and the first elements of
 * each lane of the pair or four that is left.
 */
#include "tile_row.h"

static inline void copy_k(const struct attnd_kv_format *f, char *dst, const char *src, uint32_t n, uint32_t head)
{
	uint32_t unit = attnd_kdtype_bytes(f->spec.dtype) * f->k_ilv,
		 units = attnd_div_up(f->spec.head_dim, f->k_ilv);
	size_t pitch = (size_t)f->k_lanes * unit, whole = n / f->k_lanes * (units * pitch);
	size_t at = head * f->tile_bytes;

	memcpy(dst + at, src + at, whole);
	at += whole;
	if (n % f->k_lanes)
		COPY_RUNS(dst + at, src + at, units, pitch, n % f->k_lanes * unit);
}

static inline void copy_v(const struct attnd_kv_format *f, char *dst, const char *src, uint32_t n, uint32_t head)
{
	size_t es = attnd_kdtype_bytes(f->spec.dtype), strip = (size_t)f->v_lanes * f->spec.block_size * es;
	uint32_t strips = attnd_div_up(f->spec.head_dim_v, f->v_lanes), left = n % f->v_ilv;
	size_t at = head * f->tile_bytes + f->v_off, bytes = (size_t)(n - left) * f->v_lanes * es;

	if (bytes)
		COPY_RUNS(dst + at, src + at, strips, strip, bytes);
	for (uint32_t j = 0; left && j < strips; j++)
		COPY_MIXED(dst + at + j * strip + bytes, src + at + j * strip + bytes, f->v_lanes, f->v_ilv, left,
			   es);
}

static inline void copy_rows(const struct attnd_kv_format *f, char *dst, const char *src, uint32_t n, uint32_t head)
{
	size_t es = attnd_kdtype_bytes(f->spec.dtype), k = head * f->k_head_stride;
	size_t v = f->v_off + head * f->v_head_stride;

	COPY_RUNS(dst + k, src + k, n, f->k_token_stride, f->spec.head_dim * es);
	if (!f->spec.v_in_k)
		COPY_RUNS(dst + v, src + v, n, f->v_token_stride, f->spec.head_dim_v * es);
}

static inline void copy_scales(const struct attnd_kv_format *f, void *dst, const void *src, uint32_t n, uint32_t head)
{
	memcpy(attnd_tile_scales(f, dst, head, f->k_scale_off), attnd_tile_scales(f, src, head, f->k_scale_off),
	       n * sizeof(float));
	if (!f->spec.v_in_k)
		memcpy(attnd_tile_scales(f, dst, head, f->v_scale_off),
		       attnd_tile_scales(f, src, head, f->v_scale_off), n * sizeof(float));
}

static void copy_tiles(const struct attnd_kv_format *f, void *dst, uint8_t *dst_flags, const void *src,
		       const uint8_t *src_flags, uint32_t n, uint32_t head, uint32_t num_heads)
{
	for (uint32_t h = head; h < head + num_heads; h++) {
		if (__atomic_load_n(&src_flags[h], __ATOMIC_RELAXED))
			attnd_set_flag(&dst_flags[h]);
		if (f->spec.layout == ATTND_K_PACKED) {
			copy_k(f, dst, src, n, h);
			if (!f->spec.v_in_k)
				copy_v(f, dst, src, n, h);
		} else {
			copy_rows(f, dst, src, n, h);
		}
		if (f->spec.scale == ATTND_K_SCALE_DYNAMIC)
			copy_scales(f, dst, src, n, h);
	}
}
