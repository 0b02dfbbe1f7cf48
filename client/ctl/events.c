/* SPDX-License-Identifier: Apache-2.0 */
/*
 * attnctl events: what is cached, and what comes and goes.
 *
 * In:   the daemon's KV events over ZeroMQ (administrators': all realms'; else one's own).
 * Out:  one line an event, as text or as JSON.
 * Next: nothing.
 */
#include <errno.h>
#include <inttypes.h>
#include <msgpack.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include <zmq.h>

#include "ctl.h"

enum { WAIT_MS = 10000, MAX_TOPICS = 512 };

struct topic {
	char name[200];
	uint64_t next;
	bool known; /* `next` is */
};

struct reader {
	const struct ctl *ctl;
	void *zmq, *sub, *replay;
	bool admin; /* else topics[0] has no name: of one's own realm the daemon tells, but not what is in it */
	struct topic topics[MAX_TOPICS];
	size_t num;
};

/* ---- Printing ---- */

static json_t *to_json(const msgpack_object *o)
{
	json_t *all;

	switch (o->type) {
	case MSGPACK_OBJECT_BOOLEAN:
		return json_boolean(o->via.boolean);
	case MSGPACK_OBJECT_POSITIVE_INTEGER:
	case MSGPACK_OBJECT_NEGATIVE_INTEGER:
		return json_integer((json_int_t)o->via.i64);
	case MSGPACK_OBJECT_FLOAT32:
	case MSGPACK_OBJECT_FLOAT64:
		return json_real(o->via.f64);
	case MSGPACK_OBJECT_STR:
		return json_stringn(o->via.str.ptr, o->via.str.size);
	case MSGPACK_OBJECT_ARRAY:
		all = json_array();
		for (uint32_t i = 0; i < o->via.array.size; i++)
			json_array_append_new(all, to_json(&o->via.array.ptr[i]));
		return all;
	case MSGPACK_OBJECT_BIN: /* a salt that is no text: its bytes */
		all = json_array();
		for (uint32_t i = 0; i < o->via.bin.size; i++)
			json_array_append_new(all, json_integer((unsigned char)o->via.bin.ptr[i]));
		return all;
	case MSGPACK_OBJECT_MAP:
		all = json_object();
		for (uint32_t i = 0; i < o->via.map.size; i++) {
			const msgpack_object_kv *kv = &o->via.map.ptr[i];

			if (kv->key.type == MSGPACK_OBJECT_STR)
				json_object_setn_new_nocheck(all, kv->key.via.str.ptr, kv->key.via.str.size,
							     to_json(&kv->val));
		}
		return all;
	default:
		return json_null();
	}
}

static const char *name_of(const struct topic *t)
{
	return *t->name ? t->name : "kv";
}

static void print_text(const struct topic *t, uint64_t seq, double ts, const json_t *e)
{
	const json_t *hashes = json_object_get(e, "block_hashes"), *parent = json_object_get(e, "parent_block_hash"),
		     *h;
	time_t seconds = (time_t)ts;
	char clock[16];
	size_t i;

	strftime(clock, sizeof(clock), "%H:%M:%S", localtime(&seconds));
	printf("%s.%03d  %s  %" PRIu64 "  %s", clock, (int)((ts - (double)seconds) * 1000), name_of(t), seq,
	       json_string_value(json_object_get(e, "type")));
	if (json_is_integer(parent))
		printf("  after %" JSON_INTEGER_FORMAT, json_integer_value(parent));
	json_array_foreach(hashes, i, h) printf("%s%" JSON_INTEGER_FORMAT, i ? " " : "  ", json_integer_value(h));
	putchar('\n');
}

static void print_event(const struct reader *r, const struct topic *t, uint64_t seq, double ts, const json_t *e)
{
	json_t *line;

	if (!r->ctl->json) {
		print_text(t, seq, ts, e);
		return;
	}
	line = json_pack("{s:s, s:I, s:f}", "topic", name_of(t), "seq", (json_int_t)seq, "ts", ts);
	json_object_update(line, (json_t *)(uintptr_t)e);
	json_dumpf(line, stdout, JSON_COMPACT);
	putchar('\n');
	json_decref(line);
}

