/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Choosing the next token.
 *
 * In:   logits.
 * Out:  a token: the likeliest, or one drawn at a temperature by a seeded generator.
 * Next: generate.c appends it.
 */
#ifndef ATTND_EXAMPLES_SAMPLING_H
#define ATTND_EXAMPLES_SAMPLING_H

#include <stdint.h>

/**
 * A token of logits[n]. temperature 0: the first of the largest; otherwise drawn from
 * softmax(logits / temperature). `state` is the generator's, seeded with any number. *ret_margin is how far the
 * largest logit stands above the second.
 */
uint32_t sample_token(const float *logits, uint32_t n, float temperature, uint64_t *state, float *ret_margin);

#endif
