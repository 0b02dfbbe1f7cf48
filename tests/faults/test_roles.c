/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The administrator's role comes with the administrators' socket, never from a uid: each command is
 * refused on the shared socket, to root, to the daemon's own user, to others, and from user
 * namespaces in which the caller is root, nobody or unmapped.
 *
 * In: callers of every kind. Out: TAP. Next: daemon/admin.c, clients.c, listener.c.
 */
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <sched.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../integration/raw.h"
#include "../integration/toy.h"
#include "../skip.h"

static struct daemon daemon_;

static const char *const commands[] = {
	"status\n",
	"sessions\n",
	"caches\n",
	"plan\n",
	"pins\n",
	"tree cache=toy\n",
	"pin cache=toy seconds=9 tokens=1,2,3\n",
	"unpin\n",
	"flush cache=toy\n",
	"evict cache=toy blocks=1\n",
	"{\"command\": \"flush\", \"cache\": \"toy\"}\n",
};
enum { COMMANDS = sizeof(commands) / sizeof(commands[0]) };

#define WANT(x)                                                        \
	do {                                                           \
		if (!(x))                                              \
			return (__LINE__ & 0xff) | !(__LINE__ & 0xff); \
	} while (0)

static int connect_to(const char *path, int type)
{
	struct sockaddr_un addr = {.sun_family = AF_UNIX};
	int fd = socket(AF_UNIX, type | SOCK_CLOEXEC, 0);

	strcpy(addr.sun_path, path);
	if (connect(fd, (struct sockaddr *)&addr, sizeof(addr)) == 0)
		return fd;
	int e = errno;
	close(fd);
	return -e;
}

/* Instead of HELLO: the answer is a refusal; after it: the end of the session, without an answer. */
static int ask_shared(void)
{
	for (int i = 0; i < COMMANDS; i++) {
		struct attnd_msg_welcome w = {.status = 0};
		struct attnd_msg_reply reply;
		struct raw r;
		int fd = connect_to(daemon_.socket, SOCK_SEQPACKET);

		WANT(fd >= 0);
		WANT(send(fd, commands[i], strlen(commands[i]), MSG_NOSIGNAL) > 0);
		WANT(recv(fd, &w, sizeof(w), 0) == sizeof(w) && w.status == -EPROTO);
		WANT(recv(fd, &w, sizeof(w), 0) <= 0);
		close(fd);
		WANT(raw_connect(&r, daemon_.socket) == 0);
		WANT(raw_message(&r, commands[i], strlen(commands[i]), -1, &reply) == -EPIPE);
		raw_close(&r);
	}
	return 0;
}

/* Entries that no client has, and pins, which are administrators' so far. */
static int ask_by_entries(void)
{
	struct attnd_cqe c;
	struct raw r;

	WANT(raw_connect(&r, daemon_.socket) == 0);
	for (unsigned op = 0; op < 256; op++) {
		struct attnd_sqe s = {.opcode = (uint8_t)op, .deadline_us = RAW_DEADLINE_US, .user_data = op};

		if (op == ATTND_OP_PIN || op == ATTND_OP_UNPIN)
			WANT(raw_call(&r, &s, &c) < 0);
		else if (!op || (op >= ATTND_OPS && op < ATTND_OP_SEQ_WAIT) || op >= ATTND_OP_RESERVED_END)
			WANT(raw_call(&r, &s, &c) == -EINVAL);
	}
	raw_close(&r);
	return 0;
}

static int ask(void)
{
	int e = ask_shared();

	return e ? e : ask_by_entries();
}

static int ask_admin_refused(void)
{
	WANT(connect_to(daemon_.admin, SOCK_STREAM) == -EACCES);
	return ask();
}

static int map_ids(const char *file, const char *text)
{
	int fd = open(file, O_WRONLY | O_CLOEXEC);
	ssize_t n = fd < 0 ? -1 : write(fd, text, strlen(text));

	if (fd >= 0)
		close(fd);
	return n < 0 ? -errno : 0;
}

enum kind { PLAIN, ROOT_INSIDE, NOBODY_INSIDE, UNMAPPED };

