/* SPDX-License-Identifier: Apache-2.0 */
/*
 * KV events as a router gets them: frames, schema, replay; who sees what; subscribers that misbehave.
 *
 * In: a client's prompts. Out: TAP. Next: daemon/publish.c, client/ctl/events.c.
 */
#include <errno.h>
#include <msgpack.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>
#include <zmq.h>

#include "toy.h"

enum { PROMPT = 100, FULL = 6, BLOCK = 16, OTHER_UID = 65533 };

static struct daemon daemon_;
static void *zmq;

static int test_start(void **state)
{
	const char *const args[] = {"--pool-size", "16M", "--hugepages", "off", "--socket-mode", "0666", NULL};
	int r = daemon_start(&daemon_, args);

	(void)state;
	zmq = zmq_ctx_new();
	return r ? r : chmod(daemon_.dir, 0755);
}

static int test_end(void **state)
{
	(void)state;
	zmq_ctx_shutdown(zmq); /* zmq_ctx_term waits for sockets that a failed test has left */
	daemon_clean(&daemon_);
	return 0;
}

/* ---- Sockets ---- */

static void *open_socket(void *ctx, int type, const char *end, int wait_ms)
{
	void *s = zmq_socket(ctx, type);
	char address[160];
	const int none = 0;

	snprintf(address, sizeof(address), "ipc://%s.events%s", daemon_.socket, end);
	assert_int_equal(zmq_setsockopt(s, ZMQ_RCVTIMEO, &wait_ms, sizeof(wait_ms)), 0);
	assert_int_equal(zmq_setsockopt(s, ZMQ_LINGER, &none, sizeof(none)), 0);
	if (type == ZMQ_SUB)
		assert_int_equal(zmq_setsockopt(s, ZMQ_SUBSCRIBE, "kv@", 3), 0);
	assert_int_equal(zmq_connect(s, address), 0);
	return s;
}

struct batch {
	char topic[200];
	uint64_t seq;
	msgpack_unpacked u;
	size_t bytes;
};

static uint64_t number_in(zmq_msg_t *m)
{
	const unsigned char *b = zmq_msg_data(m);
	uint64_t n = 0;

	assert_int_equal(zmq_msg_size(m), 8);
	for (int i = 0; i < 8; i++)
		n = n << 8 | b[i];
	return n;
}

/* The next message; false: none within the time. `first`: a topic, or a replay's empty frame. */
static bool next_batch(void *s, struct batch *b)
{
	size_t at = 0;
	zmq_msg_t m;

	memset(b, 0, sizeof(*b));
	msgpack_unpacked_init(&b->u);
	zmq_msg_init(&m);
	if (zmq_msg_recv(&m, s, 0) < 0)
		return false;
	assert_true(zmq_msg_size(&m) < sizeof(b->topic));
	memcpy(b->topic, zmq_msg_data(&m), zmq_msg_size(&m));
	assert_true(zmq_msg_more(&m));
	assert_true(zmq_msg_recv(&m, s, 0) >= 0);
	b->seq = number_in(&m);
	assert_true(zmq_msg_more(&m));
	assert_true(zmq_msg_recv(&m, s, 0) >= 0);
	assert_false(zmq_msg_more(&m));
	b->bytes = zmq_msg_size(&m);
	if (b->bytes) {
		assert_int_equal(msgpack_unpack_next(&b->u, zmq_msg_data(&m), b->bytes, &at), MSGPACK_UNPACK_SUCCESS);
		assert_int_equal(b->u.data.type, MSGPACK_OBJECT_ARRAY);
		assert_int_equal(b->u.data.via.array.size, 3);
		assert_int_equal(b->u.data.via.array.ptr[0].type, MSGPACK_OBJECT_FLOAT64);
	}
	zmq_msg_close(&m);
	return true;
}

static void free_batch(struct batch *b)
{
	msgpack_unpacked_destroy(&b->u);
}

static uint32_t num_events(const struct batch *b)
{
	return b->u.data.via.array.ptr[1].via.array.size;
}

static const msgpack_object *event(const struct batch *b, uint32_t i)
{
	assert_true(i < num_events(b));
	return &b->u.data.via.array.ptr[1].via.array.ptr[i];
}

static const msgpack_object *member(const msgpack_object *map, const char *name)
{
	for (uint32_t i = 0; i < map->via.map.size; i++) {
		const msgpack_object *k = &map->via.map.ptr[i].key;

		if (k->via.str.size == strlen(name) && !memcmp(k->via.str.ptr, name, k->via.str.size))
			return &map->via.map.ptr[i].val;
	}
	fail_msg("no member %s", name);
	return NULL;
}

