/* SPDX-License-Identifier: Apache-2.0 */
/*
 * attend on RVV 1.0, for any VLEN: the walk over heads, steps and rows.
 *
 * In:   rows' q, consecutive packed blocks, partials to continue, and a kind (rvv.h).
 * Out:  the partials.
 * Next: the kind's loops (tiles_rvv*.c) multiply; partial_c.c merges and finishes.
 *
 * Head by head, step by step, up to RVV_QUERIES queries at a time: scores of all, chunk by chunk
 * of K; weights, query by query; accumulators of all, strip by strip of V.
 *
 * An invisible token's score is computed and replaced. Its weight 0 meets whatever its V holds,
 * which has to be finite then:
 * - One row alone is given copies of the blocks that it does not see wholly, with zeros there.
 * - Rows together read blocks as they are. Where a block has slots that no single row sees, its V
 *   is copied first and the flags are looked at afterwards, because somebody may be writing
 *   those slots. If any flag is set, each row goes alone.
 */
#include <riscv_vector.h>
#include <string.h>
#include "partial.h"
#include "rvv.h"
#include "weights_rvv.h"

enum { MAX_BLOCKS = RVV_STEP / RVV_MIN_BLOCK, PANEL = 2 };

/* The scratch, and where the loops stand. */
struct work {
	const struct attnd_attend_args *a;
	const struct rvv_kind *kind;
	struct rvv_shape shape;
	uint32_t dim;	   /* of K in memory */
	uint32_t k_chunks; /* in a block */
	size_t k_chunk_bytes;
	uint32_t vlmax;	  /* f32 lanes at LMUL 4 */
	uint32_t element; /* bytes */
	bool widen_q;
	bool always_finite;	   /* int8 */
	uint32_t head;		   /* of this node */
	uint32_t step;		   /* position of the step's first token */
	uint32_t first_block;	   /* of the step, in a->blocks */
	const char *k[MAX_BLOCKS]; /* chunks, RVV_STEP / k_lanes */
	const char *v[MAX_BLOCKS]; /* V of each block, or the copy of it that the queries at hand use */
	float *scores;		   /* [RVV_QUERIES][RVV_STEP] */
	float *q;		   /* [RVV_QUERIES][q_stride], widened */
	uint32_t q_stride;
	float *k_scales, *v_scales; /* [RVV_STEP] */
	char *copies;		    /* [MAX_BLOCKS] V tiles */
	uint32_t num_rows, num_queries;
	struct rvv_row rows[RVV_QUERIES];
	struct rvv_query queries[RVV_QUERIES];
};

/* ---- Scratch ---- */

static size_t take(size_t *used, size_t bytes)
{
	size_t at = *used;

	*used += (bytes + 63) & ~(size_t)63;
	return at;
}

static uint32_t v_strips(const struct attnd_kv_format *f)
{
	return (f->spec.head_dim_v + f->v_lanes - 1u) / f->v_lanes;
}

static size_t v_bytes(const struct attnd_kv_format *f)
{
	return (size_t)v_strips(f) * f->v_lanes * f->spec.block_size * attnd_kdtype_bytes(f->spec.dtype);
}

/* Lays the scratch out; with base NULL only counts it. */
static size_t lay_out(const struct attnd_kv_format *f, char *base, struct work *w)
{
	uint32_t q_stride = (rvv_padded_dim(f) + 15) & ~15u;
	size_t n = 0;
	size_t scores = take(&n, sizeof(float) * RVV_QUERIES * RVV_STEP);
	size_t q = take(&n, sizeof(float) * RVV_QUERIES * q_stride);
	size_t scales = take(&n, sizeof(float) * RVV_STEP * 2);
	size_t copies = take(&n, v_bytes(f) * (RVV_STEP / f->spec.block_size));

	if (base) {
		w->scores = (void *)(base + scores);
		w->q = (void *)(base + q);
		w->q_stride = q_stride;
		w->k_scales = (void *)(base + scales);
		w->v_scales = w->k_scales + RVV_STEP;
		w->copies = base + copies;
	}
	return n;
}

uint32_t attnd_rvv_scratch(const struct attnd_kv_format *fmt)
{
	return (uint32_t)lay_out(fmt, NULL, NULL);
}

