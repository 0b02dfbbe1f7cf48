/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The configuration: where values come from, what is refused and how it is named.
 *
 * In: argv, an environment, files. Out: TAP. Next: daemon/config.c.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "../../daemon/config.h"
#include "../../daemon/log.h"

static char file[] = "/tmp/attnd-test-config-XXXXXX";

static int group_start(void **state)
{
	int fd = mkstemp(file);

	(void)state;
	close(fd);
	return fd < 0;
}

static int group_end(void **state)
{
	(void)state;
	return unlink(file);
}

static void write_file(const char *text)
{
	FILE *f = fopen(file, "we");

	assert_non_null(f);
	fputs(text, f);
	fclose(f);
}

#define LIST(...) ((char *[]){__VA_ARGS__ __VA_OPT__(, ) NULL})

/* `text` in the file, env, argv after "attnd --config FILE". */
static int load(struct config *cfg, const char *text, char *const env[], char *const flags[], char *err)
{
	char *argv[32] = {(char[]){"attnd"}, (char[]){"--config"}, file};
	size_t n = 3;

	write_file(text);
	while (*flags)
		argv[n++] = *flags++;
	return config_load(cfg, argv, env, err, 512);
}

static void accept(struct config *cfg, const char *text, char *const env[], char *const flags[])
{
	char err[512] = "";

	if (load(cfg, text, env, flags, err))
		fail_msg("refused: %s", err);
}

/* Refused, and every one of these words is in the text. */
static void refuse(const char *text, char *const env[], char *const flags[], char *const words[])
{
	struct config cfg;
	char err[512] = "";

	if (load(&cfg, text, env, flags, err) != -EINVAL)
		fail_msg("not refused: %s", text);
	for (; *words; words++)
		if (!strstr(err, *words))
			fail_msg("no \"%s\" in: %s", *words, err);
}

static void test_defaults(void **state)
{
	struct config cfg;

	(void)state;
	accept(&cfg, "", LIST("XDG_RUNTIME_DIR=/run/user/7"), LIST());
	if (geteuid() == 0)
		assert_string_equal(cfg.socket, "/run/attnd/attnd.sock");
	else
		assert_string_equal(cfg.socket, "/run/user/7/attnd.sock");
	assert_memory_equal(cfg.admin_socket, cfg.socket, strlen(cfg.socket));
	assert_string_equal(cfg.admin_socket + strlen(cfg.socket), ".admin");
	assert_int_equal(cfg.socket_mode, 0660);
	assert_in_range(cfg.pool_size, 16 << 20, UINT64_C(2) << 30);
	assert_int_equal(cfg.pool_size % (2 << 20), 0);
	assert_int_equal(cfg.arena_max, UINT64_C(4) << 30);
	assert_int_equal(cfg.max_segment_mb, 4096);
	assert_int_equal(cfg.max_sessions, 256);
	assert_int_equal(cfg.max_sessions_per_uid, 192);
	assert_int_equal(cfg.private_fd, -1);
	assert_true(cfg.drain_on_term);
	assert_int_equal(cfg.log_level, LOG_LEVEL_INFO);
	config_free(&cfg);
}

static void test_order(void **state)
{
	const char text[] = "# a comment\n[pool]\npool-size = 64M ; another\n[limits]\nmax-sessions = 10\n"
			    "drain-on-term=false\n[engine]\nevent-loop = epoll\n";
	struct config cfg;

	(void)state;
	accept(&cfg, text,
	       LIST("ATTND_POOL_SIZE=128M", "ATTND_MAX_SESSIONS=11", "HOME=/", "ATTND_DAEMON=/x", "ATTND_LIBRARY=/y"),
	       LIST("--pool-size", "256M", "--spin-us=5"));
	assert_int_equal(cfg.pool_size, 256 << 20);
	assert_int_equal(cfg.source[CONFIG_KEY_pool_size], CONFIG_FROM_FLAG);
	assert_int_equal(cfg.max_sessions, 11);
	assert_int_equal(cfg.source[CONFIG_KEY_max_sessions], CONFIG_FROM_ENV);
	assert_int_equal(cfg.event_loop, CONFIG_LOOP_EPOLL);
	assert_int_equal(cfg.source[CONFIG_KEY_event_loop], CONFIG_FROM_FILE);
	assert_false(cfg.drain_on_term);
	assert_int_equal(cfg.spin_us, 5);
	assert_int_equal(cfg.source[CONFIG_KEY_threads], CONFIG_FROM_DEFAULT);
	config_free(&cfg);
}

