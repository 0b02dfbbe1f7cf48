/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Limits of one session, one engine and one uid.
 *
 * In:   requests, before they are done. Out: may they; how many more are taken.
 * Next: intake.c. What control counts (sessions, arena bytes) is limited in clients.c, segments.c.
 *
 * One owner: the leader.
 */
#ifndef ATTND_DAEMON_LIMITS_H
#define ATTND_DAEMON_LIMITS_H

#include <stdint.h>
#include <sys/types.h>

struct answer;
struct engine;
struct leader;
struct lead_session;

/* Sequences that may be opened at once, growing by so many a second up to as many. */
struct open_rate {
	uint64_t left, at_ns; /* billionths of an open */
};

/* A uid's sessions together. Kept while it has sessions or its rate has not recovered. */
struct user {
	uid_t uid;
	uint32_t sessions;
	uint64_t in_flight; /* requests taken and not answered */
	struct open_rate opens;
	struct user *next;
};

/*
 * How many tokens an engine's sequences have. Counted exactly when the limit seems to be reached,
 * at most every so often; in between what was asked for is added.
 */
struct token_count {
	uint64_t exact, since, at_ns;
};

/** The user of a new session. 0 or -ENOMEM. */
int limits_enter(struct leader *l, struct lead_session *ls);
/** The session is gone. */
void limits_leave(struct lead_session *ls);
void limits_destroy(struct leader *l);

/** May it open one more sequence, and hold so many tokens? */
struct answer limits_open(struct leader *l, struct lead_session *ls, uint64_t tokens);
/** May it have another sequence of so many tokens? */
struct answer limits_fork(struct leader *l, struct lead_session *ls, uint64_t tokens);
/** May it have so many tokens more? They count from now on. 0 or -EDQUOT. */
int limits_tokens(struct leader *l, struct lead_session *ls, uint64_t tokens);
/** What was counted since `before` is not taken after all. */
void limits_uncount(struct engine *e, const struct token_count *before);
/** Of `room` requests, how many may be taken now. */
int64_t limits_in_flight(const struct leader *l, const struct lead_session *ls, int64_t room);

#endif
