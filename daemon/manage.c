/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What administrators do to a cache: evict blocks, pin prefixes for a time, look at its tree.
 *
 * In:   a command and its arguments (MAIL_ADMIN). Out: one JSON object, when it is done.
 * Next: control's admin.c sends it.
 *
 * Long commands are chores, done in slices between the rounds of the leader. A pin is a reference
 * on the last block of a prefix, which holds all of it.
 */
#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "arguments.h"
#include "lead.h"
#include "watch.h"

enum {
	EVICT_SLICE = 128,
	PIN_SLICE = 2048, /* tokens */
	TREE_SLICE = 8,	  /* blocks */
	ROOT_SLICE = 1024,
	NEXT_LEAVES = 8,
	TREE_BLOCKS = 1000, /* of an answer, if it is not asked for more */
	MAX_CHORES = 32,    /* the texts of refusals name these two */
	MAX_PINS = 1024,
};

struct chore {
	struct chore *next;
	void *cookie;
	const char *command;
	json_t *args;
	struct cache *cache;	       /* kept */
	uint64_t left, done;	       /* blocks to evict; tokens to match, matched */
	uint32_t ns, stand;	       /* of a pin: its namespace, referenced; the block reached, held */
	uint32_t at, generation, root; /* of a tree: the block described last; the next that may follow none */
	json_t *list;
};

struct pin {
	struct pin *next;
	struct cache *cache; /* kept */
	uint32_t id, stand;
	uint64_t tokens, blocks, until_ns;
};

static void reply(struct leader *l, void *cookie, const char *command, json_t *object)
{
	mailbox_send(l->control,
		     &(struct mail){.type = MAIL_ADMIN_DONE, .cookie = cookie, .command = command, .reply = object});
}

static json_t *refusal(int error, const char *text)
{
	return arguments_refusal(-error, text);
}

static uint64_t bytes_of(const struct cache *c, uint64_t blocks)
{
	return blocks * c->share_bytes * c->pool->num_nodes;
}

/* ---- Which cache ---- */

static bool named_so(const struct cache *c, const json_t *args)
{
	const char *name = json_string_value(json_object_get(args, "cache"));
	const char *realm = json_string_value(json_object_get(args, "realm"));
	const char *print = json_string_value(json_object_get(args, "fingerprint"));
	char hex[33];

	for (int i = 0; i < 16; i++)
		snprintf(hex + 2 * i, 3, "%02x", c->identity.fingerprint[i]);
	return (!name || (strlen(name) <= ATTND_MAX_NAME && !strncmp(name, c->identity.name, ATTND_MAX_NAME))) &&
	       (!realm || !strcmp(realm, c->realm)) && (!print || !strcmp(print, hex));
}

/* The only one that is meant, or NULL with the refusal. */
static struct cache *find_cache(const struct leader *l, const json_t *args, json_t **ret_refusal)
{
	struct cache *found = NULL;
	bool many = false;

	for (uint32_t i = 0; i < ATTND_MAX_POOL_CACHES; i++) {
		struct cache *c = l->pool.caches[i];

		if (!c || !named_so(c, args))
			continue;
		many |= found != NULL;
		found = c;
	}
	if (found && !many)
		return found;
	if (!json_object_get(args, "cache"))
		*ret_refusal = refusal(EINVAL, "which cache? cache=NAME is missing");
	else
		*ret_refusal = many ? refusal(ENOTUNIQ, "several caches are named so: add realm or fingerprint")
				    : refusal(ENOENT, "no such cache");
	return NULL;
}

/* ---- Pins ---- */

static void drop_pin(struct leader *l, struct pin **at)
{
	struct pin *p = *at;

	*at = p->next;
	l->pinned_bytes -= bytes_of(p->cache, p->blocks);
	l->num_pins--;
	cache_unref(p->cache, NULL, p->stand);
	p->cache->keeps--;
	free(p);
}

void manage_expire(struct leader *l)
{
	uint64_t next = UINT64_MAX;

	if (l->now < l->pins_until)
		return;
	for (struct pin **at = &l->pins; *at;) {
		if ((*at)->until_ns <= l->now) {
			drop_pin(l, at);
			continue;
		}
		next = (*at)->until_ns < next ? (*at)->until_ns : next;
		at = &(*at)->next;
	}
	l->pins_until = next;
}

