/* SPDX-License-Identifier: Apache-2.0 */
/* The KV events' picture of the trees (mirror.h). */
#include "mirror.h"

#include <errno.h>
#include <msgpack.h>
#include <sodium.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "../shm/meta.h"

enum {
	KEEP_BATCHES = 1024,   /* of a topic, for replay */
	KEEP_BYTES = 64 << 20, /* of all topics together, about */
	MAX_STREAMS = 2 * ATTND_MAX_POOL_CACHES,
	BATCH_BYTES = 1 << 20, /* a larger one is emitted at once */
	CLIMB = 1 << 20,       /* 2^24 tokens in blocks of 16 */
};

/* A namespace, while blocks refer to it. */
struct space {
	struct space *next;
	uint8_t digest[32];
	uint32_t refs, bytes;
	unsigned char fields[];
};

struct mblock {
	uint64_t hash;	  /* 0: not known yet */
	uint64_t *tokens; /* NULL: no such block */
	struct space *space;
	uint32_t parent;
};

struct kept {
	uint64_t seq;
	size_t bytes;
	char *payload;
};

struct stream {
	struct stream *next;
	char topic[16 + 80 + ATTND_MAX_NAME];
	uint64_t seq;			/* of the next batch */
	struct kept kept[KEEP_BATCHES]; /* seq mod KEEP_BATCHES */
	uint64_t first;			/* the oldest kept */
	size_t kept_bytes;
	msgpack_sbuffer events; /* gathered, not emitted */
	uint32_t num_events;
};

struct mcache {
	struct attnd_wire_cache identity;
	struct stream *stream; /* NULL: no such cache */
	struct mblock *blocks;
	uint32_t cap;
};

/* Blocks told of one after the other become one event. */
struct run {
	uint16_t type; /* 0: none */
	uint16_t cache;
	uint32_t last;	 /* block, of a run of stored ones */
	uint64_t parent; /* hash before the first */
	bool root;
	struct space *space;
	uint64_t *hashes;
	const uint64_t **tokens;
	uint32_t n, cap;
};

struct mirror {
	mirror_emit *emit;
	void *ctx;
	bool whole;
	struct stream *streams;
	uint32_t num_streams;
	struct space *spaces[256];
	struct mcache caches[ATTND_MAX_POOL_CACHES];
	struct run run;
};

/* ---- Hashes ---- */

static uint64_t finish(crypto_generichash_state *h)
{
	unsigned char out[crypto_generichash_BYTES_MIN];
	uint64_t n = 0;

	crypto_generichash_final(h, out, sizeof(out));
	for (int i = 0; i < 8; i++)
		n = n << 8 | out[i];
	n >>= 1;
	return n ? n : 1;
}

uint64_t mirror_root(const struct attnd_wire_cache *id, const uint8_t ns_digest[32])
{
	crypto_generichash_state h;

	crypto_generichash_init(&h, NULL, 0, crypto_generichash_BYTES_MIN);
	crypto_generichash_update(&h, (const unsigned char *)id, sizeof(*id));
	crypto_generichash_update(&h, ns_digest, 32);
	return finish(&h);
}

uint64_t mirror_hash(uint64_t before, const uint64_t *tokens, uint32_t n)
{
	crypto_generichash_state h;

	crypto_generichash_init(&h, NULL, 0, crypto_generichash_BYTES_MIN);
	crypto_generichash_update(&h, (const unsigned char *)&before, sizeof(before));
	crypto_generichash_update(&h, (const unsigned char *)tokens, n * sizeof(*tokens));
	return finish(&h);
}

