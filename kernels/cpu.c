/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The probe of the CPU (cpu.h).
 *
 * In:   CPUID, XCR0, arch_prctl; HWCAP, hwprobe, prctl, the device tree.
 * Out:  feature bits, and masks over them.
 * Next: format.c picks kernels by them.
 */
#include "cpu.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#if defined(__x86_64__)

#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

enum {
	REQ_XCOMP_PERM = 0x1023, /* arch_prctl: may this process use the state? */
	XTILEDATA = 18,
	XCR0_AVX = 0x6,
	XCR0_AVX512 = 0xe6,
	XCR0_AMX = 0x60000,
};

static uint64_t xcr0(void)
{
	uint32_t lo, hi;

	__asm__ volatile("xgetbv" : "=a"(lo), "=d"(hi) : "c"(0));
	return (uint64_t)hi << 32 | lo;
}

/*
 * CPU families on which bench-kernels has measured vdpbf16ps beside f32 FMA (its "peak" figures,
 * multiply-adds a second of the first / of the second). One that is not listed counts as slow:
 * f32 FMA is the safe choice. A row may only be added with a measurement.
 */
static const struct dpbf16_family {
	uint32_t vendor; /* CPUID 0, EBX */
	uint32_t family;
	uint32_t first_model, last_model;
	bool fast;
} dpbf16_families[] = {
	{signature_AMD_ebx, 0x19, 0x10, 0xff, true}, /* Zen 4: 2.0 */
	{signature_INTEL_ebx, 6, 0xcf, 0xcf, false}, /* Emerald Rapids: 0.50 */
};

static bool slow_dpbf16(void)
{
	uint32_t a = 0, vendor = 0, b, c, d, family, model;

	__get_cpuid(0, &a, &vendor, &c, &d);
	a = 0;
	__get_cpuid(1, &a, &b, &c, &d);
	family = (a >> 8 & 0xf) + ((a >> 8 & 0xf) == 0xf ? a >> 20 & 0xff : 0);
	model = (a >> 4 & 0xf) | (a >> 12 & 0xf0);
	for (size_t i = 0; i < sizeof(dpbf16_families) / sizeof(dpbf16_families[0]); i++) {
		const struct dpbf16_family *f = &dpbf16_families[i];

		if (f->vendor == vendor && f->family == family && f->first_model <= model && model <= f->last_model)
			return !f->fast;
	}
	return true;
}

static uint64_t avx512_features(uint64_t xcr, uint32_t b7, uint32_t c7, uint32_t d7)
{
	uint32_t need = bit_AVX512F | bit_AVX512BW | bit_AVX512VL | bit_AVX512DQ;
	uint32_t a = 0, b, c, d;
	uint64_t f = ATTND_CPU(AVX512);

	if ((xcr & XCR0_AVX512) != XCR0_AVX512 || (b7 & need) != need)
		return 0;
	__get_cpuid_count(7, 1, &a, &b, &c, &d);
	if (a & (1u << 5))
		f |= ATTND_CPU(AVX512_BF16) | (slow_dpbf16() ? ATTND_CPU(SLOW_DPBF16) : 0);
	if (c7 & (1u << 1))
		f |= ATTND_CPU(AVX512_VBMI);
	if (c7 & (1u << 11))
		f |= ATTND_CPU(AVX512_VNNI);
	if (d7 & (1u << 23))
		f |= ATTND_CPU(AVX512_FP16);
	if ((d7 & (1u << 22)) && (d7 & (1u << 24)) && (xcr & XCR0_AMX) == XCR0_AMX &&
	    syscall(SYS_arch_prctl, REQ_XCOMP_PERM, XTILEDATA) == 0)
		f |= ATTND_CPU(AMX_BF16);
	return f;
}

static uint64_t detect(void)
{
	uint32_t a, b, c, d, need = bit_OSXSAVE | bit_FMA | bit_F16C;
	uint64_t xcr;

	if (!__get_cpuid(1, &a, &b, &c, &d) || (c & need) != need)
		return 0;
	xcr = xcr0();
	if ((xcr & XCR0_AVX) != XCR0_AVX || !__get_cpuid_count(7, 0, &a, &b, &c, &d) || !(b & bit_AVX2))
		return 0;
	return ATTND_CPU(AVX2) | avx512_features(xcr, b, c, d);
}

