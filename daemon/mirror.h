/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The reader's picture of the caches' trees, and the KV events that tell of its changes.
 *
 * In:   records of events.c. Out: batches, as msgpack, each under a topic with a number.
 * Next: publish.c sends them.
 *
 * A topic is kv@REALM@CACHE (kv@uid:1000@llama); batches count up by one in each. A batch is
 * [ts, [event, ...], 0], an event a map:
 *
 *   {type: "BlockStored", block_hashes, parent_block_hash, token_ids, block_size, lora_id: nil,
 *    medium: "CPU", lora_name, extra_keys, cache_salt, tenant}
 *   {type: "BlockRemoved", block_hashes, medium: "CPU"}
 *   {type: "AllBlocksCleared"}
 *
 * A hash is 63 bits of BLAKE2b over the cache's identity, the namespace and the tokens up to the
 * block's end: the same in every process and on every machine.
 *
 * One thread.
 */
#ifndef ATTND_DAEMON_MIRROR_H
#define ATTND_DAEMON_MIRROR_H

#include "events.h"

struct mirror;

/** A batch: `payload` is valid during the call only. */
typedef void mirror_emit(void *ctx, const char *topic, uint64_t seq, const void *payload, size_t bytes);

/** 0 or -ENOMEM. */
int mirror_create(mirror_emit *emit, void *ctx, struct mirror **ret);
/** NULL is fine. */
void mirror_destroy(struct mirror *m);

/** Take a record. What does not fit into memory leaves the picture as it is, until the next RESET. */
void mirror_take(struct mirror *m, const struct event *r);
/** Emit what has gathered. */
void mirror_flush(struct mirror *m);
/** The picture is whole: a state has been told to its end. */
bool mirror_whole(const struct mirror *m);

/**
 * All batches of a topic from number `start` on; where they are not kept any more, one batch with
 * the whole state, under the last number given out. 0, -ENOENT (no such topic) or -ENOMEM.
 */
int mirror_replay(const struct mirror *m, const char *topic, uint64_t start, mirror_emit *emit, void *ctx);
/** The topic that begins with `prefix`, if it is the only one; else NULL. */
const char *mirror_only_topic(const struct mirror *m, const char *prefix);

/** Hash of a block by the one before it (0 and first: the namespace's in this cache). */
uint64_t mirror_root(const struct attnd_wire_cache *id, const uint8_t ns_digest[32]);
uint64_t mirror_hash(uint64_t before, const uint64_t *tokens, uint32_t n);

#endif
