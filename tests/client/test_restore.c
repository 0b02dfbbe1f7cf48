/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A daemon that ends and comes back: what is restored, in which order, under which numbers, and
 * what a sequence is opened again with.
 */
#include "fake.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "../../shm/futex.h"

#define MS UINT64_C(1000000)

static const struct attnd_cache_desc desc = {.name = "m",
					     .num_layers = 4,
					     .num_heads = 2,
					     .num_kv_heads = 1,
					     .head_dim = 64,
					     .kv_dtype = ATTND_INT8,
					     .scale_mode = ATTND_SCALE_STATIC};

static const struct attnd_params params = {.sm_scale = 1, .causal = 1};

static void restart(struct fake *f)
{
	fake_kill(f);
	fake_log_clear(f);
	fake_start(f);
}

static void idle_restart_is_not_noticed(void **state)
{
	struct fake *f = *state;
	attnd_t *a = fake_connect(f, NULL);

	for (int i = 0; i < 3; i++) {
		assert_int_equal(attnd_ping(a, 0), 0);
		restart(f);
		usleep(120000);
		assert_int_equal(attnd_ping(a, 0), 0);
	}
	attnd_disconnect(a);
}

static void reconnect_waits_for_the_daemon(void **state)
{
	struct fake *f = *state;
	attnd_t *a = fake_connect(f, &(struct attnd_connect_options){.timeout_us = 2000000});
	uint64_t before;

	fake_kill(f);
	usleep(120000);
	before = attnd_now_ns();
	assert_int_equal(attnd_ping(a, 0), -ECONNREFUSED);
	assert_in_range(attnd_now_ns() - before, 1900 * MS, 30000 * MS);
	assert_non_null(strstr(attnd_strerror(a, -ECONNREFUSED), "connect timeout"));
	fake_start(f);
	assert_int_equal(attnd_ping(a, 0), 0);
	attnd_disconnect(a);
}

static void *start_later(void *arg)
{
	usleep(100000);
	fake_start(arg);
	return NULL;
}

static void reconnect_meets_a_late_daemon(void **state)
{
	struct fake *f = *state;
	attnd_t *a = fake_connect(f, NULL);
	attnd_job_t job;
	pthread_t t;

	FAKE_HOW(f, hold, true);
	assert_int_equal(attnd_ping_async(a, 0, &job), 0);
	fake_kill(f);
	FAKE_HOW(f, hold, false);
	assert_int_equal(attnd_wait(a, job, NULL), -ECONNRESET);
	pthread_create(&t, NULL, start_later, f);
	assert_int_equal(attnd_ping(a, 0), 0);
	pthread_join(t, NULL);
	attnd_disconnect(a);
}

/* Segments, engine, caches, grants, scales, namespaces, parameter sets. */
static void everything_in_order(void **state)
{
	struct fake *f = *state;
	uint8_t id[16] = {9};
	attnd_t *a = fake_connect(f, &(struct attnd_connect_options){.engine_id = id, .engine_create = 1});
	struct attnd_cache_info info[2];
	struct attnd_cache_desc other = desc;
	char order[256];
	uint32_t ns;
	void *p;

	other.name = "n";
	assert_int_equal(attnd_cache_open(a, &desc, 0, &info[0]), 0);
	assert_int_equal(attnd_cache_open(a, &other, 1, &info[1]), 0);
	assert_int_equal(attnd_grant(a, info[1].cache, 100, 2), 0);
	assert_int_equal(attnd_grant(a, info[0].cache, 50, 1), 0);
	assert_int_equal(attnd_grant(a, info[0].cache, 0, 0), 0); /* given back: not asked for again */
	assert_int_equal(attnd_scales_set(a, info[1].cache, 2, 0.5f, 2.0f), 0);
	assert_int_equal(attnd_namespace(a, &(struct attnd_namespace){.tenant = "t", .tenant_bytes = 1}, &ns), 0);
	assert_int_equal(attnd_params_set(a, 5, &params), 0);
	assert_int_equal(attnd_params_set(a, 5, &params), 0); /* replaced: one of them */
	assert_int_equal(attnd_alloc(a, 3 << 20, &p), 0);
	restart(f);
	usleep(120000);
	assert_int_equal(attnd_ping(a, 0), 0);
	fake_log_order(f, order, sizeof(order));
	/* 2 engine (joined: not there; made), 3 cache, 4 grant, 5 scales, 6 namespace, 7 params, 1 ping */
	assert_string_equal(order, "hello segment segment 2 2 3 3 4 5 6 7 1 ");
	assert_int_equal(fake_find(f, ATTND_OP_ENGINE, 0).sqe.flags, 0);
	assert_int_equal(fake_find(f, ATTND_OP_ENGINE, 1).sqe.flags, ATTND_ENGINE_CREATE);
	assert_memory_equal(fake_find(f, ATTND_OP_ENGINE, 1).payload, id, 16);
	assert_int_equal(fake_find(f, ATTND_OP_CACHE_OPEN, 0).payload[0], 'm');
	assert_int_equal(fake_find(f, ATTND_OP_CACHE_OPEN, 0).sqe.flags, ATTND_CACHE_CREATE);
	assert_int_equal(fake_find(f, ATTND_OP_GRANT, 0).sqe.grant.tokens, 100);
	assert_int_equal(fake_find(f, ATTND_OP_SCALES, 0).sqe.layer, 2);
	assert_true(fake_find(f, ATTND_OP_SCALES, 0).sqe.scales.v_scale == 2.0f);
	assert_int_equal(fake_find(f, ATTND_OP_PARAMS, 0).sqe.obj.id, 5);
	attnd_disconnect(a);
}

