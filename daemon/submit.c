/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Jobs: from a checked SQE to the team and back.
 *
 * In:   intake.c's DECODE, EXTEND and EXPORT entries, and parameter sets.
 * Out:  jobs for exec.c; the answer when one is done.
 * Next: exec.c, then reply.c.
 */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "../shm/copy.h"
#include "lead.h"

#define MAX_STRIDE (UINT64_C(1) << 40)

/* ---- Parameter sets ---- */

void params_free(struct params *p)
{
	if (!p || --p->refs)
		return;
	heap_give(p->heap, p->bytes);
	free(p->sinks);
	free(p->alibi);
	free(p);
}

static bool float_type(uint32_t t)
{
	return t <= ATTND_WIRE_BF16;
}

static bool bad_stride(uint64_t stride, uint32_t dtype)
{
	return stride > MAX_STRIDE || stride % attnd_kdtype_bytes((enum attnd_kdtype)dtype);
}

static struct answer check_params(const struct attnd_wire_params *w, const struct attnd_wire_cache *id)
{
	bool scaled = w->kv_in_dtype == ATTND_WIRE_INT8 && id->scale_mode == ATTND_WIRE_SCALE_DYNAMIC;

	if (!(w->sm_scale > 0) || !isfinite(w->sm_scale))
		return ANSWER_BAD(EINVAL, SM_SCALE, 0);
	if (!(w->logit_cap >= 0) || !isfinite(w->logit_cap))
		return ANSWER_BAD(EINVAL, LOGIT_CAP, 0);
	if (w->causal > 1 || w->reserved || w->reserved2)
		return ANSWER_BAD(EINVAL, RESERVED, 1);
	if (!float_type(w->q_dtype))
		return ANSWER_BAD(EINVAL, Q_DTYPE, ATTND_WIRE_BF16);
	if (!float_type(w->out_dtype))
		return ANSWER_BAD(EINVAL, OUT_DTYPE, ATTND_WIRE_BF16);
	if (w->kv_in_dtype != w->q_dtype && w->kv_in_dtype != id->kv_dtype)
		return ANSWER_BAD(EINVAL, KV_IN_DTYPE, id->kv_dtype);
	if (bad_stride(w->q_token_stride, w->q_dtype) || bad_stride(w->q_head_stride, w->q_dtype) ||
	    bad_stride(w->k_token_stride, w->kv_in_dtype) || bad_stride(w->k_head_stride, w->kv_in_dtype) ||
	    bad_stride(w->v_token_stride, w->kv_in_dtype) || bad_stride(w->v_head_stride, w->kv_in_dtype) ||
	    bad_stride(w->out_token_stride, w->out_dtype) || bad_stride(w->out_head_stride, w->out_dtype))
		return ANSWER_BAD(EINVAL, STRIDE, MAX_STRIDE);
	if (scaled != (w->k_scales_delta != 0) || (scaled && !id->v_in_k) != (w->v_scales_delta != 0) ||
	    w->k_scales_delta % 4 || w->v_scales_delta % 4 || w->k_scales_delta > MAX_STRIDE ||
	    w->v_scales_delta > MAX_STRIDE)
		return ANSWER_BAD(EINVAL, IN_SCALES, MAX_STRIDE);
	return ANSWER_OK;
}

/* Copy [num_heads] finite floats out of the arena. */
static struct answer copy_floats(const struct lead_session *ls, uint64_t offset, uint32_t n,
				 enum attnd_wire_field field, float **ret)
{
	const void *src;
	float *f;

	if (offset == ATTND_OFFSET_NONE)
		return ANSWER_OK;
	src = arena_at(ls, offset, n * sizeof(float), sizeof(float));
	if (!src)
		return (struct answer){.res = -EFAULT, .field = field, .limit = offset};
	f = malloc(n * sizeof(*f));
	if (!f)
		return (struct answer){.res = -ENOMEM, .field = field};
	attnd_copy_in(f, src, n * sizeof(*f));
	for (uint32_t i = 0; i < n; i++) {
		if (!isfinite(f[i])) {
			free(f);
			return (struct answer){.res = -EINVAL, .field = field, .limit = i};
		}
	}
	*ret = f;
	return ANSWER_OK;
}

