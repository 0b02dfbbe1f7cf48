/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The registry: one line a kernel.
 *
 * In:   the kernels of each ISA's file (attend_c.c, ...), named attnd_<op>_<types>_<suffix>.
 * Out:  their declarations and attnd_kernels[], in the order of this list.
 * Next: format.c picks operations from the table; tests/kernels checks and benches every line.
 *
 * To add a kernel: write attnd_<op>_<types>_<suffix>() in the ISA's file, give that file its
 * flags in kernels.mk (CFLAGS_kernels_<file>), add one line to the ISA's list below. Selection
 * starts with portable C and lets every later line that `need` and `fits` admit replace what
 * stands there, so within an operation better kernels come later. Where a kernel wants other
 * lanes, interleaving, step or scratch, format.c says so in one place each: layout_lanes(),
 * step_tokens(), scratch_bytes(). Packed write, read and copy in portable C follow the format's
 * parameters, so an ISA brings only what it does faster; its write must store the same bits.
 *
 * All kernels of one format share struct attnd_partial (partial.h): init, merge and finish of
 * one ISA work on partials of another's attend. Kernels include kernels.h, partial.h and
 * scalar.h, never this file or cpu.h.
 */
#ifndef ATTND_KERNELS_REGISTRY_H
#define ATTND_KERNELS_REGISTRY_H

#include "cpu.h"
#include "kernels.h"

/* ISAs from low to high: id, name. */
#define ATTND_ISAS(X)       \
	X(C, "c")           \
	X(AVX2, "avx2")     \
	X(AVX512, "avx512") \
	X(AMX, "amx")       \
	X(RVV, "rvv")

/* clang-format off */
/*
 * X(op, types, suffix, isa, q dtype, kv dtype, needed features, fits)
 *
 * q dtype counts for attend only; ANY: all. `fits` is one of the predicates below.
 */
#define ATTND_KERNELS_C(X)                                                      \
	X(attend, f32_f32,  c, C, F32,  F32,      0, any)                       \
	X(attend, f32_f16,  c, C, F32,  F16,      0, any)                       \
	X(attend, f32_bf16, c, C, F32,  BF16,     0, any)                       \
	X(attend, f32_int8, c, C, F32,  INT8,     0, any)                       \
	X(attend, f32_e4m3, c, C, F32,  FP8_E4M3, 0, any)                       \
	X(attend, f32_e5m2, c, C, F32,  FP8_E5M2, 0, any)                       \
	X(attend, f16_f32,  c, C, F16,  F32,      0, any)                       \
	X(attend, f16_f16,  c, C, F16,  F16,      0, any)                       \
	X(attend, f16_bf16, c, C, F16,  BF16,     0, any)                       \
	X(attend, f16_int8, c, C, F16,  INT8,     0, any)                       \
	X(attend, f16_e4m3, c, C, F16,  FP8_E4M3, 0, any)                       \
	X(attend, f16_e5m2, c, C, F16,  FP8_E5M2, 0, any)                       \
	X(attend, bf16_f32,  c, C, BF16, F32,      0, any)                      \
	X(attend, bf16_f16,  c, C, BF16, F16,      0, any)                      \
	X(attend, bf16_bf16, c, C, BF16, BF16,     0, any)                      \
	X(attend, bf16_int8, c, C, BF16, INT8,     0, any)                      \
	X(attend, bf16_e4m3, c, C, BF16, FP8_E4M3, 0, any)                      \
	X(attend, bf16_e5m2, c, C, BF16, FP8_E5M2, 0, any)                      \
	X(write,  any, c, C, ANY, ANY, 0, any)                                  \
	X(read,   any, c, C, ANY, ANY, 0, any)                                  \
	X(copy,   any, c, C, ANY, ANY, 0, any)                                  \
	X(clear,  any, c, C, ANY, ANY, 0, any)                                  \
	X(init,   any, c, C, ANY, ANY, 0, any)                                  \
	X(merge,  any, c, C, ANY, ANY, 0, any)                                  \
	X(finish, any, c, C, ANY, ANY, 0, any)

