/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Several processes, tenants and prompts at random over a pool that is too small, all of them
 * killed again and again, some leaving a child that lives on with their descriptors, while the
 * configuration is reloaded: every output has the bits of an oracle that shares nothing, and nothing
 * is left.
 *
 * In: a fixed seed; $SOAK_SECONDS, how long (make soak). Out: TAP. Next: all of daemon/.
 */
#include <errno.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../../shm/futex.h"
#include "toy.h"

enum { TENANTS = 3, PROMPTS = 40, TOKENS = 200, HELD = 8, CLIENTS = 4, ORACLE = 2 };
enum {
	STEPS = 500, /* of all clients, from one event of a round to the next */
	SETTLED = 6, /* rounds until all there is has been made */
};

/* Shared with the clients. */
struct shared {
	float oracle[TENANTS][PROMPTS][TOKENS][TOY_ROW_FLOATS];
	_Atomic(uint64_t) steps; /* that clients have done */
};

static struct daemon daemon_;
static struct shared *shared_;

/* Four prompts of a family begin alike: each has its own tokens from another place on. */
static void prompt(uint64_t *tokens, unsigned p)
{
	toy_tokens(tokens, TOKENS, p / 4 * 10000);
	for (unsigned i = 40 * (p % 4); p % 4 && i < TOKENS; i++)
		tokens[i] += 1000 * p;
}

static int be_tenant(struct toy *t, uint32_t tenant)
{
	struct attnd_namespace ns = {.salt = &tenant, .salt_bytes = sizeof(tenant)};

	t->salt = tenant;
	return attnd_namespace(t->a, &ns, &t->ns);
}

/* All outputs of a prompt in one extend, in another cache, never published. */
static void ask_oracle(void)
{
	attnd_t *a = daemon_connect(&daemon_);
	struct attnd_open_info info;
	uint64_t tokens[TOKENS];
	struct toy t;

	assert_int_equal(toy_open(&t, a, ORACLE), 0);
	for (uint32_t tenant = 0; tenant < TENANTS; tenant++)
		for (unsigned p = 0; p < PROMPTS; p++) {
			struct attnd_row row = {.key = 1, .tokens = tokens, .num_tokens = TOKENS};
			t.salt = tenant;
			prompt(tokens, p);
			assert_int_equal(attnd_seq_open(a, 1, 0, NULL, 0, 0, &info), 0);
			assert_int_equal(toy_step(&t, 1, &row, 1, NULL), 0);
			memcpy(shared_->oracle[tenant][p], t.out, sizeof(shared_->oracle[tenant][p]));
			assert_int_equal(attnd_seq_close(a, 1), 0);
		}
	attnd_disconnect(a);
}

struct held {
	uint64_t key; /* 0: none */
	uint32_t tenant, length;
	unsigned prompt;
};

/* Go on with a sequence by a few tokens and compare the last one. 0, -ENOMEM (no room), or the process ends. */
static int go_on(struct toy *t, struct held *h, uint64_t *seed)
{
	uint32_t n = 1 + (uint32_t)(next_random(seed) % 60);
	uint64_t tokens[TOKENS];
	struct attnd_row_status status;

	if (h->length + n > TOKENS)
		n = TOKENS - h->length;
	if (!n)
		return 0;
	prompt(tokens, h->prompt);
	t->salt = h->tenant;
	struct attnd_row row = {.key = h->key,
				.start = h->length,
				.tokens = tokens + h->length,
				.num_tokens = n,
				.publish_upto = next_random(seed) % 3 ? h->length + n : 0};
	int e = toy_step(t, (uint32_t)(next_random(seed) % 4), &row, 1, &status);
	if (e < 0)
		_exit(10);
	if (status.status)
		return status.status == -ENOMEM ? -ENOMEM : (_exit(11), 0);
	h->length += n;
	if (memcmp(t->out + (size_t)(n - 1) * TOY_ROW_FLOATS, shared_->oracle[h->tenant][h->prompt][h->length - 1],
		   TOY_ROW_FLOATS * sizeof(float)) != 0)
		_exit(12);
	return 0;
}

static void start(struct toy *t, struct held *h, uint64_t key, uint64_t *seed)
{
	struct attnd_open_info info;
	uint64_t tokens[TOKENS];

	*h = (struct held){.key = key,
			   .tenant = (uint32_t)(next_random(seed) % TENANTS),
			   .prompt = (unsigned)(next_random(seed) % PROMPTS)};
	prompt(tokens, h->prompt);
	if (be_tenant(t, h->tenant) < 0 ||
	    attnd_seq_open(t->a, key, t->ns, tokens, TOKENS, next_random(seed) % TOKENS, &info) < 0)
		_exit(13);
	h->length = (uint32_t)info.cached;
}

