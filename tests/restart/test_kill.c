/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A daemon killed under a mixed load, at random and at every named point, and started again: what
 * was acknowledged as published is there with the right K and V, nothing of the tree is dropped,
 * and the clients go on by themselves.
 *
 * In: a fixed seed; $BUILD/tests/restart/attnd-kill. Out: TAP. Next: daemon/killpoint.h.
 */
#include <errno.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../../daemon/killpoint.h"
#include "kept.h"

enum { PROMPTS = 24, TOKENS = 200, TENANTS = 2, CLIENTS = 3, CACHES = 2 };

/* What clients tell the test, in shared memory. */
struct told {
	_Atomic uint32_t acked[CACHES][TENANTS][PROMPTS]; /* tokens, published for all */
	_Atomic uint64_t steps[CLIENTS];		  /* that went well */
	_Atomic int failed;				  /* line of a client's unexpected error */
	_Atomic int error;
};

static struct told *told;
static struct kept kept;

/* A large pool loses nothing; in a small one caches evict and trade slabs. */
static const char *const large[] = {"--pool-size", "64M", NULL};
static const char *const tight[] = {"--pool-size", "8M", "--slab-size", "2M", NULL};

/* Four of a family begin alike. */
static void prompt(uint64_t *tokens, unsigned p)
{
	toy_tokens(tokens, TOKENS, p / 4 * 10000);
	for (unsigned i = 23 * (p % 4); p % 4 && i < TOKENS; i++)
		tokens[i] += 1000 * p;
}

/* ---- Clients ---- */

static bool daemon_went(int e)
{
	return e == -ECONNRESET || e == -ECONNREFUSED || e == -ENOENT || e == -EPIPE || e == -ETIMEDOUT ||
	       e == -ESTALE;
}

static void fail_at(int line, int e)
{
	atomic_store(&told->error, e);
	atomic_store(&told->failed, line);
	_exit(1);
}
#define MUST(e)                                 \
	do {                                    \
		int e_ = (e);                   \
		if (e_ < 0 && !daemon_went(e_)) \
			fail_at(__LINE__, e_);  \
		if (e_ < 0)                     \
			return e_;              \
	} while (0)

static int tenant_of(struct toy *t, uint32_t tenant)
{
	struct attnd_namespace ns = {.salt = &tenant, .salt_bytes = sizeof(tenant)};

	t->salt = tenant;
	t->ns = 0;
	return tenant ? attnd_namespace(t->a, &ns, &t->ns) : 0;
}

/* Rows of one step; a tight pool may have no room. */
static int step(struct toy *t, uint32_t tag, const struct attnd_row *row, bool full)
{
	struct attnd_row_status status;
	int e = toy_step(t, tag, row, 1, &status);

	MUST(e);
	if (status.status == -ENOMEM && full)
		return 1;
	if (status.status)
		fail_at(__LINE__, status.status);
	return 0;
}

/*
 * From `at` on up to n tokens, in one row and then one by one; each is told as soon as it is
 * acknowledged. 1: no room.
 */
static int go_on(struct toy *t, uint64_t key, const uint64_t *tokens, uint32_t at, uint32_t n,
		 _Atomic uint32_t *acked, uint32_t *mine, bool full)
{
	for (uint32_t end = n > at + 5 ? n - 4 : at + 1; at < n; at = end, end++) {
		struct attnd_row row = {
			.key = key, .start = at, .tokens = tokens + at, .num_tokens = end - at, .publish_upto = end};
		int e = step(t, 1, &row, full);
		uint32_t was = atomic_load(acked);
		if (e)
			return e;
		*mine = end;
		while (was < end && !atomic_compare_exchange_weak(acked, &was, end))
			;
	}
	return 0;
}

/* After the daemon went: the sequence again, as far as it is cached. */
static int reopen(struct toy *t, uint64_t key, uint64_t *ret_length)
{
	int e = -ECONNRESET;

	for (int i = 0; i < 1000 && daemon_went(e); i++) {
		e = attnd_reopen(t->a, &key, 1, ret_length);
		if (e == -ENOENT) /* its open had not come through */
			return 1;
		if (e)
			sleep_ms(5);
	}
	if (e)
		fail_at(__LINE__, e);
	return 0;
}

