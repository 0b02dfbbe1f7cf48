/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Looking without asking: what attnd_peek says is what an open finds, to the block, while others
 * publish and evict; and never anything of another namespace or model.
 *
 * In: two processes, prompts. Out: TAP. Next: client/peek.c, daemon/cache.c.
 */
#include <errno.h>
#include <signal.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../skip.h"
#include "toy.h"

enum { PROMPT = 100, BLOCK = 16, PROMPTS = 48, OTHER_UID = 65533 };

static struct daemon daemon_;

static int start_with(const char *key, const char *value)
{
	const char *const args[] = {"--pool-size", "16M", "--hugepages", "off", key, value, NULL};

	return daemon_start(&daemon_, args);
}

static int test_start(void **state)
{
	(void)state;
	return start_with(NULL, NULL);
}

static int test_end(void **state)
{
	(void)state;
	daemon_clean(&daemon_);
	return 0;
}

static uint64_t peek(const struct toy *t, uint32_t ns, const uint64_t *tokens, uint64_t n)
{
	uint64_t cached = UINT64_MAX;

	assert_int_equal(attnd_peek(t->a, t->cache, ns, tokens, n, &cached), 0);
	return cached;
}

static void test_blocks(void **state)
{
	uint64_t tokens[PROMPT], other[PROMPT], cached;
	struct toy t, second;

	(void)state;
	toy_tokens(tokens, PROMPT, 1);
	attnd_t *a = daemon_connect(&daemon_), *b = daemon_connect(&daemon_);
	assert_int_equal(toy_open(&t, a, 1), 0);
	assert_int_equal(toy_open(&second, b, 1), 0);
	assert_int_equal(peek(&second, 0, tokens, PROMPT), 0);
	assert_int_equal(toy_prefill(&t, 1, tokens, PROMPT, &cached), 0);
	for (uint64_t n = 0; n <= PROMPT; n++)
		assert_int_equal(peek(&second, 0, tokens, n), n / BLOCK * BLOCK);

	/* One that leaves it inside a block has blocks of its own from there on. */
	memcpy(other, tokens, sizeof(other));
	other[39] += 1000;
	assert_int_equal(peek(&second, 0, other, PROMPT), 32);
	assert_int_equal(toy_prefill(&t, 2, other, PROMPT, &cached), 0);
	assert_int_equal(cached, 39);
	assert_int_equal(peek(&second, 0, other, PROMPT), PROMPT / BLOCK * BLOCK);
	assert_int_equal(peek(&second, 0, tokens, PROMPT), PROMPT / BLOCK * BLOCK);

	/* A tail that fills in place is found once it is full. */
	uint64_t more[2 * PROMPT];
	toy_tokens(more, 2 * PROMPT, 1);
	struct attnd_row row = {
		.key = 1, .start = PROMPT, .tokens = more + PROMPT, .num_tokens = 11, .publish_upto = PROMPT + 11};
	assert_int_equal(toy_step(&t, 1, &row, 1, NULL), 0);
	assert_int_equal(peek(&second, 0, more, PROMPT + 12), 96);
	row = (struct attnd_row){.key = 1,
				 .start = PROMPT + 11,
				 .tokens = more + PROMPT + 11,
				 .num_tokens = 1,
				 .publish_upto = PROMPT + 12};
	assert_int_equal(toy_step(&t, 1, &row, 1, NULL), 0);
	assert_int_equal(peek(&second, 0, more, 2 * PROMPT), 112);
	attnd_disconnect(a);
	attnd_disconnect(b);
}

static void test_wide_tokens(void **state)
{
	uint64_t tokens[PROMPT], cached;
	struct toy t;

	(void)state;
	toy_tokens(tokens, PROMPT, 1);
	tokens[20] = UINT64_MAX;
	attnd_t *a = daemon_connect(&daemon_);
	assert_int_equal(toy_open(&t, a, 1), 0);
	assert_int_equal(toy_prefill(&t, 1, tokens, PROMPT, &cached), 0);
	assert_int_equal(peek(&t, 0, tokens, PROMPT), 96);
	tokens[20] = UINT32_MAX;
	assert_int_equal(peek(&t, 0, tokens, PROMPT), 16);
	attnd_disconnect(a);
}

