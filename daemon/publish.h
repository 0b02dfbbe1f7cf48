/* SPDX-License-Identifier: Apache-2.0 */
/*
 * KV events over ZeroMQ, in a thread of its own.
 *
 * In:   records of events.c. Out: batches of mirror.c, to subscribers and to who asks for a replay.
 * Next: routers, `attnctl events`.
 *
 *   PATH          XPUB:   topic, number (8 bytes, big-endian), payload
 *   PATH.replay   ROUTER: asked with an empty frame, the first number wanted (8 bytes) and, unless
 *                 the asker may see one topic only, that topic; answers: an empty frame, number,
 *                 payload; the last has number -1 and an empty payload
 *   PATH.admin, PATH.admin.replay   the same for administrators: every realm's
 *
 * PATH is for those who may connect as clients: the mode, group and lists are the listening
 * socket's. What one sees there are the topics of one's own realm, by the credentials that the
 * kernel tells of the socket. Administrators' sockets have mode 0600.
 */
#ifndef ATTND_DAEMON_PUBLISH_H
#define ATTND_DAEMON_PUBLISH_H

#include "config.h"
#include "events.h"
#include "mailbox.h"
#include "peer.h"

struct publisher;

/**
 * Bind and start. cfg and events must outlive it; `leader` gets a MAIL_EVENTS when the first
 * subscriber comes. The reason of a failure is logged. 0 or a negative errno.
 */
int publisher_start(const struct config *cfg, struct events *events, struct mailbox *leader, struct publisher **ret);

/** Whom to let subscribe and ask from now on; who has subscribed stays. NULL is fine. From another thread. */
void publisher_rules(struct publisher *p, const struct peer_rules *rules);

/** Join and unbind. NULL is fine. */
void publisher_stop(struct publisher *p);

/** Only remove its sockets' files: the process ends at once. */
void publisher_unlink(const struct publisher *p);

#endif
