/* SPDX-License-Identifier: Apache-2.0 */
/*
 * write and read of packed x86 tiles (16 lanes, elements side by side to 4 bytes, f16 alone), for
 * every element type: the template of tile_avx2.c and tile_avx512.c.
 *
 * In:   VF and VU (vectors of LANES f32 and of their bits), and static functions:
 *       load(type, src, n)          n elements (1..LANES) of a float type as f32, zeros after them
 *       pick_less(a, b, x, y)       lane by lane a < b (signed) ? x : y
 *       least(a, b), most(a, b)     the smaller, the larger bits
 *       largest(a)                  the largest of all lanes
 *       integers(x)                 |x| <= 127 to the nearest integers, as bits
 *       store8, store16, store_f16  the low parts of VU, or VF as f16, side by side
 *       put_v_bytes, put_v_halves   16 elements of one token into their places in a V strip's row
 * Out:  write_tiles() and read_tiles(): the same bits as tile_c.c's.
 * Next: attend reads the tiles; the daemon exports rows.
 *
 * Rows are brought into the stored type one after the other, up to 16, beside each other; then
 * eight tokens at a time are turned around in registers. A row that is not finite takes the
 * scalar conversions, which say what becomes of NaN.
 */
#include "tile_row.h"
#include "x86_avx2.h"

#define TILE_INLINE static inline __attribute__((always_inline))

enum { TILE_LANES = 16, ROW_BYTES = ATTND_K_MAX_DIM * 4, TURN = 8 };

/* ---- One row into the stored type ---- */

TILE_INLINE VU bits(VF x)
{
	return (VU)x;
}

TILE_INLINE VF floats(VU u)
{
	return (VF)u;
}

TILE_INLINE VU same(uint32_t u)
{
	return (VU){0} + u;
}

/* scalar.h's conversions of finite numbers, lane by lane. */
TILE_INLINE VU to_bf16(VF x)
{
	VU u = bits(x);

	return (u + 0x7fff + ((u >> 16) & 1)) >> 16;
}

TILE_INLINE VU to_fp8(VF x, uint32_t most, unsigned shift, uint32_t rebias, uint32_t smallest, float denormal)
{
	VU u = bits(x), sat = least(u & 0x7fffffffu, same(most));
	VU normal = ((sat + ((1u << (shift - 1)) - 1) + ((sat >> shift) & 1)) >> shift) - rebias;
	VU small = bits(floats(sat) * denormal + 0x1p23f) & 0x7fffffu;

	return ((u >> 24) & 0x80) | pick_less(sat, same(smallest), small, normal);
}

TILE_INLINE VU to_int8(VF x)
{
	VU u = bits(x), most = same(0x42fe0000u); /* 127 */

	return integers(floats((u & 0x80000000u) | least(u & 0x7fffffffu, most)));
}

TILE_INLINE void store_elements(enum attnd_kdtype type, VF x, VF scale, void *row, uint32_t d)
{
	switch (type) {
	case ATTND_K_F32:
		memcpy((float *)row + d, &x, sizeof(x));
		break;
	case ATTND_K_F16:
		store_f16((uint16_t *)row + d, x);
		break;
	case ATTND_K_BF16:
		store16((uint16_t *)row + d, to_bf16(x));
		break;
	case ATTND_K_INT8:
		store8((uint8_t *)row + d, to_int8(x / scale));
		break;
	case ATTND_K_FP8_E4M3:
		store8((uint8_t *)row + d, to_fp8(x / scale, 0x43e00000u, 20, 120u << 3, 0x3c800000u, 0x1p9f));
		break;
	case ATTND_K_FP8_E5M2:
		store8((uint8_t *)row + d, to_fp8(x / scale, 0x47600000u, 21, 112u << 2, 0x38800000u, 0x1p16f));
		break;
	case ATTND_K_DTYPES:
		break;
	}
}

/* Finite numbers from this one on (bits) are stored as infinity; 0: none is. */
TILE_INLINE uint32_t overflow(enum attnd_kdtype type)
{
	return type == ATTND_K_F16 ? 0x477ff000u : type == ATTND_K_BF16 ? 0x7f7f8000u : 0x7f800000u;
}

TILE_INLINE VF load_at(enum attnd_kdtype in, const char *src, uint32_t d, uint32_t dims)
{
	return load(in, src + d * attnd_kdtype_bytes(in), dims - d < LANES ? dims - d : LANES);
}

