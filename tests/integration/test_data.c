/* SPDX-License-Identifier: Apache-2.0 */
/*
 * K and V as data, and block tables: what was written comes out bit for bit, gives the same
 * attention in another cache, and tables name the blocks that plans name.
 *
 * In: random K and V. Out: TAP. Next: daemon/export.c, daemon/slots.c.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "../../shm/futex.h"
#include "toy.h"

enum { LAYERS = 2, HEADS = 4, KV_HEADS = 2, DIM = 32, DIM_V = 24, TOKENS = 100, BLOCK = 16, MORE = 5 };

static struct daemon daemon_;
static attnd_t *a_;

static int test_start(void **state)
{
	const char *const args[] = {"--pool-size", "16M", "--hugepages", "off", NULL};

	(void)state;
	if (daemon_start(&daemon_, args) < 0)
		return -1;
	a_ = daemon_connect(&daemon_);
	return 0;
}

static int test_end(void **state)
{
	(void)state;
	attnd_disconnect(a_);
	daemon_clean(&daemon_);
	return 0;
}

struct kind {
	enum attnd_dtype dtype;
	enum attnd_scale_mode scale;
	int v_in_k;
};

static const struct kind kinds[] = {
	{ATTND_F32, ATTND_SCALE_NONE, 0},    {ATTND_BF16, ATTND_SCALE_NONE, 0}, {ATTND_INT8, ATTND_SCALE_DYNAMIC, 0},
	{ATTND_INT8, ATTND_SCALE_STATIC, 0}, {ATTND_BF16, ATTND_SCALE_NONE, 1}, {ATTND_INT8, ATTND_SCALE_DYNAMIC, 1},
};

static void *arena(size_t bytes)
{
	void *p;

	assert_int_equal(attnd_alloc(a_, bytes, &p), 0);
	memset(p, 0, bytes);
	return p;
}

static uint32_t open_cache(const struct kind *k, uint8_t fingerprint)
{
	const struct attnd_cache_desc desc = {.name = "data",
					      .fingerprint = {fingerprint},
					      .num_layers = LAYERS,
					      .num_heads = HEADS,
					      .num_kv_heads = KV_HEADS,
					      .head_dim = DIM,
					      .head_dim_v = DIM_V,
					      .block_size = BLOCK,
					      .kv_dtype = k->dtype,
					      .scale_mode = k->scale,
					      .v_in_k = k->v_in_k};
	struct attnd_cache_info info;

	assert_int_equal(attnd_cache_open(a_, &desc, 1, &info), 0);
	for (uint32_t l = 0; l < LAYERS && k->scale == ATTND_SCALE_STATIC; l++)
		assert_int_equal(attnd_scales_set(a_, info.cache, l, 0.01f, 0.02f), 0);
	return info.cache;
}

static size_t up(size_t n)
{
	return (n + 63) / 64 * 64;
}

/* Where V and the scales stand in the data of n tokens. */
static void parts(const struct kind *k, size_t n, size_t *v, size_t *ks, size_t *vs, size_t *end)
{
	size_t size = k->dtype == ATTND_F32 ? 4 : k->dtype == ATTND_BF16 ? 2 : 1;
	size_t scales = k->scale == ATTND_SCALE_DYNAMIC ? up(n * KV_HEADS * 4) : 0;

	*v = up(n * KV_HEADS * DIM * size);
	*ks = *v + (k->v_in_k ? 0 : up(n * KV_HEADS * DIM_V * size));
	*vs = *ks + scales;
	*end = *vs + (k->v_in_k ? 0 : scales);
}

static void put_values(const struct kind *k, char *to, size_t n, uint64_t *seed)
{
	for (size_t i = 0; i < n; i++) {
		float f = (float)(next_random(seed) >> 40) / (float)(1 << 23) - 1.0f;

		if (k->dtype == ATTND_F32)
			memcpy(to + 4 * i, &f, 4);
		else if (k->dtype == ATTND_BF16)
			memcpy(to + 2 * i, (char *)&f + 2, 2);
		else
			to[i] = (char)(signed char)(f * 127);
	}
}

