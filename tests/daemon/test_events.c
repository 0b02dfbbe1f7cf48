/* SPDX-License-Identifier: Apache-2.0 */
/*
 * KV events against the tree: who follows them, or asks for a replay, has exactly the full blocks
 * that the tree has, after random operations, with a queue that is large enough and with one that
 * is not.
 *
 * In: the model's random operations. Out: TAP. Next: daemon/events.c, daemon/mirror.c.
 */
#include <msgpack.h>
#include <stdlib.h>
#include <string.h>

#include "../../daemon/events.h"
#include "../../daemon/mirror.h"
#include "../../daemon/watch.h"
#include "model.h"
#include "world.h"

enum { BUCKETS = 4096, STEPS = 100000 };

/* ---- A follower: what a router would keep ---- */

struct known {
	uint64_t hash, parent;
	bool root;
	uint32_t n;
	struct known *next;
	uint64_t tokens[];
};

struct follower {
	char topic[160];
	uint64_t next_seq;
	bool begun;
	struct known *buckets[BUCKETS];
	uint64_t num, stored, removed, cleared;
};

enum { FOLLOWERS = 8 };
static struct follower followers[FOLLOWERS];

static struct known **find(struct follower *f, uint64_t hash)
{
	struct known **at = &f->buckets[hash % BUCKETS];

	while (*at && (*at)->hash != hash)
		at = &(*at)->next;
	return at;
}

static void clear(struct follower *f)
{
	for (int i = 0; i < BUCKETS; i++) {
		while (f->buckets[i]) {
			struct known *k = f->buckets[i];

			f->buckets[i] = k->next;
			free(k);
		}
	}
	f->num = 0;
	f->cleared++;
}

static const msgpack_object *member(const msgpack_object *map, const char *name)
{
	assert_int_equal(map->type, MSGPACK_OBJECT_MAP);
	for (uint32_t i = 0; i < map->via.map.size; i++) {
		const msgpack_object *k = &map->via.map.ptr[i].key;

		if (k->via.str.size == strlen(name) && !memcmp(k->via.str.ptr, name, k->via.str.size))
			return &map->via.map.ptr[i].val;
	}
	fail_msg("no member %s", name);
	return NULL;
}

static bool is(const msgpack_object *o, const char *text)
{
	return o->type == MSGPACK_OBJECT_STR && o->via.str.size == strlen(text) &&
	       !memcmp(o->via.str.ptr, text, o->via.str.size);
}

static void on_stored(struct follower *f, const msgpack_object *e)
{
	const msgpack_object_array *hashes = &member(e, "block_hashes")->via.array;
	const msgpack_object_array *tokens = &member(e, "token_ids")->via.array;
	const msgpack_object *parent = member(e, "parent_block_hash");
	uint32_t size = (uint32_t)member(e, "block_size")->via.u64;
	bool root = parent->type == MSGPACK_OBJECT_NIL;
	uint64_t before = root ? 0 : parent->via.u64;

	assert_true(is(member(e, "medium"), "CPU"));
	assert_int_equal(tokens->size, hashes->size * size);
	for (uint32_t i = 0; i < hashes->size; i++) {
		struct known **at = find(f, hashes->ptr[i].via.u64), *k;

		assert_null(*at); /* told once */
		if (!root)
			assert_non_null(*find(f, before)); /* those before it are there */
		k = calloc(1, sizeof(*k) + size * sizeof(uint64_t));
		*k = (struct known){.hash = hashes->ptr[i].via.u64, .parent = before, .root = root, .n = size};
		for (uint32_t t = 0; t < size; t++)
			k->tokens[t] = tokens->ptr[i * size + t].via.u64;
		*at = k;
		f->num++;
		f->stored++;
		before = k->hash;
		root = false;
	}
}

static void on_removed(struct follower *f, const msgpack_object *e)
{
	const msgpack_object_array *hashes = &member(e, "block_hashes")->via.array;

	for (uint32_t i = 0; i < hashes->size; i++) {
		struct known **at = find(f, hashes->ptr[i].via.u64), *k = *at;

		assert_non_null(k);
		*at = k->next;
		free(k);
		f->num--;
		f->removed++;
	}
}

static void apply(struct follower *f, const void *payload, size_t bytes)
{
	msgpack_unpacked u;
	size_t at = 0;

	msgpack_unpacked_init(&u);
	assert_int_equal(msgpack_unpack_next(&u, payload, bytes, &at), MSGPACK_UNPACK_SUCCESS);
	assert_int_equal(at, bytes);
	assert_int_equal(u.data.type, MSGPACK_OBJECT_ARRAY);
	assert_int_equal(u.data.via.array.size, 3);
	for (uint32_t i = 0; i < u.data.via.array.ptr[1].via.array.size; i++) {
		const msgpack_object *e = &u.data.via.array.ptr[1].via.array.ptr[i], *type = member(e, "type");

		if (is(type, "BlockStored"))
			on_stored(f, e);
		else if (is(type, "BlockRemoved"))
			on_removed(f, e);
		else if (is(type, "AllBlocksCleared"))
			clear(f);
		else
			fail();
	}
	msgpack_unpacked_destroy(&u);
}

