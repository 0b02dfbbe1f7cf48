/* SPDX-License-Identifier: Apache-2.0 */
/* The heartbeat (beat.h). */
#include "beat.h"

#include "lead.h"

static bool any_stuck(struct team *t)
{
	bool stuck = false;

	for (uint32_t i = 1; i < t->num_members; i++) { /* the leader is not stuck: it is here */
		struct member *m = &t->members[i];
		uint64_t slices = atomic_load_explicit(&m->slices, memory_order_relaxed);

		stuck |= slices & 1 && slices == m->slices_seen;
		m->slices_seen = slices;
	}
	return stuck;
}

static uint64_t used_bytes(const struct pool *p)
{
	uint64_t bytes = 0;

	for (uint32_t i = 0; i < ATTND_MAX_POOL_CACHES; i++) {
		const struct cache *c = p->caches[i];

		bytes += c ? (c->total - c->free) * c->share_bytes * p->num_nodes : 0;
	}
	return bytes;
}

void beat_take(struct leader *l, struct beat *ret)
{
	struct realm *r;

	*ret = (struct beat){.stuck = any_stuck(&l->team),
			     .pool_bytes = l->pool.num_slabs * l->pool.slab_bytes * l->pool.num_nodes,
			     .used_bytes = used_bytes(&l->pool)};
	pthread_mutex_lock(&l->realms.lock); /* realms are only ever added, at the front */
	r = l->realms.first;
	pthread_mutex_unlock(&l->realms.lock);
	for (; r; r = r->next) {
		ret->query_tokens += atomic_load_explicit(&r->counters->query_tokens, memory_order_relaxed);
		ret->hit_tokens += atomic_load_explicit(&r->counters->hit_tokens, memory_order_relaxed);
	}
}