/* What names none names all. */
static bool names_none(const json_t *args)
{
	return !json_object_get(args, "cache") && !json_object_get(args, "realm") &&
	       !json_object_get(args, "fingerprint");
}

static bool any_named_so(const struct leader *l, const json_t *args)
{
	bool found = names_none(args);

	for (uint32_t i = 0; i < ATTND_MAX_POOL_CACHES && !found; i++)
		found = l->pool.caches[i] && named_so(l->pool.caches[i], args);
	return found;
}

static json_t *unpin(struct leader *l, const json_t *args)
{
	const json_t *id = json_object_get(args, "pin");
	json_int_t dropped = 0;

	if (!any_named_so(l, args))
		return refusal(ENOENT, "no such cache");
	for (struct pin **at = &l->pins; *at;) {
		if (named_so((*at)->cache, args) && (!id || json_integer_value(id) == (json_int_t)(*at)->id)) {
			drop_pin(l, at);
			dropped++;
		} else {
			at = &(*at)->next;
		}
	}
	return id && !dropped ? refusal(ENOENT, "no such pin") : json_pack("{s:I}", "unpinned", dropped);
}

json_t *manage_pins(const struct leader *l)
{
	json_t *a = json_array();

	for (const struct pin *p = l->pins; p; p = p->next) {
		char name[ATTND_MAX_NAME + 1] = "";

		memcpy(name, p->cache->identity.name, ATTND_MAX_NAME);
		json_array_append_new(a, json_pack("{s:I, s:s, s:s, s:I, s:I, s:I, s:f}", "pin", (json_int_t)p->id,
						   "cache", name, "realm", p->cache->realm, "tokens",
						   (json_int_t)p->tokens, "blocks", (json_int_t)p->blocks,
						   "pinned_bytes", (json_int_t)bytes_of(p->cache, p->blocks),
						   "expires_s", (double)(p->until_ns - l->now) / 1e9));
	}
	return json_pack("{s:o}", "pins", a);
}

static size_t put_field(char *to, uint16_t tag, const json_t *text)
{
	struct attnd_wire_ns_field f = {.tag = tag};

	if (!json_is_string(text))
		return 0;
	f.bytes = (uint16_t)json_string_length(text);
	memset(to, 0, sizeof(f) + f.bytes + 3);
	memcpy(to, &f, sizeof(f));
	memcpy(to + sizeof(f), json_string_value(text), f.bytes);
	return sizeof(f) + ((f.bytes + 3u) & ~3u);
}

/* The namespace of a request's tenant, adapter and salt, referenced. */
static int find_ns(struct leader *l, const json_t *args, uint32_t *ret)
{
	static const struct {
		const char *name;
		uint16_t tag;
	} tags[] = {{"tenant", ATTND_NS_TENANT}, {"adapter", ATTND_NS_ADAPTER}, {"salt", ATTND_NS_SALT}};
	char fields[ATTND_MAX_NS_BYTES];
	size_t n = 0;

	for (size_t i = 0; i < sizeof(tags) / sizeof(*tags); i++) {
		const json_t *text = json_object_get(args, tags[i].name);

		if (json_string_length(text) + n + 8 > sizeof(fields))
			return -EINVAL;
		n += put_field(fields + n, tags[i].tag, text);
	}
	return ns_get(&l->ns, fields, n, ret);
}

static json_t *over_budget(const struct leader *l, uint64_t bytes, uint64_t budget)
{
	char text[160];

	snprintf(text, sizeof(text),
		 "pin-budget: %" PRIu32 "%% of the pool are %" PRIu64 " bytes, %" PRIu64
		 " are pinned, this is %" PRIu64,
		 l->limits.pin_budget, budget, l->pinned_bytes, bytes);
	return refusal(EDQUOT, text);
}

