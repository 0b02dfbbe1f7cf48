/* SPDX-License-Identifier: Apache-2.0 */
/* Memory that outlives the daemon (keep.h). */
#include "keep.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "config.h"
#include "fdstore.h"
#include "log.h"

/* "attnd-pool-0", "attnd-meta": a file's name in pool-path, and in the store. */
static void name_of(uint32_t which, char name[32])
{
	if (which == KEEP_META)
		snprintf(name, 32, "attnd-meta");
	else
		snprintf(name, 32, "attnd-pool-%u", which);
}

static bool is_memory(int fd, long *ret_type)
{
	struct statfs fs;

	if (fstatfs(fd, &fs))
		return false;
	*ret_type = (long)fs.f_type;
	return fs.f_type == HUGETLBFS_MAGIC || fs.f_type == TMPFS_MAGIC;
}

bool keep_huge(int fd)
{
	long type;

	return is_memory(fd, &type) && type == HUGETLBFS_MAGIC;
}

/* ---- Files ---- */

enum { PATH_BYTES = 4096 };

static int path_of(const struct keep *k, uint32_t which, char path[PATH_BYTES])
{
	char name[32];

	name_of(which, name);
	return snprintf(path, PATH_BYTES, "%s/%s", k->path, name) < PATH_BYTES ? 0 : -ENAMETOOLONG;
}

static int open_file(const struct keep *k, uint32_t which, int *ret_fd)
{
	char path[PATH_BYTES];
	int fd, r = path_of(k, which, path);
	long type;

	if (r)
		return r;
	fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
	if (fd < 0) {
		r = -errno;
		log_err("pool: %s (pool-path): %s", path, strerror(-r));
		return r;
	}
	if (!is_memory(fd, &type)) {
		log_err("pool: %s is neither on a hugetlbfs nor on a tmpfs mount (pool-path)", k->path);
		unlink(path);
		close(fd);
		return -ENOTTY;
	}
	*ret_fd = fd;
	return 0;
}

/* Of nodes that there are no more: their pages would stay taken, and nobody would use them. */
static void remove_file(const struct keep *k, uint32_t which)
{
	char path[PATH_BYTES];

	if (!path_of(k, which, path) && !unlink(path))
		log_warn("pool: %s, of a node that is not used any more (numa, NUMA nodes), is removed", path);
}

static int lock_files(const struct keep *k)
{
	uint32_t pid = 0;
	char text[32] = "";
	int r;

	if (!flock(k->fds[KEEP_META], LOCK_EX | LOCK_NB))
		return 0;
	r = errno == EWOULDBLOCK ? -EADDRINUSE : -errno;
	if (pread(k->fds[KEEP_META], &pid, sizeof(pid), offsetof(struct attnd_meta_region, pid)) == sizeof(pid) &&
	    pid)
		snprintf(text, sizeof(text), ", pid %u,", pid);
	if (r == -EADDRINUSE)
		log_err("pool: another daemon%s has %s (pool-path)", text, k->path);
	else
		log_err("pool: cannot lock %s (pool-path): %s", k->path, strerror(-r));
	return r;
}

int keep_open(struct keep *k, const struct config *cfg, uint32_t num_nodes)
{
	char name[32];
	int r = 0;

	*k = (struct keep){.path = *cfg->pool_path ? cfg->pool_path : NULL, .num_nodes = num_nodes};
	for (int i = 0; i < KEEP_FILES; i++)
		k->fds[i] = -1;
	if (!k->path) {
		for (uint32_t i = 0; i < KEEP_FILES; i++) {
			name_of(i, name);
			k->fds[i] = fdstore_take(name);
		}
	}
	fdstore_end();
	if (!k->path)
		return 0;
	r = open_file(k, KEEP_META, &k->fds[KEEP_META]);
	if (!r)
		r = lock_files(k);
	for (uint32_t i = 0; i < num_nodes && !r; i++)
		r = open_file(k, i, &k->fds[i]);
	for (uint32_t i = num_nodes; i < KEEP_META && !r; i++)
		remove_file(k, i);
	if (r)
		keep_close(k);
	return r;
}

