/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Regions: sizes, seals, what is refused of a peer's descriptor, and that a shortage is an error.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../../shm/region.h"

#define PAGE   ((size_t)sysconf(_SC_PAGESIZE))
#define RESIZE (F_SEAL_SHRINK | F_SEAL_GROW)

static void assert_none(const struct attnd_region *r)
{
	assert_null(r->base);
	assert_int_equal(r->fd, -1);
}

static int open_fds(void)
{
	int n = 0;

	for (int fd = 0; fd < 256; fd++)
		n += fcntl(fd, F_GETFD) >= 0;
	return n;
}

static void creates_whole_pages(void **state)
{
	struct attnd_region r;

	(void)state;
	assert_int_equal(attnd_region_create("t", 1, 0, 0, &r), 0);
	assert_int_equal(r.bytes, PAGE);
	assert_int_equal(r.page_bytes, PAGE);
	memset(r.base, 1, r.bytes);
	assert_int_equal(fcntl(r.fd, F_GETFD) & FD_CLOEXEC, FD_CLOEXEC);
	attnd_region_destroy(&r);
	assert_none(&r);
	attnd_region_destroy(&r);
}

static void refuses_bad_sizes(void **state)
{
	struct attnd_region r = ATTND_REGION_NONE;

	(void)state;
	assert_int_equal(attnd_region_create("t", 0, 0, 0, &r), -EINVAL);
	assert_int_equal(attnd_region_create("t", SIZE_MAX, 0, 0, &r), -EINVAL);
	assert_int_equal(attnd_region_create("t", PAGE, 3 * PAGE, 0, &r), -EINVAL);
	assert_none(&r);
}

static void seals_size(void **state)
{
	struct attnd_region r;
	int seals;

	(void)state;
	assert_int_equal(attnd_region_create("t", PAGE, 0, ATTND_REGION_SEAL | ATTND_REGION_POPULATE, &r), 0);
	seals = fcntl(r.fd, F_GET_SEALS);
	assert_int_equal(seals & RESIZE, RESIZE);
	assert_true(seals & F_SEAL_SEAL);
	assert_int_equal(ftruncate(r.fd, 0), -1);
	assert_int_equal(errno, EPERM);
	assert_int_equal(ftruncate(r.fd, 2 * (off_t)PAGE), -1);
	attnd_region_destroy(&r);
}

static void populates(void **state)
{
	unsigned char in_core[8] = {0};
	struct attnd_region r;
	struct stat st;

	(void)state;
	assert_int_equal(attnd_region_create("t", 8 * PAGE, 0, ATTND_REGION_POPULATE, &r), 0);
	assert_int_equal(fstat(r.fd, &st), 0);
	assert_int_equal(st.st_blocks * 512, 8 * PAGE);
	assert_int_equal(mincore(r.base, r.bytes, in_core), 0);
	for (int i = 0; i < 8; i++)
		assert_true(in_core[i] & 1);
	attnd_region_destroy(&r);
}

static void reserves_parts(void **state)
{
	struct attnd_region r;
	struct stat st;

	(void)state;
	assert_int_equal(attnd_region_create("t", 16 * PAGE, 0, ATTND_REGION_SPARSE, &r), 0);
	fstat(r.fd, &st);
	assert_int_equal(st.st_blocks, 0);
	assert_int_equal(attnd_region_reserve(&r, 4 * PAGE, 2 * PAGE), 0);
	fstat(r.fd, &st);
	assert_int_equal(st.st_blocks * 512, 2 * PAGE);
	assert_int_equal(attnd_region_reserve(&r, 16 * PAGE, PAGE), -EINVAL);
	assert_int_equal(attnd_region_reserve(&r, 15 * PAGE, 2 * PAGE), -EINVAL);
	assert_int_equal(attnd_region_reserve(&r, SIZE_MAX, 2), -EINVAL);
	assert_int_equal(attnd_region_reserve(&r, 16 * PAGE, 0), 0);
	attnd_region_destroy(&r);
}

/* A limit on file sizes stands for a machine out of pages: an error and nothing left behind. */
static void shortage_is_an_error(void **state)
{
	struct rlimit old, small = {.rlim_cur = 16 * PAGE, .rlim_max = RLIM_INFINITY};
	struct attnd_region r = ATTND_REGION_NONE;
	int before = open_fds();

	(void)state;
	getrlimit(RLIMIT_FSIZE, &old);
	small.rlim_max = old.rlim_max;
	assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
	signal(SIGXFSZ, SIG_IGN);
	assert_true(attnd_region_create("t", 64 * PAGE, 0, ATTND_REGION_POPULATE, &r) < 0);
	setrlimit(RLIMIT_FSIZE, &old);
	assert_none(&r);
	assert_int_equal(open_fds(), before);
}

