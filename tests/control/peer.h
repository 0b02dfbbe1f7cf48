/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A client's half of the handshake, message by message, with any descriptors.
 *
 * In: a socket path, messages. Out: what the daemon sends. Next: the tests of this directory.
 */
#ifndef ATTND_TESTS_CONTROL_PEER_H
#define ATTND_TESTS_CONTROL_PEER_H

#include <stddef.h>

#include "../../proto/wire.h"

/** A connected socket of this type (SOCK_SEQPACKET, SOCK_STREAM), or -errno. */
int peer_connect(const char *path, int type);

/** A HELLO that is right in everything. */
struct attnd_msg_hello peer_hello_message(void);

/** Send a message with descriptors. 0 or -errno. */
int peer_send(int sock, const void *msg, size_t bytes, const int *fds, size_t num_fds);

/** Receive without waiting: bytes (0: the end) or -errno. *ret_num_fds of up to 4 come into ret_fds. */
long peer_receive(int sock, void *buf, size_t bytes, int ret_fds[4], size_t *ret_num_fds);

/** Close them. */
void peer_close_fds(const int *fds, size_t num_fds);

/** A memfd with these seals (0: none), `flags` of memfd_create; -1 if it cannot be made. */
int peer_memfd(size_t bytes, int seals, unsigned int flags);

/** Open descriptors of this process. */
int peer_count_fds(void);

#endif
