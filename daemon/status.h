/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the daemon tells of itself.
 *
 * In:   the control thread's state and the leader's answer. Out: one JSON object.
 * Next: admin.c sends it.
 */
#ifndef ATTND_DAEMON_STATUS_H
#define ATTND_DAEMON_STATUS_H

#include <jansson.h>

#include "control.h"

/** The answer to `command`. Takes the leader's part over (NULL: it had none). NULL without memory. */
json_t *status_merge(const struct control *ctl, const char *command, json_t *leader);

#endif
