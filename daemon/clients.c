/* SPDX-License-Identifier: Apache-2.0 */
/*
 * In:   connections. Out: sessions for the leader, and their ends. Next: handshake.c, segments.c.
 */
#include "clients.h"

#include <errno.h>
#include <limits.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "../shm/futex.h"
#include "log.h"

#define MS		 UINT64_C(1000000) /* in nanoseconds */
#define HELLO_NS	 (2000 * MS)
#define RETRY_NS	 (100 * MS)
#define ACCEPT_BATCH	 32
#define SILENT_MAX	 128 /* connections that have not said HELLO: all, */
#define SILENT_MAX_A_UID 32  /* and of one uid; then the oldest goes */

/* ---- The end ---- */

static void close_fd(int fd)
{
	if (fd >= 0)
		close(fd);
}

static void unlink_client(struct client *c)
{
	*c->pprev = c->next;
	if (c->next)
		c->next->pprev = c->pprev;
}

/* Free a client that has ended as soon as nothing refers to it; see the states in clients.h. */
static void try_free(struct client *c)
{
	struct control *ctl = c->control;

	if (c->state != CLIENT_ENDING || c->with_leader || c->jobs)
		return;
	if (segments_unmap_all(c)) /* comes back here */
		return;
	handshake_close(&c->session);
	close_fd(c->session.ctl.sock);
	close_fd(c->session.ctl.pidfd);
	close_fd(c->session.ctl.owner_pidfd);
	loop_remove(ctl->loop, c->timer);
	unlink_client(c);
	if (c->session.id) {
		ctl->num_sessions--;
		control_notify(ctl);
	}
	free(c);
}

/*
 * The leader has let go of the session. What the client may be waiting for will not come: tell
 * it. Nobody else writes here any more.
 */
static void take_back(struct client *c)
{
	struct attnd_session_region *shared = c->session.shared;

	if (!c->with_leader)
		return;
	c->with_leader = false;
	atomic_store_explicit(&shared->closed, 1, memory_order_release); /* pairs with the client's load */
	atomic_fetch_add_explicit(&shared->cq_event, 1, memory_order_release);
	attnd_futex_wake(&shared->cq_event, INT_MAX);
}

/* Once; again later if there is no memory for a letter. */
static void tell_leader(struct client *c)
{
	const struct mail letter = {.type = MAIL_SESSION_END, .session = &c->session};

	if (!c->with_leader || c->session.ctl.ended)
		return;
	if (control_mail(c->control, &letter) == 0)
		c->session.ctl.ended = true;
	else
		loop_set_timer(c->control->loop, c->timer, loop_now(c->control->loop) + RETRY_NS);
}

static void remove_source(struct client *c, struct loop_source **s)
{
	loop_remove(c->control->loop, *s);
	*s = NULL;
}

void client_end(struct client *c, const char *why)
{
	const struct session *s = &c->session;

	if (c->state == CLIENT_ENDING)
		return;
	if (c->state == CLIENT_LIVE)
		log_info("session %u (%s, pid %d, uid %u) ends: %s", s->id, s->name, (int)s->pid, s->uid, why);
	else
		log_debug("connection of pid %d, uid %u ends: %s", (int)c->peer.pid, c->peer.uid, why);
	c->state = CLIENT_ENDING;
	remove_source(c, &c->sock);
	remove_source(c, &c->pidfd);
	remove_source(c, &c->owner);
	loop_set_timer(c->control->loop, c->timer, UINT64_MAX);
	tell_leader(c);
	try_free(c);
}

void client_job_done(struct client *c)
{
	c->jobs--;
	try_free(c);
}

struct discard {
	struct helper_job job;
	struct client *client;
	int fd;
};

static void run_discard(struct helper_job *job)
{
	close(((struct discard *)job)->fd);
}

static void discarded(struct helper_job *job)
{
	client_job_done(((struct discard *)job)->client);
	free(job);
}