/* False: it is no batch. */
static bool print_batch(const struct reader *r, const struct topic *t, uint64_t seq, const void *payload,
			size_t bytes)
{
	msgpack_unpacked u;
	size_t at = 0, i;
	json_t *batch = NULL, *e;

	msgpack_unpacked_init(&u);
	if (msgpack_unpack_next(&u, payload, bytes, &at) == MSGPACK_UNPACK_SUCCESS)
		batch = to_json(&u.data);
	msgpack_unpacked_destroy(&u);
	json_array_foreach(json_array_get(batch, 1), i, e)
		print_event(r, t, seq, json_number_value(json_array_get(batch, 0)), e);
	fflush(stdout);
	at = json_array_size(batch);
	json_decref(batch);
	return at >= 2;
}

/* ---- Topics ---- */

static struct topic *topic_get(struct reader *r, const char *name, size_t n)
{
	for (size_t i = 0; i < r->num; i++)
		if (strlen(r->topics[i].name) == n && !memcmp(r->topics[i].name, name, n))
			return &r->topics[i];
	if (r->num == MAX_TOPICS || n >= sizeof(r->topics[0].name))
		return NULL;
	memcpy(r->topics[r->num].name, name, n);
	return &r->topics[r->num++];
}

static int find_topics(struct reader *r)
{
	json_t *request = json_pack("{s:s}", "command", "caches"), *reply, *c;
	int e = EXIT_SUCCESS;
	char name[200];
	size_t i;

	reply = r->admin ? ctl_ask(r->ctl, request, &e) : NULL;
	r->num = !r->admin;
	json_array_foreach(json_object_get(reply, "caches"), i, c)
	{
		const char *realm = json_string_value(json_object_get(c, "realm")),
			   *cache = json_string_value(json_object_get(c, "name"));

		if (realm && cache) {
			snprintf(name, sizeof(name), "kv@%s@%s", realm, cache);
			topic_get(r, name, strlen(name));
		}
	}
	json_decref(reply);
	json_decref(request);
	return e;
}

/* ---- Messages ---- */

/* The next frame within the time; -1. ret_more: others follow. */
static int receive(void *socket, zmq_msg_t *msg, bool *ret_more)
{
	int n;

	zmq_msg_close(msg);
	zmq_msg_init(msg);
	n = zmq_msg_recv(msg, socket, 0);
	*ret_more = n >= 0 && zmq_msg_more(msg);
	return n;
}

static uint64_t number_of(zmq_msg_t *msg)
{
	const unsigned char *b = zmq_msg_data(msg);
	uint64_t n = 0;

	for (size_t i = 0; i < 8 && i < zmq_msg_size(msg); i++)
		n = n << 8 | b[i];
	return n;
}

/* All of the topic from `start` on. False: no answer. */
static bool replay(struct reader *r, struct topic *t, uint64_t start)
{
	unsigned char number[8];
	zmq_msg_t msg;
	uint64_t seq;
	bool more;

	for (int i = 0; i < 8; i++)
		number[i] = (unsigned char)(start >> (56 - 8 * i));
	if (zmq_send(r->replay, "", 0, ZMQ_SNDMORE) < 0 || zmq_send(r->replay, number, 8, ZMQ_SNDMORE) < 0 ||
	    zmq_send(r->replay, t->name, strlen(t->name), 0) < 0)
		return false;
	zmq_msg_init(&msg);
	for (;;) {
		if (receive(r->replay, &msg, &more) < 0 || !more || receive(r->replay, &msg, &more) < 0 || !more)
			break;
		seq = number_of(&msg);
		if (receive(r->replay, &msg, &more) < 0)
			break;
		if (seq == UINT64_MAX) {
			zmq_msg_close(&msg);
			return true;
		}
		print_batch(r, t, seq, zmq_msg_data(&msg), zmq_msg_size(&msg));
		t->next = seq + 1;
		t->known = true;
	}
	zmq_msg_close(&msg);
	return false;
}

/* A live batch; what was missed before it is asked for. */
static void on_batch(struct reader *r, zmq_msg_t *msg)
{
	struct topic *t;
	uint64_t seq;
	bool more;

	if (r->num && !*r->topics[0].name && zmq_msg_size(msg) < sizeof(r->topics[0].name))
		memcpy(r->topics[0].name, zmq_msg_data(msg), zmq_msg_size(msg));
	t = topic_get(r, zmq_msg_data(msg), zmq_msg_size(msg));
	if (receive(r->sub, msg, &more) < 0 || !more)
		return;
	seq = number_of(msg);
	if (receive(r->sub, msg, &more) < 0 || !t)
		return;
	if (t->known && seq > t->next)
		replay(r, t, t->next);
	if (t->known && seq < t->next && seq) /* 0: the daemon has been started again */
		return;
	print_batch(r, t, seq, zmq_msg_data(msg), zmq_msg_size(msg));
	t->next = seq + 1;
	t->known = true;
}

