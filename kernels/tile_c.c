/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tiles in portable C: write, read, copy and clear, for every layout and element type.
 *
 * In:   rows [token][head][dim] of a job; another tile.
 * Out:  packed or row-major tiles, their dynamic scales and their non-finite flags.
 * Next: attend reads them. These bits are the contract: an ISA's write stores the same.
 *
 * Rule: a flag is set before the data that it warns of, with a release fence between; attend
 * reads data, then an acquire fence, then the flag.
 */
#include "registry.h"
#include "scalar.h"
#include "tile.h"

/* ---- One row of one head ---- */

static void row_to_f32(enum attnd_kdtype type, const void *src, uint32_t n, float *x)
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

static bool floats_finite(const float *x, uint32_t n)
{
	uint32_t worst = 0;

	for (uint32_t i = 0; i < n; i++) {
		uint32_t mag = attnd_bits(x[i]) & 0x7fffffffu;

		worst = worst > mag ? worst : mag;
	}
	return worst < 0x7f800000u;
}

static bool halves_finite(const uint16_t *x, uint32_t n, uint16_t infinity)
{
	uint16_t worst = 0;

	for (uint32_t i = 0; i < n; i++) {
		uint16_t mag = x[i] & 0x7fff;

		worst = worst > mag ? worst : mag;
	}
	return worst < infinity;
}

static bool bytes_finite(const uint8_t *x, uint32_t n, uint8_t first)
{
	uint8_t worst = 0;

	for (uint32_t i = 0; i < n; i++) {
		uint8_t mag = x[i] & 0x7f;

		worst = worst > mag ? worst : mag;
	}
	return worst < first;
}

static bool row_finite(enum attnd_kdtype type, const void *row, uint32_t n)
{
	switch (type) {
	case ATTND_K_F32:
		return floats_finite(row, n);
	case ATTND_K_F16:
		return halves_finite(row, n, 0x7c00);
	case ATTND_K_BF16:
		return halves_finite(row, n, 0x7f80);
	case ATTND_K_FP8_E4M3:
		return bytes_finite(row, n, 0x7f);
	case ATTND_K_FP8_E5M2:
		return bytes_finite(row, n, 0x7c);
	case ATTND_K_INT8:
	case ATTND_K_DTYPES:
		break;
	}
	return true;
}

/* max(max|x|, 1e-7) / 127, or NaN. */
static float dynamic_scale(const float *x, uint32_t n)
{
	float most = 1e-7f;

	if (!floats_finite(x, n))
		return NAN;
	for (uint32_t i = 0; i < n; i++)
		most = fabsf(x[i]) > most ? fabsf(x[i]) : most;
	return most / 127.0f;
}

/* With a NaN scale every element is 0. */
static void row_from_f32(enum attnd_kdtype type, const float *x, uint32_t n, float scale, void *dst)
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

/* ---- Along a walk ---- */

/* `n` elements of a row into the tile, zeros into the padding after them. */
static void scatter(const struct attnd_walk *w, const void *row, uint32_t n, size_t es)
{
	static const char zero[4];
	const char *src = row;
	uint32_t d = 0;

	for (uint32_t o = 0; o < w->outer; o++)
		for (uint32_t i = 0; i < w->inner; i++, d++)
			memcpy(w->base + o * w->ostride + i * w->istride, d < n ? src + d * es : zero, es);
}

static void gather(const struct attnd_walk *w, void *row, uint32_t n, size_t es)
{
	char *dst = row;
	uint32_t d = 0;

	for (uint32_t o = 0; o < w->outer; o++)
		for (uint32_t i = 0; i < w->inner && d < n; i++, d++)
			memcpy(dst + d * es, w->base + o * w->ostride + i * w->istride, es);
}

/* One copy of each loop for each element size, so that a copy is one load and one store. */
static void scatter_row(const struct attnd_walk *w, const void *row, uint32_t n, size_t es)
{
	if (es == 4)
		scatter(w, row, n, 4);
	else if (es == 2)
		scatter(w, row, n, 2);
	else
		scatter(w, row, n, 1);
}

static void gather_row(const struct attnd_walk *w, void *row, uint32_t n, size_t es)
{
	if (es == 4)
		gather(w, row, n, 4);
	else if (es == 2)
		gather(w, row, n, 2);
	else
		gather(w, row, n, 1);
}

static void set_flag(uint8_t *flag)
{
	__atomic_store_n(flag, 1, __ATOMIC_RELAXED);
	__atomic_thread_fence(__ATOMIC_RELEASE);
}

/* ---- write ---- */

