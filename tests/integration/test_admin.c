/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What administrators can do to caches: evict, flush, pin for a time within a budget, unpin.
 *
 * In: attnctl's commands, a client's prompts. Out: TAP. Next: daemon/manage.c.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "toy.h"

enum { PROMPT = 100, BLOCKS = 7, PINNED = 77, PINNED_BLOCKS = 5 };

#define TOKENS_OF_PROMPT "$(seq -s, 1 77)"

static struct daemon daemon_;

static int test_start(void **state)
{
	const char *const args[] = {"--pool-size", "16M", "--hugepages", "off", NULL};

	(void)state;
	return daemon_start(&daemon_, args);
}

static int test_end(void **state)
{
	(void)state;
	daemon_clean(&daemon_);
	return 0;
}

/* A number of the answer to a command; -errno of a refusal. */
static int64_t ask(const char *command, const char *name)
{
	json_t *reply = daemon_json(&daemon_, command);
	const json_t *error = json_object_get(reply, "errno"), *n = json_object_get(reply, name);
	int64_t value;

	assert_non_null(reply);
	value = json_integer_value(error ? error : n);
	assert_true(error || json_is_integer(n));
	json_decref(reply);
	return value;
}

static size_t pins(void)
{
	json_t *reply = daemon_json(&daemon_, "pins");
	size_t n = json_array_size(json_object_get(reply, "pins"));

	json_decref(reply);
	return n;
}

static attnd_t *prompt_cached(struct toy *t)
{
	attnd_t *a = daemon_connect(&daemon_);
	uint64_t tokens[PROMPT], cached;

	toy_tokens(tokens, PROMPT, 1);
	assert_int_equal(toy_open(t, a, 1), 0);
	assert_int_equal(toy_prefill(t, 1, tokens, PROMPT, &cached), 0);
	assert_int_equal(cached, 0);
	return a;
}

static uint64_t hit(attnd_t *a, uint64_t key)
{
	struct attnd_open_info info;
	uint64_t tokens[PROMPT];

	toy_tokens(tokens, PROMPT, 1);
	assert_int_equal(attnd_seq_open(a, key, 0, tokens, PROMPT, UINT64_MAX, &info), 0);
	assert_int_equal(attnd_seq_close(a, key), 0);
	return info.cached;
}

static void test_evict(void **state)
{
	struct toy t;
	attnd_t *a = prompt_cached(&t);

	(void)state;
	assert_int_equal(ask("evict cache=toy blocks=3", "evicted"), 0); /* all of it is held */
	assert_int_equal(ask("flush cache=toy", "evicted"), 0);
	assert_int_equal(attnd_seq_close(a, 1), 0);
	assert_int_equal(ask("evict cache=toy blocks=3", "evicted"), 3);
	assert_int_equal(hit(a, 2), (uint64_t)16 * (BLOCKS - 3)); /* leaves go first */
	assert_int_equal(ask("flush cache=toy", "evicted"), BLOCKS - 3);
	assert_int_equal(hit(a, 3), 0);
	assert_int_equal(ask("flush cache=other", "evicted"), -ENOENT);
	assert_int_equal(ask("evict cache=toy", "evicted"), -EINVAL);
	assert_int_equal(ask("flush realm=uid:0x", "evicted"), -ENOENT);
	attnd_disconnect(a);
}

/* Without a name all caches are flushed. */
static void test_flush_all(void **state)
{
	struct toy t, other;
	attnd_t *a = prompt_cached(&t);
	uint64_t tokens[PROMPT], cached;

	(void)state;
	assert_int_equal(attnd_seq_close(a, 1), 0);
	attnd_disconnect(a);
	a = daemon_connect(&daemon_);
	assert_int_equal(toy_open(&other, a, 2), 0);
	toy_tokens(tokens, PROMPT, 1);
	assert_int_equal(toy_prefill(&other, 1, tokens, PROMPT, &cached), 0);
	assert_int_equal(attnd_seq_close(a, 1), 0);
	assert_int_equal(ask("flush realm=nobody", "evicted"), -ENOENT);
	assert_int_equal(ask("flush", "evicted"), 2 * BLOCKS);
	assert_int_equal(ask("flush", "evicted"), 0);
	attnd_disconnect(a);
}

static void test_set(void **state)
{
	(void)state;
	assert_int_equal(ask("set", "namespace-quota"), 100);
	assert_int_equal(ask("set namespace-quota=30 pin-budget=10", "namespace-quota"), 30);
	assert_int_equal(ask("set", "pin-budget"), 10);
	assert_int_equal(ask("set session-quota=0", "pin-budget"), -EINVAL);
	assert_int_equal(ask("set pin-budget=5 no-such=1", "pin-budget"), -EINVAL);
	assert_int_equal(ask("set eviction=fifo", "pin-budget"), -EINVAL);
	assert_int_equal(ask("set", "pin-budget"), 10); /* all or none */
	assert_int_equal(ask("set namespace-quota=100 pin-budget=50 eviction=priority", "pin-budget"), 50);
	assert_int_equal(ask("set eviction=lru cache-shares=toy:10:50,other::20", "pin-budget"), 50);
	assert_int_equal(ask("set cache-shares=toy:60:50", "pin-budget"), -EINVAL);
	assert_int_equal(ask("set cache-shares=toy:60:,b:50:", "pin-budget"), -EINVAL);
	assert_int_equal(ask("set cache-shares=", "pin-budget"), 50);
}

