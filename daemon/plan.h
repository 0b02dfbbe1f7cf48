/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Plans: one step of a batch. Here a step can fail; its jobs then only compute.
 *
 * In:   rows (sequence, start, tokens, publish_upto, mask) that intake copied out of the arena.
 * Out:  for each row its blocks as a whole, or a status; the block tables that jobs read.
 * Next: exec.c runs one job a layer over it; its LAST job commits and publishes.
 *
 * What a row changes in its sequence's block table stands beside the table (`ext`) until the
 * plan commits, so that an abandoned plan leaves nothing and takes nothing away: a row that starts
 * before the sequence's end writes into blocks of its own, and rolls back when it commits. One
 * owner: the leader; workers read.
 */
#ifndef ATTND_DAEMON_PLAN_H
#define ATTND_DAEMON_PLAN_H

#include "engine.h"

struct work_list;

struct plan_row {
	struct seq *seq; /* NULL: refused */
	int32_t status;
	uint32_t start, n; /* tokens [start, start + n) of the sequence */
	uint32_t cached;   /* of these, the first ones that the tree already had: not written */
	uint32_t first;	   /* index of its first token in the batch */
	uint32_t flags;	   /* ATTND_ROW_* */
	uint64_t upto;
	const uint64_t *mask; /* [n][mask_words] or NULL */
	uint32_t mask_words;
	bool back;     /* the sequence holds more than `start`: it is rolled back with the commit */
	uint32_t from; /* block index where ext begins to stand for the table */
	uint32_t num_ext;
	struct table_entry *ext;
	uint32_t fresh; /* block indices from here on are new blocks */
	bool copies;	/* block index `from_copy` begins as a copy of `source`'s first slots */
	uint32_t copy_index, copy_slots;
	struct table_entry source;
	uint32_t stand; /* of the tokens taken over, held; NONE: nothing was */
};

struct plan {
	const void *session; /* that made it */
	struct engine *engine;
	struct cache *cache;
	uint32_t cache_index;
	uint32_t tag;
	uint32_t num_rows, num_tokens;
	uint32_t max_row; /* tokens of the longest row */
	struct plan_row *rows;
	struct table_entry *ext;
	uint64_t *masks;
	uint64_t written[ATTND_MAX_LAYERS / 64];
	bool committed, publishing;
	uint32_t publish_row;		  /* the next */
	bool orphan;			  /* let go of while a job ran: ends when it is done */
	uint32_t running;		  /* jobs */
	uint32_t epoch;			  /* of slabs_read, while one runs */
	struct plan *run_prev, *run_next; /* of the cache, while one runs */
	struct work_list *work;		  /* work.c's */
	uint64_t heap;			  /* bytes of all this */
	struct plan **list;		  /* of the session */
	struct plan *next;
};

/* A row's block at a block index, whether the plan has committed or not. */
static inline const struct table_entry *plan_entry(const struct plan *p, const struct plan_row *r, uint32_t index)
{
	return index >= r->from ? &r->ext[index - r->from] : &r->seq->in[p->cache_index].held.table[index];
}

/** A row as intake copied it: tokens and mask are leader memory. */
struct row_request {
	struct attnd_wire_row wire;
	const uint64_t *tokens;
	const uint64_t *mask;
	int32_t refuse; /* 0, or why it is refused before it is looked at */
};

/**
 * Make a plan of rows whose numbers intake has checked. Each row gets all it needs or a status.
 * Fails as a whole only with -ENOMEM (memory of the daemon itself), -EBUSY: a job is running
 * on one of the sequences, or its open is under way; try again; or -EAGAIN: a slab is on its way (slabs.h).
 */
int plan_make(const void *session, struct engine *e, uint32_t cache_index, uint32_t tag,
	      const struct row_request *rows, uint32_t num_rows, struct plan **list, struct plan **ret);

/** No plan can name this sequence now: a job runs on it, or it is being opened. */
bool plan_busy(const struct engine *e, uint32_t cache_index, uint64_t key);

/** The plan under this tag, or NULL. */
struct plan *plan_find(struct plan *list, uint32_t tag);

/** The LAST job succeeded: its tokens become part of the sequences. `publishing` until plan_publish has done all. */
void plan_commit_begin(struct plan *p);
/** Publish some of them. True when that was all. */
bool plan_publish(struct plan *p);
/** Both, at once. */
void plan_commit(struct plan *p);

/** End a plan that no job runs on. Uncommitted tokens are dropped. */
void plan_end(struct plan *p);

/**
 * A sequence of it is closed or trimmed by session `by` (NULL: the engine's end). Ends it if
 * that is what it means: its tokens are in already, or its own session gives them up.
 */
void plan_let_go(struct plan *p, const void *by);

/** A job of it begins, or has ended. */
void plan_run(struct plan *p);
void plan_ran(struct plan *p);

/** May jobs of it write to this block? */
bool plan_writes(const struct plan *p, uint32_t id);

/** The first layer that has not been written in it, or -1. */
int plan_missing_layer(const struct plan *p);

#endif
