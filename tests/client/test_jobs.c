/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Jobs and completions: order, room, deadlines, sleep and wake-up, loss of the daemon.
 */
#include "fake.h"

#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "../../shm/futex.h"

#define MS UINT64_C(1000000)

static bool readable(int fd, int ms)
{
	struct pollfd p = {.fd = fd, .events = POLLIN};

	return poll(&p, 1, ms) == 1;
}

static void pings(void **state)
{
	struct fake *f = *state;
	attnd_t *a = fake_connect(f, NULL);

	/* More than the rings' size: indices wrap, slots are used again. */
	for (int i = 0; i < 1000; i++)
		assert_int_equal(attnd_ping(a, 0), 0);
	attnd_disconnect(a);
}

static void deadlines_are_passed_on(void **state)
{
	struct fake *f = *state;
	attnd_t *a = fake_connect(f, &(struct attnd_connect_options){.default_deadline_us = 777});

	assert_int_equal(attnd_ping(a, 0), 0);
	assert_int_equal(attnd_ping(a, 555), 0);
	assert_int_equal(fake_find(f, ATTND_OP_PING, 0).sqe.deadline_us, 777);
	assert_int_equal(fake_find(f, ATTND_OP_PING, 1).sqe.deadline_us, 555);
	assert_int_equal(attnd_ping(a, UINT64_C(1) << 32), -EINVAL);
	assert_non_null(strstr(attnd_strerror(a, -EINVAL), "deadline_us (limit 3600000000)"));
	attnd_disconnect(a);
}

/* The leader sleeps: only a byte wakes it, and one is sent when needed. */
static void doorbell_wakes_the_leader(void **state)
{
	struct fake *f = *state;
	attnd_t *a;

	FAKE_HOW(f, sleepy, true);
	a = fake_connect(f, NULL);
	for (int i = 0; i < 200; i++)
		assert_int_equal(attnd_ping(a, 0), 0);
	assert_int_equal(fake_doorbells(f), 200);
	attnd_disconnect(a);
}

static void no_doorbell_for_one_awake(void **state)
{
	struct fake *f = *state;
	attnd_t *a = fake_connect(f, NULL);

	for (int i = 0; i < 50; i++)
		assert_int_equal(attnd_ping(a, 0), 0);
	assert_int_equal(fake_doorbells(f), 0);
	attnd_disconnect(a);
}

static void waits_without_spinning(void **state)
{
	struct fake *f = *state;
	attnd_t *a = fake_connect(f, &(struct attnd_connect_options){.spin_us = -1});

	for (int i = 0; i < 200; i++)
		assert_int_equal(attnd_ping(a, 0), 0);
	attnd_disconnect(a);
}

static void results_in_any_order(void **state)
{
	struct fake *f = *state;
	attnd_t *a = fake_connect(f, NULL);
	struct attnd_result r;
	attnd_job_t job[8];

	FAKE_HOW(f, hold, true);
	for (int i = 0; i < 8; i++)
		assert_int_equal(attnd_ping_async(a, 0, &job[i]), 0);
	fake_wait_log(f, 9);
	fake_release(f, true);
	assert_int_equal(attnd_wait(a, job[3], &r), 0);
	assert_int_equal(r.job, job[3]);
	/* The rest, in the order of completion. */
	for (int i = 7; i >= 0; i--) {
		if (i == 3)
			continue;
		assert_int_equal(attnd_next(a, &r, 30000000), 0);
		assert_int_equal(r.job, job[i]);
	}
	assert_int_equal(attnd_next(a, &r, 0), -EAGAIN);
	assert_int_equal(attnd_wait(a, job[3], NULL), -ENOENT);
	assert_int_equal(attnd_wait(a, 0, NULL), -ENOENT);
	assert_int_equal(attnd_wait(a, UINT64_MAX, NULL), -ENOENT);
	attnd_disconnect(a);
}

static void names_are_not_used_again(void **state)
{
	struct fake *f = *state;
	attnd_t *a = fake_connect(f, NULL);
	attnd_job_t last = 0, job;

	for (int i = 0; i < 300; i++) {
		assert_int_equal(attnd_ping_async(a, 0, &job), 0);
		assert_true(job > last);
		last = job;
		assert_int_equal(attnd_wait(a, job, NULL), 0);
	}
	attnd_disconnect(a);
}

