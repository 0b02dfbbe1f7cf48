/* SPDX-License-Identifier: Apache-2.0 */
/*
 * roof.h: plain reads with prefetch variants, and register-only multiply-adds.
 *
 * In:   pieces, or a number of loops.
 * Out:  nothing but time spent.
 * Next: bench-kernels.c.
 */
#include "roof.h"

#include "../../kernels/cpu.h"

const struct read_variant read_variants[] = {
	{"none", 0, READ_T1},
	{"t0 8K", 8 << 10, READ_T0},
	{"t1 16K", 16 << 10, READ_T1},
	{"t1 64K", 64 << 10, READ_T1},
	{"t1 128K", 128 << 10, READ_T1},
	{"t1 256K", 256 << 10, READ_T1},
	{"nta 16K", 16 << 10, READ_NTA},
};
const int num_read_variants = sizeof(read_variants) / sizeof(read_variants[0]);

const char *const peak_names[PEAKS] = {"f32 FMA AVX2", "f32 FMA AVX-512", "vdpbf16ps", "tdpbf16ps"};

enum { LINE = 64, STRIDE = 4 * LINE };

static volatile uint64_t sink;

/* One piece, prefetching another of the same size (NULL: none) meanwhile. */
#define DEFINE_READ(name, target_isa, vector, load, join, hint)                         \
	target_isa static uint64_t name(const char *p, const char *ahead, size_t bytes) \
	{                                                                               \
		vector a = load(p), b = a, c = a, d = a;                                \
                                                                                        \
		for (size_t i = 0; i < bytes; i += STRIDE) {                            \
			if (ahead)                                                      \
				for (size_t j = 0; j < STRIDE; j += LINE)               \
					__builtin_prefetch(ahead + i + j, 0, hint);     \
			a = join(a, p + i);                                             \
			b = join(b, p + i + LINE);                                      \
			c = join(c, p + i + 2 * LINE);                                  \
			d = join(d, p + i + 3 * LINE);                                  \
		}                                                                       \
		return fold_##vector(a, b, c, d);                                       \
	}

#if defined(__x86_64__)
#include <immintrin.h>

#define AVX512 __attribute__((target("avx512f")))
#define AVX2   __attribute__((target("avx2")))

AVX512 static uint64_t fold___m512i(__m512i a, __m512i b, __m512i c, __m512i d)
{
	return (uint64_t)_mm512_reduce_add_epi64(_mm512_xor_si512(_mm512_xor_si512(a, b), _mm512_xor_si512(c, d)));
}

AVX2 static uint64_t fold___m256i(__m256i a, __m256i b, __m256i c, __m256i d)
{
	__m256i x = _mm256_xor_si256(_mm256_xor_si256(a, b), _mm256_xor_si256(c, d));

	return (uint64_t)_mm256_extract_epi64(x, 0) + (uint64_t)_mm256_extract_epi64(x, 2);
}

#define LOAD512(p)    _mm512_load_si512(p)
#define JOIN512(x, p) _mm512_xor_si512(x, _mm512_load_si512(p))
#define LOAD256(p)    _mm256_load_si256((const void *)(p))
#define JOIN256(x, p) _mm256_xor_si256(_mm256_xor_si256(x, LOAD256(p)), LOAD256((p) + 32))

DEFINE_READ(read512_t0, AVX512, __m512i, LOAD512, JOIN512, 3)
DEFINE_READ(read512_t1, AVX512, __m512i, LOAD512, JOIN512, 2)
DEFINE_READ(read512_nta, AVX512, __m512i, LOAD512, JOIN512, 0)
DEFINE_READ(read256_t0, AVX2, __m256i, LOAD256, JOIN256, 3)
DEFINE_READ(read256_t1, AVX2, __m256i, LOAD256, JOIN256, 2)
DEFINE_READ(read256_nta, AVX2, __m256i, LOAD256, JOIN256, 0)
#endif

#define LOAD64(p)    *(const uint64_t *)(const void *)(p)
#define JOIN64(x, p) ((x) ^ LOAD64(p))
static uint64_t fold_uint64_t(uint64_t a, uint64_t b, uint64_t c, uint64_t d)
{
	return a + b + c + d;
}
#define PLAIN
DEFINE_READ(read64_t0, PLAIN, uint64_t, LOAD64, JOIN64, 3)
DEFINE_READ(read64_t1, PLAIN, uint64_t, LOAD64, JOIN64, 2)
DEFINE_READ(read64_nta, PLAIN, uint64_t, LOAD64, JOIN64, 0)

typedef uint64_t read_fn(const char *p, const char *ahead, size_t bytes);

static read_fn *reader(enum read_hint hint)
{
	uint64_t f = attnd_features();

#if defined(__x86_64__)
	if (f & ATTND_CPU(AVX512))
		return (read_fn *[]){read512_t0, read512_t1, read512_nta}[hint];
	if (f & ATTND_CPU(AVX2))
		return (read_fn *[]){read256_t0, read256_t1, read256_nta}[hint];
#endif
	(void)f;
	return (read_fn *[]){read64_t0, read64_t1, read64_nta}[hint];
}

