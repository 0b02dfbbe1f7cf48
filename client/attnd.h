/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file attnd.h
 * The client library of attnd: share one KV cache between processes and run attention where it lies.
 *
 * In:   a model runner's q, k, v in arena memory.
 * Out:  attention outputs, and how much of a prompt was cached.
 * Next: proto/wire.h over shared-memory rings to the daemon.
 *
 * The order of calls in a model runner:
 *
 *     attnd_connect, attnd_cache_open, attnd_params_set      once
 *     attnd_seq_open                                         once a request: how many tokens are cached
 *     attnd_plan                                             once a step: rows of one and of many tokens
 *     attnd_decode or attnd_extend                           once a layer; the last one with ATTND_LAST
 *     attnd_seq_close
 *
 * Conventions. Functions return 0 or a negative errno and leave `ret_*` untouched on failure;
 * attnd_strerror says which field was wrong and what its limit is. The library never logs and
 * never aborts. Every call that waits has a deadline. What a call is given stays the caller's and is
 * not looked at after it has returned, but for the buffers of jobs, `ret_*` of the _async forms and
 * attnd_kv.data: those are the daemon's until the job has completed.
 *
 * Any call may answer -EINVAL (a field out of its limits), -EFAULT (memory that is not as a whole in
 * the arena), -EAGAIN (the queue is full), -ENOMEM, -ENOENT (no such cache, namespace, parameter set),
 * -ETIMEDOUT, -ECANCELED, -ECONNRESET, -ECONNREFUSED, -ECHILD and -ESHUTDOWN (after attnd_shutdown);
 * comments name what a call has beside these, or means by them.
 *
 * Thread safety: a connection is used by one thread at a time; different connections are
 * independent. Sessions of one engine (attnd_connect_options.engine_id) share sequences, so that
 * each thread or process can have its own.
 *
 * fork: a child cannot use its parent's connection; calls answer -ECHILD.
 *
 * Restart of the daemon: jobs in flight return -ECONNRESET. The next call connects again within
 * the connect timeout (-ECONNREFUSED: no daemon came back) and restores segments, caches, grants,
 * scales, namespaces and parameter sets under their old numbers. Sequences must be opened again by
 * attnd_reopen, which answers how many tokens are still cached; the caller extends from there.
 * Until then calls that name such a sequence, or a plan from before, return -ECONNRESET.
 */
#ifndef ATTND_H
#define ATTND_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define ATTND_VERSION_MAJOR 0
#define ATTND_VERSION_MINOR 1
#define ATTND_VERSION_PATCH 0

typedef struct attnd attnd_t; /* a connection (one session) */
typedef uint64_t attnd_job_t; /* names one submitted job of a connection; never 0, never reused */

enum attnd_dtype {
	ATTND_F32,
	ATTND_F16,
	ATTND_BF16,
	ATTND_INT8,
	ATTND_FP8_E4M3,
	ATTND_FP8_E5M2,
};

enum attnd_scale_mode {
	ATTND_SCALE_NONE,    /* f32, f16, bf16 */
	ATTND_SCALE_STATIC,  /* int8, fp8: attnd_scales_set per layer */
	ATTND_SCALE_DYNAMIC, /* int8: max|x| / 127 of each token and KV head */
};

enum attnd_layout {
	ATTND_PACKED, /* the kernels' own tiles: fast */
	ATTND_BSHD,   /* [block][token][head][dim], portable C */
	ATTND_BHSD,   /* [block][head][token][dim], portable C */
};

/* ---- Connection ---- */

