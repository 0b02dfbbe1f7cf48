/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Decode and extend: one layer of a plan.
 *
 * In:   pointers into the arena. Out: one 64-byte entry. Next: ring.c. No system call and
 *       no allocation on this path, but for the doorbell of a sleeping leader and a look at the
 *       socket after an idle 100 ms.
 */
#include "internal.h"

static_assert(ATTND_LAST == (int)ATTND_JOB_LAST && ATTND_NO_KV == (int)ATTND_JOB_NO_KV &&
		      ATTND_NO_OUT == (int)ATTND_JOB_NO_OUT,
	      "the flags are the wire's");

static void last_done(struct attnd *a, struct cl_job *j)
{
	if (!j->status)
		cl_plan_committed(a, (uint32_t)j->arg[0]);
}

/* A buffer's name. NULL is "none" if the caller may leave it out. */
static int put_buffer(struct attnd *a, const void *p, bool optional, enum attnd_wire_field field, uint64_t *ret)
{
	*ret = p ? cl_arena_offset(a, p) : ATTND_OFFSET_NONE;
	if (*ret != ATTND_OFFSET_NONE || (!p && optional))
		return 0;
	return cl_fail_field(a, -EINVAL, field, p ? "not memory of this connection's attnd_alloc" : "it is missing");
}

static int put_buffers(struct attnd *a, const struct attnd_attend *job, struct attnd_sqe *e)
{
	bool no_kv = job->flags & ATTND_NO_KV, no_out = job->flags & ATTND_NO_OUT;
	int rc = put_buffer(a, no_out ? NULL : job->q, no_out, ATTND_FIELD_Q, &e->job.q);

	if (!rc)
		rc = put_buffer(a, no_kv ? NULL : job->k, no_kv, ATTND_FIELD_K, &e->job.k);
	if (!rc)
		rc = put_buffer(a, no_kv ? NULL : job->v, true, ATTND_FIELD_V, &e->job.v); /* MLA brings none */
	if (!rc)
		rc = put_buffer(a, no_out ? NULL : job->out, no_out, ATTND_FIELD_OUT, &e->job.out);
	if (!rc)
		rc = put_buffer(a, no_out ? NULL : job->lse, true, ATTND_FIELD_LSE, &e->job.lse);
	return rc;
}

static int build(struct attnd *a, struct cl_request *r, enum attnd_opcode op, const struct attnd_attend *job,
		 uint32_t flags)
{
	int rc = cl_request_init(a, r, op, job->deadline_us);

	if (rc)
		return rc;
	if (a->epoch && !a->planned)
		return cl_fail_text(a, -ECONNRESET, "the plan went with the daemon");
	if (flags & ~(uint32_t)(ATTND_LAST | ATTND_NO_KV | ATTND_NO_OUT))
		return cl_fail(a, -EINVAL, ATTND_FIELD_FLAGS, 0);
	if (job->layer >= ATTND_MAX_LAYERS)
		return cl_fail(a, -EINVAL, ATTND_FIELD_LAYER, ATTND_MAX_LAYERS - 1);
	if (flags & ATTND_NO_KV && job->src_layer >= ATTND_MAX_LAYERS)
		return cl_fail(a, -EINVAL, ATTND_FIELD_SRC_LAYER, ATTND_MAX_LAYERS - 1);
	if (job->params >= ATTND_MAX_PARAMS)
		return cl_fail(a, -EINVAL, ATTND_FIELD_PARAMS, ATTND_MAX_PARAMS - 1);
	rc = put_buffers(a, job, &r->sqe);
	if (rc)
		return rc;
	r->sqe.flags = (uint8_t)(flags | (r->sqe.job.lse != ATTND_OFFSET_NONE ? ATTND_JOB_LSE : 0));
	r->sqe.layer = (uint16_t)job->layer;
	r->sqe.job.plan = job->plan;
	r->sqe.job.params = (uint16_t)job->params;
	r->sqe.job.src_layer = (uint16_t)(flags & ATTND_NO_KV ? job->src_layer : job->layer);
	if (flags & ATTND_LAST) {
		r->job.done = last_done;
		r->job.arg[0] = job->plan;
	}
	return 0;
}

static int attend(attnd_t *a, enum attnd_opcode op, const struct attnd_attend *job, attnd_job_t *ret_job)
{
	struct cl_request r;
	int rc = cl_enter(a, 1, CL_ASYNC);

	if (!rc)
		rc = build(a, &r, op, job, job->flags);
	return rc ? rc : cl_submit(a, &r, ret_job);
}

int attnd_decode(attnd_t *a, const struct attnd_attend *job, attnd_job_t *ret_job)
{
	return attend(a, ATTND_OP_DECODE, job, ret_job);
}

int attnd_extend(attnd_t *a, const struct attnd_attend *job, attnd_job_t *ret_job)
{
	return attend(a, ATTND_OP_EXTEND, job, ret_job);
}

/* Plan and job go in together; the plan's failure says more than the job's. */
static int once(attnd_t *a, enum attnd_opcode op, uint32_t cache, const struct attnd_row *rows, uint32_t num_rows,
		const struct attnd_attend *job, struct attnd_row_status *ret_status)
{
	struct cl_request plan, r;
	attnd_job_t plan_job, last_job;
	int rc = cl_enter(a, 2, CL_WAIT), plan_rc;

	if (!rc)
		rc = cl_plan_build(a, &plan, job->plan, cache, rows, num_rows, ret_status, job->deadline_us);
	if (rc)
		return rc;
	rc = build(a, &r, op, job, job->flags | ATTND_LAST);
	if (rc)
		return cl_request_drop(a, &plan, rc);
	rc = cl_submit_internal(a, &plan, &plan_job);
	if (rc)
		return cl_request_drop(a, &r, rc);
	rc = cl_submit_internal(a, &r, &last_job);
	plan_rc = cl_collect(a, plan_job, NULL);
	if (!rc)
		rc = cl_collect(a, last_job, NULL);
	return plan_rc ? plan_rc : rc;
}

int attnd_decode_once(attnd_t *a, uint32_t cache, const struct attnd_row *rows, uint32_t num_rows,
		      const struct attnd_attend *job, struct attnd_row_status *ret_status)
{
	return once(a, ATTND_OP_DECODE, cache, rows, num_rows, job, ret_status);
}

int attnd_extend_once(attnd_t *a, uint32_t cache, const struct attnd_row *rows, uint32_t num_rows,
		      const struct attnd_attend *job, struct attnd_row_status *ret_status)
{
	return once(a, ATTND_OP_EXTEND, cache, rows, num_rows, job, ret_status);
}
