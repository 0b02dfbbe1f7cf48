/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Intake: SQEs are copied once, the copies validated, tags and ids resolved to objects.
 *
 * In:   the sessions' SQs. Out: answers; jobs for submit.c; plans for plan.c.
 * Next: engine.c, plan.c, submit.c; reply.c.
 *
 * A session's requests run in the order of its ring. CANCEL and PING are answered as they are
 * taken. Everything in the arena is copied before it is looked at (R6).
 */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <sodium.h>
#include <string.h>

#include "../kernels/cpu.h"
#include "../shm/copy.h"
#include "../shm/futex.h"
#include "identity.h"
#include "lead.h"
#include "tenant.h"

enum {
	TAKE_AT_ONCE = 2048, /* entries of one session between looks at the others; a CANCEL looks through more */
	RUN_AT_ONCE = 32,    /* requests, */
	RUN_NS = 50000,	     /* unless they take longer than this */
	CLOSE_KEYS = 16,     /* of a SEQ_CLOSE between looks at the clock */
};

/* ---- The arena ---- */

void *arena_at(const struct lead_session *ls, uint64_t offset, uint64_t bytes, uint32_t align)
{
	uint64_t index = offset >> ATTND_OFFSET_SHIFT, at = offset & ATTND_OFFSET_MASK;
	const struct attnd_region *s = &ls->session->lead.segments[index];

	if (!s->base || at % align || bytes > s->bytes || at > s->bytes - bytes)
		return NULL;
	return (char *)s->base + at;
}

void *arena_copy(struct leader *l, const struct lead_session *ls, uint64_t offset, uint64_t bytes, uint32_t align,
		 size_t at)
{
	const void *src = arena_at(ls, offset, bytes, align);

	if (!src)
		return NULL;
	if (at + bytes >= l->copy_bytes) {
		size_t size = (at + bytes) * 2 + 4096;
		void *p = realloc(l->copy, size);

		if (!p)
			return NULL;
		l->copy = p;
		l->copy_bytes = size;
	}
	attnd_copy_in((char *)l->copy + at, src, bytes);
	return (char *)l->copy + at;
}

/* A payload of a fixed size. */
static struct answer payload(struct leader *l, struct lead_session *ls, const struct attnd_sqe *sqe, uint32_t bytes,
			     void *ret)
{
	const void *p;

	if (sqe->obj.bytes != bytes)
		return ANSWER_BAD(EINVAL, LENGTH, bytes);
	p = arena_copy(l, ls, sqe->obj.payload, bytes, 1, 0);
	if (!p)
		return ANSWER_BAD(EFAULT, OFFSET, sqe->obj.payload);
	memcpy(ret, p, bytes);
	return ANSWER_OK;
}

/* ---- Engines and caches ---- */

static struct engine_maker maker(const struct lead_session *ls)
{
	return (struct engine_maker){.realm = ls->realm,
				     .uid = ls->session->uid,
				     .session = ls->session->id,
				     .alone = ls->session->overflow_uid};
}

int session_engine(struct leader *l, struct lead_session *ls)
{
	const struct engine_maker by = maker(ls);

	return ls->engine ? 0 : engine_create(&l->engines, NULL, &by, &ls->engine);
}

static struct answer op_engine(struct leader *l, struct lead_session *ls, const struct attnd_sqe *sqe)
{
	struct attnd_wire_engine w;
	struct answer a = payload(l, ls, sqe, sizeof(w), &w);
	const struct engine_maker by = maker(ls);
	struct engine *e;

	if (a.res)
		return a;
	if (w.reserved[0] || w.reserved[1])
		return ANSWER_BAD(EINVAL, RESERVED, 0);
	if (sodium_is_zero((const unsigned char *)w.id, sizeof(w.id)))
		return ANSWER_BAD(EINVAL, ENGINE_ID, 0);
	if (ls->engine)
		return ANSWER_BAD(EBUSY, ENGINE, 0);
	e = engine_find(&l->engines, w.id);
	if (sqe->flags & ATTND_ENGINE_CREATE) {
		if (e)
			return ANSWER_BAD(EEXIST, ENGINE_ID, 0);
		if (ls->owner_gone)
			return ANSWER_BAD(EOWNERDEAD, ENGINE, 0);
		a.res = engine_create(&l->engines, w.id, &by, &ls->engine);
		return a;
	}
	/* Another's engine is as good as none: an id that is not yours tells you nothing. */
	if (!e || e->uid != ls->session->uid || e->realm != ls->realm)
		return ANSWER_BAD(ENOENT, ENGINE_ID, 0);
	e->sessions++;
	ls->engine = e;
	return a;
}

