/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The client's sides of the rings, and its sleep.
 *
 * In:   SQEs from jobs.c. Out: CQEs to jobs.c; a byte on the wake socket when the leader sleeps.
 * Next: daemon/intake.c; and from daemon/reply.c back to here. Rules R1 to R5 in shm/README.md.
 */
#include "internal.h"

#include <sys/socket.h>

enum { AWAKE, WAIT_FUTEX, WAIT_SOCKET }; /* cq_waiting */

void cl_ring_put(struct attnd *a, const struct attnd_sqe *sqe)
{
	attnd_ring_put(&a->sq, sqe);
	/* Either we see need_wakeup or the leader sees the entry (R4). */
	atomic_thread_fence(memory_order_seq_cst);
	if (atomic_load_explicit(&a->shared->need_wakeup, memory_order_relaxed))
		(void)!send(a->wake, "", 1,
			    MSG_DONTWAIT | MSG_NOSIGNAL); /* full holds a wake-up; dead is noticed by waits */
}

bool cl_ring_drain(struct attnd *a)
{
	struct attnd_cqe cqe;
	uint32_t before = a->cq.index;
	bool good = true;

	while (good && attnd_ring_take(&a->cq, &cqe))
		good = cl_jobs_complete(a, &cqe);
	if (a->cq.index != before) {
		/* The daemon may fill these slots again (R2, pairs with its acquire load). */
		atomic_store_explicit(&a->shared->cq_head, a->cq.index, memory_order_release);
		cl_arena_settle(a);
	}
	return good;
}

uint32_t cl_ring_reap(struct attnd *a)
{
	uint32_t before = a->cq.index;

	if (a->state == CL_DOWN || !attnd_ring_ready(&a->cq))
		return 0;
	a->alive_ns = cl_now_coarse();
	if (!cl_ring_drain(a))
		cl_lost(a);
	return a->cq.index - before;
}

static bool spin(struct attnd *a, uint64_t until_ns)
{
	uint64_t now = attnd_now_ns(), end = cl_min_u64(now + a->spin_ns, until_ns);

	while (now < end) {
		for (int i = 0; i < 16; i++) {
			if (attnd_ring_ready(&a->cq))
				return true;
			attnd_pause();
		}
		now = attnd_now_ns();
	}
	return attnd_ring_ready(&a->cq);
}

/* Announce the sleep, then look again (R5). True: something is there. */
static bool announce(struct attnd *a, uint32_t how)
{
	atomic_store_explicit(&a->shared->cq_waiting, how, memory_order_relaxed);
	atomic_thread_fence(memory_order_seq_cst);
	return attnd_ring_ready(&a->cq) || atomic_load_explicit(&a->shared->closed, memory_order_acquire);
}

void cl_ring_wait(struct attnd *a, uint64_t until_ns)
{
	uint32_t event;
	uint64_t now;

	if (a->state == CL_DOWN)
		return;
	if (!spin(a, until_ns)) {
		event = atomic_load_explicit(&a->shared->cq_event, memory_order_acquire);
		now = attnd_now_ns();
		if (!announce(a, WAIT_FUTEX) && now < until_ns)
			attnd_futex_wait(&a->shared->cq_event, event, cl_min_u64(CL_SLICE_NS, until_ns - now));
		atomic_store_explicit(&a->shared->cq_waiting, AWAKE, memory_order_relaxed);
		a->armed = false;
	}
	if (!cl_ring_reap(a))
		cl_check_alive(a);
}

bool cl_ring_arm(struct attnd *a)
{
	a->armed = true;
	return announce(a, WAIT_SOCKET);
}

void cl_ring_disarm(struct attnd *a)
{
	char bytes[64];
	ssize_t n;

	if (a->state == CL_DOWN || !a->armed)
		return;
	a->armed = false;
	atomic_store_explicit(&a->shared->cq_waiting, AWAKE, memory_order_relaxed);
	do
		n = recv(a->wake, bytes, sizeof(bytes), MSG_DONTWAIT);
	while (n > 0);
	if (!attnd_ring_ready(&a->cq))
		cl_check_alive(a); /* what made attnd_fd readable may have been the daemon's end */
}
