/* SPDX-License-Identifier: Apache-2.0 */
/*
 * P4: 16 sequences that share a prefix, and 16 that share nothing.
 *
 * In:   a daemon with all CPUs; trees of prompts, with one, two and three depths of branching.
 * Out:  roof time / measured; speed-ups over kernels that read each sequence for itself.
 * Next: report.h.
 *
 * Roof time of a layer: the greater of its distinct K/V bytes / stream and its FLOPs / peak.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "local.h"
#include "plot.h"
#include "remote.h"

enum { ROWS = 16, OWN = 128, DEPTHS = 3 };

/* A tree of prompts over ROWS sequences: at each depth, groups of so many share up to `end`. */
static const struct tree {
	const char *name;
	uint32_t prefix; /* and r */
	uint32_t layers, jobs, depths;
	uint32_t group[DEPTHS];
} trees[] = {
	{"4k", 4096, 8, 16, 1, {16}},
	{"4k 2 deep", 4096, 8, 16, 2, {16, 4}},
	{"4k 3 deep", 4096, 8, 16, 3, {16, 8, 2}},
	{"32k", 32768, 4, 4, 1, {16}},
	{"nothing shared", 4096, 2, 4, 1, {1}},
};
enum { TREES = sizeof(trees) / sizeof(trees[0]), FIRST_4K = 0, LAST_4K = 2, LONG = 3, UNSHARED = 4 };

struct forest {
	uint32_t end[DEPTHS]; /* of what is shared at a depth */
	uint32_t length;      /* of every sequence, the token of this step included */
	uint64_t distinct;    /* tokens */
	uint64_t *tokens[ROWS];
	uint64_t keys[ROWS];
	uint32_t before[ROWS]; /* length - 1 */
	struct remote remote;
	struct local local;
	struct local_row row[ROWS];
	struct samples measured, roof, alone, speedup;
};

/* ---- Prompts ---- */

static uint32_t shared_with_leader(const struct tree *t, const struct forest *f, uint32_t row)
{
	uint32_t end = 0;

	for (uint32_t d = 0; d < t->depths; d++)
		if (row % t->group[d])
			end = f->end[d];
	return end;
}

/* The row that row's first tokens were taken from. */
static uint32_t leader(const struct tree *t, uint32_t row)
{
	for (uint32_t d = t->depths; d-- > 0;)
		if (row % t->group[d])
			return row / t->group[d] * t->group[d];
	return row;
}

static void make_prompts(const struct tree *t, struct forest *f)
{
	uint32_t shared = t->prefix + (uint32_t)random_below(256);

	f->length = shared + OWN;
	f->distinct = 0;
	for (uint32_t d = 0; d < t->depths; d++)
		f->end[d] = d + 1 == t->depths ? shared : shared * (d + 1) / t->depths - (uint32_t)random_below(256);
	for (uint32_t i = 0; i < ROWS; i++) {
		uint32_t from = shared_with_leader(t, f, i);

		f->tokens[i] = must(malloc(f->length * sizeof(uint64_t)));
		if (from)
			memcpy(f->tokens[i], f->tokens[leader(t, i)], from * sizeof(uint64_t));
		for (uint32_t k = from; k < f->length; k++)
			f->tokens[i][k] = random_below(UINT32_MAX);
		f->distinct += f->length - from;
		f->before[i] = f->length - 1;
	}
}

/* ---- Both sides ---- */

static void make_remote(const struct tree *t, struct forest *f, const struct daemon *d)
{
	const struct remote_options o = {.max_tokens = ROWS, .max_length = f->length};
	const struct shape s = llama_8b(t->layers);
	uint64_t hits = 0;

	remote_open(&f->remote, d, &s, &o);
	for (uint32_t i = 0; i < ROWS; i++) {
		uint64_t cached;

		f->keys[i] = remote_sequence(&f->remote, f->tokens[i], f->before[i], &cached);
		hits += cached;
		remote_fill(&f->remote, f->keys + i, 1, f->tokens[i], cached, f->before[i], f->length - OWN);
	}
	if (hits != (uint64_t)ROWS * f->length - f->distinct)
		die("P4: prompts shared %llu tokens, not %llu", (unsigned long long)hits,
		    (unsigned long long)(ROWS * f->length - f->distinct));
}

/* Blocks that are shared whole are the same in-process, too; each sequence still reads them for itself. */
static void make_local(const struct tree *t, struct forest *f)
{
	const struct shape s = llama_8b(t->layers);
	uint32_t blocks = (f->length + BLOCK - 1) / BLOCK;

	local_init(&f->local, &s, f->distinct + ROWS * 2 * BLOCK);
	for (uint32_t i = 0; i < ROWS; i++) {
		uint32_t shared = shared_with_leader(t, f, i) / BLOCK, *table = must(malloc(blocks * sizeof(*table)));
		const uint32_t *own;

		if (shared)
			memcpy(table, f->row[leader(t, i)].blocks, shared * sizeof(*table));
		local_sequences(&f->local, 1, (uint64_t)(blocks - shared) * BLOCK, &own);
		memcpy(table + shared, own, (blocks - shared) * sizeof(*table));
		f->row[i] = (struct local_row){.blocks = table, .length = f->length};
	}
}

static void free_forest(struct forest *f)
{
	remote_close(&f->remote);
	local_free(&f->local);
	for (uint32_t i = 0; i < ROWS; i++) {
		free(f->tokens[i]);
		free((void *)(uintptr_t)f->row[i].blocks);
	}
}

/* ---- Measuring ---- */

