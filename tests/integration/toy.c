/* SPDX-License-Identifier: Apache-2.0 */
/*
 * In: tokens. Out: jobs through the library, and their outputs. Next: client/attnd.h.
 */
#include "toy.h"

#include <errno.h>

int toy_open(struct toy *t, attnd_t *a, uint8_t fingerprint)
{
	struct attnd_cache_desc desc = {
		.name = "toy",
		.fingerprint = {fingerprint},
		.num_layers = TOY_LAYERS,
		.num_heads = TOY_HEADS,
		.num_kv_heads = TOY_KV_HEADS,
		.head_dim = TOY_DIM,
		.block_size = 16,
	};
	struct attnd_params params = {.sm_scale = 0.25f, .causal = 1};
	void *p[4] = {NULL};
	int e = attnd_cache_open(a, &desc, 1, &t->info);

	if (e < 0)
		return e;
	params.cache = t->info.cache;
	e = attnd_params_set(a, params.cache, &params);
	for (int i = 0; e == 0 && i < 4; i++)
		e = attnd_alloc(a, (size_t)TOY_MAX_TOKENS * TOY_ROW_FLOATS * sizeof(float), &p[i]);
	if (e == 0)
		*t = (struct toy){a, params.cache, t->info, 0, 0, p[0], p[1], p[2], p[3]};
	return e;
}

int toy_plan(struct toy *t, uint32_t tag, const struct attnd_row *rows, uint32_t num_rows,
	     struct attnd_row_status *ret_status)
{
	return attnd_plan(t->a, tag, t->cache, rows, num_rows, ret_status, 0);
}

void toy_fill(float *to, uint32_t n, uint64_t token, uint64_t position, uint64_t salt)
{
	uint64_t state =
		token * UINT64_C(0x9e3779b97f4a7c15) ^ position * UINT64_C(0xbf58476d1ce4e5b9) ^ (salt + 1) << 56;

	for (uint32_t i = 0; i < n; i++)
		to[i] = (float)(next_random(&state) >> 40) / (float)(1 << 23) - 1.0f;
}

int toy_layer(struct toy *t, uint32_t tag, const struct attnd_row *rows, uint32_t num_rows, uint32_t layer)
{
	struct attnd_attend job = {
		.plan = tag,
		.params = t->cache,
		.layer = layer,
		.flags = layer == TOY_LAYERS - 1 ? ATTND_LAST : 0,
		.q = t->q,
		.k = t->k,
		.v = t->v,
		.out = t->out,
	};
	attnd_job_t id;
	size_t at = 0;

	for (uint32_t r = 0; r < num_rows; r++)
		for (uint32_t i = 0; i < rows[r].num_tokens; i++, at++) {
			uint64_t token = rows[r].tokens[i] ^ t->salt << 40, position = rows[r].start + i;
			toy_fill(t->q + at * TOY_ROW_FLOATS, TOY_ROW_FLOATS, token, position, 3 * layer);
			toy_fill(t->k + at * TOY_KV_HEADS * TOY_DIM, TOY_KV_HEADS * TOY_DIM, token, position,
				 3 * layer + 1);
			toy_fill(t->v + at * TOY_KV_HEADS * TOY_DIM, TOY_KV_HEADS * TOY_DIM, token, position,
				 3 * layer + 2);
		}
	int e = attnd_extend(t->a, &job, &id);
	return e < 0 ? e : attnd_wait(t->a, id, NULL);
}

int toy_step(struct toy *t, uint32_t tag, const struct attnd_row *rows, uint32_t num_rows,
	     struct attnd_row_status *ret_status)
{
	int e = toy_plan(t, tag, rows, num_rows, ret_status);

	for (uint32_t layer = 0; e == 0 && layer < TOY_LAYERS; layer++)
		e = toy_layer(t, tag, rows, num_rows, layer);
	return e;
}

int toy_prefill(struct toy *t, uint64_t key, const uint64_t *tokens, uint32_t num_tokens, uint64_t *ret_cached)
{
	struct attnd_open_info open;
	int e = attnd_seq_open(t->a, key, t->ns, tokens, num_tokens, num_tokens - 1, &open);

	if (e < 0)
		return e;
	struct attnd_row row = {
		.key = key,
		.start = open.cached,
		.tokens = tokens + open.cached,
		.num_tokens = num_tokens - (uint32_t)open.cached,
		.publish_upto = num_tokens,
	};
	e = toy_step(t, 1, &row, 1, NULL);
	if (e == 0)
		*ret_cached = open.cached;
	return e;
}

void toy_tokens(uint64_t *tokens, uint32_t num_tokens, uint64_t base)
{
	for (uint32_t i = 0; i < num_tokens; i++)
		tokens[i] = base + i;
}