static bool is_text(const msgpack_object *o, const char *text)
{
	return o->type == MSGPACK_OBJECT_STR && o->via.str.size == strlen(text) &&
	       !memcmp(o->via.str.ptr, text, o->via.str.size);
}

/* ---- Work ---- */

static attnd_t *begin(struct toy *t, uint8_t fingerprint)
{
	attnd_t *a = daemon_connect(&daemon_);

	assert_int_equal(toy_open(t, a, fingerprint), 0);
	return a;
}

static void cache_prompt(struct toy *t, uint64_t key, uint64_t base)
{
	uint64_t tokens[PROMPT], cached;

	toy_tokens(tokens, PROMPT, base);
	assert_int_equal(toy_prefill(t, key, tokens, PROMPT, &cached), 0);
	assert_int_equal(attnd_seq_close(t->a, key), 0);
}

static void flush_all(void)
{
	json_t *caches = daemon_json(&daemon_, "caches"), *c;
	size_t i;

	json_array_foreach(json_object_get(caches, "caches"), i, c)
	{
		char command[160];

		snprintf(command, sizeof(command), "flush cache=%s fingerprint=%s",
			 json_string_value(json_object_get(c, "name")),
			 json_string_value(json_object_get(c, "fingerprint")));
		json_decref(daemon_json(&daemon_, command));
	}
	json_decref(caches);
}

/* A subscriber that is one already: its first batch has come. */
static void *subscribe(uint64_t *ret_next)
{
	void *s = open_socket(zmq, ZMQ_SUB, ".admin", 10000);
	struct toy t;
	attnd_t *a = begin(&t, 1);
	struct batch b;

	for (uint64_t key = 1;; key++) {
		const int wait = 100;

		cache_prompt(&t, key, 100000 * key);
		zmq_setsockopt(s, ZMQ_RCVTIMEO, &wait, sizeof(wait));
		if (next_batch(s, &b))
			break;
		free_batch(&b);
		assert_true(key < 100);
	}
	do {
		*ret_next = b.seq + 1;
		free_batch(&b);
	} while (next_batch(s, &b));
	free_batch(&b);
	flush_all();
	attnd_disconnect(a);
	const int wait = 10000;
	zmq_setsockopt(s, ZMQ_RCVTIMEO, &wait, sizeof(wait));
	while (next_batch(s, &b)) {
		bool removed = is_text(member(event(&b, 0), "type"), "BlockRemoved");

		*ret_next = b.seq + 1;
		free_batch(&b);
		if (removed)
			break;
	}
	return s;
}

/* ---- Tests ---- */

static void test_live(void **state)
{
	uint64_t next, hashes[FULL];
	void *s = subscribe(&next);
	struct toy t;
	attnd_t *a = begin(&t, 1);
	struct batch b;
	const msgpack_object *e;
	const struct attnd_namespace ns = {"acme", "lora-7", "salt-1", 4, 6, 6};
	uint32_t have = 0;

	(void)state;
	assert_int_equal(attnd_namespace(a, &ns, &t.ns), 0);
	cache_prompt(&t, 1, 1);
	while (have < FULL) { /* in one batch, or in several */
		const msgpack_object_array *h, *tokens;

		assert_true(next_batch(s, &b));
		assert_int_equal(strncmp(b.topic, "kv@uid:", 7), 0);
		assert_non_null(strstr(b.topic, "@toy"));
		assert_int_equal(b.seq, next++);
		assert_int_equal(num_events(&b), 1);
		e = event(&b, 0);
		assert_true(is_text(member(e, "type"), "BlockStored"));
		h = &member(e, "block_hashes")->via.array;
		tokens = &member(e, "token_ids")->via.array;
		assert_int_equal(tokens->size, h->size * BLOCK);
		assert_int_equal(tokens->ptr[5].via.u64, have * BLOCK + 6);
		assert_true(have ? member(e, "parent_block_hash")->via.u64 == hashes[have - 1]
				 : member(e, "parent_block_hash")->type == MSGPACK_OBJECT_NIL);
		assert_int_equal(member(e, "block_size")->via.u64, BLOCK);
		assert_int_equal(member(e, "lora_id")->type, MSGPACK_OBJECT_NIL);
		assert_true(is_text(member(e, "lora_name"), "lora-7"));
		assert_true(is_text(member(e, "cache_salt"), "salt-1"));
		assert_true(is_text(member(e, "tenant"), "acme"));
		assert_int_equal(member(e, "extra_keys")->via.array.size, h->size);
		for (uint32_t i = 0; i < h->size && have < FULL; i++)
			hashes[have++] = h->ptr[i].via.u64;
		free_batch(&b);
	}

	flush_all();
	for (uint32_t gone = 0; gone < FULL;) {
		assert_true(next_batch(s, &b));
		assert_true(is_text(member(event(&b, 0), "type"), "BlockRemoved"));
		e = member(event(&b, 0), "block_hashes");
		for (uint32_t i = 0; i < e->via.array.size; i++) /* leaves first */
			assert_true(e->via.array.ptr[i].via.u64 == hashes[FULL - ++gone]);
		free_batch(&b);
	}

	/* Without a namespace the same tokens are other blocks. */
	t.ns = 0;
	cache_prompt(&t, 2, 1);
	assert_true(next_batch(s, &b));
	e = event(&b, 0);
	assert_true(member(e, "block_hashes")->via.array.ptr[0].via.u64 != hashes[0]);
	assert_int_equal(member(e, "lora_name")->type, MSGPACK_OBJECT_NIL);
	assert_int_equal(member(e, "extra_keys")->type, MSGPACK_OBJECT_NIL);
	free_batch(&b);
	zmq_close(s);
	attnd_disconnect(a);
	flush_all();
}