/* ---- Scores ---- */

/*
 * cap * tanh(s / cap), in place. tanh within 4 units in the last place: below 0.7 an odd minimax
 * polynomial, x + x^3 Q(x^2) with Q of degree 4; above (1 - e^-2x) / (1 + e^-2x).
 */
static void cap_scores(float *s, float cap)
{
	size_t vl = __riscv_vsetvlmax_e32m4();

	for (size_t i = 0; i < RVV_STEP; i += vl) {
		vl = __riscv_vsetvl_e32m4(RVV_STEP - i);
		vfloat32m4_t x = __riscv_vfdiv_vf_f32m4(__riscv_vle32_v_f32m4(s + i, vl), cap, vl);
		vfloat32m4_t a = __riscv_vfabs_v_f32m4(x, vl), z = __riscv_vfmul_vv_f32m4(x, x, vl);
		vfloat32m4_t e = rvv_exp_m4(__riscv_vfmul_vf_f32m4(a, -2.0f, vl), vl);
		vfloat32m4_t large = __riscv_vfdiv_vv_f32m4(__riscv_vfrsub_vf_f32m4(e, 1.0f, vl),
							    __riscv_vfadd_vf_f32m4(e, 1.0f, vl), vl);
		vfloat32m4_t p = __riscv_vfmul_vf_f32m4(z, -0x1.50c446p-8f, vl);

		p = __riscv_vfadd_vf_f32m4(p, 0x1.492fc8p-6f, vl);
		p = __riscv_vfadd_vf_f32m4(__riscv_vfmul_vv_f32m4(p, z, vl), -0x1.b6c110p-5f, vl);
		p = __riscv_vfadd_vf_f32m4(__riscv_vfmul_vv_f32m4(p, z, vl), 0x1.10faeep-3f, vl);
		p = __riscv_vfadd_vf_f32m4(__riscv_vfmul_vv_f32m4(p, z, vl), -0x1.5554f6p-2f, vl);
		p = __riscv_vfmul_vv_f32m4(p, z, vl);
		p = __riscv_vfmacc_vv_f32m4(x, x, p, vl);
		large = __riscv_vfsgnj_vv_f32m4(large, x, vl);
		p = __riscv_vmerge_vvm_f32m4(large, p, __riscv_vmflt_vf_f32m4_b8(a, 0.7f, vl), vl);
		__riscv_vse32_v_f32m4(s + i, __riscv_vfmul_vf_f32m4(p, cap, vl), vl);
	}
}

static void scale_scores(const struct rvv_shape *shape, float *s)
{
	for (size_t i = 0, vl; i < RVV_STEP; i += vl) {
		vl = __riscv_vsetvl_e32m8(RVV_STEP - i);
		vfloat32m8_t x = __riscv_vle32_v_f32m8(s + i, vl);

		if (shape->k_scales)
			x = __riscv_vfmul_vv_f32m8(x, __riscv_vle32_v_f32m8(shape->k_scales + i, vl), vl);
		__riscv_vse32_v_f32m8(s + i, __riscv_vfmul_vf_f32m8(x, shape->scale, vl), vl);
	}
}

/* s += slope * (position of the key - the row's own). */
static void add_alibi(float *s, float slope, int32_t distance)
{
	for (size_t i = 0, vl; i < RVV_STEP; i += vl) {
		vl = __riscv_vsetvl_e32m8(RVV_STEP - i);
		vint32m8_t d = __riscv_vreinterpret_v_u32m8_i32m8(__riscv_vid_v_u32m8(vl));

		d = __riscv_vadd_vx_i32m8(d, distance + (int32_t)i, vl);
		vfloat32m8_t x = __riscv_vfmacc_vf_f32m8(__riscv_vle32_v_f32m8(s + i, vl), slope,
							 __riscv_vfcvt_f_x_v_f32m8(d, vl), vl);
		__riscv_vse32_v_f32m8(s + i, x, vl);
	}
}

