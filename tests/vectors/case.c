/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Loading a golden vector: see case.h.
 */
#include "case.h"

#include <errno.h>
#include <jansson.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct loader {
	const char *dir;
	char *why;
	size_t why_bytes;
	int status; /* of the first failure */
};

static void fault(struct loader *l, int code, const char *what)
{
	if (l->status)
		return;
	l->status = code;
	snprintf(l->why, l->why_bytes, "%s: %s: %s", l->dir, what, strerror(-code));
}

static int lookup(struct loader *l, const char *const *names, const char *name)
{
	for (int i = 0; names[i]; i++)
		if (!strcmp(names[i], name))
			return i;
	fault(l, -EINVAL, name);
	return 0;
}

static uint32_t *get_lens(struct loader *l, const json_t *array, uint32_t n, size_t *ret_sum)
{
	uint32_t *lens = calloc(n + 1, sizeof(*lens));

	if (!lens || json_array_size(array) != n) {
		fault(l, -EINVAL, "seq_lens");
		return lens;
	}
	for (uint32_t i = 0; i < n; i++) {
		lens[i] = (uint32_t)json_integer_value(json_array_get(array, i));
		*ret_sum += lens[i];
	}
	return lens;
}

static void read_parameters(struct loader *l, struct vector_case *c, json_t *root)
{
	static const char *const dtypes[] = {"f32", "f16", "bf16", "int8", "fp8_e4m3", "fp8_e5m2", NULL};
	static const char *const modes[] = {"none", "static", "dynamic", NULL};
	static const char *const ops[] = {"extend", "decode", NULL};
	const char *name, *op, *q_dtype, *kv_dtype, *mode;
	double sm_scale, logit_cap, k_scale, v_scale;
	json_t *seq_lens, *new_lens;
	json_error_t bad;
	int heads, kv_heads, dim, dim_v, window, block_size;

	if (json_unpack_ex(
		    root, &bad, 0,
		    "{s:s, s:s, s:i, s:i, s:i, s:i, s:F, s:F, s:i, s:b, s:s, s:s, s:s, s:F, s:F, s:i, s:F, s:F, "
		    "s:o, s:o}",
		    "name", &name, "op", &op, "num_heads", &heads, "num_kv_heads", &kv_heads, "head_dim", &dim,
		    "head_dim_v", &dim_v, "sm_scale", &sm_scale, "logit_cap", &logit_cap, "sliding_window", &window,
		    "causal", &c->causal, "q_dtype", &q_dtype, "kv_dtype", &kv_dtype, "int8_mode", &mode, "k_scale",
		    &k_scale, "v_scale", &v_scale, "block_size", &block_size, "tolerance", &c->tolerance,
		    "lse_tolerance", &c->lse_tolerance, "seq_lens", &seq_lens, "extend_seq_lens", &new_lens)) {
		fault(l, -EINVAL, bad.text);
		return;
	}
	snprintf(c->name, sizeof(c->name), "%s", name);
	c->decode = lookup(l, ops, op);
	c->num_heads = (uint32_t)heads;
	c->num_kv_heads = (uint32_t)kv_heads;
	c->head_dim = (uint32_t)dim;
	c->head_dim_v = (uint32_t)dim_v;
	c->sm_scale = (float)sm_scale;
	c->logit_cap = (float)logit_cap;
	c->sliding_window = (uint32_t)window;
	c->q_dtype = (enum attnd_dtype)lookup(l, dtypes, q_dtype);
	c->kv_dtype = (enum attnd_dtype)lookup(l, dtypes, kv_dtype);
	c->scale_mode = (enum attnd_scale_mode)lookup(l, modes, mode);
	c->k_scale = (float)k_scale;
	c->v_scale = (float)v_scale;
	c->block_size = (uint32_t)block_size;
	c->num_seqs = (uint32_t)json_array_size(seq_lens);
	c->seq_lens = get_lens(l, seq_lens, c->num_seqs, &c->num_keys);
	c->new_lens = get_lens(l, new_lens, c->num_seqs, &c->num_rows);
}

static void read_json(struct loader *l, struct vector_case *c)
{
	char path[PATH_MAX];
	json_error_t bad;
	json_t *root;

	if ((size_t)snprintf(path, sizeof(path), "%s/case.json", l->dir) >= sizeof(path)) {
		fault(l, -ENAMETOOLONG, "case.json");
		return;
	}
	root = json_load_file(path, 0, &bad);
	if (root)
		read_parameters(l, c, root);
	else
		fault(l, -EINVAL, bad.text);
	json_decref(root);
}

/* A file of exactly `bytes` bytes; NULL if it is not there and may be absent. */
static void *read_file(struct loader *l, const char *name, size_t bytes, int optional)
{
	char path[PATH_MAX];
	void *data = NULL;
	FILE *file;

	if (l->status)
		return NULL;
	if ((size_t)snprintf(path, sizeof(path), "%s/%s", l->dir, name) >= sizeof(path)) {
		fault(l, -ENAMETOOLONG, name);
		return NULL;
	}
	file = fopen(path, "re");
	if (!file) {
		if (!optional)
			fault(l, -errno, name);
		return NULL;
	}
	data = malloc(bytes + 1);
	if (!data || fread(data, 1, bytes + 1, file) != bytes)
		fault(l, data ? -EBADMSG : -ENOMEM, name);
	fclose(file);
	return data;
}

static size_t mask_bytes(const struct vector_case *c)
{
	size_t bytes = 0;

	for (uint32_t i = 0; i < c->num_seqs; i++)
		bytes += (size_t)c->new_lens[i] * c->seq_lens[i];
	return bytes;
}

static void read_arrays(struct loader *l, struct vector_case *c)
{
	size_t heads = sizeof(float) * c->num_heads, kv_heads = sizeof(float) * c->num_kv_heads;

	c->q = read_file(l, "q.f32", c->num_rows * heads * c->head_dim, 0);
	c->k = read_file(l, "k.f32", c->num_keys * kv_heads * c->head_dim, 0);
	c->v = read_file(l, "v.f32", c->num_keys * kv_heads * c->head_dim_v, 0);
	c->out = read_file(l, "out.f32", c->num_rows * heads * c->head_dim_v, 0);
	c->bound = read_file(l, "bound.f32", c->num_rows * heads * c->head_dim_v, 0);
	c->lse = read_file(l, "lse.f32", c->num_rows * heads, 0);
	c->sinks = read_file(l, "sinks.f32", heads, 1);
	c->alibi = read_file(l, "alibi.f32", heads, 1);
	c->mask = read_file(l, "mask.u8", mask_bytes(c), 1);
}

int case_load(struct vector_case **ret, const char *dir, char *why, size_t why_bytes)
{
	struct loader l = {.dir = dir, .why = why, .why_bytes = why_bytes};
	struct vector_case *c = calloc(1, sizeof(*c));

	if (!c)
		return -ENOMEM;
	read_json(&l, c);
	for (uint32_t i = 0; !l.status && i < c->num_seqs; i++)
		if (c->new_lens[i] > c->seq_lens[i])
			fault(&l, -EINVAL, "extend_seq_lens");
	read_arrays(&l, c);
	if (l.status) {
		case_free(c);
		return l.status;
	}
	*ret = c;
	return 0;
}

void case_free(struct vector_case *c)
{
	if (!c)
		return;
	free(c->seq_lens);
	free(c->new_lens);
	free(c->q);
	free(c->k);
	free(c->v);
	free(c->out);
	free(c->bound);
	free(c->lse);
	free(c->sinks);
	free(c->alibi);
	free(c->mask);
	free(c);
}
