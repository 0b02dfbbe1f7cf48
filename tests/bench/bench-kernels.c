/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench-kernels: the kernels beside what the machine can do (goals P1, P2, P3, P5), in-process.
 *
 * In:   the registry's tables for these features, and for fewer.
 * Out:  paired ratios and figures (report.h).
 * Next: people, CI.
 *
 * K/V lie in more than 1 GiB of huge pages, laid out as the pool does it: block-major, a block's
 * layers behind each other. A decode sample walks some layers of all its sequences as a model
 * does, one layer after the other; samples go round, so that K/V come from memory. Within a
 * round the contenders take turns on different layers.
 */
#include <errno.h>
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "../../kernels/cpu.h"
#include "../../kernels/kernels.h"
#include "report.h"
#include "roof.h"
#include "team.h"

enum {
	HEADS = 8,
	GROUP = 4,
	DIM = 128,
	LAYERS = 32,
	THREADS = 2,
	VARIANTS_MAX = 8,
	MAX_GROUP = 8,
};
static const size_t POOL_BYTES = (size_t)1280 << 20, HUGE_PAGE = (size_t)2 << 20, SAMPLE_BYTES = (size_t)96 << 20;

static struct {
	char *pool;
	int threads;
	double seconds;
	const char *only;
	bool json;
	int filled; /* the type of what the pool holds */
	void *scratch[THREADS];
} bench = {.seconds = 20, .filled = -1};

static void *allocate(size_t bytes)
{
	size_t size = bytes + HUGE_PAGE;
	char *p = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (p == MAP_FAILED) {
		fprintf(stderr, "bench-kernels: no %zu bytes of memory\n", bytes);
		exit(1);
	}
	p = (char *)(((uintptr_t)p + HUGE_PAGE - 1) & ~(uintptr_t)(HUGE_PAGE - 1));
	madvise(p, bytes, MADV_HUGEPAGE);
	return p;
}

static void progress(const char *what)
{
	fprintf(stderr, "bench-kernels: %s\n", what);
}

/* ---- A cache in the pool ---- */

struct cache {
	struct attnd_kv_format fmt;
	struct attnd_ops ops;
	uint32_t ctx, layers, blocks; /* tokens a sequence; blocks of all sequences */
	size_t block_bytes;
	/* For a number of threads and a thread: the slices in the order that it reads them. */
	const void **pieces[THREADS + 1][THREADS];
	size_t per_layer[THREADS + 1][THREADS];
	const uint8_t **flags; /* as many as a chunk has blocks, all zero */
	char *q;
	char *partials[THREADS], *sums[THREADS];
};

static uint32_t next_random(uint32_t below)
{
	static uint64_t state = 88172645463325252u;

	state ^= state << 13;
	state ^= state >> 7;
	state ^= state << 17;
	return (uint32_t)((state >> 16) % below);
}

static float small_random(void)
{
	return (float)next_random(2001) * 0.001f - 1.0f;
}

/* One block's worth of values by the write kernel, copied to all blocks. */
static void fill_pool(struct cache *c)
{
	const struct attnd_kv_spec *s = &c->fmt.spec;
	size_t row = (size_t)s->num_kv_heads * DIM, values = row * s->block_size;
	float *kv = malloc(values * sizeof(float));
	uint8_t flags[HEADS] = {0};

	for (size_t i = 0; kv && i < values; i++)
		kv[i] = small_random();
	for (uint32_t layer = 0; kv && layer < c->layers; layer++) {
		struct attnd_slots_args a = {
			.fmt = &c->fmt,
			.block = (void *)(uintptr_t)c->pieces[1][0][layer * c->per_layer[1][0]],
			.flags = flags,
			.k = kv,
			.v = kv,
			.k_token_stride = row * sizeof(float),
			.k_head_stride = DIM * sizeof(float),
			.v_token_stride = row * sizeof(float),
			.v_head_stride = DIM * sizeof(float),
			.k_scale = 0.01f,
			.v_scale = 0.01f,
			.n = s->block_size,
			.num_heads = s->num_kv_heads,
			.in = ATTND_K_F32,
		};
		c->ops.write(&a);
	}
	for (size_t i = 1; i < c->blocks; i++)
		for (uint32_t layer = 0; layer < c->layers; layer++)
			memcpy((void *)(uintptr_t)c->pieces[1][0][layer * c->per_layer[1][0] + i],
			       c->pieces[1][0][layer * c->per_layer[1][0]], c->fmt.layer_bytes);
	free(kv);
}

/* What lies there already serves any cache of the same type. */
static void fill_pool_once(struct cache *c)
{
	if (bench.filled != (int)c->fmt.spec.dtype)
		fill_pool(c);
	bench.filled = (int)c->fmt.spec.dtype;
}