static void test_others_see_nothing(void **state)
{
	const struct attnd_namespace parts = {.salt = "s", .salt_bytes = 1};
	uint64_t tokens[PROMPT], cached;
	struct toy t, model;
	uint32_t ns;

	(void)state;
	toy_tokens(tokens, PROMPT, 1);
	attnd_t *a = daemon_connect(&daemon_);
	assert_int_equal(toy_open(&t, a, 1), 0);
	assert_int_equal(toy_prefill(&t, 1, tokens, PROMPT, &cached), 0);
	assert_int_equal(attnd_namespace(a, &parts, &ns), 0);
	assert_int_equal(peek(&t, ns, tokens, PROMPT), 0);
	attnd_t *b = daemon_connect(&daemon_);
	assert_int_equal(toy_open(&model, b, 2), 0);
	assert_int_equal(peek(&model, 0, tokens, PROMPT), 0);
	assert_int_equal(attnd_peek(b, model.cache, ns + 5, tokens, PROMPT, &cached), -ENOENT);
	assert_int_equal(attnd_peek(b, model.cache + 5, 0, tokens, PROMPT, &cached), -ENOENT);
	assert_int_equal(attnd_peek(b, model.cache, 0, tokens, (1 << 24) + 1, &cached), -EINVAL);
	attnd_disconnect(b);
	attnd_disconnect(a);
}

/* Another uid is another realm: it has a table of its own, where nothing of ours is. */
static void test_another_realm(void **state)
{
	const char *const args[] = {"--pool-size", "16M", "--hugepages", "off", "--socket-mode", "0666", NULL};
	uint64_t tokens[PROMPT], cached;
	struct toy t;
	pid_t child;
	int status;

	(void)state;
	assert_int_equal(daemon_start(&daemon_, args), 0);
	if (geteuid() != 0)
		skip();
	assert_int_equal(chmod(daemon_.dir, 0755), 0);
	toy_tokens(tokens, PROMPT, 1);
	attnd_t *a = daemon_connect(&daemon_);
	assert_int_equal(toy_open(&t, a, 1), 0);
	assert_int_equal(toy_prefill(&t, 1, tokens, PROMPT, &cached), 0);
	child = fork();
	if (child == 0) {
		struct attnd_connect_options options = {.socket = daemon_.socket, .name = "other"};
		uint64_t theirs = UINT64_MAX, ours;
		struct toy o;
		attnd_t *b;
		int bad = setgid(OTHER_UID) || setuid(OTHER_UID);

		bad |= attnd_connect(&b, &options) < 0 ? 2 : 0;
		bad |= bad || toy_open(&o, b, 1) < 0 ? 4 : 0;
		bad |= bad || attnd_peek(b, o.cache, 0, tokens, PROMPT, &theirs) || theirs ? 8 : 0;
		bad |= bad || toy_prefill(&o, 1, tokens, PROMPT, &ours) || ours ? 16 : 0; /* nor is it a hit */
		bad |= bad || attnd_peek(b, o.cache, 0, tokens, PROMPT, &theirs) || !theirs ? 32 : 0;
		_exit(bad);
	}
	assert_int_equal(waitpid(child, &status, 0), child);
	assert_int_equal(WEXITSTATUS(status), 0); /* bits: which */
	assert_int_equal(peek(&t, 0, tokens, PROMPT), PROMPT / BLOCK * BLOCK);
	attnd_disconnect(a);
}

