/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Lookups without the daemon, in the peek table of a million blocks.
 *
 * In:   a private daemon and prompts; K/V as small as can be, since only the table matters.
 * Out:  peek_4k_us (a prompt of 4096 tokens that is cached), peek_miss_us, and lookups a second of
 *       1 to 4 processes while the daemon publishes.
 * Next: report.h.
 */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../../client/attnd.h"
#include "attnd-bench.h"

enum { LENGTH = 4096, AT_ONCE = 256, PROMPTS = 16 * AT_ONCE, READERS = 4, LOOKS = 4000 };

struct peeker {
	attnd_t *a;
	uint32_t cache;
	uint16_t *kv;	  /* arena, of one plan */
	uint64_t *tokens; /* of one plan */
	uint64_t keys;
};

static void check(int error, const char *what)
{
	if (error < 0)
		die("%s: %s", what, attnd_strerror(NULL, error));
}

/* The same numbers for the same prompt, without keeping them. */
static void make_prompt(uint64_t *to, uint64_t number)
{
	for (uint64_t i = 0; i < LENGTH; i++)
		to[i] = (number * LENGTH + i) * UINT64_C(0x9e3779b97f4a7c15) >> 47;
}

static void join(struct peeker *p, attnd_t *a)
{
	const struct attnd_cache_desc desc = {.name = "peek",
					      .num_layers = 1,
					      .num_heads = 1,
					      .num_kv_heads = 1,
					      .head_dim = 1,
					      .block_size = BLOCK,
					      .kv_dtype = ATTND_BF16,
					      .layout = ATTND_BHSD};
	struct attnd_cache_info info;

	check(attnd_cache_open(a, &desc, 1, &info), "opening a cache");
	*p = (struct peeker){
		.a = a, .cache = info.cache, .tokens = must(malloc(AT_ONCE * LENGTH * sizeof(uint64_t)))};
}

static void prepare(struct peeker *p)
{
	const struct attnd_params params = {.cache = p->cache,
					    .sm_scale = 1,
					    .causal = 1,
					    .q_dtype = ATTND_BF16,
					    .out_dtype = ATTND_BF16,
					    .kv_in_dtype = ATTND_BF16};
	size_t bytes = (size_t)AT_ONCE * LENGTH * sizeof(uint16_t);
	void *kv;

	check(attnd_params_set(p->a, 0, &params), "parameters");
	check(attnd_alloc(p->a, bytes, &kv), "arena memory");
	p->kv = kv;
	memset(kv, 0, bytes);
}

/* Prompts [first, first + n), as new sequences that are closed again. */
static void publish(struct peeker *p, uint64_t first, uint32_t n)
{
	static struct attnd_row rows[AT_ONCE];
	static uint64_t keys[AT_ONCE];
	const struct attnd_attend job = {.plan = 1, .flags = ATTND_LAST | ATTND_NO_OUT, .k = p->kv, .v = p->kv};
	struct attnd_open_info info;
	attnd_job_t id;

	for (uint32_t i = 0; i < n; i++) {
		uint64_t *tokens = p->tokens + (size_t)i * LENGTH;

		make_prompt(tokens, first + i);
		keys[i] = ++p->keys;
		check(attnd_seq_open(p->a, keys[i], 0, tokens, 0, 0, &info), "opening a sequence");
		rows[i] = (struct attnd_row){
			.key = keys[i], .tokens = tokens, .num_tokens = LENGTH, .publish_upto = LENGTH};
	}
	check(attnd_plan(p->a, 1, p->cache, rows, n, NULL, 0), "a plan");
	check(attnd_extend(p->a, &job, &id), "a job");
	check(attnd_wait(p->a, id, NULL), "a job");
	check(attnd_seq_close_many(p->a, keys, n), "closing");
}

static double look(struct peeker *p, uint64_t number, uint64_t want)
{
	uint64_t cached;
	double start;

	make_prompt(p->tokens, number);
	start = now_seconds();
	check(attnd_peek(p->a, p->cache, 0, p->tokens, LENGTH, &cached), "looking");
	if (cached != want)
		die("a look found %llu tokens of %d", (unsigned long long)cached, LENGTH);
	return (now_seconds() - start) * 1e6;
}

static void measure_looks(struct peeker *p)
{
	static struct samples hit, miss;

	hit.n = miss.n = 0;
	(void)look(p, 0, LENGTH);
	for (int i = 0; i < LOOKS && hit.n < SAMPLES_MAX; i++) {
		sample_add(&hit, look(p, random_below(PROMPTS), LENGTH));
		sample_add(&miss, look(p, 2 * PROMPTS + random_below(PROMPTS), 0));
	}
	report_goal("peek_4k_us", sample_median(&hit), "us", 25, false);
	report_figure("peek_miss_us", sample_median(&miss), "us");
}

/* ---- Many readers ---- */

/* Another process: looks until it is killed, and counts. */
static void read_for_ever(const char *socket, volatile uint64_t *count)
{
	const struct attnd_connect_options options = {.socket = socket};
	struct peeker p;
	uint64_t cached;
	attnd_t *a;

	check(attnd_connect(&a, &options), "connecting");
	join(&p, a);
	for (uint64_t i = 0; i < AT_ONCE; i++)
		make_prompt(p.tokens + i * LENGTH, random_below(PROMPTS));
	for (;; ++*count)
		check(attnd_peek(a, p.cache, 0, p.tokens + random_below(AT_ONCE) * LENGTH, LENGTH, &cached),
		      "looking");
}

static void measure_readers(struct peeker *p, int readers, double seconds)
{
	size_t bytes = READERS * sizeof(uint64_t[16]);
	uint64_t(*counts)[16] = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	uint64_t sum = 0, next = 4 * PROMPTS + (uint64_t)readers * PROMPTS;
	pid_t pid[READERS];
	char name[32];
	double start;

	if (counts == MAP_FAILED)
		die("no memory");
	for (int i = 0; i < readers; i++) {
		pid[i] = fork();
		if (pid[i] == 0)
			read_for_ever(attnd_socket(p->a), counts[i]);
		while (!*(volatile uint64_t *)counts[i] && waitpid(pid[i], NULL, WNOHANG) == 0)
			usleep(1000);
		sum -= *(volatile uint64_t *)counts[i];
	}
	start = now_seconds();
	while (now_seconds() - start < seconds)
		publish(p, next++, 1);
	for (int i = 0; i < readers; i++) {
		kill(pid[i], SIGKILL);
		waitpid(pid[i], NULL, 0);
		sum += counts[i][0];
	}
	snprintf(name, sizeof(name), "peeks_per_s_%d", readers);
	report_figure(name, (double)sum / (now_seconds() - start), "1/s");
	munmap(counts, bytes);
}

void measure_peek(void)
{
	const char *const args[] = {"--pool-size", "144M", "--meta-size", "1G", "--peek-entries", "2097152", NULL};
	struct peeker p;
	attnd_t *a;

	progress("peek: %d blocks", PROMPTS * LENGTH / BLOCK);
	check(attnd_private_start(&a, args, NULL), "a private daemon");
	join(&p, a);
	prepare(&p);
	for (uint64_t i = 0; i < PROMPTS; i += AT_ONCE)
		publish(&p, i, AT_ONCE);
	measure_looks(&p);
	progress("peek: readers");
	for (int readers = 1; readers <= READERS; readers++)
		measure_readers(&p, readers, bench.seconds / 20);
	free(p.tokens);
	attnd_disconnect(a);
}
