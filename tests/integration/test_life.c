/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ends and long lives: clients killed at any point, forks, SIGTERM, an idle daemon, thousands of jobs.
 *
 * In: processes. Out: TAP: what each left behind. Next: daemon's control thread and leader.
 */
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "toy.h"

static struct daemon daemon_;

static int test_start(void **state)
{
	const char *const args[] = {"--pool-size", "32M", "--hugepages", "off", NULL};

	(void)state;
	return daemon_start(&daemon_, args);
}

static int test_end(void **state)
{
	(void)state;
	daemon_clean(&daemon_);
	return 0;
}

/* A client's whole life, over and over, until somebody ends it. */
static void live(uint64_t seed)
{
	struct attnd_connect_options options = {.socket = daemon_.socket, .name = "victim"};
	uint64_t tokens[200];

	for (;;) {
		struct toy t;
		attnd_t *a;
		if (attnd_connect(&a, &options) < 0 || toy_open(&t, a, (uint8_t)(1 + (next_random(&seed) & 1))) < 0)
			_exit(1);
		(void)attnd_grant(a, t.cache, 64, 2);
		for (uint64_t key = 1; key < 20; key++) {
			uint64_t cached, n = 1 + next_random(&seed) % 200;
			toy_tokens(tokens, 200, next_random(&seed) % 4 * 1000);
			if (toy_prefill(&t, key, tokens, (uint32_t)n, &cached) < 0)
				_exit(1);
			(void)attnd_seq_fork(a, key, key + 100, n / 2);
			if (key % 3 == 0)
				(void)attnd_seq_close(a, key);
		}
		attnd_disconnect(a);
	}
}

static void kill_clients(int rounds)
{
	uint64_t seed = 20240229;
	struct in_use none = {0};
	int status;

	for (int i = 0; i < rounds; i++) {
		pid_t pid[2];
		for (int c = 0; c < 2; c++) {
			uint64_t s = next_random(&seed);
			pid[c] = fork();
			if (pid[c] == 0)
				live(s);
		}
		for (int c = 0; c < 2; c++) {
			sleep_ms((unsigned)(next_random(&seed) % 25));
			kill(pid[c], SIGKILL);
		}
		for (int c = 0; c < 2; c++) {
			assert_int_equal(waitpid(pid[c], &status, 0), pid[c]);
			assert_true(WIFSIGNALED(status)); /* none failed before */
		}
	}
	daemon_wait_in_use(&daemon_, &none);
}

/* Killed at any point: blocks, sessions, sequences and descriptors come back. */
static void test_killed_clients(void **state)
{
	(void)state;
	kill_clients(5);
	int64_t fds = proc_fds(daemon_.pid), rss = proc_rss_kib(daemon_.pid);
	kill_clients(getenv("TEST_LONG") ? 500 : 40);
	for (int i = 0; i < 200 && proc_fds(daemon_.pid) > fds; i++)
		sleep_ms(10);
	assert_in_range(proc_fds(daemon_.pid), 1, (uintmax_t)fds);
	if (!sanitized()) /* the pool fills, which is what it is for: 32 MiB at most */
		assert_in_range(proc_rss_kib(daemon_.pid), 1, (uintmax_t)rss + 40 * 1024);
}

/* A killed client does not make the others wait. */
static void test_others_go_on(void **state)
{
	uint64_t tokens[100], cached, seed = 5;
	struct toy t;
	int status;

	(void)state;
	toy_tokens(tokens, 100, 77);
	attnd_t *a = daemon_connect(&daemon_);
	assert_int_equal(toy_open(&t, a, 1), 0);
	for (uint64_t key = 1; key <= 20; key++) {
		pid_t pid = fork();
		if (pid == 0)
			live(key);
		sleep_ms((unsigned)(next_random(&seed) % 20));
		kill(pid, SIGKILL);
		assert_int_equal(toy_prefill(&t, key, tokens, 100, &cached), 0);
		assert_int_equal(cached, key == 1 ? 0 : 99);
		assert_int_equal(attnd_seq_close(a, key), 0);
		assert_int_equal(waitpid(pid, &status, 0), pid);
	}
	attnd_disconnect(a);
}