/* What one token and head of K or of V needs. */
struct put {
	const struct attnd_slots_args *a;
	const void *src;
	const float *scale_in;
	float *scale_out; /* dynamic, else NULL */
	float scale;	  /* static */
	uint32_t n;
};

/* Bring one row into the cache's dtype, set the flag if need be, then store. */
static void put_row(const struct put *p, const struct attnd_walk *w, uint8_t *flag)
{
	enum attnd_kdtype type = p->a->fmt->spec.dtype;
	float x[ATTND_K_MAX_DIM], row[ATTND_K_MAX_DIM], scale = p->scale;
	const void *stored = row;

	if (p->a->in == type) {
		stored = p->src;
		if (p->scale_out)
			scale = *p->scale_in;
	} else {
		row_to_f32(p->a->in, p->src, p->n, x);
		if (p->scale_out)
			scale = dynamic_scale(x, p->n);
		row_from_f32(type, x, p->n, scale, row);
	}
	if (!row_finite(type, stored, p->n) || (p->scale_out && !isfinite(scale)))
		set_flag(flag);
	if (p->scale_out)
		*p->scale_out = scale;
	scatter_row(w, stored, p->n, attnd_kdtype_bytes(type));
}

static const float *scale_at(const float *scales, size_t stride, uint32_t t, uint32_t h)
{
	return scales ? (const float *)(const void *)((const char *)scales + t * stride) + h : NULL;
}

void attnd_write_any_c(const struct attnd_slots_args *a)
{
	const struct attnd_kv_format *f = a->fmt;
	bool dynamic = f->spec.scale == ATTND_K_SCALE_DYNAMIC;

	for (uint32_t t = 0; t < a->n; t++)
		for (uint32_t i = 0; i < a->num_heads; i++) {
			uint32_t h = a->head + i, slot = a->slot + t;
			struct attnd_walk w = attnd_walk_k(f, a->block, h, slot);
			struct put p = {.a = a,
					.src = (const char *)a->k + t * a->k_token_stride + i * a->k_head_stride,
					.scale_in = scale_at(a->k_scales, a->scale_token_stride, t, i),
					.scale = a->k_scale,
					.n = f->spec.head_dim};

			if (dynamic)
				p.scale_out = attnd_tile_scales(f, a->block, h, f->k_scale_off) + slot;
			put_row(&p, &w, &a->flags[h]);
			if (f->spec.v_in_k)
				continue;
			w = attnd_walk_v(f, a->block, h, slot);
			p.src = (const char *)a->v + t * a->v_token_stride + i * a->v_head_stride;
			p.scale_in = scale_at(a->v_scales, a->scale_token_stride, t, i);
			p.scale = a->v_scale;
			p.n = f->spec.head_dim_v;
			if (dynamic)
				p.scale_out = attnd_tile_scales(f, a->block, h, f->v_scale_off) + slot;
			put_row(&p, &w, &a->flags[h]);
		}
}

/* ---- read ---- */

static void get_scale(const float *out, size_t stride, uint32_t t, uint32_t i, float scale)
{
	if (out)
		*(float *)(uintptr_t)scale_at(out, stride, t, i) = scale;
}

void attnd_read_any_c(const struct attnd_slots_args *a)
{
	const struct attnd_kv_format *f = a->fmt;
	bool dynamic = f->spec.scale == ATTND_K_SCALE_DYNAMIC;
	size_t es = attnd_kdtype_bytes(f->spec.dtype);

	for (uint32_t t = 0; t < a->n; t++)
		for (uint32_t i = 0; i < a->num_heads; i++) {
			uint32_t h = a->head + i, slot = a->slot + t;
			struct attnd_walk w = attnd_walk_k(f, a->block, h, slot);
			size_t k_at = t * a->k_token_stride + i * a->k_head_stride;
			size_t v_at = t * a->v_token_stride + i * a->v_head_stride;

			gather_row(&w, (char *)(uintptr_t)a->k + k_at, f->spec.head_dim, es);
			if (a->v) {
				w = f->spec.v_in_k ? w : attnd_walk_v(f, a->block, h, slot);
				gather_row(&w, (char *)(uintptr_t)a->v + v_at, f->spec.head_dim_v, es);
			}
			if (!dynamic)
				continue;
			get_scale(a->k_scales, a->scale_token_stride, t, i,
				  attnd_tile_scales(f, a->block, h, f->k_scale_off)[slot]);
			get_scale(a->v_scales, a->scale_token_stride, t, i,
				  attnd_tile_scales(f, a->block, h, f->v_scale_off)[slot]);
		}
}

/* ---- copy ---- */

