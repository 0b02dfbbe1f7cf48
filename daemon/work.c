/* SPDX-License-Identifier: Apache-2.0 */
/* Cutting a plan's work (work.h). */
#include "work.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum {
	TILE_QROWS = 128,   /* query rows (tokens x group) of a tile */
	ITEM_QROWS = 512,   /* times heads of an item, at most: its partials stay in cache */
	SLICE_QROWS = 128,  /* the same of an extend: between two pauses it takes some 150 us a chunk */
	HEADS_FIRST = 32,   /* query rows a head from which arithmetic is the bound, and heads are split first */
	ITEMS_A_MEMBER = 4, /* so that members finish together */
	WRITE_TOKENS = 256, /* of a write item, about */
	MAX_LISTS = 8,	    /* of a plan: kinds of layers */
	EFFORT = 1 << 18,   /* comparisons of blocks, about, to find what a plan's rows share */
};
#define ITEM_NS	   20000.0 /* an item is not cut below this */
#define BYTES_A_NS 10.0	   /* what a thread reads */

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

/* Append to a list's array; -ENOMEM leaves it as it was. */
#define APPEND(l, array, num, cap, value)                                                  \
	({                                                                                 \
		void *p_ = grow((l)->array, &(l)->cap, (l)->num + 1, sizeof(*(l)->array)); \
		if (p_) {                                                                  \
			(l)->array = p_;                                                   \
			(l)->array[(l)->num++] = (value);                                  \
		}                                                                          \
		p_ ? 0 : -ENOMEM;                                                          \
	})

/* ---- The trie of rows ---- */

struct trie {
	struct work_list *w;
	const struct plan *p;
	uint32_t *rows; /* plan rows in the order that is being made */
	uint32_t *ids;	/* scratch: block id of rows[i] where they part */
	int64_t effort; /* that is left; then rows stand alone, with the same results */
};

static uint32_t row_blocks(const struct plan *p, const struct plan_row *r)
{
	return (r->start + r->n + p->cache->block_size - 1) / p->cache->block_size;
}

static uint32_t block_at(const struct trie *t, uint32_t row, uint32_t index)
{
	const struct plan_row *r = &t->p->rows[row];

	return index < row_blocks(t->p, r) ? plan_entry(t->p, r, index)->id : ATTND_BLOCK_NONE;
}

/* Block indices of a row, from 0 on, that are full blocks of the tree. */
static uint32_t tree_blocks(const struct trie *t, uint32_t row)
{
	const struct plan_row *r = &t->p->rows[row];
	uint32_t n = held_settle(&r->seq->in[t->p->cache_index].held, t->p->cache);

	return n < r->from ? n : r->from;
}

/* Where rows a and b part before block `to`, where both are in the tree: `from`, or behind it. */
static uint32_t part_in_tree(const struct trie *t, uint32_t a, uint32_t b, uint32_t from, uint32_t to)
{
	while (from < to) {
		uint32_t mid = from + (to - from) / 2;

		if (block_at(t, a, mid) == block_at(t, b, mid))
			from = mid + 1;
		else
			to = mid;
	}
	return from;
}

/* Where the rows [lo, hi) part, from block `from` on, where they agree up to it; or where effort ends. */
static uint32_t part(struct trie *t, uint32_t lo, uint32_t hi, uint32_t from)
{
	uint32_t same = tree_blocks(t, t->rows[lo]);

	for (uint32_t i = lo + 1; i < hi && same > from; i++) {
		uint32_t n = tree_blocks(t, t->rows[i]);

		same = part_in_tree(t, t->rows[lo], t->rows[i], from, n < same ? n : same);
	}
	t->effort -= 8ll * (hi - lo);
	for (from = same > from ? same : from; t->effort > 0; from++, t->effort -= hi - lo) {
		uint32_t id = block_at(t, t->rows[lo], from);

		if (id == ATTND_BLOCK_NONE)
			return from;
		for (uint32_t i = lo + 1; i < hi; i++)
			if (block_at(t, t->rows[i], from) != id)
				return from;
	}
	return from;
}

