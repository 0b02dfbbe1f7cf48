/* SPDX-License-Identifier: Apache-2.0 */
/* Asking a daemon (ctl.h). */
#include "ctl.h"

#include <errno.h>
#include <inttypes.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#define REPLY_MAX (64 * 1024 * 1024)
#define WAIT_S	  15

/* What connect said; a file of another kind refuses as a dead daemon's socket does. */
static int why_not(int error, const char *path)
{
	struct stat st;

	return error == ECONNREFUSED && stat(path, &st) == 0 && !S_ISSOCK(st.st_mode) ? -ENOTSOCK : -error;
}

static int connect_to(const char *path, int wait_s)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	struct timeval wait = {.tv_sec = wait_s};
	int fd, r;

	if (strlen(path) >= sizeof(address.sun_path))
		return -ENAMETOOLONG;
	memcpy(address.sun_path, path, strlen(path));
	fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (fd < 0)
		return -errno;
	setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &wait, sizeof(wait));
	setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &wait, sizeof(wait));
	if (connect(fd, (const struct sockaddr *)&address, sizeof(address))) {
		r = why_not(errno, path);
		close(fd);
		return r;
	}
	return fd;
}

/* The administrators' socket beside `path`, or `path` itself. */
static int connect_beside(const char *path, int wait_s)
{
	char admin[sizeof(((struct sockaddr_un *)0)->sun_path) + 8];
	int fd;

	snprintf(admin, sizeof(admin), "%s.admin", path);
	fd = connect_to(admin, wait_s);
	return fd == -ENOENT || fd == -ENAMETOOLONG ? connect_to(path, wait_s) : fd;
}

/* The first place where there is a socket. ret_path: the last one tried. */
static int connect_anywhere(const struct ctl *c, char *ret_path, size_t size)
{
	const int wait_s = c->wait_s ? c->wait_s : WAIT_S;
	const char *given = c->socket, *env = getenv("ATTND_SOCKET"), *dir = getenv("XDG_RUNTIME_DIR");
	int fd = -ENOENT;

	if (!given && env && *env)
		given = env;
	if (given) {
		snprintf(ret_path, size, "%s", given);
		return connect_beside(given, wait_s);
	}
	if (dir && *dir) {
		snprintf(ret_path, size, "%s/attnd.sock", dir);
		fd = connect_beside(ret_path, wait_s);
	}
	if (fd == -ENOENT) {
		snprintf(ret_path, size, "/run/attnd/attnd.sock");
		fd = connect_beside(ret_path, wait_s);
	}
	return fd;
}

int ctl_complain(int error, const char *path)
{
	switch (error) {
	case -EACCES:
	case -EPERM:
		fprintf(stderr,
			"attnctl: permission denied at %s: the administrators' socket is for root and the daemon's "
			"user\n",
			path);
		return CTL_DENIED;
	case -ENOENT:
	case -ENOTDIR:
		fprintf(stderr, "attnctl: no daemon at %s\n", path);
		return CTL_NO_DAEMON;
	case -ECONNREFUSED:
		fprintf(stderr, "attnctl: no daemon at %s: the socket is what a killed one left\n", path);
		return CTL_NO_DAEMON;
	case -ENOTSOCK:
		fprintf(stderr, "attnctl: no daemon at %s: that is not a socket\n", path);
		return CTL_NO_DAEMON;
	case -ECONNRESET:
	case -EPIPE:
		fprintf(stderr, "attnctl: the daemon at %s has ended\n", path);
		return CTL_NO_DAEMON;
	case -EPROTOTYPE:
		fprintf(stderr, "attnctl: %s is the clients' socket, and there is no %s.admin\n", path, path);
		return CTL_NO_DAEMON;
	case -ENAMETOOLONG:
		fprintf(stderr, "attnctl: %.60s...: a UNIX socket's path has at most %zu bytes\n", path,
			sizeof(((struct sockaddr_un *)0)->sun_path) - 1);
		return CTL_USAGE;
	case -EAGAIN:
		fprintf(stderr, "attnctl: the daemon at %s does not answer\n", path);
		return CTL_ERROR;
	default:
		fprintf(stderr, "attnctl: %s: %s\n", path, strerror(-error));
		return CTL_ERROR;
	}
}

