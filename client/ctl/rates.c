/* SPDX-License-Identifier: Apache-2.0 */
/* Rates between two looks (rates.h). */
#include "rates.h"

#include <stdint.h>
#include <string.h>

static double number(const json_t *object, const char *name)
{
	return json_number_value(json_object_get(object, name));
}

static double growth(const json_t *old, const json_t *now, const char *name)
{
	return number(now, name) - number(old, name);
}

static double share(double part, double all)
{
	return all > 0 ? part / all : 0;
}

/* ---- Percentiles ---- */

/* How many values an older histogram has in the bucket that ends at this bound. */
static double count_at(const json_t *old, const json_t *bound)
{
	const json_t *buckets = json_object_get(old, "buckets"), *b;
	size_t i;

	json_array_foreach(buckets, i, b) if (json_equal(json_array_get(b, 0), bound)) return json_number_value(
		json_array_get(b, 1));
	return 0;
}

/* The value below which `part` of those lie that came in between; within a bucket as if they were spread evenly. */
static double percentile(const json_t *old, const json_t *now, double part)
{
	double left = part * growth(old, now, "count"), low = 0;
	const json_t *b;
	size_t i;

	json_array_foreach(json_object_get(now, "buckets"), i, b)
	{
		const json_t *bound = json_array_get(b, 0);
		double n = json_number_value(json_array_get(b, 1)) - count_at(old, bound);
		double high = json_is_null(bound) ? low : json_number_value(bound);

		/* Bounds are at most twice as far as the one before: empty buckets are not listed. */
		low = low > high / 2 ? low : high / 2;
		if (n > 0 && left <= n)
			return low + (high - low) * left / n;
		left -= n;
		low = high;
	}
	return low;
}

static json_t *histogram_rates(const json_t *old, const json_t *now, double seconds)
{
	double n = growth(old, now, "count");

	return json_pack("{s:f, s:f, s:f, s:f, s:f, s:f}", "per_s", n / seconds, "errors_per_s",
			 growth(old, now, "errors") / seconds, "mean_s", share(growth(old, now, "sum_s"), n), "p50_s",
			 n > 0 ? percentile(old, now, 0.5) : 0.0, "p90_s", n > 0 ? percentile(old, now, 0.9) : 0.0,
			 "p99_s", n > 0 ? percentile(old, now, 0.99) : 0.0);
}

/* ---- Lists ---- */

/* Each number of an object, as growth a second. */
static json_t *each_rate(const json_t *old, const json_t *now, double seconds)
{
	json_t *all = json_object(), *value;
	const char *name;

	json_object_foreach((json_t *)(uintptr_t)now, name, value)
		json_object_set_new(all, name, json_real(growth(old, now, name) / seconds));
	return all;
}

static json_t *requests(const json_t *old, const json_t *now, double seconds)
{
	json_t *all = json_object(), *value;
	const char *op;

	json_object_foreach((json_t *)(uintptr_t)now, op, value)
		json_object_set_new(all, op, histogram_rates(json_object_get(old, op), value, seconds));
	return all;
}

static const json_t *same_session(const json_t *sessions, const json_t *id)
{
	const json_t *s;
	size_t i;

	json_array_foreach(sessions, i, s) if (json_equal(json_object_get(s, "id"), id)) return s;
	return NULL;
}

static json_t *sessions(const json_t *old, const json_t *now, double seconds)
{
	json_t *all = json_array();
	const json_t *s;
	size_t i;

	json_array_foreach(now, i, s)
	{
		const json_t *before = same_session(old, json_object_get(s, "id"));

		json_array_append_new(all,
				      json_pack("{s:O, s:O, s:f, s:f, s:f, s:f, s:f, s:O}", "id",
						json_object_get(s, "id"), "name", json_object_get(s, "name"),
						"requests_per_s", growth(before, s, "requests") / seconds,
						"errors_per_s", growth(before, s, "errors") / seconds, "tokens_per_s",
						growth(before, s, "tokens") / seconds, "taken_tokens_per_s",
						growth(before, s, "taken_tokens") / seconds, "read_bytes_per_s",
						growth(before, s, "read_bytes") / seconds, "unanswered",
						json_object_get(s, "unanswered")));
	}
	return all;
}

/* ---- All ---- */

json_t *rates_between(const json_t *old, const json_t *now, double stream)
{
	const json_t *was, *is = json_object_get(now, "requests");
	double seconds, read;
	json_t *all;

	if (old && number(old, "uptime_s") > number(now, "uptime_s"))
		old = NULL;
	was = json_object_get(old, "requests");
	seconds = old ? growth(old, now, "time_s") : number(now, "uptime_s");
	seconds = seconds > 1e-6 ? seconds : 1e-6;
	read = growth(old, now, "read_bytes") / seconds;
	all = json_pack("{s:f, s:f, s:O, s:O, s:O, s:O, s:O, s:O, s:O}", "seconds", seconds, "uptime_s",
			number(now, "uptime_s"), "num_sessions", json_object_get(now, "num_sessions"), "sequences",
			json_object_get(now, "sequences"), "threads", json_object_get(now, "threads"), "queued",
			json_object_get(now, "queued"), "running", json_object_get(now, "running"), "pool",
			json_object_get(now, "pool"), "errors", json_object_get(now, "errors"));
	if (!all)
		return NULL;
	json_object_set_new(all, "requests", requests(was, is, seconds));
	json_object_set_new(
		all, "jobs_per_s",
		json_real((growth(json_object_get(was, "decode"), json_object_get(is, "decode"), "count") +
			   growth(json_object_get(was, "extend"), json_object_get(is, "extend"), "count")) /
			  seconds));
	json_object_set_new(all, "decode_tokens_per_s", json_real(growth(old, now, "decode_tokens") / seconds));
	json_object_set_new(all, "extend_tokens_per_s", json_real(growth(old, now, "extend_tokens") / seconds));
	json_object_set_new(all, "taken_tokens_per_s", json_real(growth(old, now, "taken_tokens") / seconds));
	json_object_set_new(all, "read_bytes_per_s", json_real(read));
	json_object_set_new(all, "stream_bytes_per_s", json_real(stream * 1e9));
	json_object_set_new(all, "of_stream", json_real(share(read, stream * 1e9)));
	json_object_set_new(all, "hit_rate",
			    json_real(share(growth(old, now, "hit_tokens"), growth(old, now, "query_tokens"))));
	json_object_set_new(all, "hit_rate_since_start",
			    json_real(share(number(now, "hit_tokens"), number(now, "query_tokens"))));
	json_object_set_new(all, "evictions_per_s",
			    each_rate(json_object_get(old, "evictions"), json_object_get(now, "evictions"), seconds));
	json_object_set_new(all, "block_lifetime",
			    histogram_rates(json_object_get(old, "block_lifetime"),
					    json_object_get(now, "block_lifetime"), seconds));
	json_object_set_new(all, "block_reuse_gap",
			    histogram_rates(json_object_get(old, "block_reuse_gap"),
					    json_object_get(now, "block_reuse_gap"), seconds));
	json_object_set_new(all, "sessions",
			    sessions(json_object_get(old, "sessions"), json_object_get(now, "sessions"), seconds));
	return all;
}
