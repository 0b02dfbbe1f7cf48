/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Every field of the wire out of range: the job is refused with its errno and its field, and the
 * daemon goes on.
 *
 * In:   entries and payloads that are right but for one field. Out: TAP. Next: daemon/intake.c.
 */
#include "harness.h"

#include <errno.h>
#include <math.h>
#include <string.h>

#include "raw.h"

enum {
	SEGMENT = 1 << 20,
	AT_PAYLOAD = 0,
	AT_ROWS = 4096,
	AT_TOKENS = 8192,
	AT_STATUS = 12288,
	AT_MASK = 14336,
	AT_Q = 16384,
	AT_K = 65536,
	AT_V = 131072,
	AT_OUT = 196608,
	AT_LSE = 262144,
	LAYERS = 2,
	HEADS = 4,
	KV_HEADS = 2,
	DIM = 32,
	ROW_TOKENS = 4,
	KEY = 7,
	TAG = 3,
};

static struct daemon daemon_;
static struct raw raw_;
static uint16_t cache_, cache8_; /* f32; int8 with static scales */

#define PAYLOAD(type) ((type *)(void *)(raw_.segment[0] + AT_PAYLOAD))
#define ROWS	      ((struct attnd_wire_row *)(void *)(raw_.segment[0] + AT_ROWS))
#define STATUS	      ((struct attnd_wire_row_status *)(void *)(raw_.segment[0] + AT_STATUS))

/* ---- What is right ---- */

static struct attnd_sqe ping(void)
{
	return (struct attnd_sqe){.opcode = ATTND_OP_PING, .user_data = 1, .deadline_us = RAW_DEADLINE_US};
}

static struct attnd_sqe with_payload(uint8_t opcode, uint32_t bytes)
{
	return (struct attnd_sqe){.opcode = opcode,
				  .user_data = 2,
				  .deadline_us = RAW_DEADLINE_US,
				  .obj = {.bytes = bytes, .payload = AT_PAYLOAD}};
}

static struct attnd_sqe cache_open(void)
{
	struct attnd_sqe s = with_payload(ATTND_OP_CACHE_OPEN, sizeof(struct attnd_wire_cache));

	*PAYLOAD(struct attnd_wire_cache) = (struct attnd_wire_cache){
		.name = "wire",
		.fingerprint = {1},
		.num_layers = LAYERS,
		.num_heads = HEADS,
		.num_kv_heads = KV_HEADS,
		.head_dim = DIM,
		.head_dim_v = DIM,
		.block_size = 16,
	};
	s.flags = ATTND_CACHE_CREATE;
	return s;
}

static struct attnd_sqe cache8_open(void)
{
	struct attnd_sqe s = cache_open();

	PAYLOAD(struct attnd_wire_cache)->kv_dtype = ATTND_WIRE_INT8;
	PAYLOAD(struct attnd_wire_cache)->scale_mode = ATTND_WIRE_SCALE_STATIC;
	return s;
}

static struct attnd_sqe params(void)
{
	struct attnd_sqe s = with_payload(ATTND_OP_PARAMS, sizeof(struct attnd_wire_params));

	*PAYLOAD(struct attnd_wire_params) = (struct attnd_wire_params){
		.sm_scale = 0.2f,
		.causal = 1,
		.cache = cache_,
		.sinks = ATTND_OFFSET_NONE,
		.alibi = ATTND_OFFSET_NONE,
		.q_token_stride = HEADS * DIM * 4,
		.q_head_stride = DIM * 4,
		.k_token_stride = KV_HEADS * DIM * 4,
		.k_head_stride = DIM * 4,
		.v_token_stride = KV_HEADS * DIM * 4,
		.v_head_stride = DIM * 4,
		.out_token_stride = HEADS * DIM * 4,
		.out_head_stride = DIM * 4,
	};
	return s;
}

static struct attnd_sqe namespace(void)
{
	struct attnd_sqe s = with_payload(ATTND_OP_NAMESPACE, 8);

	*PAYLOAD(struct attnd_wire_ns_field) = (struct attnd_wire_ns_field){.tag = ATTND_NS_SALT, .bytes = 3};
	memcpy(raw_.segment[0] + AT_PAYLOAD + 4, "abc\0", 4);
	return s;
}

static struct attnd_sqe grant(void)
{
	return (struct attnd_sqe){
		.opcode = ATTND_OP_GRANT, .user_data = 3, .deadline_us = RAW_DEADLINE_US, .grant = {.cache = cache_}};
}

static struct attnd_sqe scales(void)
{
	return (struct attnd_sqe){.opcode = ATTND_OP_SCALES,
				  .user_data = 4,
				  .deadline_us = RAW_DEADLINE_US,
				  .scales = {.cache = cache8_, .k_scale = 0.5f, .v_scale = 0.25f}};
}

