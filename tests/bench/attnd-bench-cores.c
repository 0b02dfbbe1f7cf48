/* SPDX-License-Identifier: Apache-2.0 */
/*
 * P11: two model runners on two cores, with attnd and without.
 *
 * In:   decode steps at the layer shapes of a 1B Llama, random weights, BLAS matmuls in the
 *       runners; attention by attnd on the same cores or on one of its own, or in-process.
 * Out:  tokens a second through attnd / in-process, nothing shared and under a common prompt.
 * Next: report.h; docs/cores.md.
 *
 * To stay within memory a runner has one layer's weights (f32, 243 MB: always read from memory)
 * and two layers' K/V, and goes round them 16 times a step. In-process, sequences under a prompt
 * share its blocks within a runner, and each reads them for itself.
 */
#include <cblas.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "local.h"
#include "peers.h"
#include "remote.h"

enum {
	RUNNERS = 2,
	ROWS = 16,
	MODEL_LAYERS = 16,
	KV_LAYERS = 2,
	HIDDEN = 2048,
	INNER = 8192,
	HEADS = 32,
	KV_HEADS = 8,
	DIM = 64,
	QKV = (HEADS + 2 * KV_HEADS) * DIM,
	PROMPT = 2048,
	LENGTH = 2253,		 /* tokens, this step's included */
	TOKENS = RUNNERS * ROWS, /* of a step of both */
	MODEL = 1,
};
static const struct shape shape = {.layers = KV_LAYERS, .heads = HEADS, .kv_heads = KV_HEADS, .dim = DIM};

/* Whose attention, on whose cores. */
enum way { IN_PROCESS, SHARED_CORES, SPLIT_CORES, WAYS };
enum prompts { OWN, COMMON, PROMPTS };
static const char *const way_names[WAYS] = {"in-process", "shared", "split"};
static const char *const prompt_names[PROMPTS] = {"own", "prompt"};

/* Shared by the runners and this process. */
struct order {
	_Atomic uint32_t go, done; /* rounds begun; runners that have finished one, in all */
	_Atomic uint32_t ready;	   /* runners */
	enum way way;
	enum prompts prompts;
	int starting; /* number of the runner that starts */
	const struct daemon *daemons;
};

/* ---- A runner ---- */

struct weights {
	float *qkv, *o, *gate_up, *down;
};

struct runner {
	int number;
	struct weights weights;
	float *x, *qkv, *attended, *inner; /* [ROWS][...] */
	struct local local[PROMPTS];
	struct local_row rows[PROMPTS][ROWS];
	struct remote remote[PROMPTS][WAYS];
	uint64_t keys[PROMPTS][WAYS][ROWS];
	uint32_t before[ROWS];
};

static float *random_matrix(size_t columns, size_t rows)
{
	float *m = allocate(rows * columns * sizeof(*m)), scale = 1 / sqrtf((float)rows);
	uint32_t x = 1;

	for (size_t i = 0; i < rows * columns; i++) {
		x = x * 1664525 + 1013904223;
		m[i] = ((float)(x >> 8) * 0x1p-23f - 1) * scale;
	}
	return m;
}

/* y[ROWS][out] = x[ROWS][in] . w[out][in], as checkpoints store it. */
static void project(const float *x, const float *w, float *y, int in, int out)
{
	cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, ROWS, out, in, 1, x, in, w, in, 0, y, out);
}

static uint16_t to_bf16(float f)
{
	uint32_t u;

	memcpy(&u, &f, sizeof(u));
	return (uint16_t)((u + 0x7fff + (u >> 16 & 1)) >> 16);
}

static float from_bf16(uint16_t h)
{
	uint32_t u = (uint32_t)h << 16;
	float f;

	memcpy(&f, &u, sizeof(f));
	return f;
}

static void split_qkv(const float *qkv, uint16_t *q, uint16_t *k, uint16_t *v)
{
	for (int r = 0; r < ROWS; r++, qkv += QKV) {
		for (int i = 0; i < HEADS * DIM; i++)
			*q++ = to_bf16(qkv[i]);
		for (int i = 0; i < KV_HEADS * DIM; i++) {
			*k++ = to_bf16(qkv[HEADS * DIM + i]);
			*v++ = to_bf16(qkv[(HEADS + KV_HEADS) * DIM + i]);
		}
	}
}

static void normalise(float *x)
{
	for (int r = 0; r < ROWS; r++, x += HIDDEN) {
		float sum = 0;

		for (int i = 0; i < HIDDEN; i++)
			sum += x[i] * x[i];
		sum = 1 / sqrtf(sum / (float)HIDDEN + 1e-5f);
		for (int i = 0; i < HIDDEN; i++)
			x[i] *= sum;
	}
}

