/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A locked queue with an eventfd.
 *
 * In:   a letter of one thread. Out: its copy in the other. Next: control.c, leader.c.
 *
 * The eventfd is written when the queue stops being empty and read when it becomes so, both
 * under the lock: it polls readable exactly while letters wait.
 */
#include "mailbox.h"

#include <errno.h>
#include <jansson.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <unistd.h>

int mailbox_init(struct mailbox *m)
{
	int fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);

	if (fd < 0)
		return -errno;
	*m = (struct mailbox){.fd = fd};
	m->last = &m->first;
	for (int i = 0; i < MAILBOX_RESERVE; i++) {
		m->reserve[i].next = m->spare;
		m->spare = &m->reserve[i];
	}
	pthread_mutex_init(&m->lock, NULL);
	return 0;
}

void mailbox_destroy(struct mailbox *m)
{
	struct mail letter;

	if (!m->last) /* never initialised */
		return;
	while (mailbox_take(m, &letter)) {
		json_decref(letter.args);
		json_decref(letter.reply);
		free(letter.metrics);
	}
	pthread_mutex_destroy(&m->lock);
	close(m->fd);
	*m = (struct mailbox){.fd = -1};
}

int mailbox_send(struct mailbox *m, const struct mail *letter)
{
	struct mail *copy = malloc(sizeof(*copy));

	pthread_mutex_lock(&m->lock);
	if (!copy && m->spare) {
		copy = m->spare;
		m->spare = copy->next;
	}
	if (!copy) {
		pthread_mutex_unlock(&m->lock);
		return -ENOMEM;
	}
	*copy = *letter;
	copy->next = NULL;
	*m->last = copy;
	m->last = &copy->next;
	/* Pairs with the receiver's load before it spins on; the lock orders the letter itself. */
	if (atomic_fetch_add_explicit(&m->waiting, 1, memory_order_release) == 0)
		(void)eventfd_write(m->fd, 1);
	pthread_mutex_unlock(&m->lock);
	return 0;
}

/* Under the lock. */
static void give_back(struct mailbox *m, struct mail *letter)
{
	if (letter < m->reserve || letter >= m->reserve + MAILBOX_RESERVE) {
		free(letter);
		return;
	}
	letter->next = m->spare;
	m->spare = letter;
}

bool mailbox_take(struct mailbox *m, struct mail *ret)
{
	struct mail *letter;
	eventfd_t value;

	if (atomic_load_explicit(&m->waiting, memory_order_acquire) == 0) /* pairs with mailbox_send */
		return false;
	pthread_mutex_lock(&m->lock);
	letter = m->first;
	if (letter) {
		m->first = letter->next;
		if (!m->first) {
			m->last = &m->first;
			(void)eventfd_read(m->fd, &value);
		}
		atomic_fetch_sub_explicit(&m->waiting, 1, memory_order_relaxed);
		*ret = *letter;
		ret->next = NULL;
		give_back(m, letter);
	}
	pthread_mutex_unlock(&m->lock);
	return letter != NULL;
}
