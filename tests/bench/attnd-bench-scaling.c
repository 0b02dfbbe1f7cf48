/* SPDX-License-Identifier: Apache-2.0 */
/*
 * P7: does a token cost the same in a long context, a sequence in a large batch, a byte with a
 * second worker?
 *
 * In:   a daemon with all CPUs, one with a single thread; one layer of K/V, from memory.
 * Out:  slowest / fastest context; batch 64 / batch 1; two workers / one over stream's own scaling.
 * Next: report.h; context against ns/token for the plot.
 *
 * Plans are made before the clock starts: a model's step makes one for all its layers.
 */
#include <stdio.h>
#include <stdlib.h>

#include "local.h"
#include "plot.h"
#include "remote.h"

enum { LONG = 131072, SOME = 8, SOME_CONTEXT = 16384, BATCH = 64, BATCH_CONTEXT = 1024, WORKERS_CONTEXT = 8192 };

/* So many sequences of a context, one after the other. */
struct set {
	uint32_t context, num;
	uint64_t keys[BATCH];
};

struct scaling {
	struct daemon daemon;
	struct remote remote;
	struct set batch;
};

/* New ones, or forks of others' beginnings. */
static void make_set(struct remote *r, struct set *s, uint32_t context, uint32_t num, const struct set *of)
{
	*s = (struct set){.context = context, .num = num};
	for (uint32_t i = 0; i < num; i++)
		s->keys[i] = of ? remote_fork(r, of->keys[i], context - 1) : remote_sequence(r, r->tokens, 1, NULL);
	if (!of)
		remote_fill(r, s->keys, num, r->tokens, 0, context - 1, 0);
}

/* Nanoseconds a token of a set, in batches of so many. */
static double time_set(struct remote *r, const struct set *s, uint32_t batch)
{
	uint32_t before[BATCH];
	double seconds = 0;

	for (uint32_t i = 0; i < batch; i++)
		before[i] = s->context - 1;
	for (uint32_t i = 0; i < s->num; i += batch)
		seconds += remote_job(r, s->keys + i, before, batch);
	return seconds / s->num / s->context * 1e9;
}

static void start(struct scaling *s, uint64_t tokens, uint32_t threads)
{
	const struct shape shape = llama_8b(1);
	const struct daemon_options o = {.pool_bytes = tokens * kv_bytes(&shape) + ((uint64_t)128 << 20),
					 .threads = threads,
					 .first_cpu = bench.cpus - (int)threads,
					 .cpus = (int)threads,
					 .spin_us = -1};
	const struct remote_options ro = {.max_tokens = BATCH, .max_length = LONG};

	daemon_start(&s->daemon, &o);
	remote_open(&s->remote, &s->daemon, &shape, &ro);
}

static void stop(struct scaling *s)
{
	remote_close(&s->remote);
	daemon_stop(&s->daemon);
}

/* ---- Contexts ---- */

static void contexts(struct remote *r, const struct set *some, double end)
{
	enum { SETS = 4 };
	static struct set sets[SETS];
	static struct samples ns[SETS], ratio;
	char name[64];
	int most = 0, least = 0;

	make_set(r, &sets[3], LONG, 1, NULL);
	make_set(r, &sets[2], LONG / 2, 1, &sets[3]);
	sets[1] = *some;
	make_set(r, &sets[0], SOME_CONTEXT / 4, SOME, some);
	ratio.n = 0;
	for (int i = 0; i < SETS; i++)
		ns[i].n = 0;
	for (int round = 0; more(end, &ns[0]); round++)
		for (int turn = 0; turn < SETS; turn++) {
			int i = (turn + round) % SETS;

			sample_add(&ns[i], time_set(r, &sets[i], 1));
		}
	for (int i = 1; i < SETS; i++) {
		most = sample_median(&ns[i]) > sample_median(&ns[most]) ? i : most;
		least = sample_median(&ns[i]) < sample_median(&ns[least]) ? i : least;
	}
	for (int i = 0; i < ns[0].n; i++)
		sample_add(&ratio, ns[most].x[i] / ns[least].x[i]);
	report_ratio("P7.context", &ratio, 1.10, false,
		     "ns a token, the slowest in the median / the fastest of contexts 4k, 16k, 64k, 128k");
	for (int i = 0; i < SETS; i++) {
		snprintf(name, sizeof(name), "P7 context %uk", sets[i].context / 1024);
		report_figure(name, sample_median(&ns[i]), "ns a token");
		plot_context(sets[i].context, sample_median(&ns[i]));
	}
}

