/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Limits of the cache that change while the daemon runs.
 *
 * In:   the configuration, SIGHUP, an administrator's `set`. Out: the leader's copy.
 * Next: manage.c puts them in force.
 */
#ifndef ATTND_DAEMON_QUOTA_H
#define ATTND_DAEMON_QUOTA_H

#include <stdint.h>

#include "config.h"
#include "pool.h"

struct limits {
	uint32_t pin_budget;	  /* percent of the pool */
	uint32_t namespace_quota; /* percent of the pool that a namespace's sequences may hold; 100: no limit */
	uint32_t session_quota;	  /* the same of an engine's */
	uint32_t max_sequences;	  /* of an engine made from now on */
	uint32_t eviction;	  /* enum config_eviction */
	uint32_t num_shares;
	struct cache_share shares[POOL_MAX_SHARES];
};

/** What a list of shares must be, for refusals. */
#define LIMITS_SHARES                                                                                               \
	"at most 16 of NAME:MIN:MAX, each NAME (up to 64 bytes) once, percent, 0 <= MIN <= MAX <= 100, MAX not 0, " \
	"all MIN at most 100"

/** NAME:MIN:MAX, separated by commas, into shares. NULL, or (in a static buffer) the entry that is wrong. */
const char *limits_parse_shares(const char *text, struct limits *ret);

/** Of a configuration that has been checked. */
struct limits limits_of(const struct config *cfg);

#endif
