/* SPDX-License-Identifier: Apache-2.0 */
/*
 * In:   what a test wants sent. Out: the daemon's answer. Next: raw.h's callers.
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "../../shm/futex.h"
#include "raw.h"

#define RAW_WAIT_NS UINT64_C(60000000000)

struct attnd_msg_hello raw_hello(void)
{
	return (struct attnd_msg_hello){
		.magic = ATTND_WIRE_MAGIC,
		.type = ATTND_MSG_HELLO,
		.abi_major = ATTND_ABI_MAJOR,
		.abi_minor = ATTND_ABI_MINOR,
		.sq_entries = 64,
		.cq_entries = 64,
		.name = "raw",
	};
}

static int send_message(int sock, const void *msg, size_t bytes, int fd)
{
	union {
		char bytes[CMSG_SPACE(sizeof(int))];
		struct cmsghdr align;
	} control = {.bytes = {0}};
	struct iovec iov = {.iov_base = (void *)(uintptr_t)msg, .iov_len = bytes};
	struct msghdr mh = {.msg_iov = &iov, .msg_iovlen = 1};

	if (fd >= 0) {
		mh.msg_control = control.bytes;
		mh.msg_controllen = sizeof(control.bytes);
		struct cmsghdr *c = CMSG_FIRSTHDR(&mh);
		c->cmsg_level = SOL_SOCKET;
		c->cmsg_type = SCM_RIGHTS;
		c->cmsg_len = CMSG_LEN(sizeof(int));
		memcpy(CMSG_DATA(c), &fd, sizeof(int));
	}
	return sendmsg(sock, &mh, MSG_NOSIGNAL) < 0 ? -errno : 0;
}

/* A message of exactly this size, with up to n descriptors: how many came, or -errno (-EPIPE: end of the connection).
 */
static int receive_message(int sock, void *ret, size_t bytes, int *ret_fds, size_t n)
{
	union {
		char bytes[CMSG_SPACE(4 * sizeof(int))];
		struct cmsghdr align;
	} control;
	struct iovec iov = {.iov_base = ret, .iov_len = bytes};
	struct msghdr mh = {.msg_iov = &iov,
			    .msg_iovlen = 1,
			    .msg_control = control.bytes,
			    .msg_controllen = CMSG_LEN(n * sizeof(int))};
	struct pollfd p = {.fd = sock, .events = POLLIN};

	if (poll(&p, 1, (int)(RAW_WAIT_NS / 1000000)) == 0)
		return -ETIMEDOUT;
	ssize_t got = recvmsg(sock, &mh, MSG_CMSG_CLOEXEC);
	if (got < 0)
		return errno == ECONNRESET ? -EPIPE : -errno;
	if (got == 0)
		return -EPIPE;
	if ((size_t)got != bytes)
		return -EBADMSG;
	struct cmsghdr *c = n ? CMSG_FIRSTHDR(&mh) : NULL;
	if (!c || c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS)
		return 0;
	size_t count = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
	memcpy(ret_fds, CMSG_DATA(c), count * sizeof(int));
	return (int)count;
}

static int take_welcome(struct raw *r)
{
	int fds[3] = {-1, -1, -1};
	int n = receive_message(r->sock, &r->welcome, sizeof(r->welcome), fds, 3);

	if (n < 0)
		return n;
	if (r->welcome.status < 0)
		return n == 0 ? r->welcome.status : -EBADMSG;
	if (n != 3)
		return -EBADMSG;
	r->wake = fds[2];
	void *p = mmap(NULL, r->welcome.session_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fds[0], 0);
	close(fds[0]);
	close(fds[1]);
	if (p == MAP_FAILED)
		return -errno;
	r->shared = p;
	attnd_ring_init(&r->sq, (unsigned char *)p + r->shared->sq_offset, r->shared->sq_entries,
			sizeof(struct attnd_sqe));
	attnd_ring_init(&r->cq, (unsigned char *)p + r->shared->cq_offset, r->shared->cq_entries,
			sizeof(struct attnd_cqe));
	return 0;
}

