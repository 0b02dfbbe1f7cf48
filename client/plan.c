/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Plans: rows, tokens and masks copied into the arena; row statuses copied out.
 *
 * In:   the caller's rows. Out: a PLAN entry; once its LAST job has succeeded, tokens to seq.c.
 * Next: jobs.c; attend.c sends the plan's jobs.
 */
#include "internal.h"

#include <stdlib.h>
#include <string.h>

struct row {
	uint64_t key, start;
	uint32_t num_tokens;
	int32_t status;
};

/* What a plan will add to its sequences: kept from its submission until it ends. */
struct cl_plan {
	struct cl_plan *next;
	uint32_t tag, num_rows;
	uint64_t *tokens;			    /* of all rows; NULL once they were given to the sequences */
	const struct attnd_wire_row_status *status; /* in the arena, until the plan's completion */
	struct row row[];
};

/* ---- Live plans ---- */

static void plan_destroy(struct cl_plan *p)
{
	if (!p)
		return;
	free(p->tokens);
	free(p);
}

static struct cl_plan *plan_unlink(struct attnd *a, uint32_t tag)
{
	struct cl_plan **at = &a->seqs.plans, *p;

	while (*at && (*at)->tag != tag)
		at = &(*at)->next;
	p = *at;
	if (p) {
		*at = p->next;
		a->seqs.num_plans--;
	}
	return p;
}

void cl_plan_forget(struct attnd *a, uint32_t tag)
{
	plan_destroy(plan_unlink(a, tag));
}

void cl_plan_committed(struct attnd *a, uint32_t tag)
{
	struct cl_plan *p = plan_unlink(a, tag);

	if (!p)
		return;
	for (uint32_t i = 0; i < p->num_rows; i++)
		if (!p->row[i].status)
			cl_seq_commit(a, p->row[i].key, p->row[i].start + p->row[i].num_tokens);
	plan_destroy(p);
}

void cl_plans_destroy(struct attnd *a)
{
	while (a->seqs.plans)
		cl_plan_forget(a, a->seqs.plans->tag);
}

/* The daemon keeps no more either; what falls out was ended by later plans of its sequences. */
static void plan_keep(struct attnd *a, struct cl_plan *p)
{
	const struct cl_plan *oldest = p;

	cl_plan_forget(a, p->tag);
	p->next = a->seqs.plans;
	a->seqs.plans = p;
	if (++a->seqs.num_plans <= ATTND_MAX_PLANS)
		return;
	while (oldest->next)
		oldest = oldest->next;
	cl_plan_forget(a, oldest->tag);
}

/* ---- Build ---- */

static size_t mask_words(uint32_t num_tokens)
{
	return (size_t)num_tokens * ((num_tokens + 63) / 64);
}

static int check_rows(struct attnd *a, const struct attnd_row *rows, uint32_t num_rows, size_t *ret_tokens,
		      size_t *ret_words)
{
	size_t tokens = 0, words = 0;

	if (!num_rows || num_rows > ATTND_MAX_ROWS)
		return cl_fail(a, -EINVAL, ATTND_FIELD_ROWS, ATTND_MAX_ROWS);
	for (uint32_t i = 0; i < num_rows; i++) {
		if (cl_seq_stale(a, rows[i].key))
			return cl_fail_text(a, -ECONNRESET, "a sequence of the plan wants attnd_reopen");
		tokens += rows[i].num_tokens;
		if (!rows[i].num_tokens || tokens > ATTND_MAX_PLAN_TOKENS)
			return cl_fail(a, -EINVAL, ATTND_FIELD_ROW_TOKENS, ATTND_MAX_PLAN_TOKENS);
		words += rows[i].mask ? mask_words(rows[i].num_tokens) : 0;
	}
	*ret_tokens = tokens;
	*ret_words = words;
	return 0;
}

static struct cl_plan *plan_create(uint32_t tag, const struct attnd_row *rows, uint32_t num_rows, size_t num_tokens)
{
	struct cl_plan *p = calloc(1, sizeof(*p) + num_rows * sizeof(p->row[0]));
	uint64_t *to;

	if (!p)
		return NULL;
	p->tag = tag;
	p->num_rows = num_rows;
	p->tokens = to = malloc(num_tokens * sizeof(*to));
	if (!to) {
		free(p);
		return NULL;
	}
	for (uint32_t i = 0; i < num_rows; i++) {
		p->row[i] =
			(struct row){.key = rows[i].key, .start = rows[i].start, .num_tokens = rows[i].num_tokens};
		memcpy(to, rows[i].tokens, rows[i].num_tokens * sizeof(*to));
		to += rows[i].num_tokens;
	}
	return p;
}

/* Into the arena: rows, statuses, tokens, masks. Returns where the statuses stand. */
static struct attnd_wire_row_status *put_rows(void *scratch, uint64_t offset, const struct attnd_row *rows,
					      uint32_t num_rows, const uint64_t *tokens, size_t num_tokens)
{
	struct attnd_wire_row *w = scratch;
	struct attnd_wire_row_status *status = (void *)(w + num_rows);
	uint64_t *to = (void *)(status + num_rows), *masks = to + num_tokens;

	memset(status, 0, num_rows * sizeof(*status));
	memcpy(to, tokens, num_tokens * sizeof(*to));
	for (uint32_t i = 0; i < num_rows; i++) {
		w[i] = (struct attnd_wire_row){.key = rows[i].key,
					       .start = rows[i].start,
					       .tokens = offset + (uint64_t)((char *)to - (char *)scratch),
					       .num_tokens = rows[i].num_tokens,
					       .flags = rows[i].flags,
					       .publish_upto = rows[i].publish_upto,
					       .mask = ATTND_OFFSET_NONE};
		to += rows[i].num_tokens;
		if (!rows[i].mask)
			continue;
		w[i].mask = offset + (uint64_t)((char *)masks - (char *)scratch);
		memcpy(masks, rows[i].mask, mask_words(rows[i].num_tokens) * sizeof(*masks));
		masks += mask_words(rows[i].num_tokens);
	}
	return status;
}

