/* SPDX-License-Identifier: Apache-2.0 */
/* The queue of KV events (events.h). */
#include "events.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "cache.h"
#include "ns.h"

enum {
	SLICE = 128, /* blocks looked at in a round, while the state is told */
	MAX_RECORD = sizeof(struct event) + 256 * 8 + ATTND_MAX_NS_BYTES + 8,
};

enum state { SILENT, LOST, TELLING, LIVE };

struct events {
	char *ring;
	size_t bytes;
	_Alignas(64) _Atomic uint64_t head; /* leader's: pairs with the reader's acquire in events_next */
	_Atomic bool asleep; /* the reader; pairs through the fences in events_round and events_sleep */
	_Atomic bool wanted;
	_Alignas(64) _Atomic uint64_t tail; /* reader's: pairs with the leader's acquire in room() */
	int fd;
	/* The leader's own. */
	_Alignas(64) const struct pool *pool;
	enum state state;
	uint32_t at_cache, at_id; /* TELLING: all before is told */
	bool told[ATTND_MAX_POOL_CACHES];
	uint64_t woken_at; /* head at the last wake-up */
	struct events_counts counts;
};

int events_create(const struct pool *pool, size_t bytes, struct events **ret)
{
	struct events *e = aligned_alloc(64, sizeof(*e));

	if (!e)
		return -ENOMEM;
	memset(e, 0, sizeof(*e));
	e->pool = pool;
	e->bytes = bytes;
	e->ring = aligned_alloc(64, bytes);
	e->fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (!e->ring || e->fd < 0) {
		events_destroy(e);
		return -ENOMEM;
	}
	*ret = e;
	return 0;
}

void events_destroy(struct events *e)
{
	if (!e)
		return;
	if (e->fd >= 0)
		close(e->fd);
	free(e->ring);
	free(e);
}

/* ---- Putting ---- */

static size_t room(const struct events *e)
{
	uint64_t head = atomic_load_explicit(&e->head, memory_order_relaxed);

	return e->bytes - (size_t)(head - atomic_load_explicit(&e->tail, memory_order_acquire));
}

/* Where a record of this size goes, or NULL. A record never wraps: what is left at the end is padded. */
static struct event *reserve(struct events *e, size_t bytes)
{
	uint64_t head = atomic_load_explicit(&e->head, memory_order_relaxed);
	size_t at = head & (e->bytes - 1), end = e->bytes - at, pad = end < bytes ? end : 0;

	if (room(e) < bytes + pad)
		return NULL;
	if (pad) {
		struct event *r = (void *)(e->ring + at); /* perhaps only its first 8 bytes fit */

		r->bytes = (uint32_t)pad;
		r->type = EVENT_PAD;
		atomic_store_explicit(&e->head, head + pad, memory_order_release);
		at = 0;
	}
	return (struct event *)(void *)(e->ring + at);
}

static void put(struct events *e, const struct event *r)
{
	uint64_t head = atomic_load_explicit(&e->head, memory_order_relaxed);

	atomic_store_explicit(&e->head, head + r->bytes, memory_order_release);
}

static bool put_plain(struct events *e, enum event_type type, uint32_t cache, uint32_t id)
{
	struct event *r = reserve(e, sizeof(*r));

	if (!r)
		return false;
	*r = (struct event){.bytes = sizeof(*r), .type = (uint16_t)type, .cache = (uint16_t)cache, .id = id};
	put(e, r);
	return true;
}

static bool put_cache(struct events *e, const struct cache *c)
{
	struct event_cache what = {.identity = c->identity};
	size_t bytes = (sizeof(struct event) + sizeof(what) + 7) / 8 * 8;
	struct event *r = reserve(e, bytes);

	if (!r)
		return false;
	*r = (struct event){.bytes = (uint32_t)bytes, .type = EVENT_CACHE, .cache = (uint16_t)c->id};
	memcpy(what.realm, c->realm, sizeof(what.realm));
	memcpy(r->data, &what, sizeof(what));
	put(e, r);
	e->told[c->id] = true;
	return true;
}

/* The full block before this one: as in cache.c. */
static uint32_t block_before(const struct cache *c, uint32_t id)
{
	while (cache_block(c, id)->first)
		id = cache_block(c, id)->parent;
	return cache_block(c, id)->parent;
}

static bool put_stored(struct events *e, const struct cache *c, uint32_t id)
{
	const struct ns_entry *ns = &c->ns->entries[cache_block(c, id)->ns];
	size_t tokens = c->block_size * sizeof(uint64_t), fields = ns->fields ? ns->bytes : 0;
	size_t bytes = (sizeof(struct event) + tokens + fields + 7) / 8 * 8;
	struct event *r;

	if (!e->told[c->id] && !put_cache(e, c))
		return false;
	r = reserve(e, bytes);
	if (!r)
		return false;
	*r = (struct event){.bytes = (uint32_t)bytes,
			    .type = EVENT_STORED,
			    .cache = (uint16_t)c->id,
			    .id = id,
			    .parent = block_before(c, id),
			    .ns_bytes = (uint32_t)fields,
			    .num_tokens = c->block_size};
	memcpy(r->ns_digest, ns->digest, sizeof(r->ns_digest));
	memcpy(r->data, cache_tokens(c, id), tokens);
	if (fields)
		memcpy((char *)r->data + tokens, ns->fields, fields);
	put(e, r);
	return true;
}

