/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The wire: all that a client and the daemon agree on.
 *
 * In:   nothing (this header includes no other part).
 * Out:  the handshake's messages, the session region, submission and completion
 *       entries, and the payloads that they name by arena offset.
 * Next: shm/ring.h moves entries, daemon/intake.c validates them, client/ fills them.
 *
 * All integers are in host byte order: both sides run on one machine. proto/README.md
 * has the diagrams, the sequence of a connection and every opcode with its limits.
 */
#ifndef ATTND_PROTO_WIRE_H
#define ATTND_PROTO_WIRE_H

#include <assert.h>
#include <stddef.h>
#include <stdint.h>

#define ATTND_WIRE_MAGIC	    UINT64_C(0x31302d646e747461) /* "attnd-01" */
#define ATTND_ABI_MAJOR		    1
#define ATTND_ABI_MINOR		    1 /* grows with each addition: proto/README.md */

#define ATTND_WIRE_SIZE(type, size) static_assert(sizeof(type) == (size), #type " has another size")
#define ATTND_WIRE_AT(type, member, offset) \
	static_assert(offsetof(type, member) == (offset), #type "." #member " has moved")

/* ---- Limits of the protocol. The configuration may set lower ones. ---- */

enum {
	ATTND_MAX_LAYERS = 1024,
	ATTND_MAX_HEADS = 1024,
	ATTND_MAX_HEAD_DIM = 576,
	ATTND_MIN_BLOCK_SIZE = 16, /* packed and bhsd; bshd also takes 1, 2, 4 and 8 */
	ATTND_MAX_BLOCK_SIZE = 256,
	ATTND_MAX_NAME = 64, /* bytes of a cache's name, without a terminator */
	ATTND_MAX_SEGMENTS = 16,
	ATTND_MAX_CACHES = 16,	     /* of one engine: one a rank */
	ATTND_MAX_PARAMS = 1024,     /* parameter sets of one session */
	ATTND_MAX_NAMESPACES = 4096, /* of one engine */
	ATTND_MAX_PLANS = 64,	     /* live plans of one session */
	ATTND_MAX_ROWS = 4096,	     /* rows of one plan */
	ATTND_MAX_PLAN_TOKENS = 1 << 20,
	ATTND_MAX_MASK_WORDS = 1 << 23, /* of all masks of one plan: one grows with its row's square */
	ATTND_MAX_SEQ_TOKENS = 1 << 24,
	ATTND_MAX_CLOSE = 65536,   /* keys of one SEQ_CLOSE */
	ATTND_MAX_SLOTS = 1 << 20, /* entries of one SLOT_TABLE */
	ATTND_MAX_NS_BYTES = 4096, /* fields of one namespace */
	ATTND_MAX_PRIORITY = 7,
	ATTND_MIN_ENTRIES = 8, /* of a ring; a power of two */
	ATTND_MAX_ENTRIES = 4096,
	ATTND_MAX_DEADLINE_US = 3600000000u,
};

/* ---- Values shared by several messages ---- */

enum attnd_wire_dtype {
	ATTND_WIRE_F32,
	ATTND_WIRE_F16,
	ATTND_WIRE_BF16,
	ATTND_WIRE_INT8,
	ATTND_WIRE_FP8_E4M3,
	ATTND_WIRE_FP8_E5M2,
	ATTND_WIRE_DTYPES,
};

enum attnd_wire_scale {
	ATTND_WIRE_SCALE_NONE,	  /* f32, f16, bf16 */
	ATTND_WIRE_SCALE_STATIC,  /* int8, fp8: one scale for K and one for V per layer, by OP_SCALES */
	ATTND_WIRE_SCALE_DYNAMIC, /* int8: one per token and KV head */
	ATTND_WIRE_SCALES,
};

enum attnd_wire_layout {
	ATTND_WIRE_PACKED, /* the kernels' own tiles */
	ATTND_WIRE_BSHD,   /* [block][token][head][dim] */
	ATTND_WIRE_BHSD,   /* [block][head][token][dim] */
	ATTND_WIRE_LAYOUTS,
};

/*
 * The field that a refused request got wrong; `cqe.limit` holds the bound it broke
 * (0 where there is none). One line feeds the enum and attnd_strerror's names.
 */
#define ATTND_WIRE_FIELDS(X)                                                      \
	X(NONE, "")                                                               \
	X(OPCODE, "opcode")                                                       \
	X(FLAGS, "flags")                                                         \
	X(DEADLINE, "deadline_us")                                                \
	X(RESERVED, "a reserved field (must be 0)")                               \
	X(OFFSET, "an arena offset (segment, range or alignment)")                \
	X(LENGTH, "length")                                                       \
	X(ENGINE, "engine")                                                       \
	X(ENGINE_ID, "engine id")                                                 \
	X(CACHE, "cache")                                                         \
	X(NAME, "cache name (printable ASCII without /)")                         \
	X(NUM_LAYERS, "num_layers")                                               \
	X(NUM_HEADS, "num_heads (a multiple of num_kv_heads)")                    \
	X(NUM_KV_HEADS, "num_kv_heads")                                           \
	X(HEAD_DIM, "head_dim")                                                   \
	X(HEAD_DIM_V, "head_dim_v")                                               \
	X(KV_DTYPE, "kv_dtype")                                                   \
	X(SCALE_MODE, "scale_mode")                                               \
	X(BLOCK_SIZE, "block_size (a power of two)")                              \
	X(LAYOUT, "layout")                                                       \
	X(BLOCK_BYTES, "bytes of a block (more than a slab)")                     \
	X(GRANT_TOKENS, "grant tokens")                                           \
	X(GRANT_SEQUENCES, "grant sequences")                                     \
	X(NAMESPACE, "namespace")                                                 \
	X(NAMESPACE_FIELDS, "namespace fields")                                   \
	X(TENANT, "tenant")                                                       \
	X(SEQUENCE, "sequence key")                                               \
	X(SEQUENCES, "open sequences")                                            \
	X(TOKENS, "tokens")                                                       \
	X(MAX_MATCH, "max_match")                                                 \
	X(PARAMS, "parameter set")                                                \
	X(SM_SCALE, "sm_scale")                                                   \
	X(LOGIT_CAP, "logit_cap")                                                 \
	X(SLIDING_WINDOW, "sliding_window")                                       \
	X(Q_DTYPE, "q_dtype")                                                     \
	X(KV_IN_DTYPE, "kv_in_dtype")                                             \
	X(OUT_DTYPE, "out_dtype")                                                 \
	X(STRIDE, "stride")                                                       \
	X(SINKS, "sinks")                                                         \
	X(ALIBI, "alibi slopes")                                                  \
	X(IN_SCALES, "scales of quantised input")                                 \
	X(K_SCALE, "k_scale")                                                     \
	X(V_SCALE, "v_scale")                                                     \
	X(PLAN, "plan tag")                                                       \
	X(PLANS, "live plans")                                                    \
	X(ROWS, "rows")                                                           \
	X(ROW_START, "row start")                                                 \
	X(ROW_TOKENS, "row tokens")                                               \
	X(PUBLISH_UPTO, "publish_upto")                                           \
	X(ROW_FLAGS, "row flags (a job that is not causal wants NONCAUSAL rows)") \
	X(MASK, "mask")                                                           \
	X(LAYER, "layer")                                                         \
	X(SRC_LAYER, "src_layer")                                                 \
	X(Q, "q")                                                                 \
	X(K, "k")                                                                 \
	X(V, "v")                                                                 \
	X(OUT, "out")                                                             \
	X(LSE, "lse")                                                             \
	X(BLOCKS, "blocks")                                                       \
	X(QUOTA, "quota")                                                         \
	X(TARGET, "job to cancel")                                                \
	X(SEGMENT, "segment")                                                     \
	X(SEGMENT_BYTES, "segment bytes")                                         \
	X(ARENA_MAX, "arena-max")                                                 \
	X(META, "metadata memory")                                                \
	X(SESSIONS, "sessions")                                                   \
	X(OPEN_RATE, "sequences opened a second")                                 \
	X(PRIORITY, "priority")

enum attnd_wire_field {
#define ATTND_X(id, text) ATTND_FIELD_##id,
	ATTND_WIRE_FIELDS(ATTND_X)
#undef ATTND_X
		ATTND_FIELDS,
};

/* ---- Handshake: messages over the SOCK_SEQPACKET UNIX socket ---- */

enum attnd_msg_type {
	ATTND_MSG_HELLO = 1,   /* client: struct attnd_msg_hello [+ pidfd of the engine's owner] */
	ATTND_MSG_WELCOME,     /* daemon: struct attnd_msg_welcome + session, lookup, wake socket */
	ATTND_MSG_SEGMENT_ADD, /* client: struct attnd_msg_segment + memfd */
	ATTND_MSG_SEGMENT_DEL, /* client: struct attnd_msg_segment */
	ATTND_MSG_REPLY,       /* daemon: struct attnd_msg_reply to the last message */
};

/* The first message. A daemon of another ABI major answers with its own version and -EPROTO. */
struct attnd_msg_hello {
	uint64_t magic;
	uint32_t type;
	uint16_t abi_major, abi_minor;
	uint32_t flags; /* ATTND_HELLO_* */
	uint32_t sq_entries, cq_entries;
	uint32_t reserved;
	char name[32]; /* shown by attnctl; NUL-padded */
};
ATTND_WIRE_SIZE(struct attnd_msg_hello, 64);
ATTND_WIRE_AT(struct attnd_msg_hello, type, 8);
ATTND_WIRE_AT(struct attnd_msg_hello, abi_major, 12);
ATTND_WIRE_AT(struct attnd_msg_hello, flags, 16);
ATTND_WIRE_AT(struct attnd_msg_hello, sq_entries, 20);
ATTND_WIRE_AT(struct attnd_msg_hello, name, 32);

enum {
	ATTND_HELLO_OWNER_PIDFD =
		1, /* a pidfd follows: the process whose end ends the engine that this session makes */
	ATTND_HELLO_FLAGS = 1,
};

struct attnd_msg_welcome {
	uint64_t magic;
	uint32_t type;
	uint16_t abi_major, abi_minor;
	int32_t status; /* 0, or a negative errno with `text` and no descriptors */
	uint32_t session;
	uint32_t daemon_pid;
	uint32_t sq_entries, cq_entries;
	uint32_t max_segments;
	uint64_t max_segment_bytes;
	uint64_t session_bytes, lookup_bytes;
	uint64_t instance; /* another value after each daemon start */
	char text[184];
};
ATTND_WIRE_SIZE(struct attnd_msg_welcome, 256);
ATTND_WIRE_AT(struct attnd_msg_welcome, status, 16);
ATTND_WIRE_AT(struct attnd_msg_welcome, sq_entries, 28);
ATTND_WIRE_AT(struct attnd_msg_welcome, max_segment_bytes, 40);
ATTND_WIRE_AT(struct attnd_msg_welcome, instance, 64);
ATTND_WIRE_AT(struct attnd_msg_welcome, text, 72);

struct attnd_msg_segment {
	uint32_t type;
	uint32_t index; /* 0 .. ATTND_MAX_SEGMENTS - 1 */
	uint64_t bytes; /* a multiple of the page size; the memfd's size */
	uint64_t reserved;
};
ATTND_WIRE_SIZE(struct attnd_msg_segment, 24);
ATTND_WIRE_AT(struct attnd_msg_segment, bytes, 8);

struct attnd_msg_reply {
	uint32_t type;
	int32_t status;
	uint64_t value;
	uint16_t field; /* enum attnd_wire_field */
	uint16_t reserved[3];
	uint64_t limit;
	char text[224];
};
ATTND_WIRE_SIZE(struct attnd_msg_reply, 256);
ATTND_WIRE_AT(struct attnd_msg_reply, value, 8);
ATTND_WIRE_AT(struct attnd_msg_reply, field, 16);
ATTND_WIRE_AT(struct attnd_msg_reply, limit, 24);
ATTND_WIRE_AT(struct attnd_msg_reply, text, 32);

/* ---- Arena offsets ---- */

/*
 * An offset names its segment: bits 60..63 the segment's index, bits 0..59 the byte in it.
 * ATTND_OFFSET_NONE stands for an absent buffer.
 */
#define ATTND_OFFSET_SHIFT 60
#define ATTND_OFFSET_MASK  ((UINT64_C(1) << ATTND_OFFSET_SHIFT) - 1)
#define ATTND_OFFSET_NONE  UINT64_MAX

/* ---- Submission ---- */

enum attnd_opcode {
	ATTND_OP_PING = 1,
	ATTND_OP_ENGINE,     /* join an engine or make it */
	ATTND_OP_CACHE_OPEN, /* join a cache or create it */
	ATTND_OP_GRANT,	     /* guaranteed tokens and sequences of a cache */
	ATTND_OP_SCALES,     /* static K and V scales of a layer */
	ATTND_OP_NAMESPACE,  /* namespace id of (tenant, adapter, salt) */
	ATTND_OP_PARAMS,     /* register a parameter set */
	ATTND_OP_SEQ_OPEN,   /* match and hold a prefix */
	ATTND_OP_SEQ_FORK,
	ATTND_OP_SEQ_TRIM,
	ATTND_OP_SEQ_CLOSE, /* one or many */
	ATTND_OP_PLAN,
	ATTND_OP_PLAN_END, /* end a plan without its LAST job: nothing of it stays */
	ATTND_OP_DECODE,   /* one layer of a plan whose rows have one token each */
	ATTND_OP_EXTEND,   /* one layer of any plan */
	ATTND_OP_CANCEL,
	ATTND_OPS,
	/* Among these are reserved numbers, -EOPNOTSUPP until they exist. */
	ATTND_OP_SEQ_WAIT = 64, /* open, and wait while a live sequence computes what is not there */
	ATTND_OP_PEEK_KEY,	/* what looks up a namespace's prefixes in the peek table */
	ATTND_OP_PIN,
	ATTND_OP_UNPIN,
	ATTND_OP_EXPORT, /* K and V of a sequence's tokens, one layer, as they are stored */
	ATTND_OP_IMPORT,
	ATTND_OP_SLOT_TABLE, /* block tables in other systems' words */
	ATTND_OP_RESERVED_END,
};

/*
 * One submission: a cache line. The producer fills the rest and stores `seq` last, with
 * release; the entry at ring index i is valid when seq == (uint32_t)(i + 1).
 */
struct attnd_sqe {
	uint32_t seq;
	uint8_t opcode;
	uint8_t flags;	      /* per opcode */
	uint16_t layer;	      /* DECODE, EXTEND, SCALES */
	uint32_t user_data;   /* comes back in the CQE; CANCEL names a job by it */
	uint32_t deadline_us; /* from the daemon's taking it; 1 .. ATTND_MAX_DEADLINE_US */
	union {
		struct {		    /* DECODE, EXTEND */
			uint32_t plan;	    /* the session's plan tag */
			uint16_t params;    /* parameter set */
			uint16_t src_layer; /* whose K/V attention reads: `layer`, or an earlier one with JOB_NO_KV */
			uint64_t q, k, v, out, lse;
		} job;
		struct { /* PLAN, PLAN_END */
			uint32_t tag;
			uint16_t cache;
			uint16_t reserved;
			uint64_t rows;	 /* struct attnd_wire_row [num_rows] */
			uint64_t status; /* struct attnd_wire_row_status [num_rows] */
			uint32_t num_rows;
			uint32_t reserved2;
			uint64_t reserved3[2];
		} plan;
		struct { /* SEQ_OPEN, SEQ_FORK, SEQ_TRIM, SEQ_CLOSE of one */
			uint32_t ns;
			uint32_t num_tokens; /* OPEN: tokens; FORK, TRIM: the length to keep */
			uint64_t key;
			uint64_t tokens;    /* OPEN: uint64_t [num_tokens]; CLOSE with CLOSE_MANY: the keys */
			uint64_t max_match; /* OPEN */
			uint64_t new_key;   /* FORK */
			uint32_t priority;  /* OPEN: 0 .. ATTND_MAX_PRIORITY */
			uint32_t reserved;
		} sequence;
		struct { /* SEQ_WAIT */
			uint32_t ns;
			uint32_t num_tokens;
			uint64_t key;
			uint64_t tokens; /* uint64_t [num_tokens] */
			uint64_t max_match;
			uint64_t want;	   /* cached tokens that are enough; 0: any progress */
			uint32_t quiet_us; /* without progress; 0: no limit but the deadline */
			uint32_t priority;
		} wait;
		struct { /* ENGINE, CACHE_OPEN, NAMESPACE, PARAMS, SLOT_TABLE: a payload in the arena, copied once */
			uint32_t bytes;
			uint32_t id; /* PARAMS: the set's number, 0 .. ATTND_MAX_PARAMS - 1 */
			uint64_t payload;
			uint64_t reserved[4];
		} obj;
		struct { /* GRANT */
			uint32_t sequences;
			uint16_t cache;
			uint16_t reserved;
			uint64_t tokens;
			uint64_t reserved2[4];
		} grant;
		struct { /* SCALES, of sqe.layer */
			float k_scale;
			uint16_t cache;
			uint16_t reserved;
			float v_scale;
			uint32_t reserved2;
			uint64_t reserved3[4];
		} scales;
		struct {		 /* CANCEL */
			uint32_t target; /* user_data of a job of this session */
			uint32_t reserved;
			uint64_t reserved2[5];
		} cancel;
		struct { /* PEEK_KEY */
			uint32_t ns;
			uint16_t cache;
			uint16_t reserved;
			uint64_t key; /* struct attnd_wire_peek_key, written by the daemon */
			uint64_t reserved2[4];
		} peek;
		struct { /* EXPORT, of sqe.layer */
			uint32_t num_tokens;
			uint16_t cache;
			uint16_t reserved;
			uint64_t key;
			uint64_t start;
			uint64_t data; /* where it is written */
			uint64_t reserved2[2];
		} kv;
		uint64_t u64[6];
	};
};
ATTND_WIRE_SIZE(struct attnd_sqe, 64);
ATTND_WIRE_AT(struct attnd_sqe, opcode, 4);
ATTND_WIRE_AT(struct attnd_sqe, layer, 6);
ATTND_WIRE_AT(struct attnd_sqe, user_data, 8);
ATTND_WIRE_AT(struct attnd_sqe, deadline_us, 12);
ATTND_WIRE_AT(struct attnd_sqe, job.plan, 16);
ATTND_WIRE_AT(struct attnd_sqe, job.q, 24);
ATTND_WIRE_AT(struct attnd_sqe, job.lse, 56);
ATTND_WIRE_AT(struct attnd_sqe, plan.rows, 24);
ATTND_WIRE_AT(struct attnd_sqe, plan.num_rows, 40);
ATTND_WIRE_AT(struct attnd_sqe, sequence.key, 24);
ATTND_WIRE_AT(struct attnd_sqe, sequence.new_key, 48);
ATTND_WIRE_AT(struct attnd_sqe, wait.want, 48);
ATTND_WIRE_AT(struct attnd_sqe, wait.quiet_us, 56);
ATTND_WIRE_AT(struct attnd_sqe, obj.payload, 24);
ATTND_WIRE_AT(struct attnd_sqe, grant.tokens, 24);
ATTND_WIRE_AT(struct attnd_sqe, scales.v_scale, 24);
ATTND_WIRE_AT(struct attnd_sqe, peek.key, 24);
ATTND_WIRE_AT(struct attnd_sqe, kv.data, 40);

/* SEQ_WAIT's answer: value = tokens cached; limit = one of these | tokens that the twin had announced << 8. */
enum attnd_wire_waited {
	ATTND_WIRE_WAITED_ALONE,    /* nobody computes them: it did not wait */
	ATTND_WIRE_WAITED_DONE,	    /* all that the twin had announced is there */
	ATTND_WIRE_WAITED_PROGRESS, /* as much as was wanted */
	ATTND_WIRE_WAITED_GONE,	    /* the twin was closed, died, rolled back, or does not publish */
	ATTND_WIRE_WAITED_DEADLINE,
	ATTND_WIRE_WAITED_QUIET, /* no progress for quiet_us */
};

enum {			     /* sqe.flags */
       ATTND_JOB_LAST = 1,   /* the plan's last job: success makes its tokens part of the sequences */
       ATTND_JOB_NO_KV = 2,  /* brings no K/V; reads those of src_layer, written in this plan */
       ATTND_JOB_NO_OUT = 4, /* K/V only: q, out and lse are ignored */
       ATTND_JOB_LSE = 8,    /* store lse, float [tokens][num_heads] */
       ATTND_JOB_FLAGS = 15,
       ATTND_ENGINE_CREATE = 1, /* ENGINE: make it (-EEXIST if it is there); else join (-ENOENT) */
       ATTND_ENGINE_FLAGS = 1,
       ATTND_CACHE_CREATE = 1, /* CACHE_OPEN: make it if it is not there */
       ATTND_CACHE_FLAGS = 1,
       ATTND_CLOSE_MANY = 1, /* SEQ_CLOSE: sequence.num_tokens keys at sequence.tokens; unknown keys are skipped */
       ATTND_CLOSE_FLAGS = 1,
       ATTND_SLOTS_PLAN = 1, /* SLOT_TABLE: of the rows of a live plan of the session */
       ATTND_SLOTS_FLAGS = 1,
};

/* ---- Completion ---- */

/* Half a cache line. Valid at ring index i when seq == (uint32_t)(i + 1). */
struct attnd_cqe {
	uint32_t seq;
	uint32_t user_data;
	int32_t res;	/* 0 or a negative errno */
	uint16_t field; /* enum attnd_wire_field: what a refused request got wrong */
	uint16_t reserved;
	uint64_t value; /* per opcode */
	uint64_t limit; /* of `field`; on success a second value, per opcode */
};
ATTND_WIRE_SIZE(struct attnd_cqe, 32);
ATTND_WIRE_AT(struct attnd_cqe, res, 8);
ATTND_WIRE_AT(struct attnd_cqe, field, 12);
ATTND_WIRE_AT(struct attnd_cqe, value, 16);
ATTND_WIRE_AT(struct attnd_cqe, limit, 24);

/* ---- Payloads in the arena. The daemon copies each once and validates the copy. ---- */

/* ENGINE. A session that never sends one has an engine of its own. Must come before any cache. */
struct attnd_wire_engine {
	uint8_t id[16]; /* random, made by the first session */
	uint64_t reserved[2];
};
ATTND_WIRE_SIZE(struct attnd_wire_engine, 32);

/*
 * CACHE_OPEN: the identity. Two caches are one only if all of it is equal.
 * The answer: value = handle in the engine | step << 16 | chunk << 32; limit = tokens that the
 * pool could hold for this cache if it were alone.
 */
struct attnd_wire_cache {
	char name[ATTND_MAX_NAME]; /* NUL-padded; printable ASCII without '/' */
	uint8_t fingerprint[16];
	uint32_t num_layers, num_heads, num_kv_heads, head_dim, head_dim_v;
	uint32_t block_size; /* tokens; 0: the daemon's default for its kernels */
	uint8_t kv_dtype, scale_mode, layout;
	uint8_t v_in_k; /* V is the first head_dim_v values of K */
	uint32_t reserved[5];
};
ATTND_WIRE_SIZE(struct attnd_wire_cache, 128);
ATTND_WIRE_AT(struct attnd_wire_cache, fingerprint, 64);
ATTND_WIRE_AT(struct attnd_wire_cache, num_layers, 80);
ATTND_WIRE_AT(struct attnd_wire_cache, block_size, 100);
ATTND_WIRE_AT(struct attnd_wire_cache, kv_dtype, 104);

/* NAMESPACE: a run of these, each followed by `bytes` bytes and padding to 4; a tag once at most. */
struct attnd_wire_ns_field {
	uint16_t tag; /* enum attnd_ns_tag */
	uint16_t bytes;
};
ATTND_WIRE_SIZE(struct attnd_wire_ns_field, 4);

enum attnd_ns_tag {
	ATTND_NS_TENANT = 1,
	ATTND_NS_ADAPTER,
	ATTND_NS_SALT, /* an epoch is part of it */
	ATTND_NS_TAGS,
};

/*
 * PARAMS: what is common to a kind of layer. All strides are bytes, multiples of the element
 * size; [token][head][dim] with dims contiguous. sinks and alibi are float [num_heads], copied
 * at registration. Registering an id again replaces the set for later jobs.
 */
struct attnd_wire_params {
	float sm_scale;		 /* finite, > 0 */
	float logit_cap;	 /* finite, 0: none */
	uint32_t sliding_window; /* keys including the row's own; 0: none */
	uint8_t causal;
	uint8_t q_dtype, out_dtype; /* f32, f16, bf16 */
	uint8_t kv_in_dtype;	    /* q_dtype, or the cache's dtype */
	uint16_t cache;
	uint16_t reserved;
	uint32_t reserved2;
	uint64_t sinks, alibi; /* float [num_heads] or ATTND_OFFSET_NONE */
	uint64_t q_token_stride, q_head_stride;
	uint64_t k_token_stride, k_head_stride;
	uint64_t v_token_stride, v_head_stride;
	uint64_t out_token_stride, out_head_stride;
	/*
	 * Input that is already int8 with dynamic scales: float [tokens][num_kv_heads], at these
	 * bytes from the job's k and v; else 0.
	 */
	uint64_t k_scales_delta, v_scales_delta;
};
ATTND_WIRE_SIZE(struct attnd_wire_params, 120);
ATTND_WIRE_AT(struct attnd_wire_params, causal, 12);
ATTND_WIRE_AT(struct attnd_wire_params, cache, 16);
ATTND_WIRE_AT(struct attnd_wire_params, sinks, 24);
ATTND_WIRE_AT(struct attnd_wire_params, q_token_stride, 40);
ATTND_WIRE_AT(struct attnd_wire_params, k_scales_delta, 104);

/*
 * PLAN: one row, a sequence's tokens of this step. Rows' tokens stand one after the other in
 * q, k, v, out and lse, in the plan's order.
 */
struct attnd_wire_row {
	uint64_t key;
	uint64_t start;	       /* absolute; lower than the length held rolls back */
	uint64_t tokens;       /* offset of uint64_t [num_tokens] */
	uint32_t num_tokens;   /* >= 1 */
	uint32_t flags;	       /* ATTND_WIRE_ROW_* */
	uint64_t publish_upto; /* tokens of the sequence that may be published with this plan's end */
	uint64_t mask;	       /* offset of uint64_t [num_tokens][ceil(num_tokens / 64)], LSB first, or NONE */
};
ATTND_WIRE_SIZE(struct attnd_wire_row, 48);
ATTND_WIRE_AT(struct attnd_wire_row, num_tokens, 24);
ATTND_WIRE_AT(struct attnd_wire_row, publish_upto, 32);
ATTND_WIRE_AT(struct attnd_wire_row, mask, 40);

enum {
	ATTND_WIRE_ROW_NONCAUSAL =
		1, /* its jobs are not causal: takes nothing over, and it and all that follows is never published */
	ATTND_WIRE_ROW_FLAGS = 1,
};

/* PLAN's answer for each row. A refused row keeps its place; its out is zeroed by the jobs. */
struct attnd_wire_row_status {
	int32_t status;	 /* 0, -ENOMEM, -EDQUOT, -ENOENT, -ERANGE (start beyond the length held) or -EINVAL */
	uint32_t cached; /* of its tokens, how many the tree already held; their K/V are ignored */
};
ATTND_WIRE_SIZE(struct attnd_wire_row_status, 8);

/*
 * PEEK_KEY's answer. The prefix that ends with a full block has the hash
 *     SipHash-2-4(key, hash of the prefix before the block (0: none) | the block's tokens), or 1 if that is 0
 * with the tokens as 32-bit words where all of the block's fit, else as 64-bit words.
 */
struct attnd_wire_peek_key {
	uint8_t key[16];
	uint32_t block_size;
	uint32_t reserved[3];
};
ATTND_WIRE_SIZE(struct attnd_wire_peek_key, 32);
ATTND_WIRE_AT(struct attnd_wire_peek_key, block_size, 16);

/*
 * SLOT_TABLE, of sequences or of a plan's rows. A token's slot number is block id * block_size +
 * slot. All arrays are int32_t. The answer: value = entries of kv_indices.
 */
struct attnd_wire_slots {
	uint32_t num;  /* of the batch: keys, or the plan's rows */
	uint32_t plan; /* tag, with ATTND_SLOTS_PLAN */
	uint16_t cache;
	uint16_t unit;	   /* enum attnd_wire_slots_unit: what kv_indices names */
	uint32_t width;	   /* entries of each of the batch, filled up with -1; 0: one after the other */
	uint32_t capacity; /* of kv_indices, entries */
	uint32_t reserved;
	uint64_t keys;	     /* uint64_t [num]; ignored with ATTND_SLOTS_PLAN */
	uint64_t seq_lens;   /* [num], tokens, or NONE */
	uint64_t kv_indptr;  /* [num + 1]: where each begins in kv_indices, or NONE */
	uint64_t kv_indices; /* [capacity] */
	uint64_t qo_indptr;  /* [num + 1]: where each row's tokens begin in q and out, or NONE */
};
ATTND_WIRE_SIZE(struct attnd_wire_slots, 64);
ATTND_WIRE_AT(struct attnd_wire_slots, capacity, 16);
ATTND_WIRE_AT(struct attnd_wire_slots, keys, 24);
ATTND_WIRE_AT(struct attnd_wire_slots, qo_indptr, 56);

enum attnd_wire_slots_unit { ATTND_WIRE_SLOTS_TOKENS, ATTND_WIRE_SLOTS_BLOCKS, ATTND_WIRE_SLOTS_UNITS };

/* ---- The session region: header, then SQ entries, then CQ entries ---- */

struct attnd_session_region {
	uint64_t magic; /* stored last, with release */
	uint16_t abi_major, abi_minor;
	uint32_t sq_entries, cq_entries;
	uint32_t sq_offset, cq_offset; /* bytes from the region's start */
	uint8_t pad0[128 - 28];
	/* Written by the daemon; what changes with every request apart from what submissions look at. */
	_Atomic uint32_t sq_head; /* entries taken */
	uint8_t pad1[128 - 4];
	_Atomic uint32_t need_wakeup; /* 1: the leader sleeps; send a byte over the wake socket */
	uint8_t pad2[128 - 4];
	_Atomic uint32_t cq_event; /* futex word: grows with each batch of completions when cq_waiting was set */
	_Atomic uint32_t closed;   /* 1: this session has ended; nothing more will complete */
	uint8_t pad3[128 - 8];
	/* Written by the client. */
	_Atomic uint32_t cq_head;    /* completions consumed */
	_Atomic uint32_t cq_waiting; /* 1: wake the futex at cq_event; 2: send a byte over the wake socket */
	uint8_t pad4[128 - 8];
};
ATTND_WIRE_SIZE(struct attnd_session_region, 640);
ATTND_WIRE_AT(struct attnd_session_region, sq_entries, 12);
ATTND_WIRE_AT(struct attnd_session_region, sq_head, 128);
ATTND_WIRE_AT(struct attnd_session_region, need_wakeup, 256);
ATTND_WIRE_AT(struct attnd_session_region, cq_event, 384);
ATTND_WIRE_AT(struct attnd_session_region, cq_head, 512);

/* ---- The lookup region of a realm: read-only to clients ---- */

/* Counters of a realm, all monotonic but the gauges at the end. One line feeds struct and names. */
#define ATTND_WIRE_COUNTERS(X)                                      \
	X(query_tokens, "tokens that opens asked for")              \
	X(hit_tokens, "tokens that opens found cached")             \
	X(taken_tokens, "row tokens that plans found cached")       \
	X(planned_tokens, "row tokens of plans")                    \
	X(published_tokens, "tokens published")                     \
	X(opens, "sequences opened")                                \
	X(closes, "sequences closed")                               \
	X(plans, "plans made")                                      \
	X(decode_jobs, "decode jobs done")                          \
	X(extend_jobs, "extend jobs done")                          \
	X(failed_jobs, "jobs that ended with an error")             \
	X(evicted_blocks, "blocks evicted")                         \
	X(copied_blocks, "blocks copied on write")                  \
	X(collapsed_blocks, "duplicates freed")                     \
	X(sessions, "sessions connected")                           \
	X(sequences, "sequences open")                              \
	X(peek_lost, "entries that the peek table lost for others") \
	X(waits, "opens that waited for a twin")

/*
 * The peek table stands behind it: uint64_t [peek_entries], in buckets of 8. The hash h of a prefix
 * is in bucket h mod n or (h >> 32) mod n of the n buckets; 0 is a free entry. A hint: entries come
 * and go, and one may be lost for another.
 */
struct attnd_lookup_region {
	uint64_t magic; /* stored last, with release */
	uint16_t abi_major, abi_minor;
	uint32_t peek_offset;  /* bytes from the region's start, a multiple of 64; 0: no peek table */
	uint64_t peek_entries; /* a power of two */
	uint64_t instance;
	uint8_t pad[128 - 32];
	struct attnd_counters {
#define ATTND_X(name, text) _Atomic uint64_t name;
		ATTND_WIRE_COUNTERS(ATTND_X)
#undef ATTND_X
	} counters;
};
ATTND_WIRE_AT(struct attnd_lookup_region, peek_offset, 12);
ATTND_WIRE_AT(struct attnd_lookup_region, counters, 128);

#endif
