/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An administrator's request, of any bytes.
 *
 * In: a line, in words or JSON. Out: it is refused with an answer that is JSON, or every member is one that its
 * command takes. Next: daemon/arguments.c.
 */
#include <jansson.h>
#include <string.h>

#include "../../daemon/arguments.h"
#include "fuzz.h"

static void refuse(const char *why)
{
	json_t *answer = arguments_refusal(-22, why);
	char *text = answer ? json_dumps(answer, JSON_COMPACT) : NULL;

	MUST(*why && text);
	free(text);
	json_decref(answer);
}

/* By whatever command: what is left has no number of the wrong kind, no name that nobody looks at. */
static void check(const json_t *request)
{
	static const char *const commands[] = {"status", "tree", "pin", "unpin", "evict", "flush", "set"};
	char why[ARGUMENTS_WHY];

	for (size_t i = 0; i < sizeof(commands) / sizeof(*commands); i++) {
		const json_t *blocks = json_object_get(request, "blocks");

		*why = '\0';
		if (!arguments_check(commands[i], request, why, sizeof(why))) {
			refuse(why);
			continue;
		}
		MUST(!strcmp(commands[i], "set") || !blocks || json_integer_value(blocks) > 0);
		MUST(strcmp(commands[i], "status") || json_object_size(request) <= 1);
	}
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
	char *text = calloc(bytes + 1, 1), why[ARGUMENTS_WHY] = "";
	json_t *request;

	MUST(text);
	memcpy(text, data, bytes);
	request = arguments_parse(text, why, sizeof(why));
	if (request)
		check(request);
	else
		refuse(why);
	json_decref(request);
	free(text);
	return 0;
}
