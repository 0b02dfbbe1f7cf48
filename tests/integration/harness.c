/* SPDX-License-Identifier: Apache-2.0 */
/*
 * In: flags, pids. Out: processes started and ended, and what /proc and attnctl say of them.
 * Next: harness.h's callers.
 */
#include "harness.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { MAX_ARGS = 32 };

void sleep_ms(unsigned ms)
{
	struct timespec ts = {.tv_sec = ms / 1000, .tv_nsec = (long)(ms % 1000) * 1000000};

	while (nanosleep(&ts, &ts) < 0)
		;
}

static const char *daemon_path(void)
{
	const char *path = getenv("ATTND_DAEMON");

	return path ? path : "build/attnd";
}

static void run_daemon(const struct daemon *d, const char *const *args)
{
	const char *argv[MAX_ARGS + 8] = {daemon_path(), "--config", d->config, "--socket", d->socket};
	char log[80];
	size_t n = 5;

	for (size_t i = 0; args && args[i] && i < MAX_ARGS; i++)
		argv[n++] = args[i];
	snprintf(log, sizeof(log), "%s/log", d->dir);
	int fd = open(log, O_WRONLY | O_CREAT | O_APPEND, 0600);
	dup2(fd, STDOUT_FILENO);
	dup2(fd, STDERR_FILENO);
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	execv(argv[0], (char *const *)(uintptr_t)argv);
	_exit(127);
}

static int listens(const char *path)
{
	struct sockaddr_un addr = {.sun_family = AF_UNIX};
	int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);

	strcpy(addr.sun_path, path);
	int ok = connect(fd, (struct sockaddr *)&addr, sizeof(addr)) == 0;
	close(fd);
	return ok;
}

int daemon_again(struct daemon *d, const char *const *args)
{
	d->pid = fork();
	if (d->pid < 0)
		return -errno;
	if (d->pid == 0)
		run_daemon(d, args);
	for (int i = 0; i < 1000; i++) {
		if (listens(d->socket))
			return 0;
		if (waitpid(d->pid, NULL, WNOHANG) == d->pid) {
			d->pid = 0;
			return -ECHILD;
		}
		sleep_ms(20);
	}
	return -ETIMEDOUT;
}

int daemon_start(struct daemon *d, const char *const *args)
{
	*d = (struct daemon){.dir = "/tmp/attnd-test-XXXXXX"};
	if (!mkdtemp(d->dir))
		return -errno;
	snprintf(d->socket, sizeof(d->socket), "%s/s", d->dir);
	snprintf(d->config, sizeof(d->config), "%s/config", d->dir);
	int fd = open(d->config, O_WRONLY | O_CREAT | O_CLOEXEC, 0644);
	if (fd < 0)
		return -errno;
	close(fd);
	snprintf(d->admin, sizeof(d->admin), "%s.admin", d->socket);
	return daemon_again(d, args);
}

int daemon_end(struct daemon *d, int sig)
{
	int status;

	kill(d->pid, sig);
	for (int i = 0; i < 1500; i++) {
		if (waitpid(d->pid, &status, WNOHANG) == d->pid) {
			d->pid = 0;
			return status;
		}
		sleep_ms(20);
	}
	kill(d->pid, SIGKILL);
	waitpid(d->pid, &status, 0);
	d->pid = 0;
	return -ETIMEDOUT;
}

int daemon_freeze(struct daemon *d)
{
	int status;

	kill(d->pid, SIGSTOP);
	return waitpid(d->pid, &status, WUNTRACED) == d->pid && WIFSTOPPED(status) ? 0 : -ECHILD;
}

void daemon_thaw(struct daemon *d)
{
	kill(d->pid, SIGCONT);
}

static void print_log(const struct daemon *d)
{
	char path[80], line[512];

	snprintf(path, sizeof(path), "%s/log", d->dir);
	FILE *f = fopen(path, "re");
	while (f && fgets(line, sizeof(line), f))
		printf("# %s", line);
	if (f)
		fclose(f);
}

static void remove_directory(const char *dir)
{
	DIR *dp = opendir(dir);

	for (struct dirent *e; dp && (e = readdir(dp));)
		unlinkat(dirfd(dp), e->d_name, 0);
	if (dp)
		closedir(dp);
	rmdir(dir);
}

