/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a machine does to a daemon: no huge pages, no descriptors, a memory limit, a log that nobody
 * reads, a stop and a go-on, an end in the middle of the start; a worker that hangs.
 *
 * In: such machines. Out: TAP. Next: daemon/pool.c, log.c, beat.c, clients.c.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../../daemon/lead.h"
#include "../../shm/futex.h"
#include "../integration/raw.h"
#include "../integration/toy.h"
#include "../skip.h"

static bool logged(const struct daemon *d, const char *words)
{
	char path[100], line[1200];
	bool found = false;

	snprintf(path, sizeof(path), "%s/log", d->dir);
	FILE *f = fopen(path, "re");
	while (f && !found && fgets(line, sizeof(line), f))
		found = strstr(line, words) != NULL;
	if (f)
		fclose(f);
	return found;
}

static void forget(const struct daemon *d)
{
	char path[100];

	snprintf(path, sizeof(path), "%s/log", d->dir);
	unlink(path);
	unlink(d->config);
	assert_int_equal(rmdir(d->dir), 0); /* nothing else is left */
}

static void serve(const struct daemon *d, uint64_t key)
{
	uint64_t tokens[50], cached;
	struct toy t;
	attnd_t *a = daemon_connect(d);

	toy_tokens(tokens, 50, key * 1000);
	assert_int_equal(toy_open(&t, a, 1), 0);
	assert_int_equal(toy_prefill(&t, 1, tokens, 50, &cached), 0);
	attnd_disconnect(a);
}

static void test_no_huge_pages(void **state)
{
	const char *const args[] = {"--pool-size", "256G", "--hugepages", "require", NULL};
	struct daemon d;

	(void)state;
	assert_int_equal(daemon_start(&d, args), -ECHILD);
	assert_true(logged(&d, "huge pages are not there (hugepages = require)"));
	forget(&d);
}

/* More than there is, in plain pages: an error, never a SIGBUS. (A limit stands in for the machine's end.) */
static void test_file_size_limit(void **state)
{
	const char *const args[] = {"--pool-size", "64M", "--hugepages", "off", NULL};
	struct rlimit old, few;
	struct daemon d;

	(void)state;
	getrlimit(RLIMIT_FSIZE, &old);
	few = old;
	few.rlim_cur = 32 << 20;
	signal(SIGXFSZ, SIG_IGN); /* inherited, as by services that want an error */
	setrlimit(RLIMIT_FSIZE, &few);
	int r = daemon_start(&d, args);
	setrlimit(RLIMIT_FSIZE, &old);
	signal(SIGXFSZ, SIG_DFL);
	assert_int_equal(r, -ECHILD);
	assert_true(logged(&d, "cannot reserve 64 MiB (pool-size)"));
	forget(&d);
}

/* Refused before a page is taken, or the kernel would kill somebody. (No address space holds it, if it is tried.) */
static void test_more_than_there_is(void **state)
{
	const char *const plain[] = {"--pool-size", "512T", "--meta-size", "4M", "--hugepages", "off", NULL};
	char dir[] = "/dev/shm/attnd-test-XXXXXX", command[64];
	const char *const named[] = {"--pool-size", "512T",	   "--meta-size", "4M", "--hugepages",
				     "off",	    "--pool-path", dir,		  NULL};
	struct daemon d;

	(void)state;
	assert_int_equal(daemon_start(&d, plain), -ECHILD);
	assert_true(logged(&d, "536870912 MiB (pool-size) are more than the "));
	forget(&d);
	assert_non_null(mkdtemp(dir));
	assert_int_equal(daemon_start(&d, named), -ECHILD);
	assert_true(logged(&d, "536870912 MiB"));
	assert_true(logged(&d, "pool-path"));
	forget(&d);
	snprintf(command, sizeof(command), "rm -r %s", dir);
	assert_int_equal(system(command), 0);
}

/* ---- A memory limit ---- */

