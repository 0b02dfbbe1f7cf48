/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What each call puts on the wire, and what it makes of the answer.
 */
#include "fake.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const struct attnd_cache_desc desc = {.name = "llama",
					     .fingerprint = {1, 2, 3},
					     .num_layers = 4,
					     .num_heads = 8,
					     .num_kv_heads = 2,
					     .head_dim = 64,
					     .kv_dtype = ATTND_INT8,
					     .scale_mode = ATTND_SCALE_STATIC,
					     .layout = ATTND_BHSD};

static uint64_t offset_in(const void *base, const void *p)
{
	return (uint64_t)((const char *)p - (const char *)base);
}

/* ---- Objects ---- */

static void cache_open_sends_the_identity(void **state)
{
	struct fake *f = *state;
	attnd_t *a = fake_connect(f, NULL);
	struct attnd_cache_info info;
	struct attnd_wire_cache w;
	struct fake_event e;

	FAKE_HOW(f, first_cache, 3);
	assert_int_equal(attnd_cache_open(a, &desc, 1, &info), 0);
	assert_int_equal(info.cache, 3);
	assert_int_equal(info.step, 64);
	assert_int_equal(info.chunk, 512);
	assert_int_equal(info.capacity_tokens, 123456);
	e = fake_find(f, ATTND_OP_CACHE_OPEN, 0);
	assert_int_equal(e.sqe.flags, ATTND_CACHE_CREATE);
	assert_int_equal(e.sqe.obj.bytes, sizeof(w));
	memcpy(&w, e.payload, sizeof(w));
	assert_string_equal(w.name, "llama");
	assert_memory_equal(w.fingerprint, desc.fingerprint, 16);
	assert_int_equal(w.head_dim_v, 64);
	assert_int_equal(w.kv_dtype, ATTND_WIRE_INT8);
	assert_int_equal(w.scale_mode, ATTND_WIRE_SCALE_STATIC);
	assert_int_equal(w.layout, ATTND_WIRE_BHSD);
	assert_int_equal(attnd_cache_open(a, &desc, 0, &info), 0);
	assert_int_equal(fake_find(f, ATTND_OP_CACHE_OPEN, 1).sqe.flags, 0);
	attnd_disconnect(a);
}

static void bad_identities(void **state)
{
	struct fake *f = *state;
	attnd_t *a = fake_connect(f, NULL);
	struct attnd_cache_info info;
	struct attnd_cache_desc d = desc;
	char name[ATTND_MAX_NAME + 2];

	memset(name, 'n', sizeof(name));
	name[sizeof(name) - 1] = 0;
	d.name = name;
	assert_int_equal(attnd_cache_open(a, &d, 1, &info), -EINVAL);
	assert_non_null(strstr(attnd_strerror(a, -EINVAL), "cache name (printable ASCII without /) (limit 64)"));
	d.name = NULL;
	assert_int_equal(attnd_cache_open(a, &d, 1, &info), -EINVAL);
	d = desc;
	d.kv_dtype = (enum attnd_dtype)77;
	assert_int_equal(attnd_cache_open(a, &d, 1, &info), -EINVAL);
	assert_non_null(strstr(attnd_strerror(a, -EINVAL), "kv_dtype"));
	d = desc;
	d.layout = (enum attnd_layout)300;
	assert_int_equal(attnd_cache_open(a, &d, 1, &info), -EINVAL);
	/* A name of just 64 bytes has no terminator on the wire. */
	name[ATTND_MAX_NAME] = 0;
	d = desc;
	d.name = name;
	assert_int_equal(attnd_cache_open(a, &d, 1, &info), 0);
	assert_memory_equal(fake_find(f, ATTND_OP_CACHE_OPEN, 0).payload, name, ATTND_MAX_NAME);
	attnd_disconnect(a);
}

