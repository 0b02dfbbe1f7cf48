/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One line that tells the user what went wrong: see error.h.
 */
#include "error.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>

int fail(struct error *error, int code, const char *format, ...)
{
	va_list args;

	va_start(args, format);
	vsnprintf(error->text, sizeof(error->text), format, args);
	va_end(args);
	return code;
}

int fail_memory(struct error *error)
{
	return fail(error, -ENOMEM, "out of memory");
}
