/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What administrators can do to caches: evict, flush, pin for a time within a budget, unpin.
 *
 * In: attnctl's commands, a client's prompts. Out: TAP. Next: daemon/manage.c.
 */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

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

/* A command is refused with this error, and its text has these words. */
static void refused(const char *command, int error, const char *words)
{
	json_t *reply = daemon_json(&daemon_, command);
	const char *text = json_string_value(json_object_get(reply, "error"));

	assert_int_equal(json_integer_value(json_object_get(reply, "errno")), error);
	assert_non_null(text);
	if (!strstr(text, words))
		print_message("%s: \"%s\" does not say \"%s\"\n", command, text, words);
	assert_non_null(strstr(text, words));
	json_decref(reply);
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
	assert_int_equal(ask("evict blocks=1", "evicted"), 0); /* there is only one */
	refused("evict realm=uid:0x blocks=1", -EINVAL, "cache=NAME");
	refused("evict cache=other blocks=1", -ENOENT, "no such cache");
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
	refused("evict blocks=1", -EINVAL, "cache=NAME"); /* there is none */
	refused("set session-quota=0", -EINVAL, "session-quota: a number from 1 to 100");
	refused("set pin-budget=101", -EINVAL, "pin-budget: a number from 0 to 100");
	refused("set max-sequences=many", -EINVAL, "max-sequences: a number from 1 to 16777216");
	refused("set eviction=fifo", -EINVAL, "eviction: lru or priority");
	refused("set cache-shares=toy:60:50", -EINVAL, "toy:60:50: at most 16 of NAME:MIN:MAX");
	refused("set cache-shares=toy:10:20,toy:10:30", -EINVAL, "toy:10:30: at most 16");
	refused("set no-such=1", -EINVAL, "no-such: no such limit; there are pin-budget");
}

/* One request as it is written, past attnctl. Its answer. */
static json_t *ask_bytes(const char *line, size_t bytes)
{
	struct sockaddr_un at = {.sun_family = AF_UNIX};
	int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	static char text[65536];
	json_t *reply;
	size_t n = 0;

	snprintf(at.sun_path, sizeof(at.sun_path), "%s", daemon_.admin);
	assert_int_equal(connect(fd, (struct sockaddr *)&at, sizeof(at)), 0);
	assert_int_equal(send(fd, line, bytes, MSG_NOSIGNAL), bytes);
	shutdown(fd, SHUT_WR);
	for (ssize_t k = 1; k > 0; n += (size_t)(k > 0 ? k : 0))
		k = recv(fd, text + n, sizeof(text) - n, 0);
	close(fd);
	reply = json_loadb(text, n, 0, NULL);
	assert_non_null(reply);
	return reply;
}

static json_t *ask_raw(const char *line)
{
	return ask_bytes(line, strlen(line));
}

static void refused_bytes(const char *line, size_t bytes, const char *words)
{
	json_t *reply = ask_bytes(line, bytes);
	const char *text = json_string_value(json_object_get(reply, "error"));

	if (!text || !strstr(text, words))
		fail_msg("%s: \"%s\" does not say \"%s\"", line, text ? text : "", words);
	assert_int_equal(json_integer_value(json_object_get(reply, "errno")), -EINVAL);
	json_decref(reply);
}

static void refused_raw(const char *line, const char *words)
{
	refused_bytes(line, strlen(line), words);
}