/* In a forked child every call answers -ECHILD, and the parent does not notice. */
static int child_calls(struct toy *t)
{
	uint64_t token = 1, length;
	struct attnd_open_info info;
	struct attnd_result result;
	struct attnd_row row = {.key = 1, .tokens = &token, .num_tokens = 1};
	struct attnd_namespace ns = {0};
	uint32_t id;
	void *p;

#define CHECK(call)            \
	if ((call) != -ECHILD) \
	return __LINE__
	CHECK(attnd_ping(t->a, 0));
	CHECK(attnd_alloc(t->a, 100, &p));
	CHECK(attnd_seq_open(t->a, 9, 0, &token, 1, 0, &info));
	CHECK(attnd_seq_close(t->a, 1));
	CHECK(attnd_seq_trim(t->a, 1, 0));
	CHECK(attnd_seq_fork(t->a, 1, 2, 0));
	CHECK(attnd_plan(t->a, 1, t->cache, &row, 1, NULL, 0));
	CHECK(attnd_plan_end(t->a, 1));
	CHECK(attnd_grant(t->a, t->cache, 1, 1));
	CHECK(attnd_namespace(t->a, &ns, &id));
	CHECK(attnd_reopen(t->a, &row.key, 1, &length));
	CHECK(attnd_next(t->a, &result, 0));
	attnd_disconnect(t->a);
	return 0;
}

static void fork_now(struct toy *t)
{
	int status;
	pid_t pid = fork();

	if (pid == 0) {
		int line = child_calls(t);
		if (line)
			print_message("line %d\n", line);
		_exit(line ? 1 : 0);
	}
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_int_equal(status, 0);
}

static void test_forked_client(void **state)
{
	uint64_t tokens[64];
	struct attnd_open_info info;
	struct toy t;

	(void)state;
	toy_tokens(tokens, 64, 1);
	attnd_t *a = daemon_connect(&daemon_);
	assert_int_equal(toy_open(&t, a, 1), 0);
	fork_now(&t);
	assert_int_equal(attnd_seq_open(a, 1, 0, tokens, 64, 0, &info), 0);
	fork_now(&t);
	struct attnd_row row = {.key = 1, .tokens = tokens, .num_tokens = 64};
	assert_int_equal(toy_plan(&t, 1, &row, 1, NULL), 0);
	fork_now(&t);
	assert_int_equal(toy_layer(&t, 1, &row, 1, 0), 0);
	fork_now(&t);
	attnd_job_t job;
	assert_int_equal(attnd_ping_async(a, 0, &job), 0);
	fork_now(&t);
	assert_int_equal(attnd_wait(a, job, NULL), 0);
	assert_int_equal(toy_layer(&t, 1, &row, 1, 1), 0);
	assert_int_equal(attnd_seq_close(a, 1), 0);
	attnd_disconnect(a);
}

/* A child that lives on keeps neither its parent's session nor its memory. */
static void test_child_outlives_parent(void **state)
{
	struct in_use none = {0};
	int pipes[2], status;
	char byte;

	(void)state;
	assert_int_equal(pipe(pipes), 0);
	pid_t parent = fork();
	if (parent == 0) {
		struct attnd_connect_options options = {.socket = daemon_.socket};
		struct toy t;
		attnd_t *a;
		close(pipes[1]);
		if (attnd_connect(&a, &options) < 0 || toy_open(&t, a, 1) < 0)
			_exit(1);
		if (fork() == 0) { /* until the test closes its end */
			(void)!read(pipes[0], &byte, 1);
			_exit(0);
		}
		kill(getpid(), SIGKILL);
	}
	close(pipes[0]);
	assert_int_equal(waitpid(parent, &status, 0), parent);
	assert_true(WIFSIGNALED(status));
	daemon_wait_in_use(&daemon_, &none);
	close(pipes[1]);
}

/* The process that is to end the engine has ended before there was one: it gets none. */
static void test_owner_gone_first(void **state)
{
	struct attnd_connect_options options = {.socket = daemon_.socket, .name = "late"};
	struct toy t;
	attnd_t *a;
	pid_t owner = fork();

	(void)state;
	if (owner == 0)
		_exit(0);
	assert_true(owner > 0);
	options.owner_pidfd = (int)syscall(SYS_pidfd_open, owner, 0);
	assert_true(options.owner_pidfd > 0);
	assert_int_equal(waitpid(owner, NULL, 0), owner);
	assert_int_equal(attnd_connect(&a, &options), 0);
	assert_int_equal(daemon_number(&daemon_, "sessions"), 1); /* it has looked around since */
	assert_int_equal(toy_open(&t, a, 1), -EOWNERDEAD);
	attnd_disconnect(a);
	close(options.owner_pidfd);
}

