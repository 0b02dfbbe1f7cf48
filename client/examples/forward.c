/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One forward pass: see model_forward in model.h.
 *
 * In:   a step's tokens.
 * Out:  for each layer q, k and v into the attention's buffers; at the end logits.
 * Next: attention->ops->layer, from whose out each layer goes on.
 */
#include "model.h"

#include <cblas.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

struct workspace {
	float *x, *normed;	  /* [token][hidden_size] */
	float *gate, *up;	  /* [token][intermediate_size] */
	float *cosine, *sine;	  /* [token][head_dim / 2] */
	float *inverse_frequency; /* [head_dim / 2] */
};

int workspace_create(struct workspace **ret, const struct model *m, uint32_t max_tokens, struct error *error)
{
	const struct config *c = &m->config;
	struct workspace *w = calloc(1, sizeof(*w));
	size_t hidden = sizeof(float) * c->hidden_size * max_tokens, half = c->head_dim / 2;
	size_t inner = sizeof(float) * c->intermediate_size * max_tokens, angles = sizeof(float) * half * max_tokens;

	if (!w)
		return fail_memory(error);
	w->x = malloc(hidden);
	w->normed = malloc(hidden);
	w->gate = malloc(inner);
	w->up = malloc(inner);
	w->cosine = malloc(angles);
	w->sine = malloc(angles);
	w->inverse_frequency = malloc(sizeof(float) * half);
	if (!w->x || !w->normed || !w->gate || !w->up || !w->cosine || !w->sine || !w->inverse_frequency) {
		workspace_free(w);
		return fail_memory(error);
	}
	for (size_t i = 0; i < half; i++)
		w->inverse_frequency[i] = 1.0f / powf(c->rope_theta, (float)(2 * i) / (float)c->head_dim);
	*ret = w;
	return 0;
}

void workspace_free(struct workspace *w)
{
	if (!w)
		return;
	free(w->x);
	free(w->normed);
	free(w->gate);
	free(w->up);
	free(w->cosine);
	free(w->sine);
	free(w->inverse_frequency);
	free(w);
}

/* out[token][rows] = in[token][columns] . weights[rows][columns], plus out itself if `add`. */
static void linear(float *out, const float *in, const float *weights, uint32_t tokens, uint32_t rows,
		   uint32_t columns, int add)
{
	cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, (int)tokens, (int)rows, (int)columns, 1.0f, in,
		    (int)columns, weights, (int)columns, add ? 1.0f : 0.0f, out, (int)rows);
}

static void rms_norm(float *out, const float *in, const float *weight, uint32_t tokens, const struct config *c)
{
	uint32_t n = c->hidden_size;

	for (uint32_t t = 0; t < tokens; t++, in += n, out += n) {
		float squares = 0;
		for (uint32_t i = 0; i < n; i++)
			squares += in[i] * in[i];
		float scale = 1.0f / sqrtf(squares / (float)n + c->rms_norm_eps);
		for (uint32_t i = 0; i < n; i++)
			out[i] = weight[i] * (in[i] * scale);
	}
}

/* Embeddings and the angles of every token's position. */
static void begin_tokens(const struct model *m, struct workspace *w, const struct step *step)
{
	uint32_t hidden = m->config.hidden_size, half = m->config.head_dim / 2;
	size_t at = 0;

	for (uint32_t r = 0; r < step->num_rows; r++) {
		const struct step_row *row = &step->rows[r];
		for (uint32_t t = 0; t < row->num_tokens; t++, at++) {
			memcpy(w->x + at * hidden, m->embedding + row->tokens[t] * hidden, hidden * sizeof(float));
			for (uint32_t i = 0; i < half; i++) {
				float angle = (float)(row->start + t) * w->inverse_frequency[i];
				w->cosine[at * half + i] = cosf(angle);
				w->sine[at * half + i] = sinf(angle);
			}
		}
	}
}