struct attnd_connect_options {
	const char *socket;  /* NULL: $ATTND_SOCKET, else $XDG_RUNTIME_DIR/attnd.sock, else /run/attnd/attnd.sock */
	const char *name;    /* shown by attnctl, its first 31 bytes; NULL: the program's name */
	uint64_t timeout_us; /* of connecting, of each reconnection and of a segment's registration; 0: 5 s */
	uint32_t queue_entries;	  /* jobs that may be in flight, a power of two 8..4096; 0: 256 */
	const uint8_t *engine_id; /* 16 bytes; NULL: an engine of its own */
	int engine_create;	  /* 1: make the engine engine_id, 0: join it */
	int owner_pidfd; /* a pidfd whose process ends the engine this makes; 0 or less: none. Not consumed */
	uint64_t default_deadline_us; /* for jobs and calls that give none; 0: 30 s */
	int64_t spin_us; /* that a wait looks before it sleeps; negative: none; 0: 50, on two CPUs 10, on one none */
};

/**
 * Connect to a daemon. options may be NULL. Errors: -EINVAL (an option), -ENOENT or -ECONNREFUSED (no
 * daemon), -EPROTOTYPE (the administrators' socket), -EACCES (not allowed), -EPROTO (another ABI
 * major), -ETIMEDOUT, -EEXIST or -ENOENT (engine), -EMFILE (too many sessions), -ENOMEM. With an error
 * `ret` is untouched and attnd_strerror(NULL, error) has the text of this thread's last failed connect.
 */
int attnd_connect(attnd_t **ret, const struct attnd_connect_options *options);

/** End the session; what it held is freed by the daemon. Arena memory is unmapped. NULL is fine. */
void attnd_disconnect(attnd_t *a);

/**
 * End the session as attnd_disconnect does, but leave `a` and its arena memory, for callers whose
 * memory somebody still looks at. Calls answer -ESHUTDOWN from then on; attnd_disconnect is due all
 * the same. In a forked child it does nothing.
 */
void attnd_shutdown(attnd_t *a);

/**
 * Start a private daemon in a temporary directory, connect to it, and let it end when this
 * connection is closed or its process ends. For tests, benches and notebooks. `args` is a
 * NULL-terminated list of further daemon flags ("--pool-size", "64M", ...) or NULL. The daemon is
 * $ATTND_DAEMON, else the one beside the running program, else the installed one, else from PATH.
 * Errors: -ENOENT (no such program), -ENOEXEC (it ended at once; its reasons are on standard error),
 * -E2BIG (over 64 args), and those of attnd_connect. options->socket is ignored.
 */
int attnd_private_start(attnd_t **ret, const char *const *args, const struct attnd_connect_options *options);

/** The socket of this connection, for other processes to join. Lives as long as the connection. */
const char *attnd_socket(const attnd_t *a);

/** Process id of the daemon as it told it (its own pid namespace). */
int attnd_daemon_pid(const attnd_t *a);

/** 16 random bytes for engine_id, from the kernel. */
int attnd_engine_id(uint8_t ret_id[16]);

/**
 * The text of `error`, with the field and limit of the last failure of this connection if it was that error. Never
 * NULL; it lasts until the next attnd_strerror of this connection (a NULL: of this thread).
 */
const char *attnd_strerror(const attnd_t *a, int error);

/**
 * A descriptor that polls readable when completions may be waiting or the daemon has gone; then call
 * attnd_next until -EAGAIN. That -EAGAIN (with timeout 0) is what asks for the next signal: poll right
 * after it, with no other call on the connection in between. The connection owns it and keeps it over
 * reconnections.
 */
int attnd_fd(const attnd_t *a);

/** Round trip through the daemon's leader. deadline_us 0: the default. */
int attnd_ping(attnd_t *a, uint64_t deadline_us);

/* ---- Arena: memory that the daemon reads q, k, v from and writes out, lse and statuses to ---- */

/**
 * Allocate in the arena; 64-byte aligned, not zeroed. Segments are made and registered as needed
 * (up to 16, doubling). -EINVAL (0 bytes), -ENOMEM, -ENOSPC (the daemon's arena-max or its segment limit),
 * -EDQUOT (arena-max-per-session, arena-max-per-uid).
 */
int attnd_alloc(attnd_t *a, size_t bytes, void **ret);

