/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a person needs to know about an error: the field, its limit, the daemon's words.
 *
 * In:   failures as they are noticed. Out: attnd_strerror's text. Next: the caller.
 */
#include "internal.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* Of failed connects, which have no connection to keep it. */
static _Thread_local struct cl_error failed_connect;

static const char *const field_names[ATTND_FIELDS] = {
#define ATTND_X(id, text) [ATTND_FIELD_##id] = text,
	ATTND_WIRE_FIELDS(ATTND_X)
#undef ATTND_X
};

int cl_fail(struct attnd *a, int error, enum attnd_wire_field field, uint64_t limit)
{
	a->error->error = error;
	a->error->field = (uint16_t)field;
	a->error->limit = limit;
	a->error->detail[0] = 0;
	return error;
}

int cl_fail_field(struct attnd *a, int error, enum attnd_wire_field field, const char *text)
{
	cl_fail(a, error, field, 0);
	snprintf(a->error->detail, sizeof(a->error->detail), "%s", text);
	return error;
}

int cl_fail_text(struct attnd *a, int error, const char *text)
{
	return cl_fail_field(a, error, ATTND_FIELD_NONE, text);
}

void cl_error_keep(const struct cl_error *e)
{
	failed_connect = *e;
}

/* What the system's words do not say of attnd. */
static const char *meaning(int error)
{
	switch (error) {
	case -ECONNRESET:
		return "the daemon has gone or ended the session";
	case -ECHILD:
		return "a forked child cannot use its parent's connection";
	case -ESTALE:
		return "none is live: it ended, or a later plan ended it";
	default:
		return NULL;
	}
}

static size_t append(char *text, size_t size, size_t used, const char *separator, const char *more)
{
	int n = snprintf(text + used, size - used, "%s%s", separator, more);

	return n < 0 || used + (size_t)n >= size ? size - 1 : used + (size_t)n;
}

static const char *describe(struct cl_error *e, int error)
{
	char buffer[128], limit[40];
	const char *more = meaning(error);
	size_t used = append(e->text, sizeof(e->text), 0, "",
			     strerror_r(error < 0 ? -error : error, buffer, sizeof(buffer)));

	if (error != e->error || (!e->field && !e->detail[0])) {
		if (more)
			append(e->text, sizeof(e->text), used, ": ", more);
		return e->text;
	}
	if (e->field && e->field < ATTND_FIELDS)
		used = append(e->text, sizeof(e->text), used, ": ", field_names[e->field]);
	if (e->detail[0] || more)
		used = append(e->text, sizeof(e->text), used, ": ", e->detail[0] ? e->detail : more);
	if (e->limit) {
		snprintf(limit, sizeof(limit), "%" PRIu64 ")", e->limit);
		append(e->text, sizeof(e->text), used, " (limit ", limit);
	}
	return e->text;
}

const char *attnd_strerror(const attnd_t *a, int error)
{
	return describe(a ? a->error : &failed_connect, error);
}