/* More than the machine can have: refused by fallocate, not by a signal when touched. */
static void more_than_the_machine(void **state)
{
	struct attnd_region r = ATTND_REGION_NONE;
	size_t huge = (size_t)2 << 20;
	int rc = attnd_region_create("t", (size_t)1 << 46, huge, ATTND_REGION_POPULATE, &r);

	(void)state;
	assert_true(rc < 0);
	assert_none(&r);
}

static void huge_pages_or_an_error(void **state)
{
	struct attnd_region r = ATTND_REGION_NONE;
	size_t huge = (size_t)2 << 20;
	int rc = attnd_region_create("t", 1, huge, ATTND_REGION_POPULATE, &r);

	(void)state;
	if (rc) {
		assert_none(&r);
		return;
	}
	assert_int_equal(r.bytes, huge);
	memset(r.base, 1, r.bytes);
	attnd_region_destroy(&r);
}

static void seals_writes(void **state)
{
	struct attnd_region r, again = ATTND_REGION_NONE;
	char path[64];
	int fd;

	(void)state;
	assert_int_equal(attnd_region_create("t", PAGE, 0, 0, &r), 0);
	assert_int_equal(attnd_region_seal_writes(&r), 0);
	*(char *)r.base = 7;
	snprintf(path, sizeof(path), "/proc/self/fd/%d", r.fd);
	fd = open(path, O_RDWR | O_CLOEXEC); /* a peer may open its read-only descriptor again */
	assert_true(fd >= 0);
	assert_true(attnd_region_map(fd, PAGE, 1, &again) < 0);
	assert_int_equal(pwrite(fd, "x", 1, 0), -1);
	assert_int_equal(attnd_region_map(fd, PAGE, 0, &again), 0);
	assert_int_equal(*(char *)again.base, 7);
	attnd_region_destroy(&again);
	attnd_region_destroy(&r);
}

static void maps_only_the_right_size(void **state)
{
	struct attnd_region r, m = ATTND_REGION_NONE;
	int p[2], fd;

	(void)state;
	assert_int_equal(attnd_region_create("t", 2 * PAGE, 0, 0, &r), 0);
	fd = dup(r.fd);
	assert_int_equal(attnd_region_map(fd, PAGE, 1, &m), -EINVAL);
	assert_int_equal(attnd_region_map(fd, 0, 1, &m), -EINVAL);
	assert_int_equal(attnd_region_map(fd, 2 * PAGE, 1, &m), 0);
	*(char *)r.base = 9;
	assert_int_equal(*(char *)m.base, 9);
	attnd_region_destroy(&m);
	attnd_region_destroy(&r);
	assert_int_equal(pipe2(p, O_CLOEXEC), 0);
	assert_int_equal(attnd_region_map(p[0], PAGE, 0, &m), -EINVAL);
	assert_int_equal(attnd_region_map(-1, PAGE, 0, &m), -EBADF);
	assert_none(&m);
	close(p[0]);
	close(p[1]);
}

/* ---- A client's segment ---- */

static int memfd(size_t bytes, unsigned int flags, int seals)
{
	int fd = memfd_create("segment", MFD_CLOEXEC | flags);

	assert_true(fd >= 0);
	assert_int_equal(ftruncate(fd, (off_t)bytes), 0);
	if (seals)
		assert_int_equal(fcntl(fd, F_ADD_SEALS, seals), 0);
	return fd;
}

static void refused(int fd, size_t bytes, int error)
{
	struct attnd_region r = ATTND_REGION_NONE;
	int before = open_fds();

	assert_int_equal(attnd_region_map_segment(fd, bytes, &r), error);
	assert_none(&r);
	assert_int_equal(open_fds(), before); /* the descriptor stays the caller's */
	close(fd);
}

