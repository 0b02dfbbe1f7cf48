/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The configuration: defaults, then the file, then ATTND_* in the environment, then flags.
 *
 * In:   argv, environment, /etc/attnd/attnd.conf. Out: struct config. Next: main.c, leader.c.
 */
#ifndef ATTND_DAEMON_CONFIG_H
#define ATTND_DAEMON_CONFIG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

enum config_hugepages { CONFIG_HUGE_AUTO, CONFIG_HUGE_OFF, CONFIG_HUGE_REQUIRE };
enum config_eviction { CONFIG_EVICT_LRU, CONFIG_EVICT_PRIORITY };
enum config_event_loop { CONFIG_LOOP_AUTO, CONFIG_LOOP_URING, CONFIG_LOOP_EPOLL };

/*
 * One line a key feeds the struct's sources, the three parsers, --help, --print-config and the
 * reload: X(section, key, type, member, default, min, max, when, help). A key's name is unique
 * over the sections: it is the flag's name too, and ATTND_ and capitals make the variable's.
 * `when`: RELOAD changes with SIGHUP, START needs a restart.
 */
#define CONFIG_KEYS(X)                                                                                              \
	X(socket, "socket", STRING, socket, "", 0, 0, START,                                                        \
	  "listening socket; empty: $XDG_RUNTIME_DIR/attnd.sock, for root and services /run/attnd/attnd.sock")      \
	X(socket, "admin-socket", STRING, admin_socket, "", 0, 0, START,                                            \
	  "administrators' socket; empty: the listening socket's path + .admin")                                    \
	X(socket, "socket-group", STRING, socket_group, "", 0, 0, START,                                            \
	  "group that may connect; empty: the daemon's own")                                                        \
	X(socket, "socket-mode", MODE, socket_mode, "0660", 0, 0777, START, "mode of the listening socket, octal")  \
	X(socket, "share-group", STRING, share_group, "", 0, 0, START,                                              \
	  "name of the realm that all peers share; empty: each uid has its own")                                    \
	X(socket, "allow-users", STRING, allow_users, "", 0, 0, RELOAD,                                             \
	  "users (names or numbers, separated by commas) that may connect; both lists empty: all")                  \
	X(socket, "allow-groups", STRING, allow_groups, "", 0, 0, RELOAD, "groups that may connect")                \
	X(socket, "tenants", STRING, tenants, "", 0, 0, RELOAD,                                                     \
	  "WHO:TENANT, separated by commas: who (user, @group, *) may name which tenant (or *); empty: all any")    \
	X(pool, "pool-size", SIZE, pool_size, "0", 0, UINT64_C(1) << 50, START,                                     \
	  "bytes of K/V; 0: 1/8 of the memory available, at most 2G")                                               \
	X(pool, "slab-size", SIZE, slab_size, "0", 0, UINT64_C(1) << 40, START,                                     \
	  "bytes that caches trade, a multiple of 2M; 0: 1/64 of the pool, 2M to 64M")                              \
	X(pool, "meta-size", SIZE, meta_size, "0", 0, UINT64_C(1) << 44, START,                                     \
	  "bytes of block descriptors and tables; 0: by the pool's size")                                           \
	X(pool, "peek-entries", U32, peek_entries, "65536", 0, 1 << 28, START,                                      \
	  "full blocks that clients of a realm can look up by themselves, a power of two; 0: none")                 \
	X(pool, "arena-max", SIZE, arena_max, "4G", 1 << 20, UINT64_C(1) << 50, RELOAD,                             \
	  "bytes of all memory that clients may register")                                                          \
	X(pool, "hugepages", HUGE, hugepages, "auto", 0, 0, START, "auto, off or require")                          \
	X(pool, "pool-path", STRING, pool_path, "", 0, 0, START,                                                    \
	  "directory on hugetlbfs or tmpfs for the pool's files, which outlive the daemon; empty: none")            \
	X(pool, "numa", BOOL, numa, "true", 0, 1, START, "bind the pool to NUMA nodes")                             \
	X(engine, "threads", U32, threads, "0", 0, 1024, START,                                                     \
	  "threads that execute, the leader included; 0: one for each CPU allowed")                                 \
	X(engine, "pin", BOOL, pin, "true", 0, 1, START, "keep each thread that executes on a CPU of its own")      \
	X(engine, "spin-us", U32, spin_us, "20", 0, 1000000, START, "microseconds that idle threads spin")          \
	X(engine, "cpu-mask", CPUMASK, cpu_mask, "", 0, 0, START,                                                   \
	  "CPU features not to use, separated by commas; none: portable C only")                                    \
	X(engine, "event-loop", LOOP, event_loop, "auto", 0, 0, START, "auto, io_uring or epoll")                   \
	X(limits, "max-sessions", U32, max_sessions, "256", 1, 65536, RELOAD, "clients connected at once")          \
	X(limits, "max-sessions-per-uid", U32, max_sessions_per_uid, "0", 0, 65536, RELOAD,                         \
	  "of one uid; 0: three quarters of max-sessions")                                                          \
	X(limits, "pin-budget", U32, pin_budget, "25", 0, 100, RELOAD,                                              \
	  "percent of the pool that administrators may pin")                                                        \
	X(limits, "namespace-quota", U32, namespace_quota, "100", 1, 100, RELOAD,                                   \
	  "percent of the pool that the sequences of a namespace may hold, beside what is free")                    \
	X(limits, "session-quota", U32, session_quota, "100", 1, 100, RELOAD,                                       \
	  "percent of the pool that the sequences of an engine may hold, beside what is free")                      \
	X(limits, "cache-shares", STRING, cache_shares, "", 0, 0, RELOAD,                                           \
	  "NAME:MIN:MAX, separated by commas: percent of the pool that caches of a name keep, and take at most")    \
	X(limits, "eviction", EVICTION, eviction, "lru", 0, 0, RELOAD,                                              \
	  "what goes first: lru, or priority (the least first, then lru)")                                          \
	X(limits, "max-sequences", U32, max_sequences, "65536", 1, 1 << 24, RELOAD, "open sequences of one engine") \
	X(limits, "max-sequences-per-uid", U32, max_sequences_per_uid, "0", 0, UINT32_MAX, START,                   \
	  "of all engines of one uid; 0: no limit")                                                                 \
	X(limits, "max-tokens", SIZE, max_tokens, "0", 0, UINT64_C(1) << 50, START,                                 \
	  "tokens in the open sequences of one engine; 0: no limit")                                                \
	X(limits, "max-tokens-per-uid", SIZE, max_tokens_per_uid, "0", 0, UINT64_C(1) << 50, START,                 \
	  "of all engines of one uid; 0: no limit")                                                                 \
	X(limits, "max-in-flight", U32, max_in_flight, "0", 0, UINT32_MAX, START,                                   \
	  "requests of one session that wait or run; 0: what its ring holds")                                       \
	X(limits, "max-in-flight-per-uid", U32, max_in_flight_per_uid, "0", 0, UINT32_MAX, START,                   \
	  "of all sessions of one uid; 0: no limit")                                                                \
	X(limits, "max-opens-per-second", U32, max_opens_per_second, "0", 0, UINT32_MAX, START,                     \
	  "sequences that one session may open a second; 0: no limit")                                              \
	X(limits, "max-opens-per-second-per-uid", U32, max_opens_per_second_per_uid, "0", 0, UINT32_MAX, START,     \
	  "that all sessions of one uid may open; 0: no limit")                                                     \
	X(limits, "arena-max-per-session", SIZE, arena_max_per_session, "0", 0, UINT64_C(1) << 50, RELOAD,          \
	  "of arena-max, bytes of one session; 0: no limit")                                                        \
	X(limits, "arena-max-per-uid", SIZE, arena_max_per_uid, "0", 0, UINT64_C(1) << 50, RELOAD,                  \
	  "of arena-max, bytes of one uid; 0: no limit")                                                            \
	X(limits, "max-segment-mb", U32, max_segment_mb, "0", 0, 1 << 24, RELOAD,                                   \
	  "MiB of one registered segment; 0: as much as arena-max")                                                 \
	X(limits, "drain-on-term", BOOL, drain_on_term, "true", 0, 1, RELOAD, "let running jobs finish at SIGTERM") \
	X(limits, "drain-timeout", U32, drain_timeout, "10", 1, 3600, RELOAD, "seconds that this may take")         \
	X(log, "log-level", LEVEL, log_level, "info", 0, 0, RELOAD, "err, warn, info or debug")                     \
	X(metrics, "metrics-listen", STRING, metrics_listen, "", 0, 0, START,                                       \
	  "loopback address and port (127.0.0.1:9464) that serves /metrics over HTTP; empty: none")                 \
	X(metrics, "metrics-series", U32, metrics_series, "64", 0, 1024, START,                                     \
	  "sessions, namespaces and caches told of one by one; the others are summed")                              \
	X(events, "events-socket", STRING, events_socket, "", 0, 0, START,                                          \
	  "ZeroMQ socket of the KV events; empty: the listening socket's path + .events; none: no events, as "      \
	  "where that path is too long")                                                                            \
	X(events, "events-queue", SIZE, events_queue, "4M", 65536, 1 << 30, START,                                  \
	  "bytes of changes that may wait to be told, a power of two")