void client_discard_fd(struct client *c, int fd)
{
	struct discard *d;

	if (fd < 0)
		return;
	d = calloc(1, sizeof(*d));
	if (!d) {
		close(fd);
		return;
	}
	*d = (struct discard){.job = {.run = run_discard, .done = discarded}, .client = c, .fd = fd};
	c->jobs++;
	helper_start(c->control->helpers, &d->job);
}

/* ---- HELLO ---- */

static uint32_t sessions_of(const struct control *ctl, uid_t uid)
{
	uint32_t n = 0;

	for (const struct client *c = ctl->clients; c; c = c->next)
		n += c->session.id && c->peer.uid == uid;
	return n;
}

static int check_limits(const struct client *c, struct refusal *refusal)
{
	const struct control *ctl = c->control;
	const struct config *cfg = &ctl->cfg;

	if (!peer_allowed(&ctl->rules, c->session.ctl.sock, &c->peer))
		return refuse(refusal, -EACCES, "uid %u is neither in allow-users nor in a group of allow-groups",
			      c->peer.uid);
	if (ctl->num_sessions >= cfg->max_sessions)
		return refuse(refusal, -EMFILE, "max-sessions (%u) are connected", cfg->max_sessions);
	if (sessions_of(ctl, c->peer.uid) >= cfg->max_sessions_per_uid)
		return refuse(refusal, -EMFILE, "max-sessions-per-uid (%u) of uid %u are connected",
			      cfg->max_sessions_per_uid, c->peer.uid);
	return 0;
}

/* Takes m->fd if it is the owner's pidfd. */
static int take_owner(struct client *c, struct message *m, struct refusal *refusal)
{
	if (!(m->hello.flags & ATTND_HELLO_OWNER_PIDFD))
		return 0;
	if (m->fd < 0)
		return refuse(refusal, m->fds_lost ? -EMFILE : -EINVAL, "the owner's pidfd did not come with HELLO");
	if (!peer_is_pidfd(m->fd))
		return refuse(refusal, -EBADF, "the owner's descriptor is not a pidfd");
	c->session.ctl.owner_pidfd = m->fd;
	m->fd = -1;
	return 0;
}

static void on_pidfd(void *arg, uint32_t events)
{
	(void)events;
	client_end(arg, "its process has ended");
}

static void on_owner(void *arg, uint32_t events)
{
	struct client *c = arg;
	const struct mail letter = {.type = MAIL_OWNER_GONE, .session = &c->session};

	(void)events;
	if (control_mail(c->control, &letter))
		return; /* called again */
	log_info("session %u: the owner of its engine has ended", c->session.id);
	remove_source(c, &c->owner);
}

static int watch_processes(struct client *c)
{
	struct session *s = &c->session;
	int r = 0;

	s->ctl.pidfd = peer_pidfd(s->ctl.sock, &c->peer);
	if (s->ctl.pidfd >= 0)
		r = loop_add_fd(c->control->loop, s->ctl.pidfd, POLLIN, on_pidfd, c, &c->pidfd);
	if (r == 0 && s->ctl.owner_pidfd >= 0)
		r = loop_add_fd(c->control->loop, s->ctl.owner_pidfd, POLLIN, on_owner, c, &c->owner);
	return r;
}

static void fill_session(struct client *c)
{
	struct control *ctl = c->control;
	struct session *s = &c->session;

	s->id = ++ctl->next_session;
	s->pid = c->peer.pid;
	s->uid = c->peer.uid;
	s->gid = c->peer.gid;
	s->overflow_uid = c->peer.overflow_uid && !*ctl->cfg.share_group;
	s->ctl.connected_ns = loop_now(ctl->loop);
	peer_realm(&ctl->cfg, &c->peer, s->realm, sizeof(s->realm));
	tenants_of(&ctl->tenants, s->ctl.sock, &c->peer, &s->tenants);
	ctl->num_sessions++;
}