/* The largest magnitude's bits: their order is that of numbers, Inf and NaN last. */
TILE_INLINE uint32_t largest_of(enum attnd_kdtype in, const char *src, uint32_t dims)
{
	VU worst = {0};

	for (uint32_t d = 0; d < dims; d += LANES)
		worst = most(worst, bits(load_at(in, src, d, dims)) & 0x7fffffffu);
	return largest(worst);
}

TILE_INLINE bool convert_types(enum attnd_kdtype in, enum attnd_kdtype type, const void *src, uint32_t dims,
			       bool dynamic, float *scale, void *dst)
{
	VU worst = {0};
	uint32_t top = 0;

	if (dynamic) {
		top = largest_of(in, src, dims);
		*scale = (attnd_float(top) > 1e-7f ? attnd_float(top) : 1e-7f) / 127.0f;
	}
	for (uint32_t d = 0; d < dims; d += LANES) {
		VF x = load_at(in, src, d, dims);

		if (!dynamic)
			worst = most(worst, bits(x) & 0x7fffffffu);
		store_elements(type, x, (VF){0} + *scale, dst, d);
	}
	top = dynamic ? top : largest(worst);
	if (top >= 0x7f800000u)
		return attnd_row_convert(in, type, src, dims, dynamic, scale, dst);
	return top < overflow(type);
}

