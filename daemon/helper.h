/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Work that may take long or block for ever on a client's descriptor: done by a thread of its
 * own, so that the control thread waits for nobody.
 *
 * In:   a job of segments.c or clients.c. Out: its `done`, called in the loop's thread.
 * Next: back to who started it.
 *
 * A thread a job: whoever bounds the jobs (a session has at most a few) bounds the threads, and
 * the scheduler shares the CPUs between a large client and a small one.
 */
#ifndef ATTND_DAEMON_HELPER_H
#define ATTND_DAEMON_HELPER_H

#include "loop.h"

struct helpers;

struct helper_job {
	void (*run)(struct helper_job *job);  /* in the thread */
	void (*done)(struct helper_job *job); /* in the loop; frees the job */
	struct helpers *helpers;
	struct helper_job *next;
};

int helpers_create(struct loop *l, struct helpers **ret);

/** Wait for the threads, at most a second: one that a client's file system blocks is left. NULL is fine. */
void helpers_destroy(struct helpers *h);

/** Start the job; without a thread to be had it is run at once. `done` is always called later. */
void helper_start(struct helpers *h, struct helper_job *job);

#endif
