/* SPDX-License-Identifier: Apache-2.0 */
/*
 * attend in portable C: the reference that every other attend is tested against.
 *
 * In:   rows' q, consecutive blocks of any layout and dtype, partials to continue.
 * Out:  the partials.
 * Next: partial_c.c merges and finishes them.
 *
 * Step by step, head by head. Up to PAIRS (row, query head) pairs share the widening of K and V
 * to f32, PANEL tokens at a time: K as [dim][token], so that scores run along tokens; V as
 * [token][dim]. Every sum has one order: a score adds its dims one by one; l adds tokens into
 * SUMS lanes by token mod SUMS, then the lanes; acc adds tokens one by one. Tokens count from
 * the step's absolute start, so nothing depends on the call. Invisible tokens are left out of
 * all of these.
 */
#include "attend_c.h"
#include "partial.h"
#include "registry.h"
#include "scalar.h"
#include "tile.h"

enum { PAIRS = 64, PANEL = 32, MAX_STEP = 256, SUMS = 16, VDIMS = 16 };

/* The element types of one kernel. */
struct types {
	void (*q)(const void *src, uint32_t n, float *x);
	void (*k)(const struct attnd_kv_format *f, const void *block, uint32_t head, uint32_t t0, uint32_t t1,
		  float *kf);
	void (*v)(const struct attnd_kv_format *f, const void *block, uint32_t head, uint32_t t0, uint32_t t1,
		  float *vf);
};

/* One (row, query head) in one step. */
struct pair {
	const struct attnd_qrow *row;
	struct attnd_partial *partial;
	uint32_t q_head; /* of this node */
	uint32_t lo, hi; /* what it may see of the step, as tokens of the step; lo == hi: nothing */
	uint32_t num;	 /* visible tokens */
};

/* The scratch, and where the loops stand. */
struct work {
	const struct attnd_attend_args *a;
	const struct types *types;
	uint32_t dv; /* head_dim_v padded to VDIMS */
	uint32_t num_pairs;
	uint32_t head;	   /* of this node */
	uint32_t step;	   /* position of the step's first token */
	uint32_t lo, hi;   /* union of the pairs' ranges */
	struct pair *pair; /* [PAIRS] */
	float *q;	   /* [PAIRS][head_dim] */
	float *scores;	   /* [PAIRS][MAX_STEP] by token; from gather_visible on, one a visible token, in order */
	uint16_t *tokens;  /* [PAIRS][MAX_STEP]; the visible tokens */
	float *k;	   /* [head_dim][PANEL] */
	float *v;	   /* [PANEL][dv] */
	float *k_scales, *v_scales; /* [MAX_STEP], dynamic */
};

static size_t take(size_t *used, size_t bytes)
{
	size_t at = *used;

	*used += (bytes + 63) & ~(size_t)63;
	return at;
}

/* Lays the scratch out; with base NULL only counts it. */
static size_t lay_out(const struct attnd_kv_format *f, char *base, struct work *w)
{
	size_t n = 0, dim = f->spec.head_dim, dv = attnd_div_up(f->spec.head_dim_v, VDIMS) * VDIMS;
	size_t pair = take(&n, PAIRS * sizeof(struct pair));
	size_t q = take(&n, PAIRS * dim * sizeof(float));
	size_t scores = take(&n, PAIRS * MAX_STEP * sizeof(float));
	size_t tokens = take(&n, PAIRS * MAX_STEP * sizeof(uint16_t));
	size_t k = take(&n, PANEL * dim * sizeof(float));
	size_t v = take(&n, PANEL * dv * sizeof(float));
	size_t scales = take(&n, 2 * MAX_STEP * sizeof(float));

	if (base) {
		w->dv = (uint32_t)dv;
		w->pair = (void *)(base + pair);
		w->q = (void *)(base + q);
		w->scores = (void *)(base + scores);
		w->tokens = (void *)(base + tokens);
		w->k = (void *)(base + k);
		w->v = (void *)(base + v);
		w->k_scales = (void *)(base + scales);
		w->v_scales = w->k_scales + MAX_STEP;
	}
	return n;
}

uint32_t attnd_attend_c_scratch(const struct attnd_kv_format *fmt)
{
	return (uint32_t)lay_out(fmt, NULL, NULL);
}

