/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sequences: open, fork, trim, close, and open again what a lost daemon forgot.
 *
 * In:   keys and tokens. Out: SQEs; the tokens of each open sequence, as far as they count.
 * Next: jobs.c; plan.c tells which rows' tokens count.
 */
#include "internal.h"
#include "tokens.h"

#include <stdlib.h>
#include <string.h>

#define REOPEN_BATCH 64u

struct cl_seq {
	uint64_t key;
	struct cl_seq *next; /* in the bucket */
	struct cl_tokens tokens;
	uint64_t held; /* the first tokens that a reopen asks for */
	uint64_t max_match;
	uint32_t ns;	/* the caller's number */
	uint32_t epoch; /* of the connection that it was last opened on */
};

/* ---- The table ---- */

static struct cl_seq **bucket_of(const struct cl_seqs *t, uint64_t key)
{
	return &t->bucket[(key * UINT64_C(0x9e3779b97f4a7c15)) >> 32 & (t->num_buckets - 1)];
}

static struct cl_seq *find(const struct attnd *a, uint64_t key)
{
	struct cl_seq *s = a->seqs.num_buckets ? *bucket_of(&a->seqs, key) : NULL;

	while (s && s->key != key)
		s = s->next;
	return s;
}

static void seq_destroy(struct cl_seq *s)
{
	if (!s)
		return;
	cl_tokens_destroy(&s->tokens);
	free(s);
}

static void forget(struct attnd *a, uint64_t key)
{
	struct cl_seq **at = a->seqs.num_buckets ? bucket_of(&a->seqs, key) : NULL, *s;

	while (at && *at && (*at)->key != key)
		at = &(*at)->next;
	if (!at || !*at)
		return;
	s = *at;
	*at = s->next;
	a->seqs.count--;
	seq_destroy(s);
}

static int grow(struct cl_seqs *t)
{
	struct cl_seqs more = {.num_buckets = t->num_buckets ? 2 * t->num_buckets : 64};

	if (t->count < t->num_buckets)
		return 0;
	more.bucket = calloc(more.num_buckets, sizeof(struct cl_seq *));
	if (!more.bucket)
		return t->num_buckets ? 0 : -ENOMEM; /* longer chains */
	for (size_t i = 0; i < t->num_buckets; i++) {
		while (t->bucket[i]) {
			struct cl_seq *s = t->bucket[i], **to = bucket_of(&more, s->key);

			t->bucket[i] = s->next;
			s->next = *to;
			*to = s;
		}
	}
	free(t->bucket);
	t->bucket = more.bucket;
	t->num_buckets = more.num_buckets;
	return 0;
}

/* A record for a request, and a place to keep it in. */
static struct cl_seq *seq_create(struct attnd *a, uint64_t key, uint32_t ns)
{
	struct cl_seq *s = grow(&a->seqs) ? NULL : calloc(1, sizeof(*s));

	if (s) {
		s->key = key;
		s->ns = ns;
	}
	return s;
}

/* Takes s over, in place of one of the same key. */
static void keep(struct attnd *a, struct cl_seq *s)
{
	struct cl_seq **at;

	forget(a, s->key);
	s->epoch = a->epoch;
	at = bucket_of(&a->seqs, s->key);
	s->next = *at;
	*at = s;
	a->seqs.count++;
}

void cl_seqs_destroy(struct attnd *a)
{
	for (size_t i = 0; i < a->seqs.num_buckets; i++) {
		while (a->seqs.bucket[i]) {
			struct cl_seq *next = a->seqs.bucket[i]->next;

			seq_destroy(a->seqs.bucket[i]);
			a->seqs.bucket[i] = next;
		}
	}
	free(a->seqs.bucket);
	a->seqs.bucket = NULL;
	a->seqs.num_buckets = 0;
}

bool cl_seq_stale(const struct attnd *a, uint64_t key)
{
	const struct cl_seq *s = a->epoch ? find(a, key) : NULL;

	return s && s->epoch != a->epoch;
}

static int check_fresh(struct attnd *a, uint64_t key)
{
	return cl_seq_stale(a, key) ? cl_fail_text(a, -ECONNRESET, "the sequence wants attnd_reopen") : 0;
}

static void hold(struct cl_seq *s, uint64_t length)
{
	s->held = cl_min_u64(length, s->tokens.count);
	s->max_match = UINT64_MAX;
}

