/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Checks of kernels/cpu.c and kernels/format.c: masks, names, limits, layouts, selection.
 *
 * In:   texts and specs, good and bad.
 * Out:  TAP.
 * Next: daemon/config.c relies on these answers.
 */
#include "check.h"

#include <errno.h>

#define EXPECT(cond)                                                  \
	do {                                                          \
		if (!(cond))                                          \
			fail("%s:%d: %s", __FILE__, __LINE__, #cond); \
	} while (0)

static void check_masks(void)
{
	const uint64_t vlen = UINT64_C(256) << ATTND_CPU_VLEN_SHIFT, untouched = 12345;
	static const char *const bad[] = {"",	       ",",    "avx",	"avx2,",     ",avx2",
					  "avx2,,rvv", "AVX2", "avx2 ", "none,avx2", "avx5120"};
	uint64_t m;

	EXPECT(attnd_features_parse_mask("none", &m) == 0 && (vlen & m) == vlen &&
	       (m & (ATTND_CPU(AVX2) | ATTND_CPU(RVV))) == 0);
	EXPECT(attnd_features_parse_mask("avx512-bf16", &m) == 0 && (m & ATTND_CPU(AVX512)) &&
	       !(m & ATTND_CPU(AVX512_BF16)));
	EXPECT(attnd_features_parse_mask("avx512,amx-bf16", &m) == 0 && (m & ATTND_CPU(AVX2)));
	EXPECT(!(m & (ATTND_CPU(AVX512) | ATTND_CPU(AVX512_BF16) | ATTND_CPU(AVX512_FP16) | ATTND_CPU(AMX_BF16))));
	EXPECT(attnd_features_parse_mask("avx2", &m) == 0 &&
	       !(m & (ATTND_CPU(AVX2) | ATTND_CPU(AVX512) | ATTND_CPU(AMX_BF16))));
	EXPECT(attnd_features_parse_mask("rvv", &m) == 0 &&
	       !(m & (ATTND_CPU(RVV) | ATTND_CPU(ZVFH) | ATTND_CPU(ZVFBFWMA))));
	EXPECT((vlen & m) == vlen);
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		m = untouched;
		if (attnd_features_parse_mask(bad[i], &m) != -EINVAL || m != untouched)
			fail("the mask \"%s\" was taken", bad[i]);
	}
}

static void check_names(void)
{
	char buf[64];

	attnd_features_format(0, buf, sizeof(buf));
	EXPECT(strcmp(buf, "none") == 0);
	attnd_features_format(ATTND_CPU(AVX2) | ATTND_CPU(AVX512_BF16) | UINT64_C(128) << ATTND_CPU_VLEN_SHIFT, buf,
			      sizeof(buf));
	EXPECT(strcmp(buf, "avx2 avx512-bf16") == 0);
	memset(buf, 'x', sizeof(buf));
	attnd_features_format(ATTND_CPU(AVX2) | ATTND_CPU(AVX512_BF16), buf, 8);
	EXPECT(strcmp(buf, "avx2") == 0 && buf[8] == 'x');
	attnd_features_format(0, buf, 1);
	EXPECT(buf[0] == '\0');
	attnd_features_format(0, NULL, 0);
	EXPECT(attnd_features() == attnd_features());
}

void check_cpu(uint64_t seed)
{
	(void)seed;
	check_masks();
	check_names();
}

static int try_spec(const struct attnd_kv_spec *s)
{
	struct attnd_kv_format f;
	struct attnd_ops ops;

	return attnd_format_init(check_features, s, &f, &ops);
}

