/* SPDX-License-Identifier: Apache-2.0 */
/* Execution of jobs (exec.h). */
#include "exec.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum {
	TILE_QROWS = 128,   /* query rows (tokens x group) of an attend item */
	ITEMS_A_MEMBER = 4, /* so that members finish together */
	WRITE_TOKENS = 256, /* of a write item, about */
	MAX_LEVELS = 20,    /* of the merge tree: 2^24 tokens / 256 a chunk, and some */
	NEXT_BLOCKS = 16,   /* that attend may prefetch beyond its chunk */
	SMALL_BYTES = 192 << 10,
};

struct write_item {
	uint32_t row, rows; /* whole rows [row, row + rows), or a part of one: */
	uint32_t from, to;  /* its tokens [from, to), relative to its start */
};

struct attend_item {
	uint32_t row;
	uint32_t token, tokens;	 /* tile of the row's tokens */
	uint32_t head, heads;	 /* KV heads */
	uint32_t chunk0, chunk1; /* run [chunk0, chunk1) */
	uint64_t slot;		 /* bytes into partials; UINT64_MAX: finish at once */
};

struct merge_item {
	uint32_t row, token, tokens, head, heads;
	uint32_t run0, runs, run_shift; /* run i covers chunks [i << shift, ...) */
	uint64_t slot;			/* of the first run; they follow each other */
};

struct attend_list {
	struct attend_list *next;
	uint32_t window;
	bool causal;
	struct attend_item *items;
	struct merge_item *merges;
	uint32_t num_items, num_merges, cap_items, cap_merges;
	char *partials;
	uint64_t partial_bytes;
	uint64_t cost; /* bytes of K/V that attention reads, about */
};

struct work_list {
	struct write_item *writes;
	uint32_t num_writes;
	bool refused; /* some row is: its out is zeroed */
	struct attend_list *lists;
};

/* ---- Geometry ---- */

/* Keys that a token sees: [lo, hi), before its mask. */
static void visible(const struct plan_row *r, uint32_t token, uint32_t window, bool causal, uint32_t *lo,
		    uint32_t *hi)
{
	uint32_t pos = r->start + token;

	*hi = causal ? pos + 1 : r->start + r->n;
	*lo = window && pos + 1 > window ? pos + 1 - window : 0;
}

static size_t tile_bytes(const struct cache *c, uint32_t tokens, uint32_t heads)
{
	return (size_t)tokens * heads * c->fmt.spec.group * c->fmt.partial_bytes;
}

/* ---- Making the lists ---- */

static void *grow(void *p, uint32_t *cap, uint32_t need, size_t size)
{
	uint32_t n = *cap ? *cap : 16;
	void *q;

	if (need <= *cap)
		return p;
	while (n < need)
		n *= 2;
	q = realloc(p, n * size);
	if (q)
		*cap = n;
	return q;
}

static int add_item(struct attend_list *l, struct attend_item item)
{
	void *p = grow(l->items, &l->cap_items, l->num_items + 1, sizeof(item));

	if (!p)
		return -ENOMEM;
	l->items = p;
	l->items[l->num_items++] = item;
	return 0;
}

static int add_merge(struct attend_list *l, struct merge_item item)
{
	void *p = grow(l->merges, &l->cap_merges, l->num_merges + 1, sizeof(item));

	if (!p)
		return -ENOMEM;
	l->merges = p;
	l->merges[l->num_merges++] = item;
	return 0;
}

struct tile {
	uint32_t row, token, tokens, head, heads;
	uint32_t chunk0, chunk1;
};

/* A tile in runs of 2^shift chunks; one run finishes by itself. */
static int add_tile(struct attend_list *l, const struct cache *c, const struct tile *t, uint32_t shift)
{
	uint32_t run0 = t->chunk0 >> shift, run1 = ((t->chunk1 - 1) >> shift) + 1, runs = run1 - run0;
	size_t bytes = tile_bytes(c, t->tokens, t->heads);
	int r = 0;

	if (runs > 1)
		r = add_merge(l, (struct merge_item){t->row, t->token, t->tokens, t->head, t->heads, run0, runs,
						     shift, l->partial_bytes});
	for (uint32_t i = run0; i < run1 && !r; i++) {
		uint32_t lo = i << shift, hi = (i + 1) << shift;

		r = add_item(l, (struct attend_item){t->row, t->token, t->tokens, t->head, t->heads,
						     lo > t->chunk0 ? lo : t->chunk0, hi < t->chunk1 ? hi : t->chunk1,
						     runs > 1 ? l->partial_bytes : UINT64_MAX});
		l->partial_bytes += runs > 1 ? bytes : 0;
	}
	return r;
}