static void after_attention(struct runner *u, const uint16_t *out)
{
	const struct weights *w = &u->weights;

	for (int i = 0; i < ROWS * HIDDEN; i++)
		u->attended[i] = from_bf16(out[i]);
	project(u->attended, w->o, u->x, HIDDEN, HIDDEN);
	normalise(u->x);
	project(u->x, w->gate_up, u->inner, HIDDEN, 2 * INNER);
	for (int r = 0; r < ROWS; r++)
		for (int i = 0; i < INNER; i++) {
			float gate = u->inner[r * 2 * INNER + i];

			/* Gathered at the front for the next product; row r is not behind where it writes. */
			u->inner[r * INNER + i] = gate / (1 + expf(-gate)) * u->inner[r * 2 * INNER + INNER + i];
		}
	project(u->inner, w->down, u->x, INNER, HIDDEN);
	normalise(u->x);
}

static void step(struct runner *u, enum way way, enum prompts p)
{
	struct local *l = &u->local[p];
	struct remote *r = &u->remote[p][way];
	attnd_job_t plan = way == IN_PROCESS ? 0 : remote_plan(r, u->keys[p][way], u->before, ROWS);

	for (uint32_t i = 0; i < MODEL_LAYERS; i++) {
		project(u->x, u->weights.qkv, u->qkv, HIDDEN, QKV);
		if (way == IN_PROCESS) {
			split_qkv(u->qkv, l->q, l->k, l->v);
			local_layer(l, u->rows[p], ROWS, i % KV_LAYERS);
		} else {
			split_qkv(u->qkv, r->q, r->k, r->v);
			remote_attend(r, i % KV_LAYERS, i + 1 == MODEL_LAYERS, i ? 0 : plan);
		}
		after_attention(u, way == IN_PROCESS ? l->out : r->out);
	}
}

/* ---- Its prompts ---- */

static void prompt_tokens(const struct runner *u, enum prompts p, uint64_t row, uint64_t *to)
{
	uint64_t own = (uint64_t)(u->number + 1) << 40 | (row + 1) << 32;

	for (uint64_t i = 0; i < LENGTH; i++)
		to[i] = p == COMMON && i < PROMPT ? i + 1 : own + i;
}

static void make_local(struct runner *u, enum prompts p)
{
	uint64_t own = p == COMMON ? LENGTH - PROMPT : LENGTH;
	uint32_t blocks = (LENGTH + BLOCK - 1) / BLOCK, common = p == COMMON ? PROMPT / BLOCK : 0;
	const uint32_t *prompt, *tables[ROWS];

	local_init(&u->local[p], &shape, (uint64_t)common * BLOCK + ROWS * (own + BLOCK));
	local_sequences(&u->local[p], 1, (uint64_t)common * BLOCK, &prompt);
	local_sequences(&u->local[p], ROWS, own, tables);
	for (int i = 0; i < ROWS; i++) {
		uint32_t *table = must(malloc(blocks * sizeof(*table)));

		memcpy(table, prompt, common * sizeof(*table));
		memcpy(table + common, tables[i], (blocks - common) * sizeof(*table));
		u->rows[p][i] = (struct local_row){.blocks = table, .length = LENGTH};
	}
}

static void make_remote(struct runner *u, enum way way, enum prompts p, const struct daemon *d)
{
	/* Another runner waits for the core. */
	const struct remote_options o = {
		.spin_us = -1, .max_tokens = ROWS, .max_length = LENGTH, .model = MODEL + (p == COMMON)};
	struct remote *r = &u->remote[p][way];
	uint64_t tokens[LENGTH], *keys = u->keys[p][way];

	remote_open(r, d, &shape, &o);
	for (uint64_t i = 0; i < ROWS; i++) {
		uint64_t cached;

		prompt_tokens(u, p, i, tokens);
		keys[i] = remote_sequence(r, tokens, LENGTH - 1, &cached);
		if (p == COMMON && (i || u->number) && cached != PROMPT)
			die("P11: of a common prompt %llu tokens are cached", (unsigned long long)cached);
		remote_fill(r, keys + i, 1, tokens, cached, LENGTH - 1, p == COMMON ? PROMPT : 0);
	}
}

static void make_runner(struct runner *u, int number, const struct daemon *daemons)
{
	*u = (struct runner){.number = number};
	u->weights = (struct weights){.qkv = random_matrix(QKV, HIDDEN),
				      .o = random_matrix(HIDDEN, HIDDEN),
				      .gate_up = random_matrix(2 * INNER, HIDDEN),
				      .down = random_matrix(HIDDEN, INNER)};
	u->x = random_matrix(ROWS, HIDDEN);
	u->qkv = random_matrix(ROWS, QKV);
	u->attended = random_matrix(ROWS, HIDDEN);
	u->inner = random_matrix(ROWS, 2 * INNER);
	for (int i = 0; i < ROWS; i++)
		u->before[i] = LENGTH - 1;
	for (int p = 0; p < PROMPTS; p++) {
		make_local(u, (enum prompts)p);
		for (int w = SHARED_CORES; w < WAYS; w++)
			make_remote(u, (enum way)w, (enum prompts)p, &daemons[w]);
	}
}

