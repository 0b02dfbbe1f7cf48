/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the model asks of attention, and the two that answer.
 *
 * In:   sequences' tokens, and a layer's q, k, v for the new ones.
 * Out:  how much of a prompt is cached already, and a layer's attention outputs.
 * Next: attention_attnd.c (the daemon's cache) or attention_local.c (plain C in this process).
 */
#ifndef ATTND_EXAMPLES_ATTENTION_H
#define ATTND_EXAMPLES_ATTENTION_H

#include <stdint.h>

#include "config.h"
#include "error.h"

enum kv_dtype { KV_F32, KV_F16, KV_BF16 };

/** The tokens of one sequence in one step, at positions start, start + 1, ... */
struct step_row {
	uint32_t sequence; /* 0 .. max_sequences - 1 */
	uint32_t start;
	const uint64_t *tokens;
	uint32_t num_tokens;
};

struct step {
	const struct step_row *rows;
	uint32_t num_rows;
	uint32_t num_tokens; /* of all rows */
};

enum {
	LAYER_LAST = 1,	      /* of the step */
	LAYER_STORE_ONLY = 2, /* keep k and v; nobody needs out */
};

struct attention;

/*
 * All return 0 or a negative errno. -ECONNRESET means that the cache was lost and can be had
 * back: call recover, then repeat the step from the lengths that it answers.
 */
struct attention_ops {
	/* Start a sequence; `cached` of its tokens, at most num_tokens - 1, need not be computed. */
	int (*open)(struct attention *a, uint32_t sequence, const uint64_t *tokens, uint32_t num_tokens,
		    uint32_t *ret_cached);
	/* A step begins; its rows stay valid until its last layer is done. */
	int (*begin)(struct attention *a, const struct step *step);
	/* One layer of the step: from a->q, a->k, a->v to a->out. */
	int (*layer)(struct attention *a, uint32_t layer, int flags);
	int (*close)(struct attention *a, uint32_t sequence);
	/* ret_lengths[i]: how many tokens of sequences[i] are still there. */
	int (*recover)(struct attention *a, const uint32_t *sequences, uint32_t num_sequences, uint64_t *ret_lengths);
	void (*destroy)(struct attention *a);
};

struct attention {
	const struct attention_ops *ops;
	struct error *error; /* text of the last failure */
	/* For max_tokens tokens: [token][head][head_dim], and [token][KV head][head_dim]. */
	float *q, *k, *v, *out;
};

struct attention_limits {
	uint32_t max_tokens;	/* of one step */
	uint32_t max_sequences; /* open at once */
	enum kv_dtype kv_dtype;
};

int attention_local_create(struct attention **ret, const struct config *config, const struct attention_limits *limits,
			   struct error *error);

/** Connect to the daemon at `socket` (NULL: where attnd_connect looks) and join the model's cache. */
int attention_attnd_create(struct attention **ret, const struct config *config, const struct attention_limits *limits,
			   const uint8_t fingerprint[16], const char *socket, struct error *error);

/** NULL is fine. */
void attention_destroy(struct attention *a);

#endif
