/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A client that writes whatever it likes into what it can write: it harms itself only.
 *
 * In: rings and segments full of lies. Out: TAP: the daemon lives, others are served, nothing stays.
 * Next: daemon/intake.c, daemon/reply.c.
 */
#include "harness.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/mman.h>
#include <unistd.h>

#include "raw.h"
#include "toy.h"

enum { SEGMENT = 1 << 18, FUZZ_ENTRIES = 3000 };

static struct daemon daemon_;

static int test_start(void **state)
{
	const char *const args[] = {"--pool-size", "16M", "--hugepages", "off", NULL};

	(void)state;
	return daemon_start(&daemon_, args);
}

/* Whatever happened, the daemon serves others and forgets this one. */
static int test_end(void **state)
{
	struct in_use none = {0};
	uint64_t tokens[40], cached;
	struct toy t;

	(void)state;
	daemon_wait_in_use(&daemon_, &none);
	attnd_t *a = daemon_connect(&daemon_);
	toy_tokens(tokens, 40, 1);
	assert_int_equal(toy_open(&t, a, 1), 0);
	assert_int_equal(toy_prefill(&t, 1, tokens, 40, &cached), 0);
	attnd_disconnect(a);
	daemon_clean(&daemon_);
	return 0;
}

static struct attnd_sqe ping(uint32_t user_data)
{
	return (struct attnd_sqe){.opcode = ATTND_OP_PING, .user_data = user_data, .deadline_us = RAW_DEADLINE_US};
}

static void connect_small(struct raw *r)
{
	struct attnd_msg_hello hello = raw_hello();

	hello.sq_entries = hello.cq_entries = 8;
	assert_int_equal(raw_connect_with(r, daemon_.socket, &hello, sizeof(hello)), 0);
}

static uint32_t taken(const struct raw *r)
{
	return atomic_load_explicit(&r->shared->sq_head, memory_order_acquire);
}

/* Without consuming, no more are taken than the CQ can answer (R3). */
static void test_cq_full(void **state)
{
	struct attnd_sqe s = ping(1);
	struct attnd_cqe c;
	struct raw r;

	(void)state;
	connect_small(&r);
	for (int i = 0; i < 8; i++)
		raw_put(&r, &s);
	for (int i = 0; i < 500 && taken(&r) < 8; i++)
		sleep_ms(10);
	assert_int_equal(taken(&r), 8);
	for (int i = 0; i < 8; i++)
		raw_put(&r, &s);
	sleep_ms(100);
	assert_int_equal(taken(&r), 8);
	for (int i = 0; i < 16; i++) {
		assert_int_equal(raw_wait(&r, &c), 0);
		assert_int_equal(c.res, 0);
	}
	assert_int_equal(taken(&r), 16);
	raw_close(&r);
}

/* A cq_head that lies is clamped (R2). */
static void test_lying_cq_head(void **state)
{
	static const uint32_t lies[] = {UINT32_MAX, 1u << 31, 4711, 9, 0, 17};
	struct attnd_sqe s = ping(1);
	struct raw r;

	(void)state;
	connect_small(&r);
	for (size_t i = 0; i < sizeof(lies) / sizeof(lies[0]); i++) {
		atomic_store_explicit(&r.shared->cq_head, lies[i], memory_order_release);
		for (int n = 0; n < 8; n++)
			raw_put(&r, &s);
		sleep_ms(20);
	}
	raw_close(&r);
}

/* Sequence numbers of the past, of the future, of the other half of the numbers. */
static void test_wrong_seq(void **state)
{
	static const uint32_t seqs[] = {0, 2, 8, 9, UINT32_MAX, 1u << 31};
	struct raw r;

	(void)state;
	connect_small(&r);
	for (size_t i = 0; i < sizeof(seqs) / sizeof(seqs[0]); i++) {
		struct attnd_sqe *e = attnd_ring_entry(&r.sq, 0);
		*e = ping(1);
		atomic_store_explicit(attnd_entry_seq(e), seqs[i], memory_order_release);
		sleep_ms(10);
	}
	assert_int_equal(taken(&r), 0);
	raw_close(&r);
}

/* The whole region overwritten, again and again, while the daemon works on it. */
static void test_overwritten_region(void **state)
{
	struct attnd_sqe s = ping(1);
	uint64_t seed = 42;
	struct raw r;

	(void)state;
	for (int round = 0; round < 20; round++) {
		connect_small(&r);
		for (int i = 0; i < 4; i++)
			raw_put(&r, &s);
		unsigned char *p = (unsigned char *)r.shared;
		for (int i = 0; i < 20; i++) {
			for (size_t at = 0; at < r.welcome.session_bytes; at++)
				p[at] = (unsigned char)(next_random(&seed) >> 56);
			(void)!send(r.wake, "", 1, MSG_DONTWAIT | MSG_NOSIGNAL);
		}
		raw_close(&r);
	}
}