/* The chunks that any token of the tile sees. */
static void tile_span(const struct plan_row *r, const struct attend_list *l, uint32_t chunk, struct tile *t)
{
	uint32_t lo, hi, dummy;

	visible(r, t->token, l->window, l->causal, &lo, &dummy);
	visible(r, t->token + t->tokens - 1, l->window, l->causal, &dummy, &hi);
	t->chunk0 = lo / chunk;
	t->chunk1 = (hi - 1) / chunk + 1;
}

/*
 * How to cut: a row's tokens into tiles of about TILE_QROWS query rows of few heads (many
 * tokens) or of all heads (few); its chunks into runs only where tiles alone are too few.
 */
struct cut {
	uint32_t tokens, heads;
	uint32_t shift; /* runs of 2^shift chunks; 31: one run */
};

static struct cut choose_cut(const struct plan *p, const struct attend_list *l, uint32_t threads)
{
	const struct attnd_kv_spec *s = &p->cache->fmt.spec;
	uint32_t want = threads * ITEMS_A_MEMBER, tiles = 0, chunks = 0, qrows = TILE_QROWS / s->group;
	struct cut cut = {.tokens = qrows ? qrows : 1, .heads = 1, .shift = 31};

	if (p->max_row * s->num_kv_heads <= cut.tokens)
		cut.heads = s->num_kv_heads;
	else if (p->max_row < cut.tokens)
		cut.heads = cut.tokens / p->max_row;
	if (threads == 1)
		return cut;
	for (uint32_t i = 0; i < p->num_rows; i++) {
		const struct plan_row *r = &p->rows[i];
		uint32_t n = r->seq ? (r->n + cut.tokens - 1) / cut.tokens : 0;
		uint32_t keys = r->start + r->n;

		keys = l->window && keys > l->window + r->n ? l->window + r->n : keys;
		tiles += n * ((s->num_kv_heads + cut.heads - 1) / cut.heads);
		chunks = n && keys / p->cache->fmt.chunk > chunks ? keys / p->cache->fmt.chunk : chunks;
	}
	if (tiles >= want || !tiles)
		return cut;
	/* Longest rows in runs, so that there are about as many items as wanted. */
	for (cut.shift = 0; (chunks >> (cut.shift + 1)) * tiles >= want; cut.shift++)
		;
	if (!chunks) { /* short: only heads are left to be split */
		uint32_t parts = (threads + tiles - 1) / tiles;

		cut.shift = 31;
		cut.heads = (s->num_kv_heads + parts - 1) / parts < cut.heads ? (s->num_kv_heads + parts - 1) / parts
									      : cut.heads;
	}
	return cut;
}

static int fill_list(struct attend_list *l, const struct plan *p, uint32_t threads)
{
	const struct cache *c = p->cache;
	struct cut cut = choose_cut(p, l, threads);
	uint64_t key_bytes = c->fmt.layer_bytes / c->block_size;

	for (uint32_t i = 0; i < p->num_rows; i++) {
		const struct plan_row *r = &p->rows[i];

		for (uint32_t token = 0; r->seq && token < r->n; token += cut.tokens) {
			struct tile t = {.row = i, .token = token};

			t.tokens = r->n - token < cut.tokens ? r->n - token : cut.tokens;
			tile_span(r, l, c->fmt.chunk, &t);
			l->cost += (uint64_t)(t.chunk1 - t.chunk0) * c->fmt.chunk * key_bytes * ((t.tokens + 7) / 8);
			for (; t.head < c->fmt.spec.num_kv_heads; t.head += cut.heads) {
				uint32_t left = c->fmt.spec.num_kv_heads - t.head;
				int e;

				t.heads = left < cut.heads ? left : cut.heads;
				e = add_tile(l, c, &t, cut.shift);
				if (e)
					return e;
			}
		}
	}
	if (l->partial_bytes && posix_memalign((void **)&l->partials, 64, l->partial_bytes)) {
		l->partials = NULL;
		return -ENOMEM;
	}
	return 0;
}

