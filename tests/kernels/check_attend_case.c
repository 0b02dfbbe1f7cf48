/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Cases of attend (check_attend.h): made, run in pieces, poisoned.
 *
 * In:   portable write stores the tokens (check_tiles.c has checked it).
 * Out:  partials.
 * Next: check_attend_reference.c says what they must be.
 */
#include "check_attend.h"

size_t case_partials_bytes(const struct attend_case *c)
{
	return (size_t)c->num_rows * c->num_chunks * c->heads * c->fmt.partial_bytes;
}

struct attnd_partial *case_partial(const struct attend_case *c, char *partials, uint32_t row, uint32_t chunk,
				   uint32_t head)
{
	size_t i = ((size_t)row * c->num_chunks + chunk) * c->heads + head;

	return (struct attnd_partial *)(void *)(partials + i * c->fmt.partial_bytes);
}

bool case_visible(const struct row *row, uint32_t j)
{
	uint32_t bit = j - row->mask_start;

	if (j < row->lo || j >= row->hi)
		return false;
	return !row->mask || j < row->mask_start || (row->mask[bit / 64] >> (bit % 64) & 1);
}

/* ---- Stored tokens ---- */

/* Dim 0 steers the scores of the shapes that fall, rise or alternate. */
static float k_value(struct attend_case *c, uint32_t token, uint32_t d)
{
	uint32_t step = token / c->fmt.step;
	float x = rng_float(&c->r);

	if (c->shape == SHAPE_DENORMAL)
		return x * (c->fmt.spec.dtype == ATTND_K_F16 ? 0x1p-16f : 0x1p-127f);
	if (d > 0 || c->shape < SHAPE_FALLING)
		return x;
	if (c->shape == SHAPE_FALLING)
		return -8.0f * (float)step;
	if (c->shape == SHAPE_RISING)
		return 8.0f * (float)step;
	return ((token + step) % 2 ? 8.0f : -8.0f) + x;
}

static float v_value(struct attend_case *c)
{
	float x = rng_float(&c->r);

	if (c->shape == SHAPE_DENORMAL)
		return x * (c->fmt.spec.dtype == ATTND_K_F16 ? 0x1p-16f : 0x1p-127f);
	return rng_below(&c->r, 50) ? x : x * 64.0f;
}

/* Writes tokens [from, from + n) of one block from f32 rows. */
static void write_tokens(struct attend_case *c, uint32_t token, const float *k, const float *v)
{
	const struct attnd_kv_spec *s = &c->fmt.spec;
	uint32_t at = token / s->block_size;
	struct attnd_slots_args a = {
		.fmt = &c->fmt,
		.block = c->blocks[at],
		.flags = c->flags[at],
		.k = k,
		.v = v,
		.k_token_stride = s->num_kv_heads * s->head_dim * sizeof(float),
		.k_head_stride = s->head_dim * sizeof(float),
		.v_token_stride = s->num_kv_heads * s->head_dim_v * sizeof(float),
		.v_head_stride = s->head_dim_v * sizeof(float),
		.k_scale = c->attn.k_scale,
		.v_scale = c->attn.v_scale,
		.slot = token % s->block_size,
		.n = 1,
		.num_heads = s->num_kv_heads,
		.in = ATTND_K_F32,
	};

	attnd_write_any_c(&a);
}

/* What the pool holds of a token now, exactly. */
static void read_token(struct attend_case *c, uint32_t token)
{
	const struct attnd_kv_spec *s = &c->fmt.spec;
	uint32_t at = token / s->block_size;
	float ks[4], vs[4], k[3 * ATTND_K_MAX_DIM], v[3 * ATTND_K_MAX_DIM];
	size_t es = attnd_kdtype_bytes(s->dtype);
	struct attnd_slots_args a = {
		.fmt = &c->fmt,
		.block = c->blocks[at],
		.k = k,
		.v = v,
		.k_head_stride = s->head_dim * es,
		.v_head_stride = s->head_dim_v * es,
		.k_scales = ks,
		.v_scales = vs,
		.slot = token % s->block_size,
		.n = 1,
		.num_heads = s->num_kv_heads,
	};

	attnd_read_any_c(&a);
	for (uint32_t h = 0; h < s->num_kv_heads; h++) {
		double k_scale = s->scale == ATTND_K_SCALE_DYNAMIC  ? (double)ks[h]
				 : s->scale == ATTND_K_SCALE_STATIC ? (double)c->attn.k_scale
								    : 1.0;
		double v_scale = s->scale == ATTND_K_SCALE_DYNAMIC  ? (double)vs[h]
				 : s->scale == ATTND_K_SCALE_STATIC ? (double)c->attn.v_scale
								    : 1.0;

		v_scale = s->v_in_k ? k_scale : v_scale;
		for (uint32_t d = 0; d < s->head_dim; d++)
			c->k_values[((size_t)token * s->num_kv_heads + h) * s->head_dim + d] =
				exact_value(s->dtype, (char *)k + h * s->head_dim * es, d) * k_scale;
		for (uint32_t d = 0; d < s->head_dim_v; d++)
			c->v_values[((size_t)token * s->num_kv_heads + h) * s->head_dim_v + d] =
				exact_value(s->dtype, (char *)v + h * s->head_dim_v * es, d) * v_scale;
	}
}

