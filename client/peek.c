/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Looking without asking: how much of a prompt is cached, by the realm's peek table.
 *
 * In:   tokens; the lookup region; a key that the daemon is asked for once a cache and namespace.
 * Out:  whole blocks that are cached, as a hint: entries come and go while we look.
 * Next: shm/peek.h.
 *
 * Ancestors of a cached block are cached, too, so that the end of the hit can be searched for:
 * doubling, then halving. The chain of hashes is computed once, and only as far as that looks.
 */
#include "internal.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

/* ---- The region ---- */

/* Without a table the region is good for nothing here, but not wrong. */
static int use_table(struct attnd *a, const struct attnd_region *r)
{
	const struct attnd_lookup_region *l = r->base;
	uint64_t entries = l->peek_entries;
	uint32_t offset = l->peek_offset;

	a->peek.table = (struct attnd_peek_table){0};
	if (__atomic_load_n(&l->magic, __ATOMIC_ACQUIRE) != ATTND_WIRE_MAGIC || l->abi_major != ATTND_ABI_MAJOR)
		return -EPROTO;
	if (!offset)
		return 0;
	if (offset % 64 || offset > r->bytes || entries > (r->bytes - offset) / sizeof(uint64_t) ||
	    entries < ATTND_PEEK_BUCKET || entries & (entries - 1))
		return -EPROTO;
	attnd_peek_init(&a->peek.table, (char *)r->base + offset, entries);
	return 0;
}

int cl_peek_map(struct attnd *a, int fd, uint64_t bytes)
{
	struct attnd_region r;
	int rc = bytes < sizeof(struct attnd_lookup_region) || bytes > SIZE_MAX ? -EPROTO : 0;

	if (!rc)
		rc = attnd_region_map(fd, (size_t)bytes, 0, &r);
	if (rc)
		return rc;
	rc = madvise(r.base, r.bytes, MADV_DONTFORK) ? -errno : use_table(a, &r);
	if (rc) {
		munmap(r.base, r.bytes); /* fd stays the caller's */
		return rc;
	}
	a->peek.region = r;
	return 0;
}

void cl_peek_unmap(struct attnd *a)
{
	attnd_region_destroy(&a->peek.region);
	a->peek.table = (struct attnd_peek_table){0};
	a->peek.num_keys = 0;
}

void cl_peek_destroy(struct attnd *a)
{
	free(a->peek.keys);
	free(a->peek.hashes);
}

/* ---- Keys ---- */

static struct cl_peek_key *key_find(struct attnd *a, uint32_t cache, uint32_t ns)
{
	for (uint32_t i = 0; i < a->peek.num_keys; i++)
		if (a->peek.keys[i].cache == cache && a->peek.keys[i].ns == ns)
			return &a->peek.keys[i];
	return NULL;
}

static int key_grow(struct attnd *a)
{
	uint32_t cap = a->peek.cap_keys ? 2 * a->peek.cap_keys : 4;
	struct cl_peek_key *k;

	if (a->peek.num_keys < a->peek.cap_keys)
		return 0;
	k = realloc(a->peek.keys, cap * sizeof(*k));
	if (!k)
		return -ENOMEM;
	a->peek.keys = k;
	a->peek.cap_keys = cap;
	return 0;
}

static void key_done(struct attnd *a, struct cl_job *j)
{
	(void)a;
	if (!j->status)
		memcpy(j->ret, j->scratch, sizeof(struct attnd_wire_peek_key));
}

static int key_ask(struct attnd *a, uint32_t cache, uint32_t ns, struct attnd_wire_peek_key *ret)
{
	struct cl_request r;
	void *scratch;
	int rc = cl_request_init(a, &r, ATTND_OP_PEEK_KEY, 0);

	if (!rc)
		rc = cl_cache_wire(a, cache, &r.sqe.peek.cache);
	if (!rc)
		rc = cl_request_scratch(a, &r, sizeof(*ret), &scratch, &r.sqe.peek.key);
	if (rc)
		return rc;
	r.sqe.peek.ns = cl_namespace_wire(a, ns);
	r.job.ret = ret;
	r.job.done = key_done;
	return cl_perform(a, &r, NULL);
}

static int key_get(struct attnd *a, uint32_t cache, uint32_t ns, const struct cl_peek_key **ret)
{
	struct attnd_wire_peek_key w;
	struct cl_peek_key *k = key_find(a, cache, ns);
	int rc;

	if (!k) {
		rc = key_grow(a);
		if (!rc)
			rc = cl_enter(a, 1, CL_WAIT);
		if (!rc)
			rc = key_ask(a, cache, ns, &w);
		if (rc)
			return rc;
		if (!w.block_size || w.block_size > ATTND_MAX_BLOCK_SIZE)
			return cl_fail_text(a, -EPROTO, "a peek key without its block size");
		k = &a->peek.keys[a->peek.num_keys++];
		*k = (struct cl_peek_key){.cache = cache, .ns = ns, .block_size = w.block_size};
		memcpy(k->key, w.key, sizeof(k->key));
	}
	*ret = k;
	return 0;
}

