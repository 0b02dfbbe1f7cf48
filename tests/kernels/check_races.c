/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Rows that somebody else changes while they are written: whatever is stored, a tile that holds a
 * number that is not finite is flagged.
 *
 * In: write and read of one feature level; a thread. Out: failures. Next: kernels/tile_row.h.
 */
#include <pthread.h>
#include <stdatomic.h>

#include "check.h"

enum { RACE_DIM = 256, RACE_BLOCK = 64, RACE_ROUNDS = 3000 };

static float rows_[RACE_BLOCK][RACE_DIM];
static _Atomic bool stop_;

/* The first row's last element: where the check has just been, or is about to be. */
static void *change_rows(void *arg)
{
	volatile float *at = &rows_[0][RACE_DIM - 1];

	(void)arg;
	while (!atomic_load_explicit(&stop_, memory_order_relaxed)) {
		*at = NAN;
		for (int i = 0; i < 50; i++)
			(void)*at;
		*at = 1.0f;
		for (int i = 0; i < 50; i++)
			(void)*at;
	}
	return NULL;
}

static void race(const char *isa, const struct attnd_kv_format *f, const struct attnd_ops *ops)
{
	static float out[RACE_BLOCK][RACE_DIM];
	uint8_t flag = 0;
	void *block = aligned_alloc(64, (f->layer_bytes + 63) / 64 * 64);
	struct attnd_slots_args a = {.fmt = f,
				     .block = block,
				     .flags = &flag,
				     .k = rows_,
				     .v = rows_,
				     .k_token_stride = sizeof(rows_[0]),
				     .v_token_stride = sizeof(rows_[0]),
				     .k_scale = 1,
				     .v_scale = 1,
				     .n = RACE_BLOCK,
				     .num_heads = 1,
				     .in = ATTND_K_F32};
	int unflagged = 0;

	memset(block, 0, f->layer_bytes);
	for (int i = 0; i < RACE_ROUNDS; i++) {
		flag = 0;
		a.k = a.v = rows_;
		ops->write(&a);
		a.k = a.v = out;
		ops->read(&a);
		unflagged += !flag && isnan(out[0][RACE_DIM - 1]);
	}
	if (unflagged)
		fail("%s, layout %d: %d of %d writes stored NaN without a flag", isa, (int)f->spec.layout, unflagged,
		     RACE_ROUNDS);
	free(block);
}

/* It would see nothing but this race. */
#if defined(__SANITIZE_THREAD__)
#define NO_RACES 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define NO_RACES 1
#endif
#endif

static void race_all(uint64_t features)
{
	struct attnd_kv_spec spec = {.num_kv_heads = 1,
				     .group = 1,
				     .head_dim = RACE_DIM,
				     .head_dim_v = RACE_DIM,
				     .block_size = RACE_BLOCK,
				     .dtype = ATTND_K_F32};
	struct attnd_kv_format f;
	struct attnd_ops ops;

	for (int layout = ATTND_K_PACKED; layout <= ATTND_K_BHSD; layout++) {
		spec.layout = (enum attnd_klayout)layout;
		if (attnd_format_init(features, &spec, &f, &ops))
			fail("layout %d is refused", layout);
		else
			race(attnd_isa_name(features), &f, &ops);
	}
}

void check_races(uint64_t seed)
{
	pthread_t thread;

	(void)seed;
#ifdef NO_RACES
	return;
#endif
	for (uint32_t i = 0; i < RACE_BLOCK; i++)
		for (uint32_t d = 0; d < RACE_DIM; d++)
			rows_[i][d] = 1;
	atomic_store(&stop_, false);
	if (pthread_create(&thread, NULL, change_rows, NULL)) {
		fail("no thread");
		return;
	}
	race_all(0);
	race_all(check_features);
	atomic_store(&stop_, true);
	pthread_join(thread, NULL);
}
