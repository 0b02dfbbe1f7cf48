/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Kill points: named instants between two stores at which a test's daemon ends itself.
 *
 * In:   KILL_POINT=name:n in the environment: at the n-th time. Out: SIGKILL.
 * Next: tests/restart/ builds a daemon with them. In any other they are nothing.
 */
#ifndef ATTND_DAEMON_KILLPOINT_H
#define ATTND_DAEMON_KILLPOINT_H

/* In the order in which the leader passes them. */
#define KILL_POINTS(X)                                                                 \
	X(cache_described) /* identity is there, the entry not yet used */             \
	X(cache_used)                                                                  \
	X(extent_allocated) /* memory for descriptors, not listed */                   \
	X(extent_listed)    /* without a slab */                                       \
	X(slab_taken)	    /* flags and places are not set */                         \
	X(slab_flagged)	    /* of one block, which has no place yet */                 \
	X(slab_placed)                                                                 \
	X(ns_written) /* digest is there, the entry not yet used */                    \
	X(ns_used)                                                                     \
	X(scale_written)                                                               \
	X(scale_set)                                                                   \
	X(tokens_stored)  /* a plan's, in blocks that may be published already */      \
	X(publish_fields) /* parent, generation, namespace, first, position */         \
	X(publish_sealed)                                                              \
	X(publish_counted) /* not yet in the index */                                  \
	X(publish_indexed)                                                             \
	X(grow_sealed) /* a published tail, before its count grows */                  \
	X(grow_counted)                                                                \
	X(place_set) /* of a published block, to that of its copy */                   \
	X(hashed)                                                                      \
	X(block_copied) /* into a place of another slab; all still name the old one */ \
	X(block_moved)                                                                 \
	X(recycle_uncounted) /* count = 0 */                                           \
	X(recycle_unlinked)                                                            \
	X(recycle_generation)                                                          \
	X(slab_emptied)	 /* its blocks have no place, the slab is still the cache's */ \
	X(slab_returned) /* its extent is still listed */                              \
	X(extent_freed)	 /* listed memory is spare */                                  \
	X(cache_unused)	 /* the entry is free, its slabs not yet */

#ifdef ATTND_KILL_POINTS
enum kill_point {
#define KILL_X(name) KILL_##name,
	KILL_POINTS(KILL_X)
#undef KILL_X
		KILL_NUM_POINTS,
};
void kill_point(enum kill_point p);
#define KILL_POINT(name) kill_point(KILL_##name)
#else
#define KILL_POINT(name) ((void)0)
#endif

#endif
