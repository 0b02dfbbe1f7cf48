/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Checks of write, read, copy and clear.
 *
 * In:   random formats, slots and values; blocks full of garbage.
 * Out:  TAP. Whole blocks are compared, so that a byte of a neighbour that changes fails.
 * Next: check_attend.c relies on write and read.
 *
 * Offsets are computed here element by element, from the formulas of kernels.h. Besides, what an
 * ISA's kernels leave is compared with what the portable ones do, NaN's bits included.
 */
#include "check.h"

enum { ROUNDS = 150, SWEEP_DIMS = 80, WIDE_DIMS = 288, SWEEP_SLOTS = 16 };

/* What is not left to chance. */
struct wish {
	enum attnd_kdtype dtype, in;
	uint32_t dim, dim_v, slot, n;
	bool dynamic; /* int8: each row has the scale of its maximum */
};

/* A format, a block of it, and rows that go in or come out. */
struct tiles {
	struct rng r;
	struct attnd_kv_format fmt;
	uint8_t *block, *want, flags[4], want_flags[4];
	enum attnd_kdtype in;
	uint32_t slot, n, head, num_heads;
	char *k, *v;
	float *k_scales, *v_scales;
	size_t k_token, k_head, v_token, v_head, scale_token; /* strides, bytes */
};

static uint32_t up(uint32_t n, uint32_t to)
{
	return (n + to - 1) / to * to;
}

static uint32_t padded_dims(const struct attnd_kv_format *f, bool is_v)
{
	if (f->spec.layout != ATTND_K_PACKED)
		return is_v ? f->spec.head_dim_v : f->spec.head_dim;
	return is_v ? up(f->spec.head_dim_v, f->v_lanes) : up(f->spec.head_dim, f->k_ilv);
}

static size_t element_offset(const struct attnd_kv_format *f, bool is_v, uint32_t h, uint32_t t, uint32_t d)
{
	size_t es = attnd_kdtype_bytes(f->spec.dtype), b = f->spec.block_size;
	size_t dk = up(f->spec.head_dim, f->k_ilv ? f->k_ilv : 1) / (f->k_ilv ? f->k_ilv : 1u);
	size_t lk = f->k_lanes, ik = f->k_ilv, lv = f->v_lanes, iv = f->v_ilv;

	if (f->spec.layout != ATTND_K_PACKED)
		return is_v ? f->v_off + t * f->v_token_stride + h * f->v_head_stride + d * es
			    : t * f->k_token_stride + h * f->k_head_stride + d * es;
	if (is_v)
		return h * f->tile_bytes + f->v_off +
		       (((d / lv * (b / iv) + t / iv) * lv + d % lv) * iv + t % iv) * es;
	return h * f->tile_bytes + (((t / lk * dk + d / ik) * lk + t % lk) * ik + d % ik) * es;
}

static size_t scale_offset(const struct attnd_kv_format *f, bool is_v, uint32_t h, uint32_t t)
{
	size_t off = is_v ? f->v_scale_off : f->k_scale_off;

	if (f->spec.layout == ATTND_K_PACKED)
		return h * f->tile_bytes + off + t * sizeof(float);
	return off + ((size_t)h * f->spec.block_size + t) * sizeof(float);
}

static void fill_random(struct rng *r, void *p, size_t n)
{
	for (size_t i = 0; i < n; i++)
		((uint8_t *)p)[i] = (uint8_t)rng_next(r);
}

static size_t row_stride(struct rng *r, size_t bytes, size_t es)
{
	return bytes + rng_below(r, 3) * es;
}

static bool dynamic(const struct tiles *c)
{
	return c->fmt.spec.scale == ATTND_K_SCALE_DYNAMIC;
}

