/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The control thread: all that is not attention.
 *
 * In:   listening sockets, clients' sockets and pidfds, administrators, signals, letters of the
 *       leader. Out: sessions and segments for the leader; answers.
 * Next: clients.c (sessions), segments.c (arena), admin.c (status); leader.c by mail.
 */
#ifndef ATTND_DAEMON_CONTROL_H
#define ATTND_DAEMON_CONTROL_H

#include "config.h"
#include "helper.h"
#include "leader.h"
#include "listener.h"
#include "loop.h"
#include "peer.h"
#include "tenant.h"

struct admin;
struct client;

/* What the files of the control thread share; all of it is that thread's. */
struct control {
	struct config cfg; /* a copy: a reload changes it, the leader keeps its own */
	struct peer_rules rules;
	struct tenant_rules tenants;
	struct loop *loop;
	struct mailbox inbox;
	struct leader *leader;
	struct helpers *helpers;
	struct admin *admin;
	uint64_t instance, started_ns;

	struct client *clients; /* from accept() until nothing refers to them */
	uint32_t num_sessions;	/* of them, those whose HELLO was right */
	uint32_t next_session;
	uint64_t arena_bytes; /* registered, or about to be */

	char *const *argv; /* for a reload */
	int listen_fd, admin_fd, signal_fd;
	struct loop_source *accept, *admin_accept, *accept_again;
	struct loop_source *mail, *signals, *private_fd, *drain_deadline, *heart;
	uint64_t beat_ns; /* between two heartbeats: a quarter of systemd's limit; 0: not started by systemd */
	bool beat_asked;  /* the leader has not answered yet */
	bool watched;	  /* systemd has a limit */
	struct beat beat; /* the last one */
	bool draining, stopped;
};

/**
 * Make the control thread's parts. cfg is copied, argv must stay. clock: NULL, or a test's. The
 * signals that it handles (control_signals) are blocked already. 0 or a negative errno.
 */
int control_create(const struct config *cfg, char *const argv[], uint64_t instance, loop_clock_fn *clock,
		   struct control **ret);

/** Block the signals that the control thread takes; before any thread is started. */
void control_block_signals(void);

/** Where the leader sends its letters. */
struct mailbox *control_mailbox(struct control *c);

/** Watch the sockets, and begin to use the leader. 0 or a negative errno. */
int control_start(struct control *c, struct leader *leader, const struct listener *listener);

/**
 * Serve until a signal, the end of private_fd, or an error. 0: the leader has stopped;
 * -EINTR: told to end at once, so the leader may still run.
 */
int control_run(struct control *c);

/** Frees everything, sessions too: after leader_destroy. NULL is fine. */
void control_destroy(struct control *c);

/* ---- For the control thread's own files ---- */

/** Send to the leader. 0 or -ENOMEM. */
int control_mail(struct control *c, const struct mail *letter);

/** Sessions came or went: tell systemd. */
void control_notify(const struct control *c);

/** No descriptor or memory for a connection: look again in a moment, instead of spinning. */
void control_pause_accept(struct control *c, const char *why);

#endif
