/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the parts of the library share: the connection and its parts' entry points.
 *
 * In:   the public header, the wire, the shared-memory primitives.
 * Out:  struct attnd and the cl_ functions, none of them exported.
 * Next: conn.c and handshake.c (socket), ring.c (entries), jobs.c (requests), arena.c and heap.c
 *       (memory), objects.c, params.c, seq.c, plan.c, attend.c, peek.c, export.c, slots.c (the
 *       calls), private.c, strerror.c.
 */
#ifndef ATTND_CLIENT_INTERNAL_H
#define ATTND_CLIENT_INTERNAL_H

#include <errno.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "../proto/wire.h"
#include "../shm/futex.h"
#include "../shm/peek.h"
#include "../shm/region.h"
#include "../shm/ring.h"
#include "heap.h"

/* The tree is compiled with hidden visibility; what attnd.h declares is the exception. */
#pragma GCC visibility push(default)
#include "attnd.h"
#pragma GCC visibility pop

#define CL_GRACE_NS UINT64_C(1000000000) /* that a wait adds to its job's deadline */
#define CL_SLICE_NS UINT64_C(50000000)	 /* between two looks at the socket while a wait sleeps */
#define CL_IDLE_NS  UINT64_C(100000000)	 /* after which an idle connection is looked at before it is used */

#define CL_MAX_JOBS 65536 /* in flight and not yet reported */
#define CL_NONE	    UINT32_MAX

/* ---- Errors ---- */

struct cl_error {
	int error; /* the negative errno that the rest belongs to */
	uint16_t field;
	uint64_t limit;
	char detail[224]; /* the daemon's words, or "" */
	char text[512];	  /* what attnd_strerror answered last */
};

/** Note a failure for attnd_strerror and pass its number on. */
int cl_fail(struct attnd *a, int error, enum attnd_wire_field field, uint64_t limit);
/** The same with words behind the field instead of a limit. */
int cl_fail_field(struct attnd *a, int error, enum attnd_wire_field field, const char *text);
/** The same with words instead of a field. */
int cl_fail_text(struct attnd *a, int error, const char *text);
/** Keep a failed connect's error for attnd_strerror(NULL) of this thread. */
void cl_error_keep(const struct cl_error *e);

/* ---- Jobs ---- */

struct cl_job {
	uint64_t id;	     /* serial << 16 | slot; 0: the slot is free */
	uint32_t prev, next; /* in the list of its state */
	uint8_t state;	     /* enum cl_job_state */
	bool internal;	     /* of a blocking call: attnd_next does not report it */
	bool orphan;	     /* nobody will ask for it any more */
	bool waited;	     /* a wait for it timed out */
	bool has_value;	     /* its completion's value means something to the caller */
	uint16_t field;
	int32_t status;
	uint64_t value, limit;
	uint64_t until_ns; /* deadline and grace */
	void *scratch;	   /* arena memory that ends with the job */
	/*
	 * Called once, when the job has completed or could not be submitted (status < 0). Frees ctx.
	 * Writes to the caller's memory through ctx or ret only with status 0 and ret not NULL.
	 */
	void (*done)(struct attnd *a, struct cl_job *j);
	void *ctx;
	void *ret;
	uint64_t arg[3]; /* what `done` needs to know of the request */
};

enum cl_job_state { CL_JOB_FREE, CL_JOB_FLYING, CL_JOB_DONE };

/* A doubly linked list of slots. */
struct cl_list {
	uint32_t first, last;
};

struct cl_jobs {
	struct cl_job *job;
	uint32_t count, capacity;
	uint32_t first_free;
	struct cl_list flying; /* in the order of submission: the first is the oldest */
	struct cl_list done;   /* to be reported by attnd_next */
	uint64_t serial;       /* of the newest job */
	uint32_t in_flight;
};

/** A submission being built: fields of `sqe` and `job`, then cl_submit or cl_perform. */
struct cl_request {
	struct attnd_sqe sqe;
	struct cl_job job;
};

/** Whether a call may wait for room in the ring. */
enum cl_mode { CL_ASYNC, CL_WAIT };

/**
 * The first step of every call that talks to the daemon: not a forked child, connected (again),
 * and room for `need` entries. -ECHILD, -EAGAIN, errors of the connection.
 */
int cl_enter(struct attnd *a, uint32_t need, enum cl_mode mode);

