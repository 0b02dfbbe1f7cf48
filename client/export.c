/* SPDX-License-Identifier: Apache-2.0 */
/*
 * K and V as data: read out of a sequence, and written by a plan's jobs that only store.
 *
 * In:   a layer, a range of tokens, arena memory. Out: an EXPORT entry; a parameter set and an EXTEND.
 * Next: jobs.c; params.c and attend.c.
 */
#include "internal.h"

enum { PART_ALIGN = 64 };

/* Where the parts of the data stand; as the daemon lays them out. */
struct parts {
	size_t v, k_scales, v_scales, end;
};

static size_t part(size_t *at, uint64_t tokens, uint64_t values, size_t size)
{
	size_t begin = *at;

	*at += (tokens * values * size + PART_ALIGN - 1) / PART_ALIGN * PART_ALIGN;
	return begin;
}

static size_t element_bytes(uint8_t dtype)
{
	return dtype == ATTND_WIRE_F32 ? 4 : dtype <= ATTND_WIRE_BF16 ? 2 : 1;
}

static struct parts parts_of(const struct attnd_wire_cache *id, uint32_t tokens)
{
	size_t at = 0, size = element_bytes(id->kv_dtype);
	bool scaled = id->scale_mode == ATTND_WIRE_SCALE_DYNAMIC, v = !id->v_in_k;
	uint64_t heads = id->num_kv_heads;
	struct parts p;

	part(&at, tokens, heads * id->head_dim, size);
	p.v = part(&at, tokens, v ? heads * id->head_dim_v : 0, size);
	p.k_scales = part(&at, tokens, scaled ? heads : 0, sizeof(float));
	p.v_scales = part(&at, tokens, scaled && v ? heads : 0, sizeof(float));
	p.end = at;
	return p;
}

static int identity_of(struct attnd *a, uint32_t cache, uint32_t tokens, const struct attnd_wire_cache **ret)
{
	const struct cl_cache *c = cl_cache_find(a, cache);

	if (!c)
		return cl_fail(a, -ENOENT, ATTND_FIELD_CACHE, 0);
	if (!tokens || tokens > ATTND_MAX_PLAN_TOKENS)
		return cl_fail(a, -EINVAL, ATTND_FIELD_TOKENS, ATTND_MAX_PLAN_TOKENS);
	*ret = &c->identity;
	return 0;
}

int attnd_kv_bytes(attnd_t *a, uint32_t cache, uint32_t num_tokens, size_t *ret)
{
	const struct attnd_wire_cache *id = NULL;
	int rc = identity_of(a, cache, num_tokens, &id);

	if (!rc)
		*ret = parts_of(id, num_tokens).end;
	return rc;
}

/* ---- Export ---- */

static int export(attnd_t *a, const struct attnd_kv *kv, enum cl_mode mode, attnd_job_t *ret_job)
{
	struct cl_request r;
	int rc = cl_enter(a, 1, mode);

	if (!rc && cl_seq_stale(a, kv->key))
		rc = cl_fail_text(a, -ECONNRESET, "the sequence wants attnd_reopen");
	if (!rc && kv->layer >= ATTND_MAX_LAYERS)
		rc = cl_fail(a, -EINVAL, ATTND_FIELD_LAYER, ATTND_MAX_LAYERS - 1);
	if (!rc)
		rc = cl_request_init(a, &r, ATTND_OP_EXPORT, kv->deadline_us);
	if (!rc)
		rc = cl_cache_wire(a, kv->cache, &r.sqe.kv.cache);
	if (rc)
		return rc;
	r.sqe.layer = (uint16_t)kv->layer;
	r.sqe.kv.key = kv->key;
	r.sqe.kv.start = kv->start;
	r.sqe.kv.num_tokens = kv->num_tokens;
	r.sqe.kv.data = cl_arena_offset(a, kv->data);
	return cl_go(a, &r, mode, ret_job);
}

int attnd_export(attnd_t *a, const struct attnd_kv *kv)
{
	return export(a, kv, CL_WAIT, NULL);
}

int attnd_export_async(attnd_t *a, const struct attnd_kv *kv, attnd_job_t *ret_job)
{
	return export(a, kv, CL_ASYNC, ret_job);
}

/* ---- Import ---- */

int attnd_import(attnd_t *a, uint32_t plan, uint32_t params, uint32_t flags, const struct attnd_kv *kv)
{
	const struct attnd_wire_cache *id = NULL;
	struct attnd_params p = {.cache = kv->cache, .sm_scale = 1, .causal = 1};
	struct attnd_attend job = {.plan = plan,
				   .params = params,
				   .layer = kv->layer,
				   .flags = flags | ATTND_NO_OUT,
				   .k = kv->data,
				   .deadline_us = kv->deadline_us};
	struct parts at;
	attnd_job_t done;
	int rc = identity_of(a, kv->cache, kv->num_tokens, &id);

	if (rc)
		return rc;
	at = parts_of(id, kv->num_tokens);
	p.kv_in_dtype = (enum attnd_dtype)id->kv_dtype;
	if (!id->v_in_k)
		job.v = (const char *)kv->data + at.v;
	if (id->scale_mode == ATTND_WIRE_SCALE_DYNAMIC) {
		p.k_scales_delta = at.k_scales;
		p.v_scales_delta = id->v_in_k ? 0 : at.v_scales - at.v;
	}
	rc = attnd_params_set(a, params, &p);
	if (!rc)
		rc = attnd_extend(a, &job, &done);
	return rc ? rc : attnd_wait(a, done, NULL);
}
