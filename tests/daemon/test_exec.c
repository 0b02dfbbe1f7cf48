/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Execution: an output row depends on its own tokens and on nothing else, to the bit, and is what
 * float64 arithmetic says, within bounds.
 *
 * In:   random batches over a small pool, with the machine's kernels. Out: TAP.
 * Next: daemon/exec.c, work.c, plan.c.
 *
 * K, V and q of a token are made from a hash of all tokens before it. So whatever plan computes a
 * token, alone or with others, cut in whatever way, hit, taken over or written: its output has to
 * be the one that was seen first for that hash.
 */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "../../daemon/exec.h"
#include "../../kernels/cpu.h"
#include "world.h"

enum {
	LAYERS = 2,
	SEQS = 10,
	FILLED = 4, /* of them, where rows are short */
	ROWS = 6,
	LEN_MAX = 2600,
	ROW_MAX = 700,
	KINDS = 4,    /* of layers: parameter sets; the last one is not causal */
	MASKED = 100, /* tokens of a masked row, at most */
	TEAMS = 4,
	SEEN = 1 << 18,
	CHECKED = 6, /* output rows of a step that are compared with float64 */
};

struct geometry {
	const char *name;
	uint32_t heads, kv_heads, dim, dim_v, block_size;
	uint8_t dtype, layout, v_in_k;
	uint8_t in;	    /* of q, k and v */
	uint8_t scale_mode; /* of int8: its rounding is not in the reference, so that only sameness is checked */
};

static const struct geometry geometries[] = {
	{"f32, groups of 2", 4, 2, 32, 32, 16, ATTND_WIRE_F32, ATTND_WIRE_PACKED, 0, ATTND_K_F32, 0},
	{"bf16, groups of 8, blocks of 32", 8, 1, 64, 48, 32, ATTND_WIRE_BF16, ATTND_WIRE_PACKED, 0, ATTND_K_F32, 0},
	{"f32, groups of 16, blocks of 256", 32, 2, 16, 16, 256, ATTND_WIRE_F32, ATTND_WIRE_PACKED, 0, ATTND_K_F32,
	 0},
	{"f32 token slots", 2, 2, 16, 16, 1, ATTND_WIRE_F32, ATTND_WIRE_BSHD, 0, ATTND_K_F32, 0},
	{"f32 rows, V in K", 4, 1, 72, 64, 64, ATTND_WIRE_F32, ATTND_WIRE_BHSD, 1, ATTND_K_F32, 0},
	{"bf16 queries, groups of 4", 8, 2, 128, 128, 16, ATTND_WIRE_BF16, ATTND_WIRE_PACKED, 0, ATTND_K_BF16, 0},
	{"bf16 queries, one head, V in K", 8, 1, 96, 64, 32, ATTND_WIRE_BF16, ATTND_WIRE_PACKED, 1, ATTND_K_BF16, 0},
	{"bf16 queries, int8", 4, 2, 64, 64, 16, ATTND_WIRE_INT8, ATTND_WIRE_PACKED, 0, ATTND_K_BF16,
	 ATTND_WIRE_SCALE_DYNAMIC},
};

/* What is taken from the machine's CPU, so that each of its kernels has its turn. */
static const struct mask {
	const char *names;
	bool bf16; /* matters to bf16 queries only */
} masks[] = {
	{"", false},	   {"amx-bf16", true}, {"amx-bf16,slow-dpbf16", true}, {"avx512-bf16,amx-bf16", true},
	{"avx512", false}, {"zvfh", false},    {"zvfbfwma,zvfbfmin", true},    {"none", false},
};
#define FAR  (UINT64_C(1) << 29) /* 48 of them */
#define NEAR (UINT64_C(1) << 34) /* 2^32 elements of 4 bytes */

enum { MASKS = sizeof(masks) / sizeof(masks[0]) };

/* What one test runs. */
struct variant {
	const struct geometry *g;
	uint64_t features;
	uint32_t nodes;
	bool first; /* of its geometry */
	bool far;   /* slabs lie FAR bytes apart */
	char name[96];
};

