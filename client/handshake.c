/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The messages over the socket: hello and welcome, a segment and its reply.
 *
 * In:   a path, or a segment's memfd. Out: rings that are checked and mapped; the daemon's answer.
 * Next: conn.c, arena.c.
 */
#include "internal.h"

#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

enum { FD_SESSION, FD_LOOKUP, FD_WAKE, FDS };

/* ---- One packet ---- */

static int wait_readable(int sock, uint64_t until_ns)
{
	for (;;) {
		struct pollfd p = {.fd = sock, .events = POLLIN};
		uint64_t now = attnd_now_ns();
		int n = poll(&p, 1, now < until_ns ? (int)cl_min_u64((until_ns - now) / 1000000 + 1, INT32_MAX) : 0);

		if (n > 0)
			return 0;
		if (n < 0 && errno != EINTR)
			return -errno;
		if (attnd_now_ns() >= until_ns)
			return -ETIMEDOUT;
	}
}

static int send_packet(int sock, void *data, size_t bytes, int fd)
{
	union {
		struct cmsghdr header;
		char room[CMSG_SPACE(sizeof(int))];
	} control = {0};
	struct iovec iov = {.iov_base = data, .iov_len = bytes};
	struct msghdr msg = {.msg_iov = &iov, .msg_iovlen = 1};

	if (fd >= 0) {
		msg.msg_control = &control;
		msg.msg_controllen = sizeof(control);
		control.header = (struct cmsghdr){
			.cmsg_len = CMSG_LEN(sizeof(int)), .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS};
		memcpy(CMSG_DATA(&control.header), &fd, sizeof(int));
	}
	if (sendmsg(sock, &msg, MSG_NOSIGNAL | MSG_DONTWAIT) >= 0)
		return 0;
	return errno == EPIPE ? -ECONNRESET : -errno;
}

/* The descriptors of a message; those beyond FDS do not fit its control buffer and set MSG_CTRUNC. */
static void take_fds(struct msghdr *msg, int fds[FDS])
{
	for (struct cmsghdr *c = CMSG_FIRSTHDR(msg); c; c = CMSG_NXTHDR(msg, c)) {
		if (c->cmsg_level == SOL_SOCKET && c->cmsg_type == SCM_RIGHTS)
			memcpy(fds, CMSG_DATA(c), cl_min_u64(c->cmsg_len - CMSG_LEN(0), sizeof(int) * FDS));
	}
}

static void close_fds(int fds[FDS])
{
	for (int i = 0; i < FDS; i++) {
		if (fds[i] >= 0)
			close(fds[i]);
		fds[i] = -1;
	}
}

