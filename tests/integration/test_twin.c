/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Waiting for a twin: who asks for tokens that another live sequence is computing is told when they
 * are there, and when they will not be.
 *
 * In: two connections, prompts. Out: TAP. Next: daemon/wait.c, daemon/twin.c.
 */
#include <errno.h>
#include <signal.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "toy.h"

enum { PROMPT = 100, PART = 40, WHOLE = PROMPT / 16 * 16, LONG_US = 20000000 };

static struct daemon daemon_;
static struct toy one, two;
static uint64_t tokens[PROMPT];

static int test_start(void **state)
{
	const char *const args[] = {"--pool-size", "16M", "--hugepages", "off", NULL};

	(void)state;
	return daemon_start(&daemon_, args);
}

static int test_end(void **state)
{
	(void)state;
	daemon_clean(&daemon_);
	return 0;
}

/* Each test has tokens of its own. */
static int setup(void **state)
{
	static uint64_t base;

	(void)state;
	base += 1000;
	toy_tokens(tokens, PROMPT, base);
	return toy_open(&one, daemon_connect(&daemon_), 1) || toy_open(&two, daemon_connect(&daemon_), 1);
}

static int teardown(void **state)
{
	(void)state;
	attnd_disconnect(one.a);
	attnd_disconnect(two.a);
	return 0;
}

static void open_one(uint64_t key)
{
	struct attnd_open_info info;

	assert_int_equal(attnd_seq_open(one.a, key, 0, tokens, PROMPT, PROMPT - 1, &info), 0);
	assert_int_equal(info.cached, 0);
}

static void compute(struct toy *t, uint64_t key, uint32_t from, uint32_t to)
{
	const struct attnd_row row = {
		.key = key, .start = from, .tokens = tokens + from, .num_tokens = to - from, .publish_upto = PROMPT};

	assert_int_equal(toy_step(t, 1, &row, 1, NULL), 0);
}

static attnd_job_t begin_wait(struct toy *t, uint64_t key, uint64_t want, uint64_t quiet_us, uint64_t deadline_us,
			      struct attnd_wait_info *info)
{
	const struct attnd_wait_options options = {
		.max_match = PROMPT - 1, .want = want, .quiet_us = quiet_us, .deadline_us = deadline_us};
	attnd_job_t job = 0;

	memset(info, 0xff, sizeof(*info));
	assert_int_equal(attnd_seq_wait_async(t->a, key, 0, tokens, PROMPT, &options, info, &job), 0);
	return job;
}

/* It has not been answered, though the daemon has had it, and what came after it has. */
static void still_waits(struct toy *t, const struct attnd_wait_info *info)
{
	assert_int_equal(attnd_ping(t->a, 0), 0);
	assert_int_equal(attnd_ping(t->a, 0), 0);
	assert_true(info->cached == UINT64_MAX);
}

static void ends(struct toy *t, attnd_job_t job, const struct attnd_wait_info *info, enum attnd_waited why,
		 uint64_t cached, uint64_t expected)
{
	struct attnd_result result;

	assert_int_equal(attnd_wait(t->a, job, &result), 0);
	assert_int_equal(info->why, why);
	assert_int_equal(info->cached, cached);
	assert_int_equal(info->expected, expected);
	assert_int_equal(result.value, cached);
}

static void test_alone(void **state)
{
	const struct attnd_namespace parts = {.salt = "x", .salt_bytes = 1};
	struct attnd_wait_info info;
	uint32_t ns;

	(void)state;
	assert_int_equal(attnd_seq_wait(two.a, 1, 0, tokens, PROMPT, NULL, &info), 0);
	assert_int_equal(info.why, ATTND_WAITED_ALONE);
	assert_int_equal(info.cached, 0);
	assert_int_equal(info.expected, 0);
	compute(&two, 1, 0, PROMPT); /* it is open as any other */
	assert_int_equal(attnd_seq_wait(two.a, 2, 0, tokens, PROMPT, NULL, &info), 0);
	assert_int_equal(info.cached, PROMPT);
	/* Another namespace's tokens, other tokens and a cache of another model are no twins. */
	tokens[0] += 500;
	open_one(1);
	assert_int_equal(attnd_namespace(two.a, &parts, &ns), 0);
	assert_int_equal(attnd_seq_wait(two.a, 3, ns, tokens, PROMPT, NULL, &info), 0);
	assert_int_equal(info.why, ATTND_WAITED_ALONE);
	tokens[15]++;
	assert_int_equal(attnd_seq_wait(two.a, 4, 0, tokens, PROMPT, NULL, &info), 0);
	assert_int_equal(info.why, ATTND_WAITED_ALONE);
	/* A sequence that has been used waits no more. */
	assert_int_equal(attnd_seq_wait(two.a, 1, 0, tokens, PROMPT, NULL, &info), -EEXIST);
}