static void test_pin(void **state)
{
	struct toy t;
	attnd_t *a = prompt_cached(&t);

	(void)state;
	assert_int_equal(attnd_seq_close(a, 1), 0);
	assert_int_equal(ask("pin cache=toy seconds=1000 tokens=" TOKENS_OF_PROMPT, "tokens"), PINNED);
	assert_int_equal(pins(), 1);
	assert_int_equal(daemon_number(&daemon_, "caches.0.blocks_referenced"), PINNED_BLOCKS);
	assert_int_equal(ask("flush cache=toy", "evicted"), BLOCKS - PINNED_BLOCKS);
	assert_int_equal(hit(a, 2), 16 * PINNED_BLOCKS); /* a block is pinned as a whole */
	attnd_disconnect(a);

	/* The client is gone, the pin is not. */
	assert_int_equal(ask("unpin pin=99", "unpinned"), -ENOENT);
	assert_int_equal(ask("unpin pin=1", "unpinned"), 1);
	assert_int_equal(ask("flush cache=toy", "evicted"), PINNED_BLOCKS);
	assert_int_equal(ask("pin cache=toy seconds=1 tokens=1,2,3", "tokens"), -ENOENT);
	assert_int_equal(ask("pin cache=toy seconds=0 tokens=1,2,3", "tokens"), -EINVAL);
	assert_int_equal(ask("pin cache=toy seconds=5", "tokens"), -EINVAL);
}

static void test_pin_expires(void **state)
{
	struct toy t;
	attnd_t *a = prompt_cached(&t);

	(void)state;
	assert_int_equal(attnd_seq_close(a, 1), 0);
	assert_int_equal(ask("pin cache=toy seconds=1 tokens=" TOKENS_OF_PROMPT, "blocks"), PINNED_BLOCKS);
	for (int i = 0; i < 1000 && pins(); i++)
		sleep_ms(10);
	assert_int_equal(pins(), 0);
	assert_int_equal(ask("flush cache=toy", "evicted"), BLOCKS);
	attnd_disconnect(a);
}

/* Another tenant's, adapter's or salt's prompt is not this one. */
static void test_pin_namespace(void **state)
{
	struct toy t;
	attnd_t *a = prompt_cached(&t);

	(void)state;
	assert_int_equal(ask("pin cache=toy salt=x seconds=9 tokens=1,2,3", "tokens"), -ENOENT);
	assert_int_equal(ask("pin cache=toy seconds=9 tokens=1,2,3", "tokens"), 3);
	assert_int_equal(ask("unpin", "unpinned"), 1);
	attnd_disconnect(a);
}

/* Two prompts that part in the second block: depth first, with who holds what. */
static void test_tree(void **state)
{
	uint64_t tokens[PROMPT], cached;
	size_t shared = 0, held = 0, next = 0, i;
	struct toy t;
	attnd_t *a = prompt_cached(&t);
	json_t *reply, *list, *block;

	(void)state;
	toy_tokens(tokens, PROMPT, 1);
	tokens[20] = 9999;
	assert_int_equal(toy_prefill(&t, 2, tokens, PROMPT, &cached), 0);
	assert_int_equal(cached, 20);
	assert_int_equal(attnd_seq_close(a, 2), 0);
	assert_int_equal(ask("pin cache=toy seconds=9 tokens=1,2,3", "tokens"), 3);
	reply = daemon_json(&daemon_, "tree cache=toy");
	list = json_object_get(reply, "tree");
	assert_int_equal(json_array_size(list), 2 * BLOCKS - 1);
	json_array_foreach(list, i, block)
	{
		shared += json_integer_value(json_object_get(block, "children")) > 1;
		held += json_integer_value(json_object_get(block, "references")) ||
			json_integer_value(json_object_get(block, "held_children"));
		next += json_integer_value(json_object_get(block, "goes_next")) == 1;
		assert_int_equal(json_integer_value(json_object_get(block, "pins")), i == 0);
	}
	assert_int_equal(json_integer_value(json_object_get(json_array_get(list, 0), "parent")), -1);
	assert_int_equal(json_integer_value(json_array_get(json_object_get(json_array_get(list, 0), "tokens"), 3)),
			 4);
	assert_int_equal(shared, 1); /* the block that the second prompt left: what follows it, and a sibling */
	assert_int_equal(held, BLOCKS);
	assert_int_equal(next, 1);
	json_decref(reply);
	reply = daemon_json(&daemon_, "tree cache=toy blocks=3");
	assert_int_equal(json_array_size(json_object_get(reply, "tree")), 3);
	json_decref(reply);
	assert_int_equal(ask("tree cache=other", "tree"), -ENOENT);
	attnd_disconnect(a);
}

static int no_budget_start(void **state)
{
	const char *const args[] = {"--pool-size", "16M", "--hugepages", "off", "--pin-budget", "0", NULL};

	(void)state;
	return daemon_start(&daemon_, args);
}

static void test_pin_budget(void **state)
{
	struct toy t;
	attnd_t *a = prompt_cached(&t);

	(void)state;
	assert_int_equal(ask("pin cache=toy seconds=9 tokens=1,2,3", "tokens"), -EDQUOT);
	assert_int_equal(pins(), 0);
	attnd_disconnect(a);
	struct in_use none = {0};
	daemon_wait_in_use(&daemon_, &none);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
#define TEST(f) cmocka_unit_test_setup_teardown(f, test_start, test_end)
		TEST(test_evict),	TEST(test_pin),
		TEST(test_pin_expires), TEST(test_pin_namespace),
		TEST(test_flush_all),	TEST(test_set),
		TEST(test_tree),	cmocka_unit_test_setup_teardown(test_pin_budget, no_budget_start, test_end),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
