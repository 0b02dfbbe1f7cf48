/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What C pays for a decode job: bench.py calls this on its own connection and job, in turn with its
 * own loop. In: a connection, a job. Out: nanoseconds a job.
 */
#include <stdint.h>
#include <time.h>

#include "../../client/attnd.h"

__attribute__((visibility("default"))) int64_t loop_decode(attnd_t *a, const struct attnd_attend *job, int n);
__attribute__((visibility("default"))) int64_t loop_copied(attnd_t *a, const struct attnd_copied *copied, int n);

static int64_t now_ns(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (int64_t)ts.tv_sec * 1000000000 + ts.tv_nsec;
}

int64_t loop_decode(attnd_t *a, const struct attnd_attend *job, int n)
{
	int64_t begin = now_ns();
	attnd_job_t id;

	for (int i = 0; i < n; i++)
		if (attnd_decode(a, job, &id) || attnd_wait(a, id, NULL))
			return -1;
	return (now_ns() - begin) / n;
}

int64_t loop_copied(attnd_t *a, const struct attnd_copied *copied, int n)
{
	int64_t begin = now_ns();

	for (int i = 0; i < n; i++)
		if (attnd_attend_copied(a, copied, NULL))
			return -1;
	return (now_ns() - begin) / n;
}
