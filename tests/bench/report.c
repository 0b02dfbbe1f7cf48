/* SPDX-License-Identifier: Apache-2.0 */
/*
 * report.h with jansson.
 *
 * In:   ratios and figures.
 * Out:  stdout.
 * Next: people, or who reads the JSON.
 */
#include "report.h"

#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static json_t *ratios, *figures;

void sample_add(struct samples *s, double x)
{
	if (s->n < SAMPLES_MAX)
		s->x[s->n++] = x;
}

static int compare(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

double sample_quantile(const struct samples *s, double q)
{
	static double sorted[SAMPLES_MAX];

	if (s->n == 0)
		return 0;
	memcpy(sorted, s->x, (size_t)s->n * sizeof(*sorted));
	qsort(sorted, (size_t)s->n, sizeof(*sorted), compare);
	return sorted[(int)(q * (s->n - 1) + 0.5)];
}

double sample_median(const struct samples *s)
{
	return sample_quantile(s, 0.5);
}

static void put(json_t **object, const char *name, json_t *value)
{
	if (!*object)
		*object = json_object();
	json_object_set_new(*object, name, value);
}

void report_ratio(const char *name, const struct samples *s, double goal, bool higher, const char *what)
{
	put(&ratios, name,
	    json_pack("{s:f,s:f,s:f,s:f,s:s,s:i,s:s}", "median", sample_quantile(s, 0.5), "p10",
		      sample_quantile(s, 0.1), "p90", sample_quantile(s, 0.9), "goal", goal, "better",
		      higher ? "higher" : "lower", "n", s->n, "what", what));
}

void report_skipped(const char *name, const char *why)
{
	put(&ratios, name, json_pack("{s:s}", "skipped", why));
}

void report_figure(const char *name, double value, const char *unit)
{
	put(&figures, name, json_pack("{s:f,s:s}", "value", value, "unit", unit));
}

void report_goal(const char *name, double value, const char *unit, double goal, bool higher)
{
	put(&figures, name,
	    json_pack("{s:f,s:s,s:f,s:s}", "value", value, "unit", unit, "goal", goal, "better",
		      higher ? "higher" : "lower"));
}

static double number(json_t *o, const char *key)
{
	return json_number_value(json_object_get(o, key));
}

/* What its goal is and whether it is met, after a value. */
static void print_goal(json_t *of, double value)
{
	const char *better = json_string_value(json_object_get(of, "better"));
	double goal = number(of, "goal");
	bool higher;

	if (!better)
		return;
	higher = strcmp(better, "higher") == 0;
	printf("  goal %s %.3g  %-4s", higher ? ">=" : "<=", goal,
	       (higher ? value >= goal : value <= goal) ? "met" : "");
}

static void print_ratio(const char *name, json_t *r)
{
	json_t *skipped = json_object_get(r, "skipped");
	double median = number(r, "median");

	if (skipped) {
		printf("%-21s skipped: %s\n", name, json_string_value(skipped));
		return;
	}
	printf("%-21s %7.4g  [%.4g %.4g]", name, median, number(r, "p10"), number(r, "p90"));
	print_goal(r, median);
	printf(" n %3d  %s\n", (int)number(r, "n"), json_string_value(json_object_get(r, "what")));
}

static void print_table(void)
{
	const char *name;
	json_t *v;

	json_object_foreach(ratios, name, v) print_ratio(name, v);
	json_object_foreach(figures, name, v)
	{
		printf("%-52s %10.4g %s", name, number(v, "value"), json_string_value(json_object_get(v, "unit")));
		print_goal(v, number(v, "value"));
		printf("\n");
	}
}

int report_print(bool json)
{
	json_t *all = json_pack("{s:o,s:o}", "ratios", ratios ? ratios : json_object(), "figures",
				figures ? figures : json_object());

	if (!all)
		return -ENOMEM;
	if (json) {
		json_dumpf(all, stdout, JSON_INDENT(2) | JSON_REAL_PRECISION(5));
		printf("\n");
	} else {
		print_table();
	}
	json_decref(all);
	ratios = figures = NULL;
	return 0;
}
