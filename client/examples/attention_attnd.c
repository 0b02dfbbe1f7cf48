/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Attention by attnd: this file is all that a model runner needs of the client library.
 *
 * In:   attention.h's operations.
 * Out:  the calls of attnd.h: connect, cache_open and params_set once; seq_open once a prompt;
 *       plan once a step; decode or extend once a layer; reopen after a restart of the daemon.
 * Next: the daemon, whose cache every runner of the same model shares.
 */
#include "attention.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "attnd.h"

enum { PLAN_TAG = 1, PARAMS_ID = 0 };

struct attnd_attention {
	struct attention base;
	attnd_t *attnd;
	uint32_t cache;
	uint64_t next_key;
	uint64_t *keys; /* by sequence */
	struct attnd_row *rows;
	struct attnd_row_status *status;
	uint32_t num_rows;
	int decode;	      /* every row of this step has one token */
	attnd_job_t plan_job; /* 0: its answer was seen */
};

/* attention.h's struct is the first member. */
static struct attnd_attention *self(struct attention *a)
{
	return (struct attnd_attention *)a;
}

/* What the library knows about a failure becomes the user's line; a lost daemon is for recover. */
static int failed(struct attnd_attention *t, const char *what, int rc)
{
	return fail(t->base.error, rc, "%s: %s", what, attnd_strerror(t->attnd, rc));
}

static int attnd_open(struct attention *a, uint32_t sequence, const uint64_t *tokens, uint32_t num_tokens,
		      uint32_t *ret_cached)
{
	struct attnd_attention *t = self(a);
	struct attnd_open_info info;
	uint64_t key = t->next_key++; /* a key is used once in an engine's life */
	/* One token is kept to compute, for the logits that choose the first new one. */
	int rc = attnd_seq_open(t->attnd, key, 0, tokens, num_tokens, num_tokens - 1, &info);

	if (rc)
		return failed(t, "opening a sequence", rc);
	t->keys[sequence] = key;
	*ret_cached = (uint32_t)info.cached;
	return 0;
}

/* The plan is on its way while the model computes the first layer's q, k and v. */
static int attnd_begin(struct attention *a, const struct step *step)
{
	struct attnd_attention *t = self(a);

	t->num_rows = step->num_rows;
	t->decode = step->num_tokens == step->num_rows;
	for (uint32_t i = 0; i < step->num_rows; i++) {
		const struct step_row *row = &step->rows[i];
		t->rows[i] = (struct attnd_row){
			.key = t->keys[row->sequence],
			.start = row->start,
			.tokens = row->tokens,
			.num_tokens = row->num_tokens,
			.publish_upto = row->start + row->num_tokens,
		};
	}
	int rc = attnd_plan_async(t->attnd, PLAN_TAG, t->cache, t->rows, t->num_rows, t->status, 0, &t->plan_job);
	return rc ? failed(t, "planning a step", rc) : 0;
}

/* A refused row has zeros for outputs: no use to go on. */
static int wait_plan(struct attnd_attention *t)
{
	int rc = attnd_wait(t->attnd, t->plan_job, NULL);

	t->plan_job = 0;
	if (rc)
		return failed(t, "planning a step", rc);
	for (uint32_t i = 0; i < t->num_rows; i++) {
		rc = t->status[i].status;
		if (rc == -ENOMEM)
			return fail(t->base.error, rc, "the daemon's pool is full");
		if (rc)
			return failed(t, "planning a step", rc);
	}
	return 0;
}

static int attnd_layer(struct attention *a, uint32_t layer, int flags)
{
	struct attnd_attention *t = self(a);
	struct attnd_attend attend = {
		.plan = PLAN_TAG,
		.params = PARAMS_ID,
		.layer = layer,
		.flags = (flags & LAYER_LAST ? ATTND_LAST : 0u) | (flags & LAYER_STORE_ONLY ? ATTND_NO_OUT : 0u),
		.q = a->q,
		.k = a->k,
		.v = a->v,
		.out = a->out,
	};
	attnd_job_t job = 0;
	int plan_rc, rc = t->decode ? attnd_decode(t->attnd, &attend, &job) : attnd_extend(t->attnd, &attend, &job);

	plan_rc = t->plan_job ? wait_plan(t) : 0;
	if (!rc) /* whatever became of the plan: until then the buffers are the daemon's */
		rc = attnd_wait(t->attnd, job, NULL);
	return plan_rc ? plan_rc : rc ? failed(t, "attention", rc) : 0;
}

static int attnd_close(struct attention *a, uint32_t sequence)
{
	struct attnd_attention *t = self(a);
	int rc = attnd_seq_close(t->attnd, t->keys[sequence]);

	return rc ? failed(t, "closing a sequence", rc) : 0;
}

