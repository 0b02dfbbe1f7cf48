/* SPDX-License-Identifier: Apache-2.0 */
/* Namespaces (ns.h). */
#include "ns.h"

#include <errno.h>
#include <sodium.h>
#include <stdlib.h>
#include <string.h>

#include "../proto/wire.h"

int ns_init(struct ns_table *t)
{
	memset(t, 0, sizeof(*t));
	memset(t->buckets, 0xff, sizeof(t->buckets));
	t->free = UINT32_MAX;
	t->entries = calloc(16, sizeof(*t->entries));
	if (!t->entries)
		return -ENOMEM;
	t->cap = 16;
	t->num = 1; /* id 0 */
	t->entries[0].refs = 1;
	randombytes_buf(t->entries[0].peek_key, sizeof(t->entries[0].peek_key));
	return 0;
}

void ns_destroy(struct ns_table *t)
{
	for (uint32_t i = 0; t->entries && i < t->num; i++)
		free(t->entries[i].fields);
	free(t->entries);
	t->entries = NULL;
}

/* Fields in the order of their tags, so that the order they came in does not matter. */
static int digest(const unsigned char *p, size_t bytes, uint8_t ret[32], int *ret_fields)
{
	const unsigned char *at[ATTND_NS_TAGS] = {NULL};
	struct attnd_wire_ns_field f;
	crypto_generichash_state h;

	*ret_fields = 0;
	for (size_t i = 0; i < bytes;) {
		if (bytes - i < sizeof(f))
			return -EINVAL;
		memcpy(&f, p + i, sizeof(f));
		if (f.tag == 0 || f.tag >= ATTND_NS_TAGS || at[f.tag] || f.bytes > bytes - i - sizeof(f))
			return -EINVAL;
		at[f.tag] = p + i;
		++*ret_fields;
		i += sizeof(f) + ((f.bytes + 3u) & ~3u);
	}
	crypto_generichash_init(&h, NULL, 0, 32);
	for (int tag = 1; tag < ATTND_NS_TAGS; tag++) {
		if (!at[tag])
			continue;
		memcpy(&f, at[tag], sizeof(f));
		crypto_generichash_update(&h, at[tag], sizeof(f) + f.bytes);
	}
	crypto_generichash_final(&h, ret, 32);
	return 0;
}

bool ns_field(const void *fields, size_t bytes, uint16_t tag, const char **ret, size_t *ret_bytes)
{
	const char *p = fields;
	struct attnd_wire_ns_field f;

	for (size_t i = 0; i < bytes && bytes - i >= sizeof(f); i += sizeof(f) + ((f.bytes + 3u) & ~3u)) {
		memcpy(&f, p + i, sizeof(f));
		if (f.bytes > bytes - i - sizeof(f))
			return false;
		if (f.tag == tag) {
			*ret = p + i + sizeof(f);
			*ret_bytes = f.bytes;
			return true;
		}
	}
	return false;
}

static uint32_t *bucket(struct ns_table *t, const uint8_t d[32])
{
	return &t->buckets[(d[0] | (uint32_t)d[1] << 8) & 4095];
}

static int grow(struct ns_table *t)
{
	struct ns_entry *e = realloc(t->entries, 2ull * t->cap * sizeof(*e));

	if (!e)
		return -ENOMEM;
	t->entries = e;
	t->cap *= 2;
	return 0;
}

/* Of one that an earlier daemon left only the digest is known. */
static void name_again(struct ns_entry *e, const void *fields, size_t bytes)
{
	if (e->fields)
		return;
	e->fields = malloc(bytes);
	e->bytes = e->fields ? (uint32_t)bytes : 0;
	if (e->fields)
		memcpy(e->fields, fields, bytes);
}

int ns_get(struct ns_table *t, const void *fields, size_t bytes, uint32_t *ret_id)
{
	uint8_t d[32];
	uint32_t *b, id;
	unsigned char *copy;
	int n, r = digest(fields, bytes, d, &n);

	if (r)
		return r;
	if (!n) {
		*ret_id = 0;
		return 0;
	}
	b = bucket(t, d);
	for (id = *b; id != UINT32_MAX; id = t->entries[id].next) {
		if (!memcmp(t->entries[id].digest, d, 32)) {
			name_again(&t->entries[id], fields, bytes);
			t->entries[id].refs++;
			*ret_id = id;
			return 0;
		}
	}
	copy = malloc(bytes);
	id = t->free != UINT32_MAX ? t->free : t->num;
	r = !copy || (id == t->cap && grow(t)) ? -ENOMEM : t->record ? t->record(t->record_ctx, id, d) : 0;
	if (r) {
		free(copy);
		return r;
	}
	memcpy(copy, fields, bytes);
	if (id == t->num)
		t->num++;
	else
		t->free = t->entries[id].next;
	t->entries[id] = (struct ns_entry){.bytes = (uint32_t)bytes, .fields = copy};
	memcpy(t->entries[id].digest, d, 32);
	randombytes_buf(t->entries[id].peek_key, sizeof(t->entries[id].peek_key));
	t->entries[id].refs = 1;
	t->entries[id].held = 0;
	t->entries[id].next = *b;
	*b = id;
	*ret_id = id;
	return 0;
}

void ns_peek_key(const struct ns_table *t, uint32_t id, const uint8_t salt[16], uint8_t ret[16])
{
	crypto_shorthash_siphashx24(ret, salt, 16, t->entries[id].peek_key);
}

void ns_ref(struct ns_table *t, uint32_t id)
{
	if (id)
		t->entries[id].refs++;
}

void ns_unref(struct ns_table *t, uint32_t id)
{
	uint32_t *p;

	if (!id || --t->entries[id].refs)
		return;
	for (p = bucket(t, t->entries[id].digest); *p != id; p = &t->entries[*p].next)
		;
	*p = t->entries[id].next;
	free(t->entries[id].fields);
	t->entries[id].fields = NULL;
	t->entries[id].next = t->free;
	t->free = id;
	if (t->record)
		(void)t->record(t->record_ctx, id, NULL);
}

int ns_restore(struct ns_table *t, uint32_t id, const uint8_t digest[32])
{
	struct ns_entry *e;
	uint32_t *b;

	while (id >= t->cap)
		if (grow(t))
			return -ENOMEM;
	for (; t->num <= id; t->num++)
		t->entries[t->num] = (struct ns_entry){.refs = 0};
	e = &t->entries[id];
	memcpy(e->digest, digest, sizeof(e->digest));
	randombytes_buf(e->peek_key, sizeof(e->peek_key));
	b = bucket(t, digest);
	e->refs = 1;
	e->next = *b;
	*b = id;
	return 0;
}

void ns_restored(struct ns_table *t)
{
	for (uint32_t id = t->num; id-- > 1;) {
		if (t->entries[id].refs) {
			ns_unref(t, id);
			continue;
		}
		t->entries[id].next = t->free;
		t->free = id;
	}
}

void ns_entry_field(const struct ns_entry *e, uint16_t tag, const char **ret, uint32_t *ret_bytes)
{
	struct attnd_wire_ns_field f;

	*ret = "";
	*ret_bytes = 0;
	for (uint32_t i = 0; i < e->bytes; i += (uint32_t)sizeof(f) + ((f.bytes + 3u) & ~3u)) {
		memcpy(&f, e->fields + i, sizeof(f));
		if (f.tag == tag) {
			*ret = (const char *)e->fields + i + sizeof(f);
			*ret_bytes = f.bytes;
			return;
		}
	}
}
