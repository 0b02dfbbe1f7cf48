/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The control thread in this process: its loop is stepped by the test, its clock is the test's,
 * its leader is the stub. Nothing here sleeps.
 *
 * In: messages right and wrong, ends of all kinds. Out: TAP. Next: daemon/control.c and below.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <linux/memfd.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/pidfd.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../../daemon/clients.h"
#include "../../daemon/control.h"
#include "../../daemon/log.h"
#include "../../shm/futex.h"
#include "peer.h"
#include "stub_leader.h"

enum { PAGE = 4096, SEALS = F_SEAL_SHRINK | F_SEAL_GROW };

static uint64_t clock_ns = 1000000000;

static uint64_t test_clock(void)
{
	return clock_ns;
}

struct fixture {
	struct config cfg;
	struct listener listener;
	struct control *control;
	struct leader *leader;
	char dir[40], socket[60];
	int fds; /* open when it stood */
};

/* ---- The fixture ---- */

static void start(struct fixture *f, const char *event_loop, const char *stub, const char *flag)
{
	char loop[32], socket[80], err[512] = "";
	char *argv[] = {(char[]){"attnd"},
			(char[]){"--config=/dev/null"},
			(char[]){"--max-sessions=6"},
			(char[]){"--max-sessions-per-uid=4"},
			(char[]){"--arena-max=8M"},
			(char[]){"--max-segment-mb=4"},
			socket,
			loop,
			(char *)(uintptr_t)flag,
			NULL};

	strcpy(f->dir, "/tmp/attnd-test-XXXXXX");
	assert_non_null(mkdtemp(f->dir));
	snprintf(f->socket, sizeof(f->socket), "%s/s", f->dir);
	snprintf(socket, sizeof(socket), "--socket=%s", f->socket);
	snprintf(loop, sizeof(loop), "--event-loop=%s", event_loop);
	setenv("STUB_LEADER", stub, 1);
	if (config_load(&f->cfg, argv, (char *[]){NULL}, err, sizeof(err)))
		fail_msg("%s", err);
	assert_int_equal(listener_claim(&f->cfg, &f->listener), 0);
	assert_int_equal(control_create(&f->cfg, NULL, 4711, test_clock, &f->control), 0);
	assert_int_equal(leader_start(&f->cfg, 4711, control_mailbox(f->control), &f->leader), 0);
	assert_int_equal(listener_open(&f->listener), 0);
	assert_int_equal(control_start(f->control, f->leader, &f->listener), 0);
	f->fds = peer_count_fds();
}

static int start_default(void **state)
{
	static struct fixture f;
	const char *loop = *state;

	start(&f, loop, "pumped", NULL);
	*state = &f;
	return 0;
}

static int start_refusing(void **state)
{
	static struct fixture f;

	start(&f, "auto", "pumped refuse", NULL);
	*state = &f;
	return 0;
}

static int start_exclusive(void **state)
{
	static struct fixture f;

	start(&f, "auto", "pumped", getuid() == 0 ? "--allow-users=1" : "--allow-users=0");
	*state = &f;
	return 0;
}

static int stop(void **state)
{
	struct fixture *f = *state;

	leader_destroy(f->leader);
	control_destroy(f->control);
	listener_close(&f->listener, true);
	config_free(&f->cfg);
	assert_int_equal(access(f->dir, F_OK), -1);
	return 0;
}

/* Everything that can happen without anybody else. */
static void step(struct fixture *f, uint64_t ns)
{
	assert_int_equal(loop_run_once(f->control->loop, ns), 0);
	if (f->leader)
		stub_step(f->leader);
}