/* All that comes until the end, or NULL with *ret_error. */
static char *receive_all(int fd, size_t *ret_size, int *ret_error)
{
	char *text = NULL, *larger;
	size_t size = 0, room = 0;
	ssize_t n;

	for (;;) {
		if (size == room) {
			room = room ? 2 * room : 65536;
			larger = room <= REPLY_MAX ? realloc(text, room) : NULL;
			if (!larger) {
				*ret_error = -EMSGSIZE;
				break;
			}
			text = larger;
		}
		n = recv(fd, text + size, room - size, 0);
		if (n == 0) {
			*ret_size = size;
			return text;
		}
		if (n < 0 && errno != EINTR) {
			*ret_error = -errno;
			break;
		}
		size += n > 0 ? (size_t)n : 0;
	}
	free(text);
	return NULL;
}

/* True if all went out. */
static bool send_all(int fd, const char *text, size_t n)
{
	while (n) {
		ssize_t k = send(fd, text, n, MSG_NOSIGNAL);

		if (k < 0 && errno == EINTR)
			continue;
		if (k < 0)
			return false;
		text += k;
		n -= (size_t)k;
	}
	return true;
}

static json_t *ask(int fd, const json_t *request, int *ret_error)
{
	char *line = json_dumps(request, JSON_COMPACT), *text;
	size_t size = 0;
	json_t *reply;

	if (!line || !send_all(fd, line, strlen(line)) || !send_all(fd, "\n", 1)) {
		*ret_error = line ? -errno : -ENOMEM;
		free(line);
		return NULL;
	}
	free(line);
	text = receive_all(fd, &size, ret_error);
	if (!text)
		return NULL;
	reply = json_loadb(text, size, 0, NULL);
	free(text);
	if (!json_is_object(reply)) {
		json_decref(reply);
		*ret_error = -EBADMSG;
		return NULL;
	}
	return reply;
}

json_t *ctl_ask_quietly(const struct ctl *c, const json_t *request, int *ret_error, char *ret_path, size_t size)
{
	int fd = connect_anywhere(c, ret_path, size);
	json_t *reply;

	if (fd < 0) {
		*ret_error = fd;
		return NULL;
	}
	reply = ask(fd, request, ret_error);
	close(fd);
	return reply;
}

json_t *ctl_ask(const struct ctl *c, const json_t *request, int *ret_exit)
{
	char path[256];
	int error = 0;
	json_t *reply = ctl_ask_quietly(c, request, &error, path, sizeof(path));

	if (!reply)
		*ret_exit = ctl_complain(error, path);
	return reply;
}

/* ---- Numbers for people ---- */

void ctl_format_bytes(double bytes, char *buf, size_t size)
{
	static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
	int i = 0;

	for (; bytes >= 1024 && i < 4; i++)
		bytes /= 1024;
	snprintf(buf, size, i ? "%.1f %s" : "%.0f %s", bytes, units[i]);
}

void ctl_format_seconds(double seconds, char *buf, size_t size)
{
	uint64_t s = seconds > 0 && seconds < 1e15 ? (uint64_t)seconds : 0;

	if (s < 60)
		snprintf(buf, size, "%.1f s", seconds);
	else if (s < 86400)
		snprintf(buf, size, "%" PRIu64 ":%02" PRIu64 ":%02" PRIu64, s / 3600, s / 60 % 60, s % 60);
	else
		snprintf(buf, size, "%" PRIu64 " d %02" PRIu64 ":%02" PRIu64, s / 86400, s / 3600 % 24, s / 60 % 60);
}
