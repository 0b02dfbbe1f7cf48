/* SPDX-License-Identifier: Apache-2.0 */
/*
 * write, read and copy of packed tiles on RVV 1.0, for any VLEN: the same bits as tile_c.c's.
 *
 * In:   rows [token][head][dim], or tiles.
 * Out:  tiles with flags and scales, or rows.
 * Next: attend_rvv.c reads the tiles; the daemon exports rows.
 *
 * K stands with its tokens side by side, so that eight rows become one strided store of segments
 * of eight; what is left of a group goes row by row, one element a segment. V's rows are copied,
 * or, where two tokens share a word, stored as segments of two.
 */
#include "convert_rvv.h"
#include "registry.h"
#include "tile_row.h"

/* A row of V may be padded by four lanes in each of its strips. */
enum { RUN = 8, BUFFER_BYTES = ATTND_K_MAX_DIM * 4 * 5 / 4 };

/* ---- One row into the stored type ---- */

static float dynamic_scale(const float *x, size_t n)
{
	size_t vl = __riscv_vsetvlmax_e32m8();
	vuint32m8_t worst = __riscv_vmv_v_x_u32m8(0, vl);
	float most;

	for (size_t i = 0; i < n; i += vl) {
		vl = __riscv_vsetvl_e32m8(n - i);
		vuint32m8_t u = __riscv_vle32_v_u32m8((const uint32_t *)(const void *)x + i, vl);

		worst = __riscv_vmaxu_vv_u32m8_tu(worst, worst, __riscv_vand_vx_u32m8(u, 0x7fffffffu, vl), vl);
	}
	vl = __riscv_vsetvlmax_e32m8();
	most = attnd_float(
		__riscv_vmv_x_s_u32m1_u32(__riscv_vredmaxu_vs_u32m8_u32m1(worst, __riscv_vmv_s_x_u32m1(0, 1), vl)));
	if (!isfinite(most))
		return NAN;
	return (most > 1e-7f ? most : 1e-7f) / 127.0f;
}

#define NARROW(store, es, convert)                                 \
	for (size_t i = 0, vl; i < n; i += vl) {                   \
		vl = __riscv_vsetvl_e32m4(n - i);                  \
		vfloat32m4_t v = __riscv_vle32_v_f32m4(x + i, vl); \
		if (es == 1)                                       \
			v = __riscv_vfdiv_vf_f32m4(v, scale, vl);  \
		store((char *)dst + i * es, convert(v, vl), vl);   \
	}

static void from_f32(enum attnd_kdtype type, const float *x, size_t n, float scale, void *dst)
{
	switch (type) {
	case ATTND_K_F32:
		memcpy(dst, x, n * sizeof(float));
		break;
	case ATTND_K_F16:
		NARROW(rvv_store16, 2, rvv_to_f16)
		break;
	case ATTND_K_BF16:
		NARROW(rvv_store16, 2, rvv_to_bf16)
		break;
	case ATTND_K_INT8:
		NARROW(rvv_store8, 1, rvv_to_int8)
		break;
	case ATTND_K_FP8_E4M3:
		NARROW(rvv_store8, 1, rvv_to_e4m3)
		break;
	case ATTND_K_FP8_E5M2:
		NARROW(rvv_store8, 1, rvv_to_e5m2)
		break;
	case ATTND_K_DTYPES:
		break;
	}
}

static bool convert(enum attnd_kdtype in, enum attnd_kdtype type, const void *src, uint32_t n, bool dynamic,
		    float *scale, void *dst)
{
	float x[ATTND_K_MAX_DIM];

	attnd_rvv_widen(in, src, n, x);
	if (dynamic)
		*scale = dynamic_scale(x, n);
	from_f32(type, x, n, *scale, dst);
	return attnd_row_finite(type, dst, n) && (!dynamic || isfinite(*scale));
}

/* ---- Segments ---- */

/*
 * put_units: `units` elements of each of the rows, which become columns: element u of row i at
 * to + u * pitch + i. get_units: the reverse.
 */