void cl_seq_apply(struct attnd *a, uint64_t key, uint64_t start, const uint64_t *tokens, uint32_t count)
{
	struct cl_seq *s = find(a, key);

	if (!s)
		return;
	hold(s, cl_min_u64(s->held, start));
	if (start <= s->tokens.count)
		cl_tokens_write(&s->tokens, start, tokens, count);
}

void cl_seq_commit(struct attnd *a, uint64_t key, uint64_t length)
{
	struct cl_seq *s = find(a, key);

	if (s)
		hold(s, length);
}

/* ---- Open ---- */

static int open_request(struct attnd *a, struct cl_request *r, uint64_t key, uint32_t ns, uint64_t num_tokens,
			uint64_t max_match, uint64_t **ret_tokens)
{
	void *scratch = NULL;
	uint64_t offset = ATTND_OFFSET_NONE;
	int rc = cl_request_init(a, r, ATTND_OP_SEQ_OPEN, 0);

	if (!rc && num_tokens > ATTND_MAX_SEQ_TOKENS)
		rc = cl_fail(a, -EINVAL, ATTND_FIELD_TOKENS, ATTND_MAX_SEQ_TOKENS);
	if (!rc && num_tokens)
		rc = cl_request_scratch(a, r, (size_t)num_tokens * sizeof(uint64_t), &scratch, &offset);
	if (rc)
		return rc;
	r->sqe.sequence.ns = cl_namespace_wire(a, ns);
	r->sqe.sequence.num_tokens = (uint32_t)num_tokens;
	r->sqe.sequence.key = key;
	r->sqe.sequence.tokens = offset;
	r->sqe.sequence.max_match = max_match;
	r->sqe.sequence.priority = a->abi_minor >= 1 ? a->priority : 0; /* an older daemon has none */
	r->job.has_value = true;
	*ret_tokens = scratch;
	return 0;
}

static void open_done(struct attnd *a, struct cl_job *j)
{
	if (j->status)
		seq_destroy(j->ctx);
	else
		keep(a, j->ctx);
}

static struct cl_seq *open_record(struct attnd *a, uint64_t key, uint32_t ns, const uint64_t *tokens,
				  uint64_t num_tokens, uint64_t max_match)
{
	struct cl_seq *s = seq_create(a, key, ns);

	if (!s)
		return NULL;
	cl_tokens_write(&s->tokens, 0, tokens, num_tokens);
	s->held = s->tokens.count;
	s->max_match = max_match;
	return s;
}

static int seq_open(attnd_t *a, uint64_t key, uint32_t ns, const uint64_t *tokens, uint64_t num_tokens,
		    uint64_t max_match, enum cl_mode mode, uint64_t *ret_cached, attnd_job_t *ret_job)
{
	uint64_t *scratch;
	struct cl_request r;
	struct cl_seq *s;
	int rc = cl_enter(a, 1, mode);

	if (!rc)
		rc = open_request(a, &r, key, ns, num_tokens, max_match, &scratch);
	if (rc)
		return rc;
	s = open_record(a, key, ns, tokens, num_tokens, max_match);
	if (!s)
		return cl_request_drop(a, &r, -ENOMEM);
	if (num_tokens)
		memcpy(scratch, tokens, (size_t)num_tokens * sizeof(*tokens));
	r.job.ctx = s;
	r.job.done = open_done;
	return mode == CL_WAIT ? cl_perform(a, &r, ret_cached) : cl_submit(a, &r, ret_job);
}

int attnd_seq_open(attnd_t *a, uint64_t key, uint32_t ns, const uint64_t *tokens, uint64_t num_tokens,
		   uint64_t max_match, struct attnd_open_info *ret)
{
	uint64_t cached;
	int rc = seq_open(a, key, ns, tokens, num_tokens, max_match, CL_WAIT, &cached, NULL);

	if (!rc && ret)
		ret->cached = cached;
	return rc;
}

int attnd_seq_open_async(attnd_t *a, uint64_t key, uint32_t ns, const uint64_t *tokens, uint64_t num_tokens,
			 uint64_t max_match, attnd_job_t *ret_job)
{
	return seq_open(a, key, ns, tokens, num_tokens, max_match, CL_ASYNC, NULL, ret_job);
}

