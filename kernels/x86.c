/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The loops of the x86-64 attend kernels: which rows, which step, which head, which addresses.
 *
 * In:   attend's arguments, one ISA's arithmetic.
 * Out:  tiles, in an order that keeps reads from memory long and prefetched.
 * Next: the arithmetic in attend_avx512*.c, attend_avx2.c, attend_amx.c.
 *
 * Few query rows, which wait for memory: step by step with all heads, so that a block's slice is
 * read as a whole. More, which wait for arithmetic: head by head, and in it some tiles of rows step
 * by step, so that their queries and acc and a step's K and V stay in L2. Neither order changes a bit.
 *
 * Invisible tokens weigh 0, which a non-finite V would turn into NaN. So a tile in which some row
 * does not see every slot looks at the flags after its loads; where one is set, the rows run one
 * by one on a copy of V in which the tokens that this row does not see are zero.
 */
#include "x86.h"

#include <math.h>
#include <stdatomic.h>
#include <string.h>

enum { PREFETCH_BYTES = 64 * 1024, SPAN = ATTND_X86_SPAN * ATTND_X86_ROWS, FEW_ROWS = 16 };

/* What a query row sees of a step. */
struct seen {
	const struct attnd_qrow *row;
	uint16_t bits[ATTND_X86_GROUPS]; /* of all groups of the step */
	bool whole;			 /* all of them are set */
	bool all;			 /* every slot of the tile's groups is */
};

/* Where 16 slots stand: a block, and offsets into a head's tile. */
struct place {
	const char *block; /* NULL: none */
	size_t k, v, scales;
};

/* A call's constants and where its loops stand. */
struct walk {
	const struct attnd_attend_args *a;
	const struct attnd_x86_isa *isa;
	uint32_t steps, step; /* of the call; the current one */
	uint32_t ahead;	      /* tiles between use and prefetch */
	uint32_t block_shift;
	size_t k_slot, v_slot, v_off; /* bytes of a slot, and where V begins in a tile */
	struct place here[ATTND_X86_GROUPS], there[ATTND_X86_GROUPS];
	uint32_t located;   /* the step that `there` holds */
	uint32_t staged[4]; /* the head, step and groups that isa may keep in t.stage */
	bool heads_inside;
	struct attnd_x86_ahead runs; /* few rows: what this tile prefetches */
	uint32_t set_up;	     /* isa's */
	uint32_t first_group;	     /* of the step */
	uint32_t num_seen;
	bool edge; /* some row does not see some slot */
	struct seen seen[ATTND_X86_ROWS];
	uint16_t seen_of[ATTND_X86_ROWS]; /* by query row of the tile: its entry in seen */
	uint16_t group_of[ATTND_X86_ROWS];
	char *tile_q, *span_q, *copy_v, *backup;
	float *s[2]; /* that tiles which wait together use in turn */
	struct attnd_x86_tile t;
	struct attnd_x86_tile waiting[ATTND_X86_SPAN]; /* for isa->whole */
	uint32_t num_waiting;
};

static size_t take(size_t *used, size_t bytes)
{
	size_t at = *used;

	*used += (bytes + 63) & ~(size_t)63;
	return at;
}

/* A packed query row of elements of this many bytes. */
static size_t packed_q_bytes(const struct attnd_kv_format *f, size_t element)
{
	return ((f->spec.head_dim + 3) / 4 * 4 * element + 63) & ~(size_t)63;
}

