/* SPDX-License-Identifier: Apache-2.0 */
/*
 * attnctl stat and top: rates and percentiles, once or live.
 *
 * In:   the daemon's counters, every interval. Out: lines of at most 80 columns, on a terminal
 *       (ncurses) or as text; or JSON.
 * Next: nothing.
 */
#include <curses.h>
#include <errno.h>
#include <locale.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "ctl.h"
#include "rates.h"

enum { LINES_MAX = 512, COLUMNS_MAX = 80, LIVE_WAIT_S = 2 };

/* ---- Lines ---- */

struct page {
	char line[LINES_MAX][COLUMNS_MAX + 1];
	int n;
};

__attribute__((format(printf, 2, 3))) static void add_line(struct page *p, const char *format, ...)
{
	va_list args;

	if (p->n == LINES_MAX)
		return;
	va_start(args, format);
	vsnprintf(p->line[p->n++], sizeof(p->line[0]), format, args);
	va_end(args);
}

static double number(const json_t *object, const char *name)
{
	return json_number_value(json_object_get(object, name));
}

/* Three or four digits and a unit: 12, 3.4k, 1.25M. */
static const char *amount(double n, char buf[16])
{
	static const char units[] = " kMGTP";
	int i = 0;

	for (; n >= 9999.5 && i < 5; i++)
		n /= 1000;
	if (i)
		snprintf(buf, 16, n < 99.95 ? "%.1f%c" : "%.0f%c", n, units[i]);
	else
		snprintf(buf, 16, n < 9.95 && n != (int)n ? "%.1f" : "%.0f", n);
	return buf;
}

static const char *duration(double s, char buf[16])
{
	if (s <= 0)
		snprintf(buf, 16, "-");
	else if (s < 1e-3)
		snprintf(buf, 16, "%.3g us", s * 1e6);
	else if (s < 1)
		snprintf(buf, 16, "%.3g ms", s * 1e3);
	else if (s < 3600)
		snprintf(buf, 16, "%.3g s", s);
	else
		snprintf(buf, 16, "%.3g h", s / 3600);
	return buf;
}

static void add_work(struct page *p, const json_t *r)
{
	const json_t *q = json_object_get(r, "requests");
	char a[16], b[16], c[16], d[16], roof[48] = "";

	add_line(p, "jobs/s    %8s   decode %s  extend %s", amount(number(r, "jobs_per_s"), a),
		 amount(number(json_object_get(q, "decode"), "per_s"), b),
		 amount(number(json_object_get(q, "extend"), "per_s"), c));
	add_line(p, "tokens/s  %8s   decode %s  extend %s  taken over by plans %s",
		 amount(number(r, "decode_tokens_per_s") + number(r, "extend_tokens_per_s") +
				number(r, "taken_tokens_per_s"),
			a),
		 amount(number(r, "decode_tokens_per_s"), b), amount(number(r, "extend_tokens_per_s"), c),
		 amount(number(r, "taken_tokens_per_s"), d));
	if (number(r, "stream_bytes_per_s") > 0)
		snprintf(roof, sizeof(roof), "%.0f%% of stream (%.3g GB/s)", 100 * number(r, "of_stream"),
			 number(r, "stream_bytes_per_s") / 1e9);
	add_line(p, "GB/s      %8.2f   %s", number(r, "read_bytes_per_s") / 1e9, roof);
	add_line(p, "hit rate  %7.1f%%   since the start %.1f%%", 100 * number(r, "hit_rate"),
		 100 * number(r, "hit_rate_since_start"));
}

static void add_latencies(struct page *p, const json_t *r)
{
	const json_t *value;
	const char *op;

	add_line(p, "%-10s %9s %9s %9s %9s %9s %9s", "request", "per s", "errors/s", "mean", "p50", "p90", "p99");
	json_object_foreach(json_object_get(r, "requests"), op, value)
	{
		char n[16], e[16], m[16], p50[16], p90[16], p99[16];

		if (number(value, "per_s") > 0 || !strcmp(op, "decode") || !strcmp(op, "extend"))
			add_line(p, "%-10s %9s %9s %9s %9s %9s %9s", op, amount(number(value, "per_s"), n),
				 amount(number(value, "errors_per_s"), e), duration(number(value, "mean_s"), m),
				 duration(number(value, "p50_s"), p50), duration(number(value, "p90_s"), p90),
				 duration(number(value, "p99_s"), p99));
	}
}

