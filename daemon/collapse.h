/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Duplicates that were computed at the same time become one copy.
 *
 * In:   own blocks of sequences that publishing passed over, because the tree had their tokens.
 * Out:  where the bits are equal, the tree's block in the table, and the other one freed.
 * Next: leader.c works on it when it has nothing else to do.
 *
 * One owner: the leader. A sequence that a plan works on is left alone.
 */
#ifndef ATTND_DAEMON_COLLAPSE_H
#define ATTND_DAEMON_COLLAPSE_H

#include "tree.h"

/** The full own block at this index of a sequence's table stands in the tree, too: compare them some time. */
void collapse_note(struct held *h, struct cache *c, uint32_t index);

/** The table was shortened: look again from its end. */
void collapse_restart(struct held *h);

/** Compare nothing of it any more. Again is fine. */
void collapse_forget(struct held *h, struct cache *c);

/** Compare about one layer of a pair. False: nothing to do now. */
bool collapse_step(struct cache *c);

#endif