static bool write_file(const char *dir, const char *name, const char *text)
{
	char path[200];

	snprintf(path, sizeof(path), "%s/%s", dir, name);
	int fd = open(path, O_WRONLY | O_CLOEXEC);
	bool ok = fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text);
	if (fd >= 0)
		close(fd);
	return ok;
}

/* A group with this limit that this process is in; false where there is none to be had. */
static bool enter_group(const char *bytes, char dir[100])
{
	static const char *const roots[][2] = {{"/sys/fs/cgroup/memory", "memory.limit_in_bytes"},
					       {"/sys/fs/cgroup", "memory.max"}};
	char pid[20];

	snprintf(pid, sizeof(pid), "%d", (int)getpid());
	for (int i = 0; i < 2; i++) {
		snprintf(dir, 100, "%s/attnd-limit-%d", roots[i][0], (int)getpid());
		if (mkdir(dir, 0755))
			continue;
		if (write_file(dir, roots[i][1], bytes) && write_file(dir, "cgroup.procs", pid))
			return true;
		rmdir(dir);
	}
	return false;
}

/* In a process of its own, which is in the group. Exit: 0, 77 (no groups), or what was wrong. */
static int start_in_group(const char *pool, bool shall_start)
{
	const char *const args[] = {"--pool-size", pool,	"--meta-size", "4M", "--hugepages",
				    "off",	   "--threads", "1",	       NULL};
	struct daemon d;
	char dir[100];

	if (!enter_group("100663296", dir)) /* 96 MiB */
		return 77;
	int r = daemon_start(&d, args);
	if (!shall_start)
		return r == -ECHILD && logged(&d, "that the memory limit of the control group leaves") ? forget(&d),
		       0									       : 1;
	if (r)
		return 2;
	serve(&d, 1);
	daemon_clean(&d);
	return 0;
}

static void remove_group(pid_t pid)
{
	static const char *const roots[] = {"/sys/fs/cgroup/memory", "/sys/fs/cgroup"};
	char dir[100];

	for (int i = 0; i < 2; i++) {
		snprintf(dir, sizeof(dir), "%s/attnd-limit-%d", roots[i], (int)pid);
		for (int n = 0; n < 100 && rmdir(dir) && errno == EBUSY; n++)
			sleep_ms(20);
	}
}

static void test_memory_limit(void **state)
{
	int status;

	(void)state;
	if (sanitized())
		skip();
	for (int k = 0; k < 2; k++) {
		pid_t pid = fork();
		if (pid == 0)
			_exit(start_in_group(k ? "16M" : "512M", k));
		assert_int_equal(waitpid(pid, &status, 0), pid);
		remove_group(pid);
		if (WIFEXITED(status) && WEXITSTATUS(status) == 77) {
			print_message("no memory control group is to be had here\n");
			skip();
		}
		assert_true(WIFEXITED(status));
		assert_int_equal(WEXITSTATUS(status), 0);
	}
}

/* ---- CPUs ---- */

/* How many threads of a process may run elsewhere than on this CPU. */
static int elsewhere(pid_t pid, unsigned cpu)
{
	char path[64], line[256], want[64];
	int bad = 0, threads = 0;
	struct dirent *e;

	snprintf(path, sizeof(path), "/proc/%d/task", (int)pid);
	snprintf(want, sizeof(want), "Cpus_allowed_list:\t%u\n", cpu);
	DIR *d = opendir(path);
	assert_non_null(d);
	while ((e = readdir(d))) {
		snprintf(path, sizeof(path), "/proc/%d/task/%.20s/status", (int)pid, e->d_name);
		FILE *f = *e->d_name != '.' ? fopen(path, "re") : NULL;
		while (f && fgets(line, sizeof(line), f)) {
			if (strncmp(line, "Cpus_allowed_list:", 18))
				continue;
			threads++;
			bad += strcmp(line, want) != 0;
		}
		if (f)
			fclose(f);
	}
	closedir(d);
	assert_true(threads >= 2);
	return bad;
}