/* A random format that the kernel serves, a block of garbage, and rows for a random range of slots and heads. */
static bool tiles_init(struct tiles *c, const struct attnd_kernel *k, uint64_t seed, const struct wish *w)
{
	struct attnd_ops ops;
	struct attnd_kv_spec s;
	size_t es, bytes;

	*c = (struct tiles){.r = {seed}};
	s = random_spec(&c->r, w		      ? w->dtype
			       : k->kv == ATTND_K_ANY ? (enum attnd_kdtype)rng_below(&c->r, ATTND_K_DTYPES)
						      : (enum attnd_kdtype)k->kv);
	if (w) {
		s.head_dim = w->dim;
		s.head_dim_v = w->dim_v;
		s.v_in_k = s.v_in_k && w->dim_v <= w->dim;
		s.layout = ATTND_K_PACKED;
		s.block_size = s.block_size < SWEEP_SLOTS ? SWEEP_SLOTS : s.block_size;
		s.scale = w->dynamic ? ATTND_K_SCALE_DYNAMIC : s.scale;
	}
	if (attnd_format_init(check_features, &s, &c->fmt, &ops) != 0 ||
	    !attnd_kernel_serves(k, check_features, &c->fmt))
		return false;
	c->in = rng_below(&c->r, 3) ? (enum attnd_kdtype)rng_below(&c->r, ATTND_K_FLOATS) : s.dtype;
	c->slot = rng_below(&c->r, s.block_size);
	c->n = rng_below(&c->r, 4) ? rng_range(&c->r, 1, s.block_size - c->slot) : s.block_size - c->slot;
	if (w) {
		c->in = w->in;
		c->slot = w->slot;
		c->n = w->n;
	}
	c->head = rng_below(&c->r, s.num_kv_heads);
	c->num_heads = rng_range(&c->r, 1, s.num_kv_heads - c->head);
	es = 4; /* room for any type */
	c->k_head = row_stride(&c->r, s.head_dim * es, es);
	c->k_token = row_stride(&c->r, c->k_head * c->num_heads, es);
	c->v_head = row_stride(&c->r, s.head_dim_v * es, es);
	c->v_token = row_stride(&c->r, c->v_head * c->num_heads, es);
	c->scale_token = row_stride(&c->r, c->num_heads * sizeof(float), sizeof(float));
	c->block = guarded_alloc(c->fmt.layer_bytes, 64);
	c->want = malloc(c->fmt.layer_bytes);
	bytes = (c->n - 1) * c->k_token + (c->num_heads - 1) * c->k_head;
	c->k = guarded_alloc(bytes + s.head_dim * attnd_kdtype_bytes(c->in), attnd_kdtype_bytes(c->in));
	bytes = (c->n - 1) * c->v_token + (c->num_heads - 1) * c->v_head;
	c->v = guarded_alloc(bytes + s.head_dim_v * attnd_kdtype_bytes(c->in), attnd_kdtype_bytes(c->in));
	bytes = (c->n - 1) * c->scale_token + c->num_heads * sizeof(float);
	c->k_scales = guarded_alloc(bytes, 4);
	c->v_scales = guarded_alloc(bytes, 4);
	fill_random(&c->r, c->block, c->fmt.layer_bytes);
	memcpy(c->want, c->block, c->fmt.layer_bytes);
	return true;
}

static void tiles_free(struct tiles *c)
{
	guarded_free(c->block);
	free(c->want);
	guarded_free(c->k);
	guarded_free(c->v);
	guarded_free(c->k_scales);
	guarded_free(c->v_scales);
}

static struct attnd_slots_args slots_args(struct tiles *c, float k_scale, float v_scale)
{
	return (struct attnd_slots_args){
		.fmt = &c->fmt,
		.block = c->block,
		.flags = c->flags,
		.k = c->k,
		.v = c->fmt.spec.v_in_k ? NULL : c->v,
		.k_token_stride = c->k_token,
		.k_head_stride = c->k_head,
		.v_token_stride = c->v_token,
		.v_head_stride = c->v_head,
		.k_scales = dynamic(c) && c->in == c->fmt.spec.dtype ? c->k_scales : NULL,
		.v_scales = dynamic(c) && c->in == c->fmt.spec.dtype ? c->v_scales : NULL,
		.scale_token_stride = c->scale_token,
		.k_scale = k_scale,
		.v_scale = v_scale,
		.slot = c->slot,
		.n = c->n,
		.head = c->head,
		.num_heads = c->num_heads,
		.in = c->in,
	};
}

/* ---- write ---- */

/* One row of input, of one character: ordinary, zeros, tiny, huge, one outlier, anything, or one at the edge. */
static void make_row(struct tiles *c, void *row, uint32_t dims)
{
	/* The last and the first number that f16 and bf16 round to something finite and not. */
	static const uint32_t edges[] = {0x477fefffu, 0x477ff000u, 0x7f7f7fffu, 0x7f7f8000u};
	uint32_t kind = rng_below(&c->r, 8);

	for (uint32_t d = 0; d < dims; d++) {
		float x = rng_float(&c->r);

		if (kind == 1)
			x = 0.0f;
		else if (kind == 2)
			x *= 0x1p-140f;
		else if (kind == 3)
			x = copysignf(c->in == ATTND_K_F16 ? 65504.0f : 0x1.fep+127f, x);
		else if (kind == 4)
			x = d == dims / 2 ? 3e4f : x * 1e-3f;
		else if (kind == 5)
			x = rng_any_float(&c->r);
		else if (kind == 6 && d == dims / 2)
			x = float_of(edges[rng_below(&c->r, 4)]);
		if (c->in == ATTND_K_INT8)
			((int8_t *)row)[d] = (int8_t)rng_next(&c->r);
		else
			exact_store(c->in, row, d, x);
	}
}

