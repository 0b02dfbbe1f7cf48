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
#include <errno.h>
#include <getopt.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#define REPLY_MAX   (64 * 1024 * 1024)
#define WAIT_S	    5
#define MAX_COLUMNS 64

enum { EXIT_ERROR = 1, EXIT_USAGE = 2, EXIT_NO_DAEMON = 3, EXIT_DENIED = 4 };

static void print_help(FILE *out)
{
	fputs("usage: attnctl [--socket PATH] [--json] [--text] COMMAND [NAME=VALUE...]\n"
	      "\n"
	      "  status      the daemon, its memory and its work\n"
	      "  sessions    the connected clients\n"
	      "  caches      the KV caches and what they hold\n"
	      "  plan        the live plans in words: what is shared, how the work is cut\n"
	      "  pins        what is pinned, and until when\n"
	      "  tree cache=NAME [blocks=N]\n"
	      "              what is cached: its tokens, who shares and holds it, what goes next\n"
	      "  pin cache=NAME seconds=N tokens=1,2,3|text=TEXT\n"
	      "              keep a cached prefix; text is for models whose tokens are bytes\n"
	      "  unpin [pin=N] [cache=NAME]\n"
	      "              let go of one, of a cache's, or of all\n"
	      "  evict cache=NAME blocks=N\n"
	      "              free the blocks that would go next\n"
	      "  flush [cache=NAME]\n"
	      "              free all that nobody holds, of one cache or of all\n"
	      "  set [LIMIT=VALUE...]\n"
	      "              change limits until the next restart or reload, or show them: pin-budget,\n"
	      "              namespace-quota, session-quota, cache-shares, max-sequences, eviction\n"
	      "\n"
	      "  A cache is named by cache=, and where that is not enough by realm= and fingerprint=. A pin\n"
	      "  takes the namespace's tenant=, adapter= and salt=.\n"
	      "\n"
	      "  --socket PATH   the daemon's socket, or its administrators' (PATH.admin); without it:\n"
	      "                  $ATTND_SOCKET, $XDG_RUNTIME_DIR/attnd.sock, /run/attnd/attnd.sock\n"
	      "  --json          what the daemon answers, unchanged\n"
	      "  --text          tree: tokens as bytes\n"
	      "  --help, --version\n"
	      "\n"
	      "Exit codes: 0 done, 1 the daemon answered with an error, 2 wrong usage, 3 no daemon,\n"
	      "4 permission denied.\n",
	      out);
}

/* How to print. */
struct how {
	bool json, text;
};

/* ---- Asking ---- */

static int connect_to(const char *path)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	struct timeval wait = {.tv_sec = WAIT_S};
	int fd, r;

	if (strlen(path) >= sizeof(address.sun_path))
		return -ENAMETOOLONG;
	memcpy(address.sun_path, path, strlen(path));
	fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (fd < 0)
		return -errno;
	setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &wait, sizeof(wait));
	setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &wait, sizeof(wait));
	if (connect(fd, (const struct sockaddr *)&address, sizeof(address))) {
		r = -errno;
		close(fd);
		return r;
	}
	return fd;
}

/* The administrators' socket beside `path`, or `path` itself. */
static int connect_beside(const char *path)
{
	char admin[sizeof(((struct sockaddr_un *)0)->sun_path) + 8];
	int fd;

	snprintf(admin, sizeof(admin), "%s.admin", path);
	fd = connect_to(admin);
	return fd == -ENOENT || fd == -ENAMETOOLONG ? connect_to(path) : fd;
}

/* The first place where there is a socket. ret_path: the last one tried. */
static int connect_anywhere(const char *given, char *ret_path, size_t size)
{
	const char *env = getenv("ATTND_SOCKET"), *dir = getenv("XDG_RUNTIME_DIR");
	int fd = -ENOENT;

	if (!given && env && *env)
		given = env;
	if (given) {
		snprintf(ret_path, size, "%s", given);
		return connect_beside(given);
	}
	if (dir && *dir) {
		snprintf(ret_path, size, "%s/attnd.sock", dir);
		fd = connect_beside(ret_path);
	}
	if (fd == -ENOENT) {
		snprintf(ret_path, size, "/run/attnd/attnd.sock");
		fd = connect_beside(ret_path);
	}
	return fd;
}

