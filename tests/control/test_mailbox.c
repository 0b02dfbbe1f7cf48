/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Mail: order, the descriptor that tells of it, two threads.
 *
 * In: letters. Out: TAP. Next: daemon/mailbox.c.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <poll.h>

#include "../../daemon/mailbox.h"

enum { LETTERS = 100000 };

static int readable(const struct mailbox *m)
{
	struct pollfd p = {.fd = m->fd, .events = POLLIN};

	return poll(&p, 1, 0);
}

static void send_index(struct mailbox *m, uint32_t i)
{
	assert_int_equal(mailbox_send(m, &(struct mail){.type = MAIL_ADMIN, .index = i}), 0);
}

static void test_order(void **state)
{
	struct mailbox m;
	struct mail letter;

	(void)state;
	assert_int_equal(mailbox_init(&m), 0);
	assert_false(mailbox_take(&m, &letter));
	assert_int_equal(readable(&m), 0);
	for (uint32_t round = 0; round < 3; round++) {
		for (uint32_t i = 0; i < 5; i++)
			send_index(&m, i);
		for (uint32_t i = 0; i < 5; i++) {
			assert_int_equal(readable(&m), 1);
			assert_true(mailbox_take(&m, &letter));
			assert_int_equal(letter.index, i);
			assert_null(letter.next);
		}
		assert_int_equal(readable(&m), 0);
		assert_false(mailbox_take(&m, &letter));
	}
	send_index(&m, 0); /* left inside: freed with the box */
	mailbox_destroy(&m);
	mailbox_destroy(&(struct mailbox){.fd = -1});
}

static void *send_all(void *arg)
{
	for (uint32_t i = 0; i < LETTERS; i++)
		if (mailbox_send(arg, &(struct mail){.type = MAIL_ADMIN, .index = i}))
			break;
	return NULL;
}

/* The receiver sleeps on the descriptor alone: no letter may be left behind without it. */
static void test_threads(void **state)
{
	struct mailbox m;
	struct mail letter;
	pthread_t sender;

	(void)state;
	assert_int_equal(mailbox_init(&m), 0);
	assert_int_equal(pthread_create(&sender, NULL, send_all, &m), 0);
	for (uint32_t i = 0; i < LETTERS;) {
		struct pollfd p = {.fd = m.fd, .events = POLLIN};

		assert_int_equal(poll(&p, 1, 10000), 1);
		for (; mailbox_take(&m, &letter); i++)
			assert_int_equal(letter.index, i);
	}
	pthread_join(sender, NULL);
	assert_int_equal(readable(&m), 0);
	mailbox_destroy(&m);
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(test_order), cmocka_unit_test(test_threads)};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
