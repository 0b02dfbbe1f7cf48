/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The leader's own state, shared by leader.c (the loop and mail), intake.c (requests), submit.c
 * (jobs) and reply.c (completions). Nobody else includes it.
 */
#ifndef ATTND_DAEMON_LEAD_H
#define ATTND_DAEMON_LEAD_H

#include "config.h"
#include "engine.h"
#include "exec.h"
#include "leader.h"
#include "limits.h"
#include "ns.h"
#include "realm.h"
#include "session.h"
#include "slabs.h"
#include "watch.h"

/* A request that was taken and has not been answered. */
struct request {
	struct attnd_sqe sqe;
	uint64_t deadline_ns;
	int32_t give_up; /* 0, or the error it is to end with */
};

/* A SLOT_TABLE under way: large ones are filled in slices. */
struct slots_job {
	bool begun;
	uint32_t member;      /* of the batch, the next */
	uint64_t pos, length; /* its tokens that are done, and all as they were then */
	uint64_t at, queries; /* entries and tokens of those before */
};

/* A SEQ_CLOSE of many under way. */
struct close_job {
	bool begun;
	uint32_t at; /* keys that are done */
	uint64_t closed;
};

/* A sequence of the PLAN at the queue's head that it waits for. */
struct busy_row {
	bool is;
	uint64_t key;
};

struct lead_session {
	struct session *session;
	struct lead_session *next;
	struct realm *realm;
	struct engine *engine; /* NULL until something needs one */
	struct attnd_ring sq, cq;
	uint32_t cq_entries;
	uint32_t cq_head;      /* the client's, as last seen and found sane (R2) */
	uint32_t unanswered;   /* requests taken: each has a CQ slot set aside (R3) */
	struct request *queue; /* ring of cq_entries */
	uint32_t queue_head, queue_num;
	bool running; /* `job` is with the team, for `job_request` */
	struct request job_request;
	struct job job;
	struct room_wait room;	/* of the PLAN at the queue's head */
	struct busy_row busy;	/* of the same */
	struct slots_job slots; /* the SLOT_TABLE at the queue's head */
	struct close_job closing;
	bool evicts;		/* for the CACHE_OPEN at the queue's head: another slice is to follow */
	struct opening opening; /* the SEQ_OPEN at the queue's head, if it is under way */
	struct waiting *waits;	/* wait.c's */
	uint64_t waits_until;	/* ns: none of them is over earlier by itself */
	uint64_t waits_seen;	/* engines.twins.stirs when they were looked at */
	struct params *params[ATTND_MAX_PARAMS];
	struct plan *plans;
	bool replied; /* completions since the last wake-up */
	bool ending;
	bool owner_gone;	/* before it made its engine, perhaps */
	bool bad;		/* broke the protocol; control has been told */
	uint32_t drop_segments; /* bits: MAIL_SEGMENT_DEL waits for the running job */
	uint64_t jobs, errors;
	struct metrics_use use;
	struct user *user;
	struct open_rate opens;
};

struct leader {
	struct config const *cfg;
	uint64_t features;
	struct topology topology;
	struct pool pool;
	struct ns_table ns;
	struct realm_table realms;
	struct engine_table engines;
	struct team team;
	struct mailbox inbox;
	struct mailbox *control;
	struct lead_session *sessions;
	pthread_t thread;
	bool thread_started;
	bool stopping;
	int park_fd; /* epoll: wake sockets, inbox, team */
	int team_fd;
	uint64_t now; /* ns, of this round */
	void *copy;   /* what was copied out of an arena */
	size_t copy_bytes;
	struct limits limits;
	struct pin *pins; /* manage.c's */
	struct chore *chores;
	uint32_t num_pins, num_chores, last_pin;
	uint64_t pinned_bytes;
	uint64_t pins_until; /* ns: no pin ends earlier */
	struct watch watch;
	struct publisher *publisher; /* of watch.events */
	struct user *users;	     /* limits.c's */
};