static void test_progress(void **state)
{
	struct attnd_wait_info info, all;
	attnd_job_t job, whole;

	(void)state;
	open_one(1);
	job = begin_wait(&two, 1, 0, 0, LONG_US, &info);
	whole = begin_wait(&two, 2, UINT64_MAX, 0, LONG_US, &all);
	still_waits(&two, &info);
	still_waits(&two, &all);
	compute(&one, 1, 0, PART);
	ends(&two, job, &info, ATTND_WAITED_PROGRESS, PART, WHOLE);
	still_waits(&two, &all);
	/* The one that was told waits on with what it holds. */
	job = begin_wait(&two, 1, 50, 0, LONG_US, &info);
	still_waits(&two, &info);
	compute(&one, 1, PART, 50);
	ends(&two, job, &info, ATTND_WAITED_PROGRESS, 50, WHOLE);
	still_waits(&two, &all);
	compute(&one, 1, 50, PROMPT);
	ends(&two, whole, &all, ATTND_WAITED_DONE, PROMPT - 1, WHOLE);
	compute(&two, 2, PROMPT - 1, PROMPT);
	assert_int_equal(attnd_seq_wait(two.a, 1, 0, tokens, PROMPT, NULL, &info), 0);
	assert_int_equal(info.cached, PROMPT);
}

static void test_close(void **state)
{
	struct attnd_wait_info info, other;
	attnd_job_t job, second;

	(void)state;
	open_one(1);
	job = begin_wait(&two, 1, UINT64_MAX, 0, LONG_US, &info);
	second = begin_wait(&two, 2, UINT64_MAX, 0, LONG_US, &other);
	compute(&one, 1, 0, PART);
	still_waits(&two, &info);
	assert_int_equal(attnd_seq_close(one.a, 1), 0);
	ends(&two, job, &info, ATTND_WAITED_GONE, PART, WHOLE);
	ends(&two, second, &other, ATTND_WAITED_GONE, PART, WHOLE);
	/* Both are free to compute now; who asks first waits for the other, and the other for nobody. */
	job = begin_wait(&two, 1, UINT64_MAX, 0, LONG_US, &info);
	still_waits(&two, &info);
	second = begin_wait(&two, 2, UINT64_MAX, 0, LONG_US, &other);
	ends(&two, second, &other, ATTND_WAITED_ALONE, PART, 0);
	ends(&two, job, &info, ATTND_WAITED_GONE, PART, WHOLE);
}

static void test_death(void **state)
{
	struct attnd_wait_info info;
	attnd_job_t job;
	int ready[2], status;
	char byte;
	pid_t pid;

	(void)state;
	assert_int_equal(pipe(ready), 0);
	pid = fork();
	if (pid == 0) {
		struct attnd_connect_options options = {.socket = daemon_.socket, .name = "twin"};
		struct attnd_open_info open;
		struct toy t;
		attnd_t *a;

		if (attnd_connect(&a, &options) || toy_open(&t, a, 1) ||
		    attnd_seq_open(a, 1, 0, tokens, PROMPT, PROMPT - 1, &open) || write(ready[1], "", 1) != 1)
			_exit(1);
		for (;;)
			pause();
	}
	assert_int_equal(read(ready[0], &byte, 1), 1);
	job = begin_wait(&two, 1, UINT64_MAX, 0, LONG_US, &info);
	still_waits(&two, &info);
	assert_int_equal(kill(pid, SIGKILL), 0);
	ends(&two, job, &info, ATTND_WAITED_GONE, 0, WHOLE);
	assert_int_equal(waitpid(pid, &status, 0), pid);
	close(ready[0]);
	close(ready[1]);
}