/* A prompt to its end, whatever becomes of the daemon meanwhile. */
static void live_once(struct toy *t, uint32_t cache, uint64_t *keys, uint64_t *seed, bool full)
{
	uint32_t tenant = (uint32_t)(next_random(seed) % TENANTS),
		 n = 2 + (uint32_t)(next_random(seed) % (TOKENS - 2));
	unsigned p = (unsigned)(next_random(seed) % PROMPTS);
	uint64_t tokens[TOKENS], key = ++*keys, fork = ++*keys, other = 1000000 + next_random(seed) % 1000, length;
	_Atomic uint32_t *acked = &told->acked[cache][tenant][p];
	struct attnd_row draft = {.key = fork, .start = n / 2, .tokens = &other, .num_tokens = 1};
	struct attnd_open_info info = {0};
	uint32_t mine;
	int e;

	prompt(tokens, p);
	e = tenant_of(t, tenant);
	if (!e)
		e = attnd_seq_open(t->a, key, t->ns, tokens, n, n - 1, &info);
	mine = (uint32_t)info.cached;
	if (!e)
		e = go_on(t, key, tokens, mine, n, acked, &mine, full);
	while (e < 0) {
		if (!daemon_went(e))
			fail_at(__LINE__, e);
		if (reopen(t, key, &length))
			return;		    /* nothing of it was there yet */
		if (!full && length < mine) /* it had them, and all of them were published */
			fail_at(__LINE__, (int)length);
		e = length < n ? go_on(t, key, tokens, (uint32_t)length, n, acked, &mine, full) : 0;
	}
	if (e == 0 && n < TOKENS - 2) { /* a draft behind the published tail, rolled back and written anew */
		struct attnd_row row = {.key = key, .start = n, .tokens = &other, .num_tokens = 1, .publish_upto = n};
		e = step(t, 1, &row, full);
		row.tokens = tokens + n;
		if (e == 0)
			e = step(t, 1, &row, full);
		e = e < 0 ? 0 : e;
	}
	if (e == 0 && next_random(seed) % 2 && !attnd_seq_fork(t->a, key, fork, n / 2)) {
		(void)step(t, 2, &draft, full); /* never published */
		(void)attnd_seq_close(t->a, fork);
	}
	(void)attnd_seq_close(t->a, key);
}

/* Another cache of the tight pool's, with scales; each client's own one after the other. */
static void scaled_cache(attnd_t *a, uint64_t *seed)
{
	struct attnd_cache_desc desc = {.name = "scaled",
					.num_layers = 1,
					.num_heads = 1,
					.num_kv_heads = 1,
					.head_dim = 16,
					.kv_dtype = ATTND_INT8,
					.scale_mode = ATTND_SCALE_STATIC};
	struct attnd_cache_info info;
	uint64_t name = next_random(seed);

	memcpy(desc.fingerprint, &name, sizeof(name));
	if (attnd_cache_open(a, &desc, 1, &info) == 0)
		(void)attnd_scales_set(a, info.cache, 0, 0.5f, 0.5f);
}

/* Caches without blocks, until the table is full and idle ones go; some need a slab of another's. */
static void many_caches(uint64_t *seed)
{
	uint64_t tokens[40], cached;
	uint32_t ns;
	struct toy t;
	struct attnd_connect_options options = {.socket = kept.daemon.socket, .name = "load", .timeout_us = 20000000};
	attnd_t *a;

	for (int i = 0; i < 100; i++) {
		if (attnd_connect(&a, &options) < 0)
			return;
		for (int c = 0; c < 4; c++)
			scaled_cache(a, seed);
		toy_tokens(tokens, 40, next_random(seed));
		(void)attnd_namespace(a, &(struct attnd_namespace){.salt = tokens, .salt_bytes = 8}, &ns);
		if (i % 8 == 0 && toy_open(&t, a, (uint8_t)(100 + next_random(seed) % 100)) == 0)
			(void)toy_prefill(&t, 1, tokens, 40, &cached);
		attnd_disconnect(a);
	}
}

static void live(int client, bool full, uint64_t seed)
{
	struct attnd_connect_options options = {.socket = kept.daemon.socket, .name = "load", .timeout_us = 20000000};
	uint32_t caches = full ? CACHES : 1;
	uint64_t keys = 0;
	struct toy toys[CACHES];
	attnd_t *a;
	int e;

	/* An engine for each: a hit is the smallest over its engine's caches. */
	for (uint32_t c = 0; c < caches; c++)
		for (a = NULL, e = -1; e;) { /* it may be killed meanwhile */
			e = attnd_connect(&a, &options);
			if (!e)
				e = toy_open(&toys[c], a, (uint8_t)(1 + c));
			if (e < 0 && !daemon_went(e))
				fail_at(__LINE__, e);
			if (e) {
				attnd_disconnect(a);
				a = NULL;
				sleep_ms(5);
			}
		}
	for (uint32_t i = 0;; i++) {
		uint32_t c = full ? (i / 8 + (uint32_t)client) % CACHES : 0;
		live_once(&toys[c], c, &keys, &seed, full);
		atomic_fetch_add(&told->steps[client], 1);
		if (full && client == 0 && i % 4 == 3)
			many_caches(&seed);
	}
}

