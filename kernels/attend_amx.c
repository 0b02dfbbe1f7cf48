/* SPDX-License-Identifier: Apache-2.0 */
/*
 * attend for bf16 queries with AMX (tdpbf16ps), also for P.V: on weights rounded to bf16.
 *
 * In:   tiles from x86.c; K/V in bf16, or int8 and fp8 widened to bf16 (exactly).
 * Out:  partials.
 * Next: partial_c.c merges and finishes them.
 *
 * A tile register is 16 rows of 64 bytes: 16 rows x 32 dims of q, 32 dims x 16 tokens of K,
 * 16 rows x 32 weights, 32 tokens x 16 dims of V. V of 32 tokens lies apart where blocks have 16,
 * so it is copied together: once for all tiles that share a step, or, for few rows, a little at a
 * time through L1. acc lies in registers while a step's tokens are added, 32 at a time.
 *
 * The matrix unit works by itself: while it multiplies for one half of the rows, vector
 * instructions take the other half's softmax.
 *
 * The compiler may know nothing of the memory that tile loads and stores touch: hence barrier().
 */
#include "x86_bf16.h"

/* Registers, as plain numbers: gcc pastes them into instructions. Sums are rows x columns, 2 x 2. */
#define SUM_00	0
#define SUM_01	1
#define SUM_10	2
#define SUM_11	3
#define LEFT_0	4 /* q or weights */
#define LEFT_1	5
#define RIGHT_0 6 /* K or V */
#define RIGHT_1 7

enum {
	SIDE = 16,    /* rows of a register */
	HALF = 32,    /* rows of two */
	BYTES = 1024, /* of a register */
	PAIRS = ATTND_X86_GROUPS / 2,
};

#define barrier() __asm__ volatile("" : : : "memory")

/* Palette 1: sums and left operands have `rows` rows (at most 16), right ones 16. */
static void configure(const struct attnd_x86_tile *t, uint32_t rows)
{
	struct {
		uint8_t palette, start, reserved[14];
		uint16_t bytes[16];
		uint8_t rows[16];
	} c __attribute__((aligned(64))) = {.palette = 1};

	rows = rows > SIDE ? SIDE : rows;
	if (*t->set_up == rows)
		return;
	*t->set_up = rows;
	for (int i = 0; i < 8; i++) {
		c.bytes[i] = 64;
		c.rows[i] = (uint8_t)(i >= RIGHT_0 ? SIDE : rows);
	}
	barrier();
	_tile_loadconfig(&c);
	barrier();
}

/* ---- Right operands ---- */

enum kind { KIND_BF16, KIND_INT8, KIND_E4M3, KIND_E5M2 };

/* Where K's registers of each group, and V's of each pair of groups, stand. */
struct right {
	const char *k[ATTND_X86_GROUPS];
	const char *v[PAIRS];
	size_t v_stride; /* from a strip to the next */
	uint32_t k_steps;
};

ATTND_INLINE struct attnd_lookup lookup_of(enum kind kind)
{
	return attnd_load_tables(kind == KIND_E4M3   ? &attnd_e4m3
				 : kind == KIND_E5M2 ? &attnd_e5m2
						     : &attnd_int8,
				 kind == KIND_INT8);
}

/*
 * n rows of 16 fours of bytes to 2 n rows of 16 bf16 pairs: bytes 0 and 2 of each four, then 1
 * and 3. That takes no shuffles; left operands have their fours in the same order (swap_middle).
 */
ATTND_INLINE void widen_rows(const struct attnd_lookup *l, const char *src, uint32_t n, char *dst)
{
	const __m512i low = _mm512_set1_epi16(0x00ff);

	for (uint32_t u = 0; u < n; u++) {
		__m512i upper, lower;

		attnd_look_up(l, _mm512_load_si512(src + u * 64), &upper, &lower);
		/* (a & low) | b, and (a & ~low) | b. */
		_mm512_store_si512(dst + u * 128,
				   _mm512_ternarylogic_epi32(lower, _mm512_slli_epi16(upper, 8), low, 0xec));
		_mm512_store_si512(dst + u * 128 + 64,
				   _mm512_ternarylogic_epi32(upper, _mm512_srli_epi16(lower, 8), low, 0xdc));
	}
}

