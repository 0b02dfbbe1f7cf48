/* SPDX-License-Identifier: Apache-2.0 */
/*
 * plot.h by gnuplot.
 *
 * In:   points. Out: an SVG. Next: people.
 */
#include "plot.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { POINTS = 32 };

static struct curve {
	int n;
	double x[POINTS], y[POINTS];
} contexts, batches;

static void add(struct curve *c, double x, double y)
{
	if (c->n == POINTS)
		return;
	c->x[c->n] = x;
	c->y[c->n++] = y;
}

void plot_context(uint32_t context, double ns_a_token)
{
	add(&contexts, context, ns_a_token);
}

void plot_batch(uint32_t batch, double speedup)
{
	add(&batches, batch, speedup);
}

static void write_curve(FILE *to, const char *name, const struct curve *c)
{
	fprintf(to, "$%s << end\n", name);
	for (int i = 0; i < c->n; i++)
		fprintf(to, "%g %g\n", c->x[i], c->y[i]);
	fputs("end\n", to);
}

static void write_panel(FILE *to, const char *name, const char *title, const char *x, const char *y)
{
	fprintf(to,
		"set title '%s'\nset xlabel '%s'\nset ylabel '%s'\n"
		"plot $%s using 1:2:xtic(1) with linespoints pointtype 7 notitle\n",
		title, x, y, name);
}

int plot_draw(const char *file)
{
	FILE *to;

	if (!contexts.n || !batches.n) {
		fprintf(stderr, "attnd-bench: --plot draws what P4 and P7 measure: run both\n");
		return -EINVAL;
	}
	if (strchr(file, '\'') || strchr(file, '\n')) {
		fprintf(stderr, "attnd-bench: --plot: no quotes in a file's name\n");
		return -EINVAL;
	}
	if (system("command -v gnuplot >/dev/null 2>&1")) {
		fprintf(stderr, "attnd-bench: --plot needs gnuplot (Debian: gnuplot-nox); nothing was drawn\n");
		return -ENOENT;
	}
	to = popen("gnuplot", "w");
	if (!to)
		return -errno;
	write_curve(to, "contexts", &contexts);
	write_curve(to, "batches", &batches);
	fprintf(to,
		"set terminal svg size 960,400 background 'white'\nset output '%s'\n"
		"set multiplot layout 1,2\nset logscale x 2\nset yrange [0:*]\nset grid\n",
		file);
	write_panel(to, "contexts", "decode, one sequence", "context (tokens)", "ns a token, one layer");
	write_panel(to, "batches", "decode, sequences that share 4k and own 128", "sequences",
		    "speed-up over each for itself");
	return pclose(to) ? -EIO : 0;
}
