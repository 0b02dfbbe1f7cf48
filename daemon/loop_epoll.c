/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The event loop's waiting, by epoll.
 *
 * In:   sources of loop.c. Out: their calls. Next: loop.c.
 */
#include <errno.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <time.h>
#include <unistd.h>

#include "loop.h"

#define BATCH 64

struct state {
	int fd;
};

static int epoll_open(void **ret_state)
{
	struct state *st = malloc(sizeof(*st));

	if (!st)
		return -ENOMEM;
	st->fd = epoll_create1(EPOLL_CLOEXEC);
	if (st->fd < 0) {
		free(st);
		return -errno;
	}
	*ret_state = st;
	return 0;
}

static void epoll_close(void *state)
{
	struct state *st = state;

	close(st->fd);
	free(st);
}

static int epoll_add(void *state, struct loop_source *s)
{
	struct state *st = state;
	struct epoll_event event = {.events = s->events, .data.ptr = s}; /* EPOLLIN is POLLIN, and so on */

	return epoll_ctl(st->fd, EPOLL_CTL_ADD, s->fd, &event) ? -errno : 0;
}

static void epoll_remove(void *state, struct loop_source *s)
{
	struct state *st = state;

	epoll_ctl(st->fd, EPOLL_CTL_DEL, s->fd, NULL);
}

/* Milliseconds, rounded up so that a timer is due when the wait ends. */
static int timeout_ms(uint64_t ns)
{
	uint64_t ms = ns / 1000000 + (ns % 1000000 != 0);

	return ns == UINT64_MAX ? -1 : ms > 3600000 ? 3600000 : (int)ms;
}

static int epoll_wait_once(void *state, uint64_t ns)
{
	struct state *st = state;
	struct epoll_event events[BATCH];
	int n = epoll_wait(st->fd, events, BATCH, timeout_ms(ns));

	if (n < 0)
		return errno == EINTR ? 0 : -errno;
	for (int i = 0; i < n; i++) {
		struct loop_source *s = events[i].data.ptr;

		if (!s->dead) /* by an earlier call of this batch */
			s->fn(s->arg, events[i].events);
	}
	return 0;
}

const struct loop_backend loop_epoll = {"epoll", epoll_open, epoll_close, epoll_add, epoll_remove, epoll_wait_once};
