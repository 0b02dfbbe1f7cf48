/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The daemon as a process, with a leader that runs no attention: how it starts, is refused, is
 * reloaded and ends, and what attnctl says. It tells by sd_notify when it is ready: no sleeping.
 *
 * In: flags, signals, sockets of systemd. Out: TAP. Next: daemon/main.c.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/pidfd.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "peer.h"

enum { WAIT_MS = 30000, MAX_FLAGS = 24 };

struct process {
	pid_t pid; /* 0: none */
	int pidfd, notify, log;
	void (*prepare)(const struct process *p); /* in the child, before exec */
	int fds[2];				  /* for prepare */
	char log_text[8192];
};

static char dir[40], socket_path[60], admin_path[70], lock_path[70];

/* ---- Processes ---- */

static int make_dir(void **state)
{
	(void)state;
	strcpy(dir, "/tmp/attnd-test-XXXXXX");
	assert_non_null(mkdtemp(dir));
	chmod(dir, 0755);
	snprintf(socket_path, sizeof(socket_path), "%s/s", dir);
	snprintf(admin_path, sizeof(admin_path), "%s.admin", socket_path);
	snprintf(lock_path, sizeof(lock_path), "%s.lock", socket_path);
	return 0;
}

static int remove_dir(void **state)
{
	(void)state;
	unlink(socket_path);
	unlink(admin_path);
	unlink(lock_path);
	rmdir(dir);
	return 0;
}

static void program(char path[512], const char *name)
{
	const char *build = getenv("BUILD");

	snprintf(path, 512, "%s/%s", build ? build : "build", name);
}

/* An abstract socket on which a child tells systemd's news. */
static int notify_socket(char name[64])
{
	static int counter;
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	int n = snprintf(name, 64, "@attnd-test-%d-%d", (int)getpid(), ++counter);

	memcpy(address.sun_path + 1, name + 1, (size_t)n - 1);
	assert_int_equal(bind(fd, (struct sockaddr *)&address,
			      (socklen_t)(offsetof(struct sockaddr_un, sun_path) + (size_t)n)),
			 0);
	return fd;
}

static void run(const struct process *p, const char *path, const char *const *flags, const char *notify)
{
	const char *argv[MAX_FLAGS + 4] = {path, "--pool-size=16M"};
	size_t n = 2;
	sigset_t none;

	while (*flags)
		argv[n++] = *flags++;
	dup2(p->log, STDERR_FILENO);
	dup2(p->log, STDOUT_FILENO);
	setenv("NOTIFY_SOCKET", notify, 1);
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	sigemptyset(&none);
	sigprocmask(SIG_SETMASK, &none, NULL);
	if (p->prepare)
		p->prepare(p);
	execv(path, (char *const *)(uintptr_t)argv);
	_exit(127);
}

#define START(p, ...) start(p, (const char *const[]){__VA_ARGS__, NULL})

static void start(struct process *p, const char *const *flags)
{
	char path[512], notify[64];

	program(path, "tests/control/stub_leader");
	p->notify = notify_socket(notify);
	p->log = memfd_create("log", MFD_CLOEXEC);
	p->pid = fork();
	if (p->pid == 0)
		run(p, path, flags, notify);
	p->pidfd = pidfd_open(p->pid, 0);
	assert_true(p->pidfd >= 0);
}

static const char *log_text(struct process *p)
{
	ssize_t n = pread(p->log, p->log_text, sizeof(p->log_text) - 1, 0);

	p->log_text[n > 0 ? n : 0] = '\0';
	return p->log_text;
}

static void assert_logged(struct process *p, const char *words)
{
	if (!strstr(log_text(p), words))
		fail_msg("no \"%s\" in: %s", words, p->log_text);
}

/* Wait for a message to systemd with this in it. */
static void wait_for(struct process *p, const char *words)
{
	char text[512];
	ssize_t n;

	do {
		struct pollfd fds[] = {{.fd = p->notify, .events = POLLIN}, {.fd = p->pidfd, .events = POLLIN}};

		assert_int_not_equal(poll(fds, 2, WAIT_MS), 0);
		if (!fds[0].revents)
			fail_msg("it ended before %s: %s", words, log_text(p));
		n = recv(p->notify, text, sizeof(text) - 1, 0);
		assert_true(n >= 0);
		text[n] = '\0';
	} while (!strstr(text, words));
}