/* Another session of the engine came back first and made it: join. */
static void engine_made_by_another(void **state)
{
	struct fake *f = *state;
	uint8_t id[16] = {9};
	attnd_t *a = fake_connect(f, &(struct attnd_connect_options){.engine_id = id, .engine_create = 1});

	fake_kill(f);
	fake_log_clear(f);
	f->has_engine = true;
	fake_start(f);
	usleep(120000);
	assert_int_equal(attnd_ping(a, 0), 0);
	assert_int_equal(fake_find(f, ATTND_OP_ENGINE, 0).sqe.flags, 0);
	attnd_disconnect(a);
}

/* The daemon numbers differently this time; the caller's numbers stay. */
static void old_numbers_are_translated(void **state)
{
	struct fake *f = *state;
	attnd_t *a = fake_connect(f, NULL);
	struct attnd_cache_info info;
	struct attnd_open_info open;
	struct attnd_cache_desc other = desc;
	struct attnd_wire_params w;
	uint64_t token = 1;
	uint32_t ns, other_ns;

	assert_int_equal(attnd_cache_open(a, &desc, 1, &info), 0);
	assert_int_equal(info.cache, 0);
	assert_int_equal(attnd_params_set(a, 1, &params), 0);
	assert_int_equal(attnd_namespace(a, &(struct attnd_namespace){.salt = "s", .salt_bytes = 1}, &ns), 0);
	assert_int_equal(ns, 1);
	fake_kill(f);
	f->how.first_cache = 6;
	f->how.first_namespace = 50;
	fake_start(f);
	usleep(120000);
	fake_log_clear(f);
	assert_int_equal(attnd_grant(a, 0, 10, 1), 0);
	assert_int_equal(fake_find(f, ATTND_OP_GRANT, 0).sqe.grant.cache, 6);
	memcpy(&w, fake_find(f, ATTND_OP_PARAMS, 0).payload, sizeof(w));
	assert_int_equal(w.cache, 6);
	assert_int_equal(attnd_seq_open(a, 1, ns, &token, 1, 1, &open), 0);
	assert_int_equal(fake_find(f, ATTND_OP_SEQ_OPEN, 0).sqe.sequence.ns, 50);
	assert_int_equal(
		attnd_plan(a, 1, 0, &(struct attnd_row){.key = 1, .tokens = &token, .num_tokens = 1}, 1, NULL, 0), 0);
	assert_int_equal(fake_find(f, ATTND_OP_PLAN, 0).sqe.plan.cache, 6);
	/* A new one whose number is an old one's gets another. */
	FAKE_HOW(f, first_cache, UINT32_MAX); /* + 1, the caches so far: 0 */
	other.name = "n";
	assert_int_equal(attnd_cache_open(a, &other, 1, &info), 0);
	assert_int_equal(info.cache, 1);
	assert_int_equal(attnd_grant(a, 1, 10, 1), 0);
	assert_int_equal(fake_find(f, ATTND_OP_GRANT, 1).sqe.grant.cache, 0);
	FAKE_HOW(f, first_namespace, 0);
	assert_int_equal(attnd_namespace(a, &(struct attnd_namespace){.salt = "x", .salt_bytes = 1}, &other_ns), 0);
	assert_int_equal(other_ns, 2);
	attnd_disconnect(a);
}