/* Random data of n tokens. */
static char *make_data(const struct kind *k, size_t n, uint64_t seed)
{
	const struct kind scale = {ATTND_F32, ATTND_SCALE_NONE, 0};
	size_t v, ks, vs, end;
	char *p;

	parts(k, n, &v, &ks, &vs, &end);
	p = arena(end);
	put_values(k, p, n * KV_HEADS * DIM, &seed);
	if (!k->v_in_k)
		put_values(k, p + v, n * KV_HEADS * DIM_V, &seed);
	if (k->scale == ATTND_SCALE_DYNAMIC)
		put_values(&scale, p + ks, n * KV_HEADS, &seed);
	if (k->scale == ATTND_SCALE_DYNAMIC && !k->v_in_k)
		put_values(&scale, p + vs, n * KV_HEADS, &seed);
	for (char *s = p + ks; k->scale == ATTND_SCALE_DYNAMIC && s < p + end; s += 4)
		s[3] &= 0x7f; /* positive */
	return p;
}

static void plan_row(uint32_t cache, uint64_t key, const uint64_t *tokens, uint64_t start, uint32_t n)
{
	const struct attnd_row row = {.key = key, .start = start, .tokens = tokens + start, .num_tokens = n};

	assert_int_equal(attnd_plan(a_, 1, cache, &row, 1, NULL, 0), 0);
}

/* One layer by attnd_extend, the data as its k and v; with `out` it attends, too. */
static void extend(const struct kind *k, uint32_t cache, uint32_t n, uint32_t layer, char *data, float *q, float *out)
{
	struct attnd_params params = {.cache = cache, .sm_scale = 0.25f, .causal = 1, .kv_in_dtype = k->dtype};
	struct attnd_attend job = {.plan = 1,
				   .layer = layer,
				   .flags = (layer == LAYERS - 1 ? ATTND_LAST : 0) | (out ? 0 : ATTND_NO_OUT),
				   .q = q,
				   .k = data,
				   .out = out};
	size_t v, ks, vs, end;
	attnd_job_t id;

	parts(k, n, &v, &ks, &vs, &end);
	job.v = k->v_in_k ? NULL : data + v;
	params.k_scales_delta = k->scale == ATTND_SCALE_DYNAMIC ? ks : 0;
	params.v_scales_delta = k->scale == ATTND_SCALE_DYNAMIC && !k->v_in_k ? vs - v : 0;
	assert_int_equal(attnd_params_set(a_, 0, &params), 0);
	assert_int_equal(attnd_extend(a_, &job, &id), 0);
	assert_int_equal(attnd_wait(a_, id, NULL), 0);
}

/* The next tokens' outputs of all layers. */
static void attend(const struct kind *k, uint32_t cache, uint64_t key, const uint64_t *tokens, float *ret)
{
	size_t n = (size_t)MORE * HEADS * DIM_V;
	float *q = arena(MORE * HEADS * DIM * sizeof(float)), *out = arena(n * sizeof(float));
	uint64_t seed = 99;

	put_values(&kinds[0], (char *)q, MORE * HEADS * DIM, &seed);
	plan_row(cache, key, tokens, TOKENS, MORE);
	for (uint32_t l = 0; l < LAYERS; l++) {
		char *data = make_data(k, MORE, 50 + l);

		extend(k, cache, MORE, l, data, q, out);
		memcpy(ret + l * n, out, n * sizeof(float));
		attnd_free(a_, data);
	}
	attnd_free(a_, q);
	attnd_free(a_, out);
}