/* Thread t of n reads the chunks [num * t / n, num * (t + 1) / n) of each layer. */
static void list_pieces(struct cache *c, const uint32_t *table, int n, int t)
{
	uint32_t of_chunk = c->fmt.chunk / c->fmt.spec.block_size, chunks = c->blocks / of_chunk;
	uint32_t from = chunks * (uint32_t)t / (uint32_t)n * of_chunk;
	uint32_t to = chunks * ((uint32_t)t + 1) / (uint32_t)n * of_chunk;
	size_t at = 0;

	c->per_layer[n][t] = to - from;
	c->pieces[n][t] = malloc((size_t)(to - from) * c->layers * sizeof(void *));
	for (uint32_t layer = 0; layer < c->layers; layer++)
		for (uint32_t b = from; b < to; b++)
			c->pieces[n][t][at++] = bench.pool + table[b] * c->block_bytes + layer * c->fmt.layer_bytes;
}

/* Sequences of ctx tokens as many as the pool holds, in order or at random places. */
static int make_cache(struct cache *c, uint64_t features, const struct attnd_kv_spec *spec, uint32_t ctx, bool random)
{
	size_t all;
	uint32_t *table;

	memset(c, 0, sizeof(*c));
	if (attnd_format_init(features, spec, &c->fmt, &c->ops) != 0)
		return -EINVAL;
	c->ctx = ctx;
	all = (size_t)(ctx / spec->block_size) * c->fmt.layer_bytes;
	c->layers = (uint32_t)(POOL_BYTES / all < LAYERS ? POOL_BYTES / all : LAYERS);
	c->block_bytes = c->layers * c->fmt.layer_bytes;
	c->blocks = (uint32_t)(POOL_BYTES / (all * c->layers)) * (ctx / spec->block_size);
	table = malloc(c->blocks * sizeof(*table));
	c->flags = malloc(c->fmt.chunk * sizeof(*c->flags));
	if (!table || !c->flags)
		exit(1);
	for (uint32_t i = 0; i < c->blocks; i++)
		table[i] = i;
	for (uint32_t i = c->blocks - 1; random && i > 0; i--) {
		uint32_t j = next_random(i + 1), b = table[i];

		table[i] = table[j];
		table[j] = b;
	}
	for (int n = 1; n <= bench.threads; n++)
		for (int t = 0; t < n; t++)
			list_pieces(c, table, n, t);
	free(table);
	for (uint32_t i = 0; i < c->fmt.chunk; i++) {
		static const uint8_t none[HEADS];

		c->flags[i] = none;
	}
	c->q = malloc((size_t)HEADS * MAX_GROUP * DIM * sizeof(float));
	for (int t = 0; t < bench.threads; t++) {
		c->partials[t] = aligned_alloc(64, (size_t)HEADS * MAX_GROUP * c->fmt.partial_bytes);
		c->sums[t] = aligned_alloc(64, (size_t)HEADS * MAX_GROUP * c->fmt.partial_bytes);
	}
	return 0;
}

static void free_cache(struct cache *c)
{
	for (int n = 1; n <= bench.threads; n++)
		for (int t = 0; t < n; t++)
			free(c->pieces[n][t]);
	for (int t = 0; t < bench.threads; t++) {
		free(c->partials[t]);
		free(c->sums[t]);
	}
	free(c->flags);
	free(c->q);
}

/* q of this type: small values. */
static void fill_q(char *q, enum attnd_kdtype type, size_t n)
{
	for (size_t i = 0; i < n; i++) {
		float x = small_random();
		uint32_t u;
		uint16_t h;

		memcpy(&u, &x, sizeof(u));
		h = (uint16_t)(type == ATTND_K_BF16 ? u >> 16 : 0x3000 + (u & 0x83ff));
		if (type == ATTND_K_F32)
			memcpy(q + i * sizeof(x), &x, sizeof(x));
		else
			memcpy(q + i * sizeof(h), &h, sizeof(h));
	}
}

static struct attnd_attn attention(enum attnd_kdtype q)
{
	return (struct attnd_attn){
		.sm_scale = 0.0883883f,
		.k_scale = 0.01f,
		.v_scale = 0.01f,
		.q_dtype = q,
		.q_head_stride = DIM * attnd_kdtype_bytes(q),
	};
}

/* ---- Decode ---- */

/* Some layers of a cache, read by kernel or plainly. */
struct walk {
	struct cache *c;
	enum attnd_kdtype q;
	const struct read_variant *plain; /* NULL: the kernel */
	uint32_t layer, layers;
};

static void decode_chunk(const struct walk *w, const struct attnd_attn *attn, int t, const void **pieces,
			 uint32_t num_next, uint32_t start)
{
	const struct cache *c = w->c;
	uint32_t num = c->fmt.chunk / c->fmt.spec.block_size, heads = HEADS * c->fmt.spec.group;
	struct attnd_qrow row = {
		.q = c->q,
		.partial = c->partials[t],
		.lo = 0,
		.hi = c->ctx,
		.pos = c->ctx - 1,
	};
	struct attnd_attend_args a = {
		.fmt = &c->fmt,
		.attn = attn,
		.blocks = pieces,
		.flags = c->flags,
		.next = pieces + num,
		.rows = &row,
		.scratch = bench.scratch[t],
		.num_blocks = num,
		.num_next = num_next < num ? num_next : num,
		.num_rows = 1,
		.start = start,
		.begin = start,
		.end = start + c->fmt.chunk,
		.num_heads = HEADS,
	};

	c->ops.init(&c->fmt, c->partials[t], heads);
	c->ops.attend[w->q](&a);
	c->ops.merge(&c->fmt, c->sums[t], c->partials[t], heads);
}