/* Its exit code, or minus the signal that killed it. */
static int wait_exit(struct process *p)
{
	struct pollfd fd = {.fd = p->pidfd, .events = POLLIN};
	int status;

	if (poll(&fd, 1, WAIT_MS) == 0) {
		kill(p->pid, SIGKILL);
		waitpid(p->pid, &status, 0);
		fail_msg("it does not end: %s", log_text(p));
	}
	assert_int_equal(waitpid(p->pid, &status, 0), p->pid);
	close(p->pidfd);
	close(p->notify);
	p->pid = 0;
	return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

static void ready(struct process *p)
{
	wait_for(p, "READY=1");
}

static void assert_end(struct process *p, int sig, int code)
{
	int got;

	if (sig)
		kill(p->pid, sig);
	got = wait_exit(p);
	if (got != code)
		fail_msg("exit %d instead of %d: %s", got, code, log_text(p));
	close(p->log);
}

static bool exists(const char *path)
{
	return access(path, F_OK) == 0;
}

static const char *socket_flag(void)
{
	static char flag[80];

	snprintf(flag, sizeof(flag), "--socket=%s", socket_path);
	return flag;
}

static void start_default(struct process *p)
{
	START(p, "--config=/dev/null", socket_flag());
	ready(p);
}

/* ---- Starting and ending ---- */

static void test_term(void **state)
{
	const int signals[] = {SIGTERM, SIGINT};
	struct process p = {0};

	(void)state;
	for (size_t i = 0; i < 2; i++) {
		start_default(&p);
		assert_true(exists(socket_path) && exists(admin_path) && exists(lock_path));
		kill(p.pid, signals[i]);
		wait_for(&p, "STOPPING=1");
		assert_logged(&p, "draining");
		assert_end(&p, 0, 0);
		assert_false(exists(socket_path) || exists(admin_path) || exists(lock_path));
	}
}

static void test_second_daemon(void **state)
{
	struct process first = {0}, second = {0};
	struct stat st;
	char pid[32];

	(void)state;
	start_default(&first);
	START(&second, "--config=/dev/null", socket_flag());
	assert_int_equal(wait_exit(&second), 1);
	snprintf(pid, sizeof(pid), "pid %d serves", (int)first.pid);
	assert_logged(&second, pid);
	assert_logged(&second, socket_path);
	close(second.log);
	assert_true(exists(socket_path) && exists(lock_path));
	assert_int_equal(stat(lock_path, &st), 0);
	assert_int_equal(st.st_mode & 07777, 0600); /* or anybody could wait for it, and have it now */
	assert_end(&first, SIGTERM, 0);
}

/* What a killed daemon leaves does not hinder the next, and the next cleans up. */
static void test_killed(void **state)
{
	struct process p = {0};

	(void)state;
	for (int i = 0; i < 2; i++) {
		start_default(&p);
		assert_end(&p, SIGKILL, -SIGKILL);
		assert_true(exists(socket_path) && exists(admin_path));
	}
	start_default(&p);
	assert_end(&p, SIGTERM, 0);
	assert_false(exists(socket_path) || exists(admin_path) || exists(lock_path));
}

static void test_foreign_file(void **state)
{
	struct process p = {0};
	struct stat st;
	int fd = open(socket_path, O_CREAT | O_WRONLY | O_CLOEXEC, 0600);

	(void)state;
	assert_int_equal(write(fd, "mine", 4), 4);
	close(fd);
	START(&p, "--config=/dev/null", socket_flag());
	assert_int_equal(wait_exit(&p), 1);
	assert_logged(&p, "not a socket");
	close(p.log);
	assert_int_equal(stat(socket_path, &st), 0);
	assert_int_equal(st.st_size, 4);
	assert_false(exists(admin_path));
}

/* Somebody else listens where the administrators' socket should be: that stays theirs. */
static void test_foreign_listener(void **state)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	struct process p = {0};

	(void)state;
	strcpy(address.sun_path, admin_path);
	assert_int_equal(bind(fd, (struct sockaddr *)&address, sizeof(address)), 0);
	assert_int_equal(listen(fd, 1), 0);
	START(&p, "--config=/dev/null", socket_flag());
	assert_int_equal(wait_exit(&p), 1);
	assert_logged(&p, admin_path);
	close(p.log);
	assert_true(exists(admin_path));
	assert_false(exists(socket_path));
	close(fd);
}

