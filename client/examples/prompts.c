/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where prompts come from: see prompts.h.
 */
#include "prompts.h"

#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int add(struct prompts *p, const char *bytes, size_t n, struct error *error)
{
	struct prompt *list = reallocarray(p->list, p->count + 1, sizeof(*list));

	if (!list)
		return fail_memory(error);
	p->list = list;
	list[p->count].bytes = malloc(n + 1);
	if (!list[p->count].bytes)
		return fail_memory(error);
	memcpy(list[p->count].bytes, bytes, n);
	list[p->count].num_bytes = n;
	p->count++;
	return 0;
}

int prompts_from_text(struct prompts *ret, const char *text, struct error *error)
{
	return add(ret, text, strlen(text), error);
}

static int add_line(struct prompts *p, const char *line, size_t n, const char *path, size_t number,
		    struct error *error)
{
	json_error_t bad;
	json_t *value = json_loadb(line, n, JSON_DECODE_ANY | JSON_ALLOW_NUL, &bad);
	int rc;

	if (json_is_string(value))
		rc = add(p, json_string_value(value), json_string_length(value), error);
	else
		rc = fail(error, -EINVAL, "%s:%zu: not a JSON string%s%s", path, number, value ? "" : ": ",
			  value ? "" : bad.text);
	json_decref(value);
	return rc;
}

static int blank(const char *line)
{
	return line[strspn(line, " \t\r\n")] == '\0';
}

int prompts_from_file(struct prompts *ret, const char *path, struct error *error)
{
	FILE *file = fopen(path, "re");
	char *line = NULL;
	size_t room = 0, number = 0;
	ssize_t n;
	int rc = 0;

	if (!file)
		return fail(error, -errno, "%s: %s", path, strerror(errno));
	while (!rc && (n = getline(&line, &room, file)) >= 0) {
		number++;
		if (!blank(line))
			rc = add_line(ret, line, (size_t)n, path, number, error);
	}
	if (!rc && ferror(file))
		rc = fail(error, -EIO, "%s: %s", path, strerror(errno));
	if (!rc && !ret->count)
		rc = fail(error, -EINVAL, "%s: no prompts", path);
	free(line);
	fclose(file);
	return rc;
}

void prompts_clear(struct prompts *p)
{
	for (size_t i = 0; i < p->count; i++)
		free(p->list[i].bytes);
	free(p->list);
	*p = (struct prompts){0};
}
