/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How a plan's work is cut: made once, used by every layer's job.
 *
 * In:   a plan's rows with their block tables.
 * Out:  items to write K/V, to attend, and to merge.
 * Next: exec.c runs them.
 *
 * Rows are ordered so that those which share blocks stand together: the block tables form a
 * trie, and each of its nodes is a run of keys [begin, end) that a range of query tokens in that
 * order reads from the same blocks. Nodes begin and end at multiples of the kernels' step (where
 * rows part inside a step, each reads that step for itself), the last of a row at its end.
 *
 * (These nodes are the trie's; where memory is meant it says NUMA node.)
 *
 * A tile is up to TILE_QROWS query rows that lie under one root of the trie. An attend item is a
 * part of a tile x a range of heads x an aligned run of chunks. How it is cut never shows in the
 * result: partials of chunks are folded along one fixed binary tree over chunk indices.
 */
#ifndef ATTND_DAEMON_WORK_H
#define ATTND_DAEMON_WORK_H

#include "plan.h"

#define WORK_NO_SLOT UINT64_MAX

struct write_item {
	uint32_t row, rows; /* whole rows [row, row + rows), or of one row: */
	uint32_t from, to;  /* its tokens [from, to), relative to its start; to 0: all */
};

struct work_token {
	uint32_t row;	/* of the plan */
	uint32_t index; /* of the row's tokens */
};

struct work_node {
	uint32_t token0, token1; /* in the order */
	uint32_t begin, end;	 /* keys */
	uint32_t row;		 /* whose table serves */
};

struct work_tile {
	uint32_t token0, token1;
	uint32_t node0, nodes; /* in tile_nodes */
};

struct attend_item {
	uint32_t tile;
	uint32_t token0, token1;
	uint32_t node, head, heads; /* KV heads of the NUMA node, counted there */
	uint32_t chunk0, chunk1;
	uint64_t slot; /* of its partials; WORK_NO_SLOT: finish at once */
};

struct merge_item {
	uint32_t token0, token1;
	uint32_t node, head, heads;
	uint32_t item0, item1; /* attend items of the tile and heads, by run, then by token */
	uint32_t shift;	       /* runs of 2^shift chunks */
};

/* Items of one kind of layer. */
struct attend_list {
	struct attend_list *next;
	uint32_t window;
	bool causal;
	struct attend_item *items;
	struct merge_item *merges;
	struct work_tile *tiles;
	uint32_t *tile_nodes;
	uint32_t *by_node; /* items in the order of their NUMA nodes; NULL: they stand so */
	uint32_t num_items, num_merges, num_tiles, num_tile_nodes;
	uint32_t node_item[POOL_MAX_NODES + 1], node_merge[POOL_MAX_NODES + 1]; /* where each NUMA node's begin */
	uint32_t cap_items, cap_merges, cap_tiles, cap_tile_nodes;
	char *partials;
	uint64_t partial_bytes;
	uint64_t heap;	/* bytes of all this */
	double cost_ns; /* of all, on one thread */
};

struct work_list {
	struct write_item *writes;
	uint32_t num_writes;
	uint32_t write_tokens; /* that a job writes or copies, about */
	uint32_t zero_tokens;  /* of refused rows: their out is zeroed */
	struct work_token *order;
	uint32_t num_tokens;
	struct work_node *nodes; /* depth first, parents before children */
	uint32_t num_nodes, cap_nodes;
	struct attend_list *lists;
	struct heap_use *heap;
};

/** The plan's work, without attend lists. NULL: no memory. */
struct work_list *work_make(const struct plan *p);
void work_free(struct work_list *w);

/** The list for a window and causality, made at its first use, for `threads` members. NULL: no memory. */
struct attend_list *work_attend(struct work_list *w, const struct plan *p, uint32_t window, bool causal,
				uint32_t threads);

/** The list that work_attend made before. */
static inline struct attend_list *work_find(const struct work_list *w, uint32_t window, bool causal)
{
	struct attend_list *l = w->lists;

	while (l && (l->window != window || l->causal != causal))
		l = l->next;
	return l;
}

/** Keys [lo, hi) that a row's token sees, before its mask. */
static inline void work_visible(const struct plan_row *r, uint32_t index, uint32_t window, bool causal, uint32_t *lo,
				uint32_t *hi)
{
	uint32_t pos = r->start + index;

	*hi = causal ? pos + 1 : r->start + r->n;
	*lo = window && pos + 1 > window ? pos + 1 - window : 0;
}

#endif