int keep_file(struct keep *k, uint32_t which, uint64_t bytes, struct attnd_region *ret)
{
	int fd = k->fds[which], r;
	struct statfs fs;

	if (fstatfs(fd, &fs))
		return -errno;
	bytes = (bytes + (uint64_t)fs.f_bsize - 1) / (uint64_t)fs.f_bsize * (uint64_t)fs.f_bsize;
	/* What stood there goes: the new one's bytes are zero. */
	if (ftruncate(fd, 0) || fstatfs(fd, &fs) || ftruncate(fd, (off_t)bytes))
		return -errno;
	/* A tmpfs is full only when its pages are taken, and then keeps what it has given. */
	if (fs.f_type == TMPFS_MAGIC && fs.f_blocks && fs.f_bavail * (uint64_t)fs.f_bsize < bytes) {
		log_err("pool: %s (pool-path) has room for %llu MiB, not for the %llu MiB of this file", k->path,
			(unsigned long long)(fs.f_bavail * (uint64_t)fs.f_bsize >> 20),
			(unsigned long long)(bytes >> 20));
		return -ENOSPC;
	}
	r = attnd_region_map(fd, bytes, 1, ret);
	if (!r)
		k->fds[which] = -1;
	return r;
}

/* ---- Taking over ---- */

static bool same_file(int fd, const struct attnd_meta_file *f)
{
	struct stat st;

	return !fstat(fd, &st) && f->dev == (uint64_t)st.st_dev && f->ino == (uint64_t)st.st_ino &&
	       f->bytes == (uint64_t)st.st_size;
}

int keep_name_files(struct pool *p)
{
	for (uint32_t i = 0; i < p->num_nodes; i++) {
		struct stat st;

		if (fstat(p->nodes[i].fd, &st))
			return -errno;
		p->meta->nodes[i] = (struct attnd_meta_file){
			.dev = (uint64_t)st.st_dev, .ino = (uint64_t)st.st_ino, .bytes = (uint64_t)st.st_size};
	}
	return 0;
}

/* Is it the pool that the configuration asks for? NULL, or why not. */
static const char *differs(const struct keep *k, const struct config *cfg, const struct pool *p,
			   const struct attnd_meta_region *m)
{
	if (m->num_nodes != p->num_nodes)
		return "the number of NUMA nodes is another one";
	if (cfg->slab_size && cfg->slab_size != m->slab_bytes)
		return "slab-size is another one";
	if (!cfg->pool_auto && (m->slab_bytes != p->slab_bytes || m->num_slabs != p->num_slabs))
		return "pool-size is another one";
	if (cfg->meta_size &&
	    (m->bytes - m->heap_offset < cfg->meta_size || m->bytes - m->heap_offset - cfg->meta_size >= 2u << 20))
		return "meta-size is another one";
	for (uint32_t i = 0; i < m->num_nodes; i++) {
		if (k->fds[i] < 0 || !same_file(k->fds[i], &m->nodes[i]))
			return "the pool's memory is not the one that the metadata describe";
		if (m->nodes[i].bytes < m->num_slabs * m->slab_bytes)
			return "the pool's memory is smaller than its slabs";
		if (cfg->hugepages == CONFIG_HUGE_REQUIRE && !keep_huge(k->fds[i]))
			return "its pages are not huge ones (hugepages = require)";
	}
	return NULL;
}

static const char *take_meta(struct keep *k, struct attnd_region *ret)
{
	const size_t head = sizeof(struct attnd_meta_region);
	const struct attnd_meta_region *m;
	struct attnd_region r;
	const char *why;
	struct stat st;

	if (fstat(k->fds[KEEP_META], &st) || (size_t)st.st_size < head ||
	    attnd_region_map(k->fds[KEEP_META], (size_t)st.st_size, 1, &r))
		return "its metadata cannot be mapped";
	k->fds[KEEP_META] = -1;
	/* Pages that were lost are zeros from now on, and no fault later. */
	m = r.base;
	why = attnd_region_reserve(&r, 0, head) ? "no memory" : restore_header(m, r.bytes);
	if (!why && attnd_region_reserve(&r, 0, atomic_load_explicit(&m->heap_used, memory_order_relaxed)))
		why = "no memory";
	if (why) {
		k->fds[KEEP_META] = r.fd; /* for a new one, and for the lock */
		r.fd = -1;
		attnd_region_destroy(&r);
		return why;
	}
	*ret = r;
	return NULL;
}

