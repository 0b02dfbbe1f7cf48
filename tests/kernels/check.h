/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the checks of kernels share: TAP, random numbers, guarded memory, exact values.
 *
 * In:   a seed; the registry.
 * Out:  one TAP line a check, with the seed that replays it.
 * Next: check-kernels.c calls check_<op> for each registered kernel.
 */
#ifndef ATTND_TESTS_KERNELS_CHECK_H
#define ATTND_TESTS_KERNELS_CHECK_H

#include <math.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "../../kernels/partial.h"
#include "../../kernels/registry.h"

/* ---- TAP ---- */

/* Failures of the check that runs; the first few are explained. */
__attribute__((format(printf, 1, 2))) void fail(const char *why, ...);
bool failed(void);

/* ---- Random numbers (SplitMix64): the same for the same seed ---- */

struct rng {
	uint64_t state;
};

uint64_t rng_next(struct rng *r);
/* 0 .. n - 1 */
uint32_t rng_below(struct rng *r, uint32_t n);
/* lo .. hi */
uint32_t rng_range(struct rng *r, uint32_t lo, uint32_t hi);
/* -1 .. 1 */
float rng_float(struct rng *r);
/* Any float: zeros, denormals, ties, large values, infinities and NaN are frequent. */
float rng_any_float(struct rng *r);

/* ---- Guarded memory ---- */

/* `size` bytes between two pages that fault; the end is flush (up to 64 - align bytes of tail). */
void *guarded_alloc(size_t size, size_t align);
void guarded_free(void *p);
/* The whole allocation becomes read-only, or writable again. */
void guarded_protect(void *p, bool read_only);

/* ---- Exact values, by definitions that share no code with kernels/scalar.h ---- */

/* Element i of an array of this type. */
double exact_value(enum attnd_kdtype type, const void *array, size_t i);
/* The float's nearest value of this type, ties to even, as bits; saturating for 1-byte types. */
uint32_t exact_round(enum attnd_kdtype type, float x);
/* Element i of an array of this type becomes the nearest value. */
void exact_store(enum attnd_kdtype type, void *array, size_t i, float x);
float float_of(uint32_t bits);
uint32_t bits_of(float x);

/* ---- Checks ---- */

/* Features that the formats of this run are made for. */
extern uint64_t check_features;
/* Of the cases of attend one in so many is made. */
extern uint32_t check_thin;

/* A valid spec with this dtype, drawn from the geometries that models have and from odd ones. */
struct attnd_kv_spec random_spec(struct rng *r, enum attnd_kdtype dtype);

void check_attend(const struct attnd_kernel *k, uint64_t seed);
void check_write(const struct attnd_kernel *k, uint64_t seed);
void check_read(const struct attnd_kernel *k, uint64_t seed);
void check_copy(const struct attnd_kernel *k, uint64_t seed);
void check_clear(const struct attnd_kernel *k, uint64_t seed);
void check_init(const struct attnd_kernel *k, uint64_t seed);
void check_merge(const struct attnd_kernel *k, uint64_t seed);
void check_finish(const struct attnd_kernel *k, uint64_t seed);

void check_scalar(uint64_t seed);
void check_cpu(uint64_t seed);
void check_format(uint64_t seed);
void check_races(uint64_t seed);

#endif
