/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Engine, caches, grants, scales and namespaces: asked for, and remembered so that a reconnection
 * can ask again.
 *
 * In:   the caller's descriptions. Out: payloads in arena scratch; records under the caller's numbers.
 * Next: jobs.c. After a reconnection the daemon may number caches and namespaces differently; the
 *       records translate.
 */
#include "internal.h"

#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

static_assert(ATTND_F32 == (int)ATTND_WIRE_F32 && ATTND_F16 == (int)ATTND_WIRE_F16 &&
		      ATTND_BF16 == (int)ATTND_WIRE_BF16 && ATTND_INT8 == (int)ATTND_WIRE_INT8 &&
		      ATTND_FP8_E4M3 == (int)ATTND_WIRE_FP8_E4M3 && ATTND_FP8_E5M2 == (int)ATTND_WIRE_FP8_E5M2,
	      "dtypes are the wire's");
static_assert(ATTND_SCALE_NONE == (int)ATTND_WIRE_SCALE_NONE && ATTND_SCALE_STATIC == (int)ATTND_WIRE_SCALE_STATIC &&
		      ATTND_SCALE_DYNAMIC == (int)ATTND_WIRE_SCALE_DYNAMIC,
	      "scale modes are the wire's");
static_assert(ATTND_PACKED == (int)ATTND_WIRE_PACKED && ATTND_BSHD == (int)ATTND_WIRE_BSHD &&
		      ATTND_BHSD == (int)ATTND_WIRE_BHSD,
	      "layouts are the wire's");

/* ---- A payload ---- */

/* An object request whose payload is this. */
static int object_request(struct attnd *a, struct cl_request *r, enum attnd_opcode op, const void *payload,
			  size_t bytes)
{
	void *scratch;
	int rc = cl_request_init(a, r, op, 0);

	if (!rc)
		rc = cl_request_scratch(a, r, bytes ? bytes : 1, &scratch, &r->sqe.obj.payload);
	if (rc)
		return rc;
	if (bytes)
		memcpy(scratch, payload, bytes);
	r->sqe.obj.bytes = (uint32_t)bytes;
	return 0;
}

/* ---- Engine ---- */

static int engine_ask(struct attnd *a, bool make)
{
	struct attnd_wire_engine e = {0};
	struct cl_request r;
	int rc;

	memcpy(e.id, a->engine_id, sizeof(e.id));
	rc = object_request(a, &r, ATTND_OP_ENGINE, &e, sizeof(e));
	if (rc)
		return rc;
	r.sqe.flags = make ? ATTND_ENGINE_CREATE : 0;
	return cl_perform(a, &r, NULL);
}

int attnd_engine_id(uint8_t ret_id[16])
{
	uint8_t id[16];

	/* Up to 256 bytes come whole once the kernel's pool is ready. */
	if (getrandom(id, sizeof(id), 0) != (ssize_t)sizeof(id))
		return -errno;
	memcpy(ret_id, id, sizeof(id));
	return 0;
}

/* After a restart whichever session comes first makes the engine again. */
int cl_engine_join(struct attnd *a, bool first)
{
	int rc;

	if (!a->has_engine)
		return 0;
	if (first)
		return engine_ask(a, a->engine_create);
	rc = engine_ask(a, false);
	if (rc == -ENOENT)
		rc = engine_ask(a, true);
	return rc == -EEXIST ? engine_ask(a, false) : rc;
}

/* ---- Caches ---- */

struct cl_cache *cl_cache_find(struct attnd *a, uint32_t handle)
{
	for (uint32_t i = 0; i < a->objects.num_caches; i++)
		if (a->objects.caches[i].handle == handle)
			return &a->objects.caches[i];
	return NULL;
}

int cl_cache_wire(struct attnd *a, uint32_t handle, uint16_t *ret)
{
	const struct cl_cache *c = cl_cache_find(a, handle);

	if (!c && handle > UINT16_MAX)
		return cl_fail(a, -EINVAL, ATTND_FIELD_CACHE, ATTND_MAX_CACHES);
	*ret = c ? c->wire : (uint16_t)handle;
	return 0;
}

