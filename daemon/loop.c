/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sources, timers and the choice of the backend.
 *
 * In:   descriptors and deadlines. Out: calls. Next: loop_uring.c or loop_epoll.c.
 */
#include "loop.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "../shm/futex.h"
#include "log.h"

struct loop {
	const struct loop_backend *backend;
	void *state;
	loop_clock_fn *clock;
	struct loop_source *fds, *timers, *dead;
	bool stop;
};

static int open_backend(struct loop *l, enum config_event_loop kind)
{
	int r = -ENOSYS;

	if (kind != CONFIG_LOOP_EPOLL) {
		l->backend = &loop_uring;
		r = l->backend->open(&l->state);
		if (r == 0 || kind == CONFIG_LOOP_URING)
			return r;
		log_info("event loop: io_uring is not to be had (%s)", strerror(-r));
	}
	l->backend = &loop_epoll;
	return l->backend->open(&l->state);
}

int loop_create(enum config_event_loop kind, loop_clock_fn *clock, struct loop **ret)
{
	struct loop *l = calloc(1, sizeof(*l));
	int r;

	if (!l)
		return -ENOMEM;
	l->clock = clock ? clock : attnd_now_ns;
	r = open_backend(l, kind);
	if (r) {
		log_err("event loop: %s: %s", l->backend->name, strerror(-r));
		free(l);
		return r;
	}
	log_info("event loop: %s", l->backend->name);
	*ret = l;
	return 0;
}

static void free_all(struct loop_source *s)
{
	while (s) {
		struct loop_source *next = s->next;

		free(s);
		s = next;
	}
}

void loop_destroy(struct loop *l)
{
	if (!l)
		return;
	l->backend->close(l->state);
	free_all(l->fds);
	free_all(l->timers);
	free_all(l->dead);
	free(l);
}

const char *loop_name(const struct loop *l)
{
	return l->backend->name;
}

uint64_t loop_now(const struct loop *l)
{
	return l->clock();
}

static void link_at(struct loop_source **at, struct loop_source *s)
{
	s->next = *at;
	s->pprev = at;
	if (s->next)
		s->next->pprev = &s->next;
	*at = s;
}

static void unlink_source(struct loop_source *s)
{
	*s->pprev = s->next;
	if (s->next)
		s->next->pprev = s->pprev;
}

int loop_add_fd(struct loop *l, int fd, uint32_t events, loop_fn *fn, void *arg, struct loop_source **ret)
{
	struct loop_source *s = malloc(sizeof(*s));
	int r;

	if (!s)
		return -ENOMEM;
	*s = (struct loop_source){.fd = fd, .events = events, .fn = fn, .arg = arg, .due = UINT64_MAX};
	r = l->backend->add(l->state, s);
	if (r) {
		free(s);
		return r;
	}
	link_at(&l->fds, s);
	*ret = s;
	return 0;
}

int loop_add_timer(struct loop *l, loop_fn *fn, void *arg, struct loop_source **ret)
{
	struct loop_source *s = malloc(sizeof(*s));

	if (!s)
		return -ENOMEM;
	*s = (struct loop_source){.fd = -1, .fn = fn, .arg = arg};
	s->pprev = &s->next; /* linked to nothing */
	loop_set_timer(l, s, UINT64_MAX);
	*ret = s;
	return 0;
}

void loop_set_timer(struct loop *l, struct loop_source *s, uint64_t ns)
{
	struct loop_source **at = &l->timers;

	if (s->pprev != &s->next)
		unlink_source(s);
	s->due = ns;
	while (*at && (*at)->due <= ns)
		at = &(*at)->next;
	link_at(at, s);
}

void loop_remove(struct loop *l, struct loop_source *s)
{
	if (!s)
		return;
	s->dead = true;
	if (s->fd >= 0)
		l->backend->remove(l->state, s);
	unlink_source(s);
	link_at(&l->dead, s);
}

/* One pass: a timer set again for now waits for the next one. */
static void run_timers(struct loop *l)
{
	uint64_t now = loop_now(l);

	while (l->timers && l->timers->due <= now) {
		struct loop_source *s = l->timers;

		loop_set_timer(l, s, UINT64_MAX);
		s->fn(s->arg, 0);
	}
}

static void bury(struct loop *l)
{
	struct loop_source *s = l->dead, *next;

	for (; s; s = next) {
		next = s->next;
		if (!s->armed) {
			unlink_source(s);
			free(s);
		}
	}
}

int loop_run_once(struct loop *l, uint64_t max_ns)
{
	uint64_t now, due = l->timers ? l->timers->due : UINT64_MAX;
	int r;

	if (due != UINT64_MAX && max_ns) {
		now = loop_now(l);
		max_ns = due <= now ? 0 : due - now < max_ns ? due - now : max_ns;
	}
	r = l->backend->wait(l->state, max_ns);
	run_timers(l);
	bury(l);
	return r;
}

int loop_run(struct loop *l)
{
	int r = 0;

	l->stop = false;
	while (!l->stop && r == 0)
		r = loop_run_once(l, UINT64_MAX);
	return r;
}

void loop_stop(struct loop *l)
{
	l->stop = true;
}
