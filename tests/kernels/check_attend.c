/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Checks of attend.
 *
 * In:   cases (check_attend_case.c) over geometries, shapes of scores, and every remainder of
 *       tokens, rows and dims.
 * Out:  TAP: float64's bounds; the same bits however a row is computed; poison that changes none.
 * Next: nothing.
 */
#include "check_attend.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>

/* ---- Same bits ---- */

static bool same_partial(const struct attend_case *c, const struct attnd_partial *a, const struct attnd_partial *b)
{
	return memcmp(&a->m, &b->m, 4) == 0 && memcmp(&a->l, &b->l, 4) == 0 &&
	       memcmp(a->acc, b->acc, c->fmt.spec.head_dim_v * sizeof(float)) == 0;
}

/* Rows of `skip` are left out. */
static void compare_bits(struct attend_case *c, char *partials, const bool *skip, const char *how)
{
	for (uint32_t row = 0; row < c->num_rows; row++)
		for (uint32_t i = 0; i < c->num_chunks * c->heads && !(skip && skip[row]); i++) {
			uint32_t chunk = i / c->heads, head = i % c->heads;

			if (same_partial(c, case_partial(c, partials, row, chunk, head),
					 case_partial(c, c->partials, row, chunk, head)))
				continue;
			fail("%s: row %u of %u (%u..%u), head %u: other bits when run %s (D %u/%u, block %u, layout "
			     "%d, "
			     "group %u)",
			     c->k->name, row, c->num_rows, c->rows[row].lo, c->rows[row].hi, head, how,
			     c->fmt.spec.head_dim, c->fmt.spec.head_dim_v, c->fmt.spec.block_size,
			     (int)c->fmt.spec.layout, c->fmt.spec.group);
			return;
		}
}

static char *fresh_partials(const struct attend_case *c)
{
	char *p = guarded_alloc(case_partials_bytes(c), 64);

	attnd_init_any_c(&c->fmt, p, c->num_rows * c->num_chunks * c->heads);
	return p;
}

static void run_and_compare(struct attend_case *c, const struct run *run, const bool *skip, const char *how)
{
	char *p = fresh_partials(c);

	case_run(c, run, p);
	compare_bits(c, p, skip, how);
	guarded_free(p);
}

static void set_flags(struct attend_case *c, uint8_t value)
{
	for (uint32_t i = 0; i < c->num_blocks; i++)
		memset(c->flags[i], value, c->fmt.spec.num_kv_heads);
}

static void protect_blocks(struct attend_case *c, bool read_only)
{
	for (uint32_t i = 0; i < c->num_blocks; i++)
		guarded_protect(c->blocks[i], read_only);
}

static void check_bits(struct attend_case *c)
{
	const struct attnd_kernel *k = c->k;
	struct run together = {.first = k, .num_rows = c->num_rows};
	struct run steps = {.first = k, .num_rows = c->num_rows, .steps = CUT_STEPS, .heads = CUT_STEPS};
	struct run cut = {.first = k, .steps = CUT_RANDOM, .heads = CUT_RANDOM};

	cut.num_rows = rng_range(&c->r, 1, c->num_rows);
	protect_blocks(c, true);
	run_and_compare(c, &together, NULL, "together");
	run_and_compare(c, &steps, NULL, "step by step, head by head");
	run_and_compare(c, &cut, NULL, "in random pieces");
	set_flags(c, 1);
	run_and_compare(c, &together, NULL, "together, flagged");
	cut.num_rows = 1;
	run_and_compare(c, &cut, NULL, "alone, flagged");
	set_flags(c, 0);
	protect_blocks(c, false);
}

/* ---- Poison ---- */

/* Rows that see a poisoned token: NaN must show, unless the type cannot hold one. */
static void compare_poisoned(struct attend_case *c, char *partials, const bool *sees)
{
	bool holds_nan = c->fmt.spec.dtype != ATTND_K_INT8 || c->fmt.spec.scale == ATTND_K_SCALE_DYNAMIC;

	for (uint32_t row = 0; row < c->num_rows && holds_nan; row++) {
		bool shown = !sees[row];

		for (uint32_t i = 0; i < c->num_chunks; i++)
			shown = shown || isnan(case_partial(c, partials, row, i, 0)->l);
		if (!shown)
			fail("%s: row %u sees NaN and does not show it", c->k->name, row);
	}
}