/* ---- The daemon ---- */

static pid_t pids[CLIENTS];

static void start_clients(bool full, uint64_t seed)
{
	memset(told, 0, sizeof(*told));
	for (int i = 0; i < CLIENTS; i++) {
		pids[i] = fork();
		if (pids[i] == 0 && !prctl(PR_SET_PDEATHSIG, SIGKILL))
			live(i, full, seed * 31 + (uint64_t)i);
	}
}

static void check_clients(void)
{
	int line = atomic_load(&told->failed);

	if (line)
		print_message("a client failed at line %d: %d\n", line, atomic_load(&told->error));
	assert_int_equal(line, 0);
	for (int i = 0; i < CLIENTS; i++)
		assert_int_equal(waitpid(pids[i], NULL, WNOHANG), 0);
}

static void end_clients(void)
{
	check_clients();
	for (int i = 0; i < CLIENTS; i++)
		kill(pids[i], SIGKILL);
	for (int i = 0; i < CLIENTS; i++)
		waitpid(pids[i], NULL, 0);
}

/* All have done something since. */
static void wait_for_steps(uint64_t steps)
{
	uint64_t from[CLIENTS];

	for (int i = 0; i < CLIENTS; i++)
		from[i] = atomic_load(&told->steps[i]);
	for (int ms = 0; ms < 30000; ms += 2) {
		int done = 0;
		for (int i = 0; i < CLIENTS; i++)
			done += atomic_load(&told->steps[i]) >= from[i] + steps;
		if (done == CLIENTS)
			return;
		check_clients();
		sleep_ms(2);
	}
	fail_msg("the clients do not go on");
}

static void compare(const struct told *was, bool full)
{
	uint64_t tokens[TOKENS], key = 0;
	struct toy t;

	for (uint32_t c = 0; c < (full ? CACHES : 1); c++) {
		attnd_t *a = daemon_connect(&kept.daemon);
		assert_int_equal(toy_open(&t, a, (uint8_t)(1 + c)), 0);
		for (uint32_t tenant = 0; tenant < TENANTS; tenant++)
			for (unsigned p = 0; p < PROMPTS; p++) {
				uint32_t acked = was->acked[c][tenant][p];
				if (!acked)
					continue;
				kept_tenant(&t, tenant);
				prompt(tokens, p);
				int n = kept_check(&t, ++key, tokens, TOKENS);
				if (n < (full ? 0 : (int)acked))
					print_message("cache %u, tenant %u, prompt %u: %d of %u\n", c, tenant, p, n,
						      acked);
				assert_true(n >= (full ? 0 : (int)acked));
			}
		attnd_disconnect(a);
	}
}

/* Nothing was dropped, and every block is in one list or another. */
static void check_blocks(void)
{
	json_t *root = daemon_json(&kept.daemon, "status"), *r = json_object_get(root, "restore"), *c;
	size_t i;

	assert_non_null(r);
	assert_true(json_is_true(json_object_get(r, "restored")));
	const char *const lost[] = {"caches_dropped", "blocks_altered", "blocks_misplaced", "blocks_orphaned",
				    "blocks_below"};
	for (i = 0; i < sizeof(lost) / sizeof(*lost); i++)
		if (json_integer_value(json_object_get(r, lost[i]))) {
			print_message("%s\n", lost[i]);
			kept_print_log(&kept);
		}
	for (i = 0; i < sizeof(lost) / sizeof(*lost); i++)
		assert_int_equal(json_integer_value(json_object_get(r, lost[i])), 0);
	json_array_foreach(json_object_get(root, "caches"), i, c)
	{
		assert_int_equal(json_integer_value(json_object_get(c, "blocks_corrupt")), 0);
		assert_int_equal(json_integer_value(json_object_get(c, "blocks")),
				 json_integer_value(json_object_get(c, "blocks_free")) +
					 json_integer_value(json_object_get(c, "blocks_evictable")) +
					 json_integer_value(json_object_get(c, "blocks_referenced")));
	}
	json_decref(root);
}

