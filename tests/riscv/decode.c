/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One decode step of one KV head, for counting instructions.
 *
 * In:   decode DTYPE (bf16 or f16) GROUP HEAD_DIM BLOCK TOKENS.
 * Out:  "kernel NAME bytes N": the attend kernel that ran and the KV bytes that it read.
 * Next: count.pl runs it in qemu-user with a trace of the kernels' instructions.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "../../kernels/cpu.h"
#include "../../kernels/kernels.h"

static void *zeroed(size_t size)
{
	void *p = aligned_alloc(64, (size + 63) & ~(size_t)63);

	if (!p)
		abort();
	return memset(p, 0, (size + 63) & ~(size_t)63);
}

static float wave(uint32_t i)
{
	return (float)(i * 2654435761u >> 8) * 0x1p-23f - 1.0f;
}

static void fill(const struct attnd_kv_format *f, const struct attnd_ops *ops, void *block, uint8_t *flag,
		 uint32_t seed)
{
	uint32_t dim = f->spec.head_dim;
	float *x = zeroed(sizeof(float) * dim * f->spec.block_size);
	struct attnd_slots_args w = {.fmt = f, .block = block, .flags = flag, .k = x, .v = x, .num_heads = 1};

	for (uint32_t i = 0; i < dim * f->spec.block_size; i++)
		x[i] = wave(seed * 8191 + i);
	w.k_token_stride = w.v_token_stride = dim * sizeof(float);
	w.k_head_stride = w.v_head_stride = dim * sizeof(float);
	w.n = f->spec.block_size;
	w.in = ATTND_K_F32;
	ops->write(&w);
	free(x);
}

int main(int argc, char **argv)
{
	struct attnd_kv_spec spec = {.num_kv_heads = 1, .layout = ATTND_K_PACKED};
	struct attnd_kv_format f;
	struct attnd_ops ops;
	uint32_t tokens, blocks;

	if (argc != 6)
		return 2;
	spec.dtype = strcmp(argv[1], "f16") == 0 ? ATTND_K_F16 : ATTND_K_BF16;
	spec.group = (uint32_t)atoi(argv[2]);
	spec.head_dim = spec.head_dim_v = (uint32_t)atoi(argv[3]);
	spec.block_size = (uint32_t)atoi(argv[4]);
	tokens = (uint32_t)atoi(argv[5]);
	if (attnd_format_init(attnd_features(), &spec, &f, &ops) != 0)
		return 2;
	blocks = tokens / spec.block_size;

	const void **slices = zeroed(blocks * sizeof(*slices));
	const uint8_t **flags = zeroed(blocks * sizeof(*flags));
	uint16_t *q = zeroed(2 * spec.group * spec.head_dim);
	struct attnd_qrow row = {.q = q, .partial = zeroed(f.partial_bytes * spec.group), .hi = tokens};
	struct attnd_attn attn = {.sm_scale = 1 / sqrtf((float)spec.head_dim), .q_dtype = spec.dtype};
	struct attnd_attend_args a = {.fmt = &f, .attn = &attn, .rows = &row, .num_rows = 1, .num_heads = 1};

	for (uint32_t i = 0; i < blocks; i++) {
		uint8_t *flag = zeroed(1);
		void *slice = zeroed(f.layer_bytes);

		fill(&f, &ops, slice, flag, i);
		slices[i] = slice;
		flags[i] = flag;
	}
	for (uint32_t i = 0; i < spec.group * spec.head_dim; i++)
		q[i] = (uint16_t)(0x3c00 + (i * 37) % 512); /* about 1 in f16, small in bf16 */
	attn.q_head_stride = 2 * spec.head_dim;
	ops.init(&f, row.partial, spec.group);
	a.blocks = slices;
	a.flags = flags;
	a.num_blocks = blocks;
	a.scratch = zeroed(f.scratch_bytes);
	a.end = tokens;
	ops.attend[spec.dtype](&a);
	printf("kernel %s bytes %zu\n", ops.names[spec.dtype], (size_t)tokens * spec.head_dim * 4);
	return 0;
}
