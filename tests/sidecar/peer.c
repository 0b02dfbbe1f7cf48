/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One request, by whoever this is, wherever it is.
 *
 * In: a socket; "hold": stay connected until killed. Out: "cached N" of 64 tokens; exit 0 if it was
 * served. Next: sidecar.sh.
 */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "../integration/toy.h"

int main(int argc, char **argv)
{
	struct attnd_connect_options options = {.socket = argc > 1 ? argv[1] : NULL, .name = "sidecar"};
	uint64_t tokens[64], cached = 0;
	struct toy t;
	attnd_t *a = NULL;
	int e = attnd_connect(&a, &options);

	toy_tokens(tokens, 64, 1);
	if (!e)
		e = toy_open(&t, a, 1);
	if (!e)
		e = toy_prefill(&t, 1, tokens, 64, &cached);
	if (e) {
		fprintf(stderr, "peer: %s\n", attnd_strerror(a, e));
		return 1;
	}
	printf("cached %d\n", (int)cached);
	fflush(stdout);
	while (argc > 2)
		pause();
	attnd_disconnect(a);
	return 0;
}