/* Lays the scratch out; with base NULL only counts it. */
static size_t lay_out(const struct attnd_kv_format *f, char *base, struct walk *w)
{
	size_t n = 0, dims = f->spec.head_dim > f->spec.head_dim_v ? f->spec.head_dim : f->spec.head_dim_v;
	size_t padded = (dims + ATTND_X86_LANES) * ATTND_X86_LANES * sizeof(float);
	size_t strip = (size_t)ATTND_X86_STEP * ATTND_X86_LANES * sizeof(float);
	size_t q = take(&n, (SPAN + ATTND_X86_ROWS) * packed_q_bytes(f, sizeof(float)));
	size_t s = take(&n, 2 * (size_t)ATTND_X86_ROWS * ATTND_X86_STEP * sizeof(float));
	size_t panel = take(&n, ATTND_X86_PANEL * (padded > strip ? padded : strip));
	size_t stage = take(&n, 2 * ATTND_X86_STEP * ((dims + 31) & ~(size_t)31) * sizeof(uint16_t));
	size_t copy_v = take(&n, ATTND_X86_STEP * (dims + ATTND_X86_LANES) * attnd_kdtype_bytes(f->spec.dtype));
	size_t backup = take(&n, (size_t)ATTND_X86_ROWS * f->partial_bytes);

	if (base) {
		w->t.q_stride = packed_q_bytes(f, w->isa->q_element);
		w->tile_q = base + q;
		w->span_q = w->tile_q + ATTND_X86_ROWS * w->t.q_stride;
		w->t.s = w->s[0] = (float *)(void *)(base + s);
		w->s[1] = w->s[0] + (size_t)ATTND_X86_ROWS * ATTND_X86_STEP;
		w->t.panel = base + panel;
		w->t.stage = base + stage;
		w->copy_v = base + copy_v;
		w->backup = base + backup;
	}
	return n;
}

uint32_t attnd_x86_scratch(const struct attnd_kv_format *fmt)
{
	return (uint32_t)lay_out(fmt, NULL, NULL);
}

/* ---- What rows see ---- */

static uint32_t max_u32(uint32_t a, uint32_t b)
{
	return a > b ? a : b;
}

static uint32_t min_u32(uint32_t a, uint32_t b)
{
	return a < b ? a : b;
}

/* Bits [lo, hi) of 16. */
static uint16_t run_of_bits(uint32_t lo, uint32_t hi)
{
	uint32_t run = lo < hi ? (0xffffu >> (16 - (hi - lo))) << lo : 0;

	return (uint16_t)run;
}

/* 16 mask bits from position j on; positions below mask_start count as set. */
static uint16_t mask_bits(const struct attnd_qrow *row, uint32_t j, uint16_t want)
{
	uint16_t bits = 0;

	for (uint32_t i = 0; i < 16; i++) {
		uint32_t at = j + i - row->mask_start;

		if ((want >> i & 1) && (j + i < row->mask_start || (row->mask[at / 64] >> (at % 64) & 1)))
			bits |= (uint16_t)(1u << i);
	}
	return bits;
}

/* Fills s->bits for the step at `begin`; false if the row sees nothing of it. */
static bool look(const struct attnd_qrow *row, uint32_t begin, struct seen *s)
{
	uint32_t lo = max_u32(row->lo, begin), hi = min_u32(row->hi, begin + ATTND_X86_STEP);
	uint16_t any = 0;

	if (lo >= hi)
		return false;
	s->row = row;
	if (hi - lo == ATTND_X86_STEP && (!row->mask || hi <= row->mask_start)) {
		memset(s->bits, 0xff, sizeof(s->bits));
		return s->whole = true;
	}
	s->whole = false;
	for (uint32_t g = 0; g < ATTND_X86_GROUPS; g++) {
		uint32_t from = begin + g * 16, to = from + 16;

		s->bits[g] = run_of_bits(max_u32(lo, from) - from, hi < from ? 0 : min_u32(hi, to) - from);
		if (lo >= to)
			s->bits[g] = 0;
		if (s->bits[g] && row->mask && to > row->mask_start)
			s->bits[g] = mask_bits(row, from, s->bits[g]);
		any |= s->bits[g];
	}
	return any != 0;
}

