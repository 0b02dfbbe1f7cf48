/* SPDX-License-Identifier: Apache-2.0 */
/* Metrics (metrics.h): histograms, the leader's snapshot, text and JSON. */
#include "metrics.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "control.h"
#include "events.h"
#include "lead.h"
#include "memory.h"

#define ALL UINT32_MAX /* the entry that stands for all that are not listed */

/* ---- Histograms ---- */

/* 1, 1.5, 2, 3, 5, 7 of each decade: in us for requests, in ms for blocks. */
static const uint32_t bounds[METRICS_NUM_BOUNDS] = {
	1,	2,	3,	 5,	  7,	   10,	    15,	     20,      30,      50,     70,
	100,	150,	200,	 300,	  500,	   700,	    1000,    1500,    2000,    3000,   5000,
	7000,	10000,	15000,	 20000,	  30000,   50000,   70000,   100000,  150000,  200000, 300000,
	500000, 700000, 1000000, 1500000, 2000000, 3000000, 5000000, 7000000, 10000000};

static void observe(struct histogram *h, uint64_t value, uint64_t unit)
{
	uint32_t lo = 0, hi = METRICS_NUM_BOUNDS;

	while (lo < hi) {
		uint32_t mid = (lo + hi) / 2;

		if (value <= bounds[mid] * unit)
			hi = mid;
		else
			lo = mid + 1;
	}
	h->buckets[lo]++;
	h->sum += value;
}

void histogram_ns(struct histogram *h, uint64_t ns)
{
	observe(h, ns, 1000);
}

void histogram_ms(struct histogram *h, uint64_t ms)
{
	observe(h, ms, 1);
}

static uint64_t histogram_count(const struct histogram *h)
{
	uint64_t n = 0;

	for (int i = 0; i <= METRICS_NUM_BOUNDS; i++)
		n += h->buckets[i];
	return n;
}

/* ---- The snapshot ---- */

struct session_entry {
	uint32_t id; /* ALL: the others */
	char name[32];
	struct metrics_use use;
	uint32_t queued;
};

struct ns_entry_copy {
	bool others;
	char digest[17], tenant[33], adapter[33]; /* names cut */
	struct metrics_use use;
};

struct cache_entry {
	uint32_t id;
	char name[ATTND_MAX_NAME + 1], realm[80];
	uint64_t total, free, evictable, granted, evicted, moved;
};

struct metrics_snapshot {
	struct metrics m;
	struct attnd_counters counters; /* of all realms */
	uint64_t threads, slabs, slabs_free, moved, queued, running, sessions;
	uint64_t bytes, bytes_referenced, bytes_cached;
	uint32_t num_nodes;
	struct {
		uint32_t id;
		uint64_t bytes, page_bytes;
	} nodes[TOPOLOGY_MAX_NODES];
	struct events_counts events;
	uint32_t num_sessions, num_ns, num_caches;
	struct session_entry *session;
	struct ns_entry_copy *ns;
	struct cache_entry *cache;
};

bool metrics_command(const char *command)
{
	return !strcmp(command, "metrics") || !strcmp(command, "stat");
}

static void add_use(struct metrics_use *to, const struct metrics_use *u)
{
	to->requests += u->requests;
	to->errors += u->errors;
	to->query_tokens += u->query_tokens;
	to->hit_tokens += u->hit_tokens;
	to->tokens += u->tokens;
	to->taken_tokens += u->taken_tokens;
	to->bytes_read += u->bytes_read;
}

/* The first `limit` sessions one by one, the others together. */
static void take_sessions(const struct leader *l, struct metrics_snapshot *s, uint32_t limit)
{
	for (const struct lead_session *ls = l->sessions; ls; ls = ls->next) {
		struct session_entry *e = &s->session[s->num_sessions < limit ? s->num_sessions : limit];

		if (s->num_sessions <= limit) {
			*e = (struct session_entry){.id = s->num_sessions < limit ? ls->session->id : ALL};
			s->num_sessions++;
			if (e->id != ALL)
				snprintf(e->name, sizeof(e->name), "%s", ls->session->name);
		}
		add_use(&e->use, &ls->use);
		e->queued += ls->unanswered;
		s->queued += ls->queue_num;
		s->running += ls->running;
		s->sessions++;
	}
}

