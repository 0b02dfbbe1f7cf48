/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Arena segments: registered and given back.
 *
 * In:   SEGMENT_ADD and SEGMENT_DEL. Out: mapped memory for the leader; MSG_REPLY.
 * Next: helper.c maps, leader.c uses.
 */
#ifndef ATTND_DAEMON_SEGMENTS_H
#define ATTND_DAEMON_SEGMENTS_H

#include "handshake.h"
#include "helper.h"
#include "mailbox.h"

struct client;

/* What a client waits for. One request at a time: a second one before the answer ends the session. */
enum segment_request { SEGMENT_NONE, SEGMENT_ADD, SEGMENT_DEL };

/* A client's part. Its one job serves the request, and at the end the unmapping of all. */
struct segments {
	enum segment_request request;
	uint32_t index;			    /* of the request */
	uint64_t bytes[ATTND_MAX_SEGMENTS]; /* registered, or about to be; 0: free */
	struct helper_job job;
	struct client *client;
	int fd, status;
	uint32_t num_regions;
	struct attnd_region regions[ATTND_MAX_SEGMENTS];
};

/** A request of a live client. Takes m->fd over. */
void segments_request(struct client *c, const struct message *m);

/** The leader's MAIL_SEGMENT_DONE. */
void segments_done(struct client *c, const struct mail *letter);

/** Start to unmap all that a session had that the leader has freed; false: there is nothing (left). */
bool segments_unmap_all(struct client *c);

#endif