static struct answer op_cache_open(struct leader *l, struct lead_session *ls, const struct attnd_sqe *sqe)
{
	struct attnd_wire_cache w;
	struct answer a = payload(l, ls, sqe, sizeof(w), &w);

	if (a.res)
		return a;
	if (!w.block_size)
		w.block_size = attnd_default_block_size(l->features);
	a = identity_check(&w);
	if (a.res)
		return a;
	if (session_engine(l, ls))
		return ANSWER_BAD(ENOMEM, ENGINE, 0);
	a = engine_cache_open(ls->engine, &l->pool, &l->ns, &w, sqe->flags & ATTND_CACHE_CREATE, l->features);
	ls->evicts = a.res == -EINPROGRESS;
	return a;
}

static struct answer op_scales(struct lead_session *ls, const struct attnd_sqe *sqe)
{
	struct layer_scales *s;
	struct cache *c;

	if (sqe->scales.cache >= ls->engine->num_caches)
		return ANSWER_BAD(ENOENT, CACHE, ls->engine->num_caches);
	c = ls->engine->caches[sqe->scales.cache].cache;
	if (c->identity.scale_mode != ATTND_WIRE_SCALE_STATIC)
		return ANSWER_BAD(EINVAL, SCALE_MODE, c->identity.scale_mode);
	if (sqe->layer >= c->identity.num_layers)
		return ANSWER_BAD(EINVAL, LAYER, c->identity.num_layers - 1);
	if (!(sqe->scales.k_scale > 0) || !isfinite(sqe->scales.k_scale))
		return ANSWER_BAD(EINVAL, K_SCALE, 0);
	if (!(sqe->scales.v_scale > 0) || !isfinite(sqe->scales.v_scale))
		return ANSWER_BAD(EINVAL, V_SCALE, 0);
	s = &c->scales[sqe->layer];
	if (s->set && (s->k != sqe->scales.k_scale || s->v != sqe->scales.v_scale))
		return ANSWER_BAD(EEXIST, K_SCALE, sqe->layer);
	cache_set_scale(c, sqe->layer, sqe->scales.k_scale, sqe->scales.v_scale);
	return ANSWER_OK;
}

/* The tenant among a namespace's fields must be one that the peer's credentials allow. */
static bool may_name(const struct lead_session *ls, const void *fields, size_t bytes)
{
	const char *tenant;
	size_t n;

	return !ns_field(fields, bytes, ATTND_NS_TENANT, &tenant, &n) ||
	       tenant_allowed(ls->session->tenants, tenant, n);
}

static struct answer op_namespace(struct leader *l, struct lead_session *ls, const struct attnd_sqe *sqe)
{
	const void *p;

	if (sqe->obj.bytes > ATTND_MAX_NS_BYTES)
		return ANSWER_BAD(EINVAL, NAMESPACE_FIELDS, ATTND_MAX_NS_BYTES);
	p = arena_copy(l, ls, sqe->obj.payload, sqe->obj.bytes, 1, 0);
	if (sqe->obj.bytes && !p)
		return ANSWER_BAD(EFAULT, OFFSET, sqe->obj.payload);
	if (!may_name(ls, p, sqe->obj.bytes))
		return ANSWER_BAD(EACCES, TENANT, 0);
	return engine_namespace(ls->engine, &l->ns, p, sqe->obj.bytes);
}

static struct answer op_params(struct leader *l, struct lead_session *ls, const struct attnd_sqe *sqe)
{
	struct attnd_wire_params w;
	struct answer a = payload(l, ls, sqe, sizeof(w), &w);

	return a.res ? a : submit_params(ls, sqe->obj.id, &w);
}

/* ---- Sequences ---- */

struct answer open_slice(struct leader *l, struct lead_session *ls, uint64_t offset)
{
	struct opening *o = &ls->opening;
	uint32_t n = opening_slice(o);
	const uint64_t *tokens =
		arena_copy(l, ls, offset + o->at * sizeof(*tokens), n * sizeof(*tokens), sizeof(*tokens), 0);

