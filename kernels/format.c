/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Formats: what a cache's tiles look like, and which kernels serve them.
 *
 * In:   CPU features and a cache's geometry.
 * Out:  struct attnd_kv_format (constants) and struct attnd_ops (function pointers).
 * Next: the daemon stores the format with the cache and calls the operations.
 *
 * Selection walks the registry once: portable C comes first and serves everything, every later
 * kernel that fits replaces what stands in its place.
 */
#include "registry.h"

#include <errno.h>
#include "partial.h"
#include "attend_c.h"
#include "rvv.h"
#include "x86.h"

enum { MIN_BLOCK = 16, MAX_BLOCK = 256, MAX_KV_HEADS = 1024, MAX_GROUP = 1024 };
enum { LAYOUT_VERSION = 1, MAX_LANES = 1024, MAX_ILV = 4 };

const struct attnd_kernel attnd_kernels[] = {
#define ATTND_X(op, types, suffix, isa, q, kv, need, fits) \
	{#op "_" #types "_" #suffix,                       \
	 ATTND_OP_##op,                                    \
	 ATTND_ISA_##isa,                                  \
	 ATTND_K_##q,                                      \
	 ATTND_K_##kv,                                     \
	 need,                                             \
	 attnd_fits_##fits,                                \
	 {.op = attnd_##op##_##types##_##suffix}},
	ATTND_KERNELS(ATTND_X)
#undef ATTND_X
};
const size_t attnd_num_kernels = sizeof(attnd_kernels) / sizeof(attnd_kernels[0]);

const char *const attnd_isa_names[ATTND_ISA_COUNT] = {
#define ATTND_X(id, name) [ATTND_ISA_##id] = name,
	ATTND_ISAS(ATTND_X)
#undef ATTND_X
};

bool attnd_fits_any(uint64_t features, const struct attnd_kv_format *fmt)
{
	(void)features;
	(void)fmt;
	return true;
}

bool attnd_fits_packed(uint64_t features, const struct attnd_kv_format *fmt)
{
	(void)features;
	return fmt->spec.layout == ATTND_K_PACKED;
}

bool attnd_fits_fast_dpbf16(uint64_t features, const struct attnd_kv_format *fmt)
{
	return !(features & ATTND_CPU(SLOW_DPBF16)) && attnd_fits_packed(features, fmt);
}

bool attnd_fits_rvv(uint64_t features, const struct attnd_kv_format *fmt)
{
	(void)features;
	return fmt->spec.layout == ATTND_K_PACKED && fmt->k_ilv == 1;
}

bool attnd_fits_rvv_pairs(uint64_t features, const struct attnd_kv_format *fmt)
{
	(void)features;
	return fmt->spec.layout == ATTND_K_PACKED && fmt->k_ilv == 2;
}

bool attnd_kernel_serves(const struct attnd_kernel *k, uint64_t features, const struct attnd_kv_format *fmt)
{
	return (features & k->need) == k->need && (k->kv == ATTND_K_ANY || k->kv == (int)fmt->spec.dtype) &&
	       k->fits(features, fmt);
}

static size_t align64(size_t n)
{
	return (n + 63) & ~(size_t)63;
}

static uint32_t round_up(uint32_t n, uint32_t to)
{
	return (n + to - 1) / to * to;
}

static uint32_t vlen_bits(uint64_t features)
{
	uint32_t vlen = (uint32_t)(features >> ATTND_CPU_VLEN_SHIFT);

	return vlen < 128 ? 128 : vlen;
}

static bool power_of_two(uint32_t n)
{
	return n != 0 && (n & (n - 1)) == 0;
}

static bool scale_allowed(enum attnd_kdtype dtype, enum attnd_kscale scale)
{
	switch (dtype) {
	case ATTND_K_F32:
	case ATTND_K_F16:
	case ATTND_K_BF16:
		return scale == ATTND_K_SCALE_NONE;
	case ATTND_K_INT8:
		return scale == ATTND_K_SCALE_STATIC || scale == ATTND_K_SCALE_DYNAMIC;
	case ATTND_K_FP8_E4M3:
	case ATTND_K_FP8_E5M2:
		return scale == ATTND_K_SCALE_STATIC;
	case ATTND_K_DTYPES:
		break;
	}
	return false;
}

static bool spec_valid(const struct attnd_kv_spec *s)
{
	uint32_t min_block = s->layout == ATTND_K_BSHD ? 1 : MIN_BLOCK;

	return s->num_kv_heads >= 1 && s->num_kv_heads <= MAX_KV_HEADS && s->group >= 1 && s->group <= MAX_GROUP &&
	       s->head_dim >= 1 && s->head_dim <= ATTND_K_MAX_DIM && s->head_dim_v >= 1 &&
	       s->head_dim_v <= ATTND_K_MAX_DIM && power_of_two(s->block_size) && s->block_size >= min_block &&
	       s->block_size <= MAX_BLOCK && (unsigned)s->layout <= ATTND_K_BHSD &&
	       scale_allowed(s->dtype, s->scale) && (!s->v_in_k || s->head_dim_v <= s->head_dim);
}

#if defined(__riscv)
/*
 * RVV multiplies a scalar with a vector: VLEN/8 lanes of f32 are a group of four registers. V's
 * dims are spread evenly over the fewest strips. Without Zvfbfwma one 32-bit word holds two dims
 * (tokens), which a shift and a mask widen, so for bf16 the layout depends on that feature, too.
 */
static void layout_lanes_rvv(uint64_t features, struct attnd_kv_format *f)
{
	uint32_t lanes = vlen_bits(features) / 8, dims = f->spec.head_dim_v, strips = (dims + lanes - 1) / lanes;

	f->k_lanes = (uint16_t)(lanes < f->spec.block_size ? lanes : f->spec.block_size);
	f->v_lanes = (uint16_t)round_up((dims + strips - 1) / strips, 4);
	f->k_ilv = f->v_ilv = f->spec.dtype == ATTND_K_BF16 && !(features & ATTND_CPU(ZVFBFWMA)) ? 2 : 1;
}
#endif

/*
 * Lanes and interleaving of packed tiles. They depend on the architecture, not on what
 * --cpu-mask leaves, so that a cache stays readable when features are taken away.
 *
 * x86: 16 lanes are one zmm of f32. A row of 16 is 64 bytes for bf16 too, in pairs as vdpbf16ps
 * and tdpbf16ps multiply them, and for 1-byte types in fours; f16 widens to f32 in order.
 */
static void layout_lanes(uint64_t features, struct attnd_kv_format *f)
{
#if defined(__riscv)
	layout_lanes_rvv(features, f);
#else
	(void)features;
	f->k_lanes = f->v_lanes = 16;
	f->k_ilv = f->v_ilv = (uint16_t)(f->spec.dtype <= ATTND_K_F16 ? 1 : 4 / attnd_kdtype_bytes(f->spec.dtype));
#endif
}

static uint32_t step_tokens(uint64_t features)
{
	return features & ATTND_CPU(RVV) ? 256 : 128;
}

/* The most that any kernel which may serve this format wants. */
static uint32_t scratch_bytes(uint64_t features, const struct attnd_kv_format *f)
{
	uint32_t n = attnd_attend_c_scratch(f);

	(void)features;
#if defined(__x86_64__)
	n = attnd_x86_scratch(f) > n ? attnd_x86_scratch(f) : n;
#elif defined(__riscv)
	if (f->spec.layout == ATTND_K_PACKED)
		n = attnd_rvv_scratch(f) > n ? attnd_rvv_scratch(f) : n;
#endif
	return n;
}

/* Lanes and interleaving are set. */
static void layout_packed(struct attnd_kv_format *f)
{
	const struct attnd_kv_spec *s = &f->spec;
	size_t esize = attnd_kdtype_bytes(s->dtype);
	size_t scales = s->scale == ATTND_K_SCALE_DYNAMIC ? s->block_size * sizeof(float) : 0;
	size_t end;

	f->v_off = align64((size_t)s->block_size * round_up(s->head_dim, f->k_ilv) * esize);
	end = s->v_in_k ? f->v_off
			: f->v_off + align64((size_t)round_up(s->head_dim_v, f->v_lanes) * s->block_size * esize);
	f->k_scale_off = end;
	f->v_scale_off = s->v_in_k ? end : end + scales;
	f->tile_bytes = align64(f->v_scale_off + scales);
	f->layer_bytes = f->tile_bytes * s->num_kv_heads;
}

static void layout_rows(struct attnd_kv_format *f)
{
	const struct attnd_kv_spec *s = &f->spec;
	size_t esize = attnd_kdtype_bytes(s->dtype);
	size_t k_row = s->head_dim * esize, v_row = s->v_in_k ? 0 : s->head_dim_v * esize;
	size_t slots = (size_t)s->num_kv_heads * s->block_size;
	size_t scales = s->scale == ATTND_K_SCALE_DYNAMIC ? slots * sizeof(float) : 0;

	if (s->layout == ATTND_K_BSHD) {
		f->k_head_stride = k_row;
		f->v_head_stride = v_row;
		f->k_token_stride = k_row * s->num_kv_heads;
		f->v_token_stride = v_row * s->num_kv_heads;
	} else {
		f->k_token_stride = k_row;
		f->v_token_stride = v_row;
		f->k_head_stride = k_row * s->block_size;
		f->v_head_stride = v_row * s->block_size;
		f->tile_bytes = f->k_head_stride + f->v_head_stride;
	}
	f->v_off = align64(k_row * slots);
	f->k_scale_off = f->v_off + align64(v_row * slots);
	f->v_scale_off = s->v_in_k ? f->k_scale_off : f->k_scale_off + scales;
	f->layer_bytes = align64(f->v_scale_off + scales);
}

static void put_kernel(struct attnd_ops *ops, const struct attnd_kernel *k)
{
	switch (k->op) {
	case ATTND_OP_attend:
		ops->attend[k->q] = k->fn.attend;
		ops->names[k->q] = k->name;
		break;
	case ATTND_OP_write:
		ops->write = k->fn.write;
		break;
	case ATTND_OP_read:
		ops->read = k->fn.read;
		break;
	case ATTND_OP_copy:
		ops->copy = k->fn.copy;
		break;
	case ATTND_OP_clear:
		ops->clear = k->fn.clear;
		break;
	case ATTND_OP_init:
		ops->init = k->fn.init;
		break;
	case ATTND_OP_merge:
		ops->merge = k->fn.merge;
		break;
	case ATTND_OP_finish:
		ops->finish = k->fn.finish;
		break;
	case ATTND_OP_COUNT:
		break;
	}
}

int attnd_format_init(uint64_t features, const struct attnd_kv_spec *spec, struct attnd_kv_format *ret_fmt,
		      struct attnd_ops *ret_ops)
{
	struct attnd_kv_format f = {.spec = *spec};
	struct attnd_ops ops = {0};

	if (!spec_valid(spec))
		return -EINVAL;
	f.layout_id = (uint32_t)spec->layout + 1;
	f.layout_version = LAYOUT_VERSION;
	if (spec->layout == ATTND_K_PACKED) {
		layout_lanes(features, &f);
		layout_packed(&f);
	} else {
		layout_rows(&f);
	}
	f.chunk = spec->group > 15 ? 256 : 512;
	f.step = step_tokens(features);
	f.partial_bytes = attnd_partial_bytes(spec->head_dim_v);
	f.scratch_bytes = scratch_bytes(features, &f);
	for (size_t i = 0; i < attnd_num_kernels; i++)
		if (attnd_kernel_serves(&attnd_kernels[i], features, &f))
			put_kernel(&ops, &attnd_kernels[i]);
	*ret_fmt = f;
	*ret_ops = ops;
	return 0;
}

int attnd_format_stored(const struct attnd_kv_spec *spec, uint32_t layout_id, uint32_t layout_version,
			const uint16_t lanes[4], struct attnd_kv_format *ret_fmt, attnd_read_fn **ret_read)
{
	struct attnd_kv_format f = {.spec = *spec,
				    .layout_id = layout_id,
				    .layout_version = layout_version,
				    .k_lanes = lanes[0],
				    .k_ilv = lanes[1],
				    .v_lanes = lanes[2],
				    .v_ilv = lanes[3]};

	if (!spec_valid(spec) || layout_id != (uint32_t)spec->layout + 1 || layout_version != LAYOUT_VERSION)
		return -EINVAL;
	if (spec->layout != ATTND_K_PACKED) {
		layout_rows(&f);
	} else {
		if (!f.k_lanes || spec->block_size % f.k_lanes || !f.v_lanes || f.v_lanes > MAX_LANES || !f.k_ilv ||
		    f.k_ilv > MAX_ILV || !f.v_ilv || f.v_ilv > MAX_ILV || spec->block_size % f.v_ilv)
			return -EINVAL;
		layout_packed(&f);
	}
	*ret_fmt = f;
	*ret_read = attnd_read_any_c;
	return 0;
}

uint32_t attnd_default_block_size(uint64_t features)
{
	uint32_t vlen = vlen_bits(features);

	if (!(features & ATTND_CPU(RVV)) || vlen < 256)
		return 16;
	return vlen < 1024 ? 32 : 64;
}

const char *attnd_isa_name(uint64_t features)
{
	enum attnd_isa isa = ATTND_ISA_C;

	for (size_t i = 0; i < attnd_num_kernels; i++)
		if (attnd_kernels[i].op == ATTND_OP_attend &&
		    (features & attnd_kernels[i].need) == attnd_kernels[i].need)
			isa = attnd_kernels[i].isa;
	return attnd_isa_names[isa];
}
