/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The event loop's waiting, by io_uring.
 *
 * In:   sources of loop.c. Out: their calls. Next: loop.c.
 *
 * Each source is a poll of one shot, armed again after its call by the submission that the next
 * wait makes anyway: level-triggered, as epoll is, without a further system call. (A poll of many
 * shots tells only of changes: a function that does not drain its descriptor would hang.)
 */
#include <errno.h>
#include <liburing.h>
#include <poll.h>
#include <stdlib.h>
#include <unistd.h>

#include "loop.h"

#define ENTRIES 256

struct state {
	struct io_uring ring;
};

static int uring_open(void **ret_state)
{
	struct state *st = malloc(sizeof(*st));
	struct io_uring_params params = {.flags = IORING_SETUP_CLAMP};
	int r;

	if (!st)
		return -ENOMEM;
	r = io_uring_queue_init_params(ENTRIES, &st->ring, &params);
	if (r == 0 && !(params.features & IORING_FEAT_EXT_ARG)) { /* waits with a time limit: Linux 5.11 */
		io_uring_queue_exit(&st->ring);
		r = -ENOSYS;
	}
	if (r) {
		free(st);
		return r;
	}
	*ret_state = st;
	return 0;
}

static void uring_close(void *state)
{
	struct state *st = state;

	io_uring_queue_exit(&st->ring);
	free(st);
}

static struct io_uring_sqe *get_sqe(struct state *st)
{
	struct io_uring_sqe *sqe = io_uring_get_sqe(&st->ring);

	if (!sqe) { /* full: hand over what is there */
		io_uring_submit(&st->ring);
		sqe = io_uring_get_sqe(&st->ring);
	}
	return sqe;
}

static int uring_add(void *state, struct loop_source *s)
{
	struct state *st = state;
	struct io_uring_sqe *sqe = get_sqe(st);

	if (!sqe)
		return -EAGAIN;
	io_uring_prep_poll_add(sqe, s->fd, s->events);
	io_uring_sqe_set_data(sqe, s);
	s->armed = true;
	return 0;
}

/* At once: a poll in flight keeps the file open, and its peer would wait for the hang-up. */
static void uring_remove(void *state, struct loop_source *s)
{
	struct state *st = state;
	struct io_uring_sqe *sqe;

	if (!s->armed || !(sqe = get_sqe(st)))
		return;
	io_uring_prep_poll_remove(sqe, (uint64_t)(uintptr_t)s);
	io_uring_sqe_set_data(sqe, NULL);
	io_uring_submit(&st->ring);
}

/* The poll's result: an error other than a cancellation reads as POLLERR, so that its owner looks. */
static int complete(struct state *st, struct loop_source *s, int res)
{
	s->armed = false;
	if (!s->dead && res != -ECANCELED)
		s->fn(s->arg, res < 0 ? POLLERR : (uint32_t)res);
	return s->dead ? 0 : uring_add(st, s);
}

static int uring_wait(void *state, uint64_t ns)
{
	struct state *st = state;
	struct __kernel_timespec ts = {.tv_sec = (int64_t)(ns / 1000000000), .tv_nsec = (long long)(ns % 1000000000)};
	struct io_uring_cqe *cqe;
	unsigned int pending;
	int r = io_uring_submit_and_wait_timeout(&st->ring, &cqe, 1, ns == UINT64_MAX ? NULL : &ts, NULL);

	if (r < 0 && r != -ETIME && r != -EINTR && r != -EAGAIN && r != -EBUSY)
		return r;
	r = 0;
	/* Those that came by now, not those that the calls below cause. */
	for (pending = io_uring_cq_ready(&st->ring); pending && r == 0 && io_uring_peek_cqe(&st->ring, &cqe) == 0;
	     pending--) {
		struct loop_source *s = io_uring_cqe_get_data(cqe);
		int res = cqe->res;

		io_uring_cqe_seen(&st->ring, cqe);
		if (s)
			r = complete(st, s, res);
	}
	return r;
}

const struct loop_backend loop_uring = {"io_uring", uring_open, uring_close, uring_add, uring_remove, uring_wait};