static void takes_a_good_segment(void **state)
{
	struct attnd_region r;
	struct stat st;
	int fd = memfd(4 * PAGE, MFD_ALLOW_SEALING, RESIZE);

	(void)state;
	assert_int_equal(attnd_region_map_segment(fd, 4 * PAGE, &r), 0);
	assert_int_equal(r.fd, fd);
	assert_int_equal(fstat(fd, &st), 0);
	assert_int_equal(st.st_blocks * 512, 4 * PAGE);
	/* A hole costs a page and no signal. */
	assert_int_equal(fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, (off_t)(4 * PAGE)), 0);
	memset(r.base, 1, r.bytes);
	attnd_region_destroy(&r);
	/* What the client makes is what the daemon takes. */
	assert_int_equal(attnd_region_create("t", 3 * PAGE, 0, ATTND_REGION_SEAL | ATTND_REGION_POPULATE, &r), 0);
	fd = dup(r.fd);
	attnd_region_destroy(&r);
	assert_int_equal(attnd_region_map_segment(fd, 3 * PAGE, &r), 0);
	attnd_region_destroy(&r);
}

static void refuses_other_seals(void **state)
{
	(void)state;
	refused(memfd(PAGE, 0, 0), PAGE, -EPERM);
	refused(memfd(PAGE, MFD_ALLOW_SEALING, 0), PAGE, -EPERM);
	refused(memfd(PAGE, MFD_ALLOW_SEALING, F_SEAL_SHRINK), PAGE, -EPERM);
	refused(memfd(PAGE, MFD_ALLOW_SEALING, F_SEAL_GROW), PAGE, -EPERM);
	refused(memfd(PAGE, MFD_ALLOW_SEALING, RESIZE | F_SEAL_WRITE), PAGE, -EPERM);
	refused(memfd(PAGE, MFD_ALLOW_SEALING, RESIZE | F_SEAL_FUTURE_WRITE), PAGE, -EPERM);
}

static void refuses_other_sizes(void **state)
{
	(void)state;
	refused(memfd(PAGE, MFD_ALLOW_SEALING, RESIZE), 2 * PAGE, -EINVAL);
	refused(memfd(2 * PAGE, MFD_ALLOW_SEALING, RESIZE), PAGE, -EINVAL);
	refused(memfd(PAGE + 1, MFD_ALLOW_SEALING, RESIZE), PAGE + 1, -EINVAL);
	refused(memfd(0, MFD_ALLOW_SEALING, RESIZE), 0, -EINVAL);
	refused(memfd(PAGE, MFD_ALLOW_SEALING, RESIZE), SIZE_MAX, -EINVAL);
}

static void refuses_other_files(void **state)
{
	char name[] = "/tmp/attnd-test-XXXXXX", path[64];
	struct attnd_region r = ATTND_REGION_NONE;
	int fd, p[2], m;

	(void)state;
	fd = mkstemp(name);
	assert_true(fd >= 0);
	unlink(name);
	assert_int_equal(ftruncate(fd, (off_t)PAGE), 0);
	assert_true(attnd_region_map_segment(fd, PAGE, &r) < 0); /* another file system, or no seals */
	assert_none(&r);
	close(fd);
	refused(open("/dev/zero", O_RDWR | O_CLOEXEC), PAGE, -EINVAL);
	refused(open("/", O_RDONLY | O_CLOEXEC), PAGE, -EINVAL);
	assert_int_equal(pipe2(p, O_CLOEXEC), 0);
	refused(p[0], PAGE, -EINVAL);
	close(p[1]);
	m = memfd(PAGE, MFD_ALLOW_SEALING, RESIZE);
	snprintf(path, sizeof(path), "/proc/self/fd/%d", m);
	refused(open(path, O_RDONLY | O_CLOEXEC), PAGE, -EINVAL);
	refused(open(path, O_WRONLY | O_CLOEXEC), PAGE, -EINVAL);
	close(m);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(creates_whole_pages),
		cmocka_unit_test(refuses_bad_sizes),
		cmocka_unit_test(seals_size),
		cmocka_unit_test(populates),
		cmocka_unit_test(reserves_parts),
		cmocka_unit_test(shortage_is_an_error),
		cmocka_unit_test(more_than_the_machine),
		cmocka_unit_test(huge_pages_or_an_error),
		cmocka_unit_test(seals_writes),
		cmocka_unit_test(maps_only_the_right_size),
		cmocka_unit_test(takes_a_good_segment),
		cmocka_unit_test(refuses_other_seals),
		cmocka_unit_test(refuses_other_sizes),
		cmocka_unit_test(refuses_other_files),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
