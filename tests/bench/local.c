/* SPDX-License-Identifier: Apache-2.0 */
/*
 * local.h: rows, chunk after chunk.
 *
 * In:   rows. Out: their outputs. Next: attnd-bench's goals.
 */
#include "local.h"

#include <stdlib.h>
#include <string.h>

#include "../../kernels/cpu.h"

enum { SOME = 4 << 20 };

static volatile uint64_t sink;

static uint32_t chunk_blocks(const struct local *l)
{
	return l->fmt.chunk / BLOCK;
}

/* Bytes of q, k and v of all rows. */
static size_t input_bytes(const struct local *l)
{
	return LOCAL_ROWS * (q_bytes(&l->shape) + kv_bytes(&l->shape));
}

static size_t pool_bytes(const struct local *l)
{
	return l->num_blocks * l->block_bytes + SOME;
}

static void make_pool(struct local *l, uint64_t tokens)
{
	l->block_bytes = l->shape.layers * l->fmt.layer_bytes;
	l->num_blocks = (uint32_t)((tokens + BLOCK - 1) / BLOCK);
	l->pool = allocate(pool_bytes(l));
	random_values((uint16_t *)(void *)l->pool, SOME / sizeof(uint16_t));
	for (size_t at = SOME; at < pool_bytes(l); at += SOME)
		memcpy(l->pool + at, l->pool, at + SOME < pool_bytes(l) ? SOME : pool_bytes(l) - at);
	l->tables = must(malloc(l->num_blocks * sizeof(*l->tables)));
}

static void make_thread(struct local *l, struct local_thread *t)
{
	size_t partials = (size_t)l->shape.heads * l->fmt.partial_bytes;

	t->scratch = allocate(l->fmt.scratch_bytes);
	t->partial = must(aligned_alloc(64, partials));
	t->sum = must(aligned_alloc(64, partials));
	for (int i = 0; i < 2; i++)
		t->blocks[i] = must(malloc(chunk_blocks(l) * sizeof(*t->blocks[i])));
}

void local_init(struct local *l, const struct shape *s, uint64_t tokens)
{
	const struct attnd_kv_spec spec = {.num_kv_heads = s->kv_heads,
					   .group = s->heads / s->kv_heads,
					   .head_dim = s->dim,
					   .head_dim_v = s->dim,
					   .block_size = BLOCK,
					   .dtype = ATTND_K_BF16};

	memset(l, 0, sizeof(*l));
	l->shape = *s;
	if (attnd_format_init(attnd_features(), &spec, &l->fmt, &l->ops))
		die("the kernels do not know this shape");
	l->attn = (struct attnd_attn){.sm_scale = 0.0883883f,
				      .k_scale = 1,
				      .v_scale = 1,
				      .q_dtype = ATTND_K_BF16,
				      .q_head_stride = s->dim * sizeof(uint16_t)};
	make_pool(l, tokens);
	l->no_flags = must(calloc(s->kv_heads, 1));
	l->flags = must(malloc(chunk_blocks(l) * sizeof(*l->flags)));
	for (uint32_t i = 0; i < chunk_blocks(l); i++)
		l->flags[i] = l->no_flags;
	l->source = allocate(input_bytes(l));
	random_values(l->source, input_bytes(l) / sizeof(uint16_t));
	l->q = allocate(input_bytes(l));
	l->k = l->q + LOCAL_ROWS * q_bytes(s) / sizeof(uint16_t);
	l->v = l->k + LOCAL_ROWS * k_bytes(s) / sizeof(uint16_t);
	l->out = allocate(LOCAL_ROWS * q_bytes(s));
	for (int t = 0; t < LOCAL_THREADS; t++)
		make_thread(l, &l->thread[t]);
}

void local_free(struct local *l)
{
	for (int t = 0; t < LOCAL_THREADS; t++) {
		release(l->thread[t].scratch, l->fmt.scratch_bytes);
		free(l->thread[t].partial);
		free(l->thread[t].sum);
		free(l->thread[t].blocks[0]);
		free(l->thread[t].blocks[1]);
	}
	release(l->pool, pool_bytes(l));
	release(l->source, input_bytes(l));
	release(l->q, input_bytes(l));
	release(l->out, LOCAL_ROWS * q_bytes(&l->shape));
	free(l->tables);
	free(l->no_flags);
	free(l->flags);
}