int attnd_priority(attnd_t *a, uint32_t priority)
{
	if (priority > ATTND_MAX_PRIORITY)
		return cl_fail(a, -EINVAL, ATTND_FIELD_PRIORITY, ATTND_MAX_PRIORITY);
	a->priority = priority;
	return 0;
}

/* ---- Open, and wait for a twin ---- */

static int check_wait(struct attnd *a, const struct attnd_wait_options *o)
{
	if (a->abi_minor < 1)
		return cl_fail_text(a, -EOPNOTSUPP, "the daemon's ABI is older than 1.1: it cannot wait for a twin");
	return o->quiet_us > ATTND_MAX_DEADLINE_US ? cl_fail(a, -EINVAL, ATTND_FIELD_DEADLINE, ATTND_MAX_DEADLINE_US)
						   : 0;
}

static void wait_done(struct attnd *a, struct cl_job *j)
{
	struct attnd_wait_info *info = j->ret;

	if (!j->status && info)
		*info = (struct attnd_wait_info){
			.cached = j->value, .expected = j->limit >> 8, .why = (enum attnd_waited)(j->limit & 255)};
	open_done(a, j);
}

/* The record of an earlier open of this key is replaced: it is the same sequence, perhaps of more tokens. */
static int wait_request(struct attnd *a, struct cl_request *r, uint64_t key, uint32_t ns, const uint64_t *tokens,
			uint64_t num_tokens, const struct attnd_wait_options *o)
{
	uint64_t *scratch, most = o->max_match ? o->max_match : UINT64_MAX;
	struct cl_seq *s;
	int rc = check_wait(a, o);

	if (!rc)
		rc = open_request(a, r, key, ns, num_tokens, most, &scratch);
	if (!rc && o->deadline_us > ATTND_MAX_DEADLINE_US)
		return cl_request_drop(a, r, cl_fail(a, -EINVAL, ATTND_FIELD_DEADLINE, ATTND_MAX_DEADLINE_US));
	if (rc)
		return rc;
	r->sqe.opcode = ATTND_OP_SEQ_WAIT;
	r->sqe.wait.want = o->want;
	r->sqe.wait.quiet_us = (uint32_t)o->quiet_us;
	r->sqe.wait.priority = a->priority;
	if (o->deadline_us)
		r->sqe.deadline_us = (uint32_t)o->deadline_us;
	s = open_record(a, key, ns, tokens, num_tokens, most);
	if (!s)
		return cl_request_drop(a, r, -ENOMEM);
	if (num_tokens)
		memcpy(scratch, tokens, (size_t)num_tokens * sizeof(*tokens));
	r->job.ctx = s;
	r->job.done = wait_done;
	return 0;
}

static int seq_wait(attnd_t *a, uint64_t key, uint32_t ns, const uint64_t *tokens, uint64_t num_tokens,
		    const struct attnd_wait_options *options, struct attnd_wait_info *ret, enum cl_mode mode,
		    attnd_job_t *ret_job)
{
	const struct attnd_wait_options none = {.want = 0};
	struct cl_request r;
	int rc = cl_enter(a, 1, mode);

	if (!rc)
		rc = wait_request(a, &r, key, ns, tokens, num_tokens, options ? options : &none);
	if (rc)
		return rc;
	r.job.ret = ret;
	return cl_go(a, &r, mode, ret_job);
}

int attnd_seq_wait(attnd_t *a, uint64_t key, uint32_t ns, const uint64_t *tokens, uint64_t num_tokens,
		   const struct attnd_wait_options *options, struct attnd_wait_info *ret)
{
	return seq_wait(a, key, ns, tokens, num_tokens, options, ret, CL_WAIT, NULL);
}

int attnd_seq_wait_async(attnd_t *a, uint64_t key, uint32_t ns, const uint64_t *tokens, uint64_t num_tokens,
			 const struct attnd_wait_options *options, struct attnd_wait_info *ret, attnd_job_t *ret_job)
{
	return seq_wait(a, key, ns, tokens, num_tokens, options, ret, CL_ASYNC, ret_job);
}

/* ---- Fork and trim ---- */

