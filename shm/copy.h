/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Copies of memory that others may write meanwhile.
 *
 * In: what a peer has written. Out: what is looked at, and used, from now on.
 * Next: ring.h; daemon/intake.c.
 */
#ifndef ATTND_SHM_COPY_H
#define ATTND_SHM_COPY_H

#include <string.h>

/** memcpy, after which the compiler reads the copy and never the source again: it takes memory for nobody else's. */
static inline void attnd_copy_in(void *dst, const void *src, size_t bytes)
{
	memcpy(dst, src, bytes);
	__asm__ volatile("" : : "r"(dst) : "memory");
}

#endif
