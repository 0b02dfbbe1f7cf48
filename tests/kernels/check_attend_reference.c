/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Attention in float64, with the error that f32 arithmetic may make: docs/numerics.md, "attend".
 *
 * In:   a case's exact values and its partials.
 * Out:  a failure for each output that is outside its bound.
 * Next: TAP.
 */
#include "check_attend.h"

#define U     0x1p-24
#define FLUSH 0x1p-125 /* what exp may drop */

/* One (row, query head): its visible keys. */
struct view {
	const struct attend_case *c;
	const struct row *row;
	uint32_t head, kv_head, num;
	uint32_t *token;
	double *s, *err;	  /* score and its error; err then becomes the relative error of the weight */
	double max, sum, sum_err; /* sum_err relative */
};

/* gamma_n: the error of n roundings. */
static double gamma_n(double n)
{
	return n * U / (1 - n * U);
}

/* P may be rounded to q's type where that is not f32 (and V is not). */
static double p_unit(const struct attnd_kernel *k)
{
	if (k->isa == ATTND_ISA_C || k->q == ATTND_K_F32 || k->kv == ATTND_K_F32)
		return 0;
	return k->q == ATTND_K_BF16 ? 0x1p-8 : 0x1p-11;
}

static double p_floor(const struct attnd_kernel *k)
{
	return FLUSH + (p_unit(k) != 0 && k->q == ATTND_K_F16 ? 0x1p-25 : 0);
}

static void score(struct view *v, uint32_t j)
{
	const struct attend_case *c = v->c;
	const struct attnd_kv_spec *s = &c->fmt.spec;
	const char *q = v->row->q + v->head * c->attn.q_head_stride;
	const double *k = c->k_values + ((size_t)(j - c->base) * s->num_kv_heads + v->kv_head) * s->head_dim;
	double dot = 0, size = 0, most_q = 0, most_k = 0, x, err;

	for (uint32_t d = 0; d < s->head_dim; d++) {
		double y = exact_value(c->attn.q_dtype, q, d);

		dot += y * k[d];
		size += fabs(y * k[d]);
		most_q = fmax(most_q, fabs(y));
		most_k = fmax(most_k, fabs(k[d]));
	}
	x = dot * (double)c->attn.sm_scale;
	/* The second term: dot products that take denormals as 0. */
	err = gamma_n(s->head_dim + 4) * size * (double)c->attn.sm_scale +
	      s->head_dim * 0x1p-125 * (1 + most_q + most_k) * (double)c->attn.sm_scale;
	if (c->attn.logit_cap > 0) {
		x = (double)c->attn.logit_cap * tanh(x / (double)c->attn.logit_cap);
		err += 8 * U * fabs(x);
	}
	if (c->attn.alibi) {
		double bias = (double)c->attn.alibi[v->head] * ((double)j - v->row->pos);

		x += bias;
		err += 2 * U * fabs(bias) + U * fabs(x);
	}
	v->token[v->num] = j - c->base;
	v->s[v->num] = x;
	v->err[v->num++] = err;
}

/* Weights' relative errors, from the scores' absolute ones. */
static void weigh(struct view *v, const struct attnd_kernel *k)
{
	double rescales = v->c->fmt.chunk / v->c->fmt.step + v->c->num_chunks + 1;
	double terms = fmin(v->num, v->c->fmt.chunk) + rescales;
	double added = 0;

	v->max = -INFINITY;
	v->sum = 0;
	for (uint32_t i = 0; i < v->num; i++)
		v->max = fmax(v->max, v->s[i]);
	for (uint32_t i = 0; i < v->num; i++) {
		double w = exp(v->s[i] - v->max);
		double e = v->err[i] + 4 * U * (fabs(v->s[i]) + fabs(v->max)) + (16 + 5 * rescales) * U;

		v->err[i] = expm1(e + gamma_n(terms + 2) + p_unit(k));
		v->sum += w;
		added += w * v->err[i] + p_floor(k);
	}
	v->sum_err = added / v->sum;
}

