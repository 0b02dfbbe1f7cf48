/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What tests with a daemon and tests without one share.
 *
 * In: nothing. Out: random numbers that are the same in every run; is this build a sanitizer's?
 * Next: integration/harness.h, daemon/world.h.
 */
#ifndef ATTND_TESTS_COMMON_H
#define ATTND_TESTS_COMMON_H

#include <stdbool.h>
#include <stdint.h>

/** xorshift64*: the same numbers in every run. */
static inline uint64_t next_random(uint64_t *state)
{
	*state ^= *state >> 12;
	*state ^= *state << 25;
	*state ^= *state >> 27;
	return *state * UINT64_C(2685821657736338717);
}

/** True in a build with AddressSanitizer or ThreadSanitizer: memory and time prove little there. */
static inline bool sanitized(void)
{
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
	return true;
#elif defined(__has_feature)
	return __has_feature(address_sanitizer) || __has_feature(thread_sanitizer);
#else
	return false;
#endif
}

#endif
