/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Connecting: what each refusal looks like, bad welcomes, engines, forked children.
 */
#include "fake.h"

#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../../shm/futex.h"

static void refused(const struct attnd_connect_options *o, int error, const char *text)
{
	attnd_t *a = (attnd_t *)1;

	assert_int_equal(attnd_connect(&a, o), error);
	assert_ptr_equal(a, (attnd_t *)1);
	assert_non_null(strstr(attnd_strerror(NULL, error), text));
}

static void no_daemon(void **state)
{
	struct sockaddr_un at = {.sun_family = AF_UNIX, .sun_path = "/tmp/attnd-test-nobody"};
	int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	char longer[200];

	(void)state;
	refused(&(struct attnd_connect_options){.socket = "/nowhere/sock"}, -ENOENT, "/nowhere/sock");
	unlink(at.sun_path);
	assert_int_equal(bind(fd, (struct sockaddr *)&at, sizeof(at)), 0);
	refused(&(struct attnd_connect_options){.socket = at.sun_path}, -ECONNREFUSED, at.sun_path);
	close(fd);
	unlink(at.sun_path);
	refused(&(struct attnd_connect_options){.socket = ""}, -EINVAL, "socket: the path is empty");
	memset(longer, 'x', sizeof(longer));
	longer[sizeof(longer) - 1] = 0;
	refused(&(struct attnd_connect_options){.socket = longer}, -ENAMETOOLONG, "x");
}

static void bad_options(void **state)
{
	struct fake *f = *state;

	refused(&(struct attnd_connect_options){.socket = f->path, .queue_entries = 4}, -EINVAL, "queue_entries");
	refused(&(struct attnd_connect_options){.socket = f->path, .queue_entries = 24}, -EINVAL, "queue_entries");
	refused(&(struct attnd_connect_options){.socket = f->path, .queue_entries = 8192}, -EINVAL, "queue_entries");
	refused(&(struct attnd_connect_options){.socket = f->path, .timeout_us = UINT64_MAX}, -EINVAL, "timeout_us");
	refused(&(struct attnd_connect_options){.socket = f->path, .default_deadline_us = UINT64_MAX}, -EINVAL,
		"deadline_us");
	refused(&(struct attnd_connect_options){.socket = f->path, .owner_pidfd = 9999}, -EBADF, "owner_pidfd");
}

static void says_hello(void **state)
{
	struct fake *f = *state;
	int owner = open("/dev/null", O_RDONLY | O_CLOEXEC);
	attnd_t *a = fake_connect(
		f, &(struct attnd_connect_options){.name = "a name that is far longer than thirty-one bytes",
						   .queue_entries = 32,
						   .owner_pidfd = owner});
	const struct fake_event *e = &f->log[0];

	fake_wait_log(f, 1);
	assert_int_equal(e->hello.magic, ATTND_WIRE_MAGIC);
	assert_int_equal(e->hello.abi_major, ATTND_ABI_MAJOR);
	assert_int_equal(e->hello.flags, ATTND_HELLO_OWNER_PIDFD);
	assert_int_equal(e->fds, 1);
	assert_int_equal(e->hello.sq_entries, 32);
	assert_int_equal(e->hello.cq_entries, 32);
	assert_string_equal(e->hello.name, "a name that is far longer than ");
	assert_int_equal(attnd_daemon_pid(a), getpid());
	assert_string_equal(attnd_socket(a), f->path);
	assert_true(fcntl(owner, F_GETFD) >= 0); /* not consumed */
	close(owner);
	attnd_disconnect(a);
	attnd_disconnect(NULL);
}

static void environment_names_the_socket(void **state)
{
	struct fake *f = *state;
	attnd_t *a;

	setenv("ATTND_SOCKET", f->path, 1);
	assert_int_equal(attnd_connect(&a, NULL), 0);
	assert_string_equal(attnd_socket(a), f->path);
	attnd_disconnect(a);
	unsetenv("ATTND_SOCKET");
	/* A run-time directory without a socket leaves the system's. */
	setenv("XDG_RUNTIME_DIR", f->dir, 1);
	if (attnd_connect(&a, NULL))
		assert_non_null(strstr(attnd_strerror(NULL, -ENOENT), "/run/attnd/attnd.sock"));
	else
		attnd_disconnect(a);
	unsetenv("XDG_RUNTIME_DIR");
}

static void refused_with_a_reason(void **state)
{
	struct fake *f = *state;
	const struct attnd_connect_options o = {.socket = f->path};

	FAKE_HOW(f, text, "too many sessions of uid 7");
	FAKE_HOW(f, status, -EMFILE);
	refused(&o, -EMFILE, "too many sessions of uid 7");
	FAKE_HOW(f, status, -EACCES);
	refused(&o, -EACCES, "Permission denied");
	FAKE_HOW(f, status, 5); /* no errno at all */
	refused(&o, -EPROTO, "");
}

static void other_version(void **state)
{
	struct fake *f = *state;

	FAKE_HOW(f, abi_major, 7);
	refused(&(struct attnd_connect_options){.socket = f->path}, -EPROTO, "ABI 7.1, this library 1.1");
}

