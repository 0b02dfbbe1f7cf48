/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The wire by hand: a client that can send what the library never would.
 *
 * In:   a socket path; messages and entries as the test wants them.
 * Out:  the daemon's answers.
 * Next: the daemon; tests of this directory look at what it does.
 */
#ifndef ATTND_TESTS_INTEGRATION_RAW_H
#define ATTND_TESTS_INTEGRATION_RAW_H

#include "../../proto/wire.h"
#include "../../shm/ring.h"

/** Of entries whose deadline is not what is tested: a loaded machine stays far below it. */
#define RAW_DEADLINE_US 60000000u

struct raw {
	int sock, wake; /* -1: none */
	struct attnd_msg_welcome welcome;
	struct attnd_session_region *shared; /* NULL: not connected */
	struct attnd_ring sq, cq;
	unsigned char *segment[ATTND_MAX_SEGMENTS];
	size_t segment_bytes[ATTND_MAX_SEGMENTS];
};

/** A hello that is right in everything. */
struct attnd_msg_hello raw_hello(void);

/** Send this hello and take the welcome: its status, or -errno of the socket. raw_close afterwards in any case. */
int raw_connect_with(struct raw *r, const char *path, const struct attnd_msg_hello *hello, size_t bytes);
int raw_connect(struct raw *r, const char *path);
void raw_close(struct raw *r);

/** Send any message, with a descriptor if fd >= 0, and wait for the reply: its status, or -errno (-EPIPE: the end).
 */
int raw_message(struct raw *r, const void *msg, size_t bytes, int fd, struct attnd_msg_reply *ret);

/** A memfd with these seals (F_SEAL_*). */
int raw_memfd(size_t bytes, int seals);

/** Register a good segment of this size; its mapping is r->segment[index]. */
int raw_segment(struct raw *r, uint32_t index, size_t bytes);

/** Publish an entry and ring the doorbell if the daemon sleeps. The caller knows that there is room. */
void raw_put(struct raw *r, const struct attnd_sqe *sqe);

/** The next completion, within a minute: 0, -ETIMEDOUT, or -ECONNRESET when the session was closed. */
int raw_wait(struct raw *r, struct attnd_cqe *ret);

/** raw_put and raw_wait: the completion's res, or raw_wait's error. */
int raw_call(struct raw *r, const struct attnd_sqe *sqe, struct attnd_cqe *ret);

#endif
