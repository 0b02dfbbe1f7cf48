/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A daemon ends and the next one takes its cache over: orderly ends, sudden ones, other kernels,
 * altered metadata, lost pages, other settings, and a service manager's descriptor store.
 *
 * In: a fixed seed. Out: TAP. Next: daemon/restore.c, daemon/keep.c, daemon/scrub.c.
 */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../../shm/meta.h"
#include "prompts.h"

static const char *const small[] = {"--pool-size", "16M", NULL};

static int64_t blocks_there(const struct kept *k)
{
	return daemon_number(&k->daemon, "caches.0.blocks") - daemon_number(&k->daemon, "caches.0.blocks_free");
}

static int64_t dropped(const struct kept *k)
{
	return daemon_number(&k->daemon, "restore.blocks_altered") +
	       daemon_number(&k->daemon, "restore.blocks_misplaced") +
	       daemon_number(&k->daemon, "restore.blocks_orphaned") +
	       daemon_number(&k->daemon, "restore.blocks_below") +
	       daemon_number(&k->daemon, "restore.caches_dropped");
}

static void test_orderly(void **state)
{
	struct kept k;

	(void)state;
	kept_start(&k, small);
	assert_int_equal(kept_flag(&k, "restored"), 0);
	prompts_fill(&k);
	int64_t blocks = blocks_there(&k);
	for (int i = 0; i < 2; i++) {
		kept_restart(&k, SIGTERM, small);
		assert_int_equal(kept_flag(&k, "restored"), 1);
		assert_int_equal(kept_flag(&k, "clean"), 1);
		assert_int_equal(prompts_look(&k), prompts_all());
		assert_int_equal(blocks_there(&k), blocks);
		assert_int_equal(dropped(&k), 0);
	}
	/* What is left is of use: it can be filled, evicted and filled again. */
	prompts_fill(&k);
	assert_int_equal(blocks_there(&k), blocks);
	kept_clean(&k);
}

static void test_killed(void **state)
{
	struct kept k;

	(void)state;
	kept_start(&k, small);
	prompts_fill(&k);
	int64_t blocks = blocks_there(&k);
	kept_wait_number(&k, "caches.0.blocks_unhashed", 0);
	kept_restart(&k, SIGKILL, small);
	assert_int_equal(kept_flag(&k, "clean"), 0);
	assert_int_equal(prompts_look(&k), prompts_all());
	assert_int_equal(blocks_there(&k), blocks);
	assert_int_equal(dropped(&k), 0);
	/* All are compared with their hashes in the end, asked for or not. */
	kept_wait_number(&k, "caches.0.blocks_unverified", 0);
	assert_int_equal(daemon_number(&k.daemon, "caches.0.blocks_corrupt"), 0);
	kept_restart(&k, SIGTERM, small);
	assert_int_equal(prompts_look(&k), prompts_all());
	kept_clean(&k);
}

/* Pages of the pool are lost: their blocks serve nobody. */
static void test_lost_pages(void **state)
{
	struct kept k;
	size_t bytes;

	(void)state;
	kept_start(&k, small);
	prompts_fill(&k);
	kept_wait_number(&k, "caches.0.blocks_unhashed", 0);
	kept_end(&k, SIGKILL);
	char *pool = kept_map(&k, "attnd-pool-0", &bytes);
	/* Every block of 16 tokens x 2 layers x 2 heads x (32 + 32) floats loses something. */
	for (size_t at = 0; at < bytes; at += 4096)
		pool[at + 17] ^= 1;
	munmap(pool, bytes);
	assert_int_equal(kept_again(&k, small), 0);
	uint32_t left = prompts_look(&k);
	assert_int_equal(left, 0); /* not even what stands below them */
	kept_wait_number(&k, "caches.0.blocks_unverified", 0);
	assert_true(daemon_number(&k.daemon, "caches.0.blocks_corrupt") > 0);
	prompts_fill(&k);
	assert_int_equal(prompts_look(&k), prompts_all());
	kept_clean(&k);
}

/* Fewer CPU features: other kernels read the same tiles, or get them repacked. */
static void test_other_kernels(void **state)
{
	static const char *const portable[] = {"--pool-size", "16M", "--cpu-mask", "none", NULL};
	struct kept k;

	(void)state;
	kept_start(&k, small);
	prompts_fill(&k);
	kept_restart(&k, SIGTERM, portable);
	assert_int_equal(prompts_look(&k), prompts_all());
	kept_restart(&k, SIGKILL, small);
	assert_int_equal(prompts_look(&k), prompts_all());
	kept_clean(&k);
}

