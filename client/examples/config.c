/* SPDX-License-Identifier: Apache-2.0 */
/*
 * config.json: see config.h.
 *
 * A setting that would change the arithmetic and that model.c does not know is refused: wrong
 * text without a word would be worse.
 */
#include "config.h"

#include <errno.h>
#include <jansson.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>

struct reader {
	const char *path;
	const json_t *root;
	struct error *error;
	int status; /* of the first failure */
};

static uint32_t get_number(struct reader *r, const char *key, uint32_t fallback, uint32_t low, uint32_t high)
{
	const json_t *value = json_object_get(r->root, key);
	json_int_t n = value ? json_integer_value(value) : fallback;

	if (!r->status && ((value && !json_is_integer(value)) || n < low || n > high))
		r->status = fail(r->error, -EINVAL, "%s: %s must be a number from %u to %u", r->path, key, low, high);
	return (uint32_t)n;
}

static float get_float(struct reader *r, const char *key, float fallback)
{
	const json_t *value = json_object_get(r->root, key);
	float x = value ? (float)json_number_value(value) : fallback;

	if (!r->status && !(x > 0 && x <= 1e12f))
		r->status = fail(r->error, -EINVAL, "%s: %s must be a number > 0", r->path, key);
	return x;
}

/* `key` is absent, null, false, or the string `only`. */
static void expect(struct reader *r, const char *key, const char *only)
{
	const json_t *value = json_object_get(r->root, key);
	const char *string = json_string_value(value);

	if (r->status || !value || json_is_null(value) || json_is_false(value) ||
	    (only && string && !strcmp(string, only)))
		return;
	r->status = fail(r->error, -EOPNOTSUPP, "%s: this %s is not supported%s%s", r->path, key,
			 only ? "; only " : "", only ? only : "");
}

static void read_fields(struct reader *r, struct config *c)
{
	expect(r, "model_type", "llama");
	expect(r, "hidden_act", "silu");
	expect(r, "rope_scaling", NULL);
	expect(r, "attention_bias", NULL);
	expect(r, "mlp_bias", NULL);
	get_number(r, "vocab_size", 0, VOCAB_SIZE, VOCAB_SIZE);
	c->hidden_size = get_number(r, "hidden_size", 0, 1, 65536);
	c->intermediate_size = get_number(r, "intermediate_size", 0, 1, 262144);
	c->num_layers = get_number(r, "num_hidden_layers", 0, 1, 1024);
	c->num_heads = get_number(r, "num_attention_heads", 0, 1, 1024);
	c->num_kv_heads = get_number(r, "num_key_value_heads", c->num_heads, 1, 1024);
	c->head_dim = get_number(r, "head_dim", c->num_heads ? c->hidden_size / c->num_heads : 0, 2, 576);
	c->max_position_embeddings = get_number(r, "max_position_embeddings", 0, 1, 1 << 24);
	c->rms_norm_eps = get_float(r, "rms_norm_eps", 1e-6f);
	c->rope_theta = get_float(r, "rope_theta", 10000.0f);
	c->tie_word_embeddings = json_is_true(json_object_get(r->root, "tie_word_embeddings"));
	c->eos_token = -1;
	if (json_is_integer(json_object_get(r->root, "eos_token_id")))
		c->eos_token = (int32_t)get_number(r, "eos_token_id", 0, 0, VOCAB_SIZE - 1);
	if (!r->status && c->num_heads % c->num_kv_heads)
		r->status = fail(r->error, -EINVAL,
				 "%s: num_attention_heads is not a multiple of num_key_value_heads", r->path);
	if (!r->status && c->head_dim % 2)
		r->status = fail(r->error, -EINVAL, "%s: head_dim must be even", r->path);
}

int config_load(struct config *ret, const char *dir, struct error *error)
{
	char path[PATH_MAX];
	struct reader r = {.path = path, .error = error};
	struct config c;
	json_error_t bad;
	json_t *root;

	if ((size_t)snprintf(path, sizeof(path), "%s/config.json", dir) >= sizeof(path))
		return fail(error, -ENAMETOOLONG, "%s: too long a path", dir);
	root = json_load_file(path, 0, &bad);
	if (!root && bad.line > 0)
		return fail(error, -EINVAL, "%s:%d: %s", path, bad.line, bad.text);
	if (!root)
		return fail(error, -ENOENT, "no model in %s: %s", dir, bad.text);
	r.root = root;
	read_fields(&r, &c);
	json_decref(root);
	if (r.status)
		return r.status;
	*ret = c;
	return 0;
}