void local_sequences(struct local *l, uint32_t n, uint64_t tokens, const uint32_t **ret)
{
	uint32_t blocks = (uint32_t)((tokens + BLOCK - 1) / BLOCK), order[LOCAL_ROWS];
	uint32_t *tables = l->tables + l->used;

	if (l->used + n * blocks > l->num_blocks)
		die("the bench's own pool is too small");
	for (uint32_t i = 0; i < n; i++) {
		order[i] = i;
		ret[i] = tables + i * blocks;
	}
	for (uint32_t b = 0; b < blocks; b++) {
		shuffle(order, n);
		for (uint32_t i = 0; i < n; i++)
			tables[order[i] * blocks + b] = l->used++;
	}
}

/* ---- A layer ---- */

/* A row, or some heads of one, on its way through its chunks. */
struct item {
	const struct local_row *row;
	uint32_t head, heads;
};

static struct item item_at(const struct local *l, uint32_t i)
{
	uint32_t heads = l->shape.kv_heads / l->parts;

	return (struct item){.row = &l->rows[i / l->parts], .head = i % l->parts * heads, .heads = heads};
}

static char *slice(const struct local *l, const struct local_row *r, uint32_t block, uint32_t layer)
{
	return l->pool + r->blocks[block] * l->block_bytes + layer * l->fmt.layer_bytes;
}

static void write_token(const struct local *l, const struct item *it, uint32_t layer)
{
	uint32_t at = it->row->length - 1;
	size_t row = (size_t)(it->row - l->rows) * l->shape.kv_heads + it->head,
	       head = l->shape.dim * sizeof(uint16_t);
	struct attnd_slots_args a = {
		.fmt = &l->fmt,
		.block = slice(l, it->row, at / BLOCK, layer),
		.flags = l->no_flags,
		.k = l->k + row * l->shape.dim,
		.v = l->v + row * l->shape.dim,
		.k_token_stride = k_bytes(&l->shape),
		.k_head_stride = head,
		.v_token_stride = k_bytes(&l->shape),
		.v_head_stride = head,
		.k_scale = 1,
		.v_scale = 1,
		.slot = at % BLOCK,
		.n = 1,
		.head = it->head,
		.num_heads = it->heads,
		.in = ATTND_K_BF16,
	};

	l->ops.write(&a);
}

/* The slices of the chunk that begins at `pos`; returns how many. */
static uint32_t list_chunk(const struct local *l, const struct local_row *r, uint32_t pos, uint32_t layer,
			   const void **to)
{
	uint32_t n = 0;

	for (uint32_t b = pos / BLOCK; b * BLOCK < r->length && n < chunk_blocks(l); b++)
		to[n++] = slice(l, r, b, layer);
	return n;
}

static void attend_chunk(const struct local *l, const struct attnd_qrow *row, const struct item *it, uint32_t pos,
			 const struct local_thread *t, const uint32_t num[2])
{
	uint32_t end = pos + l->fmt.chunk < it->row->length ? pos + l->fmt.chunk : it->row->length;
	const struct attnd_attend_args a = {
		.fmt = &l->fmt,
		.attn = &l->attn,
		.blocks = t->blocks[0],
		.flags = l->flags,
		.next = t->blocks[1],
		.rows = row,
		.scratch = t->scratch,
		.num_blocks = num[0],
		.num_next = num[1],
		.num_rows = 1,
		.start = pos,
		.begin = pos,
		.end = end,
		.head = it->head,
		.num_heads = it->heads,
	};

	l->ops.attend[ATTND_K_BF16](&a);
}

/* The item that nobody has claimed yet, or none. */
static struct item unclaimed(struct local *l, bool claim)
{
	uint32_t i = claim ? atomic_fetch_add_explicit(&l->claimed, 1, memory_order_relaxed)
			   : atomic_load_explicit(&l->claimed, memory_order_relaxed);

	return i < l->num_rows * l->parts ? item_at(l, i) : (struct item){.row = NULL};
}

