/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One row of one head between the type that a job brings and the one that a tile stores.
 *
 * In:   elements of a row.
 * Out:  f32; the stored type, its dynamic scale; is all of it finite?; the tile's flag.
 * Next: tile_c.c; other ISAs' writes, for rows that are not finite, so that their bits are the same.
 *
 * Rule: a flag is set before the data that it warns of, with a release fence between; attend
 * reads data, then an acquire fence, then the flag.
 */
#ifndef ATTND_KERNELS_TILE_ROW_H
#define ATTND_KERNELS_TILE_ROW_H

#include "kernels.h"
#include "scalar.h"
#include "tile.h"

static inline void attnd_row_to_f32(enum attnd_kdtype type, const void *src, uint32_t n, float *x)
{
	if (type == ATTND_K_F32)
		memcpy(x, src, n * sizeof(float));
	else if (type == ATTND_K_F16)
		for (uint32_t i = 0; i < n; i++)
			x[i] = attnd_from_f16(((const uint16_t *)src)[i]);
	else
		for (uint32_t i = 0; i < n; i++)
			x[i] = attnd_from_bf16(((const uint16_t *)src)[i]);
}

static inline bool attnd_floats_finite(const float *x, uint32_t n)
{
	uint32_t worst = 0;

	for (uint32_t i = 0; i < n; i++) {
		uint32_t mag = attnd_bits(x[i]) & 0x7fffffffu;

		worst = worst > mag ? worst : mag;
	}
	return worst < 0x7f800000u;
}

static inline bool attnd_halves_finite(const uint16_t *x, uint32_t n, uint16_t infinity)
{
	uint16_t worst = 0;

	for (uint32_t i = 0; i < n; i++) {
		uint16_t mag = x[i] & 0x7fff;

		worst = worst > mag ? worst : mag;
	}
	return worst < infinity;
}

static inline bool attnd_bytes_finite(const uint8_t *x, uint32_t n, uint8_t first)
{
	uint8_t worst = 0;

	for (uint32_t i = 0; i < n; i++) {
		uint8_t mag = x[i] & 0x7f;

		worst = worst > mag ? worst : mag;
	}
	return worst < first;
}

static inline bool attnd_row_finite(enum attnd_kdtype type, const void *row, uint32_t n)
{
	switch (type) {
	case ATTND_K_F32:
		return attnd_floats_finite(row, n);
	case ATTND_K_F16:
		return attnd_halves_finite(row, n, 0x7c00);
	case ATTND_K_BF16:
		return attnd_halves_finite(row, n, 0x7f80);
	case ATTND_K_FP8_E4M3:
		return attnd_bytes_finite(row, n, 0x7f);
	case ATTND_K_FP8_E5M2:
		return attnd_bytes_finite(row, n, 0x7c);
	case ATTND_K_INT8:
	case ATTND_K_DTYPES:
		break;
	}
	return true;
}

/*
 * A copy of a row that needs no conversion, and whether it is finite: the copy is looked at, so that
 * what is checked is what is stored, whatever the client does to its memory meanwhile.
 */
static inline bool attnd_row_take(enum attnd_kdtype type, const void *restrict row, uint32_t n, void *restrict dst)
{
	memcpy(dst, row, n * attnd_kdtype_bytes(type));
	__asm__ volatile("" : : "r"(dst) : "memory"); /* nor does the compiler look at the row again */
	return attnd_row_finite(type, dst, n);
}

/* max(max|x|, 1e-7) / 127, or NaN. */
static inline float attnd_dynamic_scale(const float *x, uint32_t n)
{
	float most = 1e-7f;

	if (!attnd_floats_finite(x, n))
		return NAN;
	for (uint32_t i = 0; i < n; i++)
		most = fabsf(x[i]) > most ? fabsf(x[i]) : most;
	return most / 127.0f;
}