static void round_trip(const struct kind *k)
{
	static float want[LAYERS * MORE * HEADS * DIM_V], got[LAYERS * MORE * HEADS * DIM_V];
	uint64_t tokens[TOKENS + MORE];
	char *data[LAYERS], *back[LAYERS];
	struct attnd_open_info info;
	size_t v, ks, vs, end, bytes;

	uint32_t from = open_cache(k, 1);
	toy_tokens(tokens, TOKENS + MORE, 1);
	assert_int_equal(attnd_seq_open(a_, 1, 0, NULL, 0, 0, &info), 0);
	parts(k, TOKENS, &v, &ks, &vs, &end);
	assert_int_equal(attnd_kv_bytes(a_, from, TOKENS, &bytes), 0);
	assert_int_equal(bytes, end);
	plan_row(from, 1, tokens, 0, TOKENS);
	for (uint32_t l = 0; l < LAYERS; l++) {
		data[l] = make_data(k, TOKENS, l + 1);
		extend(k, from, TOKENS, l, data[l], NULL, NULL);
	}
	for (uint32_t l = 0; l < LAYERS; l++) {
		struct attnd_kv kv = {.cache = from, .layer = l, .key = 1, .num_tokens = TOKENS};

		kv.data = back[l] = arena(end);
		assert_int_equal(attnd_export(a_, &kv), 0);
		assert_memory_equal(back[l], data[l], end);
	}
	attend(k, from, 1, tokens, want);

	/* A piece that begins and ends inside blocks. */
	struct attnd_kv piece = {.cache = from, .layer = 1, .key = 1, .start = 21, .num_tokens = 70};
	parts(k, 70, &v, &ks, &vs, &end);
	size_t row = (k->dtype == ATTND_F32 ? 4u : k->dtype == ATTND_BF16 ? 2 : 1) * KV_HEADS * DIM;
	piece.data = arena(end);
	assert_int_equal(attnd_export(a_, &piece), 0);
	assert_memory_equal(piece.data, data[1] + 21 * row, 70 * row);
	assert_int_equal(attnd_seq_close(a_, 1), 0);

	/* Another cache gives the same attention. */
	attnd_disconnect(a_);
	a_ = daemon_connect(&daemon_);
	uint32_t to = open_cache(k, 2);
	assert_int_equal(attnd_seq_open(a_, 2, 0, NULL, 0, 0, &info), 0);
	plan_row(to, 2, tokens, 0, TOKENS);
	for (uint32_t l = 0; l < LAYERS; l++) {
		struct attnd_kv kv = {.cache = to, .layer = l, .num_tokens = TOKENS};

		kv.data = make_data(k, TOKENS, l + 1);
		assert_int_equal(attnd_import(a_, 1, 7, l == LAYERS - 1 ? ATTND_LAST : 0, &kv), 0);
	}
	attend(k, to, 2, tokens, got);
	assert_memory_equal(got, want, sizeof(want));
	assert_int_equal(attnd_seq_close(a_, 2), 0);
	attnd_disconnect(a_);
	a_ = daemon_connect(&daemon_);
}

static void test_round_trips(void **state)
{
	(void)state;
	for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++)
		round_trip(&kinds[i]);
}

