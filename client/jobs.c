/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The job table: from a request to its result.
 *
 * In:   requests that the calls have built; CQEs from ring.c.
 * Out:  results, kept until they are waited for or reported by attnd_next.
 * Next: ring.c (entries), the `done` functions of the calls.
 */
#include "internal.h"

#include <stdlib.h>

#define SLOT_BITS 16
#define SLOT_MASK ((UINT64_C(1) << SLOT_BITS) - 1)

static_assert(CL_MAX_JOBS <= 1 << SLOT_BITS, "a slot fits its part of a job's name");

/* ---- The table ---- */

static uint32_t slot_of(uint64_t id)
{
	return (uint32_t)(id & SLOT_MASK);
}

/* In the ring a job is named by its slot and the low half of its serial. */
static uint32_t user_data(uint64_t id)
{
	return (uint32_t)id;
}

static struct cl_job *find(struct cl_jobs *t, attnd_job_t id)
{
	return id && slot_of(id) < t->count && t->job[slot_of(id)].id == id ? &t->job[slot_of(id)] : NULL;
}

static void list_append(struct cl_jobs *t, struct cl_list *l, uint32_t slot)
{
	struct cl_job *j = &t->job[slot];

	j->prev = l->last;
	j->next = CL_NONE;
	if (l->last != CL_NONE)
		t->job[l->last].next = slot;
	else
		l->first = slot;
	l->last = slot;
}

static void list_remove(struct cl_jobs *t, struct cl_list *l, uint32_t slot)
{
	struct cl_job *j = &t->job[slot];

	if (j->prev != CL_NONE)
		t->job[j->prev].next = j->next;
	else
		l->first = j->next;
	if (j->next != CL_NONE)
		t->job[j->next].prev = j->prev;
	else
		l->last = j->prev;
}

static int grow(struct cl_jobs *t)
{
	uint32_t capacity = t->capacity ? 2 * t->capacity : 64;
	struct cl_job *job;

	if (t->count < t->capacity)
		return 0;
	if (t->capacity == CL_MAX_JOBS)
		return -EAGAIN;
	if (capacity > CL_MAX_JOBS)
		capacity = CL_MAX_JOBS;
	job = realloc(t->job, capacity * sizeof(*job));
	if (!job)
		return -ENOMEM;
	t->job = job;
	t->capacity = capacity;
	return 0;
}

/* A free slot, or CL_NONE. */
static int take_slot(struct cl_jobs *t, uint32_t *ret)
{
	int rc;

	if (t->first_free != CL_NONE) {
		*ret = t->first_free;
		t->first_free = t->job[*ret].next;
		return 0;
	}
	rc = grow(t);
	if (!rc)
		*ret = t->count++;
	return rc;
}

static void free_slot(struct cl_jobs *t, uint32_t slot)
{
	t->job[slot] = (struct cl_job){.next = t->first_free};
	t->first_free = slot;
}

int cl_jobs_init(struct cl_jobs *t, uint32_t entries)
{
	*t = (struct cl_jobs){.first_free = CL_NONE, .flying = {CL_NONE, CL_NONE}, .done = {CL_NONE, CL_NONE}};
	t->job = malloc(2 * entries * sizeof(struct cl_job));
	if (!t->job)
		return -ENOMEM;
	t->capacity = 2 * entries;
	return 0;
}

uint64_t cl_jobs_oldest(const struct cl_jobs *t)
{
	return t->flying.first == CL_NONE ? UINT64_MAX : t->job[t->flying.first].id >> SLOT_BITS;
}

/* ---- Requests ---- */

static void settle(struct attnd *a, struct cl_job *j, int status)
{
	j->status = status;
	if (j->done)
		j->done(a, j);
	j->done = NULL;
	cl_arena_release(a, j->scratch);
	j->scratch = NULL;
}

int cl_request_init(struct attnd *a, struct cl_request *r, enum attnd_opcode op, uint64_t deadline_us)
{
	*r = (struct cl_request){.sqe.opcode = (uint8_t)op};
	if (!deadline_us) /* the caller's default is for its jobs; a reconnection has a time of its own */
		deadline_us = a->state == CL_RESTORING ? a->timeout_ns / 1000 : a->default_deadline_us;
	if (deadline_us > ATTND_MAX_DEADLINE_US)
		return cl_fail(a, -EINVAL, ATTND_FIELD_DEADLINE, ATTND_MAX_DEADLINE_US);
	r->sqe.deadline_us = (uint32_t)deadline_us;
	return 0;
}

int cl_request_scratch(struct attnd *a, struct cl_request *r, size_t bytes, void **ret, uint64_t *ret_offset)
{
	int rc = cl_arena_alloc(a, bytes, &r->job.scratch);

	if (rc)
		return rc;
	*ret = r->job.scratch;
	*ret_offset = cl_arena_offset(a, r->job.scratch);
	return 0;
}