/* What the row must become: values in x (f32), its scale; true if something in it is not finite. */
static bool want_row(struct tiles *c, const void *row, uint32_t dims, const float *scale_in, float *scale,
		     uint8_t *out)
{
	enum attnd_kdtype type = c->fmt.spec.dtype;
	size_t es = attnd_kdtype_bytes(type);
	bool finite = true;
	float most = 1e-7f;

	if (dynamic(c)) {
		for (uint32_t d = 0; d < dims && c->in != type; d++) {
			double x = exact_value(c->in, row, d);

			finite = finite && isfinite(x);
			most = fmaxf(most, fabsf((float)x));
		}
		*scale = c->in == type ? *scale_in : finite ? most / 127.0f : NAN;
		finite = isfinite(*scale);
	}
	for (uint32_t d = 0; d < dims; d++) {
		float x = (float)exact_value(c->in, row, d);

		if (c->in == type)
			memcpy(out + d * es, (const char *)row + d * es, es);
		else
			exact_store(type, out, d, type < ATTND_K_FLOATS ? x : x / *scale);
		finite = finite && isfinite(exact_value(type, out, d));
	}
	return !finite;
}

/* Puts a row into the wanted image. NaN keeps its class only, so the kernel's bits are taken over. */
static void want_element(struct tiles *c, size_t off, const uint8_t *value)
{
	enum attnd_kdtype type = c->fmt.spec.dtype;

	if (isnan(exact_value(type, value, 0)) && isnan(exact_value(type, c->block + off, 0)))
		value = c->block + off;
	memcpy(c->want + off, value, attnd_kdtype_bytes(type));
}

static void want_slot(struct tiles *c, bool is_v, uint32_t t, uint32_t i, float scale)
{
	static const uint8_t zero[4];
	_Alignas(4) uint8_t row[ATTND_K_MAX_DIM * 4];
	uint32_t dims = is_v ? c->fmt.spec.head_dim_v : c->fmt.spec.head_dim, h = c->head + i;
	const char *src = is_v ? c->v + t * c->v_token + i * c->v_head : c->k + t * c->k_token + i * c->k_head;
	const float *scales =
		(const float *)(const void *)((const char *)(is_v ? c->v_scales : c->k_scales) + t * c->scale_token);
	size_t es = attnd_kdtype_bytes(c->fmt.spec.dtype);

	if (want_row(c, src, dims, scales + i, &scale, row))
		c->want_flags[h] = 1;
	for (uint32_t d = 0; d < padded_dims(&c->fmt, is_v); d++)
		want_element(c, element_offset(&c->fmt, is_v, h, c->slot + t, d), d < dims ? row + d * es : zero);
	if (dynamic(c)) {
		size_t off = scale_offset(&c->fmt, is_v, h, c->slot + t);

		if (!isnan(scale) || !isnan(*(float *)(void *)(c->block + off)))
			memcpy(c->want + off, &scale, sizeof(scale));
		else
			memcpy(c->want + off, c->block + off, sizeof(scale));
	}
}

static void compare_block(const struct tiles *c, uint64_t seed)
{
	for (size_t i = 0; i < c->fmt.layer_bytes; i++)
		if (c->block[i] != c->want[i]) {
			fail("byte %zu is 0x%02x, not 0x%02x (dtype %d, layout %d, in %d, slots %u+%u, heads %u+%u, "
			     "seed %llu)",
			     i, c->block[i], c->want[i], (int)c->fmt.spec.dtype, (int)c->fmt.spec.layout, (int)c->in,
			     c->slot, c->n, c->head, c->num_heads, (unsigned long long)seed);
			return;
		}
	if (memcmp(c->flags, c->want_flags, sizeof(c->flags)) != 0)
		fail("flags %d %d %d, not %d %d %d (dtype %d, seed %llu)", c->flags[0], c->flags[1], c->flags[2],
		     c->want_flags[0], c->want_flags[1], c->want_flags[2], (int)c->fmt.spec.dtype,
		     (unsigned long long)seed);
}