#define CONVERT_TO(in, type)                                                  \
	case ATTND_K_##type:                                                  \
		return convert_types(ATTND_K_##in, ATTND_K_##type, src, dims, \
				     ATTND_K_##type == ATTND_K_INT8 && dynamic, scale, dst)
#define CONVERT_FROM(in)                  \
	switch (type) {                   \
		CONVERT_TO(in, F32);      \
		CONVERT_TO(in, F16);      \
		CONVERT_TO(in, BF16);     \
		CONVERT_TO(in, INT8);     \
		CONVERT_TO(in, FP8_E4M3); \
		CONVERT_TO(in, FP8_E5M2); \
	case ATTND_K_DTYPES:              \
		return true;              \
	}

static bool convert(enum attnd_kdtype in, enum attnd_kdtype type, const void *src, uint32_t dims, bool dynamic,
		    float *scale, void *dst)
{
	if (in == ATTND_K_F32)
		CONVERT_FROM(F32)
	else if (in == ATTND_K_F16)
		CONVERT_FROM(F16)
	else
		CONVERT_FROM(BF16)
	return true;
}

/* ---- Turning around ---- */

/* Eight rows of sixteen 16-bit elements: x[i] becomes columns i (low half) and i + 8. */
TILE_INLINE void turn8x16(__m256i x[TURN])
{
	__m256i a[TURN], b[TURN];

	for (int i = 0; i < TURN; i += 2) {
		a[i] = _mm256_unpacklo_epi16(x[i], x[i + 1]);
		a[i + 1] = _mm256_unpackhi_epi16(x[i], x[i + 1]);
	}
	for (int i = 0; i < TURN; i += 4) {
		b[i] = _mm256_unpacklo_epi32(a[i], a[i + 2]);
		b[i + 1] = _mm256_unpackhi_epi32(a[i], a[i + 2]);
		b[i + 2] = _mm256_unpacklo_epi32(a[i + 1], a[i + 3]);
		b[i + 3] = _mm256_unpackhi_epi32(a[i + 1], a[i + 3]);
	}
	for (int i = 0; i < 4; i++) {
		x[2 * i] = _mm256_unpacklo_epi64(b[i], b[i + 4]);
		x[2 * i + 1] = _mm256_unpackhi_epi64(b[i], b[i + 4]);
	}
}

/* ---- write ---- */

/* Rows of consecutive tokens in the stored type, with zeros up to 64 bytes. */
struct rows {
	const char *at[TILE_LANES];
	uint32_t n;
};

/* K's rows of 32-bit units: `to` is the group's row of the first unit, at the first token. */
static void put_units32(uint32_t *to, const struct rows *r, uint32_t units)
{
	uint32_t i = 0;
	__m256 x[TURN];

	for (; i + TURN <= r->n; i += TURN)
		for (uint32_t u = 0; u < units; u += TURN) {
			uint32_t left = units - u < TURN ? units - u : TURN;

			for (uint32_t j = 0; j < TURN; j++)
				x[j] = _mm256_loadu_ps((const void *)(r->at[i + j] + u * 4));
			attnd_turn8(x);
			for (uint32_t j = 0; j < left; j++)
				_mm256_storeu_ps((float *)(void *)to + (u + j) * TILE_LANES + i, x[j]);
		}
	for (; i < r->n; i++)
		for (uint32_t u = 0; u < units; u++)
			memcpy(to + u * TILE_LANES + i, r->at[i] + u * 4, 4);
}

static void put_units16(uint16_t *to, const struct rows *r, uint32_t units)
{
	uint32_t i = 0;
	__m256i x[TURN];

	for (; i + TURN <= r->n; i += TURN)
		for (uint32_t u = 0; u < units; u += 2 * TURN) {
			uint32_t left = units - u < 2 * TURN ? units - u : 2 * TURN;

			for (uint32_t j = 0; j < TURN; j++)
				x[j] = _mm256_loadu_si256((const void *)(r->at[i + j] + u * 2));
			turn8x16(x);
			for (uint32_t j = 0; j < left; j++) {
				__m128i column = j < TURN ? _mm256_castsi256_si128(x[j])
							  : _mm256_extracti128_si256(x[j - TURN], 1);

				_mm_storeu_si128((void *)(to + (u + j) * TILE_LANES + i), column);
			}
		}
	for (; i < r->n; i++)
		for (uint32_t u = 0; u < units; u++)
			memcpy(to + u * TILE_LANES + i, r->at[i] + u * 2, 2);
}

static void put_k(const struct attnd_put *p, uint32_t slot, const struct rows *r)
{
	const struct attnd_kv_format *f = p->a->fmt;
	uint32_t es = attnd_kdtype_bytes(f->spec.dtype), units = attnd_div_up(p->dims, f->k_ilv);
	uint32_t unit = es * f->k_ilv;
	char *to = p->tile + (size_t)(slot / TILE_LANES) * units * TILE_LANES * unit + slot % TILE_LANES * unit;

	if (unit == 4)
		put_units32((uint32_t *)(void *)to, r, units);
	else
		put_units16((uint16_t *)(void *)to, r, units);
}

/* V of one strip's row, `ilv` tokens of 16 dims. */
TILE_INLINE void put_pair(char *to, const char *const *at, size_t off)
{
	__m256i a = _mm256_loadu_si256((const void *)(at[0] + off)),
		b = _mm256_loadu_si256((const void *)(at[1] + off));
	__m256i lo = _mm256_unpacklo_epi16(a, b), hi = _mm256_unpackhi_epi16(a, b);

	_mm256_storeu_si256((void *)to, _mm256_permute2x128_si256(lo, hi, 0x20));
	_mm256_storeu_si256((void *)(to + 32), _mm256_permute2x128_si256(lo, hi, 0x31));
}

TILE_INLINE void put_quad(char *to, const char *const *at, size_t off)
{
	__m128i a = _mm_loadu_si128((const void *)(at[0] + off)), b = _mm_loadu_si128((const void *)(at[1] + off));
	__m128i c = _mm_loadu_si128((const void *)(at[2] + off)), d = _mm_loadu_si128((const void *)(at[3] + off));
	__m128i ab = _mm_unpacklo_epi8(a, b), cd = _mm_unpacklo_epi8(c, d);
	__m128i ab1 = _mm_unpackhi_epi8(a, b), cd1 = _mm_unpackhi_epi8(c, d);

	_mm_storeu_si128((void *)to, _mm_unpacklo_epi16(ab, cd));
	_mm_storeu_si128((void *)(to + 16), _mm_unpackhi_epi16(ab, cd));
	_mm_storeu_si128((void *)(to + 32), _mm_unpacklo_epi16(ab1, cd1));
	_mm_storeu_si128((void *)(to + 48), _mm_unpackhi_epi16(ab1, cd1));
}

/* Strips of `strip` bytes, one after the other; `to` is the row of the first token (of its pair or four). */
TILE_INLINE void put_v_strips(char *to, size_t strip, uint32_t es, uint32_t ilv, const char *const *at, uint32_t slot,
			      bool whole, uint32_t strips)
{
	for (uint32_t j = 0; j < strips; j++, to += strip) {
		const char *from = at[0] + j * TILE_LANES * es;

		if (ilv == 1)
			memcpy(to, from, TILE_LANES * es);
		else if (ilv == 2 && whole)
			put_pair(to, at, j * TILE_LANES * es);
		else if (ilv == 2)
			put_v_halves(to, from, slot % 2);
		else if (whole)
			put_quad(to, at, j * TILE_LANES * es);
		else
			put_v_bytes(to, from, slot % 4);
	}
}

TILE_INLINE void put_v_tokens(const struct attnd_put *p, uint32_t slot, const struct rows *r, uint32_t es,
			      uint32_t ilv)
{
	size_t strip = (size_t)p->a->fmt->spec.block_size * TILE_LANES * es;
	uint32_t strips = attnd_div_up(p->dims, TILE_LANES);

	for (uint32_t i = 0; i < r->n;) {
		uint32_t s = slot + i;
		bool whole = s % ilv == 0 && r->n - i >= ilv;

		put_v_strips(p->tile + (size_t)(s / ilv) * ilv * TILE_LANES * es, strip, es, ilv, r->at + i, s, whole,
			     strips);
		i += whole ? ilv : 1;
	}
}

static void put_v(const struct attnd_put *p, uint32_t slot, const struct rows *r)
{
	switch (attnd_kdtype_bytes(p->a->fmt->spec.dtype) * 10u + p->a->fmt->v_ilv) {
	case 41:
		put_v_tokens(p, slot, r, 4, 1);
		break;
	case 21:
		put_v_tokens(p, slot, r, 2, 1);
		break;
	case 22:
		put_v_tokens(p, slot, r, 2, 2);
		break;
	default:
		put_v_tokens(p, slot, r, 1, 4);
	}
}

/* A stored row with zeros up to 64 bytes: where it stands, if it ends there, else in buf. */
static const char *padded_row(const char *row, size_t bytes, char *buf)
{
	size_t whole = (bytes + 63) & ~(size_t)63;

	if (whole == bytes)
		return row;
	if (row != buf)
		memcpy(buf, row, bytes);
	memset(buf + bytes, 0, whole - bytes);
	return buf;
}

/* Tokens [t, t + n) of one group. */
static void put_tokens(const struct attnd_put *p, uint32_t t, uint32_t n, bool is_v, uint8_t *flag)
{
	_Alignas(64) char buf[TILE_LANES][ROW_BYTES];
	size_t bytes = (size_t)p->dims * attnd_kdtype_bytes(p->a->fmt->spec.dtype);
	float scales[TILE_LANES];
	struct rows r = {.n = n};
	bool finite = true;

	for (uint32_t i = 0; i < n; i++)
		r.at[i] = padded_row(attnd_put_row(p, t + i, buf[i], &scales[i], &finite, convert), bytes, buf[i]);
	if (!finite)
		attnd_set_flag(flag);
	if (p->scale_out)
		memcpy(p->scale_out + p->a->slot + t, scales, n * sizeof(*scales));
	if (is_v)
		put_v(p, p->a->slot + t, &r);
	else
		put_k(p, p->a->slot + t, &r);
}

static void write_tiles(const struct attnd_slots_args *a)
{
	for (uint32_t i = 0; i < a->num_heads; i++) {
		bool has_v = !a->fmt->spec.v_in_k;
		struct attnd_put k = attnd_put_of(a, i, false), v = has_v ? attnd_put_of(a, i, true) : k;

		for (uint32_t t = 0, n; t < a->n; t += n) {
			n = TILE_LANES - (a->slot + t) % TILE_LANES;
			n = a->n - t < n ? a->n - t : n;
			put_tokens(&k, t, n, false, &a->flags[a->head + i]);
			if (has_v)
				put_tokens(&v, t, n, true, &a->flags[a->head + i]);
		}
	}
}

/* ---- read ---- */

/* Where rows go. */
struct get {
	char *dst; /* of the first token */
	size_t stride;
	size_t bytes; /* of a row */
};

TILE_INLINE void put_bytes(char *to, const void *from, size_t at, size_t bytes, size_t most)
{
	if (bytes - at >= most)
		memcpy(to + at, from, most);
	else
		memcpy(to + at, from, bytes - at);
}

static void get_units32(const struct get *g, uint32_t t, uint32_t n, const uint32_t *from, uint32_t units)
{
	uint32_t i = 0;
	__m256 x[TURN];

	for (; i + TURN <= n; i += TURN)
		for (uint32_t u = 0; u < units; u += TURN) {
			for (uint32_t j = 0; j < TURN; j++)
				x[j] = u + j < units ? _mm256_loadu_ps((const float *)(const void *)from +
								       (u + j) * TILE_LANES + i)
						     : _mm256_setzero_ps();
			attnd_turn8(x);
			for (uint32_t j = 0; j < TURN; j++)
				put_bytes(g->dst + (t + i + j) * g->stride, &x[j], u * 4, g->bytes, sizeof(x[j]));
		}
	for (; i < n; i++)
		for (uint32_t u = 0; u < units; u++)
			put_bytes(g->dst + (t + i) * g->stride, from + u * TILE_LANES + i, u * 4, g->bytes, 4);
}

static void get_units16(const struct get *g, uint32_t t, uint32_t n, const uint16_t *from, uint32_t units)
{
	uint32_t i = 0;
	__m256i x[TURN];

	for (; i + TURN <= n; i += TURN)
		for (uint32_t u = 0; u < units; u += TURN) {
			__m128i row[TURN];

			for (uint32_t j = 0; j < TURN; j++)
				x[j] = _mm256_castsi128_si256(
					u + j < units
						? _mm_loadu_si128((const void *)(from + (u + j) * TILE_LANES + i))
						: _mm_setzero_si128());
			turn8x16(x);
			for (uint32_t j = 0; j < TURN; j++) {
				row[j] = _mm256_castsi256_si128(x[j]);
				put_bytes(g->dst + (t + i + j) * g->stride, &row[j], u * 2, g->bytes, sizeof(row[j]));
			}
		}
	for (; i < n; i++)
		for (uint32_t u = 0; u < units; u++)
			put_bytes(g->dst + (t + i) * g->stride, from + u * TILE_LANES + i, u * 2, g->bytes, 2);
}

/* Tokens [slot, slot + n), of one group, to rows from t on. */
static void get_k(const struct attnd_kv_format *f, const char *tile, uint32_t slot, uint32_t t, uint32_t n,
		  const struct get *g)
{
	uint32_t unit = attnd_kdtype_bytes(f->spec.dtype) * f->k_ilv,
		 units = attnd_div_up(f->spec.head_dim, f->k_ilv);
	const char *from = tile + (size_t)(slot / TILE_LANES) * units * TILE_LANES * unit + slot % TILE_LANES * unit;

	units = attnd_div_up((uint32_t)g->bytes, unit); /* V in K has fewer */
	if (unit == 4)
		get_units32(g, t, n, (const uint32_t *)(const void *)from, units);
	else
		get_units16(g, t, n, (const uint16_t *)(const void *)from, units);
}

/* A row of 16 dims of two or four tokens: each token's 16. */
TILE_INLINE void split_pair(const char *from, __m256i token[2])
{
	const __m256i mix =
		_mm256_broadcastsi128_si256(_mm_setr_epi8(0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15));
	__m256i a = _mm256_shuffle_epi8(_mm256_loadu_si256((const void *)from), mix);
	__m256i b = _mm256_shuffle_epi8(_mm256_loadu_si256((const void *)(from + 32)), mix);

	token[0] = _mm256_permute4x64_epi64(_mm256_unpacklo_epi64(a, b), 0xd8);
	token[1] = _mm256_permute4x64_epi64(_mm256_unpackhi_epi64(a, b), 0xd8);
}

TILE_INLINE void split_quad(const char *from, __m128i token[4])
{
	const __m128i mix = _mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
	__m128i x[4], lo[2], hi[2];

	for (int i = 0; i < 4; i++)
		x[i] = _mm_shuffle_epi8(_mm_loadu_si128((const void *)(from + 16 * i)), mix);
	for (int i = 0; i < 2; i++) {
		lo[i] = _mm_unpacklo_epi32(x[2 * i], x[2 * i + 1]);
		hi[i] = _mm_unpackhi_epi32(x[2 * i], x[2 * i + 1]);
	}
	token[0] = _mm_unpacklo_epi64(lo[0], lo[1]);
	token[1] = _mm_unpackhi_epi64(lo[0], lo[1]);
	token[2] = _mm_unpacklo_epi64(hi[0], hi[1]);
	token[3] = _mm_unpackhi_epi64(hi[0], hi[1]);
}

/* Slots [slot, slot + n) of the pair or four that begins at s. */
TILE_INLINE void get_v_strips(const struct attnd_kv_format *f, const char *from, const struct get *g, uint32_t t,
			      uint32_t first, uint32_t n, uint32_t es, uint32_t ilv)
{
	size_t strip = (size_t)f->spec.block_size * TILE_LANES * es, run = (size_t)TILE_LANES * es;

	for (size_t at = 0; at < g->bytes; at += run, from += strip) {
		__m256i pair[2];
		__m128i quad[4];

		if (ilv == 2)
			split_pair(from, pair);
		else if (ilv == 4)
			split_quad(from, quad);
		for (uint32_t i = 0; i < n; i++)
			put_bytes(g->dst + (t + i) * g->stride,
				  ilv == 1   ? (const void *)from
				  : ilv == 2 ? (const void *)&pair[first + i]
					     : (const void *)&quad[first + i],
				  at, g->bytes, run);
	}
}

TILE_INLINE void get_v_tokens(const struct attnd_kv_format *f, const char *tile, uint32_t slot, uint32_t n,
			      const struct get *g, uint32_t es, uint32_t ilv)
{
	for (uint32_t t = 0, m; t < n; t += m) {
		uint32_t first = (slot + t) % ilv;

		m = ilv - first < n - t ? ilv - first : n - t;
		get_v_strips(f, tile + (size_t)(slot + t - first) * TILE_LANES * es, g, t, first, m, es, ilv);
	}
}

static void get_v(const struct attnd_kv_format *f, const char *tile, uint32_t slot, uint32_t n, const struct get *g)
{
	switch (attnd_kdtype_bytes(f->spec.dtype) * 10u + f->v_ilv) {
	case 41:
		get_v_tokens(f, tile, slot, n, g, 4, 1);
		break;
	case 21:
		get_v_tokens(f, tile, slot, n, g, 2, 1);
		break;
	case 22:
		get_v_tokens(f, tile, slot, n, g, 2, 2);
		break;
	default:
		get_v_tokens(f, tile, slot, n, g, 1, 4);
	}
}

static void get_scales(const float *out, size_t stride, uint32_t i, const float *from, uint32_t n)
{
	char *to = (char *)(uintptr_t)(out ? out + i : NULL);

	for (uint32_t t = 0; to && t < n; t++)
		memcpy(to + t * stride, from + t, sizeof(float));
}

static void get_k_rows(const struct attnd_slots_args *a, const char *tile, const struct get *g)
{
	for (uint32_t t = 0, n; t < a->n; t += n) {
		n = TILE_LANES - (a->slot + t) % TILE_LANES;
		n = a->n - t < n ? a->n - t : n;
		get_k(a->fmt, tile, a->slot + t, t, n, g);
	}
}

static void read_tiles(const struct attnd_slots_args *a)
{
	const struct attnd_kv_format *f = a->fmt;
	size_t es = attnd_kdtype_bytes(f->spec.dtype);

	for (uint32_t i = 0; i < a->num_heads; i++) {
		uint32_t h = a->head + i;
		const char *tile = (const char *)a->block + h * f->tile_bytes;
		struct get g = {(char *)(uintptr_t)a->k + i * a->k_head_stride, a->k_token_stride,
				f->spec.head_dim * es};

		get_k_rows(a, tile, &g);
		if (a->v)
			g = (struct get){(char *)(uintptr_t)a->v + i * a->v_head_stride, a->v_token_stride,
					 f->spec.head_dim_v * es};
		if (a->v && f->spec.v_in_k)
			get_k_rows(a, tile, &g);
		else if (a->v)
			get_v(f, tile + f->v_off, a->slot, a->n, &g);
		if (f->spec.scale == ATTND_K_SCALE_DYNAMIC) {
			get_scales(a->k_scales, a->scale_token_stride, i,
				   attnd_tile_scales(f, a->block, h, f->k_scale_off) + a->slot, a->n);
			get_scales(a->v_scales, a->scale_token_stride, i,
				   attnd_tile_scales(f, a->block, h, f->v_scale_off) + a->slot, a->n);
		}
	}
}