/* With a NaN scale every element is 0. */
static inline void attnd_row_from_f32(enum attnd_kdtype type, const float *x, uint32_t n, float scale, void *dst)
{
	switch (type) {
	case ATTND_K_F32:
		memcpy(dst, x, n * sizeof(float));
		break;
	case ATTND_K_F16:
		for (uint32_t i = 0; i < n; i++)
			((uint16_t *)dst)[i] = attnd_to_f16(x[i]);
		break;
	case ATTND_K_BF16:
		for (uint32_t i = 0; i < n; i++)
			((uint16_t *)dst)[i] = attnd_to_bf16(x[i]);
		break;
	case ATTND_K_INT8:
		for (uint32_t i = 0; i < n; i++)
			((int8_t *)dst)[i] = attnd_to_int8(x[i] / scale);
		break;
	case ATTND_K_FP8_E4M3:
		for (uint32_t i = 0; i < n; i++)
			((uint8_t *)dst)[i] = attnd_to_e4m3(x[i] / scale);
		break;
	case ATTND_K_FP8_E5M2:
		for (uint32_t i = 0; i < n; i++)
			((uint8_t *)dst)[i] = attnd_to_e5m2(x[i] / scale);
		break;
	case ATTND_K_DTYPES:
		break;
	}
}

static inline void attnd_set_flag(uint8_t *flag)
{
	__atomic_store_n(flag, 1, __ATOMIC_RELAXED);
	__atomic_thread_fence(__ATOMIC_RELEASE);
}

/*
 * A row into the stored type, from another one. With dynamic scales *scale is found here, else it
 * is given. Is what will be stored finite?
 */
static inline bool attnd_row_convert(enum attnd_kdtype in, enum attnd_kdtype type, const void *src, uint32_t n,
				     bool dynamic, float *scale, void *dst)
{
	float x[ATTND_K_MAX_DIM];

	attnd_row_to_f32(in, src, n, x);
	if (dynamic)
		*scale = attnd_dynamic_scale(x, n);
	attnd_row_from_f32(type, x, n, *scale, dst);
	return attnd_row_finite(type, dst, n) && (!dynamic || isfinite(*scale));
}

/* ---- What a write stores of one head: K or V ---- */

struct attnd_put {
	const struct attnd_slots_args *a;
	const char *src;       /* of the first token */
	size_t stride;	       /* bytes from a token to the next */
	const float *scale_in; /* dynamic, brought by the caller, of the first token; else NULL */
	float *scale_out;      /* dynamic, of slot 0; else NULL */
	float scale;	       /* static */
	uint32_t dims;
	char *tile; /* packed: K or V of the head */
};

static inline struct attnd_put attnd_put_of(const struct attnd_slots_args *a, uint32_t i, bool is_v)
{
	const struct attnd_kv_format *f = a->fmt;
	const float *scales = is_v ? a->v_scales : a->k_scales;
	struct attnd_put p = {.a = a,
			      .stride = is_v ? a->v_token_stride : a->k_token_stride,
			      .scale_in = scales ? scales + i : NULL,
			      .scale = is_v ? a->v_scale : a->k_scale,
			      .dims = is_v ? f->spec.head_dim_v : f->spec.head_dim};

	p.src = (const char *)(is_v ? a->v : a->k) + i * (is_v ? a->v_head_stride : a->k_head_stride);
	p.tile = (char *)a->block + (a->head + i) * f->tile_bytes + (is_v ? f->v_off : 0);
	if (f->spec.scale == ATTND_K_SCALE_DYNAMIC)
		p.scale_out = attnd_tile_scales(f, a->block, a->head + i, is_v ? f->v_scale_off : f->k_scale_off);
	return p;
}

/*
 * Token t's row as it is stored: in `buf`, or (int8) where the caller has it. *ret_scale is what stands
 * beside it. *finite is cleared if it, or its scale, is not finite. `convert` is
 * attnd_row_convert or faster, and gives the same bits.
 */
static inline __attribute__((always_inline)) const char *attnd_put_row(
	const struct attnd_put *p, uint32_t t, void *buf, float *ret_scale, bool *finite,
	bool (*convert)(enum attnd_kdtype, enum attnd_kdtype, const void *, uint32_t, bool, float *, void *))
{
	enum attnd_kdtype type = p->a->fmt->spec.dtype;
	const char *src = p->src + t * p->stride;
	bool dynamic = p->scale_out != NULL;

	*ret_scale = p->scale;
	if (p->a->in != type) {
		*finite &= convert(p->a->in, type, src, p->dims, dynamic, ret_scale, buf);
		return buf;
	}
	if (dynamic)
		*ret_scale = *(const volatile float *)(const void *)((const char *)p->scale_in +
								     t * p->a->scale_token_stride);
	*finite &= !dynamic || isfinite(*ret_scale);
	if (type == ATTND_K_INT8)
		return src;
	*finite &= attnd_row_take(type, src, p->dims, buf);
	return buf;
}

#endif
