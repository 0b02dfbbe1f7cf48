/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Further processes of a bench, which end with it.
 *
 * In:   what they do. Out: counters in shared memory that both sides wait for.
 * Next: attnd-bench's goals with more than one client.
 */
#ifndef ATTND_TESTS_BENCH_PEERS_H
#define ATTND_TESTS_BENCH_PEERS_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

/** Zeroed memory that later peers share. */
void *peer_memory(size_t bytes);
pid_t peer_start(void (*run)(void *arg), void *arg);
/** Sleep until *word is at least this. */
void peer_wait(_Atomic uint32_t *word, uint32_t at_least);
/** The same for what a peer posts while it gets ready: it may die of it, and the bench with it. */
void peer_ready(pid_t pid, _Atomic uint32_t *word, uint32_t at_least);
/** Add one and wake who waits for it. */
void peer_post(_Atomic uint32_t *word);
void peer_end(pid_t pid);

#endif