	if (n && !tokens) {
		seq_open_abort(o);
		return ANSWER_BAD(ENOMEM, TOKENS, 0);
	}
	return seq_open_step(o, tokens, n);
}

/* One slice of it; the rest when the others have had their turn. */
static struct answer op_open(struct leader *l, struct lead_session *ls, const struct attnd_sqe *sqe)
{
	struct opening *o = &ls->opening;
	uint64_t n = sqe->sequence.num_tokens;
	struct answer a;

	if (n > ATTND_MAX_SEQ_TOKENS)
		return ANSWER_BAD(EINVAL, TOKENS, ATTND_MAX_SEQ_TOKENS);
	if (sqe->sequence.priority > ATTND_MAX_PRIORITY)
		return ANSWER_BAD(EINVAL, PRIORITY, ATTND_MAX_PRIORITY);
	if (n && !arena_at(ls, sqe->sequence.tokens, n * sizeof(uint64_t), sizeof(uint64_t)))
		return ANSWER_BAD(EFAULT, OFFSET, sqe->sequence.tokens);
	if (!o->seq) {
		a = seq_open_begin(&l->engines, ls->engine, sqe->sequence.key, sqe->sequence.ns, n,
				   sqe->sequence.max_match, o);
		if (!o->seq)
			return a;
		if (l->limits.eviction == CONFIG_EVICT_PRIORITY)
			seq_set_priority(o->seq, sqe->sequence.priority);
	}
	return open_slice(l, ls, sqe->sequence.tokens);
}

/* The round has taken long enough for others to have their turn. */
static bool beyond(uint64_t since)
{
	return attnd_now_ns() - since > RUN_NS;
}

/* The next of its keys, until they have taken long enough. */
static struct answer close_slice(struct leader *l, struct lead_session *ls, const struct attnd_sqe *sqe)
{
	struct close_job *c = &ls->closing;
	uint32_t n = sqe->sequence.num_tokens;
	const uint64_t *keys;

	while (c->at < n) {
		uint32_t k = n - c->at < CLOSE_KEYS ? n - c->at : CLOSE_KEYS;

		keys = arena_copy(l, ls, sqe->sequence.tokens + c->at * sizeof(*keys), k * sizeof(*keys),
				  sizeof(*keys), 0);
		if (!keys)
			return ANSWER_BAD(EFAULT, OFFSET, sqe->sequence.tokens);
		for (uint32_t i = 0; i < k; i++)
			c->closed += !seq_close(ls->engine, keys[i], ls).res;
		c->at += k;
		if (c->at < n && beyond(l->now))
			return ANSWER_LATER;
	}
	return ANSWER_VALUE(c->closed);
}

/* A session that gives up its own unfinished plan may close or trim at once (plan_let_go). */
static struct answer op_close(struct leader *l, struct lead_session *ls, const struct attnd_sqe *sqe)
{
	uint64_t n = sqe->sequence.num_tokens;

	if (!(sqe->flags & ATTND_CLOSE_MANY))
		return seq_close(ls->engine, sqe->sequence.key, ls);
	if (n > ATTND_MAX_CLOSE)
		return ANSWER_BAD(EINVAL, LENGTH, ATTND_MAX_CLOSE);
	if (!ls->closing.begun) {
		if (n && !arena_at(ls, sqe->sequence.tokens, n * sizeof(uint64_t), sizeof(uint64_t)))
			return ANSWER_BAD(EFAULT, OFFSET, sqe->sequence.tokens);
		ls->closing = (struct close_job){.begun = true};
	}
	return close_slice(l, ls, sqe);
}

/* ---- Plans ---- */

static struct answer check_row(const struct attnd_wire_row *w, uint64_t *tokens, uint64_t *words)
{
	if (!w->num_tokens || w->num_tokens > ATTND_MAX_PLAN_TOKENS - *tokens)
		return ANSWER_BAD(EINVAL, ROW_TOKENS, ATTND_MAX_PLAN_TOKENS);
	if (w->start > ATTND_MAX_SEQ_TOKENS - w->num_tokens)
		return ANSWER_BAD(EINVAL, ROW_START, ATTND_MAX_SEQ_TOKENS);
	if (w->flags & ~(uint32_t)ATTND_WIRE_ROW_FLAGS)
		return ANSWER_BAD(EINVAL, ROW_FLAGS, ATTND_WIRE_ROW_FLAGS);
	*tokens += w->num_tokens;
	*words += w->mask == ATTND_OFFSET_NONE ? 0 : w->num_tokens * (((uint64_t)w->num_tokens + 63) / 64);
	return *words > ATTND_MAX_MASK_WORDS ? ANSWER_BAD(EINVAL, MASK, ATTND_MAX_MASK_WORDS) : ANSWER_OK;
}