static void check_poison(struct attend_case *c)
{
	struct run together = {.first = c->k, .num_rows = c->num_rows};
	struct run cut = {.first = c->k, .num_rows = 3, .steps = CUT_RANDOM, .heads = CUT_RANDOM};
	bool *poison = calloc(c->tokens, sizeof(bool)), sees[MAX_ROWS] = {0};
	uint32_t density = rng_below(&c->r, 3); /* all that nobody sees; a few others too */
	char *p = fresh_partials(c);

	for (uint32_t t = 0; t < c->tokens; t++) {
		uint32_t seen = 0;

		for (uint32_t row = 0; row < c->num_rows; row++)
			seen += case_visible(&c->rows[row], c->base + t);
		poison[t] = seen == 0 || (density && rng_below(&c->r, c->tokens) < density);
		for (uint32_t row = 0; row < c->num_rows && poison[t]; row++)
			sees[row] = sees[row] || case_visible(&c->rows[row], c->base + t);
	}
	case_poison(c, poison);
	protect_blocks(c, true);
	case_run(c, &together, p);
	compare_bits(c, p, sees, "among poison");
	compare_poisoned(c, p, sees);
	run_and_compare(c, &cut, sees, "in pieces, among poison");
	guarded_free(p);
	free(poison);
}

/* One row's q is NaN: no other row notices. */
static void check_nan_row(struct attend_case *c)
{
	struct run together = {.first = c->k, .num_rows = c->num_rows};
	bool skip[MAX_ROWS] = {0};
	uint32_t row = rng_below(&c->r, c->num_rows);
	size_t bytes =
		(c->heads - 1) * c->attn.q_head_stride + c->fmt.spec.head_dim * attnd_kdtype_bytes(c->attn.q_dtype);
	char *q = malloc(bytes);

	skip[row] = true;
	memcpy(q, c->rows[row].q, bytes);
	memset(c->rows[row].q, 0xff, bytes);
	run_and_compare(c, &together, skip, "beside a row of NaN");
	memcpy(c->rows[row].q, q, bytes);
	free(q);
}

/* ---- No visible key ---- */

static void check_untouched(struct attend_case *c)
{
	struct run together = {.first = c->k, .num_rows = c->num_rows};
	size_t bytes = case_partials_bytes(c);
	char *p = guarded_alloc(bytes, 64), *before = malloc(bytes);

	for (size_t i = 0; i < bytes / sizeof(float); i++)
		((float *)(void *)p)[i] = rng_below(&c->r, 9) ? rng_float(&c->r) : -0.0f;
	memcpy(before, p, bytes);
	for (uint32_t row = 0; row < c->num_rows; row++) {
		struct row *r = &c->rows[row];

		if (r->mask && rng_below(&c->r, 2)) {
			r->mask_start = c->base;
			r->lo = r->hi - (r->hi - c->base > 64 ? 64 : r->hi - c->base);
			r->mask_start = r->lo;
			r->mask[0] = 0;
		} else {
			r->lo = r->hi;
		}
	}
	case_run(c, &together, p);
	if (memcmp(p, before, bytes) != 0)
		fail("%s: a row without a visible key changes its partial", c->k->name);
	guarded_free(p);
	free(before);
}

/* ---- Both tables on one partial ---- */

static void check_exchange(struct attend_case *c)
{
	struct attnd_kernel portable = *c->k;
	struct run run = {.num_rows = c->num_rows, .steps = CUT_STEPS};
	struct attnd_kv_format ignored;
	struct attnd_ops ops;
	uint64_t mask;

	if (c->k->isa == ATTND_ISA_C || attnd_features_parse_mask("none", &mask) != 0 ||
	    attnd_format_init(check_features & mask, &c->fmt.spec, &ignored, &ops) != 0)
		return;
	portable.fn.attend = ops.attend[c->k->q];
	for (int i = 0; i < 2; i++) {
		char *p = fresh_partials(c);

		run.first = i ? c->k : &portable;
		run.then = i ? &portable : c->k;
		case_run(c, &run, p);
		case_compare_reference(c, c->k, p);
		guarded_free(p);
	}
}

/* ---- Cases ---- */

static bool check_case(const struct attnd_kernel *k, const struct attnd_kv_spec *s, uint32_t tokens, uint32_t rows,
		       enum shape shape, uint64_t seed)
{
	struct attend_case c;