struct answer submit_params(struct lead_session *ls, uint32_t id, const struct attnd_wire_params *w)
{
	const struct attnd_wire_cache *c;
	struct params *p;
	struct answer a;
	uint64_t bytes;

	if (id >= ATTND_MAX_PARAMS)
		return ANSWER_BAD(EINVAL, PARAMS, ATTND_MAX_PARAMS - 1);
	if (w->cache >= ls->engine->num_caches)
		return ANSWER_BAD(ENOENT, CACHE, ls->engine->num_caches);
	c = &ls->engine->caches[w->cache].cache->identity;
	a = check_params(w, c);
	if (a.res)
		return a;
	bytes = sizeof(*p) + 2ull * c->num_heads * sizeof(float);
	if (!heap_take(&ls->engine->heap, bytes))
		return ANSWER_BAD(ENOMEM, PARAMS, 0);
	p = calloc(1, sizeof(*p));
	if (!p) {
		heap_give(&ls->engine->heap, bytes);
		return ANSWER_BAD(ENOMEM, PARAMS, 0);
	}
	*p = (struct params){
		.used = true,
		.refs = 1,
		.heap = &ls->engine->heap,
		.bytes = bytes,
		.causal = w->causal,
		.cache_index = w->cache,
		.sliding_window = w->sliding_window,
		.attn = {.sm_scale = w->sm_scale,
			 .logit_cap = w->logit_cap,
			 .q_dtype = (enum attnd_kdtype)w->q_dtype,
			 .q_head_stride = w->q_head_stride},
		.kv_in = (enum attnd_kdtype)w->kv_in_dtype,
		.out = (enum attnd_kdtype)w->out_dtype,
		.q_token_stride = w->q_token_stride,
		.k_token_stride = w->k_token_stride,
		.k_head_stride = w->k_head_stride,
		.v_token_stride = w->v_token_stride,
		.v_head_stride = w->v_head_stride,
		.out_token_stride = w->out_token_stride,
		.out_head_stride = w->out_head_stride,
		.k_scales_delta = w->k_scales_delta,
		.v_scales_delta = w->v_scales_delta,
	};
	a = copy_floats(ls, w->sinks, c->num_heads, ATTND_FIELD_SINKS, &p->sinks);
	if (!a.res)
		a = copy_floats(ls, w->alibi, c->num_heads, ATTND_FIELD_ALIBI, &p->alibi);
	if (a.res) {
		params_free(p);
		return a;
	}
	p->attn.alibi = p->alibi;
	params_free(ls->params[id]);
	ls->params[id] = p;
	return ANSWER_OK;
}

/* ---- One job ---- */

/* Bytes from the first element of a [tokens][heads][dim] view to behind its last; 0: overflow. */
static uint64_t view_bytes(uint64_t tokens, uint64_t token_stride, uint64_t heads, uint64_t head_stride,
			   uint64_t row_bytes)
{
	uint64_t a, b;

	if (__builtin_mul_overflow(tokens - 1, token_stride, &a) ||
	    __builtin_mul_overflow(heads - 1, head_stride, &b) || __builtin_add_overflow(a, b, &a) ||
	    __builtin_add_overflow(a, row_bytes, &a))
		return 0;
	return a;
}

static void *view_at(const struct lead_session *ls, uint64_t offset, uint64_t tokens, uint64_t token_stride,
		     uint64_t heads, uint64_t head_stride, uint32_t dim, enum attnd_kdtype t)
{
	uint32_t esz = attnd_kdtype_bytes(t);
	uint64_t bytes = view_bytes(tokens, token_stride, heads, head_stride, (uint64_t)dim * esz);

	return bytes ? arena_at(ls, offset, bytes, esz) : NULL;
}

static struct answer check_layers(const struct attnd_sqe *sqe, const struct plan *p)
{
	uint32_t layers = p->cache->identity.num_layers, src = sqe->job.src_layer;
	int missing;

