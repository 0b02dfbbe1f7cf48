/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The connection: made, noticed to be lost, made again.
 *
 * In:   the caller's options; a socket. Out: mapped rings, or an error with its reason.
 * Next: handshake.c speaks over the socket, ring.c uses the rings; arena.c, objects.c and params.c
 *       bring back what the connection had.
 */
#include "internal.h"

#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <unistd.h>

#define DEFAULT_SOCKET	    "/run/attnd/attnd.sock"
#define DEFAULT_TIMEOUT_US  5000000u
#define DEFAULT_DEADLINE_US 30000000u
#define DEFAULT_ENTRIES	    256u
#define RETRY_NS	    5000000

uint64_t cl_now_coarse(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC_COARSE, &ts);
	return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

/* ---- Options ---- */

static char *default_path(void)
{
	const char *env = secure_getenv("ATTND_SOCKET"), *dir = secure_getenv("XDG_RUNTIME_DIR");
	char *path = NULL;

	if (env && *env)
		return strdup(env);
	if (dir && asprintf(&path, "%s/attnd.sock", dir) < 0)
		return NULL;
	if (path && !access(path, F_OK))
		return path;
	free(path);
	return strdup(DEFAULT_SOCKET);
}

/* Spinning pays only where it takes the CPU from nobody. */
static uint64_t default_spin_ns(void)
{
	cpu_set_t set;
	int n = sched_getaffinity(0, sizeof(set), &set) ? 1 : CPU_COUNT(&set);

	return n > 2 ? 50000 : n == 2 ? 10000 : 0;
}

static int set_limits(struct attnd *a, const struct attnd_connect_options *o)
{
	a->timeout_ns = (o->timeout_us ? o->timeout_us : DEFAULT_TIMEOUT_US) * 1000;
	a->default_deadline_us = o->default_deadline_us ? o->default_deadline_us : DEFAULT_DEADLINE_US;
	a->entries = o->queue_entries ? o->queue_entries : DEFAULT_ENTRIES;
	a->spin_ns = o->spin_us > 0 ? (uint64_t)o->spin_us * 1000 : o->spin_us < 0 ? 0 : default_spin_ns();
	if (o->timeout_us > ATTND_MAX_DEADLINE_US)
		return cl_fail_text(a, -EINVAL, "timeout_us is too long");
	if (a->default_deadline_us > ATTND_MAX_DEADLINE_US)
		return cl_fail(a, -EINVAL, ATTND_FIELD_DEADLINE, ATTND_MAX_DEADLINE_US);
	if (a->entries & (a->entries - 1) || a->entries < ATTND_MIN_ENTRIES || a->entries > ATTND_MAX_ENTRIES)
		return cl_fail_text(a, -EINVAL, "queue_entries is not a power of two from 8 to 4096");
	return 0;
}

static int set_options(struct attnd *a, const struct attnd_connect_options *o, const char *path)
{
	int rc = set_limits(a, o);

	if (rc)
		return rc;
	snprintf(a->name, sizeof(a->name), "%s", o->name ? o->name : program_invocation_short_name);
	if (o->engine_id) {
		memcpy(a->engine_id, o->engine_id, sizeof(a->engine_id));
		a->has_engine = true;
		a->engine_create = o->engine_create != 0;
	}
	if (o->owner_pidfd > 0) {
		a->owner_pidfd = fcntl(o->owner_pidfd, F_DUPFD_CLOEXEC, 3);
		if (a->owner_pidfd < 0)
			return cl_fail_text(a, -errno, "owner_pidfd");
	}
	path = path ? path : o->socket;
	if (path && !*path)
		return cl_fail_text(a, -EINVAL, "socket: the path is empty");
	a->path = path ? strdup(path) : default_path();
	return a->path ? 0 : -ENOMEM;
}

/* ---- Objects of one connection's whole life ---- */

/* A forked child reads 0 there. Kernels and emulators without such pages compare process ids. */
static int make_fork_page(struct attnd *a)
{
	size_t bytes = (size_t)sysconf(_SC_PAGESIZE);
	uint32_t *page = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (page == MAP_FAILED)
		return -ENOMEM;
	if (madvise(page, bytes, MADV_WIPEONFORK))
		a->pid = getpid();
	*page = 1;
	a->same_process = page;
	return 0;
}

static void destroy(struct attnd *a)
{
	if (!a)
		return;
	cl_jobs_destroy(a);
	cl_plans_destroy(a);
	cl_seqs_destroy(a);
	cl_objects_destroy(a);
	cl_peek_destroy(a);
	cl_arena_destroy(a);
	if (a->same_process)
		munmap((void *)(uintptr_t)a->same_process, (size_t)sysconf(_SC_PAGESIZE));
	if (a->poll_fd >= 0)
		close(a->poll_fd);
	if (a->owner_pidfd >= 0)
		close(a->owner_pidfd);
	free(a->path);
	free(a->error);
	free(a);
}

static int create(struct attnd **ret)
{
	struct attnd *a = calloc(1, sizeof(*a));
	int rc = -ENOMEM;

	if (!a)
		return -ENOMEM;
	a->sock = a->wake = a->poll_fd = a->owner_pidfd = -1;
	a->session = a->peek.region = ATTND_REGION_NONE;
	a->jobs.flying = a->jobs.done = (struct cl_list){CL_NONE, CL_NONE};
	a->error = calloc(1, sizeof(*a->error));
	if (a->error)
		rc = make_fork_page(a);
	if (!rc) {
		a->poll_fd = epoll_create1(EPOLL_CLOEXEC);
		rc = a->poll_fd < 0 ? -errno : 0;
	}
	if (rc)
		destroy(a);
	else
		*ret = a;
	return rc;
}

