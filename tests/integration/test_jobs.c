/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Plans and jobs through the library: what happens half way, twice, too late and without room.
 *
 * In: rows. Out: TAP. Next: daemon/plan.c, daemon/exec.c.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "toy.h"

static struct daemon daemon_;
static attnd_t *a_;
static struct toy toy_;

static int test_start(void **state)
{
	const char *const args[] = {"--pool-size", "16M", "--hugepages", "off", NULL};

	(void)state;
	if (daemon_start(&daemon_, args) < 0)
		return -1;
	a_ = daemon_connect(&daemon_);
	return toy_open(&toy_, a_, 1);
}

static int test_end(void **state)
{
	(void)state;
	attnd_disconnect(a_);
	daemon_clean(&daemon_);
	return 0;
}

static struct attnd_row row_of(uint64_t key, const uint64_t *tokens, uint64_t start, uint32_t n)
{
	return (struct attnd_row){.key = key, .start = start, .tokens = tokens + start, .num_tokens = n};
}

static void open_empty(uint64_t key)
{
	struct attnd_open_info info;

	assert_int_equal(attnd_seq_open(a_, key, 0, NULL, 0, 0, &info), 0);
	assert_int_equal(info.cached, 0);
}

/* Outputs of the last token of `n` tokens, computed in one go under a fresh key. */
static void reference(uint64_t key, const uint64_t *tokens, uint32_t n, float *ret)
{
	struct attnd_row row = row_of(key, tokens, 0, n);

	open_empty(key);
	assert_int_equal(toy_step(&toy_, 90, &row, 1, NULL), 0);
	memcpy(ret, toy_.out + (size_t)(n - 1) * TOY_ROW_FLOATS, TOY_ROW_FLOATS * sizeof(float));
	assert_int_equal(attnd_seq_close(a_, key), 0);
}

/* A plan that got half way leaves the length as it was, and the next one comes out right. */
static void test_abandoned_plan(void **state)
{
	uint64_t tokens[60];
	float want[TOY_ROW_FLOATS];

	(void)state;
	toy_tokens(tokens, 60, 1000);
	reference(1, tokens, 60, want);
	open_empty(2);
	struct attnd_row first = row_of(2, tokens, 0, 20), wrong = row_of(2, tokens, 20, 30),
			 rest = row_of(2, tokens, 20, 40);
	assert_int_equal(toy_step(&toy_, 1, &first, 1, NULL), 0);
	assert_int_equal(toy_plan(&toy_, 2, &wrong, 1, NULL), 0);
	assert_int_equal(toy_layer(&toy_, 2, &wrong, 1, 0), 0);
	/* Never ended: the sequence holds 20 tokens, not 50. */
	struct attnd_row late = row_of(2, tokens, 21, 1);
	assert_int_equal(toy_plan(&toy_, 3, &late, 1, NULL), -ERANGE);
	assert_non_null(strstr(attnd_strerror(a_, -ERANGE), "row start"));
	assert_int_equal(toy_plan(&toy_, 4, &rest, 1, NULL), 0);
	assert_int_equal(toy_layer(&toy_, 2, &wrong, 1, 1), -ESTALE);
	assert_int_equal(toy_layer(&toy_, 4, &rest, 1, 0), 0);
	assert_int_equal(toy_layer(&toy_, 4, &rest, 1, 1), 0);
	assert_memory_equal(toy_.out + (size_t)39 * TOY_ROW_FLOATS, want, sizeof(want));
	assert_int_equal(attnd_seq_close(a_, 2), 0);
}

