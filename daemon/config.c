/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Read the configuration from its four places and check it as a whole.
 *
 * In:   argv, environment, an INI file. Out: struct config, or a text that names what is wrong
 * and where. Next: main.c.
 */
#include "config.h"

#include <assert.h>
#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <ini.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/un.h>
#include <unistd.h>

#include "../kernels/cpu.h"
#include "http.h"
#include "quota.h"
#include "log.h"
#include "memory.h"
#include "peer.h"
#include "tenant.h"

#define DEFAULT_FILE "/etc/attnd/attnd.conf"
#define MIB	     (UINT64_C(1) << 20)

enum type {
	TYPE_STRING,
	TYPE_SIZE,
	TYPE_U32,
	TYPE_MODE,
	TYPE_BOOL,
	TYPE_HUGE,
	TYPE_LOOP,
	TYPE_LEVEL,
	TYPE_CPUMASK,
	TYPE_EVICTION
};

struct key {
	const char *section, *name;
	enum type type;
	bool reload;
	size_t offset;
	const char *text; /* the default */
	uint64_t min, max;
	const char *help;
};

#define WHEN_START  false
#define WHEN_RELOAD true

static const struct key keys[CONFIG_NUM_KEYS] = {
#define CONFIG_X(section, key, type, member, text, min, max, when, help) \
	{#section, key, TYPE_##type, WHEN_##when, offsetof(struct config, member), text, min, max, help},
	CONFIG_KEYS(CONFIG_X)
#undef CONFIG_X
};

static const char *const huge_names[] = {"auto", "off", "require", NULL};
static const char *const loop_names[] = {"auto", "io_uring", "epoll", NULL};
static const char *const eviction_names[] = {"lru", "priority", NULL};
static const char *const level_names[] = {"err", "warn", "info", "debug", NULL};
static const char *const bool_names[] = {"false", "true", NULL};
static const char *const source_names[] = {"default", "file", "environment", "flag"};

static_assert(sizeof(enum config_hugepages) == 4 && sizeof(enum config_event_loop) == 4, "choices are stored as u32");

/* What is being read, for messages. */
struct loader {
	struct config *cfg;
	char *err;
	size_t err_size;
	const char *file;
	int line;		    /* of `file` */
	int lines[CONFIG_NUM_KEYS]; /* where a key was set there */
	int long_line;		    /* 0, or what one may have at most */
	int status;		    /* the first error: later ones are not reported */
};

__attribute__((format(printf, 2, 3))) static int fail(struct loader *l, const char *format, ...)
{
	va_list args;

	if (l->status == 0) {
		va_start(args, format);
		vsnprintf(l->err, l->err_size, format, args);
		va_end(args);
		l->status = -EINVAL;
	}
	return l->status;
}

/* ---- Values ---- */

static const char *const *choices(enum type type)
{
	return type == TYPE_HUGE       ? huge_names
	       : type == TYPE_LOOP     ? loop_names
	       : type == TYPE_EVICTION ? eviction_names
				       : level_names;
}

static void *member(const struct config *cfg, const struct key *k)
{
	return (char *)(uintptr_t)cfg + k->offset;
}

/* Digits with an optional suffix: -EINVAL, or -ERANGE where 64 bits do not hold it. */
static int parse_number(const char *text, int base, bool suffix, uint64_t *ret)
{
	static const char units[] = "KMGT";
	const char *unit;
	uint64_t value;
	char *end;
	int shift = 0;

	if (!isdigit((unsigned char)text[0]))
		return -EINVAL;
	errno = 0;
	value = strtoull(text, &end, base);
	if (errno)
		return -errno;
	if (suffix && *end && (unit = strchr(units, toupper((unsigned char)*end)))) {
		shift = 10 * (int)(unit - units + 1);
		end++;
	}
	if (*end)
		return -EINVAL;
	if (value > UINT64_MAX >> shift)
		return -ERANGE;
	*ret = value << shift;
	return 0;
}

static int find_choice(const char *const *names, const char *text)
{
	for (int i = 0; names[i]; i++)
		if (strcmp(names[i], text) == 0)
			return i;
	return -EINVAL;
}

/* "auto, off or require": for the message about a bad value. */
static void list_choices(const char *const *names, char *buf, size_t size)
{
	size_t n = 0;

	for (int i = 0; names[i] && n < size; i++)
		n += (size_t)snprintf(buf + n, size - n, "%s%s",
				      i == 0	     ? ""
				      : names[i + 1] ? ", "
						     : " or ",
				      names[i]);
}

static int set_string(struct loader *l, const struct key *k, const char *text, const char *where)
{
	char **string = member(l->cfg, k), features[256];
	uint64_t mask;
	char *copy;

	for (const char *p = text; *p; p++)
		if (iscntrl((unsigned char)*p))
			return fail(l, "%s: %s has a control character", where, k->name);
	if (k->type == TYPE_CPUMASK && *text && attnd_features_parse_mask(text, &mask)) {
		attnd_features_format((UINT64_C(1) << ATTND_CPU_BITS) - 1, features, sizeof(features));
		return fail(l, "%s: %s: \"%s\" is neither none nor a list of these, with commas: %s", where, k->name,
			    text, features);
	}
	copy = strdup(text);
	if (!copy)
		return fail(l, "%s: %s: out of memory", where, k->name);
	free(*string);
	*string = copy;
	return 0;
}

static void format_number(const struct key *k, uint64_t value, char *buf, size_t size)
{
	if (k->type == TYPE_SIZE)
		memory_format(value, buf, size);
	else
		snprintf(buf, size, k->type == TYPE_MODE ? "%04" PRIo64 : "%" PRIu64, value);
}

static int set_number(struct loader *l, const struct key *k, const char *text, const char *where)
{
	bool size = k->type == TYPE_SIZE;
	char min[24], max[24];
	uint64_t value;
	int r = parse_number(text, k->type == TYPE_MODE ? 8 : 10, size, &value);

	if (r || value < k->min || value > k->max) {
		format_number(k, k->min, min, sizeof(min));
		format_number(k, k->max, max, sizeof(max));
		return fail(l, "%s: %s: \"%s\" is not %s from %s to %s", where, k->name, text,
			    size		   ? "a size (digits, then K, M, G or T)"
			    : k->type == TYPE_MODE ? "an octal mode"
						   : "a number",
			    min, max);
	}
	if (size)
		*(uint64_t *)member(l->cfg, k) = value;
	else
		*(uint32_t *)member(l->cfg, k) = (uint32_t)value;
	return 0;
}

static int set_choice(struct loader *l, const struct key *k, const char *text, const char *where)
{
	const char *const *names = k->type == TYPE_BOOL ? bool_names : choices(k->type);
	int i = find_choice(names, text);
	char all[64];

	if (i < 0) {
		list_choices(names, all, sizeof(all));
		return fail(l, "%s: %s: \"%s\" is not %s", where, k->name, text, all);
	}
	if (k->type == TYPE_BOOL)
		*(bool *)member(l->cfg, k) = i != 0;
	else
		*(uint32_t *)member(l->cfg, k) = (uint32_t)i;
	return 0;
}

static int set_value(struct loader *l, const struct key *k, const char *text, const char *where)
{
	switch (k->type) {
	case TYPE_STRING:
	case TYPE_CPUMASK:
		return set_string(l, k, text, where);
	case TYPE_SIZE:
	case TYPE_U32:
	case TYPE_MODE:
		return set_number(l, k, text, where);
	default:
		return set_choice(l, k, text, where);
	}
}

/* The whole of it: a text of whatever length, or a number in buf. */
static const char *value_text(const struct config *cfg, const struct key *k, char *buf, size_t size)
{
	const void *m = member(cfg, k);

	switch (k->type) {
	case TYPE_STRING:
	case TYPE_CPUMASK:
		return *(char *const *)m;
	case TYPE_SIZE:
		format_number(k, *(const uint64_t *)m, buf, size);
		break;
	case TYPE_U32:
	case TYPE_MODE:
		format_number(k, *(const uint32_t *)m, buf, size);
		break;
	case TYPE_BOOL:
		return bool_names[*(const bool *)m];
	default:
		return choices(k->type)[*(const uint32_t *)m];
	}
	return buf;
}

/* A key from one of the three places; twice from the same one is a conflict. */
static int set_key(struct loader *l, size_t i, const char *text, enum config_source source, const char *where)
{
	int r;

	if (l->cfg->source[i] == source)
		return fail(l, "%s: %s is set twice", where, keys[i].name);
	r = set_value(l, &keys[i], text, where);
	if (r == 0)
		l->cfg->source[i] = source;
	return r;
}

static int find_key(const char *name, size_t *ret)
{
	for (size_t i = 0; i < CONFIG_NUM_KEYS; i++) {
		if (strcmp(keys[i].name, name) == 0) {
			*ret = i;
			return 0;
		}
	}
	return -ENOENT;
}

/* ---- The file ---- */

/*
 * inih tells no line numbers, cuts long lines and adds indented ones to the value before: count here, refuse
 * what it would cut, and let no line begin with spaces.
 */
static char *read_line(char *buf, int size, void *stream)
{
	struct loader *l = ((void **)stream)[0];
	char *line = fgets(buf, size, ((void **)stream)[1]);

	if (!line)
		return NULL;
	l->line++;
	if (!strchr(line, '\n') && !feof((FILE *)((void **)stream)[1])) {
		l->long_line = size - 2;
		return NULL;
	}
	memmove(line, line + strspn(line, " \t"), strlen(line + strspn(line, " \t")) + 1);
	/* Or what follows would be blamed for standing in the section before. */
	if (*line == '[' && !strchr(line, ']')) {
		fail(l, "%s:%d: a section's name ends with ]", l->file, l->line);
		return NULL;
	}
	return line;
}

static int file_key(void *user, const char *section, const char *name, const char *value)
{
	struct loader *l = user;
	char where[300];
	size_t i;

	snprintf(where, sizeof(where), "%s:%d", l->file, l->line);
	if (find_key(name, &i)) {
		fail(l, "%s: unknown key \"%s\"", where, name);
	} else if (strcmp(keys[i].section, section) != 0) {
		fail(l, "%s: %s belongs to section [%s]", where, name, keys[i].section);
	} else {
		l->lines[i] = l->line;
		set_key(l, i, value, CONFIG_FROM_FILE, where);
	}
	return l->status == 0;
}

static int load_file(struct loader *l)
{
	void *stream[2] = {l, NULL};
	FILE *f;
	int r;

	if (!l->cfg->config_file && l->cfg->private_fd >= 0)
		return 0; /* a private daemon is its client's, not the machine's */
	l->file = l->cfg->config_file ? l->cfg->config_file : DEFAULT_FILE;
	f = fopen(l->file, "re");
	if (!f && errno == ENOENT && !l->cfg->config_file)
		return 0;
	if (!f)
		return fail(l, "%s: %s", l->file, strerror(errno));
	stream[1] = f;
	r = ini_parse_stream(read_line, stream, file_key, l);
	if (l->long_line)
		fail(l, "%s:%d: the line is too long: at most %d bytes", l->file, l->line, l->long_line);
	if (ferror(f))
		fail(l, "%s: cannot be read", l->file);
	if (r > 0)
		fail(l, "%s:%d: neither a [section] nor key = value", l->file, r);
	fclose(f);
	return l->status;
}

/* ---- The environment ---- */

static void variable_name(const struct key *k, char buf[64])
{
	size_t n = (size_t)snprintf(buf, 64, "ATTND_%s", k->name);

	for (size_t i = 6; i < n && i < 63; i++)
		buf[i] = buf[i] == '-' ? '_' : (char)toupper((unsigned char)buf[i]);
}

static int find_variable(const char *name, size_t length, size_t *ret)
{
	char variable[64];

	for (size_t i = 0; i < CONFIG_NUM_KEYS; i++) {
		variable_name(&keys[i], variable);
		if (strlen(variable) == length && memcmp(variable, name, length) == 0) {
			*ret = i;
			return 0;
		}
	}
	return -ENOENT;
}

static int load_env(struct loader *l, char *const env[])
{
	/* The client libraries' own, which a daemon started beside them may inherit. */
	static const char daemon[] = "ATTND_DAEMON=", library[] = "ATTND_LIBRARY=";

	for (; *env; env++) {
		const char *equals = strchr(*env, '=');
		size_t i;
		char where[80];

		if (strncmp(*env, "ATTND_", 6) != 0 || !equals || strncmp(*env, daemon, sizeof(daemon) - 1) == 0 ||
		    strncmp(*env, library, sizeof(library) - 1) == 0)
			continue;
		snprintf(where, sizeof(where), "variable %.*s", (int)(equals - *env), *env);
		if (find_variable(*env, (size_t)(equals - *env), &i) == 0)
			set_key(l, i, equals + 1, CONFIG_FROM_ENV, where);
		else if (l->cfg->private_fd < 0) /* a private daemon inherits its application's */
			fail(l, "%s: no such key", where);
		if (l->status)
			break;
	}
	return l->status;
}

static const char *get_env(char *const env[], const char *name)
{
	size_t length = strlen(name);

	for (; *env; env++)
		if (strncmp(*env, name, length) == 0 && (*env)[length] == '=')
			return *env + length + 1;
	return NULL;
}

/* ---- The command line ---- */

static int set_private_fd(struct loader *l, const char *value)
{
	uint64_t fd;

	if (parse_number(value, 10, false, &fd) || fd > INT32_MAX)
		return fail(l, "flag --private-fd: \"%s\" is not a descriptor", value);
	if (fcntl((int)fd, F_GETFD) < 0)
		return fail(l, "flag --private-fd: descriptor %s is not open", value);
	l->cfg->private_fd = (int)fd;
	return 0;
}

/* Flags without a value. */
static bool set_switch(struct config *cfg, const char *name)
{
	const struct {
		const char *name;
		bool *member;
	} switches[] = {
		{"help", &cfg->help},
		{"version", &cfg->version},
		{"check-config", &cfg->check_config},
		{"print-config", &cfg->print_config},
	};

	for (size_t i = 0; i < sizeof(switches) / sizeof(switches[0]); i++) {
		if (strcmp(switches[i].name, name) == 0) {
			*switches[i].member = true;
			return true;
		}
	}
	return false;
}

static int set_flag(struct loader *l, const char *name, const char *value, bool want_keys)
{
	char where[80];
	size_t i;

	snprintf(where, sizeof(where), "flag --%s", name);
	if (strcmp(name, "private-fd") == 0)
		return want_keys ? 0 : set_private_fd(l, value);
	if (strcmp(name, "config") == 0) {
		if (want_keys)
			return 0;
		if (l->cfg->config_file)
			return fail(l, "%s is set twice", where);
		l->cfg->config_file = strdup(value);
		return l->cfg->config_file ? 0 : fail(l, "%s: out of memory", where);
	}
	if (find_key(name, &i))
		return fail(l, "%s: no such flag (--help lists them)", where);
	return want_keys ? set_key(l, i, value, CONFIG_FROM_FLAG, where) : 0;
}

static bool is_flag(const char *name)
{
	size_t i;

	return !strcmp(name, "private-fd") || !strcmp(name, "config") || !find_key(name, &i);
}

/* Twice over argv: what names the file first, the keys after file and environment. */
static int load_flags(struct loader *l, char *const argv[], bool want_keys)
{
	for (size_t i = argv[0] ? 1 : 0; argv[i] && l->status == 0; i++) {
		const char *flag = argv[i], *value;
		char name[64];

		if (strcmp(flag, "-h") == 0)
			flag = "--help";
		if (strncmp(flag, "--", 2) != 0 || !flag[2])
			return fail(l, "\"%s\" is not a flag (--help lists them)", flag);
		snprintf(name, sizeof(name), "%.*s", (int)strcspn(flag + 2, "="), flag + 2);
		value = strchr(flag, '=');
		if (set_switch(l->cfg, name)) {
			if (value)
				return fail(l, "flag --%s takes no value", name);
			continue;
		}
		value = value ? value + 1 : argv[++i];
		if (!value && is_flag(name))
			return fail(l, "flag --%s: its value is missing", name);
		if (set_flag(l, name, value, want_keys))
			return l->status;
	}
	return l->status;
}

/* ---- What is left open, and what does not go together ---- */

static int default_path(struct loader *l, char **path, const char *prefix, const char *suffix)
{
	char *text;

	if (**path)
		return 0;
	if (asprintf(&text, "%s%s", prefix, suffix) < 0)
		return fail(l, "out of memory");
	free(*path);
	*path = text;
	return 0;
}

static int resolve(struct loader *l, char *const env[])
{
	struct config *cfg = l->cfg;
	const char *dir = geteuid() == 0 ? NULL : get_env(env, "XDG_RUNTIME_DIR");

	if (default_path(l, &cfg->socket, dir && *dir ? dir : "/run/attnd", "/attnd.sock") ||
	    default_path(l, &cfg->admin_socket, cfg->socket, ".admin") ||
	    default_path(l, &cfg->events_socket, cfg->private_fd < 0 ? cfg->socket : "none",
			 cfg->private_fd < 0 ? ".events" : ""))
		return l->status;
	if (cfg->source[CONFIG_KEY_events_socket] == CONFIG_FROM_DEFAULT &&
	    strlen(cfg->events_socket) >= sizeof(((struct sockaddr_un *)0)->sun_path) - sizeof(".admin.replay"))
		strcpy(cfg->events_socket, "none"); /* no room for its names */
	cfg->pool_auto = cfg->pool_size == 0;
	if (cfg->pool_size == 0)
		cfg->pool_size = memory_default_pool();
	if (cfg->max_sessions_per_uid == 0)
		cfg->max_sessions_per_uid = (cfg->max_sessions * 3 + 3) / 4;
	if (cfg->max_segment_mb == 0)
		cfg->max_segment_mb =
			(uint32_t)(cfg->arena_max / MIB < UINT32_MAX ? cfg->arena_max / MIB : UINT32_MAX);
	return 0;
}

/* "pool-size (flag)", "slab-size (/etc/attnd/attnd.conf:3)" */
static const char *origin(const struct loader *l, int i, char buf[320])
{
	if (l->cfg->source[i] == CONFIG_FROM_FILE)
		snprintf(buf, 320, "%s (%s:%d)", keys[i].name, l->file, l->lines[i]);
	else
		snprintf(buf, 320, "%s (%s)", keys[i].name, source_names[l->cfg->source[i]]);
	return buf;
}

static int conflict(struct loader *l, int a, const char *how, int b)
{
	char first[320], second[320];

	return fail(l, "%s %s %s", origin(l, a, first), how, origin(l, b, second));
}

static int check_names(struct loader *l)
{
	struct config *cfg = l->cfg;
	struct tenant_rules tenants;
	struct limits limits;
	struct peer_ids ids;
	const char *bad;
	char at[320];

	if (*cfg->socket_group && !getgrnam(cfg->socket_group))
		return fail(l, "%s: there is no group \"%s\"", origin(l, CONFIG_KEY_socket_group, at),
			    cfg->socket_group);
	if (strlen(cfg->share_group) > 64 ||
	    strspn(cfg->share_group, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRST"
				     "UVWXYZ0123456789._-") != strlen(cfg->share_group))
		return fail(l, "%s: up to 64 letters, digits, '.', '_' or '-'",
			    origin(l, CONFIG_KEY_share_group, at));
	if ((bad = peer_list_parse(cfg->allow_users, PEER_USERS, &ids)))
		return fail(l, "%s: no user \"%s\", or more than 64", origin(l, CONFIG_KEY_allow_users, at), bad);
	if ((bad = peer_list_parse(cfg->allow_groups, PEER_GROUPS, &ids)))
		return fail(l, "%s: no group \"%s\", or more than 64", origin(l, CONFIG_KEY_allow_groups, at), bad);
	if ((bad = limits_parse_shares(cfg->cache_shares, &limits)))
		return fail(l, "%s: \"%s\": " LIMITS_SHARES, origin(l, CONFIG_KEY_cache_shares, at), bad);
	if ((bad = tenant_rules_parse(cfg->tenants, &tenants)))
		return fail(l, "%s: \"%s\" is not WHO:TENANT with a user, @group or *, or more than 64",
			    origin(l, CONFIG_KEY_tenants, at), bad);
	return 0;
}

/* With what is put behind it: ".lock" and the like. */
static int check_path(struct loader *l, int key, const char *path, const char *longest)
{
	const size_t most = sizeof(((struct sockaddr_un *)0)->sun_path) - 1 - strlen(longest);
	char at[320];

	if (strlen(path) > most)
		return fail(l, "%s: the path is longer than a UNIX socket's may be: at most %zu bytes",
			    origin(l, key, at), most);
	if (path[0] != '/')
		return fail(l, "%s: \"%s\" is not an absolute path", origin(l, key, at), path);
	return 0;
}

static bool is_with(const char *path, const char *start, const char *end)
{
	size_t n = strlen(start);

	return !strncmp(path, start, n) && !strcmp(path + n, end);
}

/* It stands for four sockets; none of them may be another's, or the lock. */
static int check_events(struct loader *l)
{
	static const char *const ends[] = {"", ".replay", ".admin", ".admin.replay"};
	const struct config *cfg = l->cfg;
	char lock[sizeof(((struct sockaddr_un *)0)->sun_path)];

	if (!strcmp(cfg->events_socket, "none"))
		return 0;
	if (check_path(l, CONFIG_KEY_events_socket, cfg->events_socket, ".admin.replay"))
		return l->status;
	snprintf(lock, sizeof(lock), "%s.lock", cfg->socket);
	for (size_t i = 0; i < sizeof(ends) / sizeof(*ends); i++) {
		if (is_with(cfg->socket, cfg->events_socket, ends[i]) || is_with(lock, cfg->events_socket, ends[i]))
			return conflict(l, CONFIG_KEY_events_socket, "(or one beside it) is the same path as",
					CONFIG_KEY_socket);
		if (is_with(cfg->admin_socket, cfg->events_socket, ends[i]))
			return conflict(l, CONFIG_KEY_events_socket, "(or one beside it) is the same path as",
					CONFIG_KEY_admin_socket);
	}
	return 0;
}

static int check(struct loader *l)
{
	struct config *cfg = l->cfg;
	struct sockaddr_storage address;
	char at[320];

	if (check_path(l, CONFIG_KEY_socket, cfg->socket, ".lock") ||
	    check_path(l, CONFIG_KEY_admin_socket, cfg->admin_socket, "") || check_events(l))
		return l->status;
	if (*cfg->pool_path && cfg->pool_path[0] != '/')
		return fail(l, "%s: \"%s\" is not an absolute path", origin(l, CONFIG_KEY_pool_path, at),
			    cfg->pool_path);
	if (strcmp(cfg->socket, cfg->admin_socket) == 0)
		return conflict(l, CONFIG_KEY_admin_socket, "is the same path as", CONFIG_KEY_socket);
	if (is_with(cfg->admin_socket, cfg->socket, ".lock"))
		return conflict(l, CONFIG_KEY_admin_socket, "is the path of the lock of", CONFIG_KEY_socket);
	if (cfg->slab_size % (2 * MIB))
		return fail(l, "%s: not a multiple of 2M", origin(l, CONFIG_KEY_slab_size, at));
	if (cfg->slab_size > cfg->pool_size)
		return conflict(l, CONFIG_KEY_slab_size, "is more than", CONFIG_KEY_pool_size);
	if (cfg->peek_entries & (cfg->peek_entries - 1) || (cfg->peek_entries && cfg->peek_entries < 8))
		return fail(l, "%s: neither 0 nor a power of two of at least 8",
			    origin(l, CONFIG_KEY_peek_entries, at));
	if (cfg->max_sessions_per_uid > cfg->max_sessions)
		return conflict(l, CONFIG_KEY_max_sessions_per_uid, "is more than", CONFIG_KEY_max_sessions);
	if (cfg->max_segment_mb * MIB > cfg->arena_max)
		return conflict(l, CONFIG_KEY_max_segment_mb, "is more than", CONFIG_KEY_arena_max);
	if (cfg->arena_max_per_session > cfg->arena_max)
		return conflict(l, CONFIG_KEY_arena_max_per_session, "is more than", CONFIG_KEY_arena_max);
	if (cfg->arena_max_per_uid > cfg->arena_max)
		return conflict(l, CONFIG_KEY_arena_max_per_uid, "is more than", CONFIG_KEY_arena_max);
	if (cfg->events_queue & (cfg->events_queue - 1))
		return fail(l, "%s: not a power of two", origin(l, CONFIG_KEY_events_queue, at));
	if (*cfg->metrics_listen && http_address(cfg->metrics_listen, &address))
		return fail(l, "%s: not a loopback address and a port, such as 127.0.0.1:9464",
			    origin(l, CONFIG_KEY_metrics_listen, at));
	return check_names(l);
}

/* ---- The interface ---- */

int config_load(struct config *ret, char *const argv[], char *const env[], char *err, size_t err_size)
{
	struct config cfg = {.private_fd = -1};
	struct loader l = {.cfg = &cfg, .err = err, .err_size = err_size};

	for (size_t i = 0; i < CONFIG_NUM_KEYS; i++)
		set_value(&l, &keys[i], keys[i].text, "default");
	if (l.status == 0 && load_flags(&l, argv, false) == 0 && !cfg.help && !cfg.version && load_file(&l) == 0 &&
	    load_env(&l, env) == 0 && load_flags(&l, argv, true) == 0 && resolve(&l, env) == 0)
		check(&l);
	if (l.status) {
		config_free(&cfg);
		return l.status;
	}
	*ret = cfg;
	return 0;
}

void config_free(struct config *cfg)
{
	for (size_t i = 0; i < CONFIG_NUM_KEYS; i++)
		if (keys[i].type == TYPE_STRING || keys[i].type == TYPE_CPUMASK)
			free(*(char **)member(cfg, &keys[i]));
	free(cfg->config_file);
	*cfg = (struct config){.private_fd = -1};
}

int config_copy(struct config *ret, const struct config *cfg)
{
	struct config copy = *cfg;
	bool short_of_memory = false;

	for (size_t i = 0; i < CONFIG_NUM_KEYS; i++) {
		if (keys[i].type == TYPE_STRING || keys[i].type == TYPE_CPUMASK) {
			char **string = member(&copy, &keys[i]);

			*string = strdup(*string);
			short_of_memory |= !*string;
		}
	}
	copy.config_file = cfg->config_file ? strdup(cfg->config_file) : NULL;
	if (short_of_memory || (cfg->config_file && !copy.config_file)) {
		config_free(&copy);
		return -ENOMEM;
	}
	*ret = copy;
	return 0;
}

void config_print(const struct config *cfg, FILE *out)
{
	const char *section = "";
	char value[64];

	for (size_t i = 0; i < CONFIG_NUM_KEYS; i++) {
		if (strcmp(section, keys[i].section) != 0) {
			section = keys[i].section;
			fprintf(out, "%s[%s]\n", i ? "\n" : "", section);
		}
		fprintf(out, "%s = %s ; %s\n", keys[i].name, value_text(cfg, &keys[i], value, sizeof(value)),
			source_names[cfg->source[i]]);
	}
}

void config_help(FILE *out)
{
	fputs("usage: attnd [--KEY VALUE | --KEY=VALUE] ...\n"
	      "\n"
	      "The service that owns the KV cache of a machine and runs attention where it lies.\n"
	      "\n"
	      "  --config FILE          read FILE instead of " DEFAULT_FILE "\n"
	      "  --check-config         read and check the configuration, then exit\n"
	      "  --print-config         print it, with where each value comes from, then exit\n"
	      "  --private-fd N         end when descriptor N reads end of file\n"
	      "  --help, --version\n"
	      "\n"
	      "A key stands in the file as key = value in its section, in the environment as ATTND_KEY\n"
	      "(capitals, _ for -), or as a flag; the later of these wins. Sizes take K, M, G or T.\n",
	      out);
	for (size_t i = 0; i < CONFIG_NUM_KEYS; i++) {
		if (i == 0 || strcmp(keys[i - 1].section, keys[i].section) != 0)
			fprintf(out, "\n[%s]\n", keys[i].section);
		fprintf(out, "  --%-22s %s (%s)\n", keys[i].name, keys[i].help,
			*keys[i].text ? keys[i].text : "empty");
	}
}

static void swap_member(struct config *a, struct config *b, const struct key *k)
{
	static const size_t sizes[] = {[TYPE_STRING] = sizeof(char *),
				       [TYPE_CPUMASK] = sizeof(char *),
				       [TYPE_SIZE] = 8,
				       [TYPE_U32] = 4,
				       [TYPE_MODE] = 4,
				       [TYPE_BOOL] = sizeof(bool),
				       [TYPE_HUGE] = 4,
				       [TYPE_LOOP] = 4,
				       [TYPE_LEVEL] = 4,
				       [TYPE_EVICTION] = 4};
	char saved[8];

	memcpy(saved, member(a, k), sizes[k->type]);
	memcpy(member(a, k), member(b, k), sizes[k->type]);
	memcpy(member(b, k), saved, sizes[k->type]);
}

void config_reload(struct config *cfg, struct config *fresh, char *needs_restart, size_t size)
{
	char old[64], new[64];
	size_t n = 0;

	needs_restart[0] = '\0';
	for (size_t i = 0; i < CONFIG_NUM_KEYS; i++) {
		if (strcmp(value_text(cfg, &keys[i], old, sizeof(old)),
			   value_text(fresh, &keys[i], new, sizeof(new))) == 0)
			continue;
		if (keys[i].reload) {
			swap_member(cfg, fresh, &keys[i]);
			cfg->source[i] = fresh->source[i];
		} else if (n < size) {
			n += (size_t)snprintf(needs_restart + n, size - n, "%s%s", n ? " " : "", keys[i].name);
		}
	}
}
