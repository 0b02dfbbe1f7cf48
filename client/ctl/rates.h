/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Two looks at the daemon's counters, as rates and percentiles.
 *
 * In:   answers to "stat". Out: an object of what happened between them. Next: top.c prints it.
 */
#ifndef ATTND_CLIENT_CTL_RATES_H
#define ATTND_CLIENT_CTL_RATES_H

#include <jansson.h>

/**
 * What happened from `old` to `now` (objects "stat"); old NULL, or of a daemon that has been
 * started again: since the start. stream: GB/s, 0: unknown. A new reference, or NULL.
 */
json_t *rates_between(const json_t *old, const json_t *now, double stream);

#endif