static json_t *add_pin(struct leader *l, struct chore *o)
{
	const json_t *seconds = json_object_get(o->args, "seconds");
	uint64_t blocks = (o->done + o->cache->block_size - 1) >> o->cache->slots_shift;
	uint64_t bytes = bytes_of(o->cache, blocks);
	uint64_t budget = l->pool.num_slabs * l->pool.slab_bytes * l->pool.num_nodes / 100 * l->limits.pin_budget;
	struct pin *p;

	if (!o->done)
		return refusal(ENOENT, "nothing of it is cached");
	if (bytes > budget || l->pinned_bytes > budget - bytes)
		return over_budget(l, bytes, budget);
	if (l->num_pins == MAX_PINS)
		return refusal(ENOSPC, "there are 1024 pins, and may be no more");
	p = calloc(1, sizeof(*p));
	if (!p)
		return refusal(ENOMEM, "no memory");
	*p = (struct pin){.next = l->pins,
			  .cache = o->cache,
			  .id = ++l->last_pin,
			  .stand = o->stand,
			  .tokens = o->done,
			  .blocks = blocks,
			  .until_ns = l->now + (uint64_t)json_integer_value(seconds) * 1000000000};
	o->stand = ATTND_BLOCK_NONE; /* the pin's now */
	o->cache->keeps++;
	l->pins = p;
	l->num_pins++;
	l->pinned_bytes += bytes;
	l->pins_until = p->until_ns < l->pins_until ? p->until_ns : l->pins_until;
	return json_pack("{s:I, s:I, s:I}", "pin", (json_int_t)p->id, "tokens", (json_int_t)p->tokens, "blocks",
			 (json_int_t)blocks);
}

/* ---- Chores ---- */

static void chore_free(struct leader *l, struct chore *o)
{
	if (o->stand != ATTND_BLOCK_NONE)
		cache_unref(o->cache, NULL, o->stand);
	ns_unref(&l->ns, o->ns);
	o->cache->keeps--;
	json_decref(o->args);
	json_decref(o->list);
	free(o);
}

/* ---- The tree ---- */

/* Its place among the leaves that go next, from 1 on; 0: further behind, or it is none. */
static int goes_next(const struct cache *c, uint32_t id)
{
	uint32_t at = cache_goes_after(c, ATTND_BLOCK_NONE);

	for (int i = 1; i <= NEXT_LEAVES && at != ATTND_BLOCK_NONE; i++) {
		if (at == id)
			return i;
		at = cache_goes_after(c, at);
	}
	return 0;
}

static json_t *describe_block(const struct leader *l, const struct cache *c, uint32_t id)
{
	const struct attnd_block *b = cache_block(c, id);
	const struct block_aux *a = cache_aux(c, id);
	json_t *tokens = json_array();
	json_int_t pins = 0;

	for (const struct pin *p = l->pins; p; p = p->next)
		pins += p->cache == c && p->stand == id;
	for (uint32_t s = b->first; s < cache_count(c, id); s++)
		json_array_append_new(tokens, json_integer((json_int_t)cache_tokens(c, id)[s]));
	return json_pack("{s:I, s:I, s:i, s:I, s:I, s:I, s:I, s:I, s:i, s:I, s:o}", "block", (json_int_t)id, "parent",
			 b->parent == ATTND_BLOCK_NONE ? (json_int_t)-1 : (json_int_t)b->parent, "namespace",
			 (int)b->ns, "position", (json_int_t)b->position + b->first, "children", (json_int_t)a->kids,
			 "held_children", (json_int_t)a->held_kids, "references", (json_int_t)a->refs - pins, "pins",
			 pins, "goes_next", goes_next(c, id), "age", (json_int_t)(c->clock - a->last_use), "tokens",
			 tokens);
}

/* The next block that follows none, looking at a few at a time; NONE: not yet, or no more. */
static uint32_t next_root(struct chore *o)
{
	const struct cache *c = o->cache;
	uint32_t all = c->num_ext * c->blocks_per_slab, id;

	for (int i = 0; i < ROOT_SLICE && o->root < all; i++) {
		id = o->root++;
		if (cache_ext(c, id)->block && cache_aux(c, id)->state == BLOCK_PUBLIC &&
		    cache_block(c, id)->parent == ATTND_BLOCK_NONE)
			return id;
	}
	o->left = o->root < all ? o->left : 0;
	return ATTND_BLOCK_NONE;
}

/* Depth first. */
static uint32_t next_block(struct chore *o)
{
	const struct cache *c = o->cache;
	uint32_t at = o->at;

	if (at != ATTND_BLOCK_NONE && cache_aux(c, at)->kids)
		return cache_aux(c, at)->first_kid;
	for (; at != ATTND_BLOCK_NONE; at = cache_block(c, at)->parent)
		if (cache_aux(c, at)->kid_next != ATTND_BLOCK_NONE)
			return cache_aux(c, at)->kid_next;
	return next_root(o);
}