#if defined(__x86_64__)
#define ATTND_NEED_BF16_BYTES (ATTND_CPU(AVX512_BF16) | ATTND_CPU(AVX512_VBMI))
#define ATTND_NEED_AMX	      (ATTND_NEED_BF16_BYTES | ATTND_CPU(AMX_BF16))
#define ATTND_KERNELS_AVX2(X)                                                                             \
	X(attend, f32_f32, avx2, AVX2, F32, F32, ATTND_CPU(AVX2), packed)                                        \
	X(attend, f32_f16, avx2, AVX2, F32, F16, ATTND_CPU(AVX2), packed)                                        \
	X(attend, f32_bf16, avx2, AVX2, F32, BF16, ATTND_CPU(AVX2), packed)                                      \
	X(attend, f32_int8, avx2, AVX2, F32, INT8, ATTND_CPU(AVX2), packed)                                      \
	X(attend, f32_e4m3, avx2, AVX2, F32, FP8_E4M3, ATTND_CPU(AVX2), packed)                                  \
	X(attend, f32_e5m2, avx2, AVX2, F32, FP8_E5M2, ATTND_CPU(AVX2), packed)                                  \
	X(attend, f16_f32, avx2, AVX2, F16, F32, ATTND_CPU(AVX2), packed)                                        \
	X(attend, f16_f16, avx2, AVX2, F16, F16, ATTND_CPU(AVX2), packed)                                        \
	X(attend, f16_bf16, avx2, AVX2, F16, BF16, ATTND_CPU(AVX2), packed)                                      \
	X(attend, f16_int8, avx2, AVX2, F16, INT8, ATTND_CPU(AVX2), packed)                                      \
	X(attend, f16_e4m3, avx2, AVX2, F16, FP8_E4M3, ATTND_CPU(AVX2), packed)                                  \
	X(attend, f16_e5m2, avx2, AVX2, F16, FP8_E5M2, ATTND_CPU(AVX2), packed)                                  \
	X(attend, bf16_f32, avx2, AVX2, BF16, F32, ATTND_CPU(AVX2), packed)                                      \
	X(attend, bf16_f16, avx2, AVX2, BF16, F16, ATTND_CPU(AVX2), packed)                                      \
	X(attend, bf16_bf16, avx2, AVX2, BF16, BF16, ATTND_CPU(AVX2), packed)                                    \
	X(attend, bf16_int8, avx2, AVX2, BF16, INT8, ATTND_CPU(AVX2), packed)                                    \
	X(attend, bf16_e4m3, avx2, AVX2, BF16, FP8_E4M3, ATTND_CPU(AVX2), packed)                                \
	X(attend, bf16_e5m2, avx2, AVX2, BF16, FP8_E5M2, ATTND_CPU(AVX2), packed)  \
	X(write, any, avx2, AVX2, ANY, ANY, ATTND_CPU(AVX2), packed)                                             \
	X(read, any, avx2, AVX2, ANY, ANY, ATTND_CPU(AVX2), packed)                                              \
	X(copy, any, avx2, AVX2, ANY, ANY, ATTND_CPU(AVX2), packed)                                              \
	X(merge, any, avx2, AVX2, ANY, ANY, ATTND_CPU(AVX2), any)                                                \
	X(finish, any, avx2, AVX2, ANY, ANY, ATTND_CPU(AVX2), any)
