/* SPDX-License-Identifier: Apache-2.0 */
/*
 * In:   SEGMENT_ADD and SEGMENT_DEL. Out: regions for the leader, replies for the client.
 * Next: helper.c, leader.c.
 *
 *     ADD: limits -> (helper) check, map, populate -> leader -> reply
 *     DEL: leader, once no job uses it -> (helper) unmap -> reply
 *
 * Bytes count against arena-max from before they are mapped until they are unmapped.
 */
#include "segments.h"

#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "clients.h"

#define MIB (UINT64_C(1) << 20)

/* ---- Answers and accounts ---- */

__attribute__((format(printf, 5, 6))) static void reply(struct client *c, int status, enum attnd_wire_field field,
							uint64_t limit, const char *format, ...)
{
	struct attnd_msg_reply msg = {
		.type = ATTND_MSG_REPLY, .status = status, .field = (uint16_t)field, .limit = limit};
	va_list args;

	c->segments.request = SEGMENT_NONE;
	if (c->state != CLIENT_LIVE)
		return;
	va_start(args, format);
	vsnprintf(msg.text, sizeof(msg.text), format, args);
	va_end(args);
	if (send(c->session.ctl.sock, &msg, sizeof(msg), MSG_DONTWAIT | MSG_NOSIGNAL) < 0)
		client_end(c, "its socket takes no reply");
}

static void reply_status(struct client *c, int status)
{
	reply(c, status, status ? ATTND_FIELD_SEGMENT : ATTND_FIELD_NONE, 0, "%s", status ? strerror(-status) : "");
}

static void account(struct client *c, uint32_t index, uint64_t bytes)
{
	uint64_t *held = &c->segments.bytes[index];

	c->control->arena_bytes += bytes - *held;
	c->session.ctl.arena_bytes += bytes - *held;
	*held = bytes;
}

static void start_job(struct client *c, void (*run)(struct helper_job *), void (*done)(struct helper_job *))
{
	c->segments.client = c;
	c->segments.job = (struct helper_job){.run = run, .done = done};
	c->jobs++;
	helper_start(c->control->helpers, &c->segments.job);
}

static struct segments *of_job(struct helper_job *job)
{
	return (struct segments *)((char *)job - offsetof(struct segments, job));
}

/* ---- Unmapping ---- */

static void run_unmap(struct helper_job *job)
{
	struct segments *s = of_job(job);

	for (uint32_t i = 0; i < s->num_regions; i++)
		attnd_region_destroy(&s->regions[i]);
	s->num_regions = 0;
}

/* A request's segment is gone: now its answer can go out, and the job be used again. */
static void unmapped_one(struct helper_job *job)
{
	struct segments *s = of_job(job);
	struct client *c = s->client;

	account(c, s->index, 0);
	reply_status(c, s->status);
	client_job_done(c);
}

static void unmapped_all(struct helper_job *job)
{
	struct client *c = of_job(job)->client;

	for (uint32_t i = 0; i < ATTND_MAX_SEGMENTS; i++)
		account(c, i, 0);
	client_job_done(c);
}

static void unmap(struct client *c, const struct attnd_region *region, int status)
{
	c->segments.status = status;
	c->segments.num_regions = 1;
	c->segments.regions[0] = *region;
	start_job(c, run_unmap, unmapped_one);
}

bool segments_unmap_all(struct client *c)
{
	struct segments *s = &c->segments;
	bool any;

	s->num_regions = 0;
	for (uint32_t i = 0; i < ATTND_MAX_SEGMENTS; i++) {
		struct attnd_region *r = &c->session.lead.segments[i];

		if (r->base)
			s->regions[s->num_regions++] = *r;
		*r = ATTND_REGION_NONE;
	}
	any = s->num_regions; /* the job's from now on */
	if (any)
		start_job(c, run_unmap, unmapped_all);
	return any;
}

/* ---- ADD ---- */

static void run_map(struct helper_job *job)
{
	struct segments *s = of_job(job);

	s->status = attnd_region_map_segment(s->fd, s->bytes[s->index], &s->regions[0]);
	if (s->status)
		close(s->fd);
	s->fd = -1;
}

static const char *map_error(int status)
{
	switch (status) {
	case -EPERM:
		return "a segment must be sealed SHRINK and GROW, and not WRITE";
	case -EINVAL:
		return "a segment must be a memfd without huge pages, open for reading and writing, of the size told";
	case -ENOMEM:
		return "there is no memory for the segment's pages";
	default:
		return strerror(-status);
	}
}

static void mapped(struct helper_job *job)
{
	struct segments *s = of_job(job);
	struct client *c = s->client;
	struct mail letter = {
		.type = MAIL_SEGMENT_ADD, .session = &c->session, .index = s->index, .region = s->regions[0]};

	if (s->status) {
		account(c, s->index, 0);
		reply(c, s->status, ATTND_FIELD_SEGMENT, 0, "%s", map_error(s->status));
	} else if (c->state != CLIENT_LIVE) {
		unmap(c, &letter.region, 0);
	} else if (control_mail(c->control, &letter)) {
		unmap(c, &letter.region, -ENOMEM);
	}
	client_job_done(c);
}