static void compare_out(const struct view *v, const struct attnd_kernel *k, const float *out)
{
	const struct attnd_kv_spec *s = &v->c->fmt.spec;

	for (uint32_t d = 0; d < s->head_dim_v; d++) {
		double want = 0, err = 0, bound;

		for (uint32_t i = 0; i < v->num; i++) {
			double x =
				v->c->v_values[((size_t)v->token[i] * s->num_kv_heads + v->kv_head) * s->head_dim_v +
					       d];
			double w = exp(v->s[i] - v->max);

			want += w * x;
			err += fabs(x) * (w * v->err[i] + p_floor(k)) + 0x1p-149;
		}
		want /= v->sum;
		bound = (err / v->sum + fabs(want) * v->sum_err) / (1 - v->sum_err) + 2 * U * fabs(want) + 0x1p-126;
		if (!(v->sum_err < 0.5) || fabs((double)out[d] - want) <= bound)
			continue;
		fail("%s: row %u..%u head %u dim %u: %.9g, not %.9g within %.3g (%u keys, shape %d, D %u/%u, block "
		     "%u, "
		     "layout %d, group %u)",
		     k->name, v->row->lo, v->row->hi, v->head, d, (double)out[d], want, bound, v->num,
		     (int)v->c->shape, s->head_dim, s->head_dim_v, s->block_size, (int)s->layout, s->group);
		return;
	}
}

static void compare_lse(const struct view *v, const struct attnd_kernel *k, float lse)
{
	double want = v->max + log(v->sum);
	double bound = v->sum_err / (1 - v->sum_err) + 4 * U * (fabs(v->max) + fabs(log(v->sum)));

	if (v->sum_err < 0.5 && !(fabs((double)lse - want) <= bound))
		fail("%s: row %u..%u head %u: lse %.9g, not %.9g within %.3g", k->name, v->row->lo, v->row->hi,
		     v->head, (double)lse, want, bound);
}

static void compare_head(struct attend_case *c, const struct attnd_kernel *k, char *partials, uint32_t row,
			 struct view *v)
{
	float out[ATTND_K_MAX_DIM], lse;
	struct attnd_partial *whole = malloc(c->fmt.partial_bytes);

	attnd_init_any_c(&c->fmt, whole, 1);
	for (uint32_t i = 0; i < c->num_chunks; i++)
		attnd_merge_any_c(&c->fmt, whole, case_partial(c, partials, row, i, v->head), 1);
	attnd_finish_any_c(&c->fmt, whole, 1, NULL, ATTND_K_F32, out, 0, &lse);
	free(whole);
	v->num = 0;
	for (uint32_t j = v->row->lo; j < v->row->hi; j++)
		if (case_visible(v->row, j))
			score(v, j);
	if (v->num == 0) {
		if (lse != -INFINITY || out[0] != 0.0f)
			fail("%s: out %g and lse %g of no key", k->name, (double)out[0], (double)lse);
		return;
	}
	weigh(v, k);
	compare_out(v, k, out);
	compare_lse(v, k, lse);
}

void case_compare_reference(struct attend_case *c, const struct attnd_kernel *k, char *partials)
{
	/* Under emulators, of very many rows one in eight: all are compared with each other to the bit. */
	uint32_t step = check_thin > 8 && c->num_rows >= 64 ? 8 : 1;
	struct view v = {.c = c};

	v.token = malloc(c->tokens * sizeof(*v.token));
	v.s = malloc(c->tokens * sizeof(*v.s));
	v.err = malloc(c->tokens * sizeof(*v.err));
	for (uint32_t row = c->tokens % step; row < c->num_rows && !failed(); row += step)
		for (v.head = 0; v.head < c->heads; v.head++) {
			v.row = &c->rows[row];
			v.kv_head = v.head / c->fmt.spec.group;
			compare_head(c, k, partials, row, &v);
		}
	free(v.token);
	free(v.s);
	free(v.err);
}