/* Before anything is copied again and again, or ended: a job may run on one of its sequences. */
static bool rows_busy(const struct leader *l, struct lead_session *ls, const struct attnd_sqe *sqe)
{
	const struct attnd_wire_row *w = l->copy;

	for (uint32_t i = 0; i < sqe->plan.num_rows && !ls->busy.is; i++)
		if (plan_busy(ls->engine, sqe->plan.cache, w[i].key))
			ls->busy = (struct busy_row){.is = true, .key = w[i].key};
	return ls->busy.is;
}

/*
 * Copy rows, tokens and masks: rows first, then what they name. Pointers are set last, since the
 * buffer moves as it grows.
 */
static struct answer copy_rows(struct leader *l, struct lead_session *ls, const struct attnd_sqe *sqe,
			       struct row_request *rows)
{
	uint32_t n = sqe->plan.num_rows;
	size_t at = n * sizeof(struct attnd_wire_row), first = at;
	uint64_t tokens = 0, mask_words = 0;

	if (!arena_copy(l, ls, sqe->plan.rows, at, sizeof(uint64_t), 0))
		return ANSWER_BAD(EFAULT, ROWS, sqe->plan.rows);
	if (rows_busy(l, ls, sqe))
		return ANSWER_LATER;
	for (uint32_t i = 0; i < n; i++) {
		struct attnd_wire_row w = ((struct attnd_wire_row *)l->copy)[i];
		uint64_t words = (uint64_t)w.num_tokens * (((uint64_t)w.num_tokens + 63) / 64);
		struct answer a = check_row(&w, &tokens, &mask_words);

		if (a.res)
			return a;
		rows[i] = (struct row_request){.wire = w};
		if (!arena_copy(l, ls, w.tokens, w.num_tokens * sizeof(uint64_t), sizeof(uint64_t), at))
			return ANSWER_BAD(EFAULT, ROW_TOKENS, w.tokens);
		at += w.num_tokens * sizeof(uint64_t);
		if (w.mask == ATTND_OFFSET_NONE)
			continue;
		if (!arena_copy(l, ls, w.mask, words * sizeof(uint64_t), sizeof(uint64_t), at))
			return ANSWER_BAD(EFAULT, MASK, w.mask);
		at += words * sizeof(uint64_t);
	}
	for (uint32_t i = 0; i < n; i++) {
		uint64_t k = rows[i].wire.num_tokens;

		rows[i].tokens = (const uint64_t *)(const void *)((char *)l->copy + first);
		first += k * sizeof(uint64_t);
		if (rows[i].wire.mask != ATTND_OFFSET_NONE) {
			rows[i].mask = (const uint64_t *)(const void *)((char *)l->copy + first);
			first += k * ((k + 63) / 64) * sizeof(uint64_t);
		}
	}
	return ANSWER_OK;
}

static uint32_t live_plans(const struct lead_session *ls)
{
	uint32_t n = 0;

	for (const struct plan *p = ls->plans; p; p = p->next)
		n++;
	return n;
}

static struct answer make_plan(struct lead_session *ls, const struct attnd_sqe *sqe, const struct row_request *rows,
			       struct attnd_wire_row_status *status)
{
	struct plan *old = plan_find(ls->plans, sqe->plan.tag), *p;
	uint64_t refused = 0;
	int r;

	if (old)
		plan_end(old);
	if (live_plans(ls) >= ATTND_MAX_PLANS)
		return ANSWER_BAD(ENOSPC, PLANS, ATTND_MAX_PLANS);
	r = plan_make(ls, ls->engine, sqe->plan.cache, sqe->plan.tag, rows, sqe->plan.num_rows, &ls->plans, &p);
	if (r == -EAGAIN) {
		slabs_wait(&ls->room, ls->engine->caches[sqe->plan.cache].cache);
		return ANSWER_LATER;
	}
	if (r)
		return (struct answer){.res = r, .field = ATTND_FIELD_PLAN};
	for (uint32_t i = 0; i < p->num_rows; i++) {
		status[i] = (struct attnd_wire_row_status){.status = p->rows[i].status, .cached = p->rows[i].cached};
		refused += p->rows[i].status != 0;
		realm_count(ls->realm, planned_tokens, p->rows[i].status ? 0 : p->rows[i].n);
		realm_count(ls->realm, taken_tokens, p->rows[i].cached);
	}
	realm_count(ls->realm, plans, 1);
	watch_planned(p->cache->pool->watch, ls, p);
	return ANSWER_VALUE(refused);
}

