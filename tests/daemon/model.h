/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Random operations on engines, sequences and plans, each also done to the flat model.
 *
 * In:   a seed and a shape. Out: a failed test, or nothing. Next: test_tree.c.
 */
#ifndef ATTND_TESTS_DAEMON_MODEL_H
#define ATTND_TESTS_DAEMON_MODEL_H

#include <stdbool.h>
#include <stdint.h>

struct model_shape {
	const char *name;
	uint32_t slabs;		/* of 2 MiB, 1024 tokens each */
	uint32_t block_size[3]; /* the cache that both engines share, the first's second rank, the other's own */
	uint32_t namespaces;	/* 1 .. 3 */
	uint32_t alphabet;
	bool grants;
	bool quotas;
	bool twins;  /* both engines have the same caches: each one's sequences can be twins of the other's */
	bool trades; /* slabs leave their caches all the time */
};

/** What a run saw, so that a test knows that it tested something. */
struct model_counts {
	uint64_t hits, taken, copies, evicted, refused, busy, orphans, blocked, published, collapsed, over_quota,
		pins, moved, slabs, room_waits, waits, cancelled, waited[6]; /* by why: enum attnd_wire_waited */
};

void model_run(const struct model_shape *shape, uint64_t seed, uint32_t steps, struct model_counts *counts);

#endif
