/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Random operations by several processes, each beside a flat model of what it holds, while some of
 * them are killed: what the others hold stays theirs bit by bit, nobody finds the K/V of another
 * prefix, and the daemon's counters come back to what the living hold, and to nothing.
 *
 * In:   a fixed seed; $PROCESSES_SEED another. Out: TAP. Next: all of daemon/.
 *
 * Each process has two caches of a pool that is too small for both, which trade slabs. K/V of a
 * token are a function of all tokens up to it, so that who reads a slot sees whose it is. At the end
 * the daemon is ended and started on its files again: it finds no fault in the tree.
 */
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../restart/kept.h"

enum { PROCESSES = 4, CACHES = 2, HELD = 18, TEXT = 200, TENANTS = 2, BLOCK = 16, OPS = 250 };
enum { KV_FLOATS = TOY_KV_HEADS * TOY_DIM };

/* What a process tells the test. */
struct told {
	uint32_t sequences, blocks; /* that it holds; at most so many */
	_Atomic uint64_t ops, hits, taken, refused, waits, twins, exported, forks;
	_Atomic int line; /* where it failed */
	_Atomic int error;
};

struct process {
	pid_t pid; /* 0: none */
	int fd;
};

static struct kept kept;
static struct process process[PROCESSES];
static struct told *told; /* [PROCESSES] */

/* ---- A process ---- */

struct mine {
	uint64_t key; /* 0: none */
	uint32_t cache, tenant, len;
	uint64_t text[TEXT]; /* of it, and of what it is going to say */
};

struct self {
	struct told *told;
	struct toy toy[CACHES];
	uint32_t ns[CACHES][TENANTS];
	float *data[CACHES]; /* arena: a layer's K and V */
	struct mine held[HELD];
	uint64_t keys, seed;
};

static void fail_at(struct self *p, int line, int error)
{
	atomic_store(&p->told->error, error);
	atomic_store(&p->told->line, line);
	_exit(1);
}
#define MUST(p, e)                                \
	do {                                      \
		int e_ = (e);                     \
		if (e_ < 0)                       \
			fail_at(p, __LINE__, e_); \
	} while (0)
#define CHECK(p, cond)                           \
	do {                                     \
		if (!(cond))                     \
			fail_at(p, __LINE__, 0); \
	} while (0)

static uint32_t below(struct self *p, uint32_t n)
{
	return (uint32_t)(next_random(&p->seed) >> 33) % n;
}

static bool chance(struct self *p, uint32_t percent)
{
	return below(p, 100) < percent;
}

/* From `at` on: what all of a family say, or at one place something else. Families come and go. */
static void speak(struct self *p, uint64_t *text, uint32_t at)
{
	uint32_t place = below(p, 2) ? 13 + 23 * below(p, 8) : TEXT;
	uint64_t family = at ? text[0] / 1000 : 1 + p->told->ops / 60 + below(p, 2), variant = 1 + below(p, 2);

	for (uint32_t i = at; i < TEXT; i++)
		text[i] = 1000 * family + i + (i >= place ? 100000 * variant : 0);
}

/* K or V of tokens [from, from + n) of a text, of a layer. */
static void make_kv(const struct mine *h, uint32_t from, uint32_t n, uint64_t kind, float *to)
{
	uint64_t prefix = h->tenant + 1;

	for (uint32_t i = 0; i < from + n; i++) {
		prefix = (prefix ^ h->text[i]) * UINT64_C(0x9e3779b97f4a7c15);
		prefix ^= prefix >> 31;
		if (i >= from)
			toy_fill(to + (size_t)(i - from) * KV_FLOATS, KV_FLOATS, prefix, i, kind);
	}
}

static void make_layer(const struct mine *h, uint32_t from, uint32_t n, uint32_t layer, float *k, float *v)
{
	make_kv(h, from, n, 3 * layer + 1, k);
	make_kv(h, from, n, 3 * layer + 2, v);
}