/*
 * Its pages are there already, and come with the first access of each: to touch all of them would
 * take seconds. Only lost ones are put in place now, as errors instead of later signals.
 */
static int settle(struct pool *p, uint32_t node)
{
	struct attnd_region *r = &p->nodes[node];
	int e;

	if (keep_huge(r->fd) || lseek(r->fd, 0, SEEK_HOLE) != (off_t)r->bytes)
		return pool_settle(p, node, r);
	e = topology_bind(p->topology, node, r->base, r->bytes);
	return e == -EPERM || e == -ENOSYS ? 0 : e;
}

static const char *take_nodes(struct keep *k, struct pool *p)
{
	const struct attnd_meta_region *m = p->meta_region.base;

	for (uint32_t i = 0; i < m->num_nodes; i++) {
		if (attnd_region_map(k->fds[i], m->nodes[i].bytes, 1, &p->nodes[i]))
			return "the pool's memory cannot be mapped";
		k->fds[i] = -1;
		p->backing = keep_huge(p->nodes[i].fd) ? "hugetlb" : "plain";
		if (settle(p, i))
			return "no memory for pages that were lost";
	}
	return NULL;
}

static void give_back(struct keep *k, struct attnd_region *r, uint32_t which)
{
	if (!r->base)
		return;
	k->fds[which] = r->fd;
	r->fd = -1;
	attnd_region_destroy(r);
}

/* The new pool may need the memory of what is of no use; a file is emptied when it is taken (keep_file). */
static bool nothing(const struct keep *k)
{
	for (uint32_t i = 0; i < KEEP_FILES && !k->path; i++)
		fdstore_free(k->fds[i]);
	return false;
}

bool keep_take(struct keep *k, const struct config *cfg, struct pool *p)
{
	struct attnd_meta_region *m;
	struct stat st;
	const char *why;

	if (k->fds[KEEP_META] < 0 || (!fstat(k->fds[KEEP_META], &st) && !st.st_size))
		return nothing(k); /* there was none before */
	why = take_meta(k, &p->meta_region);
	m = p->meta_region.base;
	if (!why)
		why = differs(k, cfg, p, m);
	if (!why)
		why = take_nodes(k, p);
	if (why) {
		log_warn("pool: an earlier daemon's cannot be used: %s; starting empty", why);
		p->restore.why = why;
		give_back(k, &p->meta_region, KEEP_META);
		for (uint32_t i = 0; i < p->num_nodes; i++)
			give_back(k, &p->nodes[i], i);
		return nothing(k);
	}
	p->meta = m;
	p->num_slabs = m->num_slabs;
	p->slab_bytes = m->slab_bytes;
	p->slabs = (struct attnd_meta_slab *)(void *)((char *)m + m->slabs_offset);
	p->heap_next = p->heap_ready = atomic_load_explicit(&m->heap_used, memory_order_relaxed);
	p->restore.taken = true;
	return true;
}

/* ---- Giving ---- */

int keep_give(const struct keep *k, struct pool *p)
{
	char name[32];
	int kept = 1;

	if (k->path) {
		p->restore.by = "pool-path";
		return 0;
	}
	if (p->restore.taken) { /* the store has it still */
		p->restore.by = "fd-store";
		return 0;
	}
	for (uint32_t i = 0; i < KEEP_FILES; i++) {
		name_of(i, name);
		if (k->fds[i] >= 0)
			fdstore_drop(name);
	}
	/* Meta last: with it the set is complete. */
	for (uint32_t i = 0; i < p->num_nodes && kept > 0; i++) {
		name_of(i, name);
		kept = fdstore_put(name, p->nodes[i].fd);
	}
	name_of(KEEP_META, name);
	if (kept > 0)
		kept = fdstore_put(name, p->meta_region.fd);
	if (kept < 0)
		log_warn("pool: the service manager does not keep it: %s; a restart will start empty",
			 strerror(-kept));
	p->restore.by = kept > 0 ? "fd-store" : NULL;
	return 0;
}

void keep_close(struct keep *k)
{
	for (int i = 0; i < KEEP_FILES; i++) {
		if (k->fds[i] >= 0)
			close(k->fds[i]);
		k->fds[i] = -1;
	}
}
