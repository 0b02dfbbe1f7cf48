/* SPDX-License-Identifier: Apache-2.0 */
/*
 * attnd-bench --plot: two curves as an SVG.
 *
 * In:   points as goals measure them. Out: a file, drawn by gnuplot. Next: people.
 */
#ifndef ATTND_TESTS_BENCH_PLOT_H
#define ATTND_TESTS_BENCH_PLOT_H

#include <stdint.h>

void plot_context(uint32_t context, double ns_a_token);
void plot_batch(uint32_t batch, double speedup);

/** Draw what was given so far. 0, or a negative errno that has been explained on stderr. */
int plot_draw(const char *file);

#endif
