/* SPDX-License-Identifier: Apache-2.0 */
/*
 * KV events on the leader's side: which full blocks come into the caches' trees and leave them.
 *
 * In:   watch.c's hooks. Out: records in a bounded queue. Next: mirror.c makes KV events of them,
 *       publish.c sends those, in a thread of its own.
 *
 * The leader never waits: what finds the queue full is dropped and counted, and as soon as there
 * is room again the whole state follows, in slices, between a RESET and a SYNCED. The same happens
 * when the first subscriber comes; before that nothing is queued.
 *
 * While the state is being told (the walk goes by cache and block id), a change beyond the walk is
 * not told: the walk will find it.
 */
#ifndef ATTND_DAEMON_EVENTS_H
#define ATTND_DAEMON_EVENTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "../proto/wire.h"

struct cache;
struct events;
struct pool;

enum event_type {
	EVENT_PAD,     /* the queue's end: nothing */
	EVENT_RESET,   /* forget everything: the whole state follows */
	EVENT_SYNCED,  /* that was all of it */
	EVENT_CACHE,   /* cache, struct event_cache: what `cache` is from now on */
	EVENT_STORED,  /* cache, id, parent, ns; its tokens, then the namespace's fields */
	EVENT_REMOVED, /* cache, id */
};

struct event {
	uint32_t bytes; /* with what follows, a multiple of 8 */
	uint16_t type;
	uint16_t cache;
	uint32_t id;
	uint32_t parent;   /* id of the full block before it, or ATTND_BLOCK_NONE; not always told of before */
	uint32_t ns_bytes; /* of the namespace's fields */
	uint32_t num_tokens;
	uint8_t ns_digest[32];
	uint64_t data[]; /* struct event_cache; or tokens, fields */
};

struct event_cache {
	struct attnd_wire_cache identity;
	char realm[80];
};

struct events_counts {
	uint64_t sent, dropped; /* blocks */
};

/** A queue of this many bytes (a power of two, at least 64 KiB). 0 or a negative errno. */
int events_create(const struct pool *pool, size_t bytes, struct events **ret);
/** NULL is fine. */
void events_destroy(struct events *e);

/* ---- The leader's ---- */

void events_stored(struct events *e, const struct cache *c, uint32_t id);
/** A full block is about to leave; others are ignored. */
void events_removed(struct events *e, const struct cache *c, uint32_t id);
void events_cache_gone(struct events *e, const struct cache *c);
/** Once a round: wake the reader, go on with telling the state. True: there is more to tell. */
bool events_round(struct events *e);
/** e may be NULL. */
void events_count(const struct events *e, struct events_counts *ret);

/* ---- The reader's: one thread ---- */

/** From now on somebody listens. */
void events_want(struct events *e);
/** The oldest record, or NULL; it stays until events_taken. */
const struct event *events_next(struct events *e);
void events_taken(struct events *e, const struct event *r);
/** Polls readable when there are records, if events_sleep has said true. */
int events_fd(const struct events *e);
/** About to sleep: false, there are records after all. */
bool events_sleep(struct events *e);
void events_woken(struct events *e);

#endif
