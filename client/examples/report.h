/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the user sees.
 *
 * In:   requests, running or done.
 * Out:  text, progress, a table, or one JSON object a line.
 * Next: the terminal, or a program that reads JSON.
 */
#ifndef ATTND_EXAMPLES_REPORT_H
#define ATTND_EXAMPLES_REPORT_H

#include "generate.h"

/** Write the newest token's byte to stdout at once. */
void report_token(const struct request *r, void *context);

/** How far a long prompt is, to stderr if that is a terminal. */
void report_prompt(const struct request *r, void *context);

/** All the text of a request, after a heading with its number. */
void report_text(const struct request *r, uint32_t number);

void report_table(const struct request *requests, uint32_t num_requests);

/** prompt_tokens, reused_tokens, tokens, margins, text, ttft_ms, tokens_per_s. */
int report_json(const struct request *r, struct error *error);

#endif