static void async_cache_open_fills_later(void **state)
{
	struct fake *f = *state;
	attnd_t *a = fake_connect(f, NULL);
	struct attnd_cache_info info = {.cache = 99};
	struct attnd_result r;
	attnd_job_t job;

	FAKE_HOW(f, hold_op, ATTND_OP_CACHE_OPEN);
	assert_int_equal(attnd_cache_open_async(a, &desc, 1, &info, &job), 0);
	assert_int_equal(info.cache, 99);
	fake_wait_log(f, 3);
	fake_release(f, false);
	assert_int_equal(attnd_wait(a, job, &r), 0);
	assert_int_equal(info.cache, 0);
	assert_int_equal(r.value, 0);
	attnd_disconnect(a);
}

static void grants_and_scales(void **state)
{
	struct fake *f = *state;
	attnd_t *a = fake_connect(f, NULL);
	struct attnd_cache_info info;
	struct attnd_sqe e;

	assert_int_equal(attnd_cache_open(a, &desc, 1, &info), 0);
	assert_int_equal(attnd_grant(a, info.cache, UINT64_C(1) << 40, 12), 0);
	e = fake_find(f, ATTND_OP_GRANT, 0).sqe;
	assert_int_equal(e.grant.tokens, UINT64_C(1) << 40);
	assert_int_equal(e.grant.sequences, 12);
	assert_int_equal(attnd_scales_set(a, info.cache, 3, 0.5f, 0.25f), 0);
	e = fake_find(f, ATTND_OP_SCALES, 0).sqe;
	assert_int_equal(e.layer, 3);
	assert_true(e.scales.k_scale == 0.5f && e.scales.v_scale == 0.25f);
	assert_int_equal(attnd_scales_set(a, info.cache, 1 << 20, 1, 1), -EINVAL);
	assert_int_equal(attnd_grant(a, 1 << 20, 1, 1), -EINVAL);
	attnd_disconnect(a);
}

static void namespaces_are_tagged(void **state)
{
	static const unsigned char want[] = {1, 0, 1, 0, 'a', 0, 0, 0, 2, 0, 2, 0, 'b', 'c', 0, 0, 3, 0, 0, 0};
	struct fake *f = *state;
	attnd_t *a = fake_connect(f, NULL);
	struct attnd_namespace ns = {
		.tenant = "a", .tenant_bytes = 1, .adapter = "bc", .adapter_bytes = 2, .salt = ""};
	struct fake_event e;
	uint32_t id = 0;

	assert_int_equal(attnd_namespace(a, &ns, &id), 0);
	assert_int_equal(id, 1);
	e = fake_find(f, ATTND_OP_NAMESPACE, 0);
	assert_int_equal(e.sqe.obj.bytes, sizeof(want));
	assert_memory_equal(e.payload, want, sizeof(want));
	ns = (struct attnd_namespace){0};
	assert_int_equal(attnd_namespace(a, &ns, &id), 0);
	assert_int_equal(fake_find(f, ATTND_OP_NAMESPACE, 1).sqe.obj.bytes, 0);
	ns = (struct attnd_namespace){.salt = want, .salt_bytes = ATTND_MAX_NS_BYTES};
	assert_int_equal(attnd_namespace(a, &ns, &id), -EINVAL);
	ns.salt_bytes = UINT32_MAX;
	assert_int_equal(attnd_namespace(a, &ns, &id), -EINVAL);
	assert_non_null(strstr(attnd_strerror(a, -EINVAL), "namespace fields"));
	attnd_disconnect(a);
}