static void walk_layers(void *arg, int t, int n)
{
	const struct walk *w = arg;
	const struct cache *c = w->c;
	size_t per_layer = c->per_layer[n][t], num = per_layer * c->layers;
	size_t from = per_layer * w->layer, to = from + per_layer * w->layers;
	struct attnd_attn attn = attention(w->q);

	if (w->plain) {
		read_pieces(w->plain, c->pieces[n][t], from, to, num, c->fmt.layer_bytes);
		return;
	}
	for (size_t i = from; i < to; i += c->fmt.chunk / c->fmt.spec.block_size) {
		uint32_t start = (uint32_t)(i % per_layer) * c->fmt.spec.block_size % c->ctx;

		if (start == 0)
			c->ops.init(&c->fmt, c->sums[t], HEADS * c->fmt.spec.group);
		decode_chunk(w, &attn, t, c->pieces[n][t] + i,
			     (uint32_t)(num - i - c->fmt.chunk / c->fmt.spec.block_size), start);
	}
}

/* Bytes that a sample of this cache reads. */
static size_t sample_bytes(const struct walk *w)
{
	return (size_t)w->c->blocks * w->c->fmt.layer_bytes * w->layers;
}

/* Seconds of the next layers, which move on with every sample. */
static double time_walk(struct walk *w, int threads)
{
	static uint32_t turn;
	size_t layer_bytes = (size_t)w->c->blocks * w->c->fmt.layer_bytes;

	w->layers = (uint32_t)(SAMPLE_BYTES / layer_bytes);
	if (w->layers == 0)
		w->layers = 1;
	if (w->layers > w->c->layers)
		w->layers = w->c->layers;
	w->layer = turn;
	if (w->layer + w->layers > w->c->layers)
		w->layer = 0;
	turn = w->layer + w->layers;
	return team_run(threads, walk_layers, w);
}

static struct attnd_kv_spec llama(enum attnd_kdtype dtype, uint32_t group)
{
	return (struct attnd_kv_spec){
		.num_kv_heads = HEADS,
		.group = group,
		.head_dim = DIM,
		.head_dim_v = DIM,
		.block_size = 16,
		.dtype = dtype,
		.scale = dtype == ATTND_K_INT8	   ? ATTND_K_SCALE_DYNAMIC
			 : dtype >= ATTND_K_DTYPES ? ATTND_K_SCALE_NONE
			 : dtype > ATTND_K_INT8	   ? ATTND_K_SCALE_STATIC
						   : ATTND_K_SCALE_NONE,
	};
}

/* The plain read of a contiguous run: stream. */
struct stream {
	size_t offset, bytes;
};

static void read_stream(void *arg, int t, int n)
{
	const struct stream *s = arg;
	size_t share = s->bytes / (size_t)n;
	const void *piece = bench.pool + s->offset + share * (size_t)t;

	read_pieces(&read_variants[0], &piece, 0, 1, 1, share);
}

/* Bytes a second. */
static double stream_rate(int threads)
{
	static size_t offset;
	struct stream s = {.offset = offset, .bytes = SAMPLE_BYTES};

	offset = (offset + SAMPLE_BYTES) % (POOL_BYTES - SAMPLE_BYTES) & ~(HUGE_PAGE - 1);
	return (double)s.bytes / team_run(threads, read_stream, &s);
}

/* ---- P1, P2: decode beside the best plain read of the same pieces ---- */

static void goal_decode(const char *goal, bool random, double target, double seconds)
{
	struct attnd_kv_spec spec = llama(ATTND_K_BF16, GROUP);
	static struct samples plain[VARIANTS_MAX], kernel, ratio, to_stream;
	struct cache c;
	char name[64];

	make_cache(&c, attnd_features(), &spec, 8192, random);
	fill_pool_once(&c);
	fill_q(c.q, ATTND_K_BF16, (size_t)HEADS * GROUP * DIM);
	for (int threads = 1; threads <= bench.threads; threads++) {
		double end = now_seconds() + seconds / bench.threads;
		struct walk w = {.c = &c, .q = ATTND_K_BF16};
		int best = 0;

		memset(plain, 0, sizeof(plain));
		kernel.n = ratio.n = to_stream.n = 0;
		do {
			double rate = stream_rate(threads), t;

			for (int v = 0; v < num_read_variants; v++) {
				w.plain = &read_variants[v];
				sample_add(&plain[v], time_walk(&w, threads));
			}
			w.plain = NULL;
			t = time_walk(&w, threads);
			sample_add(&kernel, t);
			sample_add(&to_stream, (double)sample_bytes(&w) / t / rate);
		} while (now_seconds() < end);
		for (int v = 1; v < num_read_variants; v++)
			if (sample_median(&plain[v]) < sample_median(&plain[best]))
				best = v;
		for (int i = 0; i < kernel.n; i++)
			sample_add(&ratio, plain[best].x[i] / kernel.x[i]);
		snprintf(name, sizeof(name), "%s.%dt", goal, threads);
		report_ratio(name, &ratio, target, true,
			     random ? "decode, random blocks / best plain read of the same pieces"
				    : "decode in order / best plain read of the same pieces");
		snprintf(name, sizeof(name), "%s.%dt / stream", goal, threads);
		report_figure(name, sample_median(&to_stream), "");
		snprintf(name, sizeof(name), "%s.%dt decode", goal, threads);
		report_figure(name, (double)sample_bytes(&w) / sample_median(&kernel) * 1e-9, "GB/s");
		for (int v = 0; v < num_read_variants; v++) {
			snprintf(name, sizeof(name), "%s.%dt plain read, prefetch %s%s", goal, threads,
				 read_variants[v].name, v == best ? " (best)" : "");
			report_figure(name, (double)sample_bytes(&w) / sample_median(&plain[v]) * 1e-9, "GB/s");
		}
	}
	free_cache(&c);
}

