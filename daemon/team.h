/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The team: threads that execute items of jobs.
 *
 * In:   jobs whose items are numbered, in phases. Out: every item run once, phase after phase.
 * Next: exec.c says what an item does.
 *
 * The leader is a member, too: it helps with items when its rings are empty. Members find work
 * by a ticket a job, (phase << 32 | next item); the last finisher of a phase opens the next.
 */
#ifndef ATTND_DAEMON_TEAM_H
#define ATTND_DAEMON_TEAM_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { TEAM_JOBS = 64, TEAM_PHASES = 3 };

/** Memory of one member, grown as formats need it. */
struct member {
	struct team *team;
	pthread_t thread;
	uint32_t index; /* 0: the leader */
	void *scratch;
	size_t scratch_bytes;
	char *partials;
	size_t partials_bytes;
	const void **blocks; /* [4][max blocks of a chunk], exec.c's */
	const uint8_t **flags;
};

/** What the team sees of a job; embedded in exec.c's. */
struct team_job {
	_Atomic uint64_t ticket;
	_Atomic uint32_t done;	/* items of the phase */
	_Atomic bool finished;	/* stored last, with release; pairs with the leader's acquire load */
	_Atomic bool cancelled; /* members skip what is left */
	uint32_t count[TEAM_PHASES];
	void (*run)(struct team_job *job, uint32_t phase, uint32_t item, struct member *m);
};

struct team {
	struct member *members;
	uint32_t num_members;
	uint64_t spin_ns;
	_Alignas(128) _Atomic uint32_t seq; /* futex: grows when there may be work */
	_Atomic uint32_t sleepers;
	_Atomic bool stop;
	_Alignas(128) _Atomic bool leader_parked;
	int leader_fd; /* eventfd: a job has finished while the leader is parked */
	_Alignas(128) struct team_slot {
		_Atomic(struct team_job *) job;
		_Atomic uint32_t users; /* members that look at it */
	} slots[TEAM_JOBS];
};

/** Start `threads` members, the caller being the first. 0 or a negative errno. */
int team_init(struct team *t, uint32_t threads, uint64_t spin_us, int leader_fd);
/** Stop and join; no job is running. */
void team_destroy(struct team *t);

/** Publish a job (its counts are set); false: no slot is free. */
bool team_submit(struct team *t, struct team_job *job);
/** Run one item of any job as member 0; false: nothing to do. */
bool team_help(struct team *t);
/** Take a finished job out of its slot; after this no member looks at it. */
void team_retire(struct team *t, struct team_job *job);
/** Run a whole job as member 0, without telling anyone. */
void team_run_alone(struct team *t, struct team_job *job);

/** Grow a buffer of a member to `bytes`, 64-byte aligned; contents are lost. False: no memory. */
bool member_reserve(void **p, size_t *have, size_t bytes);

#endif