ATTND_INLINE __m512i swap_middle(__m512i fours)
{
	const __m512i order =
		_mm512_broadcast_i32x4(_mm_setr_epi8(0, 1, 4, 5, 2, 3, 6, 7, 8, 9, 12, 13, 10, 11, 14, 15));

	return _mm512_shuffle_epi8(fours, order);
}

ATTND_INLINE void copy_rows(const char *src, uint32_t n, char *dst)
{
	for (uint32_t u = 0; u < n; u++)
		_mm512_store_si512(dst + u * 64, _mm512_load_si512(src + u * 64));
}

static void prefetch_rows(const char *p, uint32_t n)
{
	for (uint32_t u = 0; u < n; u++)
		_mm_prefetch(p + u * 64, _MM_HINT_T1);
}

/* Operand rows of a K group, and registers that they fill. */
ATTND_INLINE uint32_t k_operand_rows(enum kind kind, const struct attnd_x86_tile *t)
{
	return kind == KIND_BF16 ? t->k_rows : 2 * t->k_rows;
}

ATTND_INLINE uint32_t k_registers(enum kind kind, const struct attnd_x86_tile *t)
{
	return (k_operand_rows(kind, t) + SIDE - 1) / SIDE;
}

/* Is K read where it lies? Else it is copied (widened) and filled up with zeros. */
ATTND_INLINE bool k_in_place(enum kind kind, const struct attnd_x86_tile *t)
{
	return kind == KIND_BF16 && t->k_rows % SIDE == 0;
}

ATTND_INLINE void stage_group(enum kind kind, const struct attnd_lookup *l, const struct attnd_x86_tile *t,
			      uint32_t g, char *to)
{
	const uint32_t rows = k_operand_rows(kind, t);

	if (kind == KIND_BF16)
		copy_rows(t->k[g], t->k_rows, to);
	else
		widen_rows(l, t->k[g], t->k_rows, to);
	memset(to + rows * 64, 0, (k_registers(kind, t) * SIDE - rows) * 64);
}

/* 16 dims of a group of V: 8 rows of token pairs. */
ATTND_INLINE void stage_strip(enum kind kind, const struct attnd_lookup *l, const struct attnd_x86_tile *t,
			      uint32_t g, uint32_t j, char *to)
{
	const char *v = t->v[g] + j * t->v_stride;
	char turned[4 * 64] __attribute__((aligned(64)));

	if (!t->args->fmt->spec.v_in_k) {
		if (kind == KIND_BF16)
			copy_rows(v, 8, to);
		else
			widen_rows(l, v, 4, to);
	} else if (kind == KIND_BF16) {
		attnd_flip_bf16(v, t->k_rows - j * t->v_rows, to);
	} else {
		attnd_turn_fours(v, t->k_rows - j * t->v_rows, turned);
		widen_rows(l, turned, 4, to);
	}
}

/* For many rows: K and V of the whole step, kept from tile to tile in t->stage. */
ATTND_INLINE void keep_k(enum kind kind, const struct attnd_x86_tile *t, struct right *r)
{
	const struct attnd_lookup l = lookup_of(kind);

	r->k_steps = k_registers(kind, t);
	for (uint32_t g = 0; g < t->groups; g++) {
		r->k[g] = k_in_place(kind, t) ? t->k[g] : t->stage + g * r->k_steps * BYTES;
		if (!t->fresh)
			continue;
		if (t->next_k[g] != t->k[g])
			prefetch_rows(t->next_k[g], t->k_rows);
		if (!k_in_place(kind, t))
			stage_group(kind, &l, t, g, t->stage + g * r->k_steps * BYTES);
	}
}

ATTND_INLINE void keep_v(enum kind kind, const struct attnd_x86_tile *t, struct right *r)
{
	const struct attnd_lookup l = lookup_of(kind);
	char *stage = t->stage + ATTND_X86_GROUPS * k_registers(kind, t) * BYTES;
	bool in_k = t->args->fmt->spec.v_in_k;

	r->v_stride = PAIRS * BYTES;
	for (uint32_t p = 0; p < t->groups / 2; p++)
		r->v[p] = stage + p * BYTES;
	for (uint32_t j = 0; t->fresh && j < t->strips; j++)
		for (uint32_t g = 0; g < t->groups; g++) {
			if (!in_k && t->next_v[g] != t->v[g])
				prefetch_rows(t->next_v[g] + j * t->v_stride, t->v_rows);
			stage_strip(kind, &l, t, g, j, stage + j * r->v_stride + g * (BYTES / 2));
		}
}

