/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The engine's heartbeat: what feeds systemd's watchdog, and what its status line says.
 *
 * In:   MAIL_BEAT of control. Out: MAIL_BEAT_DONE. Next: control.c.
 *
 * A leader that hangs does not answer. A worker that hangs is seen by its count of slices, which
 * stands still at an odd number.
 */
#ifndef ATTND_DAEMON_BEAT_H
#define ATTND_DAEMON_BEAT_H

#include <stdbool.h>
#include <stdint.h>

struct beat {
	bool stuck; /* a worker is in the same slice of an item as at the beat before */
	uint64_t pool_bytes, used_bytes;
	uint64_t query_tokens, hit_tokens; /* since the start */
};

struct leader;

/** The leader's answer. One caller: the leader. */
void beat_take(struct leader *l, struct beat *ret);

#endif
