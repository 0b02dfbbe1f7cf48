/* SPDX-License-Identifier: Apache-2.0 */
/* The machine (topology.h). */
#include "topology.h"

#include <errno.h>
#include <numa.h>
#include <numaif.h>
#include <sched.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22
#endif

static void one_node(struct topology *t, const cpu_set_t *allowed)
{
	t->num_nodes = 1;
	t->numa = false;
	t->nodes[0].id = 0;
	t->nodes[0].num_cpus = 0;
	for (uint32_t cpu = 0; cpu < TOPOLOGY_MAX_CPUS; cpu++)
		if (CPU_ISSET(cpu, allowed))
			t->nodes[0].cpus[t->nodes[0].num_cpus++] = (uint16_t)cpu;
}

/* A node counts if we may use its memory and some of its CPUs. */
static void add_node(struct topology *t, int id, const cpu_set_t *allowed)
{
	struct bitmask *cpus = numa_allocate_cpumask();
	uint32_t n = 0;

	if (!cpus || numa_node_to_cpus(id, cpus)) {
		numa_bitmask_free(cpus);
		return;
	}
	for (uint32_t cpu = 0; cpu < TOPOLOGY_MAX_CPUS; cpu++)
		if (CPU_ISSET(cpu, allowed) && numa_bitmask_isbitset(cpus, cpu))
			t->nodes[t->num_nodes].cpus[n++] = (uint16_t)cpu;
	if (n) {
		t->nodes[t->num_nodes].id = id;
		t->nodes[t->num_nodes++].num_cpus = n;
	}
	numa_bitmask_free(cpus);
}

void topology_init(struct topology *t, bool numa)
{
	struct bitmask *mems;
	cpu_set_t allowed;

	t->num_nodes = 0;
	t->numa = true;
	CPU_ZERO(&allowed);
	if (sched_getaffinity(0, sizeof(allowed), &allowed))
		CPU_SET(0, &allowed);
	if (!numa || numa_available() < 0) {
		one_node(t, &allowed);
		return;
	}
	mems = numa_get_mems_allowed();
	for (int id = 0; id <= numa_max_node() && t->num_nodes < TOPOLOGY_MAX_NODES; id++)
		if (mems && numa_bitmask_isbitset(mems, (unsigned int)id))
			add_node(t, id, &allowed);
	if (mems)
		numa_bitmask_free(mems);
	if (!t->num_nodes)
		one_node(t, &allowed);
}

uint32_t topology_cpus(const struct topology *t)
{
	uint32_t n = 0;

	for (uint32_t i = 0; i < t->num_nodes; i++)
		n += t->nodes[i].num_cpus;
	return n;
}

void topology_place(const struct topology *t, uint32_t i, uint32_t *ret_node, uint32_t *ret_cpu)
{
	uint32_t node = i % t->num_nodes, k = i / t->num_nodes;

	*ret_node = node;
	*ret_cpu = t->nodes[node].cpus[k % t->nodes[node].num_cpus];
}

int topology_bind(const struct topology *t, uint32_t node, void *base, size_t bytes)
{
	struct bitmask *mask;
	int r;

	if (!t->numa)
		return 0;
	mask = numa_allocate_nodemask();
	if (!mask)
		return -ENOMEM;
	numa_bitmask_setbit(mask, (unsigned int)t->nodes[node].id);
	r = mbind(base, bytes, MPOL_BIND, mask->maskp, mask->size + 1, 0) ? -errno : 0;
	numa_bitmask_free(mask);
	return r;
}

int topology_where(const struct topology *t, void *base, size_t bytes, size_t page, uint32_t most,
		   uint32_t ret_on[TOPOLOGY_MAX_NODES], uint32_t *ret_else)
{
	size_t pages = bytes / page, n = pages < most ? pages : most;
	void **at = calloc(n + 1, sizeof(*at));
	int *status = calloc(n + 1, sizeof(*status)), r = 0;

	for (uint32_t i = 0; i < TOPOLOGY_MAX_NODES; i++)
		ret_on[i] = 0;
	*ret_else = 0;
	if (!at || !status) {
		r = -ENOMEM;
		goto out;
	}
	/* Memory that a process before us has filled is not in our page table yet, and would count as nowhere. */
	for (size_t i = 0; i < n; i++) {
		at[i] = (char *)base + i * (pages / n) * page;
		(void)madvise(at[i], page, MADV_POPULATE_READ);
	}
	if (move_pages(0, n, at, NULL, status, 0)) {
		r = -errno;
		goto out;
	}
	for (size_t i = 0; i < n; i++) {
		uint32_t k = 0;

		while (k < t->num_nodes && t->nodes[k].id != status[i])
			k++;
		if (k < t->num_nodes)
			ret_on[k]++;
		else if (status[i] >= 0)
			++*ret_else;
	}
out:
	free(at);
	free(status);
	return r;
}