/* ---- Softmax ---- */

/*
 * 2^x by the integer part of x and a minimax polynomial of 2^f, 0 <= f < 1, that is 1 at 0: within
 * 3.2e-6 (polynomial 2.9e-6); the weights are rounded to bf16 (2^-9) next. 0 exactly below 2^-126
 * and at -inf (denormal results would be slow); NaN stays NaN.
 */
ATTND_INLINE __m512 exp2_amx(__m512 x)
{
	__mmask16 keep = _mm512_cmp_ps_mask(x, _mm512_set1_ps(-126.0f), _CMP_NLT_UQ);
	__m512 f = _mm512_reduce_ps(x, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC);
	__m512 p = _mm512_fmadd_ps(_mm512_set1_ps(0x1.b7f730p-7f), f, _mm512_set1_ps(0x1.abf868p-5f));

	p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(0x1.ee2450p-3f));
	p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(0x1.62d6c6p-1f));
	p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(1.0f));
	return _mm512_maskz_scalef_ps(keep, p, x);
}

/* One row's scores of `groups` groups become bf16 weights at the front of the row. Returns lanes' sums. */
ATTND_INLINE __m512 soften_row(enum kind kind, bool scaled, const struct attnd_x86_tile *t, uint32_t groups,
			       uint32_t r)
{
	struct attnd_partial *part = t->partial[r];
	float *s = t->s + r * ATTND_X86_STEP, scale = t->shaped ? 1.0f : t->scale, ref = part->m * ATTND_LOG2E;
	__m512 scale2 = _mm512_set1_ps(scale * ATTND_LOG2E), largest, sum = _mm512_setzero_ps(), m2, above;

	if (t->shaped)
		attnd_shape_scores(t, r, s);
	if (t->visible[r])
		attnd_hide_scores(t, r, s);
	largest = _mm512_load_ps(s);
	ATTND_UNROLL
	for (uint32_t g = 1; g < groups; g++)
		largest = _mm512_max_ps(largest, _mm512_load_ps(s + g * ATTND_X86_LANES));
	above = _mm512_fmsub_ps(largest, scale2, _mm512_set1_ps(ref));
	if (__builtin_expect(_mm512_cmp_ps_mask(above, _mm512_set1_ps(ATTND_SLACK), _CMP_NLE_UQ), 0))
		ref = attnd_raise(t, part, scale, largest);
	m2 = _mm512_set1_ps(ref);
	ATTND_UNROLL
	for (uint32_t g = 0; g < groups; g += 2) {
		__m512 a = exp2_amx(_mm512_fmsub_ps(_mm512_load_ps(s + g * ATTND_X86_LANES), scale2, m2));
		__m512 b = exp2_amx(_mm512_fmsub_ps(_mm512_load_ps(s + (g + 1) * ATTND_X86_LANES), scale2, m2));
		__m512i w;

		sum = _mm512_add_ps(_mm512_add_ps(sum, a), b);
		if (scaled) {
			a = attnd_scale_weight(t, r, g, a);
			b = attnd_scale_weight(t, r, g + 1, b);
		}
		w = (__m512i)_mm512_cvtne2ps_pbh(b, a);
		_mm512_store_si512(s + g * ATTND_X86_LANES / 2, kind == KIND_BF16 ? w : swap_middle(w));
	}
	return sum;
}

/* All combinations of types, and whether a step is whole, as code of their own. */
static __attribute__((noinline)) __m512 soften_one(enum kind kind, const struct attnd_x86_tile *t, uint32_t r)
{
	if (kind == KIND_BF16)
		return t->groups == ATTND_X86_GROUPS ? soften_row(KIND_BF16, false, t, ATTND_X86_GROUPS, r)
						     : soften_row(KIND_BF16, false, t, t->groups, r);
	return t->groups == ATTND_X86_GROUPS ? soften_row(KIND_INT8, true, t, ATTND_X86_GROUPS, r)
					     : soften_row(KIND_INT8, true, t, t->groups, r);
}

/* Rows [row, end) whose softmax is due while `calls` pieces of other work are issued. */
struct beside {
	enum kind kind;
	const struct attnd_x86_tile *t;
	uint32_t row, end, credit, calls;
	__m512 sums[4]; /* of the last rows */
};

