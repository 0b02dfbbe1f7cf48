/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tokens in pieces that forks share until one of them writes.
 *
 * In:   tokens of opens and rows. Out: tokens for attnd_reopen. Next: seq.c.
 */
#include "tokens.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define PIECE 512

struct cl_piece {
	uint32_t refs;
	uint64_t tokens[PIECE];
};

static void piece_unref(struct cl_piece *p)
{
	if (!--p->refs)
		free(p);
}

static size_t pieces_for(uint64_t tokens)
{
	return (size_t)((tokens + PIECE - 1) / PIECE);
}

static void cut(struct cl_tokens *t, uint64_t length)
{
	while (t->num_pieces > pieces_for(length))
		piece_unref(t->pieces[--t->num_pieces]);
	t->count = length;
}

/* The piece at this index as one's own; made if it is the next one. NULL: no memory. */
static struct cl_piece *own_piece(struct cl_tokens *t, size_t index)
{
	struct cl_piece *p, *old = index < t->num_pieces ? t->pieces[index] : NULL;

	if (old && old->refs == 1)
		return old;
	p = malloc(sizeof(*p));
	if (!p)
		return NULL;
	if (old) {
		memcpy(p, old, sizeof(*p));
		piece_unref(old);
	} else {
		t->num_pieces++;
	}
	p->refs = 1;
	t->pieces[index] = p;
	return p;
}

static int make_room(struct cl_tokens *t, size_t pieces)
{
	size_t capacity = 4;
	struct cl_piece **more;

	while (capacity < t->num_pieces)
		capacity *= 2;
	if (t->pieces && pieces <= capacity)
		return 0;
	while (capacity < pieces)
		capacity *= 2;
	more = realloc(t->pieces, capacity * sizeof(struct cl_piece *));
	if (!more)
		return -ENOMEM;
	t->pieces = more;
	return 0;
}

void cl_tokens_write(struct cl_tokens *t, uint64_t start, const uint64_t *tokens, uint64_t num_tokens)
{
	cut(t, start);
	if (!num_tokens || make_room(t, pieces_for(start + num_tokens)))
		return;
	while (num_tokens) {
		size_t index = (size_t)(t->count / PIECE), slot = (size_t)(t->count % PIECE);
		size_t n = num_tokens < PIECE - slot ? (size_t)num_tokens : PIECE - slot;
		struct cl_piece *p = own_piece(t, index);

		if (!p)
			return;
		memcpy(p->tokens + slot, tokens, n * sizeof(*tokens));
		t->count += n;
		tokens += n;
		num_tokens -= n;
	}
}

int cl_tokens_share(struct cl_tokens *to, const struct cl_tokens *from, uint64_t length)
{
	size_t pieces = pieces_for(length);

	if (make_room(to, pieces))
		return -ENOMEM;
	for (size_t i = 0; i < pieces; i++) {
		to->pieces[i] = from->pieces[i];
		to->pieces[i]->refs++;
	}
	to->num_pieces = pieces;
	to->count = length;
	return 0;
}

void cl_tokens_read(const struct cl_tokens *t, uint64_t *ret, uint64_t length)
{
	for (uint64_t at = 0; at < length; at += PIECE) {
		uint64_t n = length - at < PIECE ? length - at : PIECE;

		memcpy(ret + at, t->pieces[at / PIECE]->tokens, (size_t)n * sizeof(*ret));
	}
}

void cl_tokens_destroy(struct cl_tokens *t)
{
	cut(t, 0);
	free(t->pieces);
	*t = (struct cl_tokens){0};
}
