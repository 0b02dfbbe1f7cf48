/* SPDX-License-Identifier: Apache-2.0 */
/* Metrics over HTTP (http.h). */
#include "http.h"

#include <arpa/inet.h>
#include <errno.h>
#include <jansson.h>
#include <microhttpd.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>

#include "log.h"
#include "metrics.h"

enum { CONNECTIONS = 16, TIMEOUT_S = 5 };

static const char asked[] = "metrics"; /* by its address: letters with it are ours */

/* A request whose answer the leader is preparing. */
struct scrape {
	struct http *http;
	struct MHD_Connection *connection;
	bool waits; /* suspended */
	bool ready;
	char *text; /* NULL: no memory */
	struct scrape *next;
};

struct http {
	struct control *control;
	struct MHD_Daemon *daemon;
	struct loop_source *source, *timer;
	struct scrape *scrapes;
	bool asking; /* one letter is under way: all that wait get its answer */
};

int http_address(const char *text, struct sockaddr_storage *ret)
{
	struct sockaddr_in in4 = {.sin_family = AF_INET};
	struct sockaddr_in6 in6 = {.sin6_family = AF_INET6};
	const char *colon = strrchr(text, ':');
	char host[64];
	char *end;
	long port;

	if (!colon || colon == text || (size_t)(colon - text) >= sizeof(host))
		return -EINVAL;
	port = strtol(colon + 1, &end, 10);
	if (!colon[1] || *end || port < 0 || port > 65535)
		return -EINVAL;
	memcpy(host, text, (size_t)(colon - text));
	host[colon - text] = 0;
	memset(ret, 0, sizeof(*ret));
	if (inet_pton(AF_INET, host, &in4.sin_addr) == 1 && ntohl(in4.sin_addr.s_addr) >> 24 == 127) {
		in4.sin_port = htons((uint16_t)port);
		memcpy(ret, &in4, sizeof(in4));
		return 0;
	}
	if (strcmp(host, "[::1]"))
		return -EINVAL;
	in6.sin6_addr = in6addr_loopback;
	in6.sin6_port = htons((uint16_t)port);
	memcpy(ret, &in6, sizeof(in6));
	return 0;
}

/* ---- In the loop ---- */

static void run(struct http *h)
{
	MHD_UNSIGNED_LONG_LONG ms;

	MHD_run(h->daemon);
	if (MHD_get_timeout(h->daemon, &ms) == MHD_YES)
		loop_set_timer(h->control->loop, h->timer, loop_now(h->control->loop) + (uint64_t)ms * 1000000);
	else
		loop_set_timer(h->control->loop, h->timer, UINT64_MAX);
}

static void on_event(void *arg, uint32_t events)
{
	(void)events;
	run(arg);
}

/* ---- Requests ---- */

static enum MHD_Result refuse(struct MHD_Connection *c, unsigned status, const char *text)
{
	struct MHD_Response *r =
		MHD_create_response_from_buffer(strlen(text), (void *)(uintptr_t)text, MHD_RESPMEM_PERSISTENT);
	enum MHD_Result done = MHD_queue_response(c, status, r);

	MHD_destroy_response(r);
	return done;
}

static enum MHD_Result send_text(struct scrape *s)
{
	struct MHD_Response *r;
	enum MHD_Result done;