static void make_rows(struct tiles *c)
{
	for (uint32_t t = 0; t < c->n; t++)
		for (uint32_t i = 0; i < c->num_heads; i++) {
			size_t at = t * c->scale_token / sizeof(float) + i;

			make_row(c, c->k + t * c->k_token + i * c->k_head, c->fmt.spec.head_dim);
			make_row(c, c->v + t * c->v_token + i * c->v_head, c->fmt.spec.head_dim_v);
			c->k_scales[at] = rng_below(&c->r, 20) ? fabsf(rng_float(&c->r)) : INFINITY;
			c->v_scales[at] = rng_below(&c->r, 20) ? fabsf(rng_float(&c->r)) : NAN;
		}
}

/* The portable kernel on a copy of the block as it was. */
static void compare_with_portable(const struct tiles *c, struct attnd_slots_args a, uint8_t *before, uint64_t seed)
{
	uint8_t flags[4] = {0};

	a.block = before;
	a.flags = flags;
	attnd_write_any_c(&a);
	if (memcmp(before, c->block, c->fmt.layer_bytes) != 0 || memcmp(flags, c->flags, sizeof(flags)) != 0)
		fail("other bits than portable C (dtype %d, in %d, slots %u+%u, dims %u %u, seed %llu)",
		     (int)c->fmt.spec.dtype, (int)c->in, c->slot, c->n, c->fmt.spec.head_dim, c->fmt.spec.head_dim_v,
		     (unsigned long long)seed);
}

static uint8_t *copy_of(const struct tiles *c)
{
	uint8_t *p = aligned_alloc(64, c->fmt.layer_bytes);

	if (!p)
		abort();
	return memcpy(p, c->block, c->fmt.layer_bytes);
}

static void write_once(const struct attnd_kernel *k, uint64_t seed, const struct wish *w)
{
	struct tiles c;
	struct attnd_slots_args a;
	float k_scale, v_scale;
	uint8_t *before;

	if (!tiles_init(&c, k, seed, w))
		return;
	before = copy_of(&c);
	k_scale = ldexpf(1.0f + fabsf(rng_float(&c.r)), (int)rng_below(&c.r, 12) - 8);
	v_scale = ldexpf(1.0f + fabsf(rng_float(&c.r)), (int)rng_below(&c.r, 12) - 8);
	make_rows(&c);
	a = slots_args(&c, k_scale, v_scale);
	k->fn.write(&a);
	for (uint32_t t = 0; t < c.n; t++)
		for (uint32_t i = 0; i < c.num_heads; i++) {
			want_slot(&c, false, t, i, k_scale);
			if (!c.fmt.spec.v_in_k)
				want_slot(&c, true, t, i, v_scale);
		}
	compare_block(&c, seed);
	compare_with_portable(&c, a, before, seed);
	free(before);
	tiles_free(&c);
}

typedef void once_fn(const struct attnd_kernel *k, uint64_t seed, const struct wish *w);

/* In turn the float types and the stored one. */
static enum attnd_kdtype sweep_in(enum attnd_kdtype dtype, uint32_t i)
{
	return i % 4 < ATTND_K_FLOATS ? (enum attnd_kdtype)(i % 4) : dtype;
}

/*
 * Every number of dims up to 80, and of int8, whose maxima may take several passes with a rest, up to 288; every
 * run of slots up to 16; for each stored type.
 */
static void sweep(const struct attnd_kernel *k, uint64_t seed, once_fn *once)
{
	uint32_t step = check_thin < 16 ? check_thin : 16, i = (uint32_t)seed % step;
	struct wish w;

	for (; i < ATTND_K_DTYPES * SWEEP_DIMS && !failed(); i += step) {
		w = (struct wish){.dtype = i % ATTND_K_DTYPES, .dim = i / ATTND_K_DTYPES + 1, .slot = i % 7};
		w.in = sweep_in(w.dtype, i / 5);
		w.dim_v = SWEEP_DIMS + 1 - w.dim;
		w.n = 1 + i % (SWEEP_SLOTS - w.slot);
		once(k, seed + i, &w);
	}
	for (i = SWEEP_DIMS + 1 + (uint32_t)seed % step; i <= WIDE_DIMS && !failed(); i += step) {
		w = (struct wish){ATTND_K_INT8, sweep_in(ATTND_K_INT8, i), i, WIDE_DIMS + 1 - i, i % 7, 3, true};
		once(k, seed + i, &w);
	}
	for (i = (uint32_t)seed % step; i < ATTND_K_DTYPES * SWEEP_SLOTS * SWEEP_SLOTS && !failed(); i += step) {
		w = (struct wish){.dtype = i % ATTND_K_DTYPES, .dim = 1 + i % 37, .dim_v = 1 + i % 31};
		w.in = sweep_in(w.dtype, i / 5);
		w.slot = i / ATTND_K_DTYPES % SWEEP_SLOTS;
		w.n = 1 + i / ATTND_K_DTYPES / SWEEP_SLOTS;
		if (w.slot + w.n <= SWEEP_SLOTS)
			once(k, seed + i, &w);
	}
}

