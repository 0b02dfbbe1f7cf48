/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A daemon whose pool is kept in files, and K/V that are known.
 *
 * In:   prompts by number. Out: whether what is cached of them after a restart is right.
 * Next: the tests of this directory.
 */
#ifndef ATTND_TESTS_RESTART_KEPT_H
#define ATTND_TESTS_RESTART_KEPT_H

#include "../integration/toy.h"

struct kept {
	struct daemon daemon;
	char pool[64]; /* directory of its files */
	const char *args[16];
};

/** Start one; flags: further ones, NULL-terminated, or NULL. Asserts success. */
void kept_start(struct kept *k, const char *const *flags);

/** End it with a signal, until its socket is dead, too: the wait status. */
int kept_end(struct kept *k, int sig);

/** End it with a signal and start it again with these flags. */
void kept_restart(struct kept *k, int sig, const char *const *flags);

/** Start it again after it has ended. 0 or -errno: it has ended before it listened. */
int kept_again(struct kept *k, const char *const *flags);

/** The end of its log, as TAP comments. */
void kept_print_log(const struct kept *k);

/** End it, and its files. */
void kept_clean(struct kept *k);

/** Map a file of the pool ("attnd-meta"), of a daemon that has ended. */
void *kept_map(const struct kept *k, const char *name, size_t *ret_bytes);

/** A line of the log has this text. */
int kept_logged(const struct kept *k, const char *text);

/** A flag in the status by its path: 1, 0, -1: not there. */
int kept_flag(const struct kept *k, const char *name);

/** Wait until a number of the status is this, at most 10 s. Asserts it. */
void kept_wait_number(const struct kept *k, const char *path, int64_t want);

/** Use namespace `tenant` (0: none) and its K/V. */
void kept_tenant(struct toy *t, uint32_t tenant);

/**
 * Open `key` on the tokens, compare K and V of all that is cached with what toy_prefill writes, close.
 * How many tokens are cached; or a negative errno; -EILSEQ: K or V are others.
 */
int kept_check(struct toy *t, uint64_t key, const uint64_t *tokens, uint32_t n);

#endif
