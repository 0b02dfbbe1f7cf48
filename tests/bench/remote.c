/* SPDX-License-Identifier: Apache-2.0 */
/*
 * remote.h by the client library's public calls.
 *
 * In:   sequences, steps. Out: seconds. Next: the daemon.
 */
#include "remote.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PLAN_TAG = 1, PARAMS_ID = 0, FILL_TOKENS = 2048 };

static volatile uint64_t sink;

static void check(const struct remote *r, int rc, const char *what)
{
	if (rc)
		die("%s: %s", what, attnd_strerror(r->a, rc));
}

/* ---- The daemon ---- */

void daemon_start(struct daemon *d, const struct daemon_options *o)
{
	/* A busy machine takes its time to give the pool its pages. */
	const struct attnd_connect_options patient = {.timeout_us = 60000000};
	char pool[32], threads[16], spin[16];
	const char *args[] = {"--pool-size", pool, "--threads", threads, "--log-level", "warn", NULL, NULL, NULL};
	int rc;

	*d = (struct daemon){.socket = bench.socket, .threads = bench.threads};
	if (bench.socket)
		return;
	snprintf(pool, sizeof(pool), "%lluM", (unsigned long long)(o->pool_bytes >> 20) + 1);
	snprintf(threads, sizeof(threads), "%u", o->threads);
	snprintf(spin, sizeof(spin), "%d", o->spin_us);
	if (o->spin_us >= 0) {
		args[6] = "--spin-us";
		args[7] = spin;
	}
	run_on(o->first_cpu, o->cpus);
	rc = attnd_private_start(&d->owner, args, &patient);
	run_on(0, bench.cpus);
	if (rc)
		die("starting a daemon: %s", attnd_strerror(NULL, rc));
	d->socket = attnd_socket(d->owner);
	d->threads = o->threads;
	d->first_cpu = o->first_cpu;
}

void daemon_stop(struct daemon *d)
{
	attnd_disconnect(d->owner);
	*d = (struct daemon){0};
}

/* ---- The connection ---- */

static void open_cache(struct remote *r, uint8_t model)
{
	const struct shape *s = &r->shape;
	struct attnd_cache_desc desc = {.name = "bench",
					.num_layers = s->layers,
					.num_heads = s->heads,
					.num_kv_heads = s->kv_heads,
					.head_dim = s->dim,
					.block_size = BLOCK,
					.kv_dtype = ATTND_BF16};
	struct attnd_params params = {.sm_scale = 0.0883883f,
				      .causal = 1,
				      .q_dtype = ATTND_BF16,
				      .out_dtype = ATTND_BF16,
				      .kv_in_dtype = ATTND_BF16};

	if (model)
		desc.fingerprint[0] = model;
	else if (attnd_engine_id(desc.fingerprint))
		die("no random numbers");
	check(r, attnd_cache_open(r->a, &desc, 1, &r->info), "opening a cache");
	params.cache = r->info.cache;
	check(r, attnd_params_set(r->a, PARAMS_ID, &params), "setting parameters");
}

static void *arena(struct remote *r, size_t bytes)
{
	void *p;

	check(r, attnd_alloc(r->a, bytes, &p), "arena memory");
	memset(p, 0, bytes);
	return p;
}

void remote_open(struct remote *r, const struct daemon *d, const struct shape *s, const struct remote_options *o)
{
	const struct attnd_connect_options options = {
		.socket = d->socket, .name = "attnd-bench", .spin_us = o->spin_us};
	size_t values;
	int rc;

	*r = (struct remote){.shape = *s,
			     .max_tokens = o->max_tokens > FILL_TOKENS ? o->max_tokens : FILL_TOKENS,
			     .max_length = o->max_length,
			     .next_key = 1};
	rc = attnd_connect(&r->a, &options);
	if (rc)
		die("connecting to %s: %s", d->socket, attnd_strerror(NULL, rc));
	open_cache(r, o->model);
	r->q = arena(r, r->max_tokens * q_bytes(s));
	r->k = arena(r, r->max_tokens * k_bytes(s));
	r->v = arena(r, r->max_tokens * k_bytes(s));
	r->out = arena(r, r->max_tokens * q_bytes(s));
	values = r->max_tokens * q_bytes(s) / sizeof(uint16_t);
	r->source = must(malloc(values * sizeof(uint16_t)));
	random_values(r->source, values);
	r->tokens = must(malloc(r->max_length * sizeof(uint64_t)));
	for (uint64_t i = 0; i < r->max_length; i++)
		r->tokens[i] = random_below(UINT32_MAX);
}

void remote_close(struct remote *r)
{
	attnd_disconnect(r->a);
	free(r->source);
	free(r->tokens);
	*r = (struct remote){0};
}

/* ---- Sequences ---- */

uint64_t remote_sequence(struct remote *r, const uint64_t *tokens, uint64_t num_tokens, uint64_t *ret_cached)
{
	struct attnd_open_info info;
	uint64_t key = r->next_key++;

	check(r, attnd_seq_open(r->a, key, 0, tokens, num_tokens, ret_cached ? UINT64_MAX : 0, &info),
	      "opening a sequence");
	if (ret_cached)
		*ret_cached = info.cached;
	return key;
}

uint64_t remote_fork(struct remote *r, uint64_t key, uint64_t length)
{
	uint64_t copy = r->next_key++;

	check(r, attnd_seq_fork(r->a, key, copy, length), "forking a sequence");
	return copy;
}