/* Another size, version or place: announced, and empty. */
static void test_other_settings(void **state)
{
	static const char *const large[] = {"--pool-size", "32M", NULL};
	static const char *const slabs[] = {"--pool-size", "32M", "--slab-size", "4M", NULL};
	struct kept k;
	size_t bytes;

	(void)state;
	kept_start(&k, small);
	prompts_fill(&k);
	kept_restart(&k, SIGTERM, large);
	assert_int_equal(kept_flag(&k, "restored"), 0);
	assert_true(kept_logged(&k, "pool-size is another one; starting empty"));
	assert_int_equal(prompts_look(&k), 0);
	prompts_fill(&k);
	kept_restart(&k, SIGTERM, slabs);
	assert_true(kept_logged(&k, "slab-size is another one; starting empty"));
	prompts_fill(&k);
	kept_restart(&k, SIGTERM, NULL); /* a size that is not set is the one that there is */
	assert_int_equal(kept_flag(&k, "restored"), 1);
	assert_int_equal(prompts_look(&k), prompts_all());
	kept_end(&k, SIGTERM);
	struct attnd_meta_region *m = kept_map(&k, "attnd-meta", &bytes);
	m->version++;
	munmap(m, bytes);
	assert_int_equal(kept_again(&k, NULL), 0);
	assert_true(kept_logged(&k, "version"));
	assert_int_equal(prompts_look(&k), 0);
	kept_clean(&k);
}

static void test_one_daemon(void **state)
{
	char text[128];
	struct kept k, other;
	int status;

	(void)state;
	kept_start(&k, small);
	other = k;
	snprintf(other.daemon.socket, sizeof(other.daemon.socket), "%s/t", k.daemon.dir);
	assert_int_equal(kept_again(&other, small), -ECHILD);
	snprintf(text, sizeof(text), "another daemon, pid %d, has %s", (int)k.daemon.pid, k.pool);
	assert_true(kept_logged(&k, text));
	other = k;
	assert_int_equal(kept_again(&other, small), 0); /* the first one listens there */
	assert_int_equal(waitpid(other.daemon.pid, &status, 0), other.daemon.pid);
	assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 1);
	snprintf(text, sizeof(text), "another daemon, pid %d serves", (int)k.daemon.pid);
	assert_true(kept_logged(&k, text));
	prompts_fill(&k);
	kept_clean(&k);
}

/* Static scales are the cache's: another value is refused after a restart, too. */
static void test_scales(void **state)
{
	struct attnd_cache_desc desc = {.name = "fp8",
					.num_layers = 2,
					.num_heads = 2,
					.num_kv_heads = 1,
					.head_dim = 32,
					.kv_dtype = ATTND_FP8_E4M3,
					.scale_mode = ATTND_SCALE_STATIC};
	struct attnd_cache_info info;
	struct kept k;

	(void)state;
	kept_start(&k, small);
	attnd_t *a = daemon_connect(&k.daemon);
	assert_int_equal(attnd_cache_open(a, &desc, 1, &info), 0);
	assert_int_equal(attnd_scales_set(a, info.cache, 1, 0.5f, 0.25f), 0);
	attnd_disconnect(a);
	for (int sig = SIGKILL; sig; sig = sig == SIGKILL ? SIGTERM : 0) {
		kept_restart(&k, sig, small);
		a = daemon_connect(&k.daemon);
		assert_int_equal(attnd_cache_open(a, &desc, 0, &info), 0);
		assert_int_equal(attnd_scales_set(a, info.cache, 1, 0.5f, 0.5f), -EEXIST);
		assert_int_equal(attnd_scales_set(a, info.cache, 1, 0.5f, 0.25f), 0);
		attnd_disconnect(a);
	}
	kept_clean(&k);
}