/* One field at a time out of its limits. */
static void check_limits(void)
{
	const struct attnd_kv_spec good = {.num_kv_heads = 2,
					   .group = 4,
					   .head_dim = 128,
					   .head_dim_v = 64,
					   .block_size = 16,
					   .dtype = ATTND_K_BF16};
	struct attnd_kv_spec s;

	EXPECT(try_spec(&good) == 0);
#define TRY(change, want)                                    \
	do {                                                 \
		s = good;                                    \
		change;                                      \
		if (try_spec(&s) != (want))                  \
			fail("%s: not %d", #change, (want)); \
	} while (0)
	TRY(s.num_kv_heads = 0, -EINVAL);
	TRY(s.group = 0, -EINVAL);
	TRY(s.head_dim = 0, -EINVAL);
	TRY(s.head_dim = 576, 0);
	TRY(s.head_dim = 577, -EINVAL);
	TRY(s.head_dim_v = 0, -EINVAL);
	TRY(s.head_dim_v = 577, -EINVAL);
	TRY(s.block_size = 0, -EINVAL);
	TRY(s.block_size = 8, -EINVAL);
	TRY(s.block_size = 24, -EINVAL);
	TRY(s.block_size = 256, 0);
	TRY(s.block_size = 512, -EINVAL);
	TRY((s.block_size = 1, s.layout = ATTND_K_BSHD), 0);
	TRY((s.block_size = 8, s.layout = ATTND_K_BHSD), -EINVAL);
	TRY(s.layout = (enum attnd_klayout)3, -EINVAL);
	TRY(s.dtype = ATTND_K_DTYPES, -EINVAL);
	TRY(s.scale = ATTND_K_SCALE_STATIC, -EINVAL);
	TRY(s.dtype = ATTND_K_INT8, -EINVAL);
	TRY((s.dtype = ATTND_K_INT8, s.scale = ATTND_K_SCALE_STATIC), 0);
	TRY((s.dtype = ATTND_K_INT8, s.scale = ATTND_K_SCALE_DYNAMIC), 0);
	TRY((s.dtype = ATTND_K_FP8_E4M3, s.scale = ATTND_K_SCALE_DYNAMIC), -EINVAL);
	TRY((s.dtype = ATTND_K_FP8_E5M2, s.scale = ATTND_K_SCALE_STATIC), 0);
	TRY(s.v_in_k = true, 0);
	TRY((s.v_in_k = true, s.head_dim_v = 129), -EINVAL);
#undef TRY
}

static void check_constants(const struct attnd_kv_format *f, const struct attnd_ops *ops)
{
	EXPECT(f->chunk % f->step == 0 && f->chunk % f->spec.block_size == 0);
	EXPECT(f->chunk == (f->spec.group > 15 ? 256u : 512u));
	EXPECT(f->layer_bytes % 64 == 0 && f->partial_bytes % 64 == 0 && f->scratch_bytes % 64 == 0);
	EXPECT(f->partial_bytes >= 8 + 4 * f->spec.head_dim_v);
	EXPECT(f->v_off % 64 == 0 && f->v_off <= f->layer_bytes && f->v_scale_off <= f->layer_bytes);
	EXPECT(f->layout_id && f->layout_version);
	EXPECT(ops->write && ops->read && ops->copy && ops->clear && ops->init && ops->merge && ops->finish);
	for (int q = 0; q < ATTND_K_FLOATS; q++)
		EXPECT(ops->attend[q] && ops->names[q]);
	if (f->spec.layout != ATTND_K_PACKED)
		return;
	EXPECT(f->tile_bytes % 64 == 0 && f->layer_bytes == f->tile_bytes * f->spec.num_kv_heads);
	EXPECT(f->k_lanes && f->v_lanes && f->spec.block_size % f->k_lanes == 0 &&
	       f->spec.block_size % f->v_ilv == 0);
}

/* Taking features away changes kernels, never where elements stand. */
static bool same_layout(const struct attnd_kv_format *a, const struct attnd_kv_format *b)
{
	return a->layout_id == b->layout_id && a->layout_version == b->layout_version && a->k_lanes == b->k_lanes &&
	       a->k_ilv == b->k_ilv && a->v_lanes == b->v_lanes && a->v_ilv == b->v_ilv &&
	       a->tile_bytes == b->tile_bytes && a->layer_bytes == b->layer_bytes && a->v_off == b->v_off &&
	       a->k_scale_off == b->k_scale_off && a->v_scale_off == b->v_scale_off;
}

void check_format(uint64_t seed)
{
	struct rng r = {seed};
	uint64_t mask;

	check_limits();
	EXPECT(attnd_features_parse_mask("none", &mask) == 0);
	EXPECT(strcmp(attnd_isa_name(mask & check_features), "c") == 0);
	for (int i = 0; i < 2000; i++) {
		struct attnd_kv_spec s = random_spec(&r, (enum attnd_kdtype)rng_below(&r, ATTND_K_DTYPES));
		struct attnd_kv_format f, plain;
		struct attnd_ops ops, plain_ops;

		if (attnd_format_init(check_features, &s, &f, &ops) != 0 ||
		    attnd_format_init(check_features & mask, &s, &plain, &plain_ops) != 0) {
			fail("a valid spec is refused");
			continue;
		}
		check_constants(&f, &ops);
		check_constants(&plain, &plain_ops);
		EXPECT(same_layout(&f, &plain));
		EXPECT(strstr(plain_ops.names[0], "_c"));
	}
	EXPECT(attnd_default_block_size(0) == 16);
	EXPECT(attnd_default_block_size(ATTND_CPU(RVV) | UINT64_C(256) << ATTND_CPU_VLEN_SHIFT) == 32);
	EXPECT(attnd_default_block_size(ATTND_CPU(RVV) | UINT64_C(512) << ATTND_CPU_VLEN_SHIFT) == 32);
	EXPECT(attnd_default_block_size(ATTND_CPU(RVV) | UINT64_C(1024) << ATTND_CPU_VLEN_SHIFT) == 64);
}
