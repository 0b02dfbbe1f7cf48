/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Attention in this process, in the plainest C: what the daemon's answers are compared with.
 *
 * In:   attention.h's operations.
 * Out:  out = softmax(q . K / sqrt(head_dim)) V over a sequence's own keys; nothing is ever cached
 *       for others.
 * Next: model.c.
 */
#include "attention.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "half.h"

struct store {
	float *k, *v; /* [layer][token][KV head][head_dim], max_position_embeddings tokens */
};

struct local_attention {
	struct attention base;
	struct config config;
	enum kv_dtype kv_dtype;
	uint32_t max_sequences;
	struct store *stores;
	const struct step *step;
	float *scores; /* [max_position_embeddings] */
};

static struct local_attention *self(struct attention *a)
{
	return (struct local_attention *)a;
}

static size_t token_floats(const struct config *c)
{
	return (size_t)c->num_kv_heads * c->head_dim;
}

static int local_open(struct attention *a, uint32_t sequence, const uint64_t *tokens, uint32_t num_tokens,
		      uint32_t *ret_cached)
{
	struct local_attention *t = self(a);
	struct store *s = &t->stores[sequence];
	size_t floats = token_floats(&t->config) * t->config.num_layers * t->config.max_position_embeddings;

	(void)tokens, (void)num_tokens;
	s->k = malloc(floats * sizeof(float));
	s->v = malloc(floats * sizeof(float));
	if (!s->k || !s->v)
		return fail_memory(a->error);
	*ret_cached = 0;
	return 0;
}

static int local_close(struct attention *a, uint32_t sequence)
{
	struct store *s = &self(a)->stores[sequence];

	free(s->k);
	free(s->v);
	*s = (struct store){0};
	return 0;
}

static int local_begin(struct attention *a, const struct step *step)
{
	self(a)->step = step;
	return 0;
}

/* As a cache of this dtype would store it. */
static void store_values(float *to, const float *from, size_t n, enum kv_dtype kv_dtype)
{
	for (size_t i = 0; i < n; i++)
		to[i] = kv_dtype == KV_F16    ? float_from_f16(f16_from_float(from[i]))
			: kv_dtype == KV_BF16 ? float_from_bf16(bf16_from_float(from[i]))
					      : from[i];
}

/* One query head over keys [0, num_keys); k and v point at its KV head of token 0. */
static void attend(const struct local_attention *t, const float *q, const float *k, const float *v, uint32_t num_keys,
		   float *out)
{
	uint32_t dim = t->config.head_dim;
	size_t stride = token_floats(&t->config);
	float sm_scale = 1.0f / sqrtf((float)dim), max = -INFINITY, sum = 0;

	for (uint32_t j = 0; j < num_keys; j++) {
		float dot = 0;
		for (uint32_t d = 0; d < dim; d++)
			dot += q[d] * k[j * stride + d];
		t->scores[j] = dot * sm_scale;
		max = fmaxf(max, t->scores[j]);
	}
	memset(out, 0, dim * sizeof(*out));
	for (uint32_t j = 0; j < num_keys; j++) {
		float p = expf(t->scores[j] - max);
		sum += p;
		for (uint32_t d = 0; d < dim; d++)
			out[d] += p * v[j * stride + d];
	}
	for (uint32_t d = 0; d < dim; d++)
		out[d] /= sum;
}

/* The tokens of one row, whose first is the step's token `at`. */
static void attend_row(struct local_attention *t, const struct step_row *row, uint32_t layer, size_t at, int flags)
{
	const struct config *c = &t->config;
	struct attention *a = &t->base;
	size_t floats = token_floats(c), base = (size_t)layer * c->max_position_embeddings * floats;
	float *k = t->stores[row->sequence].k + base, *v = t->stores[row->sequence].v + base;
	uint32_t group = c->num_heads / c->num_kv_heads;

	store_values(k + row->start * floats, a->k + at * floats, row->num_tokens * floats, t->kv_dtype);
	store_values(v + row->start * floats, a->v + at * floats, row->num_tokens * floats, t->kv_dtype);
	for (uint32_t i = 0; !(flags & LAYER_STORE_ONLY) && i < row->num_tokens; i++) {
		for (uint32_t h = 0; h < c->num_heads; h++) {
			size_t head = ((at + i) * c->num_heads + h) * c->head_dim;
			size_t kv_head = (size_t)(h / group) * c->head_dim;
			attend(t, a->q + head, k + kv_head, v + kv_head, row->start + i + 1, a->out + head);
		}
	}
}

static int local_layer(struct attention *a, uint32_t layer, int flags)
{
	struct local_attention *t = self(a);
	size_t at = 0;

	for (uint32_t i = 0; i < t->step->num_rows; i++) {
		attend_row(t, &t->step->rows[i], layer, at, flags);
		at += t->step->rows[i].num_tokens;
	}
	return 0;
}

static int local_recover(struct attention *a, const uint32_t *sequences, uint32_t num_sequences,
			 uint64_t *ret_lengths)
{
	(void)sequences, (void)num_sequences, (void)ret_lengths;
	return fail(a->error, -EOPNOTSUPP, "attention in this process cannot be lost");
}

static void local_destroy(struct attention *a)
{
	struct local_attention *t = self(a);

	for (uint32_t i = 0; t->stores && i < t->max_sequences; i++)
		local_close(a, i);
	free(t->stores);
	free(t->scores);
	free(a->q);
	free(a->k);
	free(a->v);
	free(a->out);
	free(t);
}

static const struct attention_ops local_ops = {
	.open = local_open,
	.begin = local_begin,
	.layer = local_layer,
	.close = local_close,
	.recover = local_recover,
	.destroy = local_destroy,
};

int attention_local_create(struct attention **ret, const struct config *config, const struct attention_limits *limits,
			   struct error *error)
{
	struct local_attention *t = calloc(1, sizeof(*t));
	size_t q = sizeof(float) * config->head_dim * config->num_heads * limits->max_tokens;
	size_t kv = sizeof(float) * token_floats(config) * limits->max_tokens;

	if (!t)
		return fail_memory(error);
	t->base.ops = &local_ops;
	t->base.error = error;
	t->config = *config;
	t->kv_dtype = limits->kv_dtype;
	t->max_sequences = limits->max_sequences;
	t->stores = calloc(limits->max_sequences, sizeof(*t->stores));
	t->scores = malloc(sizeof(float) * config->max_position_embeddings);
	t->base.q = malloc(q);
	t->base.out = malloc(q);
	t->base.k = malloc(kv);
	t->base.v = malloc(kv);
	if (!t->stores || !t->scores || !t->base.q || !t->base.out || !t->base.k || !t->base.v) {
		local_destroy(&t->base);
		return fail_memory(error);
	}
	*ret = &t->base;
	return 0;
}
