/* SPDX-License-Identifier: Apache-2.0 */
/* Which tenants a peer may name (tenant.h). A list is names, each with a NUL behind it, and one more. */
#include "tenant.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

static bool parse_who(char *who, struct tenant_rule *r)
{
	enum peer_list kind = *who == '@' ? PEER_GROUPS : PEER_USERS;
	struct peer_ids ids;

	if (strcmp(who, "*") == 0) {
		r->kind = TENANT_OF_ALL;
		return true;
	}
	if (peer_list_parse(who + (*who == '@'), kind, &ids) || ids.n != 1)
		return false;
	r->kind = kind == PEER_GROUPS ? TENANT_OF_GROUP : TENANT_OF_USER;
	r->id = ids.ids[0];
	return true;
}

static bool parse_rule(char *entry, struct tenant_rule *r)
{
	char *colon = strchr(entry, ':');

	if (!colon || !colon[1] || strlen(colon + 1) >= sizeof(r->tenant))
		return false;
	*colon = '\0';
	strcpy(r->tenant, colon + 1);
	return parse_who(entry, r);
}

const char *tenant_rules_parse(const char *text, struct tenant_rules *ret)
{
	static char bad[160];
	struct tenant_rules rules = {.n = 0};

	for (;;) {
		char entry[sizeof(bad)];
		size_t n;

		text += strspn(text, ", ");
		n = strcspn(text, ", ");
		if (!n)
			break;
		memcpy(bad, text, n < sizeof(bad) ? n : sizeof(bad) - 1);
		bad[n < sizeof(bad) ? n : sizeof(bad) - 1] = '\0';
		strcpy(entry, bad);
		if (n >= sizeof(bad) || rules.n == sizeof(rules.rules) / sizeof(rules.rules[0]) ||
		    !parse_rule(entry, &rules.rules[rules.n]))
			return bad;
		rules.n++;
		text += n;
	}
	*ret = rules;
	return NULL;
}

static bool applies(const struct tenant_rule *r, int sock, const struct peer *p)
{
	const struct peer_rules group = {.groups = {.n = 1, .ids = {r->id}}};

	return r->kind == TENANT_OF_ALL || (r->kind == TENANT_OF_USER && r->id == p->uid) ||
	       (r->kind == TENANT_OF_GROUP && peer_allowed(&group, sock, p));
}

int tenant_list(const struct tenant_rules *rules, int sock, const struct peer *p, char **ret)
{
	char *list, *end;

	if (!rules->n) {
		*ret = NULL;
		return 0;
	}
	list = end = malloc(rules->n * sizeof(rules->rules[0].tenant) + 1);
	if (!list)
		return -ENOMEM;
	for (uint32_t i = 0; i < rules->n; i++) {
		if (!applies(&rules->rules[i], sock, p))
			continue;
		if (strcmp(rules->rules[i].tenant, "*") == 0) {
			free(list);
			*ret = NULL;
			return 0;
		}
		end = stpcpy(end, rules->rules[i].tenant) + 1;
	}
	*end = '\0';
	*ret = list;
	return 0;
}

bool tenant_allowed(const char *list, const void *tenant, size_t bytes)
{
	if (!list)
		return true;
	for (; *list; list += strlen(list) + 1)
		if (strlen(list) == bytes && memcmp(list, tenant, bytes) == 0)
			return true;
	return false;
}