/** Free; the memory is kept until the jobs submitted so far have completed. NULL is fine. */
void attnd_free(attnd_t *a, void *p);

/** Register a segment of this many bytes now, so that later attnd_alloc calls find room. Errors: attnd_alloc's. */
int attnd_reserve(attnd_t *a, size_t bytes);

/** 1 if [p, p + bytes) lies in one segment of this connection's arena. */
int attnd_in_arena(const attnd_t *a, const void *p, size_t bytes);

/* ---- Caches ---- */

/** The identity of a cache. Another value in any field is another cache. */
struct attnd_cache_desc {
	const char *name;	 /* 1..64 printable ASCII bytes without '/' */
	uint8_t fingerprint[16]; /* of the model's weights */
	uint32_t num_layers;	 /* 1..1024 */
	uint32_t num_heads;	 /* query heads, a multiple of num_kv_heads */
	uint32_t num_kv_heads;	 /* 1..1024 */
	uint32_t head_dim;	 /* of q and K, 1..576 */
	uint32_t head_dim_v;	 /* of V and out, 1..576; 0: head_dim */
	uint32_t block_size;	 /* tokens, a power of two 16..256 (bshd: 1..8, too); 0: the daemon's choice */
	enum attnd_dtype kv_dtype;
	enum attnd_scale_mode scale_mode;
	enum attnd_layout layout;
	int v_in_k; /* MLA: V is the first head_dim_v values of K; jobs bring no v */
};

struct attnd_cache_info {
	uint32_t cache;		  /* handle, the same in all sessions of the engine */
	uint32_t chunk;		  /* tokens of a split-KV chunk */
	uint32_t step;		  /* tokens of a kernel step */
	uint64_t capacity_tokens; /* what the pool could hold of this cache alone */
};

/**
 * Join the cache of this identity in the caller's realm, or create it if `create`. The order of
 * an engine's first opens numbers its caches (one a tensor-parallel rank).
 * Errors: -EINVAL (a field out of limits), -ENOENT (not there and not create), -ENOSPC (caches).
 */
int attnd_cache_open(attnd_t *a, const struct attnd_cache_desc *desc, int create, struct attnd_cache_info *ret);

/**
 * Guarantee ceil(tokens / block_size) + 2 * sequences blocks of the cache to this engine until it
 * leaves (0, 0 gives back). A new grant replaces the old. -ENOMEM: other grants leave less.
 */
int attnd_grant(attnd_t *a, uint32_t cache, uint64_t tokens, uint32_t sequences);

/**
 * Static scales of one layer, before its first write: value = stored * scale; finite, > 0.
 * The same setting again is fine, another one is -EEXIST.
 */
int attnd_scales_set(attnd_t *a, uint32_t cache, uint32_t layer, float k_scale, float v_scale);

/** The parts of a namespace; NULL means absent, which differs from empty. */
struct attnd_namespace {
	const void *tenant, *adapter, *salt;
	uint32_t tenant_bytes, adapter_bytes, salt_bytes;
};

/**
 * The id of a namespace in this engine (0 is the one without fields, always there). Requests of
 * different namespaces never share a token. At most 4096 bytes in all. -EACCES: this tenant is not
 * allowed to the caller; -ENOSPC: too many namespaces.
 */
int attnd_namespace(attnd_t *a, const struct attnd_namespace *ns, uint32_t *ret_id);