static int complain(int error, const char *path)
{
	switch (error) {
	case -EACCES:
	case -EPERM:
		fprintf(stderr,
			"attnctl: permission denied at %s: the administrators' socket is for root and the daemon's "
			"user\n",
			path);
		return EXIT_DENIED;
	case -ENOENT:
		fprintf(stderr, "attnctl: no daemon at %s\n", path);
		return EXIT_NO_DAEMON;
	case -ECONNREFUSED:
		fprintf(stderr, "attnctl: no daemon at %s: the socket is what a killed one left\n", path);
		return EXIT_NO_DAEMON;
	case -ECONNRESET:
	case -EPIPE:
		fprintf(stderr, "attnctl: the daemon at %s has ended\n", path);
		return EXIT_NO_DAEMON;
	case -EPROTOTYPE:
		fprintf(stderr, "attnctl: %s is the clients' socket, and there is no %s.admin\n", path, path);
		return EXIT_NO_DAEMON;
	case -EAGAIN:
		fprintf(stderr, "attnctl: the daemon at %s does not answer\n", path);
		return EXIT_ERROR;
	default:
		fprintf(stderr, "attnctl: %s: %s\n", path, strerror(-error));
		return EXIT_ERROR;
	}
}

/* All that comes until the end, or NULL with *ret_error. */
static char *receive_all(int fd, size_t *ret_size, int *ret_error)
{
	char *text = NULL, *larger;
	size_t size = 0, room = 0;
	ssize_t n;

	for (;;) {
		if (size == room) {
			room = room ? 2 * room : 65536;
			larger = room <= REPLY_MAX ? realloc(text, room) : NULL;
			if (!larger) {
				*ret_error = -EMSGSIZE;
				break;
			}
			text = larger;
		}
		n = recv(fd, text + size, room - size, 0);
		if (n == 0) {
			*ret_size = size;
			return text;
		}
		if (n < 0 && errno != EINTR) {
			*ret_error = -errno;
			break;
		}
		size += n > 0 ? (size_t)n : 0;
	}
	free(text);
	return NULL;
}

/* True if all went out. */
static bool send_all(int fd, const char *text, size_t n)
{
	while (n) {
		ssize_t k = send(fd, text, n, MSG_NOSIGNAL);

		if (k < 0 && errno == EINTR)
			continue;
		if (k < 0)
			return false;
		text += k;
		n -= (size_t)k;
	}
	return true;
}

static json_t *ask(int fd, const json_t *request, int *ret_error)
{
	char *line = json_dumps(request, JSON_COMPACT), *text;
	size_t size = 0;
	json_t *reply;

	if (!line || !send_all(fd, line, strlen(line)) || !send_all(fd, "\n", 1)) {
		*ret_error = line ? -errno : -ENOMEM;
		free(line);
		return NULL;
	}
	free(line);
	text = receive_all(fd, &size, ret_error);
	if (!text)
		return NULL;
	reply = json_loadb(text, size, 0, NULL);
	free(text);
	if (!json_is_object(reply)) {
		json_decref(reply);
		*ret_error = -EBADMSG;
		return NULL;
	}
	return reply;
}

/* ---- Printing ---- */

static bool ends_with(const char *text, const char *end)
{
	size_t a = strlen(text), b = strlen(end);

	return a >= b && strcmp(text + a - b, end) == 0;
}

static void format_bytes(double bytes, char *buf, size_t size)
{
	static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
	int i = 0;

	for (; bytes >= 1024 && i < 4; i++)
		bytes /= 1024;
	snprintf(buf, size, i ? "%.1f %s" : "%.0f %s", bytes, units[i]);
}

static void format_seconds(double seconds, char *buf, size_t size)
{
	uint64_t s = seconds > 0 && seconds < 1e15 ? (uint64_t)seconds : 0;

	if (s < 60)
		snprintf(buf, size, "%.1f s", seconds);
	else if (s < 86400)
		snprintf(buf, size, "%" PRIu64 ":%02" PRIu64 ":%02" PRIu64, s / 3600, s / 60 % 60, s % 60);
	else
		snprintf(buf, size, "%" PRIu64 " d %02" PRIu64 ":%02" PRIu64, s / 86400, s / 3600 % 24, s / 60 % 60);
}

