/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A leader and a session: entries that begin as right ones and are changed, over payloads that are
 * changed, while it reads them, too. Each input has a leader of its own.
 *
 * In: records (see run_record). Out: every entry is answered, once, and the session's end leaves
 * nothing. Next: daemon/intake.c, submit.c, plan.c and all below.
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "../../daemon/handshake.h"
#include "../../daemon/lead.h"
#include "../../daemon/log.h"
#include "../../shm/futex.h"
#include "fuzz.h"

enum {
	ARENA = 1 << 17,
	RECORDS = 64,
	CACHE = 0,
	PARAMS = 256,
	ENGINE = 512,
	NS = 640,
	SLOTS = 768,
	KEYS = 896,
	ROWS = 1024,
	STATUS = 1536,
	TOKENS = 2048,
	TABLE = 4096,
	Q = 8192,
	K = 16384,
	V = 24576,
	OUT = 32768,
	EXPORT = 65536,
	NUM_TOKENS = 24,
	HEADS = 2,
	DIM = 16,
	WAIT_MS = 20000,
	DEADLINE_US = 100000, /* all of an input's entries may wait for it: the fuzzer gives an input 30 s */
};

static struct config cfg_;

static struct {
	struct leader *leader;
	struct mailbox inbox;
	struct session session;
	struct attnd_ring sq, cq;
	unsigned char *arena;
	int wake;
} s;

static void configure(void)
{
	char err[600];
	char *argv[] = {(char[]){"attnd"},
			(char[]){"--config=/dev/null"},
			(char[]){"--pool-size=4M"},
			(char[]){"--slab-size=2M"},
			(char[]){"--meta-size=4M"},
			(char[]){"--hugepages=off"},
			(char[]){"--threads=1"},
			(char[]){"--pin=false"},
			(char[]){"--peek-entries=64"},
			(char[]){"--max-sequences=9"},
			(char[]){"--numa=false"},
			(char[]){"--events-socket=none"},
			NULL};

	log_set_level(LOG_LEVEL_ERR);
	MUST(config_load(&cfg_, argv, (char *[]){NULL}, err, sizeof(err)) == 0);
}

/* The next letter of the leader; too long a silence is a leader that hangs. */
static struct mail next_letter(void)
{
	struct pollfd fd = {.fd = s.inbox.fd, .events = POLLIN};
	struct mail letter;

	while (!mailbox_take(&s.inbox, &letter))
		MUST(poll(&fd, 1, WAIT_MS) == 1 || errno == EINTR); /* libFuzzer's alarm */
	return letter;
}

static void send_letter(struct mail letter)
{
	MUST(mailbox_send(leader_mailbox(s.leader), &letter) == 0);
}