/* What a container's cpuset or taskset allows: here the last CPU alone, though there are others. */
static void test_allowed_cpus(void **state)
{
	const char *const args[] = {"--pool-size", "16M", "--hugepages", "off", NULL};
	cpu_set_t old, one;
	struct daemon d;
	unsigned cpu = CPU_SETSIZE - 1;

	(void)state;
	assert_int_equal(sched_getaffinity(0, sizeof(old), &old), 0);
	while (!CPU_ISSET(cpu, &old))
		cpu--;
	CPU_ZERO(&one);
	CPU_SET(cpu, &one);
	assert_int_equal(sched_setaffinity(0, sizeof(one), &one), 0);
	int r = daemon_start(&d, args);
	assert_int_equal(sched_setaffinity(0, sizeof(old), &old), 0);
	assert_int_equal(r, 0);
	serve(&d, 1);
	assert_int_equal(elsewhere(d.pid, cpu), 0);
	assert_int_equal(daemon_number(&d, "threads"), 1);
	assert_int_equal(daemon_number(&d, "pool.nodes.0.cpus"), 1);
	daemon_clean(&d);
}

/* ---- Descriptors ---- */

static void test_few_descriptors(void **state)
{
	const char *const args[] = {"--pool-size", "16M", "--hugepages", "off", NULL};
	enum { CLIENTS = 40 };
	struct raw r[CLIENTS];
	struct rlimit old, few;
	struct daemon d;
	int e = 0, n;

	(void)state;
	if (sanitized())
		skip();
	getrlimit(RLIMIT_NOFILE, &old);
	few = (struct rlimit){.rlim_cur = 60, .rlim_max = 60};
	pid_t pid = fork();
	if (pid == 0) { /* the hard limit does not come up again */
		setrlimit(RLIMIT_NOFILE, &few);
		if (daemon_start(&d, args))
			_exit(1);
		/* More than it has descriptors for; each that does not fit is told or closed. */
		for (n = 0; n < CLIENTS && e == 0; n++) {
			few.rlim_cur = 60;
			e = raw_connect(&r[n], d.socket);
		}
		if (n == CLIENTS)
			_exit(2);
		for (int i = 0; i < n; i++)
			raw_close(&r[i]);
		struct in_use none = {0};
		daemon_wait_in_use(&d, &none);
		serve(&d, 1);
		daemon_clean(&d);
		_exit(0);
	}
	int status;
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_true(WIFEXITED(status));
	assert_int_equal(WEXITSTATUS(status), 0);
}

/* So few that it cannot start: it says so. */
static void test_too_few_descriptors(void **state)
{
	const char *const args[] = {"--pool-size", "16M", "--hugepages", "off", NULL};
	int status;

	(void)state;
	if (sanitized())
		skip();
	for (rlim_t n = 5; n < 16; n++) {
		pid_t pid = fork();
		if (pid == 0) {
			struct rlimit few = {.rlim_cur = n, .rlim_max = n};
			struct daemon d;

			setrlimit(RLIMIT_NOFILE, &few);
			int r = daemon_start(&d, args);
			if (r == 0) {
				daemon_clean(&d);
				_exit(0);
			}
			_exit(r == -ECHILD ? 0 : 1);
		}
		assert_int_equal(waitpid(pid, &status, 0), pid);
		assert_true(WIFEXITED(status));
		assert_int_equal(WEXITSTATUS(status), 0);
	}
}

/* ---- A log that nobody reads ---- */

/* Start the daemon by hand, with this as its standard error. */
static pid_t spawn(const char *socket, int log, bool term_pending)
{
	const char *path = getenv("ATTND_DAEMON");
	pid_t pid = fork();

	if (pid)
		return pid;
	if (term_pending) {
		sigset_t set;

		sigemptyset(&set);
		sigaddset(&set, SIGTERM);
		sigprocmask(SIG_BLOCK, &set, NULL);
		raise(SIGTERM); /* waits: it is seen as soon as anybody looks */
	}
	dup2(log, STDERR_FILENO);
	execl(path ? path : "build/attnd", "attnd", "--config", "/dev/null", "--socket", socket, "--pool-size", "64M",
	      "--hugepages", "off", "--log-level", "debug", NULL);
	_exit(127);
}

