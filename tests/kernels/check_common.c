/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Random numbers, guarded memory and exact values (check.h).
 *
 * In:   seeds, sizes, bits.
 * Out:  what the checks feed to kernels, and what they compare with.
 * Next: check_attend.c, check_tiles.c, check_partials.c, check_scalar.c.
 */
#include "check.h"

#include <sys/mman.h>
#include <unistd.h>

/* ---- Random numbers ---- */

uint64_t rng_next(struct rng *r)
{
	uint64_t z = r->state += 0x9e3779b97f4a7c15u;

	z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
	z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
	return z ^ (z >> 31);
}

uint32_t rng_below(struct rng *r, uint32_t n)
{
	return (uint32_t)((rng_next(r) >> 32) * n >> 32);
}

uint32_t rng_range(struct rng *r, uint32_t lo, uint32_t hi)
{
	return lo + rng_below(r, hi - lo + 1);
}

float rng_float(struct rng *r)
{
	return (float)((double)(int64_t)rng_next(r) * 0x1p-63);
}

float rng_any_float(struct rng *r)
{
	uint32_t u = (uint32_t)rng_next(r);

	switch (rng_below(r, 8)) {
	case 0: /* a tie, or next to one, of a narrower type */
		return float_of((u & 0xffff0000u) | (0x8000u + (u & 1) - (u >> 1 & 1)));
	case 1:
		return float_of((u & 0xffffe000u) | 0x1000u);
	case 2:
		return float_of((u & 0xfff00000u) | (u & 1 ? 0x80000u : 0));
	case 3: /* around the ranges of f16 and fp8 */
		return ldexpf(rng_float(r), (int)rng_below(r, 60) - 30);
	case 4: /* denormal */
		return float_of(u & 0x807fffffu);
	case 5: {
		static const float special[] = {0.0f,	   -0.0f,    INFINITY, -INFINITY, NAN,	    0x1.fffffep+127f,
						65520.0f,  65519.0f, 448.0f,   464.0f,	  57344.0f, 61440.0f,
						0x1p-126f, 0x1p-149f};

		return special[rng_below(r, sizeof(special) / sizeof(special[0]))];
	}
	default:
		return float_of(u);
	}
}

/* ---- Guarded memory: [guard page][pages of data][guard page] ---- */

struct guarded {
	size_t map_bytes;
	char *data; /* first page of data */
	size_t data_bytes;
};

static size_t page_size(void)
{
	return (size_t)sysconf(_SC_PAGESIZE);
}

enum { MAX_GUARDED = 4096 };
static struct guarded table[MAX_GUARDED]; /* what stands behind keys[i] */
static void *keys[MAX_GUARDED];

