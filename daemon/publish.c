/* SPDX-License-Identifier: Apache-2.0 */
/* KV events over ZeroMQ (publish.h). */
#include "publish.h"

#include <errno.h>
#include <grp.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zmq.h>

#include "listener.h"
#include "log.h"
#include "mirror.h"
#include "peer.h"

enum {
	SHARED,
	ADMIN,
	ENDPOINTS,
	HIGH_WATER = 4096, /* messages for one subscriber; what is beyond it misses, and may ask for a replay */
	MAX_MESSAGE = 1024,
	GATHER_MS = 2,	       /* so long changes gather for one batch */
	MAX_CONNECTIONS = 256, /* of each socket: descriptors are the clients', too */
	MAX_WAITING = 64,
};

struct endpoint {
	void *pub, *replay;
	void *monitors[2];
	uint32_t connections[2];
	bool bound[2];
	char path[2][108];
};

/* A request for a replay that came before the state was whole. */
struct asked {
	int which;
	size_t id_bytes;
	unsigned char id[256];
	uint64_t start;
	char topic[200], prefix[100];
};

struct publisher {
	const struct config *cfg;
	struct peer_rules rules; /* under rules_lock: a reload changes them */
	pthread_mutex_t rules_lock;
	struct events *events;
	struct mailbox *leader;
	struct mirror *mirror;
	void *zmq;
	struct endpoint at[ENDPOINTS];
	struct asked waiting[MAX_WAITING];
	uint32_t num_waiting;
	bool wanted;
	pthread_t thread;
	bool started;
	int stop_fd;
};

/* ---- Who may see what ---- */

/* "localhost:UID:GID:PID", as libzmq tells of a UNIX socket's other end. */
static bool peer_of_message(zmq_msg_t *msg, struct peer *ret)
{
	const char *text = zmq_msg_gets(msg, "Peer-Address"), *at = text ? text + strlen(text) : NULL;
	unsigned uid, gid;
	int pid;

	for (int colons = 0; at && at > text && colons < 3; colons += *at == ':')
		at--;
	if (!at || sscanf(at, ":%u:%u:%d", &uid, &gid, &pid) != 3)
		return false;
	*ret = (struct peer){.uid = uid, .gid = gid, .pid = pid, .overflow_uid = uid == 65534};
	return true;
}

static bool is_in(const struct peer_ids *list, uint32_t id)
{
	for (uint32_t i = 0; i < list->n; i++)
		if (list->ids[i] == id)
			return true;
	return false;
}

static bool is_let_in(struct publisher *p, const struct peer *peer)
{
	const struct peer_rules *rules = &p->rules;
	bool yes;

	pthread_mutex_lock(&p->rules_lock);
	yes = (!rules->users.n && !rules->groups.n) || is_in(&rules->users, peer->uid) ||
	      is_in(&rules->groups, peer->gid);
	pthread_mutex_unlock(&p->rules_lock);
	return yes;
}

/* Beginning of the topics that the sender may see; false: none. */
static bool may_see(struct publisher *p, int which, zmq_msg_t *msg, char *ret, size_t size)
{
	struct peer peer;
	char realm[80];

	if (which == ADMIN) {
		snprintf(ret, size, "kv@");
		return true;
	}
	if (!peer_of_message(msg, &peer) || (peer.overflow_uid && !*p->cfg->share_group))
		return false;
	if (!is_let_in(p, &peer))
		return false;
	peer_realm(p->cfg, &peer, realm, sizeof(realm));
	snprintf(ret, size, "kv@%s@", realm);
	return true;
}

/* ---- Sending: never waits ---- */

static bool send_frame(void *socket, const void *data, size_t bytes, int more)
{
	return zmq_send(socket, data, bytes, ZMQ_DONTWAIT | more) >= 0;
}

static void number_frame(uint64_t seq, unsigned char ret[8])
{
	for (int i = 0; i < 8; i++)
		ret[i] = (unsigned char)(seq >> (56 - 8 * i));
}

