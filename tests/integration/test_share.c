/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What one process computed is a hit for another: to the token, in the same bits, and for nobody
 * whose model or namespace is another.
 *
 * In: two processes, prompts. Out: TAP. Next: daemon/tree.c.
 */
#include <errno.h>
#include <grp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "toy.h"
#include "../skip.h"

enum { PROMPT = 100, SHARED = 77 };

static struct daemon daemon_;

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

/* Another process computes the prompt, publishes it and ends, by exit or by kill -9. */
static void computed_elsewhere(const uint64_t *tokens, int killed)
{
	int status;
	pid_t pid = fork();

	if (pid == 0) {
		struct attnd_connect_options options = {.socket = daemon_.socket, .name = "first"};
		struct toy t;
		attnd_t *a;
		uint64_t cached = 1;
		int e = attnd_connect(&a, &options);
		if (e == 0)
			e = toy_open(&t, a, 1);
		if (e == 0)
			e = toy_prefill(&t, 1, tokens, PROMPT, &cached);
		if (killed)
			kill(getpid(), SIGKILL);
		if (e == 0)
			attnd_disconnect(a);
		_exit(e || cached ? 1 : 0);
	}
	assert_int_equal(waitpid(pid, &status, 0), pid);
	if (killed)
		assert_true(WIFSIGNALED(status));
	else
		assert_int_equal(status, 0);
}

static void hit_in_other_process(int killed)
{
	uint64_t tokens[PROMPT], mine[PROMPT], cached;
	float want[TOY_ROW_FLOATS];
	struct toy t, fresh;

	toy_tokens(tokens, PROMPT, 1);
	computed_elsewhere(tokens, killed);
	memcpy(mine, tokens, sizeof(mine));
	for (int i = SHARED; i < PROMPT; i++)
		mine[i] += 10000;
	attnd_t *a = daemon_connect(&daemon_);
	assert_int_equal(toy_open(&t, a, 1), 0);
	assert_int_equal(toy_prefill(&t, 2, mine, PROMPT, &cached), 0);
	assert_int_equal(cached, SHARED);
	memcpy(want, t.out + (size_t)(PROMPT - SHARED - 1) * TOY_ROW_FLOATS, sizeof(want));

	/* All of it again: all but the token that has to be computed. */
	assert_int_equal(toy_prefill(&t, 3, tokens, PROMPT, &cached), 0);
	assert_int_equal(cached, PROMPT - 1);

	/* Another model's cache knows nothing, and its outputs are the same bits as those of the hit. */
	assert_int_equal(toy_open(&fresh, a, 2), 0);
	assert_int_not_equal(fresh.cache, t.cache);
	assert_int_equal(attnd_seq_close(a, 2), 0);
	assert_int_equal(attnd_seq_close(a, 3), 0);
	attnd_disconnect(a);

	a = daemon_connect(&daemon_); /* an engine with that cache alone */
	assert_int_equal(toy_open(&fresh, a, 2), 0);
	assert_int_equal(toy_prefill(&fresh, 4, mine, PROMPT, &cached), 0);
	assert_int_equal(cached, 0);
	assert_memory_equal(fresh.out + (size_t)(PROMPT - 1) * TOY_ROW_FLOATS, want, sizeof(want));
	attnd_disconnect(a);
}

static void test_hit(void **state)
{
	(void)state;
	hit_in_other_process(0);
}

static void test_hit_after_kill(void **state)
{
	(void)state;
	hit_in_other_process(1);
}

static void test_namespaces(void **state)
{
	const struct attnd_namespace parts[] = {
		{.adapter = "a", .adapter_bytes = 1, .salt = "bc", .salt_bytes = 2},
		{.adapter = "ab", .adapter_bytes = 2, .salt = "c", .salt_bytes = 1},
		{.salt = "abc", .salt_bytes = 3},
		{.salt = "", .salt_bytes = 0},
	};
	uint64_t tokens[PROMPT], cached;
	struct attnd_open_info info;
	struct toy t;

	(void)state;
	toy_tokens(tokens, PROMPT, 1);
	attnd_t *a = daemon_connect(&daemon_);
	assert_int_equal(toy_open(&t, a, 1), 0);
	assert_int_equal(toy_prefill(&t, 1, tokens, PROMPT, &cached), 0);
	for (size_t i = 0; i < sizeof(parts) / sizeof(parts[0]); i++) {
		uint32_t id = 0, again = 0;
		assert_int_equal(attnd_namespace(a, &parts[i], &id), 0);
		assert_int_equal(attnd_namespace(a, &parts[i], &again), 0);
		assert_int_not_equal(id, 0);
		assert_int_equal(id, again);
		assert_int_equal(attnd_seq_open(a, 10 + i, id, tokens, PROMPT, UINT64_MAX, &info), 0);
		assert_int_equal(info.cached, 0);
	}
	assert_int_equal(attnd_seq_open(a, 20, 0, tokens, PROMPT, UINT64_MAX, &info), 0);
	assert_int_equal(info.cached, PROMPT);
	assert_int_equal(attnd_seq_open(a, 21, 0, tokens, PROMPT, 33, &info), 0);
	assert_int_equal(info.cached, 33);
	attnd_disconnect(a);
}