static void ask_replay(void *s, uint64_t start, const char *topic)
{
	unsigned char number[8];

	for (int i = 0; i < 8; i++)
		number[i] = (unsigned char)(start >> (56 - 8 * i));
	assert_true(zmq_send(s, "", 0, ZMQ_SNDMORE) >= 0);
	assert_true(zmq_send(s, number, 8, topic ? ZMQ_SNDMORE : 0) >= 0);
	if (topic)
		assert_true(zmq_send(s, topic, strlen(topic), 0) >= 0);
}

static void test_replay(void **state)
{
	void *s = open_socket(zmq, ZMQ_DEALER, ".admin.replay", 10000);
	struct toy t;
	attnd_t *a = begin(&t, 1);
	uint64_t last = 0;
	struct batch b;
	uint32_t all = 0, some = 0;

	(void)state;
	cache_prompt(&t, 1, 1);
	cache_prompt(&t, 2, 5000);
	for (;; all++) { /* one topic: it needs no name */
		if (all == 0)
			ask_replay(s, 0, NULL);
		assert_true(next_batch(s, &b));
		if (b.seq == UINT64_MAX)
			break;
		if (all == 0)
			assert_true(is_text(member(event(&b, 0), "type"), "AllBlocksCleared"));
		else
			assert_int_equal(b.seq, last + 1);
		last = b.seq;
		free_batch(&b);
	}
	assert_int_equal(b.bytes, 0);
	free_batch(&b);
	assert_true(all > 0);
	ask_replay(s, last, NULL);
	for (; next_batch(s, &b) && b.seq != UINT64_MAX; some++)
		free_batch(&b);
	assert_true(some >= 1); /* what came meanwhile is told, too */
	free_batch(&b);
	ask_replay(s, 0, "kv@nobody@nothing");
	assert_true(next_batch(s, &b));
	assert_true(b.seq == UINT64_MAX);
	free_batch(&b);
	zmq_close(s);
	attnd_disconnect(a);
	flush_all();
}

/* Another user may connect, and sees nothing of ours; the administrators' socket is closed to it. */
static void test_rights(void **state)
{
	struct toy t;
	attnd_t *a;
	pid_t child;
	int status;

	(void)state;
	if (geteuid() != 0) {
		print_message("needs root: left out\n");
		return;
	}
	a = begin(&t, 1);
	cache_prompt(&t, 1, 1);
	child = fork();
	if (child == 0) {
		void *ctx, *sub, *replay;
		char admin[160];
		struct batch b;
		int bad = setgid(OTHER_UID) || setuid(OTHER_UID);

		ctx = zmq_ctx_new();
		sub = open_socket(ctx, ZMQ_SUB, "", 300);
		replay = open_socket(ctx, ZMQ_DEALER, ".replay", 10000);
		ask_replay(replay, 0, "kv@uid:0@toy");
		bad |= (!next_batch(replay, &b) || b.seq != UINT64_MAX) << 1;
		ask_replay(replay, 0, NULL);
		bad |= (!next_batch(replay, &b) || b.seq != UINT64_MAX) << 2;
		bad |= next_batch(sub, &b) << 3;
		snprintf(admin, sizeof(admin), "%s.events.admin", daemon_.socket);
		bad |= (access(admin, W_OK) == 0) << 4;
		_exit(bad);
	}
	assert_int_equal(waitpid(child, &status, 0), child);
	assert_int_equal(WEXITSTATUS(status), 0); /* bits: which */

	/* Its owner sees it there. */
	void *s = open_socket(zmq, ZMQ_DEALER, ".replay", 10000);
	struct batch b;

	ask_replay(s, 0, "kv@uid:0@toy");
	assert_true(next_batch(s, &b));
	assert_true(b.seq != UINT64_MAX);
	free_batch(&b);
	zmq_close(s);
	attnd_disconnect(a);
	flush_all();
}

