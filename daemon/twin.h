/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Twins: which live sequence is computing the tokens that another one asks for.
 *
 * In:   of each sequence that was opened the tokens beyond its hit, as hashes of the prefixes that
 *       end at every TWIN_TOKENS-th one.
 * Out:  for a sequence that would wait, who computes what it lacks, and how far they agree.
 * Next: engine.c announces, waits and releases; wait.c holds the requests that wait.
 *
 * Hashes are keyed, and cover namespace and caches: prefixes of others never agree. If two collided,
 * a sequence would wait in vain until its deadline; what it gets is matched by tokens. A sequence
 * that waits announces nothing, so that nobody waits for each other. One owner: the leader.
 */
#ifndef ATTND_DAEMON_TWIN_H
#define ATTND_DAEMON_TWIN_H

#include <stdbool.h>
#include <stdint.h>

enum {
	TWIN_TOKENS = 16,
	TWIN_SEQ_UNITS = 1 << 16,    /* of one sequence, since they are announced in one go; */
	TWIN_ENGINE_UNITS = 1 << 18, /* of an engine's at once: what is beyond is not announced */
	TWIN_ALL_UNITS = 1 << 21,
	TWIN_BUCKETS = 1 << 17,
};

struct twin_unit {
	uint64_t hash;
	struct twin_unit *next, **pprev; /* in the bucket */
	struct twin *twin;
	uint32_t index;
};

/* A sequence's part. */
struct twin {
	struct twin_unit *units; /* [num]: of the prefixes that end at (first + i + 1) * TWIN_TOKENS */
	uint32_t first, num, cap;
	bool announced;

	/* As one that waits: */
	struct twin *waits_for; /* NULL: it does not, or that one is gone */
	struct twin *prev, *next;
	bool stirred; /* something happened: look */

	struct twin *waiters; /* for this one */
};

struct twin_table {
	struct twin_unit **buckets; /* NULL before the first announcement */
	uint32_t num;		    /* units that there is memory for */
	uint64_t secret;	    /* of these hashes, and of sequences' keys */
	uint64_t stirs;		    /* grows when a waiter is stirred */
};

void twin_table_destroy(struct twin_table *t);

/** The hash before the first token. `parts`: what must agree beside the tokens. */
uint64_t twin_hash_begin(const struct twin_table *t, const uint64_t *parts, uint32_t num_parts);
/** Of the prefix that is TWIN_TOKENS longer. */
uint64_t twin_hash(const struct twin_table *t, uint64_t before, const uint64_t *tokens);

/**
 * Make room for `num` units from unit `first` on, as far as the limits allow; *used is what the
 * engine's sequences have. False: there is none.
 */
bool twin_begin(struct twin_table *t, struct twin *w, uint32_t first, uint32_t num, uint32_t *used);
/** The next unit's hash; what there is no room for is left out. */
static inline void twin_note(struct twin *w, uint64_t hash)
{
	if (w->num < w->cap)
		w->units[w->num++].hash = hash;
}
/** Forget what was noted; it is not announced. */
void twin_forget(struct twin_table *t, struct twin *w, uint32_t *used);

/** Let others find it. */
void twin_announce(struct twin_table *t, struct twin *w);
/** It computes them no more, or they are there: who waits for it is stirred. */
void twin_withdraw(struct twin_table *t, struct twin *w, uint32_t *used);

/** Who computes the next unit after `length` tokens of `w`; *ret_end: up to which token they agree. */
struct twin *twin_find(const struct twin_table *t, const struct twin *w, uint64_t length, uint64_t *ret_end);

/** `w` waits for `other` from now on, or (NULL) for nobody. */
void twin_wait(struct twin *w, struct twin *other);
void twin_stir(struct twin_table *t, struct twin *w);
/** All that wait for it are to look. */
void twin_stir_waiters(struct twin_table *t, struct twin *w);

/** The tokens that an announcement ends with. */
static inline uint64_t twin_end(const struct twin *w)
{
	return ((uint64_t)w->first + w->num) * TWIN_TOKENS;
}

#endif
