/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The kernels: pure arithmetic on pointers, strides and counts.
 *
 * In:   attnd_features() (cpu.h) picks a table; a geometry gives a format.
 * Out:  attend, write, read, copy, clear, and init, merge, finish of partials.
 * Next: daemon/exec.c calls them; nobody else computes an address inside a tile.
 *
 * No operation allocates, locks, sets errno, keeps state or looks at shared-memory types, so
 * each may be called from any thread. Arguments are trusted: the daemon has validated them.
 *
 * The formula (per query head, key j; visible(j) is given by the row):
 *
 *     s_j = sm_scale * (q . k_j)
 *     s_j = logit_cap > 0 ? logit_cap * tanh(s_j / logit_cap) : s_j
 *     s_j = s_j + alibi[h] * (j - row.pos)
 *     out = sum_visible exp(s_j - m) v_j / (sum_visible exp(s_j - m) + [sink] exp(sink_h - m))
 *     lse = m + ln(that denominator)
 *
 * No visible key: out = 0 and lse = -inf, or sink_h with a sink. (Vaswani et al. 2017; the
 * streaming form: Milakov and Gimelshein 2018; sinks as in GPT-OSS; ALiBi: Press et al. 2021.)
 *
 * Same bits: a row's partial after a call depends on that row's q, visible keys and their
 * stored K/V, on attn and on the format, and on nothing else: not on the other rows of the
 * call, on how a run of steps is cut into calls, or on the range of heads.
 */
#ifndef ATTND_KERNELS_KERNELS_H
#define ATTND_KERNELS_KERNELS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum attnd_kdtype { /* equal to enum attnd_wire_dtype */
		    ATTND_K_F32,
		    ATTND_K_F16,
		    ATTND_K_BF16,
		    ATTND_K_INT8,
		    ATTND_K_FP8_E4M3,
		    ATTND_K_FP8_E5M2,
		    ATTND_K_DTYPES,
};
#define ATTND_K_MAX_DIM 576
#define ATTND_K_FLOATS	3 /* f32, f16, bf16: what q, out and unquantised K/V may be */

enum attnd_kscale { ATTND_K_SCALE_NONE, ATTND_K_SCALE_STATIC, ATTND_K_SCALE_DYNAMIC };
enum attnd_klayout { ATTND_K_PACKED, ATTND_K_BSHD, ATTND_K_BHSD };

/** Bytes of one element. */
static inline uint32_t attnd_kdtype_bytes(enum attnd_kdtype t)
{
	return t == ATTND_K_F32 ? 4 : t <= ATTND_K_BF16 ? 2 : 1;
}

/** What a cache stores on one NUMA node: the part of its identity that the kernels need. */
struct attnd_kv_spec {
	uint32_t num_kv_heads; /* on this node */
	uint32_t group;	       /* query heads a KV head, num_heads / num_kv_heads, >= 1 */
	uint32_t head_dim;     /* of q and K, 1..576 */
	uint32_t head_dim_v;   /* of V and out, 1..576 */
	uint32_t block_size;   /* tokens; a power of two, 16..256; ATTND_K_BSHD also 1..8 */
	enum attnd_kdtype dtype;
	enum attnd_kscale scale;
	enum attnd_klayout layout;
	bool v_in_k; /* V is the first head_dim_v values of K; no V is stored */
};

/**
 * A spec with its constants, by attnd_format_init. `block` below is a layer slice: the bytes of
 * one layer of one block on one node, layer_bytes long, 64-byte aligned.
 *
 * Packed: head h's tile stands at h * tile_bytes: K, then V at v_off, then with dynamic scales
 * float[block_size] of K at k_scale_off and of V at v_scale_off.
 *     K [block_size / k_lanes][ceil(head_dim / k_ilv)][k_lanes][k_ilv]
 *     V [ceil(head_dim_v / v_lanes)][block_size / v_ilv][v_lanes][v_ilv]
 * K token t, dim d is element (((t / Lk) * Dk + d / Ik) * Lk + t % Lk) * Ik + d % Ik, and
 * V token t, dim d is element (((d / Lv) * (B / Iv) + t / Iv) * Lv + d % Lv) * Iv + t % Iv.
 * Padding dims are zero in every written slot.
 *
 * Row-major: K stands at 0, V at v_off, element (t, h, d) at
 * t * x_token_stride + h * x_head_stride + d * element (bytes); scales float [head][block_size]
 * at k_scale_off and v_scale_off.
 */
