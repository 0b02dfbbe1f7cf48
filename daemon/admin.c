/* SPDX-License-Identifier: Apache-2.0 */
/*
 * In:   administrators' requests, the leader's answers. Out: one JSON object each.
 * Next: status.c, leader.c.
 *
 * A connection has two seconds to ask, the leader ten to answer, the connection two to read:
 * nobody waits longer for anybody.
 */
#include "admin.h"

#include <errno.h>
#include <jansson.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "arguments.h"
#include "log.h"
#include "metrics.h"
#include "status.h"

#define STEP_NS		UINT64_C(2000000000)
#define LEADER_NS	(5 * STEP_NS) /* it may have long work, or share its core with others */
#define MAX_CONNECTIONS 16
#define MAX_CALLS	32 /* asked of the leader and not answered, given up ones too */
#define REQUEST_MIN	256
#define REQUEST_MAX	(1 << 20) /* a long prompt's tokens as text */

static const char *const commands[] = {"status", "sessions", "caches", "plan", "pins",	  "tree", "pin",
				       "unpin",	 "flush",    "evict",  "set",  "metrics", "stat"};

struct connection {
	struct admin *admin;
	int sock;
	struct loop_source *source, *timer;
	char *request;
	size_t received, room;
	struct call *call; /* the leader's answer is awaited */
	char *answer;
	size_t length, sent;
	struct connection *next;
};

/* Outlives its connection: the leader answers what was asked. */
struct call {
	struct connection *connection; /* NULL: given up */
	const char *command;
	struct call *next;
};

struct admin {
	struct control *control;
	struct connection *connections;
	struct call *calls;
	uint32_t num_connections, num_calls;
};

int admin_create(struct control *ctl, struct admin **ret)
{
	struct admin *a = calloc(1, sizeof(*a));

	if (!a)
		return -ENOMEM;
	a->control = ctl;
	*ret = a;
	return 0;
}

static void close_connection(struct connection *c)
{
	struct admin *a = c->admin;
	struct connection **at = &a->connections;

	while (*at != c)
		at = &(*at)->next;
	*at = c->next;
	a->num_connections--;
	if (c->call)
		c->call->connection = NULL;
	loop_remove(a->control->loop, c->source);
	loop_remove(a->control->loop, c->timer);
	close(c->sock);
	free(c->request);
	free(c->answer);
	free(c);
}

void admin_destroy(struct admin *a)
{
	struct call *next;

	if (!a)
		return;
	while (a->connections)
		close_connection(a->connections);
	for (struct call *call = a->calls; call; call = next) {
		next = call->next;
		free(call);
	}
	free(a);
}

/* ---- Answering ---- */

static void on_writable(void *arg, uint32_t events)
{
	struct connection *c = arg;
	ssize_t n = send(c->sock, c->answer + c->sent, c->length - c->sent, MSG_DONTWAIT | MSG_NOSIGNAL);

	(void)events;
	if (n < 0 && (errno == EAGAIN || errno == EINTR))
		return;
	if (n > 0)
		c->sent += (size_t)n;
	if (n < 0 || c->sent == c->length)
		close_connection(c);
}

/* Takes the object over. */
static void answer(struct connection *c, json_t *object)
{
	struct loop *l = c->admin->control->loop;
	char *text = object ? json_dumps(object, JSON_COMPACT) : NULL;

	json_decref(object);
	if (!text) {
		close_connection(c);
		return;
	}
	c->answer = text;
	c->length = strlen(text);
	c->answer[c->length++] = '\n'; /* in the terminator's place */
	loop_remove(l, c->source);
	c->source = NULL;
	loop_set_timer(l, c->timer, loop_now(l) + STEP_NS);
	if (loop_add_fd(l, c->sock, POLLOUT, on_writable, c, &c->source))
		close_connection(c);
}

static void answer_error(struct connection *c, int status, const char *text)
{
	answer(c, arguments_refusal(status, text));
}

void admin_mail(struct admin *a, const struct mail *letter)
{
	struct call *call = letter->cookie, **at = &a->calls;
	struct connection *c = call->connection;

	while (*at != call)
		at = &(*at)->next;
	*at = call->next;
	a->num_calls--;
	if (c) {
		c->call = NULL;
		answer(c, letter->metrics ? metrics_answer(letter->metrics, a->control, call->command)
					  : status_merge(a->control, call->command, letter->reply));
	} else {
		json_decref(letter->reply);
		free(letter->metrics);
	}
	free(call);
}

/* ---- Asking ---- */

/* Takes the arguments over. */
static int ask_leader(struct connection *c, const char *command, json_t *args)
{
	struct admin *a = c->admin;
	struct call *call;
	int r;

	call = a->num_calls < MAX_CALLS ? calloc(1, sizeof(*call)) : NULL;
	if (!call) {
		json_decref(args);
		return a->num_calls < MAX_CALLS ? -ENOMEM : -EBUSY;
	}
	*call = (struct call){.connection = c, .command = command, .next = a->calls};
	r = control_mail(a->control,
			 &(struct mail){.type = MAIL_ADMIN, .command = command, .args = args, .cookie = call});
	if (r) {
		json_decref(args);
		free(call);
		return r;
	}
	a->calls = call;
	a->num_calls++;
	c->call = call;
	return 0;
}