/** Start building; deadline_us 0 means the connection's default. -EINVAL (deadline). */
int cl_request_init(struct attnd *a, struct cl_request *r, enum attnd_opcode op, uint64_t deadline_us);
/** Set arena scratch of this size aside for the request; it ends with the job. */
int cl_request_scratch(struct attnd *a, struct cl_request *r, size_t bytes, void **ret, uint64_t *ret_offset);
/** Give up a request that is not submitted: runs `done` with this status. Returns status. */
int cl_request_drop(struct attnd *a, struct cl_request *r, int status);
/** Submit. On failure the request is dropped. */
int cl_submit(struct attnd *a, struct cl_request *r, attnd_job_t *ret_job);
/** Submit on behalf of a blocking call and wait. Returns the job's status; *ret_value (may be NULL) with 0. */
int cl_perform(struct attnd *a, struct cl_request *r, uint64_t *ret_value);
/** Submit a job that attnd_next does not report; collect it by cl_collect. */
int cl_submit_internal(struct attnd *a, struct cl_request *r, attnd_job_t *ret_job);
int cl_collect(struct attnd *a, attnd_job_t job, uint64_t *ret_value);
/** cl_submit or cl_perform. */
int cl_go(struct attnd *a, struct cl_request *r, enum cl_mode mode, attnd_job_t *ret_job);

int cl_jobs_init(struct cl_jobs *t, uint32_t entries);
void cl_jobs_destroy(struct attnd *a);
/** Complete every job in flight with -ECONNRESET. */
void cl_jobs_reset(struct attnd *a);
/** Take one completion in. False: no such job is in flight (the daemon is not to be trusted). */
bool cl_jobs_complete(struct attnd *a, const struct attnd_cqe *cqe);
/** The serial of the oldest job in flight, or UINT64_MAX. */
uint64_t cl_jobs_oldest(const struct cl_jobs *t);

/* ---- Rings ---- */

/** Publish one entry; ring the doorbell if the leader sleeps. The caller knows that there is room. */
void cl_ring_put(struct attnd *a, const struct attnd_sqe *sqe);
/** Take all completions that are there; ends the connection if one is wrong. Returns how many. */
uint32_t cl_ring_reap(struct attnd *a);
/** The same without ending it: false if one was wrong. */
bool cl_ring_drain(struct attnd *a);
/** One bounded step of waiting for completions, until `until_ns` at most. Notices a lost connection. */
void cl_ring_wait(struct attnd *a, uint64_t until_ns);
/** Ask for a byte on the wake socket with the next completion. True: completions are there already. */
bool cl_ring_arm(struct attnd *a);
/** After cl_ring_arm: take the bytes off the wake socket. */
void cl_ring_disarm(struct attnd *a);

/* ---- Connection ---- */

enum cl_state { CL_DOWN, CL_RESTORING, CL_UP };

/** Check that the daemon is there; if not, end the connection's rings and jobs. True: it is. */
bool cl_check_alive(struct attnd *a);
/** The connection is gone: take what has completed, reset the rest. */
void cl_lost(struct attnd *a);
/** Connect once, before until_ns: socket, handshake, rings. */
int cl_dial(struct attnd *a, uint64_t until_ns);
/** Connect again and restore, within the connect timeout. */
int cl_reconnect(struct attnd *a);
/** Send a segment's registration and wait for the answer. */
int cl_segment_add(struct attnd *a, uint32_t index, const struct attnd_region *region);
/** Coarse monotonic nanoseconds: no system call. */
uint64_t cl_now_coarse(void);

/** attnd_connect with retries while nobody listens yet; `failed` (may be NULL) ends them early. */
int cl_connect(struct attnd **ret, const struct attnd_connect_options *options, const char *socket_path,
	       int (*failed)(void *), void *arg);

/** True in a process that forked off the one that connected. */
static inline bool cl_forked(const struct attnd *a);

/* ---- Arena ---- */

struct cl_segment {
	struct attnd_region region;
	struct cl_heap *heap;
};

struct cl_arena {
	struct cl_segment segment[ATTND_MAX_SEGMENTS];
	uint32_t count;
	struct cl_block *pending, *pending_last; /* freed while jobs were in flight, oldest first */
};

int cl_arena_alloc(struct attnd *a, size_t bytes, void **ret);
/** Free at once: no job uses it. NULL is fine. */
void cl_arena_release(struct attnd *a, void *p);
/** Free what waited for jobs that have completed. */
void cl_arena_settle(struct attnd *a);
/** The wire's name of a pointer, or ATTND_OFFSET_NONE for one that is not in the arena. */
uint64_t cl_arena_offset(const struct attnd *a, const void *p);
int cl_arena_restore(struct attnd *a);
void cl_arena_destroy(struct attnd *a);

/* ---- Objects that a reconnection restores ---- */

struct cl_scale {
	float k, v;
	bool set;
};

struct cl_cache {
	uint32_t handle; /* the caller's number */
	uint16_t wire;	 /* the daemon's, now */
	struct attnd_wire_cache identity;
	uint64_t grant_tokens;
	uint32_t grant_sequences;
	struct cl_scale *scales; /* [num_layers], or NULL */
};

struct cl_namespace {
	uint32_t id;   /* the caller's number */
	uint32_t wire; /* the daemon's, now */
	uint32_t bytes;
	unsigned char fields[];
};

struct cl_params {
	struct attnd_wire_params wire; /* `cache` is the caller's number */
	uint32_t num_heads;	       /* floats of each: */
	bool sinks, alibi;
	float floats[]; /* sinks, then alibi */
};