static int follow(struct reader *r)
{
	const int for_ever = -1;
	zmq_msg_t msg;
	bool more;

	zmq_setsockopt(r->sub, ZMQ_RCVTIMEO, &for_ever, sizeof(for_ever));
	zmq_msg_init(&msg);
	while (receive(r->sub, &msg, &more) >= 0 && !ferror(stdout))
		if (more)
			on_batch(r, &msg);
	zmq_msg_close(&msg);
	return CTL_ERROR;
}

/* ---- Connecting ---- */

static int connect_socket(struct reader *r, int type, const char *path, const char *end, void **ret)
{
	const int wait = WAIT_MS, none = 0;
	char address[300];

	snprintf(address, sizeof(address), "ipc://%s%s", path, end);
	*ret = zmq_socket(r->zmq, type);
	if (!*ret || zmq_setsockopt(*ret, ZMQ_RCVTIMEO, &wait, sizeof(wait)) ||
	    zmq_setsockopt(*ret, ZMQ_LINGER, &none, sizeof(none)) ||
	    zmq_setsockopt(*ret, ZMQ_RCVHWM, &none, sizeof(none)))
		return -errno;
	if (type == ZMQ_SUB && zmq_setsockopt(*ret, ZMQ_SUBSCRIBE, "kv@", 3))
		return -errno;
	return zmq_connect(*ret, address) ? -errno : 0;
}

/* The daemon tells where, if it may; else beside the socket. The exit code; the reason is printed. */
static int find_path(struct reader *r, char *ret, size_t size)
{
	json_t *request = json_pack("{s:s}", "command", "status"), *reply;
	const char *events, *why;
	char path[256];
	int error = 0, e = EXIT_SUCCESS;

	reply = ctl_ask_quietly(r->ctl, request, &error, path, sizeof(path));
	json_decref(request);
	events = json_string_value(json_object_get(reply, "events_socket"));
	why = json_string_value(json_object_get(reply, "error"));
	r->admin = events;
	snprintf(ret, size, "%s%s", events ? events : path, events ? "" : ".events");
	if (events && !strcmp(events, "none")) {
		fprintf(stderr,
			"attnctl: the daemon tells no events: events-socket = none, or the socket's path leaves "
			"no room for the names beside it\n");
		e = CTL_ERROR;
	} else if (reply && !events) {
		fprintf(stderr, "attnctl: %s\n", why ? why : "the daemon does not say where its events are");
		e = CTL_ERROR;
	} else if (!reply && error != -EACCES && error != -EPERM && error != -EPROTOTYPE) {
		e = ctl_complain(error, path);
	}
	json_decref(reply);
	return e;
}

/* What there is, topic after topic. */
static int show_state(struct reader *r)
{
	for (size_t i = 0; i < r->num; i++)
		if (!replay(r, &r->topics[i], 0))
			return -ETIMEDOUT;
	if (!r->admin && !r->topics[0].known && !r->ctl->follow)
		fputs("attnctl: nothing of yours is cached, or it is in several caches: those are listed for "
		      "administrators only, and --follow shows what changes in them\n",
		      stderr);
	return 0;
}

int ctl_events(const struct ctl *c)
{
	static struct reader r;
	char path[280], admin[300];
	bool all;
	int code, e;

	r.ctl = c;
	code = find_path(&r, path, sizeof(path));
	if (code)
		return code;
	snprintf(admin, sizeof(admin), "%s.admin", path);
	all = r.admin && access(admin, W_OK) == 0;
	if (!all && access(path, W_OK)) {
		fprintf(stderr, "attnctl: %s: %s\n", path, strerror(errno));
		return errno == EACCES ? CTL_DENIED : CTL_NO_DAEMON;
	}
	r.zmq = zmq_ctx_new();
	e = r.zmq ? connect_socket(&r, ZMQ_SUB, all ? admin : path, "", &r.sub) : -errno;
	if (e == 0)
		e = connect_socket(&r, ZMQ_DEALER, all ? admin : path, ".replay", &r.replay);
	if (e == 0)
		code = find_topics(&r);
	if (e == 0 && code == 0)
		e = show_state(&r);
	if (e)
		fprintf(stderr, "attnctl: %s: %s\n", path, strerror(-e));
	code = e ? CTL_ERROR : code ? code : c->follow ? follow(&r) : EXIT_SUCCESS;
	if (r.sub)
		zmq_close(r.sub);
	if (r.replay)
		zmq_close(r.replay);
	if (r.zmq)
		zmq_ctx_term(r.zmq);
	return code;
}