static void hide_scores(float *s, const uint64_t *visible)
{
	for (size_t i = 0, vl; i < RVV_STEP; i += vl) {
		vl = __riscv_vsetvl_e32m8(RVV_STEP - i);
		vbool4_t seen = __riscv_vlm_v_b4((const uint8_t *)visible + i / 8, vl);

		__riscv_vse32_v_f32m8(s + i,
				      __riscv_vfmerge_vfm_f32m8(__riscv_vle32_v_f32m8(s + i, vl), -INFINITY,
								__riscv_vmnot_m_b4(seen, vl), vl),
				      vl);
	}
}

float attnd_rvv_shape_scores(const struct rvv_shape *shape, const struct rvv_query *q)
{
	scale_scores(shape, q->scores);
	if (shape->logit_cap > 0.0f)
		cap_scores(q->scores, shape->logit_cap);
	if (q->slope != 0.0f)
		add_alibi(q->scores, q->slope, q->row->distance);
	if (!q->row->whole)
		hide_scores(q->scores, q->row->visible);
	return rvv_max(q->scores);
}

/* ---- What a row sees of a step ---- */

/* Bits [at, at + 64) of the mask, bits at and after `bits` being 0; before bit 0 all is visible. */
static uint64_t mask_word(const uint64_t *mask, int64_t at, int64_t bits)
{
	uint64_t word = 0;
	int64_t i = at >> 6;
	unsigned shift = (unsigned)(at & 63);

	if (at <= -64)
		return UINT64_MAX;
	if (i < 0)
		word = UINT64_MAX >> shift;
	else if (i * 64 < bits)
		word = mask[i] >> shift;
	if (shift && (i + 1) * 64 < bits)
		word |= mask[i + 1] << (64 - shift);
	return word;
}

/* Bits [lo, hi) of word w. */
static uint64_t range_word(uint32_t w, uint32_t lo, uint32_t hi)
{
	uint32_t from = lo > w * 64 ? lo - w * 64 : 0, to = hi > w * 64 ? hi - w * 64 : 0;

	if (from >= 64 || to == 0 || from >= to)
		return 0;
	return UINT64_MAX << from & UINT64_MAX >> (64 - (to < 64 ? to : 64));
}

/* False: nothing. */
static bool look(const struct work *w, const struct attnd_qrow *row, struct rvv_row *view)
{
	uint32_t end = w->step + RVV_STEP, hi = row->hi < end ? row->hi : end;
	uint32_t lo = row->lo > w->step ? row->lo : w->step;
	uint64_t any = 0, all = UINT64_MAX;

	if (lo >= hi)
		return false;
	*view = (struct rvv_row){.row = row, .lo = lo - w->step, .hi = hi - w->step};
	view->distance = (int32_t)(w->step - row->pos);
	for (uint32_t i = 0; i < RVV_STEP / 64; i++) {
		uint64_t bits = range_word(i, view->lo, view->hi);

		if (row->mask)
			bits &= mask_word(row->mask, (int64_t)w->step + i * 64 - row->mask_start,
					  (int64_t)row->hi - row->mask_start);
		view->visible[i] = bits;
		any |= bits;
		all &= bits;
	}
	view->whole = all == UINT64_MAX;
	return any != 0;
}

/* Does the row see all of the step's tokens [t, t + n)? */
static bool sees(const struct rvv_row *row, uint32_t t, uint32_t n)
{
	for (uint32_t i = t / 64; i <= (t + n - 1) / 64; i++) {
		uint64_t want = range_word(i, t, t + n);

		if ((row->visible[i] & want) != want)
			return false;
	}
	return true;
}

/* ---- V: as it is, or a copy ---- */

/* One dim of K, n tokens at src_stride bytes, to V's place for it. */
static void copy_strided(char *dst, ptrdiff_t dst_stride, const char *src, ptrdiff_t src_stride, uint32_t element,
			 uint32_t n)
{
	for (size_t vl; n > 0; n -= (uint32_t)vl) {
		if (element == 1) {
			vl = __riscv_vsetvl_e8m1(n);
			__riscv_vsse8_v_u8m1((uint8_t *)dst, dst_stride,
					     __riscv_vlse8_v_u8m1((const uint8_t *)src, src_stride, vl), vl);
		} else if (element == 2) {
			vl = __riscv_vsetvl_e16m2(n);
			__riscv_vsse16_v_u16m2((uint16_t *)dst, dst_stride,
					       __riscv_vlse16_v_u16m2((const uint16_t *)src, src_stride, vl), vl);
		} else {
			vl = __riscv_vsetvl_e32m4(n);
			__riscv_vsse32_v_u32m4((uint32_t *)dst, dst_stride,
					       __riscv_vlse32_v_u32m4((const uint32_t *)src, src_stride, vl), vl);
		}
		dst += (ptrdiff_t)vl * dst_stride;
		src += (ptrdiff_t)vl * src_stride;
	}
}

