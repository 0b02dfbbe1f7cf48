/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One layer in one call, for tensors outside the arena.
 *
 * In:   rows anywhere, with strides. Out: copies into staging buffers, a job, its out copied back.
 * Next: attend.c, jobs.c. Callers from other languages pay for one call, not for five.
 */
#include "internal.h"

#include <string.h>

/* Of one operand: the staging buffer, and how the parameter set lays it out. */
struct staging {
	char *base;
	uint64_t heads, head_bytes;
};

static uint64_t element_bytes(uint8_t dtype)
{
	return dtype == ATTND_WIRE_F32 ? 4 : dtype == ATTND_WIRE_F16 || dtype == ATTND_WIRE_BF16 ? 2 : 1;
}

static uint64_t or_else(uint64_t stride, uint64_t contiguous)
{
	return stride ? stride : contiguous;
}

/* In the longest pieces that both sides have in one. */
static void copy(char *to, uint64_t to_token, uint64_t to_head, const char *from, uint64_t from_token,
		 uint64_t from_head, uint64_t tokens, const struct staging *s)
{
	uint64_t row = s->heads * s->head_bytes;
	bool rows = to_head == s->head_bytes && from_head == s->head_bytes;

	if (rows && to_token == row && from_token == row) {
		memcpy(to, from, tokens * row);
		return;
	}
	for (uint64_t t = 0; t < tokens; t++, to += to_token, from += from_token) {
		if (rows) {
			memcpy(to, from, row);
			continue;
		}
		for (uint64_t h = 0; h < s->heads; h++)
			memcpy(to + h * to_head, from + h * from_head, s->head_bytes);
	}
}

static void copy_in(const struct staging *s, const struct attnd_rows *r, uint64_t tokens)
{
	uint64_t head = or_else(r->head_stride, s->head_bytes);

	copy(s->base, s->heads * s->head_bytes, s->head_bytes, r->data, or_else(r->token_stride, s->heads * head),
	     head, tokens, s);
}

static void copy_out(const struct staging *s, const struct attnd_rows *r, uint64_t tokens)
{
	uint64_t head = or_else(r->head_stride, s->head_bytes);

	copy(r->data, or_else(r->token_stride, s->heads * head), head, s->base, s->heads * s->head_bytes,
	     s->head_bytes, tokens, s);
}

/* The operand takes part: it has rows, and a buffer of this connection that holds them. */
static int stage(struct attnd *a, const void *buffer, const struct attnd_rows *r, uint64_t heads, uint64_t head_bytes,
		 uint64_t token_stride, uint64_t head_stride, uint32_t tokens, enum attnd_wire_field field,
		 struct staging *ret)
{
	if (!r->data)
		return cl_fail(a, -EINVAL, field, 0);
	if (head_stride != head_bytes || token_stride != heads * head_bytes)
		return cl_fail_text(a, -EINVAL, "attnd_attend_copied wants parameters without strides");
	if (!attnd_in_arena(a, buffer, tokens * heads * head_bytes))
		return cl_fail(a, -EFAULT, field, 0);
	*ret = (struct staging){.base = (char *)(uintptr_t)buffer, .heads = heads, .head_bytes = head_bytes};
	return 0;
}

struct operands {
	struct staging q, k, v, out;
};

static int stage_all(struct attnd *a, const struct attnd_copied *c, const struct attnd_wire_params *p,
		     const struct attnd_wire_cache *id, struct operands *ret)
{
	uint64_t kv = element_bytes(p->kv_in_dtype);
	bool no_kv = c->job.flags & ATTND_NO_KV, no_out = c->job.flags & ATTND_NO_OUT;
	uint32_t n = c->num_tokens;
	int rc = 0;

	if (!no_out)
		rc = stage(a, c->job.q, &c->q, id->num_heads, id->head_dim * element_bytes(p->q_dtype),
			   p->q_token_stride, p->q_head_stride, n, ATTND_FIELD_Q, &ret->q);
	if (!rc && !no_out)
		rc = stage(a, c->job.out, &c->out, id->num_heads, id->head_dim_v * element_bytes(p->out_dtype),
			   p->out_token_stride, p->out_head_stride, n, ATTND_FIELD_OUT, &ret->out);
	if (!rc && !no_kv)
		rc = stage(a, c->job.k, &c->k, id->num_kv_heads, id->head_dim * kv, p->k_token_stride,
			   p->k_head_stride, n, ATTND_FIELD_K, &ret->k);
	if (!rc && !no_kv && !id->v_in_k)
		rc = stage(a, c->job.v, &c->v, id->num_kv_heads, id->head_dim_v * kv, p->v_token_stride,
			   p->v_head_stride, n, ATTND_FIELD_V, &ret->v);
	return rc;
}

int attnd_attend_copied(attnd_t *a, const struct attnd_copied *c, attnd_job_t *ret_job)
{
	struct operands s = {0};
	const struct cl_params *p;
	const struct cl_cache *cache;
	attnd_job_t job = 0;
	int rc;

	if (cl_forked(a))
		return -ECHILD;
	p = c->job.params < ATTND_MAX_PARAMS ? a->objects.params[c->job.params] : NULL;
	cache = p ? cl_cache_find(a, p->wire.cache) : NULL;
	if (!cache)
		return cl_fail(a, -EINVAL, ATTND_FIELD_PARAMS, ATTND_MAX_PARAMS - 1);
	if (!c->num_tokens || c->num_tokens > ATTND_MAX_PLAN_TOKENS)
		return cl_fail(a, -EINVAL, ATTND_FIELD_TOKENS, ATTND_MAX_PLAN_TOKENS);
	rc = stage_all(a, c, &p->wire, &cache->identity, &s);
	if (rc)
		return rc;
	if (s.q.base)
		copy_in(&s.q, &c->q, c->num_tokens);
	if (s.k.base)
		copy_in(&s.k, &c->k, c->num_tokens);
	if (s.v.base)
		copy_in(&s.v, &c->v, c->num_tokens);
	rc = c->decode ? attnd_decode(a, &c->job, &job) : attnd_extend(a, &c->job, &job);
	if (!rc && ret_job)
		*ret_job = job;
	if (!rc)
		rc = attnd_wait(a, job, NULL);
	if (!rc && s.out.base)
		copy_out(&s.out, &c->out, c->num_tokens);
	return rc;
}