static void test_plan_end(void **state)
{
	uint64_t tokens[32];

	(void)state;
	toy_tokens(tokens, 32, 2000);
	open_empty(3);
	struct attnd_row row = row_of(3, tokens, 0, 32);
	assert_int_equal(toy_plan(&toy_, 5, &row, 1, NULL), 0);
	assert_int_equal(toy_layer(&toy_, 5, &row, 1, 0), 0);
	assert_int_equal(attnd_plan_end(a_, 5), 0);
	assert_int_equal(attnd_plan_end(a_, 5), -ESTALE);
	assert_string_equal(strstr(attnd_strerror(a_, -ESTALE), "plan tag"),
			    "plan tag: none is live: it ended, or a later plan ended it");
	assert_int_equal(toy_layer(&toy_, 5, &row, 1, 1), -ESTALE);
	struct attnd_row at1 = row_of(3, tokens, 1, 1);
	assert_int_equal(toy_plan(&toy_, 6, &at1, 1, NULL), -ERANGE);
	assert_int_equal(attnd_seq_close(a_, 3), 0);
}

/* A layer can be read only if this plan has written it; the last job needs them all. */
static void test_layer_not_written(void **state)
{
	uint64_t tokens[8];
	attnd_job_t id;

	(void)state;
	toy_tokens(tokens, 8, 3000);
	open_empty(4);
	struct attnd_row row = row_of(4, tokens, 0, 8);
	assert_int_equal(toy_plan(&toy_, 7, &row, 1, NULL), 0);
	struct attnd_attend job = {.plan = 7,
				   .params = toy_.cache,
				   .layer = 1,
				   .src_layer = 0,
				   .flags = ATTND_NO_KV,
				   .q = toy_.q,
				   .out = toy_.out};
	assert_int_equal(attnd_extend(a_, &job, &id), 0);
	assert_int_equal(attnd_wait(a_, id, NULL), -EINVAL);
	assert_non_null(strstr(attnd_strerror(a_, -EINVAL), "src_layer"));
	/* Layer 0 was skipped: the sequence must not become longer. */
	assert_int_equal(toy_layer(&toy_, 7, &row, 1, 1), -EINVAL);
	struct attnd_row at1 = row_of(4, tokens, 1, 1);
	assert_int_equal(toy_plan(&toy_, 8, &at1, 1, NULL), -ERANGE);
	assert_int_equal(attnd_seq_close(a_, 4), 0);
}

/* In chunks or at once, in one batch or alone: the same bits. */
static void test_same_bits(void **state)
{
	static const uint32_t chunks[] = {1, 16, 7, 50, 3, 23};
	uint64_t tokens[100], other[100];
	float want[TOY_ROW_FLOATS];

	(void)state;
	toy_tokens(tokens, 100, 4000);
	toy_tokens(other, 100, 5000);
	reference(10, tokens, 100, want);
	open_empty(11);
	uint32_t at = 0;
	for (size_t i = 0; i < sizeof(chunks) / sizeof(chunks[0]); at += chunks[i++]) {
		struct attnd_row row = row_of(11, tokens, at, chunks[i]);
		assert_int_equal(toy_step(&toy_, 1, &row, 1, NULL), 0);
	}
	assert_int_equal(at, 100);
	assert_memory_equal(toy_.out + (size_t)22 * TOY_ROW_FLOATS, want, sizeof(want));

	open_empty(12);
	open_empty(13);
	struct attnd_row both[] = {row_of(12, other, 0, 33), row_of(13, tokens, 0, 100)};
	assert_int_equal(toy_step(&toy_, 2, both, 2, NULL), 0);
	assert_memory_equal(toy_.out + (size_t)132 * TOY_ROW_FLOATS, want, sizeof(want));
	const uint64_t keys[] = {11, 12, 13};
	assert_int_equal(attnd_seq_close_many(a_, keys, 3), 0);
}

/* A lower start rolls back; the tokens after it are others now. */
static void test_roll_back(void **state)
{
	uint64_t tokens[50], changed[50];
	float want[TOY_ROW_FLOATS];

	(void)state;
	toy_tokens(tokens, 50, 6000);
	toy_tokens(changed, 50, 6000);
	for (int i = 21; i < 50; i++)
		changed[i] += 100;
	reference(20, changed, 50, want);
	open_empty(21);
	struct attnd_row all = row_of(21, tokens, 0, 50), tail = row_of(21, changed, 21, 29);
	assert_int_equal(toy_step(&toy_, 1, &all, 1, NULL), 0);
	assert_int_equal(toy_step(&toy_, 1, &tail, 1, NULL), 0);
	assert_memory_equal(toy_.out + (size_t)28 * TOY_ROW_FLOATS, want, sizeof(want));
	assert_int_equal(attnd_seq_close(a_, 21), 0);
}

