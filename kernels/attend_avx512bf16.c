/* SPDX-License-Identifier: Apache-2.0 */
/*
 * attend for bf16 queries with vdpbf16ps, also for P.V: on weights rounded to bf16.
 *
 * In:   tiles from x86.c; K/V in bf16, or int8 and fp8 widened to bf16 (exactly) in L1.
 * Out:  partials.
 * Next: partial_c.c merges and finishes them.
 */
#include "x86_bf16.h"

/* ---- The three stages ---- */

static __attribute__((noinline)) void score_groups(const struct attnd_x86_tile *t, uint32_t k_rows,
						   const char *const *k, const char *const *next, uint32_t g,
						   uint32_t n)
{
	attnd_score_groups(ATTND_OPERAND_DP, t, k_rows, k, next, g, n);
}

static __attribute__((noinline)) void value_strips(const struct attnd_x86_tile *t, uint32_t first, uint32_t n,
						   const char *const *v, const char *const *next, size_t stride,
						   uint32_t j, uint32_t num)
{
	attnd_value_strips(ATTND_OPERAND_DP, t, first, n, v, next, stride, j, num);
}

static void softmax(const struct attnd_x86_tile *t)
{
	attnd_softmax_rows(true, t);
}

/* ---- Bytes: two groups or strips at a time ---- */

enum { FEW = 4, SIDE = 2 };

/*
 * What the next tile's K or V is prefetched by: two lines a call, group after group, since memory
 * likes long runs. A pair of lines is half a strip of V, and strips are `stride` apart.
 */
struct ahead {
	const char *const *base; /* of each group */
	size_t stride;
	uint32_t group, groups, pair, pairs;
};

ATTND_INLINE void prefetch_pair(struct ahead *a)
{
	const char *p = a->base[a->group] + (a->pair >> 1) * a->stride + (a->pair & 1) * 128;

	_mm_prefetch(p, _MM_HINT_T1);
	_mm_prefetch(p + 64, _MM_HINT_T1);
	if (++a->pair < a->pairs)
		return;
	a->pair = 0;
	a->group += a->group + 1 < a->groups;
}

/*
 * Up to four rows widen K/V in registers on the way to the products; x, the rows' fours of q or
 * of weights, stands ready in whole vectors ([four][row]), since broadcasts would take the ports
 * that widening needs. More rows read a panel of widened K/V and broadcast x.
 */
struct source {
	const struct attnd_lookup *lookup; /* NULL: at[] is widened */
	const char *at[SIDE];
	struct ahead *ahead; /* with lookup */
	const char *x;
	size_t x_stride; /* without lookup: from a row to the next */
};

/* sum[c][half][i] += x row i . row u of at[c]. `four`: how many fours of x passed before. */
ATTND_INLINE void multiply_four(const struct source *s, int m, uint32_t n, uint32_t u, uint32_t four,
				__m512 sum[SIDE][2][FEW])
{
	__m512i a[SIDE][2];

	if (s->lookup)
		prefetch_pair(s->ahead);
	ATTND_UNROLL
	for (uint32_t c = 0; c < n; c++) {
		if (s->lookup) {
			_mm_prefetch(s->at[c] + (u + 8) * 64, _MM_HINT_T0); /* the core does not look beyond 4 KB */
			attnd_widen_row(s->lookup, _mm512_load_si512(s->at[c] + u * 64), &a[c][0], &a[c][1]);
		} else {
			a[c][0] = _mm512_load_si512(s->at[c] + u * 128);
			a[c][1] = _mm512_load_si512(s->at[c] + u * 128 + 64);
		}
	}
	ATTND_UNROLL
	for (int i = 0; i < m; i++) {
		__m512 x;

		if (s->lookup)
			x = _mm512_load_ps(s->x + (four * (uint32_t)m + (uint32_t)i) * 64);
		else
			x = (__m512)_mm512_set1_epi64(attnd_load_four(s->x + (size_t)i * s->x_stride + four * 8));
		ATTND_UNROLL
		for (uint32_t c = 0; c < n; c++) {
			sum[c][0][i] = attnd_dp(sum[c][0][i], a[c][0], x);
			sum[c][1][i] = attnd_dp(sum[c][1][i], a[c][1], x);
		}
	}
}