static double roof_seconds(const struct tree *t, const struct forest *f, int threads)
{
	const struct shape *s = &f->local.shape;
	double peak = peak_rate(threads);
	double bytes = (double)f->distinct * (double)kv_bytes(s);
	double flops = 4.0 * s->dim * s->heads * f->length * (double)ROWS;

	bytes /= stream_rate(f->local.pool, f->local.num_blocks * f->local.block_bytes, threads);
	/* Where no peak is known, bytes alone. */
	flops = peak > 0 ? flops / peak : 0;
	return (bytes > flops ? bytes : flops) * t->jobs;
}

static void measure(const struct tree *t, struct forest *f, int threads, double seconds)
{
	double end = now_seconds() + seconds;

	f->measured.n = f->roof.n = f->alone.n = f->speedup.n = 0;
	for (int round = 0; more(end, &f->roof); round++) {
		double time[2] = {0}, roof;

		for (int turn = 0; turn < 2; turn++) {
			bool through = (turn + round) % 2;

			run_on(0, through ? bench.cpus : 1);
			time[through] = through ? remote_step(&f->remote, f->keys, f->before, ROWS, t->jobs)
						: local_step(&f->local, f->row, ROWS, t->jobs, threads);
		}
		run_on(0, 1);
		roof = roof_seconds(t, f, threads);
		sample_add(&f->roof, roof / time[1]);
		sample_add(&f->speedup, time[0] / time[1]);
		sample_add(&f->alone, time[0] / t->jobs * 1e3);
		sample_add(&f->measured, time[1] / t->jobs * 1e3);
	}
}

/* For the plot: batches of the first rows. */
static void speedups(const struct tree *t, struct forest *f, int threads, double end)
{
	for (uint32_t n = 1; n <= ROWS; n *= 2) {
		double until = now_seconds() + (end - now_seconds()) / 4;

		f->speedup.n = 0;
		while (more(until, &f->speedup)) {
			double alone;

			run_on(0, 1);
			alone = local_step(&f->local, f->row, n, t->jobs, threads);
			run_on(0, bench.cpus);
			sample_add(&f->speedup, alone / remote_step(&f->remote, f->keys, f->before, n, t->jobs));
		}
		plot_batch(n, sample_median(&f->speedup));
	}
}

static void figures(const struct tree *t, const struct forest *f)
{
	char name[96];

	snprintf(name, sizeof(name), "P4 16 x %s", t->name);
	report_figure(name, sample_median(&f->measured), "ms a layer");
	snprintf(name, sizeof(name), "P4 16 x %s, in-process, each for itself", t->name);
	report_figure(name, sample_median(&f->alone), "ms a layer");
	snprintf(name, sizeof(name), "P4 16 x %s, roof time / measured", t->name);
	report_figure(name, sample_median(&f->roof), "");
	snprintf(name, sizeof(name), "P4 16 x %s, speed-up over each for itself", t->name);
	report_figure(name, sample_median(&f->speedup), "");
}

static uint64_t all_bytes(void)
{
	uint64_t bytes = (uint64_t)256 << 20;

	for (int i = 0; i < TREES; i++) {
		struct shape s = llama_8b(trees[i].layers);
		uint64_t tokens = trees[i].prefix + 512;

		for (uint32_t d = 1; d < trees[i].depths; d++)
			tokens += (uint64_t)trees[i].prefix * (ROWS / trees[i].group[d] - 1) / trees[i].depths;
		tokens *= trees[i].group[0] == 1 ? ROWS : 1;
		bytes += (tokens + ROWS * 2 * OWN) * kv_bytes(&s) * s.layers;
	}
	return bytes;
}

void goal_shared(void)
{
	static struct forest forest;
	static struct samples worst;
	const struct daemon_options o = {
		.pool_bytes = all_bytes(), .threads = (uint32_t)bench.cpus, .cpus = bench.cpus, .spin_us = -1};
	double end = now_seconds() + bench.seconds, shared_ms = 0;
	char text[128];
	struct daemon d;
	int threads;

	daemon_start(&d, &o);
	threads = (int)d.threads < bench.cpus ? (int)d.threads : bench.cpus;
	worst.n = 0;
	snprintf(text, sizeof(text), "16 sharing 4k, own 128, worst of 3 depths: roof time (%s) / measured",
		 peak_name());
	for (int i = 0; i < TREES; i++) {
		const struct tree *t = &trees[i];

		progress("P4: 16 sequences, %s", t->name);
		make_prompts(t, &forest);
		make_remote(t, &forest, &d);
		make_local(t, &forest);
		measure(t, &forest, threads, (end - now_seconds()) / (TREES - i) / 2);
		figures(t, &forest);
		if (i <= LAST_4K && (!worst.n || sample_median(&forest.roof) < sample_median(&worst)))
			worst = forest.roof;
		if (i == FIRST_4K)
			shared_ms = sample_median(&forest.measured);
		if (i == FIRST_4K && bench.plot)
			speedups(t, &forest, threads, now_seconds() + bench.seconds / 4);
		if (i == LAST_4K)
			report_ratio("P4.4k", &worst, 0.65, true, text);
		if (i == LONG)
			report_ratio("P4.32k", &forest.roof, 0.65, true,
				     "16 sharing 32k, own 128: roof time / measured");
		if (i == UNSHARED) {
			report_ratio("P4.unshared", &forest.speedup, 0.98, true,
				     "16 sharing nothing: own per-sequence kernel / measured");
			report_figure("P4 16 x 4k, speed-up over nothing shared",
				      sample_median(&forest.measured) / shared_ms, "");
		}
		free_forest(&forest);
	}
	daemon_stop(&d);
}