static void allow(const char *users)
{
	FILE *f = fopen(daemon_.config, "we");

	fprintf(f, "[socket]\nallow-users = %s\n", users);
	assert_int_equal(fclose(f), 0);
	assert_int_equal(kill(daemon_.pid, SIGHUP), 0);
}

/* Is a question on the clients' socket answered, within 20 s? Who is not let in gets no answer at all. */
static bool is_answered(bool want)
{
	bool is = !want;

	for (int i = 0; i < 40 && is != want; i++) {
		void *s = open_socket(zmq, ZMQ_DEALER, ".replay", 500);
		struct batch b;

		ask_replay(s, 0, NULL);
		is = next_batch(s, &b);
		free_batch(&b);
		zmq_close(s);
	}
	return is;
}

/* A reload's allow lists count for who subscribes or asks from then on; who has subscribed stays. */
static void test_reload(void **state)
{
	void *old = open_socket(zmq, ZMQ_SUB, "", 100), *late;
	struct toy t;
	attnd_t *a = begin(&t, 1);
	struct batch b;
	bool got;

	(void)state;
	for (uint64_t key = 1; !next_batch(old, &b); key++) { /* until it is a subscriber */
		free_batch(&b);
		assert_true(key < 100);
		cache_prompt(&t, key, 100000 * key);
	}
	free_batch(&b);
	assert_true(is_answered(true));
	allow("65533");
	assert_false(is_answered(false));
	late = open_socket(zmq, ZMQ_SUB, "", 300);
	assert_false(is_answered(false)); /* by now its subscription has been read, too */
	while (next_batch(old, &b))
		free_batch(&b);
	free_batch(&b);
	cache_prompt(&t, 1000, 1);
	zmq_setsockopt(old, ZMQ_RCVTIMEO, &(int){10000}, sizeof(int));
	got = next_batch(old, &b);
	free_batch(&b);
	assert_true(got);
	got = next_batch(late, &b);
	free_batch(&b);
	assert_false(got);
	zmq_close(late);
	zmq_close(old);
	allow("");
	assert_true(is_answered(true));
	attnd_disconnect(a);
	flush_all();
}

/* Garbage, half requests, a subscriber that never reads: the clients' work goes on. */
static void test_rude(void **state)
{
	struct sockaddr_un at = {.sun_family = AF_UNIX};
	void *deaf = open_socket(zmq, ZMQ_SUB, ".admin", 1000), *s;
	const int one = 1;
	struct toy t;
	attnd_t *a = begin(&t, 1);
	struct batch b;
	int fds[20];

	(void)state;
	zmq_setsockopt(deaf, ZMQ_RCVHWM, &one, sizeof(one));
	snprintf(at.sun_path, sizeof(at.sun_path), "%s.events.replay", daemon_.socket);
	for (int i = 0; i < 20; i++) {
		fds[i] = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
		assert_int_equal(connect(fds[i], (struct sockaddr *)&at, sizeof(at)), 0);
		(void)!send(fds[i], "\xff\0\0\0\0\0\0\0garbage", 15, MSG_NOSIGNAL);
	}
	s = open_socket(zmq, ZMQ_DEALER, ".admin.replay", 10000);
	assert_true(zmq_send(s, "no request", 10, 0) >= 0);
	assert_true(zmq_send(s, "", 0, ZMQ_SNDMORE) >= 0);
	assert_true(zmq_send(s, "short", 5, 0) >= 0);
	for (uint64_t i = 1; i <= 100; i++)
		cache_prompt(&t, i, i * 1000);
	ask_replay(s, UINT64_MAX - 1, "kv@uid:0@toy");
	assert_true(next_batch(s, &b)); /* those before it have no answer */
	assert_true(b.seq == UINT64_MAX);
	free_batch(&b);
	for (int i = 0; i < 20; i++)
		close(fds[i]);
	zmq_close(s);
	zmq_close(deaf);
	attnd_disconnect(a);
	flush_all();
}

