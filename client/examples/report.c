/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the user sees: see report.h.
 */
#include "report.h"

#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static uint32_t generated(const struct request *r)
{
	return r->num_tokens - r->prompt_tokens;
}

static double ttft_ms(const struct request *r)
{
	return generated(r) ? (double)(r->first_ns - r->open_ns) / 1e6 : 0;
}

static double tokens_per_s(const struct request *r)
{
	return r->decode_ns ? r->decoded * 1e9 / (double)r->decode_ns : 0;
}

/* A model may write any byte; a terminal should not obey it. */
static void put_byte(uint64_t token)
{
	putchar((token < 0x20 && token != '\n' && token != '\t') || token == 0x7f ? '.' : (int)token);
}

void report_token(const struct request *r, void *context)
{
	(void)context;
	put_byte(r->tokens[r->num_tokens - 1]);
	fflush(stdout);
}

void report_prompt(const struct request *r, void *context)
{
	(void)context;
	if (isatty(STDERR_FILENO))
		fprintf(stderr, "\rprompt: %u of %u tokens\033[K\r", r->held, r->prompt_tokens);
}

void report_text(const struct request *r, uint32_t number)
{
	printf("--- prompt %u\n", number);
	for (uint32_t i = r->prompt_tokens; i < r->num_tokens; i++)
		put_byte(r->tokens[i]);
	putchar('\n');
}

void report_table(const struct request *requests, uint32_t num_requests)
{
	if (num_requests == 1) /* its text was streamed, without an end of line */
		putchar('\n');
	printf("\n%6s  %13s  %13s  %9s  %19s  %8s\n", "prompt", "prompt tokens", "reused tokens", "generated",
	       "time to first token", "tokens/s");
	for (uint32_t i = 0; i < num_requests; i++) {
		const struct request *r = &requests[i];
		printf("%6u  %13u  %13u  %9u  %16.1f ms  %8.1f\n", i + 1, r->prompt_tokens, r->reused, generated(r),
		       ttft_ms(r), tokens_per_s(r));
	}
}

/* Bytes of the well-formed UTF-8 sequence at s (RFC 3629), 0 if there is none. */
static size_t utf8_length(const uint8_t *s, size_t n)
{
	static const uint32_t smallest[] = {0, 0, 0x80, 0x800, 0x10000};
	size_t length = s[0] < 0x80 ? 1 : s[0] >> 5 == 6 ? 2 : s[0] >> 4 == 14 ? 3 : s[0] >> 3 == 30 ? 4 : 0;

	if (length < 2 || length > n)
		return length == 1;
	uint32_t code = s[0] & (0x7fu >> length);
	for (size_t i = 1; i < length; i++) {
		if (s[i] >> 6 != 2)
			return 0;
		code = code << 6 | (s[i] & 0x3fu);
	}
	return code < smallest[length] || code > 0x10ffff || code >> 11 == 0x1b ? 0 : length;
}

/* The text as a JSON string; what is not UTF-8 becomes U+FFFD. */
static json_t *text_json(const struct request *r)
{
	size_t n = generated(r), length = 0;
	uint8_t *bytes = malloc(n + 1), *text = malloc(3 * n + 1);
	json_t *json = NULL;

	for (size_t i = 0; bytes && i < n; i++)
		bytes[i] = (uint8_t)r->tokens[r->prompt_tokens + i];
	for (size_t i = 0; bytes && text && i < n;) {
		size_t step = utf8_length(bytes + i, n - i), copied = step ? step : 3;
		memcpy(text + length, step ? bytes + i : (const uint8_t *)"\xef\xbf\xbd", copied);
		length += copied;
		i += step ? step : 1;
	}
	if (bytes && text)
		json = json_stringn((const char *)text, length);
	free(bytes);
	free(text);
	return json;
}

int report_json(const struct request *r, struct error *error)
{
	json_t *tokens = json_array(), *margins = json_array(), *object;
	int rc = 0;

	for (uint32_t i = 0; i < generated(r); i++) {
		json_array_append_new(tokens, json_integer((json_int_t)r->tokens[r->prompt_tokens + i]));
		json_array_append_new(margins, json_real((double)r->margins[i]));
	}
	object = json_pack("{s:I, s:I, s:o, s:o, s:o, s:f, s:f}", "prompt_tokens", (json_int_t)r->prompt_tokens,
			   "reused_tokens", (json_int_t)r->reused, "tokens", tokens, "margins", margins, "text",
			   text_json(r), "ttft_ms", ttft_ms(r), "tokens_per_s", tokens_per_s(r));
	if (!object)
		return fail_memory(error);
	if (json_dumpf(object, stdout, JSON_COMPACT | JSON_REAL_PRECISION(7)) || putchar('\n') < 0)
		rc = fail(error, -EIO, "stdout: %s", strerror(errno));
	json_decref(object);
	return rc;
}