/* ---- Widening to f32: inlined once for each element type ---- */

#define INLINE static inline __attribute__((always_inline))

INLINE float load(enum attnd_kdtype type, const void *s, size_t i)
{
	switch (type) {
	case ATTND_K_F32:
		return ((const float *)s)[i];
	case ATTND_K_F16:
		return attnd_from_f16(((const uint16_t *)s)[i]);
	case ATTND_K_BF16:
		return attnd_from_bf16(((const uint16_t *)s)[i]);
	case ATTND_K_INT8:
		return (float)((const int8_t *)s)[i];
	case ATTND_K_FP8_E4M3:
		return attnd_from_e4m3(((const uint8_t *)s)[i]);
	case ATTND_K_FP8_E5M2:
		return attnd_from_e5m2(((const uint8_t *)s)[i]);
	case ATTND_K_DTYPES:
		break;
	}
	return 0.0f;
}

INLINE void widen_strided(enum attnd_kdtype type, const void *s, size_t stride, uint32_t n, float *x)
{
	for (uint32_t i = 0; i < n; i++)
		x[i] = load(type, s, i * stride);
}

/* Constant strides let the compiler load vectors. */
INLINE void widen(enum attnd_kdtype type, const void *s, size_t stride, uint32_t n, float *x)
{
	if (stride == 1)
		widen_strided(type, s, 1, n, x);
	else if (stride == 2)
		widen_strided(type, s, 2, n, x);
	else
		widen_strided(type, s, stride, n, x);
}

/* Slots t0 .. t1 of packed K into columns of kf, one lane group after the other. */
INLINE void widen_k_packed(enum attnd_kdtype type, const struct attnd_kv_format *f, const void *block, uint32_t head,
			   uint32_t t0, uint32_t t1, float *kf)
{
	size_t es = attnd_kdtype_bytes(type);

	for (uint32_t t = t0, n; t < t1; t += n, kf += n) {
		struct attnd_walk w = attnd_walk_k(f, block, head, t);

		n = f->k_lanes - t % f->k_lanes;
		n = n < t1 - t ? n : t1 - t;
		for (uint32_t d = 0; d < f->spec.head_dim; d++)
			widen(type, w.base + d / w.inner * w.ostride + d % w.inner * es, w.inner, n, kf + d * PANEL);
	}
}

INLINE void widen_k(enum attnd_kdtype type, const struct attnd_kv_format *f, const void *block, uint32_t head,
		    uint32_t t0, uint32_t t1, float *kf)
{
	if (f->spec.layout == ATTND_K_PACKED) {
		widen_k_packed(type, f, block, head, t0, t1, kf);
		return;
	}
	for (uint32_t t = t0; t < t1; t++) {
		const void *s = attnd_walk_k(f, block, head, t).base;

		for (uint32_t d = 0; d < f->spec.head_dim; d++)
			kf[d * PANEL + t - t0] = load(type, s, d);
	}
}

INLINE void widen_v(enum attnd_kdtype type, const struct attnd_kv_format *f, const void *block, uint32_t head,
		    uint32_t t0, uint32_t t1, float *vf)
{
	uint32_t dims = f->spec.head_dim_v, dv = attnd_div_up(dims, VDIMS) * VDIMS;

	for (uint32_t t = t0; t < t1; t++, vf += dv) {
		struct attnd_walk w =
			f->spec.v_in_k ? attnd_walk_k(f, block, head, t) : attnd_walk_v(f, block, head, t);

		for (uint32_t d = 0; d < dims; d += w.inner) {
			uint32_t n = w.inner < dims - d ? w.inner : dims - d;

			widen(type, w.base + d / w.inner * w.ostride, w.istride / attnd_kdtype_bytes(type), n,
			      vf + d);
		}
	}
}

/* ---- Scores ---- */

/* s[t] = q . k_t, dim after dim, for a panel of tokens at once. */
static void dot_panel(const float *q, const float *kf, uint32_t dims, float *s)
{
	float sum[PANEL] = {0};

	for (uint32_t d = 0; d < dims; d++)
		for (uint32_t t = 0; t < PANEL; t++)
			sum[t] += q[d] * kf[d * PANEL + t];
	memcpy(s, sum, sizeof(sum));
}

