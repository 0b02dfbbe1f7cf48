/* SPDX-License-Identifier: Apache-2.0 */
/*
 * merge and finish with AVX2: the same bits as partial_c.c's.
 *
 * In:   partials of chunks (partial.h), sinks.
 * Out:  one partial of two; out rows and lse.
 * Next: daemon/exec.c writes rows to the arena.
 */
#include "lanes_avx2.h"
#include "partial_x86.h"

attnd_merge_fn attnd_merge_any_avx2;
void attnd_merge_any_avx2(const struct attnd_kv_format *fmt, void *dst, const void *src, uint32_t n)
{
	attnd_partials_merge(fmt, dst, src, n, merge_one);
}

attnd_finish_fn attnd_finish_any_avx2;
void attnd_finish_any_avx2(const struct attnd_kv_format *fmt, const void *partial, uint32_t n, const float *sinks,
			   enum attnd_kdtype out_dtype, void *out, size_t out_head_stride, float *lse)
{
	attnd_partials_finish(fmt, partial, n, sinks, out_dtype, out, out_head_stride, lse, finish_row);
}
