/* SPDX-License-Identifier: Apache-2.0 */
/*
 * peers.h by fork and futexes.
 *
 * In:   functions. Out: processes. Next: attnd-bench's goals.
 */
#include "peers.h"

#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../../shm/futex.h"
#include "attnd-bench.h"

enum { LOOK_NS = 100000000 };

void *peer_memory(size_t bytes)
{
	void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

	if (p == MAP_FAILED)
		die("no shared memory");
	return p;
}

pid_t peer_start(void (*run)(void *arg), void *arg)
{
	pid_t pid = fork();

	if (pid < 0)
		die("no further process");
	if (pid == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		run(arg);
		_exit(0);
	}
	return pid;
}

void peer_wait(_Atomic uint32_t *word, uint32_t at_least)
{
	uint32_t now;

	while ((now = atomic_load_explicit(word, memory_order_acquire)) < at_least)
		(void)attnd_futex_wait(word, now, LOOK_NS);
}

void peer_ready(pid_t pid, _Atomic uint32_t *word, uint32_t at_least)
{
	uint32_t now;

	while ((now = atomic_load_explicit(word, memory_order_acquire)) < at_least) {
		if (waitpid(pid, NULL, WNOHANG) == pid)
			die("a further process has ended");
		(void)attnd_futex_wait(word, now, LOOK_NS);
	}
}

void peer_post(_Atomic uint32_t *word)
{
	atomic_fetch_add_explicit(word, 1, memory_order_release);
	attnd_futex_wake(word, INT32_MAX);
}

void peer_end(pid_t pid)
{
	kill(pid, SIGKILL);
	waitpid(pid, NULL, 0);
}
