/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Fairness: 8 x 1k decode in one process beside the end of a 32k prefill in another.
 *
 * In:   a daemon with all CPUs; a forked client that prefills, this one that decodes.
 * Out:  each side's times together / alone.
 * Next: report.h.
 *
 * A round: decodes alone, a prefill's piece alone, then decodes for as long as a piece is under way.
 */
#include <stdio.h>
#include <sys/mman.h>

#include "peers.h"
#include "remote.h"

enum { ROWS = 8, CONTEXT = 1024, PREFIX = 32768, PIECE = 64, ALONE = 60, DECODES_MAX = 2048 };

/* Shared with the prefilling process. */
struct order {
	_Atomic uint32_t wanted, done; /* pieces */
	_Atomic uint32_t ready;
	double seconds; /* of the last piece */
	const struct daemon *daemon;
};

/* ---- The prefilling process ---- */

static void prefill_main(void *arg)
{
	struct order *o = arg;
	const struct shape shape = llama_8b(1);
	const struct remote_options ro = {.spin_us = -1, .max_tokens = PIECE, .max_length = PREFIX};
	struct remote r;
	uint64_t key;

	run_on(0, bench.cpus);
	remote_open(&r, o->daemon, &shape, &ro);
	key = remote_sequence(&r, r.tokens, 1, NULL);
	remote_fill(&r, &key, 1, r.tokens, 0, PREFIX - PIECE, 0);
	peer_post(&o->ready);
	for (uint32_t n = 1;; n++) {
		double start;

		peer_wait(&o->wanted, n);
		start = now_seconds();
		remote_extend(&r, key, PREFIX - PIECE, PIECE);
		o->seconds = now_seconds() - start;
		peer_post(&o->done);
	}
}

/* ---- Decodes ---- */

struct decoder {
	struct remote remote;
	uint64_t keys[ROWS];
	uint32_t before[ROWS];
	struct order *order;
	uint32_t pieces;
};

static void start_decoder(struct decoder *d, const struct daemon *daemon)
{
	const struct shape shape = llama_8b(4);
	const struct remote_options ro = {.spin_us = -1, .max_tokens = ROWS, .max_length = CONTEXT};

	remote_open(&d->remote, daemon, &shape, &ro);
	for (int i = 0; i < ROWS; i++) {
		d->keys[i] = remote_sequence(&d->remote, d->remote.tokens, 1, NULL);
		d->before[i] = CONTEXT - 1;
	}
	remote_fill(&d->remote, d->keys, ROWS, d->remote.tokens, 0, CONTEXT - 1, 0);
}

/* One job: of a plan's layers, one after the other. */
static double decode(struct decoder *d, uint32_t i)
{
	uint32_t layer = i % d->remote.shape.layers;
	double start;

	if (!layer)
		remote_wait(&d->remote, remote_plan(&d->remote, d->keys, d->before, ROWS));
	start = now_seconds();
	remote_layer(&d->remote, ROWS, layer, layer + 1 == d->remote.shape.layers, 0);
	return now_seconds() - start;
}

/* Seconds of a piece, while this process decodes (into *ret) or waits. */
static double prefill_piece(struct decoder *d, struct samples *ret)
{
	peer_post(&d->order->wanted);
	d->pieces++;
	for (uint32_t i = 0; ret; i++) {
		if (atomic_load_explicit(&d->order->done, memory_order_acquire) >= d->pieces && ret->n >= ALONE &&
		    i % d->remote.shape.layers == 0)
			return d->order->seconds;
		sample_add(ret, decode(d, i));
	}
	peer_wait(&d->order->done, d->pieces);
	return d->order->seconds;
}

void goal_fairness(void)
{
	static struct samples alone, together, p50, p99, share, figures[2][2], prefill[2];
	static struct decoder d;
	const struct daemon_options o = {.pool_bytes = (uint64_t)512 << 20,
					 .threads = (uint32_t)bench.cpus,
					 .cpus = bench.cpus,
					 .spin_us = -1};
	static const char *const when[2] = {"alone", "together"};
	struct order *order = peer_memory(sizeof(*order));
	double end = now_seconds() + bench.seconds;
	struct daemon daemon;
	char name[64];
	pid_t pid;

	daemon_start(&daemon, &o);
	d.order = order;
	order->daemon = &daemon;
	pid = peer_start(prefill_main, order);
	peer_ready(pid, &order->ready, 1);
	start_decoder(&d, &daemon);
	p50.n = p99.n = share.n = 0;
	while (more(end, &p99)) {
		double t[2];

		alone.n = together.n = 0;
		for (uint32_t i = 0; i < ALONE; i++)
			sample_add(&alone, decode(&d, i));
		t[0] = prefill_piece(&d, NULL);
		t[1] = prefill_piece(&d, &together);
		sample_add(&p50, sample_quantile(&together, 0.5) / sample_quantile(&alone, 0.5));
		sample_add(&p99, sample_quantile(&together, 0.99) / sample_quantile(&alone, 0.99));
		sample_add(&share, t[0] / t[1]);
		for (int q = 0; q < 2; q++) {
			sample_add(&figures[q][0], sample_quantile(&alone, q ? 0.99 : 0.5) * 1e3);
			sample_add(&figures[q][1], sample_quantile(&together, q ? 0.99 : 0.5) * 1e3);
			sample_add(&prefill[q], t[q] * 1e3);
		}
	}
	report_ratio("fairness.decode", &p99, 1.5, false, "8 x 1k decode, p99 beside a 32k prefill / alone");
	report_ratio("fairness.prefill", &share, 0.2, true, "prefill's speed beside the decodes / alone");
	report_figure("fairness decode p50, together / alone", sample_median(&p50), "");
	for (int w = 0; w < 2; w++) {
		for (int q = 0; q < 2; q++) {
			snprintf(name, sizeof(name), "fairness decode p%d, %s", q ? 99 : 50, when[w]);
			report_figure(name, sample_median(&figures[q][w]), "ms a layer");
		}
		snprintf(name, sizeof(name), "fairness prefill of %d on 32k, %s", PIECE, when[w]);
		report_figure(name, sample_median(&prefill[w]), "ms a layer");
	}
	peer_end(pid);
	munmap(order, sizeof(*order));
	remote_close(&d.remote);
	daemon_stop(&daemon);
}