/** What is common to a kind of layer. Strides are bytes; 0 means contiguous [token][head][dim]. */
struct attnd_params {
	uint32_t cache;
	float sm_scale;		 /* finite, > 0 */
	float logit_cap;	 /* 0: none */
	uint32_t sliding_window; /* keys that a row sees, itself included; 0: all */
	int causal;		 /* 0: every row sees all keys of its sequence; needs ATTND_ROW_NONCAUSAL */
	enum attnd_dtype q_dtype, out_dtype; /* f32, f16, bf16 */
	enum attnd_dtype kv_in_dtype;	     /* of k and v in jobs: q_dtype, or the cache's */
	const float *sinks;		     /* [num_heads] or NULL; copied */
	const float *alibi;		     /* slopes [num_heads] or NULL; copied */
	uint64_t q_token_stride, q_head_stride, k_token_stride, k_head_stride;
	uint64_t v_token_stride, v_head_stride, out_token_stride, out_head_stride;
	uint64_t k_scales_delta, v_scales_delta; /* already quantised int8 input with dynamic scales: where float
						    [tokens][num_kv_heads] stands, in bytes from a job's k and v */
};

/** Register parameter set `id` (0..1023), replacing an earlier one for later jobs. */
int attnd_params_set(attnd_t *a, uint32_t id, const struct attnd_params *params);

/* ---- Looking without asking ---- */

/**
 * How many tokens of a prompt are cached in this cache and namespace: whole blocks, by the realm's
 * peek table in shared memory, without the daemon (which is asked once for the namespace's key) and
 * without holding anything. A hint for ordering a queue or choosing a replica: it may be out of date
 * at once and misses a prefix that the table had no room for; attnd_seq_open is exact.
 * -EOPNOTSUPP: the daemon keeps no table. -ENOENT: no such cache or namespace. -EINVAL: too long.
 */
int attnd_peek(attnd_t *a, uint32_t cache, uint32_t ns, const uint64_t *tokens, uint64_t num_tokens,
	       uint64_t *ret_cached);

struct attnd_prompt {
	const uint64_t *tokens;
	uint64_t num_tokens;
};

/**
 * The same for many prompts: ret_cached[i] of each and the number of the one with the longest cached
 * prefix (of equals the first). Either may be NULL. Nothing is looked up when one is too long.
 */
int attnd_peek_many(attnd_t *a, uint32_t cache, uint32_t ns, const struct attnd_prompt *prompts, uint32_t num_prompts,
		    uint64_t *ret_cached, uint32_t *ret_longest);

/* ---- Sequences ---- */

struct attnd_open_info {
	uint64_t cached; /* tokens found, held from now until trim, close or the first plan row */
};

/**
 * Open sequence `key` (chosen by the engine, used once) on a prompt, in every cache of the engine:
 * answers the longest cached prefix, at most max_match (use num_tokens - 1 to keep one token to
 * compute; UINT64_MAX for no limit), any token. The smallest over the caches counts. Asking again
 * before the first plan row, by whatever session, gives the same answer. -EEXIST: the key is open and
 * past its first plan row; -ENOSPC, -EDQUOT: too many sequences or tokens (max-sequences, max-tokens, ...).
 */
int attnd_seq_open(attnd_t *a, uint64_t key, uint32_t ns, const uint64_t *tokens, uint64_t num_tokens,
		   uint64_t max_match, struct attnd_open_info *ret);

/**
 * The priority (0, as at first, to 7) of sequences that this connection opens from now on. Where the
 * daemon evicts by it (eviction = priority) what such a sequence holds or publishes, and all before
 * it, outlives everything of a lower one; otherwise it is ignored. Forks inherit it. -EINVAL.
 */
int attnd_priority(attnd_t *a, uint32_t priority);

/** Why attnd_seq_wait has returned. */
enum attnd_waited {
	ATTND_WAITED_ALONE,    /* nobody is computing more of it: it did not wait */
	ATTND_WAITED_DONE,     /* all that the other sequence was going to compute of it is there */
	ATTND_WAITED_PROGRESS, /* as much as `want` asks for */
	ATTND_WAITED_GONE,     /* the other one was closed, died, rolled back, or does not publish */
	ATTND_WAITED_DEADLINE,
	ATTND_WAITED_QUIET, /* no progress for quiet_us */
};

