/* SPDX-License-Identifier: Apache-2.0 */
/*
 * attnd-runner: a model runner whose KV cache and attention are attnd's.
 *
 * In:   a model, prompts, and the daemon's socket.
 * Out:  the continuations, and how much of each prompt was cached already.
 * Next: generate.c, from there model_forward and attention_attnd.c, where attnd.h is used.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cblas.h>

#include "generate.h"
#include "options.h"
#include "prompts.h"
#include "report.h"

struct run {
	const struct options *options;
	struct model *model;
	struct attention *attention;
	struct prompts prompts;
	struct request *requests;
	uint32_t num_requests;
	struct error error;
};

static int make_requests(struct run *r)
{
	uint32_t limit = r->model->config.max_position_embeddings, max_new;
	int rc = 0;

	r->requests = calloc(r->prompts.count, sizeof(*r->requests));
	if (!r->requests)
		return fail_memory(&r->error);
	for (size_t i = 0; !rc && i < r->prompts.count; i++) {
		const struct prompt *p = &r->prompts.list[i];
		if (!p->num_bytes)
			return fail(&r->error, -EINVAL, "prompt %zu is empty", i + 1);
		if (p->num_bytes >= limit)
			return fail(&r->error, -EINVAL, "prompt %zu has %zu tokens; the model takes up to %u", i + 1,
				    p->num_bytes, limit - 1);
		max_new = limit - (uint32_t)p->num_bytes;
		if (r->options->max_new < max_new)
			max_new = r->options->max_new;
		rc = request_init(&r->requests[i], (const uint8_t *)p->bytes, (uint32_t)p->num_bytes, max_new,
				  r->options->seed + i, &r->error);
		r->num_requests += !rc;
	}
	return rc;
}

static int load(struct run *r)
{
	const struct options *o = r->options;
	struct attention_limits limits = {
		.max_tokens = o->chunk > o->batch ? o->chunk : o->batch,
		.max_sequences = o->batch,
		.kv_dtype = o->kv_dtype,
	};
	int rc = o->prompt ? prompts_from_text(&r->prompts, o->prompt, &r->error)
			   : prompts_from_file(&r->prompts, o->prompts, &r->error);

	if (!rc)
		rc = model_load(&r->model, o->model, &r->error);
	if (!rc)
		rc = make_requests(r);
	if (!rc && o->local)
		rc = attention_local_create(&r->attention, &r->model->config, &limits, &r->error);
	else if (!rc)
		rc = attention_attnd_create(&r->attention, &r->model->config, &limits, r->model->fingerprint,
					    o->socket, &r->error);
	return rc;
}

static int run_requests(struct run *r)
{
	const struct options *o = r->options;
	int stream = r->num_requests == 1 && !o->json;
	struct generate_options options = {
		.max_new = o->max_new,
		.chunk = o->chunk,
		.batch = o->batch,
		.temperature = o->temperature,
		.on_token = stream ? report_token : NULL,
		.on_prompt = o->json ? NULL : report_prompt,
	};

	return generate(r->model, r->attention, r->requests, r->num_requests, &options, &r->error);
}

static int show(struct run *r)
{
	int rc = 0;

	for (uint32_t i = 0; !rc && r->options->json && i < r->num_requests; i++)
		rc = report_json(&r->requests[i], &r->error);
	for (uint32_t i = 0; !r->options->json && r->num_requests > 1 && i < r->num_requests; i++)
		report_text(&r->requests[i], i + 1);
	if (!r->options->json)
		report_table(r->requests, r->num_requests);
	if (!rc && (fflush(stdout) || ferror(stdout)))
		rc = fail(&r->error, -EIO, "stdout: %s", strerror(errno));
	return rc;
}

static void clear(struct run *r)
{
	for (uint32_t i = 0; i < r->num_requests; i++)
		request_clear(&r->requests[i]);
	free(r->requests);
	attention_destroy(r->attention);
	model_free(r->model);
	prompts_clear(&r->prompts);
}

int main(int argc, char **argv)
{
	struct options options;
	struct run run = {.options = &options};
	int rc = options_parse(&options, argc, argv);

	if (rc)
		return rc > 0 ? 0 : 2;
	/* Matrices this small gain nothing from more threads, whose spinning would take the daemon's cores. */
	if (!getenv("OPENBLAS_NUM_THREADS"))
		openblas_set_num_threads(1);
	rc = load(&run);
	if (!rc)
		rc = run_requests(&run);
	if (!rc)
		rc = show(&run);
	if (rc)
		fprintf(stderr, "attnd-runner: %s\n", run.error.text);
	clear(&run);
	return rc ? 1 : 0;
}