/* One random step with one of the sequences that this client holds. */
static void step(struct toy *t, struct held *held, uint64_t *next_key, uint64_t *seed)
{
	struct held *h = &held[next_random(seed) % HELD], *other = &held[next_random(seed) % HELD];

	if (!h->key) {
		start(t, h, (*next_key)++, seed);
		return;
	}
	switch (next_random(seed) % 8) {
	case 0:
		if (attnd_seq_close(t->a, h->key) < 0)
			_exit(14);
		h->key = 0;
		break;
	case 1: /* shorter */
		h->length -= (uint32_t)(next_random(seed) % (h->length + 1));
		if (attnd_seq_trim(t->a, h->key, h->length) < 0)
			_exit(15);
		break;
	case 2: /* a fork in another's place */
		if (other == h || other->key)
			break;
		*other = *h;
		other->key = (*next_key)++;
		if (attnd_seq_fork(t->a, h->key, other->key, h->length) < 0)
			_exit(16);
		break;
	default:
		if (go_on(t, h, seed) == 0)
			break;
		for (int i = 0; i < HELD; i++) /* make room */
			if (held[i].key && attnd_seq_close(t->a, held[i].key) < 0)
				_exit(17);
		memset(held, 0, HELD * sizeof(*held));
	}
}

/* A child with all of its parent's descriptors and mappings, that outlives it: no session's business. */
static void leave_child(void)
{
	if (fork() == 0) {
		alarm(2);
		for (;;)
			pause();
	}
}

static void client(uint64_t seed)
{
	struct attnd_connect_options options = {.socket = daemon_.socket, .name = "soak"};
	struct held held[HELD] = {{0}};
	uint64_t next_key = 1;
	struct toy t;
	attnd_t *a;

	if (attnd_connect(&a, &options) < 0 || toy_open(&t, a, 1) < 0)
		_exit(18);
	if (next_random(&seed) % 4 == 0)
		leave_child();
	for (;;) {
		step(&t, held, &next_key, &seed);
		atomic_fetch_add(&shared_->steps, 1);
	}
}

/* By their work and not by a clock: a slow build or machine mixes as much as a fast one. */
static void wait_for_steps(uint64_t n)
{
	const uint64_t until = atomic_load(&shared_->steps) + n;

	for (int i = 0; i < 30000 && atomic_load(&shared_->steps) < until; i++)
		sleep_ms(1);
}

static int group_start(void **state)
{
	const char *const args[] = {"--pool-size", "12M", "--hugepages", "off", NULL};

	(void)state;
	shared_ = mmap(NULL, sizeof(*shared_), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	return shared_ == MAP_FAILED ? -1 : daemon_start(&daemon_, args);
}

static int group_end(void **state)
{
	(void)state;
	daemon_clean(&daemon_);
	munmap(shared_, sizeof(*shared_));
	return 0;
}

static int evicted(void)
{
	return daemon_number(&daemon_, "counters.evicted_blocks") > 0;
}

static void test_soak(void **state)
{
	const char *seconds = getenv("SOAK_SECONDS");
	const int rounds = seconds ? 0 : getenv("TEST_LONG") ? 200 : 8;
	struct in_use none = {0};
	uint64_t seed = 7;
	pid_t pids[CLIENTS];
	int64_t fds = 0, kib = 0;
	int status, done = 0;

	(void)state;
	ask_oracle();
	const uint64_t until = seconds ? attnd_now_ns() + strtoull(seconds, NULL, 10) * UINT64_C(1000000000) : 0;
	for (int round = 0; round < rounds || round < SETTLED + 2 || attnd_now_ns() < until; round++) {
		for (int c = 0; c < CLIENTS; c++) {
			uint64_t s = next_random(&seed);
			pids[c] = fork();
			if (pids[c] == 0)
				client(s);
		}
		wait_for_steps(STEPS);
		kill(daemon_.pid, SIGHUP);
		wait_for_steps(STEPS);
		for (int c = 0; c < CLIENTS; c++) {
			kill(pids[c], SIGKILL);
			assert_int_equal(waitpid(pids[c], &status, 0), pids[c]);
			if (!WIFSIGNALED(status))
				fail_msg("round %d, client %d: exit %d", round, c, WEXITSTATUS(status));
		}
		if (++done == SETTLED) {
			daemon_wait_in_use(&daemon_, &none);
			fds = proc_fds(daemon_.pid);
			kib = proc_rss_kib(daemon_.pid);
		}
	}
	daemon_wait_in_use(&daemon_, &none);
	print_message("%d rounds, %llu steps; KiB resident: %lld, then %lld; descriptors: %lld, then %lld\n", done,
		      (unsigned long long)atomic_load(&shared_->steps), (long long)kib,
		      (long long)proc_rss_kib(daemon_.pid), (long long)fds, (long long)proc_fds(daemon_.pid));
	for (int i = 0; i < 300 && proc_fds(daemon_.pid) > fds; i++)
		sleep_ms(10);
	assert_true(proc_fds(daemon_.pid) <= fds);
	if (!sanitized())
		assert_true(proc_rss_kib(daemon_.pid) < kib + 4096);
	assert_true(evicted());
	assert_true(daemon_number(&daemon_, "counters.hit_tokens") > 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(test_soak)};

	return cmocka_run_group_tests(tests, group_start, group_end);
}