static void umask_0(const struct process *p)
{
	(void)p;
	umask(0);
}

static void umask_777(const struct process *p)
{
	(void)p;
	umask(0777);
}

static void test_modes(void **state)
{
	void (*const prepare[])(const struct process *) = {umask_0, umask_777};
	struct stat st;

	(void)state;
	for (size_t i = 0; i < 2; i++) {
		struct process p = {.prepare = prepare[i]};
		const struct group *group = geteuid() == 0 ? getgrgid(1) : getgrgid(getegid());
		char flag[80];

		snprintf(flag, sizeof(flag), "--socket-group=%s", group->gr_name);
		START(&p, "--config=/dev/null", socket_flag(), "--socket-mode=0640", flag);
		ready(&p);
		assert_int_equal(stat(socket_path, &st), 0);
		assert_int_equal(st.st_mode & 07777, 0640);
		assert_int_equal(st.st_gid, group->gr_gid);
		assert_int_equal(stat(admin_path, &st), 0);
		assert_int_equal(st.st_mode & 07777, 0600);
		assert_end(&p, SIGTERM, 0);
		if (i == 0)
			unlink(lock_path);
	}
}

static void test_missing_directory(void **state)
{
	struct process p = {.prepare = umask_777};
	char deep[100], flag[120];
	struct stat st;

	(void)state;
	snprintf(deep, sizeof(deep), "%s/made", dir);
	snprintf(flag, sizeof(flag), "--socket=%s/s", deep);
	START(&p, "--config=/dev/null", flag);
	ready(&p);
	assert_int_equal(stat(deep, &st), 0);
	assert_int_equal(st.st_mode & 07777, 0755);
	assert_end(&p, SIGTERM, 0);
	assert_int_equal(rmdir(deep), 0); /* and nothing is left in it */
	snprintf(flag, sizeof(flag), "--socket=%s/a/b/s", deep);
	START(&p, "--config=/dev/null", flag);
	assert_int_equal(wait_exit(&p), 1);
	assert_logged(&p, "/a/b/s.lock: No such file or directory: its directory must exist");
	close(p.log);
}

static void keep_fd(const struct process *p)
{
	fcntl(p->fds[0], F_SETFD, 0);
}

static void test_private(void **state)
{
	struct process p = {.prepare = keep_fd};
	char flag[32];

	(void)state;
	for (int i = 0; i < 2; i++) { /* a pipe, a socketpair */
		make_dir(state);
		if (i == 0)
			assert_int_equal(pipe2(p.fds, O_CLOEXEC), 0);
		else
			assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, p.fds), 0);
		snprintf(flag, sizeof(flag), "--private-fd=%d", p.fds[0]);
		START(&p, socket_flag(), flag);
		ready(&p);
		close(p.fds[0]);
		assert_int_equal(write(p.fds[1], "noise", 5), 5);
		close(p.fds[1]);
		assert_end(&p, 0, 0);
		assert_false(exists(dir));
	}
}

/* A leader that does not drain: a second signal ends it, or the time limit does. */
static void test_stuck_leader(void **state)
{
	struct process p = {0};

	(void)state;
	setenv("STUB_LEADER", "stuck", 1);
	start_default(&p);
	kill(p.pid, SIGTERM);
	wait_for(&p, "STOPPING=1");
	assert_end(&p, SIGTERM, 0);
	START(&p, "--config=/dev/null", socket_flag(), "--drain-timeout=1");
	ready(&p);
	kill(p.pid, SIGTERM);
	assert_int_equal(wait_exit(&p), 0);
	assert_logged(&p, "not drained within 1 s");
	close(p.log);
	START(&p, "--config=/dev/null", socket_flag(), "--drain-on-term=false");
	ready(&p);
	assert_end(&p, SIGTERM, 0);
	assert_false(exists(socket_path) || exists(admin_path) || exists(lock_path));
	unsetenv("STUB_LEADER");
}

/* ---- Reload, systemd, io_uring ---- */

static void write_config(const char *path, const char *text)
{
	FILE *f = fopen(path, "we");

	assert_non_null(f);
	fputs(text, f);
	fclose(f);
}