static void publish(void *ctx, const char *topic, uint64_t seq, const void *payload, size_t bytes)
{
	struct publisher *p = ctx;
	unsigned char number[8];

	number_frame(seq, number);
	for (int i = 0; i < ENDPOINTS; i++)
		if (send_frame(p->at[i].pub, topic, strlen(topic), ZMQ_SNDMORE) &&
		    send_frame(p->at[i].pub, number, sizeof(number), ZMQ_SNDMORE))
			(void)send_frame(p->at[i].pub, payload, bytes, 0);
}

/* ---- Replay ---- */

struct reply {
	void *socket;
	const struct asked *asked;
};

static void send_reply(void *ctx, const char *topic, uint64_t seq, const void *payload, size_t bytes)
{
	const struct reply *r = ctx;
	unsigned char number[8];

	(void)topic;
	number_frame(seq, number);
	if (send_frame(r->socket, r->asked->id, r->asked->id_bytes, ZMQ_SNDMORE) &&
	    send_frame(r->socket, "", 0, ZMQ_SNDMORE) && send_frame(r->socket, number, sizeof(number), ZMQ_SNDMORE))
		(void)send_frame(r->socket, payload, bytes, 0);
}

static void answer(struct publisher *p, const struct asked *a)
{
	struct reply r = {.socket = p->at[a->which].replay, .asked = a};
	const char *topic = *a->topic ? a->topic : mirror_only_topic(p->mirror, a->prefix);

	if (topic && !strncmp(topic, a->prefix, strlen(a->prefix)))
		(void)mirror_replay(p->mirror, topic, a->start, send_reply, &r);
	send_reply(&r, NULL, UINT64_MAX, "", 0);
}

static void want(struct publisher *p)
{
	if (p->wanted)
		return;
	p->wanted = true;
	events_want(p->events);
	mailbox_send(p->leader, &(struct mail){.type = MAIL_EVENTS});
}

/* The next frame of a message; false: there is none. */
static bool frame(void *socket, zmq_msg_t *msg, bool *ret_more)
{
	zmq_msg_close(msg);
	zmq_msg_init(msg);
	if (zmq_msg_recv(msg, socket, ZMQ_DONTWAIT) < 0)
		return false;
	*ret_more = zmq_msg_more(msg);
	return true;
}

/*
 * Identity, empty, number, perhaps a topic. False: it is none of that, or not for the sender; the
 * rest of it is thrown away. (The identity's frame does not always tell of the sender.)
 */
static bool read_request(struct publisher *p, zmq_msg_t *msg, struct asked *a)
{
	void *socket = p->at[a->which].replay;
	const unsigned char *b;
	bool more, good;

	a->id_bytes = zmq_msg_size(msg);
	good = a->id_bytes <= sizeof(a->id);
	if (good)
		memcpy(a->id, zmq_msg_data(msg), a->id_bytes);
	good &= frame(socket, msg, &more) && more && zmq_msg_size(msg) == 0;
	good = good && may_see(p, a->which, msg, a->prefix, sizeof(a->prefix));
	good = good && frame(socket, msg, &more) && zmq_msg_size(msg) == 8;
	if (good) {
		b = zmq_msg_data(msg);
		for (int i = 0; i < 8; i++)
			a->start = a->start << 8 | b[i];
	}
	if (good && more) {
		good = frame(socket, msg, &more) && !more && zmq_msg_size(msg) < sizeof(a->topic);
		if (good)
			memcpy(a->topic, zmq_msg_data(msg), zmq_msg_size(msg));
	}
	while (zmq_msg_more(msg) && frame(socket, msg, &more))
		;
	return good;
}

