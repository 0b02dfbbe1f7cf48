/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tiles in portable C: write, read, copy and clear, for every layout and element type.
 *
 * In:   rows [token][head][dim] of a job; another tile.
 * Out:  packed or row-major tiles, their dynamic scales and their non-finite flags.
 * Next: attend reads them. These bits are the contract: an ISA's write stores the same.
 */
#include "registry.h"
#include "tile.h"
#include "tile_row.h"

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

/* ---- write ---- */

static void put_slot(const struct attnd_put *p, uint32_t t, const struct attnd_walk *w, uint8_t *flag)
{
	float row[ATTND_K_MAX_DIM], scale;
	bool finite = true;
	const char *stored = attnd_put_row(p, t, row, &scale, &finite, attnd_row_convert);

	if (!finite)
		attnd_set_flag(flag);
	if (p->scale_out)
		p->scale_out[p->a->slot + t] = scale;
	scatter_row(w, stored, p->dims, attnd_kdtype_bytes(p->a->fmt->spec.dtype));
}

void attnd_write_any_c(const struct attnd_slots_args *a)
{
	const struct attnd_kv_format *f = a->fmt;

	for (uint32_t t = 0; t < a->n; t++)
		for (uint32_t i = 0; i < a->num_heads; i++) {
			struct attnd_put p = attnd_put_of(a, i, false);
			struct attnd_walk w = attnd_walk_k(f, a->block, a->head + i, a->slot + t);

			put_slot(&p, t, &w, &a->flags[a->head + i]);
			if (f->spec.v_in_k)
				continue;
			p = attnd_put_of(a, i, true);
			w = attnd_walk_v(f, a->block, a->head + i, a->slot + t);
			put_slot(&p, t, &w, &a->flags[a->head + i]);
		}
}

/* ---- read ---- */

static const float *scale_at(const float *scales, size_t stride, uint32_t t, uint32_t h)
{
	return scales ? (const float *)(const void *)((const char *)scales + t * stride) + h : NULL;
}

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

static void copy_runs(char *dst, const char *src, uint32_t runs, size_t pitch, size_t bytes)
{
	for (uint32_t i = 0; i < runs; i++)
		memcpy(dst + i * pitch, src + i * pitch, bytes);
}

static void copy_mixed(char *dst, const char *src, uint32_t lanes, uint32_t ilv, uint32_t n, size_t es)
{
	copy_runs(dst, src, lanes, ilv * es, n * es);
}

#define COPY_RUNS  copy_runs
#define COPY_MIXED copy_mixed
#include "tile_copy.h"

void attnd_copy_any_c(const struct attnd_kv_format *fmt, void *dst, uint8_t *dst_flags, const void *src,
		      const uint8_t *src_flags, uint32_t n, uint32_t head, uint32_t num_heads)
{
	copy_tiles(fmt, dst, dst_flags, src, src_flags, n, head, num_heads);
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
