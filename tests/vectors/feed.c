/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A golden vector through the public API: see feed.h.
 *
 * Each sequence's first tokens go in as KV-only extends, the last ones with the job whose outputs
 * count. All sequences of the case share each plan.
 */
#include "feed.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../../client/examples/half.h"

enum { PLAN_TAG = 7, PREFIX_PARAMS = 2, CASE_PARAMS = 3 };

/* Tokens [start, start + n) of a sequence: a row of a plan. */
struct span {
	uint32_t seq, start, n;
};

struct feed {
	attnd_t *a;
	const struct vector_case *c;
	const struct feed_options *options;
	uint32_t cache, number;
	uint32_t *held;			   /* of each sequence */
	size_t *key_at, *row_at, *mask_at; /* where each sequence begins in k and v, q and out, mask */
	uint64_t *tokens;		   /* [keys] */
	struct span *spans;
	struct attnd_row *rows;
	uint64_t **masks;
	void *q, *k, *v, *out; /* arena, for all keys */
	float *lse;
	float *ret_out, *ret_lse;
	const char *what;
};

static size_t dtype_bytes(enum attnd_dtype t)
{
	return t == ATTND_F32 ? 4 : 2;
}

static void narrow(void *to, const float *from, size_t n, enum attnd_dtype t)
{
	uint16_t *half = to;

	if (t == ATTND_F32)
		memcpy(to, from, n * sizeof(float));
	for (size_t i = 0; t != ATTND_F32 && i < n; i++)
		half[i] = t == ATTND_F16 ? f16_from_float(from[i]) : bf16_from_float(from[i]);
}

static void widen(float *to, const void *from, size_t n, enum attnd_dtype t)
{
	const uint16_t *half = from;

	if (t == ATTND_F32)
		memcpy(to, from, n * sizeof(float));
	for (size_t i = 0; t != ATTND_F32 && i < n; i++)
		to[i] = t == ATTND_F16 ? float_from_f16(half[i]) : float_from_bf16(half[i]);
}

static uint64_t sequence_key(const struct feed *f, uint32_t seq)
{
	return (uint64_t)(f->number + 1) << 32 | seq;
}

/* Wire mask: bit j of row i is the case's byte for the j-th new key. */
static uint64_t *make_mask(const struct feed *f, uint32_t seq)
{
	uint32_t n = f->c->new_lens[seq], keys = f->c->seq_lens[seq];
	size_t words = (n + 63) / 64;
	uint64_t *mask = calloc(n * words + 1, sizeof(*mask));

	for (uint32_t i = 0; mask && i < n; i++)
		for (uint32_t j = 0; j < n; j++)
			if (f->c->mask[f->mask_at[seq] + (size_t)i * keys + keys - n + j])
				mask[i * words + j / 64] |= UINT64_C(1) << j % 64;
	return mask;
}

static int setup(struct feed *f)
{
	const struct vector_case *c = f->c;
	size_t n = c->num_seqs + 1, keys = 0, rows = 0, mask = 0;

	f->held = calloc(n, sizeof(*f->held));
	f->key_at = calloc(n, sizeof(*f->key_at));
	f->row_at = calloc(n, sizeof(*f->row_at));
	f->mask_at = calloc(n, sizeof(*f->mask_at));
	f->spans = calloc(n, sizeof(*f->spans));
	f->rows = calloc(n, sizeof(*f->rows));
	f->masks = calloc(n, sizeof(*f->masks));
	f->tokens = calloc(c->num_keys + 1, sizeof(*f->tokens));
	if (!f->held || !f->key_at || !f->row_at || !f->mask_at || !f->spans || !f->rows || !f->masks || !f->tokens)
		return -ENOMEM;
	for (uint32_t s = 0; s < c->num_seqs; s++) {
		f->key_at[s] = keys;
		f->row_at[s] = rows;
		f->mask_at[s] = mask;
		for (uint32_t t = 0; t < c->seq_lens[s]; t++) /* no two sequences share a token */
			f->tokens[keys + t] = (uint64_t)s << 32 | t;
		keys += c->seq_lens[s];
		rows += c->new_lens[s];
		mask += (size_t)c->new_lens[s] * c->seq_lens[s];
		if (c->mask && !(f->masks[s] = make_mask(f, s)))
			return -ENOMEM;
	}
	return 0;
}