static int by_id(const void *a, const void *b, void *ids)
{
	uint32_t x = ((const uint32_t *)ids)[*(const uint32_t *)a], y = ((const uint32_t *)ids)[*(const uint32_t *)b];

	return x < y ? -1 : x > y;
}

/* Rows with the same block at `index` stand together. ids is indexed by plan row. */
static void group(struct trie *t, uint32_t lo, uint32_t hi, uint32_t index)
{
	for (uint32_t i = lo; i < hi; i++)
		t->ids[t->rows[i]] = block_at(t, t->rows[i], index);
	qsort_r(t->rows + lo, hi - lo, sizeof(*t->rows), by_id, t->ids);
	t->effort -= 8ll * (hi - lo);
}

static int add_node(struct trie *t, uint32_t lo, uint32_t hi, uint32_t begin, uint32_t end)
{
	const struct work_node n = {.token0 = lo, .token1 = hi, .begin = begin, .end = end, .row = t->rows[lo]};

	return APPEND(t->w, nodes, num_nodes, cap_nodes, n);
}

/* The rest of a row. */
static int add_alone(struct trie *t, uint32_t i, uint32_t begin)
{
	const struct plan_row *row = &t->p->rows[t->rows[i]];

	return add_node(t, i, i + 1, begin, row->start + row->n);
}

/* Nodes for rows [lo, hi), which agree on the blocks before `block` and have been served up to `begin`. */
static int build(struct trie *t, uint32_t lo, uint32_t hi, uint32_t block, uint32_t begin)
{
	const struct plan *p = t->p;
	uint32_t S = p->cache->fmt.step, end;
	int r = 0;

	if (hi - lo == 1)
		return add_alone(t, lo, begin);
	block = part(t, lo, hi, block);
	end = block * p->cache->block_size / S * S;
	if (end > begin) {
		r = add_node(t, lo, hi, begin, end);
		begin = end;
	}
	for (uint32_t i = lo; i < hi && !r && t->effort <= 0; i++)
		r = add_alone(t, i, begin);
	if (t->effort <= 0)
		return r;
	group(t, lo, hi, block);
	for (uint32_t i = lo, k; i < hi && !r; i = k) {
		uint32_t id = block_at(t, t->rows[i], block);

		for (k = i + 1; k < hi && id != ATTND_BLOCK_NONE && block_at(t, t->rows[k], block) == id; k++)
			;
		r = build(t, i, k, block + 1, begin);
	}
	return r;
}

/* From ranges of rows to ranges of tokens, and the order of tokens. */
static void number_tokens(struct work_list *w, const struct plan *p, const uint32_t *rows, uint32_t *first,
			  uint32_t n)
{
	for (uint32_t i = 0; i < n; i++) {
		first[i] = w->num_tokens;
		for (uint32_t k = 0; k < p->rows[rows[i]].n; k++)
			w->order[w->num_tokens++] = (struct work_token){.row = rows[i], .index = k};
	}
	first[n] = w->num_tokens;
	for (uint32_t i = 0; i < w->num_nodes; i++) {
		w->nodes[i].token0 = first[w->nodes[i].token0];
		w->nodes[i].token1 = first[w->nodes[i].token1];
	}
}

static int make_trie(struct work_list *w, const struct plan *p)
{
	uint32_t *mem = malloc((3ull * p->num_rows + 1) * sizeof(*mem)), n = 0;
	struct trie t = {.w = w, .p = p, .rows = mem, .effort = EFFORT};
	int r = 0;

	w->order = malloc((p->num_tokens + 1ull) * sizeof(*w->order));
	if (!mem || !w->order) {
		free(mem);
		return -ENOMEM;
	}
	t.ids = mem + p->num_rows;
	for (uint32_t i = 0; i < p->num_rows; i++)
		if (p->rows[i].seq)
			t.rows[n++] = i;
	if (n) {
		group(&t, 0, n, 0);
		for (uint32_t i = 0, k; i < n && !r; i = k) {
			uint32_t id = block_at(&t, t.rows[i], 0);

			for (k = i + 1; k < n && block_at(&t, t.rows[k], 0) == id; k++)
				;
			r = build(&t, i, k, 0, 0);
		}
		number_tokens(w, p, t.rows, mem + 2 * p->num_rows, n);
	}
	free(mem);
	return r;
}