/* All that it holds, as the daemon has it. */
static void compare(struct self *p, const struct mine *h)
{
	static float want[2 * TEXT * KV_FLOATS];
	struct toy *t = &p->toy[h->cache];

	for (uint32_t layer = 0; h->len && layer < TOY_LAYERS; layer++) {
		struct attnd_kv kv = {.cache = t->cache,
				      .layer = layer,
				      .key = h->key,
				      .num_tokens = h->len,
				      .data = p->data[h->cache]};
		MUST(p, attnd_export(t->a, &kv));
		make_layer(h, 0, h->len, layer, want, want + (size_t)h->len * KV_FLOATS);
		CHECK(p, !memcmp(kv.data, want, 2 * h->len * KV_FLOATS * sizeof(float)));
	}
	p->told->exported++;
}

static void close_one(struct self *p, struct mine *h)
{
	if (h->key)
		MUST(p, attnd_seq_close(p->toy[h->cache].a, h->key));
	h->key = 0;
}

static struct mine *any(struct self *p)
{
	return &p->held[below(p, HELD)];
}

/* In the middle of something, at times. */
static void die(struct self *p)
{
	if (below(p, 1500) == 0)
		kill(getpid(), SIGKILL);
}

static void begin(struct self *p, struct mine *h)
{
	const struct mine *like = any(p);

	*h = (struct mine){.key = ++p->keys, .cache = below(p, CACHES), .tenant = below(p, TENANTS)};
	speak(p, h->text, 0);
	if (like->key && chance(p, 30))
		memcpy(h->text, like->text, sizeof(h->text));
}

static void open_one(struct self *p, struct mine *h)
{
	uint32_t n = below(p, TEXT), most = chance(p, 50) ? n : below(p, n + 1);
	const struct toy *t;
	struct attnd_open_info info, again;

	begin(p, h);
	t = &p->toy[h->cache];
	MUST(p, attnd_seq_open(t->a, h->key, p->ns[h->cache][h->tenant], h->text, n, most, &info));
	CHECK(p, info.cached <= most);
	h->len = (uint32_t)info.cached;
	p->told->hits += h->len != 0;
	if (chance(p, 20)) {
		MUST(p, attnd_seq_open(t->a, h->key, p->ns[h->cache][h->tenant], h->text, n, most, &again));
		CHECK(p, again.cached == info.cached);
	}
	if (chance(p, 40))
		compare(p, h);
}

static void wait_one(struct self *p, struct mine *h)
{
	struct attnd_wait_options options = {.deadline_us = 1 + below(p, 3000),
					     .want = chance(p, 50) ? UINT64_MAX : 0};
	uint32_t n = 1 + below(p, TEXT - 1);
	struct attnd_wait_info info;
	const struct toy *t;
	attnd_job_t job;

	begin(p, h);
	t = &p->toy[h->cache];
	options.max_match = 1 + below(p, n);
	MUST(p, attnd_seq_wait_async(t->a, h->key, p->ns[h->cache][h->tenant], h->text, n, &options, &info, &job));
	die(p);
	MUST(p, attnd_wait(t->a, job, NULL));
	CHECK(p, info.cached <= options.max_match && info.why <= ATTND_WAITED_QUIET);
	p->told->waits++;
	p->told->twins += info.why != ATTND_WAITED_ALONE;
	h->len = (uint32_t)info.cached;
	if (chance(p, 40))
		compare(p, h);
}

/* Layers of a plan of one row: as data, or as a job's k and v. */
static void write_layers(struct self *p, const struct mine *h, uint32_t tag, uint32_t from, uint32_t n)
{
	struct toy *t = &p->toy[h->cache];
	bool import = chance(p, 50);
	attnd_job_t job;

	for (uint32_t layer = 0; layer < TOY_LAYERS; layer++) {
		uint32_t last = layer == TOY_LAYERS - 1 ? ATTND_LAST : 0;
		struct attnd_kv kv = {.cache = t->cache, .layer = layer, .num_tokens = n, .data = p->data[h->cache]};
		struct attnd_attend a = {.plan = tag,
					 .params = t->cache,
					 .layer = layer,
					 .flags = last | ATTND_NO_OUT,
					 .k = t->k,
					 .v = t->v};

		make_layer(h, from, n, layer, import ? kv.data : t->k,
			   import ? (float *)kv.data + (size_t)n * KV_FLOATS : t->v);
		if (import) {
			MUST(p, attnd_import(t->a, tag, 1000, last, &kv));
			continue;
		}
		MUST(p, attnd_extend(t->a, &a, &job));
		die(p);
		MUST(p, attnd_wait(t->a, job, NULL));
	}
}

