/* SPDX-License-Identifier: Apache-2.0 */
/*
 * P6: what a small job costs beyond its kernel, beside the bare hand-over of the same bytes.
 *
 * In:   a daemon that stays awake or sleeps; a forked peer that only copies.
 * Out:  (job through the public API - kernel in-process) / raw round trip, p50 and p99.
 * Next: report.h.
 *
 * The raw side is shm/ring.h between two processes: an entry, q, k and v read, out written, a
 * completion. Both sides spin, or both sleep on futexes and are woken.
 */
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "../../shm/futex.h"
#include "../../shm/ring.h"
#include "local.h"
#include "peers.h"
#include "remote.h"

enum { CONTEXT = 16, BATCH = 300, WARM = 30, ENTRIES = 8, PAUSE_US = 3000 };

/* ---- The raw peer ---- */

enum peer_mode { PEER_IDLE, PEER_SPIN, PEER_SLEEP };

/* Shared with it. */
struct raw {
	_Atomic uint32_t mode;
	_Alignas(128) _Atomic uint32_t ping; /* futexes of PEER_SLEEP */
	_Alignas(128) _Atomic uint32_t pong;
	int cpu;
	_Alignas(128) unsigned char sq[ENTRIES * sizeof(struct attnd_sqe)];
	_Alignas(128) unsigned char cq[ENTRIES * sizeof(struct attnd_cqe)];
	_Alignas(4096) char in[65536], out[65536];
};

struct raw_side {
	struct raw *shared;
	struct attnd_ring sq, cq;
	size_t in_bytes, out_bytes;
	char *in, *out; /* private: what would be the caller's and the kernel's */
	pid_t pid;
};

static void serve_one(struct raw_side *s)
{
	const struct attnd_cqe cqe = {.res = 0};
	struct attnd_sqe sqe;

	if (!attnd_ring_take(&s->sq, &sqe))
		return;
	memcpy(s->in, s->shared->in, s->in_bytes);
	memcpy(s->shared->out, s->out, s->out_bytes);
	attnd_ring_put(&s->cq, &cqe);
}

static void peer_spin(struct raw_side *s)
{
	while (atomic_load_explicit(&s->shared->mode, memory_order_relaxed) == PEER_SPIN) {
		for (int i = 0; i < 64 && !attnd_ring_ready(&s->sq); i++)
			attnd_pause();
		serve_one(s);
	}
}

static void peer_sleep(struct raw_side *s)
{
	uint32_t seen = atomic_load_explicit(&s->shared->ping, memory_order_acquire);

	if (!attnd_ring_ready(&s->sq)) {
		(void)attnd_futex_wait(&s->shared->ping, seen, 10000000);
		return;
	}
	serve_one(s);
	atomic_fetch_add_explicit(&s->shared->pong, 1, memory_order_release);
	attnd_futex_wake(&s->shared->pong, 1);
}

static void raw_main(void *arg)
{
	struct raw_side *s = arg;
	for (;;) {
		uint32_t mode = atomic_load_explicit(&s->shared->mode, memory_order_acquire);

		run_on(s->shared->cpu, 1);
		if (mode == PEER_IDLE)
			(void)attnd_futex_wait(&s->shared->mode, PEER_IDLE, 1000000000);
		else if (mode == PEER_SPIN)
			peer_spin(s);
		else
			while (atomic_load_explicit(&s->shared->mode, memory_order_acquire) == PEER_SLEEP)
				peer_sleep(s);
	}
}

static void raw_start(struct raw_side *s, const struct shape *shape)
{
	struct raw *m = peer_memory(sizeof(*m));

	*s = (struct raw_side){
		.shared = m, .in_bytes = q_bytes(shape) + kv_bytes(shape), .out_bytes = q_bytes(shape)};
	s->in = allocate(s->in_bytes);
	s->out = allocate(s->out_bytes);
	memset(s->in, 1, s->in_bytes);
	memset(s->out, 1, s->out_bytes);
	attnd_ring_init(&s->sq, m->sq, ENTRIES, sizeof(struct attnd_sqe));
	attnd_ring_init(&s->cq, m->cq, ENTRIES, sizeof(struct attnd_cqe));
	s->pid = peer_start(raw_main, s);
}

static void raw_mode(struct raw_side *s, enum peer_mode mode, int cpu)
{
	s->shared->cpu = cpu;
	atomic_store_explicit(&s->shared->mode, mode, memory_order_release);
	attnd_futex_wake(&s->shared->mode, 1);
}

static void raw_stop(struct raw_side *s)
{
	peer_end(s->pid);
	munmap(s->shared, sizeof(*s->shared));
	release(s->in, s->in_bytes);
	release(s->out, s->out_bytes);
}

/* Seconds of one round trip, bytes stored and read as around a job. */
static double raw_trip(struct raw_side *s, bool sleeping)
{
	const struct attnd_sqe sqe = {.opcode = ATTND_OP_DECODE};
	double start = now_seconds();
	struct attnd_cqe cqe;

	memcpy(s->shared->in, s->in, s->in_bytes);
	attnd_ring_put(&s->sq, &sqe);
	if (sleeping) {
		atomic_fetch_add_explicit(&s->shared->ping, 1, memory_order_release);
		attnd_futex_wake(&s->shared->ping, 1);
	}
	while (!attnd_ring_take(&s->cq, &cqe)) {
		uint32_t seen = atomic_load_explicit(&s->shared->pong, memory_order_acquire);

		if (!sleeping)
			attnd_pause();
		else if (!attnd_ring_ready(&s->cq))
			(void)attnd_futex_wait(&s->shared->pong, seen, 10000000);
	}
	(void)read_values((const uint16_t *)(const void *)s->shared->out, s->out_bytes);
	return now_seconds() - start;
}