static void full_ring_is_eagain(void **state)
{
	struct fake *f = *state;
	attnd_t *a = fake_connect(f, &(struct attnd_connect_options){.queue_entries = 8});
	attnd_job_t job[8], more = 77;

	FAKE_HOW(f, hold, true);
	for (int i = 0; i < 8; i++)
		assert_int_equal(attnd_ping_async(a, 0, &job[i]), 0);
	assert_int_equal(attnd_ping_async(a, 0, &more), -EAGAIN);
	assert_int_equal(more, 77);
	assert_non_null(strstr(attnd_strerror(a, -EAGAIN), "queue is full"));
	fake_wait_log(f, 9);
	FAKE_HOW(f, hold, false);
	fake_release(f, false);
	/* Completed jobs need not be collected to make room. */
	for (int i = 0; i < 200; i++)
		assert_int_equal(attnd_ping(a, 0), 0);
	for (int i = 0; i < 8; i++)
		assert_int_equal(attnd_wait(a, job[i], NULL), 0);
	attnd_disconnect(a);
}

/* The smaller ring counts. */
static void small_cq_limits(void **state)
{
	struct fake *f = *state;
	attnd_job_t job;
	attnd_t *a;

	FAKE_HOW(f, sq_entries, 32);
	FAKE_HOW(f, cq_entries, 8);
	FAKE_HOW(f, hold, true);
	a = fake_connect(f, NULL);
	for (int i = 0; i < 8; i++)
		assert_int_equal(attnd_ping_async(a, 0, &job), 0);
	assert_int_equal(attnd_ping_async(a, 0, &job), -EAGAIN);
	attnd_disconnect(a);
}

static void *release_later(void *arg)
{
	usleep(30000);
	fake_release(arg, false);
	return NULL;
}

/* A blocking call waits for room, and keeps what completes meanwhile. */
static void blocking_call_in_a_full_ring(void **state)
{
	struct fake *f = *state;
	attnd_t *a = fake_connect(f, &(struct attnd_connect_options){.queue_entries = 8});
	struct attnd_result r;
	attnd_job_t job[8];
	pthread_t t;

	FAKE_HOW(f, hold, true);
	for (int i = 0; i < 8; i++)
		assert_int_equal(attnd_ping_async(a, 0, &job[i]), 0);
	fake_wait_log(f, 9);
	FAKE_HOW(f, hold, false);
	pthread_create(&t, NULL, release_later, f);
	assert_int_equal(attnd_ping(a, 0), 0);
	pthread_join(t, NULL);
	for (int i = 0; i < 8; i++) {
		assert_int_equal(attnd_next(a, &r, 0), 0);
		assert_int_equal(r.job, job[i]);
	}
	attnd_disconnect(a);
}

static void many_uncollected_results(void **state)
{
	struct fake *f = *state;
	attnd_t *a = fake_connect(f, NULL);
	struct attnd_result r;
	attnd_job_t job;
	int sent = 0, got = 0, rc = 0;

	while (sent < 70000) {
		rc = attnd_ping_async(a, 0, &job);
		if (!rc)
			sent++;
		else if (strstr(attnd_strerror(a, rc), "queue is full"))
			usleep(100);
		else
			break;
	}
	/* The table has an end, and a named error. */
	assert_int_equal(rc, -EAGAIN);
	assert_non_null(strstr(attnd_strerror(a, rc), "collected"));
	assert_int_equal(sent, 65536);
	while (got < sent && !attnd_next(a, &r, 30000000))
		got++;
	assert_int_equal(got, sent);
	assert_int_equal(attnd_ping(a, 0), 0);
	attnd_disconnect(a);
}

static void failures_carry_their_field(void **state)
{
	struct fake *f = *state;
	attnd_t *a = fake_connect(f, NULL);
	struct attnd_result r;
	attnd_job_t job;

	FAKE_HOW(f, fail_op, ATTND_OP_GRANT);
	FAKE_HOW(f, fail_status, -ENOMEM);
	FAKE_HOW(f, fail_field, ATTND_FIELD_GRANT_TOKENS);
	FAKE_HOW(f, fail_limit, 4096);
	assert_int_equal(attnd_grant(a, 0, 9999, 1), -ENOMEM);
	assert_string_equal(attnd_strerror(a, -ENOMEM), "Cannot allocate memory: grant tokens (limit 4096)");
	assert_string_equal(attnd_strerror(a, -EPERM), "Operation not permitted");
	assert_string_equal(attnd_strerror(NULL, -EPERM), "Operation not permitted");
	assert_int_equal(attnd_grant_async(a, 0, 1, 1, &job), 0);
	assert_int_equal(attnd_wait(a, job, &r), -ENOMEM);
	assert_int_equal(r.status, -ENOMEM);
	assert_int_equal(r.job, job);
	attnd_disconnect(a);
}