/* Two children of one sequence go their own ways. */
static void test_fork_sequences(void **state)
{
	uint64_t left[40], right[40];
	float want[TOY_ROW_FLOATS];

	(void)state;
	toy_tokens(left, 40, 7000);
	toy_tokens(right, 40, 7000);
	for (int i = 27; i < 40; i++)
		right[i] += 500;
	open_empty(30);
	struct attnd_row base = row_of(30, left, 0, 30);
	assert_int_equal(toy_step(&toy_, 1, &base, 1, NULL), 0);
	assert_int_equal(attnd_seq_fork(a_, 30, 31, 27), 0);
	struct attnd_row rows[] = {row_of(30, left, 30, 10), row_of(31, right, 27, 13)};
	assert_int_equal(toy_step(&toy_, 1, rows, 2, NULL), 0);
	float got[2][TOY_ROW_FLOATS];
	memcpy(got[0], toy_.out + (size_t)9 * TOY_ROW_FLOATS, sizeof(got[0]));
	memcpy(got[1], toy_.out + (size_t)22 * TOY_ROW_FLOATS, sizeof(got[1]));
	reference(32, left, 40, want);
	assert_memory_equal(got[0], want, sizeof(want));
	reference(33, right, 40, want);
	assert_memory_equal(got[1], want, sizeof(want));
	const uint64_t keys[] = {30, 31};
	assert_int_equal(attnd_seq_close_many(a_, keys, 2), 0);
}

/* No room for one row: its status says so, its out is zero, and the others come out right. */
static void test_pool_exhausted(void **state)
{
	enum { ROWS = 7, PER_ROW = 64 }; /* not a divisor of the pool: in the last step some get room */
	struct attnd_row rows[ROWS];
	struct attnd_row_status status[ROWS];
	uint64_t(*tokens)[1 << 15] = malloc(ROWS * sizeof(*tokens));
	float want[TOY_ROW_FLOATS], zero[TOY_ROW_FLOATS] = {0};
	int refused = 0, done = 0;

	(void)state;
	assert_non_null(tokens);
	for (uint32_t r = 0; r < ROWS; r++) {
		toy_tokens(tokens[r], 1 << 15, (uint64_t)(r + 1) << 32);
		open_empty(40 + r);
	}
	uint32_t at = 0;
	for (; !refused && at + PER_ROW <= 1 << 15; at += PER_ROW) {
		for (uint32_t r = 0; r < ROWS; r++)
			rows[r] = row_of(40 + r, tokens[r], at, PER_ROW);
		memset(toy_.out, 0xff, (size_t)ROWS * PER_ROW * TOY_ROW_FLOATS * sizeof(float));
		assert_int_equal(toy_step(&toy_, 1, rows, ROWS, status), 0);
		for (uint32_t r = 0; r < ROWS; r++) {
			const float *out = toy_.out + (size_t)(r * PER_ROW + PER_ROW - 1) * TOY_ROW_FLOATS;
			if (status[r].status) {
				assert_int_equal(status[r].status, -ENOMEM);
				assert_memory_equal(out, zero, sizeof(zero));
				refused++;
			} else {
				assert_memory_not_equal(out, zero, sizeof(zero));
				done++;
			}
		}
	}
	assert_true(refused > 0 && done > 0);
	/* What a refused row held stays: after the others are closed it goes on from there. */
	for (uint32_t r = 0; r < ROWS; r++)
		if (status[r].status == 0)
			assert_int_equal(attnd_seq_close(a_, 40 + r), 0);
	uint32_t last = 0;
	for (uint32_t r = 0; r < ROWS; r++)
		if (status[r].status)
			last = r;
	struct attnd_row again = row_of(40 + last, tokens[last], at - PER_ROW, PER_ROW);
	assert_int_equal(toy_step(&toy_, 1, &again, 1, NULL), 0);
	memcpy(want, toy_.out + (size_t)(PER_ROW - 1) * TOY_ROW_FLOATS, sizeof(want));
	assert_memory_not_equal(want, zero, sizeof(zero));
	free(tokens);
}