/* V out of K's tile, for v_in_k: once for all queries at hand, which are many there (MLA). */
static void transpose(const struct work *w, char *dst, uint32_t block)
{
	const struct attnd_kv_format *f = w->a->fmt;
	uint32_t es = w->element, ilv = f->v_ilv, rows = f->k_lanes / ilv;
	size_t row_bytes = (size_t)f->v_lanes * ilv * es;

	for (uint32_t c = 0; c < w->k_chunks; c++) {
		const char *chunk = w->k[block * w->k_chunks + c];

		for (uint32_t d = 0; d < f->spec.head_dim_v; d++)
			for (uint32_t i = 0; i < ilv; i++) {
				const char *src = chunk + (size_t)(d / ilv) * f->k_lanes * ilv * es + d % ilv * es +
						  i * ilv * es;
				size_t strip = (size_t)(d / f->v_lanes) * (f->spec.block_size / ilv) * row_bytes;
				char *to = dst + strip + (size_t)c * rows * row_bytes +
					   (size_t)(d % f->v_lanes) * ilv * es + i * es;

				copy_strided(to, (ptrdiff_t)row_bytes, src, (ptrdiff_t)(ilv * ilv * es), es, rows);
			}
	}
}

/* Zeros for the slots of the copy that the row does not see. */
static void zero_hidden(const struct work *w, char *dst, uint32_t block, const struct rvv_row *row)
{
	const struct attnd_kv_format *f = w->a->fmt;
	uint32_t es = w->element, ilv = f->v_ilv, size = f->spec.block_size;

	for (uint32_t slot = 0; slot < size; slot++) {
		uint32_t t = block * size + slot;

		if (row->visible[t / 64] >> (t % 64) & 1)
			continue;
		for (uint32_t s = 0; s < v_strips(f); s++) {
			char *p =
				dst + (((size_t)s * (size / ilv) + slot / ilv) * f->v_lanes * ilv + slot % ilv) * es;

			for (uint32_t d = 0; d < f->v_lanes; d++)
				memset(p + (size_t)d * ilv * es, 0, es);
		}
	}
}

static const char *tile(const struct work *w, uint32_t block)
{
	return (const char *)w->a->blocks[w->first_block + block] + w->head * w->a->fmt->tile_bytes;
}

/* From now on the block's V is a copy. */
static void use_copy(struct work *w, uint32_t block)
{
	char *dst = w->copies + block * v_bytes(w->a->fmt);

	if (w->a->fmt->spec.v_in_k)
		transpose(w, dst, block);
	else
		memcpy(dst, tile(w, block) + w->a->fmt->v_off, v_bytes(w->a->fmt));
	w->v[block] = dst;
}

/* V for one row alone. */
static void values_for_row(struct work *w, const struct rvv_row *row)
{
	const struct attnd_kv_format *f = w->a->fmt;
	uint32_t size = f->spec.block_size;

	for (uint32_t b = row->lo / size; b * size < row->hi; b++) {
		bool all = w->always_finite || sees(row, b * size, size);

		w->v[b] = tile(w, b) + f->v_off;
		if (f->spec.v_in_k || !all)
			use_copy(w, b);
		if (!all)
			zero_hidden(w, w->copies + b * v_bytes(f), b, row);
	}
}

static bool flagged(const struct work *w, uint32_t lo, uint32_t hi)
{
	uint32_t size = w->a->fmt->spec.block_size;

	for (uint32_t b = lo / size; b * size < hi; b++)
		if (__atomic_load_n(&w->a->flags[w->first_block + b][w->head], __ATOMIC_RELAXED))
			return true;
	return false;
}