/* Random entries that often come near to right ones, over random segment contents. */
static void test_random_entries(void **state)
{
	uint64_t seed = 1234567;
	struct raw r;

	(void)state;
	assert_int_equal(raw_connect(&r, daemon_.socket), 0);
	assert_int_equal(raw_segment(&r, 0, SEGMENT), 0);
	assert_int_equal(raw_segment(&r, 3, SEGMENT), 0);
	for (size_t i = 0; i + 8 <= SEGMENT; i += 8) {
		uint64_t x = next_random(&seed) >> (next_random(&seed) & 63);
		memcpy(r.segment[0] + i, &x, 8);
	}
	for (int i = 0; i < FUZZ_ENTRIES; i++) {
		struct attnd_sqe s = {.opcode = (uint8_t)(next_random(&seed) % (ATTND_OPS + 2)),
				      .flags = (uint8_t)(next_random(&seed) & 15),
				      .layer = (uint16_t)(next_random(&seed) & 3),
				      .user_data = (uint32_t)i,
				      .deadline_us = 10000};
		for (int w = 0; w < 6; w++) {
			uint64_t x = next_random(&seed);
			s.u64[w] = x & 3 ? (x >> 8) & (SEGMENT - 1) & ~UINT64_C(7) : x >> (x & 63);
		}
		if (s.opcode == ATTND_OP_CACHE_OPEN || s.opcode == ATTND_OP_PARAMS || s.opcode == ATTND_OP_ENGINE)
			s.obj.bytes = s.opcode == ATTND_OP_CACHE_OPEN ? 128 : s.opcode == ATTND_OP_PARAMS ? 120 : 32;
		struct attnd_cqe c;
		int e = raw_call(&r, &s, &c);
		if (e == -ECONNRESET || (e == -ETIMEDOUT && c.user_data != (uint32_t)i))
			fail_msg("entry %d: %d", i, e);
	}
	raw_close(&r);
}

/* While a job runs its client tears holes into the segment and changes what it submitted. */
static void test_changing_memory(void **state)
{
	struct attnd_wire_cache cache = {.name = "hostile",
					 .num_layers = 1,
					 .num_heads = 4,
					 .num_kv_heads = 4,
					 .head_dim = 64,
					 .head_dim_v = 64,
					 .block_size = 16};
	struct raw r;

	(void)state;
	assert_int_equal(raw_connect(&r, daemon_.socket), 0);
	int fd = raw_memfd(SEGMENT, F_SEAL_SHRINK | F_SEAL_GROW);
	struct attnd_msg_segment msg = {.type = ATTND_MSG_SEGMENT_ADD, .bytes = SEGMENT};
	struct attnd_msg_reply reply;
	assert_int_equal(raw_message(&r, &msg, sizeof(msg), fd, &reply), 0);
	struct attnd_wire_cache *p = mmap(NULL, SEGMENT, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	assert_ptr_not_equal(p, MAP_FAILED);
	uint64_t seed = 99;
	for (int i = 0; i < 300; i++) {
		struct attnd_sqe s = {.opcode = ATTND_OP_CACHE_OPEN,
				      .flags = ATTND_CACHE_CREATE,
				      .user_data = (uint32_t)i,
				      .deadline_us = RAW_DEADLINE_US,
				      .obj = {.bytes = sizeof(cache)}};
		struct attnd_cqe c;
		*p = cache;
		raw_put(&r, &s);
		for (int n = 0; n < 50; n++)
			((volatile unsigned char *)p)[next_random(&seed) % sizeof(cache)] = (unsigned char)n;
		if (i % 16 == 0)
			fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, SEGMENT);
		assert_int_equal(raw_wait(&r, &c), 0);
	}
	munmap(p, SEGMENT);
	close(fd);
	raw_close(&r);
}

/* Hundreds of sessions that come, ask and go without a word. */
static void test_come_and_go(void **state)
{
	struct attnd_sqe s = ping(1);
	struct raw r;

	(void)state;
	assert_int_equal(raw_connect(&r, daemon_.socket), 0); /* makes the realm, which stays */
	raw_close(&r);
	struct in_use none = {0};
	daemon_wait_in_use(&daemon_, &none);
	int64_t fds = proc_fds(daemon_.pid);
	for (int i = 0; i < 300; i++) {
		assert_int_equal(raw_connect(&r, daemon_.socket), 0);
		if (i % 3 == 0)
			assert_int_equal(raw_segment(&r, 0, 65536), 0);
		for (int n = 0; n < i % 5; n++)
			raw_put(&r, &s);
		raw_close(&r);
	}
	daemon_wait_in_use(&daemon_, &none);
	for (int i = 0; i < 200 && proc_fds(daemon_.pid) > fds; i++)
		sleep_ms(10);
	assert_in_range(proc_fds(daemon_.pid), 1, (uintmax_t)fds);
}