/* Holds nothing, so as not to touch what it looks at: a block that went in between ends its branch. */
static bool tree_slice(const struct leader *l, struct chore *o)
{
	const struct cache *c = o->cache;

	if (o->at != ATTND_BLOCK_NONE &&
	    (!cache_ext(c, o->at)->block || cache_block(c, o->at)->generation != o->generation ||
	     cache_aux(c, o->at)->state != BLOCK_PUBLIC))
		o->at = ATTND_BLOCK_NONE;
	for (int i = 0; i < TREE_SLICE && o->left; i++) {
		o->at = next_block(o);
		if (o->at == ATTND_BLOCK_NONE)
			break;
		o->generation = cache_block(c, o->at)->generation;
		json_array_append_new(o->list, describe_block(l, c, o->at));
		o->left--;
	}
	return !o->left;
}

/* True when it is done. */
static bool evict_slice(struct chore *o)
{
	enum metrics_reason why = watch_reason(o->cache->pool, METRICS_REASON_admin);
	bool gone = true;

	for (int i = 0; i < EVICT_SLICE && gone; i++) {
		gone = o->left && cache_evict(o->cache);
		o->left -= gone;
		o->done += gone;
	}
	watch_reason(o->cache->pool, why);
	return !gone;
}

static bool match_slice(struct chore *o)
{
	const json_t *tokens = json_object_get(o->args, "tokens");
	uint32_t stand = o->stand, n = o->left < PIN_SLICE ? (uint32_t)o->left : PIN_SLICE;
	uint64_t list[PIN_SLICE], k;
	int r;

	for (uint32_t i = 0; i < n; i++)
		list[i] = (uint64_t)json_integer_value(json_array_get(tokens, o->done + i));
	k = tree_match(o->cache, o->ns, &stand, o->done, list, n, NULL);
	r = cache_make_room(o->cache, NULL, path_idle(o->cache, stand), account_path(o->cache, NULL, stand));
	if (r)
		return r != -EAGAIN; /* the rest would take from what is granted */
	if (stand != ATTND_BLOCK_NONE)
		cache_ref(o->cache, NULL, stand);
	if (o->stand != ATTND_BLOCK_NONE)
		cache_unref(o->cache, NULL, o->stand);
	o->stand = stand;
	o->done += k;
	o->left -= k;
	return k < n || !o->left;
}

/* The next cache that a flush without a name is for, or NULL. */
static struct cache *next_to_flush(const struct leader *l, const struct chore *o)
{
	for (uint32_t i = o->cache->id + 1; i < ATTND_MAX_POOL_CACHES; i++)
		if (l->pool.caches[i] && named_so(l->pool.caches[i], o->args))
			return l->pool.caches[i];
	return NULL;
}

/* True when it is done. */
static bool flush_slice(const struct leader *l, struct chore *o)
{
	struct cache *next;

	if (!evict_slice(o))
		return false;
	next = strcmp(o->command, "flush") || json_object_get(o->args, "cache") ? NULL : next_to_flush(l, o);
	if (!next)
		return true;
	o->cache->keeps--;
	o->cache = next;
	o->cache->keeps++;
	return false;
}

/* A slice; the answer when it was the last. */
static json_t *chore_slice(struct leader *l, struct chore *o)
{
	if (!strcmp(o->command, "pin"))
		return match_slice(o) ? add_pin(l, o) : NULL;
	if (!strcmp(o->command, "tree"))
		return tree_slice(l, o) ? json_pack("{s:O}", "tree", o->list) : NULL;
	return flush_slice(l, o) ? json_pack("{s:I}", "evicted", (json_int_t)o->done) : NULL;
}

bool manage_slice(struct leader *l)
{
	struct chore *o = l->chores;
	json_t *answer = o ? chore_slice(l, o) : NULL;

	if (answer) {
		void *cookie = o->cookie;
		const char *command = o->command;

		l->chores = o->next;
		l->num_chores--;
		chore_free(l, o); /* first: the answer is control's alone once it is sent */
		reply(l, cookie, command, answer);
	}
	return o != NULL;
}