static bool anyone_sees(const struct work *w, uint32_t t, uint32_t n)
{
	for (uint32_t r = 0; r < w->num_rows; r++)
		if (sees(&w->rows[r], t, n))
			return true;
	return false;
}

/* V for all rows together, or false: some tile is flagged. */
static bool values_for_all(struct work *w)
{
	const struct attnd_kv_format *f = w->a->fmt;
	uint32_t size = f->spec.block_size, lo = RVV_STEP, hi = 0;

	for (uint32_t r = 0; r < w->num_rows; r++) {
		lo = w->rows[r].lo < lo ? w->rows[r].lo : lo;
		hi = w->rows[r].hi > hi ? w->rows[r].hi : hi;
	}
	for (uint32_t b = lo / size; b * size < hi; b++) {
		w->v[b] = tile(w, b) + f->v_off;
		if (f->spec.v_in_k || !(w->always_finite || anyone_sees(w, b * size, size)))
			use_copy(w, b);
	}
	/* Pairs with the writer's: flag first, then data. */
	__atomic_thread_fence(__ATOMIC_ACQUIRE);
	return w->always_finite || !flagged(w, lo, hi);
}

/* ---- The two products ---- */

/* Queries [first, first + n) and the union of their ranges. */
struct pass {
	struct rvv_pass p;
	uint32_t n, lo, hi;
};

/* How many queries the next pass takes of those left: passes of nearly equal size. */
static uint32_t pass_size(uint32_t left)
{
	uint32_t passes = (left + RVV_PASS - 1) / RVV_PASS;

	return (left + passes - 1) / passes;
}

static uint32_t gather_pass(const struct rvv_query *q, uint32_t left, struct pass *ret)
{
	*ret = (struct pass){.n = pass_size(left), .lo = RVV_STEP};
	for (uint32_t i = 0; i < ret->n; i++) {
		ret->lo = q[i].row->lo < ret->lo ? q[i].row->lo : ret->lo;
		ret->hi = q[i].row->hi > ret->hi ? q[i].row->hi : ret->hi;
	}
	return ret->n;
}

/* Chunks [c, end) of K for one pass. */
static void score_chunks(const struct work *w, const struct rvv_kind *kind, const struct pass *ps, uint32_t c,
			 uint32_t end)
{
	uint32_t lanes = w->a->fmt->k_lanes, i = ps->n - 1, width = 1;
	rvv_qk_fn *one = kind->qk_rows[i], *two = NULL;

	if (lanes == w->vlmax) {
		one = kind->qk_whole[i] ? kind->qk_whole[i] : one;
		two = kind->qk_two[i];
	} else if (lanes * 2 == w->vlmax) {
		two = kind->qk_halves[i];
	}
	for (; c < end; c += width) {
		bool both = two && c + 1 < end;

		width = both ? 2 : 1;
		(both ? two : one)(&ps->p, w->k + c, (size_t)c * lanes, w->dim, lanes);
	}
}

/* Two chunks of K at a time for all passes, so that they stay in the first-level cache. */
static void score(const struct work *w, const struct rvv_kind *kind, const struct rvv_query *q, uint32_t n)
{
	struct pass ps[RVV_QUERIES / RVV_PASS];
	uint32_t passes = 0, lanes = w->a->fmt->k_lanes, lo = RVV_STEP, hi = 0;
	uint32_t panel = n <= RVV_PASS ? MAX_BLOCKS : PANEL;

	for (uint32_t i = 0; i < n; passes++) {
		struct pass *p = &ps[passes];

		gather_pass(q + i, n - i, p);
		for (uint32_t r = 0; r < p->n; r++, i++) {
			p->p.x[r] = q[i].q;
			p->p.y[r] = q[i].scores;
		}
		lo = p->lo < lo ? p->lo : lo;
		hi = p->hi > hi ? p->hi : hi;
	}
	for (uint32_t c = lo / lanes, end; c * lanes < hi; c = end) {
		end = c + panel;
		for (uint32_t i = 0; i < passes; i++) {
			uint32_t from = ps[i].lo / lanes, to = (ps[i].hi + lanes - 1) / lanes;

			score_chunks(w, kind, &ps[i], c > from ? c : from, end < to ? end : to);
		}
	}
}

