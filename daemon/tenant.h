/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Who may use which tenant.
 *
 * In:   the configuration's list, a peer's credentials at HELLO. Out: the tenants of a session.
 * Next: intake.c, when the session names a namespace.
 */
#ifndef ATTND_DAEMON_TENANT_H
#define ATTND_DAEMON_TENANT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "peer.h"

enum { TENANT_RULES = 64, TENANT_NAME = 64 };

struct tenant_rules {
	uint32_t n; /* 0: everyone may use any tenant */
	struct tenant_rule {
		enum { TENANT_ANYONE, TENANT_USER, TENANT_GROUP } who;
		uint32_t id;
		char name[TENANT_NAME];
	} rules[TENANT_RULES];
};

/* What a session may name. Set at HELLO, does not change (S3). */
struct tenants {
	bool any;
	uint32_t n;
	char names[TENANT_RULES][TENANT_NAME];
};

/**
 * Read "USER:TENANT, @GROUP:TENANT, *:TENANT, ...": NULL, or (in a static buffer) the entry that is
 * wrong. One thread.
 */
const char *tenant_rules_parse(const char *list, struct tenant_rules *ret);

/** The tenants of a peer. */
void tenants_of(const struct tenant_rules *rules, int sock, const struct peer *p, struct tenants *ret);

/** May a session with these name the namespace with these wire fields? Without a tenant: yes. */
bool tenants_allow(const struct tenants *t, const void *fields, size_t bytes);

#endif