/* Every 16-bit number, into a stored type; only compared with portable C. */
static void write_all_halves(const struct attnd_kernel *k, enum attnd_kdtype dtype, enum attnd_kdtype in)
{
	enum { DIM = 256, N = 16 };
	struct wish w = {dtype, in, DIM, DIM, 0, N, false};

	for (uint32_t first = 0; first < 0x10000 && !failed(); first += N * DIM) {
		struct tiles c;
		struct attnd_slots_args a;
		uint8_t *before;

		if (!tiles_init(&c, k, first, &w))
			return;
		before = copy_of(&c);
		for (uint32_t t = 0; t < N; t++)
			for (uint32_t d = 0; d < DIM; d++) {
				uint16_t at = (uint16_t)(first + t * DIM + d);

				for (uint32_t i = 0; i < c.num_heads; i++) {
					((uint16_t *)(void *)(c.k + t * c.k_token + i * c.k_head))[d] = at;
					((uint16_t *)(void *)(c.v + t * c.v_token + i * c.v_head))[d] = (uint16_t)~at;
				}
			}
		a = slots_args(&c, 0.75f, 1.0f);
		k->fn.write(&a);
		compare_with_portable(&c, a, before, first);
		free(before);
		tiles_free(&c);
	}
}

void check_write(const struct attnd_kernel *k, uint64_t seed)
{
	for (uint64_t i = 0; i < ROUNDS && !failed(); i++)
		write_once(k, seed + i, NULL);
	sweep(k, seed, write_once);
	for (int type = 0; type < ATTND_K_DTYPES; type++)
		for (int in = ATTND_K_F16; in < ATTND_K_FLOATS; in++)
			if (type != in && (check_thin < 16 || (uint64_t)type == seed % ATTND_K_DTYPES))
				write_all_halves(k, (enum attnd_kdtype)type, (enum attnd_kdtype)in);
}

/* ---- read ---- */

static void compare_read(const struct tiles *c, bool is_v, uint32_t t, uint32_t i)
{
	uint32_t dims = is_v ? c->fmt.spec.head_dim_v : c->fmt.spec.head_dim, h = c->head + i;
	const char *row = is_v ? c->v + t * c->v_token + i * c->v_head : c->k + t * c->k_token + i * c->k_head;
	const char *scales =
		(const char *)(is_v ? c->v_scales : c->k_scales) + t * c->scale_token + i * sizeof(float);
	bool from_v = is_v && !c->fmt.spec.v_in_k;
	size_t es = attnd_kdtype_bytes(c->fmt.spec.dtype);

	for (uint32_t d = 0; d < dims; d++)
		if (memcmp(row + d * es, c->block + element_offset(&c->fmt, from_v, h, c->slot + t, d), es) != 0) {
			fail("%s token %u head %u dim %u is another", is_v ? "V" : "K", t, h, d);
			return;
		}
	if (dynamic(c) &&
	    memcmp(scales, c->block + scale_offset(&c->fmt, from_v, h, c->slot + t), sizeof(float)) != 0)
		fail("%s scale of token %u head %u is another", is_v ? "V" : "K", t, h);
}