/* ---- Peaks ---- */

struct peak_job {
	enum peak peak;
	double flops[THREADS];
};

static void run_peak(void *arg, int t, int n)
{
	struct peak_job *j = arg;

	(void)n;
	j->flops[t] = peak_run(j->peak, 300000);
}

/* FLOP/s of all threads. */
static double peak_rate(enum peak p, int threads)
{
	struct peak_job j = {.peak = p};
	double seconds = team_run(threads, run_peak, &j), flops = 0;

	for (int t = 0; t < threads; t++)
		flops += j.flops[t];
	return flops / seconds;
}

/* ---- Extend ---- */

struct extend {
	struct cache *c;
	enum attnd_kdtype q;
	uint32_t rows, prefix;
	struct attnd_qrow *row[THREADS];
	char *queries, *partials[THREADS], *sums[THREADS];
};

/* One head over all chunks, whose partials stay in L2 meanwhile. */
static void extend_head(const struct extend *e, int t, const struct attnd_attn *attn, uint32_t head)
{
	const struct cache *c = e->c;
	uint32_t all = e->rows * c->fmt.spec.group, end = e->prefix + e->rows, of_chunk = c->fmt.chunk;
	struct attnd_attend_args a = {
		.fmt = &c->fmt,
		.attn = attn,
		.flags = c->flags,
		.rows = e->row[t],
		.scratch = bench.scratch[t],
		.num_rows = e->rows,
		.head = head,
		.num_heads = 1,
	};

	c->ops.init(&c->fmt, e->sums[t], all);
	for (uint32_t at = 0; at < end; at += of_chunk) {
		a.start = a.begin = at;
		a.end = at + of_chunk < end ? at + of_chunk : end;
		a.blocks = c->pieces[1][0] + at / c->fmt.spec.block_size;
		a.num_blocks = (a.end - at + c->fmt.spec.block_size - 1) / c->fmt.spec.block_size;
		a.next = a.blocks + a.num_blocks;
		a.num_next = a.end < end ? of_chunk / c->fmt.spec.block_size : 0;
		for (uint32_t i = 0; i < e->rows; i++)
			e->row[t][i].partial = (at == 0 ? e->sums[t] : e->partials[t]) +
					       i * c->fmt.spec.group * (size_t)c->fmt.partial_bytes;
		if (at > 0)
			c->ops.init(&c->fmt, e->partials[t], all);
		c->ops.attend[e->q](&a);
		if (at > 0) /* merging with an empty partial would change nothing */
			c->ops.merge(&c->fmt, e->sums[t], e->partials[t], all);
	}
}

/* Heads are split over threads; every row sees the prefix and the new tokens up to its own. */
static void extend_heads(void *arg, int t, int n)
{
	const struct extend *e = arg;
	uint32_t heads = HEADS / (uint32_t)n;
	struct attnd_attn attn = attention(e->q);
	size_t head = (size_t)e->c->fmt.spec.group * DIM * attnd_kdtype_bytes(e->q);

	for (uint32_t h = heads * (uint32_t)t; h < heads * ((uint32_t)t + 1); h++) {
		for (uint32_t i = 0; i < e->rows; i++)
			e->row[t][i].q = e->queries + (i * (size_t)HEADS + h) * head;
		extend_head(e, t, &attn, h);
	}
}

static void make_extend(struct extend *e, struct cache *c, enum attnd_kdtype q, uint32_t rows, uint32_t prefix)
{
	size_t values = (size_t)HEADS * c->fmt.spec.group * rows * DIM;
	size_t partials = (size_t)c->fmt.spec.group * rows * c->fmt.partial_bytes;

	*e = (struct extend){.c = c, .q = q, .rows = rows, .prefix = prefix};
	e->queries = malloc(values * sizeof(float));
	fill_q(e->queries, q, values);
	for (int t = 0; t < bench.threads; t++) {
		e->row[t] = calloc(rows, sizeof(*e->row[t]));
		e->partials[t] = aligned_alloc(64, partials);
		e->sums[t] = aligned_alloc(64, partials);
		for (uint32_t i = 0; i < rows; i++)
			e->row[t][i] = (struct attnd_qrow){
				.partial = e->partials[t] + i * c->fmt.spec.group * (size_t)c->fmt.partial_bytes,
				.hi = prefix + i + 1,
				.pos = prefix + i,
			};
	}
}