/* ---- Batches ---- */

static void batches(struct remote *r, const struct set *s, double end)
{
	static struct samples ratio, one, all;

	ratio.n = one.n = all.n = 0;
	for (int round = 0; more(end, &ratio); round++) {
		double t[2] = {0};

		for (int turn = 0; turn < 2; turn++) {
			int large = (turn + round) % 2;

			t[large] = time_set(r, s, large ? BATCH : 1);
		}
		sample_add(&ratio, t[0] / t[1]);
		sample_add(&one, (double)kv_bytes(&r->shape) / t[0]);
		sample_add(&all, (double)kv_bytes(&r->shape) / t[1]);
	}
	report_ratio("P7.batch", &ratio, 0.95, true, "bytes a second, batch 64 / batch 1, 1k each");
	report_figure("P7 batch 1", sample_median(&one), "GB/s");
	report_figure("P7 batch 64", sample_median(&all), "GB/s");
}

/* ---- Workers ---- */

static void workers(struct scaling *two, const struct set *some, double end)
{
	static struct scaling one;
	static struct samples ratio, own, stream;
	struct set single, both;
	const size_t bytes = (size_t)256 << 20;
	char *memory = allocate(bytes);

	random_values((uint16_t *)(void *)memory, bytes / sizeof(uint16_t));
	start(&one, (uint64_t)SOME * WORKERS_CONTEXT, 1);
	make_set(&one.remote, &single, WORKERS_CONTEXT, SOME, NULL);
	make_set(&two->remote, &both, WORKERS_CONTEXT, SOME, some);
	ratio.n = own.n = stream.n = 0;
	for (int round = 0; more(end, &ratio); round++) {
		double t[2] = {0}, rate[2];

		for (int turn = 0; turn < 2; turn++) {
			int i = (turn + round) % 2;

			run_on(0, i ? bench.cpus : 1);
			t[i] = time_set(i ? &two->remote : &one.remote, i ? &both : &single, SOME);
		}
		run_on(0, 1);
		for (int i = 0; i < 2; i++)
			rate[i] = stream_rate(memory, bytes, i + 1);
		sample_add(&own, t[0] / t[1]);
		sample_add(&stream, rate[1] / rate[0]);
		sample_add(&ratio, t[0] / t[1] * rate[0] / rate[1]);
	}
	report_ratio("P7.workers", &ratio, 0.97, true, "8 x 8k, two workers / one, over stream's own scaling");
	report_figure("P7 two workers / one", sample_median(&own), "");
	report_figure("P7 stream, two threads / one", sample_median(&stream), "");
	stop(&one);
	release(memory, bytes);
}

void goal_scaling(void)
{
	static struct scaling s;
	double end = now_seconds() + bench.seconds;
	struct set some, batch;

	progress("P7: K/V");
	start(&s, LONG + SOME * SOME_CONTEXT + BATCH * BATCH_CONTEXT + 4096, (uint32_t)bench.cpus);
	run_on(0, bench.cpus);
	make_set(&s.remote, &some, SOME_CONTEXT, SOME, NULL);
	make_set(&s.remote, &batch, BATCH_CONTEXT, BATCH, NULL);
	progress("P7: batches");
	batches(&s.remote, &batch, now_seconds() + (end - now_seconds()) / 4);
	if (bench.cpus < 2 || bench.socket) {
		report_skipped("P7.workers", "needs two CPUs and a private daemon");
	} else {
		progress("P7: workers");
		workers(&s, &some, now_seconds() + (end - now_seconds()) / 2);
	}
	run_on(0, bench.cpus);
	progress("P7: contexts");
	contexts(&s.remote, &some, end);
	stop(&s);
}
