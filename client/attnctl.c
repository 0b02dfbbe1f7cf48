/* SPDX-License-Identifier: Apache-2.0 */
/*
 * attnctl: ask a daemon how it is.
 *
 * In:   a command, the administrators' socket. Out: tables for people, or JSON for programs.
 * Next: daemon/admin.c answers.
 *
 * What the daemon tells is printed as it comes, so that what it learns to tell needs no change
 * here: members of an object one a line, an array of objects as a table.
 */
#include <ctype.h>
#include <errno.h>
#include <getopt.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "ctl/commands.h"
#include "ctl/ctl.h"

#define MAX_COLUMNS 64

enum { HELP_COLUMN = 14, HELP_WIDTH = 96 };

/* "  name args  help", the help wrapped in a column of its own. */
static void print_entry(FILE *out, const char *before, const char *name, const char *args, const char *help)
{
	int n = fprintf(out, "  %s%s%s%s", before, name, *args ? " " : "", args);
	const int width = HELP_WIDTH - HELP_COLUMN;

	if (n > HELP_COLUMN - 2)
		n = fprintf(out, "\n") - 1;
	for (int k; *help; help += k + (help[k] == ' '), n = 0) {
		k = (int)strlen(help);
		if (k > width)
			for (k = width; k > 1 && help[k] != ' '; k--)
				;
		fprintf(out, "%*s%.*s\n", HELP_COLUMN - n, "", k, help);
	}
}

static void print_help(FILE *out)
{
	fputs("usage: attnctl [OPTION...] COMMAND [NAME=VALUE...]\n\n", out);
#define CTL_X(name, args, how, help) print_entry(out, "", name, args, help);
	CTL_COMMANDS(CTL_X)
#undef CTL_X
	fputs("\n"
	      "  A cache is named by cache=, and where that is not enough by realm= and fingerprint=. A pin\n"
	      "  takes the namespace's tenant=, adapter= and salt=.\n"
	      "\n",
	      out);
#define CTL_X(name, letter, arg, whose, help) \
	print_entry(out, "--", name, arg, sizeof(whose) > 1 ? whose ": " help : help);
	CTL_OPTIONS(CTL_X)
#undef CTL_X
	fputs("\n"
	      "Exit codes: 0 done, 1 the daemon answered with an error or not at all (doctor: something is\n"
	      "wrong), 2 wrong usage, 3 no daemon, 4 permission denied.\n",
	      out);
}

/* ---- Printing ---- */

static bool ends_with(const char *text, const char *end)
{
	size_t a = strlen(text), b = strlen(end);

	return a >= b && strcmp(text + a - b, end) == 0;
}

/* A scalar by its name's ending: bytes and seconds in units that read well. */
static void format_value(const char *key, const json_t *value, char *buf, size_t size)
{
	char *text;

	if (json_is_number(value) && (ends_with(key, "bytes") || strncmp(key, "bytes_", 6) == 0))
		ctl_format_bytes(json_number_value(value), buf, size);
	else if (json_is_number(value) && ends_with(key, "_s"))
		ctl_format_seconds(json_number_value(value), buf, size);
	else if (json_is_integer(value))
		snprintf(buf, size, "%" JSON_INTEGER_FORMAT, json_integer_value(value));
	else if (json_is_real(value))
		snprintf(buf, size, "%.4g", json_real_value(value));
	else if (json_is_string(value))
		snprintf(buf, size, "%s", *json_string_value(value) ? json_string_value(value) : "-");
	else if (json_is_boolean(value))
		snprintf(buf, size, "%s", json_is_true(value) ? "yes" : "no");
	else {
		text = value ? json_dumps(value, JSON_COMPACT | JSON_ENCODE_ANY) : NULL;
		snprintf(buf, size, "%s", text ? text : "-");
		free(text);
	}
}

/* Every name that a row has, in the order in which they are first seen. */
static size_t find_columns(const json_t *rows, const char *columns[MAX_COLUMNS])
{
	size_t n = 0, i, j;
	const char *key;
	json_t *row, *value;

	json_array_foreach(rows, i, row)
	{
		json_object_foreach(row, key, value)
		{
			for (j = 0; j < n && strcmp(columns[j], key) != 0; j++)
				;
			if (j == n && n < MAX_COLUMNS)
				columns[n++] = key;
		}
	}
	return n;
}

