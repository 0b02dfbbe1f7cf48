/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A golden vector through the public API.
 *
 * In:   a connection and a case.
 * Out:  out and lse as float, in the case's order of rows.
 * Next: run-vectors.c compares them.
 */
#ifndef ATTND_TESTS_VECTORS_FEED_H
#define ATTND_TESTS_VECTORS_FEED_H

#include "case.h"

struct feed_options {
	uint32_t chunk;	     /* tokens of a sequence in one plan; 0: all */
	uint32_t block_size; /* 0: the case's */
	enum attnd_layout layout;
};

/**
 * Run case number `number` (no two of a daemon have the same). ret_out [rows][num_heads][head_dim_v] and ret_lse
 * [rows][num_heads] belong to the caller. On failure *ret_what names the call.
 */
int feed_case(attnd_t *a, const struct vector_case *c, uint32_t number, const struct feed_options *options,
	      float *ret_out, float *ret_lse, const char **ret_what);

#endif