static void free_list(struct attend_list *l)
{
	if (!l)
		return;
	free(l->items);
	free(l->merges);
	free(l->partials);
	free(l);
}

/* Short rows together, long ones by runs of whole blocks. */
static uint32_t fill_writes(const struct plan *p, struct write_item *w)
{
	uint32_t n = 0, B = p->cache->block_size, open = UINT32_MAX, tokens = 0;

	for (uint32_t i = 0; i < p->num_rows; i++) {
		const struct plan_row *r = &p->rows[i];
		uint32_t step = (WRITE_TOKENS + B - 1) / B * B;

		if (r->n <= WRITE_TOKENS) {
			if (open == UINT32_MAX || tokens + r->n > WRITE_TOKENS) {
				open = n;
				tokens = 0;
				if (w)
					w[n] = (struct write_item){.row = i, .rows = 0};
				n++;
			}
			if (w)
				w[open].rows++;
			tokens += r->n;
			continue;
		}
		open = UINT32_MAX;
		for (uint32_t from = 0, to; from < r->n; from = to) {
			to = from + step - (r->start + from) % B;
			to = to < r->n ? to : r->n;
			if (w)
				w[n] = (struct write_item){.row = i, .rows = 1, .from = from, .to = to};
			n++;
		}
	}
	return n;
}

static struct work_list *make_work(const struct plan *p)
{
	struct work_list *w = calloc(1, sizeof(*w));

	if (!w)
		return NULL;
	w->num_writes = fill_writes(p, NULL);
	w->writes = malloc((w->num_writes + 1) * sizeof(*w->writes));
	if (!w->writes) {
		free(w);
		return NULL;
	}
	(void)fill_writes(p, w->writes);
	for (uint32_t i = 0; i < p->num_rows; i++)
		w->refused |= !p->rows[i].seq;
	return w;
}

void exec_free_work(struct work_list *w)
{
	struct attend_list *next;

	if (!w)
		return;
	for (struct attend_list *l = w->lists; l; l = next) {
		next = l->next;
		free_list(l);
	}
	free(w->writes);
	free(w);
}

/* The list for a job's window and causality, made at its first use in the plan. */
static struct attend_list *list_for(struct job *j, uint32_t threads)
{
	struct work_list *w = j->plan->work;
	struct attend_list *l;

	for (l = w->lists; l; l = l->next)
		if (l->window == j->params->sliding_window && l->causal == j->params->causal)
			return l;
	l = calloc(1, sizeof(*l));
	if (!l)
		return NULL;
	l->window = j->params->sliding_window;
	l->causal = j->params->causal;
	if (fill_list(l, j->plan, threads)) {
		free_list(l);
		return NULL;
	}
	l->next = w->lists;
	w->lists = l;
	return l;
}

/* The list in use stands first. */
static struct attend_list *list_of(const struct job *j)
{
	struct attend_list *l = j->work->lists;

	while (l->window != j->params->sliding_window || l->causal != j->params->causal)
		l = l->next;
	return l;
}

/* ---- Writing ---- */

static void write_block(const struct job *j, const struct plan_row *r, uint32_t index, uint32_t from, uint32_t to)
{
	const struct cache *c = j->plan->cache;
	const struct params *p = j->params;
	const struct table_entry *e = plan_entry(j->plan, r, index);
	uint32_t heads = c->fmt.spec.num_kv_heads, slot = (r->start + from) & (c->block_size - 1);
	uint64_t token = r->first + from;
	char *block = (char *)j->bases[0] + e->offset + (uint64_t)j->layer * c->fmt.layer_bytes;
	uint8_t *flags = e->flags + j->layer * heads;
	bool copy = r->copies && index == r->copy_index;

	if (copy || index >= r->fresh)
		for (uint32_t h = 0; h < heads; h++)
			if (__atomic_load_n(&flags[h], __ATOMIC_RELAXED))
				c->ops.clear(&c->fmt, block, flags, h);
	if (copy)
		c->ops.copy(&c->fmt, block, flags,
			    j->bases[0] + r->source.offset + (uint64_t)j->layer * c->fmt.layer_bytes,
			    r->source.flags + j->layer * heads, r->copy_slots, 0, heads);
	const struct attnd_slots_args a = {
		.fmt = &c->fmt,
		.block = block,
		.flags = flags,
		.k = j->k + token * p->k_token_stride,
		.v = j->v ? j->v + token * p->v_token_stride : NULL,
		.k_token_stride = p->k_token_stride,
		.k_head_stride = p->k_head_stride,
		.v_token_stride = p->v_token_stride,
		.v_head_stride = p->v_head_stride,
		.k_scales = p->k_scales_delta
				    ? (const float *)(const void *)(j->k + p->k_scales_delta) + token * heads
				    : NULL,
		.v_scales = p->v_scales_delta
				    ? (const float *)(const void *)(j->v + p->v_scales_delta) + token * heads
				    : NULL,
		.scale_token_stride = heads * sizeof(float),
		.k_scale = j->attn.k_scale,
		.v_scale = j->attn.v_scale,
		.slot = slot,
		.n = to - from,
		.num_heads = heads,
		.in = p->kv_in,
	};
	c->ops.write(&a);
}

