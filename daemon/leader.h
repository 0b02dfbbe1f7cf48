/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The leader: one thread that polls the submission rings and is the only owner of the tree,
 * references, free lists and plans.
 *
 * In:   the pool's size and settings; mail from control; SQEs.
 * Out:  CQEs; mail to control.
 * Next: intake.c -> plan.c, exec.c -> reply.c.
 */
#ifndef ATTND_DAEMON_LEADER_H
#define ATTND_DAEMON_LEADER_H

#include <stdbool.h>
#include <stdint.h>

#include "mailbox.h"

struct config; /* config.h */
struct leader;

/**
 * Make pool, meta and workers and start the thread. The reason of a failure is logged.
 * `to_control` must outlive the leader.
 */
int leader_start(const struct config *cfg, uint64_t instance, struct mailbox *to_control, struct leader **ret);

/** Where control sends its letters. */
struct mailbox *leader_mailbox(struct leader *l);

/**
 * The lookup region of a realm, made at its first use: a read-only descriptor for clients
 * (owned by the leader's realm table) and its size. Thread-safe. 0 or a negative errno.
 */
int leader_lookup_fd(struct leader *l, const char *realm, int *ret_fd, uint64_t *ret_bytes);

/** After MAIL_STOPPED: join the thread and free everything. NULL is fine. */
void leader_destroy(struct leader *l);

/** For a process that ends at once with the leader's thread running: remove the files of its sockets. */
void leader_unlink(const struct leader *l);

#endif