ATTND_INLINE void clear_sums(int m, uint32_t n, __m512 sum[SIDE][2][FEW])
{
	ATTND_UNROLL
	for (int i = 0; i < m; i++) {
		ATTND_UNROLL
		for (uint32_t c = 0; c < n; c++)
			sum[c][0][i] = sum[c][1][i] = _mm512_setzero_ps();
	}
}

/* m rows' (from r on) scores of n groups from g on. */
ATTND_INLINE void score_fours(const struct source *s, int m, uint32_t n, const struct attnd_x86_tile *t, uint32_t r,
			      uint32_t g)
{
	__m512 sum[SIDE][2][FEW];

	clear_sums(m, n, sum);
	for (uint32_t u = 0; u < t->k_rows; u++)
		multiply_four(s, m, n, u, u, sum);
	ATTND_UNROLL
	for (int i = 0; i < m; i++) {
		ATTND_UNROLL
		for (uint32_t c = 0; c < n; c++)
			_mm512_store_ps(t->s + (r + (uint32_t)i) * ATTND_X86_STEP + (g + c) * ATTND_X86_LANES,
					attnd_join_pairs(sum[c][0][i], sum[c][1][i]));
	}
}

/* m rows' (from r on) acc of n strips from j on. s->at points at the first group's part. */
ATTND_INLINE void value_fours(const struct source *s, int m, uint32_t n, const struct attnd_x86_tile *t, uint32_t r,
			      uint32_t j)
{
	const size_t group = (size_t)t->v_rows * 128;
	struct source at = *s;
	__m512 sum[SIDE][2][FEW];

	clear_sums(m, n, sum);
	for (uint32_t g = 0; g < t->groups; g++) {
		ATTND_UNROLL
		for (uint32_t c = 0; c < n; c++) {
			at.at[c] = s->lookup ? t->v[g] + (j + c) * t->v_stride : s->at[c] + g * group;
		}
		ATTND_UNROLL
		for (uint32_t u = 0; u < 4; u++)
			multiply_four(&at, m, n, u, g * 4 + u, sum);
	}
	ATTND_UNROLL
	for (int i = 0; i < m; i++) {
		ATTND_UNROLL
		for (uint32_t c = 0; c < n; c++) {
			float *acc = t->partial[r + (uint32_t)i]->acc + (j + c) * ATTND_X86_LANES;
			__m512 x = _mm512_add_ps(_mm512_load_ps(acc), attnd_join_pairs(sum[c][0][i], sum[c][1][i]));

			_mm512_store_ps(acc, _mm512_add_ps(x, _mm512_setzero_ps()));
		}
	}
}

/* n fours of each of m rows into whole vectors. */
ATTND_INLINE void spread(int m, uint32_t n, const char *rows, size_t stride, char *dst)
{
	for (uint32_t u = 0; u < n; u++)
		ATTND_UNROLL
	for (int i = 0; i < m; i++, dst += 64)
		_mm512_store_si512(dst, _mm512_set1_epi64(attnd_load_four(rows + (size_t)i * stride + u * 8)));
}

ATTND_INLINE void few_scores(const struct attnd_lookup *l, int m, const struct attnd_x86_tile *t)
{
	struct ahead ahead = {.base = t->next_k, .stride = 256, .groups = t->groups, .pairs = (t->k_rows + 1) / 2};
	struct source s = {.lookup = l, .ahead = &ahead, .x = t->panel};
	uint32_t g = 0;

	spread(m, t->k_rows, t->q, t->q_stride, t->panel);
	for (; g < t->groups; g += SIDE) {
		bool two = g + 1 < t->groups;

		s.at[0] = t->k[g];
		s.at[1] = t->k[g + two];
		if (two)
			score_fours(&s, m, 2, t, 0, g);
		else
			score_fours(&s, m, 1, t, 0, g);
		/* A few at a time: many prefetches at once hold everything up. */
		if (t->dynamic) {
			_mm_prefetch(t->next_k_scales[g], _MM_HINT_T1);
			_mm_prefetch(t->next_v_scales[g], _MM_HINT_T1);
			_mm_prefetch(t->next_k_scales[g + two], _MM_HINT_T1);
			_mm_prefetch(t->next_v_scales[g + two], _MM_HINT_T1);
		}
	}
}

