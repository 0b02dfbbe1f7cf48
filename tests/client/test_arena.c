/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The arena through the public calls: segments, limits, and frees that wait for jobs.
 */
#include "fake.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MIB ((size_t)1 << 20)

static uint32_t segments_of(struct fake *f)
{
	uint32_t n = 0;

	pthread_mutex_lock(&f->lock);
	for (uint32_t i = 0; i < f->num_log; i++)
		n += f->log[i].msg == ATTND_MSG_SEGMENT_ADD;
	pthread_mutex_unlock(&f->lock);
	return n;
}

static void memory_is_shared(void **state)
{
	struct fake *f = *state;
	attnd_t *a = fake_connect(f, NULL);
	unsigned char *p[40], seen;

	for (size_t i = 0; i < 40; i++) {
		assert_int_equal(attnd_alloc(a, 1 + i * 33, (void **)&p[i]), 0);
		assert_int_equal((uintptr_t)p[i] % 64, 0);
		memset(p[i], (int)i, 1 + i * 33);
	}
	for (size_t i = 0; i < 40; i++)
		for (size_t b = 0; b < 1 + i * 33; b++)
			assert_int_equal(p[i][b], i);
	assert_int_equal(segments_of(f), 1);
	fake_read(f, (uint64_t)(p[1] - p[0]), &seen, 1);
	assert_int_equal(seen, 1);
	attnd_disconnect(a);
}

static void segments_double(void **state)
{
	struct fake *f = *state;
	attnd_t *a = fake_connect(f, NULL);
	void *p;

	for (int i = 0; i < 7; i++)
		assert_int_equal(attnd_alloc(a, MIB, &p), 0);
	/* 1 + 2 + 4 */
	assert_int_equal(segments_of(f), 3);
	assert_int_equal(attnd_alloc(a, 64 * MIB, &p), 0); /* a wish beyond the doubling */
	assert_int_equal(segments_of(f), 4);
	memset(p, 1, 64 * MIB);
	attnd_disconnect(a);
}

static void reserve_makes_room(void **state)
{
	struct fake *f = *state;
	attnd_t *a = fake_connect(f, NULL);
	void *p;

	assert_int_equal(attnd_reserve(a, 0), 0);
	assert_int_equal(segments_of(f), 0);
	assert_int_equal(attnd_reserve(a, 8 * MIB + 1), 0);
	assert_int_equal(segments_of(f), 1);
	assert_int_equal(attnd_alloc(a, 8 * MIB, &p), 0);
	assert_int_equal(segments_of(f), 1);
	attnd_disconnect(a);
}

static void limits_are_enospc(void **state)
{
	struct fake *f = *state;
	attnd_t *a;
	void *p = f;

	FAKE_HOW(f, max_segment_bytes, 4 * MIB);
	FAKE_HOW(f, arena_max, 6 * MIB + 8192);
	a = fake_connect(f, NULL);
	assert_int_equal(attnd_alloc(a, 4 * MIB + 1, &p), -ENOSPC);
	assert_non_null(strstr(attnd_strerror(a, -ENOSPC), "segment bytes (limit 4194304)"));
	assert_int_equal(attnd_alloc(a, SIZE_MAX, &p), -ENOSPC);
	assert_int_equal(attnd_alloc(a, 0, &p), -EINVAL);
	assert_ptr_equal(p, f);
	/* 4 MiB, then what is left of arena-max though the doubling would want more. */
	assert_int_equal(attnd_alloc(a, 4 * MIB, &p), 0);
	assert_int_equal(attnd_alloc(a, 2 * MIB, &p), 0);
	assert_int_equal(attnd_alloc(a, 4096, &p), 0);
	assert_int_equal(attnd_alloc(a, 2 * MIB, &p), -ENOSPC);
	assert_non_null(strstr(attnd_strerror(a, -ENOSPC), "arena-max (limit 6299648)"));
	assert_int_equal(attnd_ping(a, 0), 0);
	attnd_disconnect(a);
}

