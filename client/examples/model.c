/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Loading a model: see model.h.
 *
 * In:   config.json and model.safetensors, in Hugging Face's names.
 * Out:  float weights and the fingerprint.
 * Next: forward.c.
 */
#include "model.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>

#include "safetensors.h"

static int load_layer(struct layer_weights *w, const struct config *c, const struct safetensors *s, uint32_t layer,
		      struct error *error)
{
	uint32_t q_dim = c->num_heads * c->head_dim, kv_dim = c->num_kv_heads * c->head_dim;
	const struct {
		const char *name;
		uint32_t rows, columns;
		float **to;
	} parts[] = {
		{"input_layernorm", 0, c->hidden_size, &w->input_norm},
		{"post_attention_layernorm", 0, c->hidden_size, &w->post_attention_norm},
		{"self_attn.q_proj", q_dim, c->hidden_size, &w->q},
		{"self_attn.k_proj", kv_dim, c->hidden_size, &w->k},
		{"self_attn.v_proj", kv_dim, c->hidden_size, &w->v},
		{"self_attn.o_proj", c->hidden_size, q_dim, &w->o},
		{"mlp.gate_proj", c->intermediate_size, c->hidden_size, &w->gate},
		{"mlp.up_proj", c->intermediate_size, c->hidden_size, &w->up},
		{"mlp.down_proj", c->hidden_size, c->intermediate_size, &w->down},
	};
	char name[96];

	for (size_t i = 0; i < sizeof(parts) / sizeof(parts[0]); i++) {
		snprintf(name, sizeof(name), "model.layers.%u.%s.weight", layer, parts[i].name);
		int rc = safetensors_load(s, name, parts[i].rows, parts[i].columns, parts[i].to, error);
		if (rc)
			return rc;
	}
	return 0;
}

static int load_weights(struct model *m, const struct safetensors *s, struct error *error)
{
	const struct config *c = &m->config;
	int rc;

	m->layers = calloc(c->num_layers, sizeof(*m->layers));
	if (!m->layers)
		return fail_memory(error);
	rc = safetensors_load(s, "model.embed_tokens.weight", VOCAB_SIZE, c->hidden_size, &m->embedding, error);
	if (!rc)
		rc = safetensors_load(s, "model.norm.weight", 0, c->hidden_size, &m->final_norm, error);
	if (!rc && c->tie_word_embeddings)
		m->lm_head = m->embedding;
	else if (!rc)
		rc = safetensors_load(s, "lm_head.weight", VOCAB_SIZE, c->hidden_size, &m->lm_head, error);
	for (uint32_t i = 0; !rc && i < c->num_layers; i++)
		rc = load_layer(&m->layers[i], c, s, i, error);
	return rc;
}

/* Two models with equal weights but another rotation or norm compute other keys. */
static int make_fingerprint(struct model *m, const struct safetensors *s, struct error *error)
{
	const struct config *c = &m->config;
	char settings[160];

	snprintf(settings, sizeof(settings), "llama heads=%u/%u head_dim=%u eps=%a theta=%a", c->num_heads,
		 c->num_kv_heads, c->head_dim, (double)c->rms_norm_eps, (double)c->rope_theta);
	return safetensors_fingerprint(s, settings, m->fingerprint, error);
}

int model_load(struct model **ret, const char *dir, struct error *error)
{
	struct safetensors *s = NULL;
	struct model *m = calloc(1, sizeof(*m));
	char path[PATH_MAX];
	int rc;

	if (!m)
		return fail_memory(error);
	rc = config_load(&m->config, dir, error);
	if (!rc && (size_t)snprintf(path, sizeof(path), "%s/model.safetensors", dir) >= sizeof(path))
		rc = fail(error, -ENAMETOOLONG, "%s: too long a path", dir);
	if (!rc)
		rc = safetensors_open(&s, path, error);
	if (!rc)
		rc = load_weights(m, s, error);
	if (!rc)
		rc = make_fingerprint(m, s, error);
	safetensors_close(s);
	if (rc) {
		model_free(m);
		return rc;
	}
	*ret = m;
	return 0;
}

static void free_layer(struct layer_weights *w)
{
	free(w->input_norm);
	free(w->post_attention_norm);
	free(w->q);
	free(w->k);
	free(w->v);
	free(w->o);
	free(w->gate);
	free(w->up);
	free(w->down);
}

void model_free(struct model *m)
{
	if (!m)
		return;
	for (uint32_t i = 0; m->layers && i < m->config.num_layers; i++)
		free_layer(&m->layers[i]);
	free(m->layers);
	if (m->lm_head != m->embedding)
		free(m->lm_head);
	free(m->embedding);
	free(m->final_norm);
	free(m);
}