/* RoPE, rotate-half: dims i and i + head_dim / 2 turn together (Su et al. 2021). */
static void rotate(const struct workspace *w, float *x, uint32_t tokens, uint32_t heads, uint32_t head_dim)
{
	uint32_t half = head_dim / 2;

	for (uint32_t t = 0; t < tokens; t++) {
		const float *cosine = w->cosine + (size_t)t * half, *sine = w->sine + (size_t)t * half;
		for (uint32_t h = 0; h < heads; h++, x += head_dim) {
			for (uint32_t i = 0; i < half; i++) {
				float a = x[i], b = x[i + half];
				x[i] = a * cosine[i] - b * sine[i];
				x[i + half] = b * cosine[i] + a * sine[i];
			}
		}
	}
}

static void project_qkv(const struct config *c, const struct layer_weights *l, struct workspace *w,
			struct attention *a, uint32_t tokens, int flags)
{
	uint32_t kv_dim = c->num_kv_heads * c->head_dim;

	rms_norm(w->normed, w->x, l->input_norm, tokens, c);
	linear(a->k, w->normed, l->k, tokens, kv_dim, c->hidden_size, 0);
	linear(a->v, w->normed, l->v, tokens, kv_dim, c->hidden_size, 0);
	rotate(w, a->k, tokens, c->num_kv_heads, c->head_dim);
	if (flags & LAYER_STORE_ONLY)
		return;
	linear(a->q, w->normed, l->q, tokens, c->num_heads * c->head_dim, c->hidden_size, 0);
	rotate(w, a->q, tokens, c->num_heads, c->head_dim);
}

/* SwiGLU: down(silu(gate) * up), added to x. */
static void feed_forward(const struct config *c, const struct layer_weights *l, struct workspace *w, uint32_t tokens)
{
	size_t n = (size_t)tokens * c->intermediate_size;

	rms_norm(w->normed, w->x, l->post_attention_norm, tokens, c);
	linear(w->gate, w->normed, l->gate, tokens, c->intermediate_size, c->hidden_size, 0);
	linear(w->up, w->normed, l->up, tokens, c->intermediate_size, c->hidden_size, 0);
	for (size_t i = 0; i < n; i++)
		w->gate[i] = w->gate[i] / (1.0f + expf(-w->gate[i])) * w->up[i];
	linear(w->x, w->gate, l->down, tokens, c->hidden_size, c->intermediate_size, 1);
}

/* Of each row's last token only. */
static void compute_logits(const struct model *m, struct workspace *w, const struct step *step, float *logits)
{
	uint32_t hidden = m->config.hidden_size;
	size_t last = 0;

	for (uint32_t r = 0; r < step->num_rows; r++) {
		last += step->rows[r].num_tokens;
		rms_norm(w->normed + (size_t)r * hidden, w->x + (last - 1) * hidden, m->final_norm, 1, &m->config);
	}
	linear(logits, w->normed, m->lm_head, step->num_rows, VOCAB_SIZE, hidden, 0);
}

int model_forward(const struct model *m, struct workspace *w, struct attention *a, const struct step *step,
		  float *logits)
{
	const struct config *c = &m->config;
	uint32_t tokens = step->num_tokens;
	int rc = a->ops->begin(a, step);

	if (rc)
		return rc;
	begin_tokens(m, w, step);
	for (uint32_t i = 0; i < c->num_layers; i++) {
		int last = i + 1 == c->num_layers;
		int flags = (last ? LAYER_LAST : 0) | (last && !logits ? LAYER_STORE_ONLY : 0);
		project_qkv(c, &m->layers[i], w, a, tokens, flags);
		rc = a->ops->layer(a, i, flags);
		if (rc || flags & LAYER_STORE_ONLY)
			return rc;
		linear(w->x, a->out, m->layers[i].o, tokens, c->hidden_size, c->num_heads * c->head_dim, 1);
		feed_forward(c, &m->layers[i], w, tokens);
	}
	compute_logits(m, w, step, logits);
	return 0;
}