/* Forward from where it is, or (back) from somewhere before with other words. False: there is no room. */
static bool go_on(struct self *p, struct mine *h, bool back)
{
	uint32_t start = back && h->len ? below(p, h->len) : h->len, n, tag = below(p, 3);
	struct toy *t = &p->toy[h->cache];
	struct attnd_row_status status;

	if (start == TEXT)
		return true;
	if (back || chance(p, 10))
		speak(p, h->text, start);
	n = 1 + below(p, TEXT - start < 100 ? TEXT - start : 100);
	struct attnd_row row = {.key = h->key,
				.start = start,
				.tokens = h->text + start,
				.num_tokens = n,
				.publish_upto = chance(p, 70) ? start + n : below(p, TEXT)};
	MUST(p, attnd_plan(t->a, tag, t->cache, &row, 1, &status, 0));
	CHECK(p, status.status == 0 || status.status == -ENOMEM);
	h->len = status.status ? start : h->len;
	if (status.status) {
		p->told->refused++;
		return false;
	}
	CHECK(p, status.cached <= n);
	p->told->taken += status.cached != 0;
	die(p);
	if (!back && chance(p, 8)) { /* given up: as if it had not been */
		MUST(p, attnd_plan_end(t->a, tag));
		return true;
	}
	write_layers(p, h, tag, start, n);
	h->len = start + n;
	return true;
}

/* It is in the tree as far as an open finds it: so is what the table says, in whole blocks. */
static void look(struct self *p, const struct mine *h)
{
	const struct toy *t = &p->toy[h->cache];
	uint64_t key = ++p->keys, cached;
	struct attnd_open_info info;

	MUST(p, attnd_seq_open(t->a, key, p->ns[h->cache][h->tenant], h->text, TEXT, UINT64_MAX, &info));
	MUST(p, attnd_peek(t->a, t->cache, p->ns[h->cache][h->tenant], h->text, TEXT, &cached));
	CHECK(p, cached >= info.cached / BLOCK * BLOCK);
	MUST(p, attnd_seq_close(t->a, key));
}

static void shorten(struct self *p, struct mine *h)
{
	h->len = below(p, h->len + 1);
	MUST(p, attnd_seq_trim(p->toy[h->cache].a, h->key, h->len));
}

static void fork_one(struct self *p, const struct mine *h, struct mine *to)
{
	if (!h->key || to->key)
		return;
	*to = *h;
	to->key = ++p->keys;
	to->len = below(p, h->len + 1);
	MUST(p, attnd_seq_fork(p->toy[h->cache].a, h->key, to->key, to->len));
	p->told->forks++;
}

static void names(struct self *p)
{
	for (uint32_t c = 0; c < CACHES; c++)
		for (uint32_t i = 0; i < TENANTS; i++) {
			const struct attnd_namespace ns = {.salt = &i, .salt_bytes = sizeof(i)};
			uint32_t id;

			MUST(p, attnd_namespace(p->toy[c].a, &ns, &id));
			CHECK(p, !p->ns[c][i] || id == p->ns[c][i]);
			p->ns[c][i] = id;
		}
}

static void one_op(struct self *p)
{
	struct mine *h = any(p);
	uint32_t what = below(p, 100);

	p->told->ops++;
	if (!h->key && what < 20)
		fork_one(p, any(p), h);
	else if (!h->key && what < 70)
		open_one(p, h);
	else if (!h->key)
		wait_one(p, h);
	else if (what < 62 && !go_on(p, h, what < 12))
		for (int i = 0; i < HELD; i++) /* make room */
			close_one(p, &p->held[i]);
	else if (what < 62)
		;
	else if (what < 70)
		shorten(p, h);
	else if (what < 78)
		fork_one(p, h, any(p));
	else if (what < 86)
		close_one(p, h);
	else if (what < 92)
		compare(p, h);
	else if (what < 98)
		look(p, h);
	else
		names(p);
}