static json_t *add_chore(struct leader *l, const struct mail *m, struct cache *c, uint64_t work)
{
	struct chore *o, **at;
	uint32_t ns;
	int r;

	if (l->num_chores == MAX_CHORES)
		return refusal(EBUSY, "32 commands are being done already: try again");
	r = find_ns(l, m->args, &ns);
	if (r)
		return r == -EINVAL ? refusal(EINVAL, "tenant, adapter and salt: 4072 bytes together")
				    : refusal(-r, "no memory");
	o = calloc(1, sizeof(*o));
	if (!o) {
		ns_unref(&l->ns, ns);
		return refusal(ENOMEM, "no memory");
	}
	*o = (struct chore){.cookie = m->cookie,
			    .command = m->command,
			    .args = json_incref(m->args),
			    .cache = c,
			    .left = work,
			    .ns = ns,
			    .stand = ATTND_BLOCK_NONE,
			    .at = ATTND_BLOCK_NONE,
			    .list = json_array()};
	c->keeps++;
	for (at = &l->chores; *at; at = &(*at)->next)
		;
	*at = o;
	l->num_chores++;
	return NULL;
}

/* ---- Commands ---- */

static json_t *begin_pin(struct leader *l, const struct mail *m)
{
	const json_t *tokens = json_object_get(m->args, "tokens");
	json_t *bad = NULL;
	struct cache *c = find_cache(l, m->args, &bad);

	if (!c)
		return bad;
	if (!tokens || !json_object_get(m->args, "seconds"))
		return refusal(EINVAL, tokens ? "for how long? seconds=N is missing"
					      : "what? tokens=1,2,3 or text=TEXT is missing");
	return add_chore(l, m, c, json_array_size(tokens));
}

static json_t *begin_evict(struct leader *l, const struct mail *m)
{
	json_int_t blocks = json_integer_value(json_object_get(m->args, "blocks"));
	bool flush = !strcmp(m->command, "flush");
	json_t *bad = NULL;
	struct cache *c = find_cache(l, m->args, &bad);

	if (!c)
		return bad;
	if (!flush && blocks < 1)
		return refusal(EINVAL, "how many? blocks=N is missing");
	return add_chore(l, m, c, flush ? UINT64_MAX : (uint64_t)blocks);
}

/* Every cache after the other: the chore is handed on. */
static json_t *flush_all(struct leader *l, const struct mail *m)
{
	for (uint32_t i = 0; i < ATTND_MAX_POOL_CACHES; i++)
		if (l->pool.caches[i] && named_so(l->pool.caches[i], m->args))
			return add_chore(l, m, l->pool.caches[i], UINT64_MAX);
	return names_none(m->args) ? json_pack("{s:i}", "evicted", 0) : refusal(ENOENT, "no such cache");
}

static json_t *begin_tree(struct leader *l, const struct mail *m)
{
	json_int_t blocks = json_integer_value(json_object_get(m->args, "blocks"));
	json_t *bad = NULL;
	struct cache *c = find_cache(l, m->args, &bad);

	if (!c)
		return bad;
	return add_chore(l, m, c, blocks ? (uint64_t)blocks : TREE_BLOCKS);
}

/* ---- Limits ---- */

static uint64_t share(const struct leader *l, uint32_t percent)
{
	return percent < 100 ? l->pool.num_slabs * l->pool.slab_bytes / 100 * percent : UINT64_MAX;
}

void manage_limits(struct leader *l, const struct limits *limits)
{
	bool level = l->limits.eviction && !limits->eviction;

	l->limits = *limits;
	l->engines.max_seqs = limits->max_sequences;
	l->pool.namespace_quota = share(l, limits->namespace_quota);
	l->pool.engine_quota = share(l, limits->session_quota);
	memcpy(l->pool.shares, limits->shares, sizeof(l->pool.shares));
	l->pool.num_shares = limits->num_shares;
	for (uint32_t i = 0; i < ATTND_MAX_POOL_CACHES; i++) {
		struct cache *c = l->pool.caches[i];

		if (c)
			cache_set_share(c);
		if (c && level)
			cache_level(c);
	}
}