static const char *find_command(const json_t *request)
{
	const char *name = json_string_value(json_object_get(request, "command"));

	for (size_t i = 0; name && i < sizeof(commands) / sizeof(commands[0]); i++)
		if (strcmp(commands[i], name) == 0)
			return commands[i];
	return NULL;
}

static void ask(struct connection *c, size_t length)
{
	struct loop *l = c->admin->control->loop;
	char why[ARGUMENTS_WHY] = "no memory for the request", *text = NULL;
	const char *command;
	json_t *request;
	int r;

	while (length && (c->request[length - 1] == '\r' || c->request[length - 1] == ' '))
		length--;
	if (memchr(c->request, 0, length))
		snprintf(why, sizeof(why), "a zero byte in the request");
	else
		text = strndup(c->request, length);
	request = text ? arguments_parse(text, why, sizeof(why)) : NULL;
	free(text);
	command = find_command(request);
	if (request && !command)
		snprintf(
			why, sizeof(why),
			"unknown command: status, sessions, caches, plan, pins, tree, pin, unpin, flush, evict, set, "
			"metrics or stat");
	if (!command || !arguments_check(command, request, why, sizeof(why))) {
		json_decref(request);
		answer_error(c, -EINVAL, why);
		return;
	}
	/* Nothing more is read. */
	loop_remove(l, c->source);
	c->source = NULL;
	loop_set_timer(l, c->timer, loop_now(l) + LEADER_NS);
	r = ask_leader(c, command, request);
	if (r)
		answer_error(c, r, "too many requests wait for the leader");
}

/* Room for more of the request. */
static bool grow_request(struct connection *c)
{
	size_t room = c->room ? 2 * c->room : REQUEST_MIN;
	char *larger;

	if (c->received < c->room)
		return true;
	larger = realloc(c->request, room);
	if (!larger)
		return false;
	c->request = larger;
	c->room = room;
	return true;
}

static void on_readable(void *arg, uint32_t events)
{
	struct connection *c = arg;
	const char *end = NULL;
	ssize_t n;

	(void)events;
	if (!grow_request(c)) {
		answer_error(c, -ENOMEM, "no memory for the request");
		return;
	}
	n = recv(c->sock, c->request + c->received, c->room - c->received, MSG_DONTWAIT);
	if (n < 0 && (errno == EAGAIN || errno == EINTR))
		return;
	if (n > 0) {
		end = memchr(c->request + c->received, '\n', (size_t)n);
		c->received += (size_t)n;
	}
	if (end)
		ask(c, (size_t)(end - c->request));
	else if (n == 0 && c->received) /* asked without a line's end, and shut down */
		ask(c, c->received);
	else if (n <= 0)
		close_connection(c);
	else if (c->received == REQUEST_MAX)
		answer_error(c, -EMSGSIZE, "the request is too long");
}

static void on_timeout(void *arg, uint32_t events)
{
	struct connection *c = arg;

	(void)events;
	if (c->call) {
		c->call->connection = NULL;
		c->call = NULL;
		log_warn("the leader has not answered an administrator within 10 s");
		answer_error(c, -ETIMEDOUT, "the leader did not answer within 10 s");
	} else {
		close_connection(c);
	}
}

static int add_connection(struct admin *a, int sock)
{
	struct loop *l = a->control->loop;
	struct connection *c;
	int r;

	if (a->num_connections >= MAX_CONNECTIONS)
		return -EMFILE;
	c = calloc(1, sizeof(*c));
	if (!c)
		return -ENOMEM;
	c->admin = a;
	c->sock = sock;
	r = loop_add_timer(l, on_timeout, c, &c->timer);
	if (r == 0)
		r = loop_add_fd(l, sock, POLLIN, on_readable, c, &c->source);
	if (r) {
		loop_remove(l, c->timer);
		free(c);
		return r;
	}
	loop_set_timer(l, c->timer, loop_now(l) + STEP_NS);
	c->next = a->connections;
	a->connections = c;
	a->num_connections++;
	return 0;
}

void admin_accept(void *arg, uint32_t events)
{
	static const char busy[] = "{\"error\":\"too many administrators at once\",\"errno\":-24}\n";
	struct admin *a = arg;
	int sock = accept4(a->control->admin_fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);

	(void)events;
	if (sock < 0) {
		if (errno == EMFILE || errno == ENFILE || errno == ENOMEM || errno == ENOBUFS)
			control_pause_accept(a->control, strerror(errno));
		return;
	}
	if (add_connection(a, sock)) {
		(void)send(sock, busy, sizeof(busy) - 1, MSG_DONTWAIT | MSG_NOSIGNAL);
		close(sock);
	}
}