/* The leader knows the session before the client does: nothing the client sends is missed. */
static int give_to_leader(struct client *c, struct welcome *w)
{
	const struct mail letter = {.type = MAIL_SESSION_ADD, .session = &c->session};
	int r = leader_lookup_fd(c->control->leader, c->session.realm, &w->lookup_fd, &w->lookup_bytes);

	if (r == 0)
		r = watch_processes(c);
	if (r == 0)
		r = control_mail(c->control, &letter);
	if (r == 0)
		c->with_leader = true;
	return r;
}

static int open_session(struct client *c, const struct attnd_msg_hello *hello, struct refusal *refusal)
{
	struct welcome w = {.sq_entries = hello->sq_entries,
			    .cq_entries = hello->cq_entries,
			    .max_segment_bytes = (uint64_t)c->control->cfg.max_segment_mb << 20,
			    .instance = c->control->instance};
	int r = handshake_open(&c->session, hello, &w.wake_fd);

	if (r)
		return refuse(refusal, r, "no session: %s", strerror(-r));
	fill_session(c);
	r = give_to_leader(c, &w);
	if (r == 0) {
		c->state = CLIENT_LIVE;
		loop_set_timer(c->control->loop, c->timer, UINT64_MAX);
		log_info("session %u (%s, pid %d, uid %u): connected, realm %s", c->session.id, c->session.name,
			 (int)c->session.pid, c->session.uid, c->session.realm);
		control_notify(c->control);
		if (handshake_welcome(&c->session, &w))
			client_end(c, "its socket takes no WELCOME");
	} else {
		refuse(refusal, r, "no session: %s", strerror(-r));
	}
	close(w.wake_fd);
	return r;
}

static void hello(struct client *c, struct message *m)
{
	struct refusal refusal = {.status = 0};

	if (handshake_check(m, &refusal) == 0 && check_limits(c, &refusal) == 0 && take_owner(c, m, &refusal) == 0 &&
	    open_session(c, &m->hello, &refusal) == 0) {
		client_discard_fd(c, m->fd);
		return;
	}
	log_info("refused pid %d, uid %u: %s", (int)c->peer.pid, c->peer.uid, refusal.text);
	handshake_refuse(c->session.ctl.sock, &refusal);
	client_discard_fd(c, m->fd);
	client_end(c, "refused");
}

/* ---- The socket ---- */

static void on_socket(void *arg, uint32_t events)
{
	struct client *c = arg;
	struct message m;
	int r = message_receive(c->session.ctl.sock, &m);

	(void)events; /* what came before a hang-up is read first; the end reads as -ECONNRESET */
	if (r == -EAGAIN || r == -EINTR)
		return;
	if (r)
		client_end(c, r == -ECONNRESET ? "it closed its socket" : strerror(-r));
	else if (c->state == CLIENT_HELLO)
		hello(c, &m);
	else
		segments_request(c, &m);
}

static void on_timer(void *arg, uint32_t events)
{
	struct client *c = arg;

	(void)events;
	if (c->state == CLIENT_HELLO)
		client_end(c, "it said no HELLO");
	else
		tell_leader(c);
}

/* Make room among those that have not said HELLO: an honest client says it at once, so the oldest goes. */
static bool make_room(struct control *ctl, uid_t uid)
{
	uint32_t silent = 0, silent_uid = 0, all_uid = 0;
	struct client *oldest = NULL, *oldest_uid = NULL;

	for (struct client *c = ctl->clients; c; c = c->next) {
		bool same = c->peer.uid == uid;

		all_uid += same;
		if (c->state != CLIENT_HELLO)
			continue;
		silent++;
		oldest = c;
		if (same) {
			silent_uid++;
			oldest_uid = c;
		}
	}
	if (silent_uid >= SILENT_MAX_A_UID)
		client_end(oldest_uid, "too many say no HELLO");
	else if (silent >= SILENT_MAX)
		client_end(oldest, "too many say no HELLO");
	return all_uid <= ctl->cfg.max_sessions_per_uid + SILENT_MAX_A_UID;
}

