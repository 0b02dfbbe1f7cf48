/* SPDX-License-Identifier: Apache-2.0 */
/* A cache's identity within its limits (identity.h). */
#include "identity.h"

#include <sodium.h>
#include <string.h>

static bool good_name(const char name[ATTND_MAX_NAME])
{
	size_t n = strnlen(name, ATTND_MAX_NAME);

	for (size_t i = 0; i < n; i++)
		if (name[i] < 0x20 || name[i] > 0x7e || name[i] == '/')
			return false;
	return n && sodium_is_zero((const unsigned char *)name + n, ATTND_MAX_NAME - n);
}

static bool good_scale(const struct attnd_wire_cache *w)
{
	if (w->kv_dtype <= ATTND_WIRE_BF16)
		return w->scale_mode == ATTND_WIRE_SCALE_NONE;
	if (w->kv_dtype == ATTND_WIRE_INT8)
		return w->scale_mode == ATTND_WIRE_SCALE_STATIC || w->scale_mode == ATTND_WIRE_SCALE_DYNAMIC;
	return w->scale_mode == ATTND_WIRE_SCALE_STATIC;
}

struct answer identity_check(const struct attnd_wire_cache *w)
{
	uint32_t least = w->layout == ATTND_WIRE_BSHD ? 1 : ATTND_MIN_BLOCK_SIZE;

	if (!good_name(w->name))
		return ANSWER_BAD(EINVAL, NAME, ATTND_MAX_NAME);
	if (!w->num_layers || w->num_layers > ATTND_MAX_LAYERS)
		return ANSWER_BAD(EINVAL, NUM_LAYERS, ATTND_MAX_LAYERS);
	if (!w->num_kv_heads || w->num_kv_heads > ATTND_MAX_HEADS)
		return ANSWER_BAD(EINVAL, NUM_KV_HEADS, ATTND_MAX_HEADS);
	if (!w->num_heads || w->num_heads > ATTND_MAX_HEADS || w->num_heads % w->num_kv_heads)
		return ANSWER_BAD(EINVAL, NUM_HEADS, ATTND_MAX_HEADS);
	if (!w->head_dim || w->head_dim > ATTND_MAX_HEAD_DIM)
		return ANSWER_BAD(EINVAL, HEAD_DIM, ATTND_MAX_HEAD_DIM);
	if (!w->head_dim_v || w->head_dim_v > (w->v_in_k ? w->head_dim : ATTND_MAX_HEAD_DIM))
		return ANSWER_BAD(EINVAL, HEAD_DIM_V, w->v_in_k ? w->head_dim : ATTND_MAX_HEAD_DIM);
	if (w->kv_dtype >= ATTND_WIRE_DTYPES)
		return ANSWER_BAD(EINVAL, KV_DTYPE, ATTND_WIRE_DTYPES - 1);
	if (w->scale_mode >= ATTND_WIRE_SCALES || !good_scale(w))
		return ANSWER_BAD(EINVAL, SCALE_MODE, ATTND_WIRE_SCALES - 1);
	if (w->layout >= ATTND_WIRE_LAYOUTS)
		return ANSWER_BAD(EINVAL, LAYOUT, ATTND_WIRE_LAYOUTS - 1);
	if (w->block_size < least || w->block_size > ATTND_MAX_BLOCK_SIZE || (w->block_size & (w->block_size - 1)))
		return ANSWER_BAD(EINVAL, BLOCK_SIZE, ATTND_MAX_BLOCK_SIZE);
	if (w->v_in_k > 1 || !sodium_is_zero((const unsigned char *)w->reserved, sizeof(w->reserved)))
		return ANSWER_BAD(EINVAL, RESERVED, 0);
	return ANSWER_OK;
}
