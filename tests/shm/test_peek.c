/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The peek table: what is added is found until it is removed or loses its place, and nothing else.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>

#include <stdalign.h>

#include "../../shm/peek.h"

enum { ENTRIES = 32, BUCKETS = ENTRIES / ATTND_PEEK_BUCKET };

static alignas(64) _Atomic uint64_t entries_[ENTRIES];
static struct attnd_peek_table table_;

static int start(void **state)
{
	(void)state;
	for (int i = 0; i < ENTRIES; i++)
		atomic_store(&entries_[i], 0);
	attnd_peek_init(&table_, entries_, ENTRIES);
	return 0;
}

/* The n-th hash of buckets a and b. */
static uint64_t hash_of(uint32_t a, uint32_t b, uint32_t n)
{
	return (uint64_t)n << 61 | (uint64_t)(n + 1) << 40 | (uint64_t)b << 32 | a;
}

static int used(void)
{
	int n = 0;

	for (int i = 0; i < ENTRIES; i++)
		n += atomic_load(&entries_[i]) != 0;
	return n;
}

static void test_add_and_remove(void **state)
{
	(void)state;
	assert_false(attnd_peek_has(&table_, 7));
	assert_true(attnd_peek_add(&table_, 7));
	assert_true(attnd_peek_has(&table_, 7));
	assert_false(attnd_peek_has(&table_, 7 + BUCKETS));
	attnd_peek_remove(&table_, 7 + BUCKETS);
	assert_true(attnd_peek_has(&table_, 7));
	attnd_peek_remove(&table_, 7);
	assert_false(attnd_peek_has(&table_, 7));
	attnd_peek_remove(&table_, 7);
	assert_int_equal(used(), 0);
}

/* Two prefixes of one hash are two entries. */
static void test_equal_hashes(void **state)
{
	(void)state;
	assert_true(attnd_peek_add(&table_, 9));
	assert_true(attnd_peek_add(&table_, 9));
	attnd_peek_remove(&table_, 9);
	assert_true(attnd_peek_has(&table_, 9));
	attnd_peek_remove(&table_, 9);
	assert_false(attnd_peek_has(&table_, 9));
}

/* A full bucket sends to the other one; when both are full one entry is lost, and no other. */
static void test_collisions(void **state)
{
	int found = 0;

	(void)state;
	for (uint32_t i = 0; i < 2 * ATTND_PEEK_BUCKET; i++)
		assert_true(attnd_peek_add(&table_, hash_of(1, 2, i)));
	assert_int_equal(used(), 2 * ATTND_PEEK_BUCKET);
	for (uint32_t i = 0; i < 2 * ATTND_PEEK_BUCKET; i++)
		assert_true(attnd_peek_has(&table_, hash_of(1, 2, i)));
	assert_false(attnd_peek_add(&table_, hash_of(2, 1, 99)));
	assert_true(attnd_peek_has(&table_, hash_of(2, 1, 99)));
	for (uint32_t i = 0; i < 2 * ATTND_PEEK_BUCKET; i++)
		found += attnd_peek_has(&table_, hash_of(1, 2, i));
	assert_int_equal(found, 2 * ATTND_PEEK_BUCKET - 1);
	assert_int_equal(used(), 2 * ATTND_PEEK_BUCKET);
	for (uint32_t i = 0; i < 2 * ATTND_PEEK_BUCKET; i++)
		attnd_peek_remove(&table_, hash_of(1, 2, i));
	assert_int_equal(used(), 1);
	attnd_peek_remove(&table_, hash_of(2, 1, 99));
	assert_int_equal(used(), 0);
}

static void test_full(void **state)
{
	uint32_t lost = 0;

	(void)state;
	for (uint32_t i = 0; i < 4 * ENTRIES; i++) {
		uint64_t h = hash_of(i % BUCKETS, (i / 3) % BUCKETS, i);

		lost += !attnd_peek_add(&table_, h);
		assert_true(attnd_peek_has(&table_, h));
	}
	assert_int_equal(used(), ENTRIES);
	assert_int_equal(lost, 3 * ENTRIES);
}

/* Key, what is before, each token and its width count. */
static void test_hash(void **state)
{
	uint8_t key[ATTND_PEEK_KEY] = {1}, other[ATTND_PEEK_KEY] = {2};
	uint64_t t[256] = {1, 2, 3}, wide[2] = {UINT64_C(2) << 32 | 1, 0}, narrow[2] = {1, 2};
	uint64_t h = attnd_peek_hash(key, 0, t, 16);

	(void)state;
	assert_true(h == attnd_peek_hash(key, 0, t, 16));
	assert_true(h != attnd_peek_hash(other, 0, t, 16));
	assert_true(h != attnd_peek_hash(key, 1, t, 16));
	assert_true(h != attnd_peek_hash(key, 0, t, 32));
	assert_true(attnd_peek_hash(key, 0, wide, 2) != attnd_peek_hash(key, 0, narrow, 2));
	t[15] = UINT64_MAX;
	assert_true(h != attnd_peek_hash(key, 0, t, 16));
	t[15] = UINT32_MAX;
	assert_true(h != attnd_peek_hash(key, 0, t, 16));
	t[255] = UINT64_MAX;
	assert_true(attnd_peek_hash(key, 0, t, 256) != 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup(test_add_and_remove, start),
		cmocka_unit_test_setup(test_equal_hashes, start),
		cmocka_unit_test_setup(test_collisions, start),
		cmocka_unit_test_setup(test_full, start),
		cmocka_unit_test(test_hash),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