enum {
#define CONFIG_X(section, key, type, member, ...) CONFIG_KEY_##member,
	CONFIG_KEYS(CONFIG_X)
#undef CONFIG_X
		CONFIG_NUM_KEYS,
};

enum config_source { CONFIG_FROM_DEFAULT, CONFIG_FROM_FILE, CONFIG_FROM_ENV, CONFIG_FROM_FLAG };

struct config {
	char *socket;	      /* listening path */
	char *admin_socket;   /* administrators' path */
	char *socket_group;   /* group that may connect; "": the daemon's own */
	uint32_t socket_mode; /* octal, 0660 */
	char *share_group;    /* realm of all peers of the shared socket; "": by uid */
	char *allow_users;    /* lists; "": all */
	char *allow_groups;
	char *tenants; /* rules; "": all may name any */

	uint64_t pool_size;    /* bytes; not 0 after config_load */
	bool pool_auto;	       /* it was 0: by the memory available, or what an earlier daemon left */
	uint64_t slab_size;    /* bytes; 0: 1/64 of the pool, 2 to 64 MiB, a multiple of 2 MiB */
	uint64_t meta_size;    /* bytes; 0: by the pool's size */
	uint32_t peek_entries; /* of a realm's peek table, a power of two; 0: none */
	uint64_t arena_max;    /* bytes of all registered segments; not 0 after config_load */
	enum config_hugepages hugepages;
	char *pool_path; /* "": none */
	bool numa;

