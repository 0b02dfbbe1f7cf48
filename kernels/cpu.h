/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The only probe of the CPU: detected features & mask.
 *
 * In:   CPUID, XCR0 and arch_prctl on x86-64; HWCAP, hwprobe and the device tree on riscv64.
 * Out:  a set of feature bits; VLEN.
 * Next: kernels.h picks a table by it; daemon/config.c applies --cpu-mask.
 */
#ifndef ATTND_KERNELS_CPU_H
#define ATTND_KERNELS_CPU_H

#include <stdint.h>
#include <stddef.h>

/* One line a feature: bit, name (for --cpu-mask and logs). */
#define ATTND_CPU_FEATURES(X)                                                        \
	X(AVX2, "avx2")	    /* with FMA and F16C */                                  \
	X(AVX512, "avx512") /* F, BW, VL, DQ */                                      \
	X(AVX512_BF16, "avx512-bf16")                                                \
	X(AVX512_FP16, "avx512-fp16")                                                \
	X(AVX512_VBMI, "avx512-vbmi")                                                \
	X(AVX512_VNNI, "avx512-vnni")                                                \
	X(AMX_BF16, "amx-bf16")                                                      \
	X(SLOW_DPBF16, "slow-dpbf16") /* vdpbf16ps not known to beat f32 FMA here */ \
	X(RVV, "rvv")		      /* 1.0 */                                      \
	X(ZVFH, "zvfh")                                                              \
	X(ZVFBFMIN, "zvfbfmin")                                                      \
	X(ZVFBFWMA, "zvfbfwma")

enum attnd_cpu_bit {
#define ATTND_X(id, name) ATTND_CPU_BIT_##id,
	ATTND_CPU_FEATURES(ATTND_X)
#undef ATTND_X
		ATTND_CPU_BITS,
};
#define ATTND_CPU(id) (UINT64_C(1) << ATTND_CPU_BIT_##id)
/* On riscv64 bits 48..63 hold VLEN in bits. */
#define ATTND_CPU_VLEN_SHIFT 48

/** Detect. Cached after the first call; thread-safe. AMX asks the kernel for its permission. */
uint64_t attnd_features(void);

/**
 * Parse "--cpu-mask": names of features to take away, separated by commas ("avx512,amx-bf16"),
 * or "none" for all of them (portable C). 0 and *ret_mask (to be and-ed), or -EINVAL.
 */
int attnd_features_parse_mask(const char *text, uint64_t *ret_mask);

/** Features' names separated by spaces, into buf; "none" for an empty set. Always terminated. */
void attnd_features_format(uint64_t features, char *buf, size_t size);

#endif
