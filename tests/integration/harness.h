/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A daemon of the test's own, and what can be seen of a process from outside.
 *
 * In:   flags. Out: a running daemon; its status as JSON; memory, descriptors and CPU time of a pid.
 * Next: the tests of this directory.
 */
#ifndef ATTND_TESTS_INTEGRATION_HARNESS_H
#define ATTND_TESTS_INTEGRATION_HARNESS_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <jansson.h>
#include <sys/types.h>

#include "../../client/attnd.h"
#include "../common.h"

struct daemon {
	pid_t pid; /* 0: none */
	char dir[64];
	char socket[80], admin[88];
	char config[80]; /* an empty file: written to by who tries a reload */
};

/** Start $ATTND_DAEMON with further flags (NULL-terminated, or NULL) and wait until it listens. 0 or -errno. */
int daemon_start(struct daemon *d, const char *const *args);

/** Start one that has ended again, on the same socket. */
int daemon_again(struct daemon *d, const char *const *args);

/** Send a signal, wait at most 30 s: the wait status, or -ETIMEDOUT (then it is killed). */
int daemon_end(struct daemon *d, int sig);

/** It stands still from when this returns until daemon_thaw(). 0 or -errno. */
int daemon_freeze(struct daemon *d);
void daemon_thaw(struct daemon *d);

/** End it if it runs, remove its directory; its log becomes TAP comments when it did not exit 0. */
void daemon_clean(struct daemon *d);

/** Run `attnctl COMMAND --json` on the administrators' socket. NULL on failure. */
json_t *daemon_json(const struct daemon *d, const char *command);

/** A number in the status by its path ("sessions", "caches.0.free"); -1 if it is not there. */
int64_t daemon_number(const struct daemon *d, const char *path);

/** What is in use: sessions, sequences, referenced bytes of the pool, arena bytes, of the whole daemon. */
struct in_use {
	int64_t sessions, sequences, referenced, arena_bytes;
};
void daemon_in_use(const struct daemon *d, struct in_use *ret);

/** Poll until `want` holds, at most 10 s: asserts it. */
void daemon_wait_in_use(const struct daemon *d, const struct in_use *want);

/** Connect the library to this daemon. Asserts success. */
attnd_t *daemon_connect(const struct daemon *d);

/** Resident pages (KiB), open descriptors and CPU ticks of a process; -1 if it is gone. */
int64_t proc_rss_kib(pid_t pid);
int64_t proc_fds(pid_t pid);
int64_t proc_ticks(pid_t pid);

void sleep_ms(unsigned ms);

#endif