struct attnd_kv_format {
	struct attnd_kv_spec spec;
	uint32_t layout_id; /* stored with the cache; equal id, version and lanes: readable */
	uint32_t layout_version;
	uint16_t k_lanes, k_ilv, v_lanes, v_ilv; /* packed; 0 otherwise */
	uint32_t chunk;		/* P: tokens of a split-KV chunk, absolute; a multiple of step and block_size */
	uint32_t step;		/* S: tokens between which a row's running maximum may change, absolute */
	uint32_t partial_bytes; /* of one (row, query head); a multiple of 64 */
	uint32_t scratch_bytes; /* that attend may use, for any number of rows */
	size_t tile_bytes;	/* packed and bhsd: of one KV head */
	size_t layer_bytes;	/* of all heads of one layer of one block */
	size_t k_token_stride, k_head_stride, v_token_stride, v_head_stride; /* row-major */
	size_t v_off, k_scale_off, v_scale_off;
};

/** What all rows of a job share. */
struct attnd_attn {
	float sm_scale, logit_cap; /* logit_cap 0: none */
	float k_scale, v_scale;	   /* ATTND_K_SCALE_STATIC: value = stored * scale */
	const float *alibi;	   /* slopes of this node's query heads, or NULL */
	enum attnd_kdtype q_dtype; /* f32, f16 or bf16 */
	size_t q_head_stride;	   /* bytes */
};

/** One query token. Positions are absolute in its sequence. */
struct attnd_qrow {
	const void *q;	      /* [heads of the call * group][head_dim], q_head_stride apart; first: head * group */
	void *partial;	      /* [heads of the call][group] partials, partial_bytes apart; continued */
	const uint64_t *mask; /* bit (j - mask_start), LSB first; NULL: all of [lo, hi) */
	uint32_t lo, hi;      /* visible range [lo, hi), empty allowed */
	uint32_t pos;	      /* its own position (ALiBi) */
	uint32_t mask_start;  /* keys below it are visible whatever the mask says */
};

/**
 * Continue the partials of `num_rows` rows over the keys [begin, end) of the blocks given.
 *
 * `begin` is a multiple of step; `end` is one too, or no row sees a key at or after it. A call
 * stays within one chunk. A step in which a row sees no key leaves its partial unchanged to the
 * bit. An invisible key contributes nothing: whatever its K, V or scales hold (NaN, Inf,
 * garbage), and whatever unused slots hold, changes no bit.
 *
 * flags[b][h] != 0 says that the tile of block b and head h may hold a non-finite value; an
 * unflagged tile is finite in every slot. A writer of slots that no row of this call sees may
 * set a flag, and then store, while the call runs: a kernel that loads whole tiles must look at
 * the flags again after its loads (acquire fence between).
 */
struct attnd_attend_args {
	const struct attnd_kv_format *fmt;
	const struct attnd_attn *attn;
	const void *const *blocks;   /* layer slices of consecutive blocks */
	const uint8_t *const *flags; /* [block][num_kv_heads], of this layer */
	const void *const *next;     /* slices that this worker attends to next, to be prefetched; may be NULL */
	const struct attnd_qrow *rows;
	void *scratch; /* fmt->scratch_bytes, 64-byte aligned */
	uint32_t num_blocks, num_next, num_rows;
	uint32_t start; /* position of blocks[0]'s slot 0 */
	uint32_t begin, end;
	uint32_t head, num_heads; /* range of this node's KV heads */
};
typedef void attnd_attend_fn(const struct attnd_attend_args *a);

/**
 * Slots [slot, slot + n) of heads [head, head + num_heads) of one layer slice, from or to rows
 * [token][head][dim]; k, v and the scales point at the first token's `head`.
 */
struct attnd_slots_args {
	const struct attnd_kv_format *fmt;
	void *block;
	uint8_t *flags;	   /* [num_kv_heads] of this block and layer */
	const void *k, *v; /* v is ignored with v_in_k */
	size_t k_token_stride, k_head_stride, v_token_stride, v_head_stride; /* bytes */
	const float *k_scales,
		*v_scales;	   /* dynamic, input in the cache's dtype: [token][head], scale_token_stride apart */
	size_t scale_token_stride; /* bytes; heads are contiguous */
	float k_scale, v_scale;	   /* static */
	uint32_t slot, n, head, num_heads;
	enum attnd_kdtype in; /* a float type, or the cache's dtype */
};

