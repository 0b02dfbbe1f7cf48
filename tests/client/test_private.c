/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Private daemons: the real one serves and ends with its caller however that ends; programs that
 * are none are told from it; nothing named is left behind.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <errno.h>
#include <fcntl.h>
#include <glob.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../../client/attnd.h"
#include "../skip.h"

static const char *const small[] = {"--pool-size", "16M", NULL};
/* A machine may be busy and a daemon built with sanitizers. */
static const struct attnd_connect_options patient = {.timeout_us = 60000000};

struct place {
	char dir[32], inside[64]; /* $XDG_RUNTIME_DIR, and what a private daemon makes in it */
	char *daemon;		  /* the real one, or NULL */
};

static int set_up(void **state)
{
	struct place *p = calloc(1, sizeof(*p));
	const char *daemon = getenv("ATTND_DAEMON");

	strcpy(p->dir, "/tmp/attnd-run-XXXXXX");
	if (!mkdtemp(p->dir))
		return -1;
	snprintf(p->inside, sizeof(p->inside), "%s/attnd-*", p->dir);
	p->daemon = daemon ? strdup(daemon) : NULL;
	setenv("XDG_RUNTIME_DIR", p->dir, 1);
	*state = p;
	return 0;
}

static int tear_down(void **state)
{
	struct place *p = *state;
	int rc = rmdir(p->dir); /* nothing may be left in it */

	unsetenv("XDG_RUNTIME_DIR");
	if (p->daemon)
		setenv("ATTND_DAEMON", p->daemon, 1);
	free(p->daemon);
	free(p);
	return rc;
}

static void need_daemon(const struct place *p)
{
	if (!p->daemon || access(p->daemon, X_OK))
		skip();
}

static size_t left(const struct place *p)
{
	glob_t g;
	size_t n;

	if (glob(p->inside, 0, NULL, &g))
		return 0;
	n = g.gl_pathc;
	globfree(&g);
	return n;
}

static bool ends(pid_t pid)
{
	for (int i = 0; i < 5000 && !kill(pid, 0); i++)
		usleep(1000);
	return kill(pid, 0) && errno == ESRCH;
}

static bool cleared(const struct place *p)
{
	for (int i = 0; i < 5000 && left(p); i++)
		usleep(1000);
	return !left(p);
}

/* ---- The real daemon ---- */

static void serves_and_ends(void **state)
{
	struct place *p = *state;
	attnd_t *a, *b;
	pid_t pid;

	need_daemon(p);
	assert_int_equal(attnd_private_start(&a, small, &patient), 0);
	assert_int_equal(left(p), 1);
	assert_int_equal(attnd_ping(a, 0), 0);
	/* Others may join by its socket. */
	assert_int_equal(attnd_connect(&b, &(struct attnd_connect_options){.socket = attnd_socket(a)}), 0);
	assert_int_equal(attnd_ping(b, 0), 0);
	attnd_disconnect(b);
	pid = attnd_daemon_pid(a);
	attnd_disconnect(a);
	assert_int_equal(kill(pid, 0), -1); /* ended and reaped, not about to */
	assert_int_equal(left(p), 0);
}

/* The child's daemon's pid comes over a pipe; the child is then killed. */
static pid_t child_with_daemon(bool fork_again, pid_t *ret_grandchild)
{
	pid_t told[2], pid;
	int ends[2], status;

	assert_int_equal(pipe2(ends, O_CLOEXEC), 0);
	pid = fork();
	assert_true(pid >= 0);
	if (!pid) {
		attnd_t *a;

		if (attnd_private_start(&a, small, &patient))
			_exit(1);
		told[0] = attnd_daemon_pid(a);
		told[1] = fork_again ? fork() : 0;
		if (fork_again && !told[1])
			for (;;)
				pause(); /* lives on with all that fork left it */
		(void)!write(ends[1], told, sizeof(told));
		pause();
		_exit(1);
	}
	assert_int_equal(read(ends[0], told, sizeof(told)), sizeof(told));
	close(ends[0]);
	close(ends[1]);
	kill(pid, SIGKILL);
	waitpid(pid, &status, 0);
	*ret_grandchild = told[1];
	return told[0];
}