/* Helper threads and other processes wake the loop; a condition that never comes fails. */
#define PUMP_UNTIL(f, condition)                                   \
	do {                                                       \
		int tries_ = 0;                                    \
		while (!(condition)) {                             \
			if (++tries_ > 2000)                       \
				fail_msg("never: %s", #condition); \
			step(f, 10000000);                         \
		}                                                  \
	} while (0)

static void settle(struct fixture *f)
{
	for (int i = 0; i < 8; i++)
		step(f, 0);
}

/* ---- A client ---- */

struct test_client {
	int sock, num_fds, fds[4];
	struct attnd_msg_welcome welcome;
	struct attnd_msg_reply reply;
	struct attnd_session_region *shared;
};

static bool received(int sock, void *buf, size_t bytes, int fds[4], size_t *n, long *ret)
{
	*ret = peer_receive(sock, buf, bytes, fds, n);
	return *ret != -EAGAIN;
}

/* The end of the connection, whichever way it reads. */
static bool at_end(int sock)
{
	char buf[512];
	int fds[4];
	size_t n;
	long r = peer_receive(sock, buf, sizeof(buf), fds, &n);

	peer_close_fds(fds, n);
	return r == 0 || r == -ECONNRESET;
}

static int greet(struct fixture *f, struct test_client *t, const void *hello, size_t bytes, const int *fds, size_t n)
{
	size_t got_fds;
	long r;

	*t = (struct test_client){.sock = peer_connect(f->socket, SOCK_SEQPACKET)};
	assert_true(t->sock >= 0);
	assert_int_equal(peer_send(t->sock, hello, bytes, fds, n), 0);
	PUMP_UNTIL(f, received(t->sock, &t->welcome, sizeof(t->welcome), t->fds, &got_fds, &r));
	assert_int_equal(r, sizeof(t->welcome));
	assert_int_equal(t->welcome.magic, ATTND_WIRE_MAGIC);
	assert_int_equal(t->welcome.type, ATTND_MSG_WELCOME);
	t->num_fds = (int)got_fds;
	assert_int_equal(got_fds, t->welcome.status ? 0 : 3);
	return t->welcome.status;
}

static int join(struct fixture *f, struct test_client *t)
{
	struct attnd_msg_hello hello = peer_hello_message();
	int r = greet(f, t, &hello, sizeof(hello), NULL, 0);

	if (r == 0) {
		t->shared = mmap(NULL, t->welcome.session_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, t->fds[0], 0);
		assert_ptr_not_equal(t->shared, MAP_FAILED);
	}
	return r;
}

static void leave(struct test_client *t)
{
	if (t->shared)
		munmap(t->shared, t->welcome.session_bytes);
	peer_close_fds(t->fds, (size_t)t->num_fds);
	close(t->sock);
}

/* Nothing is left of any client: no object, no memory account, no descriptor. */
static void assert_empty(struct fixture *f)
{
	PUMP_UNTIL(f, !f->control->clients);
	settle(f);
	assert_int_equal(f->control->num_sessions, 0);
	assert_int_equal(f->control->arena_bytes, 0);
	assert_int_equal(stub_counts(f->leader).added, stub_counts(f->leader).ended);
	assert_int_equal(peer_count_fds(), f->fds);
}

static int message(struct fixture *f, struct test_client *t, uint32_t type, uint32_t index, uint64_t bytes,
		   const int *fds, size_t n)
{
	struct attnd_msg_segment m = {.type = type, .index = index, .bytes = bytes};
	size_t got_fds;
	long r;
	int none[4];

	assert_int_equal(peer_send(t->sock, &m, sizeof(m), fds, n), 0);
	PUMP_UNTIL(f, received(t->sock, &t->reply, sizeof(t->reply), none, &got_fds, &r));
	assert_int_equal(r, sizeof(t->reply));
	assert_int_equal(t->reply.type, ATTND_MSG_REPLY);
	if (t->reply.status)
		assert_int_not_equal(strlen(t->reply.text), 0);
	return t->reply.status;
}

/* ADD with this descriptor, which is closed here. */
static int add(struct fixture *f, struct test_client *t, uint32_t index, uint64_t bytes, int fd)
{
	int r;

	assert_true(fd >= 0);
	r = message(f, t, ATTND_MSG_SEGMENT_ADD, index, bytes, &fd, 1);
	close(fd);
	return r;
}

static int add_good(struct fixture *f, struct test_client *t, uint32_t index, uint64_t bytes)
{
	return add(f, t, index, bytes, peer_memfd(bytes, SEALS, 0));
}

static int del(struct fixture *f, struct test_client *t, uint32_t index)
{
	return message(f, t, ATTND_MSG_SEGMENT_DEL, index, 0, NULL, 0);
}

/* ---- HELLO ---- */

static void test_welcome(void **state)
{
	struct fixture *f = *state;
	struct test_client t;
	const struct attnd_session_region *s;

	assert_int_equal(join(f, &t), 0);
	s = t.shared;
	assert_int_equal(t.welcome.session, 1);
	assert_int_equal(t.welcome.daemon_pid, getpid());
	assert_int_equal(t.welcome.instance, 4711);
	assert_int_equal(t.welcome.sq_entries, 16);
	assert_int_equal(t.welcome.cq_entries, 32);
	assert_int_equal(t.welcome.max_segments, ATTND_MAX_SEGMENTS);
	assert_int_equal(t.welcome.max_segment_bytes, 4 << 20);
	assert_int_equal(t.welcome.lookup_bytes, 4096);
	assert_int_equal(s->magic, ATTND_WIRE_MAGIC);
	assert_int_equal(s->sq_entries, 16);
	assert_int_equal(s->cq_entries, 32);
	assert_true(s->sq_offset >= sizeof(*s));
	assert_true(s->cq_offset >= s->sq_offset + 16 * sizeof(struct attnd_sqe));
	assert_true(t.welcome.session_bytes >= s->cq_offset + 32 * sizeof(struct attnd_cqe));
	assert_int_equal(fcntl(t.fds[0], F_GET_SEALS) & SEALS, SEALS);
	settle(f);
	assert_non_null(stub_last(f->leader));
	assert_string_equal(stub_last(f->leader)->name, "peer");
	assert_int_equal(stub_last(f->leader)->pid, getpid());
	assert_int_equal(stub_last(f->leader)->uid, getuid());
	assert_false(stub_last(f->leader)->overflow_uid);
	leave(&t);
	assert_empty(f);
}

static void assert_refused(struct fixture *f, const struct attnd_msg_hello *hello, size_t bytes, int status,
			   const char *word)
{
	struct test_client t;

	assert_int_equal(greet(f, &t, hello, bytes, NULL, 0), status);
	if (!strstr(t.welcome.text, word))
		fail_msg("no \"%s\" in: %s", word, t.welcome.text);
	PUMP_UNTIL(f, at_end(t.sock));
	leave(&t);
	assert_empty(f);
}

static void test_bad_hello(void **state)
{
	struct fixture *f = *state;
	struct attnd_msg_hello hello;

#define REFUSED(change, status, word)                                   \
	do {                                                            \
		hello = peer_hello_message();                           \
		change;                                                 \
		assert_refused(f, &hello, sizeof(hello), status, word); \
	} while (0)
	REFUSED(hello.magic++, -EPROTO, "HELLO");
	REFUSED(hello.type = ATTND_MSG_SEGMENT_ADD, -EPROTO, "HELLO");
	REFUSED(hello.flags = 2, -EINVAL, "flags");
	REFUSED(hello.flags = UINT32_MAX, -EINVAL, "flags");
	REFUSED(hello.flags = ATTND_HELLO_OWNER_PIDFD, -EINVAL, "pidfd");
	REFUSED(hello.reserved = 1, -EINVAL, "reserved");
	REFUSED(hello.sq_entries = 0, -EINVAL, "entries");
	REFUSED(hello.sq_entries = 4, -EINVAL, "entries");
	REFUSED(hello.sq_entries = 24, -EINVAL, "entries");
	REFUSED(hello.sq_entries = 8192, -EINVAL, "entries");
	REFUSED(hello.cq_entries = 0, -EINVAL, "entries");
	REFUSED(hello.cq_entries = UINT32_C(1) << 31, -EINVAL, "entries");
	REFUSED(hello.abi_major = 77, -EPROTO, "77.1");
	REFUSED(hello.abi_major = 77, -EPROTO, "1.1");
	REFUSED(hello.abi_major = 0, -EPROTO, "0.1");
	hello = peer_hello_message();
	assert_refused(f, &hello, sizeof(hello) - 1, -EPROTO, "size");
	assert_refused(f, &hello, 1, -EPROTO, "HELLO");
	hello.abi_major = 2; /* another major may have another size */
	assert_refused(f, &hello, 20, -EPROTO, "2.1");
}

static void test_long_hello(void **state)
{
	struct fixture *f = *state;
	char hello[4096] = "";

	memcpy(hello, &(struct attnd_msg_hello){.magic = ATTND_WIRE_MAGIC, .type = ATTND_MSG_HELLO, .abi_major = 1},
	       sizeof(struct attnd_msg_hello));
	assert_refused(f, (struct attnd_msg_hello *)(void *)hello, sizeof(hello), -EPROTO, "size");
}

static void test_name_is_printable(void **state)
{
	struct fixture *f = *state;
	struct attnd_msg_hello hello = peer_hello_message();
	struct test_client t;

	memcpy(hello.name, "a b\n\x1b[31m\xff", 11);
	memset(hello.name + 11, 'x', sizeof(hello.name) - 11);
	assert_int_equal(greet(f, &t, &hello, sizeof(hello), NULL, 0), 0);
	settle(f);
	assert_string_equal(stub_last(f->leader)->name, "a?b??[31m?");
	leave(&t);
	assert_empty(f);
}

static void test_silent(void **state)
{
	struct fixture *f = *state;
	struct test_client t;
	int silent = peer_connect(f->socket, SOCK_SEQPACKET);

	settle(f);
	clock_ns += 1999000000;
	settle(f);
	assert_false(at_end(silent));
	assert_int_equal(join(f, &t), 0); /* nobody else waits for it */
	clock_ns += 1000000;
	PUMP_UNTIL(f, at_end(silent));
	close(silent);
	clock_ns += UINT64_C(3600000000000);
	settle(f);
	assert_int_equal(f->control->num_sessions, 1);
	leave(&t);
	assert_empty(f);
}

/* As many connections as descriptors allow: the oldest go, an honest client comes through. */
static void test_flood(void **state)
{
	enum { FLOOD = 200 };
	struct fixture *f = *state;
	int socks[FLOOD], alive = 0;
	struct test_client t;

	for (int i = 0; i < FLOOD; i++) {
		socks[i] = peer_connect(f->socket, SOCK_SEQPACKET);
		assert_true(socks[i] >= 0);
		if (i % 50 == 49)
			settle(f);
	}
	settle(f);
	assert_int_equal(join(f, &t), 0);
	for (int i = 0; i < FLOOD; i++)
		alive += !at_end(socks[i]);
	assert_in_range(alive, 1, 32);
	for (int i = 0; i < FLOOD; i++)
		close(socks[i]);
	leave(&t);
	assert_empty(f);
}

static void test_limit(void **state)
{
	struct fixture *f = *state;
	struct test_client t[5];

	for (int i = 0; i < 4; i++)
		assert_int_equal(join(f, &t[i]), 0);
	assert_int_equal(join(f, &t[4]), -EMFILE);
	assert_non_null(strstr(t[4].welcome.text, "max-sessions-per-uid (4)"));
	leave(&t[4]);
	leave(&t[0]);
	PUMP_UNTIL(f, f->control->num_sessions == 3);
	assert_int_equal(join(f, &t[0]), 0);
	for (int i = 0; i < 4; i++)
		leave(&t[i]);
	assert_empty(f);
}

static void test_not_allowed(void **state)
{
	struct fixture *f = *state;
	struct attnd_msg_hello hello = peer_hello_message();

	assert_refused(f, &hello, sizeof(hello), -EACCES, "allow-users");
}

/* Out of descriptors, the daemon waits a moment instead of spinning, and goes on afterwards. */
static void test_out_of_descriptors(void **state)
{
	struct fixture *f = *state;
	struct rlimit old, low;
	struct test_client t;
	int sock = peer_connect(f->socket, SOCK_SEQPACKET), extra;

	getrlimit(RLIMIT_NOFILE, &old);
	low = old;
	extra = dup(0);
	close(extra);
	low.rlim_cur = (rlim_t)extra; /* the next number is one too many */
	setrlimit(RLIMIT_NOFILE, &low);
	settle(f);
	assert_null(f->control->accept);
	assert_null(f->control->clients);
	setrlimit(RLIMIT_NOFILE, &old);
	settle(f);
	assert_null(f->control->accept);
	clock_ns += 100000000;
	settle(f);
	assert_non_null(f->control->accept);
	assert_non_null(f->control->clients);
	close(sock);
	assert_int_equal(join(f, &t), 0);
	leave(&t);
	assert_empty(f);
}

/* ---- Owners and descriptors ---- */

static pid_t start_child(void)
{
	pid_t pid = fork();

	if (pid == 0) {
		pause();
		_exit(0);
	}
	return pid;
}

static void end_child(pid_t pid)
{
	kill(pid, SIGKILL);
	waitpid(pid, NULL, 0);
}

static void test_owner(void **state)
{
	struct fixture *f = *state;
	struct attnd_msg_hello hello = peer_hello_message();
	pid_t child = start_child();
	int pidfd = pidfd_open(child, 0);
	struct test_client t;

	hello.flags = ATTND_HELLO_OWNER_PIDFD;
	assert_int_equal(greet(f, &t, &hello, sizeof(hello), &pidfd, 1), 0);
	settle(f);
	assert_int_equal(stub_counts(f->leader).owners_gone, 0);
	end_child(child);
	PUMP_UNTIL(f, stub_counts(f->leader).owners_gone == 1);
	settle(f);
	assert_int_equal(stub_counts(f->leader).owners_gone, 1); /* told once */
	assert_int_equal(f->control->num_sessions, 1);		 /* the session goes on */
	close(pidfd);
	leave(&t);
	assert_empty(f);
}

static void test_false_owner(void **state)
{
	struct fixture *f = *state;
	struct attnd_msg_hello hello = peer_hello_message();
	int fds[] = {open("/dev/null", O_RDONLY | O_CLOEXEC), open("/proc/self", O_RDONLY | O_DIRECTORY | O_CLOEXEC),
		     peer_memfd(PAGE, 0, 0)};
	struct test_client t;

	hello.flags = ATTND_HELLO_OWNER_PIDFD;
	for (size_t i = 0; i < 3; i++) {
		assert_int_equal(greet(f, &t, &hello, sizeof(hello), &fds[i], 1), -EBADF);
		leave(&t);
	}
	peer_close_fds(fds, 3);
	assert_empty(f);
}

/* Descriptors that nobody asked for go away, one or many. */
static void test_unwanted_descriptors(void **state)
{
	struct fixture *f = *state;
	struct attnd_msg_hello hello = peer_hello_message();
	struct attnd_msg_segment junk = {.type = 99};
	int fds[4];
	struct test_client t;

	for (int i = 0; i < 4; i++)
		fds[i] = peer_memfd(PAGE, SEALS, 0);
	assert_int_equal(greet(f, &t, &hello, sizeof(hello), fds, 1), 0);
	leave(&t);
	assert_int_equal(greet(f, &t, &hello, sizeof(hello), fds, 4), 0);
	assert_int_equal(message(f, &t, ATTND_MSG_SEGMENT_ADD, 0, PAGE, fds, 4), 0);
	assert_int_equal(message(f, &t, ATTND_MSG_SEGMENT_DEL, 0, 0, fds, 4), 0);
	assert_int_equal(message(f, &t, ATTND_MSG_SEGMENT_ADD, 77, PAGE, fds, 4), -EINVAL);
	assert_int_equal(peer_send(t.sock, &junk, sizeof(junk), fds, 4), 0);
	PUMP_UNTIL(f, at_end(t.sock));
	leave(&t);
	hello.magic = 0;
	assert_int_equal(greet(f, &t, &hello, sizeof(hello), fds, 4), -EPROTO);
	leave(&t);
	peer_close_fds(fds, 4);
	assert_empty(f);
}

/* ---- Segments ---- */

static void test_segments(void **state)
{
	struct fixture *f = *state;
	const uint64_t mib = 1 << 20;
	struct test_client t;

	assert_int_equal(join(f, &t), 0);
	assert_int_equal(add_good(f, &t, 0, PAGE), 0);
	assert_int_equal(f->control->arena_bytes, PAGE);
	assert_int_equal(add_good(f, &t, 0, PAGE), -EEXIST);
	assert_int_equal(t.reply.field, ATTND_FIELD_SEGMENT);
	assert_int_equal(add_good(f, &t, ATTND_MAX_SEGMENTS, PAGE), -EINVAL);
	assert_int_equal(t.reply.limit, ATTND_MAX_SEGMENTS - 1);
	assert_int_equal(add_good(f, &t, UINT32_MAX, PAGE), -EINVAL);
	assert_int_equal(add(f, &t, 1, 0, peer_memfd(PAGE, SEALS, 0)), -EINVAL);
	assert_int_equal(t.reply.field, ATTND_FIELD_SEGMENT_BYTES);
	assert_int_equal(add(f, &t, 1, PAGE + 1, peer_memfd(PAGE + 1, SEALS, 0)), -EINVAL);
	assert_int_equal(add_good(f, &t, 1, 4 * mib + PAGE), -ENOSPC);
	assert_int_equal(t.reply.field, ATTND_FIELD_SEGMENT_BYTES);
	assert_int_equal(t.reply.limit, 4 * mib);
	assert_int_equal(add(f, &t, 1, UINT64_MAX - PAGE + 1, peer_memfd(PAGE, SEALS, 0)), -ENOSPC);
	assert_int_equal(add_good(f, &t, 15, 4 * mib), 0);
	assert_int_equal(add_good(f, &t, 2, 4 * mib), -ENOSPC); /* with the first page it is one too many */
	assert_int_equal(t.reply.field, ATTND_FIELD_ARENA_MAX);
	assert_int_equal(t.reply.limit, 8 * mib);
	assert_int_equal(del(f, &t, 0), 0);
	assert_int_equal(del(f, &t, 0), -ENOENT);
	assert_int_equal(add_good(f, &t, 2, 4 * mib), 0);
	assert_int_equal(f->control->arena_bytes, 8 * mib);
	assert_int_equal(stub_counts(f->leader).segments, 2);
	assert_int_equal(del(f, &t, 15), 0);
	assert_int_equal(f->control->arena_bytes, 4 * mib);
	leave(&t);
	assert_empty(f);
}

static void test_bad_segments(void **state)
{
	struct fixture *f = *state;
	int good = peer_memfd(PAGE, SEALS, 0), huge = peer_memfd(2 << 20, SEALS, MFD_HUGETLB), fd;
	char path[64];
	struct test_client t;

	assert_int_equal(join(f, &t), 0);
	assert_int_equal(message(f, &t, ATTND_MSG_SEGMENT_ADD, 0, PAGE, NULL, 0), -EINVAL);
	assert_int_equal(add(f, &t, 0, PAGE, peer_memfd(PAGE, 0, 0)), -EPERM);
	assert_int_equal(add(f, &t, 0, PAGE, peer_memfd(PAGE, F_SEAL_SHRINK, 0)), -EPERM);
	assert_int_equal(add(f, &t, 0, PAGE, peer_memfd(PAGE, F_SEAL_GROW, 0)), -EPERM);
	assert_int_equal(add(f, &t, 0, PAGE, peer_memfd(PAGE, SEALS | F_SEAL_WRITE, 0)), -EPERM);
	assert_int_equal(add(f, &t, 0, PAGE, peer_memfd(PAGE, SEALS | F_SEAL_FUTURE_WRITE, 0)), -EPERM);
	assert_int_equal(add(f, &t, 0, 2 * PAGE, peer_memfd(PAGE, SEALS, 0)), -EINVAL);
	assert_int_equal(add(f, &t, 0, PAGE, peer_memfd(2 * PAGE, SEALS, 0)), -EINVAL);
	snprintf(path, sizeof(path), "/proc/self/fd/%d", good);
	assert_int_equal(add(f, &t, 0, PAGE, open(path, O_RDONLY | O_CLOEXEC)), -EINVAL);
	assert_int_equal(add(f, &t, 0, PAGE, open("/dev/zero", O_RDWR | O_CLOEXEC)), -EINVAL);
	assert_int_equal(add(f, &t, 0, PAGE, open(f->dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC)), -EINVAL);
	fd = open(f->dir, O_RDWR | O_TMPFILE | O_CLOEXEC, 0600);
	if (fd >= 0 && ftruncate(fd, PAGE) == 0)
		assert_true(add(f, &t, 0, PAGE, fd) < 0);
	if (huge >= 0)
		assert_int_equal(add(f, &t, 0, 2 << 20, huge), -EINVAL);
	assert_int_equal(f->control->arena_bytes, 0);
	assert_int_equal(stub_counts(f->leader).segments, 0);
	assert_int_equal(add(f, &t, 0, PAGE, good), 0);
	leave(&t);
	assert_empty(f);
}

static void test_leader_refuses(void **state)
{
	struct fixture *f = *state;
	struct test_client t;

	assert_int_equal(join(f, &t), 0);
	for (int i = 0; i < 3; i++) /* nothing of the last one is left when the reply comes */
		assert_int_equal(add_good(f, &t, 0, 4 << 20), -ENOMEM);
	assert_int_equal(f->control->arena_bytes, 0);
	leave(&t);
	assert_empty(f);
}

/* A second message before the reply is one too many. */
static void test_impatient(void **state)
{
	struct fixture *f = *state;
	struct attnd_msg_segment m[2] = {{.type = ATTND_MSG_SEGMENT_ADD, .index = 0, .bytes = PAGE},
					 {.type = ATTND_MSG_SEGMENT_ADD, .index = 1, .bytes = PAGE}};
	struct test_client t;

	assert_int_equal(join(f, &t), 0);
	for (int i = 0; i < 2; i++) {
		int fd = peer_memfd(PAGE, SEALS, 0);

		assert_int_equal(peer_send(t.sock, &m[i], sizeof(m[i]), &fd, 1), 0);
		close(fd);
	}
	PUMP_UNTIL(f, at_end(t.sock));
	leave(&t);
	assert_empty(f);
}

/* Clients that end with a request at every stage of its way. */
static void test_end_within_request(void **state)
{
	struct fixture *f = *state;
	struct attnd_msg_segment m = {.type = ATTND_MSG_SEGMENT_ADD, .index = 0, .bytes = 1 << 20};
	struct test_client t;

	for (int stage = 0; stage < 6; stage++) {
		int fd = peer_memfd(1 << 20, SEALS, 0);

		assert_int_equal(join(f, &t), 0);
		if (stage % 2)
			assert_int_equal(add_good(f, &t, 5, PAGE), 0);
		assert_int_equal(peer_send(t.sock, &m, sizeof(m), &fd, 1), 0);
		close(fd);
		for (int i = 0; i < stage; i++)
			loop_run_once(f->control->loop, 1000000);
		leave(&t);
		assert_empty(f);
	}
}

/* ---- Ends ---- */

static void test_close(void **state)
{
	struct fixture *f = *state;
	struct test_client t;
	struct attnd_session_region *shared;

	assert_int_equal(join(f, &t), 0);
	assert_int_equal(add_good(f, &t, 3, 1 << 20), 0);
	shared = t.shared;
	t.shared = NULL;
	assert_int_equal(shared->closed, 0);
	leave(&t);
	assert_empty(f);
	assert_int_equal(shared->closed, 1); /* whoever still waits is told */
	assert_int_equal(shared->cq_event, 1);
	munmap(shared, t.welcome.session_bytes);
}

/* The leader says that a session broke the protocol (here: a byte that the stub takes for it). */
static void test_bad_session(void **state)
{
	struct fixture *f = *state;
	struct test_client t;

	assert_int_equal(join(f, &t), 0);
	assert_int_equal(send(t.fds[2], "xx", 2, MSG_DONTWAIT | MSG_NOSIGNAL), 2); /* told twice */
	PUMP_UNTIL(f, at_end(t.sock));
	assert_int_equal(t.shared->closed, 1);
	leave(&t);
	assert_empty(f);
	assert_int_equal(stub_counts(f->leader).ended, 1);
}

/*
 * The client is a child process that forks: its own child keeps the socket. The session belongs
 * to the one that connected, and ends with it.
 */
static void test_fork_holds_socket(void **state)
{
	struct fixture *f = *state;
	int ready[2], hold[2];
	char byte;
	pid_t child;

	assert_int_equal(pipe(ready), 0);
	assert_int_equal(pipe(hold), 0);
	child = fork();
	if (child == 0) {
		struct attnd_msg_hello hello = peer_hello_message();
		int sock = peer_connect(f->socket, SOCK_SEQPACKET);

		close(hold[1]);
		peer_send(sock, &hello, sizeof(hello), NULL, 0);
		if (fork() == 0) { /* waits until the test lets go */
			(void)!read(hold[0], &byte, 1);
			_exit(0);
		}
		(void)!write(ready[1], "r", 1);
		pause();
	}
	close(hold[0]);
	PUMP_UNTIL(f, f->control->num_sessions == 1);
	assert_int_equal(read(ready[0], &byte, 1), 1); /* it has forked */
	settle(f);
	assert_int_equal(f->control->num_sessions, 1);
	kill(child, SIGKILL);
	PUMP_UNTIL(f, !f->control->clients);
	assert_int_equal(stub_counts(f->leader).ended, 1);
	waitpid(child, NULL, 0);
	close(hold[1]);
	close(ready[0]);
	close(ready[1]);
	assert_empty(f);
}

/* Killed clients, one after the other and at every point: the daemon is as before. */
static void test_many_kills(void **state)
{
	struct fixture *f = *state;

	for (int i = 0; i < 60; i++) {
		pid_t child = fork();

		if (child == 0) {
			struct attnd_msg_hello hello = peer_hello_message();
			struct attnd_msg_segment m = {.type = ATTND_MSG_SEGMENT_ADD, .bytes = PAGE};
			int sock = peer_connect(f->socket, SOCK_SEQPACKET), fd = peer_memfd(PAGE, SEALS, 0);

			peer_send(sock, &hello, sizeof(hello), NULL, 0);
			if (i % 3 == 1)
				peer_send(sock, &m, sizeof(m), &fd, 1);
			if (i % 3 == 2)
				pause();
			kill(getpid(), SIGKILL);
		}
		PUMP_UNTIL(f, f->control->next_session == (uint32_t)i + 1);
		kill(child, SIGKILL);
		waitpid(child, NULL, 0);
		PUMP_UNTIL(f, !f->control->clients);
	}
	assert_empty(f);
}

/* ---- Administrators ---- */

static int admin_connect(struct fixture *f)
{
	char path[80];
	int sock;

	snprintf(path, sizeof(path), "%s.admin", f->socket);
	sock = peer_connect(path, SOCK_STREAM);
	assert_true(sock >= 0);
	return sock;
}

/* What comes until the end, as JSON; NULL if it is none. Closes the socket. */
static json_t *admin_answer(struct fixture *f, int sock)
{
	static char text[1 << 16];
	size_t size = 0;
	ssize_t n = -1;

	PUMP_UNTIL(f, (n = recv(sock, text + size, sizeof(text) - size, MSG_DONTWAIT)) == 0 ||
			      (n < 0 && errno == ECONNRESET) || (size += n > 0 ? (size_t)n : 0) > sizeof(text));
	close(sock);
	return json_loadb(text, size, 0, NULL);
}

static json_t *admin_ask(struct fixture *f, const char *request)
{
	int sock = admin_connect(f);

	assert_int_equal(send(sock, request, strlen(request), MSG_NOSIGNAL), strlen(request));
	return admin_answer(f, sock);
}

static void assert_error(json_t *reply, int status)
{
	assert_non_null(json_string_value(json_object_get(reply, "error")));
	assert_int_equal(json_integer_value(json_object_get(reply, "errno")), status);
	json_decref(reply);
}

static void test_admin(void **state)
{
	struct fixture *f = *state;
	struct test_client t;
	json_t *reply, *session;

	assert_int_equal(join(f, &t), 0);
	assert_int_equal(add_good(f, &t, 0, PAGE), 0);
	clock_ns += 5000000000;
	reply = admin_ask(f, "status\n");
	assert_int_equal(json_integer_value(json_object_get(reply, "pid")), getpid());
	assert_string_equal(json_string_value(json_object_get(reply, "socket")), f->socket);
	assert_string_equal(json_string_value(json_object_get(reply, "version")), ATTND_VERSION);
	assert_int_equal(json_integer_value(json_object_get(reply, "sessions")), 1);
	assert_int_equal(json_integer_value(json_object_get(reply, "arena_bytes")), PAGE);
	assert_int_equal(json_integer_value(json_object_get(reply, "stub")), 1); /* the leader's part */
	assert_true(json_integer_value(json_object_get(reply, "rss_bytes")) > 0);
	json_decref(reply);

	reply = admin_ask(f, "{\"command\": \"sessions\"}\n");
	session = json_array_get(json_object_get(reply, "sessions"), 0);
	assert_int_equal(json_integer_value(json_object_get(session, "id")), t.welcome.session);
	assert_int_equal(json_integer_value(json_object_get(session, "pid")), getpid());
	assert_int_equal(json_integer_value(json_object_get(session, "arena_bytes")), PAGE);
	assert_int_equal(json_integer_value(json_object_get(session, "jobs")), 7); /* the leader's part */
	assert_in_range((int)json_real_value(json_object_get(session, "connected_s")), 5, 5);
	json_decref(reply);

	reply = admin_ask(f, "caches\r\n");
	assert_true(json_is_array(json_object_get(reply, "caches")));
	json_decref(reply);
	leave(&t);
	assert_empty(f);
}

static void test_admin_nonsense(void **state)
{
	struct fixture *f = *state;
	char large[600];
	int sock;

	assert_error(admin_ask(f, "statu\n"), -EINVAL);
	assert_error(admin_ask(f, "\n"), -EINVAL);
	assert_error(admin_ask(f, "{\"command\": 5}\n"), -EINVAL);
	assert_error(admin_ask(f, "[[[[[[[[[[[[[[[[\n"), -EINVAL);
	assert_error(admin_ask(f, "evict words\n"), -EINVAL);
	json_decref(admin_ask(f, "evict cache=a blocks=5\n"));
	memset(large, 'x', sizeof(large));
	large[sizeof(large) - 1] = '\0';
	sock = admin_connect(f);
	for (int i = 0; i < (1 << 20) / 256; i++) {
		assert_int_equal(send(sock, large, 256, MSG_NOSIGNAL | MSG_DONTWAIT), 256);
		step(f, 0);
		step(f, 0);
	}
	assert_error(admin_answer(f, sock), -EMSGSIZE);
	sock = admin_connect(f); /* no line's end, but an end */
	assert_int_equal(send(sock, "status", 6, MSG_NOSIGNAL), 6);
	shutdown(sock, SHUT_WR);
	json_decref(admin_answer(f, sock));
	sock = admin_connect(f); /* says nothing */
	settle(f);
	clock_ns += 2000000000;
	assert_null(admin_answer(f, sock));
	sock = admin_connect(f); /* does not wait */
	assert_int_equal(send(sock, "status\n", 7, MSG_NOSIGNAL), 7);
	close(sock);
	assert_empty(f);
}

/* A leader that answers late delays neither the error nor anybody else. */
static void test_admin_slow_leader(void **state)
{
	struct fixture *f = *state;
	struct leader *leader = f->leader;
	struct test_client t;
	int sock = admin_connect(f);

	f->leader = NULL; /* not pumped */
	assert_int_equal(send(sock, "status\n", 7, MSG_NOSIGNAL), 7);
	settle(f);
	assert_int_equal(join(f, &t), 0);
	clock_ns += 10000000000;
	assert_error(admin_answer(f, sock), -ETIMEDOUT);
	for (int i = 0; i < 40; i++) { /* what is asked of it is bounded */
		sock = admin_connect(f);
		assert_int_equal(send(sock, "status\n", 7, MSG_NOSIGNAL), 7);
		settle(f);
		clock_ns += 10000000000;
		assert_error(admin_answer(f, sock), i < 31 ? -ETIMEDOUT : -EBUSY);
	}
	f->leader = leader;
	settle(f); /* 32 late answers */
	json_decref(admin_ask(f, "status\n"));
	leave(&t);
	assert_empty(f);
}

static void test_admin_crowd(void **state)
{
	struct fixture *f = *state;
	int socks[16];
	json_t *reply;

	for (int i = 0; i < 16; i++)
		socks[i] = admin_connect(f);
	settle(f);
	for (int i = 0; i < 16; i++)
		step(f, 0);
	assert_error(admin_answer(f, admin_connect(f)), -EMFILE);
	peer_close_fds(socks, 16);
	settle(f);
	reply = admin_ask(f, "status\n");
	assert_non_null(reply);
	json_decref(reply);
	assert_empty(f);
}

/* ---- The end of the daemon ---- */

/* With sessions, segments, a request under way and an administrator: all of it is freed. */
static void test_end(void **state)
{
	struct fixture *f = *state;
	struct attnd_msg_segment m = {.type = ATTND_MSG_SEGMENT_ADD, .index = 1, .bytes = PAGE};
	int fd = peer_memfd(PAGE, SEALS, 0), admin = admin_connect(f);
	struct test_client t[2];

	assert_int_equal(join(f, &t[0]), 0);
	assert_int_equal(join(f, &t[1]), 0);
	assert_int_equal(add_good(f, &t[0], 0, 1 << 20), 0);
	assert_int_equal(send(admin, "status\n", 7, MSG_NOSIGNAL), 7);
	assert_int_equal(peer_send(t[0].sock, &m, sizeof(m), &fd, 1), 0);
	loop_run_once(f->control->loop, 0);
	loop_run_once(f->control->loop, 0);
	stop(state);
	assert_int_equal(t[0].shared->closed, 1);
	assert_int_equal(t[1].shared->closed, 1);
	assert_true(at_end(t[1].sock));
	close(fd);
	close(admin);
	leave(&t[0]);
	leave(&t[1]);
}

#define BOTH(f)                                                         \
	{"io_uring: " #f, f, start_default, stop, (char[]){"auto"}},    \
	{                                                               \
		"epoll: " #f, f, start_default, stop, (char[]){"epoll"} \
	}

int main(void)
{
	const struct CMUnitTest tests[] = {
		BOTH(test_welcome),
		BOTH(test_bad_hello),
		BOTH(test_long_hello),
		BOTH(test_name_is_printable),
		BOTH(test_silent),
		BOTH(test_flood),
		BOTH(test_limit),
		BOTH(test_out_of_descriptors),
		BOTH(test_owner),
		BOTH(test_false_owner),
		BOTH(test_unwanted_descriptors),
		BOTH(test_segments),
		BOTH(test_bad_segments),
		BOTH(test_impatient),
		BOTH(test_end_within_request),
		BOTH(test_close),
		BOTH(test_bad_session),
		BOTH(test_fork_holds_socket),
		BOTH(test_many_kills),
		BOTH(test_admin),
		BOTH(test_admin_nonsense),
		BOTH(test_admin_slow_leader),
		BOTH(test_admin_crowd),
		{"test_not_allowed", test_not_allowed, start_exclusive, stop, NULL},
		{"test_leader_refuses", test_leader_refuses, start_refusing, stop, NULL},
		{"test_end", test_end, start_default, NULL, (char[]){"auto"}},
	};

	log_set_level(LOG_LEVEL_ERR);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
