/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Who may name which tenant, by the credentials of the one who connects.
 *
 * In: a daemon with rules; namespaces. Out: TAP. Next: daemon/tenant.c.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "harness.h"

static struct daemon daemon_;

static int name_tenant(attnd_t *a, const char *tenant)
{
	const struct attnd_namespace parts = {.tenant = tenant,
					      .tenant_bytes = tenant ? (uint32_t)strlen(tenant) : 0,
					      .salt = "s",
					      .salt_bytes = 1};
	uint32_t id;

	return attnd_namespace(a, &parts, &id);
}

static void with_rules(const char *rules, const char *const *good, const char *const *bad)
{
	const char *const args[] = {"--pool-size", "4M", "--hugepages", "off", "--tenants", rules, NULL};
	attnd_t *a;

	assert_int_equal(daemon_start(&daemon_, args), 0);
	a = daemon_connect(&daemon_);
	for (; *good; good++)
		assert_int_equal(name_tenant(a, *good), 0);
	for (; *bad; bad++) {
		assert_int_equal(name_tenant(a, *bad), -EACCES);
		assert_non_null(strstr(attnd_strerror(a, -EACCES), "tenant"));
	}
	assert_int_equal(name_tenant(a, NULL), 0); /* without a tenant there is nothing to allow */
	attnd_disconnect(a);
	daemon_clean(&daemon_);
}

#define LIST(...)             \
	(const char *const[]) \
	{                     \
		__VA_ARGS__   \
	}

static void test_none(void **state)
{
	(void)state;
	with_rules("", LIST("acme", "anything", NULL), LIST(NULL));
}

static void test_users(void **state)
{
	char rules[128];

	(void)state;
	snprintf(rules, sizeof(rules), "%u:acme, 12345:other, *:public", getuid());
	with_rules(rules, LIST("acme", "public", NULL), LIST("other", "acm", "acmee", "", NULL));
	snprintf(rules, sizeof(rules), "@%u:acme,@54321:other", getgid());
	with_rules(rules, LIST("acme", NULL), LIST("other", "public", NULL));
	snprintf(rules, sizeof(rules), "12345:other,%u:*", getuid());
	with_rules(rules, LIST("other", "whatever", NULL), LIST(NULL));
	with_rules("12345:*", LIST(NULL), LIST("other", NULL));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_none),
		cmocka_unit_test(test_users),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
