/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The command line: see options.h.
 */
#include "options.h"

#include <errno.h>
#include <getopt.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char usage[] =
	"Usage: attnd-runner --model DIR (--prompt TEXT | --prompts FILE) [OPTION]...\n"
	"Continue prompts with a small Llama whose tokens are bytes; attention is attnd's.\n"
	"\n"
	"  --model DIR         config.json and model.safetensors\n"
	"  --prompt TEXT       one prompt; its text appears while it is made\n"
	"  --prompts FILE      many: one JSON string a line\n"
	"  --socket PATH       the daemon's socket (default: $ATTND_SOCKET, $XDG_RUNTIME_DIR/attnd.sock,\n"
	"                      /run/attnd/attnd.sock)\n"
	"  --local             attention in this process, without a daemon\n"
	"  --max-new N         tokens to generate (96)\n"
	"  --temperature T     0: the likeliest token (0)\n"
	"  --seed S            of the draws with a temperature (1)\n"
	"  --chunk N           prompt tokens of one step (256)\n"
	"  --batch N           prompts decoded together (32)\n"
	"  --kv-dtype TYPE     what the cache stores: f32, f16 or bf16 (f32)\n"
	"  --json              one object a prompt instead of text and table\n"
	"  --help, --version\n"
	"\n"
	"Exit status: 0 done, 1 failed, 2 wrong usage.\n";

enum {
	MODEL = 1,
	PROMPT,
	PROMPTS,
	SOCKET,
	LOCAL,
	MAX_NEW,
	TEMPERATURE,
	SEED,
	CHUNK,
	BATCH,
	KV_DTYPE,
	JSON,
	HELP,
	VERSION
};

static const struct option long_options[] = {
	{"model", required_argument, NULL, MODEL},
	{"prompt", required_argument, NULL, PROMPT},
	{"prompts", required_argument, NULL, PROMPTS},
	{"socket", required_argument, NULL, SOCKET},
	{"local", no_argument, NULL, LOCAL},
	{"max-new", required_argument, NULL, MAX_NEW},
	{"temperature", required_argument, NULL, TEMPERATURE},
	{"seed", required_argument, NULL, SEED},
	{"chunk", required_argument, NULL, CHUNK},
	{"batch", required_argument, NULL, BATCH},
	{"kv-dtype", required_argument, NULL, KV_DTYPE},
	{"json", no_argument, NULL, JSON},
	{"help", no_argument, NULL, HELP},
	{"version", no_argument, NULL, VERSION},
	{NULL, 0, NULL, 0},
};

static int complain(const char *what, const char *value)
{
	fprintf(stderr, "attnd-runner: %s%s%s; see --help\n", what, value ? ": " : "", value ? value : "");
	return -EINVAL;
}

/* What an option may be. */
static int refuse(int option, const char *text, const char *may_be)
{
	const struct option *o = long_options;

	while (o->val != option)
		o++;
	fprintf(stderr, "attnd-runner: --%s: \"%s\" is not %s; see --help\n", o->name, text, may_be);
	return -EINVAL;
}

static int parse_number(int option, const char *text, uint64_t low, uint64_t high, uint64_t *ret)
{
	char *end, may_be[64];
	unsigned long long n;

	errno = 0;
	n = strtoull(text, &end, 10);
	if (errno || end == text || *end || *text == '-' || n < low || n > high) {
		snprintf(may_be, sizeof(may_be), "a number from %" PRIu64 " to %" PRIu64, low, high);
		return refuse(option, text, may_be);
	}
	*ret = n;
	return 0;
}

static int parse_count(int option, const char *text, uint32_t high, uint32_t *ret)
{
	uint64_t n;
	int rc = parse_number(option, text, 1, high, &n);

	if (!rc)
		*ret = (uint32_t)n;
	return rc;
}

static int parse_temperature(const char *text, float *ret)
{
	char *end;
	float x = strtof(text, &end);

	if (end == text || *end || !(x >= 0) || !isfinite(x))
		return refuse(TEMPERATURE, text, "a number of 0 or more");
	*ret = x;
	return 0;
}

static int parse_kv_dtype(const char *text, enum kv_dtype *ret)
{
	static const char *const names[] = {[KV_F32] = "f32", [KV_F16] = "f16", [KV_BF16] = "bf16"};

	for (unsigned i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
		if (!strcmp(text, names[i])) {
			*ret = (enum kv_dtype)i;
			return 0;
		}
	}
	return refuse(KV_DTYPE, text, "f32, f16 or bf16");
}

static int apply(struct options *o, int option, char *value)
{
	switch (option) {
	case MODEL:
		o->model = value;
		return 0;
	case PROMPT:
		o->prompt = value;
		return 0;
	case PROMPTS:
		o->prompts = value;
		return 0;
	case SOCKET:
		o->socket = value;
		return 0;
	case LOCAL:
		o->local = 1;
		return 0;
	case JSON:
		o->json = 1;
		return 0;
	case MAX_NEW:
		return parse_count(option, value, 1 << 24, &o->max_new);
	case CHUNK:
		return parse_count(option, value, 1 << 16, &o->chunk);
	case BATCH:
		return parse_count(option, value, 4096, &o->batch);
	case SEED:
		return parse_number(option, value, 0, UINT64_MAX, &o->seed);
	case TEMPERATURE:
		return parse_temperature(value, &o->temperature);
	case KV_DTYPE:
		return parse_kv_dtype(value, &o->kv_dtype);
	case HELP:
		fputs(usage, stdout);
		return 1;
	case VERSION:
		puts("attnd-runner " ATTND_VERSION);
		return 1;
	default: /* getopt has named it */
		return -EINVAL;
	}
}

int options_parse(struct options *ret, int argc, char **argv)
{
	struct options o = {.max_new = 96, .chunk = 256, .batch = 32, .seed = 1};
	int option, rc = 0;

	while (!rc && (option = getopt_long(argc, argv, "", long_options, NULL)) != -1)
		rc = apply(&o, option, optarg);
	if (rc)
		return rc;
	if (optind < argc)
		return complain("no arguments but options are taken", argv[optind]);
	if (!o.model)
		return complain("--model is missing", NULL);
	if (!o.prompt == !o.prompts)
		return complain("one of --prompt and --prompts is needed", NULL);
	if (o.local && o.socket)
		return complain("--local and --socket exclude each other", NULL);
	*ret = o;
	return 0;
}
