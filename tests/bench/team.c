/* SPDX-License-Identifier: Apache-2.0 */
/*
 * team.h: threads that sleep between runs and meet by spinning at each start.
 *
 * In:   a function a run.
 * Out:  its time.
 * Next: bench-kernels.c.
 */
#include "team.h"

#include <pthread.h>
#include <sched.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <time.h>

enum { MAX_THREADS = 2 };

static struct {
	int count;
	sem_t wake[MAX_THREADS];
	team_fn *fn;
	void *arg;
	int threads;
	atomic_int ready, go, done;
} team;

double now_seconds(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void *helper(void *number)
{
	int me = (int)(long)number;

	for (;;) {
		while (sem_wait(&team.wake[me]) != 0)
			;
		atomic_fetch_add(&team.ready, 1);
		while (!atomic_load_explicit(&team.go, memory_order_acquire))
			;
		team.fn(team.arg, me, team.threads);
		atomic_fetch_add_explicit(&team.done, 1, memory_order_release);
	}
	return NULL;
}

/* The n-th allowed CPU, alone. False: there is none. */
static int nth_cpu(const cpu_set_t *allowed, int n, cpu_set_t *ret)
{
	for (size_t cpu = 0; cpu < CPU_SETSIZE; cpu++)
		if (CPU_ISSET(cpu, allowed) && n-- == 0) {
			CPU_ZERO(ret);
			CPU_SET(cpu, ret);
			return 1;
		}
	return 0;
}

int team_start(int max)
{
	cpu_set_t allowed, one;

	team.count = 1;
	if (sched_getaffinity(0, sizeof(allowed), &allowed) != 0)
		return team.count;
	for (int i = 1; i < max && i < MAX_THREADS && nth_cpu(&allowed, i, &one); i++) {
		pthread_attr_t attr;
		pthread_t thread;

		sem_init(&team.wake[i], 0, 0);
		pthread_attr_init(&attr);
		pthread_attr_setaffinity_np(&attr, sizeof(one), &one);
		if (pthread_create(&thread, &attr, helper, (void *)(long)i) != 0)
			break;
		pthread_detach(thread);
		pthread_attr_destroy(&attr);
		team.count++;
	}
	if (nth_cpu(&allowed, 0, &one))
		sched_setaffinity(0, sizeof(one), &one);
	return team.count;
}

double team_run(int threads, team_fn *fn, void *arg)
{
	double start;

	team.fn = fn;
	team.arg = arg;
	team.threads = threads;
	atomic_store(&team.ready, 0);
	atomic_store(&team.done, 0);
	atomic_store(&team.go, 0);
	for (int i = 1; i < threads; i++)
		sem_post(&team.wake[i]);
	while (atomic_load(&team.ready) < threads - 1)
		;
	start = now_seconds();
	atomic_store_explicit(&team.go, 1, memory_order_release);
	fn(arg, 0, threads);
	while (atomic_load_explicit(&team.done, memory_order_acquire) < threads - 1)
		;
	return now_seconds() - start;
}
