/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the machine can do: plain reads of pieces, and multiply-add peaks.
 *
 * In:   pieces of memory in an order; an instruction set.
 * Out:  the work done, to be timed by the caller.
 * Next: bench-kernels.c sets kernels beside it.
 */
#ifndef ATTND_TESTS_BENCH_ROOF_H
#define ATTND_TESTS_BENCH_ROOF_H

#include <stddef.h>
#include <stdint.h>

enum read_hint { READ_T0, READ_T1, READ_NTA };

/* A way of reading: bytes between prefetch and use (0: no prefetch), into which cache. */
struct read_variant {
	const char *name;
	size_t ahead;
	enum read_hint hint;
};
extern const struct read_variant read_variants[];
extern const int num_read_variants;

/** Load every line of the pieces [from, to) of `bytes` each; prefetches run on up to `num`. */
void read_pieces(const struct read_variant *v, const void *const *pieces, size_t from, size_t to, size_t num,
		 size_t bytes);

enum peak { PEAK_FMA_AVX2, PEAK_FMA_AVX512, PEAK_DPBF16, PEAK_AMX, PEAKS };
extern const char *const peak_names[PEAKS];

/** Can this CPU run it? */
int peak_supported(enum peak p, uint64_t features);
/** Multiply-adds in registers; returns floating-point operations done. */
double peak_run(enum peak p, uint32_t loops);

#endif
