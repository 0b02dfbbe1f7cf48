/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Replies: completions go into the CQ; a client that sleeps is woken, once a batch.
 *
 * In: answers of intake.c and submit.c. Out: CQEs. Next: the client.
 */
#include <sys/socket.h>

#include "../shm/futex.h"
#include "lead.h"

int64_t reply_room(struct lead_session *ls)
{
	uint32_t head = atomic_load_explicit(&ls->session->shared->cq_head, memory_order_acquire);

	/* R2: between the last one seen and what has been put, or the client lies. */
	if (head - ls->cq_head > ls->cq.index - ls->cq_head)
		return -1;
	ls->cq_head = head;
	return (int64_t)ls->cq_entries - (ls->cq.index - head) - ls->unanswered;
}

void reply_put(struct lead_session *ls, uint32_t user_data, const struct answer *a)
{
	const struct attnd_cqe cqe = {.user_data = user_data,
				      .res = a->res,
				      .field = (uint16_t)a->field,
				      .value = a->value,
				      .limit = a->limit};

	attnd_ring_put(&ls->cq, &cqe);
	ls->unanswered--;
	ls->user->in_flight--;
	ls->replied = true;
	ls->errors += a->res != 0;
}

void reply_wake(struct lead_session *ls)
{
	struct attnd_session_region *r = ls->session->shared;
	uint32_t waiting;

	if (!ls->replied)
		return;
	ls->replied = false;
	/* R5: completions first, then the look; pairs with the client's fence between flag and look. */
	atomic_thread_fence(memory_order_seq_cst);
	if (!atomic_load_explicit(&r->cq_waiting, memory_order_relaxed))
		return;
	waiting = atomic_exchange_explicit(&r->cq_waiting, 0, memory_order_acq_rel);
	atomic_fetch_add_explicit(&r->cq_event, 1, memory_order_release);
	if (waiting == 1)
		attnd_futex_wake(&r->cq_event, INT32_MAX);
	else if (waiting == 2)
		(void)send(ls->session->wake_fd, "", 1, MSG_DONTWAIT | MSG_NOSIGNAL);
}
