/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The control thread's event loop: descriptors and timers, over io_uring or epoll.
 *
 * In:   descriptors to watch, deadlines to keep. Out: calls of their owners' functions.
 * Next: loop_uring.c or loop_epoll.c waits; control.c, client.c and admin.c are called.
 *
 * Watching is level-triggered: a function that leaves something to read is called again. All of
 * it belongs to one thread. A function may remove any source, its own included.
 */
#ifndef ATTND_DAEMON_LOOP_H
#define ATTND_DAEMON_LOOP_H

#include <stdbool.h>
#include <stdint.h>

#include "config.h"

struct loop;
struct loop_source;

/** poll(2) events that came; 0 for a timer. */
typedef void loop_fn(void *arg, uint32_t events);

/** Monotonic nanoseconds; a parameter so that tests need not sleep. NULL: the machine's. */
typedef uint64_t loop_clock_fn(void);

/**
 * Make a loop. CONFIG_LOOP_AUTO takes epoll where io_uring_setup is refused. The choice, and the
 * reason of a refusal, are logged. 0 or a negative errno.
 */
int loop_create(enum config_event_loop kind, loop_clock_fn *clock, struct loop **ret);

/** Frees the sources that are left, not their descriptors. NULL is fine. */
void loop_destroy(struct loop *l);

/** "io_uring" or "epoll". */
const char *loop_name(const struct loop *l);

uint64_t loop_now(const struct loop *l);

/** Watch fd for POLLIN or POLLOUT (errors and hang-ups always come). The fd stays the caller's. */
int loop_add_fd(struct loop *l, int fd, uint32_t events, loop_fn *fn, void *arg, struct loop_source **ret);

/** A timer, not yet set. */
int loop_add_timer(struct loop *l, loop_fn *fn, void *arg, struct loop_source **ret);

/** Fire once at `ns` of the loop's clock; UINT64_MAX: not at all. */
void loop_set_timer(struct loop *l, struct loop_source *s, uint64_t ns);

/** Forget a source; before its descriptor is closed. Its function is not called again. NULL is fine. */
void loop_remove(struct loop *l, struct loop_source *s);

/** Wait at most max_ns (0: only look) and call what is due. 0 or a negative errno. */
int loop_run_once(struct loop *l, uint64_t max_ns);

/** Run until loop_stop. */
int loop_run(struct loop *l);
void loop_stop(struct loop *l);

/* ---- Between loop.c and its backends ---- */

struct loop_source {
	int fd; /* -1: a timer */
	uint32_t events;
	loop_fn *fn;
	void *arg;
	uint64_t due;			   /* a timer's; UINT64_MAX: not set */
	struct loop_source *next, **pprev; /* all sources; timers in order of `due` */
	bool dead;			   /* removed: freed when no longer armed and not in a call */
	bool armed;			   /* io_uring: a poll is in the kernel's hands */
};

struct loop_backend {
	const char *name;
	int (*open)(void **ret_state);
	void (*close)(void *state);
	int (*add)(void *state, struct loop_source *s);
	void (*remove)(void *state, struct loop_source *s);
	/* Wait and call those that are not dead; UINT64_MAX: no limit. */
	int (*wait)(void *state, uint64_t ns);
};

extern const struct loop_backend loop_uring, loop_epoll;

#endif
