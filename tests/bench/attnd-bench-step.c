/* SPDX-License-Identifier: Apache-2.0 */
/*
 * P10: a decode step of 32 layers through the daemon beside the same kernels in-process.
 *
 * In:   a daemon on a core of its own, and one on the client's cores, too.
 * Out:  time through the daemon / in-process with as many threads; microseconds a layer.
 * Next: report.h.
 *
 * K/V come from memory on both sides: short contexts go round several sets of sequences, long
 * ones go round 4 layers instead of 32 (512 MiB of K/V).
 */
#include <stdio.h>
#include <stdlib.h>

#include "local.h"
#include "remote.h"

enum { ALL_MAX = 8 }; /* rows of all sets */

static const struct step_case {
	const char *name;
	uint32_t rows, context, layers, sets;
	double goal;
} cases[] = {
	{"8x4k", 8, 4096, 4, 1, 1.05},
	{"8x512", 8, 512, LLAMA_LAYERS, 1, 1.10},
	{"1x256", 1, 256, LLAMA_LAYERS, 8, 1.5},
};
enum { CASES = sizeof(cases) / sizeof(cases[0]) };

/* Whose cores the daemon has. */
static const struct place {
	const char *name, *says;
	uint32_t threads;
	int first_cpu, cpus, spin_us, client_cpus;
	int64_t client_spin_us;
} places[] = {
	{"own", "the client on a core of its own", 1, 1, 1, 200, 1, 5000},
	{"shared", "the client on the daemon's cores", 2, 0, 2, -1, 2, -1},
};
enum { PLACES = sizeof(places) / sizeof(places[0]) };

struct side {
	struct daemon daemon;
	struct remote remote[CASES];
	uint64_t keys[CASES][ALL_MAX];
};

/* A step's tokens: each row's context ends with its own. */
static uint64_t case_tokens(const struct step_case *c)
{
	return (uint64_t)c->sets * c->rows * c->context;
}

static uint64_t all_bytes(void)
{
	uint64_t bytes = (uint64_t)256 << 20;

	for (int i = 0; i < CASES; i++) {
		struct shape s = llama_8b(cases[i].layers);

		bytes += case_tokens(&cases[i]) * kv_bytes(&s) * s.layers;
	}
	return bytes;
}

static void fill_side(struct side *s, const struct place *p)
{
	const struct daemon_options o = {.pool_bytes = all_bytes(),
					 .threads = p->threads,
					 .first_cpu = p->first_cpu,
					 .cpus = p->cpus,
					 .spin_us = p->spin_us};

	daemon_start(&s->daemon, &o);
	for (int i = 0; i < CASES; i++) {
		const struct step_case *c = &cases[i];
		const struct remote_options ro = {
			.spin_us = p->client_spin_us, .max_tokens = c->rows, .max_length = c->context};
		const struct shape shape = llama_8b(c->layers);
		struct remote *r = &s->remote[i];

		remote_open(r, &s->daemon, &shape, &ro);
		for (uint32_t row = 0; row < c->sets * c->rows; row++)
			s->keys[i][row] = remote_sequence(r, r->tokens, 1, NULL);
		remote_fill(r, s->keys[i], c->sets * c->rows, r->tokens, 0, c->context - 1, 0);
	}
}

static void free_side(struct side *s)
{
	for (int i = 0; i < CASES; i++)
		remote_close(&s->remote[i]);
	daemon_stop(&s->daemon);
}

/* In-process rows of one case. */
struct rows {
	struct local local;
	struct local_row row[ALL_MAX];
};

static void make_rows(struct rows *r, const struct step_case *c)
{
	const struct shape shape = llama_8b(c->layers);
	const uint32_t *tables[ALL_MAX];

	local_init(&r->local, &shape, case_tokens(c));
	local_sequences(&r->local, c->sets * c->rows, c->context, tables);
	for (uint32_t i = 0; i < c->sets * c->rows; i++)
		r->row[i] = (struct local_row){.blocks = tables[i], .length = c->context};
}

static void compare(struct rows *rows, struct side *side, int which, const struct place *p, double end)
{
	static struct samples ratio, here, there;
	const struct step_case *c = &cases[which];
	uint32_t lengths[ALL_MAX], set = 0;
	char name[64], text[160];

	ratio.n = here.n = there.n = 0;
	for (uint32_t i = 0; i < c->rows; i++)
		lengths[i] = c->context - 1;
	for (int round = 0; more(end, &ratio); round++) {
		double t[2] = {0};

		for (int turn = 0; turn < 2; turn++) {
			bool through = (turn + round) % 2;

			run_on(0, through ? p->client_cpus : 1);
			t[through] = through ? remote_step(&side->remote[which], side->keys[which] + set * c->rows,
							   lengths, c->rows, LLAMA_LAYERS)
					     : local_step(&rows->local, rows->row + set * c->rows, c->rows,
							  LLAMA_LAYERS, (int)side->daemon.threads);
		}
		set = (set + 1) % c->sets;
		sample_add(&ratio, t[1] / t[0]);
		sample_add(&here, t[0] * 1e6 / (int)LLAMA_LAYERS);
		sample_add(&there, t[1] * 1e6 / (int)LLAMA_LAYERS);
	}
	snprintf(name, sizeof(name), "P10.%s.%s", c->name, p->name);
	snprintf(text, sizeof(text), "step of 32 layers, %s / in-process, %u threads execute", p->says,
		 side->daemon.threads);
	report_ratio(name, &ratio, c->goal, false, text);
	snprintf(name, sizeof(name), "P10.%s.%s through the daemon", c->name, p->name);
	report_figure(name, sample_median(&there), "us a layer");
	snprintf(name, sizeof(name), "P10.%s.%s in-process", c->name, p->name);
	report_figure(name, sample_median(&here), "us a layer");
}

void goal_step(void)
{
	static struct side sides[PLACES];
	static struct rows rows;
	double end = now_seconds() + bench.seconds;
	/* A running daemon is where it is; and one CPU is shared. */
	int first = bench.socket || bench.cpus < 2 ? PLACES - 1 : 0;

	for (int p = 0; p < first; p++) {
		char name[32];

		snprintf(name, sizeof(name), "P10.%s", places[p].name);
		report_skipped(name, "needs two CPUs and a private daemon");
	}
	for (int p = first; p < PLACES; p++) {
		progress("P10: K/V for %s", places[p].says);
		fill_side(&sides[p], &places[p]);
	}
	for (int i = 0; i < CASES; i++) {
		make_rows(&rows, &cases[i]);
		for (int p = first; p < PLACES; p++) {
			double left = end - now_seconds(),
			       share = left / ((CASES - i) * (PLACES - first) - (p - first));

			progress("P10.%s.%s", cases[i].name, places[p].name);
			compare(&rows, &sides[p], i, &places[p], now_seconds() + share);
		}
		local_free(&rows.local);
	}
	for (int p = first; p < PLACES; p++)
		free_side(&sides[p]);
}