/* The groups that any row sees, and who sees all of them. */
static void trim_groups(struct walk *w)
{
	uint32_t lo = ATTND_X86_GROUPS, hi = 0;

	for (uint32_t i = 0; i < w->num_seen; i++)
		for (uint32_t g = 0; g < ATTND_X86_GROUPS; g++)
			if (w->seen[i].bits[g]) {
				lo = min_u32(lo, g);
				hi = max_u32(hi, g + 1);
			}
	if (w->isa->pairs) {
		lo &= ~1u;
		hi += hi & 1;
	}
	for (uint32_t i = 0; i < w->num_seen; i++) {
		uint16_t all = 0xffff;

		for (uint32_t g = lo; g < hi; g++)
			all &= w->seen[i].bits[g];
		w->seen[i].all = all == 0xffff;
		w->edge |= !w->seen[i].all;
	}
	w->first_group = lo;
	w->t.groups = hi - lo;
}

/* Where the tile's groups lie, and its rows' views of them. */
static void frame_tile(struct walk *w, bool whole)
{
	w->edge = false;
	w->first_group = 0;
	w->t.groups = ATTND_X86_GROUPS;
	if (!whole)
		trim_groups(w);
	w->t.position = w->a->begin + w->step * ATTND_X86_STEP + w->first_group * ATTND_X86_LANES;
	for (uint32_t i = 0; i < w->t.rows; i++) {
		const struct seen *s = &w->seen[w->seen_of[i]];

		w->t.visible[i] = whole || s->all ? NULL : s->bits + w->first_group;
	}
}

/* Query rows [first, first + n) of rows x group that see something of the step; false: none. */
static bool take_rows(struct walk *w, uint32_t first, uint32_t n)
{
	uint32_t group = w->a->fmt->spec.group, begin = w->a->begin + w->step * ATTND_X86_STEP;
	uint32_t r = first / group, g = first % group;
	bool whole = true;

	w->num_seen = 0;
	w->t.rows = 0;
	for (uint32_t u = first; u < first + n; r++, g = 0) {
		uint32_t most = min_u32(group - g, first + n - u);

		u += most;
		if (!look(&w->a->rows[r], begin, &w->seen[w->num_seen]))
			continue;
		whole = whole && w->seen[w->num_seen].whole;
		for (uint32_t i = 0; i < most; i++) {
			w->t.row[w->t.rows] = &w->a->rows[r];
			w->seen_of[w->t.rows] = (uint16_t)w->num_seen;
			w->group_of[w->t.rows++] = (uint16_t)(g + i);
		}
		w->num_seen++;
	}
	if (w->t.rows == 0)
		return false;
	frame_tile(w, whole);
	return true;
}

/* ---- Addresses ---- */

/* Groups of 16 slots from `at` on (counted from the list's first slot): head 0's K, and their block. */
static void locate(const struct walk *w, const void *const *list, uint32_t num, uint32_t at, uint32_t groups,
		   struct place *ret)
{
	for (uint32_t g = 0; g < groups; g++, at += ATTND_X86_LANES) {
		uint32_t b = at >> w->block_shift, slot = at & ((1u << w->block_shift) - 1);

		ret[g].block = list && b < num ? list[b] : NULL;
		ret[g].k = slot * w->k_slot;
		ret[g].v = w->v_off + slot * w->v_slot;
		ret[g].scales = slot * sizeof(float);
	}
}

static void locate_step(struct walk *w)
{
	const struct attnd_attend_args *a = w->a;

	locate(w, a->blocks, a->num_blocks, w->t.position - a->start, w->t.groups, w->here);
	for (uint32_t g = 1; g < w->t.groups; g++)
		if (!w->here[g].block)
			w->here[g] = w->here[g - 1];
}

/* The places of step `step` of the call, beyond its last one those of the blocks that come next. */
static void locate_next(struct walk *w, uint32_t step)
{
	const struct attnd_attend_args *a = w->a;

	if (w->located == step)
		return;
	w->located = step;
	if (step < w->steps)
		locate(w, a->blocks, a->num_blocks, a->begin - a->start + step * ATTND_X86_STEP, ATTND_X86_GROUPS,
		       w->there);
	else
		locate(w, a->next, a->num_next, (step - w->steps) * ATTND_X86_STEP, ATTND_X86_GROUPS, w->there);
}