	uint32_t threads; /* that execute, the leader included; 0: one a CPU allowed */
	bool pin;
	uint32_t spin_us; /* of leader, workers; before they sleep */
	char *cpu_mask;	  /* "" or features to take away */
	enum config_event_loop event_loop;

	uint32_t max_sessions;	       /* all */
	uint32_t max_sessions_per_uid; /* not 0 after config_load */
	uint32_t pin_budget;	       /* percent of the pool */
	uint32_t namespace_quota;      /* percent of the pool */
	uint32_t session_quota;	       /* percent of the pool */
	enum config_eviction eviction;
	char *cache_shares;	/* NAME:MIN:MAX, percent of the pool */
	uint32_t max_sequences; /* of one engine */
	uint32_t max_sequences_per_uid;
	uint64_t max_tokens, max_tokens_per_uid; /* 0: no limit, as in all of these */
	uint32_t max_in_flight, max_in_flight_per_uid;
	uint32_t max_opens_per_second, max_opens_per_second_per_uid;
	uint64_t arena_max_per_session, arena_max_per_uid; /* bytes */
	uint32_t max_segment_mb;			   /* not 0 after config_load */
	bool drain_on_term;
	uint32_t drain_timeout; /* seconds */
	uint32_t log_level;	/* enum log_level */
	char *metrics_listen;	/* "": no HTTP */
	char *events_socket;	/* path, or "none" */
	uint64_t events_queue;
	uint32_t metrics_series; /* sessions, namespaces and caches listed one by one */

	/* of the command line */
	char *config_file;
	bool check_config, print_config, help, version;
	int private_fd; /* -1, or: end when this descriptor reads end of file (attnd_private_start) */

	enum config_source source[CONFIG_NUM_KEYS];
};

/**
 * Read it all. 0, or a negative errno with a text in `err` that names the key and the file and
 * line, variable or flag. After --help and --version nothing else is read.
 */
int config_load(struct config *ret, char *const argv[], char *const env[], char *err, size_t err_size);

/** Free the strings. Fine on a zeroed struct. */
void config_free(struct config *cfg);

/** 0 or -ENOMEM. */
int config_copy(struct config *ret, const struct config *cfg);

/** As a file that config_load reads back to the same values (of up to a line each), with where they come from. */
void config_print(const struct config *cfg, FILE *out);

void config_help(FILE *out);

/**
 * Take over from `fresh` what may change while the daemon runs. Returns the names of changed keys
 * that need a restart, separated by spaces, in `needs_restart`.
 */
void config_reload(struct config *cfg, struct config *fresh, char *needs_restart, size_t size);

#endif