static void test_many(void **state)
{
	uint64_t tokens[4][PROMPT], cached[4];
	struct attnd_prompt prompts[4];
	uint32_t longest = 9;
	struct toy t;

	(void)state;
	attnd_t *a = daemon_connect(&daemon_);
	assert_int_equal(toy_open(&t, a, 1), 0);
	for (int i = 0; i < 4; i++) {
		toy_tokens(tokens[i], PROMPT, 1);
		tokens[i][20 * (i ^ 1) + 10] = 5000; /* they have 1, 0, 4, 3 blocks in common with the one cached */
		prompts[i] = (struct attnd_prompt){tokens[i], PROMPT};
	}
	assert_int_equal(attnd_peek_many(a, t.cache, 0, prompts, 4, cached, &longest), 0);
	assert_int_equal(longest, 0);
	uint64_t plain[PROMPT], n;
	toy_tokens(plain, PROMPT, 1);
	assert_int_equal(toy_prefill(&t, 1, plain, PROMPT, &n), 0);
	assert_int_equal(attnd_peek_many(a, t.cache, 0, prompts, 4, cached, &longest), 0);
	assert_int_equal(longest, 2);
	for (int i = 0; i < 4; i++)
		assert_int_equal(cached[i], (20 * (i ^ 1) + 10) / BLOCK * BLOCK);
	longest = 9;
	assert_int_equal(attnd_peek_many(a, t.cache, 0, prompts, 4, NULL, &longest), 0);
	assert_int_equal(longest, 2);
	assert_int_equal(attnd_peek_many(a, t.cache, 0, prompts, 0, NULL, NULL), 0);
	prompts[3].num_tokens = (1 << 24) + 1;
	assert_int_equal(attnd_peek_many(a, t.cache, 0, prompts, 4, cached, &longest), -EINVAL);
	attnd_disconnect(a);
}

/* Publishes prompts, more than the pool holds, until it is killed. */
static void publish_for_ever(void)
{
	struct attnd_connect_options options = {.socket = daemon_.socket, .name = "publisher"};
	uint64_t tokens[TOY_MAX_TOKENS], cached;
	struct toy t;
	attnd_t *a;

	if (attnd_connect(&a, &options) || toy_open(&t, a, 1))
		_exit(1);
	for (uint64_t key = 1;; key++) {
		toy_tokens(tokens, TOY_MAX_TOKENS, key % PROMPTS * 100000);
		if (toy_prefill(&t, key, tokens, TOY_MAX_TOKENS, &cached) || attnd_seq_close(a, key))
			_exit(1);
	}
}

static int evicts(void)
{
	return daemon_number(&daemon_, "counters.evicted_blocks") > 0;
}

/* While another process publishes and evicts, what both of two looks around an open say, the open says. */
static void test_while_it_changes(void **state)
{
	uint64_t tokens[TOY_MAX_TOKENS], state_ = 1;
	struct attnd_open_info info;
	struct toy t;
	int agreed = 0, rounds = sanitized() ? 300 : 2000;

	(void)state;
	pid_t pid = fork();
	if (pid == 0)
		publish_for_ever();
	attnd_t *a = daemon_connect(&daemon_);
	assert_int_equal(toy_open(&t, a, 1), 0);
	for (int i = 0; i < rounds || (!evicts() && i < 2 * rounds + 1000); i++) {
		toy_tokens(tokens, TOY_MAX_TOKENS, next_random(&state_) % PROMPTS * 100000);
		uint64_t before = peek(&t, 0, tokens, TOY_MAX_TOKENS);
		assert_int_equal(attnd_seq_open(a, (uint64_t)i + 1, 0, tokens, TOY_MAX_TOKENS, UINT64_MAX, &info), 0);
		uint64_t after = peek(&t, 0, tokens, TOY_MAX_TOKENS);
		/* The open holds what it found: no less can be there after it. */
		assert_true(after >= info.cached / BLOCK * BLOCK);
		if (before == after) {
			assert_int_equal(before, info.cached / BLOCK * BLOCK);
			agreed++;
		}
		assert_int_equal(attnd_seq_close(a, (uint64_t)i + 1), 0);
	}
	assert_true(agreed > rounds / 4);
	assert_true(evicts());
	assert_int_equal(waitpid(pid, NULL, WNOHANG), 0);
	kill(pid, SIGKILL);
	assert_int_equal(waitpid(pid, NULL, 0), pid);
	attnd_disconnect(a);
}

