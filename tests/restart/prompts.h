/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A few prompts of two tenants: alone, leaving one another inside a block and at a block's end, and
 * ending inside blocks.
 *
 * In:   a daemon. Out: how much of them is cached, all of it compared. Next: the tests of this directory.
 */
#ifndef ATTND_TESTS_RESTART_PROMPTS_H
#define ATTND_TESTS_RESTART_PROMPTS_H

#include "kept.h"

/** Compute and publish all of them. */
void prompts_fill(struct kept *k);

/** How many of their tokens are cached; asserts that K and V of those are right. */
uint32_t prompts_look(struct kept *k);

/** How many they are. */
uint32_t prompts_all(void);

#endif