static uint64_t arena_of(const struct control *ctl, uid_t uid)
{
	uint64_t bytes = 0;

	for (const struct client *c = ctl->clients; c; c = c->next)
		bytes += c->peer.uid == uid ? c->session.ctl.arena_bytes : 0;
	return bytes;
}

static bool beyond(uint64_t limit, uint64_t used, uint64_t bytes)
{
	return limit && (used >= limit || bytes > limit - used);
}

static void add(struct client *c, const struct message *m)
{
	const struct attnd_msg_segment *want = &m->segment;
	const struct control *ctl = c->control;
	uint64_t most = ctl->cfg.max_segment_mb * MIB, page = (uint64_t)sysconf(_SC_PAGESIZE);

	if (m->fd < 0) {
		reply(c, m->fds_lost ? -EMFILE : -EINVAL, ATTND_FIELD_SEGMENT, 0,
		      "no descriptor came with the message");
		return;
	}
	if (c->segments.bytes[want->index])
		reply(c, -EEXIST, ATTND_FIELD_SEGMENT, 0, "segment %u is registered already", want->index);
	else if (want->bytes == 0 || want->bytes % page)
		reply(c, -EINVAL, ATTND_FIELD_SEGMENT_BYTES, page, "a segment's size must be a multiple of %" PRIu64,
		      page);
	else if (want->bytes > most)
		reply(c, -ENOSPC, ATTND_FIELD_SEGMENT_BYTES, most, "a segment may have %" PRIu64 " bytes", most);
	else if (ctl->arena_bytes >= ctl->cfg.arena_max || want->bytes > ctl->cfg.arena_max - ctl->arena_bytes)
		reply(c, -ENOSPC, ATTND_FIELD_ARENA_MAX, ctl->cfg.arena_max,
		      "all segments together may have %" PRIu64 " bytes, %" PRIu64 " are registered",
		      ctl->cfg.arena_max, ctl->arena_bytes);
	else if (beyond(ctl->cfg.arena_max_per_session, c->session.ctl.arena_bytes, want->bytes))
		reply(c, -EDQUOT, ATTND_FIELD_ARENA_MAX, ctl->cfg.arena_max_per_session,
		      "the segments of a session may have %" PRIu64 " bytes (arena-max-per-session)",
		      ctl->cfg.arena_max_per_session);
	else if (beyond(ctl->cfg.arena_max_per_uid, arena_of(ctl, c->peer.uid), want->bytes))
		reply(c, -EDQUOT, ATTND_FIELD_ARENA_MAX, ctl->cfg.arena_max_per_uid,
		      "the segments of uid %u may have %" PRIu64 " bytes (arena-max-per-uid)", c->peer.uid,
		      ctl->cfg.arena_max_per_uid);
	else {
		account(c, want->index, want->bytes);
		c->segments.fd = m->fd;
		start_job(c, run_map, mapped);
		return;
	}
	client_discard_fd(c, m->fd);
}

/* ---- DEL ---- */

static void del(struct client *c, const struct message *m)
{
	struct mail letter = {.type = MAIL_SEGMENT_DEL, .session = &c->session, .index = m->segment.index};

	client_discard_fd(c, m->fd);
	if (!c->segments.bytes[m->segment.index])
		reply(c, -ENOENT, ATTND_FIELD_SEGMENT, 0, "segment %u is not registered", m->segment.index);
	else if (control_mail(c->control, &letter))
		reply_status(c, -ENOMEM);
}

/* ---- Both ---- */

void segments_request(struct client *c, const struct message *m)
{
	const struct attnd_msg_segment *want = &m->segment;
	bool is_add = m->bytes == sizeof(*want) && want->type == ATTND_MSG_SEGMENT_ADD;
	bool is_del = m->bytes == sizeof(*want) && want->type == ATTND_MSG_SEGMENT_DEL;

	if (!is_add && !is_del) {
		client_discard_fd(c, m->fd);
		client_end(c, "it sent a message that is none");
		return;
	}
	if (c->segments.request != SEGMENT_NONE) {
		client_discard_fd(c, m->fd);
		client_end(c, "it did not wait for a reply");
		return;
	}
	c->segments.request = is_add ? SEGMENT_ADD : SEGMENT_DEL;
	if (want->index >= c->session.max_segments || want->reserved) {
		reply(c, -EINVAL, want->reserved ? ATTND_FIELD_RESERVED : ATTND_FIELD_SEGMENT,
		      c->session.max_segments - 1, "a segment's index is 0 to %u", c->session.max_segments - 1);
		client_discard_fd(c, m->fd);
		return;
	}
	c->segments.index = want->index;
	if (is_add)
		add(c, m);
	else
		del(c, m);
}

/* The region comes back with a refused ADD and a done DEL; otherwise the leader keeps it. */
void segments_done(struct client *c, const struct mail *letter)
{
	enum segment_request request = c->segments.request;

	if (request == SEGMENT_NONE)
		return;
	if ((request == SEGMENT_ADD) == (letter->status != 0))
		unmap(c, &letter->region, letter->status);
	else
		reply_status(c, letter->status);
}