int cl_request_drop(struct attnd *a, struct cl_request *r, int status)
{
	settle(a, &r->job, status);
	return status;
}

/* Hot path. */
int cl_submit(struct attnd *a, struct cl_request *r, attnd_job_t *ret_job)
{
	struct cl_jobs *t = &a->jobs;
	struct cl_job *j;
	uint32_t slot;
	int rc = a->state == CL_DOWN ? -ECONNRESET : take_slot(t, &slot);

	if (rc) {
		cl_fail_text(a, rc, rc == -EAGAIN ? "too many results wait to be collected" : "");
		return cl_request_drop(a, r, rc);
	}
	j = &t->job[slot];
	*j = r->job;
	j->state = CL_JOB_FLYING;
	j->id = ++t->serial << SLOT_BITS | slot;
	j->until_ns = cl_now_coarse() + r->sqe.deadline_us * UINT64_C(1000) + CL_GRACE_NS;
	list_append(t, &t->flying, slot);
	t->in_flight++;
	r->sqe.user_data = user_data(j->id);
	*ret_job = j->id;
	cl_ring_put(a, &r->sqe);
	return 0;
}

int cl_enter(struct attnd *a, uint32_t need, enum cl_mode mode)
{
	uint64_t until = 0;
	int rc;

	if (cl_forked(a))
		return -ECHILD;
	/* A daemon that was restarted while nothing was going on is met here, not by the next job. */
	if (a->state == CL_UP && (atomic_load_explicit(&a->shared->closed, memory_order_relaxed) ||
				  (!a->jobs.in_flight && cl_now_coarse() - a->alive_ns > CL_IDLE_NS)))
		cl_check_alive(a);
	if (a->state == CL_DOWN) {
		rc = cl_reconnect(a);
		if (rc)
			return rc;
	}
	while (a->jobs.in_flight + need > a->room) {
		if (cl_ring_reap(a))
			continue;
		if (mode == CL_ASYNC)
			return cl_fail_text(a, -EAGAIN, "the queue is full");
		until = until ? until : attnd_now_ns() + a->default_deadline_us * 1000;
		if (attnd_now_ns() >= until)
			return cl_fail_text(a, -ETIMEDOUT, "no room in the queue");
		cl_ring_wait(a, until);
	}
	return a->state == CL_DOWN ? -ECONNRESET : 0;
}

/* ---- Completions ---- */

static void complete(struct attnd *a, uint32_t slot, int status)
{
	struct cl_jobs *t = &a->jobs;
	struct cl_job *j = &t->job[slot];

	list_remove(t, &t->flying, slot);
	t->in_flight--;
	settle(a, j, status);
	if (!j->has_value || j->status)
		j->value = 0;
	j->state = CL_JOB_DONE;
	if (j->orphan)
		free_slot(t, slot);
	else if (!j->internal)
		list_append(t, &t->done, slot);
}

bool cl_jobs_complete(struct attnd *a, const struct attnd_cqe *cqe)
{
	struct cl_jobs *t = &a->jobs;
	uint32_t slot = slot_of(cqe->user_data);
	struct cl_job *j;

	if (slot >= t->count || cqe->res > 0)
		return false;
	j = &t->job[slot];
	if (j->state != CL_JOB_FLYING || user_data(j->id) != cqe->user_data)
		return false;
	j->value = cqe->value;
	j->limit = cqe->limit;
	j->field = cqe->field;
	complete(a, slot, cqe->res);
	return true;
}

void cl_jobs_reset(struct attnd *a)
{
	while (a->jobs.flying.first != CL_NONE)
		complete(a, a->jobs.flying.first, -ECONNRESET);
}

void cl_jobs_destroy(struct attnd *a)
{
	cl_jobs_reset(a);
	free(a->jobs.job);
	a->jobs.job = NULL;
}

/* Hand a result over and forget the job. */
static void report(struct attnd *a, struct cl_job *j, struct attnd_result *ret)
{
	uint32_t slot = slot_of(j->id);

	if (!j->internal)
		list_remove(&a->jobs, &a->jobs.done, slot);
	if (j->status)
		cl_fail(a, j->status, j->field, j->limit);
	if (ret)
		*ret = (struct attnd_result){.job = j->id, .status = j->status, .value = j->value};
	free_slot(&a->jobs, slot);
}

/* Until the job is done: 0; or -ETIMEDOUT. */
static int wait_done(struct attnd *a, struct cl_job *j)
{
	uint64_t until = j->waited ? attnd_now_ns() + CL_GRACE_NS : j->until_ns;

	cl_ring_reap(a);
	while (j->state == CL_JOB_FLYING) {
		if (attnd_now_ns() >= until) {
			j->waited = true;
			return cl_fail_text(a, -ETIMEDOUT, "the daemon has not answered; the job is still its own");
		}
		cl_ring_wait(a, until);
	}
	return 0;
}