static void point_at_tile(struct walk *w, uint32_t head)
{
	const struct attnd_kv_format *f = w->a->fmt;

	for (uint32_t g = 0; g < w->t.groups; g++) {
		const char *tile = w->here[g].block + head * f->tile_bytes;

		w->t.k[g] = tile + w->here[g].k;
		w->t.v[g] = tile + w->here[g].v;
		w->t.next_k[g] = w->t.next_k_scales[g] = w->t.k[g];
		w->t.next_v[g] = w->t.next_v_scales[g] = w->t.v[g];
		if (w->t.dynamic) {
			const size_t bytes = ATTND_X86_LANES * sizeof(float);

			tile += w->here[g].scales;
			memcpy(w->t.k_scales + g * ATTND_X86_LANES, tile + f->k_scale_off, bytes);
			memcpy(w->t.v_scales + g * ATTND_X86_LANES, tile + f->v_scale_off, bytes);
		}
	}
}

/* The tile `ahead` places after (step, head) in the call's order, which `next` continues. */
static void point_at_next(struct walk *w, uint32_t head)
{
	const struct attnd_kv_format *f = w->a->fmt;
	uint32_t heads = w->a->num_heads, i = head - w->a->head, step = w->step;

	if (w->heads_inside) {
		i += w->ahead;
		for (; i >= heads; i -= heads)
			step++;
	} else if (step + w->ahead < w->steps) {
		step += w->ahead;
	} else if (++i < heads) {
		step = step + w->ahead - w->steps < w->steps ? step + w->ahead - w->steps : 0;
	} else {
		i = 0;
		step += w->ahead;
	}
	locate_next(w, step);
	for (uint32_t g = 0; g < w->t.groups; g++) {
		const char *tile = w->there[g].block;

		if (!tile)
			continue;
		tile += (w->a->head + i) * f->tile_bytes;
		w->t.next_k[g] = tile + w->there[g].k;
		w->t.next_v[g] = tile + w->there[g].v;
		w->t.next_k_scales[g] = tile + w->there[g].scales + f->k_scale_off;
		w->t.next_v_scales[g] = tile + w->there[g].scales + f->v_scale_off;
	}
}

/* The next tile, block after block, for few rows: a step ahead, or all heads' slices, would push each other out of
 * L2. */
static void look_ahead(struct walk *w)
{
	const uint32_t size = w->a->fmt->spec.block_size, parts = size > ATTND_X86_STEP ? size / ATTND_X86_STEP : 1;
	const uint32_t lines = (uint32_t)(w->a->fmt->tile_bytes / 64 / parts);

	for (uint32_t g = 0; g < w->t.groups; g++) {
		if (g * ATTND_X86_LANES % size != 0 || w->t.next_k[g] == w->t.k[g])
			continue;
		w->runs.run[w->runs.num] = w->t.next_k[g];
		w->runs.lines[w->runs.num++] = lines;
		w->runs.left += lines;
	}
}

static const char *query_at(const struct walk *w, const struct attnd_qrow *row, uint32_t head, uint32_t g)
{
	size_t at = (size_t)(head - w->a->head) * w->a->fmt->spec.group + g;

	return (const char *)row->q + at * w->a->attn->q_head_stride;
}

/* Query rows [first, last) of one head to w->span_q. */
static void pack_span(struct walk *w, uint32_t head, uint32_t first, uint32_t last)
{
	uint32_t group = w->a->fmt->spec.group;
	const char *query[ATTND_X86_ROWS];

	for (uint32_t u = first, n; u < last; u += n) {
		n = min_u32(ATTND_X86_ROWS, last - u);
		for (uint32_t i = 0; i < n; i++)
			query[i] = query_at(w, &w->a->rows[(u + i) / group], head, (u + i) % group);
		w->isa->pack_q(query, n, w->a->fmt->spec.head_dim, w->span_q + (u - first) * w->t.q_stride,
			       w->t.q_stride);
	}
}