/* A word that is misspelt, of another kind or given twice changes nothing: least of all does it mean "all". */
static void test_arguments(void **state)
{
	struct toy t;
	attnd_t *a = prompt_cached(&t);
	json_t *reply;

	(void)state;
	assert_int_equal(attnd_seq_close(a, 1), 0);
	assert_int_equal(ask("pin cache=toy seconds=1000 tokens=1,2,3", "tokens"), 3);
	refused("flush cahce=other", -EINVAL, "flush takes no cahce: there are cache, realm, fingerprint");
	refused("unpin pni=9", -EINVAL, "unpin takes no pni: there are cache, realm, fingerprint, pin");
	refused("unpin cache=other", -ENOENT, "no such cache");
	refused("unpin pin=0", -EINVAL, "pin: a number from 1 to 4294967295");
	refused("status verbose=1", -EINVAL, "status takes no verbose");
	refused("evict cache=toy blocks=-1", -EINVAL, "blocks: a number from 1 to 9223372036854775807");
	refused("evict cache=toy", -EINVAL, "blocks=N is missing");
	refused("evict cache= blocks=1", -EINVAL, "cache: a text of 1 to 64 bytes");
	refused("flush fingerprint=xyz", -EINVAL, "fingerprint: 32 digits");
	refused("tree cache=toy blocks=20001", -EINVAL, "blocks: a number from 1 to 20000");
	refused("pin cache=toy tokens=1", -EINVAL, "seconds=N is missing");
	refused("pin cache=toy seconds=1", -EINVAL, "tokens=1,2,3 or text=TEXT is missing");
	refused("pin cache=toy seconds=31536001 tokens=1", -EINVAL, "seconds: a number from 1 to 31536000");
	refused("pin cache=toy seconds=1 tokens=1 salt=$(head -c 4097 /dev/zero | tr '\\0' x)", -EINVAL,
		"salt: a text of 0 to 4096 bytes");
	/* As programs write it, and by hand. */
	refused_raw("{\"command\": \"flush\", \"cache\": 5}", "cache: a text");
	refused_raw("{\"command\": \"flush\", \"realm\": null}", "realm: a text");
	refused_raw("{\"command\": \"unpin\", \"pin\": \"1\"}", "pin: a number");
	refused_raw("{\"command\": \"evict\", \"cache\": \"toy\", \"blocks\": 1.5}", "blocks: a number");
	refused_raw("{\"command\": \"pin\", \"cache\": \"toy\", \"seconds\": 1, \"tokens\": [1, \"2\"]}",
		    "tokens: a list of numbers");
	refused_raw("{\"command\": \"evict\", \"blocks\": 1, \"blocks\": 2}", "duplicate");
	refused_raw("{\"command\": \"flush\"", "no JSON");
	refused_raw("flush cache=toy cache=other", "cache: given twice");
	refused_raw("flush toy", "\"toy\" is not NAME=VALUE");
	refused_raw("flush =toy", "\"=toy\" is not NAME=VALUE");
	refused_raw("flush cache=\xff", "cache: not UTF-8");
	refused_raw("evict cache=toy blocks=99999999999999999999", "blocks: a number");
	refused_raw("pin cache=toy seconds=1 tokens=1,,2", "tokens: a list");
	refused_raw("pin cache=toy seconds=1 tokens=1,", "tokens: a list");
	refused_raw("\n", "unknown command");
	refused_raw("\xff", "the command is not UTF-8");
	refused_bytes("flush\0cache=none\n", 18, "a zero byte");
	refused_raw("pin cache=toy seconds=1 tokens=-1", "tokens: a list");
	refused_raw("flush \xff", "\"?\" is not NAME=VALUE");
	refused_raw("set \xc3\xa9=1", "??: no such limit");
	refused_raw("flush 123456789012345678901234567890123456789012345678901234567890123456\xc3\xa9=1",
		    "flush takes no 1234567");
	refused_raw("[1]", "unknown command");
	assert_int_equal(daemon_number(&daemon_, "caches.0.blocks_evicted"), 0);
	assert_int_equal(pins(), 1);
	reply = ask_raw("pin cache=toy seconds=9 tokens=1,2,3,4");
	assert_int_equal(json_integer_value(json_object_get(reply, "tokens")), 4);
	json_decref(reply);
	reply = ask_raw("flush realm=007");
	assert_int_equal(json_integer_value(json_object_get(reply, "errno")), -ENOENT);
	json_decref(reply);
	attnd_disconnect(a);
}

static void write_config(const char *text)
{
	FILE *f = fopen(daemon_.config, "we");

	assert_non_null(f);
	assert_true(fputs(text, f) >= 0);
	assert_int_equal(fclose(f), 0);
}

static void reload(int64_t pin_budget)
{
	kill(daemon_.pid, SIGHUP);
	for (int i = 0; i < 1000 && ask("set", "pin-budget") != pin_budget; i++)
		sleep_ms(10);
	assert_int_equal(ask("set", "pin-budget"), pin_budget);
}

/* SIGHUP puts the file's limits in force, with caches, pins and sequences as they are. */
static void test_reload(void **state)
{
	struct toy t;
	attnd_t *a = prompt_cached(&t);

	(void)state;
	assert_int_equal(ask("set", "namespace-quota"), 100);
	write_config("[limits]\npin-budget = 50\nnamespace-quota = 40\n");
	reload(50);
	assert_int_equal(ask("set", "namespace-quota"), 40);
	assert_int_equal(ask("pin cache=toy seconds=1000 tokens=1,2,3", "tokens"), 3);
	write_config("[limits]\npin-budget = 0\nmax-sequences = 1\n");
	reload(0);
	assert_int_equal(ask("set", "namespace-quota"), 100);
	assert_int_equal(ask("pin cache=toy seconds=9 tokens=1,2,3", "tokens"), -EDQUOT);
	assert_int_equal(pins(), 1);
	assert_int_equal(hit(a, 2), PROMPT); /* its engine was made before */
	attnd_t *b = daemon_connect(&daemon_);
	struct toy other;
	struct attnd_open_info info;
	uint64_t token = 1;
	assert_int_equal(toy_open(&other, b, 1), 0);
	assert_int_equal(attnd_seq_open(b, 1, 0, &token, 1, 1, &info), 0);
	assert_int_equal(attnd_seq_open(b, 2, 0, &token, 1, 1, &info), -ENOSPC);
	/* What an administrator sets holds until the next one. */
	assert_int_equal(ask("set pin-budget=30", "pin-budget"), 30);
	assert_int_equal(ask("pin cache=toy seconds=9 tokens=1,2,3", "tokens"), 3);
	reload(0);
	/* A file that is wrong changes nothing. */
	write_config("[limits]\npin-budget = 101\n");
	kill(daemon_.pid, SIGHUP);
	write_config("[limits]\npin-budget = 7\n");
	reload(7);
	attnd_disconnect(b);
	attnd_disconnect(a);
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
		TEST(test_evict),
		TEST(test_pin),
		TEST(test_pin_expires),
		TEST(test_pin_namespace),
		TEST(test_flush_all),
		TEST(test_set),
		TEST(test_arguments),
		TEST(test_tree),
		cmocka_unit_test_setup_teardown(test_pin_budget, no_budget_start, test_end),
		TEST(test_reload),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