ATTND_INLINE void few_values(const struct attnd_lookup *l, int m, const struct attnd_x86_tile *t, uint32_t first)
{
	struct ahead ahead = {.base = t->next_v, .stride = t->v_stride, .groups = t->groups, .pairs = 2 * t->strips};
	struct source s = {.lookup = l, .ahead = &ahead, .x = t->panel};

	spread(m, t->groups * 4, (const char *)(t->s + first * ATTND_X86_STEP), ATTND_X86_STEP * sizeof(float),
	       t->panel);
	for (uint32_t j = 0; j < t->strips; j += SIDE) {
		if (j + 1 < t->strips)
			value_fours(&s, m, 2, t, first, j);
		else
			value_fours(&s, m, 1, t, first, j);
	}
}

/* Rows from r on, four at a time, on a panel: scores of n groups from g, or acc of n strips from g. */
ATTND_INLINE void many(bool values, uint32_t n, const struct attnd_x86_tile *t, struct source *s, uint32_t r,
		       uint32_t end, uint32_t g)
{
	for (; r < end; r += FEW) {
		s->x = values ? (const char *)(t->s + r * ATTND_X86_STEP) : t->q + r * t->q_stride;
		switch (end - r) {
		case 1:
			values ? value_fours(s, 1, n, t, r, g) : score_fours(s, 1, n, t, r, g);
			break;
		case 2:
			values ? value_fours(s, 2, n, t, r, g) : score_fours(s, 2, n, t, r, g);
			break;
		case 3:
			values ? value_fours(s, 3, n, t, r, g) : score_fours(s, 3, n, t, r, g);
			break;
		default:
			values ? value_fours(s, 4, n, t, r, g) : score_fours(s, 4, n, t, r, g);
		}
	}
}

static __attribute__((noinline)) void many_scores(const struct attnd_x86_tile *t, const char *a, const char *b,
						  uint32_t g, uint32_t n)
{
	struct source s = {.at = {a, b}, .x_stride = t->q_stride};

	if (n == 2)
		many(false, 2, t, &s, 0, t->rows, g);
	else
		many(false, 1, t, &s, 0, t->rows, g);
}

static __attribute__((noinline)) void many_values(const struct attnd_x86_tile *t, uint32_t first, uint32_t rows,
						  const char *a, const char *b, uint32_t j, uint32_t n)
{
	struct source s = {.at = {a, b}, .x_stride = ATTND_X86_STEP * sizeof(float)};

	if (n == 2)
		many(true, 2, t, &s, first, first + rows, j);
	else
		many(true, 1, t, &s, first, first + rows, j);
}

/* n rows widened to pairs of rows; prefetches as many at `next`. */
ATTND_INLINE void widen_rows(const struct attnd_lookup *l, const char *src, const char *next, uint32_t n, char *dst)
{
	for (uint32_t u = 0; u < n; u++) {
		__m512i a, b;

		_mm_prefetch(next + u * 64, _MM_HINT_T1);
		attnd_widen_row(l, _mm512_load_si512(src + u * 64), &a, &b);
		_mm512_store_si512(dst + u * 128, a);
		_mm512_store_si512(dst + u * 128 + 64, b);
	}
}

ATTND_INLINE void panel_scores(const struct attnd_lookup *l, const struct attnd_x86_tile *t)
{
	const size_t group = (size_t)t->k_rows * 128;

	for (uint32_t g = 0; g < t->groups; g += SIDE) {
		uint32_t n = g + 1 < t->groups ? 2 : 1;

		for (uint32_t c = 0; c < n; c++)
			widen_rows(l, t->k[g + c], t->next_k[g + c], t->k_rows, t->panel + c * group);
		many_scores(t, t->panel, t->panel + group, g, n);
	}
}

