/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Engines: model runners as attnd sees them, with the sequences that their sessions share.
 *
 * In:   requests of its sessions. Out: sequences and their places in each of the engine's caches.
 * Next: plan.c works on sequences.
 *
 * One owner: the leader.
 */
#ifndef ATTND_DAEMON_ENGINE_H
#define ATTND_DAEMON_ENGINE_H

#include <errno.h>
#include <sys/types.h>

#include "limits.h"
#include "realm.h"
#include "tree.h"
#include "twin.h"

struct plan;
struct engine;

/** What a request answers: goes into its CQE. */
struct answer {
	int32_t res;
	enum attnd_wire_field field;
	uint64_t value, limit;
};
#define ANSWER_OK	((struct answer){0})
#define ANSWER_VALUE(v) ((struct answer){.value = (v)})
/* Not yet: the request stays where it is and is tried again. */
#define ANSWER_LATER ((struct answer){.res = -EINPROGRESS})
/* Not yet, and others need not wait behind it. */
#define ANSWER_WAITS	    ((struct answer){.res = -EALREADY})
#define ANSWER_BAD(e, f, l) ((struct answer){.res = -(e), .field = ATTND_FIELD_##f, .limit = (uint64_t)(l)})

struct seq {
	uint64_t key;
	uint64_t serial;
	struct engine *engine;
	struct seq *bucket_next;
	struct seq *prev, *next; /* all of the engine */
	uint32_t ns;
	uint32_t plans;	 /* live plans that name it, one a cache */
	bool opening;	 /* its match is under way, or it waits for a twin */
	bool used;	 /* a plan row, trim or fork came: open no longer repeats its answer */
	bool closed;	 /* gone by name; freed when no plan names it */
	uint64_t answer; /* of open */
	struct twin twin;
	struct seq_place {
		struct held held;
		struct plan *plan;     /* live, or NULL */
		uint64_t pending_trim; /* for when the plan ends; UINT64_MAX: none */
	} in[ATTND_MAX_CACHES];
};

struct engine_cache {
	struct cache *cache;
	struct account *account; /* from its first grant on */
};

struct engine {
	uint8_t id[16];
	bool named; /* others may join by id */
	bool dead;  /* its owner has ended */
	struct realm *realm;
	char shares[80]; /* the realm of its caches: realm->name, or its own if it is alone */
	bool alone;
	uid_t uid;
	uint32_t owner; /* id of the session that made it */
	uint32_t sessions;
	struct engine_cache caches[ATTND_MAX_CACHES];
	uint32_t num_caches;
	struct ns_table *ns_table;
	uint32_t *ns; /* handle -> namespace id; handle 0 is id 0 */
	uint32_t num_ns, cap_ns;
	struct seq **buckets;
	uint32_t num_buckets, num_seqs, max_seqs;
	struct seq *seqs;
	struct twin_table *twins;
	uint32_t announced;	   /* of twin.h's units */
	struct token_count tokens; /* limits.c's */
	struct heap_use heap;
	uint64_t ns_bytes; /* of that */
	struct engine *next;
};

struct engine_table {
	struct ns_table *ns;
	struct engine *first;
	uint64_t serial; /* of sequences */
	uint32_t max_seqs;
	struct twin_table twins;
	struct heap heap;
};

struct engine_maker {
	struct realm *realm;
	uid_t uid;
	uint32_t session;
	bool alone; /* of an unmapped user namespace: shares its caches with no other engine */
};

/** A new engine with one session. id NULL: nobody else can join it. */
int engine_create(struct engine_table *t, const uint8_t *id, const struct engine_maker *by, struct engine **ret);
struct engine *engine_find(struct engine_table *t, const uint8_t *id);
/** One session leaves; the last one's leaving frees the engine once its sequences are gone. */
void engine_leave(struct engine_table *t, struct engine *e);
/** Close up to n sequences, or fewer long ones; returns how many it closed. For freeing in slices. */
uint32_t engine_close_some(struct engine *e, uint32_t n);

/** ANSWER_LATER: a large cache that nobody uses makes room for it. */
struct answer engine_cache_open(struct engine *e, struct pool *p, struct ns_table *ns,
				const struct attnd_wire_cache *id, bool create, uint64_t features);
