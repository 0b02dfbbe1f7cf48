/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Checks of init, merge and finish.
 *
 * In:   random partials, empty ones among them; sinks.
 * Out:  TAP. Bounds are those of docs/numerics.md, "Partials".
 * Next: check_attend.c uses portable merge and finish.
 */
#include "check.h"

#define U 0x1p-24

enum { ROUNDS = 300, MAX_N = 9 };

struct partials {
	struct rng r;
	struct attnd_kv_format fmt;
	uint32_t n;
	char *a, *b; /* guarded, n partials each */
};

static struct attnd_partial *at(const struct partials *c, char *base, uint32_t i)
{
	return (struct attnd_partial *)(void *)(base + i * c->fmt.partial_bytes);
}

static void make_partial(struct partials *c, struct attnd_partial *p)
{
	memset(p, 0, c->fmt.partial_bytes);
	p->m = -INFINITY;
	if (rng_below(&c->r, 4) == 0)
		return;
	p->m = rng_float(&c->r) * (rng_below(&c->r, 3) ? 3.0f : 200.0f);
	p->l = 1.0f + fabsf(rng_float(&c->r)) * 500.0f;
	for (uint32_t d = 0; d < c->fmt.spec.head_dim_v; d++)
		p->acc[d] = rng_below(&c->r, 20) ? rng_float(&c->r) * p->l : -0.0f;
}

static bool partials_init(struct partials *c, const struct attnd_kernel *k, uint64_t seed)
{
	struct attnd_ops ops;
	struct attnd_kv_spec s;

	*c = (struct partials){.r = {seed}};
	s = random_spec(&c->r, k->kv == ATTND_K_ANY ? ATTND_K_BF16 : (enum attnd_kdtype)k->kv);
	if (rng_below(&c->r, 2) && !s.v_in_k)
		s.head_dim_v = rng_range(&c->r, 1, 150);
	if (attnd_format_init(check_features, &s, &c->fmt, &ops) != 0 ||
	    !attnd_kernel_serves(k, check_features, &c->fmt))
		return false;
	c->n = rng_range(&c->r, 1, MAX_N);
	c->a = guarded_alloc(c->n * c->fmt.partial_bytes, 64);
	c->b = guarded_alloc(c->n * c->fmt.partial_bytes, 64);
	for (uint32_t i = 0; i < c->n; i++) {
		make_partial(c, at(c, c->a, i));
		make_partial(c, at(c, c->b, i));
	}
	return true;
}

static void partials_free(struct partials *c)
{
	guarded_free(c->a);
	guarded_free(c->b);
}

static bool empty(const struct attnd_partial *p)
{
	return p->m == -INFINITY && p->l == 0.0f;
}

/* ---- init ---- */

void check_init(const struct attnd_kernel *k, uint64_t seed)
{
	for (uint64_t i = 0; i < 20; i++) {
		struct partials c;

		if (!partials_init(&c, k, seed + i))
			continue;
		memset(c.a, 0xff, c.n * c.fmt.partial_bytes);
		k->fn.init(&c.fmt, c.a, c.n);
		for (uint32_t p = 0; p < c.n; p++) {
			const struct attnd_partial *x = at(&c, c.a, p);

			if (!empty(x))
				fail("partial %u is not empty", p);
			for (uint32_t d = 0; d < c.fmt.spec.head_dim_v; d++)
				if (bits_of(x->acc[d]) != 0)
					fail("acc[%u] is not 0", d);
		}
		partials_free(&c);
	}
}

/* ---- merge ---- */

static void near(const char *what, double got, double want, double bound)
{
	if (!(fabs(got - want) <= bound))
		fail("%s: %a, not %a within %g", what, got, want, bound);
}

/* x e^(mx - m) + y e^(my - m), its bound, against what came out relative to the kernel's own m. */
static void compare_sum(const char *what, double got, double x, double mx, double y, double my, double m)
{
	double a = fabs(x) * exp(mx - m), b = fabs(y) * exp(my - m);
	double bound = a * (fabs(mx - m) + 8) * U + b * (fabs(my - m) + 8) * U + (fabs(x) + fabs(y)) * 0x1p-125;

	near(what, got, x * exp(mx - m) + y * exp(my - m), bound);
}

