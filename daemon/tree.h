/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The prefix tree of a cache, and one sequence's place in it.
 *
 * In:   tokens. Out: a held block table; published blocks.
 * Next: engine.c opens, forks and trims with it, plan.c extends and publishes.
 *
 * Matching compares tokens, block by block, and may end at any token. One owner: the leader.
 *
 * A table entry is either the sequence's own (it has a direct reference: private blocks, and
 * blocks that were published while a fork shared them) or lies on the path from the root to
 * `stand`, which is held by the one reference on `stand`.
 */
#ifndef ATTND_DAEMON_TREE_H
#define ATTND_DAEMON_TREE_H

#include "cache.h"
#include "heap.h"

struct table_entry {
	uint8_t *flags;
	uint32_t id;
	bool own;
	bool twin; /* own, and the tree may have the same bits in another block */
};

static inline struct table_entry table_entry(const struct cache *c, uint32_t id, bool own)
{
	return (struct table_entry){.flags = cache_flags(c, id), .id = id, .own = own};
}

/* A sequence in one cache. */
struct held {
	struct table_entry *table;
	uint32_t num, cap;
	uint32_t settled;	 /* entries before this one are of full published blocks, and not its own */
	uint32_t stand;		 /* deepest block of the tree on the path of its tokens, held; or NONE */
	uint64_t length;	 /* tokens, all layers written */
	uint64_t stand_pos;	 /* of these, how many the tree has along the path; <= length */
	uint64_t pub_limit;	 /* never published from here on */
	uint64_t serial;	 /* names the sequence as a tail's owner */
	struct account *account; /* through which it holds; NULL: the commons */
	struct heap_use *heap;	 /* that the table is of */
	uint32_t priority;	 /* of what it holds or publishes */
	struct {		 /* collapse.c's: block indices [low, at) are to be looked at, from the end */
		struct held *prev, *next;
		uint32_t low, at;
		uint32_t block, layer; /* of the tree, at index at - 1 or deeper; layers compared */
		bool listed;
	} collapse;
};

void held_init(struct held *h, uint64_t serial, struct account *account, struct heap_use *heap);
/** Drop every reference and the table. */
void held_destroy(struct held *h, struct cache *c);

/** Room in the table for `blocks` entries. 0 or -ENOMEM. */
int held_reserve(struct held *h, uint32_t blocks);

/**
 * Walk from (stand, pos) along tokens: how many the tree has. *stand becomes the block where it
 * ended; ids[i] the block that serves block index pos / block_size + i. Holds nothing. With ids NULL
 * nobody is going to read these blocks: those that scrub.c has not verified yet are not left out.
 */
uint64_t tree_match(const struct cache *c, uint32_t ns, uint32_t *stand, uint64_t pos, const uint64_t *tokens,
		    uint64_t n, uint32_t *ids);

/**
 * Go on matching an `h` that holds only what was matched: the next n tokens, as far as there is
 * room beside the grants of others. h->length tells how far it came. ids: scratch for n /
 * block_size + 2. 0, -ENOMEM (the table's memory) or -EAGAIN: room is being made (slabs.h), ask again.
 */
int held_match(struct held *h, struct cache *c, uint32_t ns, const uint64_t *tokens, uint64_t n, uint32_t *ids);

/** Blocks on the way to `stand` that nobody holds yet: holding them costs room. */
uint64_t path_idle(const struct cache *c, uint32_t stand);

/** Shorten to `length` tokens. */
void held_trim(struct held *h, struct cache *c, uint64_t length);

/**
 * What `h` would be after held_trim to `length`, which must be less than it holds, without touching
 * it: its table is h's own, but for the last entry, which is *ret_tail if `length` lies inside a block.
 */
struct held held_view(const struct held *h, const struct cache *c, uint64_t length, struct table_entry *ret_tail);

/** Entries, from the first on, that are full blocks of the tree: who has one of them has all before it. */
uint32_t held_settle(struct held *h, const struct cache *c);

/** Make the empty `to` hold the first `length` tokens of `from`; they share from then on. 0 or -ENOMEM. */
int held_fork(struct held *to, struct held *from, struct cache *c, uint64_t length);

/** Move `stand`: the new one is held before the old is let go. */
void held_stand(struct held *h, struct cache *c, uint32_t stand);

/** Set table[i] to a block. */
void held_set(struct held *h, const struct cache *c, uint32_t i, uint32_t id, bool own);

/** Set table[i], which may lie beyond the end, and let go of what stood there. */
void held_replace(struct held *h, struct cache *c, uint32_t i, const struct table_entry *e);

/** The sequence of this serial owns this tail no longer. */
void block_disown(struct cache *c, uint32_t id, uint64_t serial);

/** A plan that wrote in place was given up: the tail holds no more private slots than the length says. */
void held_unfill(struct held *h, struct cache *c);

/** May this sequence write at its end (a position inside its last entry) in place? */
bool held_writable(const struct held *h, const struct cache *c, uint32_t ns, uint64_t token);

/** Publish up to `upto` tokens, as far as the rules allow. Returns how many became visible. */
uint64_t held_publish(struct held *h, struct cache *c, uint32_t ns, uint64_t upto);

#endif