static void restored_params_have_their_floats(void **state)
{
	struct fake *f = *state;
	attnd_t *a = fake_connect(f, NULL);
	float alibi[2] = {0.5f, 0.25f};
	struct attnd_cache_info info;
	struct attnd_params p = params;
	struct attnd_wire_params w;
	float got[2];

	p.alibi = alibi;
	assert_int_equal(attnd_cache_open(a, &desc, 1, &info), 0);
	assert_int_equal(attnd_params_set(a, 0, &p), 0);
	restart(f);
	usleep(120000);
	assert_int_equal(attnd_ping(a, 0), 0);
	memcpy(&w, fake_find(f, ATTND_OP_PARAMS, 0).payload, sizeof(w));
	assert_int_equal(w.sinks, ATTND_OFFSET_NONE);
	fake_read(f, w.alibi, got, sizeof(got));
	assert_memory_equal(got, alibi, sizeof(alibi));
	attnd_disconnect(a);
}

/* What the new daemon refuses is the call's error, and the next call tries again. */
static void refused_restoration(void **state)
{
	struct fake *f = *state;
	attnd_t *a = fake_connect(f, NULL);
	struct attnd_cache_info info;

	assert_int_equal(attnd_cache_open(a, &desc, 1, &info), 0);
	assert_int_equal(attnd_grant(a, 0, 100, 1), 0);
	fake_kill(f);
	f->how.fail_op = ATTND_OP_GRANT;
	f->how.fail_status = -ENOMEM;
	f->how.fail_field = ATTND_FIELD_GRANT_TOKENS;
	fake_start(f);
	usleep(120000);
	assert_int_equal(attnd_ping(a, 0), -ENOMEM);
	assert_non_null(strstr(attnd_strerror(a, -ENOMEM), "grant tokens"));
	FAKE_HOW(f, fail_op, 0);
	assert_int_equal(attnd_ping(a, 0), 0);
	attnd_disconnect(a);
}

static void memory_stays_over_a_restart(void **state)
{
	struct fake *f = *state;
	attnd_t *a = fake_connect(f, NULL);
	unsigned char *p, seen[4];

	assert_int_equal(attnd_alloc(a, 4, (void **)&p), 0);
	memcpy(p, "abcd", 4);
	restart(f);
	usleep(120000);
	assert_int_equal(attnd_ping(a, 0), 0);
	assert_memory_equal(p, "abcd", 4);
	memcpy(p, "efgh", 4);
	fake_read(f, 0, seen, 4);
	assert_memory_equal(seen, "efgh", 4);
	attnd_disconnect(a);
}

/* ---- Sequences ---- */

static uint64_t prompt[2000];

static void fill_prompt(void)
{
	for (uint64_t i = 0; i < 2000; i++)
		prompt[i] = 1000 + i;
}

static int plan_row(attnd_t *a, uint32_t tag, uint64_t key, uint64_t start, const uint64_t *tokens, uint32_t n)
{
	const struct attnd_row row = {.key = key, .start = start, .tokens = tokens, .num_tokens = n};

	return attnd_plan(a, tag, 0, &row, 1, NULL, 0);
}

static int last_job(attnd_t *a, uint32_t tag)
{
	struct attnd_attend j = {.plan = tag, .flags = ATTND_LAST | ATTND_NO_OUT};
	attnd_job_t job;
	void *p;
	int rc;

	assert_int_equal(attnd_alloc(a, 64, &p), 0);
	j.k = j.v = p;
	rc = attnd_extend(a, &j, &job);
	if (!rc)
		rc = attnd_wait(a, job, NULL);
	attnd_free(a, p);
	return rc;
}

/* Restart, reopen, and see with which tokens: `n` of the prompt, then `more`. */
static void expect_reopen(struct fake *f, attnd_t *a, uint64_t key, uint64_t n, const uint64_t *more,
			  uint64_t num_more)
{
	uint64_t length, got[2100];
	struct attnd_sqe e;

	restart(f);
	usleep(120000);
	assert_int_equal(attnd_reopen(a, &key, 1, &length), 0);
	assert_int_equal(length, n + num_more);
	e = fake_find(f, ATTND_OP_SEQ_OPEN, 0).sqe;
	assert_int_equal(e.sequence.key, key);
	assert_int_equal(e.sequence.num_tokens, n + num_more);
	assert_int_equal(e.sequence.max_match, UINT64_MAX);
	fake_read(f, e.sequence.tokens, got, (n + num_more) * sizeof(uint64_t));
	assert_memory_equal(got, prompt, n * sizeof(uint64_t));
	if (num_more)
		assert_memory_equal(got + n, more, num_more * sizeof(uint64_t));
}