static void store_tokens(struct attend_case *c)
{
	const struct attnd_kv_spec *s = &c->fmt.spec;
	float k[3 * ATTND_K_MAX_DIM], v[3 * ATTND_K_MAX_DIM];

	for (uint32_t t = 0; t < c->tokens; t++) {
		for (uint32_t i = 0; i < s->num_kv_heads * s->head_dim; i++)
			k[i] = k_value(c, t, i % s->head_dim);
		for (uint32_t i = 0; i < s->num_kv_heads * s->head_dim_v; i++)
			v[i] = v_value(c);
		write_tokens(c, t, k, v);
		read_token(c, t);
	}
}

static void make_blocks(struct attend_case *c)
{
	const struct attnd_kv_spec *s = &c->fmt.spec;
	size_t n = (size_t)c->tokens * s->num_kv_heads;

	c->num_blocks = (c->tokens + s->block_size - 1) / s->block_size;
	c->blocks = calloc(c->num_blocks, sizeof(*c->blocks));
	c->flags = calloc(c->num_blocks, sizeof(*c->flags));
	for (uint32_t i = 0; i < c->num_blocks; i++) {
		c->blocks[i] = guarded_alloc(c->fmt.layer_bytes, 64);
		c->flags[i] = calloc(s->num_kv_heads, 1);
	}
	c->k_values = malloc(n * s->head_dim * sizeof(double));
	c->v_values = malloc(n * s->head_dim_v * sizeof(double));
	store_tokens(c);
}

void case_poison(struct attend_case *c, const bool *poison)
{
	const struct attnd_kv_spec *s = &c->fmt.spec;
	static const float bad[] = {NAN, INFINITY, -INFINITY};
	float k[3 * ATTND_K_MAX_DIM], v[3 * ATTND_K_MAX_DIM];

	for (uint32_t i = 0; i < c->num_blocks; i++) {
		uint32_t used =
			c->tokens - i * s->block_size < s->block_size ? c->tokens - i * s->block_size : s->block_size;
		void *fresh = guarded_alloc(c->fmt.layer_bytes, 64);

		/* Every byte that is not a token's own is part of a NaN (or garbage). */
		memset(fresh, 0xff, c->fmt.layer_bytes);
		attnd_copy_any_c(&c->fmt, fresh, c->flags[i], c->blocks[i], c->flags[i], used, 0, s->num_kv_heads);
		memset(c->flags[i], used < s->block_size || rng_below(&c->r, 3) == 0, s->num_kv_heads);
		guarded_free(c->blocks[i]);
		c->blocks[i] = fresh;
	}
	for (uint32_t t = 0; t < c->tokens; t++) {
		if (!poison[t])
			continue;
		for (uint32_t i = 0; i < 3 * ATTND_K_MAX_DIM; i++) {
			k[i] = rng_below(&c->r, 2) ? NAN : 1e30f;
			v[i] = bad[rng_below(&c->r, 3)];
		}
		for (uint32_t h = 0; h < s->num_kv_heads; h++) /* so that visible poison shows */
			k[h * s->head_dim] = NAN;
		write_tokens(c, t, k, v);
	}
}

/* ---- Rows ---- */

static void make_mask(struct attend_case *c, struct row *row)
{
	uint32_t words, end = c->base + c->tokens;

	row->mask_start = rng_range(&c->r, c->base, end - 1);
	words = (end - row->mask_start + 63) / 64;
	row->mask = guarded_alloc(words * sizeof(uint64_t), sizeof(uint64_t));
	for (uint32_t i = 0; i < words; i++)
		row->mask[i] = rng_next(&c->r) | (rng_below(&c->r, 2) ? rng_next(&c->r) : 0);
}

