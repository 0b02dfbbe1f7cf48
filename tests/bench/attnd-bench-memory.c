/* SPDX-License-Identifier: Apache-2.0 */
/*
 * P8: how much more than the tokens' K/V the daemon takes.
 *
 * In:   plans over sequences of a trace's lengths and of log-normal ones; what the daemon tells administrators.
 * Out:  allocated / ideal K/V bytes, also of samples of one prompt; metadata / K/V.
 * Next: report.h.
 *
 * A plan takes its blocks when it is made, so but for what is forked nothing has to be computed.
 */
#include <errno.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "../../daemon/cache.h"
#include "../trace.h"
#include "remote.h"

enum { SEQUENCES = 128, TRACED = 64, LONGEST = TRACE_LONGEST, MEAN = 420, CONTEXT = 1024 };
enum { SAMPLES = 8, PROMPT = 2000, SAMPLE = 100 };

/* ---- What the daemon says ---- */

static int connect_admin(const char *socket_path)
{
	struct sockaddr_un to = {.sun_family = AF_UNIX};
	int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

	if (snprintf(to.sun_path, sizeof(to.sun_path), "%s.admin", socket_path) >= (int)sizeof(to.sun_path) ||
	    fd < 0 || connect(fd, (const struct sockaddr *)&to, sizeof(to)))
		die("administrators' socket of %s: %s", socket_path, strerror(errno));
	return fd;
}

static json_t *ask_status(const struct daemon *d)
{
	static const char command[] = "status\n";
	int fd = connect_admin(d->socket);
	FILE *reply;
	json_t *status;

	if (write(fd, command, sizeof(command) - 1) != (ssize_t)sizeof(command) - 1)
		die("administrators' socket: %s", strerror(errno));
	reply = must(fdopen(fd, "r"));
	status = json_loadf(reply, 0, NULL);
	fclose(reply);
	if (!status)
		die("the daemon's status is no JSON");
	return status;
}

static double member(const json_t *o, const char *key)
{
	const json_t *v = json_object_get(o, key);

	if (!json_is_number(v))
		die("the daemon's status has no %s", key);
	return json_number_value(v);
}

/* ---- Lengths ---- */

static double uniform(void)
{
	return ((double)random_below(1u << 30) + 0.5) / (1u << 30);
}

/* Log-normal, sigma 0.8 (chats are about that), clipped. */
static uint32_t random_length(void)
{
	double normal = sqrt(-2 * log(uniform())) * cos(2 * M_PI * uniform());
	double n = (double)MEAN * exp(0.8 * normal - 0.32);

	return n<16 ? 16 : n>(double) LONGEST ? LONGEST : (uint32_t)n;
}

/* A batch of at least this mean length; returns its tokens. */
static uint64_t random_lengths(uint32_t *to, int n, bool trace)
{
	uint64_t all;

	do {
		all = 0;
		for (int i = 0; i < n; i++)
			all += to[i] =
				trace ? trace_length((uint32_t)random_below(UINT64_C(1) << 32)) : random_length();
	} while (all < 400ull * (unsigned)n);
	return all;
}

/* ---- Measuring ---- */

static void plan_prompts(struct remote *r, const uint64_t *keys, const uint32_t *lengths, int n)
{
	static struct attnd_row rows[SEQUENCES];
	int rc;

	for (int i = 0; i < n; i++)
		rows[i] = (struct attnd_row){.key = keys[i], .tokens = r->tokens, .num_tokens = lengths[i]};
	rc = attnd_plan(r->a, 1, r->info.cache, rows, (uint32_t)n, NULL, 0);
	if (rc)
		die("planning: %s", attnd_strerror(r->a, rc));
}

/* K/V bytes that somebody holds / those of so many tokens. */
static double referenced(const struct daemon *d, const struct shape *shape, uint64_t tokens)
{
	json_t *status = ask_status(d);
	double bytes = member(json_object_get(status, "pool"), "bytes_referenced");

	json_decref(status);
	return bytes / ((double)tokens * (double)kv_bytes(shape));
}

static void allocated(struct remote *r, const struct daemon *d, bool trace, double end)
{
	static struct samples ratio, mean;
	uint32_t lengths[SEQUENCES];
	uint64_t keys[SEQUENCES];
	int n = trace ? TRACED : SEQUENCES;

	ratio.n = mean.n = 0;
	while (more(end, &ratio)) {
		uint64_t tokens = random_lengths(lengths, n, trace);

		for (int i = 0; i < n; i++)
			keys[i] = remote_sequence(r, r->tokens, 1, NULL);
		plan_prompts(r, keys, lengths, n);
		sample_add(&ratio, referenced(d, &r->shape, tokens));
		sample_add(&mean, (double)tokens / n);
		if (attnd_seq_close_many(r->a, keys, (uint32_t)n))
			die("closing sequences");
	}
	report_ratio(trace ? "P8.trace" : "P8.allocated", &ratio, 1.04, false,
		     "K/V bytes referenced / tokens' own, block size 16");
	report_figure(trace ? "P8 trace's mean length" : "P8 mean length", sample_median(&mean), "tokens");
}

