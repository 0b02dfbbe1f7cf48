/* SPDX-License-Identifier: Apache-2.0 */
/*
 * In:   HELLO. Out: a session region, a wake socket, WELCOME. Next: clients.c.
 */
#include "handshake.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

int refuse(struct refusal *r, int status, const char *format, ...)
{
	va_list args;

	r->status = status;
	va_start(args, format);
	vsnprintf(r->text, sizeof(r->text), format, args);
	va_end(args);
	return status;
}

/* ---- Receiving ---- */

int message_receive(int sock, struct message *ret)
{
	struct message m = {.fd = -1};
	union {
		struct cmsghdr header;
		char space[CMSG_SPACE(sizeof(int))];
	} control;
	struct iovec iov = {&m.hello, sizeof(m.hello)};
	/*
	 * Room for one descriptor, not for the two that CMSG_SPACE's padding would take: the kernel
	 * drops the others itself, without the close() that a client's file system could block.
	 */
	struct msghdr msg = {.msg_iov = &iov,
			     .msg_iovlen = 1,
			     .msg_control = control.space,
			     .msg_controllen = CMSG_LEN(sizeof(int))};
	ssize_t n = recvmsg(sock, &msg, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
	const struct cmsghdr *c;

	if (n < 0)
		return -errno;
	c = CMSG_FIRSTHDR(&msg);
	if (c && c->cmsg_level == SOL_SOCKET && c->cmsg_type == SCM_RIGHTS && c->cmsg_len == CMSG_LEN(sizeof(int)))
		memcpy(&m.fd, CMSG_DATA(c), sizeof(int));
	m.bytes = (size_t)n;
	m.fds_lost = msg.msg_flags & MSG_CTRUNC;
	if (n == 0 && m.fd < 0)
		return -ECONNRESET;
	if (msg.msg_flags & MSG_TRUNC)
		m.bytes = SIZE_MAX; /* no message has this size */
	*ret = m;
	return 0;
}

/* ---- HELLO ---- */

static bool ring_size_ok(uint32_t n)
{
	return n >= ATTND_MIN_ENTRIES && n <= ATTND_MAX_ENTRIES && (n & (n - 1)) == 0;
}

int handshake_check(const struct message *m, struct refusal *refusal)
{
	const struct attnd_msg_hello *h = &m->hello;

	/* Up to its version a HELLO of any ABI looks the same. */
	if (m->bytes < offsetof(struct attnd_msg_hello, flags) || h->magic != ATTND_WIRE_MAGIC ||
	    h->type != ATTND_MSG_HELLO)
		return refuse(refusal, -EPROTO, "the first message is not attnd's HELLO");
	if (h->abi_major != ATTND_ABI_MAJOR)
		return refuse(refusal, -EPROTO, "the daemon speaks ABI %d.%d, the client %u.%u: update the older one",
			      ATTND_ABI_MAJOR, ATTND_ABI_MINOR, h->abi_major, h->abi_minor);
	if (m->bytes != sizeof(*h))
		return refuse(refusal, -EPROTO, "HELLO has another size than %zu", sizeof(*h));
	if (h->flags & ~(uint32_t)ATTND_HELLO_FLAGS)
		return refuse(refusal, -EINVAL, "HELLO has unknown flags (%#x)", h->flags);
	if (h->reserved)
		return refuse(refusal, -EINVAL, "HELLO's reserved field is not 0");
	if (!ring_size_ok(h->sq_entries) || !ring_size_ok(h->cq_entries))
		return refuse(refusal, -EINVAL, "ring entries (%u, %u) must be powers of two within %d and %d",
			      h->sq_entries, h->cq_entries, ATTND_MIN_ENTRIES, ATTND_MAX_ENTRIES);
	return 0;
}

/* Shown in logs and tables: printable only. */
static void copy_name(char dst[32], const char src[32])
{
	size_t i;

	for (i = 0; i < 31 && src[i]; i++)
		dst[i] = src[i] > ' ' && src[i] <= '~' ? src[i] : '?';
	dst[i] = '\0';
}

static void fill_header(struct attnd_session_region *r, const struct attnd_msg_hello *hello)
{
	r->abi_major = ATTND_ABI_MAJOR;
	r->abi_minor = ATTND_ABI_MINOR;
	r->sq_entries = hello->sq_entries;
	r->cq_entries = hello->cq_entries;
	r->sq_offset = sizeof(*r);
	r->cq_offset = r->sq_offset + hello->sq_entries * (uint32_t)sizeof(struct attnd_sqe);
	/* Pairs with the client's acquire load: what it finds behind the magic is complete. */
	atomic_store_explicit((_Atomic uint64_t *)&r->magic, ATTND_WIRE_MAGIC, memory_order_release);
}

int handshake_open(struct session *s, const struct attnd_msg_hello *hello, int *ret_wake)
{
	size_t bytes = sizeof(struct attnd_session_region) + hello->sq_entries * sizeof(struct attnd_sqe) +
		       hello->cq_entries * sizeof(struct attnd_cqe);
	int wake[2], r;

	/* A socketpair's ends have file descriptions of their own: ours does not wait, whatever theirs does. */
	if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, wake))
		return -errno;
	r = attnd_region_create("attnd-session", bytes, 0, ATTND_REGION_SEAL | ATTND_REGION_POPULATE, &s->region);
	if (r) {
		close(wake[0]);
		close(wake[1]);
		return r;
	}
	copy_name(s->name, hello->name);
	s->shared = s->region.base;
	s->max_segments = ATTND_MAX_SEGMENTS;
	s->wake_fd = wake[0];
	fill_header(s->shared, hello);
	*ret_wake = wake[1];
	return 0;
}