static void test_full_log(void **state)
{
	char dir[] = "/tmp/attnd-test-XXXXXX", socket[80];
	struct in_use none = {0};
	struct daemon d = {.pid = 0};
	int fds[2], status;

	(void)state;
	assert_non_null(mkdtemp(dir));
	for (int kind = 0; kind < 2; kind++) { /* a pipe, and a socket as the journal's */
		snprintf(socket, sizeof(socket), "%s/s", dir);
		assert_int_equal(
			kind ? socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds) : pipe2(fds, O_CLOEXEC), 0);
		fcntl(fds[1], F_SETFL, O_NONBLOCK);
		while (write(fds[1], dir, sizeof(dir)) > 0)
			;
		fcntl(fds[1], F_SETFL, 0); /* whoever writes now, waits */
		d.pid = spawn(socket, fds[1], false);
		snprintf(d.socket, sizeof(d.socket), "%s", socket);
		snprintf(d.admin, sizeof(d.admin), "%s.admin", socket);
		for (int i = 0; i < 1000 && access(d.socket, F_OK); i++)
			sleep_ms(10);
		for (int i = 0; i < 50; i++) { /* each writes some lines */
			struct raw r;
			int e = raw_connect(&r, d.socket);

			while (e == -ECONNREFUSED) { /* bound, and not yet listening */
				raw_close(&r);
				sleep_ms(10);
				e = raw_connect(&r, d.socket);
			}
			assert_int_equal(e, 0);
			raw_close(&r);
		}
		serve(&d, 1);
		daemon_wait_in_use(&d, &none);
		kill(d.pid, SIGTERM);
		assert_int_equal(waitpid(d.pid, &status, 0), d.pid);
		assert_int_equal(status, 0);
		close(fds[0]);
		close(fds[1]);
	}
	assert_int_equal(rmdir(dir), 0);
}

/* ---- Signals ---- */

static void test_end_in_the_start(void **state)
{
	char dir[] = "/tmp/attnd-test-XXXXXX", socket[80], text[4096];
	int fds[2], status;

	(void)state;
	assert_non_null(mkdtemp(dir));
	snprintf(socket, sizeof(socket), "%s/s", dir);
	assert_int_equal(pipe2(fds, O_CLOEXEC), 0);
	pid_t pid = spawn(socket, fds[1], true);
	close(fds[1]);
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_int_equal(status, 0);
	ssize_t n = read(fds[0], text, sizeof(text) - 1);
	assert_true(n > 0);
	text[n] = '\0';
	assert_non_null(strstr(text, "told to end before it served"));
	close(fds[0]);
	assert_int_equal(rmdir(dir), 0);
}

/* The daemon stands still for longer than a deadline: its client is told in time, and goes on after. */
static void test_stopped_daemon(void **state)
{
	const char *const args[] = {"--pool-size", "16M", "--hugepages", "off", NULL};
	struct attnd_connect_options options = {
		.name = "patient", .default_deadline_us = 300000, .timeout_us = 20000000};
	uint64_t tokens[20], cached;
	struct daemon d;
	struct toy t;
	attnd_t *a;

	(void)state;
	assert_int_equal(daemon_start(&d, args), 0);
	options.socket = d.socket;
	assert_int_equal(attnd_connect(&a, &options), 0);
	assert_int_equal(toy_open(&t, a, 1), 0);
	assert_int_equal(daemon_freeze(&d), 0);
	uint64_t before = attnd_now_ns();
	assert_int_equal(attnd_ping(a, 300000), -ETIMEDOUT);
	assert_in_range(attnd_now_ns() - before, 200000000, UINT64_C(8000000000));
	daemon_thaw(&d);
	toy_tokens(tokens, 20, 1);
	int e = -ETIMEDOUT;
	for (int i = 0; i < 50 && e == -ETIMEDOUT; i++)
		e = toy_prefill(&t, (uint64_t)i + 1, tokens, 20, &cached);
	assert_int_equal(e, 0);
	attnd_disconnect(a);
	daemon_clean(&d);
}

