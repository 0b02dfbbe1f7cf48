/* SPDX-License-Identifier: Apache-2.0 */
/* Execution of jobs (exec.h). */
#include "exec.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define SMALL_NS	 10000.0 /* work below it is not worth telling others of */
#define WRITE_BYTES_A_NS 4.0

enum {
	MAX_LEVELS = 20,  /* of the merge tree: 2^24 tokens / 256 a chunk, and some */
	MAX_SPAN = 513,	  /* blocks that a run of up to a chunk touches: 512 of one token, and one */
	NEXT_BLOCKS = 16, /* that attend may prefetch beyond its own */
};

/* ---- Writing ---- */

/* One layer of a block, of what a NUMA node's items compute with, and its tiles' flags. */
static char *layer_slice(const struct job *j, uint32_t node, const struct table_entry *e, uint32_t layer)
{
	const struct cache *c = j->plan->cache;

	return cache_piece(c, cache_where(c, e->id), node) + layer * c->nodes[node].fmt.layer_bytes;
}

static uint8_t *layer_flags(const struct job *j, uint32_t node, const struct table_entry *e, uint32_t layer)
{
	const struct cache *c = j->plan->cache;

	return e->flags + (size_t)layer * c->identity.num_kv_heads + c->nodes[node].head0;
}

/* Scales of already quantised input, of the node's heads from this token on. */
static const float *in_scales(const struct job *j, const char *kv, uint64_t delta, uint64_t token, uint32_t head0)
{
	if (!delta)
		return NULL;
	return (const float *)(const void *)(kv + delta) + token * j->plan->cache->identity.num_kv_heads + head0;
}

/* A block that is new to its row: nothing that an earlier owner left may be read as NaN. */
static void begin_block(const struct job *j, const struct plan_row *r, uint32_t node, uint32_t index, char *block,
			uint8_t *flags)
{
	const struct cache *c = j->plan->cache;
	const struct cache_node *n = &c->nodes[node];
	bool copy = r->copies && index == r->copy_index;

	if (!copy && index < r->fresh)
		return;
	for (uint32_t h = 0; h < n->heads; h++)
		if (__atomic_load_n(&flags[h], __ATOMIC_RELAXED))
			c->ops.clear(&n->fmt, block, flags, h);
	if (copy)
		c->ops.copy(&n->fmt, block, flags, layer_slice(j, node, &r->source, j->layer),
			    layer_flags(j, node, &r->source, j->layer), r->copy_slots, 0, n->heads);
}

static void write_block(const struct job *j, const struct plan_row *r, uint32_t node, uint32_t index, uint32_t from,
			uint32_t to)
{
	const struct cache *c = j->plan->cache;
	const struct cache_node *n = &c->nodes[node];
	const struct params *p = j->params;
	const struct table_entry *e = plan_entry(j->plan, r, index);
	uint64_t token = r->first + from;
	const struct attnd_slots_args a = {
		.fmt = &n->fmt,
		.block = layer_slice(j, node, e, j->layer),
		.flags = layer_flags(j, node, e, j->layer),
		.k = j->k + token * p->k_token_stride + n->head0 * p->k_head_stride,
		.v = j->v ? j->v + token * p->v_token_stride + n->head0 * p->v_head_stride : NULL,
		.k_token_stride = p->k_token_stride,
		.k_head_stride = p->k_head_stride,
		.v_token_stride = p->v_token_stride,
		.v_head_stride = p->v_head_stride,
		.k_scales = in_scales(j, j->k, p->k_scales_delta, token, n->head0),
		.v_scales = in_scales(j, j->v, p->v_scales_delta, token, n->head0),
		.scale_token_stride = c->identity.num_kv_heads * sizeof(float),
		.k_scale = j->attn.k_scale,
		.v_scale = j->attn.v_scale,
		.slot = (r->start + from) & (c->block_size - 1),
		.n = to - from,
		.num_heads = n->heads,
		.in = p->kv_in,
	};

	begin_block(j, r, node, index, a.block, a.flags);
	c->ops.write(&a);
}

static void write_row(const struct job *j, const struct plan_row *r, uint32_t node, uint32_t from, uint32_t to)
{
	const struct cache *c = j->plan->cache;
	uint32_t B = c->block_size;

	from = from > r->cached ? from : r->cached;
	while (from < to) {
		uint32_t pos = r->start + from, end = (pos / B + 1) * B - r->start;

		end = end < to ? end : to;
		if (cache_stores(c, cache_block_node(c, plan_entry(j->plan, r, pos / B)->id), node))
			write_block(j, r, node, pos / B, from, end);
		from = end;
	}
}

