/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the leader tells administrators: pool, caches, sessions.
 *
 * In: the leader's state, read by the leader itself. Out: JSON. Next: control.c merges it.
 */
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "../kernels/cpu.h"
#include "lead.h"

static json_t *number(uint64_t n)
{
	return json_integer((json_int_t)n);
}

static json_t *cache_report(const struct cache *c)
{
	static const char *const dtypes[] = {"f32", "f16", "bf16", "int8", "fp8_e4m3", "fp8_e5m2"};
	static const char *const layouts[] = {"packed", "bshd", "bhsd"};
	const struct attnd_wire_cache *id = &c->identity;
	char name[ATTND_MAX_NAME + 1] = "", print[33];

	memcpy(name, id->name, ATTND_MAX_NAME);
	for (int i = 0; i < 16; i++)
		snprintf(print + 2 * i, 3, "%02x", id->fingerprint[i]);
	return json_pack("{s:s, s:s, s:s, s:i, s:i, s:i, s:i, s:i, s:s, s:s, s:i, s:i, s:s, s:o, s:o, s:o, s:o, s:o, "
			 "s:o, s:o, s:o, s:o}",
			 "name", name, "realm", c->realm, "fingerprint", print, "num_layers", (int)id->num_layers,
			 "num_heads", (int)id->num_heads, "num_kv_heads", (int)id->num_kv_heads, "head_dim",
			 (int)id->head_dim, "head_dim_v", (int)id->head_dim_v, "kv_dtype", dtypes[id->kv_dtype],
			 "layout", layouts[id->layout], "block_size", (int)id->block_size, "engines", (int)c->engines,
			 "kernel", c->ops.names[c->fmt.spec.dtype <= ATTND_K_BF16 ? c->fmt.spec.dtype : ATTND_K_F32],
			 "block_bytes", number(c->share_bytes * c->pool->num_nodes), "blocks", number(c->total),
			 "blocks_free", number(c->free), "blocks_evictable", number(c->evictable),
			 "blocks_referenced", number(c->total - c->free - c->evictable), "blocks_granted",
			 number(c->granted), "blocks_evicted", number(c->evicted), "blocks_collapsed",
			 number(c->collapsed), "blocks_moved", number(c->moved));
}

/* What scrub.c has to do, and what it has found. */
static json_t *with_scrub(json_t *o, const struct cache *c)
{
	json_object_set_new(o, "blocks_unhashed", number(c->scrub.unhashed));
	json_object_set_new(o, "blocks_unverified", number(c->scrub.unverified));
	json_object_set_new(o, "blocks_corrupt", number(c->scrub.corrupt));
	return o;
}

static json_t *caches(const struct leader *l)
{
	json_t *a = json_array();

	for (uint32_t i = 0; i < ATTND_MAX_POOL_CACHES; i++)
		if (l->pool.caches[i])
			json_array_append_new(a, with_scrub(cache_report(l->pool.caches[i]), l->pool.caches[i]));
	return a;
}

/* What became of an earlier daemon's pool, and who keeps this one. */
static json_t *restore_report(const struct pool *p)
{
	const struct restore_counts *c = &p->restore.counts;

	return json_pack("{s:s?, s:b, s:b, s:s?, s:i, s:i, s:i, s:o, s:o, s:o, s:o, s:o}", "kept_by", p->restore.by,
			 "restored", p->restore.taken, "clean", p->restore.clean, "why_empty", p->restore.why,
			 "caches", (int)c->caches, "caches_dropped", (int)c->caches_dropped, "caches_repacked",
			 (int)c->caches_repacked, "blocks", number(c->blocks), "blocks_altered", number(c->bad_seals),
			 "blocks_misplaced", number(c->bad_places), "blocks_orphaned", number(c->orphans),
			 "blocks_below", number(c->below));
}

static json_t *session_report(const struct lead_session *ls)
{
	uint32_t plans = 0;

	for (const struct plan *p = ls->plans; p; p = p->next)
		plans++;
	return json_pack("{s:i, s:i, s:i, s:i, s:i, s:o, s:o}", "id", (int)ls->session->id, "sequences",
			 ls->engine ? (int)ls->engine->num_seqs : 0, "engine_sessions",
			 ls->engine ? (int)ls->engine->sessions : 0, "plans", (int)plans, "in_flight",
			 (int)ls->unanswered, "jobs", number(ls->jobs), "errors", number(ls->errors));
}