/* The tile's rows in this head. `packed`: their queries, if all stand there already. */
static void point_at_rows(struct walk *w, uint32_t head, char *packed)
{
	const struct attnd_attend_args *a = w->a;
	const struct attnd_kv_spec *spec = &a->fmt->spec;
	const char *query[ATTND_X86_ROWS];

	for (uint32_t i = 0; i < w->t.rows; i++) {
		const struct attnd_qrow *row = w->t.row[i];
		size_t at = (size_t)(head - a->head) * spec->group + w->group_of[i];

		w->t.partial[i] = (void *)((char *)row->partial + at * a->fmt->partial_bytes);
		if (a->attn->alibi)
			w->t.slope[i] = a->attn->alibi[head * spec->group + w->group_of[i]];
		query[i] = query_at(w, row, head, w->group_of[i]);
	}
	w->t.q = packed ? packed : w->tile_q;
	if (!packed)
		w->isa->pack_q(query, w->t.rows, spec->head_dim, w->t.q, w->t.q_stride);
}

/* ---- Tiles ---- */

/* After the loads: may one of the tile's blocks hold a non-finite value? Pairs with write's release. */
static bool flagged(const struct walk *w, uint32_t head)
{
	const struct attnd_attend_args *a = w->a;
	uint32_t size = a->fmt->spec.block_size, from = w->t.position - a->start;
	uint32_t last = min_u32((from + w->t.groups * ATTND_X86_LANES - 1) / size, a->num_blocks - 1);

	atomic_thread_fence(memory_order_acquire);
	for (uint32_t b = from / size; b <= last; b++)
		if (__atomic_load_n(&a->flags[b][head], __ATOMIC_RELAXED))
			return true;
	return false;
}

/* Element (token i of the group, dim or lane) runs of V in storage order, those of invisible tokens zeroed. */
static void zero_tokens(char *group, size_t token_bytes, size_t element, uint32_t ilv, uint16_t visible)
{
	for (uint32_t i = 0; i < ATTND_X86_LANES; i++) {
		char *row = group + i / ilv * (ATTND_X86_LANES * ilv * element) + i % ilv * element;

		if (visible >> i & 1)
			continue;
		for (size_t at = 0; at < token_bytes; at += ilv * element)
			memset(row + at, 0, element);
	}
}

/* V of the tile's groups into copy_v, strip after strip, with what this row does not see zeroed. */
static void copy_visible_v(struct walk *w, const uint16_t *visible)
{
	const struct attnd_kv_format *f = w->a->fmt;
	size_t es = attnd_kdtype_bytes(f->spec.dtype), group = ATTND_X86_LANES * ATTND_X86_LANES * es;

	for (uint32_t j = 0; j < w->t.strips; j++)
		for (uint32_t g = 0; g < w->t.groups; g++) {
			char *to = w->copy_v + (j * ATTND_X86_GROUPS + g) * group;

			memcpy(to, w->t.v[g] + j * w->t.v_stride, group);
			zero_tokens(to, ATTND_X86_LANES * f->v_ilv * es, es, f->v_ilv, visible[g]);
		}
}

/* K as V: whole groups, their invisible tokens (lanes) zeroed. */
static void copy_visible_k(struct walk *w, const uint16_t *visible)
{
	const struct attnd_kv_format *f = w->a->fmt;
	size_t lane = f->k_ilv * attnd_kdtype_bytes(f->spec.dtype), row = ATTND_X86_LANES * lane;

	for (uint32_t g = 0; g < w->t.groups; g++) {
		char *to = w->copy_v + g * w->t.k_rows * row;

		memcpy(to, w->t.k[g], w->t.k_rows * row);
		for (uint32_t i = 0; i < ATTND_X86_LANES; i++)
			for (uint32_t d = 0; !(visible[g] >> i & 1) && d < w->t.k_rows; d++)
				memset(to + d * row + i * lane, 0, lane);
	}
}