/* Rows that would take more tokens than it may have are refused, one by one. */
static void limit_rows(struct leader *l, struct lead_session *ls, const struct attnd_sqe *sqe,
		       struct row_request *rows)
{
	for (uint32_t i = 0; i < sqe->plan.num_rows; i++) {
		const struct seq *s = seq_find(ls->engine, rows[i].wire.key);
		uint64_t has = s ? s->in[sqe->plan.cache].held.length : 0;
		uint64_t end = rows[i].wire.start + rows[i].wire.num_tokens;

		rows[i].refuse = end > has ? limits_tokens(l, ls, end - has) : 0;
	}
}

static struct answer op_plan(struct leader *l, struct lead_session *ls, const struct attnd_sqe *sqe)
{
	const struct token_count before = ls->engine->tokens;
	struct attnd_wire_row_status *status;
	struct row_request *rows;
	struct answer a;

	if (sqe->plan.cache >= ls->engine->num_caches)
		return ANSWER_BAD(ENOENT, CACHE, ls->engine->num_caches);
	if (!sqe->plan.num_rows || sqe->plan.num_rows > ATTND_MAX_ROWS)
		return ANSWER_BAD(EINVAL, ROWS, ATTND_MAX_ROWS);
	if (slabs_waits(&ls->room, ls->engine->caches[sqe->plan.cache].cache))
		return ANSWER_LATER; /* nothing has changed for it */
	if (ls->busy.is && plan_busy(ls->engine, sqe->plan.cache, ls->busy.key))
		return ANSWER_LATER;
	ls->room.cache = NULL;
	ls->busy.is = false;
	status = arena_at(ls, sqe->plan.status, sqe->plan.num_rows * sizeof(*status), sizeof(uint32_t));
	if (!status)
		return ANSWER_BAD(EFAULT, OFFSET, sqe->plan.status);
	rows = malloc(sqe->plan.num_rows * sizeof(*rows));
	if (!rows)
		return ANSWER_BAD(ENOMEM, ROWS, 0);
	a = copy_rows(l, ls, sqe, rows);
	if (!a.res) {
		limit_rows(l, ls, sqe, rows);
		a = make_plan(ls, sqe, rows, status);
		if (a.res == -EINPROGRESS) /* they are counted when it comes again */
			limits_uncount(ls->engine, &before);
	}
	free(rows);
	return a;
}

static struct answer op_plan_end(struct lead_session *ls, const struct attnd_sqe *sqe)
{
	struct plan *p = plan_find(ls->plans, sqe->plan.tag);

	if (!p)
		return ANSWER_BAD(ESTALE, PLAN, 0);
	plan_end(p);
	return ANSWER_OK;
}

/* ---- Looking at what is cached ---- */

static struct answer op_peek_key(struct lead_session *ls, const struct attnd_sqe *sqe)
{
	const struct engine *e = ls->engine;
	struct attnd_wire_peek_key k = {.reserved = {0}};
	const struct cache *c;
	void *to;

	if (sqe->peek.cache >= e->num_caches)
		return ANSWER_BAD(ENOENT, CACHE, e->num_caches);
	if (sqe->peek.ns >= e->num_ns)
		return ANSWER_BAD(ENOENT, NAMESPACE, e->num_ns);
	to = arena_at(ls, sqe->peek.key, sizeof(k), sizeof(uint32_t));
	if (!to)
		return ANSWER_BAD(EFAULT, OFFSET, sqe->peek.key);
	c = e->caches[sqe->peek.cache].cache;
	k.block_size = c->block_size;
	ns_peek_key(c->ns, e->ns[sqe->peek.ns], c->peek_salt, k.key);
	memcpy(to, &k, sizeof(k));
	return ANSWER_OK;
}