static void test_sizes(void **state)
{
	static const struct {
		const char *text;
		uint64_t bytes;
	} good[] = {{"4096K", 4 << 20},	       {"16M", 16 << 20},	  {"16m", 16 << 20},
		    {"3G", UINT64_C(3) << 30}, {"1T", UINT64_C(1) << 40}, {"2097152", 2 << 20}};
	static const char *const bad[] = {"",	       "-1",
					  "+1",	       "1.5G",
					  "G",	       "1Gi",
					  "1GB",       "1 G",
					  "0x10",      "99999999999999999999",
					  "99999999T", "18446744073709551615"};
	struct config cfg;
	char flag[64];

	(void)state;
	for (size_t i = 0; i < sizeof(good) / sizeof(good[0]); i++) {
		snprintf(flag, sizeof(flag), "--pool-size=%s", good[i].text);
		accept(&cfg, "", LIST(), LIST(flag));
		assert_int_equal(cfg.pool_size, good[i].bytes);
		config_free(&cfg);
	}
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		snprintf(flag, sizeof(flag), "--pool-size=%s", bad[i]);
		refuse("", LIST(), LIST(flag), LIST("flag --pool-size", "pool-size"));
	}
}

static void test_refusals_name_the_place(void **state)
{
	(void)state;
	refuse("[pool]\n\nsize = 1\n", LIST(), LIST(), LIST(file, ":3", "unknown key", "size"));
	refuse("[engine]\npool-size = 1M\n", LIST(), LIST(), LIST(file, ":2", "pool-size", "[pool]"));
	refuse("pool-size = 1M\n", LIST(), LIST(), LIST(":1", "[pool]"));
	refuse("[pool]\npool-size = 16M\npool-size = 32M\n", LIST(), LIST(), LIST(":3", "pool-size", "twice"));
	refuse("[pool]\npool-size = 16M\n 32M\n", LIST(), LIST(), LIST(":3", "neither"));
	refuse("[pool]\npool-size\n", LIST(), LIST(), LIST(":2"));
	refuse("[pool\npool-size = 16M\n", LIST(), LIST(), LIST(":1", "]"));
	refuse("[limits]\nmax-sessions = 0\n", LIST(), LIST(), LIST(":2", "max-sessions", "65536"));
	refuse("[limits]\nmax-sessions = many\n", LIST(), LIST(), LIST(":2", "max-sessions", "many"));
	refuse("[limits]\ndrain-on-term = yes\n", LIST(), LIST(), LIST(":2", "drain-on-term", "true"));
	refuse("[pool]\nhugepages = maybe\n", LIST(), LIST(), LIST("hugepages", "maybe", "auto, off or require"));
	refuse("[socket]\nsocket-mode = 0999\n", LIST(), LIST(), LIST("socket-mode", "octal"));
	refuse("[engine]\ncpu-mask = mmx\n", LIST(), LIST(), LIST("cpu-mask", "mmx"));
	refuse("", LIST("ATTND_POOLSIZE=1G"), LIST(), LIST("variable ATTND_POOLSIZE"));
	refuse("", LIST("ATTND_POOL_SIZE=x"), LIST(), LIST("variable ATTND_POOL_SIZE", "pool-size"));
	refuse("", LIST(), LIST("--poolsize", "1G"), LIST("flag --poolsize"));
	refuse("", LIST(), LIST("--poolsize"), LIST("flag --poolsize", "no such flag"));
	refuse("", LIST(), LIST("--pool-size"), LIST("flag --pool-size", "value is missing"));
	refuse("", LIST(), LIST("--private-fd"), LIST("flag --private-fd", "value is missing"));
	refuse("", LIST(), LIST("--pool-size=1G", "--pool-size=2G"), LIST("flag --pool-size", "twice"));
	refuse("", LIST(), LIST("--config=/x"), LIST("flag --config", "twice"));
	refuse("", LIST(), LIST("pool"), LIST("\"pool\""));
	refuse("", LIST(), LIST("--help=1"), LIST("--help"));
	refuse("", LIST(), LIST("--private-fd=500"), LIST("--private-fd", "500"));
	refuse("", LIST(), LIST("--private-fd=x"), LIST("--private-fd"));
}

