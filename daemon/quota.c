/* SPDX-License-Identifier: Apache-2.0 */
/* Limits of the cache (quota.h). */
#include "quota.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

/* Percent up to the character `end`, which is passed; nothing stands for `otherwise`. */
static bool parse_percent(const char **text, char end, uint32_t otherwise, uint32_t *ret)
{
	char *rest;
	unsigned long n = otherwise;

	if (**text != end) {
		if (!isdigit((unsigned char)**text))
			return false;
		n = strtoul(*text, &rest, 10);
		*text = rest;
	}
	if (**text != end || n > 100)
		return false;
	*text += end != '\0';
	*ret = (uint32_t)n;
	return true;
}

static bool parse_share(const char *entry, struct cache_share *ret)
{
	size_t n = strcspn(entry, ":");

	memset(ret, 0, sizeof(*ret));
	if (!n || n > sizeof(ret->name) || entry[n] != ':')
		return false;
	memcpy(ret->name, entry, n);
	entry += n + 1;
	return parse_percent(&entry, ':', 0, &ret->min) && parse_percent(&entry, '\0', 100, &ret->max) &&
	       ret->min <= ret->max && ret->max;
}

/* The entry behind the last one: one of the two would not count. */
static bool named_before(const struct limits *m)
{
	const struct cache_share *s = m->shares, *last = &s[m->num_shares];

	while (s < last && memcmp(s->name, last->name, sizeof(s->name)))
		s++;
	return s < last;
}

const char *limits_parse_shares(const char *text, struct limits *ret)
{
	static char entry[96];
	uint32_t sum = 0;

	ret->num_shares = 0;
	for (;;) {
		size_t n;

		text += strspn(text, ", ");
		n = strcspn(text, ", ");
		if (!n)
			return NULL;
		memcpy(entry, text, n < sizeof(entry) ? n : sizeof(entry) - 1);
		entry[n < sizeof(entry) ? n : sizeof(entry) - 1] = '\0';
		if (n >= sizeof(entry) || ret->num_shares == POOL_MAX_SHARES ||
		    !parse_share(entry, &ret->shares[ret->num_shares]) || named_before(ret))
			return entry;
		sum += ret->shares[ret->num_shares++].min;
		if (sum > 100)
			return entry;
		text += n;
	}
}

struct limits limits_of(const struct config *cfg)
{
	struct limits l = {.pin_budget = cfg->pin_budget,
			   .namespace_quota = cfg->namespace_quota,
			   .session_quota = cfg->session_quota,
			   .max_sequences = cfg->max_sequences,
			   .eviction = cfg->eviction};

	(void)limits_parse_shares(cfg->cache_shares, &l);
	return l;
}
