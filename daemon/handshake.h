/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The first two messages of a connection, and the receiving of all of them.
 *
 * In:   a client's HELLO. Out: a session's region and wake socket; WELCOME with three
 *       descriptors, or with the reason of a refusal. Next: clients.c gives it to the leader.
 */
#ifndef ATTND_DAEMON_HANDSHAKE_H
#define ATTND_DAEMON_HANDSHAKE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "../proto/wire.h"
#include "session.h"

/** One message, copied out of the socket. */
struct message {
	union {
		struct attnd_msg_hello hello;
		struct attnd_msg_segment segment;
		uint32_t type; /* of all but HELLO */
	};
	size_t bytes;
	int fd;	       /* that came with it, close-on-exec; -1: none */
	bool fds_lost; /* there were more, or no room for this one */
};

/** The reason of a refusal. */
struct refusal {
	int status; /* 0: none */
	char text[sizeof(((struct attnd_msg_welcome *)0)->text)];
};

/** Note a reason; returns its status. */
__attribute__((format(printf, 3, 4))) int refuse(struct refusal *r, int status, const char *format, ...);

/** Receive without waiting. 0, -EAGAIN, -ECONNRESET (the end, too), -EMSGSIZE or another error. */
int message_receive(int sock, struct message *ret);

/** Check a HELLO's fields: 0, or the refusal's status. */
int handshake_check(const struct message *m, struct refusal *refusal);

/** Make the session's region and wake socketpair. ret_wake: the client's end. 0 or a negative errno. */
int handshake_open(struct session *s, const struct attnd_msg_hello *hello, int *ret_wake);

/** Undo handshake_open. */
void handshake_close(struct session *s);

/** The descriptors and numbers of a WELCOME. */
struct welcome {
	int lookup_fd, wake_fd;
	uint64_t lookup_bytes, max_segment_bytes, instance;
	uint32_t sq_entries, cq_entries;
};
int handshake_welcome(const struct session *s, const struct welcome *w);

/** WELCOME that refuses. Nothing is done if it cannot be sent. */
void handshake_refuse(int sock, const struct refusal *refusal);

#endif