static int attnd_recover(struct attention *a, const uint32_t *sequences, uint32_t num_sequences,
			 uint64_t *ret_lengths)
{
	struct attnd_attention *t = self(a);
	uint64_t *keys = calloc(num_sequences + 1, sizeof(*keys));
	int rc;

	if (!keys)
		return fail_memory(a->error);
	for (uint32_t i = 0; i < num_sequences; i++)
		keys[i] = t->keys[sequences[i]];
	rc = attnd_reopen(t->attnd, keys, num_sequences, ret_lengths);
	free(keys);
	return rc ? failed(t, "the daemon is gone", rc) : 0;
}

static void attnd_destroy(struct attention *a)
{
	struct attnd_attention *t = self(a);

	attnd_disconnect(t->attnd);
	free(t->keys);
	free(t->rows);
	free(t->status);
	free(t);
}

static const struct attention_ops attnd_ops = {
	.open = attnd_open,
	.begin = attnd_begin,
	.layer = attnd_layer,
	.close = attnd_close,
	.recover = attnd_recover,
	.destroy = attnd_destroy,
};

/* q, k, v and out lie in the arena: the daemon reads and writes them where they are. */
static int alloc_buffers(struct attnd_attention *t, const struct config *c, uint32_t max_tokens)
{
	size_t token = sizeof(float) * c->head_dim * max_tokens;
	struct {
		float **p;
		size_t heads;
	} buffers[] = {
		{&t->base.q, c->num_heads},
		{&t->base.k, c->num_kv_heads},
		{&t->base.v, c->num_kv_heads},
		{&t->base.out, c->num_heads},
	};

	for (int i = 0; i < 4; i++) {
		void *p;
		int rc = attnd_alloc(t->attnd, token * buffers[i].heads, &p);
		if (rc)
			return failed(t, "arena memory", rc);
		*buffers[i].p = p;
	}
	return 0;
}

static int open_cache(struct attnd_attention *t, const struct config *c, enum kv_dtype kv_dtype,
		      const uint8_t fingerprint[16])
{
	static const enum attnd_dtype dtypes[] = {[KV_F32] = ATTND_F32, [KV_F16] = ATTND_F16, [KV_BF16] = ATTND_BF16};
	struct attnd_cache_desc desc = {
		.name = "llama-bytes",
		.num_layers = c->num_layers,
		.num_heads = c->num_heads,
		.num_kv_heads = c->num_kv_heads,
		.head_dim = c->head_dim,
		.kv_dtype = dtypes[kv_dtype],
	};
	struct attnd_cache_info info;
	struct attnd_params params = {
		.sm_scale = 1.0f / sqrtf((float)c->head_dim),
		.causal = 1,
		.q_dtype = ATTND_F32,
		.out_dtype = ATTND_F32,
		.kv_in_dtype = ATTND_F32,
	};
	int rc;

	/* The fingerprint keeps apart what two models computed for the same tokens. */
	memcpy(desc.fingerprint, fingerprint, sizeof(desc.fingerprint));
	rc = attnd_cache_open(t->attnd, &desc, 1, &info);
	if (rc)
		return failed(t, "opening the cache", rc);
	params.cache = t->cache = info.cache;
	rc = attnd_params_set(t->attnd, PARAMS_ID, &params);
	return rc ? failed(t, "setting parameters", rc) : 0;
}

int attention_attnd_create(struct attention **ret, const struct config *config, const struct attention_limits *limits,
			   const uint8_t fingerprint[16], const char *socket, struct error *error)
{
	struct attnd_connect_options options = {.socket = socket, .name = "attnd-runner"};
	struct attnd_attention *t = calloc(1, sizeof(*t));
	int rc;

	if (!t)
		return fail_memory(error);
	t->base.ops = &attnd_ops;
	t->base.error = error;
	t->next_key = 1;
	t->keys = calloc(limits->max_sequences, sizeof(*t->keys));
	t->rows = calloc(limits->max_sequences, sizeof(*t->rows));
	t->status = calloc(limits->max_sequences, sizeof(*t->status));
	rc = t->keys && t->rows && t->status ? 0 : fail_memory(error);
	if (!rc && (rc = attnd_connect(&t->attnd, &options)) != 0)
		rc = fail(error, rc, "no connection to the daemon: %s", attnd_strerror(NULL, rc));
	if (!rc)
		rc = open_cache(t, config, limits->kv_dtype, fingerprint);
	if (!rc)
		rc = alloc_buffers(t, config, limits->max_tokens);
	if (rc) {
		attnd_destroy(&t->base);
		return rc;
	}
	*ret = &t->base;
	return 0;
}