/* A client stands still in the middle of what it does, with its rings full: nobody waits for it. */
static void test_stopped_client(void **state)
{
	const char *const args[] = {"--pool-size", "16M", "--hugepages", "off", NULL};
	struct daemon d;
	int status, fds[2];
	char byte;

	(void)state;
	assert_int_equal(daemon_start(&d, args), 0);
	assert_int_equal(pipe2(fds, O_CLOEXEC), 0);
	pid_t pid = fork();
	if (pid == 0) {
		struct attnd_sqe ping = {.opcode = ATTND_OP_PING, .deadline_us = RAW_DEADLINE_US};
		struct raw r;

		if (raw_connect(&r, d.socket))
			_exit(1);
		for (int i = 0; i < 64; i++)
			raw_put(&r, &ping);
		if (write(fds[1], "", 1) != 1)
			_exit(1);
		raise(SIGSTOP);
		_exit(0);
	}
	assert_int_equal(read(fds[0], &byte, 1), 1);
	assert_int_equal(waitpid(pid, &status, WUNTRACED), pid);
	assert_true(WIFSTOPPED(status));
	for (uint64_t i = 1; i < 5; i++)
		serve(&d, i);
	kill(pid, SIGCONT);
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_int_equal(status, 0);
	close(fds[0]);
	close(fds[1]);
	struct in_use none = {0};
	daemon_wait_in_use(&d, &none);
	daemon_clean(&d);
}

/* ---- The heartbeat ---- */

static struct leader leader_;
static _Atomic uint32_t go_;
static _Atomic bool inside_;

static void hang(struct team_job *job, uint32_t phase, uint32_t item, struct member *m)
{
	(void)job;
	(void)phase;
	(void)item;
	(void)m;
	atomic_store(&inside_, true);
	while (!atomic_load(&go_))
		attnd_futex_wait(&go_, 0, 100000000);
}

static void test_worker_hangs(void **state)
{
	static struct topology topology = {.num_nodes = 1, .nodes = {{.num_cpus = 1}}};
	static struct team_job job = {.num_nodes = 1, .run = hang};
	struct beat beat;

	(void)state;
	realm_table_init(&leader_.realms, 1);
	assert_int_equal(team_init(&leader_.team, &topology, 2, false, 20, -1), 0);
	beat_take(&leader_, &beat);
	assert_false(beat.stuck);
	for (int phase = 0; phase < TEAM_PHASES; phase++)
		job.phases[phase].first[1] = phase == 0;
	assert_true(team_submit(&leader_.team, &job));
	while (!atomic_load(&inside_))
		attnd_pause();
	beat_take(&leader_, &beat); /* it may just have begun */
	assert_false(beat.stuck);
	beat_take(&leader_, &beat);
	assert_true(beat.stuck);
	atomic_store(&go_, 1);
	attnd_futex_wake(&go_, 1);
	while (!atomic_load(&job.finished))
		attnd_pause();
	team_retire(&leader_.team, &job);
	beat_take(&leader_, &beat);
	beat_take(&leader_, &beat);
	assert_false(beat.stuck);
	team_destroy(&leader_.team);
	realm_table_destroy(&leader_.realms);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_no_huge_pages),	    cmocka_unit_test(test_file_size_limit),
		cmocka_unit_test(test_more_than_there_is),  cmocka_unit_test(test_allowed_cpus),
		cmocka_unit_test(test_memory_limit),	    cmocka_unit_test(test_few_descriptors),
		cmocka_unit_test(test_too_few_descriptors), cmocka_unit_test(test_full_log),
		cmocka_unit_test(test_end_in_the_start),    cmocka_unit_test(test_stopped_daemon),
		cmocka_unit_test(test_stopped_client),	    cmocka_unit_test(test_worker_hangs),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
