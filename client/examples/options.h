/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The command line.
 *
 * In:   argv.
 * Out:  options within their limits.
 * Next: runner.c.
 */
#ifndef ATTND_EXAMPLES_OPTIONS_H
#define ATTND_EXAMPLES_OPTIONS_H

#include <stdint.h>

#include "attention.h"

struct options {
	const char *model, *prompt, *prompts, *socket;
	int local, json;
	uint32_t max_new, chunk, batch;
	uint64_t seed;
	float temperature;
	enum kv_dtype kv_dtype;
};

/** 0; 1 after --help or --version was answered; -EINVAL after the fault was named on stderr. */
int options_parse(struct options *ret, int argc, char **argv);

#endif