/* Bytes that continue a UTF-8 character take no column. */
static int width_of(const char *text)
{
	int width = 0;

	for (; *text; text++)
		width += ((unsigned char)*text & 0xc0) != 0x80;
	return width;
}

static void print_cell(const char *text, int width, bool right)
{
	int pad = width - width_of(text);

	printf("%*s%s%*s  ", right ? pad : 0, "", text, right ? 0 : pad, "");
}

static void print_table(const json_t *rows)
{
	const char *columns[MAX_COLUMNS];
	size_t n = find_columns(rows, columns), i, j;
	int widths[MAX_COLUMNS];
	bool right[MAX_COLUMNS];
	char cell[256];
	json_t *row;

	for (j = 0; j < n; j++) {
		widths[j] = width_of(columns[j]);
		right[j] = json_is_number(json_object_get(json_array_get(rows, 0), columns[j]));
		json_array_foreach(rows, i, row)
		{
			format_value(columns[j], json_object_get(row, columns[j]), cell, sizeof(cell));
			widths[j] = width_of(cell) > widths[j] ? width_of(cell) : widths[j];
		}
		print_cell(columns[j], widths[j], right[j]);
	}
	putchar('\n');
	json_array_foreach(rows, i, row)
	{
		for (j = 0; j < n; j++) {
			format_value(columns[j], json_object_get(row, columns[j]), cell, sizeof(cell));
			print_cell(cell, widths[j], right[j]);
		}
		putchar('\n');
	}
}

static bool is_table(const json_t *value)
{
	return json_is_array(value) && json_is_object(json_array_get(value, 0));
}

static void print_object(const json_t *object, int indent)
{
	const char *key;
	char text[1024];
	json_t *value;

	json_object_foreach((json_t *)(uintptr_t)object, key, value)
	{
		if (json_is_object(value)) {
			printf("%*s%s\n", indent, "", key);
			print_object(value, indent + 2);
		} else if (is_table(value)) {
			printf("%*s%s\n", indent, "", key);
			print_table(value);
		} else {
			format_value(key, value, text, sizeof(text));
			printf("%*s%-*s  %s\n", indent, "", 22 - indent, key, text);
		}
	}
}

static json_int_t member(const json_t *object, const char *name)
{
	return json_integer_value(json_object_get(object, name));
}

static void print_tokens(const json_t *tokens, bool text)
{
	size_t i;
	json_t *token;

	json_array_foreach(tokens, i, token)
	{
		json_int_t n = json_integer_value(token);

		if (!text)
			printf("%s%" JSON_INTEGER_FORMAT, i ? " " : "", n);
		else if (n >= 0x20 && n < 0x7f && n != '\\')
			putchar((int)n);
		else
			printf("\\x%02" PRIx64, (uint64_t)n);
	}
}

static void print_block(const json_t *block, int depth, bool text)
{
	json_int_t holders = member(block, "references") + member(block, "held_children");

	printf("%*s%" JSON_INTEGER_FORMAT "  ", 2 * depth, "", member(block, "position"));
	print_tokens(json_object_get(block, "tokens"), text);
	if (member(block, "children") > 1)
		printf("  [shared by %" JSON_INTEGER_FORMAT "]", member(block, "children"));
	if (member(block, "pins"))
		fputs("  [pinned]", stdout);
	if (holders)
		printf("  [held by %" JSON_INTEGER_FORMAT "]", holders);
	else if (!member(block, "pins"))
		printf("  [idle, %" JSON_INTEGER_FORMAT " releases ago]", member(block, "age"));
	if (member(block, "goes_next"))
		printf("  [goes %" JSON_INTEGER_FORMAT ".]", member(block, "goes_next"));
	putchar('\n');
}

/* Depth first, as it comes; what follows alone stands below what it follows, branches one step to the right. */
static void print_tree(const json_t *blocks, bool text)
{
	size_t n = json_array_size(blocks), depth = 0;
	const json_t **path = calloc(n + 1, sizeof(*path)); /* whose children are being printed */
	size_t i;
	json_t *block;

	json_array_foreach(blocks, i, block)
	{
		int indent = 0;

		while (path && depth && member(path[depth - 1], "block") != member(block, "parent"))
			depth--;
		for (size_t k = 0; path && k < depth; k++)
			indent += member(path[k], "children") > 1;
		print_block(block, indent, text);
		if (path)
			path[depth++] = block;
	}
	free(path);
}

