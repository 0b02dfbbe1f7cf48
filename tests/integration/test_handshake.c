/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How a connection begins, and what is refused there: versions, hellos, segments, a second daemon.
 *
 * In: messages, right and wrong. Out: TAP. Next: daemon's control thread.
 */
#include "harness.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "raw.h"

enum { PAGE = 4096, MAX_SESSIONS = 6 };

static struct daemon daemon_;

static int group_start(void **state)
{
	const char *const args[] = {
		"--pool-size", "16M",	      "--hugepages", "off", "--max-sessions", "6", "--max-segment-mb",
		"4",	       "--arena-max", "6M",	     NULL};

	(void)state;
	return daemon_start(&daemon_, args);
}

static int group_end(void **state)
{
	(void)state;
	daemon_clean(&daemon_);
	return 0;
}

/* The daemon still serves. */
static void assert_alive(void)
{
	struct raw r;
	struct attnd_cqe c;
	struct attnd_sqe ping = {.opcode = ATTND_OP_PING, .user_data = 1, .deadline_us = RAW_DEADLINE_US};

	assert_int_equal(raw_connect(&r, daemon_.socket), 0);
	assert_int_equal(raw_call(&r, &ping, &c), 0);
	raw_close(&r);
}

static void test_welcome(void **state)
{
	struct raw r;

	(void)state;
	assert_int_equal(raw_connect(&r, daemon_.socket), 0);
	assert_int_equal(r.welcome.magic, ATTND_WIRE_MAGIC);
	assert_int_equal(r.welcome.type, ATTND_MSG_WELCOME);
	assert_int_equal(r.welcome.daemon_pid, daemon_.pid);
	assert_int_equal(r.shared->magic, ATTND_WIRE_MAGIC);
	assert_int_equal(r.shared->abi_major, ATTND_ABI_MAJOR);
	assert_int_equal(r.shared->sq_entries, 64);
	assert_int_equal(r.shared->cq_entries, 64);
	assert_int_not_equal(r.welcome.instance, 0);
	assert_int_equal(r.welcome.max_segment_bytes, 4 << 20);
	raw_close(&r);
}

static void test_version(void **state)
{
	struct attnd_msg_hello hello = raw_hello();
	char ours[16];
	struct raw r;

	(void)state;
	hello.abi_major = 77;
	assert_int_equal(raw_connect_with(&r, daemon_.socket, &hello, sizeof(hello)), -EPROTO);
	assert_int_equal(r.welcome.abi_major, ATTND_ABI_MAJOR);
	snprintf(ours, sizeof(ours), "%d", ATTND_ABI_MAJOR);
	assert_non_null(strstr(r.welcome.text, "77"));
	assert_non_null(strstr(r.welcome.text, ours));
	raw_close(&r);

	hello = raw_hello();
	hello.abi_minor = 999; /* a newer client of the same major is fine */
	assert_int_equal(raw_connect_with(&r, daemon_.socket, &hello, sizeof(hello)), 0);
	raw_close(&r);
	assert_alive();
}

static void refused(const struct attnd_msg_hello *hello, size_t bytes, const char *what)
{
	struct raw r;
	int e = raw_connect_with(&r, daemon_.socket, hello, bytes);

	if (e != -EINVAL && e != -EPIPE && e != -EPROTO)
		fail_msg("%s: %d", what, e);
	raw_close(&r);
}