static void write_row(const struct job *j, const struct plan_row *r, uint32_t from, uint32_t to)
{
	uint32_t B = j->plan->cache->block_size;

	from = from > r->cached ? from : r->cached;
	while (from < to) {
		uint32_t pos = r->start + from, end = (pos / B + 1) * B - r->start;

		end = end < to ? end : to;
		write_block(j, r, pos / B, from, end);
		from = end;
	}
}

static void zero_row(const struct job *j, const struct plan_row *r)
{
	const struct cache *c = j->plan->cache;
	uint32_t heads = c->identity.num_heads;
	size_t bytes = c->fmt.spec.head_dim_v * attnd_kdtype_bytes(j->params->out);

	for (uint64_t t = r->first; t < (uint64_t)r->first + r->n; t++) {
		for (uint32_t h = 0; h < heads; h++) {
			memset(j->out + t * j->params->out_token_stride + h * j->params->out_head_stride, 0, bytes);
			if (j->lse)
				j->lse[t * heads + h] = -__builtin_inff();
		}
	}
}

static void run_write(struct job *j, const struct write_item *w)
{
	for (uint32_t i = w->row; i < w->row + w->rows; i++) {
		const struct plan_row *r = &j->plan->rows[i];

		if (!r->seq && j->out && !w->from)
			zero_row(j, r);
		else if (r->seq && j->store)
			write_row(j, r, w->from, w->to ? w->to : r->n);
	}
}

/* ---- Attending ---- */

/* Blocks of one chunk as attend wants them. */
struct span {
	const void **blocks;
	const uint8_t **flags;
	uint32_t num, start, begin, end;
};

static void fill_span(const struct job *j, const struct plan_row *r, uint32_t begin, uint32_t end, struct span *s)
{
	const struct cache *c = j->plan->cache;
	uint32_t B = c->block_size;
	uint64_t layer = (uint64_t)j->src_layer * c->fmt.layer_bytes;
	size_t flag = (size_t)j->src_layer * c->fmt.spec.num_kv_heads;

	s->num = 0;
	s->start = begin / B * B;
	s->begin = begin;
	s->end = end;
	for (uint32_t i = begin / B; i * B < end; i++) {
		const struct table_entry *e = plan_entry(j->plan, r, i);

		s->blocks[s->num] = j->bases[0] + e->offset + layer;
		s->flags[s->num++] = e->flags + flag;
	}
}

/* Where a tile's partials of one chunk stand, for the merge tree. */
struct fold {
	const struct cache *c;
	char *base;   /* MAX_LEVELS tiles */
	size_t bytes; /* of a tile */
	uint32_t n;   /* partials of a tile */
	uint32_t depth;
	uint8_t level[MAX_LEVELS];
};

static char *fold_at(const struct fold *f, uint32_t depth)
{
	return f->base + depth * f->bytes;
}

static void fold_top(struct fold *f)
{
	f->depth--;
	f->c->ops.merge(&f->c->fmt, fold_at(f, f->depth - 1), fold_at(f, f->depth), f->n);
}

/*
 * The top covers node `index` of the tree at `level`. While that is a right child, join it with
 * its left sibling (absent: nothing was visible there) and go up.
 */
static void fold_up(struct fold *f, uint32_t index, uint8_t level)
{
	for (f->level[f->depth - 1] = level; index & 1; index >>= 1, level++) {
		if (f->depth > 1 && f->level[f->depth - 2] == level)
			fold_top(f);
		f->level[f->depth - 1] = (uint8_t)(level + 1);
	}
}