static struct attnd_sqe of_sequence(uint8_t opcode, uint32_t user_data, uint64_t key, uint32_t num_tokens)
{
	return (struct attnd_sqe){.opcode = opcode,
				  .user_data = user_data,
				  .deadline_us = RAW_DEADLINE_US,
				  .sequence = {.key = key, .num_tokens = num_tokens}};
}

/* Puts n entries with user_data from `first` on and waits for as many answers: how many were `res`. */
static int put_many(struct raw *r, struct attnd_sqe s, uint32_t first, int n, int32_t res)
{
	struct attnd_cqe c;
	int right = 0;

	for (int i = 0; i < n; i++) {
		s.user_data = first + (uint32_t)i;
		s.sequence.key = s.opcode == ATTND_OP_SEQ_OPEN ? s.user_data : s.sequence.key;
		raw_put(r, &s);
	}
	for (int i = 0; i < n; i++) {
		assert_int_equal(raw_wait(r, &c), 0);
		right += c.res == res;
	}
	return right;
}

/* As much as one entry, or a ring full of them, may ask for: it is answered in full, if in slices. */
static void test_much_at_once(void **state)
{
	enum {
		KEYS = 65536,
		OPEN = 3000,
		QUEUE = 1500,
		AT_CACHE = KEYS * 8,
		AT_TOKENS = AT_CACHE + 1024,
		BYTES = 1 << 20
	};
	const struct attnd_wire_cache id = {.name = "many",
					    .num_layers = 1,
					    .num_heads = 1,
					    .num_kv_heads = 1,
					    .head_dim = 16,
					    .head_dim_v = 16,
					    .block_size = 16};
	struct attnd_sqe s = {.opcode = ATTND_OP_CACHE_OPEN,
			      .flags = ATTND_CACHE_CREATE,
			      .deadline_us = RAW_DEADLINE_US,
			      .obj = {.bytes = sizeof(id), .payload = AT_CACHE}};
	struct attnd_msg_hello hello = raw_hello();
	struct attnd_cqe c;
	struct raw r;

	(void)state;
	hello.sq_entries = hello.cq_entries = ATTND_MAX_ENTRIES;
	assert_int_equal(raw_connect_with(&r, daemon_.socket, &hello, sizeof(hello)), 0);
	assert_int_equal(raw_segment(&r, 0, BYTES), 0);
	for (uint64_t i = 0; i < KEYS; i++)
		((uint64_t *)(void *)r.segment[0])[i] = KEYS - i;
	memcpy(r.segment[0] + AT_CACHE, &id, sizeof(id));
	assert_int_equal(raw_call(&r, &s, &c), 0);
	assert_int_equal(put_many(&r, of_sequence(ATTND_OP_SEQ_OPEN, 0, 0, 0), 1, OPEN, 0), OPEN);
	s = of_sequence(ATTND_OP_SEQ_CLOSE, 1, 0, KEYS);
	s.flags = ATTND_CLOSE_MANY;
	assert_int_equal(raw_call(&r, &s, &c), 0);
	assert_int_equal(c.value, OPEN);

	/* A long queue behind one that waits, and as many that look through it. */
	s = of_sequence(ATTND_OP_SEQ_OPEN, 1, 1, 64);
	s.sequence.tokens = AT_TOKENS;
	assert_int_equal(raw_call(&r, &s, &c), 0);
	s.opcode = ATTND_OP_SEQ_WAIT;
	s.user_data = 2;
	s.sequence.key = 2;
	s.sequence.max_match = 64;
	raw_put(&r, &s);
	s.opcode = ATTND_OP_SEQ_OPEN;
	s.user_data = 3;
	raw_put(&r, &s);
	s = of_sequence(ATTND_OP_SEQ_TRIM, 4, 99, 0);
	for (int i = 0; i < QUEUE; i++)
		raw_put(&r, &s);
	s = (struct attnd_sqe){.opcode = ATTND_OP_CANCEL, .deadline_us = RAW_DEADLINE_US, .cancel = {.target = 4711}};
	assert_int_equal(put_many(&r, s, 10000, QUEUE, -ENOENT), QUEUE);
	s.cancel.target = 2;
	raw_put(&r, &s);
	for (int i = 0, trims = 0; i < QUEUE + 3; i++) {
		assert_int_equal(raw_wait(&r, &c), 0);
		trims += c.user_data == 4;
		assert_int_equal(c.res, c.user_data == 4 ? -ENOENT : c.user_data == 2 ? -ECANCELED : 0);
		assert_int_equal(trims, i < 3 ? 0 : i - 2);
	}
	raw_close(&r);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
#define TEST(f) cmocka_unit_test_setup_teardown(f, test_start, test_end)
		TEST(test_cq_full),	   TEST(test_lying_cq_head),
		TEST(test_wrong_seq),	   TEST(test_overwritten_region),
		TEST(test_random_entries), TEST(test_changing_memory),
		TEST(test_come_and_go),	   TEST(test_much_at_once),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