#define ATTND_KERNELS_AVX512(X)                                                                          \
	X(attend, f32_f32, avx512, AVX512, F32, F32, ATTND_CPU(AVX512), packed)                                  \
	X(attend, f32_f16, avx512, AVX512, F32, F16, ATTND_CPU(AVX512), packed)                                  \
	X(attend, f32_bf16, avx512, AVX512, F32, BF16, ATTND_CPU(AVX512), packed)                                \
	X(attend, f32_int8, avx512, AVX512, F32, INT8, ATTND_CPU(AVX512), packed)                                \
	X(attend, f32_e4m3, avx512, AVX512, F32, FP8_E4M3, ATTND_CPU(AVX512), packed)                            \
	X(attend, f32_e5m2, avx512, AVX512, F32, FP8_E5M2, ATTND_CPU(AVX512), packed)                            \
	X(attend, f16_f32, avx512, AVX512, F16, F32, ATTND_CPU(AVX512), packed)                                  \
	X(attend, f16_f16, avx512, AVX512, F16, F16, ATTND_CPU(AVX512), packed)                                  \
	X(attend, f16_bf16, avx512, AVX512, F16, BF16, ATTND_CPU(AVX512), packed)                                \
	X(attend, f16_int8, avx512, AVX512, F16, INT8, ATTND_CPU(AVX512), packed)                                \
	X(attend, f16_e4m3, avx512, AVX512, F16, FP8_E4M3, ATTND_CPU(AVX512), packed)                            \
	X(attend, f16_e5m2, avx512, AVX512, F16, FP8_E5M2, ATTND_CPU(AVX512), packed)                            \
	X(attend, bf16_f32, avx512, AVX512, BF16, F32, ATTND_CPU(AVX512), packed)                                \
	X(attend, bf16_f16, avx512, AVX512, BF16, F16, ATTND_CPU(AVX512), packed)                                \
	X(attend, bf16_bf16, avx512, AVX512, BF16, BF16, ATTND_CPU(AVX512), packed)                              \
	X(attend, bf16_int8, avx512, AVX512, BF16, INT8, ATTND_CPU(AVX512), packed)                              \
	X(attend, bf16_e4m3, avx512, AVX512, BF16, FP8_E4M3, ATTND_CPU(AVX512), packed)                          \
	X(attend, bf16_e5m2, avx512, AVX512, BF16, FP8_E5M2, ATTND_CPU(AVX512), packed)                          \
	X(attend, bf16_bf16, avx512bf16, AVX512, BF16, BF16,     ATTND_CPU(AVX512_BF16), fast_dpbf16)        \
	X(attend, bf16_int8, avx512bf16, AVX512, BF16, INT8,     ATTND_NEED_BF16_BYTES, fast_dpbf16)         \
	X(attend, bf16_e4m3, avx512bf16, AVX512, BF16, FP8_E4M3, ATTND_NEED_BF16_BYTES, fast_dpbf16)         \
	X(attend, bf16_e5m2, avx512bf16, AVX512, BF16, FP8_E5M2, ATTND_NEED_BF16_BYTES, fast_dpbf16)         \
	X(write, any, avx512, AVX512, ANY, ANY, ATTND_CPU(AVX512), packed)                                       \
	X(read, any, avx512, AVX512, ANY, ANY, ATTND_CPU(AVX512), packed)                                        \
	X(copy, any, avx512, AVX512, ANY, ANY, ATTND_CPU(AVX512), packed)                                        \
	X(merge, any, avx512, AVX512, ANY, ANY, ATTND_CPU(AVX512), any)                                          \
	X(finish, any, avx512, AVX512, ANY, ANY, ATTND_CPU(AVX512), any)
#define ATTND_KERNELS_AMX(X) \
	X(attend, bf16_bf16, amx, AMX, BF16, BF16, ATTND_NEED_AMX, packed) \
	X(attend, bf16_int8, amx, AMX, BF16, INT8, ATTND_NEED_AMX, packed) \
	X(attend, bf16_e4m3, amx, AMX, BF16, FP8_E4M3, ATTND_NEED_AMX, packed) \
	X(attend, bf16_e5m2, amx, AMX, BF16, FP8_E5M2, ATTND_NEED_AMX, packed)
#define ATTND_KERNELS_ARCH(X) ATTND_KERNELS_AVX2(X) ATTND_KERNELS_AVX512(X) ATTND_KERNELS_AMX(X)
#elif defined(__riscv) && __riscv_xlen == 64
#define ATTND_KERNELS_ARCH(X)                                                                    \
	X(attend, f32_f32, rvv, RVV, F32, F32, ATTND_CPU(RVV), rvv)                                     \
	X(attend, f16_f32, rvv, RVV, F16, F32, ATTND_CPU(RVV), rvv)                                     \
	X(attend, bf16_f32, rvv, RVV, BF16, F32, ATTND_CPU(RVV), rvv)                                   \
	X(attend, f32_bf16, rvv, RVV, F32, BF16, ATTND_CPU(RVV), rvv_pairs)                             \
	X(attend, f16_bf16, rvv, RVV, F16, BF16, ATTND_CPU(RVV), rvv_pairs)                             \
	X(attend, bf16_bf16, rvv, RVV, BF16, BF16, ATTND_CPU(RVV), rvv_pairs)                           \
	X(attend, f32_f16, rvv, RVV, F32, F16, ATTND_CPU(RVV), rvv)                                     \
	X(attend, f16_f16, rvv, RVV, F16, F16, ATTND_CPU(RVV), rvv)                                     \
	X(attend, bf16_f16, rvv, RVV, BF16, F16, ATTND_CPU(RVV), rvv)                                   \
	X(attend, f32_int8, rvv, RVV, F32, INT8, ATTND_CPU(RVV), rvv)                                   \
	X(attend, f16_int8, rvv, RVV, F16, INT8, ATTND_CPU(RVV), rvv)                                   \
	X(attend, bf16_int8, rvv, RVV, BF16, INT8, ATTND_CPU(RVV), rvv)                                 \
	X(attend, f32_e4m3, rvv, RVV, F32, FP8_E4M3, ATTND_CPU(RVV), rvv)                               \
	X(attend, f16_e4m3, rvv, RVV, F16, FP8_E4M3, ATTND_CPU(RVV), rvv)                               \
	X(attend, bf16_e4m3, rvv, RVV, BF16, FP8_E4M3, ATTND_CPU(RVV), rvv)                             \
	X(attend, f32_e5m2, rvv, RVV, F32, FP8_E5M2, ATTND_CPU(RVV), rvv)                               \
	X(attend, f16_e5m2, rvv, RVV, F16, FP8_E5M2, ATTND_CPU(RVV), rvv)                               \
	X(attend, bf16_e5m2, rvv, RVV, BF16, FP8_E5M2, ATTND_CPU(RVV), rvv)                             \
	X(attend, f32_f16, rvvh, RVV, F32, F16, ATTND_CPU(ZVFH), rvv)                                   \
	X(attend, f16_f16, rvvh, RVV, F16, F16, ATTND_CPU(ZVFH), rvv)                                   \
	X(attend, bf16_f16, rvvh, RVV, BF16, F16, ATTND_CPU(ZVFH), rvv)                                 \
	X(attend, f32_bf16, rvvbf, RVV, F32, BF16, ATTND_CPU(ZVFBFWMA), rvv)                                 \
	X(attend, f16_bf16, rvvbf, RVV, F16, BF16, ATTND_CPU(ZVFBFWMA), rvv)                                 \
	X(attend, bf16_bf16, rvvbf, RVV, BF16, BF16, ATTND_CPU(ZVFBFWMA), rvv)                          \
	X(write, any, rvv, RVV, ANY, ANY, ATTND_CPU(RVV), packed)                                       \
	X(read, any, rvv, RVV, ANY, ANY, ATTND_CPU(RVV), packed)                                        \
	X(copy, any, rvv, RVV, ANY, ANY, ATTND_CPU(RVV), packed)                                        \
	X(merge, any, rvv, RVV, ANY, ANY, ATTND_CPU(RVV), any)                                          \
	X(finish, any, rvv, RVV, ANY, ANY, ATTND_CPU(RVV), any)