#elif defined(__riscv) && __riscv_xlen == 64

#include <glob.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <sys/auxv.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

enum {
	SYS_HWPROBE = 258,
	HWPROBE_IMA_EXT_0 = 4,
	HWPROBE_V = 2,
	HWPROBE_ZVFH = 30,
	HWPROBE_ZVFBFMIN = 53,
	HWPROBE_ZVFBFWMA = 54,
	V_GET_CONTROL = 70, /* PR_RISCV_V_GET_CONTROL */
	V_CUR_MASK = 3,
	V_OFF = 1,
};

/* struct riscv_hwprobe */
struct hwprobe {
	int64_t key;
	uint64_t value;
};

static bool list_has(const char *list, size_t size, const char *name)
{
	size_t n = strlen(name) + 1;

	for (size_t i = 0; i < size; i += strnlen(list + i, size - i) + 1)
		if (size - i >= n && memcmp(list + i, name, n) == 0)
			return true;
	return false;
}

/* Does one CPU's "riscv,isa-extensions" (names, each with a NUL) hold this one? */
static bool file_has(const char *path, const char *name)
{
	char list[4096];
	FILE *file = fopen(path, "re");
	size_t size;

	if (!file)
		return false;
	size = fread(list, 1, sizeof(list), file);
	fclose(file);
	return list_has(list, size, name);
}

/* Kernels that know no hwprobe bit for an extension still pass on the device tree; all CPUs must agree. */
static bool device_tree_has(const char *name)
{
	glob_t g;
	bool all;

	if (glob("/proc/device-tree/cpus/cpu@*/riscv,isa-extensions", 0, NULL, &g) != 0)
		return false;
	all = g.gl_pathc > 0;
	for (size_t i = 0; i < g.gl_pathc; i++)
		all = all && file_has(g.gl_pathv[i], name);
	globfree(&g);
	return all;
}

/* ---- Does an instruction run? ---- */

static sigjmp_buf illegal;

static void on_illegal(int sig)
{
	(void)sig;
	siglongjmp(illegal, 1);
}

/*
 * Where neither kernel nor device tree can name it (an old hwprobe and ACPI, qemu-user): one
 * vfwmaccbf16.vv on one element, in numbers for assemblers without it. No vector register is
 * live across a call. SIGILL's own action is back afterwards.
 */
static bool runs_vfwmaccbf16(void)
{
	static pthread_mutex_t one_at_a_time = PTHREAD_MUTEX_INITIALIZER;
	struct sigaction catch = {.sa_handler = on_illegal}, before;
	volatile bool ran = false;

	pthread_mutex_lock(&one_at_a_time);
	sigaction(SIGILL, &catch, &before);
	if (sigsetjmp(illegal, 1) == 0) {
		__asm__ volatile(".4byte 0xccf0f057\n" /* vsetivli zero, 1, e16, mf2, ta, ma */
				 ".4byte 0xeea49457\n" /* vfwmaccbf16.vv v8, v9, v10 */
				 ::
					 : "memory");
		ran = true;
	}
	sigaction(SIGILL, &before, NULL);
	pthread_mutex_unlock(&one_at_a_time);
	return ran;
}

static bool has_device_tree(void)
{
	return access("/proc/device-tree/cpus", F_OK) == 0;
}

/* In bytes. The number stands for vlenb, which an assembler without V does not know. */
static uint64_t vlenb(void)
{
	uint64_t n;

	__asm__ volatile("csrr %0, 0xc22" : "=r"(n));
	return n;
}

static bool vectors_allowed(void)
{
	int control = prctl(V_GET_CONTROL, 0, 0, 0, 0);

	return control < 0 || (control & V_CUR_MASK) != V_OFF;
}