/* Tokens t0 .. t1 of the step, which lie in one panel, piece by piece out of the blocks. */
static void load_panel(const struct work *w, uint32_t t0, uint32_t t1, bool is_v)
{
	const struct attnd_attend_args *a = w->a;
	uint32_t size = a->fmt->spec.block_size, panel = t0 / PANEL * PANEL;

	for (uint32_t t = t0, n; t < t1; t += n) {
		uint32_t at = w->step + t - a->start, slot = at % size;
		const void *block = a->blocks[at / size];

		n = size - slot < t1 - t ? size - slot : t1 - t;
		if (is_v)
			w->types->v(a->fmt, block, w->head, slot, slot + n, w->v + (size_t)(t - panel) * w->dv);
		else
			w->types->k(a->fmt, block, w->head, slot, slot + n, w->k + (t - panel));
	}
}

static void load_scales(const struct work *w)
{
	const struct attnd_kv_format *f = w->a->fmt;

	for (uint32_t t = w->lo; t < w->hi; t++) {
		uint32_t at = w->step + t - w->a->start, slot = at % f->spec.block_size;
		const void *block = w->a->blocks[at / f->spec.block_size];

		w->k_scales[t] = attnd_tile_scales(f, block, w->head, f->k_scale_off)[slot];
		w->v_scales[t] = attnd_tile_scales(f, block, w->head, f->v_scale_off)[slot];
	}
}

static void score_pairs(const struct work *w)
{
	uint32_t dims = w->a->fmt->spec.head_dim;

	for (uint32_t panel = w->lo / PANEL * PANEL; panel < w->hi; panel += PANEL) {
		uint32_t t0 = panel > w->lo ? panel : w->lo, t1 = panel + PANEL < w->hi ? panel + PANEL : w->hi;

		if (t1 - t0 < PANEL)
			memset(w->k, 0, (size_t)dims * PANEL * sizeof(float));
		load_panel(w, t0, t1, false);
		for (uint32_t i = 0; i < w->num_pairs; i++)
			if (w->pair[i].lo < t1 && w->pair[i].hi > t0)
				dot_panel(w->q + (size_t)i * dims, w->k, dims, w->scores + i * MAX_STEP + panel);
	}
}

/* ---- Softmax ---- */

static bool mask_bit(const struct attnd_qrow *row, uint32_t j)
{
	uint32_t bit = j - row->mask_start;

	return !row->mask || j < row->mask_start || (row->mask[bit / 64] >> (bit % 64) & 1);
}

/* The visible tokens of the step, in order, and their scores in front. */
static void gather_visible(const struct work *w, struct pair *p, float *s, uint16_t *tokens)
{
	p->num = 0;
	for (uint32_t t = p->lo; t < p->hi; t++)
		if (mask_bit(p->row, w->step + t)) {
			s[p->num] = s[t];
			tokens[p->num++] = (uint16_t)t;
		}
}

/* Scale, cap and ALiBi, in the order of the formula. */
static void shape_scores(const struct work *w, const struct pair *p, float *s, const uint16_t *tokens)
{
	const struct attnd_attn *attn = w->a->attn;
	enum attnd_kscale mode = w->a->fmt->spec.scale;
	float scale = mode == ATTND_K_SCALE_STATIC ? attn->sm_scale * attn->k_scale : attn->sm_scale;

	for (uint32_t i = 0; i < p->num; i++)
		s[i] *= mode == ATTND_K_SCALE_DYNAMIC ? scale * w->k_scales[tokens[i]] : scale;
	if (attn->logit_cap > 0.0f)
		for (uint32_t i = 0; i < p->num; i++)
			s[i] = attn->logit_cap * attnd_tanh(s[i] / attn->logit_cap);
	if (attn->alibi)
		for (uint32_t i = 0; i < p->num; i++) {
			int64_t distance = (int64_t)w->step + tokens[i] - p->row->pos;

			s[i] += attn->alibi[p->q_head] * (float)distance;
		}
}