/* ---- Deadlines ---- */

static void no_answer_is_etimedout(void **state)
{
	struct fake *f = *state;
	attnd_t *a = fake_connect(f, &(struct attnd_connect_options){.default_deadline_us = 1000});
	uint64_t before = attnd_now_ns();
	struct attnd_result r;
	attnd_job_t job;

	FAKE_HOW(f, hold, true);
	assert_int_equal(attnd_ping_async(a, 0, &job), 0);
	assert_int_equal(attnd_wait(a, job, &r), -ETIMEDOUT); /* deadline and grace */
	assert_in_range(attnd_now_ns() - before, 900 * MS, 10000 * MS);
	assert_non_null(strstr(attnd_strerror(a, -ETIMEDOUT), "still its own"));
	/* It may be waited for again. */
	fake_release(f, false);
	assert_int_equal(attnd_wait(a, job, &r), 0);
	attnd_disconnect(a);
}

/* A blocking call that timed out: its completion, late, is nobody's. */
static void late_answers_are_dropped(void **state)
{
	struct fake *f = *state;
	attnd_t *a = fake_connect(f, &(struct attnd_connect_options){.default_deadline_us = 1000});
	struct attnd_cache_desc d = {.name = "m", .num_layers = 1, .num_heads = 1, .num_kv_heads = 1, .head_dim = 64};
	struct attnd_cache_info info = {.cache = 99};
	struct attnd_result r;

	FAKE_HOW(f, hold_op, ATTND_OP_CACHE_OPEN);
	assert_int_equal(attnd_cache_open(a, &d, 1, &info), -ETIMEDOUT);
	assert_int_equal(info.cache, 99);
	fake_release(f, false);
	assert_int_equal(attnd_ping(a, 0), 0);
	assert_int_equal(attnd_next(a, &r, 0), -EAGAIN);
	assert_int_equal(info.cache, 99);
	attnd_disconnect(a);
}

/* ---- attnd_next and attnd_fd ---- */

static void next_has_a_timeout(void **state)
{
	struct fake *f = *state;
	attnd_t *a = fake_connect(f, NULL);
	struct attnd_result r;
	attnd_job_t job;
	uint64_t before;

	FAKE_HOW(f, hold, true);
	assert_int_equal(attnd_next(a, &r, 1000000), -EAGAIN); /* nothing in flight: at once */
	assert_int_equal(attnd_ping_async(a, 0, &job), 0);
	before = attnd_now_ns();
	assert_int_equal(attnd_next(a, &r, 20000), -EAGAIN);
	assert_in_range(attnd_now_ns() - before, 20 * MS, 5000 * MS);
	fake_release(f, false);
	assert_int_equal(attnd_next(a, &r, 30000000), 0);
	assert_int_equal(r.job, job);
	attnd_disconnect(a);
}

static void fd_polls_readable(void **state)
{
	struct fake *f = *state;
	attnd_t *a = fake_connect(f, NULL);
	struct attnd_result r;
	attnd_job_t job;
	int fd = attnd_fd(a);

	FAKE_HOW(f, hold, true);
	for (int lap = 0; lap < 20; lap++) {
		assert_int_equal(attnd_ping_async(a, 0, &job), 0);
		assert_int_equal(attnd_next(a, &r, 0), -EAGAIN);
		assert_false(readable(fd, 0));
		fake_wait_log(f, (uint32_t)lap + 2);
		fake_release(f, false);
		assert_true(readable(fd, 5000));
		assert_int_equal(attnd_next(a, &r, 0), 0);
		assert_int_equal(r.job, job);
		assert_int_equal(attnd_next(a, &r, 0), -EAGAIN);
		assert_false(readable(fd, 0)); /* drained */
	}
	/* A wait in between takes the sleeping place; the next -EAGAIN sets it again. */
	FAKE_HOW(f, hold, false);
	assert_int_equal(attnd_ping(a, 0), 0);
	FAKE_HOW(f, hold, true);
	assert_int_equal(attnd_ping_async(a, 0, &job), 0);
	assert_int_equal(attnd_next(a, &r, 0), -EAGAIN);
	fake_wait_log(f, 23);
	fake_release(f, false);
	assert_true(readable(fd, 5000));
	attnd_disconnect(a);
}

