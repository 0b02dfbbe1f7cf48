/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Every call of attnd-faults' own code fails once, one after the other: while it starts, while a
 * client connects, works and leaves, and while it ends. It goes on, or ends with an error; it never
 * crashes, hangs or keeps anything.
 *
 * In: $BUILD/tests/faults/attnd-faults. Out: TAP. $TEST_LONG: every call, else a share of them.
 * Next: fail.c, all of daemon/.
 */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../../shm/futex.h"
#include "../integration/toy.h"
#include "fail.h"

enum { MOST = 20000, CLIENT_S = 30 };

static struct fail_shared *shared_;
static char file_[] = "/tmp/attnd-fail-XXXXXX";
static unsigned walked_, ended_;

static int group_start(void **state)
{
	static char path[600];
	const char *build = getenv("BUILD");
	int fd = mkstemp(file_);

	(void)state;
	if (fd < 0 || ftruncate(fd, sizeof(*shared_)))
		return -1;
	shared_ = mmap(NULL, sizeof(*shared_), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	close(fd);
	snprintf(path, sizeof(path), "%s/tests/faults/attnd-faults", build ? build : "build");
	setenv("ATTND_DAEMON", path, 1);
	setenv("FAIL_FILE", file_, 1);
	return shared_ == MAP_FAILED ? -1 : 0;
}

static int group_end(void **state)
{
	(void)state;
	return unlink(file_);
}

/* From now on, the nth call. */
static void arm(uint64_t nth)
{
	atomic_store(&shared_->nth, 0);
	atomic_store(&shared_->failed, 0);
	strcpy(shared_->name, "nothing");
	atomic_store(&shared_->nth, nth ? atomic_load(&shared_->count) + nth : 0);
}

static uint64_t stride(void)
{
	return getenv("TEST_LONG") ? 1 : sanitized() ? 13 : 3;
}

static int start(struct daemon *d)
{
	static const char *const args[] = {"--pool-size", "2M",	       "--meta-size", "4M", "--hugepages",
					   "off",	  "--threads", "2",	      NULL};

	return daemon_start(d, args);
}

static void show(const struct daemon *d, const char *what)
{
	char line[200];

	snprintf(line, sizeof(line), "sed 's/^/# /' %s/log", d->dir);
	if (system(line))
		print_message("# no log\n");
	fail_msg("%s: after %s failed (call %llu)", what, shared_->name,
		 (unsigned long long)atomic_load(&shared_->nth));
}

static void remove_dir(const struct daemon *d)
{
	char line[200];

	snprintf(line, sizeof(line), "rm -rf %s", d->dir);
	assert_int_equal(system(line), 0);
}

/* What a client does: 0, or an error that it was told. Everything has a deadline. */
static int work(const struct daemon *d, uint64_t key)
{
	struct attnd_connect_options options = {
		.socket = d->socket, .name = "inject", .timeout_us = 2000000, .default_deadline_us = 2000000};
	uint64_t tokens[80], cached;
	struct toy t;
	attnd_t *a;
	int e = attnd_connect(&a, &options);

	if (e)
		return e;
	toy_tokens(tokens, 80, key * 1000);
	e = toy_open(&t, a, 1);
	if (!e)
		e = toy_prefill(&t, 1, tokens, 80, &cached);
	if (!e)
		e = attnd_seq_fork(a, 1, 2, 60);
	if (!e)
		e = attnd_seq_close(a, 1);
	if (!e)
		e = toy_prefill(&t, 3, tokens, 70, &cached);
	attnd_disconnect(a);
	return e;
}

/* In a process of its own, so that one that hangs is seen. Its error, positive. */
static int work_apart(const struct daemon *d, uint64_t key)
{
	int status;
	pid_t pid = fork();

	if (pid == 0) {
		alarm(CLIENT_S);
		_exit(-work(d, key));
	}
	assert_int_equal(waitpid(pid, &status, 0), pid);
	if (!WIFEXITED(status))
		show(d, "the client hangs");
	return WEXITSTATUS(status);
}

static void good_work(const struct daemon *d, uint64_t key)
{
	int e = work_apart(d, key);

	if (e)
		show(d, strerror(e));
}

static void must_live(const struct daemon *d)
{
	int status;

	if (waitpid(d->pid, &status, WNOHANG) != 0)
		show(d, WIFSIGNALED(status) ? strsignal(WTERMSIG(status)) : "it ended");
}

/* It did not start: with an error, not with a signal, and without leaving anything. */
static void refused_start(struct daemon *d, int r)
{
	char path[100];

	if (r == -ETIMEDOUT) {
		kill(d->pid, SIGKILL);
		show(d, "it hangs at the start");
	}
	ended_++;
	snprintf(path, sizeof(path), "%s/log", d->dir);
	unlink(path);
	unlink(d->config);
	if (rmdir(d->dir)) /* socket, administrators' socket, lock */
		fail_msg("left in %s after %s failed", d->dir, shared_->name);
}

static void test_start(void **state)
{
	uint64_t n;

	(void)state;
	for (n = 1; n < MOST; n += stride()) {
		struct daemon d;
		int r, status;

		arm(n);
		r = start(&d);
		walked_++;
		if (r) {
			refused_start(&d, r);
			continue;
		}
		bool reached = atomic_load(&shared_->failed);
		arm(0);
		good_work(&d, n);
		status = daemon_end(&d, SIGTERM);
		if (status)
			show(&d, "it did not end well");
		remove_dir(&d);
		if (!reached)
			break;
	}
	print_message("# %u starts with one failure each, %u of them refused\n", walked_, ended_);
	assert_in_range(n, 60, MOST - 1);
	assert_true(ended_ > 0 && ended_ < walked_);
}

static void test_work(void **state)
{
	unsigned told = 0, done = 0;
	struct in_use none = {0};
	struct daemon d;
	uint64_t n;

	(void)state;
	arm(0);
	assert_int_equal(start(&d), 0);
	good_work(&d, 1); /* makes realm and cache, which stay */
	daemon_wait_in_use(&d, &none);
	int64_t fds = proc_fds(d.pid);
	for (n = 1; n < MOST; n += stride()) {
		arm(n);
		int e = work_apart(&d, n);
		bool reached = atomic_load(&shared_->failed);
		arm(0);
		must_live(&d);
		told += e != 0;
		done += e == 0;
		if (!reached)
			break;
		if (n % 8 == 1)
			good_work(&d, n + 1);
	}
	print_message("# %u runs with one failure each: %u clients were told, %u did not notice\n", told + done, told,
		      done);
	assert_in_range(n, 50, MOST - 1);
	good_work(&d, 2);
	daemon_wait_in_use(&d, &none);
	for (int i = 0; i < 200 && proc_fds(d.pid) > fds; i++)
		sleep_ms(10);
	if (proc_fds(d.pid) > fds)
		show(&d, "descriptors are left");
	daemon_clean(&d);
}

static void test_end(void **state)
{
	struct daemon d;
	uint64_t n;

	(void)state;
	for (n = 1; n < MOST; n++) {
		arm(0);
		assert_int_equal(start(&d), 0);
		attnd_t *a = daemon_connect(&d);
		arm(n);
		int status = daemon_end(&d, SIGTERM);
		bool reached = atomic_load(&shared_->failed);
		if (status == -ETIMEDOUT || !WIFEXITED(status))
			show(&d, "it did not end");
		attnd_disconnect(a);
		remove_dir(&d);
		if (!reached)
			break;
	}
	print_message("# %llu ends with one failure each\n", (unsigned long long)n - 1);
	assert_in_range(n, 2, MOST - 1);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_start),
		cmocka_unit_test(test_work),
		cmocka_unit_test(test_end),
	};

	return cmocka_run_group_tests(tests, group_start, group_end);
}