static void params_are_made_contiguous(void **state)
{
	struct fake *f = *state;
	attnd_t *a = fake_connect(f, NULL);
	float sinks[8] = {1, 2, 3, 4, 5, 6, 7, 8}, alibi[8] = {8, 7, 6, 5, 4, 3, 2, 1};
	struct attnd_params p = {.sm_scale = 0.125f,
				 .logit_cap = 30,
				 .sliding_window = 4096,
				 .causal = 1,
				 .q_dtype = ATTND_BF16,
				 .out_dtype = ATTND_F32,
				 .kv_in_dtype = ATTND_BF16,
				 .sinks = sinks,
				 .alibi = alibi,
				 .q_token_stride = 5000,
				 .k_head_stride = 1024};
	struct attnd_wire_params w;
	struct attnd_cache_info info;
	struct fake_event e;

	assert_int_equal(attnd_params_set(a, 7, &p), -EINVAL); /* how many sinks? The cache is not open. */
	assert_int_equal(attnd_cache_open(a, &desc, 1, &info), 0);
	assert_int_equal(attnd_params_set(a, 7, &p), 0);
	e = fake_find(f, ATTND_OP_PARAMS, 0);
	memcpy(&w, e.payload, sizeof(w));
	assert_int_equal(e.sqe.obj.id, 7);
	assert_int_equal(e.sqe.obj.bytes, sizeof(w));
	assert_int_equal(w.sliding_window, 4096);
	assert_int_equal(w.causal, 1);
	assert_int_equal(w.q_token_stride, 5000);
	assert_int_equal(w.q_head_stride, 128);
	assert_int_equal(w.k_head_stride, 1024);
	assert_int_equal(w.k_token_stride, 2048);
	assert_int_equal(w.v_head_stride, 128);
	assert_int_equal(w.v_token_stride, 256);
	assert_int_equal(w.out_head_stride, 256);
	assert_int_equal(w.out_token_stride, 2048);
	assert_int_equal(w.sinks, e.sqe.obj.payload + sizeof(w));
	assert_memory_equal(e.payload + sizeof(w), sinks, sizeof(sinks));
	assert_int_equal(w.alibi, w.sinks + sizeof(sinks));
	assert_memory_equal(e.payload + sizeof(w) + sizeof(sinks), alibi, sizeof(alibi));
	assert_int_equal(attnd_params_set(a, ATTND_MAX_PARAMS, &p), -EINVAL);
	p.q_dtype = (enum attnd_dtype)99;
	assert_int_equal(attnd_params_set(a, 7, &p), -EINVAL);
	assert_non_null(strstr(attnd_strerror(a, -EINVAL), "q_dtype"));
	attnd_disconnect(a);
}

/* ---- Sequences ---- */

static void sequences(void **state)
{
	struct fake *f = *state;
	attnd_t *a = fake_connect(f, NULL);
	uint64_t tokens[5] = {10, 20, 30, 40, 50}, keys[3] = {7, 8, 9};
	struct attnd_open_info info;
	struct attnd_sqe e;

	assert_int_equal(attnd_seq_open(a, 7, 4, tokens, 5, 3, &info), 0);
	assert_int_equal(info.cached, 3);
	e = fake_find(f, ATTND_OP_SEQ_OPEN, 0).sqe;
	assert_int_equal(e.sequence.key, 7);
	assert_int_equal(e.sequence.ns, 4);
	assert_int_equal(e.sequence.num_tokens, 5);
	assert_int_equal(e.sequence.max_match, 3);
	assert_memory_equal(fake_find(f, ATTND_OP_SEQ_OPEN, 0).payload, tokens, sizeof(tokens));
	assert_int_equal(attnd_seq_open(a, 8, 0, NULL, 0, UINT64_MAX, &info), 0);
	assert_int_equal(fake_find(f, ATTND_OP_SEQ_OPEN, 1).sqe.sequence.tokens, ATTND_OFFSET_NONE);
	assert_int_equal(attnd_seq_open(a, 9, 0, tokens, (1 << 24) + 1, 1, &info), -EINVAL);
	assert_int_equal(attnd_seq_fork(a, 7, 9, 2), 0);
	e = fake_find(f, ATTND_OP_SEQ_FORK, 0).sqe;
	assert_int_equal(e.sequence.key, 7);
	assert_int_equal(e.sequence.new_key, 9);
	assert_int_equal(e.sequence.num_tokens, 2);
	assert_int_equal(attnd_seq_trim(a, 7, 1), 0);
	assert_int_equal(fake_find(f, ATTND_OP_SEQ_TRIM, 0).sqe.sequence.num_tokens, 1);
	assert_int_equal(attnd_seq_trim(a, 7, UINT64_C(1) << 32), -ERANGE);
	assert_int_equal(attnd_seq_close(a, 7), 0);
	assert_int_equal(fake_find(f, ATTND_OP_SEQ_CLOSE, 0).sqe.flags, 0);
	assert_int_equal(attnd_seq_close_many(a, keys, 3), 0);
	assert_int_equal(fake_find(f, ATTND_OP_SEQ_CLOSE, 1).sqe.flags, ATTND_CLOSE_MANY);
	assert_int_equal(fake_find(f, ATTND_OP_SEQ_CLOSE, 1).sqe.sequence.num_tokens, 3);
	assert_memory_equal(fake_find(f, ATTND_OP_SEQ_CLOSE, 1).payload, keys, sizeof(keys));
	assert_int_equal(attnd_seq_close_many(a, keys, 0), 0);
	attnd_disconnect(a);
}