/* s becomes exp(s - m); the state takes the new maximum. A NaN score stays NaN in l and acc. */
static void exp_scores(const struct work *w, const struct pair *p, float *s, const uint16_t *tokens)
{
	struct attnd_partial *part = p->partial;
	float m = part->m, ref, sums[SUMS] = {0};

	for (uint32_t i = 0; i < p->num; i++)
		m = s[i] > m ? s[i] : m;
	ref = m == -INFINITY ? 0.0f : m;
	for (uint32_t i = 0; i < p->num; i++)
		s[i] = attnd_exp(s[i] - ref);
	for (uint32_t i = 0; i < p->num; i++)
		sums[tokens[i] % SUMS] += s[i];
	for (uint32_t half = SUMS / 2; half; half /= 2)
		for (uint32_t i = 0; i < half; i++)
			sums[i] += sums[i + half];
	if (m != part->m) {
		float down = attnd_exp(part->m - ref);

		part->l *= down;
		for (uint32_t d = 0; d < w->a->fmt->spec.head_dim_v; d++)
			part->acc[d] *= down;
		part->m = m;
	}
	part->l += sums[0];
}

/* V's scale goes into the weights; with v_in_k it is K's. */
static void fold_v_scale(const struct work *w, const struct pair *p, float *s, const uint16_t *tokens)
{
	const struct attnd_kv_spec *spec = &w->a->fmt->spec;
	float fixed = spec->v_in_k ? w->a->attn->k_scale : w->a->attn->v_scale;

	if (spec->scale == ATTND_K_SCALE_NONE)
		return;
	for (uint32_t i = 0; i < p->num; i++)
		s[i] *= spec->scale == ATTND_K_SCALE_DYNAMIC ? w->v_scales[tokens[i]] : fixed;
}

static void softmax_pairs(const struct work *w)
{
	for (uint32_t i = 0; i < w->num_pairs; i++) {
		struct pair *p = &w->pair[i];
		float *s = w->scores + i * MAX_STEP;
		uint16_t *tokens = w->tokens + i * MAX_STEP;

		gather_visible(w, p, s, tokens);
		if (p->num == 0)
			continue;
		shape_scores(w, p, s, tokens);
		exp_scores(w, p, s, tokens);
		fold_v_scale(w, p, s, tokens);
	}
}

/* ---- P . V ---- */

/* acc += sum of weight times V row, token after token, VDIMS dims in registers. */
static void add_rows(const float *weights, const uint16_t *tokens, uint32_t n, const float *vf, uint32_t dv,
		     uint32_t dims, float *acc)
{
	for (uint32_t d = 0; d < dims; d += VDIMS) {
		uint32_t width = dims - d < VDIMS ? dims - d : VDIMS;
		float sum[VDIMS] = {0};

		memcpy(sum, acc + d, width * sizeof(float));
		for (uint32_t i = 0; i < n; i++) {
			const float *row = vf + (size_t)(tokens[i] % PANEL) * dv + d;

			for (uint32_t j = 0; j < VDIMS; j++)
				sum[j] += weights[i] * row[j];
		}
		memcpy(acc + d, sum, width * sizeof(float));
	}
}

static void add_values(const struct work *w)
{
	uint32_t from[PAIRS] = {0}, dims = w->a->fmt->spec.head_dim_v;

	for (uint32_t panel = w->lo / PANEL * PANEL; panel < w->hi; panel += PANEL) {
		uint32_t t0 = panel > w->lo ? panel : w->lo, t1 = panel + PANEL < w->hi ? panel + PANEL : w->hi;

		load_panel(w, t0, t1, true);
		for (uint32_t i = 0; i < w->num_pairs; i++) {
			const uint16_t *tokens = w->tokens + i * MAX_STEP;
			uint32_t at = from[i], end = at;

			while (end < w->pair[i].num && tokens[end] < t1)
				end++;
			add_rows(w->scores + i * MAX_STEP + at, tokens + at, end - at, w->v, w->dv, dims,
				 w->pair[i].partial->acc);
			from[i] = end;
		}
	}
}

/* ---- Loops ---- */

