/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The service manager's file-descriptor store: memory that is to outlive the daemon.
 *
 * In:   descriptors with names. Out: the same ones, after a restart.
 * Next: keep.c asks for the pool's; listener.c hands over what it finds among the sockets.
 *
 * Control's main thread only, before there are others.
 */
#ifndef ATTND_DAEMON_FDSTORE_H
#define ATTND_DAEMON_FDSTORE_H

#include <stdbool.h>

/** Take over a descriptor that the manager passed; false: its name is none of ours. */
bool fdstore_offer(const char *name, int fd);

/** The one of this name, the caller's from now on; -1: none, or more than one. */
int fdstore_take(const char *name);

/** Give a copy to the manager. 1: it has it; 0: there is no manager; or a negative errno. */
int fdstore_put(const char *name, int fd);

/** The manager lets go of what it has under this name. */
void fdstore_drop(const char *name);

/**
 * Let go of the pages of what is of no use, now: when the manager closes its copy is not known. -1: nothing.
 */
void fdstore_free(int fd);

/** What nobody has taken is emptied, closed, and dropped by the manager. */
void fdstore_end(void);

#endif
