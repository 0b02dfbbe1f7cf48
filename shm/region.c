/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Shared-memory regions over memfds.
 *
 * In:   a size and a wish for huge pages, or a descriptor that a peer sent.
 * Out:  a mapping whose pages are there, or an error: never a later SIGBUS.
 * Next: daemon/pool.c, daemon/session.c, client/conn.c, client/arena.c.
 */
#include "region.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <stdbool.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

/* Newer than some C libraries. */
#ifndef MFD_NOEXEC_SEAL
#define MFD_NOEXEC_SEAL 0x0008U
#endif
#ifndef MFD_HUGE_SHIFT
#define MFD_HUGE_SHIFT 26
#endif
#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

/* vm.memfd_noexec=2 refuses memfds without MFD_NOEXEC_SEAL; kernels before 6.3 refuse them with it. */
static int open_memfd(const char *name, unsigned int flags)
{
	int fd = memfd_create(name, flags | MFD_NOEXEC_SEAL);

	if (fd < 0 && errno == EINVAL)
		fd = memfd_create(name, flags);
	return fd < 0 ? -errno : fd;
}

static unsigned int huge_flags(size_t page_bytes)
{
	return MFD_HUGETLB | (unsigned int)__builtin_ctzl(page_bytes) << MFD_HUGE_SHIFT;
}

/* Give the file pages of its own: a shortage is an error of this call. */
static int allocate(int fd, size_t offset, size_t bytes)
{
	int rc;

	do
		rc = fallocate(fd, 0, (off_t)offset, (off_t)bytes);
	while (rc && errno == EINTR);
	if (!rc)
		return 0;
	return errno == ENOSPC ? -ENOMEM : -errno;
}

/*
 * Allocate, then map: after the first nothing is short, so a kernel without the second call
 * (before 5.14) only costs minor faults at first use.
 */
static int populate(const struct attnd_region *r, size_t offset, size_t bytes)
{
	int rc = allocate(r->fd, offset, bytes);

	if (rc)
		return rc;
	if (!madvise((char *)r->base + offset, bytes, MADV_POPULATE_WRITE) || errno == EINVAL || errno == ENOSYS)
		return 0;
	return errno == EFAULT ? -ENOMEM : -errno;
}

enum { HUGE_ALIGN = 2 << 20 };