static void ends_when_its_process_is_killed(void **state)
{
	struct place *p = *state;
	pid_t grandchild;

	need_daemon(p);
	assert_true(ends(child_with_daemon(false, &grandchild)));
	assert_true(cleared(p));
}

static void ends_though_a_forked_child_lives(void **state)
{
	struct place *p = *state;
	pid_t grandchild;
	bool ended;

	need_daemon(p);
	ended = ends(child_with_daemon(true, &grandchild));
	kill(grandchild, SIGKILL);
	assert_true(ended);
	assert_true(cleared(p));
}

static void killed_daemon_leaves_nothing(void **state)
{
	struct place *p = *state;
	attnd_t *a;

	need_daemon(p);
	assert_int_equal(attnd_private_start(&a, small, &patient), 0);
	kill(attnd_daemon_pid(a), SIGKILL);
	assert_int_equal(attnd_ping(a, 0), -ECONNRESET);
	attnd_disconnect(a);
	assert_int_equal(left(p), 0);
}

static void bad_flags_are_the_daemons_to_explain(void **state)
{
	static const char *const bad[] = {"--no-such-flag", NULL};
	struct place *p = *state;
	attnd_t *a;

	need_daemon(p);
	assert_int_equal(attnd_private_start(&a, bad, NULL), -ENOEXEC);
	assert_non_null(strstr(attnd_strerror(NULL, -ENOEXEC), "standard error"));
}

/* ---- What is none ---- */

static void no_program(void **state)
{
	attnd_t *a = (attnd_t *)1;

	(void)state;
	setenv("ATTND_DAEMON", "/nowhere/attnd", 1);
	assert_int_equal(attnd_private_start(&a, NULL, NULL), -ENOENT);
	assert_non_null(strstr(attnd_strerror(NULL, -ENOENT), "ATTND_DAEMON"));
	assert_ptr_equal(a, (attnd_t *)1);
}

static void program_that_ends(void **state)
{
	attnd_t *a = NULL;

	(void)state;
	setenv("ATTND_DAEMON", "/bin/false", 1);
	assert_int_equal(attnd_private_start(&a, NULL, NULL), -ENOEXEC);
	assert_non_null(strstr(attnd_strerror(NULL, -ENOEXEC), "ended at once"));
}

/* It leaves a file beside its socket and ends with its lifeline. */
static void program_that_never_listens(void **state)
{
	static const char script[] = "#!/bin/sh\ntouch \"${2%/*}/left\"\nread line <&\"$4\"\n";
	struct place *p = *state;
	attnd_t *a = NULL;
	char path[64];
	int fd;

	snprintf(path, sizeof(path), "%s/daemon", p->dir);
	fd = open(path, O_CREAT | O_WRONLY | O_CLOEXEC, 0755);
	assert_int_equal(write(fd, script, sizeof(script) - 1), sizeof(script) - 1);
	close(fd);
	setenv("ATTND_DAEMON", path, 1);
	assert_int_equal(attnd_private_start(&a, NULL, &(struct attnd_connect_options){.timeout_us = 200000}),
			 -ETIMEDOUT);
	unlink(path);
	assert_int_equal(left(p), 0);
}

int main(void)
{
#define PLACE_TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
	const struct CMUnitTest tests[] = {
		PLACE_TEST(serves_and_ends),
		PLACE_TEST(ends_when_its_process_is_killed),
		PLACE_TEST(ends_though_a_forked_child_lives),
		PLACE_TEST(killed_daemon_leaves_nothing),
		PLACE_TEST(bad_flags_are_the_daemons_to_explain),
		PLACE_TEST(no_program),
		PLACE_TEST(program_that_ends),
		PLACE_TEST(program_that_never_listens),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