int attnd_wait(attnd_t *a, attnd_job_t job, struct attnd_result *ret)
{
	struct cl_job *j = cl_forked(a) ? NULL : find(&a->jobs, job);
	int rc;

	if (cl_forked(a))
		return -ECHILD;
	if (!j || j->internal)
		return cl_fail_text(a, -ENOENT, "not a job in flight or done");
	rc = wait_done(a, j);
	if (rc)
		return rc;
	rc = j->status;
	report(a, j, ret);
	return rc;
}

/* ---- Blocking calls ---- */

int cl_submit_internal(struct attnd *a, struct cl_request *r, attnd_job_t *ret_job)
{
	r->job.internal = true;
	return cl_submit(a, r, ret_job);
}

int cl_collect(struct attnd *a, attnd_job_t job, uint64_t *ret_value)
{
	struct cl_job *j = find(&a->jobs, job);
	struct attnd_result result;
	int rc = wait_done(a, j);

	if (rc) {
		/* Its completion frees what it holds and tells nobody. */
		j->orphan = true;
		j->ret = NULL;
		return rc;
	}
	report(a, j, &result);
	if (!result.status && ret_value)
		*ret_value = result.value;
	return result.status;
}

int cl_perform(struct attnd *a, struct cl_request *r, uint64_t *ret_value)
{
	attnd_job_t job;
	int rc = cl_submit_internal(a, r, &job);

	return rc ? rc : cl_collect(a, job, ret_value);
}

int cl_go(struct attnd *a, struct cl_request *r, enum cl_mode mode, attnd_job_t *ret_job)
{
	return mode == CL_WAIT ? cl_perform(a, r, NULL) : cl_submit(a, r, ret_job);
}

/* ---- attnd_next, attnd_cancel, attnd_ping ---- */

/* With nothing to report: 0 to look again, or why there will be nothing. */
static int next_wait(struct attnd *a, uint64_t until_ns)
{
	if (a->state == CL_DOWN)
		return cl_fail_text(a, -ECONNRESET, "the connection is gone; the next call makes another");
	if (!until_ns) {
		if (!cl_ring_arm(a))
			return -EAGAIN;
		cl_ring_disarm(a);
	} else if (!a->jobs.in_flight || attnd_now_ns() >= until_ns) {
		return -EAGAIN;
	} else {
		cl_ring_wait(a, until_ns);
	}
	return 0;
}

int attnd_next(attnd_t *a, struct attnd_result *ret, uint64_t timeout_us)
{
	uint64_t until = 0;
	int rc;

	if (cl_forked(a))
		return -ECHILD;
	cl_ring_disarm(a);
	if (timeout_us)
		until = attnd_now_ns() + cl_min_u64(timeout_us, ATTND_MAX_DEADLINE_US) * 1000;
	for (;;) {
		cl_ring_reap(a);
		if (a->jobs.done.first != CL_NONE) {
			report(a, &a->jobs.job[a->jobs.done.first], ret);
			return 0;
		}
		rc = next_wait(a, until);
		if (rc)
			return rc;
	}
}

int attnd_cancel(attnd_t *a, attnd_job_t job)
{
	struct cl_request r;
	struct cl_job *j;
	int rc = cl_enter(a, 1, CL_WAIT);

	if (rc)
		return rc;
	j = find(&a->jobs, job);
	if (!j || j->internal)
		return cl_fail_text(a, -ENOENT, "not a job in flight or done");
	if (j->state == CL_JOB_DONE)
		return 0;
	rc = cl_request_init(a, &r, ATTND_OP_CANCEL, 0);
	if (rc)
		return rc;
	r.sqe.cancel.target = user_data(job);
	rc = cl_perform(a, &r, NULL);
	return rc == -ENOENT ? 0 : rc; /* it was done meanwhile */
}

static int ping(attnd_t *a, uint64_t deadline_us, enum cl_mode mode, attnd_job_t *ret_job)
{
	struct cl_request r;
	int rc = cl_enter(a, 1, mode);

	if (!rc)
		rc = cl_request_init(a, &r, ATTND_OP_PING, deadline_us);
	return rc ? rc : cl_go(a, &r, mode, ret_job);
}

int attnd_ping(attnd_t *a, uint64_t deadline_us)
{
	return ping(a, deadline_us, CL_WAIT, NULL);
}

int attnd_ping_async(attnd_t *a, uint64_t deadline_us, attnd_job_t *ret_job)
{
	return ping(a, deadline_us, CL_ASYNC, ret_job);
}