/* A refused row's tokens [from, to). */
static void zero_row(const struct job *j, const struct plan_row *r, uint32_t from, uint32_t to)
{
	const struct cache *c = j->plan->cache;
	uint32_t heads = c->identity.num_heads;
	size_t bytes = c->fmt.spec.head_dim_v * attnd_kdtype_bytes(j->params->out);

	for (uint64_t t = (uint64_t)r->first + from; t < (uint64_t)r->first + to; t++) {
		for (uint32_t h = 0; h < heads; h++) {
			memset(j->out + t * j->params->out_token_stride + h * j->params->out_head_stride, 0, bytes);
			if (j->lse)
				j->lse[t * heads + h] = -__builtin_inff();
		}
	}
}

static void run_write(struct job *j, const struct write_item *w, uint32_t node)
{
	for (uint32_t i = w->row; i < w->row + w->rows; i++) {
		const struct plan_row *r = &j->plan->rows[i];
		uint32_t to = w->to ? w->to : r->n;

		if (!r->seq && j->out && !node)
			zero_row(j, r, w->from, to);
		else if (r->seq && j->store)
			write_row(j, r, node, w->from, to);
	}
}

/* ---- Folding along the tree over chunk indices ---- */

/* Where the partials of some chunks of a tile stand: a stack of nodes of the tree. */
struct fold {
	const struct cache *c;
	char *base;   /* MAX_LEVELS entries */
	size_t bytes; /* of an entry */
	uint32_t n;   /* partials of an entry */
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

static void finish_token(const struct job *j, uint32_t token, uint32_t node, uint32_t head, uint32_t heads,
			 const char *partials)
{
	const struct cache *c = j->plan->cache;
	const struct params *p = j->params;
	const struct work_token *t = &j->work->order[token];
	uint32_t n = heads * c->fmt.spec.group, h0 = (c->nodes[node].head0 + head) * c->fmt.spec.group;
	uint64_t at = (uint64_t)j->plan->rows[t->row].first + t->index;

	c->ops.finish(&c->fmt, partials, n, p->sinks ? p->sinks + h0 : NULL, p->out,
		      j->out + at * p->out_token_stride + h0 * p->out_head_stride, p->out_head_stride,
		      j->lse ? j->lse + at * c->identity.num_heads + h0 : NULL);
}

/* ---- Attending ---- */

/* One call of attend: keys [begin, end) that query tokens [token0, token1) read from the same blocks. */
struct segment {
	const void **blocks;
	const uint8_t **flags;
	uint32_t num_blocks, start;
	uint32_t token0, token1, begin, end;
	uint32_t chunk;
};

/* An item's segments, chunk after chunk, nodes in the trie's order. */
struct walk {
	const struct job *j;
	const struct attend_list *l;
	const struct attend_item *it;
	const struct attnd_qrow *rows; /* of the item */
	uint32_t chunk, node;	       /* the next to look at */
};

static void fill_segment(const struct walk *w, const struct work_node *n, struct segment *s)
{
	const struct job *j = w->j;
	const struct plan_row *r = &j->plan->rows[n->row];
	uint32_t B = j->plan->cache->block_size;

	s->num_blocks = 0;
	s->start = s->begin / B * B;
	for (uint32_t i = s->begin / B; i * B < s->end; i++) {
		const struct table_entry *e = plan_entry(j->plan, r, i);

		s->blocks[s->num_blocks] = layer_slice(j, w->it->node, e, j->src_layer);
		s->flags[s->num_blocks++] = layer_flags(j, w->it->node, e, j->src_layer);
	}
}

/* Clip a node to the chunk, the item's tokens and what they see; false: nothing is left. */
static bool clip(const struct walk *w, const struct work_node *n, struct segment *s)
{
	const struct attnd_kv_format *f = &w->j->plan->cache->fmt;
	uint32_t lo = UINT32_MAX, hi = 0, b = w->chunk * f->chunk, e = b + f->chunk;

	s->token0 = n->token0 > w->it->token0 ? n->token0 : w->it->token0;
	s->token1 = n->token1 < w->it->token1 ? n->token1 : w->it->token1;
	s->begin = n->begin > b ? n->begin : b;
	s->end = n->end < e ? n->end : e;
	if (s->token0 >= s->token1 || s->begin >= s->end)
		return false;
	for (uint32_t t = s->token0; t < s->token1; t++) {
		const struct attnd_qrow *q = &w->rows[t - w->it->token0];

		lo = q->lo < lo ? q->lo : lo;
		hi = q->hi > hi ? q->hi : hi;
	}
	lo = lo / f->step * f->step;
	s->begin = lo > s->begin ? lo : s->begin;
	s->end = hi < s->end ? hi : s->end;
	s->chunk = w->chunk;
	return s->begin < s->end;
}

/* The next segment into *s, whose arrays stand; false at the end. */
static bool next_segment(struct walk *w, struct segment *s)
{
	const struct work_tile *t = &w->l->tiles[w->it->tile];

	for (; w->chunk < w->it->chunk1; w->chunk++, w->node = 0) {
		while (w->node < t->nodes) {
			const struct work_node *n = &w->j->work->nodes[w->l->tile_nodes[t->node0 + w->node++]];

			if (clip(w, n, s)) {
				fill_segment(w, n, s);
				return true;
			}
		}
	}
	return false;
}

static void fill_rows(const struct job *j, const struct attend_item *it, struct attnd_qrow *rows)
{
	const struct params *p = j->params;
	uint64_t h0 = (uint64_t)(j->plan->cache->nodes[it->node].head0 + it->head) * j->plan->cache->fmt.spec.group;

	for (uint32_t i = it->token0; i < it->token1; i++) {
		const struct work_token *t = &j->work->order[i];
		const struct plan_row *r = &j->plan->rows[t->row];
		struct attnd_qrow *q = &rows[i - it->token0];

		*q = (struct attnd_qrow){
			.q = j->q + ((uint64_t)r->first + t->index) * p->q_token_stride + h0 * p->attn.q_head_stride,
			.mask = r->mask ? r->mask + (size_t)t->index * r->mask_words : NULL,
			.pos = r->start + t->index,
			.mask_start = r->start,
		};
		work_visible(r, t->index, p->sliding_window, p->causal, &q->lo, &q->hi);
	}
}

static size_t token_bytes(const struct job *j, uint32_t heads)
{
	return (size_t)heads * j->plan->cache->fmt.spec.group * j->plan->cache->fmt.partial_bytes;
}

/* What an item needs of its member: blocks' pointers, rows and scratch, partials. */
static bool reserve(const struct job *j, const struct attend_item *it, struct member_memory *m)
{
	size_t rows = ((it->token1 - it->token0) * sizeof(struct attnd_qrow) + 63) / 64 * 64;

	if (!m->blocks)
		m->blocks = malloc(2 * MAX_SPAN * sizeof(*m->blocks));
	if (!m->flags)
		m->flags = malloc(2 * MAX_SPAN * sizeof(*m->flags));
	return m->blocks && m->flags &&
	       member_reserve(&m->scratch, &m->scratch_bytes,
			      j->plan->cache->nodes[it->node].fmt.scratch_bytes + rows) &&
	       member_reserve(&m->partials, &m->partials_bytes,
			      (it->token1 - it->token0) * token_bytes(j, it->heads) * MAX_LEVELS);
}

static void call_attend(const struct walk *w, const struct segment *s, const struct segment *next, void *scratch)
{
	const struct job *j = w->j;
	const struct cache *c = j->plan->cache;
	const struct cache_node *n = &c->nodes[w->it->node];
	struct attnd_attn attn = j->attn;
	const struct attnd_attend_args a = {
		.fmt = &n->fmt,
		.attn = &attn,
		.blocks = s->blocks,
		.flags = s->flags,
		.next = next ? next->blocks : NULL,
		.rows = w->rows + (s->token0 - w->it->token0),
		.scratch = scratch,
		.num_blocks = s->num_blocks,
		.num_next = !next			     ? 0
			    : next->num_blocks < NEXT_BLOCKS ? next->num_blocks
							     : NEXT_BLOCKS,
		.num_rows = s->token1 - s->token0,
		.start = s->start,
		.begin = s->begin,
		.end = s->end,
		.head = w->it->head,
		.num_heads = w->it->heads,
	};

	if (attn.alibi)
		attn.alibi += n->head0 * c->fmt.spec.group;
	c->ops.attend[j->attn.q_dtype](&a);
}

/* Begin a chunk: the top of the stack is its partials, empty. */
static void open_chunk(const struct job *j, const struct attend_item *it, struct fold *f, struct attnd_qrow *rows)
{
	char *at = fold_at(f, f->depth++);
	size_t bytes = token_bytes(j, it->heads);

	f->c->ops.init(&f->c->fmt, at, f->n);
	for (uint32_t t = 0; t < it->token1 - it->token0; t++)
		rows[t].partial = at + t * bytes;
}

/* K and V of these keys, of the item's heads. */
static void count_read(struct job *j, const struct attend_item *it, uint64_t keys)
{
	const struct cache *c = j->plan->cache;
	const struct cache_node *n = &c->nodes[it->node];

	atomic_fetch_add_explicit(&j->bytes_read, keys * it->heads * n->fmt.layer_bytes / c->block_size / n->heads,
				  memory_order_relaxed);
}

static void run_attend(struct job *j, const struct attend_item *it, const struct attend_list *l, struct member *m)
{
	struct member_memory *mem = member_memory(m);
	uint32_t tokens = it->token1 - it->token0, chunk = UINT32_MAX, side = 0;
	size_t rows_bytes = (tokens * sizeof(struct attnd_qrow) + 63) / 64 * 64, bytes = token_bytes(j, it->heads);
	struct segment s[2];
	struct attnd_qrow *rows;
	struct walk w;
	struct fold f;
	uint64_t keys = 0;
	bool more;

	if (!reserve(j, it, mem)) {
		atomic_store_explicit(&j->error, -ENOMEM, memory_order_relaxed);
		return;
	}
	rows = mem->scratch;
	fill_rows(j, it, rows);
	w = (struct walk){.j = j, .l = l, .it = it, .rows = rows, .chunk = it->chunk0};
	f = (struct fold){.c = j->plan->cache,
			  .base = mem->partials,
			  .bytes = tokens * bytes,
			  .n = tokens * it->heads * j->plan->cache->fmt.spec.group};
	s[0] = (struct segment){.blocks = mem->blocks, .flags = mem->flags};
	s[1] = (struct segment){.blocks = mem->blocks + MAX_SPAN, .flags = mem->flags + MAX_SPAN};
	for (more = next_segment(&w, &s[0]); more; side ^= 1) {
		struct segment *now = &s[side], *next = &s[side ^ 1];

		if (now->chunk != chunk) {
			if (chunk != UINT32_MAX) {
				fold_up(&f, chunk, 0);
				team_pause(m, &j->team);
				if (atomic_load_explicit(&j->team.cancelled, memory_order_relaxed))
					return; /* nobody wants it: its answer is an error */
			}
			chunk = now->chunk;
			open_chunk(j, it, &f, rows);
		}
		more = next_segment(&w, next);
		call_attend(&w, now, more ? next : NULL, (char *)mem->scratch + rows_bytes);
		keys += now->end - now->begin;
	}
	count_read(j, it, keys);
	if (chunk == UINT32_MAX) /* nothing visible at all */
		open_chunk(j, it, &f, rows);
	else
		fold_up(&f, chunk, 0);
	fold_all(&f);
	if (it->slot != WORK_NO_SLOT) {
		memcpy(l->partials + it->slot, f.base, f.bytes);
		return;
	}
	for (uint32_t t = 0; t < tokens; t++)
		finish_token(j, it->token0 + t, it->node, it->head, it->heads, f.base + t * bytes);
}

/* A token's partials of all runs, joined. */
static void merge_token(const struct job *j, const struct merge_item *it, const struct attend_list *l, uint32_t token,
			struct fold *f)
{
	f->depth = 0;
	for (uint32_t i = it->item0; i < it->item1; i++) {
		const struct attend_item *a = &l->items[i];

		if (token < a->token0 || token >= a->token1)
			continue;
		memcpy(fold_at(f, f->depth++), l->partials + a->slot + (token - a->token0) * f->bytes, f->bytes);
		fold_up(f, a->chunk0 >> it->shift, 0);
	}
	if (!f->depth)
		f->c->ops.init(&f->c->fmt, fold_at(f, f->depth++), f->n);
	fold_all(f);
	finish_token(j, token, it->node, it->head, it->heads, f->base);
}

static void run_merge(struct job *j, const struct merge_item *it, const struct attend_list *l, struct member *m)
{
	struct member_memory *mem = member_memory(m);
	struct fold f = {.c = j->plan->cache,
			 .bytes = token_bytes(j, it->heads),
			 .n = it->heads * j->plan->cache->fmt.spec.group};

	if (!member_reserve(&mem->partials, &mem->partials_bytes, f.bytes * MAX_LEVELS)) {
		atomic_store_explicit(&j->error, -ENOMEM, memory_order_relaxed);
		return;
	}
	f.base = mem->partials;
	for (uint32_t t = it->token0; t < it->token1; t++)
		merge_token(j, it, l, t, &f);
}

static void run_item(struct team_job *tj, uint32_t phase, uint32_t item, struct member *m)
{
	struct job *j = (struct job *)tj;
	uint32_t n = j->work->num_writes;

	if (phase == 0)
		run_write(j, &j->work->writes[item % n], item / n);
	else if (phase == 1)
		run_attend(j, &j->list->items[j->list->by_node ? j->list->by_node[item] : item], j->list, m);
	else
		run_merge(j, &j->list->merges[item], j->list, m);
}

/* Which items are whose: those of NUMA node n begin at first[n]. */
static void fill_phases(struct job *j)
{
	struct team_job *t = &j->team;
	uint32_t nodes = j->plan->cache->pool->num_nodes;
	uint32_t writes = j->store || (j->work->zero_tokens && j->out) ? j->work->num_writes : 0;

	t->num_nodes = nodes;
	for (uint32_t i = 0; i <= nodes; i++) {
		t->phases[0].first[i] = i * writes;
		t->phases[1].first[i] = j->list ? j->list->node_item[i] : 0;
		t->phases[2].first[i] = j->list ? j->list->node_merge[i] : 0;
	}
}

int exec_prepare(struct job *j, uint32_t threads)
{
	struct plan *p = j->plan;

	if (!p->work)
		p->work = work_make(p);
	if (!p->work)
		return -ENOMEM;
	j->work = p->work;
	j->list = NULL;
	if (!(j->flags & ATTND_JOB_NO_OUT)) {
		j->list = work_attend(p->work, p, j->params->sliding_window, j->params->causal, threads);
		if (!j->list)
			return -ENOMEM;
	}
	j->team.run = run_item;
	j->team.urgent = p->max_row <= 1;
	fill_phases(j);
	atomic_store_explicit(&j->error, 0, memory_order_relaxed);
	atomic_store_explicit(&j->bytes_read, 0, memory_order_relaxed);
	atomic_store_explicit(&j->team.cancelled, false, memory_order_relaxed);
	return 0;
}

/* What the first phase takes, about. */
static double write_ns(const struct job *j)
{
	const struct cache *c = j->plan->cache;
	double bytes = 0;

	if (j->store)
		bytes += (double)j->work->write_tokens * (double)c->fmt.layer_bytes / c->block_size;
	if (j->out)
		bytes += (double)j->work->zero_tokens * c->identity.num_heads * c->identity.head_dim_v * 4;
	return j->team.phases[0].first[j->team.num_nodes] ? bytes / WRITE_BYTES_A_NS : 0;
}

void exec_write_first(struct job *j)
{
	struct team_phase *t = &j->team.phases[0];
	uint32_t nodes = j->team.num_nodes;

	if (write_ns(j) >= SMALL_NS)
		return;
	for (uint32_t i = 0; i < t->first[nodes]; i++)
		run_write(j, &j->work->writes[i % j->work->num_writes], i / j->work->num_writes);
	memset(t->first, 0, sizeof(t->first));
}

static void run_export(struct team_job *tj, uint32_t phase, uint32_t item, struct member *m)
{
	(void)phase;
	(void)m;
	export_run(&((struct job *)tj)->export, item);
}

void exec_prepare_export(struct job *j)
{
	j->team.run = run_export;
	export_phases(&j->export, &j->team);
	atomic_store_explicit(&j->error, 0, memory_order_relaxed);
	atomic_store_explicit(&j->team.cancelled, false, memory_order_relaxed);
}

bool exec_small(const struct job *j)
{
	const struct export *x = &j->export;

	if (j->exports)
		return (double)x->n * (double)x->cache->fmt.layer_bytes / x->cache->block_size / WRITE_BYTES_A_NS <
		       SMALL_NS;
	return write_ns(j) + (j->list ? j->list->cost_ns : 0) < SMALL_NS;
}