static void read_once(const struct attnd_kernel *k, uint64_t seed, const struct wish *w)
{
	struct tiles c;
	struct attnd_slots_args a;
	struct wish stored;
	bool want_v, want_scales;

	if (w) {
		stored = *w;
		stored.in = w->dtype;
		w = &stored;
	}
	if (!tiles_init(&c, k, seed, w))
		return;
	/* Outputs end flush with a guard page only in the cache's dtype. */
	if (c.in != c.fmt.spec.dtype) {
		tiles_free(&c);
		return;
	}
	a = slots_args(&c, 0, 0);
	want_v = rng_below(&c.r, 4) != 0;
	want_scales = rng_below(&c.r, 4) != 0;
	a.v = want_v ? c.v : NULL;
	a.in = ATTND_K_DTYPES;
	if (!want_scales)
		a.k_scales = a.v_scales = NULL;
	guarded_protect(c.block, true);
	k->fn.read(&a);
	for (uint32_t t = 0; t < c.n; t++)
		for (uint32_t i = 0; i < c.num_heads; i++) {
			if (!want_scales && dynamic(&c)) /* what was not asked for is not compared */
				break;
			compare_read(&c, false, t, i);
			if (want_v)
				compare_read(&c, true, t, i);
		}
	compare_block(&c, seed);
	tiles_free(&c);
}

void check_read(const struct attnd_kernel *k, uint64_t seed)
{
	for (uint64_t i = 0; i < ROUNDS * 2 && !failed(); i++)
		read_once(k, seed + i, NULL);
	sweep(k, seed, read_once);
}

/* ---- copy ---- */

static void want_copy(struct tiles *c, const uint8_t *src, uint32_t h, uint32_t t)
{
	size_t es = attnd_kdtype_bytes(c->fmt.spec.dtype);

	for (int is_v = 0; is_v <= !c->fmt.spec.v_in_k; is_v++) {
		for (uint32_t d = 0; d < padded_dims(&c->fmt, is_v); d++) {
			size_t off = element_offset(&c->fmt, is_v, h, t, d);

			memcpy(c->want + off, src + off, es);
		}
		if (dynamic(c)) {
			size_t off = scale_offset(&c->fmt, is_v, h, t);

			memcpy(c->want + off, src + off, sizeof(float));
		}
	}
}

static void copy_once(const struct attnd_kernel *k, uint64_t seed, const struct wish *w)
{
	struct tiles c;
	uint8_t *src, src_flags[4] = {0, 1, 0, 1};

	if (!tiles_init(&c, k, seed, w))
		return;
	src = guarded_alloc(c.fmt.layer_bytes, 64);
	fill_random(&c.r, src, c.fmt.layer_bytes);
	guarded_protect(src, true);
	c.flags[0] = c.want_flags[0] = (uint8_t)rng_below(&c.r, 2);
	k->fn.copy(&c.fmt, c.block, c.flags, src, src_flags, c.n, c.head, c.num_heads);
	for (uint32_t h = c.head; h < c.head + c.num_heads; h++) {
		c.want_flags[h] |= src_flags[h];
		for (uint32_t t = 0; t < c.n; t++)
			want_copy(&c, src, h, t);
	}
	compare_block(&c, seed);
	guarded_free(src);
	tiles_free(&c);
}

void check_copy(const struct attnd_kernel *k, uint64_t seed)
{
	for (uint64_t i = 0; i < ROUNDS && !failed(); i++)
		copy_once(k, seed + i, NULL);
	sweep(k, seed, copy_once);
}

/* ---- clear ---- */

/* Gaps between a tile's parts may or may not be cleared. */
static void want_clear(struct tiles *c)
{
	size_t es = attnd_kdtype_bytes(c->fmt.spec.dtype);

	if (c->fmt.spec.layout == ATTND_K_PACKED) {
		size_t tile = c->head * c->fmt.tile_bytes;

		memcpy(c->want + tile, c->block + tile, c->fmt.tile_bytes);
	}
	for (uint32_t t = 0; t < c->fmt.spec.block_size; t++)
		for (int is_v = 0; is_v <= !c->fmt.spec.v_in_k; is_v++) {
			for (uint32_t d = 0; d < padded_dims(&c->fmt, is_v); d++)
				memset(c->want + element_offset(&c->fmt, is_v, c->head, t, d), 0, es);
			if (dynamic(c))
				memset(c->want + scale_offset(&c->fmt, is_v, c->head, t), 0, sizeof(float));
		}
}

void check_clear(const struct attnd_kernel *k, uint64_t seed)
{
	for (uint64_t i = 0; i < ROUNDS / 3 && !failed(); i++) {
		struct tiles c;

		if (!tiles_init(&c, k, seed + i, NULL))
			continue;
		memset(c.flags, 1, sizeof(c.flags));
		memset(c.want_flags, 1, sizeof(c.flags));
		c.want_flags[c.head] = 0;
		k->fn.clear(&c.fmt, c.block, c.flags, c.head);
		want_clear(&c);
		compare_block(&c, seed + i);
		tiles_free(&c);
	}
}
