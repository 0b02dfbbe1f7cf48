/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A daemon for this process alone, in a directory of its own.
 *
 * In:   the daemon's further flags. Out: a connection whose end ends the daemon.
 * Next: conn.c connects; the daemon reads the lifeline (--private-fd) and ends at its end of file,
 *       whatever happens here.
 */
#include "internal.h"

#include <dirent.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#ifndef ATTND_SBINDIR
#define ATTND_SBINDIR "/usr/local/sbin"
#endif

#define LIFELINE_FD 3 /* in the daemon */
#define MAX_ARGS    64
#define POLL_NS	    2000000
#define END_POLLS   2500 /* 5 s to end by itself before it is killed */

extern char **environ;

struct cl_private {
	struct cl_private *next; /* of this process */
	char *dir;
	char *socket;
	pid_t pid, owner;
	int lifeline; /* -1: none */
};

/* ---- The list: a forked child must not hold its parent's lifelines ---- */

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct cl_private *all;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void before_fork(void)
{
	pthread_mutex_lock(&lock);
}

static void in_parent(void)
{
	pthread_mutex_unlock(&lock);
}

static void in_child(void)
{
	for (struct cl_private *p = all; p; p = p->next) {
		if (p->lifeline >= 0)
			close(p->lifeline);
		p->lifeline = -1;
	}
	all = NULL;
	pthread_mutex_unlock(&lock);
}

static void watch_forks(void)
{
	pthread_atfork(before_fork, in_parent, in_child);
}

static void list_add(struct cl_private *p)
{
	pthread_once(&once, watch_forks);
	pthread_mutex_lock(&lock);
	p->next = all;
	all = p;
	pthread_mutex_unlock(&lock);
}

static void list_remove(struct cl_private *p)
{
	struct cl_private **at = &all;

	pthread_mutex_lock(&lock);
	while (*at && *at != p)
		at = &(*at)->next;
	if (*at)
		*at = p->next;
	pthread_mutex_unlock(&lock);
}

/* ---- Which program ---- */

/* PATH's directory and `more`, if that is a program. */
static char *beside(const char *path, const char *more)
{
	const char *slash = strrchr(path, '/');
	char *name = NULL;

	if (!slash || asprintf(&name, "%.*s/%s", (int)(slash - path), path, more) < 0)
		return NULL;
	if (!access(name, X_OK))
		return name;
	free(name);
	return NULL;
}

/* $ATTND_DAEMON, beside the program, beside the installed library, the installed one, or PATH's. */
static char *find_daemon(void)
{
	static const char *const places[] = {"../sbin/attnd", "../../sbin/attnd", "../bin/attnd"};
	const char *env = secure_getenv("ATTND_DAEMON");
	char exe[PATH_MAX], *found = NULL;
	ssize_t n = readlink("/proc/self/exe", exe, sizeof(exe) - 1);
	Dl_info info;

	if (env)
		return strdup(env);
	if (n > 0) {
		exe[n] = 0;
		found = beside(exe, "attnd");
	}
	if (!found && dladdr(&all, &info) && info.dli_fname)
		for (size_t i = 0; !found && i < sizeof(places) / sizeof(places[0]); i++)
			found = beside(info.dli_fname, places[i]);
	if (!found)
		found = beside(ATTND_SBINDIR "/", "attnd");
	return found ? found : strdup("attnd");
}

/* ---- Start ---- */

static int make_place(struct cl_private *p)
{
	const char *base = secure_getenv("XDG_RUNTIME_DIR");

	if (!base || access(base, W_OK))
		base = "/tmp";
	if (asprintf(&p->dir, "%s/attnd-XXXXXX", base) < 0) {
		p->dir = NULL;
		return -ENOMEM;
	}
	if (!mkdtemp(p->dir)) {
		int rc = -errno;

		free(p->dir);
		p->dir = NULL;
		return rc;
	}
	if (asprintf(&p->socket, "%s/attnd.sock", p->dir) < 0) {
		p->socket = NULL;
		return -ENOMEM;
	}
	return 0;
}

