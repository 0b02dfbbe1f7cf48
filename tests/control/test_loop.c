/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The event loop, the same tests over io_uring and over epoll.
 *
 * In: pipes, a clock of the test's. Out: TAP. Next: daemon/loop.c.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include "../../daemon/log.h"
#include "../../daemon/loop.h"

#define WAIT_NS UINT64_C(10000000000) /* of real time: how long a test that fails takes */

static uint64_t clock_ns;

static uint64_t test_clock(void)
{
	return clock_ns;
}

/* A descriptor or timer that counts its calls; what it does then is the test's. */
struct probe {
	struct loop *loop;
	struct loop_source *source;
	int fd, calls;
	uint32_t events;
	struct probe *removes; /* in its call */
	bool drains, stops;
};

static void on_probe(void *arg, uint32_t events)
{
	struct probe *p = arg;
	char byte;

	p->calls++;
	p->events = events;
	if (p->drains)
		assert_int_equal(read(p->fd, &byte, 1), 1);
	if (p->removes) {
		loop_remove(p->loop, p->removes->source);
		p->removes->source = NULL;
	}
	if (p->stops)
		loop_stop(p->loop);
}

static int setup(void **state)
{
	struct loop *l = NULL;
	enum config_event_loop kind = *(enum config_event_loop *)*state;
	int r;

	clock_ns = 1000;
	r = loop_create(kind, test_clock, &l);
	*state = l;
	return r;
}

static int teardown(void **state)
{
	loop_destroy(*state);
	return 0;
}

static void make_pipe(int fds[2])
{
	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds), 0);
}

static void close_pipe(const int fds[2])
{
	close(fds[0]);
	close(fds[1]);
}

static void watch(struct loop *l, struct probe *p, int fd, uint32_t events)
{
	p->loop = l;
	p->fd = fd;
	assert_int_equal(loop_add_fd(l, fd, events, on_probe, p, &p->source), 0);
}

static void test_level(void **state)
{
	struct loop *l = *state;
	struct probe p = {0};
	int fds[2];

	make_pipe(fds);
	watch(l, &p, fds[0], POLLIN);
	assert_int_equal(loop_run_once(l, 0), 0);
	assert_int_equal(p.calls, 0);
	assert_int_equal(write(fds[1], "ab", 2), 2);
	for (int i = 1; i <= 3; i++) { /* undrained, it comes again */
		assert_int_equal(loop_run_once(l, WAIT_NS), 0);
		assert_int_equal(p.calls, i);
		assert_true(p.events & POLLIN);
	}
	p.drains = true;
	loop_run_once(l, WAIT_NS);
	loop_run_once(l, WAIT_NS);
	assert_int_equal(p.calls, 5);
	loop_run_once(l, 0);
	assert_int_equal(p.calls, 5);
	p.drains = false;
	close(fds[1]);
	loop_run_once(l, WAIT_NS);
	assert_true(p.events & POLLHUP);
	loop_remove(l, p.source);
	close(fds[0]);
}

static void test_writable(void **state)
{
	struct loop *l = *state;
	struct probe p = {0};
	int fds[2];

	make_pipe(fds);
	watch(l, &p, fds[0], POLLOUT);
	loop_run_once(l, WAIT_NS);
	assert_int_equal(p.calls, 1);
	assert_true(p.events & POLLOUT);
	loop_remove(l, p.source);
	close_pipe(fds);
}

static void test_remove_itself(void **state)
{
	struct loop *l = *state;
	struct probe p = {.removes = &p};
	int fds[2];

	make_pipe(fds);
	watch(l, &p, fds[0], POLLIN);
	assert_int_equal(write(fds[1], "a", 1), 1);
	loop_run_once(l, WAIT_NS);
	loop_run_once(l, 0);
	assert_int_equal(p.calls, 1);
	close_pipe(fds);
}

/* Two are ready in one pass; the first to be called removes the other. */
static void test_remove_other(void **state)
{
	struct loop *l = *state;
	struct probe a = {0}, b = {0};
	int one[2], two[2];

	make_pipe(one);
	make_pipe(two);
	watch(l, &a, one[0], POLLIN);
	watch(l, &b, two[0], POLLIN);
	a.removes = &b;
	b.removes = &a;
	assert_int_equal(write(one[1], "a", 1), 1);
	assert_int_equal(write(two[1], "a", 1), 1);
	loop_run_once(l, WAIT_NS);
	assert_int_equal(a.calls + b.calls, 1);
	a.removes = b.removes = NULL;
	loop_run_once(l, WAIT_NS);
	assert_int_equal(a.calls + b.calls, 2);
	loop_remove(l, a.source);
	loop_remove(l, b.source);
	close_pipe(one);
	close_pipe(two);
}

/* A removed source keeps no hold on its file: the peer sees the end at once. */
static void test_remove_lets_go(void **state)
{
	struct loop *l = *state;
	struct probe p = {0};
	struct pollfd peer = {.events = POLLIN};
	int fds[2];

	make_pipe(fds);
	watch(l, &p, fds[0], POLLIN);
	loop_run_once(l, 0);
	loop_remove(l, p.source);
	close(fds[0]);
	peer.fd = fds[1];
	assert_int_equal(poll(&peer, 1, 10000), 1);
	assert_true(peer.revents & POLLHUP);
	close(fds[1]);
	loop_run_once(l, 0);
}

