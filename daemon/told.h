/* SPDX-License-Identifier: Apache-2.0 */
/*
 * In:   signals that are blocked (control_block_signals) and that nobody reads yet.
 * Out:  whether one of them tells the daemon to end. Next: pool.c, while it takes its memory.
 */
#ifndef ATTND_DAEMON_TOLD_H
#define ATTND_DAEMON_TOLD_H

#include <signal.h>
#include <stdbool.h>

/** SIGTERM or SIGINT has come and waits for the control thread. Any thread; false if they are not blocked. */
static inline bool told_to_end(void)
{
	sigset_t set;

	return !sigpending(&set) && (sigismember(&set, SIGTERM) == 1 || sigismember(&set, SIGINT) == 1);
}

#endif