/* Commands: 'r': some operations, then everything compared; 'c': let go of all. */
static void run(struct self *p, int fd)
{
	struct attnd_connect_options options = {.socket = kept.daemon.socket, .name = "process"};
	char command = 0;

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	for (uint32_t c = 0; c < CACHES; c++) {
		void *data;
		attnd_t *a;

		MUST(p, attnd_connect(&a, &options));
		MUST(p, toy_open(&p->toy[c], a, (uint8_t)(1 + c)));
		MUST(p, attnd_alloc(a, 2 * TEXT * KV_FLOATS * sizeof(float), &data));
		p->data[c] = data;
	}
	names(p);
	do {
		p->told->sequences = p->told->blocks = 0;
		for (uint32_t i = 0; command == 'r' && i < OPS; i++)
			one_op(p);
		for (uint32_t i = 0; i < HELD; i++) {
			struct mine *h = &p->held[i];

			if (command == 'c')
				close_one(p, h);
			if (!h->key)
				continue;
			compare(p, h);
			p->told->sequences++;
			p->told->blocks += 2 * (h->len / BLOCK + 1); /* its table and, perhaps, the tree's */
		}
		CHECK(p, write(fd, "", 1) == 1);
	} while (read(fd, &command, 1) == 1);
	_exit(0);
}

/* ---- The test ---- */

static void start_process(int i, uint64_t seed)
{
	static struct self self;
	int pair[2];

	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
	process[i].fd = pair[0];
	process[i].pid = fork();
	if (process[i].pid == 0) {
		for (int k = 0; k < PROCESSES; k++)
			if (process[k].fd)
				close(process[k].fd);
		self = (struct self){.told = &told[i], .seed = seed};
		run(&self, pair[1]);
	}
	close(pair[1]);
}

static void fail_of(int i, int status)
{
	if (!WIFSIGNALED(status) || WTERMSIG(status) != SIGKILL)
		fail_msg("process %d: line %d: %s, status %x", i, told[i].line, strerror(-told[i].error),
			 (unsigned)status);
}

/* It is through with what it was told; or, killed, it is gone. */
static void hear(int i)
{
	int status;
	char byte;

	if (process[i].pid && read(process[i].fd, &byte, 1) == 1)
		return;
	if (!process[i].pid)
		return;
	assert_int_equal(waitpid(process[i].pid, &status, 0), process[i].pid);
	fail_of(i, status);
	close(process[i].fd);
	process[i] = (struct process){0};
	told[i].sequences = told[i].blocks = 0;
}

static void tell_all(char command)
{
	for (int i = 0; i < PROCESSES; i++)
		if (process[i].pid)
			(void)!send(process[i].fd, &command, 1, MSG_NOSIGNAL);
}

/* Some operations of all; when the first one is through with them, another one may be killed amid its own. */
static int a_round(uint64_t *seed)
{
	int victim = next_random(seed) % 2 ? (int)(next_random(seed) >> 33) % PROCESSES : -1, dead = 0;
	struct pollfd fds[PROCESSES];
	char byte;

	tell_all('r');
	for (int i = 0; i < PROCESSES; i++)
		fds[i] = (struct pollfd){.fd = i == victim ? -1 : process[i].fd, .events = POLLIN};
	assert_true(poll(fds, PROCESSES, 60000) > 0);
	if (victim >= 0) {
		kill(process[victim].pid, SIGKILL);
		while (read(process[victim].fd, &byte, 1) == 1) /* it was through, too */
			;
	}
	for (int i = 0; i < PROCESSES; i++) {
		hear(i);
		dead += !process[i].pid;
	}
	return dead;
}

/* The daemon has what the living hold, and nothing else. */
static void check_held(int64_t arena_each)
{
	int64_t sequences = 0, blocks = 0, living = 0;
	json_t *status, *cache;
	size_t i;

	for (int k = 0; k < PROCESSES; k++) {
		sequences += told[k].sequences;
		blocks += told[k].blocks;
		living += process[k].pid != 0;
	}
	kept_wait_number(&kept, "sessions", CACHES * living);
	kept_wait_number(&kept, "counters.sequences", sequences);
	kept_wait_number(&kept, "arena_bytes", living * arena_each);
	status = daemon_json(&kept.daemon, "status");
	json_array_foreach(json_object_get(status, "caches"), i, cache) blocks -=
		json_integer_value(json_object_get(cache, "blocks_referenced"));
	json_decref(status);
	assert_true(blocks >= 0);
	if (!sequences)
		assert_int_equal(daemon_number(&kept.daemon, "pool.bytes_referenced"), 0);
}