static int cache_identity(struct attnd *a, const struct attnd_cache_desc *d, struct attnd_wire_cache *ret)
{
	size_t name = d->name ? strnlen(d->name, ATTND_MAX_NAME + 1) : 0;

	if (!name || name > ATTND_MAX_NAME)
		return cl_fail(a, -EINVAL, ATTND_FIELD_NAME, ATTND_MAX_NAME);
	if ((unsigned int)d->kv_dtype >= ATTND_WIRE_DTYPES)
		return cl_fail(a, -EINVAL, ATTND_FIELD_KV_DTYPE, 0);
	if ((unsigned int)d->scale_mode >= ATTND_WIRE_SCALES)
		return cl_fail(a, -EINVAL, ATTND_FIELD_SCALE_MODE, 0);
	if ((unsigned int)d->layout >= ATTND_WIRE_LAYOUTS)
		return cl_fail(a, -EINVAL, ATTND_FIELD_LAYOUT, 0);
	*ret = (struct attnd_wire_cache){.num_layers = d->num_layers,
					 .num_heads = d->num_heads,
					 .num_kv_heads = d->num_kv_heads,
					 .head_dim = d->head_dim,
					 .head_dim_v = d->head_dim_v ? d->head_dim_v : d->head_dim,
					 .block_size = d->block_size,
					 .kv_dtype = (uint8_t)d->kv_dtype,
					 .scale_mode = (uint8_t)d->scale_mode,
					 .layout = (uint8_t)d->layout,
					 .v_in_k = d->v_in_k != 0};
	memcpy(ret->name, d->name, name);
	memcpy(ret->fingerprint, d->fingerprint, sizeof(ret->fingerprint));
	return 0;
}

/* The record of a cache that the daemon calls `wire`; made if there is none. NULL: too many. */
static struct cl_cache *cache_record(struct attnd *a, const struct attnd_wire_cache *identity, uint16_t wire)
{
	struct cl_objects *o = &a->objects;
	uint32_t handle = wire;

	for (uint32_t i = 0; i < o->num_caches; i++)
		if (o->caches[i].wire == wire)
			return &o->caches[i];
	if (o->num_caches == ATTND_MAX_CACHES)
		return NULL;
	/* After a reconnection its number may be another cache's old one. */
	while (cl_cache_find(a, handle))
		handle++;
	o->caches[o->num_caches] = (struct cl_cache){.handle = handle, .wire = wire, .identity = *identity};
	return &o->caches[o->num_caches++];
}

static void cache_done(struct attnd *a, struct cl_job *j)
{
	struct attnd_wire_cache *identity = j->ctx;
	const struct cl_cache *c;

	if (!j->status) {
		c = cache_record(a, identity, (uint16_t)j->value);
		if (!c)
			j->status = -ENOSPC;
		else if (j->ret)
			*(struct attnd_cache_info *)j->ret =
				(struct attnd_cache_info){.cache = c->handle,
							  .chunk = (uint32_t)(j->value >> 32),
							  .step = (uint16_t)(j->value >> 16),
							  .capacity_tokens = j->limit};
	}
	free(identity);
}

static int cache_open(attnd_t *a, const struct attnd_cache_desc *desc, int make, struct attnd_cache_info *ret,
		      enum cl_mode mode, attnd_job_t *ret_job)
{
	struct attnd_wire_cache identity;
	struct cl_request r;
	int rc = cl_enter(a, 1, mode);

	if (!rc)
		rc = cache_identity(a, desc, &identity);
	if (!rc)
		rc = object_request(a, &r, ATTND_OP_CACHE_OPEN, &identity, sizeof(identity));
	if (rc)
		return rc;
	r.sqe.flags = make ? ATTND_CACHE_CREATE : 0;
	r.job.ret = ret;
	r.job.ctx = malloc(sizeof(identity));
	if (!r.job.ctx)
		return cl_request_drop(a, &r, -ENOMEM);
	memcpy(r.job.ctx, &identity, sizeof(identity));
	r.job.done = cache_done;
	return cl_go(a, &r, mode, ret_job);
}

int attnd_cache_open(attnd_t *a, const struct attnd_cache_desc *desc, int make, struct attnd_cache_info *ret)
{
	return cache_open(a, desc, make, ret, CL_WAIT, NULL);
}