/* Of a block and, where they are not known, of those before it. 0: one of them was not told of. */
static uint64_t hash_of(struct mcache *c, uint32_t id)
{
	struct mblock *b = &c->blocks[id];
	uint32_t *path, n = 0, at = id;
	uint64_t hash = 0;

	if (b->hash)
		return b->hash;
	for (; at != ATTND_BLOCK_NONE && n < CLIMB; n++) {
		if (at >= c->cap || !c->blocks[at].tokens)
			return 0;
		if (c->blocks[at].hash)
			break;
		at = c->blocks[at].parent;
	}
	path = malloc((n + 1) * sizeof(*path));
	if (!path || n == CLIMB) {
		free(path);
		return 0;
	}
	n = 0;
	for (at = id; at != ATTND_BLOCK_NONE && !c->blocks[at].hash; at = c->blocks[at].parent)
		path[n++] = at;
	hash = at == ATTND_BLOCK_NONE ? mirror_root(&c->identity, b->space->digest) : c->blocks[at].hash;
	while (n--) {
		struct mblock *p = &c->blocks[path[n]];

		hash = p->hash = mirror_hash(hash, p->tokens, c->identity.block_size);
	}
	free(path);
	return hash;
}

/* ---- Namespaces ---- */

static struct space *space_get(struct mirror *m, const struct event *r)
{
	struct space **at = &m->spaces[r->ns_digest[0]], *s;

	for (s = *at; s && memcmp(s->digest, r->ns_digest, sizeof(s->digest)); s = s->next)
		;
	if (!s) {
		s = malloc(sizeof(*s) + r->ns_bytes);
		if (!s)
			return NULL;
		*s = (struct space){.next = *at, .bytes = r->ns_bytes};
		memcpy(s->digest, r->ns_digest, sizeof(s->digest));
		memcpy(s->fields, (const char *)r->data + r->num_tokens * sizeof(uint64_t), r->ns_bytes);
		*at = s;
	}
	s->refs++;
	return s;
}

static void space_put(struct mirror *m, struct space *s)
{
	struct space **at = &m->spaces[s->digest[0]];

	if (--s->refs)
		return;
	while (*at != s)
		at = &(*at)->next;
	*at = s->next;
	free(s);
}

/* ---- Events as msgpack ---- */

static void pack_text(msgpack_packer *p, const char *text)
{
	msgpack_pack_str_with_body(p, text, strlen(text));
}

/* A client's bytes: text if they read as such. */
static void pack_bytes(msgpack_packer *p, const unsigned char *b, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++) {
		if (b[i] < 0x20 || b[i] >= 0x7f) {
			msgpack_pack_bin_with_body(p, b, n);
			return;
		}
	}
	msgpack_pack_str_with_body(p, b, n);
}

/* False: the namespace has no such field. */
static bool find_field(const struct space *s, uint16_t tag, const unsigned char **ret, uint32_t *ret_n)
{
	struct attnd_wire_ns_field f;

	for (uint32_t i = 0; i + sizeof(f) <= s->bytes; i += (uint32_t)sizeof(f) + ((f.bytes + 3u) & ~3u)) {
		memcpy(&f, s->fields + i, sizeof(f));
		if (f.tag == tag) {
			*ret = s->fields + i + sizeof(f);
			*ret_n = f.bytes;
			return true;
		}
	}
	return false;
}

static void pack_field(msgpack_packer *p, const char *name, const struct space *s, uint16_t tag)
{
	const unsigned char *b;
	uint32_t n;

	pack_text(p, name);
	if (find_field(s, tag, &b, &n))
		pack_bytes(p, b, n);
	else
		msgpack_pack_nil(p);
}

/* What beside the tokens makes the hash, for each block: adapter, salt, tenant, as far as there are any. */
static void pack_extra(msgpack_packer *p, const struct space *s, uint32_t blocks)
{
	static const uint16_t tags[] = {ATTND_NS_ADAPTER, ATTND_NS_SALT, ATTND_NS_TENANT};
	const unsigned char *b;
	uint32_t n, fields = 0;

	for (int i = 0; i < 3; i++)
		fields += find_field(s, tags[i], &b, &n);
	pack_text(p, "extra_keys");
	if (!fields) {
		msgpack_pack_nil(p);
		return;
	}
	msgpack_pack_array(p, blocks);
	for (uint32_t k = 0; k < blocks; k++) {
		msgpack_pack_array(p, fields);
		for (int i = 0; i < 3; i++)
			if (find_field(s, tags[i], &b, &n))
				pack_bytes(p, b, n);
	}
}