struct cl_objects {
	struct cl_cache caches[ATTND_MAX_CACHES];
	uint32_t num_caches;
	struct cl_namespace **namespaces;
	uint32_t num_namespaces;
	struct cl_params *params[ATTND_MAX_PARAMS];
};

/** The daemon's number of a cache or namespace; numbers of other sessions pass as they are. */
int cl_cache_wire(struct attnd *a, uint32_t handle, uint16_t *ret);
uint32_t cl_namespace_wire(const struct attnd *a, uint32_t id);
/** The record of a cache that this connection opened, or NULL. */
struct cl_cache *cl_cache_find(struct attnd *a, uint32_t handle);
int cl_params_restore(struct attnd *a, uint32_t id);
int cl_engine_join(struct attnd *a, bool first);
int cl_objects_restore(struct attnd *a);
void cl_objects_destroy(struct attnd *a);

/* ---- Sequences ---- */

struct cl_seq;
struct cl_plan;

struct cl_seqs {
	struct cl_seq **bucket;
	size_t num_buckets, count;
	struct cl_plan *plans; /* live, newest first */
	uint32_t num_plans;
};

/** True if this connection opened the sequence before the last reconnection, and not again. */
bool cl_seq_stale(const struct attnd *a, uint64_t key);
/** A row of `count` tokens from `start` was accepted: the sequence ends at `start` until it is committed. */
void cl_seq_apply(struct attnd *a, uint64_t key, uint64_t start, const uint64_t *tokens, uint32_t count);
/** The row's plan has ended well: its tokens count. */
void cl_seq_commit(struct attnd *a, uint64_t key, uint64_t length);
void cl_seqs_destroy(struct attnd *a);

/** The LAST job of a plan has succeeded. */
void cl_plan_committed(struct attnd *a, uint32_t tag);
/** Forget a plan, or all. */
void cl_plan_forget(struct attnd *a, uint32_t tag);
void cl_plans_destroy(struct attnd *a);
/** Fill in a PLAN; the caller has entered. */
int cl_plan_build(struct attnd *a, struct cl_request *r, uint32_t tag, uint32_t cache, const struct attnd_row *rows,
		  uint32_t num_rows, struct attnd_row_status *ret_status, uint64_t deadline_us);

/* ---- Looking without asking ---- */

struct cl_peek_key {
	uint32_t cache, ns; /* the caller's numbers */
	uint32_t block_size;
	uint8_t key[ATTND_PEEK_KEY];
};

struct cl_peek {
	struct attnd_region region;
	struct attnd_peek_table table; /* in it; entries NULL: none */
	struct cl_peek_key *keys;      /* of this connection to the daemon */
	uint32_t num_keys, cap_keys;
	uint64_t *hashes; /* scratch */
	uint64_t cap_hashes;
};

/** Map the lookup region that came with the welcome. Takes fd over on success. */
int cl_peek_map(struct attnd *a, int fd, uint64_t bytes);
/** Forget the region and the keys of a daemon that is gone. */
void cl_peek_unmap(struct attnd *a);
void cl_peek_destroy(struct attnd *a);

/* ---- A private daemon ---- */

struct cl_private;
/** End the daemon and remove its directory. NULL is fine. */
void cl_private_destroy(struct cl_private *p);

/* ---- The connection ---- */

struct attnd {
	/* What every submission looks at. */
	const volatile uint32_t *same_process; /* 1; reads 0 in a forked child (MADV_WIPEONFORK) */
	pid_t pid;			       /* compared instead where the kernel has no such page; else 0 */
	enum cl_state state;
	struct attnd_session_region *shared;
	struct attnd_ring sq, cq;
	uint32_t room;	   /* entries that may be in flight */
	bool armed;	   /* cq_waiting is 2 */
	bool planned;	   /* a plan was sent since the last reconnection */
	bool ended;	   /* by attnd_shutdown: not made again */
	uint32_t epoch;	   /* reconnections so far */
	uint64_t alive_ns; /* when a completion or a look at the socket last said so; coarse */
	struct cl_jobs jobs;
	struct cl_arena arena;

	int sock, wake, poll_fd;
	struct attnd_region session;
	uint32_t max_segments;
	uint64_t max_segment_bytes;
	int daemon_pid;
	uint32_t abi_minor; /* the daemon's: what was added to the protocol that it knows */

	/* The options. */
	char *path;
	char name[32];
	uint32_t entries;
	uint64_t timeout_ns, default_deadline_us, spin_ns;
	uint32_t priority;
	uint8_t engine_id[16];
	bool has_engine, engine_create;
	int owner_pidfd;

	struct cl_objects objects;
	struct cl_seqs seqs;
	struct cl_peek peek;
	struct cl_private *private_daemon;
	struct cl_error *error;
};

static inline bool cl_forked(const struct attnd *a)
{
	return !*a->same_process || (a->pid && a->pid != getpid());
}

static inline uint64_t cl_min_u64(uint64_t x, uint64_t y)
{
	return x < y ? x : y;
}

#endif