static int alloc_arena(struct feed *f)
{
	const struct vector_case *c = f->c;
	size_t token = c->num_keys * dtype_bytes(c->q_dtype);
	void *lse = NULL;
	int rc;

	f->what = "attnd_alloc";
	rc = attnd_alloc(f->a, token * c->num_heads * c->head_dim, &f->q);
	if (!rc)
		rc = attnd_alloc(f->a, token * c->num_kv_heads * c->head_dim, &f->k);
	if (!rc)
		rc = attnd_alloc(f->a, token * c->num_kv_heads * c->head_dim_v, &f->v);
	if (!rc)
		rc = attnd_alloc(f->a, token * c->num_heads * c->head_dim_v, &f->out);
	if (!rc)
		rc = attnd_alloc(f->a, c->num_keys * c->num_heads * sizeof(float), &lse);
	f->lse = lse;
	return rc;
}

static void teardown(struct feed *f)
{
	attnd_free(f->a, f->q);
	attnd_free(f->a, f->k);
	attnd_free(f->a, f->v);
	attnd_free(f->a, f->out);
	attnd_free(f->a, f->lse);
	for (uint32_t s = 0; f->masks && s < f->c->num_seqs; s++)
		free(f->masks[s]);
	free(f->masks);
	free(f->held);
	free(f->key_at);
	free(f->row_at);
	free(f->mask_at);
	free(f->spans);
	free(f->rows);
	free(f->tokens);
}

static int open_cache(struct feed *f)
{
	const struct vector_case *c = f->c;
	struct attnd_cache_desc desc = {
		.name = "vectors",
		.num_layers = 1,
		.num_heads = c->num_heads,
		.num_kv_heads = c->num_kv_heads,
		.head_dim = c->head_dim,
		.head_dim_v = c->head_dim_v,
		.block_size = f->options->block_size ? f->options->block_size : c->block_size,
		.kv_dtype = c->kv_dtype,
		.scale_mode = c->scale_mode,
		.layout = f->options->layout,
	};
	struct attnd_params params = {
		.sm_scale = c->sm_scale,
		.logit_cap = c->logit_cap,
		.sliding_window = c->sliding_window,
		.causal = c->causal,
		.q_dtype = c->q_dtype,
		.out_dtype = c->q_dtype,
		.kv_in_dtype = c->q_dtype,
		.sinks = c->sinks,
		.alibi = c->alibi,
	};
	struct attnd_cache_info info;
	int rc;

	memcpy(desc.fingerprint, &f->number, sizeof(f->number)); /* a cache of its own */
	f->what = "attnd_cache_open";
	rc = attnd_cache_open(f->a, &desc, 1, &info);
	if (rc)
		return rc;
	f->cache = params.cache = info.cache;
	if (c->scale_mode == ATTND_SCALE_STATIC) {
		f->what = "attnd_scales_set";
		rc = attnd_scales_set(f->a, f->cache, 0, c->k_scale, c->v_scale);
	}
	if (!rc) {
		f->what = "attnd_params_set";
		rc = attnd_params_set(f->a, CASE_PARAMS, &params);
		params.causal = 1; /* an ordinary prefix, that others may see */
	}
	if (!rc)
		rc = attnd_params_set(f->a, PREFIX_PARAMS, &params);
	return rc;
}

static int open_sequences(struct feed *f)
{
	struct attnd_open_info info;
	int rc = 0;

	f->what = "attnd_seq_open";
	for (uint32_t s = 0; !rc && s < f->c->num_seqs; s++)
		rc = attnd_seq_open(f->a, sequence_key(f, s), 0, f->tokens + f->key_at[s], f->c->seq_lens[s], 0,
				    &info);
	return rc;
}

static uint32_t prefix_len(const struct feed *f, uint32_t seq)
{
	return f->c->seq_lens[seq] - f->c->new_lens[seq];
}

/* Inputs of the spans, one after the other, as the plan's rows stand. */
static void gather(struct feed *f, uint32_t num_spans, int with_out)
{
	const struct vector_case *c = f->c;
	size_t at = 0, bytes = dtype_bytes(c->q_dtype), q_row = (size_t)c->num_heads * c->head_dim;
	size_t k_row = (size_t)c->num_kv_heads * c->head_dim, v_row = (size_t)c->num_kv_heads * c->head_dim_v;

	for (uint32_t i = 0; i < num_spans; i++) {
		const struct span *s = &f->spans[i];
		size_t key = f->key_at[s->seq] + s->start;
		narrow((char *)f->k + at * k_row * bytes, c->k + key * k_row, s->n * k_row, c->q_dtype);
		narrow((char *)f->v + at * v_row * bytes, c->v + key * v_row, s->n * v_row, c->q_dtype);
		if (with_out) {
			size_t row = f->row_at[s->seq] + s->start - prefix_len(f, s->seq);
			narrow((char *)f->q + at * q_row * bytes, c->q + row * q_row, s->n * q_row, c->q_dtype);
		}
		at += s->n;
	}
}

