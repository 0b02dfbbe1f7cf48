/* SPDX-License-Identifier: Apache-2.0 */
/*
 * In:   jobs. Out: their `done` in the loop, by an eventfd. Next: segments.c, clients.c.
 */
#include "helper.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#include "log.h"

#define STACK_BYTES (256 * 1024)

struct helpers {
	struct loop *loop;
	struct loop_source *source;
	pthread_attr_t attr;
	pthread_mutex_t lock;
	pthread_cond_t idle;
	struct helper_job *finished;
	unsigned int running;
	int fd;
};

static void call_finished(void *arg, uint32_t events)
{
	struct helpers *h = arg;
	struct helper_job *job, *next;
	eventfd_t value;

	(void)events;
	(void)eventfd_read(h->fd, &value);
	pthread_mutex_lock(&h->lock);
	job = h->finished;
	h->finished = NULL;
	pthread_mutex_unlock(&h->lock);
	for (; job; job = next) {
		next = job->next;
		job->done(job);
	}
}

int helpers_create(struct loop *l, struct helpers **ret)
{
	struct helpers *h = calloc(1, sizeof(*h));
	pthread_condattr_t clock;
	int r = -ENOMEM;

	if (!h)
		return r;
	h->loop = l;
	h->fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (h->fd < 0) {
		r = -errno;
		goto fail;
	}
	r = loop_add_fd(l, h->fd, POLLIN, call_finished, h, &h->source);
	if (r)
		goto fail_fd;
	pthread_attr_init(&h->attr);
	pthread_attr_setdetachstate(&h->attr, PTHREAD_CREATE_DETACHED);
	pthread_attr_setstacksize(&h->attr, STACK_BYTES);
	pthread_mutex_init(&h->lock, NULL);
	pthread_condattr_init(&clock); /* a clock that somebody sets must not make the end wait */
	pthread_condattr_setclock(&clock, CLOCK_MONOTONIC);
	pthread_cond_init(&h->idle, &clock);
	pthread_condattr_destroy(&clock);
	*ret = h;
	return 0;

fail_fd:
	close(h->fd);
fail:
	free(h);
	return r;
}

/* True when no thread is left. `done` may start another job. */
static bool finish_all(struct helpers *h)
{
	struct timespec until;
	bool busy = true;
	int r = 0;

	clock_gettime(CLOCK_MONOTONIC, &until);
	until.tv_sec++;
	while (busy && r == 0) {
		pthread_mutex_lock(&h->lock);
		while (h->running && r == 0)
			r = pthread_cond_timedwait(&h->idle, &h->lock, &until);
		pthread_mutex_unlock(&h->lock);
		call_finished(h, 0);
		pthread_mutex_lock(&h->lock);
		busy = h->running || h->finished;
		pthread_mutex_unlock(&h->lock);
	}
	return !busy;
}

void helpers_destroy(struct helpers *h)
{
	bool finished;

	if (!h)
		return;
	finished = finish_all(h);
	loop_remove(h->loop, h->source);
	if (!finished) { /* its thread still refers to h */
		log_warn("a helper thread is blocked by a client's descriptor; leaving it");
		return;
	}
	pthread_cond_destroy(&h->idle);
	pthread_mutex_destroy(&h->lock);
	pthread_attr_destroy(&h->attr);
	close(h->fd);
	free(h);
}

static void run(struct helper_job *job)
{
	struct helpers *h = job->helpers;

	job->run(job);
	pthread_mutex_lock(&h->lock);
	job->next = h->finished;
	h->finished = job;
	(void)eventfd_write(h->fd, 1);
	if (--h->running == 0)
		pthread_cond_signal(&h->idle);
	pthread_mutex_unlock(&h->lock);
}

static void *thread(void *job)
{
	pthread_setname_np(pthread_self(), "attnd-helper");
	run(job);
	return NULL;
}

void helper_start(struct helpers *h, struct helper_job *job)
{
	pthread_t id;

	job->helpers = h;
	pthread_mutex_lock(&h->lock);
	h->running++;
	pthread_mutex_unlock(&h->lock);
	if (pthread_create(&id, &h->attr, thread, job))
		run(job);
}
