/* SPDX-License-Identifier: Apache-2.0 */
/* The point of injection (fail.h), by the linker's --wrap. */
#include "fail.h"

#include <errno.h>
#include <fcntl.h>
#include <liburing.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

static struct fail_shared *shared;

__attribute__((constructor)) static void open_shared(void)
{
	const char *path = getenv("FAIL_FILE");
	int fd = path ? (int)syscall(SYS_openat, AT_FDCWD, path, O_RDWR | O_CLOEXEC, 0) : -1;
	void *p = MAP_FAILED;

	if (fd >= 0)
		p = (void *)syscall(SYS_mmap, NULL, sizeof(*shared), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (fd >= 0)
		close(fd);
	if (p != MAP_FAILED)
		shared = p;
}

static bool fails(const char *name)
{
	uint64_t n;

	if (!shared)
		return false;
	n = atomic_fetch_add_explicit(&shared->count, 1, memory_order_relaxed) + 1;
	if (n != atomic_load_explicit(&shared->nth, memory_order_relaxed))
		return false;
	snprintf(shared->name, sizeof(shared->name), "%s", name);
	atomic_store_explicit(&shared->failed, 1, memory_order_release);
	return true;
}

#define WRAP(type, name, bad, error, parameters, arguments) \
	type __real_##name parameters;                      \
	type __wrap_##name parameters;                      \
	type __wrap_##name parameters                       \
	{                                                   \
		if (!fails(#name))                          \
			return __real_##name arguments;     \
		errno = error;                              \
		return bad;                                 \
	}

WRAP(void *, malloc, NULL, ENOMEM, (size_t n), (n))
WRAP(void *, calloc, NULL, ENOMEM, (size_t n, size_t m), (n, m))
WRAP(void *, realloc, NULL, ENOMEM, (void *p, size_t n), (p, n))
WRAP(void *, aligned_alloc, NULL, ENOMEM, (size_t a, size_t n), (a, n))
WRAP(int, posix_memalign, ENOMEM, ENOMEM, (void **p, size_t a, size_t n), (p, a, n))
WRAP(char *, strdup, NULL, ENOMEM, (const char *s), (s))
WRAP(char *, strndup, NULL, ENOMEM, (const char *s, size_t n), (s, n))
WRAP(FILE *, fopen, NULL, EMFILE, (const char *p, const char *m), (p, m))
WRAP(void *, mmap, MAP_FAILED, ENOMEM, (void *a, size_t n, int p, int f, int fd, off_t o), (a, n, p, f, fd, o))
WRAP(int, madvise, -1, EAGAIN, (void *a, size_t n, int advice), (a, n, advice))
WRAP(int, fallocate, -1, ENOSPC, (int fd, int m, off_t o, off_t n), (fd, m, o, n))
WRAP(int, ftruncate, -1, EIO, (int fd, off_t n), (fd, n))
WRAP(int, memfd_create, -1, EMFILE, (const char *n, unsigned f), (n, f))
WRAP(int, socket, -1, EMFILE, (int d, int t, int p), (d, t, p))
WRAP(int, socketpair, -1, EMFILE, (int d, int t, int p, int fds[2]), (d, t, p, fds))
WRAP(int, bind, -1, EADDRINUSE, (int fd, const struct sockaddr *a, socklen_t n), (fd, a, n))
WRAP(int, listen, -1, EADDRINUSE, (int fd, int n), (fd, n))
WRAP(int, accept4, -1, EMFILE, (int fd, struct sockaddr *a, socklen_t *n, int f), (fd, a, n, f))
WRAP(int, getsockopt, -1, EINVAL, (int fd, int l, int o, void *v, socklen_t *n), (fd, l, o, v, n))
WRAP(ssize_t, recvmsg, -1, ENOMEM, (int fd, struct msghdr *m, int f), (fd, m, f))
WRAP(ssize_t, sendmsg, -1, ENOBUFS, (int fd, const struct msghdr *m, int f), (fd, m, f))
WRAP(ssize_t, send, -1, ENOBUFS, (int fd, const void *p, size_t n, int f), (fd, p, n, f))
WRAP(ssize_t, recv, -1, ENOMEM, (int fd, void *p, size_t n, int f), (fd, p, n, f))
WRAP(int, eventfd, -1, EMFILE, (unsigned n, int f), (n, f))
WRAP(int, epoll_create1, -1, EMFILE, (int f), (f))
WRAP(int, epoll_ctl, -1, ENOSPC, (int e, int op, int fd, struct epoll_event *v), (e, op, fd, v))
WRAP(int, signalfd, -1, EMFILE, (int fd, const sigset_t *s, int f), (fd, s, f))
WRAP(int, pidfd_open, -1, EMFILE, (pid_t pid, unsigned f), (pid, f))
WRAP(int, chmod, -1, EPERM, (const char *p, mode_t m), (p, m))
WRAP(int, fstat, -1, EIO, (int fd, struct stat *s), (fd, s))
WRAP(ssize_t, getrandom, -1, EINTR, (void *p, size_t n, unsigned f), (p, n, f))
WRAP(int, pthread_create, EAGAIN, EAGAIN, (pthread_t * t, const pthread_attr_t *a, void *(*f)(void *), void *p),
     (t, a, f, p))
WRAP(int, io_uring_queue_init_params, -ENOMEM, ENOMEM, (unsigned n, struct io_uring *r, struct io_uring_params *p),
     (n, r, p))

/* With an argument more or less. */
int __real_open(const char *path, int flags, ...);
int __wrap_open(const char *path, int flags, ...);
int __wrap_open(const char *path, int flags, ...)
{
	va_list args;
	mode_t mode;

	va_start(args, flags);
	mode = flags & O_CREAT ? va_arg(args, mode_t) : 0;
	va_end(args);
	if (!fails("open"))
		return __real_open(path, flags, mode);
	errno = EMFILE;
	return -1;
}

int __real_fcntl(int fd, int command, ...);
int __wrap_fcntl(int fd, int command, ...);
int __wrap_fcntl(int fd, int command, ...)
{
	va_list args;
	long value;

	va_start(args, command);
	value = va_arg(args, long); /* or nothing, which nobody looks at */
	va_end(args);
	if (!fails("fcntl"))
		return __real_fcntl(fd, command, value);
	errno = EINVAL;
	return -1;
}
