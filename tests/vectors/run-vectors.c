/* SPDX-License-Identifier: Apache-2.0 */
/*
 * run-vectors: golden vectors against a daemon of its own, as TAP.
 *
 * In:   folders of vectors, or folders of such folders.
 * Out:  a line a folder: every out within tolerance * bound + 1e-6, every lse within its
 *       tolerance; what this daemon does not store is skipped with its reason.
 * Next: prove.
 */
#include <dirent.h>
#include <errno.h>
#include <getopt.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "feed.h"

#define ABSOLUTE_TOLERANCE 1e-6

enum { WHY_BYTES = 512 };

/* Machines may be emulated or loaded: what counts is what comes out. */
#define PATIENCE .timeout_us = 60000000, .default_deadline_us = 300000000

static const char usage[] = "Usage: run-vectors [--chunk N] [--layout packed|bshd|bhsd] [--block-size B]\n"
			    "                   [--cpu-mask FEATURES] [--log] DIR...\n"
			    "--log: the daemon says which kernels it chose\n";

struct options {
	struct feed_options feed;
	const char *cpu_mask; /* of the daemon, or NULL */
	const char *log_level;
};

struct folders {
	char **paths;
	uint32_t count;
};

static int is_case(const char *dir)
{
	char path[PATH_MAX];

	return (size_t)snprintf(path, sizeof(path), "%s/case.json", dir) < sizeof(path) && !access(path, R_OK);
}

static int add_folder(struct folders *f, const char *path)
{
	char **paths = reallocarray(f->paths, f->count + 1, sizeof(*paths));

	if (!paths)
		return -ENOMEM;
	f->paths = paths;
	paths[f->count] = strdup(path);
	if (!paths[f->count])
		return -ENOMEM;
	f->count++;
	return 0;
}

static int add_path(struct folders *f, const char *path)
{
	struct dirent **entries;
	char inner[PATH_MAX];
	int rc = 0, n;

	if (is_case(path))
		return add_folder(f, path);
	n = scandir(path, &entries, NULL, alphasort);
	if (n < 0) {
		fprintf(stderr, "run-vectors: %s: %s\n", path, strerror(errno));
		return -ENOENT;
	}
	for (int i = 0; i < n; i++) {
		size_t length = (size_t)snprintf(inner, sizeof(inner), "%s/%s", path, entries[i]->d_name);
		if (!rc && length < sizeof(inner) && entries[i]->d_name[0] != '.' && is_case(inner))
			rc = add_folder(f, inner);
		free(entries[i]);
	}
	free(entries);
	return rc;
}

static int lse_ok(float got, float want, double tolerance)
{
	return isinf(want) ? got == want : fabs((double)got - (double)want) <= tolerance;
}

/* The number of wrong values; the first is shown, and how near to the limit the worst came. */
static size_t compare(const struct vector_case *c, const float *out, const float *lse)
{
	size_t wrong = 0, n = c->num_rows * c->num_heads;
	double worst = 0;

	for (size_t i = 0; i < n * c->head_dim_v; i++) {
		double limit = c->tolerance * (double)c->bound[i] + ABSOLUTE_TOLERANCE;
		double distance = fabs((double)out[i] - (double)c->out[i]);
		worst = fmax(worst, distance / limit);
		if (!(distance <= limit) && !wrong++)
			printf("# row %zu, head %zu, dim %zu: out %.9g, expected %.9g within %.3g\n",
			       i / c->head_dim_v / c->num_heads, i / c->head_dim_v % c->num_heads, i % c->head_dim_v,
			       (double)out[i], (double)c->out[i], limit);
	}
	for (size_t i = 0; i < n; i++)
		if (!lse_ok(lse[i], c->lse[i], c->lse_tolerance) && !wrong++)
			printf("# row %zu, head %zu: lse %.9g, expected %.9g within %.3g\n", i / c->num_heads,
			       i % c->num_heads, (double)lse[i], (double)c->lse[i], c->lse_tolerance);
	printf("# %s: %zu rows, %zu keys, worst out at %.3f of its limit\n", c->name, c->num_rows, c->num_keys,
	       worst);
	return wrong;
}

/* A KV dtype, or a layout of it, that this daemon does not have is no failure of the vectors. */
static int is_skip(int rc, const char *why)
{
	return rc == -EOPNOTSUPP || (rc == -EINVAL && strstr(why, "kv_dtype"));
}

/* Each case is an engine of its own: all caches of one engine would take part in its opens. */
static int feed_in_session(const char *socket, const struct vector_case *c, uint32_t number,
			   const struct feed_options *options, float *ret_out, float *ret_lse, char why[WHY_BYTES])
{
	struct attnd_connect_options connect = {.socket = socket, .name = "run-vectors", PATIENCE};
	const char *what = "attnd_connect";
	attnd_t *a = NULL;
	int rc = attnd_connect(&a, &connect);

	if (!rc)
		rc = feed_case(a, c, number, options, ret_out, ret_lse, &what);
	if (rc)
		snprintf(why, WHY_BYTES, "%s: %s", what, attnd_strerror(a, rc));
	attnd_disconnect(a);
	return rc;
}