#define UNITS(bits)                                                                                                  \
	static void put_units##bits(char *to, ptrdiff_t pitch, const char *const *rows, uint32_t n, size_t units)    \
	{                                                                                                            \
		for (size_t u = 0, vl; n == RUN && u < units; u += vl) {                                             \
			vl = __riscv_vsetvl_e##bits##m1(units - u);                                                  \
			vuint##bits##m1x8_t x = __riscv_vcreate_v_u##bits##m1x8(                                     \
				LOAD(bits, rows[0]), LOAD(bits, rows[1]), LOAD(bits, rows[2]), LOAD(bits, rows[3]),  \
				LOAD(bits, rows[4]), LOAD(bits, rows[5]), LOAD(bits, rows[6]), LOAD(bits, rows[7])); \
                                                                                                                     \
			__riscv_vssseg8e##bits##_v_u##bits##m1x8((void *)(to + (ptrdiff_t)u * pitch), pitch, x, vl); \
		}                                                                                                    \
		for (uint32_t i = 0; n != RUN && i < n; i++)                                                         \
			for (size_t u = 0, vl; u < units; u += vl) {                                                 \
				vl = __riscv_vsetvl_e##bits##m8(units - u);                                          \
				__riscv_vsse##bits##_v_u##bits##m8(                                                  \
					(void *)(to + (ptrdiff_t)u * pitch + i * (bits / 8)), pitch,                 \
					__riscv_vle##bits##_v_u##bits##m8((const void *)(rows[i] + u * (bits / 8)),  \
									  vl),                                       \
					vl);                                                                         \
			}                                                                                            \
	}                                                                                                            \
	static void get_units##bits(char *const *rows, uint32_t n, const char *from, ptrdiff_t pitch, size_t units)  \
	{                                                                                                            \
		for (size_t u = 0, vl; n == RUN && u < units; u += vl) {                                             \
			vl = __riscv_vsetvl_e##bits##m1(units - u);                                                  \
			vuint##bits##m1x8_t x = __riscv_vlsseg8e##bits##_v_u##bits##m1x8(                            \
				(const void *)(from + (ptrdiff_t)u * pitch), pitch, vl);                             \
                                                                                                                     \
			STORE(bits, 0);                                                                              \
			STORE(bits, 1);                                                                              \
			STORE(bits, 2);                                                                              \
			STORE(bits, 3);                                                                              \
			STORE(bits, 4);                                                                              \
			STORE(bits, 5);                                                                              \
			STORE(bits, 6);                                                                              \
			STORE(bits, 7);                                                                              \
		}                                                                                                    \
		for (uint32_t i = 0; n != RUN && i < n; i++)                                                         \
			for (size_t u = 0, vl; u < units; u += vl) {                                                 \
				vl = __riscv_vsetvl_e##bits##m8(units - u);                                          \
				__riscv_vse##bits##_v_u##bits##m8(                                                   \
					(void *)(rows[i] + u * (bits / 8)),                                          \
					__riscv_vlse##bits##_v_u##bits##m8(                                          \
						(const void *)(from + (ptrdiff_t)u * pitch + i * (bits / 8)), pitch, \
						vl),                                                                 \
					vl);                                                                         \
			}                                                                                            \
	}
#define LOAD(bits, row) __riscv_vle##bits##_v_u##bits##m1((const void *)((row) + u * (bits / 8)), vl)
#define STORE(bits, i)                                                        \
	__riscv_vse##bits##_v_u##bits##m1((void *)(rows[i] + u * (bits / 8)), \
					  __riscv_vget_v_u##bits##m1x8_u##bits##m1(x, i), vl)
UNITS(8)
UNITS(16)
UNITS(32)

static void copy_bytes(char *to, const char *from, size_t n)
{
	for (size_t i = 0, vl; i < n; i += vl) {
		vl = __riscv_vsetvl_e8m8(n - i);
		__riscv_vse8_v_u8m8((uint8_t *)to + i, __riscv_vle8_v_u8m8((const uint8_t *)from + i, vl), vl);
	}
}

static void copy_runs(char *dst, const char *src, uint32_t runs, size_t pitch, size_t bytes)
{
	for (uint32_t i = 0; i < runs; i++)
		copy_bytes(dst + i * pitch, src + i * pitch, bytes);
}

/* Only bf16 is interleaved, in pairs: the first of each. */
static void copy_mixed(char *dst, const char *src, uint32_t lanes, uint32_t ilv, uint32_t n, size_t es)
{
	(void)ilv;
	(void)n;
	(void)es;
	for (size_t i = 0, vl; i < lanes; i += vl) {
		vl = __riscv_vsetvl_e16m8(lanes - i);
		__riscv_vsse16_v_u16m8((void *)(dst + i * 4), 4,
				       __riscv_vlse16_v_u16m8((const void *)(src + i * 4), 4, vl), vl);
	}
}

#define COPY_RUNS  copy_runs
#define COPY_MIXED copy_mixed
#include "tile_copy.h"

/* ---- K ---- */

/* The group that holds a slot: its first unit of that token, and the bytes from a unit to the next. */
struct k_place {
	size_t at;
	ptrdiff_t pitch;
	uint32_t unit; /* bytes */
};

static struct k_place k_place(const struct attnd_kv_format *f, uint32_t slot)
{
	uint32_t unit = attnd_kdtype_bytes(f->spec.dtype) * f->k_ilv, pitch = f->k_lanes * unit;
	uint32_t units = attnd_div_up(f->spec.head_dim, f->k_ilv);

