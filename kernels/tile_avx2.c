/* SPDX-License-Identifier: Apache-2.0 */
/*
 * write of bf16 rows into packed bf16 tiles of 16 lanes; everything else is tile_c.c's.
 *
 * In:   rows [token][head][dim] in bf16.
 * Out:  K [group][dim pair][16 tokens][2], V [16 dims][token pair][16 dims][2], the same bits as
 *       tile_c.c's; flags first.
 * Next: attend reads them.
 *
 * Whole groups of K and token pairs of V are turned around in registers; what is left of either
 * goes element by element, into its own slots only.
 */
#include "kernels.h"
#include "x86_avx2.h"

#include <string.h>

enum { LANES = 16 };

attnd_write_fn attnd_write_any_c, attnd_write_bf16_avx2;

static bool row_finite(const uint16_t *x, uint32_t n)
{
	const __m256i mag = _mm256_set1_epi16(0x7fff);
	__m256i worst = _mm256_setzero_si256();
	uint32_t d = 0;

	for (; d + LANES <= n; d += LANES)
		worst = _mm256_max_epi16(worst, _mm256_and_si256(_mm256_loadu_si256((const void *)(x + d)), mag));
	for (; d < n; d++)
		worst = _mm256_max_epi16(worst, _mm256_set1_epi16((short)(x[d] & 0x7fff)));
	return _mm256_testz_si256(_mm256_cmpgt_epi16(worst, _mm256_set1_epi16(0x7f7f)), _mm256_set1_epi16(-1));
}

/* One head's rows, and where they go. */
struct put {
	const char *src; /* of the first token */
	size_t stride;	 /* from a token to the next */
	uint32_t dims;
	char *tile; /* K or V of the head */
	size_t block_size;
};

static const uint16_t *row_at(const struct put *p, uint32_t t)
{
	return (const uint16_t *)(const void *)(p->src + t * p->stride);
}

static char *k_group(const struct put *p, uint32_t slot)
{
	return p->tile + slot / LANES * ((p->dims + 1) / 2 * LANES * sizeof(uint32_t));
}

/* The dims [from, dims) of one token, and the padding one. */
static void put_k_slot(const struct put *p, uint32_t t, uint32_t slot, uint32_t from)
{
	const uint16_t *row = row_at(p, t);
	uint32_t *to = (uint32_t *)(void *)k_group(p, slot) + slot % LANES, pair;

	for (uint32_t d = from; d < p->dims; d += 2) {
		pair = row[d] | (d + 1 < p->dims ? (uint32_t)row[d + 1] << 16 : 0);
		to[d / 2 * LANES] = pair;
	}
}

/* 16 tokens from t on into a group: 8 pairs of dims of 8 tokens at a time. */
static void put_k_group(const struct put *p, uint32_t t, uint32_t slot)
{
	float *to = (float *)(void *)k_group(p, slot);
	uint32_t whole = p->dims / LANES * LANES;
	__m256 x[8];

	for (uint32_t d = 0; d < whole; d += LANES)
		for (uint32_t half = 0; half < LANES; half += 8) {
			for (uint32_t i = 0; i < 8; i++)
				x[i] = _mm256_loadu_ps((const void *)(row_at(p, t + half + i) + d));
			attnd_turn8(x);
			for (uint32_t i = 0; i < 8; i++)
				_mm256_store_ps(to + (d / 2 + i) * LANES + half, x[i]);
		}
	for (uint32_t i = 0; i < LANES && whole < p->dims; i++)
		put_k_slot(p, t + i, slot + i, whole);
}

static void put_k(const struct put *p, uint32_t slot, uint32_t n)
{
	for (uint32_t t = 0; t < n;) {
		if ((slot + t) % LANES == 0 && n - t >= LANES) {
			put_k_group(p, t, slot + t);
			t += LANES;
		} else {
			put_k_slot(p, t, slot + t, 0);
			t++;
		}
	}
}

/* Strip j's row of the token pair that holds the slot. */
static uint16_t *v_row(const struct put *p, uint32_t slot, uint32_t j)
{
	return (uint16_t *)(void *)p->tile + j * p->block_size * LANES + slot / 2 * (2 * LANES);
}

static void put_v_slot(const struct put *p, uint32_t t, uint32_t slot)
{
	const uint16_t *row = row_at(p, t);

	for (uint32_t d = 0; d < p->dims; d += LANES) {
		uint16_t *to = v_row(p, slot, d / LANES) + slot % 2;

		for (uint32_t i = 0; i < LANES; i++)
			to[2 * i] = d + i < p->dims ? row[d + i] : 0;
	}
}

static __m256i load_dims(const uint16_t *row, uint32_t n)
{
	uint16_t some[LANES] = {0};

	if (n >= LANES)
		return _mm256_loadu_si256((const void *)row);
	memcpy(some, row, n * sizeof(*row));
	return _mm256_loadu_si256((const void *)some);
}

static void put_v_pair(const struct put *p, uint32_t t, uint32_t slot)
{
	for (uint32_t d = 0; d < p->dims; d += LANES) {
		__m256i a = load_dims(row_at(p, t) + d, p->dims - d),
			b = load_dims(row_at(p, t + 1) + d, p->dims - d);
		__m256i lo = _mm256_unpacklo_epi16(a, b), hi = _mm256_unpackhi_epi16(a, b);
		uint16_t *to = v_row(p, slot, d / LANES);

		_mm256_store_si256((void *)to, _mm256_permute2x128_si256(lo, hi, 0x20));
		_mm256_store_si256((void *)(to + LANES), _mm256_permute2x128_si256(lo, hi, 0x31));
	}
}

static void put_v(const struct put *p, uint32_t slot, uint32_t n)
{
	for (uint32_t t = 0; t < n;) {
		if ((slot + t) % 2 == 0 && n - t >= 2) {
			put_v_pair(p, t, slot + t);
			t += 2;
		} else {
			put_v_slot(p, t, slot + t);
			t++;
		}
	}
}

static bool all_finite(const struct put *p, uint32_t n)
{
	bool finite = true;

	for (uint32_t t = 0; t < n; t++)
		finite &= row_finite(row_at(p, t), p->dims);
	return finite;
}

void attnd_write_bf16_avx2(const struct attnd_slots_args *a)
{
	const struct attnd_kv_format *f = a->fmt;

	if (a->in != ATTND_K_BF16) {
		attnd_write_any_c(a);
		return;
	}
	for (uint32_t i = 0; i < a->num_heads; i++) {
		char *tile = (char *)a->block + (a->head + i) * f->tile_bytes;
		struct put k = {(const char *)a->k + i * a->k_head_stride, a->k_token_stride, f->spec.head_dim, tile,
				f->spec.block_size};
		struct put v = {(const char *)a->v + i * a->v_head_stride, a->v_token_stride, f->spec.head_dim_v,
				tile + f->v_off, f->spec.block_size};
		bool has_v = !f->spec.v_in_k;

		if (!all_finite(&k, a->n) || (has_v && !all_finite(&v, a->n))) {
			__atomic_store_n(&a->flags[a->head + i], 1, __ATOMIC_RELAXED);
			__atomic_thread_fence(__ATOMIC_RELEASE);
		}
		put_k(&k, a->slot, a->n);
		if (has_v)
			put_v(&v, a->slot, a->n);
	}
}
