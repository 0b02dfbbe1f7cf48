/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a restart and a client's death cost.
 *
 * In:   $ATTND_DAEMON; argv[1], if given: a file for the JSON object; argv[2]: what the fuzzers did
 *       ("executions N", "findings N": tests/fuzz/run.sh).
 * Out:  stdout: a table; figures (report.h).
 * Next: people, and who compares runs.
 *
 * A pool of 4 GiB, with Llama-3-8B's geometry, lives in files on /dev/shm and is taken over by
 * daemon after daemon, each killed; then a client that holds 10^4 blocks is killed beside another.
 */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../../shm/futex.h"
#include "../restart/kept.h"
#include "report.h"

enum {
	RESTARTS = 10,
	PROMPTS = 4,
	LENGTH = 2048, /* of the large cache: 128 blocks of 2 MiB */
	ROWS = 256,
	LAYERS = 32,
	HEADS = 32,
	KV_HEADS = 8,
	DIM = 128,
	KILLS = 12,   /* of the client that holds blocks */
	HELD = 10000, /* blocks */
	HELD_TOKENS = 8000,
	WINDOW_MS = 60,
};

static double ms_since(uint64_t ns)
{
	return (double)(attnd_now_ns() - ns) / 1e6;
}

static void must(attnd_t *a, int e, const char *what)
{
	if (!e)
		return;
	fprintf(stderr, "bench-service: %s: %s\n", what, attnd_strerror(a, e));
	exit(EXIT_FAILURE);
}

/* ---- Restarts ---- */

struct large {
	attnd_t *a;
	struct attnd_cache_info info;
	void *k, *v;
};

static void large_open(struct large *l, const struct daemon *d)
{
	struct attnd_connect_options options = {.socket = d->socket, .name = "bench", .timeout_us = 60000000};
	struct attnd_cache_desc desc = {.name = "large",
					.num_layers = LAYERS,
					.num_heads = HEADS,
					.num_kv_heads = KV_HEADS,
					.head_dim = DIM,
					.kv_dtype = ATTND_BF16,
					.block_size = 16};
	struct attnd_params params = {.sm_scale = 1,
				      .causal = 1,
				      .q_dtype = ATTND_BF16,
				      .kv_in_dtype = ATTND_BF16,
				      .out_dtype = ATTND_BF16};
	size_t bytes = (size_t)ROWS * KV_HEADS * DIM * 2;

	must(NULL, attnd_connect(&l->a, &options), "connect");
	must(l->a, attnd_cache_open(l->a, &desc, 1, &l->info), "cache");
	params.cache = l->info.cache;
	must(l->a, attnd_params_set(l->a, 0, &params), "parameters");
	must(l->a, attnd_alloc(l->a, bytes, &l->k), "arena");
	must(l->a, attnd_alloc(l->a, bytes, &l->v), "arena");
	memset(l->k, 0, bytes);
	memset(l->v, 0, bytes);
}

static void large_fill(struct large *l, uint64_t key, const uint64_t *tokens, uint32_t from, uint32_t to)
{
	for (; from < to; from += ROWS) {
		uint32_t n = to - from < ROWS ? to - from : ROWS;
		struct attnd_row row = {.key = key,
					.start = from,
					.tokens = tokens + from,
					.num_tokens = n,
					.publish_upto = from + n};
		must(l->a, attnd_plan(l->a, 1, l->info.cache, &row, 1, NULL, 0), "plan");
		for (uint32_t layer = 0; layer < LAYERS; layer++) {
			struct attnd_attend job = {.plan = 1,
						   .layer = layer,
						   .k = l->k,
						   .v = l->v,
						   .flags = ATTND_NO_OUT | (layer == LAYERS - 1 ? ATTND_LAST : 0)};
			attnd_job_t id;
			must(l->a, attnd_extend(l->a, &job, &id), "extend");
			must(l->a, attnd_wait(l->a, id, NULL), "wait");
		}
	}
}

static uint64_t large_cached(struct large *l, uint64_t key, unsigned p, uint32_t n)
{
	struct attnd_open_info info;
	uint64_t tokens[LENGTH];
	int e = -ECONNRESET;

	toy_tokens(tokens, LENGTH, 1000000 * (p + 1));
	while (e == -ECONNRESET)
		e = attnd_seq_open(l->a, key, 0, tokens, n, UINT64_MAX, &info);
	must(l->a, e, "open");
	must(l->a, attnd_seq_close(l->a, key), "close");
	return info.cached;
}