/* K/V of all layers for a plan that was made. */
static void store_layers(struct remote *r)
{
	attnd_job_t job;

	for (uint32_t l = 0; l < r->shape.layers; l++) {
		const struct attnd_attend a = {.plan = PLAN_TAG,
					       .params = PARAMS_ID,
					       .layer = l,
					       .flags = ATTND_NO_OUT | (l + 1 == r->shape.layers ? ATTND_LAST : 0u),
					       .k = r->k,
					       .v = r->v};

		check(r, attnd_extend(r->a, &a, &job), "storing K/V");
		check(r, attnd_wait(r->a, job, NULL), "storing K/V");
	}
}

static void store_inputs(struct remote *r, uint32_t num_tokens)
{
	memcpy(r->q, r->source, num_tokens * q_bytes(&r->shape));
	memcpy(r->k, r->source, num_tokens * k_bytes(&r->shape));
	memcpy(r->v, r->source, num_tokens * k_bytes(&r->shape));
}

void remote_fill(struct remote *r, const uint64_t *keys, uint32_t num_keys, const uint64_t *tokens, uint64_t from,
		 uint64_t to, uint64_t publish)
{
	uint32_t order[REMOTE_ROWS], most = num_keys > 1 ? BLOCK : FILL_TOKENS;
	struct attnd_row row[REMOTE_ROWS];

	for (uint32_t i = 0; i < num_keys; i++)
		order[i] = i;
	store_inputs(r, FILL_TOKENS);
	for (uint64_t at = from, end; at < to; at = end) {
		end = (at / most + 1) * most;
		end = end < to ? end : to;
		shuffle(order, num_keys);
		for (uint32_t i = 0; i < num_keys; i++)
			row[i] = (struct attnd_row){.key = keys[order[i]],
						    .start = at,
						    .tokens = tokens + at,
						    .num_tokens = (uint32_t)(end - at),
						    .publish_upto = publish};
		check(r, attnd_plan(r->a, PLAN_TAG, r->info.cache, row, num_keys, NULL, 0), "planning");
		store_layers(r);
	}
}

/* ---- Steps ---- */

void remote_wait(struct remote *r, attnd_job_t job)
{
	check(r, attnd_wait(r->a, job, NULL), "waiting");
}

attnd_job_t remote_plan(struct remote *r, const uint64_t *keys, const uint32_t *lengths, uint32_t num_rows)
{
	struct attnd_row row[REMOTE_ROWS];
	attnd_job_t job;

	for (uint32_t i = 0; i < num_rows; i++)
		row[i] =
			(struct attnd_row){.key = keys[i], .start = lengths[i], .tokens = r->tokens, .num_tokens = 1};
	check(r, attnd_plan_async(r->a, PLAN_TAG, r->info.cache, row, num_rows, NULL, 0, &job), "planning");
	return job;
}

static struct attnd_attend layer_job(const struct remote *r, uint32_t layer, bool last)
{
	return (struct attnd_attend){.plan = PLAN_TAG,
				     .params = PARAMS_ID,
				     .layer = layer,
				     .flags = last ? ATTND_LAST : 0u,
				     .q = r->q,
				     .k = r->k,
				     .v = r->v,
				     .out = r->out};
}

void remote_attend(struct remote *r, uint32_t layer, bool last, attnd_job_t plan)
{
	const struct attnd_attend a = layer_job(r, layer, last);
	attnd_job_t job;

	check(r, attnd_decode(r->a, &a, &job), "decode");
	if (plan)
		remote_wait(r, plan);
	remote_wait(r, job);
}

void remote_layer(struct remote *r, uint32_t num_rows, uint32_t layer, bool last, attnd_job_t plan)
{
	store_inputs(r, num_rows);
	remote_attend(r, layer, last, plan);
	sink += read_values(r->out, num_rows * q_bytes(&r->shape));
}

void remote_extend(struct remote *r, uint64_t key, uint64_t start, uint32_t num_tokens)
{
	const struct attnd_row row = {
		.key = key, .start = start, .tokens = r->tokens + start, .num_tokens = num_tokens};
	attnd_job_t job;

	check(r, attnd_plan(r->a, PLAN_TAG, r->info.cache, &row, 1, NULL, 0), "planning");
	store_inputs(r, num_tokens);
	for (uint32_t l = 0; l < r->shape.layers; l++) {
		const struct attnd_attend a = layer_job(r, l, l + 1 == r->shape.layers);

		check(r, attnd_extend(r->a, &a, &job), "extend");
		remote_wait(r, job);
	}
}

double remote_step(struct remote *r, const uint64_t *keys, const uint32_t *lengths, uint32_t num_rows, uint32_t jobs)
{
	double start = now_seconds();
	attnd_job_t plan = remote_plan(r, keys, lengths, num_rows);

	for (uint32_t i = 0; i < jobs; i++)
		remote_layer(r, num_rows, i % r->shape.layers, i + 1 == jobs, i ? 0 : plan);
	return now_seconds() - start;
}

double remote_job(struct remote *r, const uint64_t *keys, const uint32_t *lengths, uint32_t num_rows)
{
	double start;

	remote_wait(r, remote_plan(r, keys, lengths, num_rows));
	start = now_seconds();
	remote_layer(r, num_rows, 0, false, 0);
	return now_seconds() - start;
}
