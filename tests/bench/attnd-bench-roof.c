/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The machine's roofs as attnd-bench needs them: all threads, some milliseconds a sample.
 *
 * In:   memory larger than the caches. Out: bytes and FLOP/s. Next: goals that are judged by roof time.
 */
#include "../../kernels/cpu.h"
#include "attnd-bench.h"
#include "roof.h"

enum { LOOPS = 200000 };
static const size_t SAMPLE = (size_t)64 << 20;

struct stream {
	const char *from;
};

static void read_share(void *arg, int t, int threads)
{
	const struct stream *s = arg;
	size_t share = SAMPLE / (size_t)threads;
	const void *piece = s->from + share * (size_t)t;

	read_pieces(&read_variants[0], &piece, 0, 1, 1, share);
}

double stream_rate(const char *memory, size_t bytes, int threads)
{
	static size_t offset;
	struct stream s;

	if (offset + SAMPLE > bytes)
		offset = 0;
	s.from = memory + offset;
	offset += SAMPLE;
	return (double)SAMPLE / team_run(threads, read_share, &s);
}

/* AMX has no peak of its own in roof.h: there the fastest vector instructions stand for it. */
static enum peak best_peak(void)
{
	uint64_t f = attnd_features();

	return peak_supported(PEAK_DPBF16, f)	    ? PEAK_DPBF16
	       : peak_supported(PEAK_FMA_AVX512, f) ? PEAK_FMA_AVX512
						    : PEAK_FMA_AVX2;
}

const char *peak_name(void)
{
	return peak_names[best_peak()];
}

static void run_peak(void *arg, int t, int threads)
{
	double *flops = arg;

	(void)threads;
	flops[t] = peak_run(best_peak(), LOOPS);
}

double peak_rate(int threads)
{
	double flops[8] = {0}, seconds = team_run(threads, run_peak, flops), all = 0;

	for (int t = 0; t < threads; t++)
		all += flops[t];
	return all / seconds;
}