static void soften_next(struct beside *b)
{
	uint32_t i = b->row & 3;

	b->sums[i] = soften_one(b->kind, b->t, b->row);
	b->row++;
	if (i == 3 || b->row == b->end) {
		float l[4];

		_mm_storeu_ps(l, attnd_reduce_four(b->sums));
		for (uint32_t j = 0; j <= i; j++)
			b->t->partial[b->row - 1 - i + j]->l += l[j];
	}
	barrier();
}

/* A row or two at a time, so that the core sees products behind them. */
ATTND_INLINE void soften_beside(struct beside *b)
{
	if (!b)
		return;
	for (b->credit += HALF; b->credit >= b->calls && b->row < b->end; b->credit -= b->calls)
		soften_next(b);
}

static void soften_rest(struct beside *b)
{
	barrier();
	while (b->row < b->end)
		soften_next(b);
}

/* ---- Products of many rows: 32 x 32, two registers a side ---- */

/* Sums += left rows at `left` and 16 below (if `below`) x right registers a and b; `steps` of each. */
ATTND_INLINE void multiply(const char *left, size_t stride, bool below, const char *const *a, const char *const *b,
			   size_t a_step, uint32_t steps, struct beside *beside)
{
	for (uint32_t i = 0; i < steps; i++) {
		_tile_loadd(LEFT_0, left + i * 64, stride);
		_tile_loadd(RIGHT_0, a_step ? *a + i * a_step : a[i], 64);
		_tile_dpbf16ps(SUM_00, LEFT_0, RIGHT_0);
		_tile_loadd(RIGHT_1, a_step ? *b + i * a_step : b[i], 64);
		_tile_dpbf16ps(SUM_01, LEFT_0, RIGHT_1);
		if (below) {
			_tile_loadd(LEFT_1, left + SIDE * stride + i * 64, stride);
			_tile_dpbf16ps(SUM_10, LEFT_1, RIGHT_0);
			_tile_dpbf16ps(SUM_11, LEFT_1, RIGHT_1);
		}
		barrier();
		soften_beside(beside);
	}
}

/* Scores of the rows [r, r + 32) or fewer. */
ATTND_INLINE void score_half(const struct attnd_x86_tile *t, const struct right *right, uint32_t r,
			     struct beside *beside)
{
	const size_t stride = ATTND_X86_STEP * sizeof(float);
	bool below = r + SIDE < t->rows;

	for (uint32_t g = 0; g < t->groups; g += 2) {
		char *s = (char *)(t->s + r * ATTND_X86_STEP + g * ATTND_X86_LANES);

		_tile_zero(SUM_00);
		_tile_zero(SUM_01);
		_tile_zero(SUM_10);
		_tile_zero(SUM_11);
		multiply(t->q + r * t->q_stride, t->q_stride, below, &right->k[g], &right->k[g + 1], BYTES,
			 right->k_steps, beside);
		_tile_stored(SUM_00, s, stride);
		_tile_stored(SUM_01, s + 64, stride);
		if (below) {
			_tile_stored(SUM_10, s + SIDE * stride, stride);
			_tile_stored(SUM_11, s + SIDE * stride + 64, stride);
		}
		barrier();
	}
}

/* acc of up to 16 rows, two strips of each, where a register may be loaded and stored. */
struct place {
	float *at;
	size_t stride; /* bytes */
};

/* acc of `rows` rows from r on as they lie, if they are that many and evenly spaced; else at NULL. */
static struct place even_rows(const struct attnd_x86_tile *t, uint32_t r, uint32_t n, uint32_t rows)
{
	const ptrdiff_t stride = n > 1 ? (char *)t->partial[r + 1] - (char *)t->partial[r] : 64;

	for (uint32_t i = 2; i < n; i++)
		if ((char *)t->partial[r + i] - (char *)t->partial[r + i - 1] != stride)
			return (struct place){NULL, 0};
	return n < rows ? (struct place){NULL, 0} : (struct place){t->partial[r]->acc, (size_t)stride};
}

enum { SUMS_STRIDE = 2 * ATTND_X86_LANES };