static void test_hello(void **state)
{
	struct attnd_msg_hello hello = raw_hello();

	(void)state;
#define REFUSED(change)                                  \
	do {                                             \
		hello = raw_hello();                     \
		change;                                  \
		refused(&hello, sizeof(hello), #change); \
	} while (0)
	REFUSED(hello.magic = 0);
	REFUSED(hello.type = ATTND_MSG_SEGMENT_ADD);
	REFUSED(hello.flags = 2);
	REFUSED(hello.flags = ATTND_HELLO_OWNER_PIDFD); /* and no descriptor */
	REFUSED(hello.sq_entries = 0);
	REFUSED(hello.sq_entries = 4);
	REFUSED(hello.sq_entries = 9);
	REFUSED(hello.sq_entries = 8192);
	REFUSED(hello.cq_entries = UINT32_MAX);
	REFUSED(hello.cq_entries = 1u << 31);
	REFUSED(hello.reserved = 1);
	hello = raw_hello();
	refused(&hello, sizeof(hello) - 1, "a short hello");
	refused(&hello, 1, "one byte");
	hello.cq_entries = 8;
	memset(hello.name, 0xff, sizeof(hello.name)); /* any name is a name */
	struct raw r;
	assert_int_equal(raw_connect_with(&r, daemon_.socket, &hello, sizeof(hello)), 0);
	raw_close(&r);
	assert_alive();
}

/* Somebody who connects and says nothing is nobody's burden. */
static void test_silence(void **state)
{
	struct sockaddr_un addr = {.sun_family = AF_UNIX};
	int fds[3];

	(void)state;
	strcpy(addr.sun_path, daemon_.socket);
	for (int i = 0; i < 3; i++) {
		fds[i] = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
		assert_int_equal(connect(fds[i], (struct sockaddr *)&addr, sizeof(addr)), 0);
	}
	assert_alive();
	for (int i = 0; i < 3; i++)
		close(fds[i]);
}

static void test_sessions_limit(void **state)
{
	struct raw r[MAX_SESSIONS + 1];
	int opened = 0, e = 0;

	(void)state;
	while (opened <= MAX_SESSIONS && (e = raw_connect(&r[opened], daemon_.socket)) == 0)
		opened++;
	assert_int_equal(e, -EMFILE);
	assert_in_range(opened, 1, MAX_SESSIONS);
	assert_true(r[opened].welcome.text[0] != '\0');
	for (int i = 0; i <= opened; i++)
		raw_close(&r[i]);
	struct in_use none = {0};
	daemon_wait_in_use(&daemon_, &none);
	assert_alive();
}

/* ---- Segments ---- */

static int add(struct raw *r, uint32_t index, uint64_t bytes, int fd)
{
	struct attnd_msg_segment msg = {.type = ATTND_MSG_SEGMENT_ADD, .index = index, .bytes = bytes};
	struct attnd_msg_reply reply;
	int e = raw_message(r, &msg, sizeof(msg), fd, &reply);

	if (fd >= 0)
		close(fd);
	return e;
}

static int good(size_t bytes)
{
	return raw_memfd(bytes, F_SEAL_SHRINK | F_SEAL_GROW);
}

static void test_segments(void **state)
{
	struct raw r;
	char path[96];

	(void)state;
	assert_int_equal(raw_connect(&r, daemon_.socket), 0);
	assert_int_equal(add(&r, 0, PAGE, good(PAGE)), 0);
	assert_int_equal(add(&r, 0, PAGE, good(PAGE)), -EEXIST);
	assert_int_equal(add(&r, ATTND_MAX_SEGMENTS, PAGE, good(PAGE)), -EINVAL);
	assert_int_equal(add(&r, UINT32_MAX, PAGE, good(PAGE)), -EINVAL);
	assert_int_equal(add(&r, 1, 0, good(PAGE)), -EINVAL);
	assert_int_equal(add(&r, 1, 100, good(100)), -EINVAL);
	assert_int_equal(add(&r, 1, 2 * PAGE, good(PAGE)), -EINVAL);
	assert_int_equal(add(&r, 1, PAGE, raw_memfd(PAGE, 0)), -EPERM);
	assert_int_equal(add(&r, 1, PAGE, raw_memfd(PAGE, F_SEAL_SHRINK)), -EPERM);
	assert_int_equal(add(&r, 1, PAGE, raw_memfd(PAGE, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE)), -EPERM);
	snprintf(path, sizeof(path), "/proc/self/fd/%d", r.sock);
	assert_int_equal(add(&r, 1, PAGE, open("/dev/zero", O_RDWR | O_CLOEXEC)), -EINVAL);
	int fd = good(PAGE);
	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	int readonly = open(path, O_RDONLY | O_CLOEXEC);
	close(fd);
	assert_true(add(&r, 1, PAGE, readonly) < 0);
	assert_int_equal(add(&r, 1, 8 << 20, good(8 << 20)), -ENOSPC);
	assert_int_equal(add(&r, 1, 4 << 20, good(4 << 20)), 0);
	assert_int_equal(add(&r, 2, 4 << 20, good(4 << 20)), -ENOSPC); /* arena-max */

	struct attnd_msg_segment del = {.type = ATTND_MSG_SEGMENT_DEL, .index = 1};
	struct attnd_msg_reply reply;
	assert_int_equal(raw_message(&r, &del, sizeof(del), -1, &reply), 0);
	assert_int_equal(raw_message(&r, &del, sizeof(del), -1, &reply), -ENOENT);
	assert_int_equal(add(&r, 2, 4 << 20, good(4 << 20)), 0);
	raw_close(&r);
	assert_alive();
}

static void test_segment_cannot_shrink(void **state)
{
	int fd = good(PAGE);

	(void)state;
	assert_int_equal(ftruncate(fd, 0), -1);
	assert_int_equal(errno, EPERM);
	close(fd);
}

/* A message that is none ends this connection, and only this one. */
static void test_garbage(void **state)
{
	unsigned char junk[256];
	struct attnd_msg_reply reply;
	struct raw r, other;

	(void)state;
	memset(junk, 0xab, sizeof(junk));
	assert_int_equal(raw_connect(&other, daemon_.socket), 0);
	assert_int_equal(raw_connect(&r, daemon_.socket), 0);
	int e = raw_message(&r, junk, sizeof(junk), -1, &reply);
	assert_true(e < 0);
	raw_close(&r);
	struct attnd_sqe ping = {.opcode = ATTND_OP_PING, .deadline_us = RAW_DEADLINE_US};
	struct attnd_cqe c;
	assert_int_equal(raw_call(&other, &ping, &c), 0);
	raw_close(&other);
}

/* Whoever starts a second daemon on the same socket is told who has it. */
static void test_second_daemon(void **state)
{
	char command[512], text[4096] = "", pid[16];

	(void)state;
	snprintf(command, sizeof(command), "%s --config /dev/null --socket %s --pool-size 16M 2>&1; echo exit=$?",
		 getenv("ATTND_DAEMON"), daemon_.socket);
	FILE *f = popen(command, "re");
	assert_non_null(f);
	size_t n = fread(text, 1, sizeof(text) - 1, f);
	text[n] = '\0';
	pclose(f);
	assert_null(strstr(text, "exit=0"));
	snprintf(pid, sizeof(pid), "%d", (int)daemon_.pid);
	if (!strstr(text, pid))
		fail_msg("no pid %s in: %s", pid, text);
	assert_alive();
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_welcome),
		cmocka_unit_test(test_version),
		cmocka_unit_test(test_hello),
		cmocka_unit_test(test_silence),
		cmocka_unit_test(test_sessions_limit),
		cmocka_unit_test(test_segments),
		cmocka_unit_test(test_segment_cannot_shrink),
		cmocka_unit_test(test_garbage),
		cmocka_unit_test(test_second_daemon),
	};

	return cmocka_run_group_tests(tests, group_start, group_end);
}