static void test_deadline(void **state)
{
	struct attnd_wait_info info;
	attnd_job_t job;

	(void)state;
	open_one(1);
	compute(&one, 1, 0, PART);
	job = begin_wait(&two, 1, UINT64_MAX, 0, 30000, &info);
	ends(&two, job, &info, ATTND_WAITED_DEADLINE, PART, WHOLE);
	job = begin_wait(&two, 2, UINT64_MAX, 30000, LONG_US, &info);
	ends(&two, job, &info, ATTND_WAITED_QUIET, PART, WHOLE);
	compute(&two, 1, PART, PROMPT);
}

static void test_roll_back(void **state)
{
	struct attnd_wait_info info;
	attnd_job_t job;

	(void)state;
	open_one(1);
	compute(&one, 1, 0, PART);
	job = begin_wait(&two, 1, UINT64_MAX, 0, LONG_US, &info);
	still_waits(&two, &info);
	assert_int_equal(attnd_seq_trim(one.a, 1, PART - 10), 0);
	ends(&two, job, &info, ATTND_WAITED_GONE, PART, WHOLE);
}

/* It computes, but publishes less than it announced. */
static void test_unpublished(void **state)
{
	struct attnd_row row = {.key = 1, .tokens = tokens, .num_tokens = PROMPT, .publish_upto = PART};
	struct attnd_wait_info info;
	attnd_job_t job;

	(void)state;
	open_one(1);
	job = begin_wait(&two, 1, UINT64_MAX, 0, LONG_US, &info);
	still_waits(&two, &info);
	assert_int_equal(toy_step(&one, 1, &row, 1, NULL), 0);
	ends(&two, job, &info, ATTND_WAITED_GONE, PART, WHOLE);
}

static void test_cancel(void **state)
{
	const struct attnd_wait_options options = {.max_match = PROMPT - 1, .want = UINT64_MAX};
	struct attnd_open_info open;
	struct attnd_wait_info info;
	attnd_job_t job;

	(void)state;
	open_one(1);
	job = begin_wait(&two, 1, UINT64_MAX, 0, LONG_US, &info);
	still_waits(&two, &info);
	assert_int_equal(attnd_cancel(two.a, job), 0);
	assert_int_equal(attnd_wait(two.a, job, NULL), -ECANCELED);
	assert_int_equal(attnd_seq_close(two.a, 1), -ENOENT); /* nothing of it stays */
	job = begin_wait(&two, 2, UINT64_MAX, 0, LONG_US, &info);
	assert_int_equal(attnd_seq_close(two.a, 2), 0);
	assert_int_equal(attnd_wait(two.a, job, NULL), -ECANCELED);
	/* One that had been open before still is, and can wait again. */
	assert_int_equal(attnd_seq_open(two.a, 3, 0, tokens, PROMPT, PROMPT - 1, &open), 0);
	job = begin_wait(&two, 3, UINT64_MAX, 0, LONG_US, &info);
	still_waits(&two, &info);
	assert_int_equal(attnd_cancel(two.a, job), 0);
	assert_int_equal(attnd_wait(two.a, job, NULL), -ECANCELED);
	assert_int_equal(attnd_seq_wait_async(two.a, 3, 0, tokens, PROMPT, &options, NULL, &job), 0);
	compute(&one, 1, 0, PROMPT);
	assert_int_equal(attnd_wait(two.a, job, NULL), 0);
	compute(&two, 3, PROMPT - 1, PROMPT);
}

