/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Who is at the other end: credentials, a pidfd, the realm, and whether it may connect.
 *
 * In:   a connected UNIX socket, the configuration's lists. Out: struct peer.
 * Next: client.c admits it, handshake.c writes it into the session.
 */
#ifndef ATTND_DAEMON_PEER_H
#define ATTND_DAEMON_PEER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

struct config;

struct peer {
	pid_t pid; /* 0: not of our pid namespace */
	uid_t uid;
	gid_t gid;
	bool overflow_uid; /* of an unmapped user namespace */
};

enum peer_list { PEER_USERS, PEER_GROUPS };

/* Names are looked up when the configuration is read, never while a client waits. */
struct peer_ids {
	uint32_t n;
	uint32_t ids[64];
};
struct peer_rules {
	struct peer_ids users, groups; /* both empty: all may connect */
};

/** Resolve a list. NULL, or (in a static buffer) the entry that does not exist or does not fit. */
const char *peer_list_parse(const char *list, enum peer_list kind, struct peer_ids *ret);

/** SO_PEERCRED. 0 or a negative errno. */
int peer_of(int sock, struct peer *ret);

/** A pidfd of the peer, or -1 where neither the socket nor the pid gives one. */
int peer_pidfd(int sock, const struct peer *p);

/** True if the rules let it in. */
bool peer_allowed(const struct peer_rules *rules, int sock, const struct peer *p);

/** "group:NAME" with share-group, "uid:N" otherwise. */
void peer_realm(const struct config *cfg, const struct peer *p, char *buf, size_t size);

/** True if `fd` is a pidfd. Calls nothing that a foreign file system could block. */
bool peer_is_pidfd(int fd);

#endif
