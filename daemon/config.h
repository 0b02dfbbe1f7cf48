/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The configuration: defaults, then the file, then ATTND_* in the environment, then flags.
 *
 * In:   argv, environment, /etc/attnd/attnd.conf. Out: struct config. Next: main.c, leader.c.
 *
 * One line a key feeds the parser, --help, --print-config and attnd.conf's checker:
 * X(section, key, type, member, default, help).
 */
#ifndef ATTND_DAEMON_CONFIG_H
#define ATTND_DAEMON_CONFIG_H

#include <stdbool.h>
#include <stdint.h>

enum config_hugepages { CONFIG_HUGE_AUTO, CONFIG_HUGE_OFF, CONFIG_HUGE_REQUIRE };

struct config {
	char *socket;	      /* listening path; NULL before defaults are applied */
	char *admin_socket;   /* administrators' path; default: socket + ".admin" */
	char *socket_group;   /* group that may connect; "" : the daemon's own */
	uint32_t socket_mode; /* octal, 0660 */
	char *share_group;    /* realm of all peers of the shared socket; "": by uid */

	uint64_t pool_size;   /* bytes; 0: 1/8 of free memory, at most 2 GiB */
	uint64_t slab_size;   /* bytes; 0: 1/64 of the pool, 2 to 64 MiB, a multiple of 2 MiB */
	uint64_t meta_size;   /* bytes; 0: by the pool's size */
	uint64_t arena_max;   /* bytes of all registered segments; 0: 4 GiB */
	enum config_hugepages hugepages;

	uint32_t threads;     /* that execute, the leader included; 0: one a CPU allowed */
	uint32_t spin_us;     /* of leader, workers; before they sleep */
	char *cpu_mask;	      /* "" or features to take away */

	uint32_t max_sessions;	/* all */
	uint32_t max_sequences; /* of one engine */
	uint32_t max_segment_mb;
	bool drain_on_term;

	/* of the command line */
	char *config_file;
	bool check_config, print_config, help, version;
	int private_fd; /* -1, or: end when this descriptor reads end of file (attnd_private_start) */
};

#endif