static void test_reload(void **state)
{
	struct process p = {0};
	char path[80], flag[100];
	int sock;

	(void)state;
	snprintf(path, sizeof(path), "%s/conf", dir);
	snprintf(flag, sizeof(flag), "--config=%s", path);
	write_config(path, "[limits]\nmax-sessions = 9\n");
	START(&p, flag, socket_flag());
	ready(&p);
	write_config(path, "[limits]\nmax-sessions = 17\n[engine]\nthreads = 3\n");
	kill(p.pid, SIGHUP);
	wait_for(&p, "RELOADING=1");
	ready(&p);
	assert_logged(&p, "restart: threads");
	assert_logged(&p, "configuration reloaded");
	write_config(path, "[limits]\nmax-sessions = 0\n");
	kill(p.pid, SIGHUP);
	wait_for(&p, "RELOADING=1");
	ready(&p);
	assert_logged(&p, "not reloaded");
	assert_logged(&p, "conf:2: max-sessions");
	sock = peer_connect(admin_path, SOCK_STREAM);
	assert_int_equal(send(sock, "status\n", 7, MSG_NOSIGNAL), 7);
	char text[4096] = "";
	for (ssize_t n, at = 0; (n = recv(sock, text + at, sizeof(text) - 1 - (size_t)at, 0)) > 0; at += n)
		;
	close(sock);
	assert_non_null(strstr(text, "\"max_sessions\":17"));
	assert_end(&p, SIGTERM, 0);
	unlink(path);
}

static int listening(const char *path, int type)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	int fd = socket(AF_UNIX, type, 0);

	strcpy(address.sun_path, path);
	assert_int_equal(bind(fd, (struct sockaddr *)&address, sizeof(address)), 0);
	assert_int_equal(listen(fd, 8), 0);
	return fd;
}

static void activate(const struct process *p)
{
	char pid[16];

	dup2(p->fds[0], 3);
	dup2(p->fds[1], 4);
	snprintf(pid, sizeof(pid), "%d", (int)getpid());
	setenv("LISTEN_PID", pid, 1);
	setenv("LISTEN_FDS", "2", 1);
	setenv("LISTEN_FDNAMES", "attnd:admin", 1);
}

static void activate_swapped(const struct process *p)
{
	activate(p);
	setenv("LISTEN_FDNAMES", "admin:attnd", 1);
}

/* Sockets of systemd are served, and stay when the daemon ends. */
static void test_activation(void **state)
{
	struct process p = {.prepare = activate};
	struct attnd_msg_hello hello = peer_hello_message();
	struct attnd_msg_welcome welcome;
	int client;

	(void)state;
	p.fds[0] = fcntl(listening(socket_path, SOCK_SEQPACKET), F_DUPFD_CLOEXEC, 10);
	p.fds[1] = fcntl(listening(admin_path, SOCK_STREAM), F_DUPFD_CLOEXEC, 10);
	client = peer_connect(socket_path, SOCK_SEQPACKET); /* before there is a daemon */
	assert_int_equal(peer_send(client, &hello, sizeof(hello), NULL, 0), 0);
	START(&p, "--config=/dev/null", socket_flag());
	assert_int_equal(recv(client, &welcome, sizeof(welcome), 0), sizeof(welcome));
	assert_int_equal(welcome.status, 0);
	close(client);
	assert_end(&p, SIGTERM, 0);
	assert_true(exists(socket_path) && exists(admin_path));
	assert_false(exists(lock_path));

	p.prepare = activate_swapped;
	START(&p, "--config=/dev/null", socket_flag());
	assert_int_equal(wait_exit(&p), 1);
	assert_logged(&p, "socket activation");
	close(p.log);
	close(p.fds[0]);
	close(p.fds[1]);
}

static void set_watchdog(const struct process *p)
{
	(void)p;
	setenv("WATCHDOG_USEC", "50000", 1);
}

static void test_watchdog(void **state)
{
	struct process p = {.prepare = set_watchdog};

	(void)state;
	start_default(&p);
	for (int i = 0; i < 3; i++)
		wait_for(&p, "WATCHDOG=1");
	wait_for(&p, "STATUS=0 sessions, hit rate 0%, pool 3 of 64 MiB used");
	assert_end(&p, SIGTERM, 0);
}

/* As a container's default profile does. */
static void forbid_io_uring(const struct process *p)
{
	struct sock_filter filter[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_io_uring_setup, 0, 1),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	struct sock_fprog program_ = {sizeof(filter) / sizeof(filter[0]), filter};

	(void)p;
	prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
	if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program_))
		_exit(126);
}

