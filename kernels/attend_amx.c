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
 * so it is copied together once for all rows that share a step. Each product of 32 tokens begins
 * at 0 and is added to acc at the end of the step, in vector registers.
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

/* Palette 1: sums and left operands have `rows` rows, right ones 16. */
static void configure(uint32_t rows)
{
	struct {
		uint8_t palette, start, reserved[14];
		uint16_t bytes[16];
		uint8_t rows[16];
	} c __attribute__((aligned(64))) = {.palette = 1};

	for (int i = 0; i < 8; i++) {
		c.bytes[i] = 64;
		c.rows[i] = (uint8_t)(i >= RIGHT_0 || rows > SIDE ? SIDE : rows);
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

/* n rows of 16 fours of bytes to 2 n rows of 16 bf16 pairs. */
ATTND_INLINE void widen_rows(const struct attnd_lookup *l, const char *src, const char *next, uint32_t n, char *dst)
{
	for (uint32_t u = 0; u < n; u++) {
		__m512i a, b;
		__m512 x, y;

		_mm_prefetch(next + u * 64, _MM_HINT_T1);
		attnd_widen_row(l, _mm512_load_si512(src + u * 64), &a, &b);
		x = _mm512_castsi512_ps(a);
		y = _mm512_castsi512_ps(b);
		_mm512_store_ps(dst + u * 128, _mm512_shuffle_ps(x, y, 0x88));
		_mm512_store_ps(dst + u * 128 + 64, _mm512_shuffle_ps(x, y, 0xdd));
	}
}

ATTND_INLINE void copy_rows(const char *src, const char *next, uint32_t n, char *dst)
{
	for (uint32_t u = 0; u < n; u++) {
		_mm_prefetch(next + u * 64, _MM_HINT_T1);
		_mm512_store_si512(dst + u * 64, _mm512_load_si512(src + u * 64));
	}
}

ATTND_INLINE struct attnd_lookup lookup_of(enum kind kind)
{
	return attnd_load_tables(kind == KIND_E4M3   ? &attnd_e4m3
				 : kind == KIND_E5M2 ? &attnd_e5m2
						     : &attnd_int8,
				 kind == KIND_INT8);
}

/* K as it lies where its rows fill registers, else copied (widened) and filled up with zeros. */
ATTND_INLINE void right_k(enum kind kind, const struct attnd_x86_tile *t, struct right *r)
{
	const uint32_t rows = kind == KIND_BF16 ? t->k_rows : 2 * t->k_rows;
	const struct attnd_lookup l = lookup_of(kind);

	r->k_steps = (rows + SIDE - 1) / SIDE;
	for (uint32_t g = 0; g < t->groups; g++) {
		char *to = t->stage + g * r->k_steps * BYTES;

		r->k[g] = to;
		if (kind == KIND_BF16 && rows % SIDE == 0) {
			r->k[g] = t->k[g];
			continue;
		}
		if (!t->fresh)
			continue;
		if (kind == KIND_BF16)
			copy_rows(t->k[g], t->next_k[g], t->k_rows, to);
		else
			widen_rows(&l, t->k[g], t->next_k[g], t->k_rows, to);
		memset(to + rows * 64, 0, (r->k_steps * SIDE - rows) * 64);
	}
}

/* 16 dims of a group of V: 8 rows of token pairs. */
ATTND_INLINE void stage_strip(enum kind kind, const struct attnd_lookup *l, const struct attnd_x86_tile *t,
			      uint32_t g, uint32_t j, char *to)
{
	const char *v = t->v[g] + j * t->v_stride, *next = t->next_v[g] + j * t->v_stride;
	char turned[4 * 64] __attribute__((aligned(64)));

	if (!t->args->fmt->spec.v_in_k) {
		if (kind == KIND_BF16)
			copy_rows(v, next, t->v_rows, to);
		else
			widen_rows(l, v, next, t->v_rows, to);
	} else if (kind == KIND_BF16) {
		attnd_flip_bf16(v, t->k_rows - j * t->v_rows, to);
	} else {
		attnd_turn_fours(v, t->k_rows - j * t->v_rows, turned);
		widen_rows(l, turned, turned, t->v_rows, to);
	}
}

ATTND_INLINE void right_v(enum kind kind, const struct attnd_x86_tile *t, struct right *r)
{
	const struct attnd_lookup l = lookup_of(kind);
	char *stage = t->stage + ATTND_X86_GROUPS * r->k_steps * BYTES;

	r->v_stride = PAIRS * BYTES;
	for (uint32_t p = 0; p < t->groups / 2; p++)
		r->v[p] = stage + p * BYTES;
	for (uint32_t j = 0; t->fresh && j < t->strips; j++)
		for (uint32_t g = 0; g < t->groups; g++)
			stage_strip(kind, &l, t, g, j, stage + j * r->v_stride + g * (BYTES / 2));
}

/* ---- Softmax beside the matrix unit ---- */

/* Rows [row, end) whose softmax is due while `calls` pieces of other work are issued. */
struct beside {
	const struct attnd_x86_tile *t;
	uint32_t row, end, credit, calls;
};

static void soften(struct beside *b)
{
	if (!b || b->row >= b->end)
		return;
	for (b->credit += HALF / 4; b->credit >= b->calls && b->row < b->end; b->row += 4) {
		uint32_t n = b->end - b->row < 4 ? b->end - b->row : 4;

		b->credit -= b->calls;
		barrier();
		attnd_softmax_four(true, attnd_scaled(b->t), b->t, b->row, n);
		barrier();
	}
}

static void soften_rest(struct beside *b)
{
	b->credit = b->calls * HALF;
	soften(b);
}

/* ---- Products ---- */

/* Two by two: left rows at `left` and 16 below (if `below`), right registers a and b; `steps` of each. */
ATTND_INLINE void multiply(const char *left, size_t stride, bool below, const char *const *a, const char *const *b,
			   size_t a_step, uint32_t steps, struct beside *beside)
{
	_tile_zero(SUM_00);
	_tile_zero(SUM_01);
	_tile_zero(SUM_10);
	_tile_zero(SUM_11);
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
		soften(beside);
	}
}

/* The next tile's K, as much as a pair of groups. */
static void prefetch_k(const struct attnd_x86_tile *t, uint32_t g)
{
	if (t->next_k[g] == t->k[g])
		return;
	for (uint32_t u = 0; u < t->k_rows; u++) {
		_mm_prefetch(t->next_k[g] + u * 64, _MM_HINT_T1);
		_mm_prefetch(t->next_k[g + 1] + u * 64, _MM_HINT_T1);
	}
}

/* Scores of the rows [r, r + 32) or fewer. */
static void score_half(const struct attnd_x86_tile *t, const struct right *right, uint32_t r, struct beside *beside)
{
	const size_t stride = ATTND_X86_STEP * sizeof(float);
	bool below = r + SIDE < t->rows;

	for (uint32_t g = 0; g < t->groups; g += 2) {
		char *s = (char *)(t->s + r * ATTND_X86_STEP + g * ATTND_X86_LANES);

		if (r == 0 && right->k[g] == t->k[g])
			prefetch_k(t, g);
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

/* acc of n rows from r on, strips j and j + 1, plus the sums of the step. */
static void add_sums(const struct attnd_x86_tile *t, uint32_t r, uint32_t n, uint32_t j, const float *sums)
{
	const __m512 zero = _mm512_setzero_ps();
	bool two = j + 1 < t->strips;

	for (uint32_t i = 0; i < n; i++, sums += 2 * ATTND_X86_LANES) {
		float *acc = t->partial[r + i]->acc + j * ATTND_X86_LANES;
		__m512 x = _mm512_add_ps(_mm512_load_ps(acc), _mm512_load_ps(sums));

		/* Adding 0 turns -0 into +0, so that tokens of weight 0 leave no trace. */
		_mm512_store_ps(acc, _mm512_add_ps(x, zero));
		if (!two)
			continue;
		x = _mm512_add_ps(_mm512_load_ps(acc + ATTND_X86_LANES), _mm512_load_ps(sums + ATTND_X86_LANES));
		_mm512_store_ps(acc + ATTND_X86_LANES, _mm512_add_ps(x, zero));
	}
}

/* acc of the rows [r, end), at most 32. */
static void value_half(const struct attnd_x86_tile *t, const struct right *right, uint32_t r, uint32_t end,
		       struct beside *beside)
{
	const size_t stride = ATTND_X86_STEP * sizeof(float), sums_stride = 2 * ATTND_X86_LANES * sizeof(float);
	const char *p = (const char *)(t->s + r * ATTND_X86_STEP), *a[PAIRS], *b[PAIRS];
	float sums[HALF * 2 * ATTND_X86_LANES] __attribute__((aligned(64)));
	bool below = r + SIDE < end;

	for (uint32_t j = 0; j < t->strips; j += 2) {
		for (uint32_t i = 0; i < t->groups / 2; i++) {
			a[i] = right->v[i] + j * right->v_stride;
			b[i] = j + 1 < t->strips ? a[i] + right->v_stride : a[i];
		}
		barrier();
		multiply(p, stride, below, a, b, 0, t->groups / 2, beside);
		_tile_stored(SUM_00, sums, sums_stride);
		_tile_stored(SUM_01, sums + ATTND_X86_LANES, sums_stride);
		if (below) {
			_tile_stored(SUM_10, sums + SIDE * 2 * ATTND_X86_LANES, sums_stride);
			_tile_stored(SUM_11, sums + (SIDE * 2 + 1) * ATTND_X86_LANES, sums_stride);
		}
		barrier();
		add_sums(t, r, end - r, j, sums);
	}
}

/* ---- The stages ---- */

ATTND_INLINE void scores(enum kind kind, const struct attnd_x86_tile *t)
{
	struct right right;

	configure(t->rows);
	right_k(kind, t, &right);
	barrier();
	for (uint32_t r = 0; r < t->rows; r += HALF)
		score_half(t, &right, r, NULL);
}

static void softmax(const struct attnd_x86_tile *t)
{
	attnd_softmax_rows(true, t);
}

ATTND_INLINE void values(enum kind kind, const struct attnd_x86_tile *t, uint32_t first, uint32_t n)
{
	struct right right;

	configure(n);
	right.k_steps = ((kind == KIND_BF16 ? t->k_rows : 2 * t->k_rows) + SIDE - 1) / SIDE;
	right_v(kind, t, &right);
	for (uint32_t r = first; r < first + n; r += HALF)
		value_half(t, &right, r, r + HALF < first + n ? r + HALF : first + n, NULL);
}

/* Two halves of rows, each one's softmax beside products of the other. */
ATTND_INLINE void whole(enum kind kind, const struct attnd_x86_tile *t)
{
	struct beside upper = {.t = t, .row = 0, .end = HALF}, lower = {.t = t, .row = HALF, .end = t->rows};
	struct right right;

	if (t->rows <= HALF) {
		scores(kind, t);
		softmax(t);
		values(kind, t, 0, t->rows);
		return;
	}
	configure(t->rows);
	right_k(kind, t, &right);
	barrier();
	upper.calls = right.k_steps * (t->groups / 2);
	lower.calls = t->groups / 2 * ((t->strips + 1) / 2);
	score_half(t, &right, 0, NULL);
	score_half(t, &right, HALF, &upper);
	soften_rest(&upper);
	right_v(kind, t, &right);
	value_half(t, &right, 0, HALF, &lower);
	soften_rest(&lower);
	value_half(t, &right, HALF, t->rows, NULL);
}

/* ---- One kernel for each K/V type ---- */

#define ATTEND(name, kind)                                                                    \
	static void scores_##name(const struct attnd_x86_tile *t)                             \
	{                                                                                     \
		scores(kind, t);                                                              \
	}                                                                                     \
	static void values_##name(const struct attnd_x86_tile *t, uint32_t first, uint32_t n) \
	{                                                                                     \
		values(kind, t, first, n);                                                    \
	}                                                                                     \
	static void whole_##name(const struct attnd_x86_tile *t)                              \
	{                                                                                     \
		whole(kind, t);                                                               \
	}                                                                                     \
	attnd_attend_fn attnd_attend_bf16_##name##_amx;                                       \
	void attnd_attend_bf16_##name##_amx(const struct attnd_attend_args *a)                \
	{                                                                                     \
		static const struct attnd_x86_isa isa = {                                     \
			.q_element = 2,                                                       \
			.pack_q = attnd_pack_bf16,                                            \
			.scores = scores_##name,                                              \
			.softmax = softmax,                                                   \
			.values = values_##name,                                              \
			.whole = whole_##name,                                                \
			.pairs = true,                                                        \
		};                                                                            \
		attnd_x86_attend(a, &isa);                                                    \
		_tile_release();                                                              \
	}

ATTEND(bf16, KIND_BF16)
ATTEND(int8, KIND_INT8)
ATTEND(e4m3, KIND_E4M3)
ATTEND(e5m2, KIND_E5M2)
