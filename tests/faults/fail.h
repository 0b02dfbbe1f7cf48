/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The one point through which everything fails: attnd-faults is attnd, linked so that allocations,
 * mappings, descriptors, threads and system calls of its own code pass here first.
 *
 * In:   $FAIL_FILE, shared with the test: which call is to fail. Out: that call's error, once.
 * Next: test_inject.c.
 */
#ifndef ATTND_TESTS_FAULTS_FAIL_H
#define ATTND_TESTS_FAULTS_FAIL_H

#include <stdatomic.h>
#include <stdint.h>

struct fail_shared {
	_Atomic uint64_t count; /* calls so far */
	_Atomic uint64_t nth;	/* the one that fails; 0: none */
	_Atomic uint64_t failed;
	char name[32]; /* of what failed */
};

#endif