static void test_long_line(void **state)
{
	char text[400] = "[socket]\nsocket = /";

	(void)state;
	memset(text + strlen(text), 'a', 300);
	refuse(text, LIST(), LIST(), LIST(":2", "too long", "at most 198 bytes"));
	strcpy(text + 319, "\n");
	refuse(text, LIST(), LIST(), LIST(":2", "too long"));
}

/* As a page shows it. */
static void test_indented(void **state)
{
	struct config cfg;

	(void)state;
	accept(&cfg, "    [engine]\n    threads = 3  ; of four\n\tspin-us = 7\n", LIST(), LIST());
	assert_int_equal(cfg.threads, 3);
	assert_int_equal(cfg.spin_us, 7);
	config_free(&cfg);
}

static void test_conflicts(void **state)
{
	char path[160];

	(void)state;
	refuse("", LIST(), LIST("--socket=/a/b", "--admin-socket=/a/b"), LIST("admin-socket", "socket", "flag"));
	refuse("[pool]\npool-size = 16M\n", LIST("ATTND_SLAB_SIZE=32M"), LIST(),
	       LIST("slab-size (environment)", "pool-size", ":2"));
	refuse("", LIST(), LIST("--slab-size=3M", "--pool-size=16M"), LIST("slab-size", "2M"));
	refuse("", LIST(), LIST("--max-sessions=4", "--max-sessions-per-uid=5"),
	       LIST("max-sessions-per-uid (flag)", "max-sessions (flag)"));
	refuse("", LIST(), LIST("--arena-max=16M", "--max-segment-mb=17"), LIST("max-segment-mb", "arena-max"));
	refuse("", LIST(), LIST("--socket=relative"), LIST("socket (flag)", "absolute"));
	snprintf(path, sizeof(path), "--socket=/%0120d", 1);
	refuse("", LIST(), LIST(path), LIST("socket", "longer"));
	refuse("", LIST(), LIST("--socket-group=no-such-group"), LIST("socket-group", "no-such-group"));
	refuse("", LIST(), LIST("--allow-users=root,no-such-user"), LIST("allow-users", "no-such-user"));
	refuse("", LIST(), LIST("--tenants=root:a,no-such-user:b"), LIST("tenants", "no-such-user:b"));
	refuse("", LIST(), LIST("--tenants=root"), LIST("tenants", "root", "WHO:TENANT"));
	refuse("", LIST(), LIST("--allow-groups=4294967295"), LIST("allow-groups", "4294967295"));
	refuse("", LIST(), LIST("--share-group=a b"), LIST("share-group"));
	refuse("", LIST(), LIST("--arena-max=16M", "--arena-max-per-uid=17M"),
	       LIST("arena-max-per-uid", "arena-max (flag)"));
	refuse("", LIST(), LIST("--arena-max=16M", "--arena-max-per-session=17M"),
	       LIST("arena-max-per-session", "arena-max (flag)"));
}

/* Each socket has its own path, with those that a key makes beside its own. */
static void test_same_paths(void **state)
{
	static const char *const events[] = {"/a/b", "/a/b.admin", "/a/b.lock"};
	struct config cfg;
	char flag[64];

	(void)state;
	refuse("", LIST(), LIST("--socket=/a/b", "--admin-socket=/a/b.lock"),
	       LIST("admin-socket", "lock", "socket (flag)"));
	for (size_t i = 0; i < sizeof(events) / sizeof(*events); i++) {
		snprintf(flag, sizeof(flag), "--events-socket=%s", events[i]);
		refuse("", LIST(), LIST("--socket=/a/b", flag), LIST("events-socket (flag)", "same path", "socket"));
	}
	refuse("", LIST(), LIST("--socket=/a/e.admin", "--events-socket=/a/e"),
	       LIST("events-socket (flag)", "socket"));
	refuse("", LIST(), LIST("--socket=/a/b", "--admin-socket=/a/e.replay", "--events-socket=/a/e"),
	       LIST("events-socket (flag)", "admin-socket (flag)"));
	refuse("", LIST(), LIST("--socket=/a/b", "--admin-socket=/a/b.events.admin"),
	       LIST("events-socket", "admin-socket"));
	accept(&cfg, "", LIST(), LIST("--socket=/a/b", "--events-socket=/a/bc"));
	config_free(&cfg);
}