static void stale_sequences_are_refused(void **state)
{
	struct fake *f = *state;
	attnd_t *a = fake_connect(f, NULL);
	uint64_t keys[2] = {1, 2}, lengths[2] = {55, 55}, token = 1;
	struct attnd_attend j = {0};
	struct attnd_open_info info;
	attnd_job_t job;
	void *p;

	fill_prompt();
	assert_int_equal(attnd_seq_open(a, 1, 0, prompt, 10, 9, &info), 0);
	assert_int_equal(attnd_seq_open(a, 2, 0, prompt, 20, UINT64_MAX, &info), 0);
	assert_int_equal(attnd_alloc(a, 64, &p), 0);
	assert_int_equal(plan_row(a, 1, 2, 20, &token, 1), 0);
	restart(f);
	usleep(120000);
	j.q = j.k = j.v = j.out = p;
	assert_int_equal(attnd_decode(a, &j, &job), -ECONNRESET); /* its plan is gone */
	assert_int_equal(plan_row(a, 1, 1, 9, &token, 1), -ECONNRESET);
	assert_non_null(strstr(attnd_strerror(a, -ECONNRESET), "attnd_reopen"));
	assert_int_equal(attnd_seq_trim(a, 1, 0), -ECONNRESET);
	assert_int_equal(attnd_seq_fork(a, 1, 3, 0), -ECONNRESET);
	keys[1] = 77;
	assert_int_equal(attnd_reopen(a, keys, 2, lengths), -ENOENT);
	assert_int_equal(lengths[0], 55);
	keys[1] = 2;
	assert_int_equal(attnd_reopen(a, keys, 2, lengths), 0);
	assert_int_equal(lengths[0], 9); /* as it was first opened: max_match again */
	assert_int_equal(lengths[1], 20);
	assert_int_equal(plan_row(a, 1, 1, 9, &token, 1), 0);
	assert_int_equal(attnd_seq_trim(a, 2, 0), 0);
	attnd_disconnect(a);
}

static void committed_tokens_count(void **state)
{
	struct fake *f = *state;
	attnd_t *a = fake_connect(f, NULL);
	uint64_t more[2] = {7, 8};
	struct attnd_open_info info;

	fill_prompt();
	assert_int_equal(attnd_seq_open(a, 1, 0, prompt, 1500, 1499, &info), 0);
	assert_int_equal(plan_row(a, 1, 1, 1499, prompt + 1499, 1), 0);
	assert_int_equal(last_job(a, 1), 0);
	assert_int_equal(plan_row(a, 2, 1, 1500, more, 2), 0);
	assert_int_equal(last_job(a, 2), 0);
	expect_reopen(f, a, 1, 1500, more, 2);
	attnd_disconnect(a);
}

/* Without its LAST job a plan leaves the length as it was, and a lower start cuts it. */
static void abandoned_tokens_do_not_count(void **state)
{
	struct fake *f = *state;
	attnd_t *a = fake_connect(f, NULL);
	uint64_t draft[3] = {7, 8, 9}, next[1] = {6};
	struct attnd_open_info info;

	fill_prompt();
	assert_int_equal(attnd_seq_open(a, 1, 0, prompt, 100, UINT64_MAX, &info), 0);
	assert_int_equal(plan_row(a, 1, 1, 100, draft, 3), 0);
	expect_reopen(f, a, 1, 100, NULL, 0);
	assert_int_equal(plan_row(a, 1, 1, 100, draft, 3), 0);
	assert_int_equal(attnd_plan_end(a, 1), 0);
	assert_int_equal(last_job(a, 1), 0); /* the fake says yes: but nothing is known of such a plan */
	expect_reopen(f, a, 1, 100, NULL, 0);
	assert_int_equal(plan_row(a, 1, 1, 100, draft, 3), 0);
	assert_int_equal(last_job(a, 1), 0);
	/* Rolled back to 101 and continued otherwise. */
	assert_int_equal(plan_row(a, 1, 1, 90, next, 1), 0);
	assert_int_equal(last_job(a, 1), 0);
	expect_reopen(f, a, 1, 90, next, 1);
	attnd_disconnect(a);
}