/* A plan under way is neither exported nor disturbed; the sequence may be rolled back and closed meanwhile. */
static void test_beside_plans(void **state)
{
	uint64_t tokens[TOKENS];
	struct attnd_open_info info;
	char *data[LAYERS], *more;
	attnd_job_t id[LAYERS];
	size_t bytes;

	(void)state;
	uint32_t cache = open_cache(&kinds[0], 1);
	toy_tokens(tokens, TOKENS, 1);
	assert_int_equal(attnd_seq_open(a_, 1, 0, NULL, 0, 0, &info), 0);
	plan_row(cache, 1, tokens, 0, 90);
	for (uint32_t l = 0; l < LAYERS; l++) {
		data[l] = make_data(&kinds[0], 90, l + 1);
		extend(&kinds[0], cache, 90, l, data[l], NULL, NULL);
	}
	assert_int_equal(attnd_kv_bytes(a_, cache, 90, &bytes), 0);
	more = make_data(&kinds[0], 10, 77);
	plan_row(cache, 1, tokens, 90, 10);
	extend(&kinds[0], cache, 10, 0, more, NULL, NULL);
	struct attnd_kv kv = {.cache = cache, .layer = 0, .key = 1, .num_tokens = 91, .data = arena(bytes)};
	assert_int_equal(attnd_export(a_, &kv), -ERANGE);
	kv.num_tokens = 90;
	assert_int_equal(attnd_export(a_, &kv), 0);
	assert_memory_equal(kv.data, data[0], bytes);
	extend(&kinds[0], cache, 10, 1, more, NULL, NULL);
	kv = (struct attnd_kv){.cache = cache, .layer = 1, .key = 1, .start = 90, .num_tokens = 10, .data = kv.data};
	assert_int_equal(attnd_export(a_, &kv), 0);
	assert_memory_equal(kv.data, more, 10 * KV_HEADS * DIM * sizeof(float));

	struct attnd_kv all[LAYERS];
	for (uint32_t l = 0; l < LAYERS; l++) {
		all[l] = (struct attnd_kv){
			.cache = cache, .layer = l, .key = 1, .num_tokens = 90, .data = arena(bytes)};
		assert_int_equal(attnd_export_async(a_, &all[l], &id[l]), 0);
	}
	assert_int_equal(attnd_seq_trim(a_, 1, 20), 0);
	assert_int_equal(attnd_seq_close(a_, 1), 0);
	for (uint32_t l = 0; l < LAYERS; l++) {
		assert_int_equal(attnd_wait(a_, id[l], NULL), 0);
		assert_memory_equal(all[l].data, data[l], bytes);
	}
	struct in_use now;
	daemon_in_use(&daemon_, &now);
	assert_int_equal(now.sequences, 0);
	assert_int_equal(now.referenced, 0);
}

static void test_export_errors(void **state)
{
	struct attnd_open_info info;
	uint64_t tokens[TOKENS];
	size_t bytes;

	(void)state;
	uint32_t cache = open_cache(&kinds[0], 1);
	toy_tokens(tokens, TOKENS, 1);
	assert_int_equal(attnd_seq_open(a_, 1, 0, NULL, 0, 0, &info), 0);
	assert_int_equal(attnd_kv_bytes(a_, cache + 1, 1, &bytes), -ENOENT);
	assert_int_equal(attnd_kv_bytes(a_, cache, 0, &bytes), -EINVAL);
	struct attnd_kv kv = {.cache = cache, .key = 1, .num_tokens = 1, .data = arena(4096)};
#define WITH(change, error)                                    \
	do {                                                   \
		struct attnd_kv x = kv;                        \
		change;                                        \
		assert_int_equal(attnd_export(a_, &x), error); \
	} while (0)
	WITH((void)0, -ERANGE);
	plan_row(cache, 1, tokens, 0, 1);
	for (uint32_t l = 0; l < LAYERS; l++)
		extend(&kinds[0], cache, 1, l, make_data(&kinds[0], 1, 1), NULL, NULL);
	WITH((void)0, 0);
	WITH(x.key = 2, -ENOENT);
	WITH(x.cache++, -ENOENT);
	WITH(x.layer = LAYERS, -EINVAL);
	WITH(x.num_tokens = 0, -EINVAL);
	WITH(x.num_tokens = (1 << 20) + 1, -EINVAL);
	WITH(x.start = 2, -ERANGE);
	WITH(x.start = UINT64_MAX, -ERANGE);
	WITH(x.data = tokens, -EFAULT);
	WITH(x.data = (char *)x.data + 2, -EFAULT);
#undef WITH
}

/* ---- Block tables ---- */

