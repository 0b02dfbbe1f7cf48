/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which tenants a peer may name in its namespaces.
 *
 * In:   the key `tenants`: WHO:TENANT, separated by commas; the peer's credentials.
 * Out:  a session's list. Next: intake.c asks it for each namespace.
 *
 * WHO is a user, @group or *; TENANT a name or *. Users and groups are looked up when the
 * configuration is read, a peer's groups as it connects.
 */
#ifndef ATTND_DAEMON_TENANT_H
#define ATTND_DAEMON_TENANT_H

#include <stdbool.h>
#include <stddef.h>

#include "peer.h"

struct tenant_rules {
	uint32_t n; /* 0: everybody may name any */
	struct tenant_rule {
		enum { TENANT_OF_ALL, TENANT_OF_USER, TENANT_OF_GROUP } kind;
		uint32_t id;
		char tenant[64];
	} rules[64];
};

/** NULL, or (in a static buffer) the entry that is wrong. */
const char *tenant_rules_parse(const char *text, struct tenant_rules *ret);

/**
 * The tenants of this peer, for tenant_allowed: *ret is NULL if it may name any, else the caller
 * frees it. 0 or -ENOMEM.
 */
int tenant_list(const struct tenant_rules *rules, int sock, const struct peer *p, char **ret);

/** May a session with this list name this tenant? */
bool tenant_allowed(const char *list, const void *tenant, size_t bytes);

#endif