static void segment_count_is_limited(void **state)
{
	struct fake *f = *state;
	attnd_t *a;
	void *p;

	FAKE_HOW(f, max_segments, 2);
	a = fake_connect(f, NULL);
	assert_int_equal(attnd_alloc(a, MIB, &p), 0);
	assert_int_equal(attnd_alloc(a, 2 * MIB, &p), 0);
	assert_int_equal(attnd_alloc(a, 1, &p), -ENOSPC);
	assert_non_null(strstr(attnd_strerror(a, -ENOSPC), "segment (limit 2)"));
	attnd_disconnect(a);
}

static void silent_registration_ends(void **state)
{
	struct fake *f = *state;
	attnd_t *a = fake_connect(f, &(struct attnd_connect_options){.timeout_us = 2000000});
	void *p;

	FAKE_HOW(f, silent_segment, true);
	assert_int_equal(attnd_alloc(a, 1, &p), -ETIMEDOUT);
	FAKE_HOW(f, silent_segment, false);
	assert_int_equal(attnd_alloc(a, 1, &p), 0); /* by a new session */
	attnd_disconnect(a);
}

static void in_arena(void **state)
{
	struct fake *f = *state;
	attnd_t *a = fake_connect(f, NULL);
	char *p, *q;

	assert_int_equal(attnd_in_arena(a, f, 1), 0);
	assert_int_equal(attnd_alloc(a, MIB, (void **)&p), 0);
	assert_int_equal(attnd_alloc(a, 2 * MIB, (void **)&q), 0);
	assert_int_equal(attnd_in_arena(a, p, MIB), 1);
	assert_int_equal(attnd_in_arena(a, p, MIB + 1), 0);
	assert_int_equal(attnd_in_arena(a, p + 10, MIB), 0);
	assert_int_equal(attnd_in_arena(a, p + MIB - 1, 1), 1);
	assert_int_equal(attnd_in_arena(a, q + MIB, MIB), 1);
	assert_int_equal(attnd_in_arena(a, q, SIZE_MAX), 0);
	assert_int_equal(attnd_in_arena(a, NULL, 0), 0);
	attnd_disconnect(a);
}

/* ---- Frees ---- */

static void free_is_at_once_without_jobs(void **state)
{
	struct fake *f = *state;
	attnd_t *a = fake_connect(f, NULL);
	void *p, *again;

	assert_int_equal(attnd_alloc(a, MIB, &p), 0);
	attnd_free(a, p);
	attnd_free(a, p); /* twice, or what was never allocated: nothing happens */
	attnd_free(a, f);
	attnd_free(a, NULL);
	attnd_free(a, (char *)p + 128);
	assert_int_equal(attnd_alloc(a, MIB, &again), 0);
	assert_ptr_equal(p, again);
	assert_int_equal(segments_of(f), 1);
	attnd_disconnect(a);
}

static void free_waits_for_the_jobs_before_it(void **state)
{
	struct fake *f = *state;
	attnd_t *a = fake_connect(f, NULL);
	attnd_job_t first, second, third;
	void *p, *q, *r;

	FAKE_HOW(f, hold, true);
	assert_int_equal(attnd_alloc(a, MIB / 2, &p), 0);
	assert_int_equal(attnd_alloc(a, MIB / 2, &q), 0);
	assert_int_equal(attnd_ping_async(a, 0, &first), 0);
	assert_int_equal(attnd_seq_trim_async(a, 1, 0, &second), 0);
	attnd_free(a, p);
	attnd_free(a, p);
	assert_int_equal(attnd_seq_fork_async(a, 1, 2, 0, &third), 0);
	attnd_free(a, q);
	fake_wait_log(f, 5);
	/* The second completes: the first still holds p. */
	fake_release_op(f, ATTND_OP_SEQ_TRIM);
	assert_int_equal(attnd_wait(a, second, NULL), 0);
	assert_int_equal(attnd_alloc(a, MIB / 2, &r), 0);
	assert_true(r != p && r != q);
	/* The first too: p is free, q waits for the third. */
	fake_release_op(f, ATTND_OP_PING);
	assert_int_equal(attnd_wait(a, first, NULL), 0);
	assert_int_equal(attnd_alloc(a, MIB / 2, &r), 0);
	assert_ptr_equal(r, p);
	fake_release_op(f, ATTND_OP_SEQ_FORK);
	assert_int_equal(attnd_wait(a, third, NULL), 0);
	assert_int_equal(attnd_alloc(a, MIB / 2, &r), 0);
	assert_ptr_equal(r, q);
	attnd_disconnect(a);
}

