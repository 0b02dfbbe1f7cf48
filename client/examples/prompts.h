/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where prompts come from.
 *
 * In:   one text, or a file with one JSON string a line.
 * Out:  byte strings.
 * Next: runner.c makes a request of each.
 */
#ifndef ATTND_EXAMPLES_PROMPTS_H
#define ATTND_EXAMPLES_PROMPTS_H

#include <stddef.h>

#include "error.h"

struct prompt {
	char *bytes;
	size_t num_bytes;
};

struct prompts {
	struct prompt *list;
	size_t count;
};

int prompts_from_text(struct prompts *ret, const char *text, struct error *error);
int prompts_from_file(struct prompts *ret, const char *path, struct error *error);
void prompts_clear(struct prompts *p);

#endif
