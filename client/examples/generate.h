/* SPDX-License-Identifier: Apache-2.0 */
/*
 * From prompts to text: the loop of a model runner.
 *
 * In:   requests with their prompts.
 * Out:  their tokens, margins and times.
 * Next: model_forward a step at a time; report.c shows what came out.
 */
#ifndef ATTND_EXAMPLES_GENERATE_H
#define ATTND_EXAMPLES_GENERATE_H

#include <stdint.h>

#include "attention.h"
#include "error.h"
#include "model.h"

struct request {
	uint64_t *tokens; /* the prompt, then what was generated; room for prompt_tokens + max_new */
	uint32_t prompt_tokens, num_tokens;
	uint32_t held;		    /* tokens whose K and V the cache has */
	uint32_t reused;	    /* of the prompt, at the first opening */
	float *margins;		    /* of each generated token: the best logit above the second */
	uint64_t random;	    /* the sampler's state */
	uint64_t open_ns, first_ns; /* when it was opened, and had its first token */
	uint64_t decode_ns;	    /* in steps of one token... */
	uint32_t decoded;	    /* ...which gave so many */
	int opened, finished;
};

struct generate_options {
	uint32_t max_new;
	uint32_t chunk; /* prompt tokens of one step */
	uint32_t batch; /* requests at a time */
	float temperature;
	void (*on_token)(const struct request *r, void *context);  /* each new token; may be NULL */
	void (*on_prompt)(const struct request *r, void *context); /* each chunk of a prompt; may be NULL */
	void *context;
};

/** Fill in `r` for a prompt; its memory belongs to the caller: request_clear. */
int request_init(struct request *r, const uint8_t *prompt, uint32_t prompt_tokens, uint32_t max_new, uint64_t seed,
		 struct error *error);
void request_clear(struct request *r);

/**
 * Generate for all requests, options->batch of them at a time. Prompts are computed one after the other, in chunks,
 * so that a later one finds what an earlier one left; then all requests decode together.
 */
int generate(const struct model *m, struct attention *a, struct request *requests, uint32_t num_requests,
	     const struct generate_options *options, struct error *error);

#endif