static void close_many_is_split(void **state)
{
	struct fake *f = *state;
	attnd_t *a = fake_connect(f, NULL);
	uint64_t *keys = calloc(70000, sizeof(*keys));
	attnd_job_t job;

	assert_int_equal(attnd_seq_close_many(a, keys, 70000), 0);
	assert_int_equal(fake_find(f, ATTND_OP_SEQ_CLOSE, 0).sqe.sequence.num_tokens, 65536);
	assert_int_equal(fake_find(f, ATTND_OP_SEQ_CLOSE, 1).sqe.sequence.num_tokens, 70000 - 65536);
	assert_int_equal(attnd_seq_close_many_async(a, keys, 70000, &job), -EINVAL);
	free(keys);
	attnd_disconnect(a);
}

/* A waiting open completes after later ones; each gets its own answer. */
static void opens_complete_out_of_order(void **state)
{
	struct fake *f = *state;
	attnd_t *a = fake_connect(f, NULL);
	uint64_t tokens[6] = {1, 2, 3, 4, 5, 6};
	struct attnd_result r;
	attnd_job_t job[6];

	FAKE_HOW(f, hold, true);
	for (uint32_t i = 0; i < 6; i++)
		assert_int_equal(attnd_seq_open_async(a, i, 0, tokens, i + 1, UINT64_MAX, &job[i]), 0);
	fake_wait_log(f, 8);
	fake_release(f, true);
	for (uint32_t i = 6; i-- > 0;) {
		assert_int_equal(attnd_next(a, &r, 30000000), 0);
		assert_int_equal(r.job, job[i]);
		assert_int_equal(r.value, i + 1);
	}
	attnd_disconnect(a);
}

/* ---- Plans ---- */

