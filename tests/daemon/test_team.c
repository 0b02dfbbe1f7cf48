/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The team: every item once, phase after phase, whatever the number of members; cancelled,
 * urgent and nested jobs; and that a retired job's memory is nobody's any more.
 *
 * In: jobs that count. Out: TAP. Next: daemon/team.c.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "../../daemon/team.h"
#include "../../shm/futex.h"
#include "world.h"

enum { MAX_ITEMS = 64, JOBS = 16 };

struct counted {
	struct team_job team;
	uint32_t items[TEAM_PHASES]; /* in all */
	_Atomic uint32_t runs[TEAM_PHASES][MAX_ITEMS];
	_Atomic uint32_t done[TEAM_PHASES];
	_Atomic uint32_t early; /* items that ran before the phase before theirs had ended */
	uint32_t plain; /* written by items of the first phase one by one, read by the others: for sanitizers */
	bool pauses;
};

static void count_item(struct team_job *job, uint32_t phase, uint32_t item, struct member *m)
{
	struct counted *c = (struct counted *)job;

	for (uint32_t p = 0; p < phase; p++)
		if (atomic_load(&c->done[p]) != c->items[p])
			atomic_fetch_add(&c->early, 1);
	if (phase && c->plain != c->items[0])
		atomic_fetch_add(&c->early, 1);
	if (c->pauses)
		team_pause(m, job);
	atomic_fetch_add(&c->runs[phase][item], 1);
	if (atomic_fetch_add(&c->done[phase], 1) + 1 == c->items[phase] && !phase)
		c->plain = c->items[0];
}

static void fill_job(struct counted *c, uint64_t *random, uint32_t nodes)
{
	memset(c, 0, sizeof(*c));
	c->team.run = count_item;
	c->team.num_nodes = nodes;
	c->team.urgent = next_random(random) & 1;
	c->pauses = next_random(random) & 1;
	for (uint32_t p = 0; p < TEAM_PHASES; p++) {
		struct team_phase *f = &c->team.phases[p];

		if (p && next_random(random) % 4 == 0)
			continue; /* an empty phase */
		for (uint32_t n = 0; n < nodes; n++)
			f->first[n + 1] = f->first[n] + (uint32_t)(next_random(random) % (MAX_ITEMS / nodes));
		c->items[p] = f->first[nodes];
	}
}

static void check_job(const struct counted *c, bool cancelled)
{
	assert_int_equal(atomic_load(&c->early), 0);
	for (uint32_t p = 0; p < TEAM_PHASES; p++) {
		for (uint32_t i = 0; i < MAX_ITEMS; i++) {
			uint32_t runs = atomic_load(&c->runs[p][i]);

			assert_in_range(runs, cancelled || i >= c->items[p] ? 0 : 1, i < c->items[p] ? 1 : 0);
		}
	}
}

struct run {
	struct topology topology;
	struct team team;
	int fd;
};

static void start(struct run *r, uint32_t threads)
{
	memset(r, 0, sizeof(*r));
	r->fd = eventfd(0, EFD_NONBLOCK);
	topology_init(&r->topology, false);
	assert_int_equal(team_init(&r->team, &r->topology, threads, false, 20, r->fd), 0);
}

static void stop(struct run *r)
{
	team_destroy(&r->team);
	close(r->fd);
}

/* The leader's part: several jobs under way, their memory given back and filled with garbage at once. */
static void many_jobs(uint32_t threads, uint32_t nodes, uint32_t total)
{
	struct counted *jobs[JOBS] = {NULL};
	uint32_t started = 0, done = 0;
	uint64_t random = threads * 7 + nodes;
	bool cancelled[JOBS];
	struct run r;

	start(&r, threads);
	while (done < total) {
		uint32_t i = (uint32_t)(next_random(&random) % JOBS);

		if (!jobs[i] && started < total) {
			jobs[i] = malloc(sizeof(*jobs[i]));
			assert_non_null(jobs[i]);
			fill_job(jobs[i], &random, nodes);
			cancelled[i] = false;
			assert_true(team_submit(&r.team, &jobs[i]->team));
			started++;
		} else if (jobs[i] && next_random(&random) % 16 == 0) {
			atomic_store(&jobs[i]->team.cancelled, true);
			cancelled[i] = true;
		}
		(void)team_help(&r.team);
		for (i = 0; i < JOBS; i++) {
			if (!jobs[i] || !atomic_load_explicit(&jobs[i]->team.finished, memory_order_acquire))
				continue;
			team_retire(&r.team, &jobs[i]->team);
			check_job(jobs[i], cancelled[i]);
			memset(jobs[i], 0xa5, sizeof(*jobs[i]));
			free(jobs[i]);
			jobs[i] = NULL;
			done++;
		}
	}
	assert_int_equal(atomic_load(&r.team.urgent), 0);
	stop(&r);
}

static void test_many_jobs(void **state)
{
	(void)state;
	for (uint32_t threads = 1; threads <= 5; threads++)
		for (uint32_t nodes = 1; nodes <= 3; nodes++)
			many_jobs(threads, nodes, sanitized() ? 300 : 2000);
}

static void test_alone(void **state)
{
	uint64_t random = 99;
	struct run r;

	(void)state;
	start(&r, 2);
	for (int i = 0; i < 200; i++) {
		struct counted c;

		fill_job(&c, &random, 1 + (uint32_t)i % 3);
		team_run_alone(&r.team, &c.team);
		assert_true(atomic_load(&c.team.finished));
		check_job(&c, false);
	}
	stop(&r);
}

