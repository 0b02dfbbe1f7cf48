/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A bench's outcome: goals as paired ratios, other figures, a table or JSON.
 *
 * In:   samples, by name.
 * Out:  stdout: a table for people, or one JSON object (form: docs/performance.md).
 * Next: people, and who compares runs.
 */
#ifndef ATTND_TESTS_BENCH_REPORT_H
#define ATTND_TESTS_BENCH_REPORT_H

#include <stdbool.h>

enum { SAMPLES_MAX = 4096 };

struct samples {
	int n;
	double x[SAMPLES_MAX];
};

void sample_add(struct samples *s, double x);
double sample_median(const struct samples *s);
double sample_quantile(const struct samples *s, double q);

/** A goal; the samples are ratios taken in turn. `higher`: more is better. */
void report_ratio(const char *name, const struct samples *s, double goal, bool higher, const char *what);
void report_skipped(const char *name, const char *why);
void report_figure(const char *name, double value, const char *unit);
/** A figure with a goal of its own. `higher`: more is better. */
void report_goal(const char *name, double value, const char *unit, double goal, bool higher);

/** Print all of it and forget it. Returns 0, or -ENOMEM. */
int report_print(bool json);

#endif
