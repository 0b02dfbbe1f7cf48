/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Pinned threads that run one function together, and the time it took.
 *
 * In:   a function.
 * Out:  seconds from the common start to the last end.
 * Next: bench-kernels.c.
 */
#ifndef ATTND_TESTS_BENCH_TEAM_H
#define ATTND_TESTS_BENCH_TEAM_H

typedef void team_fn(void *arg, int thread, int threads);

/** Starts up to `max` threads (this one is the first), one a CPU of those allowed. Returns how many there are. */
int team_start(int max);

/** Run fn on `threads` of them at once. */
double team_run(int threads, team_fn *fn, void *arg);

double now_seconds(void);

#endif
