/* SPDX-License-Identifier: Apache-2.0 */
/*
 * attnd-bench: attnd as a whole, beside what its kernels do without it and what the machine can do.
 *
 * In:   a private daemon for each goal, or a running one (--socket).
 * Out:  paired ratios and figures (report.h).
 * Next: docs/benchmarks.md says what each figure means.
 */
#include "attnd-bench.h"

#include <errno.h>
#include <getopt.h>
#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "plot.h"

struct bench bench = {.seconds = 20};

static struct {
	cpu_set_t allowed;
	bool json;
	const char *only, *what;
} options;

/* ---- What all parts use ---- */

void progress(const char *format, ...)
{
	va_list args;

	va_start(args, format);
	fputs("attnd-bench: ", stderr);
	vfprintf(stderr, format, args);
	fputc('\n', stderr);
	va_end(args);
}

void die(const char *format, ...)
{
	va_list args;

	va_start(args, format);
	fputs("attnd-bench: ", stderr);
	vfprintf(stderr, format, args);
	fputc('\n', stderr);
	va_end(args);
	exit(1);
}

void *must(void *p)
{
	if (!p)
		die("out of memory");
	return p;
}

uint64_t random_below(uint64_t below)
{
	static uint64_t state = 88172645463325252u;

	state ^= state << 13;
	state ^= state >> 7;
	state ^= state << 17;
	return (state >> 11) % below;
}

void random_values(uint16_t *to, size_t n)
{
	for (size_t i = 0; i < n; i++) {
		float x = (float)random_below(2001) * 0.001f - 1.0f;
		uint32_t u;

		memcpy(&u, &x, sizeof(u));
		to[i] = (uint16_t)(u >> 16);
	}
}

uint64_t read_values(const uint16_t *p, size_t bytes)
{
	uint64_t sum = 0, x;

	for (size_t i = 0; i < bytes; i += sizeof(x)) {
		memcpy(&x, (const char *)p + i, sizeof(x));
		sum += x;
	}
	return sum;
}

void shuffle(uint32_t *x, uint32_t n)
{
	for (uint32_t i = n; i > 1; i--) {
		uint64_t j = random_below(i);
		uint32_t swap = x[i - 1];

		x[i - 1] = x[j];
		x[j] = swap;
	}
}

static const size_t HUGE_PAGE = (size_t)2 << 20;

static size_t mapped(size_t bytes)
{
	return (bytes + HUGE_PAGE - 1) / HUGE_PAGE * HUGE_PAGE;
}

void *allocate(size_t bytes)
{
	size_t size = mapped(bytes);
	char *p = mmap(NULL, size + HUGE_PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0), *at;

	if (p == MAP_FAILED)
		die("no %zu bytes of memory", bytes);
	at = (char *)(((uintptr_t)p + HUGE_PAGE - 1) & ~(uintptr_t)(HUGE_PAGE - 1));
	if (at != p)
		munmap(p, (size_t)(at - p));
	munmap(at + size, HUGE_PAGE - (size_t)(at - p));
	madvise(at, size, MADV_HUGEPAGE);
	return at;
}

void release(void *p, size_t bytes)
{
	munmap(p, mapped(bytes));
}

void run_on(int first, int n)
{
	cpu_set_t set;
	int i = 0;

	CPU_ZERO(&set);
	for (size_t cpu = 0; cpu < CPU_SETSIZE; cpu++)
		if (CPU_ISSET(cpu, &options.allowed) && i++ >= first && i <= first + n)
			CPU_SET(cpu, &set);
	if (sched_setaffinity(0, sizeof(set), &set))
		progress("cannot choose CPUs: %s", strerror(errno));
}

/* ---- Main ---- */

static const struct goal {
	const char *name;
	void (*run)(void);
	const char *says;
} goals[] = {
	{"P10", goal_step, "decode steps through the daemon / the same kernels in-process"},
	{"P4", goal_shared, "16 sequences under one prompt / the machine's roof"},
	{"P6", goal_latency, "a small job beyond its kernel / a raw round trip of the same bytes"},
	{"P7", goal_scaling, "longer contexts, larger batches, more workers"},
	{"P8", goal_memory, "allocated K/V and metadata / the tokens' own bytes"},
	{"fairness", goal_fairness, "decodes in one process beside a 32k prefill in another"},
	{"P11", goal_cores, "two model runners on the same cores, with and without attnd"},
};

static bool wanted(const char *goal)
{
	size_t n = strlen(goal);

	for (const char *p = options.only; p; p = strchr(p, ',')) {
		p += *p == ',';
		if (strncmp(p, goal, n) == 0 && (p[n] == ',' || p[n] == '\0'))
			return true;
	}
	return !options.only;
}

