/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A leader that runs no attention: it keeps the contract of daemon/leader.h and mailbox.h, counts,
 * and misbehaves where a test wants it to.
 *
 * In: letters of control. Out: answers. Next: the tests of this directory.
 */
#ifndef ATTND_TESTS_CONTROL_STUB_LEADER_H
#define ATTND_TESTS_CONTROL_STUB_LEADER_H

#include "../../daemon/leader.h"
#include "../../daemon/session.h"

/* $STUB_LEADER, when it starts: words out of these. */
enum {
	STUB_PUMPED = 1, /* "pumped": no thread; the test calls stub_step */
	STUB_REFUSE = 2, /* "refuse": every segment is refused with -ENOMEM */
	STUB_STUCK = 4,	 /* "stuck": MAIL_STOP is not answered */
};

struct stub_counts {
	uint32_t added, ended, freed, owners_gone, segments, stops;
};

/** Answer all letters that wait. A byte that came over a session's wake socket makes it bad. */
void stub_step(struct leader *l);

struct stub_counts stub_counts(const struct leader *l);

/** The session that was added last; NULL if it is freed. */
struct session *stub_last(const struct leader *l);

#endif