	if (sqe->layer >= layers)
		return ANSWER_BAD(EINVAL, LAYER, layers - 1);
	if (sqe->flags & ATTND_JOB_NO_KV) {
		if (sqe->flags & ATTND_JOB_NO_OUT)
			return ANSWER_BAD(EINVAL, FLAGS, ATTND_JOB_FLAGS);
		if (src >= layers || !(p->written[src / 64] >> (src % 64) & 1))
			return ANSWER_BAD(EINVAL, SRC_LAYER, src);
	}
	if (sqe->flags & ATTND_JOB_LAST) {
		struct plan probe = *p;

		if (!(sqe->flags & ATTND_JOB_NO_KV))
			probe.written[sqe->layer / 64] |= UINT64_C(1) << (sqe->layer % 64);
		missing = plan_missing_layer(&probe);
		if (missing >= 0)
			return ANSWER_BAD(EINVAL, LAYER, missing);
	}
	return ANSWER_OK;
}

static struct answer check_rows(const struct attnd_sqe *sqe, const struct plan *p, const struct params *pa)
{
	if (sqe->opcode == ATTND_OP_DECODE && p->max_row > 1)
		return ANSWER_BAD(EINVAL, ROW_TOKENS, 1);
	for (uint32_t i = 0; i < p->num_rows && !pa->causal && !(sqe->flags & ATTND_JOB_NO_OUT); i++)
		if (p->rows[i].seq && !p->rows[i].mask && !(p->rows[i].flags & ATTND_WIRE_ROW_NONCAUSAL))
			return ANSWER_BAD(EINVAL, ROW_FLAGS, i);
	return ANSWER_OK;
}

static struct answer resolve_kv(struct job *j, const struct lead_session *ls, const struct attnd_sqe *sqe)
{
	const struct plan *p = j->plan;
	const struct params *pa = j->params;
	const struct attnd_wire_cache *c = &p->cache->identity;
	uint64_t scale_bytes = (uint64_t)p->num_tokens * c->num_kv_heads * sizeof(float);

	j->k = view_at(ls, sqe->job.k, p->num_tokens, pa->k_token_stride, c->num_kv_heads, pa->k_head_stride,
		       c->head_dim, pa->kv_in);
	if (!j->k)
		return ANSWER_BAD(EFAULT, K, sqe->job.k);
	if (pa->k_scales_delta && !arena_at(ls, sqe->job.k + pa->k_scales_delta, scale_bytes, sizeof(float)))
		return ANSWER_BAD(EFAULT, IN_SCALES, sqe->job.k + pa->k_scales_delta);
	if (c->v_in_k)
		return ANSWER_OK;
	j->v = view_at(ls, sqe->job.v, p->num_tokens, pa->v_token_stride, c->num_kv_heads, pa->v_head_stride,
		       c->head_dim_v, pa->kv_in);
	if (!j->v)
		return ANSWER_BAD(EFAULT, V, sqe->job.v);
	if (pa->v_scales_delta && !arena_at(ls, sqe->job.v + pa->v_scales_delta, scale_bytes, sizeof(float)))
		return ANSWER_BAD(EFAULT, IN_SCALES, sqe->job.v + pa->v_scales_delta);
	return ANSWER_OK;
}

static struct answer resolve_out(struct job *j, const struct lead_session *ls, const struct attnd_sqe *sqe)
{
	const struct plan *p = j->plan;
	const struct params *pa = j->params;
	const struct attnd_wire_cache *c = &p->cache->identity;

	j->q = view_at(ls, sqe->job.q, p->num_tokens, pa->q_token_stride, c->num_heads, pa->attn.q_head_stride,
		       c->head_dim, pa->attn.q_dtype);
	if (!j->q)
		return ANSWER_BAD(EFAULT, Q, sqe->job.q);
	j->out = view_at(ls, sqe->job.out, p->num_tokens, pa->out_token_stride, c->num_heads, pa->out_head_stride,
			 c->head_dim_v, pa->out);
	if (!j->out)
		return ANSWER_BAD(EFAULT, OUT, sqe->job.out);
	if (!(sqe->flags & ATTND_JOB_LSE))
		return ANSWER_OK;
	j->lse = arena_at(ls, sqe->job.lse, (uint64_t)p->num_tokens * c->num_heads * sizeof(float), sizeof(float));
	return j->lse ? ANSWER_OK : ANSWER_BAD(EFAULT, LSE, sqe->job.lse);
}

/* Static scales of the layer that attention reads and the job writes. */
static struct answer set_scales(struct job *j)
{
	struct cache *c = j->plan->cache;
	const struct layer_scales *read = &c->scales[j->src_layer];