static void refused_rows_and_failed_jobs_do_not_count(void **state)
{
	struct fake *f = *state;
	attnd_t *a = fake_connect(f, NULL);
	uint64_t more[2] = {7, 8};
	const struct attnd_row rows[2] = {{.key = 1, .start = 10, .tokens = more, .num_tokens = 2},
					  {.key = 2, .start = 10, .tokens = more, .num_tokens = 2}};
	struct attnd_row_status status[2];
	struct attnd_open_info info;

	fill_prompt();
	for (uint64_t key = 1; key <= 3; key++)
		assert_int_equal(attnd_seq_open(a, key, 0, prompt, 10, UINT64_MAX, &info), 0);
	FAKE_HOW(f, refuse_row, -ENOMEM);
	assert_int_equal(attnd_plan(a, 1, 0, rows, 2, status, 0), 0);
	assert_int_equal(last_job(a, 1), 0);
	assert_int_equal(plan_row(a, 2, 3, 10, more, 2), 0);
	FAKE_HOW(f, fail_op, ATTND_OP_EXTEND);
	FAKE_HOW(f, fail_status, -ESTALE);
	assert_int_equal(last_job(a, 2), -ESTALE);
	assert_non_null(strstr(attnd_strerror(a, -ESTALE), "later plan"));
	FAKE_HOW(f, fail_op, 0);
	expect_reopen(f, a, 1, 10, more, 2);
	expect_reopen(f, a, 2, 10, NULL, 0);
	expect_reopen(f, a, 3, 10, NULL, 0);
	attnd_disconnect(a);
}

static void forks_and_trims_are_kept(void **state)
{
	struct fake *f = *state;
	attnd_t *a = fake_connect(f, NULL);
	uint64_t more[2] = {7, 8};
	struct attnd_open_info info;

	fill_prompt();
	assert_int_equal(attnd_seq_open(a, 1, 0, prompt, 1800, UINT64_MAX, &info), 0);
	assert_int_equal(attnd_seq_fork(a, 1, 2, 700), 0);
	assert_int_equal(plan_row(a, 1, 2, 700, more, 2), 0);
	assert_int_equal(last_job(a, 1), 0);
	assert_int_equal(attnd_seq_trim(a, 1, 600), 0);
	expect_reopen(f, a, 2, 700, more, 2);
	expect_reopen(f, a, 1, 600, NULL, 0);
	/* A fork of what this connection did not open cannot be opened again. */
	assert_int_equal(attnd_seq_fork(a, 99, 3, 10), 0);
	restart(f);
	usleep(120000);
	assert_int_equal(attnd_reopen(a, (uint64_t[]){3}, 1, &info.cached), -ENOENT);
	attnd_disconnect(a);
}

static void once_counts(void **state)
{
	struct fake *f = *state;
	attnd_t *a = fake_connect(f, NULL);
	uint64_t more[1] = {7};
	const struct attnd_row row = {.key = 1, .start = 50, .tokens = more, .num_tokens = 1};
	struct attnd_attend j = {.plan = 4, .flags = ATTND_NO_OUT};
	struct attnd_open_info info;
	void *p;

	fill_prompt();
	assert_int_equal(attnd_alloc(a, 64, &p), 0);
	j.k = j.v = p;
	assert_int_equal(attnd_seq_open(a, 1, 0, prompt, 50, UINT64_MAX, &info), 0);
	assert_int_equal(attnd_decode_once(a, 0, &row, 1, &j, NULL), 0);
	expect_reopen(f, a, 1, 50, more, 1);
	attnd_disconnect(a);
}

static void many_are_reopened(void **state)
{
	struct fake *f = *state;
	attnd_t *a = fake_connect(f, &(struct attnd_connect_options){.queue_entries = 8});
	static uint64_t keys[300], lengths[300];
	struct attnd_open_info info;

	fill_prompt();
	for (uint64_t i = 0; i < 300; i++) {
		keys[i] = i << 40 | i;
		assert_int_equal(attnd_seq_open(a, keys[i], 0, prompt, i, UINT64_MAX, &info), 0);
	}
	restart(f);
	usleep(120000);
	FAKE_HOW(f, cached, 250);
	assert_int_equal(attnd_reopen(a, keys, 300, lengths), 0);
	for (uint64_t i = 0; i < 300; i++)
		assert_int_equal(lengths[i], i < 250 ? i : 250);
	assert_int_equal(attnd_reopen(a, keys, 0, lengths), 0);
	attnd_disconnect(a);
}