void read_pieces(const struct read_variant *v, const void *const *pieces, size_t from, size_t to, size_t num,
		 size_t bytes)
{
	const size_t run = bytes < 4096 ? bytes : 4096;
	read_fn *read = reader(v->hint);
	uint64_t sum = 0;

	for (size_t i = from; i < to; i++)
		for (size_t at = 0; at < bytes; at += run) {
			size_t ahead = i * bytes + at + v->ahead;
			const char *next = NULL;

			if (v->ahead && ahead / bytes < num)
				next = (const char *)pieces[ahead / bytes] + ahead % bytes;
			sum += read((const char *)pieces[i] + at, next, run);
		}
	sink += sum;
}

/* ---- Peaks ---- */

#if defined(__x86_64__)

enum { CHAINS = 14 };

#define DEFINE_PEAK(name, target_isa, vector, init, step, hold)                                \
	target_isa static void name(uint32_t loops)                                            \
	{                                                                                      \
		vector x[CHAINS];                                                              \
                                                                                               \
		/* Hidden, or equal chains would become one. */                                \
		for (int i = 0; i < CHAINS; i++) {                                             \
			x[i] = init;                                                           \
			__asm__ volatile("" : "+" hold(x[i]));                                 \
		}                                                                              \
		for (uint32_t n = 0; n < loops; n++)                                           \
			_Pragma("GCC unroll 14") for (int i = 0; i < CHAINS; i++) x[i] = step; \
		for (int i = 0; i < CHAINS; i++)                                               \
			__asm__ volatile("" : : hold(x[i]));                                   \
	}

#define BF16 __attribute__((target("avx512f,avx512bf16")))
#define FMA2 __attribute__((target("avx2,fma")))
DEFINE_PEAK(fma_avx2, FMA2, __m256, _mm256_setzero_ps(),
	    _mm256_fmadd_ps(x[i], _mm256_set1_ps(0.5f), _mm256_set1_ps(0.5f)), "x")
DEFINE_PEAK(fma_avx512, AVX512, __m512, _mm512_setzero_ps(),
	    _mm512_fmadd_ps(x[i], _mm512_set1_ps(0.5f), _mm512_set1_ps(0.5f)), "v")
DEFINE_PEAK(dpbf16, BF16, __m512, _mm512_setzero_ps(),
	    _mm512_dpbf16_ps(x[i], (__m512bh)_mm512_set1_epi32(0x3f803f80), (__m512bh)_mm512_set1_epi32(0x3c003c00)),
	    "v")

/* Six sums in registers of 16 x 16, from the same two operands; zeros take as long as anything. */
__attribute__((target("amx-tile,amx-bf16"))) static void amx(uint32_t loops)
{
	struct {
		uint8_t palette, start, reserved[14];
		uint16_t bytes[16];
		uint8_t rows[16];
	} c __attribute__((aligned(64))) = {.palette = 1};

	for (int i = 0; i < 8; i++) {
		c.bytes[i] = 64;
		c.rows[i] = 16;
	}
	__asm__ volatile("" : : "m"(c) : "memory"); /* the intrinsic does not say what it reads */
	_tile_loadconfig(&c);
	for (uint32_t n = 0; n < loops; n++) {
		_tile_dpbf16ps(0, 6, 7);
		_tile_dpbf16ps(1, 6, 7);
		_tile_dpbf16ps(2, 6, 7);
		_tile_dpbf16ps(3, 6, 7);
		_tile_dpbf16ps(4, 6, 7);
		_tile_dpbf16ps(5, 6, 7);
	}
	_tile_release();
}

int peak_supported(enum peak p, uint64_t features)
{
	static const uint64_t need[PEAKS] = {ATTND_CPU(AVX2), ATTND_CPU(AVX512), ATTND_CPU(AVX512_BF16),
					     ATTND_CPU(AMX_BF16)};

	return (features & need[p]) != 0;
}

double peak_run(enum peak p, uint32_t loops)
{
	static void (*const run[PEAKS])(uint32_t) = {fma_avx2, fma_avx512, dpbf16, amx};
	static const int flops[PEAKS] = {CHAINS * 16, CHAINS * 32, CHAINS * 64, 6 * 16 * 16 * 32 * 2};

	/* A loop of the matrix unit is about 14 times as long. */
	loops = p == PEAK_AMX ? loops / 14 + 1 : loops;
	run[p](loops);
	return (double)loops * flops[p];
}

#else

int peak_supported(enum peak p, uint64_t features)
{
	(void)p;
	(void)features;
	return 0;
}

double peak_run(enum peak p, uint32_t loops)
{
	(void)p;
	(void)loops;
	return 0;
}

#endif