/* The same descriptor over a reconnection, in an epoll set of the caller's. */
static void fd_tells_of_death_and_lives_on(void **state)
{
	struct fake *f = *state;
	attnd_t *a = fake_connect(f, NULL);
	struct epoll_event ev = {.events = EPOLLIN};
	struct attnd_result r;
	attnd_job_t job;
	int set = epoll_create1(EPOLL_CLOEXEC), fd = attnd_fd(a);

	assert_int_equal(epoll_ctl(set, EPOLL_CTL_ADD, fd, &ev), 0);
	FAKE_HOW(f, hold, true);
	assert_int_equal(attnd_ping_async(a, 0, &job), 0);
	assert_int_equal(attnd_next(a, &r, 0), -EAGAIN);
	assert_int_equal(epoll_wait(set, &ev, 1, 0), 0);
	fake_kill(f);
	assert_int_equal(epoll_wait(set, &ev, 1, 5000), 1);
	assert_int_equal(attnd_next(a, &r, 0), 0);
	assert_int_equal(r.job, job);
	assert_int_equal(r.status, -ECONNRESET);
	assert_int_equal(attnd_next(a, &r, 0), -ECONNRESET);
	assert_int_equal(epoll_wait(set, &ev, 1, 0), 0);
	fake_start(f);
	assert_int_equal(attnd_ping_async(a, 0, &job), 0);
	assert_int_equal(attnd_fd(a), fd);
	assert_int_equal(attnd_next(a, &r, 0), -EAGAIN);
	fake_wait_log(f, 4);
	fake_release(f, false);
	assert_int_equal(epoll_wait(set, &ev, 1, 5000), 1);
	assert_int_equal(attnd_next(a, &r, 0), 0);
	assert_int_equal(r.status, 0);
	close(set);
	attnd_disconnect(a);
}

/* ---- Cancel ---- */

static void cancel_names_the_job(void **state)
{
	struct fake *f = *state;
	attnd_t *a = fake_connect(f, NULL);
	attnd_job_t job;

	FAKE_HOW(f, hold_op, ATTND_OP_PING);
	assert_int_equal(attnd_ping_async(a, 0, &job), 0);
	assert_int_equal(attnd_cancel(a, job), 0);
	assert_int_equal(fake_find(f, ATTND_OP_CANCEL, 0).sqe.cancel.target,
			 fake_find(f, ATTND_OP_PING, 0).sqe.user_data);
	/* The daemon says that it was done already: that is no failure. */
	FAKE_HOW(f, fail_op, ATTND_OP_CANCEL);
	FAKE_HOW(f, fail_status, -ENOENT);
	assert_int_equal(attnd_cancel(a, job), 0);
	fake_release(f, false);
	assert_int_equal(attnd_ping_async(a, 0, &(attnd_job_t){0}), 0);
	assert_int_equal(attnd_wait(a, job, NULL), 0);
	assert_int_equal(attnd_cancel(a, job), -ENOENT);
	assert_int_equal(attnd_cancel(a, 12345), -ENOENT);
	attnd_disconnect(a);
}

/* ---- Loss ---- */

static void *kill_later(void *arg)
{
	usleep(30000);
	fake_kill(arg);
	return NULL;
}

static void death_ends_a_wait(void **state)
{
	struct fake *f = *state;
	attnd_t *a = fake_connect(f, NULL);
	uint64_t before = attnd_now_ns();
	struct attnd_result r;
	attnd_job_t job[3];
	pthread_t t;

	FAKE_HOW(f, hold, true);
	for (int i = 0; i < 3; i++)
		assert_int_equal(attnd_ping_async(a, 0, &job[i]), 0);
	pthread_create(&t, NULL, kill_later, f);
	assert_int_equal(attnd_wait(a, job[1], &r), -ECONNRESET);
	assert_true(attnd_now_ns() - before < 5000 * MS);
	pthread_join(t, NULL);
	assert_int_equal(attnd_next(a, &r, 0), 0);
	assert_int_equal(r.job, job[0]);
	assert_int_equal(r.status, -ECONNRESET);
	assert_int_equal(attnd_next(a, &r, 30000000), 0);
	assert_int_equal(r.job, job[2]);
	assert_int_equal(attnd_next(a, &r, 1000000), -ECONNRESET);
	assert_non_null(strstr(attnd_strerror(a, -ECONNRESET), "the next call"));
	attnd_disconnect(a);
}

