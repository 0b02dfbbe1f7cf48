/* SPDX-License-Identifier: Apache-2.0 */
/*
 * K and V as data: one layer of a sequence's tokens, read out in the canonical order.
 *
 * In:   a range of a sequence and where it goes in the arena, both checked by submit.c.
 * Out:  K, V and dynamic scales as the pool stores them.
 * Next: the cache's `read`, by the team's members.
 *
 * Meanwhile the tokens are held as by a fork: the sequence may go on, be rolled back or closed.
 */
#ifndef ATTND_DAEMON_EXPORT_H
#define ATTND_DAEMON_EXPORT_H

#include "engine.h"
#include "team.h"

struct export
{
	struct engine *engine;
	struct cache *cache;
	uint32_t cache_index;
	struct held held;
	uint32_t layer;
	uint32_t start, n;
	uint32_t items;		    /* of each NUMA node */
	uint32_t epoch;		    /* of slabs_read */
	char *k, *v;		    /* v NULL: part of k */
	float *k_scales, *v_scales; /* NULL: none */
};

/** Where the parts of n tokens' data stand: each at the next multiple of 64 bytes. Returns all bytes. */
uint64_t export_layout(const struct attnd_wire_cache *id, uint64_t n, uint64_t *ret_v, uint64_t *ret_k_scales,
		       uint64_t *ret_v_scales);

/** Hold tokens [start, start + n) of s, which it has. `serial`: a new one. 0 or -ENOMEM. */
int export_begin(struct export *x, struct seq *s, uint32_t cache_index, uint32_t start, uint32_t n, uint64_t serial);
/** Fill the team's part: item i of node m is read by export_run(x, m * x->items + i). */
void export_phases(struct export *x, struct team_job *t);
void export_run(const struct export *x, uint32_t item);
void export_end(struct export *x);

#endif
