/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How much memory there is, for defaults and for the status.
 *
 * In:   /proc and the control group's files. Out: bytes. Next: config.c, status.c.
 */
#ifndef ATTND_DAEMON_MEMORY_H
#define ATTND_DAEMON_MEMORY_H

#include <stddef.h>
#include <stdint.h>

/** 1/8 of what is available to this process, 16 MiB to 2 GiB, a multiple of 2 MiB. */
uint64_t memory_default_pool(void);

/** What the machine can still give without swapping; UINT64_MAX if /proc does not tell. */
uint64_t memory_available(void);

/** What the limits of this process's control group, and of those above it, leave; UINT64_MAX: no limit. */
uint64_t memory_group_left(void);

/** Resident bytes of this process; 0 if /proc does not tell. */
uint64_t memory_resident(void);

/** "256M", "3G", "4097": the largest unit that divides. */
void memory_format(uint64_t bytes, char *buf, size_t size);

#endif