	return (struct k_place){(size_t)(slot / f->k_lanes) * units * pitch + slot % f->k_lanes * unit,
				(ptrdiff_t)pitch, unit};
}

static void put_k(const struct attnd_put *p, uint32_t slot, const char *const *rows, uint32_t n)
{
	const struct attnd_kv_format *f = p->a->fmt;
	struct k_place k = k_place(f, slot);
	size_t units = attnd_div_up(p->dims, f->k_ilv);

	if (k.unit == 4)
		put_units32(p->tile + k.at, k.pitch, rows, n, units);
	else if (k.unit == 2)
		put_units16(p->tile + k.at, k.pitch, rows, n, units);
	else
		put_units8(p->tile + k.at, k.pitch, rows, n, units);
}

/* ---- V ---- */

/* One strip's lanes of one token of two, or of both. */
static void put_pairs(char *to, const char *const *rows, size_t off, uint32_t slot, bool both, size_t lanes)
{
	for (size_t i = 0, vl; i < lanes; i += vl) {
		vl = __riscv_vsetvl_e16m4(lanes - i);
		vuint16m4_t a = __riscv_vle16_v_u16m4((const void *)(rows[0] + off + i * 2), vl);
		char *at = to + i * 4;

		if (both)
			__riscv_vsseg2e16_v_u16m4x2(
				(void *)at,
				__riscv_vcreate_v_u16m4x2(
					a, __riscv_vle16_v_u16m4((const void *)(rows[1] + off + i * 2), vl)),
				vl);
		else
			__riscv_vsse16_v_u16m4((void *)(at + slot % 2 * 2), 4, a, vl);
	}
}

static void get_pairs(char *row, const char *from, uint32_t slot, size_t n)
{
	for (size_t i = 0, vl; i < n; i += vl) {
		vl = __riscv_vsetvl_e16m4(n - i);
		vuint16m4x2_t x = __riscv_vlseg2e16_v_u16m4x2((const void *)(from + i * 4), vl);

		if (slot % 2)
			__riscv_vse16_v_u16m4((void *)(row + i * 2), __riscv_vget_v_u16m4x2_u16m4(x, 1), vl);
		else
			__riscv_vse16_v_u16m4((void *)(row + i * 2), __riscv_vget_v_u16m4x2_u16m4(x, 0), vl);
	}
}

static void put_v(const struct attnd_put *p, uint32_t slot, const char *const *rows, uint32_t n)
{
	const struct attnd_kv_format *f = p->a->fmt;
	size_t run = f->v_lanes * attnd_kdtype_bytes(f->spec.dtype), strip = run * f->spec.block_size;
	uint32_t strips = attnd_div_up(p->dims, f->v_lanes);

	for (uint32_t i = 0; i < n;) {
		uint32_t s = slot + i;
		bool both = f->v_ilv == 2 && s % 2 == 0 && i + 1 < n;
		char *to = p->tile + (s - s % f->v_ilv) * run;

		for (uint32_t j = 0; j < strips; j++)
			if (f->v_ilv == 2)
				put_pairs(to + j * strip, rows + i, j * run, s, both, f->v_lanes);
			else
				copy_bytes(to + j * strip, rows[i] + j * run, run);
		i += both ? 2 : 1;
	}
}

/* ---- write ---- */

/* A stored row with zeros up to `whole` bytes: where it stands, if it ends there, else in buf. */
static const char *padded_row(const char *row, size_t bytes, size_t whole, char *buf)
{
	if (whole == bytes)
		return row;
	if (row != buf)
		memcpy(buf, row, bytes);
	memset(buf + bytes, 0, whole - bytes);
	return buf;
}

/* Tokens [t, t + n) of one group, at most RUN. */
static void put_tokens(const struct attnd_put *p, uint32_t t, uint32_t n, bool is_v, uint8_t *flag)
{
	const struct attnd_kv_format *f = p->a->fmt;
	uint32_t to = is_v ? f->v_lanes : f->k_ilv, es = attnd_kdtype_bytes(f->spec.dtype);
	size_t bytes = p->dims * es, whole = attnd_div_up(p->dims, to) * to * es;
	_Alignas(16) char buf[RUN][BUFFER_BYTES];
	const char *rows[RUN];
	float scales[RUN];
	bool finite = true;

	for (uint32_t i = 0; i < n; i++)
		rows[i] = padded_row(attnd_put_row(p, t + i, buf[i], &scales[i], &finite, convert), bytes, whole,
				     buf[i]);
	if (!finite)
		attnd_set_flag(flag);
	if (p->scale_out)
		memcpy(p->scale_out + p->a->slot + t, scales, n * sizeof(*scales));
	if (is_v)
		put_v(p, p->a->slot + t, rows, n);
	else
		put_k(p, p->a->slot + t, rows, n);
}