static void compare_merge(const struct partials *c, const struct attnd_partial *x, const struct attnd_partial *y,
			  const struct attnd_partial *got)
{
	size_t bytes = offsetof(struct attnd_partial, acc) + c->fmt.spec.head_dim_v * sizeof(float);

	if (empty(x) || empty(y)) {
		if (memcmp(got, empty(y) ? x : y, bytes) != 0)
			fail("an empty partial changes the other");
		return;
	}
	if (got->m != fmaxf(x->m, y->m))
		fail("m is not the maximum");
	compare_sum("l", (double)got->l, (double)x->l, (double)x->m, (double)y->l, (double)y->m, (double)got->m);
	for (uint32_t d = 0; d < c->fmt.spec.head_dim_v; d++)
		compare_sum("acc", (double)got->acc[d], (double)x->acc[d], (double)x->m, (double)y->acc[d],
			    (double)y->m, (double)got->m);
}

void check_merge(const struct attnd_kernel *k, uint64_t seed)
{
	for (uint64_t i = 0; i < ROUNDS && !failed(); i++) {
		struct partials c;
		char *before, *portable;

		if (!partials_init(&c, k, seed + i))
			continue;
		before = malloc(c.n * c.fmt.partial_bytes);
		memcpy(before, c.a, c.n * c.fmt.partial_bytes);
		portable = aligned_alloc(64, c.n * c.fmt.partial_bytes);
		memcpy(portable, c.a, c.n * c.fmt.partial_bytes);
		attnd_merge_any_c(&c.fmt, portable, c.b, c.n);
		guarded_protect(c.b, true);
		k->fn.merge(&c.fmt, c.a, c.b, c.n);
		for (uint32_t p = 0; p < c.n; p++)
			compare_merge(&c, at(&c, before, p), at(&c, c.b, p), at(&c, c.a, p));
		if (memcmp(portable, c.a, c.n * c.fmt.partial_bytes) != 0)
			fail("other bits than portable C (dim %u)", c.fmt.spec.head_dim_v);
		free(before);
		free(portable);
		partials_free(&c);
	}
}

/* ---- finish ---- */

/* Half a unit in the last place of the type at x, or of its smallest denormal. */
static double rounding(enum attnd_kdtype type, double x)
{
	if (type == ATTND_K_F16)
		return fabs(x) * 0x1p-11 + 0x1p-25;
	if (type == ATTND_K_BF16)
		return fabs(x) * 0x1p-8 + 0x1p-134;
	return fabs(x) * U + 0x1p-150;
}

/* The portable kernel's rows and lse. */
static void compare_with_portable(const struct partials *c, const float *sinks, enum attnd_kdtype type,
				  const char *out, size_t stride, size_t row, const float *lse)
{
	char *want = malloc(c->n * stride);
	float want_lse[MAX_N];

	attnd_finish_any_c(&c->fmt, c->a, c->n, sinks, type, want, stride, want_lse);
	for (uint32_t p = 0; p < c->n; p++)
		if (memcmp(want + p * stride, out + p * stride, row) != 0 ||
		    (lse && bits_of(lse[p]) != bits_of(want_lse[p])))
			fail("other bits than portable C (type %d, dim %u)", (int)type, c->fmt.spec.head_dim_v);
	free(want);
}

static void compare_finish(const struct partials *c, const struct attnd_partial *p, const float *sink,
			   enum attnd_kdtype type, const void *out, const float *lse)
{
	double m = (double)p->m, s = sink ? (double)*sink : -INFINITY, top = fmax(m, s), l, want_lse, rel;

	if (empty(p)) {
		for (uint32_t d = 0; d < c->fmt.spec.head_dim_v; d++)
			if (exact_value(type, out, d) != 0.0)
				fail("out is not 0 where no key is visible");
		if (lse && *lse != (sink ? *sink : -INFINITY))
			fail("lse %g of no key", (double)*lse);
		return;
	}
	l = (double)p->l * exp(m - top) + exp(s - top);
	rel = (fabs(m - top) + (isfinite(s) ? fabs(s - top) : 0) + 12) * U;
	for (uint32_t d = 0; d < c->fmt.spec.head_dim_v; d++) {
		double want = (double)p->acc[d] * exp(m - top) / l, err = 2 * rel * fabs(want);

		near("out", exact_value(type, out, d), want,
		     err + rounding(type, fabs(want) + err) + 0x1p-125 * fabs((double)p->acc[d]));
	}
	want_lse = top + log(l);
	if (lse)
		near("lse", (double)*lse, want_lse, 2 * rel + (fabs(top) + fabs(log(l)) + fabs(want_lse)) * 2 * U);
}

