/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Mail between the control thread and the leader: each owner's structures are changed by that
 * owner alone, others ask by mail.
 *
 * In:   a letter. Out: the same letter on the other side, in order. Next: control.c, leader.c.
 */
#ifndef ATTND_DAEMON_MAILBOX_H
#define ATTND_DAEMON_MAILBOX_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "../shm/region.h"
#include "beat.h"
#include "peer.h"
#include "quota.h"

struct session;
struct json_t;
struct metrics_snapshot;

enum mail_type {
	/* control -> leader */
	MAIL_SESSION_ADD, /* session */
	MAIL_SESSION_END, /* session: stop its rings, free what it holds, answer MAIL_SESSION_FREED */
	MAIL_SEGMENT_ADD, /* session, index, region: answered by MAIL_SEGMENT_DONE */
	MAIL_SEGMENT_DEL, /* session, index: answered by MAIL_SEGMENT_DONE once no job uses it; region comes back */
	MAIL_OWNER_GONE,  /* session: the owner of the engine that it made has ended */
	MAIL_ADMIN,	  /* command: answered by MAIL_ADMIN_DONE with reply */
	MAIL_EVENTS,	  /* somebody subscribes to KV events: look */
	MAIL_LIMITS,	  /* limits, rules */
	MAIL_STOP,	  /* drain: finish running jobs, then answer MAIL_STOPPED and return */
	MAIL_BEAT,	  /* answered by MAIL_BEAT_DONE */
	/* leader -> control */
	MAIL_SESSION_FREED, /* session: nothing of the leader's refers to it any more */
	MAIL_SESSION_BAD,   /* session: it broke the protocol; control ends it */
	MAIL_SEGMENT_DONE,  /* session, index, region, status */
	MAIL_ADMIN_DONE,    /* reply */
	MAIL_STOPPED,
	MAIL_BEAT_DONE, /* beat */
};

struct mail {
	enum mail_type type;
	int status; /* 0 or a negative errno */
	struct session *session;
	uint32_t index;
	struct attnd_region region;
	const char *command;		  /* MAIL_ADMIN: "status", "caches", "sessions"...; lives for ever */
	struct json_t *args;		  /* MAIL_ADMIN: an object, the receiver's */
	struct json_t *reply;		  /* MAIL_ADMIN_DONE: a new reference */
	struct metrics_snapshot *metrics; /* MAIL_ADMIN_DONE of "metrics" and "stat": to be freed */
	void *cookie;			  /* MAIL_ADMIN: comes back */
	struct beat beat;		  /* MAIL_BEAT_DONE */
	struct limits limits;		  /* MAIL_LIMITS */
	struct peer_rules rules;	  /* MAIL_LIMITS: who may subscribe to events */
	struct mail *next;
};

enum { MAILBOX_RESERVE = 64 };

/** One direction. `fd` (an eventfd) polls readable after a letter has come. */
struct mailbox {
	pthread_mutex_t lock;
	struct mail *first, **last;
	_Atomic uint32_t waiting; /* letters inside, so that a spinning receiver makes no call */
	int fd;
	struct mail *spare; /* of `reserve`, for when there is no memory: what must be said is said */
	struct mail reserve[MAILBOX_RESERVE];
};

/** 0 or a negative errno. */
int mailbox_init(struct mailbox *m);
/** Frees what is inside. NULL-safe fields. */
void mailbox_destroy(struct mailbox *m);
/** Send a copy. -ENOMEM only if the reserve is used up, too. Wakes the receiver by the eventfd. */
int mailbox_send(struct mailbox *m, const struct mail *letter);
/** Take the next letter; false if there is none. Resets the eventfd when it empties. */
bool mailbox_take(struct mailbox *m, struct mail *ret);

#endif