/**
 * Store K and V, converted with round-to-nearest-even. INT8 dynamic: scale = max(max|x|, 1e-7)
 * / 127 a token and head, NaN for a token with a non-finite value; static: x / scale rounded and
 * saturated, NaN as 0. FP8: x / scale, saturated to the largest finite value, NaN stays.
 * Sets the tile's flag, before the data and with release order, if a stored value (or dynamic
 * scale) is not finite. Stores only the elements of its own slots (padding dims included).
 */
typedef void attnd_write_fn(const struct attnd_slots_args *a);

/**
 * The reverse: rows in the cache's dtype (`in` is ignored) and dynamic scales, into k, v,
 * k_scales and v_scales, which here point to writable memory (v, and scales, may be NULL).
 */
typedef void attnd_read_fn(const struct attnd_slots_args *a);

/** Copy slots [0, n) of heads [head, head + num_heads), flags included (or-ed, before the data). */
typedef void attnd_copy_fn(const struct attnd_kv_format *fmt, void *dst, uint8_t *dst_flags, const void *src,
			   const uint8_t *src_flags, uint32_t n, uint32_t head, uint32_t num_heads);

/** Zero one head's tile (all slots) and then its flag. For a block that nobody reads. */
typedef void attnd_clear_fn(const struct attnd_kv_format *fmt, void *block, uint8_t *flags, uint32_t head);

/** Make n partials, partial_bytes apart, empty. */
typedef void attnd_init_fn(const struct attnd_kv_format *fmt, void *partial, uint32_t n);

/**
 * dst = dst joined with src (n partials each), by the log-sum-exp rule; an empty one changes
 * nothing to the bit, on either side. The caller merges along the fixed binary tree over chunks.
 */
typedef void attnd_merge_fn(const struct attnd_kv_format *fmt, void *dst, const void *src, uint32_t n);

/**
 * Turn the partials of n query heads into out [n][head_dim_v] (out_head_stride bytes apart,
 * rounded to nearest even) and, if not NULL, lse [n]. sinks: [n] or NULL. Never writes NaN where
 * no key was visible.
 */
typedef void attnd_finish_fn(const struct attnd_kv_format *fmt, const void *partial, uint32_t n, const float *sinks,
			     enum attnd_kdtype out_dtype, void *out, size_t out_head_stride, float *lse);

/** The operations as one table picks them for a (q dtype, format). */
struct attnd_ops {
	attnd_attend_fn *attend[ATTND_K_FLOATS]; /* by q dtype */
	attnd_write_fn *write;
	attnd_read_fn *read;
	attnd_copy_fn *copy;
	attnd_clear_fn *clear;
	attnd_init_fn *init;
	attnd_merge_fn *merge;
	attnd_finish_fn *finish;
	const char *names[ATTND_K_FLOATS]; /* of the attend kernels, for logs: "attend_bf16_bf16_avx512bf16" */
};

/**
 * The constants of `spec` and the operations for it, by the CPU features of attnd_features()
 * (kernels/cpu.h). Which kernels run depends on spec and features alone.
 * 0, or -EINVAL for a spec out of the limits above.
 */
int attnd_format_init(uint64_t features, const struct attnd_kv_spec *spec, struct attnd_kv_format *ret_fmt,
		      struct attnd_ops *ret_ops);

/**
 * The constants of a layout as a daemon stored it, of whatever features, and the portable read for
 * it; `lanes`: k_lanes, k_ilv, v_lanes, v_ilv. Chunk, step, partials and scratch are 0: nothing
 * attends to it. 0, or -EINVAL: no layout that was ever written.
 */
int attnd_format_stored(const struct attnd_kv_spec *spec, uint32_t layout_id, uint32_t layout_version,
			const uint16_t lanes[4], struct attnd_kv_format *ret_fmt, attnd_read_fn **ret_read);

/** The block size that suits these features' kernels: 16, or 32 and 64 on wide RVV. */
uint32_t attnd_default_block_size(uint64_t features);

/** The table that these features pick: "c", "avx2", "avx512", "amx", "rvv". */
const char *attnd_isa_name(uint64_t features);

#endif
