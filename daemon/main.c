/* SPDX-License-Identifier: Apache-2.0 */
/*
 * attnd: the service. Puts the parts together and takes them apart.
 *
 * In:   argv, the environment, the configuration file. Out: an exit code: 0 after an orderly end,
 *       2 for a wrong configuration, 1 for anything else.
 * Next: config.c, listener.c, leader.c, control.c.
 */
#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <unistd.h>

#include "control.h"
#include "log.h"

#define EXIT_CONFIG 2
#define MIN_FDS	    48 /* of the daemon itself about 42; libzmq aborts where it gets none */

/* A session takes a handful of descriptors and its segments one each. */
static int raise_fd_limit(void)
{
	struct rlimit limit;

	if (getrlimit(RLIMIT_NOFILE, &limit))
		return 0;
	if (limit.rlim_max < MIN_FDS) {
		log_err("the limit of descriptors (LimitNOFILE, ulimit -n) is %llu: at least %d",
			(unsigned long long)limit.rlim_max, MIN_FDS);
		return -EMFILE;
	}
	if (limit.rlim_cur == limit.rlim_max)
		return 0;
	limit.rlim_cur = limit.rlim_max;
	if (setrlimit(RLIMIT_NOFILE, &limit))
		log_warn("cannot raise the limit of descriptors: %s", strerror(errno));
	return 0;
}

static int prepare_process(const struct config *cfg)
{
	int r;

	log_set_level((enum log_level)cfg->log_level);
	control_block_signals();
	r = raise_fd_limit();
	prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
	/* Other processes of our user must not read tenants' memory through /proc; a private daemon is its user's. */
	if (cfg->private_fd < 0)
		prctl(PR_SET_DUMPABLE, 0, 0, 0, 0);
	else
		fcntl(cfg->private_fd, F_SETFD, FD_CLOEXEC);
	json_object_seed(0); /* before there are threads */
	return r;
}

/* The listener holds the lock while the pool is made: a second daemon is refused before it takes memory. */
static int serve(const struct config *cfg, char *const argv[])
{
	struct listener listener;
	struct control *control = NULL;
	struct leader *leader = NULL;
	uint64_t instance;
	int r;

	if (getrandom(&instance, sizeof(instance), 0) != sizeof(instance))
		return -EIO;
	r = listener_claim(cfg, &listener);
	if (r)
		return r;
	r = control_create(cfg, argv, instance, NULL, &control);
	if (r)
		log_err("cannot start the control thread: %s", strerror(-r));
	if (r == 0)
		r = leader_start(cfg, instance, control_mailbox(control), &leader);
	if (r == 0)
		r = listener_open(&listener);
	if (r == 0)
		r = control_start(control, leader, &listener);
	if (r == 0) {
		log_info("attnd " ATTND_VERSION " serves %s", cfg->socket);
		r = control_run(control);
	}
	if (!leader && r == -EINTR) {
		log_info("told to end before it served");
		r = 0;
	}
	if (leader && r) { /* its thread still runs on what would be freed: leave the rest to the kernel */
		leader_unlink(leader);
		listener_close(&listener, cfg->private_fd >= 0);
		_exit(r == -EINTR ? EXIT_SUCCESS : EXIT_FAILURE);
	}
	leader_destroy(leader);
	control_destroy(control);
	listener_close(&listener, cfg->private_fd >= 0);
	return r;
}

int main(int argc, char **argv)
{
	struct config cfg;
	char text[600];
	int r;

	(void)argc;
	if (config_load(&cfg, argv, environ, text, sizeof(text))) {
		log_err("%s", text);
		return EXIT_CONFIG;
	}
	r = 0;
	if (cfg.help) {
		config_help(stdout);
	} else if (cfg.version) {
		puts("attnd " ATTND_VERSION);
	} else if (cfg.print_config) {
		config_print(&cfg, stdout);
	} else if (!cfg.check_config) {
		r = prepare_process(&cfg);
		r = r ? r : serve(&cfg, argv);
		if (r == 0)
			log_info("ended");
	}
	if (!r && (fflush(stdout) || ferror(stdout)) && (cfg.help || cfg.version || cfg.print_config)) {
		log_err("standard output could not be written");
		r = -EIO;
	}
	config_free(&cfg);
	return r ? EXIT_FAILURE : EXIT_SUCCESS;
}