static void on_replay(struct publisher *p, int which)
{
	zmq_msg_t msg;
	bool more;

	zmq_msg_init(&msg);
	while (frame(p->at[which].replay, &msg, &more)) {
		struct asked a = {.which = which};

		if (!more || !read_request(p, &msg, &a))
			continue;
		want(p);
		if (mirror_whole(p->mirror))
			answer(p, &a);
		else if (p->num_waiting < MAX_WAITING)
			p->waiting[p->num_waiting++] = a;
	}
	zmq_msg_close(&msg);
}

/* ---- Subscriptions ---- */

/*
 * What was asked for is cut to what may be seen: of all that it may see the subscriber gets all,
 * and its own socket throws away what it has not asked for. So nobody's subscriptions cost memory.
 */
static void on_subscription(struct publisher *p, int which)
{
	void *pub = p->at[which].pub;
	char prefix[100];
	zmq_msg_t msg;
	bool more;

	zmq_msg_init(&msg);
	while (frame(pub, &msg, &more)) {
		const char *data = zmq_msg_data(&msg);
		size_t n = zmq_msg_size(&msg);

		if (!n || data[0] != 1 || !may_see(p, which, &msg, prefix, sizeof(prefix)))
			continue;
		n = n - 1 < strlen(prefix) ? n - 1 : strlen(prefix);
		if (memcmp(data + 1, prefix, n) != 0)
			continue;
		zmq_setsockopt(pub, ZMQ_SUBSCRIBE, prefix, strlen(prefix));
		want(p);
	}
	zmq_msg_close(&msg);
}

/* ---- The number of connections ---- */

static int bind_socket(struct endpoint *e, int i)
{
	void *socket = i ? e->replay : e->pub;
	char address[128];

	snprintf(address, sizeof(address), "ipc://%s", e->path[i]);
	if (zmq_bind(socket, address))
		return -errno;
	e->bound[i] = true;
	return 0;
}

static int set_rights(const struct publisher *p, int which, const char *path)
{
	const struct group *gr = which == SHARED && *p->cfg->socket_group ? getgrnam(p->cfg->socket_group) : NULL;
	mode_t mode = which == SHARED ? (mode_t)p->cfg->socket_mode : 0600;

	if ((gr && chown(path, (uid_t)-1, gr->gr_gid)) || chmod(path, mode))
		return -errno;
	return 0;
}

/* More than MAX_CONNECTIONS: no new ones until some have gone. */
static void limit_connections(struct publisher *p, int which, int i)
{
	struct endpoint *e = &p->at[which];
	char address[128];

	snprintf(address, sizeof(address), "ipc://%s", e->path[i]);
	if (e->bound[i] && e->connections[i] >= MAX_CONNECTIONS) {
		log_warn("%s: %u connections: no more for now", e->path[i], e->connections[i]);
		e->bound[i] = zmq_unbind(i ? e->replay : e->pub, address) != 0;
	} else if (!e->bound[i] && e->connections[i] < MAX_CONNECTIONS / 2) {
		if (bind_socket(e, i) || set_rights(p, which, e->path[i]))
			log_warn("%s: %s", e->path[i], strerror(errno));
	}
}

static void on_monitor(struct publisher *p, int which, int i)
{
	struct endpoint *e = &p->at[which];
	zmq_msg_t msg;
	bool more;

	zmq_msg_init(&msg);
	while (frame(e->monitors[i], &msg, &more)) {
		uint16_t event = 0;

		if (zmq_msg_size(&msg) >= sizeof(event))
			memcpy(&event, zmq_msg_data(&msg), sizeof(event));
		while (more && frame(e->monitors[i], &msg, &more))
			;
		if (event == ZMQ_EVENT_ACCEPTED)
			e->connections[i]++;
		else if ((event == ZMQ_EVENT_DISCONNECTED || event == ZMQ_EVENT_HANDSHAKE_FAILED_NO_DETAIL ||
			  event == ZMQ_EVENT_HANDSHAKE_FAILED_PROTOCOL) &&
			 e->connections[i])
			e->connections[i]--;
	}
	zmq_msg_close(&msg);
	limit_connections(p, which, i);
}

/* ---- The thread ---- */