/* What had completed before the death is a result, not a loss. */
static void completed_before_death(void **state)
{
	struct fake *f = *state;
	attnd_t *a = fake_connect(f, NULL);
	attnd_job_t job, held;

	assert_int_equal(attnd_ping_async(a, 0, &job), 0);
	fake_wait_log(f, 2);
	FAKE_HOW(f, hold, true);
	assert_int_equal(attnd_ping_async(a, 0, &held), 0);
	fake_wait_log(f, 3);
	fake_kill(f);
	assert_int_equal(attnd_wait(a, held, NULL), -ECONNRESET);
	assert_int_equal(attnd_wait(a, job, NULL), 0);
	attnd_disconnect(a);
}

static void closed_session_ends_a_wait(void **state)
{
	struct fake *f = *state;
	attnd_t *a = fake_connect(f, NULL);
	attnd_job_t job;

	FAKE_HOW(f, hold, true);
	assert_int_equal(attnd_ping_async(a, 0, &job), 0);
	fake_wait_log(f, 2);
	fake_close_session(f);
	assert_int_equal(attnd_wait(a, job, NULL), -ECONNRESET);
	FAKE_HOW(f, hold, false);
	assert_int_equal(attnd_ping(a, 0), 0); /* by a new session */
	attnd_disconnect(a);
}

static void wrong_completions_end_the_connection(void **state)
{
	struct fake *f = *state;
	static const uint32_t wrong[] = {0, 1, 0xffffffff, 0x00020000};
	attnd_job_t job;
	attnd_t *a;

	for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
		FAKE_HOW(f, hold, true);
		a = fake_connect(f, NULL);
		assert_int_equal(attnd_ping_async(a, 0, &job), 0);
		fake_put_garbage(f, wrong[i]);
		assert_int_equal(attnd_wait(a, job, NULL), -ECONNRESET);
		attnd_disconnect(a);
	}
}

static void disconnect_with_jobs_in_flight(void **state)
{
	struct fake *f = *state;
	attnd_t *a = fake_connect(f, NULL);
	uint64_t tokens[4] = {1, 2, 3, 4};
	attnd_job_t job;
	void *p;

	FAKE_HOW(f, hold, true);
	assert_int_equal(attnd_alloc(a, 100, &p), 0);
	assert_int_equal(attnd_seq_open_async(a, 1, 0, tokens, 4, 4, &job), 0);
	assert_int_equal(attnd_ping_async(a, 0, &job), 0);
	attnd_free(a, p);
	attnd_disconnect(a);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		FAKE_TEST(pings),
		FAKE_TEST(deadlines_are_passed_on),
		FAKE_TEST(doorbell_wakes_the_leader),
		FAKE_TEST(no_doorbell_for_one_awake),
		FAKE_TEST(waits_without_spinning),
		FAKE_TEST(results_in_any_order),
		FAKE_TEST(names_are_not_used_again),
		FAKE_TEST(full_ring_is_eagain),
		FAKE_TEST(small_cq_limits),
		FAKE_TEST(blocking_call_in_a_full_ring),
		FAKE_TEST(many_uncollected_results),
		FAKE_TEST(failures_carry_their_field),
		FAKE_TEST(no_answer_is_etimedout),
		FAKE_TEST(late_answers_are_dropped),
		FAKE_TEST(next_has_a_timeout),
		FAKE_TEST(fd_polls_readable),
		FAKE_TEST(fd_tells_of_death_and_lives_on),
		FAKE_TEST(cancel_names_the_job),
		FAKE_TEST(death_ends_a_wait),
		FAKE_TEST(completed_before_death),
		FAKE_TEST(closed_session_ends_a_wait),
		FAKE_TEST(wrong_completions_end_the_connection),
		FAKE_TEST(disconnect_with_jobs_in_flight),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