/* ---- Looking ---- */

/* Hashes of the prefixes of 1, 2, ... blocks, as far as they were needed. */
struct chain {
	const struct attnd_peek_table *table;
	const struct cl_peek_key *key;
	const uint64_t *tokens;
	uint64_t *hashes;
	uint64_t known;
};

static bool has(struct chain *c, uint64_t blocks)
{
	uint32_t B = c->key->block_size;

	for (; c->known < blocks; c->known++)
		c->hashes[c->known] = attnd_peek_hash(c->key->key, c->known ? c->hashes[c->known - 1] : 0,
						      c->tokens + c->known * B, B);
	return attnd_peek_has(c->table, c->hashes[blocks - 1]);
}

static uint64_t search(struct chain *c, uint64_t blocks)
{
	uint64_t lo = 0, hi = blocks + 1; /* lo blocks are there, hi are not */

	while (lo < blocks && hi > blocks) {
		uint64_t next = lo ? cl_min_u64(2 * lo, blocks) : 1;

		if (has(c, next))
			lo = next;
		else
			hi = next;
	}
	while (hi - lo > 1) {
		uint64_t middle = lo + (hi - lo) / 2;

		if (has(c, middle))
			lo = middle;
		else
			hi = middle;
	}
	return lo;
}

static int reserve(struct attnd *a, uint64_t blocks)
{
	uint64_t *h;

	if (blocks <= a->peek.cap_hashes)
		return 0;
	h = realloc(a->peek.hashes, blocks * sizeof(*h));
	if (!h)
		return -ENOMEM;
	a->peek.hashes = h;
	a->peek.cap_hashes = blocks;
	return 0;
}

static int look(struct attnd *a, const struct cl_peek_key *key, const uint64_t *tokens, uint64_t n, uint64_t *ret)
{
	struct chain c = {.table = &a->peek.table, .key = key, .tokens = tokens};
	int rc;

	if (n > ATTND_MAX_SEQ_TOKENS)
		return cl_fail(a, -EINVAL, ATTND_FIELD_TOKENS, ATTND_MAX_SEQ_TOKENS);
	rc = reserve(a, n / key->block_size);
	if (rc)
		return rc;
	c.hashes = a->peek.hashes;
	*ret = search(&c, n / key->block_size) * key->block_size;
	return 0;
}

/* The key, after what every call does first: no call after it may reconnect. */
static int begin(struct attnd *a, uint32_t cache, uint32_t ns, const struct cl_peek_key **ret)
{
	int rc = cl_enter(a, 0, CL_ASYNC);

	if (!rc)
		rc = key_get(a, cache, ns, ret);
	if (!rc && !a->peek.table.entries)
		rc = cl_fail_text(a, -EOPNOTSUPP, "the daemon keeps no peek table (peek-entries 0)");
	return rc;
}

int attnd_peek(attnd_t *a, uint32_t cache, uint32_t ns, const uint64_t *tokens, uint64_t num_tokens,
	       uint64_t *ret_cached)
{
	const struct cl_peek_key *key;
	int rc = begin(a, cache, ns, &key);

	return rc ? rc : look(a, key, tokens, num_tokens, ret_cached);
}

int attnd_peek_many(attnd_t *a, uint32_t cache, uint32_t ns, const struct attnd_prompt *prompts, uint32_t num_prompts,
		    uint64_t *ret_cached, uint32_t *ret_longest)
{
	uint64_t cached, most = 0;
	uint32_t longest = 0;
	const struct cl_peek_key *key;
	int rc = begin(a, cache, ns, &key);

	for (uint32_t i = 0; !rc && i < num_prompts; i++)
		if (prompts[i].num_tokens > ATTND_MAX_SEQ_TOKENS)
			rc = cl_fail(a, -EINVAL, ATTND_FIELD_TOKENS, ATTND_MAX_SEQ_TOKENS);
	for (uint32_t i = 0; !rc && i < num_prompts; i++) {
		rc = look(a, key, prompts[i].tokens, prompts[i].num_tokens, &cached);
		if (rc)
			break;
		if (ret_cached)
			ret_cached[i] = cached;
		if (cached > most) {
			most = cached;
			longest = i;
		}
	}
	if (!rc && ret_longest)
		*ret_longest = longest;
	return rc;
}
