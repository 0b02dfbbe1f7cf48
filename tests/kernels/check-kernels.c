/* SPDX-License-Identifier: Apache-2.0 */
/*
 * check-kernels [--isa NAME] [--op NAME] [--seed N] [--with FEATURES] [--thin N]: every
 * registered kernel.
 *
 * In:   the registry (kernels/registry.h). --with adds features that the probe cannot see, as
 *       under emulators, separated by commas. --thin N makes one of N cases of attend.
 * Out:  TAP, one line a kernel, and for what kernels are made of. A failure names its seed.
 * Next: make check runs it; a kernel of an operation without a check below does not compile.
 */
#include "check.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>

enum { EXPLAINED = 8 };

uint64_t check_features;
/* Sanitizers slow the references down by an order of magnitude. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
uint32_t check_thin = 8;
#else
uint32_t check_thin = 1;
#endif

static uint64_t seed = 20240607;
static uint32_t test_failures, failures, tests;

void fail(const char *why, ...)
{
	va_list ap;

	if (test_failures++ >= EXPLAINED)
		return;
	va_start(ap, why);
	printf("# ");
	vprintf(why, ap);
	printf("\n");
	va_end(ap);
}

bool failed(void)
{
	return test_failures > 0;
}

static void done(const char *name)
{
	tests++;
	if (test_failures)
		printf("# %u failures; replay with --seed %llu\n", test_failures, (unsigned long long)seed);
	printf("%s %u - %s\n", test_failures ? "not ok" : "ok", tests, name);
	fflush(stdout);
	failures += test_failures > 0;
	test_failures = 0;
}

static void (*const checks[ATTND_OP_COUNT])(const struct attnd_kernel *k, uint64_t seed) = {
	[ATTND_OP_attend] = check_attend, [ATTND_OP_write] = check_write,   [ATTND_OP_read] = check_read,
	[ATTND_OP_copy] = check_copy,	  [ATTND_OP_clear] = check_clear,   [ATTND_OP_init] = check_init,
	[ATTND_OP_merge] = check_merge,	  [ATTND_OP_finish] = check_finish,
};

static const char *const op_names[ATTND_OP_COUNT] = {
	[ATTND_OP_attend] = "attend", [ATTND_OP_write] = "write",   [ATTND_OP_read] = "read",
	[ATTND_OP_copy] = "copy",     [ATTND_OP_clear] = "clear",   [ATTND_OP_init] = "init",
	[ATTND_OP_merge] = "merge",   [ATTND_OP_finish] = "finish",
};

static void check_kernel(const struct attnd_kernel *k)
{
	if ((check_features & k->need) != k->need) {
		printf("ok %u - %s # SKIP this CPU lacks what it needs\n", ++tests, k->name);
		return;
	}
	if (checks[k->op])
		checks[k->op](k, seed);
	else
		fail("no check for %s", op_names[k->op]);
	done(k->name);
}

static void check_rest(void)
{
	check_scalar(seed);
	done("conversions, exp and tanh");
	check_cpu(seed);
	done("masks and names of features");
	check_format(seed);
	done("limits and constants of formats");
	check_races(seed);
	done("rows that change while they are written");
}

static bool add_features(const char *text)
{
	uint64_t keep;

	/* What a mask takes away is what its text names. */
	if (attnd_features_parse_mask(text, &keep) != 0)
		return false;
	check_features |= ~keep & ((UINT64_C(1) << ATTND_CPU_BITS) - 1);
	return true;
}

int main(int argc, char **argv)
{
	const char *isa = NULL, *op = NULL;

	check_features = attnd_features();
	for (int i = 1; i < argc; i += 2) {
		const char *value = i + 1 < argc ? argv[i + 1] : "";

		if (strcmp(argv[i], "--isa") == 0)
			isa = value;
		else if (strcmp(argv[i], "--op") == 0)
			op = value;
		else if (strcmp(argv[i], "--seed") == 0)
			seed = strtoull(value, NULL, 0);
		else if (strcmp(argv[i], "--thin") == 0 && atoi(value) > 0)
			check_thin = (uint32_t)atoi(value);
		else if (strcmp(argv[i], "--with") != 0 || !add_features(value)) {
			fprintf(stderr,
				"usage: %s [--isa NAME] [--op NAME] [--seed N] [--with FEATURES] [--thin N]\n",
				argv[0]);
			return 2;
		}
	}
	if (!isa && !op)
		check_rest();
	for (size_t i = 0; i < attnd_num_kernels; i++) {
		const struct attnd_kernel *k = &attnd_kernels[i];

		if ((!isa || strcmp(isa, attnd_isa_names[k->isa]) == 0) && (!op || strcmp(op, op_names[k->op]) == 0))
			check_kernel(k);
	}
	printf("1..%u\n", tests);
	return failures > 0;
}