/* Takes sock over on success. */
static int add_client(struct control *ctl, int sock)
{
	struct client *c = calloc(1, sizeof(*c));
	int r;

	if (!c)
		return -ENOMEM;
	c->control = ctl;
	c->session.region = ATTND_REGION_NONE;
	c->session.wake_fd = c->session.ctl.pidfd = c->session.ctl.owner_pidfd = -1;
	c->session.ctl.sock = sock;
	c->session.ctl.priv = c;
	for (uint32_t i = 0; i < ATTND_MAX_SEGMENTS; i++)
		c->session.lead.segments[i] = ATTND_REGION_NONE;
	r = peer_of(sock, &c->peer);
	if (r == 0 && !make_room(ctl, c->peer.uid))
		r = -EMFILE;
	if (r == 0)
		r = loop_add_timer(ctl->loop, on_timer, c, &c->timer);
	if (r == 0)
		r = loop_add_fd(ctl->loop, sock, POLLIN, on_socket, c, &c->sock);
	if (r) {
		loop_remove(ctl->loop, c->timer);
		free(c);
		return r;
	}
	loop_set_timer(ctl->loop, c->timer, loop_now(ctl->loop) + HELLO_NS);
	c->next = ctl->clients;
	c->pprev = &ctl->clients;
	if (c->next)
		c->next->pprev = &c->next;
	ctl->clients = c;
	return 0;
}

void clients_accept(void *arg, uint32_t events)
{
	struct control *ctl = arg;

	(void)events;
	for (int i = 0; i < ACCEPT_BATCH; i++) {
		int sock = accept4(ctl->listen_fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK), r;

		if (sock < 0 && (errno == EMFILE || errno == ENFILE || errno == ENOMEM || errno == ENOBUFS))
			control_pause_accept(ctl, strerror(errno));
		if (sock < 0)
			return; /* called again if there is more */
		r = add_client(ctl, sock);
		if (r) {
			log_debug("connection dropped: %s", strerror(-r));
			close(sock);
		}
	}
}

/* ---- Letters and lists ---- */

void clients_mail(struct control *ctl, const struct mail *letter)
{
	struct client *c = letter->session->ctl.priv;

	(void)ctl;
	switch (letter->type) {
	case MAIL_SESSION_FREED:
		take_back(c);
		try_free(c);
		break;
	case MAIL_SESSION_BAD:
		if (c->state == CLIENT_LIVE)
			log_warn("session %u (%s, pid %d, uid %u) broke the protocol", c->session.id, c->session.name,
				 (int)c->session.pid, c->session.uid);
		client_end(c, "protocol");
		break;
	case MAIL_SEGMENT_DONE:
		segments_done(c, letter);
		break;
	default:
		break;
	}
}

void clients_destroy(struct control *ctl)
{
	for (struct client *c = ctl->clients, *next; c; c = next) {
		next = c->next;
		take_back(c);
		if (c->state == CLIENT_ENDING)
			try_free(c);
		else
			client_end(c, "the daemon stops");
	}
}

json_t *clients_json(const struct control *ctl)
{
	json_t *all = json_array();

	for (const struct client *c = ctl->clients; c && all; c = c->next) {
		const struct session *s = &c->session;
		double seconds = (double)(loop_now(ctl->loop) - s->ctl.connected_ns) / 1e9;

		if (s->id &&
		    json_array_append_new(all, json_pack("{s:I s:I s:I s:s s:s s:f s:I s:b}", "id", (json_int_t)s->id,
							 "pid", (json_int_t)s->pid, "uid", (json_int_t)s->uid, "name",
							 s->name, "realm", s->realm, "connected_s", seconds,
							 "arena_bytes", (json_int_t)s->ctl.arena_bytes, "ending",
							 c->state == CLIENT_ENDING))) {
			json_decref(all);
			all = NULL;
		}
	}
	return all;
}