/* Another session kept the engine, and so the sequence: it is brought to the length known here. */
static void reopen_of_one_that_lives(void **state)
{
	struct fake *f = *state;
	attnd_t *a = fake_connect(f, NULL);
	uint64_t key = 1, length = 0;
	struct attnd_open_info info;

	fill_prompt();
	assert_int_equal(attnd_seq_open(a, 1, 0, prompt, 30, UINT64_MAX, &info), 0);
	restart(f);
	usleep(120000);
	FAKE_HOW(f, fail_op, ATTND_OP_SEQ_OPEN);
	FAKE_HOW(f, fail_status, -EEXIST);
	assert_int_equal(attnd_reopen(a, &key, 1, &length), 0);
	assert_int_equal(length, 30);
	assert_int_equal(fake_find(f, ATTND_OP_SEQ_TRIM, 0).sqe.sequence.num_tokens, 30);
	attnd_disconnect(a);
}

static void close_of_a_lost_sequence(void **state)
{
	struct fake *f = *state;
	attnd_t *a = fake_connect(f, NULL);
	struct attnd_open_info info;
	attnd_job_t job;
	uint64_t before, length;

	fill_prompt();
	assert_int_equal(attnd_seq_open(a, 1, 0, prompt, 30, UINT64_MAX, &info), 0);
	assert_int_equal(attnd_seq_open(a, 2, 0, prompt, 30, UINT64_MAX, &info), 0);
	FAKE_HOW(f, hold, true);
	assert_int_equal(attnd_ping_async(a, 0, &job), 0);
	fake_kill(f);
	assert_int_equal(attnd_wait(a, job, NULL), -ECONNRESET);
	before = attnd_now_ns();
	assert_int_equal(attnd_seq_close(a, 1), 0); /* no daemon is waited for */
	assert_true(attnd_now_ns() - before < 30000 * MS);
	FAKE_HOW(f, hold, false);
	fake_start(f);
	assert_int_equal(attnd_reopen(a, (uint64_t[]){1}, 1, &length), -ENOENT);
	assert_int_equal(attnd_seq_close(a, 2), 0);
	assert_int_equal(attnd_reopen(a, (uint64_t[]){2}, 1, &length), -ENOENT);
	attnd_disconnect(a);
}

/* Jobs in flight are told; statuses and results of theirs are not touched. */
static void flying_plan_is_reset(void **state)
{
	struct fake *f = *state;
	attnd_t *a = fake_connect(f, NULL);
	uint64_t token = 1;
	const struct attnd_row row = {.key = 1, .start = 30, .tokens = &token, .num_tokens = 1};
	struct attnd_row_status status = {.status = 123};
	struct attnd_open_info info;
	attnd_job_t job;

	fill_prompt();
	assert_int_equal(attnd_seq_open(a, 1, 0, prompt, 30, UINT64_MAX, &info), 0);
	FAKE_HOW(f, hold, true);
	assert_int_equal(attnd_plan_async(a, 1, 0, &row, 1, &status, 0, &job), 0);
	fake_kill(f);
	assert_int_equal(attnd_wait(a, job, NULL), -ECONNRESET);
	assert_int_equal(status.status, 123);
	FAKE_HOW(f, hold, false);
	fake_log_clear(f);
	fake_start(f);
	expect_reopen(f, a, 1, 30, NULL, 0);
	attnd_disconnect(a);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		FAKE_TEST(idle_restart_is_not_noticed),
		FAKE_TEST(reconnect_waits_for_the_daemon),
		FAKE_TEST(reconnect_meets_a_late_daemon),
		FAKE_TEST(everything_in_order),
		FAKE_TEST(engine_made_by_another),
		FAKE_TEST(old_numbers_are_translated),
		FAKE_TEST(restored_params_have_their_floats),
		FAKE_TEST(refused_restoration),
		FAKE_TEST(memory_stays_over_a_restart),
		FAKE_TEST(stale_sequences_are_refused),
		FAKE_TEST(committed_tokens_count),
		FAKE_TEST(abandoned_tokens_do_not_count),
		FAKE_TEST(refused_rows_and_failed_jobs_do_not_count),
		FAKE_TEST(forks_and_trims_are_kept),
		FAKE_TEST(once_counts),
		FAKE_TEST(many_are_reopened),
		FAKE_TEST(reopen_of_one_that_lives),
		FAKE_TEST(close_of_a_lost_sequence),
		FAKE_TEST(flying_plan_is_reset),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
