/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A model's config.json.
 *
 * In:   DIR/config.json in Hugging Face's Llama form.
 * Out:  the numbers, checked.
 * Next: model.c loads the weights that they ask for.
 */
#ifndef ATTND_EXAMPLES_CONFIG_H
#define ATTND_EXAMPLES_CONFIG_H

#include <stdint.h>

#include "error.h"

enum { VOCAB_SIZE = 256 }; /* bytes are tokens */

struct config {
	uint32_t hidden_size, intermediate_size;
	uint32_t num_layers, num_heads, num_kv_heads, head_dim;
	uint32_t max_position_embeddings;
	int32_t eos_token; /* -1: none */
	float rms_norm_eps, rope_theta;
	int tie_word_embeddings;
};

int config_load(struct config *ret, const char *dir, struct error *error);

#endif