/* Longer names are cut: a client chooses them. */
static void copy_name(const struct ns_entry *n, uint16_t tag, char ret[33])
{
	const char *text;
	uint32_t bytes;

	ns_entry_field(n, tag, &text, &bytes);
	snprintf(ret, 33, "%.*s", (int)(bytes < 32 ? bytes : 32), text);
}

static void take_ns(const struct leader *l, struct metrics_snapshot *s, uint32_t limit)
{
	for (uint32_t i = 0; i < l->ns.num; i++) {
		const struct ns_entry *n = &l->ns.entries[i];
		struct ns_entry_copy *e = &s->ns[s->num_ns < limit ? s->num_ns : limit];

		if (!n->refs)
			continue;
		if (s->num_ns <= limit) {
			*e = (struct ns_entry_copy){.others = s->num_ns == limit};
			s->num_ns++;
			for (int k = 0; k < 8 && i && !e->others; k++)
				snprintf(e->digest + 2 * k, 3, "%02x", n->digest[k]);
			if (!e->others) {
				copy_name(n, ATTND_NS_TENANT, e->tenant);
				copy_name(n, ATTND_NS_ADAPTER, e->adapter);
			}
		}
		add_use(&e->use, &n->use);
	}
}

static void add_cache(struct cache_entry *e, const struct cache *c)
{
	const uint64_t bytes = c->share_bytes * c->pool->num_nodes;

	e->total += c->total * bytes;
	e->free += c->free * bytes;
	e->evictable += c->evictable * bytes;
	e->granted += c->granted * bytes;
	e->evicted += c->evicted;
	e->moved += c->moved;
}

static void take_caches(const struct leader *l, struct metrics_snapshot *s, uint32_t limit)
{
	const struct pool *p = &l->pool;

	for (uint32_t i = 0; i < ATTND_MAX_POOL_CACHES; i++) {
		struct cache_entry *e = &s->cache[s->num_caches < limit ? s->num_caches : limit];
		const struct cache *c = p->caches[i];

		if (!c)
			continue;
		if (s->num_caches <= limit) {
			*e = (struct cache_entry){.id = s->num_caches < limit ? i : ALL};
			s->num_caches++;
			if (e->id != ALL) {
				snprintf(e->name, sizeof(e->name), "%.*s", ATTND_MAX_NAME, c->identity.name);
				snprintf(e->realm, sizeof(e->realm), "%s", c->realm);
			}
		}
		add_cache(e, c);
		s->bytes_referenced += (c->total - c->free - c->evictable) * c->share_bytes * p->num_nodes;
		s->bytes_cached += c->evictable * c->share_bytes * p->num_nodes;
	}
}

static void take_pool(const struct pool *p, struct metrics_snapshot *s)
{
	s->bytes = p->num_slabs * p->slab_bytes * p->num_nodes;
	s->slabs = p->num_slabs;
	s->slabs_free = p->num_free;
	s->moved = p->moved;
	s->num_nodes = p->num_nodes;
	for (uint32_t i = 0; i < p->num_nodes; i++) {
		s->nodes[i].id = (uint32_t)p->topology->nodes[i].id;
		s->nodes[i].bytes = p->nodes[i].bytes;
		s->nodes[i].page_bytes = p->nodes[i].page_bytes;
	}
}

static void take_counters(const struct leader *l, struct attnd_counters *to)
{
	struct realm *first;

	/* Realms are only ever added, at the front, under the table's lock. */
	pthread_mutex_lock((pthread_mutex_t *)&l->realms.lock);
	first = l->realms.first;
	pthread_mutex_unlock((pthread_mutex_t *)&l->realms.lock);
#define ATTND_X(name, text)                           \
	for (struct realm *r = first; r; r = r->next) \
		counters_add(to, name, atomic_load_explicit(&r->counters->name, memory_order_relaxed));
	ATTND_WIRE_COUNTERS(ATTND_X)
#undef ATTND_X
}

struct metrics_snapshot *metrics_take(const struct leader *l, const char *command)
{
	uint32_t n = l->cfg->metrics_series;
	struct metrics_snapshot *s;

	if (!metrics_command(command))
		return NULL;
	s = malloc(sizeof(*s) + (n + 1) * (sizeof(*s->session) + sizeof(*s->ns) + sizeof(*s->cache)));
	if (!s)
		return NULL;
	memset(s, 0, sizeof(*s));
	s->m = l->watch.metrics;
	s->session = (struct session_entry *)(s + 1);
	s->ns = (struct ns_entry_copy *)(s->session + n + 1);
	s->cache = (struct cache_entry *)(void *)(s->ns + n + 1);
	s->threads = l->team.num_members;
	take_counters(l, &s->counters);
	take_pool(&l->pool, s);
	take_sessions(l, s, n);
	take_ns(l, s, n);
	take_caches(l, s, n);
	events_count(l->watch.events, &s->events);
	return s;
}