static void run_item(struct local *l, const struct item *it, uint32_t layer, struct local_thread *t)
{
	uint32_t group = l->shape.heads / l->shape.kv_heads, n = it->heads * group, num[2];
	size_t head = (size_t)(it->row - l->rows) * l->shape.heads + it->head * group;
	struct attnd_qrow row = {.q = l->q + head * l->shape.dim,
				 .partial = t->sum,
				 .hi = it->row->length,
				 .pos = it->row->length - 1};

	write_token(l, it, layer);
	l->ops.init(&l->fmt, t->sum, n);
	num[0] = list_chunk(l, it->row, 0, layer, t->blocks[0]);
	for (uint32_t pos = 0; pos < it->row->length; pos += l->fmt.chunk) {
		const void **swap = t->blocks[0];
		struct item then = unclaimed(l, false); /* a good guess of what comes next here, to be prefetched */

		if (pos + l->fmt.chunk < it->row->length)
			num[1] = list_chunk(l, it->row, pos + l->fmt.chunk, layer, t->blocks[1]);
		else
			num[1] = then.row ? list_chunk(l, then.row, 0, layer, t->blocks[1]) : 0;
		if (pos) {
			l->ops.init(&l->fmt, t->partial, n);
			row.partial = t->partial;
		}
		attend_chunk(l, &row, it, pos, t, num);
		if (pos)
			l->ops.merge(&l->fmt, t->sum, t->partial, n);
		t->blocks[0] = t->blocks[1];
		t->blocks[1] = swap;
		num[0] = num[1];
	}
	l->ops.finish(&l->fmt, t->sum, n, NULL, ATTND_K_BF16, l->out + head * l->shape.dim,
		      l->shape.dim * sizeof(uint16_t), NULL);
}

/* ---- A step ---- */

/* All threads, the `round`th time. */
static void meet(struct local *l, uint32_t round, uint32_t threads)
{
	atomic_fetch_add_explicit(&l->arrived, 1, memory_order_acq_rel);
	while (atomic_load_explicit(&l->arrived, memory_order_acquire) < round * threads)
		;
}

/* What a model does around attention: q, k and v come from its projections, out goes on. */
static void store_inputs(struct local *l)
{
	const struct shape *s = &l->shape;
	const char *from = (const char *)l->source;

	memcpy(l->q, from, l->num_rows * q_bytes(s));
	memcpy(l->k, from + LOCAL_ROWS * q_bytes(s), l->num_rows * k_bytes(s));
	memcpy(l->v, from + LOCAL_ROWS * (q_bytes(s) + k_bytes(s)), l->num_rows * k_bytes(s));
}

static void run_step(void *arg, int t, int threads)
{
	struct local *l = arg;
	uint32_t round = 0;

	for (uint32_t job = 0; job < l->num_jobs; job++) {
		struct item it;

		if (t == 0) {
			store_inputs(l);
			atomic_store_explicit(&l->claimed, 0, memory_order_relaxed);
		}
		meet(l, ++round, (uint32_t)threads);
		while (it = unclaimed(l, true), it.row)
			run_item(l, &it, job % l->shape.layers, &l->thread[t]);
		meet(l, ++round, (uint32_t)threads);
		if (t == 0)
			sink += read_values(l->out, l->num_rows * q_bytes(&l->shape));
	}
}

double local_step(struct local *l, const struct local_row *rows, uint32_t num_rows, uint32_t jobs, int threads)
{
	l->rows = rows;
	l->num_rows = num_rows;
	l->num_jobs = jobs;
	l->parts = num_rows < (uint32_t)threads ? (uint32_t)threads : 1;
	atomic_store(&l->arrived, 0);
	return team_run(threads, run_step, l);
}

void local_layer(struct local *l, const struct local_row *rows, uint32_t num_rows, uint32_t layer)
{
	struct item it;

	l->rows = rows;
	l->num_rows = num_rows;
	l->parts = 1;
	atomic_store_explicit(&l->claimed, 0, memory_order_relaxed);
	while (it = unclaimed(l, true), it.row)
		run_item(l, &it, layer, &l->thread[0]);
}