static struct answer op_slots(struct leader *l, struct lead_session *ls, const struct attnd_sqe *sqe)
{
	struct attnd_wire_slots w;
	struct answer a = payload(l, ls, sqe, sizeof(w), &w);
	const uint64_t *keys = NULL;

	if (a.res)
		return a;
	if (w.cache >= ls->engine->num_caches)
		return ANSWER_BAD(ENOENT, CACHE, ls->engine->num_caches);
	if (w.reserved || w.unit >= ATTND_WIRE_SLOTS_UNITS)
		return ANSWER_BAD(EINVAL, RESERVED, 0);
	if (!w.num || w.num > ATTND_MAX_ROWS)
		return ANSWER_BAD(EINVAL, ROWS, ATTND_MAX_ROWS);
	if (w.capacity > ATTND_MAX_SLOTS)
		return ANSWER_BAD(EINVAL, LENGTH, ATTND_MAX_SLOTS);
	if (!(sqe->flags & ATTND_SLOTS_PLAN)) {
		keys = arena_copy(l, ls, w.keys, w.num * sizeof(*keys), sizeof(*keys), 0);
		if (!keys)
			return ANSWER_BAD(EFAULT, OFFSET, w.keys);
	}
	return slots_table(ls, &w, keys);
}

/* ---- Dispatch ---- */

/* Which 16-bit words of the union an entry uses; the others must be 0. */
static uint32_t words_used(const struct attnd_sqe *sqe)
{
	static const uint32_t used[ATTND_OP_RESERVED_END] = {
		[ATTND_OP_ENGINE] = 0xf3,	[ATTND_OP_CACHE_OPEN] = 0xf3,  [ATTND_OP_GRANT] = 0xf7,
		[ATTND_OP_SCALES] = 0x37,	[ATTND_OP_NAMESPACE] = 0xf3,   [ATTND_OP_PARAMS] = 0xff,
		[ATTND_OP_SEQ_OPEN] = 0x30ffff, [ATTND_OP_SEQ_FORK] = 0xf00fc, [ATTND_OP_SEQ_TRIM] = 0xfc,
		[ATTND_OP_SEQ_CLOSE] = 0xf0,	[ATTND_OP_PLAN] = 0x3ff7,      [ATTND_OP_PLAN_END] = 0x3,
		[ATTND_OP_DECODE] = 0xffffff,	[ATTND_OP_EXTEND] = 0xffffff,  [ATTND_OP_CANCEL] = 0x3,
		[ATTND_OP_PEEK_KEY] = 0xf7,	[ATTND_OP_EXPORT] = 0xfff7,    [ATTND_OP_SLOT_TABLE] = 0xf3,
		[ATTND_OP_SEQ_WAIT] = 0xffffff,
	};

	return sqe->opcode == ATTND_OP_SEQ_CLOSE && (sqe->flags & ATTND_CLOSE_MANY) ? 0xffc : used[sqe->opcode];
}

static bool unused_are_zero(const struct attnd_sqe *sqe)
{
	bool layered = sqe->opcode == ATTND_OP_DECODE || sqe->opcode == ATTND_OP_EXTEND ||
		       sqe->opcode == ATTND_OP_SCALES || sqe->opcode == ATTND_OP_EXPORT;
	uint32_t used = words_used(sqe);
	uint16_t words[24];

	memcpy(words, sqe->u64, sizeof(words));
	for (int i = 0; i < 24; i++)
		if (words[i] && !(used >> i & 1))
			return false;
	return layered || !sqe->layer;
}

static bool is_reserved(uint8_t opcode)
{
	return opcode == ATTND_OP_PIN || opcode == ATTND_OP_UNPIN || opcode == ATTND_OP_IMPORT;
}

static struct answer check_header(const struct attnd_sqe *sqe)
{
	static const uint8_t flags[ATTND_OP_RESERVED_END] = {
		[ATTND_OP_ENGINE] = ATTND_ENGINE_FLAGS,	  [ATTND_OP_CACHE_OPEN] = ATTND_CACHE_FLAGS,
		[ATTND_OP_SEQ_CLOSE] = ATTND_CLOSE_FLAGS, [ATTND_OP_DECODE] = ATTND_JOB_FLAGS,
		[ATTND_OP_EXTEND] = ATTND_JOB_FLAGS,	  [ATTND_OP_SLOT_TABLE] = ATTND_SLOTS_FLAGS,
	};