static void plan_copies_rows(void **state)
{
	struct fake *f = *state;
	attnd_t *a = fake_connect(f, NULL);
	uint64_t tokens[3] = {100, 101, 102}, one[1] = {7}, mask[3] = {1, 3, 5}, got[3];
	struct attnd_row rows[3] = {{.key = 11, .start = 4, .tokens = tokens, .num_tokens = 3, .publish_upto = 5},
				    {.key = 12, .tokens = one, .num_tokens = 1, .flags = ATTND_ROW_NONCAUSAL},
				    {.key = 13, .start = 9, .tokens = tokens, .num_tokens = 3, .mask = mask}};
	struct attnd_row_status status[3];
	struct attnd_wire_row w[3];
	struct fake_event e;

	FAKE_HOW(f, refuse_row, -EDQUOT);
	assert_int_equal(attnd_plan(a, 42, 1, rows, 3, status, 0), 0);
	assert_int_equal(status[0].status, 0);
	assert_int_equal(status[1].status, -EDQUOT);
	assert_int_equal(status[2].status, 0);
	assert_int_equal(status[2].cached, 13);
	e = fake_find(f, ATTND_OP_PLAN, 0);
	assert_int_equal(e.sqe.plan.tag, 42);
	assert_int_equal(e.sqe.plan.cache, 1);
	assert_int_equal(e.sqe.plan.num_rows, 3);
	assert_int_equal(e.sqe.plan.status, e.sqe.plan.rows + sizeof(w));
	memcpy(w, e.payload, sizeof(w));
	assert_int_equal(w[0].key, 11);
	assert_int_equal(w[0].start, 4);
	assert_int_equal(w[0].publish_upto, 5);
	assert_int_equal(w[0].mask, ATTND_OFFSET_NONE);
	assert_int_equal(w[1].flags, ATTND_WIRE_ROW_NONCAUSAL);
	fake_read(f, w[0].tokens, got, sizeof(tokens));
	assert_memory_equal(got, tokens, sizeof(tokens));
	fake_read(f, w[1].tokens, got, sizeof(one));
	assert_memory_equal(got, one, sizeof(one));
	fake_read(f, w[2].mask, got, sizeof(mask));
	assert_memory_equal(got, mask, sizeof(mask));
	/* Without a place for statuses a refused row fails the call. */
	assert_int_equal(attnd_plan(a, 42, 1, rows, 3, NULL, 0), -EDQUOT);
	attnd_disconnect(a);
}

static void plan_async_fills_statuses(void **state)
{
	struct fake *f = *state;
	attnd_t *a = fake_connect(f, NULL);
	uint64_t token = 1;
	struct attnd_row row = {.key = 5, .tokens = &token, .num_tokens = 1};
	struct attnd_row_status status = {.status = 1};
	attnd_job_t job;

	FAKE_HOW(f, hold, true);
	assert_int_equal(attnd_plan_async(a, 1, 0, &row, 1, &status, 0, &job), 0);
	fake_wait_log(f, 3);
	assert_int_equal(status.status, 1);
	fake_release(f, false);
	assert_int_equal(attnd_wait(a, job, NULL), 0);
	assert_int_equal(status.status, 0);
	assert_int_equal(status.cached, 5);
	attnd_disconnect(a);
}

static void bad_plans(void **state)
{
	struct fake *f = *state;
	attnd_t *a = fake_connect(f, NULL);
	uint64_t token = 1;
	struct attnd_row row = {.key = 5, .tokens = &token, .num_tokens = 1};

	assert_int_equal(attnd_plan(a, 1, 0, &row, 0, NULL, 0), -EINVAL);
	assert_int_equal(attnd_plan(a, 1, 0, &row, ATTND_MAX_ROWS + 1, NULL, 0), -EINVAL);
	assert_non_null(strstr(attnd_strerror(a, -EINVAL), "rows (limit 4096)"));
	row.num_tokens = 0;
	assert_int_equal(attnd_plan(a, 1, 0, &row, 1, NULL, 0), -EINVAL);
	row.num_tokens = ATTND_MAX_PLAN_TOKENS + 1;
	assert_int_equal(attnd_plan(a, 1, 0, &row, 1, NULL, 0), -EINVAL);
	assert_non_null(strstr(attnd_strerror(a, -EINVAL), "row tokens (limit 1048576)"));
	assert_int_equal(fake_log_count(f), 1); /* the hello: nothing of this was sent */
	assert_int_equal(attnd_plan_end(a, 9), 0);
	assert_int_equal(fake_find(f, ATTND_OP_PLAN_END, 0).sqe.plan.tag, 9);
	attnd_disconnect(a);
}

/* ---- Jobs ---- */