static void add_bar(struct page *p, double held, double cached)
{
	enum { WIDTH = 40 };
	char bar[WIDTH + 1];

	for (int i = 0; i < WIDTH; i++)
		bar[i] = i + 0.5 < held * (double)WIDTH ? '#' : i + 0.5 < (held + cached) * (double)WIDTH ? '=' : '.';
	bar[WIDTH] = 0;
	add_line(p, "pool [%s] %3.0f%% held %3.0f%% cached", bar, 100 * held, 100 * cached);
}

static void add_pool(struct page *p, const json_t *r)
{
	const json_t *pool = json_object_get(r, "pool"), *node;
	double bytes = number(pool, "bytes");
	size_t i;

	add_bar(p, bytes > 0 ? number(pool, "bytes_referenced") / bytes : 0,
		bytes > 0 ? number(pool, "bytes_cached") / bytes : 0);
	json_array_foreach(json_object_get(pool, "nodes"), i, node)
	{
		char all[32], page[32];

		ctl_format_bytes(number(node, "bytes"), all, sizeof(all));
		ctl_format_bytes(number(node, "page_bytes"), page, sizeof(page));
		add_line(p, "  node %-3.0f %10s in pages of %s", number(node, "node"), all, page);
	}
}

static void add_losses(struct page *p, const json_t *r)
{
	char text[COLUMNS_MAX + 1] = "", n[16];
	const json_t *value;
	const char *name;
	double sum = 0;
	size_t at = 0;

	json_object_foreach(json_object_get(r, "evictions_per_s"), name, value)
	{
		sum += json_number_value(value);
		if (json_number_value(value) > 0 && at < sizeof(text))
			at += (size_t)snprintf(text + at, sizeof(text) - at, "  %s %s", name,
					       amount(json_number_value(value), n));
	}
	add_line(p, "evicted/s %8s %s", amount(sum, n), text);
	text[0] = 0;
	at = 0;
	json_object_foreach(json_object_get(r, "errors"), name, value) if (at < sizeof(text)) at +=
		(size_t)snprintf(text + at, sizeof(text) - at, "  %s %s", name, amount(json_number_value(value), n));
	add_line(p, "errors since the start%s", *text ? text : "  none");
}

static void add_sessions(struct page *p, const json_t *r)
{
	const json_t *s;
	size_t i;

	if (!json_array_size(json_object_get(r, "sessions")))
		return;
	add_line(p, "%-8s %-20s %9s %9s %9s %7s %7s", "session", "name", "reqs/s", "tokens/s", "taken/s", "GB/s",
		 "queued");
	json_array_foreach(json_object_get(r, "sessions"), i, s)
	{
		const json_t *id = json_object_get(s, "id");
		char number_[24], a[16], b[16], c[16];

		snprintf(number_, sizeof(number_), "%.0f", json_number_value(id));
		add_line(p, "%-8s %-20.20s %9s %9s %9s %7.2f %7.0f",
			 json_is_string(id) ? json_string_value(id) : number_,
			 json_string_value(json_object_get(s, "name")), amount(number(s, "requests_per_s"), a),
			 amount(number(s, "tokens_per_s"), b), amount(number(s, "taken_tokens_per_s"), c),
			 number(s, "read_bytes_per_s") / 1e9, number(s, "unanswered"));
	}
}

static void fill_page(struct page *p, const json_t *r)
{
	char up[32];

	p->n = 0;
	ctl_format_seconds(number(r, "uptime_s"), up, sizeof(up));
	add_line(p, "attnd up %s  sessions %.0f  sequences %.0f  threads %.0f  queued %.0f  running %.0f", up,
		 number(r, "num_sessions"), number(r, "sequences"), number(r, "threads"), number(r, "queued"),
		 number(r, "running"));
	add_work(p, r);
	add_line(p, "%s", "");
	add_latencies(p, r);
	add_line(p, "%s", "");
	add_pool(p, r);
	add_losses(p, r);
	add_line(p, "%s", "");
	add_sessions(p, r);
}

/* ---- Asking ---- */

/* The object "stat", or NULL with the exit code; the reason is printed. */
static json_t *look(const struct ctl *c, int *ret_exit)
{
	json_t *request = json_pack("{s:s}", "command", "stat"), *reply = ctl_ask(c, request, ret_exit);
	json_t *stat = json_incref(json_object_get(reply, "stat"));
	const char *error = json_string_value(json_object_get(reply, "error"));

	if (reply && !stat) {
		fprintf(stderr, "attnctl: %s\n", error ? error : "the daemon tells no statistics");
		*ret_exit = CTL_ERROR;
	}
	json_decref(request);
	json_decref(reply);
	return stat;
}