/* ---- Text ---- */

static void family(FILE *f, const char *name, const char *type, const char *help)
{
	fprintf(f, "# HELP attnd_%s %s.\n# TYPE attnd_%s %s\n", name, help, name, type);
}

static void single(FILE *f, const char *name, const char *type, const char *help, uint64_t value)
{
	family(f, name, type, help);
	fprintf(f, "attnd_%s %" PRIu64 "\n", name, value);
}

static void ratio(FILE *f, const char *name, const char *help, uint64_t part, uint64_t all)
{
	family(f, name, "gauge", help);
	fprintf(f, "attnd_%s %.6g\n", name, all ? (double)part / (double)all : 0.0);
}

/* A label's value: quotes, backslashes and what is no plain ASCII are escaped or replaced. */
static void label(FILE *f, const char *before, const char *name, const char *value)
{
	fprintf(f, "%s%s=\"", before, name);
	for (; *value; value++) {
		if (*value == '"' || *value == '\\')
			fputc('\\', f);
		fputc(*value >= 0x20 && *value < 0x7f ? *value : '?', f);
	}
	fputc('"', f);
}

/* `unit`: how many of the histogram's units a second has; bounds stand in `bound_unit`s of a second. */
static void histogram(FILE *f, const char *name, const char *op, const struct histogram *h, double unit,
		      double bound_unit)
{
	const char *comma = op ? "," : "";
	uint64_t sum = 0;

	for (int i = 0; i <= METRICS_NUM_BOUNDS; i++) {
		sum += h->buckets[i];
		fprintf(f, "attnd_%s_bucket{%s%s%s%sle=\"", name, op ? "op=\"" : "", op ? op : "", op ? "\"" : "",
			comma);
		if (i < METRICS_NUM_BOUNDS)
			fprintf(f, "%g\"} %" PRIu64 "\n", bounds[i] / bound_unit, sum);
		else
			fprintf(f, "+Inf\"} %" PRIu64 "\n", sum);
	}
	fprintf(f, op ? "attnd_%s_sum{op=\"%s\"} %.9g\n" : "attnd_%s_sum%s %.9g\n", name, op ? op : "",
		(double)h->sum / unit);
	fprintf(f, op ? "attnd_%s_count{op=\"%s\"} %" PRIu64 "\n" : "attnd_%s_count%s %" PRIu64 "\n", name,
		op ? op : "", sum);
}

static const char *const op_names[] = {
#define METRICS_X(name) #name,
	METRICS_OPS(METRICS_X)
#undef METRICS_X
};
static const char *const reason_names[] = {
#define METRICS_X(name, text) #name,
	METRICS_REASONS(METRICS_X)
#undef METRICS_X
};

static void requests_text(FILE *f, const struct metrics *m)
{
	family(f, "request_duration_seconds", "histogram", "From a request's place in the ring to its answer");
	for (int op = 0; op < METRICS_NUM_OPS; op++)
		histogram(f, "request_duration_seconds", op_names[op], &m->requests[op], 1e9, 1e6);
	family(f, "request_errors_total", "counter", "Requests answered with an error, by operation");
	for (int op = 0; op < METRICS_NUM_OPS; op++)
		fprintf(f, "attnd_request_errors_total{op=\"%s\"} %" PRIu64 "\n", op_names[op], m->errors[op]);
	family(f, "errors_total", "counter", "Requests answered with an error, by error");
	for (int e = 0; e < METRICS_MAX_ERRNO; e++)
		if (m->errnos[e])
			fprintf(f, "attnd_errors_total{error=\"%s\"} %" PRIu64 "\n",
				e && strerrorname_np(e) ? strerrorname_np(e) : "other", m->errnos[e]);
}