/* Beyond publish_upto nobody sees anything; the plan's end publishes, not its middle. */
static void test_publish_upto(void **state)
{
	uint64_t tokens[PROMPT];
	struct attnd_open_info info;
	struct toy t, u;

	(void)state;
	toy_tokens(tokens, PROMPT, 1);
	attnd_t *a = daemon_connect(&daemon_), *b = daemon_connect(&daemon_);
	assert_int_equal(toy_open(&t, a, 1), 0);
	assert_int_equal(toy_open(&u, b, 1), 0);
	assert_int_equal(attnd_seq_open(a, 1, 0, tokens, PROMPT, 0, &info), 0);
	struct attnd_row row = {.key = 1, .tokens = tokens, .num_tokens = PROMPT, .publish_upto = 41};
	assert_int_equal(toy_plan(&t, 1, &row, 1, NULL), 0);
	assert_int_equal(toy_layer(&t, 1, &row, 1, 0), 0);
	assert_int_equal(attnd_seq_open(b, 1, 0, tokens, PROMPT, UINT64_MAX, &info), 0);
	assert_int_equal(info.cached, 0);
	assert_int_equal(attnd_seq_close(b, 1), 0);
	assert_int_equal(toy_layer(&t, 1, &row, 1, 1), 0);
	assert_int_equal(attnd_seq_open(b, 2, 0, tokens, PROMPT, UINT64_MAX, &info), 0);
	assert_int_equal(info.cached, 41);
	attnd_disconnect(a);
	attnd_disconnect(b);
}

/* Two processes compute the same prompt at once: both are right, and the next one finds it all. */
static void test_twins(void **state)
{
	uint64_t tokens[PROMPT], cached;
	pid_t pids[2];
	int status;

	(void)state;
	toy_tokens(tokens, PROMPT, 1);
	for (int i = 0; i < 2; i++) {
		pids[i] = fork();
		if (pids[i] == 0) {
			struct attnd_connect_options options = {.socket = daemon_.socket, .name = "twin"};
			struct toy t;
			attnd_t *a;
			int e = attnd_connect(&a, &options);
			if (e == 0)
				e = toy_open(&t, a, 1);
			if (e == 0)
				e = toy_prefill(&t, 1, tokens, PROMPT, &cached);
			attnd_disconnect(e == 0 ? a : NULL);
			_exit(e ? 1 : 0);
		}
	}
	for (int i = 0; i < 2; i++) {
		assert_int_equal(waitpid(pids[i], &status, 0), pids[i]);
		assert_int_equal(status, 0);
	}
	attnd_t *a = daemon_connect(&daemon_);
	struct toy t;
	assert_int_equal(toy_open(&t, a, 1), 0);
	assert_int_equal(toy_prefill(&t, 9, tokens, PROMPT, &cached), 0);
	assert_int_equal(cached, PROMPT - 1);
	attnd_disconnect(a);
}

/* Both have planned before either is through: of each full block one copy stays, with the same outputs. */
static void test_duplicates(void **state)
{
	uint64_t tokens[PROMPT + 1], tail = 7;
	float want[TOY_ROW_FLOATS];
	struct toy t[2];
	attnd_t *a[2];

	(void)state;
	toy_tokens(tokens, PROMPT, 1);
	struct attnd_row row = {.key = 1, .tokens = tokens, .num_tokens = PROMPT, .publish_upto = PROMPT};
	for (int i = 0; i < 2; i++) {
		a[i] = daemon_connect(&daemon_);
		assert_int_equal(toy_open(&t[i], a[i], 1), 0);
		assert_int_equal(attnd_seq_open(a[i], 1, 0, tokens, PROMPT, 0, NULL), 0);
		assert_int_equal(toy_plan(&t[i], 1, &row, 1, NULL), 0);
	}
	for (int i = 0; i < 2; i++)
		for (uint32_t layer = 0; layer < TOY_LAYERS; layer++)
			assert_int_equal(toy_layer(&t[i], 1, &row, 1, layer), 0);
	for (int i = 0; i < 1000 && daemon_number(&daemon_, "counters.collapsed_blocks") < PROMPT / 16; i++)
		sleep_ms(10);
	assert_int_equal(daemon_number(&daemon_, "counters.collapsed_blocks"), PROMPT / 16);
	/* 6 of both, and each one's tail. */
	assert_int_equal(daemon_number(&daemon_, "caches.0.blocks_referenced"), PROMPT / 16 + 2);
	row = (struct attnd_row){.key = 1, .start = PROMPT, .tokens = &tail, .num_tokens = 1};
	for (int i = 0; i < 2; i++) {
		assert_int_equal(toy_step(&t[i], 2, &row, 1, NULL), 0);
		if (i)
			assert_memory_equal(t[i].out, want, sizeof(want));
		memcpy(want, t[i].out, sizeof(want));
		attnd_disconnect(a[i]);
	}
}