/* One line of TAP, and 1 if it says "not ok". */
static int run_case(const char *socket, const struct vector_case *c, uint32_t number,
		    const struct feed_options *options)
{
	size_t rows = c->num_rows * c->num_heads + 1, wrong = 0;
	float *out = calloc(rows * c->head_dim_v, sizeof(*out)), *lse = calloc(rows, sizeof(*lse));
	char why[WHY_BYTES] = "out of memory";
	int rc = out && lse ? feed_in_session(socket, c, number, options, out, lse, why) : -ENOMEM;

	if (!rc && (wrong = compare(c, out, lse)) != 0)
		snprintf(why, sizeof(why), "%zu values are wrong", wrong);
	free(out);
	free(lse);
	if (rc && is_skip(rc, why)) {
		printf("ok %u - %s # SKIP %s\n", number + 1, c->name, why);
		return 0;
	}
	if (rc || wrong) {
		printf("# %s\nnot ok %u - %s\n", why, number + 1, c->name);
		return 1;
	}
	printf("ok %u - %s\n", number + 1, c->name);
	return 0;
}

static int run_folder(const char *socket, const char *dir, uint32_t number, const struct feed_options *options)
{
	struct vector_case *c;
	char why[WHY_BYTES];
	int failed;

	if (case_load(&c, dir, why, sizeof(why))) {
		printf("# %s\nnot ok %u - %s\n", why, number + 1, dir);
		return 1;
	}
	failed = run_case(socket, c, number, options);
	case_free(c);
	fflush(stdout);
	return failed;
}

static int parse_count(const char *text, uint32_t *ret)
{
	char *end;
	unsigned long n = strtoul(text, &end, 10);

	if (end == text || *end || *text == '-' || n < 1 || n > 1 << 24)
		return -EINVAL;
	*ret = (uint32_t)n;
	return 0;
}

static int parse_layout(const char *text, enum attnd_layout *ret)
{
	static const char *const names[] = {[ATTND_PACKED] = "packed", [ATTND_BSHD] = "bshd", [ATTND_BHSD] = "bhsd"};

	for (unsigned i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
		if (!strcmp(text, names[i])) {
			*ret = (enum attnd_layout)i;
			return 0;
		}
	}
	return -EINVAL;
}

static int parse_options(int argc, char **argv, struct options *ret)
{
	static const struct option long_options[] = {
		{"chunk", required_argument, NULL, 'c'},
		{"layout", required_argument, NULL, 'l'},
		{"block-size", required_argument, NULL, 'b'},
		{"cpu-mask", required_argument, NULL, 'm'},
		{"log", no_argument, NULL, 'v'},
		{NULL, 0, NULL, 0},
	};
	int option, rc = 0;

	while (!rc && (option = getopt_long(argc, argv, "", long_options, NULL)) != -1) {
		if (option == 'm')
			ret->cpu_mask = optarg;
		else if (option == 'v')
			ret->log_level = "info";
		else
			rc = option == 'c'   ? parse_count(optarg, &ret->feed.chunk)
			     : option == 'l' ? parse_layout(optarg, &ret->feed.layout)
			     : option == 'b' ? parse_count(optarg, &ret->feed.block_size)
					     : -EINVAL;
	}
	return rc || optind == argc ? -EINVAL : 0;
}

int main(int argc, char **argv)
{
	const struct attnd_connect_options patient = {PATIENCE};
	struct options options = {.log_level = "warn"};
	struct folders folders = {0};
	attnd_t *a = NULL;
	int rc, failed = 0;

	if (parse_options(argc, argv, &options)) {
		fputs(usage, stderr);
		return 2;
	}
	for (int i = optind; i < argc; i++)
		if (add_path(&folders, argv[i]))
			return 2;
	const char *const flags[] = {"--pool-size",
				     "128M",
				     "--hugepages",
				     "off",
				     "--log-level",
				     options.log_level,
				     options.cpu_mask ? "--cpu-mask" : NULL,
				     options.cpu_mask,
				     NULL};
	rc = attnd_private_start(&a, flags, &patient);
	if (rc) {
		printf("Bail out! no daemon: %s\n", attnd_strerror(NULL, rc));
		return 1;
	}
	printf("1..%u\n", folders.count);
	for (uint32_t i = 0; i < folders.count; i++)
		failed |= run_folder(attnd_socket(a), folders.paths[i], i, &options.feed);
	attnd_disconnect(a);
	for (uint32_t i = 0; i < folders.count; i++)
		free(folders.paths[i]);
	free(folders.paths);
	return failed;
}
