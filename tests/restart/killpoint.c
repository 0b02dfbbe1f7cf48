/* SPDX-License-Identifier: Apache-2.0 */
/* In: KILL_POINT=name:n. Out: the daemon is gone at the n-th time. Next: daemon/killpoint.h. */
#include "../../daemon/killpoint.h"

#include <execinfo.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char *const names[] = {
#define NAME(name) #name,
	KILL_POINTS(NAME)
#undef NAME
};

/* What was not meant to happen tells the log where it did. */
static void tell(int sig)
{
	void *at[32];

	backtrace_symbols_fd(at, backtrace(at, 32), STDERR_FILENO);
	signal(sig, SIG_DFL);
	raise(sig);
}

__attribute__((constructor)) static void watch(void)
{
	void *at[1];

	(void)backtrace(at, 1); /* loads what it needs now */
	signal(SIGSEGV, tell);
	signal(SIGABRT, tell);
	signal(SIGBUS, tell);
}

/* The leader's alone; only before it starts does main pass some. */
void kill_point(enum kill_point p)
{
	static const char *want;
	static long left;

	if (!want) {
		want = getenv("KILL_POINT");
		want = want ? want : "";
		left = strchr(want, ':') ? strtol(strchr(want, ':') + 1, NULL, 10) : 1;
	}
	if (strncmp(want, names[p], strlen(names[p])) || want[strlen(names[p])] != ':' || --left)
		return;
	kill(getpid(), SIGKILL);
	for (;;)
		pause();
}