/* What is left are the roots of a truncated tree, largest first: join from the right. */
static void fold_all(struct fold *f)
{
	while (f->depth > 1)
		fold_top(f);
}

static void finish_tile(const struct job *j, const struct plan_row *r, uint32_t token, uint32_t tokens, uint32_t head,
			uint32_t heads, const char *partials)
{
	const struct cache *c = j->plan->cache;
	const struct params *p = j->params;
	uint32_t n = heads * c->fmt.spec.group, h0 = head * c->fmt.spec.group;

	for (uint32_t t = 0; t < tokens; t++) {
		uint64_t at = (uint64_t)r->first + token + t;

		c->ops.finish(&c->fmt, partials + (size_t)t * n * c->fmt.partial_bytes, n,
			      p->sinks ? p->sinks + h0 : NULL, p->out,
			      j->out + at * p->out_token_stride + h0 * p->out_head_stride, p->out_head_stride,
			      j->lse ? j->lse + at * c->identity.num_heads + h0 : NULL);
	}
}

static void fill_rows(const struct job *j, const struct plan_row *r, const struct attend_item *it,
		      struct attnd_qrow *rows)
{
	const struct cache *c = j->plan->cache;
	const struct params *p = j->params;
	uint64_t h0 = (uint64_t)it->head * c->fmt.spec.group;

	for (uint32_t t = 0; t < it->tokens; t++) {
		uint32_t token = it->token + t;
		struct attnd_qrow *q = &rows[t];

		*q = (struct attnd_qrow){
			.q = j->q + ((uint64_t)r->first + token) * p->q_token_stride + h0 * p->attn.q_head_stride,
			.mask = r->mask ? r->mask + (size_t)token * r->mask_words : NULL,
			.pos = r->start + token,
			.mask_start = r->start,
		};
		visible(r, token, p->sliding_window, p->causal, &q->lo, &q->hi);
	}
}

static bool reserve_member(const struct job *j, const struct attend_item *it, struct member *m)
{
	const struct cache *c = j->plan->cache;
	size_t max_blocks = ATTND_MAX_BLOCK_SIZE * 2; /* 512 tokens in blocks of one */
	size_t rows = it->tokens * sizeof(struct attnd_qrow);

	if (!m->blocks) {
		m->blocks = malloc(2 * (max_blocks + 1) * sizeof(*m->blocks));
		m->flags = malloc(2 * (max_blocks + 1) * sizeof(*m->flags));
	}
	rows = (rows + 63) / 64 * 64;
	return m->blocks && m->flags && member_reserve(&m->scratch, &m->scratch_bytes, c->fmt.scratch_bytes + rows) &&
	       member_reserve((void **)&m->partials, &m->partials_bytes,
			      tile_bytes(c, it->tokens, it->heads) * MAX_LEVELS);
}

static uint32_t chunk_begin(const struct job *j, uint32_t chunk, uint32_t lo)
{
	uint32_t P = j->plan->cache->fmt.chunk, S = j->plan->cache->fmt.step, b = chunk * P;

	return lo > b ? lo / S * S : b;
}