/* What of the step each pair sees, and the union. */
static void clip_pairs(struct work *w)
{
	uint32_t end = w->step + w->a->fmt->step;

	w->lo = w->a->fmt->step;
	w->hi = 0;
	for (uint32_t i = 0; i < w->num_pairs; i++) {
		struct pair *p = &w->pair[i];
		uint32_t lo = p->row->lo > w->step ? p->row->lo : w->step, hi = p->row->hi < end ? p->row->hi : end;

		p->num = p->lo = p->hi = 0;
		if (lo >= hi)
			continue;
		p->lo = lo - w->step;
		p->hi = hi - w->step;
		w->lo = p->lo < w->lo ? p->lo : w->lo;
		w->hi = p->hi > w->hi ? p->hi : w->hi;
	}
}

static void attend_steps(struct work *w)
{
	const struct attnd_attend_args *a = w->a;

	for (w->step = a->begin; w->step < a->end; w->step += a->fmt->step) {
		clip_pairs(w);
		if (w->lo >= w->hi)
			continue;
		if (a->fmt->spec.scale == ATTND_K_SCALE_DYNAMIC)
			load_scales(w);
		score_pairs(w);
		softmax_pairs(w);
		add_values(w);
	}
}

/* Pairs first .. first + num_pairs of the call's rows x group, for head w->head. */
static void take_pairs(struct work *w, uint32_t first)
{
	const struct attnd_attend_args *a = w->a;
	const struct attnd_kv_spec *spec = &a->fmt->spec;

	for (uint32_t i = 0; i < w->num_pairs; i++) {
		const struct attnd_qrow *row = &a->rows[(first + i) / spec->group];
		uint32_t g = (first + i) % spec->group;
		size_t at = (size_t)(w->head - a->head) * spec->group + g;

		w->pair[i] = (struct pair){
			.row = row,
			.partial = (void *)((char *)row->partial + at * a->fmt->partial_bytes),
			.q_head = w->head * spec->group + g,
		};
		w->types->q((const char *)row->q + at * a->attn->q_head_stride, spec->head_dim,
			    w->q + (size_t)i * spec->head_dim);
	}
}

static void attend(const struct attnd_attend_args *a, const struct types *types)
{
	struct work w = {.a = a, .types = types};
	uint32_t pairs = a->num_rows * a->fmt->spec.group;

	lay_out(a->fmt, a->scratch, &w);
	for (w.head = a->head; w.head < a->head + a->num_heads; w.head++)
		for (uint32_t first = 0; first < pairs; first += PAIRS) {
			w.num_pairs = pairs - first < PAIRS ? pairs - first : PAIRS;
			take_pairs(&w, first);
			attend_steps(&w);
		}
}

/* ---- One kernel for each pair of types ---- */

#define Q_TYPE(name, type)                                          \
	static void q_##name(const void *src, uint32_t n, float *x) \
	{                                                           \
		widen_strided(type, src, 1, n, x);                  \
	}

#define ATTEND(qname, kvname)                                                          \
	void attnd_attend_##qname##_##kvname##_c(const struct attnd_attend_args *a)    \
	{                                                                              \
		static const struct types types = {q_##qname, k_##kvname, v_##kvname}; \
		attend(a, &types);                                                     \
	}

#define KV_TYPE(name, type)                                                                                  \
	static void k_##name(const struct attnd_kv_format *f, const void *block, uint32_t head, uint32_t t0, \
			     uint32_t t1, float *kf)                                                         \
	{                                                                                                    \
		widen_k(type, f, block, head, t0, t1, kf);                                                   \
	}                                                                                                    \
	static void v_##name(const struct attnd_kv_format *f, const void *block, uint32_t head, uint32_t t0, \
			     uint32_t t1, float *vf)                                                         \
	{                                                                                                    \
		widen_v(type, f, block, head, t0, t1, vf);                                                   \
	}                                                                                                    \
	ATTEND(f32, name)                                                                                    \
	ATTEND(f16, name)                                                                                    \
	ATTEND(bf16, name)

Q_TYPE(f32, ATTND_K_F32)
Q_TYPE(f16, ATTND_K_F16)
Q_TYPE(bf16, ATTND_K_BF16)
KV_TYPE(f32, ATTND_K_F32)
KV_TYPE(f16, ATTND_K_F16)
KV_TYPE(bf16, ATTND_K_BF16)
KV_TYPE(int8, ATTND_K_INT8)
KV_TYPE(e4m3, ATTND_K_FP8_E4M3)
KV_TYPE(e5m2, ATTND_K_FP8_E5M2)