/* It has ended: what was told until then must be there when it runs again. */
static void again(const char *const *flags, bool full)
{
	struct told was;
	int status;

	memcpy(&was, told, sizeof(was));
	assert_int_not_equal(kept_end(&kept, SIGKILL), -ETIMEDOUT);
	int e = kept_again(&kept, flags);
	if (e)
		kept_print_log(&kept);
	assert_int_equal(e, 0);
	if (waitpid(kept.daemon.pid, &status, WNOHANG) == kept.daemon.pid) {
		print_message("ended again: status %x\n", (unsigned)status);
		kept_print_log(&kept);
		fail();
	}
	check_blocks();
	compare(&was, full);
}

static void kill_at_random(const char *const *flags, bool full, int kills, uint64_t seed)
{
	kept_start(&kept, flags);
	start_clients(full, seed);
	wait_for_steps(1);
	for (int i = 0; i < kills; i++) {
		uint64_t us = next_random(&seed) % 40000;
		sleep_ms((unsigned)(us / 1000));
		again(flags, full);
		if (i % 4 == 3)
			wait_for_steps(1);
		check_clients();
	}
	wait_for_steps(2);
	end_clients();
	daemon_wait_in_use(&kept.daemon, &(struct in_use){0});
	kept_clean(&kept);
}

static void test_random(void **state)
{
	(void)state;
	kill_at_random(large, false, getenv("TEST_LONG") ? 250 : 14, 1);
}

static void test_random_tight(void **state)
{
	(void)state;
	kill_at_random(tight, true, getenv("TEST_LONG") ? 250 : 10, 2);
}

/* At the n-th time that the load comes to a point. */
static bool kill_at(const char *name, int n)
{
	int status, died = 0;
	char text[64];

	snprintf(text, sizeof(text), "%s:%d", name, n);
	setenv("KILL_POINT", text, 1);
	assert_int_not_equal(kept_end(&kept, SIGKILL), -ETIMEDOUT);
	int e = kept_again(&kept, tight);
	unsetenv("KILL_POINT");
	assert_true(e == 0 || e == -ECHILD);
	for (int ms = 0; e == 0 && ms < 20000 && !died; ms += 2) {
		died = waitpid(kept.daemon.pid, &status, WNOHANG) == kept.daemon.pid;
		check_clients();
		if (!died)
			sleep_ms(2);
	}
	if (died && !(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL)) {
		print_message("instead of dying at %s: status %x\n", text, (unsigned)status);
		kept_print_log(&kept);
	}
	if (died)
		assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
	kept.daemon.pid = fork(); /* for `again` to end: the daemon is gone */
	if (kept.daemon.pid == 0)
		_exit(0);
	if (!died && e == 0)
		print_message("nothing came to %s\n", text);
	return died || e;
}

/* What test_moves comes to: a slab leaves a cache that has room in others for what is in it. */
static const char *const moves[] = {"block_copied", "block_moved", "slab_emptied", "slab_returned"};

static bool is_move(const char *name)
{
	return !strncmp(name, "block_", 6);
}

enum { MOVED = 20, OTHERS = 12, FAMILY = 1000000 };

/* One cache has three slabs, nearly one of them free; another takes the fourth, and then one of those. */
static bool fill_two(bool points)
{
	uint64_t tokens[TOKENS], cached;
	struct toy t;
	int e = 0;

	for (uint8_t c = 1; c <= 2; c++) {
		attnd_t *a = daemon_connect(&kept.daemon);
		assert_int_equal(toy_open(&t, a, c), 0);
		for (unsigned p = 0; p < (c == 1 ? MOVED : OTHERS) && !e; p++) {
			toy_tokens(tokens, TOKENS, c * FAMILY + p * 10000);
			e = toy_prefill(&t, p + 1, tokens, TOKENS, &cached);
		}
		assert_true(e == 0 || (points && c == 2));
		attnd_disconnect(a);
	}
	return e != 0;
}