int attnd_cache_open_async(attnd_t *a, const struct attnd_cache_desc *desc, int make, struct attnd_cache_info *ret,
			   attnd_job_t *ret_job)
{
	return cache_open(a, desc, make, ret, CL_ASYNC, ret_job);
}

/* ---- Grants ---- */

static int grant_request(struct attnd *a, struct cl_request *r, uint32_t handle, uint64_t tokens, uint32_t sequences)
{
	uint16_t wire;
	int rc = cl_cache_wire(a, handle, &wire);

	if (!rc)
		rc = cl_request_init(a, r, ATTND_OP_GRANT, 0);
	if (rc)
		return rc;
	r->sqe.grant.cache = wire;
	r->sqe.grant.tokens = tokens;
	r->sqe.grant.sequences = sequences;
	return 0;
}

static void grant_done(struct attnd *a, struct cl_job *j)
{
	struct cl_cache *c = cl_cache_find(a, (uint32_t)j->arg[0]);

	if (j->status || !c)
		return;
	c->grant_tokens = j->arg[1];
	c->grant_sequences = (uint32_t)j->arg[2];
}

static int grant(attnd_t *a, uint32_t cache, uint64_t tokens, uint32_t sequences, enum cl_mode mode,
		 attnd_job_t *ret_job)
{
	struct cl_request r;
	int rc = cl_enter(a, 1, mode);

	if (!rc)
		rc = grant_request(a, &r, cache, tokens, sequences);
	if (rc)
		return rc;
	r.job.done = grant_done;
	r.job.arg[0] = cache;
	r.job.arg[1] = tokens;
	r.job.arg[2] = sequences;
	return cl_go(a, &r, mode, ret_job);
}

int attnd_grant(attnd_t *a, uint32_t cache, uint64_t tokens, uint32_t sequences)
{
	return grant(a, cache, tokens, sequences, CL_WAIT, NULL);
}

int attnd_grant_async(attnd_t *a, uint32_t cache, uint64_t tokens, uint32_t sequences, attnd_job_t *ret_job)
{
	return grant(a, cache, tokens, sequences, CL_ASYNC, ret_job);
}

/* ---- Scales ---- */

static int scales_request(struct attnd *a, struct cl_request *r, uint32_t handle, uint32_t layer, struct cl_scale s)
{
	uint16_t wire;
	int rc = cl_cache_wire(a, handle, &wire);

	if (!rc && layer >= ATTND_MAX_LAYERS)
		rc = cl_fail(a, -EINVAL, ATTND_FIELD_LAYER, ATTND_MAX_LAYERS - 1);
	if (!rc)
		rc = cl_request_init(a, r, ATTND_OP_SCALES, 0);
	if (rc)
		return rc;
	r->sqe.layer = (uint16_t)layer;
	r->sqe.scales.cache = wire;
	r->sqe.scales.k_scale = s.k;
	r->sqe.scales.v_scale = s.v;
	return 0;
}

static void scales_done(struct attnd *a, struct cl_job *j)
{
	struct cl_cache *c = cl_cache_find(a, (uint32_t)j->arg[0]);
	struct cl_scale *s = j->ctx;

	if (!j->status && c && c->scales && j->arg[1] < c->identity.num_layers)
		c->scales[j->arg[1]] = *s;
	free(s);
}

static int scales_set(attnd_t *a, uint32_t cache, uint32_t layer, float k_scale, float v_scale, enum cl_mode mode,
		      attnd_job_t *ret_job)
{
	const struct cl_scale s = {k_scale, v_scale, true};
	struct cl_request r;
	struct cl_cache *c;
	int rc = cl_enter(a, 1, mode);

	if (!rc)
		rc = scales_request(a, &r, cache, layer, s);
	if (rc)
		return rc;
	c = cl_cache_find(a, cache);
	if (c && !c->scales)
		c->scales = calloc(c->identity.num_layers, sizeof(*c->scales));
	r.job.ctx = malloc(sizeof(s));
	if (!r.job.ctx || (c && !c->scales)) {
		free(r.job.ctx);
		return cl_request_drop(a, &r, -ENOMEM);
	}
	memcpy(r.job.ctx, &s, sizeof(s));
	r.job.arg[0] = cache;
	r.job.arg[1] = layer;
	r.job.done = scales_done;
	return cl_go(a, &r, mode, ret_job);
}