static void attend_names_its_buffers(void **state)
{
	struct fake *f = *state;
	attnd_t *a = fake_connect(f, NULL);
	struct attnd_attend j = {.plan = 3, .params = 2, .layer = 1, .deadline_us = 99};
	char *base, outside[64];
	struct attnd_sqe e;
	attnd_job_t job;

	assert_int_equal(attnd_alloc(a, 5000, (void **)&base), 0);
	j.q = base;
	j.k = base + 1000;
	j.v = base + 2000;
	j.out = base + 3000;
	assert_int_equal(attnd_decode(a, &j, &job), 0);
	assert_int_equal(attnd_wait(a, job, NULL), 0);
	e = fake_find(f, ATTND_OP_DECODE, 0).sqe;
	assert_int_equal(e.flags, 0);
	assert_int_equal(e.job.plan, 3);
	assert_int_equal(e.job.params, 2);
	assert_int_equal(e.layer, 1);
	assert_int_equal(e.job.src_layer, 1);
	assert_int_equal(e.deadline_us, 99);
	assert_int_equal(e.job.q, 0);
	assert_int_equal(e.job.v, offset_in(base, j.v));
	assert_int_equal(e.job.lse, ATTND_OFFSET_NONE);
	j.lse = (float *)(void *)(base + 4000);
	j.flags = ATTND_LAST | ATTND_NO_KV;
	j.src_layer = 0;
	assert_int_equal(attnd_extend(a, &j, &job), 0);
	assert_int_equal(attnd_wait(a, job, NULL), 0);
	e = fake_find(f, ATTND_OP_EXTEND, 0).sqe;
	assert_int_equal(e.flags, ATTND_JOB_LAST | ATTND_JOB_NO_KV | ATTND_JOB_LSE);
	assert_int_equal(e.job.src_layer, 0);
	assert_int_equal(e.job.k, ATTND_OFFSET_NONE);
	assert_int_equal(e.job.v, ATTND_OFFSET_NONE);
	assert_int_equal(e.job.lse, 4000);
	j.flags = ATTND_NO_OUT;
	assert_int_equal(attnd_extend(a, &j, &job), 0);
	assert_int_equal(attnd_wait(a, job, NULL), 0);
	e = fake_find(f, ATTND_OP_EXTEND, 1).sqe;
	assert_int_equal(e.flags, ATTND_JOB_NO_OUT);
	assert_int_equal(e.job.q, ATTND_OFFSET_NONE);
	assert_int_equal(e.job.out, ATTND_OFFSET_NONE);
	assert_int_equal(e.job.k, 1000);
	/* Buffers that are not there, or not in the arena. */
	j.flags = 0;
	j.out = outside;
	assert_int_equal(attnd_decode(a, &j, &job), -EINVAL);
	assert_string_equal(attnd_strerror(a, -EINVAL),
			    "Invalid argument: out: not memory of this connection's attnd_alloc");
	j.out = base;
	j.q = NULL;
	assert_int_equal(attnd_decode(a, &j, &job), -EINVAL);
	assert_string_equal(attnd_strerror(a, -EINVAL), "Invalid argument: q: it is missing");
	j.q = base;
	j.v = NULL; /* fine: MLA */
	assert_int_equal(attnd_decode(a, &j, &job), 0);
	assert_int_equal(attnd_wait(a, job, NULL), 0);
	j.k = NULL;
	assert_int_equal(attnd_decode(a, &j, &job), -EINVAL);
	j.k = base;
	j.flags = 8;
	assert_int_equal(attnd_decode(a, &j, &job), -EINVAL);
	j.flags = 0;
	j.layer = ATTND_MAX_LAYERS;
	assert_int_equal(attnd_decode(a, &j, &job), -EINVAL);
	j.layer = 0;
	j.params = ATTND_MAX_PARAMS;
	assert_int_equal(attnd_decode(a, &j, &job), -EINVAL);
	attnd_disconnect(a);
}

