/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A live plan in words, for administrators.
 *
 * In: the leader's plans and how their work was cut. Out: text. Next: report.c.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lead.h"

enum { MOST_RUNS = 32 };

static uint32_t layers_written(const struct plan *p)
{
	uint32_t n = 0;

	for (size_t i = 0; i < sizeof(p->written) / sizeof(*p->written); i++)
		n += (uint32_t)__builtin_popcountll(p->written[i]);
	return n;
}

/* Plan rows that a node's tokens belong to, smallest and largest, and how many. */
static uint32_t node_rows(const struct work_list *w, const struct work_node *n, uint32_t *least, uint32_t *most)
{
	uint32_t rows = 0, last = UINT32_MAX;

	*least = UINT32_MAX;
	*most = 0;
	for (uint32_t t = n->token0; t < n->token1; t++) {
		uint32_t row = w->order[t].row;

		rows += row != last;
		last = row;
		*least = row < *least ? row : *least;
		*most = row > *most ? row : *most;
	}
	return rows;
}

static void explain_nodes(FILE *f, const struct work_list *w)
{
	uint32_t shown = 0, runs = 0;

	for (uint32_t i = 0; i < w->num_nodes; i++) {
		const struct work_node *n = &w->nodes[i];
		uint32_t least, most, rows;

		if (n->begin >= n->end)
			continue;
		runs++;
		if (shown == MOST_RUNS)
			continue;
		shown++;
		rows = node_rows(w, n, &least, &most);
		if (rows == 1)
			fprintf(f, "  keys %u to %u: row %u (%u tokens)\n", n->begin, n->end - 1, least,
				n->token1 - n->token0);
		else
			fprintf(f, "  keys %u to %u: read once for %u rows (%u tokens, rows %u to %u)\n", n->begin,
				n->end - 1, rows, n->token1 - n->token0, least, most);
	}
	if (runs > shown)
		fprintf(f, "  and %u runs of keys more\n", runs - shown);
}

static void explain_list(FILE *f, const struct attend_list *l, uint32_t threads)
{
	char window[32] = "none";

	if (l->window)
		snprintf(window, sizeof(window), "%u keys", l->window);
	fprintf(f,
		"  layers with window %s, %s: %u tiles of query rows, %u items for %u threads, %u merges; about %.0f "
		"us on "
		"one thread, %llu KiB of partial results\n",
		window, l->causal ? "causal" : "not causal", l->num_tiles, l->num_items, threads, l->num_merges,
		l->cost_ns / 1000, (unsigned long long)(l->partial_bytes / 1024));
}

static void explain_plan(FILE *f, const struct leader *l, const struct lead_session *ls, const struct plan *p)
{
	uint32_t refused = 0;
	uint64_t cached = 0;

	for (uint32_t i = 0; i < p->num_rows; i++) {
		refused += !p->rows[i].seq;
		cached += p->rows[i].cached;
	}
	fprintf(f,
		"session %u (%.*s), plan %u of cache %.*s: %u rows (%u refused), %u tokens (%llu found cached); %s, "
		"%u of %u "
		"layers written\n",
		ls->session->id, (int)sizeof(ls->session->name), ls->session->name, p->tag, ATTND_MAX_NAME,
		p->cache->identity.name, p->num_rows, refused, p->num_tokens, (unsigned long long)cached,
		p->committed ? "its tokens are in" : "live", layers_written(p), p->cache->identity.num_layers);
	if (!p->work) {
		fputs("  no job yet, so its work is not cut\n", f);
		return;
	}
	explain_nodes(f, p->work);
	for (const struct attend_list *a = p->work->lists; a; a = a->next)
		explain_list(f, a, l->team.num_members);
}

char *explain_plans(const struct leader *l)
{
	char *text = NULL;
	size_t size;
	FILE *f = open_memstream(&text, &size);

	if (!f)
		return NULL;
	for (const struct lead_session *ls = l->sessions; ls; ls = ls->next)
		for (const struct plan *p = ls->plans; p; p = p->next)
			explain_plan(f, l, ls, p);
	if (!ftell(f))
		fputs("no live plans\n", f);
	fclose(f);
	return text;
}
