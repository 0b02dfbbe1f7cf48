/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Block tables in other systems' words.
 *
 * In:   sequences or a plan; arrays in the arena. Out: a SLOT_TABLE entry. Next: jobs.c.
 */
#include "internal.h"

#include <string.h>

static_assert(ATTND_SLOT_TOKENS == (int)ATTND_WIRE_SLOTS_TOKENS && ATTND_SLOT_BLOCKS == (int)ATTND_WIRE_SLOTS_BLOCKS,
	      "units are the wire's");

static uint64_t offset_of(const struct attnd *a, const void *p)
{
	return p ? cl_arena_offset(a, p) : ATTND_OFFSET_NONE;
}

/* Payload and keys in one piece of scratch. */
static int build(struct attnd *a, struct cl_request *r, uint32_t cache, const uint64_t *keys, uint32_t num,
		 const struct attnd_slot_table *t)
{
	struct attnd_wire_slots *w;
	void *scratch;
	int rc = cl_request_init(a, r, ATTND_OP_SLOT_TABLE, 0);

	if (!rc && (!num || num > ATTND_MAX_ROWS))
		rc = cl_fail(a, -EINVAL, ATTND_FIELD_ROWS, ATTND_MAX_ROWS);
	for (uint32_t i = 0; !rc && keys && i < num; i++)
		if (cl_seq_stale(a, keys[i]))
			rc = cl_fail_text(a, -ECONNRESET, "a sequence wants attnd_reopen");
	if (!rc)
		rc = cl_request_scratch(a, r, sizeof(*w) + (keys ? num : 0) * sizeof(*keys), &scratch,
					&r->sqe.obj.payload);
	if (rc)
		return rc;
	w = scratch;
	*w = (struct attnd_wire_slots){.num = num,
				       .plan = t->plan,
				       .unit = (uint16_t)t->unit,
				       .width = t->width,
				       .capacity = t->capacity,
				       .keys = r->sqe.obj.payload + sizeof(*w),
				       .seq_lens = offset_of(a, t->seq_lens),
				       .kv_indptr = offset_of(a, t->kv_indptr),
				       .kv_indices = offset_of(a, t->kv_indices),
				       .qo_indptr = offset_of(a, t->qo_indptr)};
	rc = cl_cache_wire(a, cache, &w->cache);
	if (rc)
		return cl_request_drop(a, r, rc);
	if (keys)
		memcpy(w + 1, keys, num * sizeof(*keys));
	r->sqe.flags = keys ? 0 : ATTND_SLOTS_PLAN;
	r->sqe.obj.bytes = sizeof(*w);
	r->job.has_value = true;
	return 0;
}

int attnd_slot_table(attnd_t *a, uint32_t cache, const uint64_t *keys, uint32_t num, const struct attnd_slot_table *t,
		     uint32_t *ret_entries)
{
	struct cl_request r;
	uint64_t value;
	int rc = cl_enter(a, 1, CL_WAIT);

	if (!rc)
		rc = build(a, &r, cache, keys, num, t);
	if (!rc)
		rc = cl_perform(a, &r, &value);
	if (!rc && ret_entries)
		*ret_entries = (uint32_t)value;
	return rc;
}
