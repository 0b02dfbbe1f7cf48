/* SPDX-License-Identifier: Apache-2.0 */
/*
 * In: prompts. Out: daemons ended and started again, K/V compared with the toy's. Next: kept.h's callers.
 */
#include "kept.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

static void set_args(struct kept *k, const char *const *flags)
{
	size_t n = 0;

	k->args[n++] = "--pool-path";
	k->args[n++] = k->pool;
	k->args[n++] = "--hugepages";
	k->args[n++] = "off";
	for (size_t i = 0; flags && flags[i]; i++)
		k->args[n++] = flags[i];
	k->args[n] = NULL;
}

void kept_start(struct kept *k, const char *const *flags)
{
	*k = (struct kept){.pool = "/dev/shm/attnd-test-XXXXXX"};
	assert_non_null(mkdtemp(k->pool));
	set_args(k, flags);
	assert_int_equal(daemon_start(&k->daemon, k->args), 0);
}

int kept_again(struct kept *k, const char *const *flags)
{
	set_args(k, flags);
	return daemon_again(&k->daemon, k->args);
}

void kept_print_log(const struct kept *k)
{
	char command[160];

	snprintf(command, sizeof(command), "tail -12 %s/log | sed 's/^/# /'", k->daemon.dir);
	fflush(stdout);
	(void)!system(command);
}

int kept_end(struct kept *k, int sig)
{
	struct sockaddr_un addr = {.sun_family = AF_UNIX};
	int status = daemon_end(&k->daemon, sig);

	/* io_uring may hold a killed daemon's socket open for some milliseconds. */
	strcpy(addr.sun_path, k->daemon.socket);
	for (int i = 0; i < 500; i++) {
		int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
		int e = connect(fd, (struct sockaddr *)&addr, sizeof(addr));
		close(fd);
		if (e)
			return status;
		sleep_ms(2);
	}
	return -ETIMEDOUT;
}

void kept_restart(struct kept *k, int sig, const char *const *flags)
{
	assert_int_not_equal(kept_end(k, sig), -ETIMEDOUT);
	assert_int_equal(kept_again(k, flags), 0);
}

void kept_clean(struct kept *k)
{
	DIR *dp = opendir(k->pool);

	for (struct dirent *e; dp && (e = readdir(dp));)
		unlinkat(dirfd(dp), e->d_name, 0);
	if (dp)
		closedir(dp);
	rmdir(k->pool);
	daemon_clean(&k->daemon);
}

void *kept_map(const struct kept *k, const char *name, size_t *ret_bytes)
{
	char path[128];
	struct stat st;

	snprintf(path, sizeof(path), "%s/%s", k->pool, name);
	int fd = open(path, O_RDWR | O_CLOEXEC);
	assert_true(fd >= 0);
	assert_int_equal(fstat(fd, &st), 0);
	void *p = mmap(NULL, (size_t)st.st_size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	assert_true(p != MAP_FAILED);
	close(fd);
	*ret_bytes = (size_t)st.st_size;
	return p;
}

int kept_logged(const struct kept *k, const char *text)
{
	char path[80], line[512];
	int found = 0;

	snprintf(path, sizeof(path), "%s/log", k->daemon.dir);
	FILE *f = fopen(path, "re");
	while (f && fgets(line, sizeof(line), f))
		found |= strstr(line, text) != NULL;
	if (f)
		fclose(f);
	return found;
}

int kept_flag(const struct kept *k, const char *name)
{
	json_t *root = daemon_json(&k->daemon, "status"),
	       *j = json_object_get(json_object_get(root, "restore"), name);
	int r = json_is_true(j) ? 1 : json_is_false(j) ? 0 : -1;

	json_decref(root);
	return r;
}

void kept_wait_number(const struct kept *k, const char *path, int64_t want)
{
	int64_t now = -1;

	for (int i = 0; i < 500; i++) {
		now = daemon_number(&k->daemon, path);
		if (now == want)
			return;
		sleep_ms(20);
	}
	print_message("%s is %lld\n", path, (long long)now);
	fail_msg("%s does not become %lld", path, (long long)want);
}

void kept_tenant(struct toy *t, uint32_t tenant)
{
	struct attnd_namespace ns = {.salt = &tenant, .salt_bytes = sizeof(tenant)};

	t->salt = tenant;
	t->ns = 0;
	if (tenant)
		assert_int_equal(attnd_namespace(t->a, &ns, &t->ns), 0);
}

static int compare(const float *got, const uint64_t *tokens, uint32_t n, uint64_t salt, uint64_t kind)
{
	float want[TOY_KV_HEADS * TOY_DIM];

	for (uint32_t i = 0; i < n; i++) {
		toy_fill(want, TOY_KV_HEADS * TOY_DIM, tokens[i] ^ salt << 40, i, kind);
		if (memcmp(got + (size_t)i * TOY_KV_HEADS * TOY_DIM, want, sizeof(want)) != 0)
			return -EILSEQ;
	}
	return 0;
}

/* n floats of K, then of V: both whole multiples of 64 bytes. */
static int compare_layers(struct toy *t, uint64_t key, const uint64_t *tokens, uint32_t n)
{
	size_t bytes;
	void *data;
	int e = attnd_kv_bytes(t->a, t->cache, n, &bytes);

	if (!e)
		e = attnd_alloc(t->a, bytes, &data);
	if (e)
		return e;
	for (uint32_t layer = 0; layer < TOY_LAYERS && !e; layer++) {
		struct attnd_kv kv = {.cache = t->cache, .layer = layer, .key = key, .num_tokens = n, .data = data};
		const float *k = data, *v = k + (size_t)n * TOY_KV_HEADS * TOY_DIM;
		e = attnd_export(t->a, &kv);
		if (!e)
			e = compare(k, tokens, n, t->salt, 3 * layer + 1);
		if (!e)
			e = compare(v, tokens, n, t->salt, 3 * layer + 2);
	}
	attnd_free(t->a, data);
	return e;
}

int kept_check(struct toy *t, uint64_t key, const uint64_t *tokens, uint32_t n)
{
	struct attnd_open_info open;
	int e = attnd_seq_open(t->a, key, t->ns, tokens, n, UINT64_MAX, &open);

	if (e)
		return e;
	if (open.cached)
		e = compare_layers(t, key, tokens, (uint32_t)open.cached);
	int c = attnd_seq_close(t->a, key);
	return e ? e : c ? c : (int)open.cached;
}