/** ANSWER_LATER: slabs for it are on their way (slabs.h). */
struct answer engine_grant(struct engine *e, uint32_t cache, uint64_t tokens, uint32_t sequences);
struct answer engine_namespace(struct engine *e, struct ns_table *ns, const void *fields, size_t bytes);

enum { OPEN_SLICE = 4096 }; /* tokens matched at a time: some 50 us */

/* An open under way: long matches are done in slices, each holding what it found. */
struct opening {
	struct seq *seq; /* NULL: none */
	uint32_t caches;
	uint64_t asked, limit;
	uint64_t at;   /* tokens seen */
	uint64_t done; /* matched and held; at least those of an earlier open */
	uint64_t hash; /* of twin.h, up to `at` */
	bool matches;  /* what was seen so far was there */
	bool resumed;  /* the sequence was open before */
	bool waits;    /* for a twin, if there is one: */
	bool grown;    /* since it waits */
	uint64_t want; /* tokens that are enough; 0: any beyond the first match */
	uint64_t end;  /* up to where the twin has announced the same */
};

/* Tokens to give to the next step, from o->at on. */
static inline uint32_t opening_slice(const struct opening *o)
{
	return o->asked - o->at < OPEN_SLICE ? (uint32_t)(o->asked - o->at) : OPEN_SLICE;
}

struct seq *seq_find(const struct engine *e, uint64_t key);
/** Begin to open: the answer if it is known already (ret->seq NULL), else go on with the steps. */
struct answer seq_open_begin(struct engine_table *t, struct engine *e, uint64_t key, uint32_t ns_handle, uint64_t n,
			     uint64_t max_match, struct opening *ret);
/** The next opening_slice() tokens from o->at on. ANSWER_LATER, or the answer; ANSWER_WAITS after seq_wait_begin. */
struct answer seq_open_step(struct opening *o, const uint64_t *tokens, uint32_t n);
/** Before its first step: what it holds and publishes is kept so much the longer. */
void seq_set_priority(struct seq *s, uint32_t priority);
void seq_open_abort(struct opening *o);
/** All of it at once. */
struct answer seq_open(struct engine_table *t, struct engine *e, uint64_t key, uint32_t ns_handle,
		       const uint64_t *tokens, uint64_t n, uint64_t max_match);

/**
 * Begin to open and wait for a twin, or to wait with a sequence that is open and has not been used.
 * After ANSWER_WAITS the opening (which may be copied) belongs to the caller: seq_wait_look and
 * seq_wait_end go on with it.
 */
struct answer seq_wait_begin(struct engine_table *t, struct engine *e, uint64_t key, uint32_t ns_handle, uint64_t n,
			     uint64_t max_match, uint64_t want, struct opening *ret);
/** Is there anything to look at? */
static inline bool seq_wait_stirred(const struct opening *o)
{
	return o->seq->twin.stirred;
}
/** Tokens to give to seq_wait_look, from o->done on. */
static inline uint32_t seq_wait_slice(const struct opening *o)
{
	return o->limit - o->done < OPEN_SLICE ? (uint32_t)(o->limit - o->done) : OPEN_SLICE;
}
/** Match on after something happened. ANSWER_WAITS: still; ANSWER_LATER: once more; or the answer. */
struct answer seq_wait_look(struct opening *o, const uint64_t *tokens, uint32_t n);
/** It is over: answers what it holds; value = tokens, limit = reason | end << 8. -ECANCELED: it was closed. */
struct answer seq_wait_end(struct opening *o, enum attnd_wire_waited why);

/** Its tokens have become more: who waits for them is to look. */
void seq_advanced(struct seq *s);
/** It does not compute what it announced: who waits for it learns at once. */
void seq_withdraw(struct seq *s);

struct answer seq_fork(struct engine_table *t, struct engine *e, uint64_t key, uint64_t new_key, uint64_t length);
/* `by`: the session that asks; NULL: the engine ends. */
struct answer seq_trim(struct engine *e, uint64_t key, uint64_t length, const void *by);
struct answer seq_close(struct engine *e, uint64_t key, const void *by);

/** After a plan let go of a sequence in cache i: pending trims and closes take effect. */
void seq_plan_done(struct seq *s, uint32_t i);

#endif