static struct attnd_sqe seq(uint8_t opcode)
{
	return (struct attnd_sqe){
		.opcode = opcode, .user_data = 5, .deadline_us = RAW_DEADLINE_US, .sequence = {.key = KEY}};
}

static struct attnd_sqe peek_key(void)
{
	return (struct attnd_sqe){.opcode = ATTND_OP_PEEK_KEY,
				  .user_data = 8,
				  .deadline_us = RAW_DEADLINE_US,
				  .peek = {.cache = cache_, .key = AT_OUT}};
}

static struct attnd_sqe export(void)
{
	return (struct attnd_sqe){.opcode = ATTND_OP_EXPORT,
				  .user_data = 9,
				  .deadline_us = RAW_DEADLINE_US,
				  .kv = {.cache = cache_, .key = KEY, .num_tokens = ROW_TOKENS, .data = AT_OUT}};
}

static struct attnd_sqe slots(void)
{
	struct attnd_sqe s = with_payload(ATTND_OP_SLOT_TABLE, sizeof(struct attnd_wire_slots));
	const uint64_t key = KEY;

	memcpy(raw_.segment[0] + AT_TOKENS, &key, sizeof(key));
	*PAYLOAD(struct attnd_wire_slots) = (struct attnd_wire_slots){.num = 1,
								      .cache = cache_,
								      .capacity = ROW_TOKENS,
								      .keys = AT_TOKENS,
								      .seq_lens = ATTND_OFFSET_NONE,
								      .kv_indptr = ATTND_OFFSET_NONE,
								      .kv_indices = AT_OUT,
								      .qo_indptr = ATTND_OFFSET_NONE};
	return s;
}

static struct attnd_sqe seq_open(void)
{
	struct attnd_sqe s = seq(ATTND_OP_SEQ_OPEN);

	s.sequence.num_tokens = ROW_TOKENS;
	s.sequence.tokens = AT_TOKENS;
	s.sequence.max_match = UINT64_MAX;
	return s;
}

static struct attnd_sqe seq_wait(void)
{
	struct attnd_sqe s = seq_open();

	s.opcode = ATTND_OP_SEQ_WAIT;
	s.wait.key = 8;
	return s;
}

static struct attnd_sqe plan(void)
{
	struct attnd_sqe s = {
		.opcode = ATTND_OP_PLAN,
		.user_data = 6,
		.deadline_us = RAW_DEADLINE_US,
		.plan = {.tag = TAG, .cache = cache_, .rows = AT_ROWS, .status = AT_STATUS, .num_rows = 1}};

	for (uint64_t i = 0; i < ROW_TOKENS; i++)
		memcpy(raw_.segment[0] + AT_TOKENS + 8 * i, &i, 8);
	ROWS[0] = (struct attnd_wire_row){
		.key = KEY, .tokens = AT_TOKENS, .num_tokens = ROW_TOKENS, .mask = ATTND_OFFSET_NONE};
	STATUS[0] = (struct attnd_wire_row_status){.status = 1};
	return s;
}

static struct attnd_sqe extend(void)
{
	return (struct attnd_sqe){
		.opcode = ATTND_OP_EXTEND,
		.user_data = 7,
		.deadline_us = RAW_DEADLINE_US,
		.job = {.plan = TAG, .q = AT_Q, .k = AT_K, .v = AT_V, .out = AT_OUT, .lse = AT_LSE}};
}

/* ---- What is asserted ---- */

static const char *const field_names[] = {
#define ATTND_X(id, text) #id,
	ATTND_WIRE_FIELDS(ATTND_X)
#undef ATTND_X
};

/* cmocka gives no line in TAP for a failure in a helper, so this says it itself. */
static int failures;

static void check(const struct attnd_sqe *s, int error, unsigned field, const char *what, int line)
{
	struct attnd_cqe c = {0};
	int e = raw_call(&raw_, s, &c);

	if (e == error && c.user_data == s->user_data && c.field == field)
		return;
	failures++;
	print_message("line %d: %s: res %d (%s), field %s; wanted %d (%s), %s\n", line, what, e, strerror(-e),
		      c.field < ATTND_FIELDS ? field_names[c.field] : "?", error, strerror(-error),
		      field_names[field]);
	if (e == -ETIMEDOUT || e == -ECONNRESET)
		fail_msg("the session is gone");
}