/* SIGTERM: what runs is finished, the daemon exits 0, clients hear of it, nothing named is left. */
static void test_sigterm(void **state)
{
	uint64_t tokens[256];
	struct attnd_open_info info;
	struct attnd_result result;
	struct toy t;
	attnd_job_t job;

	(void)state;
	toy_tokens(tokens, 256, 1);
	struct attnd_connect_options options = {.socket = daemon_.socket, .timeout_us = 3000000};
	attnd_t *a = NULL;
	assert_int_equal(attnd_connect(&a, &options), 0);
	assert_int_equal(toy_open(&t, a, 1), 0);
	assert_int_equal(attnd_seq_open(a, 1, 0, tokens, 256, 0, &info), 0);
	struct attnd_row row = {.key = 1, .tokens = tokens, .num_tokens = 256};
	assert_int_equal(toy_plan(&t, 1, &row, 1, NULL), 0);
	struct attnd_attend attend = {.plan = 1, .params = t.cache, .q = t.q, .k = t.k, .v = t.v, .out = t.out};
	memset(t.q, 0, 256 * TOY_ROW_FLOATS * sizeof(float));
	memset(t.k, 0, 256 * TOY_ROW_FLOATS * sizeof(float));
	memset(t.v, 0, 256 * TOY_ROW_FLOATS * sizeof(float));
	assert_int_equal(attnd_extend(a, &attend, &job), 0);
	assert_int_equal(daemon_end(&daemon_, SIGTERM), 0);
	int e = attnd_wait(a, job, &result);
	assert_true(e == 0 || e == -ECONNRESET || e == -ECANCELED);
	assert_true(attnd_ping(a, 0) < 0);
	attnd_disconnect(a);
	assert_int_equal(access(daemon_.socket, F_OK), -1);
	assert_int_equal(access(daemon_.admin, F_OK), -1);
}

/* An idle daemon with connected clients uses no CPU. */
static void test_idle(void **state)
{
	uint64_t tokens[64], cached;
	struct toy t;

	(void)state;
	toy_tokens(tokens, 64, 1);
	attnd_t *a = daemon_connect(&daemon_), *b = daemon_connect(&daemon_);
	assert_int_equal(toy_open(&t, a, 1), 0);
	assert_int_equal(toy_prefill(&t, 1, tokens, 64, &cached), 0);
	assert_int_equal(attnd_ping(b, 0), 0);
	sleep_ms(500);
	int64_t before = proc_ticks(daemon_.pid);
	sleep_ms(3000);
	int64_t ticks = proc_ticks(daemon_.pid) - before;
	if (!sanitized())
		assert_in_range(ticks, 0, 1);  /* of 300 */
	assert_int_equal(attnd_ping(b, 0), 0); /* and wakes at once */
	attnd_disconnect(a);
	attnd_disconnect(b);
}

/* Thousands of steps: neither memory nor descriptors grow. */
static void test_no_growth(void **state)
{
	const int steps = getenv("TEST_LONG") ? 100000 : sanitized() ? 1000 : 4000;
	uint64_t prompt[64], token;
	struct attnd_open_info info;
	struct toy t;
	int64_t rss = 0, fds = 0;

	(void)state;
	toy_tokens(prompt, 64, 1);
	attnd_t *a = daemon_connect(&daemon_);
	assert_int_equal(toy_open(&t, a, 1), 0);
	for (int i = 0; i < steps; i++) {
		uint64_t key = 1 + (uint64_t)i / 50, at = 64 + (uint64_t)i % 50;
		if (i % 50 == 0) {
			assert_int_equal(attnd_seq_open(a, key, 0, prompt, 64, UINT64_MAX, &info), 0);
			struct attnd_row row = {.key = key,
						.start = info.cached,
						.tokens = prompt + info.cached,
						.num_tokens = 64 - (uint32_t)info.cached,
						.publish_upto = 64};
			if (row.num_tokens)
				assert_int_equal(toy_step(&t, 1, &row, 1, NULL), 0);
		}
		token = 1000 + (uint64_t)i % 7;
		struct attnd_row row = {
			.key = key, .start = at, .tokens = &token, .num_tokens = 1, .publish_upto = at + 1};
		assert_int_equal(toy_step(&t, (uint32_t)i % 3, &row, 1, NULL), 0);
		if (i % 50 == 49)
			assert_int_equal(attnd_seq_close(a, key), 0);
		if (i == steps / 2) {
			rss = proc_rss_kib(daemon_.pid);
			fds = proc_fds(daemon_.pid);
		}
	}
	assert_int_equal(proc_fds(daemon_.pid), fds);
	if (!sanitized())
		assert_in_range(proc_rss_kib(daemon_.pid), 1, (uintmax_t)rss + 1024);
	attnd_disconnect(a);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
#define TEST(f) cmocka_unit_test_setup_teardown(f, test_start, test_end)
		TEST(test_killed_clients),
		TEST(test_others_go_on),
		TEST(test_forked_client),
		TEST(test_child_outlives_parent),
		TEST(test_owner_gone_first),
		TEST(test_sigterm),
		TEST(test_idle),
		TEST(test_no_growth),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