/* Samples of one prompt, each with tokens of its own: the prompt is there once. */
static void sampling(struct remote *r, const struct daemon *d)
{
	static struct samples ratio;
	uint64_t key = remote_sequence(r, r->tokens, 1, NULL), keys[SAMPLES];
	struct attnd_row rows[SAMPLES];
	int rc;

	remote_fill(r, &key, 1, r->tokens, 0, PROMPT, PROMPT);
	for (int i = 0; i < SAMPLES; i++) {
		keys[i] = remote_fork(r, key, PROMPT);
		rows[i] = (struct attnd_row){.key = keys[i],
					     .start = PROMPT,
					     .tokens = r->tokens + (ptrdiff_t)i * SAMPLE,
					     .num_tokens = SAMPLE};
	}
	rc = attnd_plan(r->a, 1, r->info.cache, rows, SAMPLES, NULL, 0);
	if (rc)
		die("planning: %s", attnd_strerror(r->a, rc));
	ratio.n = 0;
	sample_add(&ratio, referenced(d, &r->shape, PROMPT + SAMPLES * SAMPLE));
	report_ratio("P8.sampling", &ratio, 1.04, false, "the same, 8 samples of one prompt of 2000 tokens");
	if (attnd_seq_close_many(r->a, keys, SAMPLES) || attnd_seq_close(r->a, key))
		die("closing sequences");
}

static void sequences(double end)
{
	const struct shape shape = llama_8b(1);
	const struct daemon_options o = {
		.pool_bytes = (uint64_t)512 << 20, .threads = 1, .cpus = bench.cpus, .spin_us = -1};
	const struct remote_options ro = {.max_tokens = 1, .max_length = LONGEST};
	struct daemon d;
	struct remote r;

	daemon_start(&d, &o);
	remote_open(&r, &d, &shape, &ro);
	allocated(&r, &d, true, now_seconds() + (end - now_seconds()) / 2);
	allocated(&r, &d, false, end);
	sampling(&r, &d);
	remote_close(&r);
	daemon_stop(&d);
}

/* Of a pool that one cache has taken whole. */
static void metadata(void)
{
	static struct samples ratio;
	const struct shape shape = llama_8b(LLAMA_LAYERS);
	const struct daemon_options o = {
		.pool_bytes = (uint64_t)512 << 20, .threads = 1, .cpus = bench.cpus, .spin_us = -1};
	const struct remote_options ro = {.max_tokens = 1, .max_length = CONTEXT};
	struct daemon d;
	struct remote r;
	json_t *status;
	double blocks, bytes;

	daemon_start(&d, &o);
	remote_open(&r, &d, &shape, &ro);
	for (uint64_t n = r.info.capacity_tokens / CONTEXT; n; n--) {
		uint64_t key = remote_sequence(&r, r.tokens, 1, NULL);
		const struct attnd_row row = {.key = key, .tokens = r.tokens, .num_tokens = CONTEXT};

		if (attnd_plan(r.a, (uint32_t)n, r.info.cache, &row, 1, NULL, 0))
			break;
	}
	status = ask_status(&d);
	blocks = member(json_array_get(json_object_get(status, "caches"), 0), "blocks");
	bytes = member(json_object_get(status, "pool"), "metadata_bytes");
	/* Beside what is mapped: what the leader derives from it, and the child index. */
	bytes += blocks * (double)(sizeof(struct block_aux) + 2 * sizeof(uint32_t));
	ratio.n = 0;
	sample_add(&ratio, bytes / (blocks * (double)(BLOCK * kv_bytes(&shape) * shape.layers)));
	report_ratio("P8.metadata", &ratio, 0.001, false, "metadata / K/V bytes, Llama-3-8B");
	report_figure("P8 metadata", bytes / blocks, "bytes a block");
	json_decref(status);
	remote_close(&r);
	daemon_stop(&d);
}

void goal_memory(void)
{
	double end = now_seconds() + bench.seconds;

	if (bench.socket) {
		report_skipped("P8", "needs a private daemon");
		return;
	}
	metadata();
	sequences(end);
}