static void begin(void)
{
	const struct attnd_msg_hello hello = {.sq_entries = 16, .cq_entries = 16, .name = "fuzz"};
	int fd = memfd_create("arena", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	struct attnd_region region;

	MUST(mailbox_init(&s.inbox) == 0);
	MUST(leader_start(&cfg_, 1, &s.inbox, &s.leader) == 0);
	s.session = (struct session){.id = 1, .pid = getpid(), .realm = "uid:0"};
	for (int i = 0; i < ATTND_MAX_SEGMENTS; i++)
		s.session.lead.segments[i] = ATTND_REGION_NONE;
	MUST(handshake_open(&s.session, &hello, &s.wake) == 0);
	attnd_ring_init(&s.sq, (char *)s.session.shared + s.session.shared->sq_offset, 16, sizeof(struct attnd_sqe));
	attnd_ring_init(&s.cq, (char *)s.session.shared + s.session.shared->cq_offset, 16, sizeof(struct attnd_cqe));
	MUST(fd >= 0 && ftruncate(fd, ARENA) == 0 && fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) == 0);
	s.arena = mmap(NULL, ARENA, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	MUST(s.arena != MAP_FAILED);
	MUST(attnd_region_map_segment(fd, ARENA, &region) == 0);
	send_letter((struct mail){.type = MAIL_SESSION_ADD, .session = &s.session});
	send_letter((struct mail){.type = MAIL_SEGMENT_ADD, .session = &s.session, .region = region});
	MUST(next_letter().type == MAIL_SEGMENT_DONE);
}

static void end(void)
{
	struct mail letter;

	send_letter((struct mail){.type = MAIL_SESSION_END, .session = &s.session});
	while ((letter = next_letter()).type != MAIL_SESSION_FREED)
		;
	attnd_region_destroy(&s.session.lead.segments[0]);
	handshake_close(&s.session);
	close(s.wake);
	munmap(s.arena, ARENA);
	MUST(!s.leader->sessions && !s.leader->engines.first);
	for (uint32_t i = 0; i < ATTND_MAX_POOL_CACHES; i++) {
		const struct cache *c = s.leader->pool.caches[i];

		MUST(!c || (c->free + c->evictable == c->total && c->claimed == 0));
	}
	send_letter((struct mail){.type = MAIL_STOP});
	while ((letter = next_letter()).type != MAIL_STOPPED)
		;
	leader_destroy(s.leader);
	mailbox_destroy(&s.inbox);
}

/* ---- What is right ---- */

static void fill_arena(void)
{
	const struct attnd_wire_cache cache = {.name = "fuzz",
					       .num_layers = 2,
					       .num_heads = HEADS,
					       .num_kv_heads = 1,
					       .head_dim = DIM,
					       .head_dim_v = DIM,
					       .block_size = 16};
	const struct attnd_wire_params params = {.sm_scale = 0.25f,
						 .causal = 1,
						 .sinks = ATTND_OFFSET_NONE,
						 .alibi = ATTND_OFFSET_NONE,
						 .q_token_stride = HEADS * DIM * 4,
						 .q_head_stride = DIM * 4,
						 .k_token_stride = DIM * 4,
						 .k_head_stride = DIM * 4,
						 .v_token_stride = DIM * 4,
						 .v_head_stride = DIM * 4,
						 .out_token_stride = HEADS * DIM * 4,
						 .out_head_stride = DIM * 4};
	const struct attnd_wire_engine engine = {.id = {7}};
	const struct attnd_wire_ns_field field = {.tag = ATTND_NS_SALT, .bytes = 4};
	const struct attnd_wire_slots slots = {.num = 1,
					       .capacity = 64,
					       .keys = KEYS,
					       .seq_lens = TABLE,
					       .kv_indptr = TABLE + 256,
					       .kv_indices = TABLE + 512,
					       .qo_indptr = ATTND_OFFSET_NONE};
	struct attnd_wire_row rows[2] = {
		{.key = 1, .tokens = TOKENS, .num_tokens = NUM_TOKENS, .publish_upto = 99, .mask = ATTND_OFFSET_NONE},
		{.key = 2, .tokens = TOKENS, .num_tokens = 1, .publish_upto = 99, .mask = ATTND_OFFSET_NONE}};
	uint64_t tokens[NUM_TOKENS + 8];

	for (uint64_t i = 0; i < NUM_TOKENS + 8; i++)
		tokens[i] = i / 3;
	memset(s.arena, 0, ARENA);
	memcpy(s.arena + CACHE, &cache, sizeof(cache));
	memcpy(s.arena + PARAMS, &params, sizeof(params));
	memcpy(s.arena + ENGINE, &engine, sizeof(engine));
	memcpy(s.arena + NS, &field, sizeof(field));
	memcpy(s.arena + SLOTS, &slots, sizeof(slots));
	memcpy(s.arena + KEYS, (uint64_t[]){1, 2}, 16);
	memcpy(s.arena + ROWS, rows, sizeof(rows));
	memcpy(s.arena + TOKENS, tokens, sizeof(tokens));
}

static struct attnd_sqe job(uint8_t opcode, uint16_t layer)
{
	return (struct attnd_sqe){
		.opcode = opcode,
		.layer = layer,
		.flags = layer ? ATTND_JOB_LAST : 0,
		.job = {.plan = 1, .src_layer = layer, .q = Q, .k = K, .v = V, .out = OUT, .lse = OUT}};
}

static struct attnd_sqe right(unsigned what)
{
	const struct attnd_sqe all[] = {
		{.opcode = ATTND_OP_PING},
		{.opcode = ATTND_OP_CACHE_OPEN, .flags = 1, .obj = {.bytes = 128, .payload = CACHE}},
		{.opcode = ATTND_OP_PARAMS, .obj = {.bytes = 120, .payload = PARAMS}},
		{.opcode = ATTND_OP_SEQ_OPEN,
		 .sequence = {.key = 1, .num_tokens = NUM_TOKENS, .tokens = TOKENS, .max_match = NUM_TOKENS - 1}},
		{.opcode = ATTND_OP_SEQ_OPEN,
		 .sequence = {.key = 2, .num_tokens = 16, .tokens = TOKENS, .max_match = 16}},
		{.opcode = ATTND_OP_PLAN, .plan = {.tag = 1, .rows = ROWS, .status = STATUS, .num_rows = 1}},
		job(ATTND_OP_EXTEND, 0),
		job(ATTND_OP_EXTEND, 1),
		{.opcode = ATTND_OP_PLAN, .plan = {.tag = 1, .rows = ROWS + 48, .status = STATUS, .num_rows = 1}},
		job(ATTND_OP_DECODE, 0),
		job(ATTND_OP_DECODE, 1),
		{.opcode = ATTND_OP_SEQ_FORK, .sequence = {.key = 1, .new_key = 3, .num_tokens = 20}},
		{.opcode = ATTND_OP_SEQ_TRIM, .sequence = {.key = 1, .num_tokens = 17}},
		{.opcode = ATTND_OP_SEQ_CLOSE, .sequence = {.key = 1}},
		{.opcode = ATTND_OP_SEQ_CLOSE,
		 .flags = ATTND_CLOSE_MANY,
		 .sequence = {.num_tokens = 2, .tokens = KEYS}},
		{.opcode = ATTND_OP_PLAN_END, .plan = {.tag = 1}},
		{.opcode = ATTND_OP_GRANT, .grant = {.sequences = 1, .tokens = 64}},
		{.opcode = ATTND_OP_ENGINE, .flags = 1, .obj = {.bytes = 32, .payload = ENGINE}},
		{.opcode = ATTND_OP_NAMESPACE, .obj = {.bytes = 8, .payload = NS}},
		{.opcode = ATTND_OP_SCALES, .scales = {.k_scale = 1, .v_scale = 1}},
		{.opcode = ATTND_OP_CANCEL, .cancel = {.target = 1}},
		{.opcode = ATTND_OP_PEEK_KEY, .peek = {.key = TABLE}},
		{.opcode = ATTND_OP_EXPORT, .kv = {.num_tokens = 16, .key = 1, .data = EXPORT}},
		{.opcode = ATTND_OP_SLOT_TABLE, .obj = {.bytes = 64, .payload = SLOTS}},
		{.opcode = ATTND_OP_SEQ_WAIT,
		 .sequence = {.key = 4, .num_tokens = NUM_TOKENS, .tokens = TOKENS, .max_match = NUM_TOKENS}},
		{.opcode = ATTND_OP_PIN},
		{.opcode = ATTND_OP_UNPIN},
		{.opcode = ATTND_OP_IMPORT},
	};

	return all[what % (sizeof(all) / sizeof(all[0]))];
}

/* ---- What is sent ---- */

static void put(struct attnd_sqe *sqe, uint32_t user_data)
{
	sqe->user_data = user_data;
	if (!sqe->deadline_us)
		sqe->deadline_us = DEADLINE_US;
	attnd_ring_put(&s.sq, sqe);
	atomic_thread_fence(memory_order_seq_cst); /* R4 */
	if (atomic_load_explicit(&s.session.shared->need_wakeup, memory_order_relaxed))
		MUST(write(s.wake, "", 1) == 1);
}

static void take(uint32_t user_data)
{
	uint64_t until = attnd_now_ns() + WAIT_MS * UINT64_C(1000000);
	struct attnd_cqe c;

	while (!attnd_ring_take(&s.cq, &c)) {
		MUST(attnd_now_ns() < until);
		attnd_pause();
	}
	MUST(c.user_data == user_data && c.res <= 0 && c.field < ATTND_FIELDS);
	atomic_store_explicit(&s.session.shared->cq_head, s.cq.index, memory_order_release);
}

/* A position beyond where anything stands ends the list. */
static void change(struct input *in, void *p, size_t bytes)
{
	unsigned at;

	while (in->at < in->end && (at = next_byte(in)) < bytes)
		((volatile unsigned char *)p)[at] ^= next_byte(in);
}

/*
 * A record: which entry (5 bits) and what is changed: the entry (bit 5), a page of payloads before it
 * is sent (bit 6) and while it is read (bit 7), each by a list of positions and values.
 */
static void run_record(struct input *in, uint32_t n)
{
	unsigned control = next_byte(in);
	struct attnd_sqe sqe = right(control & 31);

	if (control & 32)
		change(in, (char *)&sqe + 4, sizeof(sqe) - 4);
	if (sqe.deadline_us > DEADLINE_US) /* or it may wait as long */
		sqe.deadline_us = DEADLINE_US;
	if (control & 64)
		change(in, s.arena + (next_byte(in) % 10 << 8), 255);
	put(&sqe, n);
	if (control & 128)
		change(in, s.arena + (next_byte(in) % 10 << 8), 255);
	take(n);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
	struct input in = {data, data + bytes};

	if (!cfg_.socket)
		configure();
	begin();
	fill_arena();
	for (uint32_t i = 1; i <= RECORDS && in.at < in.end; i++)
		run_record(&in, i);
	end();
	return 0;
}