#else
#define ATTND_KERNELS_ARCH(X)
#endif

#define ATTND_KERNELS(X) ATTND_KERNELS_C(X) ATTND_KERNELS_ARCH(X)
/* clang-format on */

/* Predicates of `fits`, in format.c: may this kernel serve this format, with these features? */
typedef bool attnd_fits_fn(uint64_t features, const struct attnd_kv_format *fmt);
attnd_fits_fn attnd_fits_any;
attnd_fits_fn attnd_fits_packed;      /* packed */
attnd_fits_fn attnd_fits_fast_dpbf16; /* packed, where vdpbf16ps beats f32 FMA */
attnd_fits_fn attnd_fits_rvv;	      /* packed, not interleaved */
attnd_fits_fn attnd_fits_rvv_pairs;   /* packed, two dims or tokens side by side */

#define ATTND_X(op, types, suffix, isa, q, kv, need, fits) attnd_##op##_fn attnd_##op##_##types##_##suffix;
ATTND_KERNELS(ATTND_X)
#undef ATTND_X

enum attnd_isa {
#define ATTND_X(id, name) ATTND_ISA_##id,
	ATTND_ISAS(ATTND_X)
#undef ATTND_X
		ATTND_ISA_COUNT,
};

enum attnd_op {
	ATTND_OP_attend,
	ATTND_OP_write,
	ATTND_OP_read,
	ATTND_OP_copy,
	ATTND_OP_clear,
	ATTND_OP_init,
	ATTND_OP_merge,
	ATTND_OP_finish,
	ATTND_OP_COUNT,
};

#define ATTND_K_ANY ATTND_K_DTYPES

struct attnd_kernel {
	const char *name; /* without the prefix: "attend_bf16_bf16_c" */
	enum attnd_op op;
	enum attnd_isa isa;
	int q, kv; /* enum attnd_kdtype or ATTND_K_ANY */
	uint64_t need;
	attnd_fits_fn *fits;
	union {
		attnd_attend_fn *attend;
		attnd_write_fn *write;
		attnd_read_fn *read;
		attnd_copy_fn *copy;
		attnd_clear_fn *clear;
		attnd_init_fn *init;
		attnd_merge_fn *merge;
		attnd_finish_fn *finish;
	} fn;
};

extern const struct attnd_kernel attnd_kernels[];
extern const size_t attnd_num_kernels;

/** Does this kernel serve the format, on a CPU with these features? */
bool attnd_kernel_serves(const struct attnd_kernel *k, uint64_t features, const struct attnd_kv_format *fmt);

extern const char *const attnd_isa_names[ATTND_ISA_COUNT];

#endif
