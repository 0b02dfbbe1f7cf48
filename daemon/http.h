/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Metrics over HTTP, on a loopback address, for reading only.
 *
 * In:   GET /metrics. Out: what `attnctl metrics` prints. Next: leader.c by mail, metrics.c.
 *
 * libmicrohttpd runs inside the control thread's loop: nothing waits for a slow reader.
 */
#ifndef ATTND_DAEMON_HTTP_H
#define ATTND_DAEMON_HTTP_H

#include <sys/socket.h>

#include "control.h"

struct http;

/** A numeric loopback address with a port. 0 or -EINVAL. */
int http_address(const char *text, struct sockaddr_storage *ret);

/** Listen. The reason of a failure is logged. 0 or a negative errno; *ret NULL: not configured. */
int http_create(struct control *c, struct http **ret);

/** NULL is fine. */
void http_destroy(struct http *h);

/** The leader's answer to what http.c asked; false: it is not for http.c. Takes the letter's parts over. */
bool http_mail(struct http *h, const struct mail *letter);

#endif