void handshake_close(struct session *s)
{
	attnd_region_destroy(&s->region);
	s->shared = NULL;
	if (s->wake_fd >= 0)
		close(s->wake_fd);
	s->wake_fd = -1;
}

/* ---- WELCOME ---- */

static int send_welcome(int sock, struct attnd_msg_welcome *w, const int *fds, size_t num_fds)
{
	union {
		struct cmsghdr header;
		char space[CMSG_SPACE(3 * sizeof(int))];
	} control = {.space = {0}};
	struct iovec iov = {w, sizeof(*w)};
	struct msghdr msg = {.msg_iov = &iov, .msg_iovlen = 1};

	w->magic = ATTND_WIRE_MAGIC;
	w->type = ATTND_MSG_WELCOME;
	w->abi_major = ATTND_ABI_MAJOR;
	w->abi_minor = ATTND_ABI_MINOR;
	w->daemon_pid = (uint32_t)getpid();
	if (num_fds) {
		control.header = (struct cmsghdr){.cmsg_len = CMSG_LEN(num_fds * sizeof(int)),
						  .cmsg_level = SOL_SOCKET,
						  .cmsg_type = SCM_RIGHTS};
		memcpy(CMSG_DATA(&control.header), fds, num_fds * sizeof(int));
		msg.msg_control = control.space;
		msg.msg_controllen = CMSG_SPACE(num_fds * sizeof(int));
	}
	return sendmsg(sock, &msg, MSG_DONTWAIT | MSG_NOSIGNAL) < 0 ? -errno : 0;
}

int handshake_welcome(const struct session *s, const struct welcome *w)
{
	const int fds[] = {s->region.fd, w->lookup_fd, w->wake_fd};
	struct attnd_msg_welcome msg = {.session = s->id,
					.sq_entries = w->sq_entries,
					.cq_entries = w->cq_entries,
					.max_segments = s->max_segments,
					.max_segment_bytes = w->max_segment_bytes,
					.session_bytes = s->region.bytes,
					.lookup_bytes = w->lookup_bytes,
					.instance = w->instance};

	return send_welcome(s->ctl.sock, &msg, fds, 3);
}

void handshake_refuse(int sock, const struct refusal *refusal)
{
	struct attnd_msg_welcome msg = {.status = refusal->status};

	snprintf(msg.text, sizeof(msg.text), "%s", refusal->text);
	(void)send_welcome(sock, &msg, NULL, 0);
}