void daemon_clean(struct daemon *d)
{
	int status = d->pid ? daemon_end(d, SIGTERM) : 0;

	if (status)
		print_log(d);
	remove_directory(d->dir);
	assert_int_equal(status, 0);
}

json_t *daemon_json(const struct daemon *d, const char *command)
{
	const char *build = getenv("BUILD");
	char line[512];

	snprintf(line, sizeof(line), "%s/attnctl --socket %s %s --json", build ? build : "build", d->admin, command);
	FILE *f = popen(line, "re");
	json_t *j = f ? json_loadf(f, 0, NULL) : NULL;
	if (f)
		pclose(f);
	return j;
}

int64_t daemon_number(const struct daemon *d, const char *path)
{
	json_t *root = daemon_json(d, "status"), *j = root;
	char copy[128], *rest = copy;
	int64_t n = -1;

	snprintf(copy, sizeof(copy), "%s", path);
	for (char *key; j && (key = strsep(&rest, "."));)
		j = json_is_array(j) ? json_array_get(j, strtoul(key, NULL, 10)) : json_object_get(j, key);
	if (json_is_number(j))
		n = (int64_t)json_number_value(j);
	json_decref(root);
	return n;
}

attnd_t *daemon_connect(const struct daemon *d)
{
	struct attnd_connect_options options = {.socket = d->socket, .name = "test"};
	attnd_t *a = NULL;
	int e = attnd_connect(&a, &options);

	if (e < 0)
		print_message("connect: %s\n", attnd_strerror(NULL, e));
	assert_int_equal(e, 0);
	return a;
}

/* The n-th number (from 1) of a line of /proc/PID/FILE, after the last ')' if there is one. */
static int64_t proc_number(pid_t pid, const char *file, int n)
{
	char path[64], text[1024];

	snprintf(path, sizeof(path), "/proc/%d/%s", (int)pid, file);
	FILE *f = fopen(path, "re");
	if (!f)
		return -1;
	size_t got = fread(text, 1, sizeof(text) - 1, f);
	fclose(f);
	text[got] = '\0';
	char *p = strrchr(text, ')');
	p = p ? p + 1 : text;
	for (char *word; (word = strsep(&p, " \n"));)
		if (*word && --n == 0)
			return strtoll(word, NULL, 10);
	return -1;
}

int64_t proc_rss_kib(pid_t pid)
{
	int64_t pages = proc_number(pid, "statm", 2);

	return pages < 0 ? -1 : pages * (sysconf(_SC_PAGESIZE) / 1024);
}

int64_t proc_ticks(pid_t pid)
{
	int64_t user = proc_number(pid, "stat", 12), system = proc_number(pid, "stat", 13);

	return user < 0 || system < 0 ? -1 : user + system;
}

int64_t proc_fds(pid_t pid)
{
	char path[64];
	int64_t n = 0;

	snprintf(path, sizeof(path), "/proc/%d/fd", (int)pid);
	DIR *dp = opendir(path);
	if (!dp)
		return -1;
	while (readdir(dp))
		n++;
	closedir(dp);
	return n - 2;
}

void daemon_in_use(const struct daemon *d, struct in_use *ret)
{
	*ret = (struct in_use){
		.sessions = daemon_number(d, "sessions"),
		.sequences = daemon_number(d, "counters.sequences"),
		.referenced = daemon_number(d, "pool.bytes_referenced"),
		.arena_bytes = daemon_number(d, "arena_bytes"),
	};
}

void daemon_wait_in_use(const struct daemon *d, const struct in_use *want)
{
	struct in_use now;

	for (int i = 0; i < 100; i++) {
		daemon_in_use(d, &now);
		if (memcmp(&now, want, sizeof(now)) == 0)
			return;
		sleep_ms(100);
	}
	print_message("in use: %lld sessions, %lld sequences, %lld bytes referenced, %lld arena bytes\n",
		      (long long)now.sessions, (long long)now.sequences, (long long)now.referenced,
		      (long long)now.arena_bytes);
	print_log(d);
	fail_msg("this is not what it should come back to");
}