/* A right entry made by `make`, with one change, is refused. */
#define REFUSED(make, change, error, field)                                          \
	do {                                                                         \
		struct attnd_sqe s = make;                                           \
		change;                                                              \
		check(&s, error, ATTND_FIELD_##field, #make ": " #change, __LINE__); \
	} while (0)
#define DONE(make)                                \
	do {                                      \
		struct attnd_sqe s = make;        \
		check(&s, 0, 0, #make, __LINE__); \
	} while (0)

static int group_start(void **state)
{
	struct attnd_sqe s;
	struct attnd_cqe c;

	(void)state;
	const char *const args[] = {"--pool-size", "16M", "--hugepages", "off", NULL};
	if (daemon_start(&daemon_, args) < 0 || raw_connect(&raw_, daemon_.socket) < 0 ||
	    raw_segment(&raw_, 0, SEGMENT) < 0)
		return -1;
	s = cache_open();
	if (raw_call(&raw_, &s, &c) < 0)
		return -1;
	cache_ = (uint16_t)c.value;
	s = cache8_open();
	if (raw_call(&raw_, &s, &c) < 0)
		return -1;
	cache8_ = (uint16_t)c.value;
	s = params();
	if (raw_call(&raw_, &s, &c) < 0)
		return -1;
	s = seq_open();
	return raw_call(&raw_, &s, &c);
}

static int group_end(void **state)
{
	(void)state;
	raw_close(&raw_);
	daemon_clean(&daemon_);
	return 0;
}

/* ---- The tests ---- */

static void test_common(void **state)
{
	(void)state;
	failures = 0;
	DONE(ping());
	REFUSED(ping(), s.opcode = 0, -EINVAL, OPCODE);
	REFUSED(ping(), s.opcode = ATTND_OPS, -EINVAL, OPCODE);
	REFUSED(ping(), s.opcode = 255, -EINVAL, OPCODE);
	for (int op = ATTND_OP_SEQ_WAIT; op < ATTND_OP_RESERVED_END; op++)
		if (op != ATTND_OP_SEQ_WAIT && op != ATTND_OP_PEEK_KEY && op != ATTND_OP_EXPORT &&
		    op != ATTND_OP_SLOT_TABLE)
			REFUSED(ping(), s.opcode = (uint8_t)op, -EOPNOTSUPP, OPCODE);
	REFUSED(ping(), s.flags = 1, -EINVAL, FLAGS);
	REFUSED(ping(), s.deadline_us = 0, -EINVAL, DEADLINE);
	REFUSED(ping(), s.deadline_us = ATTND_MAX_DEADLINE_US + 1, -EINVAL, DEADLINE);
	REFUSED(ping(), s.u64[5] = 1, -EINVAL, RESERVED);
	REFUSED(ping(), s.layer = 1, -EINVAL, RESERVED);
	DONE(ping());
	assert_int_equal(failures, 0);
}

#define CACHE(change, field) \
	REFUSED(cache_open(), struct attnd_wire_cache *p = PAYLOAD(struct attnd_wire_cache); change, -EINVAL, field)

static void test_cache_open(void **state)
{
	(void)state;
	failures = 0;
	REFUSED(cache_open(), s.flags = 2, -EINVAL, FLAGS);
	REFUSED(cache_open(), s.obj.bytes = 64, -EINVAL, LENGTH);
	REFUSED(cache_open(), s.obj.bytes = UINT32_MAX, -EINVAL, LENGTH);
	REFUSED(cache_open(), s.obj.payload = SEGMENT, -EFAULT, OFFSET);
	REFUSED(cache_open(), s.obj.payload = SEGMENT - 64, -EFAULT, OFFSET);
	REFUSED(cache_open(), s.obj.payload = UINT64_C(1) << 60, -EFAULT, OFFSET);
	REFUSED(cache_open(), s.obj.payload = UINT64_MAX, -EFAULT, OFFSET);
	REFUSED(cache_open(), s.obj.payload = ATTND_OFFSET_MASK - 7, -EFAULT, OFFSET);
	REFUSED(cache_open(), s.obj.reserved[3] = 1, -EINVAL, RESERVED);
	CACHE(p->name[0] = '\0', NAME);
	CACHE(p->name[1] = '/', NAME);
	CACHE(p->name[1] = '\x7f', NAME);
	CACHE(p->name[10] = 'x', NAME); /* after the terminator */
	CACHE(p->num_layers = 0, NUM_LAYERS);
	CACHE(p->num_layers = ATTND_MAX_LAYERS + 1, NUM_LAYERS);
	CACHE(p->num_heads = 0, NUM_HEADS);
	CACHE(p->num_heads = 5, NUM_HEADS);
	CACHE(p->num_heads = 2 * ATTND_MAX_HEADS, NUM_HEADS);
	CACHE(p->num_kv_heads = 0, NUM_KV_HEADS);
	CACHE(p->num_kv_heads = ATTND_MAX_HEADS + 1, NUM_KV_HEADS);
	CACHE(p->head_dim = 0, HEAD_DIM);
	CACHE(p->head_dim = ATTND_MAX_HEAD_DIM + 1, HEAD_DIM);
	CACHE(p->head_dim_v = 0, HEAD_DIM_V);
	CACHE(p->head_dim_v = UINT32_MAX, HEAD_DIM_V);
	CACHE((p->v_in_k = 1, p->head_dim_v = DIM + 1), HEAD_DIM_V);
	CACHE(p->block_size = 1, BLOCK_SIZE);
	CACHE(p->block_size = 24, BLOCK_SIZE);
	CACHE(p->block_size = 2 * ATTND_MAX_BLOCK_SIZE, BLOCK_SIZE);
	CACHE(p->kv_dtype = ATTND_WIRE_DTYPES, KV_DTYPE);
	CACHE(p->scale_mode = ATTND_WIRE_SCALE_STATIC, SCALE_MODE);
	CACHE(p->scale_mode = ATTND_WIRE_SCALES, SCALE_MODE);
	CACHE(p->kv_dtype = ATTND_WIRE_INT8, SCALE_MODE);
	CACHE((p->kv_dtype = ATTND_WIRE_FP8_E4M3, p->scale_mode = ATTND_WIRE_SCALE_DYNAMIC), SCALE_MODE);
	CACHE(p->layout = ATTND_WIRE_LAYOUTS, LAYOUT);
	CACHE(p->v_in_k = 2, RESERVED);
	CACHE(p->reserved[4] = 1, RESERVED);
	/* 1024 layers x 1024 heads: more than a slab, whatever the slab. */
	CACHE((p->num_layers = 1024, p->num_heads = 1024, p->num_kv_heads = 1024, p->head_dim = 576), BLOCK_BYTES);
	REFUSED(cache_open(), (s.flags = 0, PAYLOAD(struct attnd_wire_cache)->name[0] = 'z'), -ENOENT, CACHE);
	DONE(cache_open());
	assert_int_equal(failures, 0);
}

#define PARAMS(change, field) \
	REFUSED(params(), struct attnd_wire_params *p = PAYLOAD(struct attnd_wire_params); change, -EINVAL, field)

static void test_params(void **state)
{
	(void)state;
	failures = 0;
	REFUSED(params(), s.obj.id = ATTND_MAX_PARAMS, -EINVAL, PARAMS);
	REFUSED(params(), s.obj.bytes = 119, -EINVAL, LENGTH);
	PARAMS(p->sm_scale = 0, SM_SCALE);
	PARAMS(p->sm_scale = -1, SM_SCALE);
	PARAMS(p->sm_scale = NAN, SM_SCALE);
	PARAMS(p->sm_scale = INFINITY, SM_SCALE);
	PARAMS(p->logit_cap = -1, LOGIT_CAP);
	PARAMS(p->logit_cap = NAN, LOGIT_CAP);
	PARAMS(p->causal = 2, RESERVED);
	PARAMS(p->q_dtype = ATTND_WIRE_INT8, Q_DTYPE);
	PARAMS(p->q_dtype = 255, Q_DTYPE);
	PARAMS(p->out_dtype = ATTND_WIRE_FP8_E4M3, OUT_DTYPE);
	PARAMS(p->kv_in_dtype = ATTND_WIRE_BF16, KV_IN_DTYPE);
	PARAMS(p->kv_in_dtype = ATTND_WIRE_DTYPES, KV_IN_DTYPE);
	REFUSED(params(), PAYLOAD(struct attnd_wire_params)->cache = UINT16_MAX, -ENOENT, CACHE);
	PARAMS(p->reserved = 1, RESERVED);
	REFUSED(params(), PAYLOAD(struct attnd_wire_params)->sinks = SEGMENT - 4, -EFAULT, SINKS);
	REFUSED(params(), PAYLOAD(struct attnd_wire_params)->sinks = 2, -EFAULT, SINKS);
	REFUSED(params(), PAYLOAD(struct attnd_wire_params)->alibi = UINT64_C(5) << 60, -EFAULT, ALIBI);
	PARAMS(p->q_token_stride = 3, STRIDE);
	PARAMS(p->k_head_stride = UINT64_MAX - 3, STRIDE);
	PARAMS(p->v_token_stride = 2, STRIDE);
	PARAMS(p->out_head_stride = 1, STRIDE);
	PARAMS(p->k_scales_delta = 64, IN_SCALES);
	DONE(params());
	assert_int_equal(failures, 0);
}

static void test_namespace(void **state)
{
	(void)state;
	failures = 0;
	REFUSED(namespace(), s.obj.bytes = ATTND_MAX_NS_BYTES + 4, -EINVAL, NAMESPACE_FIELDS);
	REFUSED(namespace(), s.obj.bytes = 6, -EINVAL, NAMESPACE_FIELDS);
	REFUSED(namespace(), PAYLOAD(struct attnd_wire_ns_field)->tag = 0, -EINVAL, NAMESPACE_FIELDS);
	REFUSED(namespace(), PAYLOAD(struct attnd_wire_ns_field)->tag = ATTND_NS_TAGS, -EINVAL, NAMESPACE_FIELDS);
	REFUSED(namespace(), PAYLOAD(struct attnd_wire_ns_field)->bytes = 5, -EINVAL, NAMESPACE_FIELDS);
	REFUSED(namespace(), PAYLOAD(struct attnd_wire_ns_field)->bytes = UINT16_MAX, -EINVAL, NAMESPACE_FIELDS);
	REFUSED(namespace(), (s.obj.bytes = 16, memcpy(raw_.segment[0] + 8, raw_.segment[0], 8)), -EINVAL,
		NAMESPACE_FIELDS); /* a tag twice */
	DONE(namespace());
	assert_int_equal(failures, 0);
}

static void test_grant_and_scales(void **state)
{
	(void)state;
	failures = 0;
	REFUSED(grant(), s.grant.cache = UINT16_MAX, -ENOENT, CACHE);
	REFUSED(grant(), s.grant.reserved = 1, -EINVAL, RESERVED);
	REFUSED(grant(), s.grant.tokens = UINT64_MAX, -ENOMEM, GRANT_TOKENS);
	REFUSED(grant(), s.grant.tokens = UINT64_C(1) << 40, -ENOMEM, GRANT_TOKENS);
	REFUSED(grant(), s.grant.sequences = UINT32_MAX, -ENOMEM, GRANT_TOKENS);
	DONE(grant());
	REFUSED(scales(), s.layer = LAYERS, -EINVAL, LAYER);
	REFUSED(scales(), s.scales.k_scale = 0, -EINVAL, K_SCALE);
	REFUSED(scales(), s.scales.k_scale = NAN, -EINVAL, K_SCALE);
	REFUSED(scales(), s.scales.v_scale = INFINITY, -EINVAL, V_SCALE);
	REFUSED(scales(), s.scales.v_scale = -1, -EINVAL, V_SCALE);
	REFUSED(scales(), s.scales.cache = UINT16_MAX, -ENOENT, CACHE);
	REFUSED(scales(), s.scales.cache = cache_, -EINVAL, SCALE_MODE);
	DONE(scales());
	DONE(scales());
	REFUSED(scales(), s.scales.k_scale = 0.75f, -EEXIST, K_SCALE);
	REFUSED(scales(), s.scales.v_scale = 0.75f, -EEXIST, K_SCALE);
	assert_int_equal(failures, 0);
}

static void test_sequences(void **state)
{
	(void)state;
	failures = 0;
	REFUSED(seq_open(), (s.sequence.key = 8, s.sequence.ns = UINT32_MAX), -ENOENT, NAMESPACE);
	REFUSED(seq_open(), (s.sequence.key = 8, s.sequence.num_tokens = UINT32_MAX), -EINVAL, TOKENS);
	REFUSED(seq_open(), (s.sequence.key = 8, s.sequence.num_tokens = ATTND_MAX_SEQ_TOKENS + 1), -EINVAL, TOKENS);
	REFUSED(seq_open(), (s.sequence.key = 8, s.sequence.tokens = SEGMENT - 8), -EFAULT, OFFSET);
	REFUSED(seq_open(), (s.sequence.key = 8, s.sequence.tokens = AT_TOKENS + 4), -EFAULT, OFFSET);
	REFUSED(seq_open(), (s.sequence.key = 8, s.sequence.reserved = 1), -EINVAL, RESERVED);
	REFUSED(seq_wait(), s.wait.ns = UINT32_MAX, -ENOENT, NAMESPACE);
	REFUSED(seq_wait(), s.wait.num_tokens = ATTND_MAX_SEQ_TOKENS + 1, -EINVAL, TOKENS);
	REFUSED(seq_wait(), s.wait.tokens = SEGMENT - 8, -EFAULT, OFFSET);
	REFUSED(seq_wait(), s.wait.priority = 8, -EINVAL, PRIORITY);
	REFUSED(seq_open(), (s.sequence.key = 8, s.sequence.priority = 8), -EINVAL, PRIORITY);
	REFUSED(seq_wait(), s.flags = 1, -EINVAL, FLAGS);
	REFUSED(seq(ATTND_OP_SEQ_CLOSE), s.sequence.key = 99, -ENOENT, SEQUENCE);
	REFUSED(seq(ATTND_OP_SEQ_CLOSE), s.flags = 2, -EINVAL, FLAGS);
	REFUSED(seq(ATTND_OP_SEQ_CLOSE), (s.flags = ATTND_CLOSE_MANY, s.sequence.num_tokens = ATTND_MAX_CLOSE + 1),
		-EINVAL, LENGTH);
	REFUSED(seq(ATTND_OP_SEQ_TRIM), s.sequence.key = 99, -ENOENT, SEQUENCE);
	REFUSED(seq(ATTND_OP_SEQ_TRIM), s.sequence.num_tokens = 1, -ERANGE, LENGTH);
	REFUSED(seq(ATTND_OP_SEQ_FORK), (s.sequence.key = 99, s.sequence.new_key = 100), -ENOENT, SEQUENCE);
	REFUSED(seq(ATTND_OP_SEQ_FORK), s.sequence.new_key = KEY, -EEXIST, SEQUENCE);
	REFUSED(seq(ATTND_OP_SEQ_FORK), (s.sequence.new_key = 100, s.sequence.num_tokens = 1), -ERANGE, LENGTH);
	assert_int_equal(failures, 0);
}

static void test_plan(void **state)
{
	struct attnd_cqe c;

	(void)state;
	failures = 0;
	REFUSED(plan(), s.plan.cache = UINT16_MAX, -ENOENT, CACHE);
	REFUSED(plan(), s.plan.num_rows = 0, -EINVAL, ROWS);
	REFUSED(plan(), s.plan.num_rows = ATTND_MAX_ROWS + 1, -EINVAL, ROWS);
	REFUSED(plan(), s.plan.num_rows = UINT32_MAX, -EINVAL, ROWS);
	REFUSED(plan(), s.plan.rows = SEGMENT - 40, -EFAULT, ROWS);
	REFUSED(plan(), s.plan.rows = AT_ROWS + 4, -EFAULT, ROWS);
	REFUSED(plan(), s.plan.status = SEGMENT - 4, -EFAULT, OFFSET);
	REFUSED(plan(), s.plan.reserved2 = 1, -EINVAL, RESERVED);
	REFUSED(plan(), ROWS[0].num_tokens = 0, -EINVAL, ROW_TOKENS);
	REFUSED(plan(), ROWS[0].num_tokens = ATTND_MAX_PLAN_TOKENS + 1, -EINVAL, ROW_TOKENS);
	REFUSED(plan(), ROWS[0].tokens = SEGMENT - 8, -EFAULT, ROW_TOKENS);
	REFUSED(plan(), ROWS[0].tokens = UINT64_MAX - 7, -EFAULT, ROW_TOKENS);
	REFUSED(plan(), ROWS[0].flags = 2, -EINVAL, ROW_FLAGS);
	REFUSED(plan(), ROWS[0].mask = SEGMENT - 8, -EFAULT, MASK);
	REFUSED(plan(), ROWS[0].mask = AT_MASK + 4, -EFAULT, MASK);
	REFUSED(plan(), ROWS[0].start = ATTND_MAX_SEQ_TOKENS, -EINVAL, ROW_START);
	REFUSED(plan(), ROWS[0].start = UINT64_MAX, -EINVAL, ROW_START);

	/* A row's own refusals leave the plan alive. */
	struct attnd_sqe s = plan();
	s.plan.num_rows = 4;
	ROWS[1] = ROWS[2] = ROWS[3] = ROWS[0];
	ROWS[0].start = 1;
	ROWS[1].key = 99;
	/* and a sequence twice in a plan */
	assert_int_equal(raw_call(&raw_, &s, &c), 0);
	assert_int_equal(STATUS[0].status, -ERANGE);
	assert_int_equal(STATUS[1].status, -ENOENT);
	assert_int_equal(STATUS[2].status, 0);
	assert_int_equal(STATUS[3].status, -EINVAL);

	REFUSED(((struct attnd_sqe){
			.opcode = ATTND_OP_PLAN_END, .deadline_us = RAW_DEADLINE_US, .plan = {.tag = 44}}),
		, -ESTALE, PLAN);
	DONE(((struct attnd_sqe){.opcode = ATTND_OP_PLAN_END, .deadline_us = RAW_DEADLINE_US, .plan = {.tag = TAG}}));
	assert_int_equal(failures, 0);
}

static void test_jobs(void **state)
{
	(void)state;
	failures = 0;
	REFUSED(extend(), s.job.plan = 45, -ESTALE, PLAN);
	DONE(plan());
	assert_int_equal(STATUS[0].status, 0);
	REFUSED(extend(), s.job.plan = 45, -ESTALE, PLAN);
	REFUSED(extend(), s.job.params = 1, -ENOENT, PARAMS);
	REFUSED(extend(), s.job.params = ATTND_MAX_PARAMS, -ENOENT, PARAMS);
	REFUSED(extend(), s.job.params = UINT16_MAX, -ENOENT, PARAMS);
	REFUSED(extend(), s.layer = LAYERS, -EINVAL, LAYER);
	REFUSED(extend(), s.flags = 16, -EINVAL, FLAGS);
	REFUSED(extend(), s.flags = ATTND_JOB_NO_KV | ATTND_JOB_NO_OUT, -EINVAL, FLAGS);
	/* Nothing is written yet: there is no layer to read. */
	REFUSED(extend(), s.flags = ATTND_JOB_NO_KV, -EINVAL, SRC_LAYER);
	REFUSED(extend(), (s.layer = 1, s.flags = ATTND_JOB_NO_KV, s.job.src_layer = 0), -EINVAL, SRC_LAYER);
	REFUSED(extend(), (s.flags = ATTND_JOB_NO_KV, s.job.src_layer = LAYERS), -EINVAL, SRC_LAYER);
	REFUSED(extend(), s.job.q = SEGMENT - HEADS * DIM * 4, -EFAULT, Q);
	REFUSED(extend(), s.job.q = AT_Q + 2, -EFAULT, Q);
	REFUSED(extend(), s.job.q = UINT64_MAX, -EFAULT, Q);
	REFUSED(extend(), s.job.k = UINT64_C(1) << 60, -EFAULT, K);
	REFUSED(extend(), s.job.k = SEGMENT - 4, -EFAULT, K);
	REFUSED(extend(), s.job.v = ATTND_OFFSET_MASK, -EFAULT, V);
	REFUSED(extend(), s.job.v = SEGMENT - 4, -EFAULT, V);
	REFUSED(extend(), s.job.out = SEGMENT - 4, -EFAULT, OUT);
	REFUSED(extend(), s.job.out = ATTND_OFFSET_NONE, -EFAULT, OUT);
	REFUSED(extend(), (s.flags = ATTND_JOB_LSE, s.job.lse = SEGMENT - 4), -EFAULT, LSE);
	REFUSED(extend(), (s.flags = ATTND_JOB_LSE, s.job.lse = AT_LSE + 2), -EFAULT, LSE);
	REFUSED(extend(), s.opcode = ATTND_OP_DECODE, -EINVAL, ROW_TOKENS);
	REFUSED(extend(), s.deadline_us = 0, -EINVAL, DEADLINE);
	DONE(extend());
	DONE(extend()); /* a layer's job may be repeated */
	REFUSED(extend(), (s.layer = 1, s.flags = ATTND_JOB_NO_KV, s.job.src_layer = 1), -EINVAL, SRC_LAYER);
	REFUSED(extend(), (s.layer = 1, s.flags = ATTND_JOB_LAST, s.job.k = 1), -EFAULT, K);
	struct attnd_sqe last = extend();
	last.layer = 1;
	last.flags = ATTND_JOB_LAST | ATTND_JOB_LSE;
	DONE(last);
	assert_int_equal(failures, 0);
}

/* The sequence holds what test_jobs computed. */
static void test_looks(void **state)
{
	(void)state;
	failures = 0;
	DONE(peek_key());
	REFUSED(peek_key(), s.peek.cache = UINT16_MAX, -ENOENT, CACHE);
	REFUSED(peek_key(), s.peek.ns = UINT32_MAX, -ENOENT, NAMESPACE);
	REFUSED(peek_key(), s.peek.key = SEGMENT - 16, -EFAULT, OFFSET);
	REFUSED(peek_key(), s.peek.key = AT_OUT + 2, -EFAULT, OFFSET);
	REFUSED(peek_key(), s.peek.reserved = 1, -EINVAL, RESERVED);
	REFUSED(peek_key(), s.peek.reserved2[3] = 1, -EINVAL, RESERVED);
	REFUSED(peek_key(), s.flags = 1, -EINVAL, FLAGS);
	DONE(export());
	REFUSED(export(), s.kv.cache = UINT16_MAX, -ENOENT, CACHE);
	REFUSED(export(), s.kv.key = 1234, -ENOENT, SEQUENCE);
	REFUSED(export(), s.layer = LAYERS, -EINVAL, LAYER);
	REFUSED(export(), s.kv.num_tokens = 0, -EINVAL, TOKENS);
	REFUSED(export(), s.kv.num_tokens = UINT32_MAX, -EINVAL, TOKENS);
	REFUSED(export(), s.kv.num_tokens = ROW_TOKENS + 1, -ERANGE, LENGTH);
	REFUSED(export(), s.kv.start = 1, -ERANGE, LENGTH);
	REFUSED(export(), s.kv.start = UINT64_MAX, -ERANGE, LENGTH);
	REFUSED(export(), s.kv.data = SEGMENT - 64, -EFAULT, OFFSET);
	REFUSED(export(), s.kv.data = ATTND_OFFSET_NONE, -EFAULT, OFFSET);
	REFUSED(export(), s.kv.reserved = 1, -EINVAL, RESERVED);
	REFUSED(export(), s.kv.reserved2[0] = 1, -EINVAL, RESERVED);
	REFUSED(export(), s.flags = 1, -EINVAL, FLAGS);
	assert_int_equal(failures, 0);
}

static void test_slots(void **state)
{
#define SLOTS PAYLOAD(struct attnd_wire_slots)
	(void)state;
	failures = 0;
	DONE(slots());
	REFUSED(slots(), s.obj.bytes = 8, -EINVAL, LENGTH);
	REFUSED(slots(), s.flags = 2, -EINVAL, FLAGS);
	REFUSED(slots(), s.obj.id = 1, -EINVAL, RESERVED);
	REFUSED(slots(), SLOTS->cache = UINT16_MAX, -ENOENT, CACHE);
	REFUSED(slots(), SLOTS->unit = ATTND_WIRE_SLOTS_UNITS, -EINVAL, RESERVED);
	REFUSED(slots(), SLOTS->reserved = 1, -EINVAL, RESERVED);
	REFUSED(slots(), SLOTS->num = 0, -EINVAL, ROWS);
	REFUSED(slots(), SLOTS->num = ATTND_MAX_ROWS + 1, -EINVAL, ROWS);
	REFUSED(slots(), SLOTS->capacity = ATTND_MAX_SLOTS + 1, -EINVAL, LENGTH);
	REFUSED(slots(), SLOTS->capacity = ROW_TOKENS - 1, -ENOSPC, LENGTH);
	REFUSED(slots(), SLOTS->capacity = 0, -ENOSPC, LENGTH);
	REFUSED(slots(), SLOTS->width = 1, -ERANGE, LENGTH);
	REFUSED(slots(), SLOTS->width = UINT32_MAX, -ENOSPC, LENGTH);
	REFUSED(slots(), SLOTS->keys = SEGMENT, -EFAULT, OFFSET);
	REFUSED(slots(), SLOTS->keys = AT_TOKENS + 4, -EFAULT, OFFSET);
	REFUSED(slots(), SLOTS->keys = AT_MASK, -ENOENT, SEQUENCE);
	REFUSED(slots(), SLOTS->kv_indices = ATTND_OFFSET_NONE, -EFAULT, OFFSET);
	REFUSED(slots(), SLOTS->kv_indices = SEGMENT - 4, -EFAULT, OFFSET);
	REFUSED(slots(), SLOTS->seq_lens = SEGMENT, -EFAULT, OFFSET);
	REFUSED(slots(), SLOTS->kv_indptr = SEGMENT - 4, -EFAULT, OFFSET);
	REFUSED(slots(), SLOTS->qo_indptr = AT_LSE + 1, -EFAULT, OFFSET);
	REFUSED(slots(), (s.flags = ATTND_SLOTS_PLAN, SLOTS->plan = 1234), -ESTALE, PLAN);
	assert_int_equal(failures, 0);
#undef SLOTS
}

static void test_cancel(void **state)
{
	(void)state;
	failures = 0;
	struct attnd_sqe cancel = {
		.opcode = ATTND_OP_CANCEL, .deadline_us = RAW_DEADLINE_US, .cancel = {.target = 12345}};

	REFUSED(cancel, , -ENOENT, TARGET);
	REFUSED(cancel, s.cancel.reserved = 1, -EINVAL, RESERVED);
	assert_int_equal(failures, 0);
}

static void test_engine(void **state)
{
	(void)state;
	failures = 0;
	*PAYLOAD(struct attnd_wire_engine) = (struct attnd_wire_engine){.id = {1}};
	/* After a cache it is too late. */
	REFUSED(with_payload(ATTND_OP_ENGINE, sizeof(struct attnd_wire_engine)), s.flags = ATTND_ENGINE_CREATE,
		-EBUSY, ENGINE);
	REFUSED(with_payload(ATTND_OP_ENGINE, sizeof(struct attnd_wire_engine)), s.flags = 2, -EINVAL, FLAGS);
	REFUSED(with_payload(ATTND_OP_ENGINE, 16), , -EINVAL, LENGTH);

	struct raw r = {0};
	struct attnd_cqe c;
	struct attnd_sqe s = with_payload(ATTND_OP_ENGINE, sizeof(struct attnd_wire_engine));
	assert_int_equal(raw_connect(&r, daemon_.socket), 0);
	assert_int_equal(raw_segment(&r, 0, 65536), 0);
	*(struct attnd_wire_engine *)(void *)r.segment[0] = (struct attnd_wire_engine){.id = {9}};
	assert_int_equal(raw_call(&r, &s, &c), -ENOENT); /* join: nobody made it */
	assert_int_equal(c.field, ATTND_FIELD_ENGINE_ID);
	s.flags = ATTND_ENGINE_CREATE;
	assert_int_equal(raw_call(&r, &s, &c), 0);
	raw_close(&r);
	assert_int_equal(failures, 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_common),
		cmocka_unit_test(test_cache_open),
		cmocka_unit_test(test_params),
		cmocka_unit_test(test_namespace),
		cmocka_unit_test(test_grant_and_scales),
		cmocka_unit_test(test_sequences),
		cmocka_unit_test(test_plan),
		cmocka_unit_test(test_jobs),
		cmocka_unit_test(test_looks),
		cmocka_unit_test(test_slots),
		cmocka_unit_test(test_cancel),
		cmocka_unit_test(test_engine),
	};

	return cmocka_run_group_tests(tests, group_start, group_end);
}