static void run_attend(struct job *j, const struct attend_item *it, struct attend_list *l, struct member *m)
{
	const struct cache *c = j->plan->cache;
	const struct plan_row *r = &j->plan->rows[it->row];
	size_t rows_bytes = (it->tokens * sizeof(struct attnd_qrow) + 63) / 64 * 64;
	uint32_t P = c->fmt.chunk, half = ATTND_MAX_BLOCK_SIZE * 2 + 1, n = it->heads * c->fmt.spec.group, lo, hi;
	struct attnd_qrow *rows;
	struct span now = {0}, next = {0};
	struct fold f;

	if (!reserve_member(j, it, m)) {
		atomic_store_explicit(&j->error, -ENOMEM, memory_order_relaxed);
		return;
	}
	rows = m->scratch;
	fill_rows(j, r, it, rows);
	lo = rows[0].lo;
	hi = rows[it->tokens - 1].hi;
	f = (struct fold){
		.c = c, .base = m->partials, .bytes = tile_bytes(c, it->tokens, it->heads), .n = it->tokens * n};
	next.blocks = m->blocks;
	next.flags = m->flags;
	fill_span(j, r, chunk_begin(j, it->chunk0, lo), (it->chunk0 + 1) * P < hi ? (it->chunk0 + 1) * P : hi, &next);
	for (uint32_t chunk = it->chunk0; chunk < it->chunk1; chunk++) {
		uint32_t other = (chunk - it->chunk0 + 1) & 1;
		char *partial = fold_at(&f, f.depth);

		now = next;
		next = (struct span){.blocks = m->blocks + other * half, .flags = m->flags + other * half};
		if (chunk + 1 < it->chunk1)
			fill_span(j, r, (chunk + 1) * P, (chunk + 2) * P < hi ? (chunk + 2) * P : hi, &next);
		c->ops.init(&c->fmt, partial, f.n);
		for (uint32_t t = 0; t < it->tokens; t++)
			rows[t].partial = partial + (size_t)t * n * c->fmt.partial_bytes;
		const struct attnd_attend_args a = {
			.fmt = &c->fmt,
			.attn = &j->attn,
			.blocks = now.blocks,
			.flags = now.flags,
			.next = next.blocks,
			.rows = rows,
			.scratch = (char *)m->scratch + rows_bytes,
			.num_blocks = now.num,
			.num_next = next.num < NEXT_BLOCKS ? next.num : NEXT_BLOCKS,
			.num_rows = it->tokens,
			.start = now.start,
			.begin = now.begin,
			.end = now.end,
			.head = it->head,
			.num_heads = it->heads,
		};
		c->ops.attend[j->attn.q_dtype](&a);
		f.depth++;
		fold_up(&f, chunk, 0);
	}
	fold_all(&f);
	if (it->slot == UINT64_MAX)
		finish_tile(j, r, it->token, it->tokens, it->head, it->heads, f.base);
	else
		memcpy(l->partials + it->slot, f.base, f.bytes);
}

static void run_merge(struct job *j, const struct merge_item *it, struct attend_list *l, struct member *m)
{
	const struct cache *c = j->plan->cache;
	struct fold f = {.c = c,
			 .bytes = tile_bytes(c, it->tokens, it->heads),
			 .n = it->tokens * it->heads * c->fmt.spec.group};

	if (!member_reserve((void **)&m->partials, &m->partials_bytes, f.bytes * MAX_LEVELS)) {
		atomic_store_explicit(&j->error, -ENOMEM, memory_order_relaxed);
		return;
	}
	f.base = m->partials;
	for (uint32_t i = 0; i < it->runs; i++) {
		memcpy(fold_at(&f, f.depth++), l->partials + it->slot + i * f.bytes, f.bytes);
		fold_up(&f, it->run0 + i, 0);
	}
	fold_all(&f);
	finish_tile(j, &j->plan->rows[it->row], it->token, it->tokens, it->head, it->heads, f.base);
}

static void run_item(struct team_job *tj, uint32_t phase, uint32_t item, struct member *m)
{
	struct job *j = (struct job *)tj;
	struct attend_list *l;

	if (phase == 0) {
		run_write(j, &j->work->writes[item]);
		return;
	}
	l = list_of(j);
	if (phase == 1)
		run_attend(j, &l->items[item], l, m);
	else
		run_merge(j, &l->merges[item], l, m);
}

int exec_prepare(struct job *j, uint32_t threads)
{
	struct plan *p = j->plan;
	struct attend_list *l = NULL;

	if (!p->work)
		p->work = make_work(p);
	if (!p->work)
		return -ENOMEM;
	if (!(j->flags & ATTND_JOB_NO_OUT)) {
		l = list_for(j, threads);
		if (!l)
			return -ENOMEM;
	}
	j->work = p->work;
	j->team.run = run_item;
	j->team.count[0] = j->store || (p->work->refused && j->out) ? p->work->num_writes : 0;
	j->team.count[1] = l ? l->num_items : 0;
	j->team.count[2] = l ? l->num_merges : 0;
	for (uint32_t i = 0; i < p->cache->pool->num_nodes; i++)
		j->bases[i] = p->cache->pool->nodes[i].base;
	atomic_store_explicit(&j->error, 0, memory_order_relaxed);
	atomic_store_explicit(&j->team.cancelled, false, memory_order_relaxed);
	return 0;
}

bool exec_small(const struct job *j)
{
	uint64_t cost = j->store ? (uint64_t)j->plan->num_tokens * j->plan->cache->fmt.layer_bytes /
					   j->plan->cache->block_size
				 : 0;

	if (!(j->flags & ATTND_JOB_NO_OUT))
		cost += list_of(j)->cost;
	return cost < SMALL_BYTES;
}