/* Wherever it is killed, each block stands in its old place or in its new one: four blocks of the last prompt go. */
static void test_moves(void **state)
{
	int times = getenv("TEST_LONG") ? 8 : 2;
	uint64_t tokens[TOKENS];
	struct toy t;

	(void)state;
	for (size_t i = 0; i < sizeof(moves) / sizeof(*moves); i++)
		for (int n = 1; n <= (is_move(moves[i]) ? times : 1); n++) {
			char text[64];
			attnd_t *a;

			snprintf(text, sizeof(text), "%s:%d", moves[i], n * n);
			setenv("KILL_POINT", text, 1);
			kept_start(&kept, tight);
			if (!fill_two(true))
				print_message("nothing came to %s\n", text);
			kept_end(&kept, SIGKILL);
			unsetenv("KILL_POINT");
			assert_int_equal(kept_again(&kept, tight), 0);
			check_blocks();
			a = daemon_connect(&kept.daemon);
			assert_int_equal(toy_open(&t, a, 1), 0);
			for (unsigned p = 0; p < MOVED - 1; p++) { /* the last sequence is closed first */
				toy_tokens(tokens, TOKENS, FAMILY + p * 10000);
				assert_int_equal(kept_check(&t, p + 1, tokens, TOKENS), TOKENS);
			}
			assert_false(fill_two(false)); /* what was under way goes on */
			attnd_disconnect(a);
			kept_clean(&kept);
		}
}

/* The same without a kill, while sequences hold what moves: they go on, and K and V are what they were. */
static void test_moves_live(void **state)
{
	uint64_t tokens[TOKENS + 1], cached;
	struct toy t, other;

	(void)state;
	kept_start(&kept, tight);
	attnd_t *a = daemon_connect(&kept.daemon), *b = daemon_connect(&kept.daemon);
	assert_int_equal(toy_open(&t, a, 1), 0);
	assert_int_equal(toy_open(&other, b, 2), 0);
	for (unsigned p = 0; p < MOVED; p++) {
		toy_tokens(tokens, TOKENS, FAMILY + p * 10000);
		assert_int_equal(toy_prefill(&t, p + 1, tokens, TOKENS, &cached), 0);
	}
	assert_int_equal(attnd_seq_close(a, 1), 0);
	assert_int_equal(attnd_seq_close(a, 2), 0);
	assert_int_equal(daemon_number(&kept.daemon, "caches.0.blocks"), 3 * 128);
	for (unsigned p = 0; p < OTHERS; p++) {
		toy_tokens(tokens, TOKENS, 2 * FAMILY + p * 10000);
		assert_int_equal(toy_prefill(&other, p + 1, tokens, TOKENS, &cached), 0);
	}
	assert_int_equal(daemon_number(&kept.daemon, "caches.0.blocks"), 2 * 128);
	for (unsigned p = 2; p < MOVED; p++) {
		struct attnd_row row = {.key = p + 1,
					.start = TOKENS,
					.tokens = tokens + TOKENS,
					.num_tokens = 1,
					.publish_upto = TOKENS + 1};

		toy_tokens(tokens, TOKENS + 1, FAMILY + p * 10000);
		assert_int_equal(toy_step(&t, 1, &row, 1, NULL), 0);
		assert_int_equal(kept_check(&t, 100 + p, tokens, TOKENS + 1), TOKENS + 1);
	}
	attnd_disconnect(a);
	attnd_disconnect(b);
	kept_clean(&kept);
}

static void test_points(void **state)
{
	static const char *const names[] = {
#define NAME(name) #name,
		KILL_POINTS(NAME)
#undef NAME
	};
	int times = getenv("TEST_LONG") ? 5 : 1;
	uint64_t seed = 3;

	(void)state;
	kept_start(&kept, tight);
	start_clients(true, seed);
	wait_for_steps(1);
	for (size_t i = 0; i < sizeof(names) / sizeof(*names); i++)
		for (int n = 0; n < times && !is_move(names[i]); n++) {
			assert_true(kill_at(names[i], 1 + (int)(next_random(&seed) % (n ? 12 : 3))));
			again(tight, true);
		}
	wait_for_steps(1);
	end_clients();
	daemon_wait_in_use(&kept.daemon, &(struct in_use){0});
	kept_clean(&kept);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_random),	   cmocka_unit_test(test_random_tight), cmocka_unit_test(test_moves),
		cmocka_unit_test(test_moves_live), cmocka_unit_test(test_points),
	};
	char path[256];

	snprintf(path, sizeof(path), "%s/tests/restart/attnd-kill", getenv("BUILD") ? getenv("BUILD") : "build");
	setenv("ATTND_DAEMON", path, 1);
	told = mmap(NULL, sizeof(*told), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	assert_true(told != MAP_FAILED);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
