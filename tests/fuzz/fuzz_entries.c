/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A leader and two sessions: entries that begin as right ones and are changed, over payloads that are
 * changed, while it reads them, too; sessions that end with requests in flight, lose their segment or
 * their owner, and an administrator in between. Each input has a leader of its own.
 *
 * In: records (see run_record). Out: every entry is answered, once, and the sessions' end leaves
 * nothing. Next: daemon/intake.c, submit.c, plan.c, manage.c and all below.
 */
#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
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
	DEADLINE_US = 100000, /* all of an input's entries may wait for it: the fuzzer gives an input 30 s; */
	TWIN_US = 20000,      /* and a SEQ_WAIT does, if there is a twin */
	IN_FLIGHT = 12,
};

static struct config cfg_;

struct client {
	struct session session;
	struct attnd_ring sq, cq;
	int wake;
	uint64_t waits; /* entries that were not answered, as bits */
};

static struct {
	struct leader *leader;
	struct mailbox inbox;
	struct client clients[2];
	struct client *now; /* who sends */
	bool behind;	    /* the next entry's answer is not waited for */
	unsigned char *arena;
	int fd;
	uint32_t sessions;
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

static void add_segment(struct client *c, const struct attnd_region *region)
{
	send_letter((struct mail){.type = MAIL_SEGMENT_ADD, .session = &c->session, .region = *region});
	MUST(next_letter().type == MAIL_SEGMENT_DONE);
}

/* Both have the same arena. */
static void connect_client(struct client *c)
{
	const struct attnd_msg_hello hello = {.sq_entries = 16, .cq_entries = 16, .name = "fuzz"};
	struct attnd_region region;
	const char *base;

	*c = (struct client){.session = {.id = ++s.sessions, .pid = getpid(), .realm = "uid:0"}};
	for (int i = 0; i < ATTND_MAX_SEGMENTS; i++)
		c->session.lead.segments[i] = ATTND_REGION_NONE;
	MUST(handshake_open(&c->session, &hello, &c->wake) == 0);
	base = (const char *)c->session.shared;
	attnd_ring_init(&c->sq, (char *)(uintptr_t)base + c->session.shared->sq_offset, 16, sizeof(struct attnd_sqe));
	attnd_ring_init(&c->cq, (char *)(uintptr_t)base + c->session.shared->cq_offset, 16, sizeof(struct attnd_cqe));
	MUST(attnd_region_map_segment(fcntl(s.fd, F_DUPFD_CLOEXEC, 0), ARENA, &region) == 0);
	send_letter((struct mail){.type = MAIL_SESSION_ADD, .session = &c->session});
	add_segment(c, &region);
}

static void disconnect(struct client *c)
{
	send_letter((struct mail){.type = MAIL_SESSION_END, .session = &c->session});
	MUST(next_letter().type == MAIL_SESSION_FREED);
	attnd_region_destroy(&c->session.lead.segments[0]);
	handshake_close(&c->session);
	close(c->wake);
}

static void begin(void)
{
	MUST(mailbox_init(&s.inbox) == 0);
	MUST(leader_start(&cfg_, 1, &s.inbox, &s.leader) == 0);
	s.fd = memfd_create("arena", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	MUST(s.fd >= 0 && ftruncate(s.fd, ARENA) == 0 && fcntl(s.fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) == 0);
	s.arena = mmap(NULL, ARENA, PROT_READ | PROT_WRITE, MAP_SHARED, s.fd, 0);
	MUST(s.arena != MAP_FAILED);
	s.sessions = 0;
	s.behind = false;
	s.now = &s.clients[0];
	connect_client(&s.clients[0]);
	connect_client(&s.clients[1]);
}

static void administer(const char *command, json_t *args)
{
	struct mail letter = {.type = MAIL_ADMIN, .command = command, .args = args};

	MUST(args);
	send_letter(letter);
	letter = next_letter();
	MUST(letter.type == MAIL_ADMIN_DONE && letter.reply);
	json_decref(letter.reply);
}

static void end(void)
{
	disconnect(&s.clients[0]);
	disconnect(&s.clients[1]);
	munmap(s.arena, ARENA);
	close(s.fd);
	administer("unpin", json_object());
	MUST(!s.leader->sessions && !s.leader->engines.first);
	MUST(!s.leader->engines.heap.used && !s.leader->engines.twins.num);
	for (uint32_t i = 0; i < ATTND_MAX_POOL_CACHES; i++) {
		const struct cache *c = s.leader->pool.caches[i];

		MUST(!c || (c->free + c->evictable == c->total && c->claimed == 0));
	}
	send_letter((struct mail){.type = MAIL_STOP});
	MUST(next_letter().type == MAIL_STOPPED);
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

	return all[what < sizeof(all) / sizeof(all[0]) ? what : 0];
}

/* ---- What is sent ---- */

static void put(struct client *c, struct attnd_sqe *sqe, uint32_t user_data)
{
	sqe->user_data = user_data;
	if (!sqe->deadline_us)
		sqe->deadline_us = DEADLINE_US;
	attnd_ring_put(&c->sq, sqe);
	c->waits |= UINT64_C(1) << (user_data - 1);
	atomic_thread_fence(memory_order_seq_cst); /* R4 */
	if (atomic_load_explicit(&c->session.shared->need_wakeup, memory_order_relaxed))
		MUST(write(c->wake, "", 1) == 1);
}

/* Until no more of its entries than these are unanswered. */
static void take(struct client *c, uint64_t but)
{
	uint64_t until = attnd_now_ns() + WAIT_MS * UINT64_C(1000000);
	struct attnd_cqe e;

	while (c->waits & ~but) {
		if (!attnd_ring_take(&c->cq, &e)) {
			MUST(attnd_now_ns() < until);
			attnd_pause();
			continue;
		}
		MUST(e.user_data - 1 < RECORDS && (c->waits >> (e.user_data - 1) & 1));
		MUST(e.res <= 0 && e.res != -EINPROGRESS && e.res != -EALREADY && e.field < ATTND_FIELDS);
		c->waits &= ~(UINT64_C(1) << (e.user_data - 1));
		atomic_store_explicit(&c->session.shared->cq_head, c->cq.index, memory_order_release);
	}
}

/* A position beyond where anything stands ends the list. */
static void change(struct input *in, void *p, size_t bytes)
{
	unsigned at;

	while (in->at < in->end && (at = next_byte(in)) < bytes)
		((volatile unsigned char *)p)[at] ^= next_byte(in);
}

/* ---- What happens in between ---- */

static void lose_segment(struct client *c)
{
	struct mail letter = {.type = MAIL_SEGMENT_DEL, .session = &c->session};

	send_letter(letter);
	letter = next_letter();
	MUST(letter.type == MAIL_SEGMENT_DONE && letter.status == 0);
	add_segment(c, &letter.region);
}

static void happen(unsigned what)
{
	json_t *tokens = NULL;

	switch (what % 10) {
	case 0:
		administer("flush", json_object());
		break;
	case 1:
		administer("flush", json_pack("{s:s}", "cache", "fuzz"));
		break;
	case 2:
		administer("evict", json_pack("{s:s, s:i}", "cache", "fuzz", "blocks", (int)what / 10 + 1));
		break;
	case 3:
		tokens = json_array();
		for (int i = 0; i < NUM_TOKENS; i++)
			json_array_append_new(tokens, json_integer(i / 3));
		administer("pin", json_pack("{s:s, s:o, s:i}", "cache", "fuzz", "tokens", tokens, "seconds", 1));
		break;
	case 4:
		administer("unpin", json_object());
		break;
	case 5:
		administer("tree", json_pack("{s:s}", "cache", "fuzz"));
		break;
	case 6:
		administer("set", json_pack("{s:s, s:i}", "eviction", what & 64 ? "priority" : "lru",
					    "namespace-quota", (int)what % 100 + 1));
		break;
	case 7:
		administer("sessions", json_object());
		break;
	case 8:
		lose_segment(s.now);
		break;
	default:
		send_letter((struct mail){.type = MAIL_OWNER_GONE, .session = &s.now->session});
	}
}

/* True if it was one of these: 28 the other session is next, 29 something happens, 30 its end, 31 `behind`. */
static bool special(struct input *in, unsigned what)
{
	switch (what) {
	case 28:
		s.now = s.now == s.clients ? &s.clients[1] : &s.clients[0];
		return true;
	case 29:
		happen(next_byte(in));
		return true;
	case 30:
		disconnect(s.now);
		connect_client(s.now);
		return true;
	case 31:
		s.behind = true;
		return true;
	default:
		return false;
	}
}

/*
 * A record: which entry (5 bits; or see special) and what is changed: the entry (bit 5), a page of
 * payloads before it is sent (bit 6) and while it is read (bit 7), each by a list of positions and values.
 */
static void run_record(struct input *in, uint32_t n)
{
	unsigned control = next_byte(in);
	struct attnd_sqe sqe = right(control & 31);
	uint32_t most;

	if (special(in, control & 31))
		return;
	if (control & 32)
		change(in, (char *)&sqe + 4, sizeof(sqe) - 4);
	most = sqe.opcode == ATTND_OP_SEQ_WAIT ? TWIN_US : DEADLINE_US;
	if (!sqe.deadline_us || sqe.deadline_us > most)
		sqe.deadline_us = most;
	if (control & 64)
		change(in, s.arena + (next_byte(in) % 10 << 8), 255);
	put(s.now, &sqe, n);
	if (control & 128)
		change(in, s.arena + (next_byte(in) % 10 << 8), 255);
	if (!s.behind)
		take(s.now, s.now->waits & ~(UINT64_C(1) << (n - 1)));
	else if (__builtin_popcountll(s.now->waits) >= IN_FLIGHT)
		take(s.now, 0);
	s.behind = false;
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