/* One strip of V, or two side by side, for one pass. Returns how many. */
static uint32_t add_strips(const struct work *w, const struct rvv_kind *kind, const struct pass *ps, uint32_t strip)
{
	const struct attnd_kv_format *f = w->a->fmt;
	uint32_t size = f->spec.block_size, block = ps->lo / size, i = ps->n - 1;
	uint32_t lanes = f->v_lanes, at = strip * lanes, left = f->spec.head_dim_v - at;
	struct rvv_values v = {
		.blocks = w->v + block,
		.num_blocks = (ps->hi + size - 1) / size - block,
		.block_size = size,
		.strip_bytes = (size_t)lanes * size * w->element,
		.lanes = lanes,
	};
	rvv_pv_fn *run = kind->pv_rows[i];
	bool two = lanes == w->vlmax && left >= lanes * 2 && kind->pv_two[i];

	if (two)
		run = kind->pv_two[i];
	else if (lanes == w->vlmax && left >= lanes && kind->pv_whole[i])
		run = kind->pv_whole[i];
	else if (lanes * 2 == w->vlmax && left >= lanes && kind->pv_narrow[i])
		run = kind->pv_narrow[i];
	run(&ps->p, &v, strip * v.strip_bytes, at, left < lanes ? left : lanes);
	return two ? 2 : 1;
}

/* Two strips of V at a time for all passes. */
static void add_values(const struct work *w, const struct rvv_kind *kind, const struct rvv_query *q, uint32_t n)
{
	struct pass ps[RVV_QUERIES / RVV_PASS];
	uint32_t passes = 0, strips = v_strips(w->a->fmt), size = w->a->fmt->spec.block_size;

	for (uint32_t i = 0; i < n; passes++) {
		struct pass *p = &ps[passes];

		gather_pass(q + i, n - i, p);
		for (uint32_t r = 0; r < p->n; r++, i++) {
			p->p.x[r] = (const char *)q[i].scores + p->lo / size * size * kind->x_bytes;
			p->p.y[r] = q[i].partial->acc;
			p->p.alpha[r] = q[i].alpha;
		}
	}
	for (uint32_t strip = 0; strip < strips; strip += 2)
		for (uint32_t i = 0; i < passes; i++)
			for (uint32_t s = strip; s < strip + 2 && s < strips;)
				s += add_strips(w, kind, &ps[i], s);
}

/* ---- Loops ---- */

/* The queries at hand over the step; w->v is set. */
static void attend_queries(struct work *w, const struct rvv_kind *kind, struct rvv_query *q, uint32_t n)
{
	score(w, kind, q, n);
	for (uint32_t i = 0; i < n; i++)
		q[i].alpha = kind->weights(&w->shape, &q[i]);
	add_values(w, kind, q, n);
}

/* The queries of one row, of which `n` stand in the batch from `q` on. */
static void attend_row(struct work *w, struct rvv_query *q, uint32_t n)
{
	const struct rvv_row *row = q->row;
	bool check = w->kind->checked && flagged(w, row->lo, row->hi);

	values_for_row(w, row);
	attend_queries(w, check ? w->kind->checked : w->kind, q, n);
}

static void attend_batch(struct work *w)
{
	uint32_t n = w->num_queries;

	if (n > 0 && w->num_rows > 1 && values_for_all(w))
		attend_queries(w, w->kind, w->queries, n);
	else
		for (uint32_t i = 0, m; i < n; i += m) {
			for (m = 1; i + m < n && w->queries[i + m].row == w->queries[i].row; m++)
				;
			attend_row(w, &w->queries[i], m);
		}
	w->num_rows = w->num_queries = 0;
}