int attnd_scales_set(attnd_t *a, uint32_t cache, uint32_t layer, float k_scale, float v_scale)
{
	return scales_set(a, cache, layer, k_scale, v_scale, CL_WAIT, NULL);
}

int attnd_scales_set_async(attnd_t *a, uint32_t cache, uint32_t layer, float k_scale, float v_scale,
			   attnd_job_t *ret_job)
{
	return scales_set(a, cache, layer, k_scale, v_scale, CL_ASYNC, ret_job);
}

/* ---- Namespaces ---- */

uint32_t cl_namespace_wire(const struct attnd *a, uint32_t id)
{
	for (uint32_t i = 0; i < a->objects.num_namespaces; i++)
		if (a->objects.namespaces[i]->id == id)
			return a->objects.namespaces[i]->wire;
	return id;
}

static bool namespace_known(const struct attnd *a, uint32_t id)
{
	for (uint32_t i = 0; i < a->objects.num_namespaces; i++)
		if (a->objects.namespaces[i]->id == id)
			return true;
	return false;
}

/* One tagged field; absent when data is NULL. Only counts when `to` is NULL. */
static size_t put_field(unsigned char *to, enum attnd_ns_tag tag, const void *data, uint32_t bytes)
{
	const struct attnd_wire_ns_field f = {.tag = (uint16_t)tag, .bytes = (uint16_t)bytes};

	if (!data)
		return 0;
	if (to) {
		memcpy(to, &f, sizeof(f));
		memcpy(to + sizeof(f), data, bytes);
	}
	return sizeof(f) + (((size_t)bytes + 3) & ~(size_t)3);
}

static size_t put_fields(unsigned char *to, const struct attnd_namespace *ns)
{
	size_t n = put_field(to, ATTND_NS_TENANT, ns->tenant, ns->tenant_bytes);

	n += put_field(to ? to + n : NULL, ATTND_NS_ADAPTER, ns->adapter, ns->adapter_bytes);
	return n + put_field(to ? to + n : NULL, ATTND_NS_SALT, ns->salt, ns->salt_bytes);
}

/* Keeps the record, or frees it for one that is there. The caller's number is the job's value. */
static int namespace_keep(struct attnd *a, struct cl_namespace *n, uint32_t wire, uint64_t *ret_id)
{
	struct cl_objects *o = &a->objects;
	struct cl_namespace **more;

	for (uint32_t i = 0; i < o->num_namespaces; i++) {
		if (o->namespaces[i]->wire == wire) {
			*ret_id = o->namespaces[i]->id;
			free(n);
			return 0;
		}
	}
	more = realloc(o->namespaces, (o->num_namespaces + 1) * sizeof(struct cl_namespace *));
	if (!more) {
		free(n);
		return -ENOMEM;
	}
	o->namespaces = more;
	n->wire = wire;
	for (n->id = wire; namespace_known(a, n->id);)
		n->id++;
	*ret_id = n->id;
	more[o->num_namespaces++] = n;
	return 0;
}

static void namespace_done(struct attnd *a, struct cl_job *j)
{
	if (j->status)
		free(j->ctx);
	else
		j->status = namespace_keep(a, j->ctx, (uint32_t)j->value, &j->value);
}

static int namespace_ask(attnd_t *a, const struct attnd_namespace *ns, enum cl_mode mode, uint64_t *ret_id,
			 attnd_job_t *ret_job)
{
	struct cl_namespace *n;
	struct cl_request r;
	size_t bytes;
	int rc = cl_enter(a, 1, mode);

	if (rc)
		return rc;
	if (ns->tenant_bytes > ATTND_MAX_NS_BYTES || ns->adapter_bytes > ATTND_MAX_NS_BYTES ||
	    ns->salt_bytes > ATTND_MAX_NS_BYTES || put_fields(NULL, ns) > ATTND_MAX_NS_BYTES)
		return cl_fail(a, -EINVAL, ATTND_FIELD_NAMESPACE_FIELDS, ATTND_MAX_NS_BYTES);
	bytes = put_fields(NULL, ns);
	n = calloc(1, sizeof(*n) + bytes);
	if (!n)
		return -ENOMEM;
	n->bytes = (uint32_t)bytes;
	put_fields(n->fields, ns);
	rc = object_request(a, &r, ATTND_OP_NAMESPACE, n->fields, bytes);
	if (rc) {
		free(n);
		return rc;
	}
	r.job.ctx = n;
	r.job.done = namespace_done;
	r.job.has_value = true;
	return mode == CL_WAIT ? cl_perform(a, &r, ret_id) : cl_submit(a, &r, ret_job);
}