static void test_no_io_uring(void **state)
{
	struct process p = {.prepare = forbid_io_uring};

	(void)state;
	start_default(&p);
	assert_logged(&p, "event loop: epoll");
	assert_end(&p, SIGTERM, 0);
	START(&p, "--config=/dev/null", socket_flag(), "--event-loop=io_uring");
	assert_int_equal(wait_exit(&p), 1);
	assert_logged(&p, "io_uring: Operation not permitted");
	close(p.log);
	assert_false(exists(socket_path) || exists(lock_path));
}

/* ---- The command line ---- */

static void test_command_line(void **state)
{
	static const struct {
		const char *flag;
		int code;
		const char *words;
	} cases[] = {{"--help", 0, "--pool-size"},
		     {"--version", 0, "attnd 0."},
		     {"--print-config", 0, "pool-size = 16M ; flag"},
		     {"--check-config", 0, ""},
		     {"--no-such-key=1", 2, "--no-such-key"},
		     {"--max-sessions=x", 2, "max-sessions"},
		     {"--config=/no/such/file", 2, "/no/such/file"}};

	(void)state;
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		struct process p = {0};

		START(&p, cases[i].flag);
		assert_int_equal(wait_exit(&p), cases[i].code);
		assert_logged(&p, cases[i].words);
		close(p.log);
	}
}

static void full_output(const struct process *p)
{
	(void)p;
	dup2(open("/dev/full", O_WRONLY), STDOUT_FILENO);
}

static void few_descriptors(const struct process *p)
{
	const struct rlimit few = {40, 40};

	(void)p;
	setrlimit(RLIMIT_NOFILE, &few);
}

/* What was asked for and could not be written; a limit under which libzmq would abort. */
static void test_refusals(void **state)
{
	struct process full = {.prepare = full_output}, few = {.prepare = few_descriptors};

	(void)state;
	START(&full, "--print-config");
	assert_int_equal(wait_exit(&full), 1);
	assert_logged(&full, "could not be written");
	close(full.log);
	START(&few, "--config=/dev/null", socket_flag());
	assert_int_equal(wait_exit(&few), 1);
	assert_logged(&few, "(LimitNOFILE, ulimit -n) is 40: at least 48");
	close(few.log);
}

/* ---- attnctl ---- */