static void scatter(struct feed *f, uint32_t num_spans)
{
	const struct vector_case *c = f->c;
	size_t at = 0, out_row = (size_t)c->num_heads * c->head_dim_v;

	for (uint32_t i = 0; i < num_spans; i++) {
		const struct span *s = &f->spans[i];
		size_t row = f->row_at[s->seq] + s->start - prefix_len(f, s->seq);
		widen(f->ret_out + row * out_row, (char *)f->out + at * out_row * dtype_bytes(c->q_dtype),
		      s->n * out_row, c->q_dtype);
		memcpy(f->ret_lse + row * c->num_heads, f->lse + at * c->num_heads,
		       s->n * c->num_heads * sizeof(float));
		at += s->n;
	}
}

static int plan_spans(struct feed *f, uint32_t num_spans, int with_out)
{
	for (uint32_t i = 0; i < num_spans; i++) {
		const struct span *s = &f->spans[i];
		f->rows[i] = (struct attnd_row){
			.key = sequence_key(f, s->seq),
			.start = s->start,
			.tokens = f->tokens + f->key_at[s->seq] + s->start,
			.num_tokens = s->n,
			.flags = with_out && !f->c->causal ? ATTND_ROW_NONCAUSAL : 0u,
			.publish_upto = s->start + s->n,
			.mask = with_out && f->c->mask ? f->masks[s->seq] : NULL,
		};
	}
	f->what = "attnd_plan";
	return attnd_plan(f->a, PLAN_TAG, f->cache, f->rows, num_spans, NULL, 0);
}

static int run_spans(struct feed *f, uint32_t num_spans, int with_out)
{
	struct attnd_attend attend = {
		.plan = PLAN_TAG,
		.params = with_out ? CASE_PARAMS : PREFIX_PARAMS,
		.flags = ATTND_LAST | (with_out ? 0u : ATTND_NO_OUT),
		.q = f->q,
		.k = f->k,
		.v = f->v,
		.out = f->out,
		.lse = f->lse,
	};
	attnd_job_t job;
	int rc;

	gather(f, num_spans, with_out);
	rc = plan_spans(f, num_spans, with_out);
	if (rc)
		return rc;
	f->what = with_out && f->c->decode ? "attnd_decode" : "attnd_extend";
	rc = with_out && f->c->decode ? attnd_decode(f->a, &attend, &job) : attnd_extend(f->a, &attend, &job);
	if (!rc)
		rc = attnd_wait(f->a, job, NULL);
	if (!rc && with_out)
		scatter(f, num_spans);
	return rc;
}

/* Feed every sequence up to its prefix (or its end), at most `chunk` tokens of each in a plan. */
static int feed_up_to(struct feed *f, int with_out, uint32_t chunk)
{
	uint32_t num_spans;
	int rc;

	do {
		num_spans = 0;
		for (uint32_t s = 0; s < f->c->num_seqs; s++) {
			uint32_t end = with_out ? f->c->seq_lens[s] : prefix_len(f, s), left = end - f->held[s];
			if (!left)
				continue;
			uint32_t n = chunk && chunk < left ? chunk : left;
			f->spans[num_spans++] = (struct span){s, f->held[s], n};
			f->held[s] += n;
		}
		rc = num_spans ? run_spans(f, num_spans, with_out) : 0;
	} while (!rc && num_spans);
	return rc;
}

static int close_sequences(struct feed *f)
{
	int rc = 0;

	f->what = "attnd_seq_close";
	for (uint32_t s = 0; !rc && s < f->c->num_seqs; s++)
		rc = attnd_seq_close(f->a, sequence_key(f, s));
	return rc;
}

int feed_case(attnd_t *a, const struct vector_case *c, uint32_t number, const struct feed_options *options,
	      float *ret_out, float *ret_lse, const char **ret_what)
{
	struct feed f = {
		.a = a,
		.c = c,
		.options = options,
		.number = number,
		.ret_out = ret_out,
		.ret_lse = ret_lse,
		.what = "memory",
	};
	/* A mask, and rows that see later ones, need all new rows at once. */
	uint32_t new_chunk = c->causal && !c->mask ? options->chunk : 0;
	int rc = setup(&f);

	if (!rc)
		rc = alloc_arena(&f);
	if (!rc)
		rc = open_cache(&f);
	if (!rc)
		rc = open_sequences(&f);
	if (!rc)
		rc = feed_up_to(&f, 0, options->chunk);
	if (!rc)
		rc = feed_up_to(&f, 1, new_chunk);
	if (!rc)
		rc = close_sequences(&f);
	*ret_what = f.what;
	teardown(&f);
	return rc;
}
