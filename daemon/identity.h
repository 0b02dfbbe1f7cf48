/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What may be a cache's identity.
 *
 * In:   one that a client asks for, or that stands in meta. Out: whether every field is in its limits.
 * Next: intake.c opens caches by it, restore.c takes them over.
 */
#ifndef ATTND_DAEMON_IDENTITY_H
#define ATTND_DAEMON_IDENTITY_H

#include "engine.h"

/** ANSWER_OK, or -EINVAL with the field and its limit. */
struct answer identity_check(const struct attnd_wire_cache *w);

#endif