static void make_row(struct attend_case *c, struct row *row)
{
	const struct attnd_kv_spec *s = &c->fmt.spec;
	enum attnd_kdtype type = c->attn.q_dtype;
	size_t row_bytes = s->head_dim * attnd_kdtype_bytes(type);
	size_t bytes = (c->heads - 1) * c->attn.q_head_stride + row_bytes;
	float scale = c->shape == SHAPE_LARGE	   ? 80.0f
		      : c->shape == SHAPE_DENORMAL ? (type == ATTND_K_F16 ? 0x1p-16f : 0x1p-127f)
						   : 1.0f;

	row->q = guarded_alloc(bytes, attnd_kdtype_bytes(type));
	memset(row->q, 0xff, bytes);
	for (uint32_t h = 0; h < c->heads; h++) {
		char *q = row->q + h * c->attn.q_head_stride;

		for (uint32_t d = 0; d < s->head_dim; d++)
			exact_store(type, q, d, rng_float(&c->r) * scale);
		if (c->shape >= SHAPE_FALLING && c->shape <= SHAPE_ALTERNATING)
			exact_store(type, q, 0, 16.0f);
	}
	row->hi = c->base + rng_range(&c->r, 1, c->tokens);
	row->lo = rng_below(&c->r, 2) ? c->base : rng_range(&c->r, c->base, row->hi);
	row->pos = row->hi - (rng_below(&c->r, 4) > 0);
	if (rng_below(&c->r, 4) == 0)
		make_mask(c, row);
}

/* ---- A case ---- */

static void make_attn(struct attend_case *c)
{
	const struct attnd_kv_spec *s = &c->fmt.spec;
	size_t row_bytes = s->head_dim * attnd_kdtype_bytes((enum attnd_kdtype)c->k->q);
	bool steered = c->shape >= SHAPE_FALLING && c->shape <= SHAPE_ALTERNATING;
	float *alibi;

	c->attn = (struct attnd_attn){
		.sm_scale = steered ? 1.0f : 1.0f / sqrtf((float)s->head_dim),
		.logit_cap = steered || rng_below(&c->r, 3) ? 0.0f : 5.0f + 40.0f * fabsf(rng_float(&c->r)),
		.k_scale = s->dtype == ATTND_K_INT8 ? 0.013f : 0.25f,
		.v_scale = s->dtype == ATTND_K_INT8 ? 0.021f : 0.17f,
		.q_dtype = (enum attnd_kdtype)c->k->q,
		.q_head_stride = row_bytes + rng_below(&c->r, 3) * attnd_kdtype_bytes((enum attnd_kdtype)c->k->q),
	};
	if (steered && s->dtype == ATTND_K_INT8)
		c->attn.k_scale = 0.6f;
	if (rng_below(&c->r, 3))
		return;
	alibi = guarded_alloc(c->heads * sizeof(float), sizeof(float));
	for (uint32_t h = 0; h < c->heads; h++)
		alibi[h] = ldexpf(1.0f, -(int)rng_below(&c->r, 9)) * (rng_below(&c->r, 5) ? 1.0f : 0.7f);
	c->attn.alibi = alibi;
}

bool case_make(struct attend_case *c, const struct attnd_kernel *k, const struct attnd_kv_spec *s, uint32_t tokens,
	       uint32_t num_rows, enum shape shape, uint64_t seed)
{
	struct attnd_ops ops;
	struct run alone = {.first = k, .num_rows = 1};

	*c = (struct attend_case){.r = {seed}, .k = k, .shape = shape, .tokens = tokens, .num_rows = num_rows};
	if (attnd_format_init(check_features, s, &c->fmt, &ops) != 0 ||
	    !attnd_kernel_serves(k, check_features, &c->fmt))
		return false;
	c->base = rng_below(&c->r, 3) * c->fmt.chunk;
	c->num_chunks = (tokens + c->fmt.chunk - 1) / c->fmt.chunk;
	c->heads = s->num_kv_heads * s->group;
	make_attn(c);
	make_blocks(c);
	for (uint32_t i = 0; i < num_rows; i++)
		make_row(c, &c->rows[i]);
	c->scratch = guarded_alloc(c->fmt.scratch_bytes, 64);
	c->partials = guarded_alloc(case_partials_bytes(c), 64);
	attnd_init_any_c(&c->fmt, c->partials, num_rows * c->num_chunks * c->heads);
	case_run(c, &alone, c->partials);
	return true;
}