static int length_request(struct attnd *a, struct cl_request *r, enum attnd_opcode op, uint64_t key, uint64_t new_key,
			  uint64_t length)
{
	int rc = check_fresh(a, key);

	if (!rc)
		rc = cl_request_init(a, r, op, 0);
	if (!rc && length > ATTND_MAX_SEQ_TOKENS)
		rc = cl_fail(a, -ERANGE, ATTND_FIELD_TOKENS, ATTND_MAX_SEQ_TOKENS);
	if (rc)
		return rc;
	r->sqe.sequence.key = key;
	r->sqe.sequence.new_key = new_key;
	r->sqe.sequence.num_tokens = (uint32_t)length;
	r->job.arg[0] = key;
	r->job.arg[1] = new_key;
	r->job.arg[2] = length;
	return 0;
}

/* A source that this connection did not open has tokens that are not known here. */
static void fork_done(struct attnd *a, struct cl_job *j)
{
	const struct cl_seq *from = find(a, j->arg[0]);
	struct cl_seq *s = j->ctx;

	if (j->status || !from) {
		seq_destroy(s);
		return;
	}
	s->ns = from->ns;
	/* Without memory for them a reopen asks for none. */
	(void)cl_tokens_share(&s->tokens, &from->tokens, cl_min_u64(j->arg[2], from->tokens.count));
	hold(s, j->arg[2]);
	keep(a, s);
}

static int seq_fork(attnd_t *a, uint64_t key, uint64_t new_key, uint64_t length, enum cl_mode mode,
		    attnd_job_t *ret_job)
{
	struct cl_request r;
	int rc = cl_enter(a, 1, mode);

	if (!rc)
		rc = length_request(a, &r, ATTND_OP_SEQ_FORK, key, new_key, length);
	if (rc)
		return rc;
	r.job.ctx = seq_create(a, new_key, 0);
	if (!r.job.ctx)
		return -ENOMEM;
	r.job.done = fork_done;
	return cl_go(a, &r, mode, ret_job);
}

int attnd_seq_fork(attnd_t *a, uint64_t key, uint64_t new_key, uint64_t length)
{
	return seq_fork(a, key, new_key, length, CL_WAIT, NULL);
}

int attnd_seq_fork_async(attnd_t *a, uint64_t key, uint64_t new_key, uint64_t length, attnd_job_t *ret_job)
{
	return seq_fork(a, key, new_key, length, CL_ASYNC, ret_job);
}

static void trim_done(struct attnd *a, struct cl_job *j)
{
	struct cl_seq *s = find(a, j->arg[0]);

	if (s && !j->status)
		hold(s, cl_min_u64(s->held, j->arg[2]));
}

static int seq_trim(attnd_t *a, uint64_t key, uint64_t length, enum cl_mode mode, attnd_job_t *ret_job)
{
	struct cl_request r;
	int rc = cl_enter(a, 1, mode);

	if (!rc)
		rc = length_request(a, &r, ATTND_OP_SEQ_TRIM, key, 0, length);
	if (rc)
		return rc;
	r.job.done = trim_done;
	return cl_go(a, &r, mode, ret_job);
}

int attnd_seq_trim(attnd_t *a, uint64_t key, uint64_t length)
{
	return seq_trim(a, key, length, CL_WAIT, NULL);
}

int attnd_seq_trim_async(attnd_t *a, uint64_t key, uint64_t length, attnd_job_t *ret_job)
{
	return seq_trim(a, key, length, CL_ASYNC, ret_job);
}

/* ---- Close ---- */

int attnd_seq_close(attnd_t *a, uint64_t key)
{
	struct cl_request r;
	bool stale;
	int rc;

	if (cl_forked(a))
		return -ECHILD;
	/* A lost daemon freed what an engine of one session held: nothing to close, and no reason to connect. */
	if (!a->has_engine && find(a, key) && (a->state == CL_DOWN || cl_seq_stale(a, key))) {
		forget(a, key);
		return 0;
	}
	rc = cl_enter(a, 1, CL_WAIT);
	if (!rc)
		rc = cl_request_init(a, &r, ATTND_OP_SEQ_CLOSE, 0);
	if (rc)
		return rc;
	stale = cl_seq_stale(a, key);
	forget(a, key);
	r.sqe.sequence.key = key;
	rc = cl_perform(a, &r, NULL);
	return stale && rc == -ENOENT ? 0 : rc;
}