/* What came while it waited in vain is not the answer: that stays as it was, and the next wait finds it. */
static void test_cancel_after_progress(void **state)
{
	struct attnd_wait_options options = {.max_match = PROMPT - 1, .want = PART};
	struct attnd_wait_info info;
	struct attnd_open_info open;
	attnd_job_t job;

	(void)state;
	open_one(1);
	assert_int_equal(attnd_seq_open(two.a, 1, 0, tokens, PROMPT, PROMPT - 1, &open), 0);
	job = begin_wait(&two, 1, UINT64_MAX, 0, LONG_US, &info);
	compute(&one, 1, 0, PART);
	still_waits(&two, &info);
	assert_int_equal(attnd_cancel(two.a, job), 0);
	assert_int_equal(attnd_wait(two.a, job, NULL), -ECANCELED);
	assert_int_equal(attnd_seq_open(two.a, 1, 0, tokens, PROMPT, PROMPT - 1, &open), 0);
	assert_int_equal(open.cached, 0);
	assert_int_equal(attnd_seq_wait(two.a, 1, 0, tokens, PROMPT, &options, &info), 0);
	assert_int_equal(info.why, ATTND_WAITED_PROGRESS); /* as much as it wants was there: at once */
	assert_int_equal(info.cached, PART);
	assert_int_equal(info.expected, WHOLE);
	compute(&two, 1, PART, PROMPT);
}

/* Leaving with requests that wait, and with sequences that others wait for. */
static void test_leave(void **state)
{
	struct attnd_wait_info info, other;
	attnd_t *third = daemon_connect(&daemon_);
	struct toy t;
	attnd_job_t job;

	(void)state;
	open_one(1);
	assert_int_equal(toy_open(&t, third, 1), 0);
	(void)begin_wait(&t, 1, UINT64_MAX, 0, LONG_US, &info);
	job = begin_wait(&two, 1, UINT64_MAX, 0, LONG_US, &other);
	still_waits(&t, &info);
	attnd_disconnect(third);
	still_waits(&two, &other);
	attnd_disconnect(one.a);
	ends(&two, job, &other, ATTND_WAITED_GONE, 0, WHOLE);
	assert_int_equal(attnd_seq_close(two.a, 1), 0);
	assert_int_equal(toy_open(&one, daemon_connect(&daemon_), 1), 0);
	assert_int_equal(daemon_number(&daemon_, "counters.sequences"), 0);
}

static void test_limits(void **state)
{
	struct attnd_wait_options options = {.quiet_us = 3600000001};
	struct attnd_wait_info info;

	(void)state;
	assert_int_equal(attnd_seq_wait(two.a, 1, 0, tokens, PROMPT, &options, &info), -EINVAL);
	options = (struct attnd_wait_options){.deadline_us = 3600000001};
	assert_int_equal(attnd_seq_wait(two.a, 1, 0, tokens, PROMPT, &options, &info), -EINVAL);
	assert_int_equal(attnd_seq_wait(two.a, 1, 77, tokens, PROMPT, NULL, &info), -ENOENT);
	assert_int_equal(attnd_seq_wait(two.a, 1, 0, tokens, PROMPT, NULL, &info), 0);
	/* To wait on it must be asked for the tokens that it was opened on. */
	compute(&two, 1, 0, PROMPT);
	assert_int_equal(attnd_seq_wait(two.a, 2, 0, tokens, PROMPT, NULL, &info), 0);
	assert_int_equal(info.cached, PROMPT);
	tokens[3]++;
	assert_int_equal(attnd_seq_wait(two.a, 2, 0, tokens, PROMPT, NULL, &info), -EINVAL);
	assert_int_equal(attnd_seq_wait(two.a, 2, 0, tokens, PROMPT - 1, NULL, &info), -EINVAL);
	tokens[3]--;
	assert_int_equal(attnd_seq_wait(two.a, 2, 0, tokens, PROMPT, NULL, &info), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(test_alone, setup, teardown),
		cmocka_unit_test_setup_teardown(test_progress, setup, teardown),
		cmocka_unit_test_setup_teardown(test_close, setup, teardown),
		cmocka_unit_test_setup_teardown(test_death, setup, teardown),
		cmocka_unit_test_setup_teardown(test_deadline, setup, teardown),
		cmocka_unit_test_setup_teardown(test_roll_back, setup, teardown),
		cmocka_unit_test_setup_teardown(test_unpublished, setup, teardown),
		cmocka_unit_test_setup_teardown(test_cancel, setup, teardown),
		cmocka_unit_test_setup_teardown(test_cancel_after_progress, setup, teardown),
		cmocka_unit_test_setup_teardown(test_leave, setup, teardown),
		cmocka_unit_test_setup_teardown(test_limits, setup, teardown),
	};

	return cmocka_run_group_tests(tests, test_start, test_end);
}