static void copy_slot(const struct attnd_walk *dst, const struct attnd_walk *src, size_t es)
{
	char row[(ATTND_K_MAX_DIM + 256) * 4]; /* with padding up to one run of 256 lanes */

	gather_row(src, row, src->inner * src->outer, es);
	scatter_row(dst, row, dst->inner * dst->outer, es);
}

/* K of whole lane groups is one run of bytes; what is left goes slot by slot. */
static uint32_t copy_k_groups(const struct attnd_kv_format *f, char *dst, const char *src, uint32_t n, uint32_t head)
{
	uint32_t groups = n / f->k_lanes;
	struct attnd_walk w = attnd_walk_k(f, dst, head, 0);
	size_t at = (size_t)(w.base - dst);

	memcpy(dst + at, src + at, groups * (w.outer * w.ostride));
	return groups * f->k_lanes;
}

/* V of whole interleaved groups is one run for each run of dims. */
static uint32_t copy_v_groups(const struct attnd_kv_format *f, char *dst, const char *src, uint32_t n, uint32_t head)
{
	uint32_t slots = n / f->v_ilv * f->v_ilv;
	struct attnd_walk w = attnd_walk_v(f, dst, head, 0);
	size_t es = attnd_kdtype_bytes(f->spec.dtype);

	for (uint32_t o = 0; o < w.outer; o++) {
		size_t at = (size_t)(w.base - dst) + o * w.ostride;

		memcpy(dst + at, src + at, (size_t)slots * f->v_lanes * es);
	}
	return slots;
}

static void copy_scales(const struct attnd_kv_format *f, void *dst, const void *src, uint32_t n, uint32_t head)
{
	memcpy(attnd_tile_scales(f, dst, head, f->k_scale_off), attnd_tile_scales(f, src, head, f->k_scale_off),
	       n * sizeof(float));
	if (!f->spec.v_in_k)
		memcpy(attnd_tile_scales(f, dst, head, f->v_scale_off),
		       attnd_tile_scales(f, src, head, f->v_scale_off), n * sizeof(float));
}

static void copy_head(const struct attnd_kv_format *f, void *dst, const void *src, uint32_t n, uint32_t head)
{
	size_t es = attnd_kdtype_bytes(f->spec.dtype);
	bool packed = f->spec.layout == ATTND_K_PACKED;
	uint32_t k_from = packed ? copy_k_groups(f, dst, src, n, head) : 0;
	uint32_t v_from = packed && !f->spec.v_in_k ? copy_v_groups(f, dst, src, n, head) : 0;

	for (uint32_t t = k_from; t < n; t++) {
		struct attnd_walk d = attnd_walk_k(f, dst, head, t), s = attnd_walk_k(f, src, head, t);

		copy_slot(&d, &s, es);
	}
	for (uint32_t t = v_from; t < n && !f->spec.v_in_k; t++) {
		struct attnd_walk d = attnd_walk_v(f, dst, head, t), s = attnd_walk_v(f, src, head, t);

		copy_slot(&d, &s, es);
	}
	if (f->spec.scale == ATTND_K_SCALE_DYNAMIC)
		copy_scales(f, dst, src, n, head);
}

void attnd_copy_any_c(const struct attnd_kv_format *fmt, void *dst, uint8_t *dst_flags, const void *src,
		      const uint8_t *src_flags, uint32_t n, uint32_t head, uint32_t num_heads)
{
	for (uint32_t h = head; h < head + num_heads; h++) {
		if (__atomic_load_n(&src_flags[h], __ATOMIC_RELAXED))
			set_flag(&dst_flags[h]);
		copy_head(fmt, dst, src, n, h);
	}
}

/* ---- clear ---- */

void attnd_clear_any_c(const struct attnd_kv_format *fmt, void *block, uint8_t *flags, uint32_t head)
{
	const struct attnd_kv_spec *s = &fmt->spec;
	size_t es = attnd_kdtype_bytes(s->dtype);

	if (s->layout == ATTND_K_PACKED)
		memset((char *)block + head * fmt->tile_bytes, 0, fmt->tile_bytes);
	for (uint32_t t = 0; t < s->block_size && s->layout != ATTND_K_PACKED; t++) {
		memset(attnd_walk_k(fmt, block, head, t).base, 0, s->head_dim * es);
		if (!s->v_in_k)
			memset(attnd_walk_v(fmt, block, head, t).base, 0, s->head_dim_v * es);
		if (s->scale == ATTND_K_SCALE_DYNAMIC) {
			attnd_tile_scales(fmt, block, head, fmt->k_scale_off)[t] = 0.0f;
			attnd_tile_scales(fmt, block, head, fmt->v_scale_off)[t] = 0.0f;
		}
	}
	__atomic_store_n(&flags[head], 0, __ATOMIC_RELEASE);
}