static int64_t cached_blocks(void)
{
	json_t *status = daemon_json(&kept.daemon, "status"), *cache;
	int64_t n = 0;
	size_t i;

	json_array_foreach(json_object_get(status, "caches"), i, cache) n +=
		json_integer_value(json_object_get(cache, "blocks_evictable"));
	json_decref(status);
	return n;
}

static uint64_t sum(size_t offset)
{
	uint64_t n = 0;

	for (int i = 0; i < PROCESSES; i++)
		n += atomic_load((_Atomic uint64_t *)(void *)((char *)&told[i] + offset));
	return n;
}
#define SUM(member) sum(offsetof(struct told, member))

/* The next daemon looks at every block, link and place of the tree. */
static void check_tree(const char *const *flags)
{
	static const char *const none[] = {"blocks_altered", "blocks_misplaced", "blocks_orphaned", "blocks_below"};
	int64_t blocks = cached_blocks();
	char path[64];

	assert_true(blocks > 0);
	kept_restart(&kept, SIGTERM, flags);
	for (size_t i = 0; i < sizeof(none) / sizeof(*none); i++) {
		snprintf(path, sizeof(path), "restore.%s", none[i]);
		assert_int_equal(daemon_number(&kept.daemon, path), 0);
	}
	assert_int_equal(daemon_number(&kept.daemon, "restore.blocks"), blocks);
	assert_int_equal(cached_blocks(), blocks);
}

static void test_processes(void **state)
{
	const char *const flags[] = {"--pool-size", "8M", "--slab-size", "2M", NULL},
			  *text = getenv("PROCESSES_SEED");
	uint64_t seed = text ? strtoull(text, NULL, 0) | 1 : 77;
	int rounds = getenv("TEST_LONG") ? 300 : sanitized() ? 6 : 20, killed = 0;
	int64_t arena_each;

	(void)state;
	kept_start(&kept, flags);
	for (int i = 0; i < PROCESSES; i++) {
		start_process(i, next_random(&seed) | 1);
		hear(i);
	}
	arena_each = daemon_number(&kept.daemon, "arena_bytes") / PROCESSES;
	for (int round = 1; round <= rounds; round++) {
		int dead = a_round(&seed);

		killed += dead;
		check_held(arena_each);
		if (round % 4 == 0 || round == rounds) {
			tell_all('c');
			for (int i = 0; i < PROCESSES; i++)
				hear(i);
			check_held(arena_each);
		}
		for (int i = 0; i < PROCESSES && dead && round < rounds; i++) {
			if (process[i].pid)
				continue;
			start_process(i, next_random(&seed) | 1);
			hear(i);
		}
	}
	print_message("%llu operations: hits %llu, taken over %llu, refused %llu, waits %llu of which for twins "
		      "%llu, forks %llu, "
		      "exports compared %llu; killed %d\n",
		      (unsigned long long)SUM(ops), (unsigned long long)SUM(hits), (unsigned long long)SUM(taken),
		      (unsigned long long)SUM(refused), (unsigned long long)SUM(waits),
		      (unsigned long long)SUM(twins), (unsigned long long)SUM(forks),
		      (unsigned long long)SUM(exported), killed);
	assert_true(killed && SUM(hits) && SUM(taken) && SUM(twins) && SUM(forks));
	assert_true(daemon_number(&kept.daemon, "counters.evicted_blocks") > 0);
	for (int i = 0; i < PROCESSES; i++) {
		if (!process[i].pid)
			continue;
		kill(process[i].pid, SIGKILL);
		hear(i);
	}
	daemon_wait_in_use(&kept.daemon, &(struct in_use){0});
	check_tree(flags);
	kept_clean(&kept);
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(test_processes)};

	told = mmap(NULL, PROCESSES * sizeof(*told), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	assert_true(told != MAP_FAILED);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