static void follow(void *ctx, const char *topic, uint64_t seq, const void *payload, size_t bytes)
{
	struct follower *f = followers;

	(void)ctx;
	while (f < followers + FOLLOWERS && f->begun && strcmp(f->topic, topic) != 0)
		f++;
	assert_true(f < followers + FOLLOWERS);
	if (!f->begun)
		*f = (struct follower){.begun = true, .next_seq = seq};
	strcpy(f->topic, topic);
	assert_int_equal(seq, f->next_seq++);
	apply(f, payload, bytes);
}

/* ---- The tree itself ---- */

static uint64_t hash_in_tree(const struct cache *c, uint32_t id)
{
	uint32_t before = id;
	uint64_t h;

	while (cache_block(c, before)->first)
		before = cache_block(c, before)->parent;
	before = cache_block(c, before)->parent;
	h = before == ATTND_BLOCK_NONE ? mirror_root(&c->identity, c->ns->entries[cache_block(c, id)->ns].digest)
				       : hash_in_tree(c, before);
	return mirror_hash(h, cache_tokens(c, id), c->block_size);
}

/* The follower of a cache's topic knows exactly its full blocks. */
static uint64_t compare(const struct world *w, struct follower *f)
{
	uint64_t blocks = 0;

	for (int i = 0; i < ATTND_MAX_POOL_CACHES; i++) {
		const struct cache *c = w->pool.caches[i];
		char topic[160];

		if (!c)
			continue;
		snprintf(topic, sizeof(topic), "kv@%s@%.*s", c->realm, ATTND_MAX_NAME, c->identity.name);
		for (uint32_t id = 0; !strcmp(topic, f->topic) && id < c->num_ext * c->blocks_per_slab; id++) {
			const struct known *k;

			if (!cache_ext(c, id)->block || cache_aux(c, id)->state != BLOCK_PUBLIC ||
			    cache_count(c, id) != c->block_size)
				continue;
			k = *find(f, hash_in_tree(c, id));
			assert_non_null(k);
			assert_memory_equal(k->tokens, cache_tokens(c, id), c->block_size * sizeof(uint64_t));
			blocks++;
		}
	}
	assert_int_equal(f->num, blocks);
	return blocks;
}

/* ---- The run ---- */

static struct watch watch;
static struct mirror *mirror;
static uint64_t random_state, now, resets, seen_blocks, replays;
static uint32_t drain_every;

static void drain(void)
{
	const struct event *r;

	while ((r = events_next(watch.events))) {
		resets += r->type == EVENT_RESET;
		mirror_take(mirror, r);
		events_taken(watch.events, r);
	}
	mirror_flush(mirror);
}

/* One who has lost all, or some, and asks. */
static void replayed(void *ctx, const char *topic, uint64_t seq, const void *payload, size_t bytes)
{
	struct follower *f = ctx;

	strcpy(f->topic, topic);
	f->next_seq = seq + 1;
	apply(f, payload, bytes);
}

static void check_replay(const struct world *w, const struct follower *live)
{
	static struct follower late;

	/* From the beginning: what is kept begins with AllBlocksCleared, or it is the state. */
	late = (struct follower){.begun = true};
	strcpy(late.topic, live->topic);
	assert_int_equal(mirror_replay(mirror, live->topic, 0, replayed, &late), 0);
	assert_int_equal(compare(w, &late), live->num);
	clear(&late);
	if (live->next_seq)
		assert_int_equal(late.next_seq, live->next_seq);
	replays++;
}

static void settle(struct world *w)
{
	while (watch_round(&watch, now += 1000000))
		drain();
	drain();
	assert_true(mirror_whole(mirror));
	for (struct follower *f = followers; f < followers + FOLLOWERS && f->begun; f++)
		seen_blocks += compare(w, f);
}

static void on_step(struct world *w)
{
	if (!watch.events) {
		assert_int_equal(events_create(&w->pool, drain_every ? 65536 : 1 << 20, &watch.events), 0);
		events_want(watch.events);
	}
	(void)watch_round(&watch, now += 1000000);
	if (!drain_every || next_random(&random_state) % drain_every == 0)
		drain();
	if (next_random(&random_state) % (drain_every ? drain_every : 1000) == 0) {
		settle(w);
		for (struct follower *f = followers; f < followers + FOLLOWERS && f->begun; f++)
			check_replay(w, f);
	}
}

static void on_end(struct world *w)
{
	settle(w);
	for (struct follower *f = followers; f < followers + FOLLOWERS && f->begun; f++)
		check_replay(w, f);
}

