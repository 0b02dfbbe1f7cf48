/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The team: threads that execute items of jobs.
 *
 * In:   jobs whose items are numbered, in phases. Out: every item run once, phase after phase.
 * Next: exec.c says what an item does.
 *
 * The leader is a member, too: it helps with items when its rings are empty. Urgent jobs (decodes)
 * go first; the others keep a fifth of each member's time. Members find work
 * by a ticket a job and NUMA node, (phase << 32 | next item), and take only items whose memory is
 * on their node; the last finisher of a phase opens the next.
 */
#ifndef ATTND_DAEMON_TEAM_H
#define ATTND_DAEMON_TEAM_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "topology.h"

enum { TEAM_JOBS = 64, TEAM_PHASES = 3 };

/** Memory that items use, grown as formats need it. */
struct member_memory {
	void *scratch, *partials;
	size_t scratch_bytes, partials_bytes;
	const void **blocks; /* exec.c's */
	const uint8_t **flags;
};

struct member {
	struct team *team;
	pthread_t thread;
	uint32_t index; /* 0: the leader */
	uint32_t node, cpu;
	uint32_t depth;		 /* 1: inside team_pause */
	uint32_t look;		 /* slot where it looks first: jobs of a kind have items run in turn */
	uint64_t slice_ns;	 /* when the current slice of an item began */
	uint64_t urgent_ns;	 /* spent on urgent items since such a slice */
	_Atomic uint64_t slices; /* begun and ended: odd in one. Its own; the heartbeat looks */
	uint64_t slices_seen;	 /* the heartbeat's, at its last look */
	struct member_memory memory[2];
};

static inline struct member_memory *member_memory(struct member *m)
{
	return &m->memory[m->depth];
}

/** Items of one phase: those of node n are [first[n], first[n + 1]). */
struct team_phase {
	uint32_t first[TOPOLOGY_MAX_NODES + 1];
};

/** What the team sees of a job; embedded in exec.c's. */
struct team_job {
	_Atomic uint64_t ticket[TOPOLOGY_MAX_NODES]; /* phase << 32 | next item of the node */
	_Atomic uint32_t done;			     /* items of the phase */
	_Atomic bool finished;	/* stored last, with release; pairs with the leader's acquire load */
	_Atomic bool cancelled; /* members skip what is left */
	bool urgent;		/* a decode: goes before other jobs */
	uint32_t num_nodes;
	struct team_phase phases[TEAM_PHASES];
	void (*run)(struct team_job *job, uint32_t phase, uint32_t item, struct member *m);
};

struct team {
	struct member *members;
	uint32_t num_members;
	uint32_t on_node[TOPOLOGY_MAX_NODES]; /* members; a node without any is served by all */
	bool pin;
	uint64_t spin_ns;
	void (*poll)(void *ctx); /* what the leader does between slices */
	void *poll_ctx;
	_Atomic uint32_t urgent;	    /* urgent jobs in slots */
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

/**
 * Start `threads` members, placed on the topology's nodes in turn; the first is the leader, which
 * calls team_pin itself. 0 or a negative errno.
 */
int team_init(struct team *t, const struct topology *topology, uint32_t threads, bool pin, uint64_t spin_us,
	      int leader_fd);
/** Keep the calling thread, which is member m, on its CPU, if the team is pinned. */
void team_pin(const struct member *m);
/** Stop and join; no job is running. */
void team_destroy(struct team *t);

/** Is there a slot for another job? */
bool team_has_room(const struct team *t);

/** Publish a job (its counts are set); false: no slot is free. */
bool team_submit(struct team *t, struct team_job *job);
/** Run one item of any job as member 0; false: nothing to do. */
bool team_help(struct team *t);
/** Take a finished job out of its slot; after this no member looks at it. */
void team_retire(struct team *t, struct team_job *job);
/** Run a whole job as member 0, without telling anyone. */
void team_run_alone(struct team *t, struct team_job *job);

/**
 * Between two slices (about 100 us) of an item of `job`: if it is not urgent, run urgent items for
 * up to four times what the slice took, so that decodes wait for a slice at most and extends keep
 * a fifth of the time. The leader looks at its rings, too.
 */
void team_pause(struct member *m, const struct team_job *job);

/** Grow a buffer of a member to `bytes`, 64-byte aligned; contents are lost. False: no memory. */
bool member_reserve(void **p, size_t *have, size_t bytes);

#endif