/* Another daemon has other keys and an empty table: the library maps and asks again. */
static void test_restart(void **state)
{
	const char *const args[] = {"--pool-size", "16M", "--hugepages", "off", NULL};
	const struct attnd_namespace parts = {.salt = "s", .salt_bytes = 1};
	uint64_t tokens[PROMPT], cached;
	struct toy t;
	uint32_t ns;

	(void)state;
	toy_tokens(tokens, PROMPT, 1);
	attnd_t *a = daemon_connect(&daemon_);
	assert_int_equal(toy_open(&t, a, 1), 0);
	assert_int_equal(attnd_namespace(a, &parts, &ns), 0);
	assert_int_equal(toy_prefill(&t, 1, tokens, PROMPT, &cached), 0);
	assert_int_equal(peek(&t, 0, tokens, PROMPT), 96);
	assert_int_equal(peek(&t, ns, tokens, PROMPT), 0);
	assert_true(WIFSIGNALED(daemon_end(&daemon_, SIGKILL)));
	assert_int_equal(daemon_again(&daemon_, args), 0);
	(void)attnd_ping(a, 0); /* may be what notices it */
	assert_int_equal(peek(&t, 0, tokens, PROMPT), 0);
	assert_int_equal(toy_prefill(&t, 2, tokens, PROMPT, &cached), 0);
	assert_int_equal(peek(&t, 0, tokens, PROMPT), 96);
	assert_int_equal(peek(&t, ns, tokens, PROMPT), 0);
	attnd_disconnect(a);
}

static void test_no_table(void **state)
{
	uint64_t tokens[PROMPT], cached = 7;
	struct toy t;

	(void)state;
	toy_tokens(tokens, PROMPT, 1);
	assert_int_equal(start_with("--peek-entries", "0"), 0);
	attnd_t *a = daemon_connect(&daemon_);
	assert_int_equal(toy_open(&t, a, 1), 0);
	assert_int_equal(attnd_peek(a, t.cache, 0, tokens, PROMPT, &cached), -EOPNOTSUPP);
	assert_int_equal(toy_prefill(&t, 1, tokens, PROMPT, &cached), 0);
	attnd_disconnect(a);
}

/* A table that is too small loses entries, counts them, and all else goes on. */
static void test_small_table(void **state)
{
	uint64_t tokens[TOY_MAX_TOKENS], cached;
	struct toy t;

	(void)state;
	assert_int_equal(start_with("--peek-entries", "8"), 0);
	attnd_t *a = daemon_connect(&daemon_);
	assert_int_equal(toy_open(&t, a, 1), 0);
	toy_tokens(tokens, TOY_MAX_TOKENS, 1);
	assert_int_equal(toy_prefill(&t, 1, tokens, TOY_MAX_TOKENS, &cached), 0);
	assert_true(peek(&t, 0, tokens, TOY_MAX_TOKENS) <= TOY_MAX_TOKENS);
	assert_int_equal(toy_prefill(&t, 2, tokens, TOY_MAX_TOKENS, &cached), 0);
	assert_int_equal(cached, TOY_MAX_TOKENS - 1);
	assert_true(daemon_number(&daemon_, "counters.peek_lost") > 0);
	attnd_disconnect(a);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
#define TEST(f) cmocka_unit_test_setup_teardown(f, test_start, test_end)
		TEST(test_blocks),
		TEST(test_wide_tokens),
		TEST(test_others_see_nothing),
		cmocka_unit_test_teardown(test_another_realm, test_end),
		TEST(test_many),
		TEST(test_while_it_changes),
		TEST(test_restart),
		cmocka_unit_test_teardown(test_no_table, test_end),
		cmocka_unit_test_teardown(test_small_table, test_end),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