/* The number of a closed descriptor comes back for another file. */
static void test_same_number(void **state)
{
	struct loop *l = *state;

	for (int i = 0; i < 50; i++) {
		struct probe p = {0};
		int fds[2];

		make_pipe(fds);
		watch(l, &p, fds[0], POLLIN);
		loop_run_once(l, 0);
		assert_int_equal(p.calls, 0);
		assert_int_equal(write(fds[1], "a", 1), 1);
		loop_run_once(l, WAIT_NS);
		assert_int_equal(p.calls, 1);
		loop_remove(l, p.source);
		close_pipe(fds);
	}
}

static void test_many(void **state)
{
	enum { MANY = 400 }; /* more than a submission queue holds */
	struct loop *l = *state;
	struct probe *p = calloc(MANY, sizeof(*p));
	int(*fds)[2] = calloc(MANY, sizeof(*fds)), calls = 0;

	for (int i = 0; i < MANY; i++) {
		make_pipe(fds[i]);
		watch(l, &p[i], fds[i][0], POLLIN);
		p[i].drains = true;
	}
	for (int round = 1; round <= 3; round++) {
		for (int i = 0; i < MANY; i++)
			assert_int_equal(write(fds[i][1], "a", 1), 1);
		do {
			assert_int_equal(loop_run_once(l, WAIT_NS), 0);
			calls = 0;
			for (int i = 0; i < MANY; i++)
				calls += p[i].calls;
		} while (calls < round * MANY);
		assert_int_equal(calls, round * MANY);
	}
	for (int i = 0; i < MANY; i++) {
		loop_remove(l, p[i].source);
		close_pipe(fds[i]);
	}
	free(p);
	free(fds);
}

static void test_timers(void **state)
{
	struct loop *l = *state;
	struct probe p[3] = {{0}};

	for (int i = 0; i < 3; i++) {
		p[i].loop = l;
		assert_int_equal(loop_add_timer(l, on_probe, &p[i], &p[i].source), 0);
	}
	loop_set_timer(l, p[0].source, clock_ns + 300);
	loop_set_timer(l, p[1].source, clock_ns + 100);
	loop_set_timer(l, p[2].source, clock_ns + 200);
	loop_run_once(l, 0);
	assert_int_equal(p[0].calls + p[1].calls + p[2].calls, 0);
	clock_ns += 100;
	loop_run_once(l, WAIT_NS); /* due: no waiting */
	assert_int_equal(p[1].calls, 1);
	loop_set_timer(l, p[2].source, UINT64_MAX);
	p[0].removes = &p[2];
	clock_ns += 1000;
	loop_run_once(l, WAIT_NS);
	assert_int_equal(p[0].calls, 1);
	assert_int_equal(p[1].calls, 1);
	assert_int_equal(p[2].calls, 0);
	assert_null(p[2].source);
	loop_set_timer(l, p[0].source, clock_ns);
	loop_remove(l, p[0].source);
	loop_run_once(l, 0);
	assert_int_equal(p[0].calls, 1);
	loop_remove(l, p[1].source);
}

/* A timer of the real clock ends a wait without a limit. */
static void test_real_timer(void **state)
{
	struct probe p = {.stops = true};
	struct loop *l;

	(void)state;
	assert_int_equal(loop_create(CONFIG_LOOP_AUTO, NULL, &l), 0);
	p.loop = l;
	assert_int_equal(loop_add_timer(l, on_probe, &p, &p.source), 0);
	loop_set_timer(l, p.source, loop_now(l) + 1500000);
	assert_int_equal(loop_run(l), 0);
	assert_int_equal(p.calls, 1);
	loop_destroy(l);
}

static void test_bad_descriptor(void **state)
{
	struct loop *l = *state;
	struct probe p = {.removes = &p};
	int r = loop_add_fd(l, 1 << 20, POLLIN, on_probe, &p, &p.source);

	p.loop = l;
	if (r == 0) { /* io_uring tells later, as an error of the poll */
		loop_run_once(l, WAIT_NS);
		assert_int_equal(p.calls, 1);
		assert_true(p.events & POLLERR);
	} else {
		assert_int_equal(r, -EBADF);
	}
}

#define OVER(loop, f) {#loop ": " #f, f, setup, teardown, &loop}
#define ALL_OVER(loop)                                                                                        \
	OVER(loop, test_level), OVER(loop, test_writable), OVER(loop, test_remove_itself),                    \
		OVER(loop, test_remove_other), OVER(loop, test_remove_lets_go), OVER(loop, test_same_number), \
		OVER(loop, test_many), OVER(loop, test_timers), OVER(loop, test_bad_descriptor)

int main(void)
{
	static enum config_event_loop io_uring = CONFIG_LOOP_URING, epoll = CONFIG_LOOP_EPOLL;
	const struct CMUnitTest both[] = {ALL_OVER(epoll), ALL_OVER(io_uring), cmocka_unit_test(test_real_timer)};
	const struct CMUnitTest only_epoll[] = {ALL_OVER(epoll), cmocka_unit_test(test_real_timer)};
	struct loop *l;
	int r;

	log_set_level(LOG_LEVEL_ERR);
	r = loop_create(io_uring, NULL, &l);
	if (r == 0)
		loop_destroy(l);
	if (r != -EPERM && r != -ENOSYS)
		return cmocka_run_group_tests(both, NULL, NULL);
	print_message("# io_uring is forbidden here: epoll alone\n");
	return cmocka_run_group_tests(only_epoll, NULL, NULL);
}
