/* SPDX-License-Identifier: Apache-2.0 */
/* In: a daemon. Out: prompts cached in it, and what is left of them. Next: prompts.h's callers. */
#include "prompts.h"

enum { PROMPTS = 6, TOKENS = 150, TENANTS = 2 };

/* Prompts 2 and 3 leave 1 inside a block and at one's end, the others stand alone. */
static void prompt(uint64_t *tokens, unsigned p)
{
	static const unsigned leaves[PROMPTS] = {0, 0, 37, 64, 0, 0};

	toy_tokens(tokens, TOKENS, 100000 * (leaves[p] ? 1 : p + 10));
	if (p == 1)
		toy_tokens(tokens, TOKENS, 100000);
	for (unsigned i = leaves[p]; leaves[p] && i < TOKENS; i++)
		tokens[i] += 1000 * p;
}

static uint32_t length(unsigned p)
{
	return TOKENS - 7 * p; /* ends inside blocks */
}

void prompts_fill(struct kept *k)
{
	attnd_t *a = daemon_connect(&k->daemon);
	uint64_t tokens[TOKENS], cached, key = 1;
	struct toy t;

	assert_int_equal(toy_open(&t, a, 1), 0);
	for (uint32_t tenant = 0; tenant < TENANTS; tenant++)
		for (unsigned p = 0; p < PROMPTS; p++) {
			kept_tenant(&t, tenant);
			prompt(tokens, p);
			assert_int_equal(toy_prefill(&t, key, tokens, length(p), &cached), 0);
			assert_int_equal(attnd_seq_close(a, key++), 0);
		}
	attnd_disconnect(a);
}

/* What is cached is right; how many tokens that is. */
uint32_t prompts_look(struct kept *k)
{
	attnd_t *a = daemon_connect(&k->daemon);
	uint64_t tokens[TOKENS], key = 1;
	uint32_t sum = 0;
	struct toy t;

	assert_int_equal(toy_open(&t, a, 1), 0);
	for (uint32_t tenant = 0; tenant < TENANTS; tenant++)
		for (unsigned p = 0; p < PROMPTS; p++) {
			kept_tenant(&t, tenant);
			prompt(tokens, p);
			int n = kept_check(&t, key++, tokens, length(p));
			if (n < 0)
				print_message("prompt %u of %u: %s\n", p, tenant, attnd_strerror(a, n));
			assert_true(n >= 0 && n <= (int)length(p));
			sum += (uint32_t)n;
		}
	attnd_disconnect(a);
	return sum;
}

uint32_t prompts_all(void)
{
	uint32_t sum = 0;

	for (unsigned p = 0; p < PROMPTS; p++)
		sum += length(p);
	return TENANTS * sum;
}