/* Does t.stage hold other groups than the tile's? It will hold these. */
static bool is_fresh(struct walk *w, uint32_t head)
{
	const uint32_t now[4] = {head, w->step, w->t.position, w->t.groups};
	bool fresh = memcmp(w->staged, now, sizeof(now)) != 0;

	memcpy(w->staged, now, sizeof(now));
	return fresh;
}

static void values_alone(struct walk *w)
{
	static const uint16_t all[ATTND_X86_GROUPS] = {0xffff, 0xffff, 0xffff, 0xffff,
						       0xffff, 0xffff, 0xffff, 0xffff};
	const struct attnd_kv_format *f = w->a->fmt;
	size_t es = attnd_kdtype_bytes(f->spec.dtype);
	struct attnd_x86_tile t = w->t;
	uint32_t held = UINT32_MAX;

	if (!f->spec.v_in_k)
		t.v_stride = (size_t)ATTND_X86_STEP * ATTND_X86_LANES * es;
	for (uint32_t g = 0; g < t.groups; g++)
		t.v[g] = w->copy_v +
			 g * es * ATTND_X86_LANES * (f->spec.v_in_k ? (size_t)t.k_rows * f->k_ilv : ATTND_X86_LANES);
	memcpy(t.next_v, t.v, sizeof(t.v));
	t.fresh = true;
	w->staged[0] = UINT32_MAX;
	for (uint32_t i = 0; i < t.rows; i++) {
		const uint16_t *visible = t.visible[i] ? t.visible[i] : all;

		if (held != w->seen_of[i]) {
			held = w->seen_of[i];
			(f->spec.v_in_k ? copy_visible_k : copy_visible_v)(w, visible);
		}
		w->isa->values(&t, i, 1);
	}
}

/* An edge tile keeps its partials' acc, to begin again if a writer set a flag meanwhile. */
static void values_at_edge(struct walk *w, uint32_t head)
{
	size_t bytes = w->a->fmt->partial_bytes - offsetof(struct attnd_partial, acc);

	if (!flagged(w, head)) {
		for (uint32_t i = 0; i < w->t.rows; i++)
			memcpy(w->backup + i * bytes, w->t.partial[i]->acc, bytes);
		w->isa->values(&w->t, 0, w->t.rows);
		if (!flagged(w, head))
			return;
		for (uint32_t i = 0; i < w->t.rows; i++)
			memcpy(w->t.partial[i]->acc, w->backup + i * bytes, bytes);
	}
	values_alone(w);
}

static void run_waiting(struct walk *w)
{
	if (w->num_waiting > 0)
		w->isa->whole(w->waiting, w->num_waiting);
	w->num_waiting = 0;
}

static void multiply_tile(struct walk *w, uint32_t head, bool packed)
{
	if (w->isa->whole && !w->edge) {
		if (!packed)
			run_waiting(w);
		w->t.s = w->s[w->num_waiting % 2];
		w->waiting[w->num_waiting++] = w->t;
		w->t.s = w->s[0];
		if (!packed || w->num_waiting == ATTND_X86_SPAN)
			run_waiting(w);
		return;
	}
	run_waiting(w);
	w->isa->scores(&w->t);
	w->isa->softmax(&w->t);
	if (w->edge)
		values_at_edge(w, head);
	else
		w->isa->values(&w->t, 0, w->t.rows);
}

static void attend_tile(struct walk *w, uint32_t head, char *packed, bool prefetch)
{
	bool few = w->t.rows <= w->isa->keeps_above;

	point_at_tile(w, head);
	w->runs.num = w->runs.at = w->runs.left = 0;
	if (prefetch)
		point_at_next(w, head);
	if (few && prefetch)
		look_ahead(w);
	point_at_rows(w, head, packed);
	w->t.fresh = few || is_fresh(w, head);
	if (w->num_waiting > 0 && (w->t.groups != w->waiting->groups || w->t.position != w->waiting->position))
		run_waiting(w);
	multiply_tile(w, head, packed != NULL);
}