static void usage(FILE *to)
{
	fputs("usage: attnd-bench [options] [cache|cores]\n"
	      "\n"
	      "  --only P10,P4     these goals alone\n"
	      "  --seconds N       for each goal, preparation included, 0.1 to 86400 (20)\n"
	      "  --json            one object on stdout instead of a table\n"
	      "  --socket PATH     a running daemon, not private ones; it should have room for 2 GiB of K/V\n"
	      "  --threads N       that it executes with, 1 to 1024 (the number of CPUs)\n"
	      "  --plot FILE.svg   also draw context against ns/token, batch against speed-up; needs gnuplot\n"
	      "  --help, --version\n"
	      "\n"
	      "  cache             the tree's own figures\n"
	      "  cores             P11 alone\n"
	      "\n",
	      to);
	for (size_t i = 0; i < sizeof(goals) / sizeof(goals[0]); i++)
		fprintf(to, "  %-9s %s\n", goals[i].name, goals[i].says);
	fputs("\nExit codes: 0 done, 1 failed, 2 wrong usage.\n", to);
}

__attribute__((noreturn, format(printf, 1, 2))) static void refuse(const char *format, ...)
{
	va_list args;

	va_start(args, format);
	fputs("attnd-bench: ", stderr);
	vfprintf(stderr, format, args);
	fputs(" (--help lists what there is)\n", stderr);
	va_end(args);
	exit(2);
}

static double parse_number(const char *option, const char *text, double least, double most)
{
	char *end;
	double n = strtod(text, &end);

	if (end == text || *end || !(n >= least && n <= most))
		refuse("--%s: \"%s\" is not a number from %g to %g", option, text, least, most);
	return n;
}

/* Each name is a goal's. */
static void check_goals(const char *list)
{
	size_t i, n;

	for (const char *p = list; p; p = p[n] ? p + n + 1 : NULL) {
		n = strcspn(p, ",");
		for (i = 0; i < sizeof(goals) / sizeof(goals[0]); i++)
			if (strlen(goals[i].name) == n && !strncmp(goals[i].name, p, n))
				break;
		if (i == sizeof(goals) / sizeof(goals[0]))
			refuse("--only: \"%.*s\" is no goal", (int)n, p);
	}
}

static void parse(int argc, char **argv)
{
	static const struct option names[] = {
		{"json", no_argument, NULL, 'j'},
		{"only", required_argument, NULL, 'o'},
		{"seconds", required_argument, NULL, 's'},
		{"socket", required_argument, NULL, 'S'},
		{"threads", required_argument, NULL, 't'},
		{"plot", required_argument, NULL, 'p'},
		{"help", no_argument, NULL, 'h'},
		{"version", no_argument, NULL, 'v'},
		{NULL, 0, NULL, 0},
	};
	int o;

	while ((o = getopt_long(argc, argv, "", names, NULL)) != -1)
		switch (o) {
		case 'j':
			options.json = true;
			break;
		case 'o':
			check_goals(options.only = optarg);
			break;
		case 's':
			bench.seconds = parse_number("seconds", optarg, 0.1, 86400);
			break;
		case 'S':
			bench.socket = optarg;
			break;
		case 't':
			bench.threads = (uint32_t)parse_number("threads", optarg, 1, 1024);
			break;
		case 'p':
			bench.plot = optarg;
			break;
		case 'h':
			usage(stdout);
			exit(0);
		case 'v':
			puts("attnd-bench " ATTND_VERSION);
			exit(0);
		default: /* getopt has named it */
			exit(2);
		}
	options.what = optind < argc ? argv[optind++] : NULL;
	if (optind < argc || (options.what && strcmp(options.what, "cache") && strcmp(options.what, "cores")))
		refuse("\"%s\": only cache or cores may stand here", argv[optind < argc ? optind : optind - 1]);
	if (options.what && options.only)
		refuse("%s and --only exclude each other", options.what);
	if (bench.plot && (options.what || bench.socket || !wanted("P4") || !wanted("P7")))
		refuse("--plot draws what P4 and P7 measure with private daemons: run both");
	if (bench.threads && !bench.socket)
		refuse("--threads is for --socket");
}

static void run(void)
{
	if (options.what && strcmp(options.what, "cache") == 0) {
		measure_cache();
		return;
	}
	if (options.what) {
		goal_cores();
		return;
	}
	for (size_t i = 0; i < sizeof(goals) / sizeof(goals[0]); i++) {
		if (!wanted(goals[i].name))
			continue;
		progress("%s: %s", goals[i].name, goals[i].says);
		goals[i].run();
	}
}

int main(int argc, char **argv)
{
	parse(argc, argv);
	if (sched_getaffinity(0, sizeof(options.allowed), &options.allowed))
		die("which CPUs?");
	bench.cpus = team_start(2);
	if (!bench.threads)
		bench.threads = (uint32_t)CPU_COUNT(&options.allowed);
	run();
	if (bench.plot && plot_draw(bench.plot))
		return 1;
	return report_print(options.json) == 0 ? 0 : 1;
}