struct attnd_wait_options {
	uint64_t max_match;   /* as in attnd_seq_open; 0: no limit */
	uint64_t want;	      /* return as soon as so many tokens are cached; 0: at the first progress;
				 UINT64_MAX: when all that is being computed is there */
	uint64_t quiet_us;    /* give up when nothing has come for so long, up to an hour; 0: only at the deadline */
	uint64_t deadline_us; /* 0: the connection's default */
};

struct attnd_wait_info {
	uint64_t cached;   /* tokens held now, as after attnd_seq_open */
	uint64_t expected; /* how far the other sequence had been going to compute the same tokens; 0: nobody */
	enum attnd_waited why;
};

/**
 * Open as attnd_seq_open does; but where another live sequence, of any process, was opened on more
 * of the same tokens (in steps of 16) and is going to compute them, wait until they are there. It
 * returns 0 in every case in which the sequence is open: `why` tells how the wait ended, and the
 * caller computes the rest, or calls again with the same key, until the sequence's first plan row,
 * to wait on from what it holds.
 * While it waits the sequence announces nothing, so that two that wait never wait for each other;
 * other calls that name its key wait with it (closing it ends the wait with -ECANCELED, as
 * attnd_cancel does, which leaves no sequence behind unless it had been open before).
 * Of an engine's sessions one waits; the others then open the key and get the same answer.
 * options may be NULL: at the first progress, the default deadline. -EOPNOTSUPP: an older daemon.
 */
int attnd_seq_wait(attnd_t *a, uint64_t key, uint32_t ns, const uint64_t *tokens, uint64_t num_tokens,
		   const struct attnd_wait_options *options, struct attnd_wait_info *ret);

/**
 * Open `new_key` with the first `length` tokens of `key` (parallel sampling, beams). Copies nothing.
 * -ENOENT: no `key`; -EEXIST: `new_key` is open; -ERANGE: `key` holds fewer; -ENOSPC, -EDQUOT as attnd_seq_open.
 */
int attnd_seq_fork(attnd_t *a, uint64_t key, uint64_t new_key, uint64_t length);

/** Shorten to `length` tokens. -ENOENT: not open; -ERANGE: it holds fewer. */
int attnd_seq_trim(attnd_t *a, uint64_t key, uint64_t length);

/** Close; what is published stays cached. Unpublished tokens are gone. -ENOENT: not open (of many: skipped). */
int attnd_seq_close(attnd_t *a, uint64_t key);
int attnd_seq_close_many(attnd_t *a, const uint64_t *keys, uint32_t num_keys);

/**
 * After -ECONNRESET: open sequences again that this connection opened or forked, by the tokens it
 * kept of them. `ret_lengths[i]`, for keys[i], is how many tokens are cached now; the caller extends
 * from there. -ENOENT: one is not a sequence of this connection; those before it are open again.
 */
int attnd_reopen(attnd_t *a, const uint64_t *keys, uint32_t num_keys, uint64_t *ret_lengths);

/* ---- Plans and jobs ---- */

/** A row of a plan: a sequence's tokens of this step. */
struct attnd_row {
	uint64_t key;
	uint64_t start;		/* absolute; lower than the length held rolls back to it */
	const uint64_t *tokens; /* [num_tokens] */
	uint32_t num_tokens;	/* >= 1 */
	uint32_t flags;		/* ATTND_ROW_NONCAUSAL or 0 */
	uint64_t publish_upto;	/* other processes may see the sequence's tokens below this once the plan has ended */
	const uint64_t *mask;	/* visibility of the row's own tokens, [num_tokens][ceil(num_tokens / 64)] words, LSB
				   first   (tree speculation; never published), or NULL */
};

enum {
	ATTND_ROW_NONCAUSAL = 1, /* for jobs whose parameters are not causal: nothing is taken over from the cache,
				    and the row and all that follows it in its sequence is never published */
};

struct attnd_row_status {
	int32_t status;	 /* 0, -ENOMEM, -EDQUOT, -ENOENT, -ERANGE, -EINVAL; a refused row's out is zero */
	uint32_t cached; /* of its tokens, how many were already cached: their k and v are ignored */
};