/* A row's status alone tells what it was about. */
static enum attnd_wire_field row_field(int status)
{
	switch (status) {
	case -ERANGE:
		return ATTND_FIELD_ROW_START;
	case -ENOMEM:
		return ATTND_FIELD_BLOCKS;
	case -EDQUOT:
		return ATTND_FIELD_QUOTA;
	default: /* not open, or twice in the plan */
		return ATTND_FIELD_SEQUENCE;
	}
}

static void plan_done(struct attnd *a, struct cl_job *j)
{
	struct attnd_row_status *ret = j->ret;
	struct cl_plan *p = j->ctx;
	const uint64_t *tokens = p->tokens;
	int refused = 0;

	if (j->status) {
		plan_destroy(p);
		return;
	}
	for (uint32_t i = 0; i < p->num_rows; i++) {
		const struct attnd_wire_row_status s = p->status[i];
		struct row *row = &p->row[i];

		row->status = s.status;
		if (!s.status)
			cl_seq_apply(a, row->key, row->start, tokens, row->num_tokens);
		else if (!refused)
			refused = s.status;
		tokens += row->num_tokens;
		if (ret)
			ret[i] = (struct attnd_row_status){.status = s.status, .cached = s.cached};
	}
	free(p->tokens);
	p->tokens = NULL;
	plan_keep(a, p);
	if (!refused)
		return;
	j->field = (uint16_t)row_field(refused);
	cl_fail(a, refused, j->field, 0); /* for who asks what a row's status means */
	if (!ret)
		j->status = refused;
}

int cl_plan_build(struct attnd *a, struct cl_request *r, uint32_t tag, uint32_t cache, const struct attnd_row *rows,
		  uint32_t num_rows, struct attnd_row_status *ret_status, uint64_t deadline_us)
{
	size_t tokens = 0, words = 0;
	struct cl_plan *p;
	uint64_t offset;
	void *scratch;
	int rc = cl_request_init(a, r, ATTND_OP_PLAN, deadline_us);

	if (!rc)
		rc = cl_cache_wire(a, cache, &r->sqe.plan.cache);
	if (!rc)
		rc = check_rows(a, rows, num_rows, &tokens, &words);
	if (!rc)
		rc = cl_request_scratch(
			a, r,
			num_rows * (sizeof(struct attnd_wire_row) + sizeof(struct attnd_wire_row_status)) +
				(tokens + words) * sizeof(uint64_t),
			&scratch, &offset);
	if (rc)
		return rc;
	p = plan_create(tag, rows, num_rows, tokens);
	if (!p)
		return cl_request_drop(a, r, -ENOMEM);
	p->status = put_rows(scratch, offset, rows, num_rows, p->tokens, tokens);
	r->sqe.plan.tag = tag;
	r->sqe.plan.rows = offset;
	r->sqe.plan.status = offset + num_rows * sizeof(struct attnd_wire_row);
	r->sqe.plan.num_rows = num_rows;
	r->job.ctx = p;
	r->job.ret = ret_status;
	r->job.done = plan_done;
	a->planned = true;
	return 0;
}

/* ---- The calls ---- */

static int plan(attnd_t *a, uint32_t tag, uint32_t cache, const struct attnd_row *rows, uint32_t num_rows,
		struct attnd_row_status *ret_status, uint64_t deadline_us, enum cl_mode mode, attnd_job_t *ret_job)
{
	struct cl_request r;
	int rc = cl_enter(a, 1, mode);

	if (!rc)
		rc = cl_plan_build(a, &r, tag, cache, rows, num_rows, ret_status, deadline_us);
	return rc ? rc : cl_go(a, &r, mode, ret_job);
}

int attnd_plan(attnd_t *a, uint32_t tag, uint32_t cache, const struct attnd_row *rows, uint32_t num_rows,
	       struct attnd_row_status *ret_status, uint64_t deadline_us)
{
	return plan(a, tag, cache, rows, num_rows, ret_status, deadline_us, CL_WAIT, NULL);
}

int attnd_plan_async(attnd_t *a, uint32_t tag, uint32_t cache, const struct attnd_row *rows, uint32_t num_rows,
		     struct attnd_row_status *ret_status, uint64_t deadline_us, attnd_job_t *ret_job)
{
	return plan(a, tag, cache, rows, num_rows, ret_status, deadline_us, CL_ASYNC, ret_job);
}

static void end_done(struct attnd *a, struct cl_job *j)
{
	if (!j->status)
		cl_plan_forget(a, (uint32_t)j->arg[0]);
}

static int plan_end(attnd_t *a, uint32_t tag, enum cl_mode mode, attnd_job_t *ret_job)
{
	struct cl_request r;
	int rc = cl_enter(a, 1, mode);

	if (!rc)
		rc = cl_request_init(a, &r, ATTND_OP_PLAN_END, 0);
	if (rc)
		return rc;
	r.sqe.plan.tag = tag;
	r.job.arg[0] = tag;
	r.job.done = end_done;
	return cl_go(a, &r, mode, ret_job);
}

int attnd_plan_end(attnd_t *a, uint32_t tag)
{
	return plan_end(a, tag, CL_WAIT, NULL);
}

int attnd_plan_end_async(attnd_t *a, uint32_t tag, attnd_job_t *ret_job)
{
	return plan_end(a, tag, CL_ASYNC, ret_job);
}