static void second_segment_is_in_the_offset(void **state)
{
	struct fake *f = *state;
	attnd_t *a = fake_connect(f, NULL);
	struct attnd_attend j = {0};
	char *first, *second;
	attnd_job_t job;

	assert_int_equal(attnd_alloc(a, 1 << 20, (void **)&first), 0);
	assert_int_equal(attnd_alloc(a, 2 << 20, (void **)&second), 0);
	j.q = j.k = first;
	j.v = second;
	j.out = second + 640;
	assert_int_equal(attnd_decode(a, &j, &job), 0);
	assert_int_equal(attnd_wait(a, job, NULL), 0);
	assert_int_equal(fake_find(f, ATTND_OP_DECODE, 0).sqe.job.q, 0);
	assert_int_equal(fake_find(f, ATTND_OP_DECODE, 0).sqe.job.v, UINT64_C(1) << 60);
	assert_int_equal(fake_find(f, ATTND_OP_DECODE, 0).sqe.job.out, UINT64_C(1) << 60 | 640);
	attnd_disconnect(a);
}

static void once_plans_and_ends(void **state)
{
	struct fake *f = *state;
	attnd_t *a = fake_connect(f, NULL);
	uint64_t token = 1;
	struct attnd_row rows[2] = {{.key = 5, .tokens = &token, .num_tokens = 1},
				    {.key = 6, .tokens = &token, .num_tokens = 1}};
	struct attnd_row_status status[2];
	struct attnd_attend j = {.plan = 77};
	void *p;

	assert_int_equal(attnd_alloc(a, 64, &p), 0);
	j.q = j.k = j.v = j.out = p;
	assert_int_equal(attnd_decode_once(a, 0, rows, 2, &j, status), 0);
	assert_int_equal(fake_find(f, ATTND_OP_PLAN, 0).sqe.plan.tag, 77);
	assert_int_equal(fake_find(f, ATTND_OP_DECODE, 0).sqe.flags, ATTND_JOB_LAST);
	assert_int_equal(attnd_extend_once(a, 0, rows, 2, &j, NULL), 0);
	FAKE_HOW(f, refuse_row, -ENOMEM);
	assert_int_equal(attnd_extend_once(a, 0, rows, 2, &j, NULL), -ENOMEM);
	assert_int_equal(attnd_extend_once(a, 0, rows, 2, &j, status), 0);
	assert_int_equal(status[1].status, -ENOMEM);
	FAKE_HOW(f, refuse_row, 0);
	FAKE_HOW(f, fail_op, ATTND_OP_EXTEND);
	FAKE_HOW(f, fail_status, -ETIMEDOUT);
	assert_int_equal(attnd_extend_once(a, 0, rows, 2, &j, status), -ETIMEDOUT);
	FAKE_HOW(f, fail_op, ATTND_OP_PLAN);
	FAKE_HOW(f, fail_status, -EMFILE);
	assert_int_equal(attnd_extend_once(a, 0, rows, 2, &j, status), -EMFILE);
	j.q = NULL; /* refused before anything was sent */
	fake_log_clear(f);
	assert_int_equal(attnd_extend_once(a, 0, rows, 2, &j, status), -EINVAL);
	assert_int_equal(fake_log_count(f), 0);
	attnd_disconnect(a);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		FAKE_TEST(cache_open_sends_the_identity),
		FAKE_TEST(bad_identities),
		FAKE_TEST(async_cache_open_fills_later),
		FAKE_TEST(grants_and_scales),
		FAKE_TEST(namespaces_are_tagged),
		FAKE_TEST(params_are_made_contiguous),
		FAKE_TEST(sequences),
		FAKE_TEST(close_many_is_split),
		FAKE_TEST(opens_complete_out_of_order),
		FAKE_TEST(plan_copies_rows),
		FAKE_TEST(plan_async_fills_statuses),
		FAKE_TEST(bad_plans),
		FAKE_TEST(attend_names_its_buffers),
		FAKE_TEST(second_segment_is_in_the_offset),
		FAKE_TEST(once_plans_and_ends),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