static void free_extend(struct extend *e)
{
	free(e->queries);
	for (int t = 0; t < bench.threads; t++) {
		free(e->row[t]);
		free(e->partials[t]);
		free(e->sums[t]);
	}
}

static double extend_flops(const struct extend *e)
{
	double keys = (double)e->rows * e->prefix + (double)e->rows * (e->rows + 1) / 2;

	return keys * (4.0 * (double)DIM * (double)HEADS * e->c->fmt.spec.group);
}

/* ---- P3: extend beside the peak of the instructions in use ---- */

static const struct isa {
	const char *name;
	enum peak peak;
	const char *mask; /* features to take away */
	uint64_t without; /* and these; with one of them the kernels would not use such instructions */
	enum attnd_kdtype q, kv;
	double goal;
} isas[] = {
	{"amx", PEAK_AMX, NULL, 0, ATTND_K_BF16, ATTND_K_BF16, 0.36},
	{"bf16", PEAK_DPBF16, "amx-bf16", ATTND_CPU(SLOW_DPBF16), ATTND_K_BF16, ATTND_K_BF16, 0.80},
	{"f32-avx512", PEAK_FMA_AVX512, "avx512-bf16,amx-bf16", 0, ATTND_K_BF16, ATTND_K_BF16, 0.80},
	{"f32-avx2", PEAK_FMA_AVX2, "avx512", 0, ATTND_K_BF16, ATTND_K_BF16, 0.80},
};

/* The instructions for bf16 queries that this CPU's kernels use. */
static const struct isa *best_isa(void)
{
	uint64_t f = attnd_features();

	for (size_t i = 0; i < sizeof(isas) / sizeof(isas[0]); i++)
		if (peak_supported(isas[i].peak, f) && !(f & isas[i].without))
			return &isas[i];
	return &isas[0];
}

static void extend_isa(const struct isa *isa, uint32_t rows, uint32_t prefix, bool goal, double seconds)
{
	static struct samples ratio, rate;
	struct attnd_kv_spec spec = llama(isa->kv, GROUP);
	uint64_t features = attnd_features(), mask = UINT64_MAX;
	struct cache c;
	struct extend e;
	char name[96];

	snprintf(name, sizeof(name), "P3.%s", isa->name);
	if (!peak_supported(isa->peak, features)) {
		report_skipped(name, "this CPU has no such instructions");
		return;
	}
	if (features & isa->without) {
		report_skipped(name, "no kernel here uses these instructions, f32 FMA is faster");
		return;
	}
	if (isa->mask)
		attnd_features_parse_mask(isa->mask, &mask);
	make_cache(&c, features & mask, &spec, 8192 + 512, false);
	make_extend(&e, &c, isa->q, rows, prefix);
	for (int threads = 1; threads <= bench.threads; threads++) {
		double end = now_seconds() + seconds / bench.threads;

		ratio.n = rate.n = 0;
		team_run(threads, extend_heads, &e); /* its memory's first touch is not measured */
		do {
			double peak = peak_rate(isa->peak, threads);
			double flops = extend_flops(&e) / team_run(threads, extend_heads, &e);

			sample_add(&ratio, flops / peak);
			sample_add(&rate, flops * 1e-9);
		} while (now_seconds() < end);
		snprintf(name, sizeof(name), "P3.%s", isa->name);
		if (goal && threads == 1)
			report_ratio(name, &ratio, isa->goal, true, "extend 64 rows on 1k / peak");
		snprintf(name, sizeof(name), "extend %s, %u on %u, %dt", c.ops.names[isa->q], rows, prefix, threads);
		report_figure(name, sample_median(&rate), "GFLOP/s");
		snprintf(name, sizeof(name), "extend %s, %u on %u, %dt / peak", c.ops.names[isa->q], rows, prefix,
			 threads);
		report_figure(name, sample_median(&ratio), "");
	}
	free_extend(&e);
	free_cache(&c);
}

static void goal_extend(double seconds)
{
	struct attnd_kv_spec spec = llama(ATTND_K_BF16, GROUP);
	const int num = sizeof(isas) / sizeof(isas[0]);
	struct cache c;

	make_cache(&c, attnd_features(), &spec, 8192 + 512, false);
	fill_pool_once(&c);
	free_cache(&c);
	for (int i = 0; i < num; i++)
		extend_isa(&isas[i], 64, 1024, true, seconds / num);
}

/* ---- P5: int8 and fp8 decode beside roof time ---- */

static double decode_flops(const struct walk *w)
{
	return 4.0 * (double)DIM * (double)HEADS * w->c->fmt.spec.group * w->c->blocks * w->c->fmt.spec.block_size *
	       w->layers;
}

