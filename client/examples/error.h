/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One line that tells the user what went wrong.
 *
 * In:   a negative errno and a format, where the fault is found.
 * Out:  the text beside the code that the functions return.
 * Next: runner.c prints it, once.
 */
#ifndef ATTND_EXAMPLES_ERROR_H
#define ATTND_EXAMPLES_ERROR_H

struct error {
	char text[512];
};

/** Set the text and return `code`. */
int fail(struct error *error, int code, const char *format, ...) __attribute__((format(printf, 3, 4)));

/** The same for an allocation that failed. */
int fail_memory(struct error *error);

#endif