/* Tokens from t on that go together: of one group of K, RUN at most. */
static uint32_t run_length(const struct attnd_slots_args *a, uint32_t t)
{
	uint32_t n = a->fmt->k_lanes - (a->slot + t) % a->fmt->k_lanes;

	n = a->n - t < n ? a->n - t : n;
	return n < RUN ? n : RUN;
}

void attnd_write_any_rvv(const struct attnd_slots_args *a)
{
	for (uint32_t i = 0; i < a->num_heads; i++) {
		bool has_v = !a->fmt->spec.v_in_k;
		struct attnd_put k = attnd_put_of(a, i, false), v = has_v ? attnd_put_of(a, i, true) : k;

		for (uint32_t t = 0, n; t < a->n; t += n) {
			n = run_length(a, t);
			put_tokens(&k, t, n, false, &a->flags[a->head + i]);
			if (has_v)
				put_tokens(&v, t, n, true, &a->flags[a->head + i]);
		}
	}
}

/* ---- read ---- */

/* The first `dims` dims of tokens [slot, slot + n). */
static void get_k(const struct attnd_kv_format *f, const char *tile, uint32_t slot, char *const *rows, uint32_t n,
		  uint32_t dims)
{
	struct k_place k = k_place(f, slot);
	size_t units = dims / f->k_ilv;

	if (k.unit == 4)
		get_units32(rows, n, tile + k.at, k.pitch, units);
	else if (k.unit == 2)
		get_units16(rows, n, tile + k.at, k.pitch, units);
	else
		get_units8(rows, n, tile + k.at, k.pitch, units);
	for (uint32_t i = 0; i < n && dims % f->k_ilv; i++)
		memcpy(rows[i] + units * k.unit, tile + k.at + units * (size_t)k.pitch + i * k.unit, 2);
}

static void get_v(const struct attnd_kv_format *f, const char *tile, uint32_t slot, char *row)
{
	size_t es = attnd_kdtype_bytes(f->spec.dtype), run = f->v_lanes * es, strip = run * f->spec.block_size;
	const char *from = tile + (slot - slot % f->v_ilv) * run;

	for (uint32_t d = 0, n; d < f->spec.head_dim_v; d += n, from += strip) {
		n = f->spec.head_dim_v - d < f->v_lanes ? f->spec.head_dim_v - d : f->v_lanes;
		if (f->v_ilv == 2)
			get_pairs(row + d * es, from, slot, n);
		else
			copy_bytes(row + d * es, from, n * es);
	}
}

static void get_scale(const float *out, size_t stride, uint32_t t, uint32_t i, const float *scale)
{
	if (out)
		memcpy((char *)(uintptr_t)(out + i) + t * stride, scale, sizeof(*scale));
}

static void get_head(const struct attnd_slots_args *a, uint32_t i, uint32_t t, uint32_t n)
{
	const struct attnd_kv_format *f = a->fmt;
	const char *tile = (const char *)a->block + (a->head + i) * f->tile_bytes;
	char *k[RUN], *v[RUN];

	for (uint32_t j = 0; j < n; j++) {
		k[j] = (char *)(uintptr_t)a->k + (t + j) * a->k_token_stride + i * a->k_head_stride;
		v[j] = a->v ? (char *)(uintptr_t)a->v + (t + j) * a->v_token_stride + i * a->v_head_stride : NULL;
	}
	get_k(f, tile, a->slot + t, k, n, f->spec.head_dim);
	if (a->v && f->spec.v_in_k)
		get_k(f, tile, a->slot + t, v, n, f->spec.head_dim_v);
	for (uint32_t j = 0; j < n; j++) {
		uint32_t slot = a->slot + t + j;

		if (a->v && !f->spec.v_in_k)
			get_v(f, tile + f->v_off, slot, v[j]);
		if (f->spec.scale != ATTND_K_SCALE_DYNAMIC)
			continue;
		get_scale(a->k_scales, a->scale_token_stride, t + j, i,
			  attnd_tile_scales(f, a->block, a->head + i, f->k_scale_off) + slot);
		get_scale(a->v_scales, a->scale_token_stride, t + j, i,
			  attnd_tile_scales(f, a->block, a->head + i, f->v_scale_off) + slot);
	}
}

void attnd_read_any_rvv(const struct attnd_slots_args *a)
{
	for (uint32_t i = 0; i < a->num_heads; i++)
		for (uint32_t t = 0, n; t < a->n; t += n) {
			n = run_length(a, t);
			get_head(a, i, t, n);
		}
}

void attnd_copy_any_rvv(const struct attnd_kv_format *fmt, void *dst, uint8_t *dst_flags, const void *src,
			const uint8_t *src_flags, uint32_t n, uint32_t head, uint32_t num_heads)
{
	copy_tiles(fmt, dst, dst_flags, src, src_flags, n, head, num_heads);
}