/* Seconds a FLOP of bf16 decode. */
static double bf16_time(int threads, double seconds)
{
	static struct samples times;
	struct attnd_kv_spec spec = llama(ATTND_K_BF16, GROUP);
	struct cache c;
	struct walk w = {.c = &c, .q = ATTND_K_BF16};
	double end, t;

	make_cache(&c, attnd_features(), &spec, 8192, false);
	fill_pool_once(&c);
	fill_q(c.q, ATTND_K_BF16, (size_t)HEADS * GROUP * DIM);
	times.n = 0;
	end = now_seconds() + seconds;
	do
		sample_add(&times, time_walk(&w, threads));
	while (now_seconds() < end);
	t = sample_median(&times) / decode_flops(&w);
	free_cache(&c);
	return t;
}

static void quantised(enum attnd_kdtype type, const char *type_name, int threads, bool goal, double seconds,
		      double bf16)
{
	static struct samples ratio, rate, to_bf16;
	struct attnd_kv_spec spec = llama(type, GROUP);
	bool dp = peak_supported(PEAK_DPBF16, attnd_features());
	struct cache c;
	struct walk w = {.c = &c, .q = ATTND_K_BF16};
	char name[64];
	double end;

	make_cache(&c, attnd_features(), &spec, 8192, false);
	fill_pool_once(&c);
	fill_q(c.q, ATTND_K_BF16, (size_t)HEADS * GROUP * DIM);
	ratio.n = rate.n = to_bf16.n = 0;
	end = now_seconds() + seconds;
	do {
		double stream = stream_rate(threads), peak = peak_rate(dp ? PEAK_DPBF16 : PEAK_FMA_AVX2, threads);
		double t = time_walk(&w, threads);
		double memory = (double)sample_bytes(&w) / stream, arithmetic = decode_flops(&w) / peak;

		sample_add(&ratio, (memory > arithmetic ? memory : arithmetic) / t);
		sample_add(&rate, (double)sample_bytes(&w) / t * 1e-9);
		sample_add(&to_bf16, t / decode_flops(&w) / bf16);
	} while (now_seconds() < end);
	snprintf(name, sizeof(name), "P5.%s", type_name);
	if (goal)
		report_ratio(name, &ratio, 0.88, true, "decode, bf16 queries: roof time / measured");
	snprintf(name, sizeof(name), "decode %s, %dt", c.ops.names[ATTND_K_BF16], threads);
	report_figure(name, sample_median(&rate), "GB/s");
	snprintf(name, sizeof(name), "roof time / decode %s, %dt", c.ops.names[ATTND_K_BF16], threads);
	report_figure(name, sample_median(&ratio), "");
	snprintf(name, sizeof(name), "decode %s / bf16's time, %dt", c.ops.names[ATTND_K_BF16], threads);
	report_figure(name, sample_median(&to_bf16), "");
	free_cache(&c);
}

static void goal_quantised(double seconds)
{
	static const struct {
		enum attnd_kdtype type;
		const char *name;
	} types[] = {{ATTND_K_INT8, "int8"}, {ATTND_K_FP8_E4M3, "fp8"}};

	double share = seconds / (3 * bench.threads), bf16[THREADS + 1];

	for (int threads = 1; threads <= bench.threads; threads++)
		bf16[threads] = bf16_time(threads, share);
	for (int i = 0; i < 2; i++)
		for (int threads = bench.threads; threads >= 1; threads--)
			quantised(types[i].type, types[i].name, threads, threads == bench.threads, share,
				  bf16[threads]);
}

/* ---- Prefill from a quantised cache: does it keep up as the context grows? ---- */

/* FLOP/s of a thread: 64 rows on so many tokens. */
static double extend_rate(enum attnd_kdtype kv, uint32_t prefix, double seconds)
{
	static struct samples rate;
	struct attnd_kv_spec spec = llama(kv, GROUP);
	double end = now_seconds() + seconds;
	struct cache c;
	struct extend e;

	make_cache(&c, attnd_features(), &spec, prefix + 512, false);
	fill_pool_once(&c);
	make_extend(&e, &c, ATTND_K_BF16, 64, prefix);
	team_run(1, extend_heads, &e); /* its memory's first touch is not measured */
	rate.n = 0;
	do
		sample_add(&rate, extend_flops(&e) / team_run(1, extend_heads, &e));
	while (now_seconds() < end);
	free_extend(&e);
	free_cache(&c);
	return sample_median(&rate);
}

static void prefill_of_types(double seconds)
{
	static const uint32_t prefixes[] = {1024, 8192, 32768};
	const int num = sizeof(prefixes) / sizeof(prefixes[0]);
	char name[64];

	for (int i = 0; i < num; i++) {
		double bf16 = extend_rate(ATTND_K_BF16, prefixes[i], seconds / (2 * num));

		snprintf(name, sizeof(name), "extend int8 / bf16, 64 on %uk, 1t", prefixes[i] / 1024);
		report_figure(name, extend_rate(ATTND_K_INT8, prefixes[i], seconds / (2 * num)) / bf16, "");
	}
}

/* ---- The rest: figures over contexts, groups, types, sizes ---- */