static void pack_hashes(msgpack_packer *p, const uint64_t *hashes, uint32_t n)
{
	pack_text(p, "block_hashes");
	msgpack_pack_array(p, n);
	for (uint32_t i = 0; i < n; i++)
		msgpack_pack_uint64(p, hashes[i]);
}

static void pack_type(msgpack_packer *p, uint32_t members, const char *type)
{
	msgpack_pack_map(p, members);
	pack_text(p, "type");
	pack_text(p, type);
}

static void pack_stored(msgpack_packer *p, const struct run *r, uint32_t block_size)
{
	pack_type(p, 11, "BlockStored");
	pack_hashes(p, r->hashes, r->n);
	pack_text(p, "parent_block_hash");
	if (r->root)
		msgpack_pack_nil(p);
	else
		msgpack_pack_uint64(p, r->parent);
	pack_text(p, "token_ids");
	msgpack_pack_array(p, (size_t)r->n * block_size);
	for (uint32_t i = 0; i < r->n; i++)
		for (uint32_t k = 0; k < block_size; k++)
			msgpack_pack_uint64(p, r->tokens[i][k]);
	pack_text(p, "block_size");
	msgpack_pack_uint32(p, block_size);
	pack_text(p, "lora_id");
	msgpack_pack_nil(p);
	pack_text(p, "medium");
	pack_text(p, "CPU");
	pack_field(p, "lora_name", r->space, ATTND_NS_ADAPTER);
	pack_extra(p, r->space, r->n);
	pack_field(p, "cache_salt", r->space, ATTND_NS_SALT);
	pack_field(p, "tenant", r->space, ATTND_NS_TENANT);
}

static void pack_removed(msgpack_packer *p, const struct run *r)
{
	pack_type(p, 3, "BlockRemoved");
	pack_hashes(p, r->hashes, r->n);
	pack_text(p, "medium");
	pack_text(p, "CPU");
}

/* ---- Runs ---- */

/* The run becomes an event in `to`. */
static void close_run(struct mirror *m, struct run *r, msgpack_sbuffer *to, uint32_t *num)
{
	msgpack_packer p;

	if (!r->type)
		return;
	msgpack_packer_init(&p, to, msgpack_sbuffer_write);
	if (r->type == EVENT_STORED)
		pack_stored(&p, r, m->caches[r->cache].identity.block_size);
	else
		pack_removed(&p, r);
	++*num;
	r->type = 0;
	r->n = 0;
}

static bool run_room(struct run *r)
{
	uint32_t cap = r->cap ? 2 * r->cap : 64;
	uint64_t *h;
	const uint64_t **t;

	if (r->n < r->cap)
		return true;
	h = realloc(r->hashes, cap * sizeof(*h));
	if (h)
		r->hashes = h;
	t = realloc(r->tokens, cap * sizeof(*t));
	if (t)
		r->tokens = t;
	if (!h || !t)
		return false;
	r->cap = cap;
	return true;
}

/* A stored block continues the run, or begins one. */
static bool run_store(struct mirror *m, struct run *r, uint16_t cache, uint32_t id, msgpack_sbuffer *to,
		      uint32_t *num)
{
	struct mcache *c = &m->caches[cache];
	struct mblock *b = &c->blocks[id];
	uint64_t hash = hash_of(c, id);

	if (!hash)
		return false;
	if (r->type != EVENT_STORED || r->cache != cache || r->last != b->parent || r->space != b->space ||
	    r->n >= 4096)
		close_run(m, r, to, num);
	if (!run_room(r))
		return false;
	if (!r->type) {
		r->type = EVENT_STORED;
		r->cache = cache;
		r->space = b->space;
		r->root = b->parent == ATTND_BLOCK_NONE;
		r->parent = r->root ? 0 : c->blocks[b->parent].hash;
	}
	r->hashes[r->n] = hash;
	r->tokens[r->n++] = b->tokens;
	r->last = id;
	return true;
}