/* n rows' acc (from r on) of two strips (or one) from j on, to sums or back. */
ATTND_INLINE void move_acc(bool back, const struct attnd_x86_tile *t, uint32_t r, uint32_t n, uint32_t j, bool two,
			   float *sums)
{
	for (uint32_t i = 0; i < n; i++, sums += SUMS_STRIDE) {
		float *acc = t->partial[r + i]->acc + j * ATTND_X86_LANES;
		float *from = back ? sums : acc, *to = back ? acc : sums;

		_mm512_store_ps(to, _mm512_load_ps(from));
		if (two)
			_mm512_store_ps(to + ATTND_X86_LANES, _mm512_load_ps(from + ATTND_X86_LANES));
	}
}

/* acc of the rows [r, end), at most 32, += weights x V. A sum of products is never -0, so acc is none after it. */
ATTND_INLINE void value_half(const struct attnd_x86_tile *t, const struct right *right, uint32_t r, uint32_t end,
			     struct beside *beside)
{
	const size_t stride = ATTND_X86_STEP * sizeof(float);
	const char *p = (const char *)(t->s + r * ATTND_X86_STEP), *a[PAIRS], *b[PAIRS];
	float sums[HALF * SUMS_STRIDE] __attribute__((aligned(64)));
	bool below = r + SIDE < end;
	struct place whole[2] = {even_rows(t, r, below ? SIDE : end - r, SIDE), {NULL, 0}};

	if (below)
		whole[1] = even_rows(t, r + SIDE, end - r - SIDE, SIDE);
	for (uint32_t j = 0; j < t->strips; j += 2) {
		bool two = j + 1 < t->strips;
		struct place acc[2];

		for (uint32_t i = 0; i < t->groups / 2; i++) {
			a[i] = right->v[i] + j * right->v_stride;
			b[i] = two ? a[i] + right->v_stride : a[i];
		}
		for (uint32_t h = 0; h < 1u + below; h++) {
			uint32_t from = r + h * SIDE, n = end - from < SIDE ? end - from : SIDE;

			acc[h] = (struct place){sums + h * SIDE * SUMS_STRIDE, SUMS_STRIDE * sizeof(float)};
			if (whole[h].at && two)
				acc[h] = (struct place){whole[h].at + j * ATTND_X86_LANES, whole[h].stride};
			else
				move_acc(false, t, from, n, j, two, acc[h].at);
		}
		barrier();
		_tile_loadd(SUM_00, acc[0].at, acc[0].stride);
		_tile_loadd(SUM_01, acc[0].at + ATTND_X86_LANES, acc[0].stride);
		if (below) {
			_tile_loadd(SUM_10, acc[1].at, acc[1].stride);
			_tile_loadd(SUM_11, acc[1].at + ATTND_X86_LANES, acc[1].stride);
		}
		multiply(p, stride, below, a, b, 0, t->groups / 2, beside);
		_tile_stored(SUM_00, acc[0].at, acc[0].stride);
		_tile_stored(SUM_01, acc[0].at + ATTND_X86_LANES, acc[0].stride);
		if (below) {
			_tile_stored(SUM_10, acc[1].at, acc[1].stride);
			_tile_stored(SUM_11, acc[1].at + ATTND_X86_LANES, acc[1].stride);
		}
		barrier();
		for (uint32_t h = 0; h < 1u + below; h++) {
			uint32_t from = r + h * SIDE, n = end - from < SIDE ? end - from : SIDE;

			if (!whole[h].at || !two)
				move_acc(true, t, from, n, j, two, acc[h].at);
		}
	}
}

/* ---- Products of few rows, which wait for memory ---- */

/* K two groups at a time; what is not read in place is widened into L1. */
ATTND_INLINE void few_scores(enum kind kind, const struct attnd_x86_tile *t)
{
	const size_t stride = ATTND_X86_STEP * sizeof(float);
	const struct attnd_lookup l = lookup_of(kind);
	const uint32_t steps = k_registers(kind, t);
	const uint32_t lines = attnd_ahead_share(t->ahead, 2 * (t->groups / 2) * steps);

	for (uint32_t g = 0; g < t->groups; g += 2) {
		const char *a = t->k[g], *b = t->k[g + 1];

		if (!k_in_place(kind, t)) {
			a = t->panel;
			b = t->panel + steps * BYTES;
			stage_group(kind, &l, t, g, t->panel);
			stage_group(kind, &l, t, g + 1, t->panel + steps * BYTES);
			barrier();
		}
		_tile_zero(SUM_00);
		_tile_zero(SUM_01);
		for (uint32_t i = 0; i < steps; i++) {
			_tile_loadd(LEFT_0, t->q + i * 64, t->q_stride);
			_tile_loadd(RIGHT_0, a + i * BYTES, 64);
			_tile_dpbf16ps(SUM_00, LEFT_0, RIGHT_0);
			_tile_loadd(RIGHT_1, b + i * BYTES, 64);
			_tile_dpbf16ps(SUM_01, LEFT_0, RIGHT_1);
			attnd_prefetch_ahead(t->ahead, lines);
		}
		_tile_stored(SUM_00, t->s + g * ATTND_X86_LANES, stride);
		_tile_stored(SUM_01, t->s + (g + 1) * ATTND_X86_LANES, stride);
	}
	barrier();
}