/* A timed-out job's buffers are the daemon's until its completion. */
static void free_waits_beyond_a_timeout(void **state)
{
	struct fake *f = *state;
	attnd_t *a = fake_connect(f, &(struct attnd_connect_options){.default_deadline_us = 1000});
	void *p, *r;

	FAKE_HOW(f, hold, true);
	assert_int_equal(attnd_alloc(a, MIB, &p), 0);
	assert_int_equal(attnd_ping(a, 0), -ETIMEDOUT);
	attnd_free(a, p);
	assert_int_equal(attnd_alloc(a, MIB, &r), 0);
	assert_ptr_not_equal(r, p);
	fake_release(f, false);
	FAKE_HOW(f, hold, false);
	assert_int_equal(attnd_ping(a, 0), 0);
	assert_int_equal(attnd_alloc(a, MIB, &r), 0);
	assert_ptr_equal(r, p);
	attnd_disconnect(a);
}

static void loss_frees_what_waited(void **state)
{
	struct fake *f = *state;
	attnd_t *a = fake_connect(f, NULL);
	attnd_job_t job;
	void *p, *r;

	FAKE_HOW(f, hold, true);
	assert_int_equal(attnd_alloc(a, MIB, &p), 0);
	assert_int_equal(attnd_ping_async(a, 0, &job), 0);
	attnd_free(a, p);
	fake_kill(f);
	assert_int_equal(attnd_wait(a, job, NULL), -ECONNRESET);
	assert_int_equal(attnd_alloc(a, MIB, &r), 0); /* no daemon needed */
	assert_ptr_equal(r, p);
	attnd_disconnect(a);
}

/* Scratch of calls comes and goes: no segment is added by a long run. */
static void scratch_does_not_grow(void **state)
{
	struct fake *f = *state;
	attnd_t *a = fake_connect(f, NULL);
	static uint64_t tokens[5000];
	struct attnd_open_info info;

	for (uint64_t i = 0; i < 500; i++) {
		assert_int_equal(attnd_seq_open(a, i, 0, tokens, 5000, UINT64_MAX, &info), 0);
		assert_int_equal(attnd_seq_close(a, i), 0);
	}
	assert_int_equal(segments_of(f), 1);
	attnd_disconnect(a);
}

static void memory_outlives_a_shutdown(void **state)
{
	struct fake *f = *state;
	attnd_t *a = fake_connect(f, NULL);
	attnd_job_t job;
	unsigned char *p;

	assert_int_equal(attnd_alloc(a, MIB, (void **)&p), 0);
	FAKE_HOW(f, hold, true);
	assert_int_equal(attnd_ping_async(a, 0, &job), 0);
	attnd_shutdown(a);
	attnd_shutdown(a);
	memset(p, 5, MIB);
	assert_int_equal(attnd_wait(a, job, NULL), -ECONNRESET);
	assert_int_equal(attnd_ping(a, 0), -ESHUTDOWN);
	assert_non_null(strstr(attnd_strerror(a, -ESHUTDOWN), "attnd_shutdown"));
	assert_int_equal(attnd_reserve(a, MIB), -ESHUTDOWN);
	attnd_free(a, p);
	attnd_disconnect(a);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		FAKE_TEST(memory_is_shared),
		FAKE_TEST(segments_double),
		FAKE_TEST(reserve_makes_room),
		FAKE_TEST(limits_are_enospc),
		FAKE_TEST(segment_count_is_limited),
		FAKE_TEST(silent_registration_ends),
		FAKE_TEST(in_arena),
		FAKE_TEST(free_is_at_once_without_jobs),
		FAKE_TEST(free_waits_for_the_jobs_before_it),
		FAKE_TEST(free_waits_beyond_a_timeout),
		FAKE_TEST(loss_frees_what_waited),
		FAKE_TEST(scratch_does_not_grow),
		FAKE_TEST(memory_outlives_a_shutdown),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