/* Default signals, its own process group (a terminal's interrupt is for the caller), no other descriptors. */
static int spawn_attributes(posix_spawnattr_t *attr, posix_spawn_file_actions_t *files, int lifeline)
{
	sigset_t none, every;
	int rc;

	sigemptyset(&none);
	sigfillset(&every);
	rc = posix_spawnattr_setflags(attr, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETPGROUP);
	if (!rc)
		rc = posix_spawnattr_setsigmask(attr, &none);
	if (!rc)
		rc = posix_spawnattr_setsigdefault(attr, &every);
	if (!rc)
		rc = posix_spawn_file_actions_adddup2(files, lifeline, LIFELINE_FD);
	if (!rc)
		rc = posix_spawn_file_actions_addopen(files, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
	if (!rc)
		rc = posix_spawn_file_actions_adddup2(files, STDERR_FILENO, STDOUT_FILENO);
	if (!rc)
		rc = posix_spawn_file_actions_addclosefrom_np(files, LIFELINE_FD + 1);
	return -rc;
}

static int spawn(struct cl_private *p, const char *program, char *const *argv, int lifeline)
{
	posix_spawn_file_actions_t files;
	posix_spawnattr_t attr;
	int rc = -posix_spawnattr_init(&attr);

	if (rc)
		return rc;
	rc = -posix_spawn_file_actions_init(&files);
	if (!rc) {
		rc = spawn_attributes(&attr, &files, lifeline);
		if (!rc)
			rc = -posix_spawnp(&p->pid, program, &files, &attr, argv, environ);
		posix_spawn_file_actions_destroy(&files);
	}
	posix_spawnattr_destroy(&attr);
	return rc;
}

static int start(struct cl_private *p, const char *const *args)
{
	char fd[16], *argv[MAX_ARGS + 6] = {"attnd", "--socket", p->socket, "--private-fd", fd};
	char *program;
	int n = 5, ends[2], rc;

	for (; args && *args; args++) {
		if (n == MAX_ARGS + 5)
			return -E2BIG;
		argv[n++] = (char *)(uintptr_t)*args;
	}
	snprintf(fd, sizeof(fd), "%d", LIFELINE_FD);
	program = find_daemon();
	if (!program)
		return -ENOMEM;
	/* A socket, since shutting it down is an end of file whoever else holds this end. */
	if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends)) {
		free(program);
		return -errno;
	}
	p->lifeline = ends[0];
	list_add(p);
	rc = spawn(p, program, argv, ends[1]);
	close(ends[1]);
	free(program);
	return rc;
}

/* ---- End ---- */

static bool has_ended(struct cl_private *p)
{
	int rc = waitpid(p->pid, NULL, WNOHANG);

	return rc == p->pid || (rc < 0 && errno == ECHILD);
}

static bool wait_end(struct cl_private *p, int polls)
{
	struct timespec ts = {.tv_nsec = POLL_NS};

	while (!has_ended(p)) {
		if (!polls--)
			return false;
		nanosleep(&ts, NULL);
	}
	return true;
}

/* What a daemon that was killed left behind. */
static void remove_place(const char *path)
{
	DIR *dir = opendir(path);
	const struct dirent *e;

	while (dir && (e = readdir(dir)))
		if (strcmp(e->d_name, ".") && strcmp(e->d_name, ".."))
			unlinkat(dirfd(dir), e->d_name, 0);
	if (dir)
		closedir(dir);
	rmdir(path);
}

void cl_private_destroy(struct cl_private *p)
{
	if (!p)
		return;
	list_remove(p);
	if (p->lifeline >= 0) {
		shutdown(p->lifeline, SHUT_RDWR);
		close(p->lifeline);
	}
	if (p->owner == getpid()) {
		if (p->pid > 0 && !wait_end(p, END_POLLS)) {
			kill(p->pid, SIGKILL);
			wait_end(p, END_POLLS);
		}
		if (p->dir)
			remove_place(p->dir);
	}
	free(p->dir);
	free(p->socket);
	free(p);
}

/* While its socket is not there: is it still coming? */
static int check_start(void *arg)
{
	struct cl_private *p = arg;

	if (!has_ended(p))
		return 0;
	p->pid = 0;
	return -ENOEXEC;
}

static int fail_start(int rc, const char *text)
{
	struct cl_error e = {.error = rc};

	snprintf(e.detail, sizeof(e.detail), "%s", text);
	cl_error_keep(&e);
	return rc;
}

int attnd_private_start(attnd_t **ret, const char *const *args, const struct attnd_connect_options *options)
{
	struct cl_private *p = calloc(1, sizeof(*p));
	struct attnd *a;
	int rc;

	if (!p)
		return -ENOMEM;
	p->lifeline = -1;
	p->owner = getpid();
	rc = make_place(p);
	if (rc)
		rc = fail_start(rc, "a directory for the private daemon");
	if (!rc) {
		rc = start(p, args);
		if (rc)
			rc = fail_start(rc, "starting the private daemon (see ATTND_DAEMON)");
	}
	if (!rc) {
		rc = cl_connect(&a, options, p->socket, check_start, p);
		if (rc == -ENOEXEC)
			rc = fail_start(rc, "the private daemon ended at once; its reasons are on standard error");
	}
	if (rc) {
		cl_private_destroy(p);
		return rc;
	}
	a->private_daemon = p;
	*ret = a;
	return 0;
}