/* ---- intake.c ---- */

/** Take what the SQ has and answer or queue it. Returns how many were taken. */
uint32_t intake_take(struct leader *l, struct lead_session *ls);
/** Run queued requests until a job is with the team. Returns how many were run. */
uint32_t intake_run(struct leader *l, struct lead_session *ls);
/** An engine for a session that has not asked for one. 0 or -ENOMEM. */
int session_engine(struct leader *l, struct lead_session *ls);

/**
 * Copy a range of the arena into the leader's buffer at `at`, which is grown (and moves). NULL: it is
 * not in the arena, or no memory.
 */
void *arena_copy(struct leader *l, const struct lead_session *ls, uint64_t offset, uint64_t bytes, uint32_t align,
		 size_t at);

/** The next slice of ls->opening, whose tokens stand at this offset. */
struct answer open_slice(struct leader *l, struct lead_session *ls, uint64_t offset);

/** Resolve an arena range: NULL unless all of it lies in one segment and it is aligned. */
void *arena_at(const struct lead_session *ls, uint64_t offset, uint64_t bytes, uint32_t align);

/* ---- wait.c ---- */

/** A SEQ_WAIT at the queue's head: the answer, or ANSWER_WAITS when it has been set aside. */
struct answer wait_open(struct leader *l, struct lead_session *ls, const struct attnd_sqe *sqe);
/** Answer those that are over. True if there was anything to do. */
bool wait_look(struct leader *l, struct lead_session *ls);
/** The one that was submitted with this user_data ends with an error: false, there is none. */
bool wait_cancel(struct lead_session *ls, uint32_t user_data, int32_t why);
/** The session ends: none is answered. */
void wait_drop_all(struct lead_session *ls);

/* ---- submit.c ---- */

struct answer submit_params(struct lead_session *ls, uint32_t id, const struct attnd_wire_params *w);
/** Check a job and start it: `*ret_started` says that it is with the team, else it is done. */
struct answer submit_job(struct leader *l, struct lead_session *ls, const struct attnd_sqe *sqe, bool *ret_started);
/** The team has finished the session's job: what it answers, or ANSWER_LATER: once more. */
struct answer submit_done(struct lead_session *ls);
void params_free(struct params *p);

/** Check an EXPORT and start it, in the same way; submit_done answers it, too. */
struct answer submit_export(struct leader *l, struct lead_session *ls, const struct attnd_sqe *sqe,
			    bool *ret_started);

/* ---- slots.c ---- */

/**
 * A slice of the tables of sequences (keys [w->num]) or of a plan (keys NULL). w's numbers are in their limits,
 * and the same as before. ANSWER_LATER: there is more.
 */
struct answer slots_table(struct lead_session *ls, const struct attnd_wire_slots *w, const uint64_t *keys);

/* ---- reply.c ---- */

/** Completion slots that are free beside those set aside. -1: the client broke cq_head. */
int64_t reply_room(struct lead_session *ls);
void reply_put(struct lead_session *ls, uint32_t user_data, const struct answer *a);
/** Wake the client if it sleeps and completions have been put since the last call (R5). */
void reply_wake(struct lead_session *ls);

/* ---- explain.c ---- */

/** All live plans in words; to be freed. NULL: no memory. */
char *explain_plans(const struct leader *l);

/* ---- manage.c ---- */

/** Begin an administrator's command about a cache; false: it is none. It answers by itself. */
bool manage_begin(struct leader *l, const struct mail *m);
/** A slice of what was begun. False: there is nothing. */
bool manage_slice(struct leader *l);
/** Put them in force. */
void manage_limits(struct leader *l, const struct limits *limits);
/** Drop the pins whose time is over. */
void manage_expire(struct leader *l);
void manage_end(struct leader *l);
struct json_t *manage_pins(const struct leader *l);

/* ---- report.c ---- */
/** The leader's part of an administrator's answer. A new reference, or NULL. */
struct json_t *report_make(const struct leader *l, const char *command);

#endif