void *guarded_alloc(size_t size, size_t align)
{
	size_t page = page_size(), bytes = (size + page - 1) / page * page;
	char *map, *p;
	size_t i;

	bytes = bytes ? bytes : page;
	map = mmap(NULL, bytes + 2 * page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (map == MAP_FAILED || mprotect(map + page, bytes, PROT_READ | PROT_WRITE) != 0)
		abort();
	p = map + page + ((bytes - size) & ~(align - 1));
	for (i = 0; i < MAX_GUARDED && keys[i]; i++)
		;
	if (i == MAX_GUARDED)
		abort();
	keys[i] = p;
	table[i] = (struct guarded){bytes + 2 * page, map + page, bytes};
	return p;
}

static size_t find_guarded(const void *p)
{
	for (size_t i = 0; i < MAX_GUARDED; i++)
		if (keys[i] == p)
			return i;
	abort();
}

void guarded_free(void *p)
{
	size_t i;

	if (!p)
		return;
	i = find_guarded(p);
	munmap(table[i].data - page_size(), table[i].map_bytes);
	keys[i] = NULL;
}

void guarded_protect(void *p, bool read_only)
{
	size_t i = find_guarded(p);

	if (mprotect(table[i].data, table[i].data_bytes, read_only ? PROT_READ : PROT_READ | PROT_WRITE) != 0)
		abort();
}

/* ---- Exact values ---- */

/* What tells the small floating-point types apart. */
struct shape {
	int mantissa, bias;		    /* stored bits */
	uint32_t max_finite, infinity, nan; /* 0 for infinity: none; overflow saturates */
};

static const struct shape *shape_of(enum attnd_kdtype type)
{
	static const struct shape f16 = {10, 15, 0x7bff, 0x7c00, 0x7e00};
	static const struct shape bf16 = {7, 127, 0x7f7f, 0x7f80, 0x7fc0};
	static const struct shape e4m3 = {3, 7, 0x7e, 0, 0x7f};
	static const struct shape e5m2 = {2, 15, 0x7b, 0, 0x7e};

	switch (type) {
	case ATTND_K_F16:
		return &f16;
	case ATTND_K_BF16:
		return &bf16;
	case ATTND_K_FP8_E4M3:
		return &e4m3;
	case ATTND_K_FP8_E5M2:
		return &e5m2;
	default:
		return NULL;
	}
}

float float_of(uint32_t bits)
{
	float x;

	memcpy(&x, &bits, sizeof(x));
	return x;
}

uint32_t bits_of(float x)
{
	uint32_t bits;

	memcpy(&bits, &x, sizeof(bits));
	return bits;
}

static uint32_t sign_bit(enum attnd_kdtype type)
{
	return 1u << (attnd_kdtype_bytes(type) * 8 - 1);
}

/* The value of a magnitude's bits. */
static double magnitude(const struct shape *s, enum attnd_kdtype type, uint32_t mag)
{
	int exp = (int)(mag >> s->mantissa), frac = (int)(mag & ((1u << s->mantissa) - 1));

	if (mag > s->max_finite)
		return (type == ATTND_K_FP8_E5M2 ? mag == 0x7c : mag == s->infinity) ? INFINITY : NAN;
	if (exp == 0)
		return ldexp(frac, 1 - s->bias - s->mantissa);
	return ldexp(frac + (1 << s->mantissa), exp - s->bias - s->mantissa);
}

double exact_value(enum attnd_kdtype type, const void *array, size_t i)
{
	const struct shape *s = shape_of(type);
	uint32_t bits;

	if (type == ATTND_K_F32)
		return (double)((const float *)array)[i];
	if (type == ATTND_K_INT8)
		return (double)((const int8_t *)array)[i];
	bits = attnd_kdtype_bytes(type) == 2 ? ((const uint16_t *)array)[i] : ((const uint8_t *)array)[i];
	return (bits & sign_bit(type) ? -1.0 : 1.0) * magnitude(s, type, bits & ~sign_bit(type));
}

static uint32_t round_int8(float x)
{
	double r = isnan(x) ? 0.0 : fmin(fmax(nearbyint((double)x), -127.0), 127.0);

	return (uint32_t)(int32_t)r & 0xff;
}

/* Between two neighbouring magnitudes the nearer wins, the even one on a tie. */
static uint32_t nearest(const struct shape *s, enum attnd_kdtype type, double a)
{
	uint32_t lo = 0, hi = s->max_finite;
	double top = magnitude(s, type, hi), below = top - magnitude(s, type, hi - 1), x, y;

	if (a >= top)
		return s->infinity && a >= top + below / 2 ? s->infinity : hi;
	while (hi - lo > 1) {
		uint32_t mid = (lo + hi) / 2;

		if (magnitude(s, type, mid) <= a)
			lo = mid;
		else
			hi = mid;
	}
	x = a - magnitude(s, type, lo);
	y = magnitude(s, type, hi) - a;
	return x < y || (x == y && lo % 2 == 0) ? lo : hi;
}

uint32_t exact_round(enum attnd_kdtype type, float x)
{
	const struct shape *s = shape_of(type);

	if (type == ATTND_K_F32)
		return bits_of(x);
	if (type == ATTND_K_INT8)
		return round_int8(x);
	return (signbit(x) ? sign_bit(type) : 0) | (isnan(x) ? s->nan : nearest(s, type, fabs((double)x)));
}

void exact_store(enum attnd_kdtype type, void *array, size_t i, float x)
{
	uint32_t bits = exact_round(type, x);

	if (attnd_kdtype_bytes(type) == 4)
		memcpy((uint32_t *)array + i, &bits, 4);
	else if (attnd_kdtype_bytes(type) == 2)
		((uint16_t *)array)[i] = (uint16_t)bits;
	else
		((uint8_t *)array)[i] = (uint8_t)bits;
}

/* ---- Geometries ---- */

struct attnd_kv_spec random_spec(struct rng *r, enum attnd_kdtype dtype)
{
	static const uint16_t dims[][2] = {{128, 128}, {64, 64},   {80, 80},   {96, 96},   {256, 256},
					   {192, 128}, {576, 512}, {1, 1},     {3, 5},	   {40, 33},
					   {100, 72},  {17, 129},  {112, 112}, {576, 576}, {31, 16}};
	static const uint8_t groups[] = {1, 2, 3, 4, 4, 5, 7, 8, 8, 16, 17, 32, 65};
	struct attnd_kv_spec s = {.dtype = dtype};
	uint32_t pick = rng_below(r, sizeof(dims) / sizeof(dims[0]));

	s.num_kv_heads = rng_range(r, 1, 3);
	s.group = groups[rng_below(r, sizeof(groups))];
	s.head_dim = dims[pick][0];
	s.head_dim_v = dims[pick][1];
	s.layout = rng_below(r, 3) ? ATTND_K_PACKED : rng_below(r, 2) ? ATTND_K_BSHD : ATTND_K_BHSD;
	s.block_size = 16u << rng_below(r, rng_below(r, 3) ? 2 : 5);
	if (s.layout == ATTND_K_BSHD && rng_below(r, 2))
		s.block_size = 1u << rng_below(r, 4);
	s.v_in_k = s.head_dim_v <= s.head_dim && rng_below(r, 4) == 0;
	if (dtype == ATTND_K_INT8)
		s.scale = rng_below(r, 2) ? ATTND_K_SCALE_DYNAMIC : ATTND_K_SCALE_STATIC;
	else
		s.scale = dtype >= ATTND_K_FLOATS ? ATTND_K_SCALE_STATIC : ATTND_K_SCALE_NONE;
	return s;
}
