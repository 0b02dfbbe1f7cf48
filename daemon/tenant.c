/* SPDX-License-Identifier: Apache-2.0 */
/* Tenants (tenant.h). */
#include "tenant.h"

#include <stdio.h>
#include <string.h>

#include "../proto/wire.h"

/* "WHO:TENANT". False: it is none, or there is no such user or group. */
static bool parse_rule(const char *entry, struct tenant_rule *ret)
{
	const char *colon = strchr(entry, ':'), *name = colon ? colon + 1 : NULL;
	struct peer_ids ids;
	char who[64];

	if (!name || !*name || strlen(name) >= TENANT_NAME || colon == entry ||
	    colon - entry >= (ptrdiff_t)sizeof(who))
		return false;
	snprintf(who, sizeof(who), "%.*s", (int)(colon - entry), entry);
	*ret = (struct tenant_rule){.who = TENANT_ANYONE};
	memcpy(ret->name, name, strlen(name) + 1);
	if (strcmp(who, "*") == 0)
		return true;
	ret->who = *who == '@' ? TENANT_GROUP : TENANT_USER;
	if (peer_list_parse(who + (*who == '@'), *who == '@' ? PEER_GROUPS : PEER_USERS, &ids) || ids.n != 1)
		return false;
	ret->id = ids.ids[0];
	return true;
}

const char *tenant_rules_parse(const char *list, struct tenant_rules *ret)
{
	static char entry[160];
	struct tenant_rules rules = {.n = 0};

	for (list += strspn(list, ", "); *list; list += strspn(list, ", ")) {
		size_t length = strcspn(list, ", ");

		snprintf(entry, sizeof(entry), "%.*s", (int)(length < 1000 ? length : 1000), list);
		if (rules.n == TENANT_RULES || length >= sizeof(entry) || !parse_rule(entry, &rules.rules[rules.n]))
			return entry;
		rules.n++;
		list += length;
	}
	*ret = rules;
	return NULL;
}

static bool is_for(const struct tenant_rule *r, int sock, const struct peer *p)
{
	struct peer_rules group = {.groups = {.n = 1, .ids = {r->id}}};

	if (r->who == TENANT_GROUP)
		return peer_allowed(&group, sock, p);
	return r->who == TENANT_ANYONE || r->id == p->uid;
}

void tenants_of(const struct tenant_rules *rules, int sock, const struct peer *p, struct tenants *ret)
{
	ret->any = rules->n == 0;
	ret->n = 0;
	for (uint32_t i = 0; i < rules->n; i++)
		if (is_for(&rules->rules[i], sock, p))
			memcpy(ret->names[ret->n++], rules->rules[i].name, TENANT_NAME);
}

static bool has(const struct tenants *t, const unsigned char *name, size_t bytes)
{
	for (uint32_t i = 0; i < t->n; i++)
		if (strlen(t->names[i]) == bytes && !memcmp(t->names[i], name, bytes))
			return true;
	return false;
}

bool tenants_allow(const struct tenants *t, const void *fields, size_t bytes)
{
	const unsigned char *p = fields;
	struct attnd_wire_ns_field f;

	/* What is not well formed is refused by who reads it (ns.c). */
	for (size_t at = 0; !t->any && bytes - at >= sizeof(f);) {
		memcpy(&f, p + at, sizeof(f));
		at += sizeof(f);
		if (f.bytes > bytes - at)
			break;
		if (f.tag == ATTND_NS_TENANT && !has(t, p + at, f.bytes))
			return false;
		at += (f.bytes + 3u) & ~3u;
		if (at > bytes)
			break;
	}
	return true;
}