static void test_slot_tables(void **state)
{
	enum { A = 40, B = 30, ENTRIES = 200 };
	uint64_t tokens[A + MORE], other[B];
	const uint64_t keys[] = {1, 2};
	struct toy t;
	uint32_t n = 0;

	(void)state;
	toy_tokens(tokens, A + MORE, 1);
	toy_tokens(other, B, 1);
	other[B - 1] = 777; /* shares all full blocks before */
	assert_int_equal(toy_open(&t, a_, 1), 0);
	uint64_t cached;
	assert_int_equal(toy_prefill(&t, 1, tokens, A, &cached), 0);
	assert_int_equal(toy_prefill(&t, 2, other, B, &cached), 0);
	assert_int_equal(cached, B - 1);

	int32_t *indices = arena(ENTRIES * 4), *lens = arena(8), *kv_indptr = arena(12);
	struct attnd_slot_table s = {.unit = ATTND_SLOT_TOKENS,
				     .capacity = ENTRIES,
				     .kv_indices = indices,
				     .seq_lens = lens,
				     .kv_indptr = kv_indptr};
	assert_int_equal(attnd_slot_table(a_, t.cache, keys, 2, &s, &n), 0);
	assert_int_equal(n, A + B);
	assert_int_equal(lens[0], A);
	assert_int_equal(lens[1], B);
	assert_int_equal(kv_indptr[0], 0);
	assert_int_equal(kv_indptr[1], A);
	assert_int_equal(kv_indptr[2], A + B);
	for (int i = 0; i < A; i++) {
		assert_int_equal(indices[i] % BLOCK, i % BLOCK);
		assert_int_equal(indices[i] - i % BLOCK, indices[i / BLOCK * BLOCK]);
	}
	assert_memory_equal(indices, indices + A, BLOCK * 4); /* the shared block is one */
	assert_int_not_equal(indices[BLOCK], indices[A + BLOCK]);

	/* As blocks, padded. */
	int32_t *table = arena(2 * 8 * 4);
	struct attnd_slot_table b = {.unit = ATTND_SLOT_BLOCKS, .width = 8, .capacity = 16, .kv_indices = table};
	assert_int_equal(attnd_slot_table(a_, t.cache, keys, 2, &b, &n), 0);
	assert_int_equal(n, 16);
	for (int i = 0; i < 8; i++) {
		assert_int_equal(table[i], i < 3 ? indices[i * BLOCK] / BLOCK : -1);
		assert_int_equal(table[8 + i], i < 2 ? indices[A + i * BLOCK] / BLOCK : -1);
	}

	/* A plan's rows, with their new tokens; one is refused. */
	const struct attnd_row rows[] = {
		{.key = 2, .start = B, .tokens = tokens, .num_tokens = 3},
		{.key = 9, .tokens = tokens, .num_tokens = 2},
		{.key = 1, .start = A, .tokens = tokens + A, .num_tokens = MORE},
	};
	struct attnd_row_status status[3];
	int32_t *lens3 = arena(12), *kv3 = arena(16), *qo3 = arena(16);
	assert_int_equal(attnd_plan(a_, 5, t.cache, rows, 3, status, 0), 0);
	assert_int_equal(status[1].status, -ENOENT);
	struct attnd_slot_table p = {.unit = ATTND_SLOT_TOKENS,
				     .plan = 5,
				     .capacity = ENTRIES,
				     .kv_indices = arena(ENTRIES * 4),
				     .seq_lens = lens3,
				     .kv_indptr = kv3,
				     .qo_indptr = qo3};
	assert_int_equal(attnd_slot_table(a_, t.cache, NULL, 3, &p, &n), 0);
	assert_int_equal(n, B + 3 + A + MORE);
	assert_int_equal(lens3[0], B + 3);
	assert_int_equal(lens3[1], 0);
	assert_int_equal(lens3[2], A + MORE);
	assert_int_equal(kv3[1], kv3[2]);
	assert_int_equal(qo3[0], 0);
	assert_int_equal(qo3[1], 3);
	assert_int_equal(qo3[2], 5);
	assert_int_equal(qo3[3], 5 + MORE);
	for (int i = 0; i < A / BLOCK * BLOCK; i++)
		assert_int_equal(p.kv_indices[kv3[2] + i], indices[i]);
	/* What the sequences hold is as before. */
	assert_int_equal(attnd_slot_table(a_, t.cache, keys, 2, &s, &n), 0);
	assert_int_equal(n, A + B);

	s.capacity = A + B - 1;
	assert_int_equal(attnd_slot_table(a_, t.cache, keys, 2, &s, &n), -ENOSPC);
	s.capacity = ENTRIES;
	s.width = A - 1;
	assert_int_equal(attnd_slot_table(a_, t.cache, keys, 2, &s, &n), -ERANGE);
	s.width = 0;
	const uint64_t unknown[] = {1, 55};
	assert_int_equal(attnd_slot_table(a_, t.cache, unknown, 2, &s, &n), -ENOENT);
	assert_int_equal(attnd_slot_table(a_, t.cache + 1, keys, 2, &s, &n), -ENOENT);
	assert_int_equal(attnd_slot_table(a_, t.cache, keys, 0, &s, &n), -EINVAL);
	assert_int_equal(attnd_slot_table(a_, t.cache, NULL, 2, &p, &n), -EINVAL);
	p.plan = 6;
	assert_int_equal(attnd_slot_table(a_, t.cache, NULL, 3, &p, &n), -ESTALE);
	s.kv_indices = (int32_t *)(void *)tokens;
	assert_int_equal(attnd_slot_table(a_, t.cache, keys, 2, &s, &n), -EFAULT);
	s.kv_indices = indices;
	s.capacity = (1 << 20) + 1;
	assert_int_equal(attnd_slot_table(a_, t.cache, keys, 2, &s, &n), -EINVAL);
}