static int print(const struct ctl *c, const json_t *rates)
{
	static struct page p;

	if (c->json) {
		json_dumpf(rates, stdout, c->once ? JSON_INDENT(2) : JSON_COMPACT);
		putchar('\n');
	} else {
		fill_page(&p, rates);
		for (int i = 0; i < p.n; i++)
			puts(p.line[i]);
	}
	return fflush(stdout) ? CTL_ERROR : EXIT_SUCCESS;
}

static double roof(const struct ctl *c)
{
	return c->stream < 0 ? ctl_measure_stream() : c->stream;
}

int ctl_stat(const struct ctl *c)
{
	int r = EXIT_SUCCESS;
	json_t *now = look(c, &r), *rates;

	if (!now)
		return r;
	rates = c->json ? json_incref(now) : rates_between(NULL, now, roof(c));
	if (c->json) {
		json_dumpf(rates, stdout, JSON_INDENT(2));
		putchar('\n');
	} else {
		r = print(c, rates);
	}
	json_decref(rates);
	json_decref(now);
	return r;
}

static void pause_for(double seconds)
{
	struct timespec t = {.tv_sec = (time_t)seconds, .tv_nsec = (long)((seconds - (double)(time_t)seconds) * 1e9)};

	while (nanosleep(&t, &t) && errno == EINTR)
		;
}

/* Without a terminal: an interval's lines, or JSON one a line. */
static int plain(const struct ctl *c, json_t *old, double stream)
{
	int r = EXIT_SUCCESS;

	do {
		json_t *now, *rates;

		pause_for(c->interval);
		now = look(c, &r);
		if (!now)
			break;
		rates = rates_between(old, now, stream);
		r = print(c, rates);
		json_decref(rates);
		json_decref(old);
		old = now;
	} while (!c->once && r == EXIT_SUCCESS);
	json_decref(old);
	return r;
}

/* As q does, at once: the daemon may be a while in answering. (ncurses' own handlers do the same.) */
static void on_interrupt(int number_)
{
	(void)number_;
	endwin();
	_exit(EXIT_SUCCESS);
}

/* `lost`: where no daemon answers, or NULL. What it told last stays in view. */
static void draw(const json_t *rates, const char *lost)
{
	static struct page p;

	fill_page(&p, rates);
	if (lost)
		snprintf(p.line[0], sizeof(p.line[0]), "no answer at %.40s: trying again; q ends", lost);
	erase();
	for (int i = 0; i < p.n && i < LINES; i++) {
		/* The line above a table is its heading. */
		bool heading = i == 0 || !strncmp(p.line[i], "request ", 8) || !strncmp(p.line[i], "session ", 8);

		mvhline(i, 0, heading ? ' ' | A_REVERSE : ' ', COLS);
		if (heading)
			attron(A_REVERSE);
		mvaddnstr(i, 0, p.line[i], COLS);
		if (heading)
			attroff(A_REVERSE);
	}
	refresh();
}

static int live(const struct ctl *c, json_t *old, double stream)
{
	json_t *rates = rates_between(NULL, old, stream), *request = json_pack("{s:s}", "command", "stat");
	struct ctl quick = *c;
	char path[200];

	quick.wait_s = LIVE_WAIT_S;
	setlocale(LC_ALL, "");
	initscr();
	signal(SIGINT, on_interrupt);
	cbreak();
	noecho();
	curs_set(0);
	timeout((int)(c->interval * 1000));
	draw(rates, NULL);
	for (int key = getch(); key != 'q'; key = getch()) {
		json_t *reply, *now;
		int error = 0;

		if (key == KEY_RESIZE) {
			draw(rates, NULL);
			continue;
		}
		reply = ctl_ask_quietly(&quick, request, &error, path, sizeof(path));
		now = json_incref(json_object_get(reply, "stat"));
		json_decref(reply);
		if (!now) { /* it is being started again, perhaps */
			draw(rates, path);
			continue;
		}
		json_decref(rates);
		rates = rates_between(old, now, stream);
		json_decref(old);
		old = now;
		draw(rates, NULL);
	}
	endwin();
	json_decref(request);
	json_decref(rates);
	json_decref(old);
	return EXIT_SUCCESS;
}

int ctl_top(const struct ctl *c)
{
	int r = EXIT_SUCCESS;
	json_t *first = look(c, &r);
	double stream;

	if (!first)
		return r;
	stream = roof(c);
	if (c->once || c->json || !isatty(STDOUT_FILENO) || !getenv("TERM"))
		return plain(c, first, stream);
	return live(c, first, stream);
}
