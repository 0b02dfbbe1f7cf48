/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Realms: who shares caches. Each has a lookup region that its clients map read-only.
 *
 * In:   a realm's name ("uid:1000", "group:llm"). Out: its counters and peek table, and a descriptor for clients.
 * Next: engine.c, plan.c and exec.c count; cache.c fills the table; control.c hands the descriptor out.
 *
 * The table is shared by control and leader under a lock; a realm is never freed while the
 * daemon runs, so a pointer to one stays good.
 */
#ifndef ATTND_DAEMON_REALM_H
#define ATTND_DAEMON_REALM_H

#include <pthread.h>
#include <stdatomic.h>

#include "../proto/wire.h"
#include "../shm/peek.h"
#include "../shm/region.h"

struct realm {
	char name[80];
	struct attnd_region region;
	int client_fd; /* read-only */
	struct attnd_counters *counters;
	struct attnd_peek_table peek; /* the leader writes it */
	struct realm *next;
};

struct realm_table {
	pthread_mutex_t lock;
	struct realm *first;
	uint64_t instance;
	uint64_t peek_entries; /* of each realm's table, a power of two; 0: none. Set before the first realm */
};

void realm_table_init(struct realm_table *t, uint64_t instance);
void realm_table_destroy(struct realm_table *t);
/** The realm of this name, made at its first use. Thread-safe. 0 or a negative errno. */
int realm_get(struct realm_table *t, const char *name, struct realm **ret);

/** Counters have one writer, the leader: load and store suffice. */
#define realm_count(realm, name, n) counters_add((realm)->counters, name, n)
#define counters_add(c, name, n)                                                                                  \
	atomic_store_explicit(&(c)->name, atomic_load_explicit(&(c)->name, memory_order_relaxed) + (uint64_t)(n), \
			      memory_order_relaxed)

#endif