/* Pages of this process, none of them there yet, from where a huge page may begin. NULL: there is no room. */
static void *reserve(size_t bytes, int prot)
{
	char *p = mmap(NULL, bytes + HUGE_ALIGN, prot, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	size_t head = -(uintptr_t)p & (HUGE_ALIGN - 1), page = (size_t)sysconf(_SC_PAGESIZE);

	if (p == MAP_FAILED)
		return NULL;
	if (head)
		munmap(p, head);
	if (HUGE_ALIGN - head)
		munmap(p + head + ((bytes + page - 1) & ~(page - 1)), HUGE_ALIGN - head);
	return p + head;
}

/* Large regions begin where a huge page may, so that their pages can be collapsed. */
static int map(struct attnd_region *r, int prot, int flags)
{
	bool large = r->bytes >= HUGE_ALIGN && r->page_bytes < HUGE_ALIGN;
	void *hole = large ? reserve(r->bytes, PROT_NONE) : NULL, *base;

	if (large && !hole)
		return -ENOMEM;
	base = mmap(hole, r->bytes, prot, MAP_SHARED | flags | (hole ? MAP_FIXED : 0), r->fd, 0);
	if (base == MAP_FAILED) {
		int rc = -errno;

		if (hole)
			munmap(hole, r->bytes);
		return rc;
	}
	r->base = base;
	return 0;
}

void *attnd_table_alloc(size_t bytes)
{
	void *p = reserve(bytes, PROT_READ | PROT_WRITE);

	if (p && bytes >= HUGE_ALIGN)
		(void)madvise(p, bytes, MADV_HUGEPAGE);
	return p;
}

void attnd_table_free(void *table, size_t bytes)
{
	if (table)
		munmap(table, bytes);
}

int attnd_region_create(const char *name, size_t bytes, size_t page_bytes, int flags, struct attnd_region *ret)
{
	size_t page = page_bytes ? page_bytes : (size_t)sysconf(_SC_PAGESIZE);
	struct attnd_region r = {.fd = -1, .page_bytes = page};
	int rc;

	if (!bytes || page & (page - 1) || bytes > PTRDIFF_MAX - page)
		return -EINVAL;
	r.bytes = (bytes + page - 1) & ~(page - 1);
	r.fd = open_memfd(name, MFD_CLOEXEC | MFD_ALLOW_SEALING | (page_bytes ? huge_flags(page) : 0));
	if (r.fd < 0)
		return r.fd;
	if (ftruncate(r.fd, (off_t)r.bytes)) {
		rc = -errno;
		goto fail;
	}
	/* Without MAP_NORESERVE a map of a hugetlb file sets all its pages aside. */
	rc = map(&r, PROT_READ | PROT_WRITE, flags & ATTND_REGION_SPARSE ? MAP_NORESERVE : 0);
	if (!rc && flags & ATTND_REGION_POPULATE)
		rc = populate(&r, 0, r.bytes);
	if (!rc && flags & ATTND_REGION_SEAL && fcntl(r.fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL))
		rc = -errno;
	if (rc)
		goto fail;
	*ret = r;
	return 0;
fail:
	attnd_region_destroy(&r);
	return rc;
}

int attnd_region_reserve(struct attnd_region *r, size_t offset, size_t bytes)
{
	if (offset > r->bytes || bytes > r->bytes - offset)
		return -EINVAL;
	return bytes ? populate(r, offset, bytes) : 0;
}

int attnd_region_seal_writes(struct attnd_region *r)
{
	int seals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_FUTURE_WRITE | F_SEAL_SEAL;

	return fcntl(r->fd, F_ADD_SEALS, seals) ? -errno : 0;
}

/* A regular file of this size; fills in what fstatfs says of its pages. */
static int check_file(int fd, size_t bytes, struct attnd_region *r, long *ret_type)
{
	struct statfs fs;
	struct stat st;

	if (fstat(fd, &st) || fstatfs(fd, &fs))
		return -errno;
	if (!S_ISREG(st.st_mode) || !bytes || bytes > PTRDIFF_MAX || st.st_size != (off_t)bytes)
		return -EINVAL;
	*r = (struct attnd_region){.bytes = bytes, .page_bytes = (size_t)fs.f_bsize, .fd = fd};
	*ret_type = (long)fs.f_type;
	return 0;
}

int attnd_region_map(int fd, size_t bytes, int writable, struct attnd_region *ret)
{
	struct attnd_region r;
	long type;
	int rc = check_file(fd, bytes, &r, &type);

	if (!rc)
		rc = map(&r, writable ? PROT_READ | PROT_WRITE : PROT_READ, 0);
	if (!rc)
		*ret = r;
	return rc;
}

/*
 * Only memfds can carry these seals: a file on some tmpfs mount, whose size limit could raise a
 * SIGBUS after its owner punched holes, has none and can be given none.
 */
static int check_seals(int fd)
{
	int mode = fcntl(fd, F_GETFL), seals = fcntl(fd, F_GET_SEALS);

	if (mode < 0 || (mode & O_ACCMODE) != O_RDWR)
		return -EINVAL;
	if (seals < 0 || (seals & (F_SEAL_SHRINK | F_SEAL_GROW)) != (F_SEAL_SHRINK | F_SEAL_GROW))
		return -EPERM;
	return seals & (F_SEAL_WRITE | F_SEAL_FUTURE_WRITE) ? -EPERM : 0;
}

int attnd_region_map_segment(int fd, size_t bytes, struct attnd_region *ret)
{
	size_t page = (size_t)sysconf(_SC_PAGESIZE);
	struct attnd_region r;
	long type;
	int rc = check_file(fd, bytes, &r, &type);

	if (!rc && (type != TMPFS_MAGIC || bytes & (page - 1)))
		rc = -EINVAL;
	if (!rc)
		rc = check_seals(fd);
	if (!rc)
		rc = map(&r, PROT_READ | PROT_WRITE, 0);
	if (rc)
		return rc;
	rc = populate(&r, 0, bytes);
	if (rc) {
		munmap(r.base, r.bytes); /* fd stays the caller's */
		return rc;
	}
	*ret = r;
	return 0;
}

void attnd_region_destroy(struct attnd_region *r)
{
	if (r->base)
		munmap(r->base, r->bytes);
	if (r->fd >= 0)
		close(r->fd);
	*r = ATTND_REGION_NONE;
}