static void take_records(struct publisher *p)
{
	const struct event *r;

	while ((r = events_next(p->events))) {
		mirror_take(p->mirror, r);
		events_taken(p->events, r);
	}
	mirror_flush(p->mirror);
	if (!mirror_whole(p->mirror))
		return;
	for (uint32_t i = 0; i < p->num_waiting; i++)
		answer(p, &p->waiting[i]);
	p->num_waiting = 0;
}

enum { PER_ENDPOINT = 4, ITEMS = 2 + ENDPOINTS * PER_ENDPOINT };

static void fill_items(const struct publisher *p, zmq_pollitem_t items[ITEMS])
{
	items[0] = (zmq_pollitem_t){.fd = p->stop_fd, .events = ZMQ_POLLIN};
	items[1] = (zmq_pollitem_t){.fd = events_fd(p->events), .events = ZMQ_POLLIN};
	for (int w = 0; w < ENDPOINTS; w++) {
		void *const sockets[PER_ENDPOINT] = {p->at[w].pub, p->at[w].replay, p->at[w].monitors[0],
						     p->at[w].monitors[1]};

		for (int i = 0; i < PER_ENDPOINT; i++)
			items[2 + w * PER_ENDPOINT + i] =
				(zmq_pollitem_t){.socket = sockets[i], .events = ZMQ_POLLIN};
	}
}

static void *publisher_main(void *arg)
{
	struct publisher *p = arg;
	zmq_pollitem_t items[ITEMS];

	pthread_setname_np(pthread_self(), "attnd-events");
	fill_items(p, items);
	for (;;) {
		long wait = events_sleep(p->events) ? -1 : 0;

		if (zmq_poll(items, ITEMS, wait) < 0 && errno != EINTR)
			break;
		events_woken(p->events);
		if (items[0].revents)
			break;
		for (int w = 0; w < ENDPOINTS; w++) {
			const zmq_pollitem_t *of = &items[2 + w * PER_ENDPOINT];

			if (of[0].revents)
				on_subscription(p, w);
			if (of[1].revents)
				on_replay(p, w);
			if (of[2].revents)
				on_monitor(p, w, 0);
			if (of[3].revents)
				on_monitor(p, w, 1);
		}
		take_records(p);
		if (items[1].revents)
			(void)zmq_poll(items, 1, GATHER_MS); /* only the end hurries */
	}
	return NULL;
}

/* ---- Making and ending ---- */

static int set_number(void *socket, int option, int value)
{
	return zmq_setsockopt(socket, option, &value, sizeof(value)) ? -errno : 0;
}

static int set_options(void *socket)
{
	int64_t most = MAX_MESSAGE;

	if (zmq_setsockopt(socket, ZMQ_MAXMSGSIZE, &most, sizeof(most)) ||
	    set_number(socket, ZMQ_SNDHWM, HIGH_WATER) || set_number(socket, ZMQ_RCVHWM, MAX_WAITING) ||
	    set_number(socket, ZMQ_LINGER, 0))
		return -errno;
	return 0;
}

static int open_monitor(struct publisher *p, void *socket, void **ret, int number)
{
	char address[64];

	snprintf(address, sizeof(address), "inproc://monitor-%d", number);
	if (zmq_socket_monitor(socket, address,
			       ZMQ_EVENT_ACCEPTED | ZMQ_EVENT_DISCONNECTED | ZMQ_EVENT_HANDSHAKE_FAILED_NO_DETAIL |
				       ZMQ_EVENT_HANDSHAKE_FAILED_PROTOCOL))
		return -errno;
	*ret = zmq_socket(p->zmq, ZMQ_PAIR);
	if (!*ret)
		return -errno;
	set_number(*ret, ZMQ_LINGER, 0);
	return zmq_connect(*ret, address) ? -errno : 0;
}