/**
 * Make a plan under a tag of the caller's choosing (any number; a live plan of this tag ends).
 * Returns 0 with a status for each row in ret_status (may be NULL: then any refused row fails the
 * call with that row's error, and the plan is live all the same for the other rows).
 * Tokens and masks are copied. deadline_us 0: the default. -ENOSPC: too many live plans.
 */
int attnd_plan(attnd_t *a, uint32_t tag, uint32_t cache, const struct attnd_row *rows, uint32_t num_rows,
	       struct attnd_row_status *ret_status, uint64_t deadline_us);

/** The same without waiting; jobs of the plan may be submitted at once. ret_status is filled when the job is done. */
int attnd_plan_async(attnd_t *a, uint32_t tag, uint32_t cache, const struct attnd_row *rows, uint32_t num_rows,
		     struct attnd_row_status *ret_status, uint64_t deadline_us, attnd_job_t *ret_job);

/**
 * Drop a plan without its last job; sequences keep the length they had. (One that was to be rolled
 * back in a pool without room for both is rolled back.) -ESTALE: no live plan of this tag.
 */
int attnd_plan_end(attnd_t *a, uint32_t tag);

enum {
	ATTND_LAST = 1,	  /* the last job of the plan: its success makes the tokens part of the sequences */
	ATTND_NO_KV = 2,  /* brings no k and v; attends to those of src_layer, written in this plan */
	ATTND_NO_OUT = 4, /* stores k and v only */
};

/**
 * One layer of a plan. The buffers are arena memory (attnd_alloc) and belong to the job until it
 * has completed:
 *     q    [tokens][num_heads][head_dim]         tokens of all rows, in the plan's order
 *     k, v [tokens][num_kv_heads][head_dim(_v)]
 *     out  [tokens][num_heads][head_dim_v]
 *     lse  [tokens][num_heads] float, natural log, or NULL
 */
struct attnd_attend {
	uint32_t plan;	 /* tag */
	uint32_t params; /* parameter set */
	uint32_t layer;
	uint32_t src_layer; /* with ATTND_NO_KV; ignored otherwise */
	uint32_t flags;	    /* ATTND_LAST, ... */
	const void *q, *k, *v;
	void *out;
	float *lse;
	uint64_t deadline_us; /* 0: the default */
};

/**
 * Submit a layer: decode wants plans whose rows have one token each, extend takes any. Returns at
 * once; wait with attnd_wait. -EAGAIN: the queue is full (complete some job first). -EINVAL here and
 * the job's own status: a buffer that is not arena memory; -ESTALE, as its status: no live plan of this tag.
 */
int attnd_decode(attnd_t *a, const struct attnd_attend *job, attnd_job_t *ret_job);
int attnd_extend(attnd_t *a, const struct attnd_attend *job, attnd_job_t *ret_job);

/** Plan, run and end, for callers with one layer: the plan's row statuses and the job in one call. */
int attnd_decode_once(attnd_t *a, uint32_t cache, const struct attnd_row *rows, uint32_t num_rows,
		      const struct attnd_attend *job, struct attnd_row_status *ret_status);
int attnd_extend_once(attnd_t *a, uint32_t cache, const struct attnd_row *rows, uint32_t num_rows,
		      const struct attnd_attend *job, struct attnd_row_status *ret_status);

/** Rows of heads anywhere in the caller's memory; a head's values are contiguous. Strides in bytes; 0: contiguous. */
struct attnd_rows {
	void *data;
	uint64_t token_stride, head_stride;
};

/** A layer whose q, k, v and out are not arena memory. */
struct attnd_copied {
	struct attnd_attend job; /* its buffers: arena memory for num_tokens, contiguous, used by this call only */
	uint32_t num_tokens;	 /* of all rows of the plan */
	int decode;		 /* 1: every row has one token */
	struct attnd_rows q, k, v, out;
};