static void decode_figure(uint64_t features, enum attnd_kdtype q, enum attnd_kdtype kv, uint32_t group, uint32_t ctx,
			  bool random, double seconds)
{
	static struct samples rate, ratio;
	struct attnd_kv_spec spec = llama(kv, group);
	struct cache c;
	struct walk w = {.c = &c, .q = q};
	double end;
	char name[96];

	make_cache(&c, features, &spec, ctx, random);
	fill_q(c.q, q, (size_t)HEADS * group * DIM);
	fill_pool_once(&c);
	rate.n = ratio.n = 0;
	end = now_seconds() + seconds;
	do {
		double stream = stream_rate(bench.threads);
		double bytes_a_second = 1 / time_walk(&w, bench.threads) * (double)sample_bytes(&w);

		sample_add(&rate, bytes_a_second * 1e-9);
		sample_add(&ratio, bytes_a_second / stream);
	} while (now_seconds() < end);
	snprintf(name, sizeof(name), "%s, GQA %u, %uk %s", c.ops.names[q], group, ctx / 1024,
		 random ? "random" : "in order");
	report_figure(name, sample_median(&rate), "GB/s");
	snprintf(name, sizeof(name), "%s, GQA %u, %uk %s / stream", c.ops.names[q], group, ctx / 1024,
		 random ? "random" : "in order");
	report_figure(name, sample_median(&ratio), "");
	free_cache(&c);
}

/* Stores or reads back one layer, `n` slots at a time. Seconds. */
static double time_tiles(const struct cache *c, char *rows, uint32_t n, bool reading)
{
	size_t row = (size_t)HEADS * DIM * 2;
	uint32_t size = c->fmt.spec.block_size;
	uint8_t flags[HEADS] = {0};
	double start = now_seconds();

	for (uint32_t t = 0; t < 1024; t += n) {
		struct attnd_slots_args a = {
			.fmt = &c->fmt,
			.block = (void *)(uintptr_t)c->pieces[1][0][t / size],
			.flags = flags,
			.k = rows + t * row,
			.v = rows + (1024 + t) * row,
			.k_token_stride = row,
			.k_head_stride = DIM * 2,
			.v_token_stride = row,
			.v_head_stride = DIM * 2,
			.slot = t % size,
			.n = n,
			.num_heads = HEADS,
			.k_scale = 1,
			.v_scale = 1,
			.in = ATTND_K_BF16,
		};

		(reading ? c->ops.read : c->ops.write)(&a);
	}
	return now_seconds() - start;
}

/* Each of a step's 1024 rows of query heads. Seconds. */
static double time_finish(const struct cache *c, char *partials, char *out)
{
	double start = now_seconds();

	c->ops.finish(&c->fmt, partials, 1024, NULL, ATTND_K_BF16, out, DIM * 2, NULL);
	return now_seconds() - start;
}

static void rate_figure(const char *what, const char *type, uint64_t features, const struct samples *s)
{
	char name[96];

	snprintf(name, sizeof(name), "%s %s, %s", what, type, attnd_isa_name(features));
	report_figure(name, sample_median(s), "GB/s");
}

/* Rates of bf16 rows (for f32 tiles twice as long ones are read back), and of bf16 outputs. */
static void tiles_figure(uint64_t features, enum attnd_kdtype kv, const char *type, double seconds)
{
	static struct samples blocks, token, read, finish;
	struct attnd_kv_spec spec = llama(kv, GROUP);
	double bytes = (double)(2048 * HEADS * DIM * 2) * 1e-9, end = now_seconds() + seconds;
	struct cache c;
	char *rows = calloc(2048 * HEADS, DIM * 4), *partials;

	make_cache(&c, features, &spec, 1024, false);
	fill_pool_once(&c);
	partials = aligned_alloc(64, 1024 * c.fmt.partial_bytes);
	c.ops.init(&c.fmt, partials, 1024);
	for (uint32_t i = 0; i < 1024; i++)
		memcpy(partials + i * c.fmt.partial_bytes, (const float[]){0, 1}, 2 * sizeof(float)); /* m, l */
	for (size_t i = 0; i < (size_t)2048 * HEADS * DIM; i++)
		((uint16_t *)(void *)rows)[i] = (uint16_t)(0x3f00 + i * 37 % 0x180);
	blocks.n = token.n = read.n = finish.n = 0;
	do {
		sample_add(&blocks, bytes / time_tiles(&c, rows, spec.block_size, false));
		sample_add(&token, bytes / time_tiles(&c, rows, 1, false));
		sample_add(&finish, (double)(1024 * DIM * 2) * 1e-9 / time_finish(&c, partials, rows));
		if (kv != ATTND_K_F32)
			sample_add(&read, bytes / time_tiles(&c, rows, spec.block_size, true));
	} while (now_seconds() < end);
	rate_figure("write blocks of", type, features, &blocks);
	rate_figure("write tokens of", type, features, &token);
	if (kv != ATTND_K_F32)
		rate_figure("read blocks of", type, features, &read);
	if (kv == ATTND_K_BF16)
		rate_figure("finish to", type, features, &finish);
	free(partials);
	free(rows);
	free_cache(&c);
}