/* Killed, started again at once: from there to the first hit, and to the first answer from the kill on. */
static void restarts(struct samples *hit, struct samples *reconnect, uint64_t *ret_lost)
{
	static const char *const flags[] = {"--pool-size", "4G", "--log-level", "warn", NULL};
	uint64_t tokens[LENGTH], key = 0, lost = 0;
	struct attnd_open_info info;
	struct kept k;
	struct large l;

	kept_start(&k, flags);
	large_open(&l, &k.daemon);
	for (unsigned p = 0; p < PROMPTS; p++) {
		toy_tokens(tokens, LENGTH, 1000000 * (p + 1));
		must(l.a, attnd_seq_open(l.a, ++key, 0, NULL, 0, 0, &info), "open");
		large_fill(&l, key, tokens, 0, LENGTH / 2);
		must(l.a, attnd_seq_close(l.a, key), "close");
	}
	kept_wait_number(&k, "caches.0.blocks_unhashed", 0);
	for (int i = 0; i < RESTARTS; i++) {
		unsigned p = (unsigned)i % PROMPTS;
		uint32_t n = LENGTH / 2 + 16 * (uint32_t)(i / PROMPTS + 1);
		uint64_t killed, started;
		/* The last that is acknowledged before the kill. */
		toy_tokens(tokens, LENGTH, 1000000 * (p + 1));
		must(l.a, attnd_seq_open(l.a, ++key, 0, tokens, n - 1, UINT64_MAX, &info), "open");
		large_fill(&l, key, tokens, (uint32_t)info.cached, n);
		killed = attnd_now_ns();
		kept_end(&k, SIGKILL);
		started = attnd_now_ns();
		assert_int_equal(kept_again(&k, flags), 0);
		while (attnd_ping(l.a, 0))
			;
		sample_add(reconnect, ms_since(killed));
		for (unsigned q = 0; q < PROMPTS; q++) {
			unsigned this = (p + q) % PROMPTS;
			int last = i + (int)q - PROMPTS; /* when it grew */
			uint32_t want = LENGTH / 2 + 16 * (uint32_t)(last < 0 ? 0 : last / PROMPTS + 1);
			uint64_t cached = large_cached(&l, ++key, this, q ? want : n);
			if (!q)
				sample_add(hit, ms_since(started));
			lost += cached < (q ? want : n) ? (q ? want : n) - cached : 0;
		}
	}
	attnd_disconnect(l.a);
	kept_clean(&k);
	*ret_lost = lost;
}

/* ---- A client's death ---- */

static int64_t referenced(const struct daemon *d)
{
	struct sockaddr_un addr = {.sun_family = AF_UNIX};
	int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	json_t *root = NULL, *c;
	int64_t sum = -1;
	size_t i;

	strcpy(addr.sun_path, d->admin);
	if (!connect(fd, (struct sockaddr *)&addr, sizeof(addr)) && write(fd, "caches\n", 7) == 7)
		root = json_loadfd(fd, 0, NULL);
	close(fd);
	json_array_foreach(json_object_get(root, "caches"), i, c) sum +=
		(i == 0) + (int64_t)json_integer_value(json_object_get(c, "blocks_referenced"));
	json_decref(root);
	return sum;
}

/* Holds HELD blocks until it is killed; says so with a byte. */
static void hold(const struct daemon *d, int ready)
{
	attnd_t *a = daemon_connect(d);
	static uint64_t tokens[HELD_TOKENS];
	struct toy t;
	uint32_t held = 0;

	must(a, toy_open(&t, a, 2), "cache");
	for (uint64_t key = 1; held < HELD; key++) {
		struct attnd_open_info info;
		toy_tokens(tokens, HELD_TOKENS, key * 100000);
		must(a, attnd_seq_open(a, key, 0, tokens, HELD_TOKENS, UINT64_MAX, &info), "open");
		for (uint32_t at = (uint32_t)info.cached, n; at < HELD_TOKENS; at += n) {
			n = HELD_TOKENS - at < TOY_MAX_TOKENS ? HELD_TOKENS - at : TOY_MAX_TOKENS;
			struct attnd_row row = {.key = key,
						.start = at,
						.tokens = tokens + at,
						.num_tokens = n,
						.publish_upto = at + n};
			must(a, toy_plan(&t, 1, &row, 1, NULL), "plan");
			for (uint32_t layer = 0; layer < TOY_LAYERS; layer++) {
				struct attnd_attend job = {.plan = 1,
							   .params = t.cache,
							   .layer = layer,
							   .flags = ATTND_NO_OUT |
								    (layer == TOY_LAYERS - 1 ? ATTND_LAST : 0),
							   .k = t.k,
							   .v = t.v};
				attnd_job_t id;
				must(a, attnd_extend(a, &job, &id), "extend");
				must(a, attnd_wait(a, id, NULL), "wait");
			}
		}
		held += HELD_TOKENS / 16;
	}
	(void)!write(ready, "", 1);
	for (;;)
		pause();
}

