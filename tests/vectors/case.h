/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One golden vector: a folder with parameters, inputs and the expected outputs.
 *
 * In:   DIR/case.json and its *.f32 files (README.md has the format).
 * Out:  struct vector_case, whose arrays have the sizes that the parameters ask for.
 * Next: run-vectors.c feeds it to a daemon.
 */
#ifndef ATTND_TESTS_VECTORS_CASE_H
#define ATTND_TESTS_VECTORS_CASE_H

#include <stddef.h>
#include <stdint.h>

#include "../../client/attnd.h"

struct vector_case {
	char name[64];
	int decode; /* op: decode or extend */
	uint32_t num_heads, num_kv_heads, head_dim, head_dim_v;
	float sm_scale, logit_cap;
	uint32_t sliding_window;
	int causal;
	enum attnd_dtype q_dtype, kv_dtype;
	enum attnd_scale_mode scale_mode;
	float k_scale, v_scale;
	uint32_t block_size;
	double tolerance, lse_tolerance;

	uint32_t num_seqs;
	uint32_t *seq_lens;	   /* all keys */
	uint32_t *new_lens;	   /* the last of them, which have rows */
	size_t num_rows, num_keys; /* sums of the two */

	float *q;	    /* [rows][num_heads][head_dim] */
	float *k, *v;	    /* [keys][num_kv_heads][head_dim(_v)] */
	float *out, *bound; /* [rows][num_heads][head_dim_v] */
	float *lse;	    /* [rows][num_heads] */
	float *sinks;	    /* [num_heads] or NULL */
	float *alibi;	    /* [num_heads] or NULL */
	uint8_t *mask;	    /* a sequence after the other [new][keys], or NULL */
};

/** 0, or a negative errno with its reason in `why`. */
int case_load(struct vector_case **ret, const char *dir, char *why, size_t why_bytes);

/** NULL is fine. */
void case_free(struct vector_case *c);

#endif