static void become(uid_t uid, enum kind kind, int (*what)(void))
{
	char map[64];

	if (setgroups(0, NULL) || setresgid(uid, uid, uid) || setresuid(uid, uid, uid))
		_exit(99);
	prctl(PR_SET_DUMPABLE, 1, 0, 0, 0); /* or its own maps are not its own */
	if (kind != PLAIN && unshare(CLONE_NEWUSER))
		_exit(77); /* not allowed here */
	snprintf(map, sizeof(map), "%d %d 1", kind == NOBODY_INSIDE ? 65534 : 0, (int)uid);
	if ((kind == ROOT_INSIDE || kind == NOBODY_INSIDE) &&
	    (map_ids("/proc/self/setgroups", "deny") || map_ids("/proc/self/uid_map", map) ||
	     map_ids("/proc/self/gid_map", map)))
		_exit(77);
	_exit(what());
}

static void as(uid_t uid, enum kind kind, int (*what)(void))
{
	int status;
	pid_t pid = fork();

	if (pid == 0)
		become(uid, kind, what);
	assert_int_equal(waitpid(pid, &status, 0), pid);
	if (WIFEXITED(status) && WEXITSTATUS(status) == 77)
		print_message("no user namespaces here: uid %d, kind %d not tried\n", (int)uid, (int)kind);
	else if (!WIFEXITED(status) || WEXITSTATUS(status))
		fail_msg("as uid %d, kind %d: line %d", (int)uid, (int)kind,
			 WIFEXITED(status) ? WEXITSTATUS(status) : -status);
}

static int start(void **state)
{
	const char *const args[] = {"--pool-size", "16M", "--hugepages", "off", "--socket-mode", "0666", NULL};

	(void)state;
	if (daemon_start(&daemon_, args))
		return -1;
	return chmod(daemon_.dir, 0755);
}

static int end(void **state)
{
	struct in_use none = {0};

	(void)state;
	daemon_wait_in_use(&daemon_, &none); /* the administrators' socket answers still */
	daemon_clean(&daemon_);
	return 0;
}

static void test_own_user(void **state)
{
	(void)state;
	as(geteuid(), PLAIN, ask); /* root, or the daemon's user: no more than anyone */
}

static void test_other_users(void **state)
{
	(void)state;
	if (geteuid())
		skip();
	as(4242, PLAIN, ask_admin_refused);
	as(65534, PLAIN, ask_admin_refused);
}

static void test_user_namespaces(void **state)
{
	(void)state;
	if (geteuid())
		skip();
	as(4242, ROOT_INSIDE, ask_admin_refused);
	as(4242, NOBODY_INSIDE, ask_admin_refused);
	as(4242, UNMAPPED, ask_admin_refused);
}

/* What everyone is shown is theirs: another uid's cache of the same name is another one. */
static int see_no_others(void)
{
	struct attnd_connect_options options = {.socket = daemon_.socket, .name = "other"};
	uint64_t tokens[64], cached = 4711;
	struct toy t;
	attnd_t *a;

	toy_tokens(tokens, 64, 1);
	WANT(attnd_connect(&a, &options) == 0);
	WANT(toy_open(&t, a, 1) == 0);
	WANT(toy_prefill(&t, 1, tokens, 64, &cached) == 0 && cached == 0);
	WANT(attnd_seq_close(a, 1) == 0);
	attnd_disconnect(a);
	return 0;
}

static void test_others_cache(void **state)
{
	uint64_t tokens[64], cached;
	struct toy t;

	(void)state;
	if (geteuid())
		skip();
	attnd_t *a = daemon_connect(&daemon_);
	toy_tokens(tokens, 64, 1);
	assert_int_equal(toy_open(&t, a, 1), 0);
	assert_int_equal(toy_prefill(&t, 1, tokens, 64, &cached), 0);
	as(4242, PLAIN, see_no_others);
	/* Two unmapped ones read as the same uid, 65534, and share nothing all the same. */
	as(4243, UNMAPPED, see_no_others);
	as(4244, UNMAPPED, see_no_others);
	attnd_disconnect(a);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_own_user),
		cmocka_unit_test(test_other_users),
		cmocka_unit_test(test_user_namespaces),
		cmocka_unit_test(test_others_cache),
	};

	return cmocka_run_group_tests(tests, start, end);
}
