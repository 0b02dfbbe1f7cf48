/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A daemon that speaks the handshake and the rings, computes nothing, and misbehaves on demand.
 *
 * In:   a socket in a directory of its own; what to do wrong. Out: a log of what the client sent.
 * Next: the tests of this directory.
 */
#ifndef ATTND_TESTS_CLIENT_FAKE_H
#define ATTND_TESTS_CLIENT_FAKE_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <errno.h>
#include <pthread.h>
#include <stdbool.h>

#include "../../client/attnd.h"
#include "../../proto/wire.h"
#include "../../shm/region.h"
#include "../../shm/ring.h"

#define FAKE_LOG     4096
#define FAKE_PAYLOAD 512
#define FAKE_HELD    512

/* What the client sent: a message (`msg` is its type) or an entry (`msg` is 0). */
struct fake_event {
	uint32_t msg;
	struct attnd_msg_hello hello;
	struct attnd_msg_segment segment;
	struct attnd_sqe sqe;
	unsigned char payload[FAKE_PAYLOAD]; /* its beginning, if the opcode names one */
	int fds;
};

struct fake {
	/* Set before fake_start; by FAKE_HOW afterwards. */
	struct {
		int32_t status; /* WELCOME's */
		const char *text;
		uint16_t abi_major; /* 0: the right one */
		bool first_minor;
		uint32_t sq_entries, cq_entries; /* 0: as asked */
		bool silent;			 /* no WELCOME */
		bool no_fds;
		bool bad_header; /* the region's header says something else */
		uint64_t max_segment_bytes;
		uint64_t arena_max;
		uint32_t max_segments;
		bool silent_segment;		       /* no REPLY */
		uint32_t first_cache, first_namespace; /* numbers given out start here */
		bool hold;			       /* complete nothing until fake_release */
		uint8_t hold_op;		       /* hold this opcode only; 0: by `hold` */
		bool sleepy;			       /* look at the rings only after a byte on the wake socket */
		uint64_t cached;		       /* most tokens that an open finds */
		int32_t refuse_row;		       /* status of every plan's second row */
		uint8_t fail_op;		       /* this opcode fails */
		int32_t fail_status;
		uint16_t fail_field;
		uint64_t fail_limit;
	} how;

	char dir[32], path[64];
	pthread_mutex_t lock;
	pthread_t thread;
	bool running, stop;
	int listener, nudge[2];
	uint64_t instance;

	/* The session. */
	int sock, wake;
	struct attnd_region region;
	struct attnd_session_region *shared;
	struct attnd_ring sq, cq;
	struct attnd_region segment[ATTND_MAX_SEGMENTS];
	uint64_t arena_bytes;
	uint32_t caches, namespaces;
	bool has_engine; /* of the last daemon's life */

	struct attnd_cqe held[FAKE_HELD];
	uint32_t num_held;
	struct fake_event log[FAKE_LOG];
	uint32_t num_log;
	uint32_t doorbells;
};

/** Change how it behaves, while it runs. */
#define FAKE_HOW(f, member, value)                \
	do {                                      \
		pthread_mutex_lock(&(f)->lock);   \
		(f)->how.member = (value);        \
		pthread_mutex_unlock(&(f)->lock); \
	} while (0)

/** Make the directory; nothing listens yet. */
void fake_init(struct fake *f);
void fake_start(struct fake *f);
/** Die: all descriptors close. The directory and the log stay. */
void fake_kill(struct fake *f);
void fake_destroy(struct fake *f);

/** Complete what is held: the newest first if `backwards`. */
void fake_release(struct fake *f, bool backwards);
/** Complete one held entry of this opcode. */
void fake_release_op(struct fake *f, uint8_t op);
/** Say "closed" and wake the client, without closing the socket. */
void fake_close_session(struct fake *f);
/** Put a completion that answers nothing. */
void fake_put_garbage(struct fake *f, uint32_t user_data);

/** Wait until the log has so many events (5 s at most). */
void fake_wait_log(struct fake *f, uint32_t count);
uint32_t fake_log_count(struct fake *f);
/** Bytes that came over the wake socket. */
uint32_t fake_doorbells(struct fake *f);
void fake_log_clear(struct fake *f);
/** The n-th entry of this opcode in the log; fails the test if there is none. */
struct fake_event fake_find(struct fake *f, uint8_t op, uint32_t n);
/** "S1 E2 ..." : messages as their names, entries as their opcodes' numbers, in order. */
void fake_log_order(struct fake *f, char *ret, size_t size);

/** Copy what an offset names, as the daemon sees it. */
void fake_read(struct fake *f, uint64_t offset, void *ret, size_t bytes);

/** A connection to it with a short timeout; options may be NULL. */
attnd_t *fake_connect(struct fake *f, const struct attnd_connect_options *options);

/** cmocka set-up and tear-down: *state is a started fake. */
int fake_setup(void **state);
int fake_teardown(void **state);
#define FAKE_TEST(name) cmocka_unit_test_setup_teardown(name, fake_setup, fake_teardown)

#endif