static void steps(struct toy *t, uint64_t key, uint32_t *length, double for_ms, struct samples *ret)
{
	uint64_t begin = attnd_now_ns();

	while (ms_since(begin) < for_ms) {
		uint64_t token = *length, at = attnd_now_ns();
		struct attnd_row row = {.key = key, .start = *length, .tokens = &token, .num_tokens = 1};
		must(t->a, toy_step(t, 1, &row, 1, NULL), "step");
		if (ret->n < SAMPLES_MAX)
			sample_add(ret, ms_since(at));
		*length = *length < 400 ? *length + 1 : 200;
	}
}

static void deaths(struct samples *reclaim, struct samples *ratio)
{
	static const char *const flags[] = {"--pool-size", "512M", "--log-level", "warn", NULL};
	static struct samples before, after;
	uint64_t tokens[200], cached;
	struct daemon d;
	struct toy t;
	uint32_t length = 200;

	assert_int_equal(daemon_start(&d, flags), 0);
	attnd_t *a = daemon_connect(&d);
	must(a, toy_open(&t, a, 1), "cache");
	toy_tokens(tokens, 200, 5);
	must(a, toy_prefill(&t, 1, tokens, 200, &cached), "prefill");
	int64_t own = referenced(&d);
	for (int i = 0; i < KILLS; i++) {
		int ready[2], status;
		char byte;
		assert_int_equal(pipe(ready), 0);
		pid_t pid = fork();
		if (pid == 0 && !prctl(PR_SET_PDEATHSIG, SIGKILL))
			hold(&d, ready[1]);
		close(ready[1]);
		assert_int_equal(read(ready[0], &byte, 1), 1);
		close(ready[0]);
		assert_true(referenced(&d) >= own + HELD);
		before.n = after.n = 0;
		steps(&t, 1, &length, WINDOW_MS, &before);
		if (i & 1) { /* what it costs others */
			kill(pid, SIGKILL);
			steps(&t, 1, &length, WINDOW_MS, &after);
			sample_add(ratio, sample_quantile(&after, 0.99) / sample_quantile(&before, 0.99));
		} else { /* how long it takes */
			uint64_t at = attnd_now_ns();
			kill(pid, SIGKILL);
			while (referenced(&d) > own + 100)
				;
			sample_add(reclaim, ms_since(at));
		}
		waitpid(pid, &status, 0);
	}
	attnd_disconnect(a);
	daemon_clean(&d);
}

static void print_to(const char *path)
{
	int out = dup(STDOUT_FILENO);

	fflush(stdout);
	if (!freopen(path, "we", stdout)) {
		perror(path);
		exit(EXIT_FAILURE);
	}
	(void)report_print(true);
	fflush(stdout);
	dup2(out, STDOUT_FILENO);
	close(out);
}

static void figures(const struct samples *hit, const struct samples *reconnect, const struct samples *reclaim,
		    const struct samples *ratio, uint64_t lost, const char *fuzzed)
{
	FILE *f = fuzzed ? fopen(fuzzed, "re") : NULL;
	char name[32], figure[48];
	double n;

	report_figure("restart_to_first_hit_ms", sample_median(hit), "ms");
	report_figure("restart_to_first_hit_max_ms", sample_quantile(hit, 1), "ms");
	report_figure("reconnect_ms", sample_median(reconnect), "ms");
	report_figure("reclaim_ms", sample_median(reclaim), "ms");
	report_figure("others_p99_ratio", sample_median(ratio), "");
	report_figure("kills", RESTARTS + KILLS, "");
	report_figure("lost_tokens", (double)lost, "tokens");
	while (f && fscanf(f, "%31s %lf", name, &n) == 2) {
		snprintf(figure, sizeof(figure), "fuzz_%s", name);
		report_figure(figure, n, "");
	}
	if (f)
		fclose(f);
}

int main(int argc, char **argv)
{
	static struct samples hit, reconnect, reclaim, ratio;
	uint64_t lost;

	restarts(&hit, &reconnect, &lost);
	deaths(&reclaim, &ratio);
	figures(&hit, &reconnect, &reclaim, &ratio, lost, argc > 2 ? argv[2] : NULL);
	(void)report_print(false);
	if (argc > 1) {
		figures(&hit, &reconnect, &reclaim, &ratio, lost, argc > 2 ? argv[2] : NULL);
		print_to(argv[1]);
	}
	return lost ? EXIT_FAILURE : EXIT_SUCCESS;
}
