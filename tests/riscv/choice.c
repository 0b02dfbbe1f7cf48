/* SPDX-License-Identifier: Apache-2.0 */
/*
 * choice VLEN f16|- bf16|-: does the probe find this CPU, and do the formats suit it?
 *
 * In:   what the emulated CPU has: bits of a vector register (0: no vectors), Zvfh, Zvfbfwma.
 * Out:  TAP: features, the default block size, the kernel of every pair of types, lanes.
 * Next: check.sh runs it on each emulated CPU.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "../../kernels/cpu.h"
#include "../../kernels/kernels.h"

static int tests, bad;

static void expect(int holds, const char *what)
{
	printf("%s %d - %s\n", holds ? "ok" : "not ok", ++tests, what);
	bad |= !holds;
}

static const char *const types[] = {"f32", "f16", "bf16", "int8", "e4m3", "e5m2"};

static void check_kernel(uint32_t vlen, int f16, int bf16, enum attnd_kdtype q, enum attnd_kdtype kv)
{
	struct attnd_kv_spec s = {1, 4, 128, 128, 0, kv, ATTND_K_SCALE_NONE, ATTND_K_PACKED, false};
	const char *suffix = "rvv";
	struct attnd_kv_format f;
	struct attnd_ops ops;
	uint32_t lanes = vlen / 8;
	char want[64];

	if (vlen == 0)
		suffix = "c";
	else if (kv == ATTND_K_F16 && f16)
		suffix = "rvvh";
	else if (kv == ATTND_K_BF16 && bf16)
		suffix = "rvvbf";
	snprintf(want, sizeof(want), "attend_%s_%s_%s", types[q], types[kv], suffix);
	s.block_size = attnd_default_block_size(attnd_features());
	s.scale = kv > ATTND_K_BF16 ? ATTND_K_SCALE_STATIC : ATTND_K_SCALE_NONE;
	if (attnd_format_init(attnd_features(), &s, &f, &ops) != 0) {
		expect(0, want);
		return;
	}
	expect(strcmp(ops.names[q], want) == 0 &&
		       (vlen == 0 || (f.step == 256 && f.v_lanes == (lanes < 128 ? lanes : 128) &&
				      f.k_lanes == (lanes < s.block_size ? lanes : s.block_size) &&
				      f.k_ilv == (kv == ATTND_K_BF16 && !bf16 ? 2 : 1))),
	       want);
}

int main(int argc, char **argv)
{
	uint32_t vlen = argc > 1 ? (uint32_t)atoi(argv[1]) : 0;
	int f16 = argc > 2 && strcmp(argv[2], "f16") == 0, bf16 = argc > 3 && strcmp(argv[3], "bf16") == 0;
	uint64_t want = ATTND_CPU(RVV) | (f16 ? ATTND_CPU(ZVFH) : 0) |
			(bf16 ? ATTND_CPU(ZVFBFMIN) | ATTND_CPU(ZVFBFWMA) : 0) |
			(uint64_t)vlen << ATTND_CPU_VLEN_SHIFT;

	expect(attnd_features() == (vlen ? want : 0), "features");
	expect(attnd_default_block_size(attnd_features()) == (vlen < 256 ? 16 : vlen < 1024 ? 32 : 64), "block size");
	for (int q = 0; q < ATTND_K_FLOATS; q++)
		for (int kv = 0; kv < ATTND_K_DTYPES; kv++)
			check_kernel(vlen, f16, bf16, (enum attnd_kdtype)q, (enum attnd_kdtype)kv);
	printf("1..%d\n", tests);
	return bad;
}