static json_t *sessions(const struct leader *l)
{
	json_t *a = json_array();

	for (const struct lead_session *ls = l->sessions; ls; ls = ls->next)
		json_array_append_new(a, session_report(ls));
	return a;
}

static json_t *counters(const struct leader *l)
{
	json_t *o = json_object();
	struct realm *r;

	/* Realms are only ever added, at the front, under the table's lock. */
	pthread_mutex_lock((pthread_mutex_t *)&l->realms.lock);
	r = l->realms.first;
	pthread_mutex_unlock((pthread_mutex_t *)&l->realms.lock);
#define ATTND_X(name, text)                                                                    \
	{                                                                                      \
		uint64_t sum = 0;                                                              \
		for (struct realm *m = r; m; m = m->next)                                      \
			sum += atomic_load_explicit(&m->counters->name, memory_order_relaxed); \
		json_object_set_new(o, #name, number(sum));                                    \
	}
	ATTND_WIRE_COUNTERS(ATTND_X)
#undef ATTND_X
	return o;
}

static json_t *node_reports(const struct pool *p)
{
	json_t *a = json_array();

	for (uint32_t n = 0; n < p->num_nodes; n++)
		json_array_append_new(a, json_pack("{s:i, s:i, s:o, s:o, s:o}", "node", p->topology->nodes[n].id,
						   "cpus", (int)p->topology->nodes[n].num_cpus, "bytes",
						   number(p->nodes[n].bytes), "page_bytes",
						   number(p->nodes[n].page_bytes), "pages",
						   number(p->nodes[n].bytes / p->nodes[n].page_bytes)));
	return a;
}

static json_t *pool_report(const struct leader *l)
{
	const struct pool *p = &l->pool;
	uint64_t referenced = 0, evictable = 0;

	for (uint32_t i = 0; i < ATTND_MAX_POOL_CACHES; i++) {
		const struct cache *c = p->caches[i];

		if (!c)
			continue;
		referenced += (c->total - c->free - c->evictable) * c->share_bytes * p->num_nodes;
		evictable += c->evictable * c->share_bytes * p->num_nodes;
	}
	return json_pack("{s:o, s:o, s:i, s:i, s:o, s:s, s:o, s:o, s:o, s:i, s:i, s:o}", "bytes",
			 number(p->num_slabs * p->slab_bytes * p->num_nodes), "slab_bytes", number(p->slab_bytes),
			 "slabs", (int)p->num_slabs, "slabs_free", (int)p->num_free, "blocks_moved", number(p->moved),
			 "backing", p->backing, "bytes_referenced", number(referenced), "bytes_cached",
			 number(evictable), "metadata_bytes", number(p->heap_next - p->meta->heap_offset),
			 "pages_looked_at", (int)p->sampled, "pages_misplaced", (int)p->misplaced, "nodes",
			 node_reports(p));
}

static json_t *plans(const struct leader *l)
{
	char *text = explain_plans(l);
	json_t *o = json_pack("{s:s}", "plan", text ? text : "");

	free(text);
	return o;
}

json_t *report_make(const struct leader *l, const char *command)
{
	char features[256];

	if (metrics_command(command))
		return NULL;
	if (!strcmp(command, "caches"))
		return json_pack("{s:o}", "caches", caches(l));
	if (!strcmp(command, "sessions"))
		return json_pack("{s:o}", "sessions", sessions(l));
	if (!strcmp(command, "plan"))
		return plans(l);
	if (!strcmp(command, "pins"))
		return manage_pins(l);
	attnd_features_format(l->features, features, sizeof(features));
	return json_pack("{s:s, s:s, s:i, s:o, s:o, s:o, s:o}", "isa", attnd_isa_name(l->features), "cpu_features",
			 features, "threads", (int)l->team.num_members, "pool", pool_report(l), "counters",
			 counters(l), "caches", caches(l), "restore", restore_report(&l->pool));
}
