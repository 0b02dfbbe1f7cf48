/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Futexes, shared between processes, always with a time limit; and the pause of a spin loop.
 *
 * In:   a word in shared memory. Out: a sleep or a wake. Next: client waits, daemon/reply.c wakes.
 */
#ifndef ATTND_SHM_FUTEX_H
#define ATTND_SHM_FUTEX_H

#include <errno.h>
#include <linux/futex.h>
#include <stdatomic.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/** Sleep while *word == value, at most ns. 0, or -EAGAIN, -EINTR, -ETIMEDOUT. */
static inline int attnd_futex_wait(_Atomic uint32_t *word, uint32_t value, uint64_t ns)
{
	struct timespec ts = {.tv_sec = (time_t)(ns / 1000000000), .tv_nsec = (long)(ns % 1000000000)};

	return syscall(SYS_futex, word, FUTEX_WAIT, value, &ts, NULL, 0) ? -errno : 0;
}

/** Wake up to n sleepers. */
static inline void attnd_futex_wake(_Atomic uint32_t *word, int n)
{
	(void)syscall(SYS_futex, word, FUTEX_WAKE, n, NULL, NULL, 0);
}

static inline void attnd_pause(void)
{
#if defined(__x86_64__)
	__builtin_ia32_pause();
#elif defined(__riscv)
	__asm__ volatile(".4byte 0x0100000f" ::: "memory"); /* pause (Zihintpause); a fence hint elsewhere */
#else
	__asm__ volatile("" ::: "memory");
#endif
}

/** Monotonic nanoseconds. */
static inline uint64_t attnd_now_ns(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

#endif