/* Sessions of one engine share sequences; another engine's keys are its own. */
static void test_engine(void **state)
{
	uint8_t id[16];
	uint64_t tokens[PROMPT], cached;
	struct attnd_open_info info;
	struct toy t;
	attnd_t *a, *b, *c = NULL;

	(void)state;
	toy_tokens(tokens, PROMPT, 1);
	assert_int_equal(attnd_engine_id(id), 0);
	struct attnd_connect_options options = {.socket = daemon_.socket, .engine_id = id, .engine_create = 1};
	assert_int_equal(attnd_connect(&a, &options), 0);
	assert_int_equal(attnd_connect(&c, &options), -EEXIST);
	assert_null(c);
	options.engine_create = 0;
	assert_int_equal(attnd_connect(&b, &options), 0);
	assert_int_equal(toy_open(&t, a, 1), 0);
	assert_int_equal(toy_prefill(&t, 1, tokens, PROMPT, &cached), 0);
	assert_int_equal(attnd_seq_trim(b, 1, 50), 0);
	assert_int_equal(attnd_seq_close(b, 1), 0);
	assert_int_equal(attnd_seq_close(a, 1), -ENOENT);
	attnd_disconnect(a); /* b holds the engine */
	assert_int_equal(attnd_seq_open(b, 2, 0, tokens, PROMPT, UINT64_MAX, &info), 0);
	assert_int_equal(info.cached, PROMPT);
	attnd_disconnect(b);
	struct in_use none = {0};
	daemon_wait_in_use(&daemon_, &none);
	id[0] ^= 1;
	assert_int_equal(attnd_connect(&c, &options), -ENOENT);
}

/* As this user: how many tokens of the prompt are cached; then they are. 255 on failure. */
static int cached_as(uid_t uid, const uint64_t *tokens)
{
	int status;
	pid_t pid = fork();

	if (pid == 0) {
		struct attnd_connect_options options = {.socket = daemon_.socket};
		struct toy t;
		attnd_t *a;
		uint64_t cached;
		if (setresgid(uid, uid, uid) || setgroups(0, NULL) || setresuid(uid, uid, uid) ||
		    attnd_connect(&a, &options) < 0 || toy_open(&t, a, 1) < 0 ||
		    toy_prefill(&t, 1, tokens, PROMPT, &cached) < 0)
			_exit(255);
		attnd_disconnect(a);
		_exit((int)cached);
	}
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_true(WIFEXITED(status));
	return WEXITSTATUS(status);
}

static void start_for_users(const char *socket_mode, const char *share_group)
{
	const char *const args[] = {"--pool-size", "16M",	    "--hugepages", "off", "--socket-mode",
				    socket_mode,   "--share-group", share_group,   NULL};

	assert_int_equal(daemon_start(&daemon_, args), 0);
	assert_int_equal(chmod(daemon_.dir, 0755), 0);
}

/* Users share nothing, unless the configuration says that all do. */
static void test_realms(void **state)
{
	uint64_t tokens[PROMPT];

	(void)state;
	if (geteuid() != 0)
		skip();
	toy_tokens(tokens, PROMPT, 1);
	start_for_users("0666", "");
	assert_int_equal(cached_as(1, tokens), 0);
	assert_int_equal(cached_as(2, tokens), 0);
	assert_int_equal(cached_as(0, tokens), 0);
	assert_int_equal(cached_as(1, tokens), PROMPT - 1);
	daemon_clean(&daemon_);
	start_for_users("0666", "everybody");
	assert_int_equal(cached_as(1, tokens), 0);
	assert_int_equal(cached_as(2, tokens), PROMPT - 1);
	daemon_clean(&daemon_);
	start_for_users("0660", "");
	assert_int_equal(cached_as(1, tokens), 255); /* the socket's mode does not let it in */
	assert_int_equal(cached_as(0, tokens), 0);
	daemon_clean(&daemon_);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
#define TEST(f) cmocka_unit_test_setup_teardown(f, test_start, test_end)
		TEST(test_hit),	  TEST(test_hit_after_kill), TEST(test_namespaces), TEST(test_publish_upto),
		TEST(test_twins), TEST(test_engine),	     TEST(test_duplicates), cmocka_unit_test(test_realms),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