/* A command whose answer is one list prints only that. */
static void print_reply(const json_t *reply, const char *command, bool text)
{
	const json_t *list = json_object_get(reply, command);

	if (json_is_string(list))
		fputs(json_string_value(list), stdout);
	else if (!json_is_array(list))
		print_object(reply, 0);
	else if (is_table(list) && !strcmp(command, "tree"))
		print_tree(list, text);
	else if (is_table(list))
		print_table(list);
	else
		printf("no %s\n", command);
}

/* ---- main ---- */

/* "1,2,3" */
static json_t *number_list(const char *text)
{
	json_t *list = json_array();
	char *end;

	for (; *text; text = *end ? end + 1 : end) {
		errno = 0;
		json_array_append_new(list, json_integer((json_int_t)strtoull(text, &end, 10)));
		if (!isdigit((unsigned char)*text) || errno || (*end && *end != ',') || !strcmp(end, ",")) {
			json_decref(list);
			return NULL;
		}
	}
	return list;
}

static json_t *byte_list(const char *text)
{
	json_t *list = json_array();

	for (; *text; text++)
		json_array_append_new(list, json_integer((unsigned char)*text));
	return list;
}

/* NAME=VALUE into the request. NULL, or what is wrong with it. */
static const char *add_argument(json_t *request, char *word)
{
	char *value = strchr(word, '='), *end;
	const char *name;
	json_t *item;
	long long n;

	if (!value || value == word)
		return "is not NAME=VALUE";
	*value++ = '\0';
	name = strcmp(word, "text") ? word : "tokens";
	if (json_object_get(request, name))
		return !strcmp(name, "tokens") ? "is given twice (text and tokens are one)" : "is given twice";
	errno = 0;
	n = strtoll(value, &end, 10);
	if (!strcmp(word, "tokens"))
		item = number_list(value);
	else if (!strcmp(word, "text"))
		item = byte_list(value);
	else if (!strcmp(word, "blocks") || !strcmp(word, "seconds") || !strcmp(word, "pin"))
		item = *value && !*end && !errno ? json_integer(n) : NULL;
	else if (strchr(word, '-') && *value && !*end && !errno) /* a limit */
		item = json_integer(n);
	else if (!(item = json_string(value)))
		return "is not UTF-8";
	if (!item)
		return !strcmp(word, "tokens") ? "takes numbers separated by commas" : "takes a whole number";
	return json_object_set_new(request, name, item) ? "is not UTF-8" : NULL;
}

static int print_answer(const struct ctl *c, const char *command, const json_t *reply)
{
	const char *error = json_string_value(json_object_get(reply, "error"));

	if (c->json) {
		json_dumpf(reply, stdout, JSON_INDENT(2));
		putchar('\n');
	} else if (error) {
		fprintf(stderr, "attnctl: %s\n", error);
	} else {
		print_reply(reply, command, c->text);
	}
	return error ? CTL_ERROR : EXIT_SUCCESS;
}

static int ask_daemon(const struct ctl *c, const char *command, char **words)
{
	json_t *request = json_pack("{s:s}", "command", command), *reply = NULL;
	int r = EXIT_SUCCESS;

	for (; request && *words && r == EXIT_SUCCESS; words++) {
		const char *bad = add_argument(request, *words);

		if (!bad)
			continue;
		fprintf(stderr, "attnctl: %s %s %s\n", command, *words, bad);
		r = CTL_USAGE;
	}
	if (r == EXIT_SUCCESS)
		reply = ctl_ask(c, request, &r);
	if (reply)
		r = print_answer(c, command, reply);
	json_decref(request);
	json_decref(reply);
	return r;
}

static int run(const struct ctl *c, const char *command, char **words)
{
	enum who { ask, stat, top, events, doctor } how;
	static const struct {
		const char *name;
		enum who who;
	} commands[] = {
#define CTL_X(name, args, how, help) {name, how},
		CTL_COMMANDS(CTL_X)
#undef CTL_X
	};
	size_t i;

	for (i = 0; i < sizeof(commands) / sizeof(commands[0]) && strcmp(commands[i].name, command); i++)
		;
	if (i == sizeof(commands) / sizeof(commands[0])) {
		fprintf(stderr, "attnctl: \"%s\" is no command (--help lists them)\n", command);
		return CTL_USAGE;
	}
	how = commands[i].who;
	if (how == ask)
		return ask_daemon(c, commands[i].name, words);
	if (*words) {
		fprintf(stderr, "attnctl: %s takes no arguments\n", command);
		return CTL_USAGE;
	}
	return how == stat ? ctl_stat(c) : how == top ? ctl_top(c) : how == events ? ctl_events(c) : ctl_doctor(c);
}