/* Query head g of the group. */
static void add_query(struct work *w, const struct rvv_row *row, uint32_t g)
{
	const struct attnd_attend_args *a = w->a;
	const struct attnd_kv_spec *spec = &a->fmt->spec;
	uint32_t i = w->num_queries++;
	size_t at = (size_t)(w->head - a->head) * spec->group + g;
	const void *q = (const char *)row->row->q + at * a->attn->q_head_stride;
	float *widened = w->q + (size_t)i * w->q_stride;

	if (w->widen_q) {
		attnd_rvv_widen(a->attn->q_dtype, q, spec->head_dim, widened);
		for (uint32_t d = spec->head_dim; d < w->dim; d++)
			widened[d] = 0.0f;
	}
	w->queries[i] = (struct rvv_query){
		.row = row,
		.q = w->widen_q ? widened : q,
		.scores = w->scores + (size_t)i * RVV_STEP,
		.partial = (void *)((char *)row->row->partial + at * a->fmt->partial_bytes),
		.slope = a->attn->alibi ? a->attn->alibi[w->head * spec->group + g] : 0.0f,
	};
}

static void copy_scales(struct work *w, uint32_t block)
{
	const struct attnd_kv_format *f = w->a->fmt;
	uint32_t size = f->spec.block_size;

	memcpy(w->k_scales + block * size, tile(w, block) + f->k_scale_off, size * sizeof(float));
	memcpy(w->v_scales + block * size, tile(w, block) + f->v_scale_off, size * sizeof(float));
}

static void start_step(struct work *w, uint32_t step)
{
	const struct attnd_attend_args *a = w->a;
	uint32_t size = a->fmt->spec.block_size, n;

	w->step = step;
	w->first_block = (step - a->start) / size;
	n = a->num_blocks - w->first_block;
	for (uint32_t b = 0; b < n && b < RVV_STEP / size; b++) {
		for (uint32_t c = 0; c < w->k_chunks; c++)
			w->k[b * w->k_chunks + c] = tile(w, b) + c * w->k_chunk_bytes;
		if (w->shape.k_scales)
			copy_scales(w, b);
	}
}

static void attend_step(struct work *w, uint32_t step)
{
	const struct attnd_attend_args *a = w->a;
	struct rvv_row view;

	start_step(w, step);
	for (uint32_t r = 0; r < a->num_rows; r++) {
		if (!look(w, &a->rows[r], &view))
			continue;
		for (uint32_t g = 0; g < a->fmt->spec.group; g++) {
			if (w->num_queries == RVV_QUERIES)
				attend_batch(w);
			if (g == 0 || w->num_queries == 0)
				w->rows[w->num_rows++] = view;
			add_query(w, &w->rows[w->num_rows - 1], g);
		}
	}
	attend_batch(w);
}

static void set_up(struct work *w)
{
	const struct attnd_kv_format *f = w->a->fmt;
	const struct attnd_attn *attn = w->a->attn;
	bool fixed = f->spec.scale == ATTND_K_SCALE_STATIC, dynamic = f->spec.scale == ATTND_K_SCALE_DYNAMIC;

	lay_out(f, w->a->scratch, w);
	w->dim = rvv_padded_dim(f);
	w->element = attnd_kdtype_bytes(f->spec.dtype);
	w->k_chunks = f->spec.block_size / f->k_lanes;
	w->k_chunk_bytes = (size_t)w->dim * f->k_lanes * w->element;
	w->vlmax = (uint32_t)__riscv_vsetvlmax_e32m4();
	w->widen_q = w->kind->x_bytes == 4 && (attn->q_dtype != ATTND_K_F32 || w->dim != f->spec.head_dim);
	w->always_finite = f->spec.dtype == ATTND_K_INT8;
	w->shape = (struct rvv_shape){
		.scale = fixed ? attn->sm_scale * attn->k_scale : attn->sm_scale,
		.logit_cap = attn->logit_cap,
		.v_scale = !fixed	    ? 1.0f
			   : f->spec.v_in_k ? attn->k_scale
					    : attn->v_scale,
		.k_scales = dynamic ? w->k_scales : NULL,
		.v_scales = dynamic ? w->v_scales : NULL,
	};
	w->num_rows = w->num_queries = 0;
}

void attnd_rvv_attend(const struct attnd_attend_args *a, const struct rvv_kind *kind)
{
	struct work w;

	w.a = a;
	w.kind = kind;
	set_up(&w);
	for (w.head = a->head; w.head < a->head + a->num_heads; w.head++)
		for (uint32_t step = a->begin; step < a->end; step += RVV_STEP)
			attend_step(&w, step);
}