void case_free(struct attend_case *c)
{
	for (uint32_t i = 0; i < c->num_blocks; i++) {
		guarded_free(c->blocks[i]);
		free(c->flags[i]);
	}
	for (uint32_t i = 0; i < c->num_rows; i++) {
		guarded_free(c->rows[i].q);
		guarded_free(c->rows[i].mask);
	}
	guarded_free((void *)(uintptr_t)c->attn.alibi);
	guarded_free(c->scratch);
	guarded_free(c->partials);
	free(c->blocks);
	free(c->flags);
	free(c->k_values);
	free(c->v_values);
}

/* ---- Runs ---- */

/* One call: rows, steps [begin, end) of one chunk, KV heads [head, head + n). */
static void call(struct attend_case *c, const struct attnd_kernel *k, const struct run *run, uint32_t row,
		 char *partials, uint32_t begin, uint32_t end, uint32_t head, uint32_t n)
{
	const struct attnd_kv_spec *s = &c->fmt.spec;
	uint32_t left = c->num_rows - row, num_rows = run->num_rows < left ? run->num_rows : left;
	uint32_t chunk = (begin - c->base) / c->fmt.chunk;
	uint32_t b0 = (begin - c->base) / s->block_size, b1 = (end - c->base + s->block_size - 1) / s->block_size;
	struct attnd_qrow *rows = malloc(num_rows * sizeof(*rows));
	const void **blocks = malloc((b1 - b0) * sizeof(*blocks));
	const uint8_t **flags = malloc((b1 - b0) * sizeof(*flags));
	struct attnd_attend_args a = {.fmt = &c->fmt,
				      .attn = &c->attn,
				      .blocks = blocks,
				      .flags = flags,
				      .rows = rows,
				      .scratch = c->scratch,
				      .num_blocks = b1 - b0,
				      .num_rows = num_rows,
				      .start = c->base + b0 * s->block_size,
				      .begin = begin,
				      .end = end,
				      .head = head,
				      .num_heads = n};

	for (uint32_t i = 0; i < num_rows; i++) {
		const struct row *r = &c->rows[row + i];

		rows[i] = (struct attnd_qrow){.q = r->q + (size_t)head * s->group * c->attn.q_head_stride,
					      .partial = case_partial(c, partials, row + i, chunk, head * s->group),
					      .mask = r->mask,
					      .lo = r->lo,
					      .hi = r->hi,
					      .pos = r->pos,
					      .mask_start = r->mask_start};
	}
	for (uint32_t i = b0; i < b1; i++) {
		blocks[i - b0] = c->blocks[i];
		flags[i - b0] = c->flags[i];
	}
	if (rng_below(&c->r, 2)) {
		a.next = (const void *const *)c->blocks;
		a.num_next = rng_range(&c->r, 1, c->num_blocks);
	}
	memset(c->scratch, 0xff, c->fmt.scratch_bytes);
	k->fn.attend(&a);
	free(rows);
	free(blocks);
	free(flags);
}

static void call_heads(struct attend_case *c, const struct attnd_kernel *k, const struct run *run, uint32_t row,
		       char *partials, uint32_t begin, uint32_t end)
{
	uint32_t all = c->fmt.spec.num_kv_heads;

	for (uint32_t h = 0, n; h < all; h += n) {
		n = run->heads == CUT_NONE ? all : run->heads == CUT_STEPS ? 1 : rng_range(&c->r, 1, all - h);
		call(c, k, run, row, partials, begin, end, h, n);
	}
}

static void run_chunk(struct attend_case *c, const struct run *run, uint32_t row, char *partials, uint32_t begin,
		      uint32_t end)
{
	const struct attnd_kernel *k = run->first;
	uint32_t step = c->fmt.step;

	for (uint32_t at = begin, to; at < end; at = to) {
		uint32_t left = (end - at + step - 1) / step;
		uint32_t n = run->steps == CUT_NONE ? left : run->steps == CUT_STEPS ? 1 : rng_range(&c->r, 1, left);

		to = at + n * step < end ? at + n * step : end;
		call_heads(c, k, run, row, partials, at, to);
		k = run->then ? run->then : k;
	}
}

void case_run(struct attend_case *c, const struct run *run, char *partials)
{
	uint32_t end = c->base + c->tokens;

	for (uint32_t row = 0; row < c->num_rows; row += run->num_rows)
		for (uint32_t begin = c->base; begin < end; begin += c->fmt.chunk)
			run_chunk(c, run, row, partials, begin,
				  begin + c->fmt.chunk < end ? begin + c->fmt.chunk : end);
}