/* A scalar by its name's ending: bytes and seconds in units that read well. */
static void format_value(const char *key, const json_t *value, char *buf, size_t size)
{
	char *text;

	if (json_is_number(value) && (ends_with(key, "bytes") || strncmp(key, "bytes_", 6) == 0))
		format_bytes(json_number_value(value), buf, size);
	else if (json_is_number(value) && ends_with(key, "_s"))
		format_seconds(json_number_value(value), buf, size);
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
		if (end == text || errno || (*end && *end != ',')) {
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

/* NAME=VALUE into the request; false: it is none. */
static bool add_argument(json_t *request, char *word)
{
	char *value = strchr(word, '='), *end;
	json_t *item;
	long long n;

	if (!value || value == word)
		return false;
	*value++ = '\0';
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
	else
		item = json_string(value);
	return !json_object_set_new(request, strcmp(word, "text") ? word : "tokens", item);
}

static int run(const char *socket_path, const char *command, const json_t *request, struct how how)
{
	const char *error_text;
	char path[256];
	int fd = connect_anywhere(socket_path, path, sizeof(path)), error = 0;
	json_t *reply;

	if (fd < 0)
		return complain(fd, path);
	reply = ask(fd, request, &error);
	close(fd);
	if (!reply)
		return complain(error, path);
	error_text = json_string_value(json_object_get(reply, "error"));
	if (how.json) {
		json_dumpf(reply, stdout, JSON_INDENT(2));
		putchar('\n');
	} else if (error_text) {
		fprintf(stderr, "attnctl: %s\n", error_text);
	} else {
		print_reply(reply, command, how.text);
	}
	error = error_text ? EXIT_ERROR : EXIT_SUCCESS;
	json_decref(reply);
	return fflush(stdout) ? EXIT_ERROR : error;
}

static int command_line(const char *path, const char *command, char **words, struct how how)
{
	json_t *request = json_pack("{s:s}", "command", command);
	int r = EXIT_SUCCESS;

	for (; request && *words && r == EXIT_SUCCESS; words++) {
		if (add_argument(request, *words))
			continue;
		fprintf(stderr, "attnctl: \"%s\" is not NAME=VALUE, or its value is none of that kind\n", *words);
		r = EXIT_USAGE;
	}
	if (r == EXIT_SUCCESS)
		r = run(path, command, request, how);
	json_decref(request);
	return r;
}

int main(int argc, char **argv)
{
	static const struct option options[] = {
		{"socket", required_argument, NULL, 's'}, {"json", no_argument, NULL, 'j'},
		{"text", no_argument, NULL, 't'},	  {"help", no_argument, NULL, 'h'},
		{"version", no_argument, NULL, 'v'},	  {0}};
	static const char *const commands[] = {"status", "sessions", "caches", "plan",	"pins", "tree",
					       "pin",	 "unpin",    "flush",  "evict", "set"};
	const char *path = NULL;
	struct how how = {0};
	int option;

	while ((option = getopt_long(argc, argv, "h", options, NULL)) != -1) {
		switch (option) {
		case 's':
			path = optarg;
			break;
		case 'j':
			how.json = true;
			break;
		case 't':
			how.text = true;
			break;
		case 'h':
			print_help(stdout);
			return EXIT_SUCCESS;
		case 'v':
			puts("attnctl " ATTND_VERSION);
			return EXIT_SUCCESS;
		default:
			return EXIT_USAGE;
		}
	}
	for (size_t i = 0; argc > optind && i < sizeof(commands) / sizeof(commands[0]); i++)
		if (strcmp(commands[i], argv[optind]) == 0)
			return command_line(path, commands[i], argv + optind + 1, how);
	if (argc > optind)
		fprintf(stderr, "attnctl: \"%s\" is no command\n", argv[optind]);
	print_help(stderr);
	return EXIT_USAGE;
}
