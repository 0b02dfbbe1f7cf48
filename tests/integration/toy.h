/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A model without weights: q, k and v are numbers made from (token, position, layer), so that the
 * same tokens have the same K and V in every process, and another token has others.
 *
 * In:   a connection, tokens. Out: attention outputs of the last layer.
 * Next: the tests of this directory.
 */
#ifndef ATTND_TESTS_INTEGRATION_TOY_H
#define ATTND_TESTS_INTEGRATION_TOY_H

#include "harness.h"

enum {
	TOY_LAYERS = 2,
	TOY_HEADS = 4,
	TOY_KV_HEADS = 2,
	TOY_DIM = 32,
	TOY_MAX_TOKENS = 512, /* of one plan */
	TOY_ROW_FLOATS = TOY_HEADS * TOY_DIM,
};

struct toy {
	attnd_t *a;
	uint32_t cache;
	struct attnd_cache_info info;
	uint32_t ns;		/* of toy_prefill's sequences */
	uint64_t salt;		/* other numbers for the same tokens, as another adapter has */
	float *q, *k, *v, *out; /* arena */
};

/** Join (or make) the toy's cache of this fingerprint. 0 or the library's error. */
int toy_open(struct toy *t, attnd_t *a, uint8_t fingerprint);

/** Plan these rows under a tag. */
int toy_plan(struct toy *t, uint32_t tag, const struct attnd_row *rows, uint32_t num_rows,
	     struct attnd_row_status *ret_status);

/** Run one layer of a plan with these rows. */
int toy_layer(struct toy *t, uint32_t tag, const struct attnd_row *rows, uint32_t num_rows, uint32_t layer);

/** Plan and all layers. With ret_status NULL a refused row fails the call. */
int toy_step(struct toy *t, uint32_t tag, const struct attnd_row *rows, uint32_t num_rows,
	     struct attnd_row_status *ret_status);

/** Open `key` on the tokens, compute what is not cached (at least the last token), publish all. */
int toy_prefill(struct toy *t, uint64_t key, const uint64_t *tokens, uint32_t num_tokens, uint64_t *ret_cached);

/** n numbers in [-1, 1) that depend on all of the arguments. K's salt in a layer is 3 * layer + 1, V's one more. */
void toy_fill(float *to, uint32_t n, uint64_t token, uint64_t position, uint64_t salt);

/** tokens[i] = base + i. */
void toy_tokens(uint64_t *tokens, uint32_t num_tokens, uint64_t base);

#endif
