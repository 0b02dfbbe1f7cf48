/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the daemon's tree must agree with: each sequence as a flat array of tokens, each cache as
 * the set of prefixes that were ever published, and the K/V of each slot as a number.
 *
 * In:   tokens, as the model lets them happen. Out: a failed test where the daemon differs.
 * Next: model.c drives both.
 *
 * A token's K/V depend on all tokens before it (and on the namespace's adapter, and on more where
 * the row was masked): so a slot's "K/V" here is a hash of that. Whoever reads a slot must find
 * the hash of its own prefix.
 */
#ifndef ATTND_TESTS_DAEMON_ORACLE_H
#define ATTND_TESTS_DAEMON_ORACLE_H

#include "world.h"

enum { TEXT_MAX = 320, ORACLE_CACHES = 4 };

/* A sequence in one cache. */
struct text {
	uint64_t seed; /* of cache and namespace */
	uint32_t len;
	uint32_t clean; /* the first tokens of it whose K/V depend on tokens alone */
	uint64_t token[TEXT_MAX];
	uint64_t prefix[TEXT_MAX]; /* hash of all tokens up to this one */
	uint64_t kv[TEXT_MAX];	   /* what its slot holds; == prefix if clean */
};

/* A block that an administrator keeps. */
struct oracle_pin {
	struct cache *cache; /* NULL: none */
	uint32_t stand;
};

struct oracle {
	const char *name; /* of the run, for failures */
	uint64_t seed, step;
	const struct cache *cache[ORACLE_CACHES];
	uint64_t *set; /* open addressing; 0: empty */
	uint64_t set_used, set_size;
};

void oracle_open(struct oracle *o, const char *name, uint64_t seed);
void oracle_close(struct oracle *o);
/** A cache that sequences will lie in. Again is fine. */
void oracle_add(struct oracle *o, const struct cache *c);

/** End the test with a text and where it happened. */
__attribute__((noreturn, format(printf, 2, 3))) void oracle_fail(const struct oracle *o, const char *format, ...);
#define ORACLE_CHECK(o, cond)                                                   \
	do {                                                                    \
		if (!(cond))                                                    \
			oracle_fail(o, "%s:%d: %s", __FILE__, __LINE__, #cond); \
	} while (0)

uint64_t text_seed(const struct oracle *o, const struct cache *c, uint32_t ns);
void text_trim(struct text *t, uint32_t len);
/** `salt` 0: K/V of tokens alone. */
void text_append(struct text *t, uint64_t token, uint64_t salt);

void oracle_publish(struct oracle *o, const struct text *t, uint32_t from, uint32_t to);
bool oracle_has(const struct oracle *o, uint64_t prefix);
/** Of tokens that continue `t` at position `at`, how many were ever published. */
uint32_t oracle_match(const struct oracle *o, const struct text *t, uint32_t at, const uint64_t *tokens, uint32_t n);

/** A slot's K/V stand in the pool, where a token's bytes begin; `offset` is a block's. */
uint64_t *oracle_at(const struct cache *c, uint64_t offset, uint32_t slot);
uint64_t *oracle_slot(const struct cache *c, uint32_t id, uint32_t slot);

/** One entry of a block table serves position `pos` with this token and these K/V. */
void oracle_read(const struct oracle *o, const struct cache *c, const struct table_entry *e, uint32_t pos,
		 uint64_t token, uint64_t kv);
/** A sequence's block table against its text. */
void oracle_table(const struct oracle *o, const struct cache *c, const struct held *h, const struct text *t);

/** After every operation. */
void oracle_cheap(const struct oracle *o, const struct world *w);
/** All of it: counters, references, accounts, and that nothing is visible that was not published. */
void oracle_full(const struct oracle *o, const struct world *w, struct plan *const *plans, uint32_t num_plans,
		 const struct oracle_pin *pins, uint32_t num_pins);

#endif