/*
 * More jobs than the queue holds: -EAGAIN, at once, and all that were taken are answered. The daemon
 * stands still meanwhile, or it would make room as fast as this fills it.
 */
static void test_queue_full(void **state)
{
	struct attnd_connect_options options = {.socket = daemon_.socket, .queue_entries = 8};
	struct attnd_result result;
	attnd_job_t id;
	attnd_t *b;
	int submitted = 0, answered = 0, e;

	(void)state;
	assert_int_equal(attnd_connect(&b, &options), 0);
	assert_int_equal(daemon_freeze(&daemon_), 0);
	while ((e = attnd_ping_async(b, 0, &id)) == 0 && submitted < 1000)
		submitted++;
	daemon_thaw(&daemon_);
	assert_int_equal(e, -EAGAIN);
	assert_int_equal(submitted, 8);
	while (attnd_next(b, &result, 30000000) == 0) {
		assert_int_equal(result.status, 0);
		if (++answered == submitted)
			break;
	}
	assert_int_equal(answered, submitted);
	assert_int_equal(attnd_ping(b, 0), 0);
	attnd_disconnect(b);
}

static void test_unknown(void **state)
{
	uint64_t token = 1;
	struct attnd_row row = {.key = 555, .tokens = &token, .num_tokens = 1};

	(void)state;
	assert_int_equal(toy_plan(&toy_, 1, &row, 1, NULL), -ENOENT);
	assert_int_equal(attnd_seq_close(a_, 555), -ENOENT);
	assert_int_equal(attnd_seq_trim(a_, 555, 0), -ENOENT);
	assert_int_equal(attnd_seq_fork(a_, 555, 556, 0), -ENOENT);
	assert_int_equal(attnd_plan_end(a_, 555), -ESTALE);
	assert_int_equal(attnd_wait(a_, 1u << 30, NULL), -ENOENT);
	open_empty(50);
	struct attnd_row twice[] = {row_of(50, &token, 0, 1), row_of(50, &token, 0, 1)};
	assert_int_equal(toy_plan(&toy_, 1, twice, 2, NULL), -EINVAL);
	assert_int_equal(attnd_seq_close(a_, 50), 0);
}

/* Buffers outside the arena never reach the daemon. */
static void test_not_in_arena(void **state)
{
	uint64_t tokens[1] = {1};
	float local[TOY_ROW_FLOATS];
	attnd_job_t id = 0;

	(void)state;
	open_empty(60);
	struct attnd_row row = row_of(60, tokens, 0, 1);
	assert_int_equal(toy_plan(&toy_, 1, &row, 1, NULL), 0);
	struct attnd_attend job = {
		.plan = 1, .params = toy_.cache, .q = local, .k = toy_.k, .v = toy_.v, .out = toy_.out};
	assert_int_equal(attnd_extend(a_, &job, &id), -EINVAL);
	assert_int_equal(id, 0);
	assert_int_equal(attnd_seq_close(a_, 60), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
#define TEST(f) cmocka_unit_test_setup_teardown(f, test_start, test_end)
		TEST(test_abandoned_plan), TEST(test_plan_end),	  TEST(test_layer_not_written),
		TEST(test_same_bits),	   TEST(test_roll_back),  TEST(test_fork_sequences),
		TEST(test_pool_exhausted), TEST(test_queue_full), TEST(test_unknown),
		TEST(test_not_in_arena),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