/* ---- Writes ---- */

/* Short rows together, long ones by runs of whole blocks. */
static uint32_t fill_writes(const struct plan *p, struct write_item *w)
{
	uint32_t n = 0, B = p->cache->block_size, open = UINT32_MAX, tokens = 0;
	uint32_t step = (WRITE_TOKENS + B - 1) / B * B;

	for (uint32_t i = 0; i < p->num_rows; i++) {
		const struct plan_row *r = &p->rows[i];

		if (r->n <= WRITE_TOKENS) {
			if (open == UINT32_MAX || tokens + r->n > WRITE_TOKENS) {
				open = n++;
				tokens = 0;
				if (w)
					w[open] = (struct write_item){.row = i};
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

struct work_list *work_make(const struct plan *p)
{
	struct work_list *w = calloc(1, sizeof(*w));

	if (!w)
		return NULL;
	w->heap = &p->engine->heap;
	w->num_writes = fill_writes(p, NULL);
	w->writes = malloc((w->num_writes + 1) * sizeof(*w->writes));
	if (!w->writes || make_trie(w, p)) {
		work_free(w);
		return NULL;
	}
	(void)fill_writes(p, w->writes);
	for (uint32_t i = 0; i < p->num_rows; i++) {
		const struct plan_row *r = &p->rows[i];

		if (!r->seq)
			w->zero_tokens += r->n;
		else
			w->write_tokens += r->n - r->cached + (r->copies ? p->cache->block_size : 0);
	}
	return w;
}

/* ---- Attend lists ---- */

static void list_free(struct work_list *w, struct attend_list *l)
{
	if (!l)
		return;
	heap_give(w->heap, l->heap);
	free(l->items);
	free(l->merges);
	free(l->tiles);
	free(l->tile_nodes);
	free(l->by_node);
	free(l->partials);
	free(l);
}

void work_free(struct work_list *w)
{
	struct attend_list *next;

	if (!w)
		return;
	for (struct attend_list *l = w->lists; l; l = next) {
		next = l->next;
		list_free(w, l);
	}
	free(w->writes);
	free(w->order);
	free(w->nodes);
	free(w);
}

/* What making a list needs. */
struct cutter {
	struct attend_list *l;
	const struct work_list *w;
	const struct plan *p;
	double item_ns; /* what an item should cost */
	uint32_t node;	/* NUMA node that is being cut for */
};

static void token_span(const struct cutter *c, uint32_t token, uint32_t *lo, uint32_t *hi)
{
	const struct work_token *t = &c->w->order[token];

	work_visible(&c->p->rows[t->row], t->index, c->l->window, c->l->causal, lo, hi);
}

/* Keys that any token of [token0, token1) sees. */
static void tokens_span(const struct cutter *c, uint32_t token0, uint32_t token1, uint32_t *ret_lo, uint32_t *ret_hi)
{
	*ret_lo = UINT32_MAX;
	*ret_hi = 0;
	for (uint32_t t = token0; t < token1; t++) {
		uint32_t lo, hi;

		token_span(c, t, &lo, &hi);
		*ret_lo = lo < *ret_lo ? lo : *ret_lo;
		*ret_hi = hi > *ret_hi ? hi : *ret_hi;
	}
}

/* Nanoseconds that a tile takes on one thread, about: by bytes and by arithmetic. */
static double tile_cost(const struct cutter *c, const struct work_tile *t)
{
	const struct cache *ca = c->p->cache;
	const struct attnd_kv_spec *s = &ca->fmt.spec;
	double cost = 0;

	for (uint32_t i = t->node0; i < t->node0 + t->nodes; i++) {
		const struct work_node *n = &c->w->nodes[c->l->tile_nodes[i]];
		uint32_t t0 = n->token0 > t->token0 ? n->token0 : t->token0, lo, hi;
		uint32_t t1 = n->token1 < t->token1 ? n->token1 : t->token1;
		double keys, bytes, flops;

		tokens_span(c, t0, t1, &lo, &hi);
		lo = lo > n->begin ? lo : n->begin;
		hi = hi < n->end ? hi : n->end;
		keys = hi > lo ? hi - lo : 0;
		bytes = keys * (double)ca->fmt.layer_bytes / ca->block_size;
		flops = keys * (t1 - t0) * s->group * s->num_kv_heads * 2.0 * (s->head_dim + s->head_dim_v);
		bytes /= BYTES_A_NS;
		flops /= ca->flops_a_ns;
		cost += bytes > flops ? bytes : flops;
	}
	return cost;
}

/* The nodes of a root that reach into the tile that is being made; tiles come in order. */
struct open_nodes {
	uint32_t *at;
	uint32_t num;
	uint32_t next, end; /* the root's nodes that come later */
};

static void reach(const struct work_list *w, struct open_nodes *o, uint32_t token0, uint32_t token1)
{
	uint32_t n = 0;

	for (uint32_t i = 0; i < o->num; i++)
		if (w->nodes[o->at[i]].token1 > token0)
			o->at[n++] = o->at[i];
	for (; o->next < o->end && w->nodes[o->next].token0 < token1; o->next++)
		o->at[n++] = o->next;
	o->num = n;
}

static int add_tile(struct cutter *c, uint32_t token0, uint32_t token1, const struct open_nodes *o)
{
	struct attend_list *l = c->l;
	struct work_tile t = {.token0 = token0, .token1 = token1, .node0 = l->num_tile_nodes, .nodes = o->num};

	for (uint32_t i = 0; i < o->num; i++)
		if (APPEND(l, tile_nodes, num_tile_nodes, cap_tile_nodes, o->at[i]))
			return -ENOMEM;
	l->cost_ns += tile_cost(c, &t);
	return APPEND(l, tiles, num_tiles, cap_tiles, t);
}

/* A root is a node whose tokens no earlier node has; its subtree follows it. */
static int make_tiles(struct cutter *c)
{
	const struct work_list *w = c->w;
	uint32_t most = TILE_QROWS / c->p->cache->fmt.spec.group;
	struct open_nodes o = {.at = malloc((w->num_nodes + 1ull) * sizeof(*o.at))};
	int r = o.at ? 0 : -ENOMEM;

	most = most ? most : 1;
	for (uint32_t i = 0; i < w->num_nodes && !r; i = o.end) {
		uint32_t t1 = w->nodes[i].token1;

		o.num = 0;
		o.next = i;
		for (o.end = i + 1; o.end < w->num_nodes && w->nodes[o.end].token0 < t1; o.end++)
			;
		for (uint32_t t = w->nodes[i].token0; t < t1 && !r; t += most) {
			reach(w, &o, t, t + most < t1 ? t + most : t1);
			r = add_tile(c, t, t + most < t1 ? t + most : t1, &o);
		}
	}
	free(o.at);
	return r;
}

/* The tokens from `token` on that read keys at `pos` from the same blocks; 0: none sees that far. */
static uint32_t active(const struct cutter *c, const struct work_tile *t, uint32_t token, uint32_t pos)
{
	for (uint32_t i = t->node0; i < t->node0 + t->nodes; i++) {
		const struct work_node *n = &c->w->nodes[c->l->tile_nodes[i]];

		if (token < n->token0 || token >= n->token1 || pos < n->begin || pos >= n->end)
			continue;
		return n->token1 < t->token1 ? n->token1 : t->token1;
	}
	return 0;
}

static size_t partials_of(const struct cutter *c, uint32_t tokens, uint32_t heads)
{
	return (size_t)tokens * heads * c->p->cache->fmt.spec.group * c->p->cache->fmt.partial_bytes;
}

/* The NUMA node that a token's block at a position lies on. */
static uint32_t stands_on(const struct cutter *c, uint32_t token, uint32_t pos)
{
	const struct plan_row *r = &c->p->rows[c->w->order[token].row];

	return cache_block_node(c->p->cache, plan_entry(c->p, r, pos >> c->p->cache->slots_shift)->id);
}

/* Items of one run of chunks of a tile and heads: one for each group of tokens that begin it together. */
static int add_run(struct cutter *c, uint32_t tile, uint32_t head, uint32_t heads, uint32_t chunk0, uint32_t chunk1,
		   bool whole)
{
	const struct work_tile *t = &c->l->tiles[tile];
	uint32_t P = c->p->cache->fmt.chunk, S = c->p->cache->fmt.step, lo, hi;
	int r = 0;

	tokens_span(c, t->token0, t->token1, &lo, &hi);
	lo = lo / S * S;
	lo = lo > chunk0 * P ? lo : chunk0 * P;
	for (uint32_t token = t->token0, end; token < t->token1 && !r; token = end) {
		struct attend_item it = {.tile = tile,
					 .token0 = token,
					 .node = c->node,
					 .head = head,
					 .heads = heads,
					 .chunk0 = chunk0,
					 .chunk1 = chunk1,
					 .slot = WORK_NO_SLOT};

		if (c->p->cache->spread)
			it.node = stands_on(c, token, lo);
		/* One run: every token must be finished by it, so they stay together. */
		end = whole ? t->token1 : active(c, t, token, lo);
		if (!end) {
			end = token + 1;
			continue;
		}
		it.token1 = end;
		if (!whole) {
			it.slot = c->l->partial_bytes;
			c->l->partial_bytes += partials_of(c, end - token, heads);
		}
		r = APPEND(c->l, items, num_items, cap_items, it);
	}
	return r;
}

static int add_runs(struct cutter *c, uint32_t tile, uint32_t head, uint32_t heads, uint32_t chunk0, uint32_t chunk1,
		    uint32_t shift)
{
	const struct work_tile *t = &c->l->tiles[tile];
	uint32_t run0 = chunk0 >> shift, run1 = ((chunk1 - 1) >> shift) + 1, first = c->l->num_items;
	bool whole = run1 - run0 == 1;
	int r = 0;

	for (uint32_t i = run0; i < run1 && !r; i++) {
		uint32_t lo = i << shift, hi = (i + 1) << shift;

		r = add_run(c, tile, head, heads, lo > chunk0 ? lo : chunk0, hi < chunk1 && hi > lo ? hi : chunk1,
			    whole);
	}
	if (r || whole)
		return r;
	return APPEND(c->l, merges, num_merges, cap_merges,
		      ((struct merge_item){.token0 = t->token0,
					   .token1 = t->token1,
					   .node = c->node,
					   .head = head,
					   .heads = heads,
					   .item0 = first,
					   .item1 = c->l->num_items,
					   .shift = shift}));
}

/*
 * How a tile is cut. Many query rows: by heads, since arithmetic is the bound and merging costs;
 * few: by runs of chunks, so that a block's heads are read in one go. Chunks that lie on different
 * NUMA nodes are cut from each other.
 */
static int cut_tile(struct cutter *c, uint32_t tile)
{
	const struct work_tile *t = &c->l->tiles[tile];
	const struct attnd_kv_spec *s = &c->p->cache->fmt.spec;
	uint32_t P = c->p->cache->fmt.chunk, H = c->p->cache->nodes[c->node].heads,
		 qrows = (t->token1 - t->token0) * s->group;
	uint32_t heads = (c->p->max_row > 1 ? SLICE_QROWS : ITEM_QROWS) / qrows, shift = 31, chunk0, chunk1, chunks,
		 lo, hi, want;
	double pieces = tile_cost(c, t) * H / s->num_kv_heads / c->item_ns;
	int r = 0;

	tokens_span(c, t->token0, t->token1, &lo, &hi);
	chunk0 = lo / P;
	chunk1 = (hi - 1) / P + 1;
	chunks = chunk1 - chunk0;
	heads = heads < 1 ? 1 : heads > H ? H : heads;
	want = pieces > 1e6 ? 1000000 : (uint32_t)pieces;
	if (want > 1 && qrows >= HEADS_FIRST) {
		uint32_t most = (H + want - 1) / want;

		heads = most < heads ? most : heads;
		want = want / H;
	} else if (want > chunks) {
		uint32_t most = (H * chunks + want - 1) / want;

		heads = most < heads ? most : heads;
	}
	if (c->p->cache->spread)
		shift = 0;
	else if (want > 1 && chunks > 1)
		for (shift = 0; (chunks >> (shift + 1)) >= want; shift++)
			;
	for (uint32_t head = 0; head < H && !r; head += heads)
		r = add_runs(c, tile, head, H - head < heads ? H - head : heads, chunk0, chunk1, shift);
	return r;
}

/* Items of a spread cache were made tile by tile: who takes them goes by NUMA node; merges are anybody's. */
static int sort_by_node(struct cutter *c)
{
	struct attend_list *l = c->l;
	uint32_t nodes = c->p->cache->pool->num_nodes, n = 0;

	l->by_node = malloc((l->num_items + 1ull) * sizeof(*l->by_node));
	if (!l->by_node)
		return -ENOMEM;
	for (uint32_t node = 0; node < nodes; node++) {
		for (uint32_t i = 0; i < l->num_items; i++)
			if (l->items[i].node == node)
				l->by_node[n++] = i;
		l->node_item[node + 1] = n;
		l->node_merge[node + 1] = (uint32_t)((uint64_t)l->num_merges * (node + 1) / nodes);
	}
	return 0;
}

/* For what was cut, and for its partials. */
static int take_memory(struct cutter *c)
{
	struct attend_list *l = c->l;
	uint64_t bytes = l->partial_bytes + l->cap_items * sizeof(*l->items) + l->cap_tiles * sizeof(*l->tiles);

	if (!heap_take(c->w->heap, bytes))
		return -ENOMEM;
	l->heap = bytes;
	if (l->partial_bytes && posix_memalign((void **)&l->partials, 64, l->partial_bytes)) {
		l->partials = NULL;
		return -ENOMEM;
	}
	return 0;
}

static int fill(struct cutter *c, uint32_t threads)
{
	uint32_t nodes = c->p->cache->pool->num_nodes;
	int r = make_tiles(c);

	c->item_ns = threads > 1 ? c->l->cost_ns / (threads * ITEMS_A_MEMBER) : c->l->cost_ns * 2;
	c->item_ns = c->item_ns > ITEM_NS ? c->item_ns : ITEM_NS;
	for (c->node = 0; c->node < nodes; c->node++) {
		for (uint32_t i = 0; i < c->l->num_tiles && !r && !(c->p->cache->spread && c->node); i++)
			r = cut_tile(c, i);
		c->l->node_item[c->node + 1] = c->l->num_items;
		c->l->node_merge[c->node + 1] = c->l->num_merges;
	}
	if (!r && c->p->cache->spread)
		r = sort_by_node(c);
	return r ? r : take_memory(c);
}

/* A plan has one job at a time, so that no list is in use. */
static void drop_oldest(struct work_list *w)
{
	struct attend_list **l = &w->lists;
	int n = 0;

	for (; *l && n < MAX_LISTS - 1; l = &(*l)->next)
		n++;
	list_free(w, *l);
	*l = NULL;
}

struct attend_list *work_attend(struct work_list *w, const struct plan *p, uint32_t window, bool causal,
				uint32_t threads)
{
	struct attend_list *l = work_find(w, window, causal);
	struct cutter c = {.w = w, .p = p};

	if (l)
		return l;
	drop_oldest(w);
	l = calloc(1, sizeof(*l));
	if (!l)
		return NULL;
	l->window = window;
	l->causal = causal;
	c.l = l;
	if (fill(&c, threads)) {
		list_free(w, l);
		return NULL;
	}
	l->next = w->lists;
	w->lists = l;
	return l;
}
