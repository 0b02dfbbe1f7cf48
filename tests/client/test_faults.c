/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Every allocation and system call that can be short of something is made to fail, one at a time:
 * the call that meets it says so, and nothing leaks or stays broken. And what a decode costs of both.
 */
#include "fake.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

/* Of this thread; the fake's thread is never hit. */
static _Thread_local long countdown; /* 0: off; 1: the next call fails */
static _Thread_local long calls;

static bool hit(void)
{
	calls++;
	return countdown && !--countdown;
}

/* The linker's --wrap sends the library's calls here. */
#define WRAP(type, failure, name, params, args)    \
	type __real_##name params;                 \
	type __wrap_##name params;                 \
	type __wrap_##name params                  \
	{                                          \
		if (!hit())                        \
			return __real_##name args; \
		errno = ENOMEM;                    \
		return failure;                    \
	}

WRAP(void *, NULL, malloc, (size_t n), (n))
WRAP(void *, NULL, calloc, (size_t n, size_t m), (n, m))
WRAP(void *, NULL, realloc, (void *p, size_t n), (p, n))
WRAP(int, -1, memfd_create, (const char *n, unsigned int f), (n, f))
WRAP(int, -1, ftruncate, (int fd, off_t n), (fd, n))
WRAP(int, -1, fallocate, (int fd, int m, off_t o, off_t n), (fd, m, o, n))
WRAP(int, -1, madvise, (void *p, size_t n, int how), (p, n, how))
WRAP(int, -1, epoll_create1, (int f), (f))
WRAP(int, -1, epoll_ctl, (int s, int op, int fd, struct epoll_event *e), (s, op, fd, e))
WRAP(int, -1, socket, (int d, int t, int p), (d, t, p))
WRAP(ssize_t, -1, sendmsg, (int fd, const struct msghdr *m, int f), (fd, m, f))
WRAP(void *, MAP_FAILED, mmap, (void *p, size_t n, int prot, int f, int fd, off_t o), (p, n, prot, f, fd, o))

static const struct attnd_cache_desc desc = {.name = "m",
					     .num_layers = 2,
					     .num_heads = 2,
					     .num_kv_heads = 1,
					     .head_dim = 64,
					     .kv_dtype = ATTND_INT8,
					     .scale_mode = ATTND_SCALE_STATIC};

/* The first failure of a run; and what was left to count. */
static int first;
static long left;

static bool good(int rc)
{
	if (rc && !first)
		first = rc;
	return !rc;
}

static void use_objects(attnd_t *a)
{
	const float alibi[2] = {1, 2};
	struct attnd_params params = {.sm_scale = 1, .causal = 1, .alibi = alibi};
	struct attnd_cache_info info = {0};
	uint32_t ns;

	good(attnd_cache_open(a, &desc, 1, &info));
	good(attnd_grant(a, info.cache, 10, 1));
	good(attnd_scales_set(a, info.cache, 1, 1, 1));
	good(attnd_namespace(a, &(struct attnd_namespace){.salt = "s", .salt_bytes = 1}, &ns));
	params.cache = info.cache;
	if (!first)
		good(attnd_params_set(a, 1, &params));
}

static void use_sequences(attnd_t *a)
{
	static uint64_t tokens[1200];
	const struct attnd_row row = {.key = 1, .start = 1200, .tokens = tokens, .num_tokens = 5};
	struct attnd_attend j = {.plan = 1, .flags = ATTND_LAST};
	struct attnd_open_info info;
	attnd_job_t job;
	void *p = NULL;

	good(attnd_seq_open(a, 1, 0, tokens, 1200, UINT64_MAX, &info));
	good(attnd_seq_fork(a, 1, 2, 600));
	good(attnd_plan(a, 1, 0, &row, 1, NULL, 0));
	if (good(attnd_alloc(a, 2 << 20, &p))) {
		j.q = j.k = j.v = j.out = p;
		if (good(attnd_decode(a, &j, &job)))
			good(attnd_wait(a, job, NULL));
	}
	attnd_free(a, p);
	good(attnd_seq_close_many(a, (uint64_t[]){2}, 1));
}

static void use_all(struct fake *f, bool lose)
{
	const struct attnd_connect_options o = {.socket = f->path, .timeout_us = 10000000};
	uint64_t length, key = 1;
	attnd_t *a = NULL;

	if (!good(attnd_connect(&a, &o))) {
		assert_null(a);
		return;
	}
	use_objects(a);
	use_sequences(a);
	if (lose && !first) {
		left = countdown;
		countdown = 0; /* the fake's own calls do not count */
		fake_kill(f);
		fake_start(f);
		countdown = left;
		assert_int_equal(attnd_ping(a, 0), -ECONNRESET);
		good(attnd_reopen(a, &key, 1, &length));
	}
	/* Whatever failed, the connection works. */
	left = countdown;
	countdown = 0;
	assert_int_equal(attnd_ping(a, 0), 0);
	attnd_disconnect(a);
}

static void every_shortage(struct fake *f, bool lose)
{
	long n = 0;

	do {
		first = 0;
		left = 0;
		countdown = ++n;
		use_all(f, lose);
		if (first)
			assert_true(first == -ENOMEM || first == -ECONNRESET);
	} while (!left); /* until nothing is left to fail */
	assert_true(n > 30);
}

static void shortages(void **state)
{
	every_shortage(*state, false);
}

static void shortages_and_a_restart(void **state)
{
	every_shortage(*state, true);
}

static void decode_allocates_nothing(void **state)
{
	struct fake *f = *state;
	attnd_t *a = fake_connect(f, NULL);
	struct attnd_attend j = {.plan = 1, .flags = ATTND_LAST};
	attnd_job_t job;
	void *p;
	long before;

	assert_int_equal(attnd_alloc(a, 4096, &p), 0);
	j.q = j.k = j.v = j.out = p;
	before = calls;
	for (int i = 0; i < 1000; i++) {
		assert_int_equal(attnd_decode(a, &j, &job), 0);
		assert_int_equal(attnd_wait(a, job, NULL), 0);
	}
	assert_int_equal(calls, before);
	attnd_disconnect(a);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		FAKE_TEST(shortages),
		FAKE_TEST(shortages_and_a_restart),
		FAKE_TEST(decode_allocates_nothing),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
