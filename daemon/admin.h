/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The administrators' socket: one request, one JSON object, the end.
 *
 * In:   a line of at most 1 MiB: {"command": "evict", "cache": "llama", "blocks": 10}, or in words:
 *       evict cache=llama blocks=10. Out: control's part (status.c) merged with the leader's.
 * Next: leader.c and manage.c by mail; client/attnctl.c prints.
 *
 * What the leader answers is an object, merged into the top; for "sessions" it is {"sessions":
 * [{"id": n, ...}]}, each merged into that session's entry. An error is {"error": text, "errno": n}.
 */
#ifndef ATTND_DAEMON_ADMIN_H
#define ATTND_DAEMON_ADMIN_H

#include "control.h"

int admin_create(struct control *ctl, struct admin **ret);

/** Drops the connections. NULL is fine. */
void admin_destroy(struct admin *a);

/** Accept what waits at the administrators' socket (a loop_fn; arg: the admin). */
void admin_accept(void *admin, uint32_t events);

/** The leader's MAIL_ADMIN_DONE with a cookie of this file. Takes letter->reply over. */
void admin_mail(struct admin *a, const struct mail *letter);

#endif
