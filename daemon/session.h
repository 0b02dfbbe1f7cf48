/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A session: one connected client process, its rings, segments and peer.
 *
 * In:   control (control.c) makes it from a handshake and gives it to the leader by mail.
 * Out:  the leader uses its rings and segments until it mails it back as freed.
 * Next: intake.c reads its SQ, reply.c writes its CQ; control unmaps and frees it.
 *
 * Ownership (rules S1 to S3): `ctl` fields are control's at all times; `lead` fields are the
 * leader's between MAIL_SESSION_ADD and MAIL_SESSION_FREED; the rest is set before
 * MAIL_SESSION_ADD and does not change until freed.
 */
#ifndef ATTND_DAEMON_SESSION_H
#define ATTND_DAEMON_SESSION_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "../proto/wire.h"
#include "../shm/region.h"
#include "../shm/ring.h"
#include "tenant.h"

struct engine;
struct lead_session;

struct session {
	uint32_t id; /* never 0; not reused while the daemon runs */
	pid_t pid;   /* SO_PEERCRED: may be 0 across pid namespaces */
	uid_t uid;
	gid_t gid;
	char name[32];
	char realm[80];		    /* "uid:1000" or "group:NAME" */
	char *tenants;		    /* tenant.h's list; NULL: any */
	bool overflow_uid;	    /* an unmapped user namespace: shares with its own engine only */
	struct attnd_region region; /* the session region */
	struct attnd_session_region *shared;
	int wake_fd; /* the daemon's end of the wake socketpair; non-blocking */
	uint32_t max_segments;

	struct {
		int sock;
		int pidfd;	      /* -1: not available */
		int owner_pidfd;      /* -1: none */
		bool ended;	      /* MAIL_SESSION_END was sent */
		uint64_t arena_bytes; /* registered, counted against arena-max */
		uint64_t connected_ns;
		void *priv; /* control's own */
		struct session *next;
	} ctl;

	struct {
		struct attnd_region segments[ATTND_MAX_SEGMENTS];
		struct lead_session *priv; /* leader.c's own */
	} lead;
};

#endif