	if (failed() || !case_make(&c, k, s, tokens, rows, shape, seed))
		return false;
	case_compare_reference(&c, k, c.partials);
	check_exchange(&c);
	check_bits(&c);
	check_nan_row(&c);
	check_poison(&c);
	protect_blocks(&c, false);
	check_untouched(&c);
	case_free(&c);
	return true;
}

/* Rows such that a case costs about the same whatever its geometry. */
static uint32_t affordable_rows(struct rng *r, const struct attnd_kv_spec *s, uint32_t tokens)
{
	uint64_t one = (uint64_t)s->num_kv_heads * s->group * tokens * (s->head_dim + s->head_dim_v);
	uint64_t most = 3000000 / one;

	most = most < 1 ? 1 : most > 64 ? 64 : most;
	return rng_range(r, 1, (uint32_t)most);
}

static uint32_t check_random(const struct attnd_kernel *k, uint64_t seed)
{
	struct rng r = {seed};
	uint32_t served = 0;

	for (uint32_t i = (uint32_t)(seed % check_thin); i < 24; i += check_thin) {
		struct attnd_kv_spec s = random_spec(&r, (enum attnd_kdtype)k->kv);
		enum shape shape = (enum shape)(i % SHAPES);
		uint32_t tokens = i % 3 ? rng_range(&r, 1, 300) : rng_range(&r, 300, 1200);

		if (i % 2)
			s.layout = ATTND_K_PACKED;
		if (s.layout != ATTND_K_BSHD && s.block_size < 16)
			s.block_size = 16;
		if (tokens > 300) {
			s.group = s.group > 8 ? 16 : s.group;
			s.num_kv_heads = 1 + s.num_kv_heads / 3;
		}
		served += check_case(k, &s, tokens, affordable_rows(&r, &s, tokens), shape, rng_next(&r));
	}
	return served;
}

static struct attnd_kv_spec small_spec(const struct attnd_kernel *k, uint32_t dim, uint32_t dim_v, uint32_t group)
{
	struct rng r = {dim};
	struct attnd_kv_spec s = random_spec(&r, (enum attnd_kdtype)k->kv);

	s.num_kv_heads = 1;
	s.group = group;
	s.head_dim = dim;
	s.head_dim_v = dim_v;
	s.layout = ATTND_K_PACKED;
	s.block_size = dim % 2 ? 16 : 32;
	s.v_in_k = false;
	return s;
}

/* Every number of dims and of query heads a group around the widths of tiles. */
static uint32_t check_dims(const struct attnd_kernel *k, uint64_t seed)
{
	uint32_t served = 0;

	for (uint32_t d = 1 + (uint32_t)(seed % check_thin); d <= 68; d += check_thin) {
		struct attnd_kv_spec s = small_spec(k, d, (d * 29) % 67 + 1, d % 18 + 1);

		served += check_case(k, &s, 5 + d % 40, 1 + d % 3, SHAPE_PLAIN, seed + d);
	}
	return served;
}

/* Rows with every upper, then every lower bound over more than a step; every number of rows. */
static uint32_t check_bounds_of_rows(const struct attnd_kernel *k, uint64_t seed)
{
	uint32_t served = 0;

	for (uint32_t from = (uint32_t)(seed % check_thin * 64 % 256); from < 256; from += check_thin * 64) {
		struct attnd_kv_spec s = small_spec(k, 24 + from / 64, 20, 2);
		struct attend_case c;
		struct run alone = {.first = k, .num_rows = 1};

		if (failed() || !case_make(&c, k, &s, 300, 64, SHAPE_PLAIN, seed + from))
			continue;
		for (uint32_t i = 0; i < 64; i++) {
			c.rows[i].lo = c.base + (from % 128 ? 0 : from + i);
			c.rows[i].hi = c.base + (from % 128 ? from - 64 + i + 1 : 300);
		}
		attnd_init_any_c(&c.fmt, c.partials, c.num_rows * c.num_chunks * c.heads);
		case_run(&c, &alone, c.partials);
		case_compare_reference(&c, k, c.partials);
		for (uint32_t n = 2; n <= 64; n += 1 + check_thin / 8) {
			struct run many = {.first = k, .num_rows = n, .steps = n % 2 ? CUT_NONE : CUT_STEPS};

			if (n % 8 == 7 || n < 20)
				run_and_compare(&c, &many, NULL, "among others");
		}
		case_free(&c);
		served++;
	}
	return served;
}