/* A refusal says what would do: its range, its number, its choices. */
static void test_refusals_name_the_limit(void **state)
{
	(void)state;
	refuse("", LIST(), LIST("--max-sessions="), LIST("max-sessions", "\"\" is not a number from 1 to 65536"));
	refuse("", LIST(), LIST("--max-sessions=-1"), LIST("\"-1\" is not a number from 1 to 65536"));
	refuse("", LIST(), LIST("--threads=1025"), LIST("\"1025\" is not a number from 0 to 1024"));
	refuse("", LIST(), LIST("--arena-max=1"), LIST("\"1\" is not a size", "from 1M to 1024T"));
	refuse("", LIST(), LIST("--socket-mode=1000"), LIST("\"1000\" is not an octal mode from 0000 to 0777"));
	refuse("", LIST(), LIST("--cpu-mask=mmx"), LIST("\"mmx\" is neither none nor", "avx2", "rvv"));
	refuse("", LIST(),
	       LIST("--socket=/aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
		    "aaaaaaaaaaaaaaaaaaaaaaaaaaaa"),
	       LIST("socket (flag)", "at most 102 bytes"));
	refuse("", LIST(), LIST("--allow-users=0,nobody-such"), LIST("no user \"nobody-such\", or more than 64"));
	refuse("", LIST(), LIST("--cache-shares=a:60:50"), LIST("cache-shares", "a:60:50", "MIN <= MAX", "16"));
	refuse("", LIST(), LIST("--cache-shares=a:10:50,b::,a::60"), LIST("cache-shares", "a::60", "once"));
}

/* A reload sees what changes at the end of a long list, and it is printed as a whole. */
static void test_long_list(void **state)
{
	char flag[2100] = "--tenants=", restart[256], *text;
	struct config a, b;
	size_t n, size;
	FILE *f;

	(void)state;
	for (int i = 0; i < 60; i++)
		snprintf(flag + strlen(flag), sizeof(flag) - strlen(flag), "root:a-long-name-%02d,", i);
	n = strlen(flag);
	assert_in_range(n, 1000, sizeof(flag) - 10);
	strcpy(flag + n, "root:x");
	accept(&a, "", LIST(), LIST(flag));
	strcpy(flag + n, "root:y");
	accept(&b, "", LIST(), LIST(flag));
	config_reload(&a, &b, restart, sizeof(restart));
	assert_string_equal(a.tenants, flag + strlen("--tenants="));
	f = open_memstream(&text, &size);
	config_print(&a, f);
	fclose(f);
	assert_non_null(strstr(text, "root:y ; "));
	free(text);
	config_free(&a);
	config_free(&b);
}

static void test_private(void **state)
{
	struct config cfg;
	char err[512];

	(void)state;
	/* Its application's environment is no mistake of the daemon's user. */
	assert_int_equal(config_load(&cfg, LIST("attnd", "--private-fd", "0"), LIST("ATTND_OF_THE_APPLICATION=1"),
				     err, sizeof(err)),
			 0);
	assert_int_equal(cfg.private_fd, 0);
	config_free(&cfg);
}

static void test_switches(void **state)
{
	struct config cfg;
	char err[512];

	(void)state;
	assert_int_equal(config_load(&cfg, LIST("attnd", "--version", "--config", "/no/such"), LIST("ATTND_X=1"), err,
				     sizeof(err)),
			 0);
	assert_true(cfg.version);
	config_free(&cfg);
	assert_int_equal(config_load(&cfg, LIST("attnd", "--config", "/no/such/file"), LIST(), err, sizeof(err)),
			 -EINVAL);
	assert_non_null(strstr(err, "/no/such/file"));
	accept(&cfg, "", LIST(), LIST("--check-config", "--print-config"));
	assert_true(cfg.check_config && cfg.print_config);
	config_free(&cfg);
}

/* Where a value comes from, behind it, is another. */
static void strip_origins(char *text)
{
	char *to = text;

	for (bool keep = true; *text; text++) {
		keep = *text == '\n' || (keep && *text != ';');
		if (keep)
			*to++ = *text;
	}
	*to = '\0';
}

