/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A runner that goes on whatever happens to the daemon.
 *
 * In:   a socket, a number of requests (0: until SIGTERM), a file, milliseconds between requests.
 * Out:  the file says how far it is: "done N resets N wrong N cached-after-reset N"; exit 0 if no output
 *       was ever wrong.
 * Next: inside.sh, deb-inside.sh.
 */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "../integration/toy.h"

enum { PROMPTS = 4, TOKENS = 96, PATIENCE_US = 20000000 };

static volatile sig_atomic_t end_;

static void on_term(int sig)
{
	(void)sig;
	end_ = 1;
}

struct counts {
	unsigned long done, resets, wrong, cached;
};

static void tell(int fd, const struct counts *c)
{
	char text[128];
	int n = snprintf(text, sizeof(text), "done %-8lu resets %-8lu wrong %-8lu cached-after-reset %-8lu\n",
			 c->done, c->resets, c->wrong, c->cached);

	if (pwrite(fd, text, (size_t)n, 0) != n)
		_exit(3);
}

static int fail_with(const attnd_t *a, const char *what, int e)
{
	fprintf(stderr, "client: %s: %s\n", what, attnd_strerror(a, e));
	return 2;
}

/* One request; its last output is what the first one of this prompt was, whoever computed the keys. */
static int request(struct toy *t, uint64_t key, unsigned prompt, uint64_t *ret_cached, float *ret_out)
{
	uint64_t tokens[TOKENS];
	int e;

	toy_tokens(tokens, TOKENS, 1000 * prompt);
	e = toy_prefill(t, key, tokens, TOKENS, ret_cached);
	if (e)
		return e;
	memcpy(ret_out, t->out + (TOKENS - 1 - *ret_cached) * TOY_ROW_FLOATS, TOY_ROW_FLOATS * sizeof(float));
	return attnd_seq_close(t->a, key);
}

int main(int argc, char **argv)
{
	struct attnd_connect_options options = {.socket = argv[1], .name = "systemd-test", .timeout_us = PATIENCE_US};
	static float first[PROMPTS][TOY_ROW_FLOATS], out[TOY_ROW_FLOATS];
	struct counts c = {0};
	bool known[PROMPTS] = {false}, after_reset = false;
	unsigned long most = argc > 2 ? strtoul(argv[2], NULL, 10) : 0;
	unsigned pause_ms = argc > 4 ? (unsigned)strtoul(argv[4], NULL, 10) : 0;
	int fd = argc > 3 ? open(argv[3], O_WRONLY | O_CREAT | O_CLOEXEC, 0644) : STDOUT_FILENO, e;
	uint64_t cached;
	struct toy t;
	attnd_t *a;

	signal(SIGTERM, on_term);
	e = attnd_connect(&a, &options);
	if (e)
		return fail_with(NULL, "connect", e);
	e = toy_open(&t, a, 1);
	if (e)
		return fail_with(a, "cache", e);
	for (uint64_t key = 1; !end_ && (!most || c.done < most); key++) {
		unsigned prompt = (unsigned)(key % PROMPTS);

		e = request(&t, key, prompt, &cached, out);
		if (e == -ECONNRESET) {
			c.resets++;
			after_reset = true;
		} else if (e) {
			return fail_with(a, "request", e);
		} else {
			c.done++;
			if (after_reset && known[prompt]) {
				c.cached = (unsigned long)cached;
				after_reset = false;
			}
			if (!known[prompt])
				memcpy(first[prompt], out, sizeof(out));
			known[prompt] = true;
			c.wrong += memcmp(first[prompt], out, sizeof(out)) != 0;
		}
		tell(fd, &c);
		if (pause_ms)
			usleep(1000 * pause_ms);
	}
	attnd_disconnect(a);
	return c.wrong ? 1 : 0;
}