static void init_format(struct walk *w)
{
	const struct attnd_kv_format *f = w->a->fmt;
	size_t es = attnd_kdtype_bytes(f->spec.dtype), tile = f->tile_bytes / f->spec.block_size * ATTND_X86_STEP;
	bool in_k = f->spec.v_in_k;

	w->ahead = tile < PREFETCH_BYTES ? (uint32_t)((PREFETCH_BYTES + tile - 1) / tile) : 1;
	w->block_shift = (uint32_t)__builtin_ctz(f->spec.block_size);
	w->t.k_rows = (f->spec.head_dim + f->k_ilv - 1u) / f->k_ilv;
	w->t.strips = (f->spec.head_dim_v + ATTND_X86_LANES - 1) / ATTND_X86_LANES;
	w->t.v_rows = ATTND_X86_LANES / f->v_ilv;
	w->k_slot = (size_t)w->t.k_rows * f->k_ilv * es;
	w->v_slot = in_k ? w->k_slot : ATTND_X86_LANES * es;
	w->v_off = in_k ? 0 : f->v_off;
	/* A strip of K is as many dims as one of V. */
	w->t.v_stride = (size_t)(in_k ? ATTND_X86_LANES : f->spec.block_size) * ATTND_X86_LANES * es;
}

static void init_walk(struct walk *w)
{
	const struct attnd_attend_args *a = w->a;
	const struct attnd_attn *attn = a->attn;
	bool fixed = a->fmt->spec.scale == ATTND_K_SCALE_STATIC;

	lay_out(a->fmt, a->scratch, w);
	init_format(w);
	w->steps = (a->end - a->begin + ATTND_X86_STEP - 1) / ATTND_X86_STEP;
	w->located = UINT32_MAX;
	w->staged[0] = UINT32_MAX;
	w->t.args = a;
	w->t.ahead = &w->runs;
	w->t.set_up = &w->set_up;
	w->set_up = 0;
	w->num_waiting = 0;
	w->t.dynamic = a->fmt->spec.scale == ATTND_K_SCALE_DYNAMIC;
	w->t.scale = fixed ? attn->sm_scale * attn->k_scale : attn->sm_scale;
	w->t.v_scale = !fixed ? 1.0f : a->fmt->spec.v_in_k ? attn->k_scale : attn->v_scale;
	w->t.shaped = attn->logit_cap > 0.0f || attn->alibi || w->t.dynamic || !(w->t.scale > 0.0f);
}

/* Query rows [first, last) of one head in one step, whose K and V stay in L2 meanwhile. */
static void attend_span(struct walk *w, uint32_t head, uint32_t first, uint32_t last)
{
	for (uint32_t u = first, n; u < last; u += n) {
		n = min_u32(ATTND_X86_ROWS, last - u);
		if (!take_rows(w, u, n))
			continue;
		locate_step(w);
		attend_tile(w, head, w->t.rows == n ? w->span_q + (u - first) * w->t.q_stride : NULL, u == first);
	}
	run_waiting(w);
}

void attnd_x86_attend(const struct attnd_attend_args *a, const struct attnd_x86_isa *isa)
{
	struct walk w;
	uint32_t all = a->num_rows * a->fmt->spec.group;

	w.a = a;
	w.isa = isa;
	init_walk(&w);
	w.heads_inside = all <= FEW_ROWS;
	if (w.heads_inside) {
		for (w.step = 0; w.step < w.steps; w.step++)
			if (take_rows(&w, 0, all)) {
				locate_step(&w);
				for (uint32_t h = a->head; h < a->head + a->num_heads; h++)
					attend_tile(&w, h, NULL, true);
			}
		return;
	}
	for (uint32_t h = a->head; h < a->head + a->num_heads; h++)
		for (uint32_t first = 0; first < all; first += SPAN) {
			pack_span(&w, h, first, min_u32(first + SPAN, all));
			for (w.step = 0; w.step < w.steps; w.step++)
				attend_span(&w, h, first, min_u32(first + SPAN, all));
		}
}
