/* SPDX-License-Identifier: Apache-2.0 */
/*
 * attnd-bench's parts.
 *
 * In:   the command line, in `bench`.
 * Out:  one function a goal; each reports ratios and figures (report.h).
 * Next: attnd-bench.c calls them; local.h and remote.h are what they set side by side.
 */
#ifndef ATTND_TESTS_BENCH_ATTND_BENCH_H
#define ATTND_TESTS_BENCH_ATTND_BENCH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "report.h"
#include "team.h"

/* What a model's attention looks like. K/V, q and out are bf16, blocks of 16 tokens. */
struct shape {
	uint32_t layers, heads, kv_heads, dim;
};
enum { BLOCK = 16, LLAMA_LAYERS = 32 };

/** Llama-3-8B, or some of its layers. */
static inline struct shape llama_8b(uint32_t layers)
{
	return (struct shape){.layers = layers, .heads = 32, .kv_heads = 8, .dim = 128};
}
static inline size_t q_bytes(const struct shape *s)
{
	return (size_t)s->heads * s->dim * sizeof(uint16_t);
}
static inline size_t k_bytes(const struct shape *s)
{
	return (size_t)s->kv_heads * s->dim * sizeof(uint16_t);
}
/** Bytes of K and V of one token in one layer. */
static inline size_t kv_bytes(const struct shape *s)
{
	return 2 * k_bytes(s);
}

struct bench {
	double seconds;	    /* for a goal */
	const char *socket; /* of a running daemon; NULL: a private one for each goal */
	uint32_t threads;   /* that this daemon executes with */
	const char *plot;   /* an SVG file to draw, or NULL */
	int cpus;	    /* of the team (team.h), this thread's included */
};
extern struct bench bench;

void progress(const char *format, ...) __attribute__((format(printf, 1, 2)));
/** Print and exit: a bench without its daemon or memory has nothing to say. */
void die(const char *format, ...) __attribute__((format(printf, 1, 2), noreturn));
void *must(void *p);
/** xorshift: the same numbers in every run. */
uint64_t random_below(uint64_t below);
/** bf16 values between -1 and 1. */
void random_values(uint16_t *to, size_t n);
/** Load all of it. */
uint64_t read_values(const uint16_t *p, size_t bytes);
void shuffle(uint32_t *x, uint32_t n);
/** 2 MiB pages where there are some. */
void *allocate(size_t bytes);
void release(void *p, size_t bytes);
/** Run this thread on the CPUs [first, first + n) of those that the bench may use. */
void run_on(int first, int n);

/** Time to go on? Until the clock says `end`, and for as many samples as are kept. */
static inline bool more(double end, const struct samples *s)
{
	return s->n < SAMPLES_MAX && (s->n < 3 || now_seconds() < end);
}

/** Bytes a second of a plain read of `bytes` at `memory`, the next ones each time. */
double stream_rate(const char *memory, size_t bytes, int threads);
/** Multiply-add FLOP/s of the instructions that bf16 kernels use here, and their name. */
double peak_rate(int threads);
const char *peak_name(void);

void goal_step(void);
void goal_shared(void);
void goal_latency(void);
void goal_scaling(void);
void goal_memory(void);
void goal_fairness(void);
void goal_cores(void);
void measure_cache(void);
void measure_peek(void);

#endif
