/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How fast this machine's memory can be read: the roof under which attention's reading stands.
 *
 * In:   nothing. Out: GB/s of all CPUs together. Next: top.c.
 */
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>

#include "ctl.h"

enum { MAX_THREADS = 256, BYTES = 32 << 20, PIECE = 1 << 20 };
#define SECONDS 0.1

typedef uint64_t wide __attribute__((vector_size(64)));

struct reader {
	pthread_t thread;
	_Atomic int *start;
	double bytes, seconds;
	uint64_t sum;
};

static double now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static uint64_t read_piece(const wide *p)
{
	wide a = {0}, b = {0}, c = {0}, d = {0};

	for (size_t i = 0; i < PIECE / sizeof(*p); i += 4) {
		a += p[i];
		b += p[i + 1];
		c += p[i + 2];
		d += p[i + 3];
	}
	a += b + c + d;
	return a[0] ^ a[3] ^ a[7];
}

static void *reader_main(void *arg)
{
	struct reader *r = arg;
	char *data = aligned_alloc(64, BYTES);
	double began;

	(void)setpriority(PRIO_PROCESS, 0, 19); /* of this thread: who works goes first */
	if (!data)
		return NULL;
	memset(data, 1, BYTES);
	atomic_fetch_sub_explicit(r->start, 1, memory_order_acq_rel);
	for (double give_up = now() + 1; atomic_load_explicit(r->start, memory_order_acquire) > 0 && now() < give_up;)
		sched_yield();
	for (began = now(); r->seconds < SECONDS; r->seconds = now() - began)
		for (int i = 0; i < BYTES / PIECE; i++, r->bytes += (double)PIECE)
			r->sum += read_piece((const wide *)(const void *)(data + (size_t)i * PIECE));
	free(data);
	return NULL;
}

double ctl_measure_stream(void)
{
	static struct reader readers[MAX_THREADS];
	_Atomic int start;
	cpu_set_t cpus;
	int n = 1, made = 0;
	double sum = 0;

	if (!sched_getaffinity(0, sizeof(cpus), &cpus))
		n = CPU_COUNT(&cpus) < MAX_THREADS ? CPU_COUNT(&cpus) : MAX_THREADS;
	atomic_init(&start, n);
	for (int i = 0; i < n; i++) {
		readers[i] = (struct reader){.start = &start};
		if (pthread_create(&readers[i].thread, NULL, reader_main, &readers[i]))
			break;
		made++;
	}
	atomic_fetch_sub_explicit(&start, n - made, memory_order_acq_rel);
	for (int i = 0; i < made; i++) {
		pthread_join(readers[i].thread, NULL);
		if (readers[i].seconds > 0)
			sum += readers[i].bytes / readers[i].seconds / 1e9;
	}
	return sum;
}