/* ---- Lost and found ---- */

static void close_rings(struct attnd *a)
{
	/* By hand: a forked child's copies would keep them in the set after close. */
	epoll_ctl(a->poll_fd, EPOLL_CTL_DEL, a->sock, NULL);
	epoll_ctl(a->poll_fd, EPOLL_CTL_DEL, a->wake, NULL);
	close(a->sock);
	close(a->wake);
	a->sock = a->wake = -1;
	a->shared = NULL;
	a->armed = false;
	attnd_region_destroy(&a->session);
	cl_peek_unmap(a);
}

void cl_lost(struct attnd *a)
{
	if (a->state == CL_DOWN)
		return;
	a->state = CL_DOWN;
	cl_ring_drain(a);
	close_rings(a);
	cl_jobs_reset(a);
	cl_arena_settle(a);
	cl_plans_destroy(a);
}

/* After "closed" work of this session may still run: only the end of the socket says that it does not. */
bool cl_check_alive(struct attnd *a)
{
	struct pollfd p = {.fd = a->sock, .events = POLLRDHUP};
	bool closed;

	if (a->state == CL_DOWN)
		return false;
	closed = atomic_load_explicit(&a->shared->closed, memory_order_acquire);
	if (poll(&p, 1, closed ? CL_GRACE_NS / 1000000 : 0) <= 0 && !closed) {
		a->alive_ns = cl_now_coarse();
		return true;
	}
	cl_lost(a);
	return false;
}

/* Errors of a daemon that is being started again. */
static bool is_away(int rc)
{
	return rc == -ENOENT || rc == -ECONNREFUSED || rc == -ECONNRESET || rc == -EPIPE || rc == -EMFILE ||
	       rc == -EAGAIN;
}

static bool sleep_before(uint64_t until_ns)
{
	struct timespec ts = {.tv_nsec = RETRY_NS};

	if (attnd_now_ns() + RETRY_NS >= until_ns)
		return false;
	nanosleep(&ts, NULL);
	return true;
}

/* Under the old numbers. An error other than -ECONNRESET is the daemon's last word. */
static int restore(struct attnd *a)
{
	int rc;

	a->state = CL_RESTORING;
	a->epoch++;
	a->planned = false;
	rc = cl_arena_restore(a);
	if (!rc)
		rc = cl_engine_join(a, false);
	if (!rc)
		rc = cl_objects_restore(a);
	if (rc)
		cl_lost(a);
	else
		a->state = CL_UP;
	return rc;
}

int cl_reconnect(struct attnd *a)
{
	uint64_t until = attnd_now_ns() + a->timeout_ns;
	int rc;

	if (a->ended)
		return cl_fail_text(a, -ESHUTDOWN, "attnd_shutdown has ended this connection");
	do {
		rc = cl_dial(a, until);
		if (!rc) {
			rc = restore(a);
			if (rc != -ECONNRESET)
				return rc;
		} else if (!is_away(rc)) {
			return rc;
		}
	} while (sleep_before(until));
	return cl_fail_text(a, -ECONNREFUSED, "no daemon came back within the connect timeout");
}

static int first_dial(struct attnd *a, int (*failed)(void *), void *arg)
{
	uint64_t until = attnd_now_ns() + a->timeout_ns;
	int rc;

	do {
		rc = cl_dial(a, until);
		if (!failed || (rc != -ENOENT && rc != -ECONNREFUSED))
			break;
		rc = failed(arg);
		if (rc)
			return rc;
		rc = cl_fail_text(a, -ETIMEDOUT, "the daemon does not listen yet");
	} while (sleep_before(until));
	if (rc)
		return rc;
	a->state = CL_RESTORING;
	rc = cl_engine_join(a, true);
	if (!rc)
		a->state = CL_UP;
	return rc;
}

int cl_connect(struct attnd **ret, const struct attnd_connect_options *options, const char *socket_path,
	       int (*failed)(void *), void *arg)
{
	const struct attnd_connect_options none = {0};
	struct attnd *a = NULL;
	int rc = create(&a);

	if (rc)
		return rc;
	rc = set_options(a, options ? options : &none, socket_path);
	if (!rc)
		rc = cl_jobs_init(&a->jobs, a->entries);
	if (!rc)
		rc = first_dial(a, failed, arg);
	if (rc) {
		cl_error_keep(a->error);
		attnd_disconnect(a);
		return rc;
	}
	*ret = a;
	return 0;
}

/* ---- The public part ---- */

int attnd_connect(attnd_t **ret, const struct attnd_connect_options *options)
{
	return cl_connect(ret, options, NULL, NULL, NULL);
}

void attnd_disconnect(attnd_t *a)
{
	struct cl_private *p;

	if (!a)
		return;
	p = a->private_daemon;
	if (a->state != CL_DOWN && cl_forked(a)) {
		/* The parent's, all of it: its mappings are not here, its socket and wait set stay as they are. */
		close(a->sock);
		close(a->wake);
		close(a->session.fd);
		close(a->peek.region.fd);
	} else if (a->state != CL_DOWN) {
		close_rings(a);
	}
	destroy(a);
	cl_private_destroy(p);
}

void attnd_shutdown(attnd_t *a)
{
	if (cl_forked(a))
		return;
	cl_lost(a);
	a->ended = true;
	cl_private_destroy(a->private_daemon);
	a->private_daemon = NULL;
}

const char *attnd_socket(const attnd_t *a)
{
	return a->path;
}

int attnd_daemon_pid(const attnd_t *a)
{
	return a->daemon_pid;
}

int attnd_fd(const attnd_t *a)
{
	return cl_forked(a) ? -ECHILD : a->poll_fd;
}
