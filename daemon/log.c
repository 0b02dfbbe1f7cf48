/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Log lines, each with one write.
 *
 * In:   a level and a text. Out: stderr. Next: nothing.
 */
#include "log.h"

#include <errno.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static _Atomic int max_level = LOG_LEVEL_INFO;

void log_set_level(enum log_level level)
{
	atomic_store_explicit(&max_level, (int)level, memory_order_relaxed); /* a setting, orders nothing */
}

/* sd-daemon(3): "<N>" at a line's start is its priority; on a terminal a word reads better. */
static const char *prefix(enum log_level level)
{
	static const char *const priorities[] = {"<3>", "<4>", "<6>", "<7>"};
	static const char *const words[] = {"attnd: error: ", "attnd: warning: ", "attnd: ", "attnd: debug: "};

	return isatty(STDERR_FILENO) ? words[level] : priorities[level];
}

void log_line(enum log_level level, const char *format, ...)
{
	int saved = errno, n, m;
	char line[1024];
	va_list args;

	if ((int)level > atomic_load_explicit(&max_level, memory_order_relaxed))
		return;
	n = snprintf(line, sizeof(line) - 1, "%s", prefix(level));
	va_start(args, format);
	m = vsnprintf(line + n, sizeof(line) - 1 - (size_t)n, format, args);
	va_end(args);
	if (m >= 0) {
		size_t length = strlen(line);

		line[length] = '\n';
		if (write(STDERR_FILENO, line, length + 1) < 0) {
			/* Nowhere left to say it. */
		}
	}
	errno = saved;
}