/* ---- Both ---- */

/* In-process a core each; beside the daemon wherever the kernel puts them, or both on the first. */
static void take_place(int number, enum way way)
{
	if (way == IN_PROCESS)
		run_on(number, 1);
	else
		run_on(0, way == SPLIT_CORES ? 1 : bench.cpus);
}

static void runner_main(void *arg)
{
	static struct runner u;
	struct order *o = arg;
	int number = o->starting;

	run_on(0, bench.cpus);
	openblas_set_num_threads(1);
	make_runner(&u, number, o->daemons);
	peer_post(&o->ready);
	for (uint32_t round = 1;; round++) {
		peer_wait(&o->go, round);
		take_place(number, o->way);
		step(&u, o->way, o->prompts);
		peer_post(&o->done);
	}
}

/* Tokens a second of both. */
static double measure(struct order *o, enum way way, enum prompts p)
{
	uint32_t before = atomic_load_explicit(&o->done, memory_order_acquire);
	double start = now_seconds();

	o->way = way;
	o->prompts = p;
	peer_post(&o->go);
	peer_wait(&o->done, before + RUNNERS);
	return (double)TOKENS / (now_seconds() - start);
}

static void report(struct samples ratio[PROMPTS][WAYS], struct samples rate[PROMPTS][WAYS])
{
	char name[64], text[128];

	for (int p = 0; p < PROMPTS; p++)
		for (int w = 0; w < WAYS; w++) {
			snprintf(name, sizeof(name), "P11 %s, %s", prompt_names[p], way_names[w]);
			report_figure(name, sample_median(&rate[p][w]), "tokens/s");
			if (w == IN_PROCESS)
				continue;
			snprintf(name, sizeof(name), "P11.%s.%s", prompt_names[p], way_names[w]);
			snprintf(text, sizeof(text), "tokens/s of two runners, %s, %s cores / in-process",
				 p == OWN ? "2.2k own" : "2k of 2.2k shared", way_names[w]);
			report_ratio(name, &ratio[p][w], p == OWN ? 0.95 : 1.0, true, text);
		}
}

void goal_cores(void)
{
	static struct samples ratio[PROMPTS][WAYS], rate[PROMPTS][WAYS];
	struct order *o = peer_memory(sizeof(*o));
	struct daemon daemons[WAYS] = {{0}};
	struct daemon_options options = {.pool_bytes = (uint64_t)RUNNERS * (ROWS + 2) * 2 * LENGTH * KV_LAYERS *
						       kv_bytes(&shape),
					 .threads = (uint32_t)bench.cpus,
					 .cpus = bench.cpus,
					 .spin_us = 0};
	double end = now_seconds() + bench.seconds, began = 0;
	pid_t pids[RUNNERS];

	if (bench.cpus < 2 || bench.socket) {
		report_skipped("P11", "needs two CPUs and private daemons");
		return;
	}
	progress("P11: two daemons, two runners");
	daemon_start(&daemons[SHARED_CORES], &options);
	options.threads = 1;
	options.first_cpu = options.cpus = 1;
	options.spin_us = 200;
	daemon_start(&daemons[SPLIT_CORES], &options);
	o->daemons = daemons;
	for (int i = 0; i < RUNNERS; i++) {
		o->starting = i;
		pids[i] = peer_start(runner_main, o);
		peer_ready(pids[i], &o->ready, (uint32_t)i + 1);
	}
	for (int round = 0; round == 0 || 2 * now_seconds() - began < end; round++) {
		began = now_seconds();
		progress("P11: round %d", round + 1);
		for (int p = 0; p < PROMPTS; p++) {
			double t[WAYS];

			for (int turn = 0; turn < WAYS; turn++) {
				int w = (turn + round) % WAYS;

				t[w] = measure(o, (enum way)w, (enum prompts)p);
				sample_add(&rate[p][w], t[w]);
			}
			for (int w = SHARED_CORES; w < WAYS; w++)
				sample_add(&ratio[p][w], t[w] / t[IN_PROCESS]);
		}
	}
	for (int i = 0; i < RUNNERS; i++)
		peer_end(pids[i]);
	report(ratio, rate);
	munmap(o, sizeof(*o));
	daemon_stop(&daemons[SHARED_CORES]);
	daemon_stop(&daemons[SPLIT_CORES]);
}