int raw_connect_with(struct raw *r, const char *path, const struct attnd_msg_hello *hello, size_t bytes)
{
	struct sockaddr_un addr = {.sun_family = AF_UNIX};

	*r = (struct raw){.sock = -1, .wake = -1};
	if (strlen(path) >= sizeof(addr.sun_path))
		return -ENAMETOOLONG;
	strcpy(addr.sun_path, path);
	r->sock = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	if (r->sock < 0 || connect(r->sock, (struct sockaddr *)&addr, sizeof(addr)) < 0)
		return -errno;
	int e = send_message(r->sock, hello, bytes, -1);
	return e < 0 ? e : take_welcome(r);
}

int raw_connect(struct raw *r, const char *path)
{
	struct attnd_msg_hello hello = raw_hello();

	return raw_connect_with(r, path, &hello, sizeof(hello));
}

void raw_close(struct raw *r)
{
	for (int i = 0; i < ATTND_MAX_SEGMENTS; i++)
		if (r->segment[i])
			munmap(r->segment[i], r->segment_bytes[i]);
	if (r->shared)
		munmap(r->shared, r->welcome.session_bytes);
	if (r->wake >= 0)
		close(r->wake);
	if (r->sock >= 0)
		close(r->sock);
	*r = (struct raw){.sock = -1, .wake = -1};
}

int raw_message(struct raw *r, const void *msg, size_t bytes, int fd, struct attnd_msg_reply *ret)
{
	int e = send_message(r->sock, msg, bytes, fd);

	if (e < 0)
		return e;
	e = receive_message(r->sock, ret, sizeof(*ret), NULL, 0);
	return e < 0 ? e : ret->status;
}

int raw_memfd(size_t bytes, int seals)
{
	int fd = memfd_create("raw", MFD_CLOEXEC | MFD_ALLOW_SEALING);

	if (fd >= 0 && (ftruncate(fd, (off_t)bytes) < 0 || (seals && fcntl(fd, F_ADD_SEALS, seals) < 0))) {
		close(fd);
		return -errno;
	}
	return fd < 0 ? -errno : fd;
}

int raw_segment(struct raw *r, uint32_t index, size_t bytes)
{
	struct attnd_msg_segment msg = {.type = ATTND_MSG_SEGMENT_ADD, .index = index, .bytes = bytes};
	struct attnd_msg_reply reply;
	int fd = raw_memfd(bytes, F_SEAL_SHRINK | F_SEAL_GROW);

	if (fd < 0)
		return fd;
	int e = raw_message(r, &msg, sizeof(msg), fd, &reply);
	if (e == 0) {
		void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
		if (p == MAP_FAILED)
			e = -errno;
		else
			r->segment[index] = p, r->segment_bytes[index] = bytes;
	}
	close(fd);
	return e;
}

void raw_put(struct raw *r, const struct attnd_sqe *sqe)
{
	attnd_ring_put(&r->sq, sqe);
	atomic_thread_fence(memory_order_seq_cst); /* R4 */
	if (atomic_load_explicit(&r->shared->need_wakeup, memory_order_relaxed))
		(void)!send(r->wake, "", 1, MSG_DONTWAIT | MSG_NOSIGNAL);
}

int raw_wait(struct raw *r, struct attnd_cqe *ret)
{
	uint64_t end = attnd_now_ns() + RAW_WAIT_NS;
	const struct timespec pause = {.tv_nsec = 50000};

	/* Polled, so that a test of wake-ups (R5) is the library's business alone. */
	while (!attnd_ring_take(&r->cq, ret)) {
		if (atomic_load_explicit(&r->shared->closed, memory_order_acquire))
			return -ECONNRESET;
		if (attnd_now_ns() > end)
			return -ETIMEDOUT;
		nanosleep(&pause, NULL);
	}
	atomic_store_explicit(&r->shared->cq_head, r->cq.index, memory_order_release);
	return 0;
}

int raw_call(struct raw *r, const struct attnd_sqe *sqe, struct attnd_cqe *ret)
{
	raw_put(r, sqe);
	int e = raw_wait(r, ret);
	return e < 0 ? e : ret->res;
}