/* An older daemon of the same major version is not sent what it does not know. */
static void older_minor(void **state)
{
	struct fake *f = *state;
	struct attnd_wait_info info;
	uint64_t token = 1;
	attnd_t *a;

	FAKE_HOW(f, first_minor, true);
	a = fake_connect(f, NULL);
	assert_int_equal(attnd_seq_wait(a, 1, 0, &token, 1, NULL, &info), -EOPNOTSUPP);
	assert_non_null(strstr(attnd_strerror(a, -EOPNOTSUPP), "1.1"));
	attnd_disconnect(a);
}

static void welcomes_that_are_wrong(void **state)
{
	struct fake *f = *state;
	const struct attnd_connect_options o = {.socket = f->path};

	FAKE_HOW(f, no_fds, true);
	refused(&o, -EPROTO, "descriptors");
	FAKE_HOW(f, no_fds, false);
	FAKE_HOW(f, bad_header, true);
	refused(&o, -EPROTO, "handshake");
	FAKE_HOW(f, bad_header, false);
	FAKE_HOW(f, sq_entries, 48);
	refused(&o, -EPROTO, "handshake");
	FAKE_HOW(f, sq_entries, 16384);
	refused(&o, -EPROTO, "handshake");
}

static void silence_has_an_end(void **state)
{
	struct fake *f = *state;
	uint64_t before = attnd_now_ns();

	FAKE_HOW(f, silent, true);
	refused(&(struct attnd_connect_options){.socket = f->path, .timeout_us = 50000}, -ETIMEDOUT, "timed out");
	assert_in_range(attnd_now_ns() - before, 50000000, 5000000000);
}

/* ---- Engines ---- */

static void engine_is_made_or_joined(void **state)
{
	struct fake *f = *state;
	uint8_t id[16] = {0}, none[16] = {0};
	struct attnd_connect_options o = {.socket = f->path, .engine_id = id};
	attnd_t *a;

	assert_int_equal(attnd_engine_id(id), 0);
	assert_memory_not_equal(id, none, 16);
	refused(&o, -ENOENT, "No such");
	o.engine_create = 1;
	a = fake_connect(f, &o);
	assert_memory_equal(fake_find(f, ATTND_OP_ENGINE, 1).payload, id, 16);
	attnd_disconnect(a);
	refused(&o, -EEXIST, "exists");
}

/* ---- Forks ---- */

static int in_child(attnd_t *a)
{
	struct attnd_result r;
	attnd_job_t job;
	void *p;

	return attnd_ping(a, 0) == -ECHILD && attnd_ping_async(a, 0, &job) == -ECHILD &&
	       attnd_alloc(a, 64, &p) == -ECHILD && attnd_reserve(a, 64) == -ECHILD &&
	       attnd_wait(a, 1, NULL) == -ECHILD && attnd_next(a, &r, 0) == -ECHILD &&
	       attnd_cancel(a, 1) == -ECHILD && attnd_seq_close(a, 1) == -ECHILD && attnd_fd(a) == -ECHILD &&
	       !attnd_in_arena(a, &p, 1);
}

static void forked_child_is_refused(void **state)
{
	struct fake *f = *state;
	attnd_t *a = fake_connect(f, NULL);
	int status;
	void *p;
	pid_t pid;

	assert_int_equal(attnd_alloc(a, 4096, &p), 0);
	memset(p, 1, 4096);
	pid = fork();
	assert_true(pid >= 0);
	if (!pid) {
		attnd_free(a, p);
		if (!in_child(a))
			_exit(1);
		attnd_disconnect(a);
		_exit(0);
	}
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_int_equal(status, 0);
	assert_int_equal(attnd_ping(a, 0), 0); /* nothing of it was the parent's */
	attnd_free(a, p);
	attnd_disconnect(a);
}

/* The arena is not in the child: it cannot write where the daemon reads. */
static void forked_child_has_no_arena(void **state)
{
	struct fake *f = *state;
	attnd_t *a = fake_connect(f, NULL);
	int status, p[2];
	void *memory;
	pid_t pid;

	assert_int_equal(attnd_alloc(a, 4096, &memory), 0);
	pid = fork();
	if (!pid) {
		/* write answers -EFAULT for memory that is not there */
		if (pipe(p) || write(p[1], memory, 1) != -1 || errno != EFAULT)
			_exit(1);
		_exit(0);
	}
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_int_equal(status, 0);
	attnd_disconnect(a);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(no_daemon),
		FAKE_TEST(bad_options),
		FAKE_TEST(says_hello),
		FAKE_TEST(environment_names_the_socket),
		FAKE_TEST(refused_with_a_reason),
		FAKE_TEST(other_version),
		FAKE_TEST(older_minor),
		FAKE_TEST(welcomes_that_are_wrong),
		FAKE_TEST(silence_has_an_end),
		FAKE_TEST(engine_is_made_or_joined),
		FAKE_TEST(forked_child_is_refused),
		FAKE_TEST(forked_child_has_no_arena),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