static void run_remove(struct mirror *m, struct run *r, uint16_t cache, uint64_t hash, msgpack_sbuffer *to,
		       uint32_t *num)
{
	if (r->type != EVENT_REMOVED || r->cache != cache || r->n >= 4096)
		close_run(m, r, to, num);
	if (!run_room(r))
		return;
	r->type = EVENT_REMOVED;
	r->cache = cache;
	r->hashes[r->n++] = hash;
}

/* ---- Batches ---- */

static double wall_clock(void)
{
	struct timespec t;

	clock_gettime(CLOCK_REALTIME, &t); /* wall clock: what subscribers are told, no deadline */
	return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

/* [ts, [events], 0] */
static void make_payload(msgpack_sbuffer *to, const msgpack_sbuffer *events, uint32_t num)
{
	msgpack_packer p;

	msgpack_packer_init(&p, to, msgpack_sbuffer_write);
	msgpack_pack_array(&p, 3);
	msgpack_pack_double(&p, wall_clock());
	msgpack_pack_array(&p, num);
	msgpack_sbuffer_write(to, events->data, events->size);
	msgpack_pack_int(&p, 0);
}

static void forget_oldest(struct stream *s)
{
	struct kept *k = &s->kept[s->first++ % KEEP_BATCHES];

	s->kept_bytes -= k->bytes;
	free(k->payload);
	*k = (struct kept){0};
}

/* Takes the payload over, or leaves it to its owner. */
static void keep(struct stream *s, msgpack_sbuffer *payload, size_t most)
{
	size_t bytes = payload->size;

	while (s->first < s->seq && (s->seq - s->first >= KEEP_BATCHES || s->kept_bytes + bytes > most))
		forget_oldest(s);
	if (bytes > most) { /* a replay from here tells the state */
		s->first = ++s->seq;
		return;
	}
	s->kept[s->seq % KEEP_BATCHES] =
		(struct kept){.seq = s->seq, .bytes = bytes, .payload = msgpack_sbuffer_release(payload)};
	s->kept_bytes += bytes;
	s->seq++;
}

static void emit(struct mirror *m, struct stream *s)
{
	msgpack_sbuffer payload;

	if (!s->num_events)
		return;
	msgpack_sbuffer_init(&payload);
	make_payload(&payload, &s->events, s->num_events);
	msgpack_sbuffer_clear(&s->events);
	s->num_events = 0;
	m->emit(m->ctx, s->topic, s->seq, payload.data, payload.size);
	keep(s, &payload, KEEP_BYTES / m->num_streams);
	msgpack_sbuffer_destroy(&payload);
}

static struct stream *run_stream(struct mirror *m)
{
	return m->caches[m->run.cache].stream;
}

static void close_current(struct mirror *m)
{
	struct stream *s;

	if (!m->run.type)
		return;
	s = run_stream(m);
	close_run(m, &m->run, &s->events, &s->num_events);
	if (s->events.size >= BATCH_BYTES)
		emit(m, s);
}

void mirror_flush(struct mirror *m)
{
	close_current(m);
	for (struct stream *s = m->streams; s && m->whole; s = s->next)
		emit(m, s);
}

/* ---- The whole state ---- */

/* AllBlocksCleared, then every block of the stream's caches, parents first. */
static void pack_state(struct mirror *m, const struct stream *s, msgpack_sbuffer *to, uint32_t *num)
{
	struct run run = {0};
	msgpack_packer p;

	msgpack_packer_init(&p, to, msgpack_sbuffer_write);
	pack_type(&p, 1, "AllBlocksCleared");
	*num = 1;
	for (uint16_t i = 0; i < ATTND_MAX_POOL_CACHES; i++) {
		const struct mcache *c = &m->caches[i];
		unsigned char *told; /* each once, those before it first, so that chains stand together */
		uint32_t *path, n;

		if (c->stream != s)
			continue;
		path = malloc(c->cap * sizeof(*path) + 1);
		told = calloc(c->cap + 1, 1);

		for (uint32_t id = 0; id < c->cap && path && told; id++) {
			n = 0;
			for (uint32_t at = id;
			     at != ATTND_BLOCK_NONE && at < c->cap && c->blocks[at].tokens && !told[at];
			     at = c->blocks[at].parent) {
				told[at] = 1;
				path[n++] = at;
			}
			while (n--)
				run_store(m, &run, i, path[n], to, num);
		}
		free(path);
		free(told);
		close_run(m, &run, to, num);
	}
	free(run.hashes);
	free(run.tokens);
}

static void tell_states(struct mirror *m)
{
	for (struct stream *s = m->streams; s; s = s->next) {
		msgpack_sbuffer_clear(&s->events);
		pack_state(m, s, &s->events, &s->num_events);
		emit(m, s);
	}
}

int mirror_replay(const struct mirror *m, const char *topic, uint64_t start, mirror_emit *to, void *ctx)
{
	msgpack_sbuffer events, payload;
	struct stream *s = m->streams;
	uint32_t num;

	while (s && strcmp(s->topic, topic))
		s = s->next;
	if (!s)
		return -ENOENT;
	if (start >= s->first && s->seq) {
		for (; start < s->seq; start++)
			to(ctx, topic, start, s->kept[start % KEEP_BATCHES].payload,
			   s->kept[start % KEEP_BATCHES].bytes);
		return 0;
	}
	if (!s->seq)
		return 0; /* nothing has happened yet */
	msgpack_sbuffer_init(&events);
	msgpack_sbuffer_init(&payload);
	pack_state((struct mirror *)(uintptr_t)m, s, &events, &num);
	make_payload(&payload, &events, num);
	to(ctx, topic, s->seq - 1, payload.data, payload.size);
	msgpack_sbuffer_destroy(&events);
	msgpack_sbuffer_destroy(&payload);
	return 0;
}

const char *mirror_only_topic(const struct mirror *m, const char *prefix)
{
	const char *found = NULL;

	for (const struct stream *s = m->streams; s; s = s->next) {
		if (strncmp(s->topic, prefix, strlen(prefix)) != 0)
			continue;
		if (found)
			return NULL;
		found = s->topic;
	}
	return found;
}

bool mirror_whole(const struct mirror *m)
{
	return m->whole;
}

/* ---- Records ---- */

static void drop_block(struct mirror *m, struct mblock *b)
{
	if (!b->tokens)
		return;
	free(b->tokens);
	space_put(m, b->space);
	*b = (struct mblock){.parent = ATTND_BLOCK_NONE};
}

static void drop_blocks(struct mirror *m, struct mcache *c)
{
	for (uint32_t i = 0; i < c->cap; i++)
		drop_block(m, &c->blocks[i]);
	free(c->blocks);
	*c = (struct mcache){.stream = NULL};
}

static void stream_free(struct mirror *m, struct stream *s)
{
	struct stream **at = &m->streams;

	while (*at != s)
		at = &(*at)->next;
	*at = s->next;
	m->num_streams--;
	while (s->first < s->seq)
		forget_oldest(s);
	msgpack_sbuffer_destroy(&s->events);
	free(s);
}

/* A topic without a cache makes room: clients name caches as they like. */
static void drop_unused(struct mirror *m)
{
	for (struct stream *s = m->streams, *next; s; s = next) {
		bool used = false;

		next = s->next;
		for (int i = 0; i < ATTND_MAX_POOL_CACHES && !used; i++)
			used = m->caches[i].stream == s;
		if (!used)
			stream_free(m, s);
	}
}

static struct stream *stream_get(struct mirror *m, const struct event_cache *what)
{
	char topic[sizeof(((struct stream *)0)->topic)];
	struct stream *s = m->streams;

	snprintf(topic, sizeof(topic), "kv@%.80s@%.*s", what->realm, ATTND_MAX_NAME, what->identity.name);
	while (s && strcmp(s->topic, topic))
		s = s->next;
	if (s)
		return s;
	if (m->num_streams == MAX_STREAMS)
		drop_unused(m);
	s = calloc(1, sizeof(*s));
	if (!s)
		return NULL;
	memcpy(s->topic, topic, sizeof(topic));
	msgpack_sbuffer_init(&s->events);
	if (m->whole) { /* who has followed an earlier one of this name begins anew */
		msgpack_packer p;

		msgpack_packer_init(&p, &s->events, msgpack_sbuffer_write);
		pack_type(&p, 1, "AllBlocksCleared");
		s->num_events = 1;
	}
	m->num_streams++;
	s->next = m->streams;
	m->streams = s;
	return s;
}

static void take_cache(struct mirror *m, const struct event *r)
{
	struct mcache *c = &m->caches[r->cache];
	struct event_cache what;

	memcpy(&what, r->data, sizeof(what));
	drop_blocks(m, c);
	c->identity = what.identity;
	c->stream = stream_get(m, &what);
}

/* Room for block `id`. */
static bool grow(struct mcache *c, uint32_t id)
{
	uint32_t cap = c->cap ? c->cap : 256;
	struct mblock *b;

	if (id < c->cap)
		return true;
	while (cap <= id)
		cap *= 2;
	b = realloc(c->blocks, cap * sizeof(*b));
	if (!b)
		return false;
	for (uint32_t i = c->cap; i < cap; i++)
		b[i] = (struct mblock){.parent = ATTND_BLOCK_NONE};
	c->blocks = b;
	c->cap = cap;
	return true;
}

static void take_stored(struct mirror *m, const struct event *r)
{
	struct mcache *c = &m->caches[r->cache];
	struct mblock *b;

	if (!c->stream || !grow(c, r->id))
		return;
	b = &c->blocks[r->id];
	if (b->tokens)
		close_current(m);
	drop_block(m, b);
	b->tokens = malloc(r->num_tokens * sizeof(uint64_t));
	b->space = b->tokens ? space_get(m, r) : NULL;
	if (!b->space) {
		free(b->tokens);
		*b = (struct mblock){.parent = ATTND_BLOCK_NONE};
		return;
	}
	memcpy(b->tokens, r->data, r->num_tokens * sizeof(uint64_t));
	b->parent = r->parent;
	if (!m->whole)
		return;
	if (m->run.type && run_stream(m) != c->stream)
		close_current(m);
	run_store(m, &m->run, r->cache, r->id, &c->stream->events, &c->stream->num_events);
}

static void take_removed(struct mirror *m, const struct event *r)
{
	struct mcache *c = &m->caches[r->cache];

	if (!c->stream || r->id >= c->cap || !c->blocks[r->id].tokens)
		return;
	if (m->whole) {
		uint64_t hash = c->blocks[r->id].hash;

		/* What the run says of stored blocks is packed while their tokens are there. */
		if (m->run.type == EVENT_STORED || (m->run.type && run_stream(m) != c->stream))
			close_current(m);
		if (hash)
			run_remove(m, &m->run, r->cache, hash, &c->stream->events, &c->stream->num_events);
	}
	drop_block(m, &c->blocks[r->id]);
}

void mirror_take(struct mirror *m, const struct event *r)
{
	switch (r->type) {
	case EVENT_RESET:
		mirror_flush(m);
		m->whole = false;
		for (int i = 0; i < ATTND_MAX_POOL_CACHES; i++)
			drop_blocks(m, &m->caches[i]);
		break;
	case EVENT_SYNCED:
		m->whole = true;
		tell_states(m);
		break;
	case EVENT_CACHE:
		close_current(m);
		take_cache(m, r);
		break;
	case EVENT_STORED:
		take_stored(m, r);
		break;
	case EVENT_REMOVED:
		take_removed(m, r);
		break;
	default:
		break;
	}
}

int mirror_create(mirror_emit *to, void *ctx, struct mirror **ret)
{
	struct mirror *m = calloc(1, sizeof(*m));

	if (!m)
		return -ENOMEM;
	m->emit = to;
	m->ctx = ctx;
	*ret = m;
	return 0;
}

void mirror_destroy(struct mirror *m)
{
	if (!m)
		return;
	for (int i = 0; i < ATTND_MAX_POOL_CACHES; i++)
		drop_blocks(m, &m->caches[i]);
	while (m->streams)
		stream_free(m, m->streams);
	free(m->run.hashes);
	free(m->run.tokens);
	free(m);
}
