/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Rings: order, wrap-around of slots and of indices, nothing taken that was not put; two threads;
 * and the sleep of both sides without a lost wake-up (R1, R4, R5).
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <cmocka.h>

#include <pthread.h>
#include <string.h>

#include "../../shm/futex.h"
#include "../../shm/ring.h"

#define ENTRIES 8u

static struct attnd_ring make(void *entries, uint32_t count, uint32_t index)
{
	struct attnd_ring r;

	attnd_ring_init(&r, entries, count, sizeof(struct attnd_sqe));
	r.index = index;
	return r;
}

static void *entries_new(uint32_t count)
{
	void *p = aligned_alloc(64, count * sizeof(struct attnd_sqe));

	assert_non_null(p);
	memset(p, 0, count * sizeof(struct attnd_sqe));
	return p;
}

static void empty_gives_nothing(void **state)
{
	void *entries = entries_new(ENTRIES);
	struct attnd_ring r = make(entries, ENTRIES, 0);
	struct attnd_sqe e = {.user_data = 5};

	(void)state;
	assert_false(attnd_ring_ready(&r));
	assert_false(attnd_ring_take(&r, &e));
	assert_int_equal(e.user_data, 5);
	free(entries);
}

static void keeps_order(uint32_t start)
{
	void *entries = entries_new(ENTRIES);
	struct attnd_ring p = make(entries, ENTRIES, start), c = make(entries, ENTRIES, start);
	struct attnd_sqe e = {0}, got;
	uint32_t put = 0, taken = 0;

	for (int lap = 0; lap < 50; lap++) {
		uint32_t n = (uint32_t)lap % ENTRIES + 1;

		for (uint32_t i = 0; i < n; i++) {
			e = (struct attnd_sqe){.opcode = 3, .user_data = put, .u64 = {1, 2, 3, 4, 5, put + 1}};
			put++;
			attnd_ring_put(&p, &e);
		}
		for (uint32_t i = 0; i < n; i++) {
			assert_true(attnd_ring_take(&c, &got));
			assert_int_equal(got.user_data, taken++);
			assert_int_equal(got.u64[5], taken);
			assert_int_equal(got.seq, start + taken);
		}
		assert_false(attnd_ring_take(&c, &got));
	}
	free(entries);
}

static void order_from_zero(void **state)
{
	(void)state;
	keeps_order(0);
}

/* Indices wrap at 2^32: 0 is a valid sequence number then. */
static void order_over_the_wrap(void **state)
{
	(void)state;
	keeps_order(UINT32_MAX - 100);
}

/* An entry of a lap ago, or of a lap to come, is not the next one. */
static void other_laps_do_not_count(void **state)
{
	struct attnd_sqe *entries = entries_new(ENTRIES);
	struct attnd_ring c = make(entries, ENTRIES, ENTRIES);
	struct attnd_sqe got;

	(void)state;
	for (uint32_t seq = 0; seq < 4 * ENTRIES; seq++) {
		entries[0].seq = seq;
		assert_int_equal(attnd_ring_ready(&c), seq == ENTRIES + 1);
	}
	entries[0].seq = ENTRIES + 1;
	assert_true(attnd_ring_take(&c, &got));
	free(entries);
}

/* ---- Two threads, sleeping by the rules ---- */

#define MESSAGES 20000u

struct pair {
	struct attnd_ring there, back;
	_Atomic uint32_t event, waiting;   /* of `back` */
	_Atomic uint32_t doorbell, sleeps; /* of `there` */
};

static void put_and_wake(struct attnd_ring *r, const struct attnd_sqe *e, _Atomic uint32_t *event,
			 _Atomic uint32_t *waiting)
{
	attnd_ring_put(r, e);
	atomic_thread_fence(memory_order_seq_cst);
	if (!atomic_load_explicit(waiting, memory_order_relaxed))
		return;
	atomic_fetch_add(event, 1);
	attnd_futex_wake(event, 1);
}

/* 10 s without a message is a lost wake-up. */
static bool take_or_sleep(struct attnd_ring *r, struct attnd_sqe *e, _Atomic uint32_t *event,
			  _Atomic uint32_t *waiting)
{
	while (!attnd_ring_take(r, e)) {
		uint32_t seen = atomic_load_explicit(event, memory_order_acquire);
		int rc = 0;

		atomic_store_explicit(waiting, 1, memory_order_relaxed);
		atomic_thread_fence(memory_order_seq_cst);
		if (!attnd_ring_ready(r))
			rc = attnd_futex_wait(event, seen, UINT64_C(10000000000));
		atomic_store_explicit(waiting, 0, memory_order_relaxed);
		if (rc == -ETIMEDOUT)
			return false;
	}
	return true;
}

static void *echo(void *arg)
{
	struct pair *p = arg;
	struct attnd_ring in = p->there, out = p->back;
	struct attnd_sqe e;

	for (uint32_t i = 0; i < MESSAGES; i++) {
		if (!take_or_sleep(&in, &e, &p->doorbell, &p->sleeps))
			return NULL;
		e.u64[0]++;
		put_and_wake(&out, &e, &p->event, &p->waiting);
	}
	return p;
}

static void no_lost_wakeup(void **state)
{
	void *there = entries_new(ENTRIES), *back = entries_new(ENTRIES), *ended;
	struct pair p = {.there = make(there, ENTRIES, 0), .back = make(back, ENTRIES, 0)};
	struct attnd_ring out = p.there, in = p.back;
	struct attnd_sqe e = {0};
	pthread_t t;
	uint32_t sent = 0, got = 0;

	(void)state;
	assert_int_equal(pthread_create(&t, NULL, echo, &p), 0);
	while (got < MESSAGES) {
		/* Bursts of 1 to ENTRIES in flight. */
		while (sent < MESSAGES && sent - got < 1 + sent % ENTRIES) {
			e.user_data = sent;
			e.u64[0] = sent++;
			put_and_wake(&out, &e, &p.doorbell, &p.sleeps);
		}
		assert_true(take_or_sleep(&in, &e, &p.event, &p.waiting));
		assert_int_equal(e.user_data, got);
		assert_int_equal(e.u64[0], ++got);
	}
	pthread_join(t, &ended);
	assert_ptr_equal(ended, &p);
	free(there);
	free(back);
}

static void futex_has_a_deadline(void **state)
{
	_Atomic uint32_t word = 1;
	uint64_t before = attnd_now_ns();

	(void)state;
	assert_int_equal(attnd_futex_wait(&word, 0, 1000000000), -EAGAIN);
	assert_int_equal(attnd_futex_wait(&word, 1, 5000000), -ETIMEDOUT);
	assert_true(attnd_now_ns() - before >= 5000000);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(empty_gives_nothing), cmocka_unit_test(order_from_zero),
		cmocka_unit_test(order_over_the_wrap), cmocka_unit_test(other_laps_do_not_count),
		cmocka_unit_test(no_lost_wakeup),      cmocka_unit_test(futex_has_a_deadline),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