/* acc of the rows [first, first + n), two strips of V at a time. */
ATTND_INLINE void few_values(enum kind kind, const struct attnd_x86_tile *t, uint32_t first, uint32_t n)
{
	const size_t stride = ATTND_X86_STEP * sizeof(float);
	const struct attnd_lookup l = lookup_of(kind);
	const char *p = (const char *)(t->s + first * ATTND_X86_STEP);
	float sums[SIDE * SUMS_STRIDE] __attribute__((aligned(64)));
	struct place whole = even_rows(t, first, n, n);
	const uint32_t pairs = t->groups / 2, lines = attnd_ahead_share(t->ahead, (t->strips + 1) / 2 * pairs);

	for (uint32_t j = 0; j < t->strips; j += 2) {
		bool two = j + 1 < t->strips;
		struct place acc = {sums, SUMS_STRIDE * sizeof(float)};

		if (whole.at && two)
			acc = (struct place){whole.at + j * ATTND_X86_LANES, whole.stride};
		else
			move_acc(false, t, first, n, j, two, sums);
		barrier();
		_tile_loadd(SUM_00, acc.at, acc.stride);
		_tile_loadd(SUM_01, acc.at + ATTND_X86_LANES, acc.stride);
		for (uint32_t i = 0; i < pairs; i++) {
			char *a = t->panel + i * 2 * BYTES, *b = two ? a + BYTES : a;

			for (uint32_t h = 0; h < 2; h++) {
				stage_strip(kind, &l, t, 2 * i + h, j, a + h * (BYTES / 2));
				if (two)
					stage_strip(kind, &l, t, 2 * i + h, j + 1, b + h * (BYTES / 2));
			}
			barrier();
			_tile_loadd(LEFT_0, p + i * 64, stride);
			_tile_loadd(RIGHT_0, a, 64);
			_tile_dpbf16ps(SUM_00, LEFT_0, RIGHT_0);
			_tile_loadd(RIGHT_1, b, 64);
			_tile_dpbf16ps(SUM_01, LEFT_0, RIGHT_1);
			attnd_prefetch_ahead(t->ahead, lines);
		}
		_tile_stored(SUM_00, acc.at, acc.stride);
		_tile_stored(SUM_01, acc.at + ATTND_X86_LANES, acc.stride);
		barrier();
		if (!whole.at || !two)
			move_acc(true, t, first, n, j, two, sums);
	}
}

/* ---- The stages ---- */

ATTND_INLINE void scores(enum kind kind, const struct attnd_x86_tile *t)
{
	struct right right;

	configure(t, t->rows);
	if (t->rows <= SIDE) {
		few_scores(kind, t);
		return;
	}
	keep_k(kind, t, &right);
	barrier();
	for (uint32_t r = 0; r < t->rows; r += HALF)
		score_half(t, &right, r, NULL);
}

ATTND_INLINE void softmax(enum kind kind, const struct attnd_x86_tile *t)
{
	struct beside all = {.kind = kind, .t = t, .end = t->rows};

	soften_rest(&all);
}

ATTND_INLINE void values(enum kind kind, const struct attnd_x86_tile *t, uint32_t first, uint32_t n)
{
	struct right right;

	configure(t, n);
	if (n <= SIDE) {
		few_values(kind, t, first, n);
		return;
	}
	keep_v(kind, t, &right);
	for (uint32_t r = first; r < first + n; r += HALF)
		value_half(t, &right, r, r + HALF < first + n ? r + HALF : first + n, NULL);
}

/* Up to 32 rows of a tile. */
struct unit {
	const struct attnd_x86_tile *t;
	uint32_t r, end;
};