/**
 * Copy q, k, v in, run the layer, wait, copy out back. What the job's flags leave out is not looked
 * at. The parameter set has no strides of its own. *ret_job (may be NULL) is the job once it was
 * submitted: after -ETIMEDOUT its buffers are still the daemon's, and it may be waited for again.
 */
int attnd_attend_copied(attnd_t *a, const struct attnd_copied *copied, attnd_job_t *ret_job);

/* ---- K and V as data ---- */

/**
 * One layer of a run of tokens, in arena memory. Each part begins at the next multiple of 64 bytes:
 *     K         [num_tokens][num_kv_heads][head_dim]    in the cache's dtype
 *     V         [num_tokens][num_kv_heads][head_dim_v]  the same; absent with v_in_k
 *     K scales  [num_tokens][num_kv_heads] float        with dynamic scales only
 *     V scales  [num_tokens][num_kv_heads] float        the same; absent with v_in_k
 */
struct attnd_kv {
	uint32_t cache, layer;
	uint64_t key;	      /* export: the sequence */
	uint64_t start;	      /* export: its first token */
	uint32_t num_tokens;  /* 1..2^20; import: those of all the plan's rows, in the plan's order */
	void *data;	      /* attnd_kv_bytes, from attnd_alloc; the job's until it has completed */
	uint64_t deadline_us; /* 0: the default */
};

/** Bytes of an attnd_kv's data, for a cache that this connection opened. -ENOENT, -EINVAL. */
int attnd_kv_bytes(attnd_t *a, uint32_t cache, uint32_t num_tokens, size_t *ret);

/**
 * Read tokens [start, start + num_tokens) that the sequence holds, bit for bit as they are stored.
 * Tokens of a plan that has not ended are not among them. -ERANGE: the sequence holds fewer.
 */
int attnd_export(attnd_t *a, const struct attnd_kv *kv);
int attnd_export_async(attnd_t *a, const struct attnd_kv *kv, attnd_job_t *ret_job);

/**
 * Store exported data as one layer of a live plan, without attention: open the sequence, plan its
 * row, import each layer, the last one with ATTND_LAST. What the plan took over from the cache is
 * left as it is. The cache needs the geometry, dtype and scale mode of the one exported from, and
 * the same static scales. Parameter set `params` is overwritten.
 */
int attnd_import(attnd_t *a, uint32_t plan, uint32_t params, uint32_t flags, const struct attnd_kv *kv);

/* ---- Block tables in other systems' words ---- */

enum attnd_slot_unit {
	ATTND_SLOT_TOKENS, /* a token's slot: block id * block_size + slot in the block */
	ATTND_SLOT_BLOCKS, /* block ids */
};

/**
 * What attnd_slot_table fills in: arrays in arena memory; all but kv_indices may be NULL.
 *     req_to_token           TOKENS with a width
 *     block_table            BLOCKS with a width
 *     kv_indptr, kv_indices  of pages: BLOCKS, of tokens: TOKENS, with width 0
 */
struct attnd_slot_table {
	enum attnd_slot_unit unit;
	uint32_t width;	   /* entries of each of the batch, filled up with -1; 0: one behind the other */
	uint32_t plan;	   /* its tag, when no keys are given */
	uint32_t capacity; /* of kv_indices, entries; at most 2^20 */
	int32_t *kv_indices;
	int32_t *seq_lens;  /* [num], tokens */
	int32_t *kv_indptr; /* [num + 1]: where each begins in kv_indices */
	int32_t *qo_indptr; /* [num + 1]: where each row's tokens begin in the plan's q and out; of keys: 0 */
};

