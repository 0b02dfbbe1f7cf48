/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The loop of a model runner: see generate.h.
 *
 * Each turn does one thing: open or close a sequence, extend by one chunk of a prompt, or decode
 * one token of every request. What comes next follows from the requests alone. So after a
 * restart of the daemon it is enough to write down how many tokens are still held: the missing
 * ones are extended again and the text goes on.
 */
#include "generate.h"

#include <errno.h>
#include <stdlib.h>
#include <time.h>

#include "sampling.h"

enum { MAX_RESETS = 8 }; /* losses of the cache without one token in between */

struct batch {
	const struct model *model;
	struct attention *attention;
	struct workspace *workspace;
	struct error *error;
	const struct generate_options *options;
	struct request *requests; /* sequence i is requests[i] */
	uint32_t num_requests;
	struct step_row *rows; /* [num_requests] */
	float *logits;	       /* [num_requests][VOCAB_SIZE] */
};

static uint64_t now_ns(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

int request_init(struct request *r, const uint8_t *prompt, uint32_t prompt_tokens, uint32_t max_new, uint64_t seed,
		 struct error *error)
{
	*r = (struct request){
		.tokens = calloc((size_t)prompt_tokens + max_new, sizeof(*r->tokens)),
		.prompt_tokens = prompt_tokens,
		.num_tokens = prompt_tokens,
		.margins = calloc(max_new, sizeof(*r->margins)),
		.random = seed,
	};
	if (!r->tokens || !r->margins) {
		request_clear(r);
		return fail_memory(error);
	}
	for (uint32_t i = 0; i < prompt_tokens; i++)
		r->tokens[i] = prompt[i];
	return 0;
}

void request_clear(struct request *r)
{
	free(r->tokens);
	free(r->margins);
	r->tokens = NULL;
	r->margins = NULL;
}

static uint32_t generated(const struct request *r)
{
	return r->num_tokens - r->prompt_tokens;
}

static void append_token(struct batch *b, struct request *r, const float *logits)
{
	const struct generate_options *o = b->options;
	const struct config *c = &b->model->config;
	float margin;
	uint32_t token = sample_token(logits, VOCAB_SIZE, o->temperature, &r->random, &margin);

	if (!generated(r))
		r->first_ns = now_ns();
	r->margins[generated(r)] = margin;
	r->tokens[r->num_tokens++] = token;
	r->finished = generated(r) == o->max_new || r->num_tokens == c->max_position_embeddings ||
		      (int32_t)token == c->eos_token;
	if (o->on_token)
		o->on_token(r, o->context);
}

static int open_request(struct batch *b, struct request *r)
{
	uint32_t sequence = (uint32_t)(r - b->requests), cached;
	int rc;

	r->open_ns = now_ns();
	rc = b->attention->ops->open(b->attention, sequence, r->tokens, r->num_tokens, &cached);
	if (rc)
		return rc;
	r->held = r->reused = cached;
	r->opened = 1;
	return 0;
}

static int close_request(struct batch *b, struct request *r)
{
	int rc = b->attention->ops->close(b->attention, (uint32_t)(r - b->requests));

	r->opened = rc != 0;
	return rc;
}

/* One chunk of the tokens that the cache lacks; the chunk that ends them gives the next token. */
static int extend_request(struct batch *b, struct request *r)
{
	uint32_t pending = r->num_tokens - r->held, n = pending < b->options->chunk ? pending : b->options->chunk;
	struct step step = {.rows = b->rows, .num_rows = 1, .num_tokens = n};
	int rc;

	b->rows[0] = (struct step_row){
		.sequence = (uint32_t)(r - b->requests),
		.start = r->held,
		.tokens = r->tokens + r->held,
		.num_tokens = n,
	};
	rc = model_forward(b->model, b->workspace, b->attention, &step, n == pending ? b->logits : NULL);
	if (rc)
		return rc;
	r->held += n;
	if (n == pending)
		append_token(b, r, b->logits);
	else if (b->options->on_prompt)
		b->options->on_prompt(r, b->options->context);
	return 0;
}

/* One token of every request that goes on, in one plan. */
static int decode_all(struct batch *b)
{
	struct step step = {.rows = b->rows};
	uint64_t begin_ns = now_ns(), step_ns;
	int rc;

	for (uint32_t i = 0; i < b->num_requests; i++) {
		const struct request *r = &b->requests[i];
		if (!r->finished)
			b->rows[step.num_rows++] = (struct step_row){
				.sequence = i,
				.start = r->held,
				.tokens = r->tokens + r->held,
				.num_tokens = 1,
			};
	}
	step.num_tokens = step.num_rows;
	rc = model_forward(b->model, b->workspace, b->attention, &step, b->logits);
	if (rc)
		return rc;
	step_ns = now_ns() - begin_ns;
	for (uint32_t i = 0; i < step.num_rows; i++) {
		struct request *r = &b->requests[b->rows[i].sequence];
		r->held++;
		r->decoded++;
		r->decode_ns += step_ns;
		append_token(b, r, b->logits + (size_t)i * VOCAB_SIZE);
	}
	return 0;
}

/* Ask what the cache still holds. One token at least stays pending: its logits choose the next. */
static int recover(struct batch *b)
{
	uint32_t *sequences = calloc(b->num_requests, sizeof(*sequences)), n = 0;
	uint64_t *lengths = calloc(b->num_requests, sizeof(*lengths));
	int rc = sequences && lengths ? 0 : fail_memory(b->error);

	for (uint32_t i = 0; !rc && i < b->num_requests; i++) {
		b->requests[i].opened &= !b->requests[i].finished; /* closed with its session */
		if (b->requests[i].opened)
			sequences[n++] = i;
	}
	if (!rc && n)
		rc = b->attention->ops->recover(b->attention, sequences, n, lengths);
	for (uint32_t i = 0; !rc && i < n; i++) {
		struct request *r = &b->requests[sequences[i]];
		r->held = lengths[i] < r->num_tokens ? (uint32_t)lengths[i] : r->num_tokens - 1;
	}
	free(sequences);
	free(lengths);
	return rc;
}

static int to_close(const struct request *r)
{
	return r->finished && r->opened;
}

/* Not ready to decode with the others. */
static int to_extend(const struct request *r)
{
	return !r->finished && (!generated(r) || r->num_tokens - r->held > 1);
}

static int to_decode(const struct request *r)
{
	return !r->finished;
}

static struct request *first(struct batch *b, int (*test)(const struct request *r))
{
	for (uint32_t i = 0; i < b->num_requests; i++)
		if (test(&b->requests[i]))
			return &b->requests[i];
	return NULL;
}

static int turn(struct batch *b, int *ret_done)
{
	struct request *r;

	if ((r = first(b, to_close)) != NULL)
		return close_request(b, r);
	if ((r = first(b, to_extend)) != NULL)
		return r->opened ? extend_request(b, r) : open_request(b, r);
	if (first(b, to_decode))
		return decode_all(b);
	*ret_done = 1;
	return 0;
}

static int run_batch(struct batch *b)
{
	int rc, done = 0, resets = 0;

	while (!done) {
		rc = turn(b, &done);
		if (!rc)
			resets = 0;
		while (rc == -ECONNRESET && resets++ < MAX_RESETS)
			rc = recover(b);
		if (rc)
			return rc;
	}
	return 0;
}

int generate(const struct model *m, struct attention *a, struct request *requests, uint32_t num_requests,
	     const struct generate_options *options, struct error *error)
{
	uint32_t max_tokens = options->chunk > options->batch ? options->chunk : options->batch;
	struct batch b = {
		.model = m,
		.attention = a,
		.error = error,
		.options = options,
		.rows = calloc(options->batch, sizeof(*b.rows)),
		.logits = calloc((size_t)options->batch * VOCAB_SIZE, sizeof(*b.logits)),
	};
	int rc = b.rows && b.logits ? workspace_create(&b.workspace, m, max_tokens, error) : fail_memory(error);

	for (uint32_t done = 0; !rc && done < num_requests; done += b.num_requests) {
		b.requests = requests + done;
		b.num_requests = num_requests - done < options->batch ? num_requests - done : options->batch;
		rc = run_batch(&b);
	}
	workspace_free(b.workspace);
	free(b.rows);
	free(b.logits);
	return rc;
}
