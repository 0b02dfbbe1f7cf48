/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What every fuzzer here offers: libFuzzer's entry point, which replay.c calls with the seeds.
 *
 * In: any bytes. Out: nothing, or the process ends. Next: the part under test.
 */
#ifndef ATTND_TESTS_FUZZ_FUZZ_H
#define ATTND_TESTS_FUZZ_FUZZ_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

/* In every build, and so that what is wrong stands on the last line. */
#define MUST(x)                                                                                     \
	do {                                                                                        \
		if (!(x)) {                                                                         \
			fprintf(stderr, "%s:%d: this does not hold: %s\n", __FILE__, __LINE__, #x); \
			abort();                                                                    \
		}                                                                                   \
	} while (0)

/* The input, byte by byte; zeroes when it is used up. */
struct input {
	const uint8_t *at, *end;
};

static inline uint8_t next_byte(struct input *in)
{
	return in->at < in->end ? *in->at++ : 0;
}

#endif