/* Bytes received (> 0) and the descriptors that came along (-1: none), or an error. */
static int receive_packet(int sock, void *data, size_t bytes, int fds[FDS], uint64_t until_ns)
{
	union {
		struct cmsghdr header;
		char room[CMSG_SPACE(sizeof(int) * FDS)];
	} control;
	struct iovec iov = {.iov_base = data, .iov_len = bytes};
	struct msghdr msg = {.msg_iov = &iov, .msg_iovlen = 1};
	ssize_t n;
	int rc;

	memset(fds, 0xff, sizeof(int) * FDS);
	do {
		msg.msg_control = &control;
		msg.msg_controllen = sizeof(control);
		rc = wait_readable(sock, until_ns);
		if (rc)
			return rc;
		n = recvmsg(sock, &msg, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
	} while (n < 0 && (errno == EINTR || errno == EAGAIN));
	if (n <= 0)
		return n ? -errno : -ECONNRESET;
	take_fds(&msg, fds);
	if (msg.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) {
		close_fds(fds);
		return -EPROTO;
	}
	return (int)n;
}

/* ---- Hello and welcome ---- */

static int connect_socket(struct attnd *a, uint64_t until_ns)
{
	struct sockaddr_un to = {.sun_family = AF_UNIX};
	struct timespec pause = {.tv_nsec = 1000000};
	int fd;

	if (strlen(a->path) >= sizeof(to.sun_path))
		return -ENAMETOOLONG;
	memcpy(to.sun_path, a->path, strlen(a->path));
	fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (fd < 0)
		return -errno;
	/* A full backlog is -EAGAIN: others connect as well. */
	while (connect(fd, (struct sockaddr *)&to, sizeof(to))) {
		int rc = errno == EAGAIN && attnd_now_ns() >= until_ns ? -ETIMEDOUT : -errno;

		if (rc != -EAGAIN && rc != -EINTR) {
			close(fd);
			return rc;
		}
		nanosleep(&pause, NULL);
	}
	return fd;
}

static int send_hello(const struct attnd *a, int sock)
{
	struct attnd_msg_hello m = {.magic = ATTND_WIRE_MAGIC,
				    .type = ATTND_MSG_HELLO,
				    .abi_major = ATTND_ABI_MAJOR,
				    .abi_minor = ATTND_ABI_MINOR,
				    .flags = a->owner_pidfd >= 0 ? ATTND_HELLO_OWNER_PIDFD : 0,
				    .sq_entries = a->entries,
				    .cq_entries = a->entries};

	memcpy(m.name, a->name, sizeof(m.name));
	return send_packet(sock, &m, sizeof(m), a->owner_pidfd);
}

/* Versions first: another major's message may have another size. */
static int check_welcome(struct attnd *a, struct attnd_msg_welcome *w, size_t bytes, const int fds[FDS])
{
	char text[160];

	if (bytes < offsetof(struct attnd_msg_welcome, status) || w->magic != ATTND_WIRE_MAGIC ||
	    w->type != ATTND_MSG_WELCOME)
		return cl_fail_text(a, -EPROTO, "what listens there is not an attnd daemon");
	if (w->abi_major != ATTND_ABI_MAJOR) {
		snprintf(text, sizeof(text), "the daemon speaks ABI %u.%u, this library %u.%u", w->abi_major,
			 w->abi_minor, ATTND_ABI_MAJOR, ATTND_ABI_MINOR);
		return cl_fail_text(a, -EPROTO, text);
	}
	if (bytes != sizeof(*w))
		return cl_fail_text(a, -EPROTO, "a welcome of another size");
	w->text[sizeof(w->text) - 1] = 0;
	if (w->status)
		return cl_fail_text(a, w->status < 0 ? w->status : -EPROTO, w->text);
	if (fds[FD_SESSION] < 0 || fds[FD_LOOKUP] < 0 || fds[FD_WAKE] < 0)
		return cl_fail_text(a, -EPROTO, "a welcome without its descriptors");
	return 0;
}

static bool is_ring(uint32_t entries)
{
	return entries >= ATTND_MIN_ENTRIES && entries <= ATTND_MAX_ENTRIES && !(entries & (entries - 1));
}

static bool fits(const struct attnd_region *r, uint64_t offset, uint64_t entries, size_t size)
{
	return offset >= sizeof(struct attnd_session_region) && offset % size == 0 && offset <= r->bytes &&
	       entries * size <= r->bytes - offset;
}

/* Read each word of the header once, check it against the message, and build our sides on it. */
static int use_session(struct attnd *a, const struct attnd_msg_welcome *w, struct attnd_region *r)
{
	struct attnd_session_region *s = r->base;
	uint32_t sq_offset = s->sq_offset, cq_offset = s->cq_offset;
	unsigned char *base = r->base;

	if (__atomic_load_n(&s->magic, __ATOMIC_ACQUIRE) != ATTND_WIRE_MAGIC || s->abi_major != ATTND_ABI_MAJOR)
		return -EPROTO;
	if (!is_ring(w->sq_entries) || !is_ring(w->cq_entries) || s->sq_entries != w->sq_entries ||
	    s->cq_entries != w->cq_entries)
		return -EPROTO;
	if (!fits(r, sq_offset, w->sq_entries, sizeof(struct attnd_sqe)) ||
	    !fits(r, cq_offset, w->cq_entries, sizeof(struct attnd_cqe)))
		return -EPROTO;
	if (madvise(r->base, r->bytes, MADV_DONTFORK))
		return -errno;
	attnd_ring_init(&a->sq, base + sq_offset, w->sq_entries, sizeof(struct attnd_sqe));
	attnd_ring_init(&a->cq, base + cq_offset, w->cq_entries, sizeof(struct attnd_cqe));
	a->abi_minor = w->abi_minor;
	a->room = w->sq_entries < w->cq_entries ? w->sq_entries : w->cq_entries;
	a->shared = s;
	return 0;
}

static int watch(const struct attnd *a, int fd)
{
	struct epoll_event ev = {.events = EPOLLIN | EPOLLRDHUP};

	return epoll_ctl(a->poll_fd, EPOLL_CTL_ADD, fd, &ev) ? -errno : 0;
}

static int adopt(struct attnd *a, const struct attnd_msg_welcome *w, int sock, int fds[FDS])
{
	struct attnd_region r;
	int rc;

	if (w->session_bytes < sizeof(struct attnd_session_region) || w->session_bytes > SIZE_MAX)
		return -EPROTO;
	rc = attnd_region_map(fds[FD_SESSION], (size_t)w->session_bytes, 1, &r);
	if (rc)
		return rc;
	fds[FD_SESSION] = -1;
	rc = use_session(a, w, &r);
	if (!rc)
		rc = cl_peek_map(a, fds[FD_LOOKUP], w->lookup_bytes);
	if (!rc)
		fds[FD_LOOKUP] = -1;
	if (!rc)
		rc = watch(a, sock);
	if (!rc)
		rc = watch(a, fds[FD_WAKE]); /* on failure the set forgets sock when it is closed */
	if (rc) {
		a->shared = NULL;
		cl_peek_unmap(a);
		attnd_region_destroy(&r);
		return rc;
	}
	a->session = r;
	a->sock = sock;
	a->wake = fds[FD_WAKE];
	fds[FD_WAKE] = -1;
	a->max_segments = w->max_segments < ATTND_MAX_SEGMENTS ? w->max_segments : ATTND_MAX_SEGMENTS;
	a->max_segment_bytes = w->max_segment_bytes;
	a->daemon_pid = (int)w->daemon_pid;
	a->alive_ns = cl_now_coarse();
	return 0;
}

int cl_dial(struct attnd *a, uint64_t until_ns)
{
	struct attnd_msg_welcome w;
	int fds[FDS] = {-1, -1, -1};
	int sock = connect_socket(a, until_ns);
	int rc;

	if (sock < 0)
		return cl_fail_text(a, sock, a->path);
	*a->error = (struct cl_error){0};
	rc = send_hello(a, sock);
	if (!rc)
		rc = receive_packet(sock, &w, sizeof(w), fds, until_ns);
	if (rc > 0)
		rc = check_welcome(a, &w, (size_t)rc, fds);
	if (!rc)
		rc = adopt(a, &w, sock, fds);
	if (rc) {
		close(sock);
		if (a->error->error != rc)
			cl_fail_text(a, rc, "the handshake failed");
	}
	close_fds(fds);
	return rc;
}

/* ---- Segments ---- */

int cl_segment_add(struct attnd *a, uint32_t index, const struct attnd_region *region)
{
	struct attnd_msg_segment m = {.type = ATTND_MSG_SEGMENT_ADD, .index = index, .bytes = region->bytes};
	struct attnd_msg_reply reply;
	uint64_t until = attnd_now_ns() + a->timeout_ns + region->bytes; /* a nanosecond a byte, to populate it */
	int fds[FDS];
	int rc = send_packet(a->sock, &m, sizeof(m), region->fd);

	if (!rc)
		rc = receive_packet(a->sock, &reply, sizeof(reply), fds, until);
	if (rc > 0)
		close_fds(fds);
	if (rc != (int)sizeof(reply) || reply.type != ATTND_MSG_REPLY) {
		/* Without its answer the conversation is over: a later one would be taken for the next message's. */
		cl_lost(a);
		return cl_fail_text(a, rc == -ETIMEDOUT ? rc : -ECONNRESET, "registering a segment");
	}
	if (!reply.status)
		return 0;
	reply.text[sizeof(reply.text) - 1] = 0;
	cl_fail_text(a, reply.status < 0 ? reply.status : -EPROTO, reply.text);
	a->error->field = reply.field;
	a->error->limit = reply.limit;
	return a->error->error;
}
