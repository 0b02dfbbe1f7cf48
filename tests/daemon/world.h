/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The leader's structures without a leader: a small pool, namespaces, a realm, engines.
 *
 * In:   sizes. Out: what engine_*, seq_* and plan_* work on. Next: the tests of this directory.
 */
#ifndef ATTND_TESTS_DAEMON_WORLD_H
#define ATTND_TESTS_DAEMON_WORLD_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "../../daemon/engine.h"
#include "../../daemon/ns.h"
#include "../../daemon/plan.h"
#include "../../daemon/slabs.h"
#include "../common.h"

struct world {
	struct topology topology;
	struct pool pool;
	struct ns_table ns;
	struct realm_table realms;
	struct realm *realm;
	struct engine_table engines;
};

/** What watches the next world; NULL: nothing. Called after each step of a model, and before a world's end. */
extern struct watch *world_watch;
extern void (*world_step)(struct world *w);
extern void (*world_end)(struct world *w);

/** NUMA nodes of the next worlds, with all CPUs each. */
extern uint32_t world_nodes;

/** A machine with so many nodes; nothing is bound to them. */
void world_topology(struct topology *t);

/** A pool of `slabs` slabs of 2 MiB a node. Asserts success. */
void world_open(struct world *w, uint32_t slabs, uint32_t max_seqs);

/** Every engine leaves; every cache must then be without references. */
void world_close(struct world *w);

struct engine *world_engine(struct world *w);

/** A geometry whose block takes 2 KiB a token: 1024 / block_size blocks a slab. Asserts success: its handle. */
uint32_t world_cache(struct world *w, struct engine *e, const char *name, uint32_t block_size);

/** The namespace of this tenant and adapter; NULL: without the field. Asserts success: its handle. */
uint32_t world_ns(struct world *w, struct engine *e, const char *tenant, const char *adapter);

/** Slabs that are on their way arrive: until nothing is to be done, or it waits for a job. */
void world_settle(struct world *w);

/** plan_make and engine_grant, where slabs are waited for. */
int world_plan(struct world *w, const void *session, struct engine *e, uint32_t cache_index,
	       const struct row_request *rows, uint32_t num_rows, struct plan **list, struct plan **ret);
struct answer world_grant(struct world *w, struct engine *e, uint32_t cache, uint64_t tokens, uint32_t sequences);

/** Blocks that somebody holds. */
static inline uint64_t referenced(const struct cache *c)
{
	return c->total - c->free - c->evictable;
}

/** A number from the environment, or what stands for it. */
uint64_t env_number(const char *name, uint64_t otherwise);

#endif