/* ---- Measuring ---- */

static const struct way {
	const char *name, *says;
	bool sleeping;
	int cpu, spin_us; /* of the daemon and of the peer */
	int64_t client_spin_us;
	double goal50, goal99; /* 0: none */
} ways[] = {
	{"awake", "both awake, a core each", false, 1, 1000, 5000, 1.5, 3},
	{"sleep.own", "both sleep, a core each", true, 1, 0, -1, 1.15, 0},
	{"sleep.shared", "both sleep, on one core", true, 0, 0, -1, 1.15, 0},
};
enum { WAYS = sizeof(ways) / sizeof(ways[0]) };

enum what { JOB, KERNEL, RAW, WHATS };

struct sides {
	struct daemon daemon;
	struct remote remote;
	struct local local;
	struct local_row row;
	struct raw_side raw;
	attnd_job_t plan;
};

static double once(struct sides *s, const struct way *w, enum what what)
{
	double start = now_seconds();

	if (what == RAW)
		return raw_trip(&s->raw, w->sleeping);
	if (what == KERNEL)
		return local_step(&s->local, &s->row, 1, 1, 1);
	remote_layer(&s->remote, 1, 0, false, 0);
	return now_seconds() - start;
}

/* What is not measured sleeps; the first trips, while it falls asleep, are not counted. */
static void batch(struct sides *s, const struct way *w, enum what what, struct samples *ret)
{
	ret->n = 0;
	usleep(PAUSE_US);
	if (what == RAW)
		raw_mode(&s->raw, w->sleeping ? PEER_SLEEP : PEER_SPIN, w->cpu);
	for (int i = 0; i < WARM; i++)
		(void)once(s, w, what);
	for (int i = 0; i < BATCH; i++)
		sample_add(ret, once(s, w, what));
	if (what == RAW)
		raw_mode(&s->raw, PEER_IDLE, w->cpu);
}

static void measure(struct sides *s, const struct way *w, double end)
{
	static struct samples one[WHATS], p50, p99, parts[WHATS][2];
	static const double at[2] = {0.5, 0.99};
	static const char *const names[WHATS] = {"job", "kernel in-process", "raw round trip"};
	char name[96], text[160];

	memset(parts, 0, sizeof(parts));
	p50.n = p99.n = 0;
	for (int round = 0; more(end, &p50); round++) {
		for (int turn = 0; turn < WHATS; turn++)
			batch(s, w, (enum what)((turn + round) % WHATS), &one[(turn + round) % WHATS]);
		for (int q = 0; q < 2; q++)
			for (int i = 0; i < WHATS; i++)
				sample_add(&parts[i][q], sample_quantile(&one[i], at[q]) * 1e6);
		sample_add(&p50, (sample_quantile(&one[JOB], 0.5) - sample_quantile(&one[KERNEL], 0.5)) /
					 sample_quantile(&one[RAW], 0.5));
		sample_add(&p99, (sample_quantile(&one[JOB], 0.99) - sample_quantile(&one[KERNEL], 0.5)) /
					 sample_quantile(&one[RAW], 0.99));
	}
	snprintf(name, sizeof(name), "P6.%s.p50", w->name);
	snprintf(text, sizeof(text), "(job - kernel) / raw %s round trip of the same bytes, %s",
		 w->sleeping ? "futex" : "ring", w->says);
	report_ratio(name, &p50, w->goal50, false, text);
	if (w->goal99 > 0) {
		snprintf(name, sizeof(name), "P6.%s.p99", w->name);
		report_ratio(name, &p99, w->goal99, false, text);
	}
	for (int i = 0; i < WHATS; i++)
		for (int q = 0; q < 2; q++) {
			snprintf(name, sizeof(name), "P6.%s %s, p%d", w->name, names[i], q ? 99 : 50);
			report_figure(name, sample_median(&parts[i][q]), "us");
		}
}

static void prepare(struct sides *s, const struct way *w)
{
	const struct shape shape = llama_8b(1);
	const struct daemon_options o = {.pool_bytes = (uint64_t)64 << 20,
					 .threads = 1,
					 .first_cpu = w->cpu,
					 .cpus = 1,
					 .spin_us = w->spin_us};
	const struct remote_options ro = {.spin_us = w->client_spin_us, .max_tokens = 1, .max_length = CONTEXT};
	uint32_t before = CONTEXT - 1;
	uint64_t key;

	daemon_start(&s->daemon, &o);
	remote_open(&s->remote, &s->daemon, &shape, &ro);
	key = remote_sequence(&s->remote, s->remote.tokens, 1, NULL);
	remote_fill(&s->remote, &key, 1, s->remote.tokens, 0, before, 0);
	s->plan = remote_plan(&s->remote, &key, &before, 1);
	remote_layer(&s->remote, 1, 0, false, s->plan);
}

void goal_latency(void)
{
	static struct sides s;
	const struct shape shape = llama_8b(1);
	double end = now_seconds() + bench.seconds;
	const uint32_t *table;

	if (bench.cpus < 2 || bench.socket) {
		report_skipped("P6", "needs two CPUs and a private daemon");
		return;
	}
	local_init(&s.local, &shape, CONTEXT);
	local_sequences(&s.local, 1, CONTEXT, &table);
	s.row = (struct local_row){.blocks = table, .length = CONTEXT};
	raw_start(&s.raw, &shape);
	for (int i = 0; i < WAYS; i++) {
		progress("P6: %s", ways[i].says);
		prepare(&s, &ways[i]);
		run_on(0, 1);
		measure(&s, &ways[i], now_seconds() + (end - now_seconds()) / (WAYS - i));
		remote_close(&s.remote);
		daemon_stop(&s.daemon);
	}
	raw_stop(&s.raw);
	local_free(&s.local);
}