/* ---- A neighbour that writes meanwhile ---- */

/* The last block's unused slots, stored to by a thread while attend runs. */
struct neighbour {
	struct attend_case *c;
	_Atomic uint32_t go, done; /* rounds asked for and made */
	_Atomic bool stop;
};

static void store_neighbours(struct attend_case *c)
{
	uint32_t last = c->num_blocks - 1, used = c->tokens - last * c->fmt.spec.block_size;
	struct attnd_slots_args a = {.fmt = &c->fmt,
				     .block = c->blocks[last],
				     .flags = c->flags[last],
				     .k_scale = 1,
				     .v_scale = 1,
				     .slot = used,
				     .n = c->fmt.spec.block_size - used,
				     .num_heads = c->fmt.spec.num_kv_heads,
				     .in = ATTND_K_F32};
	float row[ATTND_K_MAX_DIM];

	for (uint32_t i = 0; i < ATTND_K_MAX_DIM; i++)
		row[i] = NAN;
	a.k = a.v = row;
	attnd_write_any_c(&a);
}

static void *neighbour_main(void *arg)
{
	struct neighbour *n = arg;

	while (!atomic_load_explicit(&n->stop, memory_order_acquire)) {
		uint32_t go = atomic_load_explicit(&n->go, memory_order_acquire);

		if (go == atomic_load_explicit(&n->done, memory_order_relaxed)) {
			sched_yield();
			continue;
		}
		for (volatile uint32_t i = 0; i < go % 16 * 64; i++)
			;
		store_neighbours(n->c);
		atomic_store_explicit(&n->done, go, memory_order_release);
	}
	return NULL;
}

/* The unused slots finite again, the flags down, for the next round. */
static void calm_neighbours(struct attend_case *c)
{
	uint32_t last = c->num_blocks - 1, used = c->tokens - last * c->fmt.spec.block_size;
	void *calm = guarded_alloc(c->fmt.layer_bytes, 64);

	memset(calm, 0, c->fmt.layer_bytes);
	attnd_copy_any_c(&c->fmt, calm, c->flags[last], c->blocks[last], c->flags[last], used, 0,
			 c->fmt.spec.num_kv_heads);
	memcpy(c->blocks[last], calm, c->fmt.layer_bytes);
	memset(c->flags[last], 0, c->fmt.spec.num_kv_heads);
	guarded_free(calm);
}

static void check_neighbour(const struct attnd_kernel *k, uint64_t seed)
{
	struct attnd_kv_spec s = small_spec(k, 64, 64, 4);
	struct attend_case c;
	struct neighbour n = {.c = &c};
	struct run together = {.first = k};
	pthread_t thread;

	if (failed() || !case_make(&c, k, &s, 200, 4, SHAPE_PLAIN, seed))
		return;
	together.num_rows = c.num_rows;
	if (pthread_create(&thread, NULL, neighbour_main, &n) != 0)
		abort();
	for (uint32_t i = 1; i <= 40 / check_thin; i++) {
		calm_neighbours(&c);
		atomic_store_explicit(&n.go, i, memory_order_release);
		run_and_compare(&c, &together, NULL, "while a neighbour writes");
		while (atomic_load_explicit(&n.done, memory_order_acquire) != i)
			sched_yield();
	}
	atomic_store_explicit(&n.stop, true, memory_order_release);
	pthread_join(thread, NULL);
	case_free(&c);
}

static uint32_t check_cases(const struct attnd_kernel *k, uint64_t seed)
{
	uint32_t served = check_random(k, seed);

	served += check_dims(k, seed + 1);
	served += check_bounds_of_rows(k, seed + 2);
	check_neighbour(k, seed + 3);
	return served;
}

/* A kernel for CPUs that lack a feature serves no format here; then only what it needs counts. */
void check_attend(const struct attnd_kernel *k, uint64_t seed)
{
	uint64_t all = check_features;
	uint32_t served = check_cases(k, seed);

	if (served == 0 && !failed()) {
		check_features &= k->need | UINT64_MAX << ATTND_CPU_VLEN_SHIFT;
		served = check_cases(k, seed);
		check_features = all;
	}
	if (served == 0 && !failed())
		fail("%s serves no format", k->name);
}