/* Bits flip anywhere in the metadata: the daemon lives, and what it serves is right. */
static void test_torn(void **state)
{
	int rounds = getenv("TEST_LONG") ? 300 : 12;
	uint64_t seed = 77;
	struct kept k;
	size_t bytes;

	(void)state;
	kept_start(&k, small);
	prompts_fill(&k);
	kept_wait_number(&k, "caches.0.blocks_unhashed", 0);
	kept_end(&k, SIGKILL);
	char *meta = kept_map(&k, "attnd-meta", &bytes), *copy = malloc(bytes);
	assert_non_null(copy);
	memcpy(copy, meta, bytes);
	const struct attnd_meta_region *m = (const struct attnd_meta_region *)(const void *)copy;
	for (int i = 0; i < rounds; i++) {
		int flips = 1 + (int)(next_random(&seed) % 64);
		memcpy(meta, copy, bytes);
		for (int f = 0; f < flips; f++) {
			/* Headers and tables are a small part: as often as descriptors and tokens. */
			size_t from = next_random(&seed) & 1 ? m->heap_offset : 0,
			       to = from ? m->heap_used : m->heap_offset;
			size_t at = from + next_random(&seed) % (to - from);
			for (int look = 0; look < 4096 && !copy[at]; look++)
				at = from + (at - from + 61) % (to - from);
			meta[at] ^= (char)(1 << next_random(&seed) % 8);
		}
		assert_int_equal(kept_again(&k, small), 0);
		uint32_t left = prompts_look(&k);
		assert_true(left <= prompts_all());
		prompts_fill(&k);
		assert_int_equal(prompts_look(&k), prompts_all());
		kept_end(&k, SIGKILL);
	}
	free(copy);
	munmap(meta, bytes);
	kept_clean(&k);
}

/* ---- The manager's descriptor store ---- */

struct manager {
	char dir[64], socket[80], admin[88];
	const char *pool; /* its size */
	int notify;
	int fds[8];
	char names[8][32];
	int num_fds;
	pid_t pid;
};

static void manager_start(struct manager *m)
{
	struct sockaddr_un addr = {.sun_family = AF_UNIX};

	*m = (struct manager){.dir = "/tmp/attnd-test-XXXXXX", .pool = "16M"};
	assert_non_null(mkdtemp(m->dir));
	snprintf(m->socket, sizeof(m->socket), "%s/s", m->dir);
	snprintf(m->admin, sizeof(m->admin), "%s.admin", m->socket);
	snprintf(addr.sun_path, sizeof(addr.sun_path), "%s/notify", m->dir);
	m->notify = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	assert_int_equal(bind(m->notify, (struct sockaddr *)&addr, sizeof(addr)), 0);
}

/* The daemon with what the store has as descriptors 3, 4, ... */
static void exec_daemon(struct manager *m)
{
	char notify[80], names[300] = "", number[16];
	const char *path = getenv("ATTND_DAEMON");

	for (int i = 0; i < m->num_fds; i++) /* out of the way first */
		m->fds[i] = fcntl(m->fds[i], F_DUPFD, 100);
	for (int i = 0; i < m->num_fds; i++) {
		dup2(m->fds[i], 3 + i);
		close(m->fds[i]);
		strcat(strcat(names, i ? ":" : ""), m->names[i]);
	}
	prctl(PR_SET_PDEATHSIG, SIGKILL); /* a test that failed leaves none behind */
	snprintf(notify, sizeof(notify), "%s/notify", m->dir);
	setenv("NOTIFY_SOCKET", notify, 1);
	snprintf(number, sizeof(number), "%d", (int)getpid());
	setenv("LISTEN_PID", number, 1);
	snprintf(number, sizeof(number), "%d", m->num_fds);
	setenv("LISTEN_FDS", number, 1);
	setenv("LISTEN_FDNAMES", names, 1);
	execl(path, path, "--config", "/dev/null", "--socket", m->socket, "--pool-size", m->pool, "--hugepages",
	      "off", "--log-level", "err", NULL);
	_exit(127);
}

static void forget(struct manager *m, const char *name)
{
	int kept = 0;

	for (int i = 0; i < m->num_fds; i++) {
		if (!strcmp(m->names[i], name)) {
			close(m->fds[i]);
			continue;
		}
		m->fds[kept] = m->fds[i];
		memmove(m->names[kept++], m->names[i], sizeof(m->names[i]));
	}
	m->num_fds = kept;
}

/* One message; 1: READY. */
static int manager_take(struct manager *m)
{
	char text[512] = "", control[CMSG_SPACE(sizeof(int))], *name;
	struct iovec iov = {text, sizeof(text) - 1};
	struct msghdr msg = {
		.msg_iov = &iov, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof(control)};

	assert_true(recvmsg(m->notify, &msg, MSG_CMSG_CLOEXEC) >= 0);
	name = strstr(text, "FDNAME=");
	if (name) {
		name += 7;
		name[strcspn(name, "\n")] = '\0';
	}
	if (!strncmp(text, "FDSTOREREMOVE=1", 15)) {
		forget(m, name);
	} else if (!strncmp(text, "FDSTORE=1", 9)) {
		struct cmsghdr *c = CMSG_FIRSTHDR(&msg);
		assert_non_null(c);
		assert_true(m->num_fds < 8);
		memcpy(&m->fds[m->num_fds], CMSG_DATA(c), sizeof(int));
		snprintf(m->names[m->num_fds++], sizeof(m->names[0]), "%s", name);
	}
	return strstr(text, "READY=1") != NULL;
}

