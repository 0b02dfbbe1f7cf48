/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The machine as the daemon may use it: NUMA nodes with memory and CPUs, within its cpuset.
 *
 * In:   libnuma, the thread's affinity. Out: nodes and their CPUs.
 * Next: pool.c binds memory to them, team.c pins threads.
 *
 * Where the NUMA calls are missing or forbidden (ENOSYS, EPERM) there is one node.
 */
#ifndef ATTND_DAEMON_TOPOLOGY_H
#define ATTND_DAEMON_TOPOLOGY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { TOPOLOGY_MAX_NODES = 8, TOPOLOGY_MAX_CPUS = 1024 };

struct topology {
	uint32_t num_nodes;
	bool numa; /* memory can be bound and asked for its place */
	struct {
		int id; /* the kernel's */
		uint32_t num_cpus;
		uint16_t cpus[TOPOLOGY_MAX_CPUS];
	} nodes[TOPOLOGY_MAX_NODES];
};

/** Look at the machine; with `numa` false, all CPUs form one node. */
void topology_init(struct topology *t, bool numa);

/** CPUs in all. */
uint32_t topology_cpus(const struct topology *t);

/** Node and CPU of the i-th thread: nodes in turn, so that each gets its share. */
void topology_place(const struct topology *t, uint32_t i, uint32_t *ret_node, uint32_t *ret_cpu);

/** Bind memory to a node, before it is touched. 0 or a negative errno. */
int topology_bind(const struct topology *t, uint32_t node, void *base, size_t bytes);

/**
 * Ask the kernel where pages are: of up to `most` pages spread over the range, how many lie on
 * each node; *ret_else counts those that are elsewhere, nobody those that are absent. 0 or a negative errno.
 */
int topology_where(const struct topology *t, void *base, size_t bytes, size_t page, uint32_t most,
		   uint32_t ret_on[TOPOLOGY_MAX_NODES], uint32_t *ret_else);

#endif
