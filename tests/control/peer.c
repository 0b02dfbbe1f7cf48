/* SPDX-License-Identifier: Apache-2.0 */
/*
 * In: messages. Out: messages. Next: peer.h's callers.
 */
#include "peer.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

enum { MAX_FDS = 4 };

int peer_connect(const char *path, int type)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	int fd = socket(AF_UNIX, type | SOCK_CLOEXEC, 0), r;

	strncpy(address.sun_path, path, sizeof(address.sun_path) - 1);
	if (fd < 0 || connect(fd, (struct sockaddr *)&address, sizeof(address)) == 0)
		return fd;
	r = -errno;
	close(fd);
	return r;
}

struct attnd_msg_hello peer_hello_message(void)
{
	return (struct attnd_msg_hello){.magic = ATTND_WIRE_MAGIC,
					.type = ATTND_MSG_HELLO,
					.abi_major = ATTND_ABI_MAJOR,
					.abi_minor = ATTND_ABI_MINOR,
					.sq_entries = 16,
					.cq_entries = 32,
					.name = "peer"};
}

int peer_send(int sock, const void *msg, size_t bytes, const int *fds, size_t num_fds)
{
	union {
		struct cmsghdr header;
		char space[CMSG_SPACE(MAX_FDS * sizeof(int))];
	} control = {.space = {0}};
	struct iovec iov = {(void *)(uintptr_t)msg, bytes};
	struct msghdr m = {.msg_iov = &iov, .msg_iovlen = 1};

	if (num_fds) {
		control.header = (struct cmsghdr){.cmsg_len = CMSG_LEN(num_fds * sizeof(int)),
						  .cmsg_level = SOL_SOCKET,
						  .cmsg_type = SCM_RIGHTS};
		memcpy(CMSG_DATA(&control.header), fds, num_fds * sizeof(int));
		m.msg_control = control.space;
		m.msg_controllen = CMSG_SPACE(num_fds * sizeof(int));
	}
	return sendmsg(sock, &m, MSG_NOSIGNAL) < 0 ? -errno : 0;
}

long peer_receive(int sock, void *buf, size_t bytes, int ret_fds[4], size_t *ret_num_fds)
{
	union {
		struct cmsghdr header;
		char space[CMSG_SPACE(MAX_FDS * sizeof(int))];
	} control;
	struct iovec iov = {buf, bytes};
	struct msghdr m = {.msg_iov = &iov,
			   .msg_iovlen = 1,
			   .msg_control = control.space,
			   .msg_controllen = sizeof(control.space)};
	ssize_t n = recvmsg(sock, &m, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
	const struct cmsghdr *c;

	*ret_num_fds = 0;
	if (n < 0)
		return -errno;
	c = CMSG_FIRSTHDR(&m);
	if (c && c->cmsg_type == SCM_RIGHTS) {
		*ret_num_fds = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
		memcpy(ret_fds, CMSG_DATA(c), *ret_num_fds * sizeof(int));
	}
	return n;
}

void peer_close_fds(const int *fds, size_t num_fds)
{
	for (size_t i = 0; i < num_fds; i++)
		close(fds[i]);
}

int peer_memfd(size_t bytes, int seals, unsigned int flags)
{
	int fd = memfd_create("peer", MFD_CLOEXEC | MFD_ALLOW_SEALING | flags);

	if (fd >= 0 && (ftruncate(fd, (off_t)bytes) || (seals && fcntl(fd, F_ADD_SEALS, seals)))) {
		close(fd);
		return -1;
	}
	return fd;
}

int peer_count_fds(void)
{
	DIR *dir = opendir("/proc/self/fd");
	int n = 0;

	while (readdir(dir))
		n++;
	closedir(dir);
	return n - 3; /* ".", ".." and its own */
}