static int find(const struct manager *m, const char *name)
{
	int i = 0;

	while (strcmp(m->names[i], name))
		assert_in_range(++i, 0, m->num_fds - 1);
	return i;
}

static int64_t pages_of(int fd)
{
	struct stat st;

	assert_int_equal(fstat(fd, &st), 0);
	return st.st_blocks;
}

static void manager_run(struct manager *m)
{
	struct timeval tv = {.tv_sec = 20};

	setsockopt(m->notify, SOL_SOCKET, SO_RCVTIMEO, &tv, sizeof(tv));
	m->pid = fork();
	if (m->pid == 0)
		exec_daemon(m);
	while (!manager_take(m))
		;
}

static void manager_end(struct manager *m, int sig)
{
	int status;

	kill(m->pid, sig);
	assert_int_equal(waitpid(m->pid, &status, 0), m->pid);
	if (sig == SIGTERM)
		assert_int_equal(status, 0);
}

static void test_descriptor_store(void **state)
{
	struct manager m;
	struct kept k = {.daemon = {.pid = 0}};

	(void)state;
	manager_start(&m);
	snprintf(k.daemon.socket, sizeof(k.daemon.socket), "%s", m.socket);
	snprintf(k.daemon.admin, sizeof(k.daemon.admin), "%s", m.admin);
	manager_run(&m);
	json_t *status = daemon_json(&k.daemon, "status");
	size_t nodes = json_array_size(json_object_get(json_object_get(status, "pool"), "nodes"));
	json_decref(status);
	assert_int_equal(m.num_fds, 1 + (int)nodes);
	prompts_fill(&k);
	for (int i = 0; i < 4; i++) {
		manager_end(&m, i & 1 ? SIGTERM : SIGKILL);
		manager_run(&m);
		assert_int_equal(kept_flag(&k, "restored"), 1);
		assert_int_equal(prompts_look(&k), prompts_all());
	}
	int all = m.num_fds;
	manager_end(&m, SIGTERM);
	/* One of them is missing: what is left is of no use, and is replaced. */
	int old = fcntl(m.fds[find(&m, "attnd-meta")], F_DUPFD_CLOEXEC, 3);
	assert_true(pages_of(old));
	forget(&m, "attnd-pool-0");
	manager_run(&m);
	assert_int_equal(pages_of(old), 0); /* at once: the new pool may need them */
	close(old);
	assert_int_equal(m.num_fds, all);
	assert_int_equal(kept_flag(&k, "restored"), 0);
	assert_int_equal(prompts_look(&k), 0);
	prompts_fill(&k);
	manager_end(&m, SIGKILL);
	/* Another size: the pages of the old pool are free before the new one's are taken. */
	old = fcntl(m.fds[find(&m, "attnd-pool-0")], F_DUPFD_CLOEXEC, 3);
	assert_true(pages_of(old));
	m.pool = "32M";
	manager_run(&m);
	assert_int_equal(pages_of(old), 0);
	close(old);
	assert_int_equal(m.num_fds, all);
	assert_int_equal(prompts_look(&k), 0);
	prompts_fill(&k);
	manager_end(&m, SIGKILL);
	/* A name twice: nobody knows which. */
	snprintf(m.names[m.num_fds], sizeof(m.names[0]), "attnd-meta");
	m.fds[m.num_fds] = fcntl(m.fds[0], F_DUPFD_CLOEXEC, 3);
	m.num_fds++;
	manager_run(&m);
	assert_int_equal(m.num_fds, all);
	assert_int_equal(prompts_look(&k), 0);
	manager_end(&m, SIGTERM);
	for (int i = 0; i < m.num_fds; i++)
		close(m.fds[i]);
	close(m.notify);
	snprintf(k.daemon.dir, sizeof(k.daemon.dir), "%s", m.dir);
	daemon_clean(&k.daemon);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_orderly),		 cmocka_unit_test(test_killed),
		cmocka_unit_test(test_lost_pages),	 cmocka_unit_test(test_other_kernels),
		cmocka_unit_test(test_other_settings),	 cmocka_unit_test(test_one_daemon),
		cmocka_unit_test(test_scales),		 cmocka_unit_test(test_torn),
		cmocka_unit_test(test_descriptor_store),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
