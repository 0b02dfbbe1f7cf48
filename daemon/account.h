/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Accounts: how many blocks of a cache those hold whom something is guaranteed, and all others.
 *
 * In:   references that sequences take and drop, as cache.c sees them.
 * Out:  `used`, each block counted once however many sequences of the account share it; whether one
 *       more fits beside what is guaranteed to others.
 * Next: cache.c asks before blocks are referenced.
 *
 * An engine has an account from its first grant on; what has none is in the commons. Neither exists
 * before the cache's first grant: then nothing is counted. `claimed`, the sum of max(grant, used), is
 * never more than the cache's blocks: so whoever lets go of what, a grant can be taken up. A block
 * counts in each account that holds it. One owner: the leader.
 */
#ifndef ATTND_DAEMON_ACCOUNT_H
#define ATTND_DAEMON_ACCOUNT_H

#include <stdint.h>

struct cache;

struct account {
	struct account *next; /* of the cache */
	uint32_t **count;     /* by extent: references and held children of each block; NULL: no memory yet */
	uint32_t num_ext;
	uint64_t grant, used; /* blocks */
};

/** The cache's first one makes the commons, too. 0 or -ENOMEM. */
int account_create(struct cache *c, struct account **ret);
/** Nothing holds through it any more. The last one takes the commons along. */
void account_destroy(struct cache *c, struct account *a);

/** Make room in all accounts for extent i's blocks. 0 or -ENOMEM. */
int accounts_cover(struct cache *c, uint32_t i);

/** A reference through `a` (NULL: the commons) on a block has come or goes. */
void account_hold(struct cache *c, struct account *a, uint32_t id);
void account_drop(struct cache *c, struct account *a, uint32_t id);

/** Of the blocks from `id` up the tree, how many would become used. 0 where nothing is counted. */
uint64_t account_path(const struct cache *c, const struct account *a, uint32_t id);

/** By how much `claimed` grows when the account uses so many blocks more. */
uint64_t account_claim(const struct cache *c, const struct account *a, uint64_t blocks);

void account_set_grant(struct cache *c, struct account *a, uint64_t grant);

#endif