static uint64_t detect(void)
{
	struct hwprobe probe = {.key = HWPROBE_IMA_EXT_0};
	bool probed = syscall(SYS_HWPROBE, &probe, 1, 0, NULL, 0) == 0 && probe.key == HWPROBE_IMA_EXT_0;
	uint64_t f = ATTND_CPU(RVV);

	if (!(getauxval(AT_HWCAP) & (1ul << ('V' - 'A'))) || !vectors_allowed())
		return 0;
	if (probed && !(probe.value >> HWPROBE_V & 1))
		return 0;
	if (probe.value >> HWPROBE_ZVFH & 1 || device_tree_has("zvfh"))
		f |= ATTND_CPU(ZVFH);
	if (probe.value >> HWPROBE_ZVFBFMIN & 1 || device_tree_has("zvfbfmin"))
		f |= ATTND_CPU(ZVFBFMIN);
	if (probe.value >> HWPROBE_ZVFBFWMA & 1 || device_tree_has("zvfbfwma") ||
	    (!has_device_tree() && runs_vfwmaccbf16()))
		f |= ATTND_CPU(ZVFBFMIN) | ATTND_CPU(ZVFBFWMA); /* the second implies the first */
	return f | vlenb() * 8 << ATTND_CPU_VLEN_SHIFT;
}

#else

static uint64_t detect(void)
{
	return 0;
}

#endif

uint64_t attnd_features(void)
{
	/* A bit that no feature uses says that the rest is known. Two threads may both find out. */
	const uint64_t known = UINT64_C(1) << (ATTND_CPU_VLEN_SHIFT - 1);
	static _Atomic uint64_t cache;
	uint64_t f = atomic_load_explicit(&cache, memory_order_relaxed);

	if (!f) {
		f = detect() | known;
		atomic_store_explicit(&cache, f, memory_order_relaxed);
	}
	return f & ~known;
}

/* ---- Masks and names ---- */

static const char *const names[ATTND_CPU_BITS] = {
#define ATTND_X(id, name) [ATTND_CPU_BIT_##id] = name,
	ATTND_CPU_FEATURES(ATTND_X)
#undef ATTND_X
};

/* What goes too when a feature is taken away, because it builds on it. */
static uint64_t dependents(enum attnd_cpu_bit bit)
{
	const uint64_t on_avx512 = ATTND_CPU(AVX512_BF16) | ATTND_CPU(AVX512_FP16) | ATTND_CPU(AVX512_VBMI) |
				   ATTND_CPU(AVX512_VNNI) | ATTND_CPU(AMX_BF16) | ATTND_CPU(SLOW_DPBF16);

	switch (bit) {
	case ATTND_CPU_BIT_AVX2:
		return ATTND_CPU(AVX512) | on_avx512;
	case ATTND_CPU_BIT_AVX512:
		return on_avx512;
	case ATTND_CPU_BIT_AVX512_BF16:
		return ATTND_CPU(SLOW_DPBF16);
	case ATTND_CPU_BIT_RVV:
		return ATTND_CPU(ZVFH) | ATTND_CPU(ZVFBFMIN) | ATTND_CPU(ZVFBFWMA);
	case ATTND_CPU_BIT_ZVFBFMIN:
		return ATTND_CPU(ZVFBFWMA);
	default:
		return 0;
	}
}

static int feature_by_name(const char *name, size_t n)
{
	for (int i = 0; i < ATTND_CPU_BITS; i++)
		if (strlen(names[i]) == n && memcmp(names[i], name, n) == 0)
			return i;
	return -EINVAL;
}

int attnd_features_parse_mask(const char *text, uint64_t *ret_mask)
{
	const uint64_t vlen = UINT64_MAX << ATTND_CPU_VLEN_SHIFT; /* stays: layouts depend on it */
	uint64_t away = 0;

	if (strcmp(text, "none") == 0) {
		*ret_mask = vlen;
		return 0;
	}
	for (const char *p = text;; p++) {
		size_t n = strcspn(p, ",");
		int bit = feature_by_name(p, n);

		if (bit < 0)
			return -EINVAL;
		away |= UINT64_C(1) << bit | dependents((enum attnd_cpu_bit)bit);
		p += n;
		if (*p == '\0')
			break;
	}
	*ret_mask = ~away;
	return 0;
}

void attnd_features_format(uint64_t features, char *buf, size_t size)
{
	size_t used = 0;

	if (size == 0)
		return;
	buf[0] = '\0';
	for (int i = 0; i < ATTND_CPU_BITS; i++) {
		size_t n = strlen(names[i]) + (used > 0);

		if (!(features >> i & 1) || used + n >= size)
			continue;
		snprintf(buf + used, size - used, "%s%s", used ? " " : "", names[i]);
		used += n;
	}
	if (used == 0)
		snprintf(buf, size, "none");
}
