/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where the pool's and meta's memory lives when the daemon does not: files of pool-path, or the
 * service manager's descriptor store.
 *
 * In:   the configuration. Out: what an earlier daemon left, if it can be used; files for a new pool.
 * Next: pool.c; restore.c checks what stands in it.
 *
 * Files are held by a lock on the metadata's: a second daemon is refused. Descriptors in the store
 * come to one daemon at a time.
 */
#ifndef ATTND_DAEMON_KEEP_H
#define ATTND_DAEMON_KEEP_H

#include "pool.h"

enum { KEEP_META = POOL_MAX_NODES, KEEP_FILES };

struct keep {
	const char *path; /* NULL: the store */
	uint32_t num_nodes;
	int fds[KEEP_FILES]; /* of the nodes, then of meta; -1: none */
};

/** Look for what there is. 0; -EADDRINUSE (another daemon has it) or another errno, logged. */
int keep_open(struct keep *k, const struct config *cfg, uint32_t num_nodes);

/** Take over an earlier daemon's pool: true, and p has its regions; false: a new one is to be made. */
bool keep_take(struct keep *k, const struct config *cfg, struct pool *p);

/** A file of pool-path for a node, or for KEEP_META: emptied and mapped. 0 or a negative errno. */
int keep_file(struct keep *k, uint32_t which, uint64_t bytes, struct attnd_region *ret);

/** Write down in meta which files the nodes' are. 0 or a negative errno. */
int keep_name_files(struct pool *p);

/** Hand a pool that is complete to whoever keeps it. 0 or a negative errno, logged. */
int keep_give(const struct keep *k, struct pool *p);

/** Close what is left. */
void keep_close(struct keep *k);

/** Whether a file's pages are huge ones. */
bool keep_huge(int fd);

#endif