/* Exit code of attnctl with these arguments; what it printed is in text. */
static int attnctl(const char *arguments, bool as_nobody, char text[8192])
{
	char path[512];
	int out[2], status;
	size_t size = 0;
	pid_t pid;

	program(path, "attnctl");
	assert_int_equal(pipe2(out, O_CLOEXEC), 0);
	pid = fork();
	if (pid == 0) {
		char command[1024];

		dup2(out[1], STDOUT_FILENO);
		dup2(out[1], STDERR_FILENO);
		if (as_nobody && (setgid(65534) || setuid(65534)))
			_exit(126);
		snprintf(command, sizeof(command), "exec %s %s", path, arguments);
		execl("/bin/sh", "sh", "-c", command, NULL);
		_exit(127);
	}
	close(out[1]);
	for (ssize_t n; (n = read(out[0], text + size, 8191 - size)) > 0;)
		size += (size_t)n;
	text[size] = '\0';
	close(out[0]);
	waitpid(pid, &status, 0);
	return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static void assert_attnctl(const char *format, bool as_nobody, int code, const char *words)
{
	char arguments[256], text[8192];
	int got;

	snprintf(arguments, sizeof(arguments), format, socket_path);
	got = attnctl(arguments, as_nobody, text);
	if (got != code || !strstr(text, words))
		fail_msg("attnctl %s: exit %d instead of %d, or no \"%s\" in: %s", arguments, got, code, words, text);
}

static void test_attnctl(void **state)
{
	struct attnd_msg_hello hello = peer_hello_message();
	struct attnd_msg_welcome welcome;
	struct process p = {0};
	int client;

	(void)state;
	assert_attnctl("--socket %s status", false, 3, "no daemon at");
	start_default(&p);
	assert_attnctl("--socket %s status", false, 0, "event_loop ");
	assert_attnctl("--socket %s.admin status", false, 0, "uptime_s ");
	assert_attnctl("status --json --socket %s", false, 0, "\"version\": \"");
	assert_attnctl("--socket %s sessions", false, 0, "no sessions");
	client = peer_connect(socket_path, SOCK_SEQPACKET);
	assert_int_equal(peer_send(client, &hello, sizeof(hello), NULL, 0), 0);
	assert_int_equal(recv(client, &welcome, sizeof(welcome), 0), sizeof(welcome));
	assert_attnctl("--socket %s sessions", false, 0, "peer");
	assert_attnctl("--socket %s sessions", false, 0, "connected_s");
	close(client);
	assert_attnctl("--socket %s caches", false, 0, "no caches");
	assert_attnctl("--help #%s", false, 0, "usage:");
	assert_attnctl("--version #%s", false, 0, "attnctl 0.");
	assert_attnctl("#%s", false, 2, "usage:");
	assert_attnctl("--socket %s nonsense", false, 2, "nonsense");
	assert_attnctl("--socket %s nonsense", false, 2, "--help");
	assert_attnctl("--help >/dev/full #%s", false, 1, "could not be written");
	assert_attnctl("--socket /etc/passwd status #%s", false, 3, "that is not a socket");
	assert_attnctl("--socket %s/x status", false, 3, "no daemon at");
	assert_attnctl("--socket %s flush cache=$(printf '\\377')", false, 2, "flush cache is not UTF-8");
	assert_attnctl("--socket %s status --once", false, 2, "--once is for top, not for status");
	assert_attnctl("--socket %s status --stream 1", false, 2, "--stream is for top, stat, not for status");
	assert_attnctl("--socket %s --socket x status", false, 2, "--socket is given twice");
	assert_attnctl("--socket %s --json --json status", false, 0, "\"version\": \"");
	assert_attnctl("--socket '' status #%s", false, 2, "--socket: the path is empty");
	assert_attnctl("--socket $(head -c 200 /dev/zero | tr '\\0' x) status #%s", false, 2, "at most 107 bytes");
	assert_attnctl("--socket %s top --interval 1e9", false, 2,
		       "--interval: \"1e9\" is not a number from 0.1 to 86400");
	assert_attnctl("--socket %s top --interval nan", false, 2, "not a number");
	assert_attnctl("--socket %s top --stream -1", false, 2, "--stream: \"-1\" is not a number from 0 to 100000");
	assert_attnctl("--socket %s flush toy", false, 2, "flush toy is not NAME=VALUE");
	assert_attnctl("--socket %s flush cache=a cache=b", false, 2, "flush cache is given twice");
	assert_attnctl("--socket %s evict blocks=", false, 2, "evict blocks takes a whole number");
	assert_attnctl("--socket %s pin text=a tokens=1", false, 2, "text and tokens are one");
	assert_attnctl("--socket %s pin tokens=1,", false, 2, "pin tokens takes numbers separated by commas");
	assert_attnctl("--socket %s pin tokens=-1", false, 2, "pin tokens takes numbers separated by commas");
	assert_attnctl("--socket %s flush cahce=a", false, 1, "flush takes no cahce: there are cache");
	assert_attnctl("--socket %s doctor --root /no/such", false, 2, "--root: /no/such: No such file");
	assert_attnctl("--socket %s doctor now", false, 2, "doctor takes no arguments");
	if (geteuid() == 0)
		assert_attnctl("--socket %s status", true, 4, "permission denied");
	setenv("ATTND_SOCKET", socket_path, 1);
	assert_attnctl("status #%s", false, 0, "event_loop ");
	unsetenv("ATTND_SOCKET");
	assert_end(&p, SIGKILL, -SIGKILL);
	assert_attnctl("--socket %s status", false, 3, "attnctl: ");
	assert_attnctl("--socket %s events", false, 3, "what a killed one left");
	assert_attnctl("--socket %s events --follow", false, 3, "what a killed one left");
	unlink(admin_path);
	unlink(socket_path);
}

int main(void)
{
#define TEST(f) cmocka_unit_test_setup_teardown(f, make_dir, remove_dir)
	const struct CMUnitTest tests[] = {
		TEST(test_term),
		TEST(test_second_daemon),
		TEST(test_killed),
		TEST(test_foreign_file),
		TEST(test_foreign_listener),
		TEST(test_modes),
		TEST(test_missing_directory),
		TEST(test_private),
		TEST(test_stuck_leader),
		TEST(test_reload),
		TEST(test_activation),
		TEST(test_watchdog),
		TEST(test_no_io_uring),
		TEST(test_command_line),
		TEST(test_refusals),
		TEST(test_attnctl),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
