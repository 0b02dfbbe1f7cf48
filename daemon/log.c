/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Log lines, each with one write.
 *
 * In:   a level and a text. Out: stderr. Next: nothing.
 *
 * Whoever reads them may have stopped: a line that has no room is lost, and counted, instead of
 * making the daemon wait.
 */
#include "log.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
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

/* Set nothing on the descriptor: its description may be others' too. False: no room. */
static bool write_now(const char *text, size_t length)
{
	struct pollfd fd = {.fd = STDERR_FILENO, .events = POLLOUT};

	if (send(STDERR_FILENO, text, length, MSG_DONTWAIT | MSG_NOSIGNAL) >= 0)
		return true;
	if (errno != ENOTSOCK)
		return false;
	/* A pipe that polls writable has room for a line; a file or terminal always is. */
	return poll(&fd, 1, 0) == 1 && fd.revents & POLLOUT && write(STDERR_FILENO, text, length) >= 0;
}

/* One line at a time, so that what a poll promised is still there; the lock is held for no wait. */
static void put_line(const char *line, size_t length)
{
	static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
	static unsigned long lost;
	char text[96];

	pthread_mutex_lock(&lock);
	if (lost) {
		int n = snprintf(text, sizeof(text), "%s%lu lines before this one were lost\n",
				 prefix(LOG_LEVEL_WARN), lost);

		if (write_now(text, (size_t)n))
			lost = 0;
	}
	if (lost || !write_now(line, length))
		lost++;
	pthread_mutex_unlock(&lock);
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
		put_line(line, length + 1);
	}
	errno = saved;
}
