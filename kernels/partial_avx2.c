/* SPDX-License-Identifier: Apache-2.0 */
/*
 * merge with AVX2: the same arithmetic, and so the same bits, as partial_c.c's.
 *
 * In:   partials of chunks (partial.h).
 * Out:  one partial of two.
 * Next: finish (partial_c.c).
 */
#include <immintrin.h>

#include "kernels.h"
#include "partial.h"
#include "scalar.h"

static bool is_empty(const struct attnd_partial *p)
{
	return p->m == -INFINITY && p->l == 0.0f;
}

static void merge_one(struct attnd_partial *d, const struct attnd_partial *s, size_t floats)
{
	float m = d->m > s->m ? d->m : s->m, ref = m == -INFINITY ? 0.0f : m;
	float a = attnd_exp(d->m - ref), b = attnd_exp(s->m - ref);
	__m256 va = _mm256_set1_ps(a), vb = _mm256_set1_ps(b);

	d->m = m;
	d->l = d->l * a + s->l * b;
	for (size_t i = 0; i < floats; i += 8) {
		__m256 x = _mm256_mul_ps(_mm256_load_ps(d->acc + i), va);

		_mm256_store_ps(d->acc + i, _mm256_add_ps(x, _mm256_mul_ps(_mm256_load_ps(s->acc + i), vb)));
	}
}

attnd_merge_fn attnd_merge_any_avx2;
void attnd_merge_any_avx2(const struct attnd_kv_format *fmt, void *dst, const void *src, uint32_t n)
{
	size_t floats = (fmt->partial_bytes - offsetof(struct attnd_partial, acc)) / sizeof(float);

	for (uint32_t i = 0; i < n; i++) {
		struct attnd_partial *d = (void *)((char *)dst + (size_t)i * fmt->partial_bytes);
		const struct attnd_partial *s = (const void *)((const char *)src + (size_t)i * fmt->partial_bytes);

		if (is_empty(s))
			continue;
		if (is_empty(d))
			memcpy(d, s, fmt->partial_bytes);
		else
			merge_one(d, s, floats);
	}
}
