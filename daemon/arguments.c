/* SPDX-License-Identifier: Apache-2.0 */
/* Arguments of administrators' commands (arguments.h). */
#include "arguments.h"

#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../proto/wire.h"

enum kind { TEXT, HEX, NUMBER, TOKENS };

static const struct argument {
	const char *commands; /* each between blanks */
	const char *name;
	enum kind kind;
	json_int_t min, max; /* of a number; bytes of a text */
} arguments[] = {
	{" tree pin unpin evict flush ", "cache", TEXT, 1, ATTND_MAX_NAME},
	{" tree pin unpin evict flush ", "realm", TEXT, 1, 79},
	{" tree pin unpin evict flush ", "fingerprint", HEX, 32, 32},
	{" tree ", "blocks", NUMBER, 1, ARGUMENTS_TREE_BLOCKS},
	{" evict ", "blocks", NUMBER, 1, INT64_MAX},
	{" pin ", "seconds", NUMBER, 1, ARGUMENTS_PIN_SECONDS},
	{" pin ", "tokens", TOKENS, 0, 0},
	{" pin ", "tenant", TEXT, 0, ATTND_MAX_NS_BYTES},
	{" pin ", "adapter", TEXT, 0, ATTND_MAX_NS_BYTES},
	{" pin ", "salt", TEXT, 0, ATTND_MAX_NS_BYTES},
	{" unpin ", "pin", NUMBER, 1, UINT32_MAX},
};

/* NULL: the command takes none of that name. */
static const struct argument *find(const char *command, const char *name)
{
	char word[32];

	snprintf(word, sizeof(word), " %s ", command);
	for (size_t i = 0; i < sizeof(arguments) / sizeof(*arguments); i++)
		if (!strcmp(arguments[i].name, name) && strstr(arguments[i].commands, word))
			return &arguments[i];
	return NULL;
}

/* ---- Words ---- */

/* NULL: it is no number. */
static json_t *number(const char *text)
{
	char *end;
	long long n;

	errno = 0;
	n = strtoll(text, &end, 10);
	return *text && !*end && !errno ? json_integer(n) : NULL;
}

/* "1,2,3", or NULL. */
static json_t *tokens(const char *text)
{
	json_t *list = json_array();
	char *end;

	do {
		errno = 0;
		json_array_append_new(list, json_integer((json_int_t)strtoull(text, &end, 10)));
		if (!isdigit((unsigned char)*text) || errno || (*end && *end != ',')) {
			json_decref(list);
			return NULL;
		}
		text = end + 1;
	} while (*end);
	return list;
}

/* As its command's argument of that name is written; else a number, or a text if it is none. */
static json_t *value_of(const char *command, const char *name, const char *text)
{
	const struct argument *a = find(command, name);
	json_t *v = NULL;

	if (a ? a->kind == NUMBER : !strcmp(command, "set"))
		v = number(text);
	else if (a && a->kind == TOKENS)
		v = tokens(text);
	return v ? v : json_string(text);
}

static bool utf8(const char *text)
{
	json_t *s = json_string(text);

	json_decref(s);
	return s;
}

static json_t *words(char *text, char *why, size_t size)
{
	char *rest, *command = strtok_r(text, " ", &rest), *word, *value;
	json_t *object;

	if (command && !utf8(command)) {
		snprintf(why, size, "the command is not UTF-8");
		return NULL;
	}
	object = json_pack("{s:s*}", "command", command);
	while (object && (word = strtok_r(NULL, " ", &rest))) {
		value = strchr(word, '=');
		if (value && value != word)
			*value++ = '\0';
		if (!value || value == word || json_object_get(object, word)) {
			snprintf(why, size,
				 value && value != word ? "%.60s: given twice" : "\"%.60s\" is not NAME=VALUE", word);
			json_decref(object);
			return NULL;
		}
		if (json_object_set_new(object, word, value_of(command, word, value))) {
			snprintf(why, size, "%.60s: not UTF-8", word);
			json_decref(object);
			return NULL;
		}
	}
	return object;
}

json_t *arguments_parse(const char *text, char *why, size_t size)
{
	json_t *object = NULL;
	json_error_t error;
	char *copy;

	snprintf(why, size, "no memory for the request");
	if (*text == '{') {
		object = json_loads(text, JSON_REJECT_DUPLICATES, &error);
		if (!object)
			snprintf(why, size, "the request is no JSON: %s", error.text);
		return object;
	}
	copy = strdup(text);
	if (copy)
		object = words(copy, why, size);
	free(copy);
	return object;
}

/* ---- Checking ---- */

static bool is_hex(const char *text)
{
	return text && strlen(text) == 32 && strspn(text, "0123456789abcdef") == 32;
}

static bool all_integers(const json_t *list)
{
	const json_t *v;
	size_t i;

	if (!json_array_size(list))
		return false;
	json_array_foreach(list, i, v) if (!json_is_integer(v)) return false;
	return true;
}

static bool right(const struct argument *a, const json_t *v)
{
	json_int_t n = a->kind == TEXT ? (json_int_t)json_string_length(v) : json_integer_value(v);

	switch (a->kind) {
	case TEXT:
		return json_is_string(v) && n >= a->min && n <= a->max;
	case HEX:
		return is_hex(json_string_value(v));
	case NUMBER:
		return json_is_integer(v) && n >= a->min && n <= a->max;
	default:
		return all_integers(v);
	}
}

static void explain(const struct argument *a, char *why, size_t size)
{
	switch (a->kind) {
	case TEXT:
		snprintf(why, size, "%s: a text of %" PRId64 " to %" PRId64 " bytes", a->name, (int64_t)a->min,
			 (int64_t)a->max);
		return;
	case HEX:
		snprintf(why, size, "%s: 32 digits of 0-9, a-f", a->name);
		return;
	case NUMBER:
		snprintf(why, size, "%s: a number from %" PRId64 " to %" PRId64, a->name, (int64_t)a->min,
			 (int64_t)a->max);
		return;
	default:
		snprintf(why, size, "%s: a list of numbers, at least one", a->name);
	}
}

static void explain_unknown(const char *command, const char *name, char *why, size_t size)
{
	size_t n = (size_t)snprintf(why, size, "%s takes no %.60s", command, name);
	const char *before = ": there are ";

	for (size_t i = 0; i < sizeof(arguments) / sizeof(*arguments) && n < size; i++) {
		if (find(command, arguments[i].name) != &arguments[i])
			continue;
		n += (size_t)snprintf(why + n, size - n, "%s%s", before, arguments[i].name);
		before = ", ";
	}
}

bool arguments_check(const char *command, const json_t *request, char *why, size_t size)
{
	const char *name;
	json_t *v;

	if (!strcmp(command, "set")) /* limits: manage.c knows them */
		return true;
	json_object_foreach((json_t *)(uintptr_t)request, name, v)
	{
		const struct argument *a = find(command, name);

		if (!strcmp(name, "command") || (a && right(a, v)))
			continue;
		if (a)
			explain(a, why, size);
		else
			explain_unknown(command, name, why, size);
		return false;
	}
	return true;
}

/* ---- Refusing ---- */

json_t *arguments_refusal(int status, const char *text)
{
	char plain[ARGUMENTS_WHY]; /* the text may have a client's words, cut inside a character */

	snprintf(plain, sizeof(plain), "%s", text);
	for (char *p = plain; *p; p++)
		*p = *p >= 0x20 && *p < 0x7f ? *p : '?';
	return json_pack("{s:s s:i}", "error", plain, "errno", status);
}
