/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What attnctl's parts share: asking a daemon, printing what it tells.
 *
 * In:   a socket's path, a request. Out: the daemon's answer. Next: top.c, doctor.c; attnctl.c.
 */
#ifndef ATTND_CLIENT_CTL_H
#define ATTND_CLIENT_CTL_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

enum { CTL_ERROR = 1, CTL_USAGE = 2, CTL_NO_DAEMON = 3, CTL_DENIED = 4 };

/** The command line. */
struct ctl {
	const char *socket; /* NULL: look for it */
	const char *root;   /* of /sys and /proc; "": this machine's */
	bool json, text, once, follow;
	int wait_s;	 /* for an answer; 0: longer than the daemon takes to say that its leader gives none */
	double interval; /* seconds */
	double stream;	 /* GB/s; 0: unknown; negative: measure */
};

/** Ask a command; its answer, which may be {"error": ...}. NULL: *ret_exit is set and the reason printed. */
json_t *ctl_ask(const struct ctl *c, const json_t *request, int *ret_exit);

/** The same without a word on stderr; NULL: *ret_error is a negative errno, `path` where it was looked. */
json_t *ctl_ask_quietly(const struct ctl *c, const json_t *request, int *ret_error, char *ret_path, size_t size);

/** Say why there was no answer; the exit code. */
int ctl_complain(int error, const char *path);

/** 1234567 as "1.2 MiB". */
void ctl_format_bytes(double bytes, char *buf, size_t size);
/** Seconds: "1.5 s", "1:02:03", "2 d 03:04". */
void ctl_format_seconds(double seconds, char *buf, size_t size);

/** GB/s that all CPUs together read memory with. Takes a tenth of a second. */
double ctl_measure_stream(void);

/* ---- Commands: they return the exit code ---- */

int ctl_top(const struct ctl *c);
int ctl_stat(const struct ctl *c);
int ctl_events(const struct ctl *c);
int ctl_doctor(const struct ctl *c);

#endif