/* Is a change of this block to be told now? */
static bool tells(const struct events *e, const struct cache *c, uint32_t id)
{
	return e->state == LIVE ||
	       (e->state == TELLING && (c->id < e->at_cache || (c->id == e->at_cache && id < e->at_id)));
}

static void count(struct events *e, bool went)
{
	e->counts.sent += went;
	e->counts.dropped += !went;
	if (!went)
		e->state = LOST;
}

void events_stored(struct events *e, const struct cache *c, uint32_t id)
{
	if (e->state == LOST)
		e->counts.dropped++;
	else if (tells(e, c, id))
		count(e, put_stored(e, c, id));
}

void events_removed(struct events *e, const struct cache *c, uint32_t id)
{
	if (cache_count(c, id) != c->block_size)
		return;
	if (e->state == LOST)
		e->counts.dropped++;
	else if (tells(e, c, id))
		count(e, put_plain(e, EVENT_REMOVED, c->id, id));
}

void events_cache_gone(struct events *e, const struct cache *c)
{
	e->told[c->id] = false;
}

/* ---- Telling the state ---- */

static void begin_telling(struct events *e)
{
	if (room(e) < e->bytes / 2 || !put_plain(e, EVENT_RESET, 0, 0))
		return;
	memset(e->told, 0, sizeof(e->told));
	e->at_cache = e->at_id = 0;
	e->state = TELLING;
}

static void tell_some(struct events *e)
{
	for (int i = 0; i < SLICE; i++) {
		const struct cache *c = e->at_cache < ATTND_MAX_POOL_CACHES ? e->pool->caches[e->at_cache] : NULL;
		uint32_t id = e->at_id;

		if (room(e) < 3 * (size_t)MAX_RECORD)
			return;
		if (e->at_cache == ATTND_MAX_POOL_CACHES) {
			e->state = put_plain(e, EVENT_SYNCED, 0, 0) ? LIVE : LOST;
			return;
		}
		if (!c || id >= c->num_ext * c->blocks_per_slab) {
			e->at_cache++;
			e->at_id = 0;
			continue;
		}
		if (!cache_ext(c, id)->block) {
			e->at_id = (id / c->blocks_per_slab + 1) * c->blocks_per_slab;
			continue;
		}
		if (cache_aux(c, id)->state == BLOCK_PUBLIC && cache_count(c, id) == c->block_size)
			count(e, put_stored(e, c, id));
		e->at_id++;
	}
}

static void wake_reader(struct events *e)
{
	uint64_t head = atomic_load_explicit(&e->head, memory_order_relaxed);

	if (head == e->woken_at)
		return;
	e->woken_at = head;
	/* Records first, then the look; pairs with the fence in events_sleep. */
	atomic_thread_fence(memory_order_seq_cst);
	if (atomic_exchange_explicit(&e->asleep, false, memory_order_relaxed))
		(void)eventfd_write(e->fd, 1);
}

bool events_round(struct events *e)
{
	if (e->state == SILENT && atomic_load_explicit(&e->wanted, memory_order_relaxed))
		e->state = LOST;
	if (e->state == LOST)
		begin_telling(e);
	if (e->state == TELLING)
		tell_some(e);
	wake_reader(e);
	return e->state == LOST || e->state == TELLING;
}

void events_count(const struct events *e, struct events_counts *ret)
{
	*ret = e ? e->counts : (struct events_counts){0};
}

/* ---- The reader ---- */

void events_want(struct events *e)
{
	atomic_store_explicit(&e->wanted, true, memory_order_relaxed);
}

const struct event *events_next(struct events *e)
{
	uint64_t tail = atomic_load_explicit(&e->tail, memory_order_relaxed);

	while (tail != atomic_load_explicit(&e->head, memory_order_acquire)) {
		const struct event *r = (const void *)(e->ring + (tail & (e->bytes - 1)));

		if (r->type != EVENT_PAD)
			return r;
		tail += r->bytes;
		atomic_store_explicit(&e->tail, tail, memory_order_release);
	}
	return NULL;
}

void events_taken(struct events *e, const struct event *r)
{
	uint64_t tail = atomic_load_explicit(&e->tail, memory_order_relaxed);

	atomic_store_explicit(&e->tail, tail + r->bytes, memory_order_release);
}

int events_fd(const struct events *e)
{
	return e->fd;
}

bool events_sleep(struct events *e)
{
	atomic_store_explicit(&e->asleep, true, memory_order_relaxed);
	/* The flag first, then the look; pairs with the fence in wake_reader. */
	atomic_thread_fence(memory_order_seq_cst);
	if (!events_next(e))
		return true;
	atomic_store_explicit(&e->asleep, false, memory_order_relaxed);
	return false;
}

void events_woken(struct events *e)
{
	eventfd_t n;

	atomic_store_explicit(&e->asleep, false, memory_order_relaxed);
	(void)eventfd_read(e->fd, &n);
}