static int close_many(attnd_t *a, const uint64_t *keys, uint32_t num_keys, enum cl_mode mode, attnd_job_t *ret_job)
{
	struct cl_request r;
	void *scratch;
	int rc = cl_enter(a, 1, mode);

	if (!rc && (!num_keys || num_keys > ATTND_MAX_CLOSE))
		rc = cl_fail(a, -EINVAL, ATTND_FIELD_LENGTH, ATTND_MAX_CLOSE);
	if (!rc)
		rc = cl_request_init(a, &r, ATTND_OP_SEQ_CLOSE, 0);
	if (!rc)
		rc = cl_request_scratch(a, &r, num_keys * sizeof(*keys), &scratch, &r.sqe.sequence.tokens);
	if (rc)
		return rc;
	memcpy(scratch, keys, num_keys * sizeof(*keys));
	for (uint32_t i = 0; i < num_keys; i++)
		forget(a, keys[i]);
	r.sqe.flags = ATTND_CLOSE_MANY;
	r.sqe.sequence.num_tokens = num_keys;
	return cl_go(a, &r, mode, ret_job);
}

int attnd_seq_close_many(attnd_t *a, const uint64_t *keys, uint32_t num_keys)
{
	int rc = 0;

	while (num_keys && !rc) {
		uint32_t n = num_keys < ATTND_MAX_CLOSE ? num_keys : ATTND_MAX_CLOSE;

		rc = close_many(a, keys, n, CL_WAIT, NULL);
		keys += n;
		num_keys -= n;
	}
	return rc;
}

int attnd_seq_close_many_async(attnd_t *a, const uint64_t *keys, uint32_t num_keys, attnd_job_t *ret_job)
{
	return close_many(a, keys, num_keys, CL_ASYNC, ret_job);
}

/* ---- Open again ---- */

static void reopen_done(struct attnd *a, struct cl_job *j)
{
	struct cl_seq *s = find(a, j->arg[0]);

	if (s && !j->status)
		s->epoch = a->epoch;
}

static int reopen_submit(struct attnd *a, uint64_t key, attnd_job_t *ret_job)
{
	struct cl_request r;
	const struct cl_seq *s;
	uint64_t *scratch;
	int rc = cl_enter(a, 1, CL_WAIT);

	if (rc)
		return rc;
	s = find(a, key);
	if (!s)
		return cl_fail(a, -ENOENT, ATTND_FIELD_SEQUENCE, 0);
	rc = open_request(a, &r, key, s->ns, s->held, s->max_match, &scratch);
	if (rc)
		return rc;
	cl_tokens_read(&s->tokens, scratch, s->held);
	r.job.arg[0] = key;
	r.job.done = reopen_done;
	return cl_submit_internal(a, &r, ret_job);
}

/* Another session kept the engine alive, and with it the sequence: bring it to the length known here. */
static int reopen_trim(struct attnd *a, uint64_t key, uint64_t *ret_length)
{
	struct cl_seq *s = find(a, key);
	uint64_t length;
	int rc;

	if (!s)
		return -ENOENT;
	s->epoch = a->epoch;
	length = s->held;
	rc = attnd_seq_trim(a, key, length);
	if (!rc)
		*ret_length = length;
	return rc;
}

static int reopen_batch(struct attnd *a, const uint64_t *keys, uint32_t num_keys, uint64_t *ret_lengths)
{
	attnd_job_t job[REOPEN_BATCH];
	uint32_t sent = 0;
	int rc = 0, first = 0;

	while (sent < num_keys && !first) {
		first = reopen_submit(a, keys[sent], &job[sent]);
		sent += !first;
	}
	for (uint32_t i = 0; i < sent; i++) {
		rc = cl_collect(a, job[i], &ret_lengths[i]);
		if (rc == -EEXIST)
			rc = reopen_trim(a, keys[i], &ret_lengths[i]);
		first = first ? first : rc;
	}
	return first;
}

int attnd_reopen(attnd_t *a, const uint64_t *keys, uint32_t num_keys, uint64_t *ret_lengths)
{
	uint64_t *lengths;
	int rc = cl_enter(a, 1, CL_WAIT);

	if (rc || !num_keys)
		return rc;
	lengths = malloc(num_keys * sizeof(*lengths));
	if (!lengths)
		return -ENOMEM;
	for (uint32_t i = 0; !rc && i < num_keys; i += REOPEN_BATCH)
		rc = reopen_batch(a, keys + i, num_keys - i < REOPEN_BATCH ? num_keys - i : REOPEN_BATCH,
				  lengths + i);
	if (!rc)
		memcpy(ret_lengths, lengths, num_keys * sizeof(*lengths));
	free(lengths);
	return rc;
}