static void run(const struct model_shape *shape, uint32_t every, struct events_counts *ret)
{
	struct model_counts counts = {0};
	uint64_t stored = 0, removed = 0;

	memset(&watch, 0, sizeof(watch));
	random_state = 99;
	resets = seen_blocks = replays = 0;
	drain_every = every;
	assert_int_equal(mirror_create(follow, NULL, &mirror), 0);
	world_watch = &watch;
	world_step = on_step;
	world_end = on_end;
	model_run(shape, 7, (uint32_t)env_number("ATTND_EVENTS_STEPS", STEPS), &counts);
	world_watch = NULL;
	world_step = world_end = NULL;
	for (struct follower *f = followers; f < followers + FOLLOWERS && f->begun; f++) {
		stored += f->stored;
		removed += f->removed;
		clear(f);
		f->begun = false;
	}
	events_count(watch.events, ret);
	print_message("# %llu stored, %llu removed, %llu compared, %llu resets, %llu replays, %llu dropped\n",
		      (unsigned long long)stored, (unsigned long long)removed, (unsigned long long)seen_blocks,
		      (unsigned long long)resets, (unsigned long long)replays, (unsigned long long)ret->dropped);
	assert_true(stored > 1000 && removed > 500 && seen_blocks > 100 && replays >= 4);
	mirror_destroy(mirror);
	events_destroy(watch.events);
}

static const struct model_shape shape = {
	.name = "events", .slabs = 2, .block_size = {16, 16, 32}, .namespaces = 3, .alphabet = 3, .grants = false};

static void test_exact(void **state)
{
	struct events_counts counts;

	(void)state;
	run(&shape, 0, &counts);
	assert_int_equal(counts.dropped, 0);
	assert_int_equal(resets, 1);
}

/* A reader that comes too seldom for its queue: blocks are dropped, the state is told again. */
static void test_repaired(void **state)
{
	struct events_counts counts;

	(void)state;
	run(&shape, 9000, &counts);
	assert_true(counts.dropped > 0);
	assert_true(resets > 1);
}

/* Fixed numbers: they must not change between machines, processes and versions. */
static void test_hashes(void **state)
{
	const struct attnd_wire_cache id = {.name = "llama",
					    .num_layers = 2,
					    .num_heads = 4,
					    .num_kv_heads = 2,
					    .head_dim = 64,
					    .head_dim_v = 64,
					    .block_size = 16};
	const uint8_t none[32] = {0}, other[32] = {1};
	uint64_t tokens[16], root = mirror_root(&id, none), hash;

	(void)state;
	for (uint64_t i = 0; i < 16; i++)
		tokens[i] = i;
	hash = mirror_hash(root, tokens, 16);
	print_message("# root %llx, hash %llx\n", (unsigned long long)root, (unsigned long long)hash);
	assert_true(root == UINT64_C(0x16c6be8525302d1));
	assert_true(hash == UINT64_C(0x15fb50925ee500c1));
	assert_true(mirror_root(&id, other) != root);
	tokens[15]++;
	assert_true(mirror_hash(root, tokens, 16) != hash);
}

static void count_batch(void *ctx, const char *topic, uint64_t seq, const void *payload, size_t bytes)
{
	size_t *largest = ctx;

	(void)topic;
	(void)seq;
	(void)payload;
	*largest = bytes > *largest ? bytes : *largest;
}

/* So many topics that a large batch is more than is kept of one. */
static void test_batch_not_kept(void **state)
{
	enum { TOPICS = 100, BLOCKS = 600, SLOTS = 256 };
	struct event *r = calloc(1, sizeof(*r) + SLOTS * sizeof(uint64_t) + sizeof(struct event_cache));
	size_t largest = 0, kept = (64 << 20) / TOPICS;
	struct event_cache what = {.identity = {.block_size = SLOTS}, .realm = "uid:1"};
	struct mirror *m;

	(void)state;
	assert_int_equal(mirror_create(count_batch, &largest, &m), 0);
	r->type = EVENT_RESET;
	mirror_take(m, r);
	for (int i = 0; i < TOPICS; i++) {
		snprintf(what.identity.name, sizeof(what.identity.name), "model %d", i);
		*r = (struct event){.type = EVENT_CACHE, .cache = (uint16_t)i};
		memcpy(r->data, &what, sizeof(what));
		mirror_take(m, r);
	}
	r->type = EVENT_SYNCED;
	mirror_take(m, r);
	for (uint32_t i = 0; i < BLOCKS; i++) {
		*r = (struct event){
			.type = EVENT_STORED, .id = i, .parent = i ? i - 1 : ATTND_BLOCK_NONE, .num_tokens = SLOTS};
		for (uint64_t t = 0; t < SLOTS; t++)
			r->data[t] = UINT64_C(1) << 60 | (uint64_t)i << 32 | t;
		mirror_take(m, r);
	}
	mirror_flush(m);
	assert_in_range(largest, kept + 1, 16 << 20);
	mirror_destroy(m);
	free(r);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_batch_not_kept),
		cmocka_unit_test(test_exact),
		cmocka_unit_test(test_repaired),
		cmocka_unit_test(test_hashes),
	};

	return cmocka_run_group_tests_name("events", tests, NULL, NULL);
}