	j->attn.k_scale = j->attn.v_scale = 1;
	if (c->identity.scale_mode != ATTND_WIRE_SCALE_STATIC)
		return ANSWER_OK;
	if (!read->set)
		return ANSWER_BAD(EINVAL, K_SCALE, j->src_layer);
	j->attn.k_scale = read->k;
	j->attn.v_scale = read->v;
	c->scales[j->src_layer].written = true;
	return ANSWER_OK;
}

static struct answer build_job(struct job *j, struct lead_session *ls, const struct attnd_sqe *sqe)
{
	struct plan *p = plan_find(ls->plans, sqe->job.plan);
	struct params *pa = sqe->job.params < ATTND_MAX_PARAMS ? ls->params[sqe->job.params] : NULL;
	struct answer a = ANSWER_OK;

	if (sqe->flags & ~ATTND_JOB_FLAGS)
		return ANSWER_BAD(EINVAL, FLAGS, ATTND_JOB_FLAGS);
	if (!p)
		return ANSWER_BAD(ESTALE, PLAN, 0);
	if (!pa)
		return ANSWER_BAD(ENOENT, PARAMS, sqe->job.params);
	if (pa->cache_index != p->cache_index)
		return ANSWER_BAD(EINVAL, CACHE, p->cache_index);
	a = check_layers(sqe, p);
	if (!a.res)
		a = check_rows(sqe, p, pa);
	if (a.res)
		return a;
	*j = (struct job){
		.plan = p,
		.params = pa,
		.attn = pa->attn,
		.layer = sqe->layer,
		.src_layer = sqe->flags & ATTND_JOB_NO_KV ? sqe->job.src_layer : sqe->layer,
		.flags = sqe->flags,
		/* After the plan's end the K/V are in: repeating a layer only reads. */
		.store = !(sqe->flags & ATTND_JOB_NO_KV) && !p->committed,
	};
	if (!(sqe->flags & ATTND_JOB_NO_KV))
		a = resolve_kv(j, ls, sqe);
	if (!a.res && !(sqe->flags & ATTND_JOB_NO_OUT))
		a = resolve_out(j, ls, sqe);
	if (!a.res)
		a = set_scales(j);
	return a;
}

struct answer submit_job(struct leader *l, struct lead_session *ls, const struct attnd_sqe *sqe, bool *ret_started)
{
	struct job *j = &ls->job;
	struct answer a = build_job(j, ls, sqe);

	if (a.res) {
		realm_count(ls->realm, failed_jobs, 1);
		return a;
	}
	if (j->store && slabs_hold(j->plan->cache, j->plan))
		return ANSWER_LATER;
	if (exec_prepare(j, l->team.num_members))
		return ANSWER_BAD(ENOMEM, PLAN, 0);
	exec_write_first(j);
	if (!exec_small(j)) {
		if (!team_submit(&l->team, &j->team))
			return ANSWER_LATER; /* the team is full */
		*ret_started = true;
	}
	plan_run(j->plan);
	j->params->refs++;
	if (*ret_started)
		return ANSWER_OK;
	team_run_alone(&l->team, &j->team);
	a = submit_done(ls);
	if (a.res != -EINPROGRESS)
		return a;
	*ret_started = true; /* it publishes much: the rest when others have had their turn */
	return ANSWER_OK;
}

/* ---- K and V as data ---- */

static struct answer resolve_export(struct job *j, const struct lead_session *ls, const struct attnd_sqe *sqe)
{
	struct export *x = &j->export;
	const struct attnd_wire_cache *id = &x->cache->identity;
	uint64_t v, k_scales, v_scales, bytes = export_layout(id, x->n, &v, &k_scales, &v_scales);
	char *to = arena_at(ls, sqe->kv.data, bytes, sizeof(float));

	if (!to)
		return ANSWER_BAD(EFAULT, OFFSET, sqe->kv.data);
	x->layer = sqe->layer;
	x->k = to;
	x->v = id->v_in_k ? NULL : to + v;
	if (id->scale_mode == ATTND_WIRE_SCALE_DYNAMIC) {
		x->k_scales = (float *)(void *)(to + k_scales);
		x->v_scales = id->v_in_k ? NULL : (float *)(void *)(to + v_scales);
	}
	return ANSWER_OK;
}

