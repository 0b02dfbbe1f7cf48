/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A fuzzer without libFuzzer: runs it over files.
 *
 * In: paths of seeds, or of inputs that once failed; none: all of $SRC/tests/fuzz/seeds/NAME.
 * Out: TAP. Next: the fuzzer.
 */
#include <dirent.h>
#include <string.h>

#include "fuzz.h"

enum { MOST = 1 << 16 };

static void run(const char *path, unsigned n)
{
	static uint8_t data[MOST];
	FILE *f = fopen(path, "re");
	size_t bytes = f ? fread(data, 1, sizeof(data), f) : 0;
	uint8_t *exact = malloc(bytes + !bytes); /* so that a read beyond its end is seen */

	MUST(f && exact);
	fclose(f);
	memcpy(exact, data, bytes);
	LLVMFuzzerTestOneInput(exact, bytes);
	free(exact);
	printf("ok %u - %s\n", n, strrchr(path, '/') ? strrchr(path, '/') + 1 : path);
	fflush(stdout);
}

static unsigned run_seeds(const char *program)
{
	const char *src = getenv("SRC"), *name = strrchr(program, '_');
	char dir[1024], path[1300];
	struct dirent *e;
	unsigned n = 0;

	snprintf(dir, sizeof(dir), "%s/tests/fuzz/seeds/%s", src ? src : ".", name ? name + 1 : "");
	DIR *dp = opendir(dir);
	MUST(dp);
	while ((e = readdir(dp))) {
		if (*e->d_name == '.')
			continue;
		snprintf(path, sizeof(path), "%s/%s", dir, e->d_name);
		run(path, ++n);
	}
	closedir(dp);
	return n;
}

int main(int argc, char **argv)
{
	unsigned n = 0;

	for (int i = 1; i < argc; i++)
		run(argv[i], ++n);
	if (argc == 1)
		n = run_seeds(argv[0]);
	printf("1..%u\n", n);
	return n ? 0 : 1;
}