/* attnctl events shows the state: what the tree has. */
static void test_attnctl(void **state)
{
	static char line[1 << 20];
	char command[200];
	struct toy t;
	attnd_t *a = begin(&t, 1);
	size_t stored = 0, removed = 0, cleared = 0;
	FILE *f;

	(void)state;
	flush_all();
	cache_prompt(&t, 1, 1);
	cache_prompt(&t, 2, 7000);
	snprintf(command, sizeof(command), "%s/attnctl --socket %s events --json", getenv("BUILD"), daemon_.socket);
	f = popen(command, "re");
	while (fgets(line, sizeof(line), f)) {
		json_t *e = json_loads(line, 0, NULL);
		const char *type = json_string_value(json_object_get(e, "type"));
		size_t n = json_array_size(json_object_get(e, "block_hashes"));

		if (!type)
			fail_msg("%zu bytes: %.300s", strlen(line), line);
		if (!strcmp(type, "AllBlocksCleared"))
			cleared++, stored = removed = 0;
		stored += !strcmp(type, "BlockStored") ? n : 0;
		removed += !strcmp(type, "BlockRemoved") ? n : 0;
		json_decref(e);
	}
	assert_int_equal(pclose(f), 0);
	assert_true(cleared > 0);
	assert_int_equal(stored - removed, 2 * FULL);
	attnd_disconnect(a);
}

/* Who is no administrator sees the state, too, and is told when there is none to see. */
static void test_attnctl_as_user(void **state)
{
	const char *const args[] = {"--pool-size", "16M",	    "--hugepages", "off", "--socket-mode",
				    "0666",	   "--share-group", "all",	   NULL};
	char command[300], line[4096];
	struct daemon d;
	struct toy t;
	attnd_t *a;
	FILE *f;

	(void)state;
	if (geteuid())
		skip();
	assert_int_equal(daemon_start(&d, args), 0);
	assert_int_equal(chmod(d.dir, 0755), 0);
	snprintf(command, sizeof(command),
		 "setpriv --reuid %d --regid %d --clear-groups %s/attnctl --socket %s events 2>&1", OTHER_UID,
		 OTHER_UID, getenv("BUILD"), d.socket);
	for (int cached = 0; cached < 2; cached++) {
		size_t n = 0;

		if (cached) {
			a = daemon_connect(&d);
			assert_int_equal(toy_open(&t, a, 1), 0);
			cache_prompt(&t, 1, 1);
		}
		f = popen(command, "re");
		n = fread(line, 1, sizeof(line) - 1, f);
		line[n] = 0;
		assert_int_equal(pclose(f), 0);
		if (!strstr(line, cached ? "  BlockStored  " : "nothing of yours is cached"))
			fail_msg("cached %d: %s", cached, line);
	}
	attnd_disconnect(a);
	daemon_clean(&d);
}

static bool listens(const char *path)
{
	struct sockaddr_un at = {.sun_family = AF_UNIX};
	int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

	snprintf(at.sun_path, sizeof(at.sun_path), "%s", path);
	bool yes = !connect(fd, (struct sockaddr *)&at, sizeof(at));
	close(fd);
	return yes;
}

/* The clients' socket, which the harness waits for, is there a moment earlier. */
static void assert_listens(const char *path)
{
	for (int i = 0; i < 1000 && !listens(path); i++)
		usleep(10000);
	assert_true(listens(path));
}

/* Another daemon with this one's events-socket is refused, and takes nothing away; what a killed one left is used. */
static void test_two_daemons(void **state)
{
	char path[128];
	const char *const args[] = {"--pool-size", "16M", "--hugepages", "off", "--events-socket", path, NULL};
	struct daemon other;
	struct stat before, after;

	(void)state;
	snprintf(path, sizeof(path), "%s.events", daemon_.socket);
	assert_int_equal(stat(path, &before), 0);
	assert_int_equal(daemon_start(&other, args), -ECHILD);
	other.pid = 0;
	daemon_clean(&other);
	assert_int_equal(stat(path, &after), 0);
	assert_int_equal(after.st_ino, before.st_ino);
	assert_listens(path);
	snprintf(path, sizeof(path), "%s/e", daemon_.dir);
	assert_int_equal(daemon_start(&other, args), 0);
	daemon_end(&other, SIGKILL);
	assert_false(listens(path));
	assert_int_equal(daemon_again(&other, args), 0);
	assert_listens(path);
	daemon_clean(&other);
	assert_int_equal(stat(path, &after), -1);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_live),
		cmocka_unit_test(test_replay),
		cmocka_unit_test(test_rights),
		cmocka_unit_test(test_reload),
		cmocka_unit_test(test_rude),
		cmocka_unit_test(test_attnctl),
		cmocka_unit_test(test_attnctl_as_user),
		cmocka_unit_test(test_two_daemons),
	};

	return cmocka_run_group_tests(tests, test_start, test_end);
}