static json_t *describe_limits(const struct limits *m)
{
	json_t *shares = json_object();

	for (uint32_t i = 0; i < m->num_shares; i++) {
		char name[sizeof(m->shares[i].name) + 1] = "";

		memcpy(name, m->shares[i].name, sizeof(m->shares[i].name));
		json_object_set_new(shares, name, json_pack("[i, i]", (int)m->shares[i].min, (int)m->shares[i].max));
	}
	return json_pack("{s:I, s:I, s:I, s:I, s:s, s:o}", "pin-budget", (json_int_t)m->pin_budget, "namespace-quota",
			 (json_int_t)m->namespace_quota, "session-quota", (json_int_t)m->session_quota,
			 "max-sequences", (json_int_t)m->max_sequences, "eviction",
			 m->eviction == CONFIG_EVICT_PRIORITY ? "priority" : "lru", "cache-shares", shares);
}

static bool set_shares(struct limits *m, const char *text, char *ret_why, size_t size)
{
	const char *bad = text ? limits_parse_shares(text, m) : "";

	if (bad)
		snprintf(ret_why, size, "cache-shares%s%.60s: " LIMITS_SHARES, *bad ? ": " : "", bad);
	return !bad;
}

static bool set_eviction(struct limits *m, const char *text, char *ret_why, size_t size)
{
	bool known = text && (!strcmp(text, "lru") || !strcmp(text, "priority"));

	if (known)
		m->eviction = strcmp(text, "lru") ? CONFIG_EVICT_PRIORITY : CONFIG_EVICT_LRU;
	else
		snprintf(ret_why, size, "eviction: lru or priority");
	return known;
}

/* One of the limits. False, and why: another name, or a value out of its range. */
static bool set_limit(struct limits *m, const char *name, const json_t *value, char *ret_why, size_t size)
{
	const struct {
		const char *name;
		uint32_t *at;
		json_int_t min, max;
	} numbers[] = {{"pin-budget", &m->pin_budget, 0, 100},
		       {"namespace-quota", &m->namespace_quota, 1, 100},
		       {"session-quota", &m->session_quota, 1, 100},
		       {"max-sequences", &m->max_sequences, 1, 1 << 24}};

	if (!strcmp(name, "cache-shares"))
		return set_shares(m, json_string_value(value), ret_why, size);
	if (!strcmp(name, "eviction"))
		return set_eviction(m, json_string_value(value), ret_why, size);
	for (size_t i = 0; i < sizeof(numbers) / sizeof(*numbers); i++) {
		json_int_t n = json_integer_value(value);

		if (strcmp(name, numbers[i].name))
			continue;
		if (!json_is_integer(value) || n < numbers[i].min || n > numbers[i].max) {
			snprintf(ret_why, size, "%s: a number from %" JSON_INTEGER_FORMAT " to %" JSON_INTEGER_FORMAT,
				 name, numbers[i].min, numbers[i].max);
			return false;
		}
		*numbers[i].at = (uint32_t)n;
		return true;
	}
	snprintf(
		ret_why, size,
		"%.60s: no such limit; there are pin-budget, namespace-quota, session-quota, max-sequences, eviction "
		"and cache-shares",
		name);
	return false;
}

/* All of them or none. */
static json_t *set_limits(struct leader *l, json_t *args)
{
	struct limits m = l->limits;
	const char *name;
	json_t *value;

	json_object_foreach(args, name, value)
	{
		char why[ARGUMENTS_WHY];

		if (strcmp(name, "command") && !set_limit(&m, name, value, why, sizeof(why)))
			return refusal(EINVAL, why);
	}
	manage_limits(l, &m);
	return describe_limits(&m);
}

bool manage_begin(struct leader *l, const struct mail *m)
{
	json_t *now;

	if (!strcmp(m->command, "pin"))
		now = begin_pin(l, m);
	else if (!strcmp(m->command, "unpin"))
		now = unpin(l, m->args);
	else if (!strcmp(m->command, "tree"))
		now = begin_tree(l, m);
	else if (!strcmp(m->command, "set"))
		now = set_limits(l, m->args);
	else if (!strcmp(m->command, "flush") && !json_object_get(m->args, "cache"))
		now = flush_all(l, m);
	else if (!strcmp(m->command, "flush") || !strcmp(m->command, "evict"))
		now = begin_evict(l, m);
	else
		return false;
	if (now)
		reply(l, m->cookie, m->command, now);
	return true;
}

void manage_end(struct leader *l)
{
	while (l->pins)
		drop_pin(l, &l->pins);
	while (l->chores) {
		struct chore *o = l->chores;

		l->chores = o->next;
		chore_free(l, o);
	}
}
