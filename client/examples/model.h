/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A Llama-shaped model: everything but attention.
 *
 * In:   a directory with config.json and model.safetensors; then, a step at a time, tokens.
 * Out:  logits of the last token of each row.
 * Next: attention.h once a layer; sampling.c for the logits.
 */
#ifndef ATTND_EXAMPLES_MODEL_H
#define ATTND_EXAMPLES_MODEL_H

#include <stdint.h>

#include "attention.h"
#include "config.h"
#include "error.h"

struct layer_weights { /* [out][in], as safetensors stores a linear layer */
	float *input_norm, *post_attention_norm;
	float *q, *k, *v, *o;
	float *gate, *up, *down;
};

struct model {
	struct config config;
	uint8_t fingerprint[16]; /* of the weights and of the settings that K and V depend on */
	float *embedding;	 /* [VOCAB_SIZE][hidden_size] */
	float *lm_head;		 /* the same, or tied to it */
	float *final_norm;
	struct layer_weights *layers;
};

int model_load(struct model **ret, const char *dir, struct error *error);

/** NULL is fine. */
void model_free(struct model *m);

/** Working memory of one forward pass, for up to max_tokens tokens. */
struct workspace;
int workspace_create(struct workspace **ret, const struct model *m, uint32_t max_tokens, struct error *error);
void workspace_free(struct workspace *w);

/**
 * Run one step. logits: [num_rows][VOCAB_SIZE], of each row's last token, or NULL: then the last
 * layer only stores its K and V.
 */
int model_forward(const struct model *m, struct workspace *w, struct attention *a, const struct step *step,
		  float *logits);

#endif