/* What --print-config prints is a file that gives the same configuration. */
static void test_print_reads_back(void **state)
{
	struct config a, b;
	char *first, *second;
	size_t size;
	FILE *f;

	(void)state;
	accept(&a, "", LIST(),
	       LIST("--pool-size=48M", "--arena-max=5000000", "--socket-mode=0600", "--share-group=team",
		    "--hugepages=require", "--drain-on-term=false", "--allow-users=root,7", "--log-level=debug"));
	f = open_memstream(&first, &size);
	config_print(&a, f);
	fclose(f);
	accept(&b, first, LIST(), LIST());
	f = open_memstream(&second, &size);
	config_print(&b, f);
	fclose(f);
	strip_origins(first);
	strip_origins(second);
	assert_string_equal(first, second);
	free(first);
	free(second);
	config_free(&a);
	config_free(&b);
}

static void test_copy_and_reload(void **state)
{
	struct config old, copy, fresh;
	char restart[256];

	(void)state;
	accept(&old, "[limits]\nmax-sessions = 10\n[socket]\nallow-users = root\n", LIST(), LIST());
	assert_int_equal(config_copy(&copy, &old), 0);
	assert_string_equal(copy.allow_users, "root");
	assert_ptr_not_equal(copy.allow_users, old.allow_users);
	accept(&fresh, "[limits]\nmax-sessions = 20\n[pool]\npool-size = 32M\n[log]\nlog-level=debug\n", LIST(),
	       LIST());
	config_reload(&copy, &fresh, restart, sizeof(restart));
	assert_int_equal(copy.max_sessions, 20);
	assert_int_equal(copy.max_sessions_per_uid, 15);
	assert_string_equal(copy.allow_users, "");
	assert_int_equal(copy.log_level, LOG_LEVEL_DEBUG);
	assert_int_equal(copy.pool_size, old.pool_size);
	assert_string_equal(restart, "pool-size");
	config_free(&old);
	config_free(&copy);
	config_free(&fresh);
}

/* The installed file shows every key; uncommented, it changes nothing. */
static void test_installed_file(void **state)
{
	const char *src = getenv("SRC");
	char path[512], line[256], text[16384] = "";
	struct config with, without;
	size_t keys = 0;
	FILE *f;

	(void)state;
	snprintf(path, sizeof(path), "%s/systemd/attnd.conf", src ? src : ".");
	f = fopen(path, "re");
	assert_non_null(f);
	while (fgets(line, sizeof(line), f)) {
		bool key = line[0] == '#' && line[1] >= 'a' && line[1] <= 'z';

		keys += key;
		strcat(text, line + key);
	}
	fclose(f);
	assert_int_equal(keys, CONFIG_NUM_KEYS);
	accept(&with, text, LIST(), LIST());
	accept(&without, "", LIST(), LIST());
	without.pool_size = with.pool_size; /* what is available changes */
	for (size_t i = 0; i < CONFIG_NUM_KEYS; i++)
		assert_int_equal(with.source[i], CONFIG_FROM_FILE);
	config_reload(&without, &with, text, sizeof(text));
	assert_string_equal(text, "");
	config_free(&with);
	config_free(&without);
}

static void test_help(void **state)
{
	char *text;
	size_t size;
	FILE *f = open_memstream(&text, &size);

	(void)state;
	config_help(f);
	fclose(f);
#define CONFIG_X(section, key, ...) assert_non_null(strstr(text, "--" key " "));
	CONFIG_KEYS(CONFIG_X)
#undef CONFIG_X
	free(text);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_defaults),
		cmocka_unit_test(test_order),
		cmocka_unit_test(test_sizes),
		cmocka_unit_test(test_refusals_name_the_place),
		cmocka_unit_test(test_indented),
		cmocka_unit_test(test_long_line),
		cmocka_unit_test(test_conflicts),
		cmocka_unit_test(test_same_paths),
		cmocka_unit_test(test_refusals_name_the_limit),
		cmocka_unit_test(test_long_list),
		cmocka_unit_test(test_private),
		cmocka_unit_test(test_switches),
		cmocka_unit_test(test_print_reads_back),
		cmocka_unit_test(test_copy_and_reload),
		cmocka_unit_test(test_installed_file),
		cmocka_unit_test(test_help),
	};

	return cmocka_run_group_tests(tests, group_start, group_end);
}
