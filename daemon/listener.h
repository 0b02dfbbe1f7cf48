/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The two listening sockets and the lock that keeps a second daemon off them.
 *
 * In:   paths, group and mode of the configuration; or sockets that systemd hands over under the
 *       names "attnd" and "admin". Out: listening descriptors. Next: control.c accepts.
 *
 * The reason of a failure is logged here.
 */
#ifndef ATTND_DAEMON_LISTENER_H
#define ATTND_DAEMON_LISTENER_H

#include <stdbool.h>

struct config;

struct listener {
	int shared, admin;	    /* listening; -1: none */
	bool own_shared, own_admin; /* bound here: unlinked at the end */
	int lock;
	const struct config *cfg;
};

/**
 * Unlink the socket of this type that a killed daemon left. -EADDRINUSE: somebody listens there; -EEXIST: it is no
 * socket; -ENAMETOOLONG: nor could one be there.
 */
int listener_remove_stale(const char *path, int type);

/**
 * Take over sockets from systemd, make the socket's directory, take the lock. Before any thread
 * is started (the environment is changed). -EADDRINUSE: another daemon, whose pid is logged.
 */
int listener_claim(const struct config *cfg, struct listener *ret);

/** Bind what systemd did not hand over, and listen: from here on clients come. */
int listener_open(struct listener *l);

/** Close and unlink; with remove_dir the socket's directory, too, if it is empty. */
void listener_close(struct listener *l, bool remove_dir);

#endif