static int open_endpoint(struct publisher *p, int which)
{
	struct endpoint *e = &p->at[which];
	int r;

	e->pub = zmq_socket(p->zmq, ZMQ_XPUB);
	e->replay = zmq_socket(p->zmq, ZMQ_ROUTER);
	if (!e->pub || !e->replay)
		return -errno;
	r = set_options(e->pub);
	if (r == 0)
		r = set_options(e->replay);
	if (r == 0)
		r = set_number(e->pub, ZMQ_XPUB_MANUAL, 1);
	for (int i = 0; i < 2 && r == 0; i++) {
		int n = snprintf(e->path[i], sizeof(e->path[i]), "%s%s%s", p->cfg->events_socket,
				 which == ADMIN ? ".admin" : "", i ? ".replay" : "");

		/* libzmq would unlink whatever stands there, another daemon's socket too. */
		r = n < (int)sizeof(e->path[i]) ? listener_remove_stale(e->path[i], SOCK_STREAM) : -ENAMETOOLONG;
		if (r == 0)
			r = open_monitor(p, i ? e->replay : e->pub, &e->monitors[i], 2 * which + i);
		if (r == 0)
			r = bind_socket(e, i);
		if (r == 0)
			r = set_rights(p, which, e->path[i]);
		if (r)
			log_err("events-socket %s: %s", e->path[i], strerror(-r));
	}
	return r;
}

int publisher_start(const struct config *cfg, struct events *events, struct mailbox *leader, struct publisher **ret)
{
	struct publisher *p = calloc(1, sizeof(*p));
	int r = 0;

	if (!p)
		return -ENOMEM;
	pthread_mutex_init(&p->rules_lock, NULL);
	p->cfg = cfg;
	p->events = events;
	p->leader = leader;
	p->stop_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (p->stop_fd < 0)
		r = -errno; /* before libzmq changes it */
	p->zmq = zmq_ctx_new();
	if (r == 0 && !p->zmq)
		r = -ENOMEM;
	if (peer_list_parse(cfg->allow_users, PEER_USERS, &p->rules.users) ||
	    peer_list_parse(cfg->allow_groups, PEER_GROUPS, &p->rules.groups))
		r = -EINVAL;
	if (r == 0)
		r = mirror_create(publish, p, &p->mirror);
	for (int i = 0; i < ENDPOINTS && r == 0; i++)
		r = open_endpoint(p, i);
	if (r == 0)
		r = -pthread_create(&p->thread, NULL, publisher_main, p);
	if (r) {
		publisher_stop(p);
		return r;
	}
	p->started = true;
	*ret = p;
	return 0;
}

void publisher_rules(struct publisher *p, const struct peer_rules *rules)
{
	if (!p)
		return;
	pthread_mutex_lock(&p->rules_lock);
	p->rules = *rules;
	pthread_mutex_unlock(&p->rules_lock);
}

static void close_endpoint(struct endpoint *e)
{
	void *const sockets[] = {e->pub, e->replay, e->monitors[0], e->monitors[1]};

	for (int i = 0; i < 4; i++)
		if (sockets[i])
			zmq_close(sockets[i]);
	for (int i = 0; i < 2; i++)
		if (e->bound[i])
			unlink(e->path[i]);
}

void publisher_unlink(const struct publisher *p)
{
	for (int i = 0; p && i < ENDPOINTS; i++)
		for (int k = 0; k < 2; k++)
			if (*p->at[i].path[k])
				unlink(p->at[i].path[k]);
}

void publisher_stop(struct publisher *p)
{
	if (!p)
		return;
	if (p->started) {
		(void)eventfd_write(p->stop_fd, 1);
		pthread_join(p->thread, NULL);
	}
	for (int i = 0; i < ENDPOINTS; i++)
		close_endpoint(&p->at[i]);
	if (p->zmq)
		zmq_ctx_term(p->zmq);
	mirror_destroy(p->mirror);
	if (p->stop_fd >= 0)
		close(p->stop_fd);
	pthread_mutex_destroy(&p->rules_lock);
	free(p);
}