/* While one unit's softmax goes on, the matrix unit takes the scores of the next and the values of the last. */
ATTND_INLINE void many_rows(enum kind kind, const struct attnd_x86_tile *tiles, uint32_t n)
{
	struct unit unit[ATTND_X86_SPAN * ATTND_X86_ROWS / HALF];
	struct right right;
	uint32_t num = 0, score_calls, value_calls;

	for (uint32_t i = 0; i < n; i++)
		for (uint32_t r = 0; r < tiles[i].rows; r += HALF)
			unit[num++] =
				(struct unit){&tiles[i], r, r + HALF < tiles[i].rows ? r + HALF : tiles[i].rows};
	configure(tiles, SIDE);
	keep_k(kind, tiles, &right);
	keep_v(kind, tiles, &right);
	barrier();
	score_calls = right.k_steps * (tiles->groups / 2);
	value_calls = tiles->groups / 2 * ((tiles->strips + 1) / 2);
	score_half(unit[0].t, &right, 0, NULL);
	for (uint32_t u = 0; u < num; u++) {
		struct beside beside = {.kind = kind, .t = unit[u].t, .row = unit[u].r, .end = unit[u].end};

		beside.calls = (u + 1 < num ? score_calls : 0) + (u > 0 ? value_calls : 0);
		if (u + 1 < num)
			score_half(unit[u + 1].t, &right, unit[u + 1].r, &beside);
		if (u > 0)
			value_half(unit[u - 1].t, &right, unit[u - 1].r, unit[u - 1].end, &beside);
		soften_rest(&beside);
	}
	value_half(unit[num - 1].t, &right, unit[num - 1].r, unit[num - 1].end, NULL);
}

ATTND_INLINE void whole(enum kind kind, const struct attnd_x86_tile *tiles, uint32_t n)
{
	if (n > 1 || tiles->rows > SIDE) {
		many_rows(kind, tiles, n);
		return;
	}
	scores(kind, tiles);
	softmax(kind, tiles);
	values(kind, tiles, 0, tiles->rows);
}

/* ---- One kernel for each K/V type ---- */

static void pack_bf16(const char *const *query, uint32_t rows, uint32_t dims, char *to, size_t q_stride)
{
	attnd_pack_bf16(query, rows, dims, to, q_stride);
}

/* In the order of widened rows. */
static void pack_fours(const char *const *query, uint32_t rows, uint32_t dims, char *to, size_t q_stride)
{
	attnd_pack_bf16(query, rows, dims, to, q_stride);
	for (uint32_t r = 0; r < rows; r++, to += q_stride)
		for (uint32_t d = 0; d < dims; d += 32)
			_mm512_store_si512(to + d * 2, swap_middle(_mm512_load_si512(to + d * 2)));
}

#define ATTEND(name, kind, pack)                                                              \
	static void scores_##name(const struct attnd_x86_tile *t)                             \
	{                                                                                     \
		scores(kind, t);                                                              \
	}                                                                                     \
	static void softmax_##name(const struct attnd_x86_tile *t)                            \
	{                                                                                     \
		softmax(kind, t);                                                             \
	}                                                                                     \
	static void values_##name(const struct attnd_x86_tile *t, uint32_t first, uint32_t n) \
	{                                                                                     \
		values(kind, t, first, n);                                                    \
	}                                                                                     \
	static void whole_##name(const struct attnd_x86_tile *tiles, uint32_t n)              \
	{                                                                                     \
		whole(kind, tiles, n);                                                        \
	}                                                                                     \
	attnd_attend_fn attnd_attend_bf16_##name##_amx;                                       \
	void attnd_attend_bf16_##name##_amx(const struct attnd_attend_args *a)                \
	{                                                                                     \
		static const struct attnd_x86_isa isa = {                                     \
			.q_element = 2,                                                       \
			.pack_q = pack,                                                       \
			.scores = scores_##name,                                              \
			.softmax = softmax_##name,                                            \
			.values = values_##name,                                              \
			.whole = whole_##name,                                                \
			.pairs = true,                                                        \
			.keeps_above = SIDE,                                                  \
		};                                                                            \
		attnd_x86_attend(a, &isa);                                                    \
		_tile_release();                                                              \
	}

ATTEND(bf16, KIND_BF16, pack_bf16)
ATTEND(int8, KIND_INT8, pack_fours)
ATTEND(e4m3, KIND_E4M3, pack_fours)
ATTEND(e5m2, KIND_E5M2, pack_fours)
