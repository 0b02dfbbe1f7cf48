/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A sequence's tokens in pieces that forks share until one of them writes.
 *
 * In:   tokens and where they start. Out: the same tokens. Next: seq.c.
 */
#ifndef ATTND_CLIENT_TOKENS_H
#define ATTND_CLIENT_TOKENS_H

#include <stddef.h>
#include <stdint.h>

struct cl_piece;

struct cl_tokens {
	struct cl_piece **pieces;
	size_t num_pieces;
	uint64_t count; /* tokens held */
};

/** Cut to `start`, then add. Fewer are kept when memory is short; start <= count. */
void cl_tokens_write(struct cl_tokens *t, uint64_t start, const uint64_t *tokens, uint64_t num_tokens);
/** Make *to (empty) the first `length` tokens of `from`. -ENOMEM. */
int cl_tokens_share(struct cl_tokens *to, const struct cl_tokens *from, uint64_t length);
/** Copy the first `length` out; length <= count. */
void cl_tokens_read(const struct cl_tokens *t, uint64_t *ret, uint64_t length);
/** Leaves *t empty. */
void cl_tokens_destroy(struct cl_tokens *t);

#endif