struct text {
	bool open;
	uint64_t key, ns;
	uint32_t len;
	uint64_t token[LEN_MAX], hash[LEN_MAX];
};

struct fixture {
	const struct geometry *g;
	struct world world;
	struct engine *engine;
	struct cache *cache;
	struct plan *plans;
	struct params params[KINDS];
	float *sinks, *alibi;
	struct topology topology;
	struct team team[TEAMS];
	uint64_t random, keys;
	uint32_t most_slabs;
	struct text *text; /* [SEQS] */
	struct {
		uint64_t hash, bits;
	} *seen; /* [SEEN] */
	uint32_t num_seen, again;
	uint32_t row_max; /* tokens of a row */
	void *q, *k, *v;  /* in g->in */
	float *out[2], *lse[2];
};

static uint32_t pick(struct fixture *f, uint32_t n)
{
	return (uint32_t)(next_random(&f->random) >> 33) % n;
}

static uint64_t mix(uint64_t a, uint64_t b)
{
	uint64_t x = (a ^ (b * UINT64_C(0x9e3779b97f4a7c15))) + UINT64_C(0x632be59bd9b4e019);

	x = (x ^ x >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
	x = (x ^ x >> 27) * UINT64_C(0x94d049bb133111eb);
	return x ^ x >> 31;
}

/* A number in [-2, 2) that bf16 holds exactly. */
static float value(uint64_t hash, uint32_t what, uint32_t layer, uint32_t head, uint32_t d)
{
	uint64_t x = mix(hash, (uint64_t)what << 48 | (uint64_t)layer << 32 | head << 16 | d);

	return (float)((int)(x & 255) - 128) / 64.0f;
}

static float k_value(uint64_t hash, uint32_t layer, uint32_t head, uint32_t d)
{
	return value(hash, 1, layer, head, d);
}

static float v_value(const struct fixture *f, uint64_t hash, uint32_t layer, uint32_t head, uint32_t d)
{
	return value(hash, f->g->v_in_k ? 1 : 2, layer, head, d);
}

/* ---- The reference ---- */

struct visible {
	uint32_t lo, hi;
	uint32_t start;	      /* of the row */
	const uint64_t *mask; /* of the token, or NULL */
};

static struct visible sees(const struct params *p, const struct row_request *r, uint32_t n)
{
	uint32_t start = (uint32_t)r->wire.start, pos = start + n, words = (r->wire.num_tokens + 63) / 64;
	struct visible v = {.hi = p->causal ? pos + 1 : start + r->wire.num_tokens, .start = start};

	v.lo = p->sliding_window && pos + 1 > p->sliding_window ? pos + 1 - p->sliding_window : 0;
	v.mask = r->mask ? r->mask + (size_t)n * words : NULL;
	return v;
}

static bool visible(const struct visible *v, uint32_t j)
{
	return j < v->start || !v->mask || (v->mask[(j - v->start) / 64] >> ((j - v->start) % 64) & 1);
}

/* Score of key j and what f32 arithmetic may add to it. */
static double score(const struct fixture *f, const struct params *p, const struct text *t, uint32_t pos,
		    uint32_t layer, uint32_t h, uint32_t j, double *ret_err)
{
	double dot = 0, size = 0, s;

	for (uint32_t d = 0; d < f->g->dim; d++) {
		double x = (double)value(t->hash[pos], 3, layer, h, d) *
			   (double)k_value(t->hash[j], layer, h / (f->g->heads / f->g->kv_heads), d);

		dot += x;
		size += fabs(x);
	}
	s = dot * (double)p->attn.sm_scale;
	*ret_err = (f->g->dim + 4) * 0x1p-24 * size * (double)p->attn.sm_scale;
	if (p->attn.logit_cap > 0) {
		s = (double)p->attn.logit_cap * tanh(s / (double)p->attn.logit_cap);
		*ret_err += 8 * 0x1p-24 * fabs(s);
	}
	if (p->alibi) {
		s += (double)p->alibi[h] * ((double)j - pos);
		*ret_err += 4 * 0x1p-24 * fabs(s) + 2 * 0x1p-24 * fabs((double)p->alibi[h] * ((double)j - pos));
	}
	return s;
}

/* The largest score that is visible, and the largest error of one. */
static double fill_scores(const struct fixture *f, const struct params *p, const struct text *t, uint32_t pos,
			  uint32_t layer, uint32_t h, const struct visible *see, double *s, double *ret_err)
{
	double max = p->sinks ? (double)p->sinks[h] : -INFINITY, e;

	*ret_err = 0;
	for (uint32_t j = see->lo; j < see->hi; j++) {
		s[j - see->lo] = visible(see, j) ? score(f, p, t, pos, layer, h, j, &e) : -INFINITY;
		if (isinf(s[j - see->lo]))
			continue;
		max = fmax(max, s[j - see->lo]);
		*ret_err = fmax(*ret_err, e);
	}
	return max;
}

/* One head of one token against its output: out is a weighted mean, so its error is that of the weights. */
static void check_head(const struct fixture *f, const struct params *p, const struct text *t,
		       const struct row_request *r, uint32_t n, uint32_t layer, uint32_t h, const float *out,
		       float lse)
{
	struct visible see = sees(p, r, n);
	uint32_t pos = (uint32_t)r->wire.start + n, kv_head = h / (f->g->heads / f->g->kv_heads);
	double *s = malloc((see.hi - see.lo) * sizeof(*s)), max, sum = 0, err, rel;

	assert_non_null(s);
	max = fill_scores(f, p, t, pos, layer, h, &see, s, &err);
	for (uint32_t j = see.lo; j < see.hi; j++)
		sum += exp(s[j - see.lo] - max);
	sum += p->sinks ? exp((double)p->sinks[h] - max) : 0;
	/* Each weight: its score's error, the maximum's, exp, and rounding in sums and merges; to bf16 before P.V. */
	rel = 2 * (2 * err + 64 * 0x1p-24) + (see.hi - see.lo + 64) * 0x1p-24;
	rel += f->g->in == ATTND_K_BF16 ? 2 * 0x1p-8 : 0;
	for (uint32_t d = 0; d < f->g->dim_v; d++) {
		double want = 0, size = 0;

		for (uint32_t j = see.lo; j < see.hi; j++) {
			double w = exp(s[j - see.lo] - max) / sum,
			       v = (double)v_value(f, t->hash[j], layer, kv_head, d);

			want += w * v;
			size += w * fabs(v);
		}
		if (!(fabs((double)out[d] - want) <= rel * size + 0x1p-100))
			fail_msg("%s: position %u, head %u, dim %u: %g is not %g", f->g->name, pos, h, d,
				 (double)out[d], want);
	}
	sum = max + log(sum);
	if (!(fabs((double)lse - sum) <= rel + 4 * 0x1p-24 * fabs(sum)))
		fail_msg("%s: position %u, head %u: lse %g is not %g", f->g->name, pos, h, (double)lse, sum);
	free(s);
}

/* ---- Outputs seen ---- */

static uint64_t bits_of(const void *p, size_t bytes)
{
	const unsigned char *c = p;
	uint64_t h = bytes, x;

	for (size_t i = 0; i + 8 <= bytes; i += 8) {
		memcpy(&x, c + i, 8);
		h = mix(h, x);
	}
	return h | 1;
}

static void check_seen(struct fixture *f, uint64_t hash, uint64_t bits)
{
	uint64_t i = hash & (SEEN - 1);

	while (f->seen[i].bits && f->seen[i].hash != hash)
		i = (i + 1) & (SEEN - 1);
	if (f->seen[i].bits) {
		f->again++;
		if (f->seen[i].bits != bits)
			fail_msg("%s: other bits than before for the same tokens", f->g->name);
	} else if (f->num_seen < SEEN / 2) {
		f->num_seen++;
		f->seen[i].hash = hash;
		f->seen[i].bits = bits;
	}
}

/* ---- One plan ---- */

struct batch {
	struct row_request request[ROWS];
	struct text *text[ROWS]; /* NULL: an unknown key */
	uint64_t tokens[ROWS][ROW_MAX];
	uint64_t mask[ROWS][MASKED * 2];
	uint32_t num, num_tokens;
	bool noncausal; /* all rows are */
};

static void put_text(struct text *t, uint32_t at, const uint64_t *tokens, uint32_t n)
{
	for (t->len = at; n--; t->len++) {
		t->token[t->len] = *tokens++;
		t->hash[t->len] = mix(t->len ? t->hash[t->len - 1] : t->ns + 77, t->token[t->len]);
	}
}

static uint32_t make_tokens(struct fixture *f, uint32_t at, uint32_t n, uint64_t *ret)
{
	const struct text *donor = &f->text[pick(f, SEQS)];

	for (uint32_t i = 0; i < n; i++)
		ret[i] = donor->open && at + i < donor->len ? donor->token[at + i] : pick(f, 2);
	return n;
}

/* Each token sees itself, so that something is visible. */
static void make_mask(struct fixture *f, struct batch *b, uint32_t i)
{
	uint32_t n = b->request[i].wire.num_tokens, words = (n + 63) / 64;

	for (uint32_t k = 0; k < n; k++) {
		for (uint32_t w = 0; w < words; w++)
			b->mask[i][k * words + w] = next_random(&f->random);
		b->mask[i][k * words + k / 64] |= UINT64_C(1) << (k % 64);
	}
	b->request[i].mask = b->mask[i];
}

static void make_batch(struct fixture *f, struct batch *b)
{
	bool decode = pick(f, 3) == 0;
	uint32_t used = 0;

	b->noncausal = pick(f, 8) == 0;

	b->num_tokens = 0;
	b->num = 1 + pick(f, ROWS);
	for (uint32_t i = 0; i < b->num; i++) {
		uint32_t s = pick(f, SEQS), n = decode ? 1 : pick(f, 3) ? 1 + pick(f, 40) : 1 + pick(f, f->row_max);
		struct text *t = used >> s & 1 ? NULL : &f->text[s];
		uint32_t start = t ? t->len : 0;

		used |= 1u << s;
		if (t && start && pick(f, 4) == 0)
			start -= 1 + pick(f, start < 30 ? start : 30);
		if (start + n > LEN_MAX)
			start = pick(f, LEN_MAX - n < start ? LEN_MAX - n : start);
		b->text[i] = t;
		b->request[i] = (struct row_request){.wire = {.key = t ? t->key : 0,
							      .start = start,
							      .num_tokens = make_tokens(f, start, n, b->tokens[i]),
							      .flags = b->noncausal ? ATTND_WIRE_ROW_NONCAUSAL : 0,
							      .publish_upto = UINT64_MAX},
						     .tokens = b->tokens[i]};
		if (n <= MASKED && pick(f, 8) == 0)
			make_mask(f, b, i);
		b->num_tokens += n;
	}
}

/* Element i of an array in g->in; bf16 holds every value. */
static void put(const struct fixture *f, void *array, size_t i, float x)
{
	uint32_t bits;

	if (f->g->in != ATTND_K_BF16) {
		((float *)array)[i] = x;
		return;
	}
	memcpy(&bits, &x, sizeof(bits));
	((uint16_t *)array)[i] = (uint16_t)(bits >> 16);
}

/* q, k and v of one layer. Those of refused rows are whatever. */
static void fill_inputs(struct fixture *f, const struct batch *b, uint32_t layer)
{
	const struct geometry *g = f->g;
	size_t at = 0;

	for (uint32_t i = 0; i < b->num; i++) {
		for (uint32_t n = 0; n < b->request[i].wire.num_tokens; n++, at++) {
			uint64_t hash = b->text[i] ? b->text[i]->hash[b->request[i].wire.start + n] : 1;

			for (uint32_t h = 0; h < g->heads; h++)
				for (uint32_t d = 0; d < g->dim; d++)
					put(f, f->q, (at * g->heads + h) * g->dim + d, value(hash, 3, layer, h, d));
			for (uint32_t h = 0; h < g->kv_heads; h++) {
				for (uint32_t d = 0; d < g->dim; d++)
					put(f, f->k, (at * g->kv_heads + h) * g->dim + d, k_value(hash, layer, h, d));
				for (uint32_t d = 0; d < g->dim_v; d++)
					put(f, f->v, (at * g->kv_heads + h) * g->dim_v + d,
					    v_value(f, hash, layer, h, d));
			}
		}
	}
}

/* `threads` 0: the leader alone; else a team of so many. */
static void run_job(struct fixture *f, struct plan *p, struct params *pa, uint32_t layer, uint32_t threads, int side,
		    uint32_t flags)
{
	struct job j = {.plan = p,
			.params = pa,
			.attn = pa->attn,
			.layer = layer,
			.src_layer = layer,
			.store = !p->committed,
			.flags = flags,
			.q = f->q,
			.k = f->k,
			.v = f->v,
			.out = (char *)f->out[side],
			.lse = f->lse[side]};
	struct team *t = &f->team[threads ? threads - 1 : 0];

	j.attn.k_scale = j.attn.v_scale = 1;
	memset(f->out[side], 0xff, (size_t)p->num_tokens * f->g->heads * f->g->dim_v * sizeof(float));
	memset(f->lse[side], 0xff, (size_t)p->num_tokens * f->g->heads * sizeof(float));
	assert_int_equal(exec_prepare(&j, threads ? threads : 1), 0);
	if (!threads) {
		team_run_alone(t, &j.team);
	} else {
		assert_true(team_submit(t, &j.team));
		while (!atomic_load_explicit(&j.team.finished, memory_order_acquire))
			(void)team_help(t);
		team_retire(t, &j.team);
	}
	assert_int_equal(atomic_load(&j.error), 0);
	p->written[0] |= UINT64_C(1) << layer;
}

static void check_refused(const struct fixture *f, uint32_t first, uint32_t n, int side)
{
	for (size_t i = (size_t)first * f->g->heads; i < (size_t)(first + n) * f->g->heads; i++) {
		assert_true(isinf(f->lse[side][i]) && f->lse[side][i] < 0);
		for (uint32_t d = 0; d < f->g->dim_v; d++)
			assert_true(f->out[side][i * f->g->dim_v + d] == 0);
	}
}

static void check_outputs(struct fixture *f, const struct plan *p, const struct batch *b, uint32_t layer,
			  uint32_t kind, int side)
{
	size_t token = (size_t)f->g->heads * f->g->dim_v;

	for (uint32_t i = 0; i < b->num; i++) {
		const struct plan_row *r = &p->rows[i];

		if (!r->seq) {
			check_refused(f, r->first, r->n, side);
			continue;
		}
		for (uint32_t n = 0; n < r->n; n++) {
			uint64_t hash = mix(b->text[i]->hash[r->start + n], layer * KINDS + kind);

			if (b->request[i].mask || b->noncausal) /* what it sees is more than its prefix: the row's */
				hash = mix(hash, bits_of(b->mask[i], sizeof(b->mask[i])) ^
							 b->text[i]->hash[r->start + r->n - 1]);
			check_seen(f, hash, bits_of(f->out[side] + (r->first + n) * token, token * sizeof(float)));
			check_seen(f, ~hash,
				   bits_of(f->lse[side] + (size_t)(r->first + n) * f->g->heads,
					   f->g->heads * sizeof(float)));
		}
	}
	for (int k = 0; k < CHECKED && !f->g->scale_mode; k++) {
		uint32_t i = pick(f, b->num), n, h = pick(f, f->g->heads);
		const struct plan_row *r = &p->rows[i];

		n = pick(f, r->n);
		if (r->seq)
			check_head(f, &f->params[kind], b->text[i], &b->request[i], n, layer, h,
				   f->out[side] + (r->first + n) * token + h * f->g->dim_v,
				   f->lse[side][(size_t)(r->first + n) * f->g->heads + h]);
	}
}

static void run_layers(struct fixture *f, struct plan *p, const struct batch *b)
{
	for (uint32_t layer = 0; layer < LAYERS; layer++) {
		uint32_t kind = b->noncausal ? KINDS - 1 : pick(f, KINDS - 1);

		fill_inputs(f, b, layer);
		run_job(f, p, &f->params[kind], layer, pick(f, TEAMS + 1), 0, ATTND_JOB_LSE);
		check_outputs(f, p, b, layer, kind, 0);
		if (pick(f, 2))
			continue;
		run_job(f, p, &f->params[kind], layer, pick(f, TEAMS + 1), 1,
			ATTND_JOB_LSE); /* the same effect again */
		assert_memory_equal(f->out[0], f->out[1],
				    (size_t)b->num_tokens * f->g->heads * f->g->dim_v * sizeof(float));
	}
}

/* A sequence gets most of its tokens without outputs, which take an emulator too long. */
static void fill_only(struct fixture *f, struct text *t)
{
	struct batch *b = malloc(sizeof(*b));
	struct plan *p;

	assert_non_null(b);
	while (t->open && t->len < LEN_MAX / 2) {
		*b = (struct batch){.num = 1, .text = {t}};
		b->num_tokens = make_tokens(f, t->len, ROW_MAX, b->tokens[0]);
		b->request[0] = (struct row_request){.wire = {.key = t->key,
							      .start = t->len,
							      .num_tokens = b->num_tokens,
							      .publish_upto = UINT64_MAX},
						     .tokens = b->tokens[0]};
		assert_int_equal(plan_make(f, f->engine, 0, 1, b->request, 1, &f->plans, &p), 0);
		assert_int_equal(p->rows[0].status, 0);
		put_text(t, t->len, b->tokens[0], b->num_tokens);
		for (uint32_t layer = 0; layer < LAYERS; layer++) {
			fill_inputs(f, b, layer);
			run_job(f, p, &f->params[0], layer, 1, 0, ATTND_JOB_NO_OUT);
		}
		plan_commit(p);
		plan_end(p);
	}
	free(b);
}

static void step(struct fixture *f)
{
	struct batch *b = malloc(sizeof(*b));
	uint32_t times = 1 + pick(f, 3);

	assert_non_null(b);
	memset(b->mask, 0, sizeof(b->mask));
	make_batch(f, b);
	for (uint32_t i = 0; i < times; i++) {
		struct plan *p;

		assert_int_equal(plan_make(f, f->engine, 0, 1, b->request, b->num, &f->plans, &p), 0);
		for (uint32_t k = 0; k < b->num; k++) {
			assert_int_equal(p->rows[k].status, b->text[k] ? 0 : -ENOENT);
			if (b->text[k] && !i)
				put_text(b->text[k], (uint32_t)b->request[k].wire.start, b->tokens[k],
					 b->request[k].wire.num_tokens);
		}
		run_layers(f, p, b);
		if (i + 1 == times) {
			plan_commit(p);
			run_layers(f, p, b); /* reads only */
		}
		plan_end(p);
	}
	free(b);
}

/* A sequence ends, another begins with what is cached. */
static void replace(struct fixture *f)
{
	struct text *t = &f->text[pick(f, SEQS)];
	uint64_t tokens[LEN_MAX];
	struct answer a;

	if (t->open)
		assert_int_equal(seq_close(f->engine, t->key, f).res, 0);
	t->open = true;
	t->key = ++f->keys;
	(void)make_tokens(f, 0, LEN_MAX / 2, tokens);
	a = seq_open(&f->world.engines, f->engine, t->key, 0, tokens, LEN_MAX / 2, pick(f, LEN_MAX / 2));
	assert_int_equal(a.res, 0);
	t->ns = 0;
	put_text(t, 0, tokens, (uint32_t)a.value);
}

static void set_params(struct fixture *f)
{
	const struct geometry *g = f->g;
	const uint32_t in = attnd_kdtype_bytes(g->in);

	for (int i = 0; i < KINDS; i++)
		f->params[i] = (struct params){.causal = i != KINDS - 1,
					       .attn = {.sm_scale = 1.0f / sqrtf((float)g->dim),
							.q_dtype = g->in,
							.q_head_stride = g->dim * in},
					       .kv_in = g->in,
					       .out = ATTND_K_F32,
					       .q_token_stride = g->heads * g->dim * in,
					       .k_token_stride = g->kv_heads * g->dim * in,
					       .k_head_stride = g->dim * in,
					       .v_token_stride = g->kv_heads * g->dim_v * in,
					       .v_head_stride = g->dim_v * in,
					       .out_token_stride = g->heads * g->dim_v * sizeof(float),
					       .out_head_stride = g->dim_v * sizeof(float)};
	f->params[1].sliding_window = 300;
	f->params[2].sliding_window = 1000;
	f->params[2].attn.logit_cap = 20;
	f->params[2].sinks = f->sinks;
	f->params[2].alibi = f->alibi;
	f->params[2].attn.alibi = f->alibi;
	for (uint32_t h = 0; h < g->heads; h++) {
		f->sinks[h] = (float)h / 4 - 1;
		f->alibi[h] = 0x1p-8f * (float)(h + 1) / (float)g->heads;
	}
}

static void *buffer(uint32_t tokens, size_t floats)
{
	void *p = malloc(tokens * floats * sizeof(float));

	assert_non_null(p);
	return p;
}

/*
 * Slabs beyond what 32 bits can count, of bytes and of elements, in pages that cost nothing before they are touched;
 * what an offset that was cut would hit cannot be read. The cache has been cut into blocks already.
 */
static void spread_slabs(struct fixture *f)
{
	struct pool *p = &f->world.pool;

	munmap(p->nodes[0].base, p->nodes[0].bytes);
	p->nodes[0].bytes = p->num_slabs * FAR;
	p->nodes[0].base = mmap(NULL, p->nodes[0].bytes, PROT_READ | PROT_WRITE,
				MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	assert_ptr_not_equal(p->nodes[0].base, MAP_FAILED);
	assert_int_equal(mprotect(p->nodes[0].base, NEAR, PROT_NONE), 0);
	p->slab_bytes = FAR;
	for (uint32_t i = 0; i < p->num_free; i++) /* the last ones first */
		p->free[i] = i;
}

static void open_fixture(struct fixture *f, const struct geometry *g, uint64_t features, uint64_t seed, bool far)
{
	const uint32_t most = ROWS * ROW_MAX;
	struct attnd_wire_cache id = {.name = "exec",
				      .num_layers = LAYERS,
				      .num_heads = g->heads,
				      .num_kv_heads = g->kv_heads,
				      .head_dim = g->dim,
				      .head_dim_v = g->dim_v,
				      .block_size = g->block_size,
				      .kv_dtype = g->dtype,
				      .layout = g->layout,
				      .v_in_k = g->v_in_k,
				      .scale_mode = g->scale_mode};

	memset(f, 0, sizeof(*f));
	f->g = g;
	f->random = seed;
	world_open(&f->world, 48, 64);
	f->engine = world_engine(&f->world);
	assert_int_equal(engine_cache_open(f->engine, &f->world.pool, &f->world.ns, &id, true, features).res, 0);
	f->cache = f->engine->caches[0].cache;
	if (far)
		spread_slabs(f);
	f->text = calloc(SEQS, sizeof(*f->text));
	f->seen = calloc(SEEN, sizeof(*f->seen));
	f->sinks = buffer(g->heads, 1);
	f->alibi = buffer(g->heads, 1);
	f->q = buffer(most, (size_t)g->heads * g->dim);
	f->k = buffer(most, (size_t)g->kv_heads * g->dim);
	f->v = buffer(most, (size_t)g->kv_heads * g->dim_v);
	for (int i = 0; i < 2; i++) {
		f->out[i] = buffer(most, (size_t)g->heads * g->dim_v);
		f->lse[i] = buffer(most, g->heads);
	}
	assert_true(f->text && f->seen);
	set_params(f);
	world_topology(&f->topology);
	for (uint32_t t = 0; t < TEAMS; t++)
		assert_int_equal(team_init(&f->team[t], &f->topology, t + 1, false, 5, -1), 0);
	for (int i = 0; i < 60; i++)
		replace(f);
	f->row_max = (uint32_t)env_number("ATTND_EXEC_ROW", ROW_MAX);
	for (uint32_t i = 0; i < FILLED && f->row_max < ROW_MAX; i++)
		fill_only(f, &f->text[i]);
}

static void close_fixture(struct fixture *f)
{
	for (uint32_t t = 0; t < TEAMS; t++)
		team_destroy(&f->team[t]);
	for (int i = 0; i < 2; i++) {
		free(f->out[i]);
		free(f->lse[i]);
	}
	free(f->q);
	free(f->k);
	free(f->v);
	free(f->sinks);
	free(f->alibi);
	free(f->seen);
	free(f->text);
	if (f->world.pool.slab_bytes == FAR)
		assert_true((f->world.pool.num_slabs - f->most_slabs) * FAR >
			    UINT64_C(4) * INT32_MAX); /* f32 elements */
	world_close(&f->world);
}

static void test_variant(void **state)
{
	const struct variant *v = *state;
	bool whole = v->first || getenv("TEST_LONG");
	uint64_t seed = env_number("ATTND_EXEC_SEED", 0x5eed1 + (uint64_t)(v->g - geometries));
	uint32_t steps = (uint32_t)env_number("ATTND_EXEC_STEPS", sanitized() ? 2 : whole ? 12 : 3);
	struct fixture *f = malloc(sizeof(*f));

	assert_non_null(f);
	world_nodes = v->nodes;
	printf("# %s: seed %#llx\n", v->name, (unsigned long long)seed);
	open_fixture(f, v->g, v->features, seed, v->far);
	for (uint32_t i = 0; i < steps; i++) {
		step(f);
		if (pick(f, 3) == 0)
			replace(f);
		f->most_slabs = f->cache->num_slabs > f->most_slabs ? f->cache->num_slabs : f->most_slabs;
	}
	printf("# %u outputs, %u of them again\n", f->num_seen, f->again);
	assert_true(f->again || steps < 4);
	close_fixture(f);
	world_nodes = 1;
	free(f);
}

/* A geometry with all features, or with every set that differs from those before; returns how many there are. */
static size_t add_variants(struct variant *v, const struct geometry *g, bool all)
{
	size_t num = 0;

	for (size_t i = 0; i < (all ? MASKS : 1); i++) {
		uint64_t mask = UINT64_MAX;
		bool known = masks[i].bf16 && g->in != ATTND_K_BF16;

		if (*masks[i].names && attnd_features_parse_mask(masks[i].names, &mask))
			continue; /* of the other architecture */
		v[num] = (struct variant){.g = g, .features = attnd_features() & mask, .nodes = 1, .first = num == 0};
		snprintf(v[num].name, sizeof(v[num].name), "%s%s%s", g->name, *masks[i].names ? ", without " : "",
			 strcmp(masks[i].names, "none") == 0 ? "any feature" : masks[i].names);
		for (size_t k = 0; k < num; k++)
			known |= v[k].features == v[num].features;
		num += !known;
	}
	/* Heads over two nodes, or a block on each; blocks on one of three, even of two heads. */
	for (uint32_t nodes = 2; nodes <= 3; nodes++, num++) {
		v[num] = v[0];
		v[num].nodes = nodes;
		v[num].first = false;
		snprintf(v[num].name, sizeof(v[num].name), "%s, %u nodes", g->name, nodes);
	}
	v[num] = v[0];
	v[num].first = false;
	v[num].far = true;
	snprintf(v[num++].name, sizeof(v[0].name), "%s, slabs far apart", g->name);
	return num;
}

int main(void)
{
	static struct variant v[sizeof(geometries) / sizeof(geometries[0]) * (MASKS + 3)];
	struct CMUnitTest tests[sizeof(v) / sizeof(v[0])];
	size_t n = 0;

	for (size_t g = 0; g < sizeof(geometries) / sizeof(geometries[0]); g++)
		n += add_variants(v + n, &geometries[g], !getenv("ATTND_EXEC_ROW") && !sanitized());
	for (size_t i = 0; i < n; i++)
		tests[i] = (struct CMUnitTest){.name = v[i].name, .test_func = test_variant, .initial_state = &v[i]};
	return _cmocka_run_group_tests("exec", tests, n, NULL, NULL);
}
