/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A client from accept() until nothing refers to it any more.
 *
 * In:   a connection. Out: a session for the leader; its end.
 * Next: handshake.c, segments.c; leader.c by mail.
 *
 *     HELLO --(HELLO is right)--> LIVE --(socket, pidfd, protocol)--> ENDING --> freed
 *       `--------------------------(refused, silent)--------------------^
 *
 * A client in ENDING is freed when the leader has sent it back (if it had it) and its helper
 * jobs have ended. Until then it counts against its uid's limit: what a uid's descriptors can
 * block is bounded by the number of its clients.
 */
#ifndef ATTND_DAEMON_CLIENTS_H
#define ATTND_DAEMON_CLIENTS_H

#include <jansson.h>

#include "control.h"
#include "segments.h"
#include "session.h"

enum client_state { CLIENT_HELLO, CLIENT_LIVE, CLIENT_ENDING };

struct client {
	struct session session;
	struct control *control;
	struct peer peer;
	enum client_state state;
	bool with_leader; /* MAIL_SESSION_ADD was sent and MAIL_SESSION_FREED has not come */
	uint32_t jobs;	  /* helper jobs under way */
	struct segments segments;
	struct loop_source *sock, *pidfd, *owner, *timer;
	struct client *next, **pprev;
};

/** Accept what waits at the listening socket (a loop_fn; arg: the control). */
void clients_accept(void *control, uint32_t events);

/** A letter of the leader about a session. */
void clients_mail(struct control *c, const struct mail *letter);

/** End a client, once, for whatever reason; it may be gone afterwards. `why` is logged. */
void client_end(struct client *c, const char *why);

/** A helper job of this client has ended; it may be gone afterwards. */
void client_job_done(struct client *c);

/** Close a descriptor that a client sent and nobody wants, where it may block. -1 is fine. */
void client_discard_fd(struct client *c, int fd);

/** After leader_destroy: free all. */
void clients_destroy(struct control *c);

/** An array of all sessions for the status. NULL without memory. */
json_t *clients_json(const struct control *c);

#endif
