/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the x86-64 attend kernels share: the tile that they work on, and the loops around it.
 *
 * In:   attend's arguments and one ISA's arithmetic (struct attnd_x86_isa).
 * Out:  calls of that arithmetic, one tile after the other, with addresses worked out.
 * Next: x86.c walks; attend_avx512*.c, attend_avx2.c and attend_amx.c compute.
 *
 * A tile is one step (128 tokens) of one KV head with up to 64 query rows. Every sum's order is
 * fixed by positions in the step: a score adds dims in order, a weight sum adds tokens into lanes
 * by position, acc adds tokens in order. Invisible tokens weigh 0 and V is finite (or zeroed, see
 * x86.c), so rows that share a tile change nothing in each other.
 */
#ifndef ATTND_KERNELS_X86_H
#define ATTND_KERNELS_X86_H

#include "kernels.h"
#include "partial.h"

enum {
	ATTND_X86_STEP = 128, /* tokens */
	ATTND_X86_LANES = 16, /* tokens of a K group, dims of a V strip */
	ATTND_X86_GROUPS = ATTND_X86_STEP / ATTND_X86_LANES,
	ATTND_X86_ROWS = 64,   /* query rows of a tile */
	ATTND_X86_SPAN = 4,    /* tiles whose queries and acc stay in L2 together */
	ATTND_X86_STRIPS = 36, /* head_dim_v <= 576 */
	ATTND_X86_PANEL = 4,   /* groups or strips that stand in L1 together */
};

/* Memory to prefetch: runs of lines. */
struct attnd_x86_ahead {
	const char *run[ATTND_X86_GROUPS];
	uint32_t lines[ATTND_X86_GROUPS];
	uint32_t at, num; /* the current run; of all */
	uint32_t left;	  /* lines of all runs */
};

struct attnd_x86_tile {
	const struct attnd_attend_args *args;
	uint32_t rows;	   /* query rows */
	uint32_t groups;   /* 16-token groups that some row sees */
	uint32_t position; /* of the first group's first token */
	uint32_t k_rows;   /* stored rows of a K group: ceil(head_dim / k_ilv) */
	uint32_t strips;   /* ceil(head_dim_v / 16) */
	uint32_t v_rows;   /* stored rows of a V strip's group: 16 / v_ilv */
	size_t v_stride;   /* bytes from a strip to the next; of K with v_in_k */
	size_t q_stride;   /* bytes from a packed query row to the next */

	/* As stored (with v_in_k v is k); the tile to prefetch meanwhile (never NULL). */
	const char *k[ATTND_X86_GROUPS], *v[ATTND_X86_GROUPS];
	const char *next_k[ATTND_X86_GROUPS], *next_v[ATTND_X86_GROUPS];
	const char *next_k_scales[ATTND_X86_GROUPS], *next_v_scales[ATTND_X86_GROUPS];
	/* Dynamic only: a copy, since blocks' scales lie where they push each other out of L1. */
	float k_scales[ATTND_X86_STEP], v_scales[ATTND_X86_STEP];

	float scale; /* score = scale * (q . k) in natural units; 1 once shaped */
	float v_scale;
	bool dynamic; /* scales a token */
	bool shaped;  /* cap, ALiBi, dynamic scales or a scale <= 0: scores take a pass of their own */

	const struct attnd_qrow *row[ATTND_X86_ROWS];
	const uint16_t *visible[ATTND_X86_ROWS]; /* [groups] bits of tokens; NULL: all */
	struct attnd_partial *partial[ATTND_X86_ROWS];
	float slope[ATTND_X86_ROWS];

	char *q;     /* [rows][q_stride], packed by pack_q */
	float *s;    /* [rows][ATTND_X86_STEP]: scores, then weights in the form that values wants */
	char *panel; /* for widened operands */
	char *stage; /* for a whole step's operands, kept from tile to tile */
	bool fresh;  /* K and V are not those of the tile before */

	struct attnd_x86_ahead *ahead; /* for isa->keeps_above: this tile's share, while there are few rows */
	uint32_t *set_up;	       /* the isa's own, 0 when attend begins */
};

/* Lines for each of `calls` calls of attnd_prefetch_ahead, so that they cover all. */
static inline uint32_t attnd_ahead_share(const struct attnd_x86_ahead *a, uint32_t calls)
{
	return (a->left + calls - 1) / calls;
}

static inline void attnd_prefetch_ahead(struct attnd_x86_ahead *a, uint32_t lines)
{
	while (lines > 0 && a->at < a->num) {
		uint32_t n = a->lines[a->at] < lines ? a->lines[a->at] : lines;
		const char *p = a->run[a->at];

		for (uint32_t i = 0; i < n; i++)
			__builtin_prefetch(p + (size_t)i * 64, 0, 2);
		a->run[a->at] += (size_t)n * 64;
		a->lines[a->at] -= n;
		a->left -= n;
		a->at += a->lines[a->at] == 0;
		lines -= n;
	}
}

/* One kernel's arithmetic. */
struct attnd_x86_isa {
	/** Bytes of a dim of packed q. */
	uint32_t q_element;
	/** `rows` query rows to `to`, q_stride apart, as scores wants them: zero in the padding dims of K. */
	void (*pack_q)(const char *const *query, uint32_t rows, uint32_t dims, char *to, size_t q_stride);
	/** t->s = q . k for all rows and groups. */
	void (*scores)(const struct attnd_x86_tile *t);
	/** Scores to weights; partials' m and l move on, acc is rescaled where m moves. */
	void (*softmax)(const struct attnd_x86_tile *t);
	/** acc += weights . V for rows [first, first + n). */
	void (*values)(const struct attnd_x86_tile *t, uint32_t first, uint32_t n);
	/**
	 * All three at once, where every row sees every slot, for up to ATTND_X86_SPAN tiles of one
	 * step and head; all but one alone have their queries side by side. NULL: one after the other.
	 */
	void (*whole)(const struct attnd_x86_tile *tiles, uint32_t n);
	/** Groups come in pairs, the first at an even place in the step; what is beyond the blocks weighs 0. */
	bool pairs;
	/** More rows than this keep K and V in t.stage; fewer prefetch t.ahead. 0: neither. */
	uint32_t keeps_above;
};

/** The loops of attend. */
void attnd_x86_attend(const struct attnd_attend_args *a, const struct attnd_x86_isa *isa);

/** Scratch that attnd_x86_attend uses for this format. */
uint32_t attnd_x86_scratch(const struct attnd_kv_format *fmt);

#endif