/* With v_in_k a strip's K is turned around first. */
ATTND_INLINE void panel_values(const struct attnd_lookup *l, const struct attnd_x86_tile *t, uint32_t first,
			       uint32_t rows)
{
	const size_t group = (size_t)t->v_rows * 128, strip = group * ATTND_X86_GROUPS;
	bool in_k = t->args->fmt->spec.v_in_k;
	char turned[4 * 64] __attribute__((aligned(64)));

	for (uint32_t j = 0; j < t->strips; j += SIDE) {
		uint32_t n = j + 1 < t->strips ? 2 : 1;

		for (uint32_t i = 0; i < n * t->groups; i++) {
			uint32_t c = i / t->groups, g = i % t->groups;
			const char *v = t->v[g] + (j + c) * t->v_stride;
			const char *next = in_k ? v : t->next_v[g] + (j + c) * t->v_stride;

			if (in_k) {
				attnd_turn_fours(v, t->k_rows - (j + c) * t->v_rows, turned);
				v = turned;
			}
			widen_rows(l, v, next, 4, t->panel + c * strip + g * group);
		}
		many_values(t, first, rows, t->panel, t->panel + strip, j, n);
	}
}

ATTND_INLINE void scores_of_bytes(const struct attnd_bytes *tables, bool int8, const struct attnd_x86_tile *t)
{
	const struct attnd_lookup l = attnd_load_tables(tables, int8);

	switch (t->rows) {
	case 1:
		few_scores(&l, 1, t);
		break;
	case 2:
		few_scores(&l, 2, t);
		break;
	case 3:
		few_scores(&l, 3, t);
		break;
	case 4:
		few_scores(&l, 4, t);
		break;
	default:
		panel_scores(&l, t);
	}
}

ATTND_INLINE void values_of_bytes(const struct attnd_bytes *tables, bool int8, const struct attnd_x86_tile *t,
				  uint32_t first, uint32_t n)
{
	const struct attnd_lookup l = attnd_load_tables(tables, int8);

	switch (t->args->fmt->spec.v_in_k ? FEW + 1 : n) {
	case 1:
		few_values(&l, 1, t, first);
		break;
	case 2:
		few_values(&l, 2, t, first);
		break;
	case 3:
		few_values(&l, 3, t, first);
		break;
	case 4:
		few_values(&l, 4, t, first);
		break;
	default:
		panel_values(&l, t, first, n);
	}
}

/* ---- One kernel for each K/V type ---- */

#define ATTEND(name)                                                                  \
	attnd_attend_fn attnd_attend_bf16_##name##_avx512bf16;                        \
	void attnd_attend_bf16_##name##_avx512bf16(const struct attnd_attend_args *a) \
	{                                                                             \
		static const struct attnd_x86_isa isa = {                             \
			.q_element = 2,                                               \
			.pack_q = attnd_pack_bf16,                                    \
			.scores = scores_##name,                                      \
			.softmax = softmax,                                           \
			.values = values_##name,                                      \
		};                                                                    \
		attnd_x86_attend(a, &isa);                                            \
	}

#define ATTEND_BYTES(name)                                                                    \
	static void scores_##name(const struct attnd_x86_tile *t)                             \
	{                                                                                     \
		scores_of_bytes(&attnd_##name, IS_INT8_##name, t);                            \
	}                                                                                     \
	static void values_##name(const struct attnd_x86_tile *t, uint32_t first, uint32_t n) \
	{                                                                                     \
		values_of_bytes(&attnd_##name, IS_INT8_##name, t, first, n);                  \
	}                                                                                     \
	ATTEND(name)

#define IS_INT8_int8 true
#define IS_INT8_e4m3 false
#define IS_INT8_e5m2 false

static void scores_bf16(const struct attnd_x86_tile *t)
{
	attnd_scores(t, NULL, 1, score_groups);
}

static void values_bf16(const struct attnd_x86_tile *t, uint32_t first, uint32_t n)
{
	if (t->args->fmt->spec.v_in_k)
		attnd_values_in_k(t, first, n, attnd_flip_bf16, 2, value_strips);
	else
		attnd_values(t, first, n, NULL, 1, value_strips);
}

ATTEND(bf16)
ATTEND_BYTES(int8)
ATTEND_BYTES(e4m3)
ATTEND_BYTES(e5m2)