	if (is_reserved(sqe->opcode))
		return ANSWER_BAD(EOPNOTSUPP, OPCODE, ATTND_OPS - 1);
	if (!sqe->opcode || sqe->opcode >= ATTND_OP_RESERVED_END ||
	    (sqe->opcode >= ATTND_OPS && sqe->opcode < ATTND_OP_SEQ_WAIT))
		return ANSWER_BAD(EINVAL, OPCODE, ATTND_OPS - 1);
	if (sqe->flags & ~flags[sqe->opcode])
		return ANSWER_BAD(EINVAL, FLAGS, flags[sqe->opcode]);
	if (!sqe->deadline_us || sqe->deadline_us > ATTND_MAX_DEADLINE_US)
		return ANSWER_BAD(EINVAL, DEADLINE, ATTND_MAX_DEADLINE_US);
	if (!unused_are_zero(sqe))
		return ANSWER_BAD(EINVAL, RESERVED, 0);
	return ANSWER_OK;
}

/* Everything but PING, ENGINE and CACHE_OPEN needs an engine that lives. */
static struct answer need_engine(struct leader *l, struct lead_session *ls, uint8_t opcode)
{
	if (opcode == ATTND_OP_PING || opcode == ATTND_OP_ENGINE)
		return ANSWER_OK;
	if (!ls->engine && ls->owner_gone)
		return ANSWER_BAD(EOWNERDEAD, ENGINE, 0);
	if (session_engine(l, ls))
		return ANSWER_BAD(ENOMEM, ENGINE, 0);
	return ls->engine->dead ? ANSWER_BAD(EOWNERDEAD, ENGINE, 0) : ANSWER_OK;
}

/* Of what makes a sequence: may it have one more? */
static struct answer check_limits(struct leader *l, struct lead_session *ls, const struct attnd_sqe *sqe)
{
	bool opens = sqe->opcode == ATTND_OP_SEQ_OPEN || sqe->opcode == ATTND_OP_SEQ_WAIT;
	uint64_t n = sqe->sequence.num_tokens;
	const struct seq *s;

	if (!opens && sqe->opcode != ATTND_OP_SEQ_FORK)
		return ANSWER_OK;
	s = seq_find(ls->engine, sqe->sequence.key);
	if (opens && !ls->opening.seq && !s)
		return limits_open(l, ls, n < sqe->sequence.max_match ? n : sqe->sequence.max_match);
	if (!opens && s && !s->opening) /* else it is refused, or comes again */
		return limits_fork(l, ls, n);
	return ANSWER_OK;
}

static struct answer dispatch(struct leader *l, struct lead_session *ls, const struct attnd_sqe *sqe, bool *started)
{
	struct answer a = need_engine(l, ls, sqe->opcode);

	if (!a.res)
		a = check_limits(l, ls, sqe);
	if (a.res)
		return a;
	switch (sqe->opcode) {
	case ATTND_OP_ENGINE:
		return op_engine(l, ls, sqe);
	case ATTND_OP_CACHE_OPEN:
		return op_cache_open(l, ls, sqe);
	case ATTND_OP_GRANT:
		return engine_grant(ls->engine, sqe->grant.cache, sqe->grant.tokens, sqe->grant.sequences);
	case ATTND_OP_SCALES:
		return op_scales(ls, sqe);
	case ATTND_OP_NAMESPACE:
		return op_namespace(l, ls, sqe);
	case ATTND_OP_PARAMS:
		return op_params(l, ls, sqe);
	case ATTND_OP_SEQ_OPEN:
		return op_open(l, ls, sqe);
	case ATTND_OP_SEQ_WAIT:
		return wait_open(l, ls, sqe);
	case ATTND_OP_SEQ_FORK:
		return seq_fork(&l->engines, ls->engine, sqe->sequence.key, sqe->sequence.new_key,
				sqe->sequence.num_tokens);
	case ATTND_OP_SEQ_TRIM:
		return seq_trim(ls->engine, sqe->sequence.key, sqe->sequence.num_tokens, ls);
	case ATTND_OP_SEQ_CLOSE:
		return op_close(l, ls, sqe);
	case ATTND_OP_PLAN:
		return op_plan(l, ls, sqe);
	case ATTND_OP_PLAN_END:
		return op_plan_end(ls, sqe);
	case ATTND_OP_EXPORT:
		return submit_export(l, ls, sqe, started);
	case ATTND_OP_SLOT_TABLE:
		return op_slots(l, ls, sqe);
	case ATTND_OP_PEEK_KEY:
		return op_peek_key(ls, sqe);
	case ATTND_OP_DECODE:
	case ATTND_OP_EXTEND:
		return submit_job(l, ls, sqe, started);
	default:
		return ANSWER_OK; /* PING */
	}
}