	if (!s->text)
		return refuse(s->connection, MHD_HTTP_SERVICE_UNAVAILABLE, "not now\n");
	r = MHD_create_response_from_buffer(strlen(s->text), s->text, MHD_RESPMEM_MUST_FREE);
	if (!r)
		return MHD_NO;
	s->text = NULL;
	MHD_add_response_header(r, MHD_HTTP_HEADER_CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8");
	done = MHD_queue_response(s->connection, MHD_HTTP_OK, r);
	MHD_destroy_response(r);
	return done;
}

static void ask(struct http *h)
{
	const struct mail letter = {.type = MAIL_ADMIN, .command = asked, .cookie = h};

	h->asking |= control_mail(h->control, &letter) == 0;
}

static enum MHD_Result on_request(void *arg, struct MHD_Connection *c, const char *url, const char *method,
				  const char *version, const char *data, size_t *data_size, void **ret_state)
{
	struct http *h = arg;
	struct scrape *s = *ret_state;

	(void)version;
	(void)data;
	if (s && s->ready)
		return send_text(s);
	if (strcmp(method, MHD_HTTP_METHOD_GET) && strcmp(method, MHD_HTTP_METHOD_HEAD))
		return refuse(c, MHD_HTTP_METHOD_NOT_ALLOWED, "for reading only\n");
	if (strcmp(url, "/metrics"))
		return refuse(c, MHD_HTTP_NOT_FOUND, "/metrics is all there is\n");
	*data_size = 0;
	if (!s) {
		s = calloc(1, sizeof(*s));
		if (!s)
			return MHD_NO;
		*s = (struct scrape){.http = h, .connection = c, .next = h->scrapes};
		h->scrapes = s;
		*ret_state = s;
		return MHD_YES; /* called again when the request is complete */
	}
	if (!h->asking)
		ask(h);
	if (!h->asking)
		return refuse(c, MHD_HTTP_SERVICE_UNAVAILABLE, "not now\n");
	s->waits = true;
	MHD_suspend_connection(c);
	return MHD_YES;
}

static void on_end(void *arg, struct MHD_Connection *c, void **state, enum MHD_RequestTerminationCode code)
{
	struct http *h = arg;
	struct scrape *s = *state, **at = &h->scrapes;

	(void)c;
	(void)code;
	if (!s)
		return;
	while (*at != s)
		at = &(*at)->next;
	*at = s->next;
	free(s->text);
	free(s);
	*state = NULL;
}

static void resume_all(struct http *h, const char *text)
{
	for (struct scrape *s = h->scrapes; s; s = s->next) {
		if (!s->waits)
			continue;
		s->waits = false;
		s->ready = true;
		s->text = text ? strdup(text) : NULL;
		MHD_resume_connection(s->connection);
	}
}

bool http_mail(struct http *h, const struct mail *letter)
{
	char *text;

	if (!h || letter->command != asked)
		return false;
	h->asking = false;
	text = letter->metrics ? metrics_text(letter->metrics, h->control) : NULL;
	free(letter->metrics);
	json_decref(letter->reply);
	resume_all(h, text);
	free(text);
	run(h);
	return true;
}

/* ---- Making and ending ---- */

static void on_library_error(void *arg, const char *format, va_list args)
{
	char text[256];

	(void)arg;
	vsnprintf(text, sizeof(text), format, args);
	text[strcspn(text, "\n")] = 0;
	log_warn("metrics-listen: %s", text);
}

static int start(struct http *h)
{
	const union MHD_DaemonInfo *info;
	struct sockaddr_storage at;
	int r;

	if (http_address(h->control->cfg.metrics_listen, &at))
		return -EINVAL;
	errno = 0;
	h->daemon = MHD_start_daemon(MHD_USE_EPOLL | MHD_ALLOW_SUSPEND_RESUME | MHD_USE_ERROR_LOG |
					     (at.ss_family == AF_INET6 ? MHD_USE_IPv6 : 0),
				     0, NULL, NULL, on_request, h, MHD_OPTION_EXTERNAL_LOGGER, on_library_error, NULL,
				     MHD_OPTION_SOCK_ADDR, &at, MHD_OPTION_NOTIFY_COMPLETED, on_end, h,
				     MHD_OPTION_CONNECTION_LIMIT, (unsigned)CONNECTIONS,
				     MHD_OPTION_CONNECTION_TIMEOUT, (unsigned)TIMEOUT_S, MHD_OPTION_END);
	if (!h->daemon)
		return errno ? -errno : -EIO;
	info = MHD_get_daemon_info(h->daemon, MHD_DAEMON_INFO_EPOLL_FD);
	if (!info)
		return -EIO;
	r = loop_add_timer(h->control->loop, on_event, h, &h->timer);
	if (r == 0)
		r = loop_add_fd(h->control->loop, info->epoll_fd, POLLIN, on_event, h, &h->source);
	return r;
}

int http_create(struct control *c, struct http **ret)
{
	struct http *h;
	int r;

	*ret = NULL;
	if (!*c->cfg.metrics_listen)
		return 0;
	h = calloc(1, sizeof(*h));
	if (!h)
		return -ENOMEM;
	h->control = c;
	r = start(h);
	if (r) {
		log_err("metrics-listen %s: %s", c->cfg.metrics_listen, strerror(-r));
		http_destroy(h);
		return r;
	}
	*ret = h;
	return 0;
}

void http_destroy(struct http *h)
{
	if (!h)
		return;
	if (h->daemon) {
		resume_all(h, NULL);
		loop_remove(h->control->loop, h->source);
		loop_remove(h->control->loop, h->timer);
		MHD_stop_daemon(h->daemon);
	}
	free(h);
}