static void test_full(void **state)
{
	struct counted *jobs = calloc(TEAM_JOBS + 1, sizeof(*jobs));
	uint64_t random = 5;
	struct run r;

	(void)state;
	assert_non_null(jobs);
	start(&r, 1);
	for (uint32_t i = 0; i <= TEAM_JOBS; i++) {
		do
			fill_job(&jobs[i], &random, 1);
		while (!jobs[i].items[0]);
		assert_int_equal(team_submit(&r.team, &jobs[i].team), i < TEAM_JOBS);
	}
	while (team_help(&r.team))
		;
	for (uint32_t i = 0; i < TEAM_JOBS; i++) {
		assert_true(atomic_load(&jobs[i].team.finished));
		team_retire(&r.team, &jobs[i].team);
		check_job(&jobs[i], false);
	}
	assert_true(team_submit(&r.team, &jobs[TEAM_JOBS].team));
	while (team_help(&r.team))
		;
	team_retire(&r.team, &jobs[TEAM_JOBS].team);
	check_job(&jobs[TEAM_JOBS], false);
	free(jobs);
	stop(&r);
}

/* A long item that goes on until another job, which comes while it runs, is done. */
struct waiting {
	struct team_job team;
	struct counted *other;
	uint32_t polls;
};

static void wait_item(struct team_job *job, uint32_t phase, uint32_t item, struct member *m)
{
	struct waiting *w = (struct waiting *)job;
	uint64_t end = attnd_now_ns() + UINT64_C(10000000000);

	(void)phase;
	(void)item;
	while (!atomic_load(&w->other->team.finished) && attnd_now_ns() < end)
		team_pause(m, job);
}

static struct run *polled;
static struct waiting *waiter;

/* What the leader does between slices: here a decode comes in. */
static void poll_once(void *ctx)
{
	(void)ctx;
	if (!waiter->polls++)
		assert_true(team_submit(&polled->team, &waiter->other->team));
}

/* Of one member: an urgent job runs inside a long item of one that is not. */
static void test_urgent_inside(void **state)
{
	uint64_t random = 6;
	struct counted other;
	struct waiting w = {.team = {.run = wait_item, .num_nodes = 1}, .other = &other};
	struct run r;

	(void)state;
	fill_job(&other, &random, 1);
	other.team.urgent = true;
	other.team.phases[0].first[1] = other.items[0] = 7;
	w.team.phases[1].first[1] = 1;
	start(&r, 1);
	polled = &r;
	waiter = &w;
	r.team.poll = poll_once;
	assert_true(team_submit(&r.team, &w.team));
	while (team_help(&r.team))
		;
	assert_true(atomic_load(&other.team.finished));
	assert_true(atomic_load(&w.team.finished));
	team_retire(&r.team, &other.team);
	team_retire(&r.team, &w.team);
	check_job(&other, false);
	stop(&r);
}

/* Jobs of a kind take turns: a second job is done long before a long first one. */
static void test_turns(void **state)
{
	struct counted a, b;
	uint64_t random = 8;
	struct run r;

	(void)state;
	fill_job(&a, &random, 1);
	fill_job(&b, &random, 1);
	memset(a.team.phases, 0, sizeof(a.team.phases));
	memset(b.team.phases, 0, sizeof(b.team.phases));
	memset(a.items, 0, sizeof(a.items));
	memset(b.items, 0, sizeof(b.items));
	a.team.phases[0].first[1] = a.items[0] = MAX_ITEMS;
	b.team.phases[0].first[1] = b.items[0] = 4;
	a.team.urgent = b.team.urgent = false;
	start(&r, 1);
	assert_true(team_submit(&r.team, &a.team));
	assert_true(team_submit(&r.team, &b.team));
	for (int i = 0; i < 10; i++)
		assert_true(team_help(&r.team));
	assert_true(atomic_load(&b.team.finished));
	assert_false(atomic_load(&a.team.finished));
	while (team_help(&r.team))
		;
	team_retire(&r.team, &a.team);
	team_retire(&r.team, &b.team);
	check_job(&a, false);
	check_job(&b, false);
	stop(&r);
}

/* A parked leader is called at least when the job is done. */
static void test_leader_is_called(void **state)
{
	uint64_t random = 7, count;
	struct counted c;
	struct run r;

	(void)state;
	start(&r, 2);
	for (int i = 0; i < 50; i++) {
		struct pollfd p = {.fd = r.fd, .events = POLLIN};

		do
			fill_job(&c, &random, 1);
		while (!c.items[0]);
		atomic_store(&r.team.leader_parked, true);
		atomic_thread_fence(memory_order_seq_cst);
		assert_true(team_submit(&r.team, &c.team));
		while (!atomic_load_explicit(&c.team.finished, memory_order_acquire)) {
			assert_int_equal(poll(&p, 1, 10000), 1);
			(void)!read(r.fd, &count, sizeof(count));
		}
		atomic_store(&r.team.leader_parked, false);
		team_retire(&r.team, &c.team);
		check_job(&c, false);
	}
	stop(&r);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_many_jobs), cmocka_unit_test(test_alone),
		cmocka_unit_test(test_full),	  cmocka_unit_test(test_urgent_inside),
		cmocka_unit_test(test_turns),	  cmocka_unit_test(test_leader_is_called),
	};

	return cmocka_run_group_tests_name("team", tests, NULL, NULL);
}