/* What write, read and finish reach: all features, without AVX-512, none. */
static void tiles(double seconds)
{
	static const struct {
		enum attnd_kdtype type;
		const char *name;
	} types[] = {{ATTND_K_F32, "f32"},   {ATTND_K_F16, "f16"},	 {ATTND_K_BF16, "bf16"},
		     {ATTND_K_INT8, "int8"}, {ATTND_K_FP8_E4M3, "e4m3"}, {ATTND_K_FP8_E5M2, "e5m2"}};
	uint64_t all = attnd_features(), bare = all >> ATTND_CPU_VLEN_SHIFT << ATTND_CPU_VLEN_SHIFT;
	uint64_t sets[] = {all, bare | (all & ATTND_CPU(AVX2)), bare};

	for (size_t t = 0; t < sizeof(types) / sizeof(types[0]); t++)
		for (size_t i = 0; i < 3; i++)
			if (i == 0 || sets[i] != sets[i - 1])
				tiles_figure(sets[i], types[t].type, types[t].name, seconds / 18);
}

static void sweep(double seconds)
{
	static const uint32_t contexts[] = {1024, 4096, 32768, 131072};
	static const uint32_t extends[][2] = {{1, 1024}, {4, 1024}, {16, 1024}, {64, 0}, {64, 8192}, {512, 4096}};
	uint64_t all = attnd_features(), bare = all >> ATTND_CPU_VLEN_SHIFT << ATTND_CPU_VLEN_SHIFT;
	double share = seconds / 32;

	decode_figure(all, ATTND_K_BF16, ATTND_K_BF16, 4, 4096, false, share);
	for (int i = 0; i < 4; i++)
		for (int random = 0; random < 2; random++)
			decode_figure(all, ATTND_K_BF16, ATTND_K_BF16, 4, contexts[i], random, share);
	decode_figure(all, ATTND_K_BF16, ATTND_K_BF16, 1, 4096, true, share);
	decode_figure(all, ATTND_K_BF16, ATTND_K_BF16, 8, 4096, true, share);
	decode_figure(bare, ATTND_K_BF16, ATTND_K_BF16, 4, 4096, true, share);
	for (size_t i = 0; i < sizeof(extends) / sizeof(extends[0]); i++)
		extend_isa(best_isa(), extends[i][0], extends[i][1], false, share);
	decode_figure(all, ATTND_K_F16, ATTND_K_F16, 4, 4096, true, share);
	decode_figure(all, ATTND_K_F32, ATTND_K_F32, 4, 4096, true, share);
	decode_figure(all, ATTND_K_BF16, ATTND_K_INT8, 4, 4096, true, share);
	decode_figure(all, ATTND_K_BF16, ATTND_K_FP8_E4M3, 4, 4096, true, share);
	decode_figure(bare, ATTND_K_BF16, ATTND_K_INT8, 4, 4096, true, share);
}

/* ---- Main ---- */

static bool wanted(const char *goal)
{
	size_t n = strlen(goal);

	for (const char *p = bench.only; p; p = strchr(p, ',')) {
		p += *p == ',';
		if (strncmp(p, goal, n) == 0 && (p[n] == ',' || p[n] == '\0'))
			return true;
	}
	return !bench.only;
}

static int usage(void)
{
	fprintf(stderr, "usage: bench-kernels [--json] [--only P1,P2,P3,P5,tiles,sweep] [--seconds N]\n"
			"N: seconds for each goal (20)\n");
	return 2;
}

static int parse(int argc, char **argv)
{
	static const struct option options[] = {
		{"json", no_argument, NULL, 'j'},
		{"only", required_argument, NULL, 'o'},
		{"seconds", required_argument, NULL, 's'},
		{NULL, 0, NULL, 0},
	};
	int o;

	while ((o = getopt_long(argc, argv, "", options, NULL)) != -1)
		switch (o) {
		case 'j':
			bench.json = true;
			break;
		case 'o':
			bench.only = optarg;
			break;
		case 's':
			bench.seconds = strtod(optarg, NULL);
			break;
		default:
			return -EINVAL;
		}
	return optind == argc && bench.seconds > 0 ? 0 : -EINVAL;
}

int main(int argc, char **argv)
{
	char text[256];

	if (parse(argc, argv) != 0)
		return usage();
	attnd_features_format(attnd_features(), text, sizeof(text));
	fprintf(stderr, "bench-kernels: CPU features: %s\n", text);
	bench.threads = team_start(THREADS);
	bench.pool = allocate(POOL_BYTES);
	for (int t = 0; t < bench.threads; t++)
		bench.scratch[t] = allocate((size_t)8 << 20);
	if (wanted("P1")) {
		progress("P1");
		goal_decode("P1", false, 0.95, bench.seconds);
	}
	if (wanted("P2")) {
		progress("P2");
		goal_decode("P2", true, 0.93, bench.seconds);
	}
	if (wanted("P3")) {
		progress("P3");
		goal_extend(bench.seconds);
	}
	if (wanted("P5")) {
		progress("P5");
		goal_quantised(bench.seconds);
		prefill_of_types(bench.seconds);
	}
	if (wanted("tiles")) {
		progress("tiles");
		tiles(bench.seconds);
	}
	if (wanted("sweep")) {
		progress("sweep");
		sweep(bench.seconds);
	}
	return report_print(bench.json) == 0 ? 0 : 1;
}
