/* SPDX-License-Identifier: Apache-2.0 */
/* Realms (realm.h). */
#include "realm.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

void realm_table_init(struct realm_table *t, uint64_t instance)
{
	*t = (struct realm_table){.lock = PTHREAD_MUTEX_INITIALIZER, .instance = instance};
}

static void realm_free(struct realm *r)
{
	if (r->client_fd >= 0)
		close(r->client_fd);
	attnd_region_destroy(&r->region);
	free(r);
}

void realm_table_destroy(struct realm_table *t)
{
	for (struct realm *r = t->first, *next; r; r = next) {
		next = r->next;
		realm_free(r);
	}
	t->first = NULL;
	pthread_mutex_destroy(&t->lock);
}

/* The table stands behind the counters, on pages of its own. */
enum { PEEK_OFFSET = 4096 };
static_assert(sizeof(struct attnd_lookup_region) <= PEEK_OFFSET, "the counters end before the peek table");

static void fill_region(const struct realm_table *t, struct realm *m)
{
	struct attnd_lookup_region *l = m->region.base;

	l->abi_major = ATTND_ABI_MAJOR;
	l->abi_minor = ATTND_ABI_MINOR;
	l->instance = t->instance;
	m->counters = &l->counters;
	if (t->peek_entries) {
		l->peek_offset = PEEK_OFFSET;
		l->peek_entries = t->peek_entries;
		attnd_peek_init(&m->peek, (char *)l + PEEK_OFFSET, t->peek_entries);
	}
	__atomic_store_n(&l->magic, ATTND_WIRE_MAGIC, __ATOMIC_RELEASE);
}

static int realm_make(struct realm_table *t, const char *name, struct realm **ret)
{
	struct realm *m = calloc(1, sizeof(*m));
	size_t bytes = t->peek_entries ? PEEK_OFFSET + t->peek_entries * sizeof(uint64_t)
				       : sizeof(struct attnd_lookup_region);
	char path[64];
	int r;

	if (!m)
		return -ENOMEM;
	m->region = ATTND_REGION_NONE;
	m->client_fd = -1;
	strncpy(m->name, name, sizeof(m->name) - 1);
	r = attnd_region_create("attnd-lookup", bytes, 0, ATTND_REGION_POPULATE, &m->region);
	if (r)
		goto fail;
	/* A second, read-only description; the seal keeps it from being reopened for writing. */
	snprintf(path, sizeof(path), "/proc/self/fd/%d", m->region.fd);
	m->client_fd = open(path, O_RDONLY | O_CLOEXEC);
	if (m->client_fd < 0) {
		r = -errno;
		goto fail;
	}
	r = attnd_region_seal_writes(&m->region);
	if (r)
		goto fail;
	fill_region(t, m);
	*ret = m;
	return 0;
fail:
	realm_free(m);
	return r;
}

int realm_get(struct realm_table *t, const char *name, struct realm **ret)
{
	struct realm *m;
	int r = 0;

	pthread_mutex_lock(&t->lock);
	for (m = t->first; m && strcmp(m->name, name); m = m->next)
		;
	if (!m) {
		r = realm_make(t, name, &m);
		if (!r) {
			m->next = t->first;
			t->first = m;
		}
	}
	pthread_mutex_unlock(&t->lock);
	if (!r)
		*ret = m;
	return r;
}