/* The named request, wherever it stands: queued or with the team. */
static struct answer cancel(struct lead_session *ls, uint32_t target, int32_t why)
{
	if (ls->running && ls->job_request.sqe.user_data == target) {
		if (!ls->job_request.give_up)
			ls->job_request.give_up = why;
		atomic_store_explicit(&ls->job.team.cancelled, true, memory_order_relaxed);
		return ANSWER_OK;
	}
	for (uint32_t i = 0; i < ls->queue_num; i++) {
		struct request *q = &ls->queue[(ls->queue_head + i) & (ls->cq_entries - 1)];

		if (q->sqe.user_data != target)
			continue;
		if (!q->give_up)
			q->give_up = why;
		return ANSWER_OK;
	}
	return wait_cancel(ls, target, why) ? ANSWER_OK : ANSWER_BAD(ENOENT, TARGET, target);
}

/* Answer at once, or queue. */
static void admit(struct leader *l, struct lead_session *ls, const struct attnd_sqe *sqe)
{
	struct answer a = check_header(sqe);

	watch_submitted(ls, sqe);
	ls->unanswered++;
	ls->user->in_flight++;
	if (!a.res && sqe->opcode == ATTND_OP_CANCEL)
		a = cancel(ls, sqe->cancel.target, -ECANCELED);
	else if (!a.res && sqe->opcode != ATTND_OP_PING) {
		ls->queue[(ls->queue_head + ls->queue_num++) & (ls->cq_entries - 1)] =
			(struct request){.sqe = *sqe, .deadline_ns = l->now + (uint64_t)sqe->deadline_us * 1000};
		return;
	}
	reply_put(ls, sqe->user_data, &a);
}

uint32_t intake_take(struct leader *l, struct lead_session *ls)
{
	struct attnd_sqe sqe;
	int64_t room, effort = TAKE_AT_ONCE;
	uint32_t taken = 0;

	if (!attnd_ring_ready(&ls->sq))
		return 0;
	room = reply_room(ls);
	if (room < 0) {
		ls->bad = true;
		return 0;
	}
	room = limits_in_flight(l, ls, room);
	while (room > 0 && effort > 0 && attnd_ring_take(&ls->sq, &sqe)) {
		effort -= sqe.opcode == ATTND_OP_CANCEL ? 1 + ls->unanswered : 1;
		admit(l, ls, &sqe);
		room--;
		taken++;
	}
	if (taken)
		atomic_store_explicit(&ls->session->shared->sq_head, ls->sq.index, memory_order_release);
	return taken;
}

uint32_t intake_run(struct leader *l, struct lead_session *ls)
{
	uint32_t done = 0;

	while (ls->queue_num && !ls->running && done < RUN_AT_ONCE && !(done && beyond(l->now))) {
		struct request *q = &ls->queue[ls->queue_head];
		struct answer a = ANSWER_OK;
		bool started = false;

		if (!q->give_up && l->now > q->deadline_ns)
			q->give_up = -ETIMEDOUT;
		ls->job_request = *q;
		watch_started(ls, q);
		if (q->give_up)
			a.res = q->give_up;
		else
			a = dispatch(l, ls, &ls->job_request.sqe, &started);
		if (a.res == -EINPROGRESS)
			return done + (ls->opening.seq || ls->slots.begun || ls->closing.begun || ls->evicts);
		ls->room.cache = NULL;
		ls->busy.is = ls->slots.begun = ls->closing.begun = ls->evicts = false;
		seq_open_abort(&ls->opening); /* one under way that failed before its next slice */
		ls->queue_head = (ls->queue_head + 1) & (ls->cq_entries - 1);
		ls->queue_num--;
		done++;
		ls->running = started;
		if (started || a.res == -EALREADY)
			continue;
		watch_done(&l->watch, ls, &ls->job_request, &a);
		reply_put(ls, ls->job_request.sqe.user_data, &a);
	}
	return done;
}
