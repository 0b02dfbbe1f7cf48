/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The allocator and the token lists against simple models, over long random runs.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <cmocka.h>

#include <errno.h>
#include <string.h>

#include "../../client/heap.h"
#include "../../client/tokens.h"

static uint64_t seed;

static uint64_t rnd(uint64_t below)
{
	seed = seed * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
	return (seed >> 33) % below;
}

/* ---- Heap ---- */

#define GRANULES 4096
#define BLOCKS	 512

struct model {
	unsigned char used[GRANULES];
	struct cl_block *block[BLOCKS];
};

static void model_mark(struct model *m, const struct cl_block *b, unsigned char how)
{
	assert_true(b->first + b->count <= GRANULES);
	for (size_t i = b->first; i < b->first + b->count; i++) {
		assert_int_not_equal(m->used[i], how);
		m->used[i] = how;
	}
}

/* Granules in the longest free run: an allocation of that size must succeed. */
static size_t model_longest(const struct model *m)
{
	size_t run = 0, longest = 0;

	for (size_t i = 0; i < GRANULES; i++) {
		run = m->used[i] ? 0 : run + 1;
		longest = run > longest ? run : longest;
	}
	return longest;
}

static void heap_against_a_model(void **state)
{
	struct model *m = calloc(1, sizeof(*m));
	struct cl_heap *h;

	(void)state;
	seed = 1;
	assert_non_null(m);
	assert_int_equal(cl_heap_create((size_t)GRANULES * CL_GRANULE, &h), 0);
	for (int step = 0; step < 100000; step++) {
		struct cl_block **b = &m->block[rnd(BLOCKS)];

		if (*b) {
			assert_ptr_equal(cl_heap_find(h, (*b)->first * CL_GRANULE), *b);
			model_mark(m, *b, 0);
			cl_heap_free(*b);
			*b = NULL;
		} else {
			size_t bytes = 1 + rnd(rnd(8) ? 4 * CL_GRANULE : 300 * CL_GRANULE);

			*b = cl_heap_alloc(h, bytes);
			if (*b) {
				assert_true((*b)->count * CL_GRANULE >= bytes);
				assert_true((*b)->count * CL_GRANULE < bytes + CL_GRANULE);
				model_mark(m, *b, 1);
			} else {
				assert_true(model_longest(m) * CL_GRANULE < bytes);
			}
		}
		if (step % 1000 == 0 && model_longest(m)) {
			struct cl_block *all = cl_heap_alloc(h, model_longest(m) * CL_GRANULE);

			assert_non_null(all);
			cl_heap_free(all);
		}
	}
	for (int i = 0; i < BLOCKS; i++)
		if (m->block[i])
			cl_heap_free(m->block[i]);
	/* All of it is one block again. */
	m->block[0] = cl_heap_alloc(h, (size_t)GRANULES * CL_GRANULE);
	assert_non_null(m->block[0]);
	assert_null(cl_heap_alloc(h, 1));
	cl_heap_destroy(h);
	cl_heap_destroy(NULL);
	free(m);
}

static void heap_finds_only_starts(void **state)
{
	struct cl_block *b;
	struct cl_heap *h;

	(void)state;
	assert_int_equal(cl_heap_create(64 * CL_GRANULE, &h), 0);
	b = cl_heap_alloc(h, 8 * CL_GRANULE);
	assert_non_null(b);
	for (size_t at = 0; at < 65 * CL_GRANULE; at++)
		assert_ptr_equal(cl_heap_find(h, at), at == b->first * CL_GRANULE ? b : NULL);
	assert_null(cl_heap_find(h, SIZE_MAX / CL_GRANULE * CL_GRANULE));
	assert_null(cl_heap_alloc(h, 0));
	assert_null(cl_heap_alloc(h, SIZE_MAX));
	cl_heap_destroy(h);
}

/* ---- Tokens ---- */

#define LISTS  6
#define LENGTH 3000

static void tokens_against_a_model(void **state)
{
	static uint64_t want[LISTS][LENGTH], fresh[LENGTH], got[LENGTH];
	struct cl_tokens list[LISTS] = {0};

	(void)state;
	seed = 2;
	for (int step = 0; step < 3000; step++) {
		size_t i = rnd(LISTS), from = rnd(LISTS);
		uint64_t start = rnd(list[i].count + 1), n = rnd(LENGTH - start + 1),
			 length = rnd(list[from].count + 1);

		if (rnd(3)) {
			n = rnd(2) ? n : n % 7;
			for (uint64_t t = 0; t < n; t++)
				fresh[t] = rnd(UINT32_MAX);
			cl_tokens_write(&list[i], start, fresh, n);
			memcpy(want[i] + start, fresh, n * sizeof(fresh[0]));
			assert_int_equal(list[i].count, start + n);
		} else if (i != from) {
			cl_tokens_destroy(&list[i]);
			assert_int_equal(cl_tokens_share(&list[i], &list[from], length), 0);
			memcpy(want[i], want[from], length * sizeof(want[0][0]));
			assert_int_equal(list[i].count, length);
		}
		/* Nobody else's has changed. */
		for (size_t l = 0; l < LISTS; l++) {
			cl_tokens_read(&list[l], got, list[l].count);
			assert_memory_equal(got, want[l], list[l].count * sizeof(got[0]));
		}
	}
	for (size_t l = 0; l < LISTS; l++)
		cl_tokens_destroy(&list[l]);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(heap_against_a_model),
		cmocka_unit_test(heap_finds_only_starts),
		cmocka_unit_test(tokens_against_a_model),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