int attnd_namespace(attnd_t *a, const struct attnd_namespace *ns, uint32_t *ret_id)
{
	uint64_t id;
	int rc = namespace_ask(a, ns, CL_WAIT, &id, NULL);

	if (!rc)
		*ret_id = (uint32_t)id;
	return rc;
}

int attnd_namespace_async(attnd_t *a, const struct attnd_namespace *ns, attnd_job_t *ret_job)
{
	return namespace_ask(a, ns, CL_ASYNC, NULL, ret_job);
}

/* ---- Again, after a reconnection ---- */

static int restore_cache(struct attnd *a, struct cl_cache *c)
{
	struct cl_request r;
	uint64_t value;
	/* It was there when it was opened, so it may be made. */
	int rc = object_request(a, &r, ATTND_OP_CACHE_OPEN, &c->identity, sizeof(c->identity));

	if (rc)
		return rc;
	r.sqe.flags = ATTND_CACHE_CREATE;
	r.job.has_value = true;
	rc = cl_perform(a, &r, &value);
	if (!rc)
		c->wire = (uint16_t)value;
	return rc;
}

static int restore_grant(struct attnd *a, const struct cl_cache *c)
{
	struct cl_request r;
	int rc;

	if (!c->grant_tokens && !c->grant_sequences)
		return 0;
	rc = grant_request(a, &r, c->handle, c->grant_tokens, c->grant_sequences);
	return rc ? rc : cl_perform(a, &r, NULL);
}

static int restore_scales(struct attnd *a, const struct cl_cache *c)
{
	struct cl_request r;
	int rc = 0;

	for (uint32_t i = 0; c->scales && !rc && i < c->identity.num_layers; i++) {
		if (!c->scales[i].set)
			continue;
		rc = scales_request(a, &r, c->handle, i, c->scales[i]);
		if (!rc)
			rc = cl_perform(a, &r, NULL);
	}
	return rc;
}

static int restore_namespace(struct attnd *a, struct cl_namespace *n)
{
	struct cl_request r;
	uint64_t value;
	int rc = object_request(a, &r, ATTND_OP_NAMESPACE, n->fields, n->bytes);

	if (rc)
		return rc;
	r.job.has_value = true;
	rc = cl_perform(a, &r, &value);
	if (!rc)
		n->wire = (uint32_t)value;
	return rc;
}

int cl_objects_restore(struct attnd *a)
{
	struct cl_objects *o = &a->objects;
	int rc = 0;

	for (uint32_t i = 0; !rc && i < o->num_caches; i++)
		rc = restore_cache(a, &o->caches[i]);
	for (uint32_t i = 0; !rc && i < o->num_caches; i++)
		rc = restore_grant(a, &o->caches[i]);
	for (uint32_t i = 0; !rc && i < o->num_caches; i++)
		rc = restore_scales(a, &o->caches[i]);
	for (uint32_t i = 0; !rc && i < o->num_namespaces; i++)
		rc = restore_namespace(a, o->namespaces[i]);
	for (uint32_t i = 0; !rc && i < ATTND_MAX_PARAMS; i++)
		rc = cl_params_restore(a, i);
	return rc;
}

void cl_objects_destroy(struct attnd *a)
{
	struct cl_objects *o = &a->objects;

	for (uint32_t i = 0; i < o->num_caches; i++)
		free(o->caches[i].scales);
	for (uint32_t i = 0; i < o->num_namespaces; i++)
		free(o->namespaces[i]);
	free(o->namespaces);
	for (uint32_t i = 0; i < ATTND_MAX_PARAMS; i++)
		free(o->params[i]);
}
