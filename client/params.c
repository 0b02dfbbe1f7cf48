/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Parameter sets: registered, and remembered so that a reconnection can register them again.
 *
 * In:   the caller's sets. Out: payloads in arena scratch, strides filled in. Next: jobs.c.
 */
#include "internal.h"

#include <stdlib.h>
#include <string.h>

static uint64_t element_bytes(enum attnd_dtype t)
{
	return t == ATTND_F32 ? 4 : t == ATTND_F16 || t == ATTND_BF16 ? 2 : 1;
}

/* 0 stands for contiguous [token][head][dim]. */
static void fill_strides(uint64_t *token, uint64_t *head, uint64_t heads, uint64_t dim_bytes)
{
	if (!*head)
		*head = dim_bytes;
	if (!*token)
		*token = heads * *head;
}

static void contiguous(struct attnd_wire_params *w, const struct attnd_wire_cache *c, const struct attnd_params *p)
{
	uint64_t kv = element_bytes(p->kv_in_dtype);

	fill_strides(&w->q_token_stride, &w->q_head_stride, c->num_heads, c->head_dim * element_bytes(p->q_dtype));
	fill_strides(&w->k_token_stride, &w->k_head_stride, c->num_kv_heads, c->head_dim * kv);
	fill_strides(&w->v_token_stride, &w->v_head_stride, c->num_kv_heads, c->head_dim_v * kv);
	fill_strides(&w->out_token_stride, &w->out_head_stride, c->num_heads,
		     c->head_dim_v * element_bytes(p->out_dtype));
}

static int check_params(struct attnd *a, uint32_t id, const struct attnd_params *p, const struct cl_cache *c)
{
	if (id >= ATTND_MAX_PARAMS)
		return cl_fail(a, -EINVAL, ATTND_FIELD_PARAMS, ATTND_MAX_PARAMS - 1);
	if (p->cache > UINT16_MAX || ((p->sinks || p->alibi) && !c))
		return cl_fail(a, -EINVAL, ATTND_FIELD_CACHE, 0);
	if ((unsigned int)p->q_dtype >= ATTND_WIRE_DTYPES)
		return cl_fail(a, -EINVAL, ATTND_FIELD_Q_DTYPE, 0);
	if ((unsigned int)p->out_dtype >= ATTND_WIRE_DTYPES)
		return cl_fail(a, -EINVAL, ATTND_FIELD_OUT_DTYPE, 0);
	if ((unsigned int)p->kv_in_dtype >= ATTND_WIRE_DTYPES)
		return cl_fail(a, -EINVAL, ATTND_FIELD_KV_IN_DTYPE, 0);
	return 0;
}

static struct cl_params *params_record(const struct attnd_params *p, const struct cl_cache *c)
{
	uint32_t heads = c ? c->identity.num_heads : 0;
	struct cl_params *n = calloc(1, sizeof(*n) + 2 * heads * sizeof(float));

	if (!n)
		return NULL;
	n->wire = (struct attnd_wire_params){.sm_scale = p->sm_scale,
					     .logit_cap = p->logit_cap,
					     .sliding_window = p->sliding_window,
					     .causal = p->causal != 0,
					     .q_dtype = (uint8_t)p->q_dtype,
					     .out_dtype = (uint8_t)p->out_dtype,
					     .kv_in_dtype = (uint8_t)p->kv_in_dtype,
					     .cache = (uint16_t)p->cache,
					     .sinks = ATTND_OFFSET_NONE,
					     .alibi = ATTND_OFFSET_NONE,
					     .q_token_stride = p->q_token_stride,
					     .q_head_stride = p->q_head_stride,
					     .k_token_stride = p->k_token_stride,
					     .k_head_stride = p->k_head_stride,
					     .v_token_stride = p->v_token_stride,
					     .v_head_stride = p->v_head_stride,
					     .out_token_stride = p->out_token_stride,
					     .out_head_stride = p->out_head_stride,
					     .k_scales_delta = p->k_scales_delta,
					     .v_scales_delta = p->v_scales_delta};
	n->num_heads = heads;
	n->sinks = p->sinks != NULL;
	n->alibi = p->alibi != NULL;
	if (n->sinks)
		memcpy(n->floats, p->sinks, heads * sizeof(float));
	if (n->alibi)
		memcpy(n->floats + heads, p->alibi, heads * sizeof(float));
	if (c)
		contiguous(&n->wire, &c->identity, p);
	return n;
}

static int params_request(struct attnd *a, struct cl_request *r, uint32_t id, const struct cl_params *p)
{
	size_t floats = 2 * p->num_heads * sizeof(float);
	struct attnd_wire_params *w;
	uint64_t offset;
	void *scratch;
	uint16_t wire;
	int rc = cl_cache_wire(a, p->wire.cache, &wire);

	if (!rc)
		rc = cl_request_init(a, r, ATTND_OP_PARAMS, 0);
	if (!rc)
		rc = cl_request_scratch(a, r, sizeof(*w) + floats, &scratch, &offset);
	if (rc)
		return rc;
	w = scratch;
	*w = p->wire;
	w->cache = wire;
	memcpy(w + 1, p->floats, floats);
	if (p->sinks)
		w->sinks = offset + sizeof(*w);
	if (p->alibi)
		w->alibi = offset + sizeof(*w) + floats / 2;
	r->sqe.obj.bytes = sizeof(*w);
	r->sqe.obj.id = id;
	r->sqe.obj.payload = offset;
	return 0;
}

static void params_done(struct attnd *a, struct cl_job *j)
{
	struct cl_params **slot = &a->objects.params[j->arg[0]];

	if (j->status) {
		free(j->ctx);
		return;
	}
	free(*slot);
	*slot = j->ctx;
}

static int params_set(attnd_t *a, uint32_t id, const struct attnd_params *params, enum cl_mode mode,
		      attnd_job_t *ret_job)
{
	const struct cl_cache *c;
	struct cl_request r;
	struct cl_params *p;
	int rc = cl_enter(a, 1, mode);

	if (rc)
		return rc;
	c = cl_cache_find(a, params->cache);
	rc = check_params(a, id, params, c);
	if (rc)
		return rc;
	p = params_record(params, c);
	if (!p)
		return -ENOMEM;
	rc = params_request(a, &r, id, p);
	if (rc) {
		free(p);
		return rc;
	}
	r.job.ctx = p;
	r.job.arg[0] = id;
	r.job.done = params_done;
	return cl_go(a, &r, mode, ret_job);
}

int attnd_params_set(attnd_t *a, uint32_t id, const struct attnd_params *params)
{
	return params_set(a, id, params, CL_WAIT, NULL);
}

int attnd_params_set_async(attnd_t *a, uint32_t id, const struct attnd_params *params, attnd_job_t *ret_job)
{
	return params_set(a, id, params, CL_ASYNC, ret_job);
}

/* Again, after a reconnection. */
int cl_params_restore(struct attnd *a, uint32_t id)
{
	struct cl_request r;
	int rc = a->objects.params[id] ? params_request(a, &r, id, a->objects.params[id]) : 1;

	if (rc)
		return rc < 0 ? rc : 0;
	return cl_perform(a, &r, NULL);
}