/**
 * Tables of `num` (1..4096) sequences, as far as they are computed; or, with keys NULL, of the rows
 * of a live plan of this connection with the plan's tokens (a refused row has none). They are a
 * snapshot: block ids name blocks, not places, and stay what they are wherever the daemon moves a
 * block; the sequences' next plan, trim or close changes them, and so does the daemon where it finds
 * that a full block of a sequence is an equal copy of one in the cache (the sequence then has the
 * other's id, and its own may become anybody's). A plan's live table is not changed so until its
 * job has ended. ret_entries (may be NULL): entries of kv_indices.
 * -ENOENT: a sequence, -ESTALE: the plan; -ERANGE: one is longer than width; -ENOSPC: capacity
 * (attnd_strerror has the number needed).
 */
int attnd_slot_table(attnd_t *a, uint32_t cache, const uint64_t *keys, uint32_t num, const struct attnd_slot_table *t,
		     uint32_t *ret_entries);

/* ---- Completion ---- */

struct attnd_result {
	attnd_job_t job;
	int32_t status; /* 0 or a negative errno */
	uint32_t reserved;
	uint64_t value; /* seq_open, seq_wait: tokens cached; namespace: its id; otherwise 0 */
};

/**
 * Wait for one job, up to its deadline and a grace of 1 s. Returns its status (and the result in
 * *ret if not NULL), or -ETIMEDOUT: then the job is still the daemon's, its buffers must not be
 * reused, and it may be waited for again. -ENOENT: not a job in flight or done.
 */
int attnd_wait(attnd_t *a, attnd_job_t job, struct attnd_result *ret);

/**
 * The next completion of any job that nobody waits for, within timeout_us (0: do not wait).
 * 0 and *ret, or -EAGAIN when there is none, -ECONNRESET when the connection is gone and every
 * job has been reported.
 */
int attnd_next(attnd_t *a, struct attnd_result *ret, uint64_t timeout_us);

/** Ask the daemon to give up a job; it completes with -ECANCELED unless it was done. -ENOENT: no job in flight. */
int attnd_cancel(attnd_t *a, attnd_job_t job);

/* Asynchronous forms of the calls above; the answer comes by attnd_wait or attnd_next. */
int attnd_ping_async(attnd_t *a, uint64_t deadline_us, attnd_job_t *ret_job);
int attnd_cache_open_async(attnd_t *a, const struct attnd_cache_desc *desc, int create, struct attnd_cache_info *ret,
			   attnd_job_t *ret_job); /* *ret is filled when the job is done */
int attnd_grant_async(attnd_t *a, uint32_t cache, uint64_t tokens, uint32_t sequences, attnd_job_t *ret_job);
int attnd_scales_set_async(attnd_t *a, uint32_t cache, uint32_t layer, float k_scale, float v_scale,
			   attnd_job_t *ret_job);
int attnd_namespace_async(attnd_t *a, const struct attnd_namespace *ns, attnd_job_t *ret_job); /* value: the id */
int attnd_params_set_async(attnd_t *a, uint32_t id, const struct attnd_params *params, attnd_job_t *ret_job);
int attnd_seq_open_async(attnd_t *a, uint64_t key, uint32_t ns, const uint64_t *tokens, uint64_t num_tokens,
			 uint64_t max_match, attnd_job_t *ret_job);
int attnd_seq_wait_async(attnd_t *a, uint64_t key, uint32_t ns, const uint64_t *tokens, uint64_t num_tokens,
			 const struct attnd_wait_options *options, struct attnd_wait_info *ret,
			 attnd_job_t *ret_job); /* *ret (may be NULL) is filled when the job is done; value: cached */
int attnd_seq_fork_async(attnd_t *a, uint64_t key, uint64_t new_key, uint64_t length, attnd_job_t *ret_job);
int attnd_seq_trim_async(attnd_t *a, uint64_t key, uint64_t length, attnd_job_t *ret_job);
int attnd_seq_close_many_async(attnd_t *a, const uint64_t *keys, uint32_t num_keys, attnd_job_t *ret_job);
int attnd_plan_end_async(attnd_t *a, uint32_t tag, attnd_job_t *ret_job);

#ifdef __cplusplus
}
#endif
#endif