/* Filled in slices: each sequence's table is whole, wherever the slices end. */
static void test_large_slot_tables(void **state)
{
	enum { LEN = 500, KEYS = 2000, ENTRIES = LEN * KEYS };
	static uint64_t keys[KEYS];
	uint64_t tokens[LEN], cached, best = UINT64_MAX;
	struct toy t;
	uint32_t n = 0;

	(void)state;
	toy_tokens(tokens, LEN, 1);
	assert_int_equal(toy_open(&t, a_, 1), 0);
	assert_int_equal(toy_prefill(&t, 1, tokens, LEN, &cached), 0);
	for (uint32_t i = 0; i < KEYS; i++) {
		keys[i] = i + 1;
		if (i)
			assert_int_equal(attnd_seq_fork(a_, 1, keys[i], LEN - i % 3), 0);
	}
	int32_t *indices = arena(ENTRIES * 4), *lens = arena(KEYS * 4), *kv_indptr = arena((KEYS + 1) * 4);
	struct attnd_slot_table s = {.unit = ATTND_SLOT_TOKENS,
				     .capacity = ENTRIES,
				     .kv_indices = indices,
				     .seq_lens = lens,
				     .kv_indptr = kv_indptr};
	for (int i = 0; i < 5; i++) {
		uint64_t start = attnd_now_ns();
		assert_int_equal(attnd_slot_table(a_, t.cache, keys, KEYS, &s, &n), 0);
		best = attnd_now_ns() - start < best ? attnd_now_ns() - start : best;
	}
	print_message("# %u entries: %.1f us at best\n", n, (double)best / 1e3);
	for (uint32_t i = 0, at = 0; i < KEYS; i++) {
		assert_int_equal(lens[i], LEN - i % 3);
		assert_int_equal(kv_indptr[i], at);
		assert_memory_equal(indices + at, indices, (LEN - i % 3) * sizeof(int32_t));
		at += (uint32_t)lens[i];
		assert_true(i + 1 < KEYS || at == n);
	}
	assert_int_equal(kv_indptr[KEYS], n);
	s.unit = ATTND_SLOT_BLOCKS;
	s.width = 512; /* -1 behind 32 blocks each */
	assert_int_equal(attnd_slot_table(a_, t.cache, keys, KEYS, &s, &n), -ENOSPC);
	s.width = LEN;
	assert_int_equal(attnd_slot_table(a_, t.cache, keys, KEYS, &s, &n), 0);
	for (uint32_t i = 0; i < KEYS; i++) {
		assert_memory_equal(indices + i * LEN, indices, LEN * sizeof(int32_t));
		assert_int_equal(indices[i * LEN + LEN / BLOCK + 1], -1);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
#define TEST(f) cmocka_unit_test_setup_teardown(f, test_start, test_end)
		TEST(test_round_trips), TEST(test_beside_plans),      TEST(test_export_errors),
		TEST(test_slot_tables), TEST(test_large_slot_tables),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