static void counters_text(FILE *f, const struct attnd_counters *c)
{
#define ATTND_X(name, text)                                                    \
	if (!strcmp(#name, "sessions") || !strcmp(#name, "sequences"))         \
		single(f, "open_" #name, "gauge", "Now: " text, c->name);      \
	else if (strcmp(#name, "query_tokens") && strcmp(#name, "hit_tokens")) \
		single(f, #name "_total", "counter", "Since the start: " text, c->name);
	ATTND_WIRE_COUNTERS(ATTND_X)
#undef ATTND_X
	single(f, "prefix_cache_queries_tokens_total", "counter", "Tokens that were looked up in the prefix cache",
	       c->query_tokens);
	single(f, "prefix_cache_hits_tokens_total", "counter", "Tokens that were found in the prefix cache",
	       c->hit_tokens);
}

static void engine_text(FILE *f, const struct metrics_snapshot *s)
{
	const struct metrics *m = &s->m;

	single(f, "threads", "gauge", "Threads that execute, the leader included", s->threads);
	single(f, "queued_requests", "gauge", "Requests taken from the rings that wait for their turn", s->queued);
	single(f, "running_jobs", "gauge", "Jobs that the workers are at", s->running);
	single(f, "pool_read_bytes_total", "counter", "K and V that attention read out of the pool", m->bytes_read);
	single(f, "decode_tokens_total", "counter", "Tokens computed in rows of one token", m->decode_tokens);
	single(f, "extend_tokens_total", "counter", "Tokens computed in rows of several tokens", m->extend_tokens);
	family(f, "evictions_total", "counter", "Blocks evicted, by reason: see docs/operations.md");
	for (int i = 0; i < METRICS_NUM_REASONS; i++)
		fprintf(f, "attnd_evictions_total{reason=\"%s\"} %" PRIu64 "\n", reason_names[i], m->evictions[i]);
	family(f, "block_lifetime_seconds", "histogram", "From a block's publishing to its eviction");
	histogram(f, "block_lifetime_seconds", NULL, &m->lifetime, 1e3, 1e3);
	family(f, "block_reuse_gap_seconds", "histogram",
	       "How long a cached block was idle before it was held again");
	histogram(f, "block_reuse_gap_seconds", NULL, &m->reuse, 1e3, 1e3);
	single(f, "events_total", "counter", "Blocks that the KV events' publisher was told of", s->events.sent);
	single(f, "events_dropped_total", "counter",
	       "Blocks that it was not told of, its queue being full; the whole state followed", s->events.dropped);
}

static void pool_text(FILE *f, const struct metrics_snapshot *s)
{
	ratio(f, "kv_usage_ratio", "Part of the pool that somebody holds", s->bytes_referenced, s->bytes);
	ratio(f, "kv_cached_ratio", "Part of the pool that is held or cached", s->bytes_referenced + s->bytes_cached,
	      s->bytes);
	single(f, "slabs", "gauge", "Slabs that the pool is cut into", s->slabs);
	single(f, "slabs_free", "gauge", "Slabs that no cache has", s->slabs_free);
	single(f, "moved_blocks_total", "counter", "Blocks moved out of slabs that caches gave up", s->moved);
	family(f, "pool_bytes", "gauge", "The pool's memory, by NUMA node and page size");
	for (uint32_t i = 0; i < s->num_nodes; i++)
		fprintf(f, "attnd_pool_bytes{node=\"%u\",page_bytes=\"%" PRIu64 "\"} %" PRIu64 "\n", s->nodes[i].id,
			s->nodes[i].page_bytes, s->nodes[i].bytes);
}

/* One member of each entry of a list, under its labels. */
#define EACH(list, n, name, type, help, labels, member)                     \
	family(f, name, type, help);                                        \
	for (uint32_t i_ = 0; i_ < (n); i_++) {                             \
		fputs("attnd_" name "{", f);                                \
		labels(f, &(list)[i_]);                                     \
		fprintf(f, "} %" PRIu64 "\n", (uint64_t)(list)[i_].member); \
	}

static void session_labels(FILE *f, const struct session_entry *e)
{
	char id[16] = "others";

	if (e->id != ALL)
		snprintf(id, sizeof(id), "%u", e->id);
	label(f, "", "session", id);
	label(f, ",", "name", e->name);
}

static void ns_labels(FILE *f, const struct ns_entry_copy *e)
{
	label(f, "", "namespace", e->others ? "others" : e->digest);
	label(f, ",", "tenant", e->tenant);
	label(f, ",", "adapter", e->adapter);
}

static void cache_labels(FILE *f, const struct cache_entry *e)
{
	char id[16] = "others";

	if (e->id != ALL)
		snprintf(id, sizeof(id), "%u", e->id);
	label(f, "", "cache", id);
	label(f, ",", "name", e->name);
	label(f, ",", "realm", e->realm);
}

static void lists_text(FILE *f, const struct metrics_snapshot *s)
{
#define SESSIONS(...) EACH(s->session, s->num_sessions, __VA_ARGS__)
	SESSIONS("session_requests_total", "counter", "Requests answered, by session", session_labels, use.requests)
	SESSIONS("session_errors_total", "counter", "Of these with an error", session_labels, use.errors)
	SESSIONS("session_tokens_total", "counter", "Tokens of plans' rows, by session", session_labels, use.tokens)
	SESSIONS("session_taken_tokens_total", "counter", "Of these found cached", session_labels, use.taken_tokens)
	SESSIONS("session_query_tokens_total", "counter", "Tokens looked up, by session", session_labels,
		 use.query_tokens)
	SESSIONS("session_hit_tokens_total", "counter", "Of these found cached", session_labels, use.hit_tokens)
	SESSIONS("session_read_bytes_total", "counter", "K and V read for it", session_labels, use.bytes_read)
	SESSIONS("session_unanswered_requests", "gauge", "Requests taken and not answered", session_labels, queued)
#undef SESSIONS
#define NAMESPACES(...) EACH(s->ns, s->num_ns, __VA_ARGS__)
	NAMESPACES("namespace_tokens_total", "counter", "Tokens of plans' rows, by namespace", ns_labels, use.tokens)
	NAMESPACES("namespace_taken_tokens_total", "counter", "Of these found cached", ns_labels, use.taken_tokens)
	NAMESPACES("namespace_query_tokens_total", "counter", "Tokens looked up, by namespace", ns_labels,
		   use.query_tokens)
	NAMESPACES("namespace_hit_tokens_total", "counter", "Of these found cached", ns_labels, use.hit_tokens)
#undef NAMESPACES
#define CACHES(...) EACH(s->cache, s->num_caches, __VA_ARGS__)
	CACHES("cache_bytes", "gauge", "Memory of the cache's slabs, of one node", cache_labels, total)
	CACHES("cache_free_bytes", "gauge", "Of these without content", cache_labels, free)
	CACHES("cache_evictable_bytes", "gauge", "Of these cached and held by nobody", cache_labels, evictable)
	CACHES("cache_granted_bytes", "gauge", "Of these guaranteed to engines", cache_labels, granted)
	CACHES("cache_evicted_blocks_total", "counter", "Blocks evicted, by cache", cache_labels, evicted)
	CACHES("cache_moved_blocks_total", "counter", "Blocks moved, by cache", cache_labels, moved)
#undef CACHES
}

static void control_text(FILE *f, const struct control *ctl)
{
	family(f, "build_info", "gauge", "Always 1; the version is a label");
	fprintf(f, "attnd_build_info{version=\"" ATTND_VERSION "\"} 1\n");
	single(f, "uptime_seconds", "gauge", "Since the daemon's start",
	       (loop_now(ctl->loop) - ctl->started_ns) / 1000000000);
	single(f, "resident_memory_bytes", "gauge", "Resident memory of the daemon", memory_resident());
	single(f, "arena_bytes", "gauge", "Memory that clients have registered", ctl->arena_bytes);
	single(f, "arena_max_bytes", "gauge", "How much they may", ctl->cfg.arena_max);
}

char *metrics_text(const struct metrics_snapshot *s, const struct control *ctl)
{
	char *text = NULL;
	size_t size = 0;
	FILE *f = open_memstream(&text, &size);

	if (!f)
		return NULL;
	control_text(f, ctl);
	requests_text(f, &s->m);
	counters_text(f, &s->counters);
	engine_text(f, s);
	pool_text(f, s);
	lists_text(f, s);
	if (fclose(f)) {
		free(text);
		return NULL;
	}
	return text;
}

/* ---- JSON ---- */

static json_t *number(uint64_t n)
{
	return json_integer((json_int_t)n);
}

/* With an upper bound: [[seconds, count], ...] of the buckets in use; the last one's is null if it has none. */
static json_t *histogram_json(const struct histogram *h, double unit, double bound_unit)
{
	json_t *all = json_array();

	for (int i = 0; i <= METRICS_NUM_BOUNDS; i++)
		if (h->buckets[i])
			json_array_append_new(
				all,
				json_pack("[o, o]",
					  i < METRICS_NUM_BOUNDS ? json_real(bounds[i] / bound_unit) : json_null(),
					  number(h->buckets[i])));
	return json_pack("{s:o, s:f, s:o}", "count", number(histogram_count(h)), "sum_s", (double)h->sum / unit,
			 "buckets", all);
}

static json_t *ops_json(const struct metrics *m)
{
	json_t *all = json_object();

	for (int op = 0; op < METRICS_NUM_OPS; op++) {
		json_t *one = histogram_json(&m->requests[op], 1e9, 1e6);

		json_object_set_new(one, "errors", number(m->errors[op]));
		json_object_set_new(all, op_names[op], one);
	}
	return all;
}

static json_t *errors_json(const struct metrics *m)
{
	json_t *all = json_object();

	for (int e = 0; e < METRICS_MAX_ERRNO; e++)
		if (m->errnos[e])
			json_object_set_new(all, e && strerrorname_np(e) ? strerrorname_np(e) : "other",
					    number(m->errnos[e]));
	return all;
}

static json_t *evictions_json(const struct metrics *m)
{
	json_t *all = json_object();

	for (int i = 0; i < METRICS_NUM_REASONS; i++)
		json_object_set_new(all, reason_names[i], number(m->evictions[i]));
	return all;
}

static json_t *sessions_json(const struct metrics_snapshot *s)
{
	json_t *all = json_array();

	for (uint32_t i = 0; i < s->num_sessions; i++) {
		const struct session_entry *e = &s->session[i];

		json_array_append_new(all, json_pack("{s:o, s:s, s:o, s:o, s:o, s:o, s:o, s:o}", "id",
						     e->id == ALL ? json_string("others") : number(e->id), "name",
						     e->name, "requests", number(e->use.requests), "errors",
						     number(e->use.errors), "tokens", number(e->use.tokens),
						     "taken_tokens", number(e->use.taken_tokens), "read_bytes",
						     number(e->use.bytes_read), "unanswered", number(e->queued)));
	}
	return all;
}

static json_t *pool_json(const struct metrics_snapshot *s)
{
	json_t *nodes = json_array();

	for (uint32_t i = 0; i < s->num_nodes; i++)
		json_array_append_new(nodes, json_pack("{s:i, s:o, s:o}", "node", (int)s->nodes[i].id, "bytes",
						       number(s->nodes[i].bytes), "page_bytes",
						       number(s->nodes[i].page_bytes)));
	return json_pack("{s:o, s:o, s:o, s:o, s:o, s:o, s:o}", "bytes", number(s->bytes), "bytes_referenced",
			 number(s->bytes_referenced), "bytes_cached", number(s->bytes_cached), "slabs",
			 number(s->slabs), "slabs_free", number(s->slabs_free), "blocks_moved", number(s->moved),
			 "nodes", nodes);
}

static json_t *stat_json(const struct metrics_snapshot *s, const struct control *ctl)
{
	const struct attnd_counters *c = &s->counters;
	double now = (double)loop_now(ctl->loop) / 1e9, up = (double)(loop_now(ctl->loop) - ctl->started_ns) / 1e9;

	return json_pack("{s:f, s:f, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, "
			 "s:o, s:o, s:{s:o, s:o}}",
			 "time_s", now, "uptime_s", up, "threads", number(s->threads), "requests", ops_json(&s->m),
			 "errors", errors_json(&s->m), "queued", number(s->queued), "running", number(s->running),
			 "read_bytes", number(s->m.bytes_read), "decode_tokens", number(s->m.decode_tokens),
			 "extend_tokens", number(s->m.extend_tokens), "taken_tokens", number(c->taken_tokens),
			 "query_tokens", number(c->query_tokens), "hit_tokens", number(c->hit_tokens), "sequences",
			 number(c->sequences), "evictions", evictions_json(&s->m), "block_lifetime",
			 histogram_json(&s->m.lifetime, 1e3, 1e3), "block_reuse_gap",
			 histogram_json(&s->m.reuse, 1e3, 1e3), "pool", pool_json(s), "num_sessions",
			 number(s->sessions), "sessions", sessions_json(s), "events", "sent", number(s->events.sent),
			 "dropped", number(s->events.dropped));
}

json_t *metrics_answer(struct metrics_snapshot *s, const struct control *ctl, const char *command)
{
	json_t *answer;

	if (!strcmp(command, "metrics")) {
		char *text = metrics_text(s, ctl);

		answer = text ? json_pack("{s:s}", "metrics", text) : NULL;
		free(text);
	} else {
		answer = json_pack("{s:o}", "stat", stat_json(s, ctl));
	}
	free(s);
	return answer;
}