/* A number of an option; false: it is none, or not from `least` to `most`. */
static bool parse_number(const char *option, const char *text, double least, double most, double *ret)
{
	char *end;

	*ret = strtod(text, &end);
	if (end != text && !*end && *ret >= least && *ret <= most)
		return true;
	fprintf(stderr, "attnctl: --%s: \"%s\" is not a number from %g to %g\n", option, text, least, most);
	return false;
}

static bool parse_path(const char *option, const char *text, const char **ret)
{
	*ret = text;
	if (!*text)
		fprintf(stderr, "attnctl: --%s: the path is empty\n", option);
	return *text;
}

static bool parse_directory(const char *option, const char *text, const char **ret)
{
	struct stat st;
	int error;

	if (!parse_path(option, text, ret))
		return false;
	error = stat(text, &st) ? errno : S_ISDIR(st.st_mode) ? 0 : ENOTDIR;
	if (error)
		fprintf(stderr, "attnctl: --%s: %s: %s\n", option, text, strerror(error));
	return !error;
}

/* False: it is wrong. */
static bool set_option(struct ctl *c, int option)
{
	switch (option) {
	case 's':
		return parse_path("socket", optarg, &c->socket);
	case 'r':
		return parse_directory("root", optarg, &c->root);
	case 'j':
		return c->json = true;
	case 't':
		return c->text = true;
	case 'o':
		return c->once = true;
	case 'f':
		return c->follow = true;
	case 'i':
		return parse_number("interval", optarg, 0.1, 86400, &c->interval);
	case 'S':
		return parse_number("stream", optarg, 0, 100000, &c->stream);
	default:
		return false;
	}
}

/* By its letter. A switch may be repeated, a value would be another one's place. */
static bool given_once(bool given[128], int option)
{
	const char *name = "";

	if (!given[option & 127] || !optarg)
		return given[option & 127] = true;
#define CTL_X(option_name, letter, arg, whose, help) name = option == letter ? option_name : name;
	CTL_OPTIONS(CTL_X)
#undef CTL_X
	fprintf(stderr, "attnctl: --%s is given twice\n", name);
	return false;
}

/* No option that this command would not look at. */
static bool options_fit(const bool given[128], const char *command)
{
	static const struct {
		const char *name, *whose;
		char letter;
	} options[] = {
#define CTL_X(name, letter, arg, whose, help) {name, whose, letter},
		CTL_OPTIONS(CTL_X)
#undef CTL_X
	};

	for (size_t i = 0; i < sizeof(options) / sizeof(options[0]); i++) {
		if (!given[(int)options[i].letter] || !*options[i].whose || strstr(options[i].whose, command))
			continue;
		fprintf(stderr, "attnctl: --%s is for %s, not for %s\n", options[i].name, options[i].whose, command);
		return false;
	}
	return true;
}

/* What was printed has to have arrived. */
static int finish(int r)
{
	if (!fflush(stdout) && !ferror(stdout))
		return r;
	fputs("attnctl: standard output could not be written\n", stderr);
	return r ? r : CTL_ERROR;
}

int main(int argc, char **argv)
{
	static const struct option options[] = {
#define CTL_X(name, letter, arg, whose, help) {name, sizeof(arg) > 1 ? required_argument : no_argument, NULL, letter},
		CTL_OPTIONS(CTL_X)
#undef CTL_X
			{0}};
	struct ctl c = {.root = "", .interval = 1, .stream = -1};
	bool given[128] = {false};
	int option;

	while ((option = getopt_long(argc, argv, "h", options, NULL)) != -1) {
		if (option == 'h') {
			print_help(stdout);
			return finish(EXIT_SUCCESS);
		}
		if (option == 'v') {
			puts("attnctl " ATTND_VERSION);
			return finish(EXIT_SUCCESS);
		}
		if (!given_once(given, option) || !set_option(&c, option))
			return CTL_USAGE;
	}
	if (argc > optind && !options_fit(given, argv[optind]))
		return CTL_USAGE;
	if (argc > optind)
		return finish(run(&c, argv[optind], argv + optind + 1));
	print_help(stderr);
	return CTL_USAGE;
}