/* Every kind of number in acc, NaN too, in every number of dims, as portable C stores it. */
static void finish_odd(const struct attnd_kernel *k)
{
	struct attnd_kv_spec s = {1, 1, 64, 64, 16, ATTND_K_BF16, ATTND_K_SCALE_NONE, ATTND_K_PACKED, false};
	struct rng r = {7};

	for (uint32_t i = 0; i < 900 && !failed(); i++) {
		enum attnd_kdtype type = i % ATTND_K_FLOATS;
		struct attnd_ops ops;
		struct partials c = {.n = 1};
		char *out;

		s.head_dim_v = 1 + i / ATTND_K_FLOATS % 150;
		if (attnd_format_init(check_features, &s, &c.fmt, &ops) != 0 ||
		    !attnd_kernel_serves(k, check_features, &c.fmt))
			return;
		c.a = guarded_alloc(c.fmt.partial_bytes, 64);
		memset(c.a, 0, c.fmt.partial_bytes);
		at(&c, c.a, 0)->l = 1.0f;
		for (uint32_t d = 0; d < s.head_dim_v; d++)
			at(&c, c.a, 0)->acc[d] = rng_any_float(&r);
		out = guarded_alloc(s.head_dim_v * attnd_kdtype_bytes(type), attnd_kdtype_bytes(type));
		k->fn.finish(&c.fmt, c.a, 1, NULL, type, out, 4096, NULL);
		compare_with_portable(&c, NULL, type, out, 4096, s.head_dim_v * attnd_kdtype_bytes(type), NULL);
		guarded_free(out);
		guarded_free(c.a);
	}
}

void check_finish(const struct attnd_kernel *k, uint64_t seed)
{
	for (uint64_t i = 0; i < ROUNDS && !failed(); i++) {
		struct partials c;
		float sinks[MAX_N], lse[MAX_N];
		enum attnd_kdtype type;
		bool with_sinks, with_lse;
		size_t stride, row;
		char *out;

		if (!partials_init(&c, k, seed + i))
			continue;
		type = (enum attnd_kdtype)rng_below(&c.r, ATTND_K_FLOATS);
		with_sinks = rng_below(&c.r, 2);
		with_lse = rng_below(&c.r, 2);
		row = c.fmt.spec.head_dim_v * attnd_kdtype_bytes(type);
		stride = row + rng_below(&c.r, 3) * attnd_kdtype_bytes(type);
		out = guarded_alloc((c.n - 1) * stride + row, attnd_kdtype_bytes(type));
		memset(out, 0x5a, (c.n - 1) * stride + row);
		for (uint32_t p = 0; p < c.n; p++)
			sinks[p] = rng_below(&c.r, 8) ? rng_float(&c.r) * (rng_below(&c.r, 2) ? 4.0f : 200.0f)
						      : -INFINITY;
		guarded_protect(c.a, true);
		k->fn.finish(&c.fmt, c.a, c.n, with_sinks ? sinks : NULL, type, out, stride, with_lse ? lse : NULL);
		for (uint32_t p = 0; p < c.n; p++) {
			compare_finish(&c, at(&c, c.a, p), with_sinks ? &sinks[p] : NULL, type, out + p * stride,
				       with_lse ? &lse[p] : NULL);
			for (size_t g = row; g < stride && p + 1 < c.n; g++)
				if (out[p * stride + g] != 0x5a)
					fail("finish wrote between rows");
		}
		compare_with_portable(&c, with_sinks ? sinks : NULL, type, out, stride, row, with_lse ? lse : NULL);
		guarded_free(out);
		partials_free(&c);
	}
	finish_odd(k);
}