static struct answer build_export(struct leader *l, struct lead_session *ls, const struct attnd_sqe *sqe)
{
	uint32_t ci = sqe->kv.cache, n = sqe->kv.num_tokens;
	struct seq *s = seq_find(ls->engine, sqe->kv.key);
	struct job *j = &ls->job;
	struct answer a;
	uint64_t length;

	if (ci >= ls->engine->num_caches)
		return ANSWER_BAD(ENOENT, CACHE, ls->engine->num_caches);
	if (sqe->layer >= ls->engine->caches[ci].cache->identity.num_layers)
		return ANSWER_BAD(EINVAL, LAYER, ls->engine->caches[ci].cache->identity.num_layers - 1);
	if (!n || n > ATTND_MAX_PLAN_TOKENS)
		return ANSWER_BAD(EINVAL, TOKENS, ATTND_MAX_PLAN_TOKENS);
	if (!s)
		return ANSWER_BAD(ENOENT, SEQUENCE, 0);
	if (s->opening)
		return ANSWER_LATER;
	length = s->in[ci].held.length;
	if (sqe->kv.start > length || n > length - sqe->kv.start)
		return ANSWER_BAD(ERANGE, LENGTH, length);
	*j = (struct job){.exports = true};
	if (export_begin(&j->export, s, ci, (uint32_t)sqe->kv.start, n, ++l->engines.serial))
		return ANSWER_BAD(ENOMEM, SEQUENCE, 0);
	a = resolve_export(j, ls, sqe);
	if (a.res)
		export_end(&j->export);
	return a;
}

struct answer submit_export(struct leader *l, struct lead_session *ls, const struct attnd_sqe *sqe, bool *ret_started)
{
	struct job *j = &ls->job;
	struct answer a;

	if (!team_has_room(&l->team))
		return ANSWER_LATER; /* before anything is held for it, again and again */
	a = build_export(l, ls, sqe);
	if (a.res)
		return a;
	exec_prepare_export(j);
	if (!exec_small(j)) {
		if (!team_submit(&l->team, &j->team)) {
			export_end(&j->export);
			return ANSWER_LATER; /* the team is full */
		}
		*ret_started = true;
		return a;
	}
	team_run_alone(&l->team, &j->team);
	return submit_done(ls);
}

/* ---- Done ---- */

static int32_t outcome(const struct lead_session *ls)
{
	if (atomic_load_explicit(&ls->job.team.cancelled, memory_order_relaxed))
		return ls->job_request.give_up;
	return atomic_load_explicit(&ls->job.error, memory_order_relaxed);
}

/* The team is done with it: what it has written, and the plan's end. */
static int32_t take_result(struct lead_session *ls)
{
	struct job *j = &ls->job;
	struct plan *p = j->plan;
	uint64_t bit = UINT64_C(1) << (j->layer % 64);
	int32_t res = outcome(ls);

	watch_read(p->cache->pool->watch, ls, atomic_load_explicit(&j->bytes_read, memory_order_relaxed));
	if (res) {
		if (j->store) /* written in part, over what may have been there */
			p->written[j->layer / 64] &= ~bit;
		return res;
	}
	if (j->store)
		p->written[j->layer / 64] |= bit;
	if ((j->flags & ATTND_JOB_LAST) && !p->committed)
		plan_commit_begin(p);
	return 0;
}

struct answer submit_done(struct lead_session *ls)
{
	struct job *j = &ls->job;
	struct plan *p = j->plan;
	struct answer a = ANSWER_OK;
	bool decode;

	if (j->exports) {
		a.res = outcome(ls);
		export_end(&j->export);
		ls->jobs++;
		return a;
	}
	if (!p->publishing)
		a.res = take_result(ls);
	if (p->publishing && !plan_publish(p))
		return ANSWER_LATER;
	decode = p->max_row <= 1;
	plan_ran(p);
	params_free(j->params);
	if (a.res)
		realm_count(ls->realm, failed_jobs, 1);
	else if (decode)
		realm_count(ls->realm, decode_jobs, 1);
	else
		realm_count(ls->realm, extend_jobs, 1);
	ls->jobs++;
	if (p->orphan)
		plan_end(p);
	return a;
}
