/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the daemon tells of its work: counters, histograms, their text form, HTTP, top and doctor.
 *
 * In: a client's prompts. Out: TAP. Next: daemon/metrics.c, daemon/http.c, client/ctl/.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pty.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "toy.h"

enum { PROMPT = 100, BLOCKS = 7, TEXT_MAX = 1 << 20 };

static struct daemon daemon_;
static char port[16], text[TEXT_MAX];

/* A port that nobody has now. */
static void free_port(void)
{
	struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	socklen_t size = sizeof(at);
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

	assert_int_equal(bind(fd, (struct sockaddr *)&at, size), 0);
	assert_int_equal(getsockname(fd, (struct sockaddr *)&at, &size), 0);
	close(fd);
	snprintf(port, sizeof(port), "%d", ntohs(at.sin_port));
}

static int test_start(void **state)
{
	char listen[32];
	const char *const args[] = {"--pool-size",	"16M", "--hugepages", "off", "--metrics-listen", listen,
				    "--metrics-series", "1",   NULL};

	(void)state;
	free_port();
	snprintf(listen, sizeof(listen), "127.0.0.1:%s", port);
	return daemon_start(&daemon_, args);
}

static int test_end(void **state)
{
	(void)state;
	daemon_clean(&daemon_);
	return 0;
}

static json_t *stat_now(void)
{
	json_t *reply = daemon_json(&daemon_, "stat");

	assert_non_null(reply);
	assert_non_null(json_object_get(reply, "requests"));
	return reply;
}

/* By path. */
static double number(const json_t *j, const char *path)
{
	char copy[128], *rest = copy;

	snprintf(copy, sizeof(copy), "%s", path);
	for (char *key; j && (key = strsep(&rest, "."));)
		j = json_is_array(j) ? json_array_get(j, strtoul(key, NULL, 10)) : json_object_get(j, key);
	assert_true(json_is_number(j));
	return json_number_value(j);
}

static double grown(const json_t *a, const json_t *b, const char *path)
{
	return number(b, path) - number(a, path);
}

static double in_buckets(const json_t *histogram)
{
	double n = 0;
	json_t *b;
	size_t i;

	json_array_foreach(json_object_get(histogram, "buckets"), i, b) n += json_number_value(json_array_get(b, 1));
	return n;
}

/* Output of attnctl into `text`; its exit code. */
static int attnctl(const char *words)
{
	char line[512];
	size_t n;
	FILE *f;

	snprintf(line, sizeof(line), "%s/attnctl --socket %s %s", getenv("BUILD"), daemon_.socket, words);
	f = popen(line, "re");
	assert_non_null(f);
	n = fread(text, 1, sizeof(text) - 1, f);
	text[n] = 0;
	return WEXITSTATUS(pclose(f));
}

static void decode_one(struct toy *t, uint64_t key)
{
	const uint64_t token = 7;
	const struct attnd_row row = {.key = key, .start = PROMPT, .tokens = &token, .num_tokens = 1};
	struct attnd_attend layer = {.plan = 9, .q = t->q, .k = t->k, .v = t->v, .out = t->out};
	attnd_job_t job;

	assert_int_equal(toy_plan(t, 9, &row, 1, NULL), 0);
	for (uint32_t i = 0; i < TOY_LAYERS; i++) {
		layer.layer = i;
		layer.flags = i + 1 == TOY_LAYERS ? ATTND_LAST : 0;
		assert_int_equal(attnd_decode(t->a, &layer, &job), 0);
		assert_int_equal(attnd_wait(t->a, job, NULL), 0);
	}
}

static void test_counts(void **state)
{
	const int64_t row_bytes = TOY_KV_HEADS * TOY_DIM * 2 * 2; /* at least: K and V of 16 bits */
	struct toy t;
	json_t *before = stat_now(), *after;
	attnd_t *a = daemon_connect(&daemon_);
	uint64_t tokens[PROMPT], cached;
	struct attnd_open_info info;

	(void)state;
	toy_tokens(tokens, PROMPT, 1);
	assert_int_equal(toy_open(&t, a, 1), 0);
	assert_int_equal(toy_prefill(&t, 1, tokens, PROMPT, &cached), 0);
	assert_int_equal(attnd_seq_close(a, 1), 0);
	assert_int_equal(toy_prefill(&t, 2, tokens, PROMPT, &cached), 0);
	decode_one(&t, 2);
	assert_int_equal(attnd_seq_open(a, 2, 0, tokens, PROMPT, UINT64_MAX, &info), -EEXIST);
	after = stat_now();
	assert_int_equal((int64_t)grown(before, after, "requests.open.count"), 3);
	assert_int_equal((int64_t)grown(before, after, "requests.open.errors"), 1);
	assert_int_equal((int64_t)grown(before, after, "requests.plan.count"), 3);
	assert_int_equal((int64_t)grown(before, after, "requests.extend.count"), 2 * TOY_LAYERS);
	assert_int_equal((int64_t)grown(before, after, "requests.decode.count"), TOY_LAYERS);
	assert_true(in_buckets(json_object_get(json_object_get(after, "requests"), "extend")) ==
		    number(after, "requests.extend.count"));
	assert_true(number(after, "requests.extend.sum_s") > 0);
	assert_true(number(after, "errors.EEXIST") == 1);
	assert_int_equal((int64_t)grown(before, after, "query_tokens"), 2 * PROMPT);
	assert_int_equal((int64_t)grown(before, after, "hit_tokens"), PROMPT - 1);
	assert_int_equal((int64_t)grown(before, after, "decode_tokens"),
			 1); /* the last prompt token was taken over */
	assert_int_equal((int64_t)grown(before, after, "extend_tokens"), PROMPT);
	assert_true((int64_t)grown(before, after, "read_bytes") >=
		    TOY_LAYERS * row_bytes * (PROMPT + PROMPT + PROMPT + 1));
	assert_int_equal((int64_t)grown(before, after, "block_reuse_gap.count"), BLOCKS);
	assert_true(number(after, "sessions.0.requests") > 0);
	json_decref(before);
	json_decref(after);
	attnd_disconnect(a);
}

static void test_evictions(void **state)
{
	json_t *before, *after;
	struct toy t;
	attnd_t *a = daemon_connect(&daemon_);
	uint64_t tokens[PROMPT], cached;

	(void)state;
	toy_tokens(tokens, PROMPT, 1000);
	assert_int_equal(toy_open(&t, a, 2), 0);
	assert_int_equal(toy_prefill(&t, 1, tokens, PROMPT, &cached), 0);
	assert_int_equal(attnd_seq_close(a, 1), 0);
	before = stat_now();
	json_decref(daemon_json(&daemon_, "flush cache=toy fingerprint=02000000000000000000000000000000"));
	after = stat_now();
	assert_int_equal((int64_t)grown(before, after, "evictions.admin"), BLOCKS);
	assert_int_equal((int64_t)grown(before, after, "evictions.room"), 0);
	assert_int_equal((int64_t)grown(before, after, "block_lifetime.count"), BLOCKS);
	json_decref(before);
	json_decref(after);
	attnd_disconnect(a);
}

/* A cache with two slabs may have one: it evicts for that, and what stays moves into the one that it keeps. */
static void test_share(void **state)
{
	enum { TEXTS = 5, LONG = TOY_MAX_TOKENS, LONG_BLOCKS = LONG / 16, SLAB_BLOCKS = 128 };
	const int64_t over = TEXTS * LONG_BLOCKS - SLAB_BLOCKS;
	json_t *before = stat_now(), *after;
	attnd_t *a = daemon_connect(&daemon_);
	uint64_t tokens[LONG], cached;
	struct toy t;

	(void)state;
	assert_int_equal(toy_open(&t, a, 3), 0);
	for (uint64_t i = 1; i <= TEXTS; i++) {
		toy_tokens(tokens, LONG, i * LONG);
		assert_int_equal(toy_prefill(&t, i, tokens, LONG, &cached), 0);
		assert_int_equal(attnd_seq_close(a, i), 0);
	}
	json_decref(daemon_json(&daemon_, "set cache-shares=toy::13"));
	for (int i = 0;; i++) {
		after = stat_now();
		if (grown(before, after, "pool.slabs_free") == -1 || i == 2000)
			break;
		json_decref(after);
		sleep_ms(5);
	}
	assert_int_equal((int64_t)grown(before, after, "evictions.share"), over);
	assert_int_equal((int64_t)grown(before, after, "pool.blocks_moved"), over);
	json_decref(before);
	before = after;
	/* From now on each new block costs one, though there are free slabs. */
	toy_tokens(tokens, LONG, 100 * LONG);
	assert_int_equal(toy_prefill(&t, 100, tokens, LONG, &cached), 0);
	after = stat_now();
	assert_int_equal((int64_t)grown(before, after, "evictions.share"), LONG_BLOCKS);
	assert_int_equal((int64_t)grown(before, after, "evictions.room"), 0);
	assert_int_equal((int64_t)grown(before, after, "pool.blocks_moved"), 0);
	assert_int_equal(daemon_number(&daemon_, "pool.blocks_moved"), number(after, "pool.blocks_moved"));
	assert_int_equal(attnctl("metrics"), 0);
	assert_int_equal(attnctl("metrics 2>/dev/null >/dev/full"), 1);
	assert_int_equal(attnctl("metrics"), 0);
	assert_non_null(strstr(text, "\nattnd_moved_blocks_total "));
	json_decref(daemon_json(&daemon_, "set cache-shares="));
	json_decref(before);
	json_decref(after);
	attnd_disconnect(a);
}

/* One session, namespace and cache are listed, the others summed. */
static void test_cardinality(void **state)
{
	attnd_t *a[3];
	struct toy t;
	json_t *now;
	int others = 0;

	(void)state;
	for (int i = 0; i < 3; i++) {
		a[i] = daemon_connect(&daemon_);
		assert_int_equal(toy_open(&t, a[i], (uint8_t)(10 + i)), 0);
	}
	now = stat_now();
	assert_int_equal(json_array_size(json_object_get(now, "sessions")), 2);
	assert_true(number(now, "num_sessions") >= 3); /* earlier ones may be ending */
	json_decref(now);
	assert_int_equal(attnctl("metrics"), 0);
	for (const char *p = text; (p = strstr(p, "\nattnd_cache_bytes{")); p++)
		others++;
	assert_int_equal(others, 2);
	for (int i = 0; i < 3; i++)
		attnd_disconnect(a[i]);
}

static void test_text(void **state)
{
	char command[200];
	int r;

	(void)state;
	assert_int_equal(attnctl("metrics"), 0);
	assert_non_null(strstr(text, "\nattnd_prefix_cache_hits_tokens_total "));
	assert_non_null(strstr(text, "\nattnd_request_duration_seconds_bucket{op=\"decode\",le=\"+Inf\"} "));
	assert_non_null(strstr(text, "\nattnd_pool_bytes{node=\"0\",page_bytes=\""));
	if (system("command -v promtool >/dev/null")) {
		print_message("promtool is not there: its check is left out\n");
		return;
	}
	snprintf(command, sizeof(command), "%s/attnctl --socket %s metrics | promtool check metrics", getenv("BUILD"),
		 daemon_.socket);
	r = system(command);
	assert_int_equal(r, 0);
}

/* The answer to one request, in `text`. */
static void http(const char *request)
{
	struct sockaddr_in at = {.sin_family = AF_INET,
				 .sin_addr.s_addr = htonl(INADDR_LOOPBACK),
				 .sin_port = htons((uint16_t)atoi(port))};
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	size_t n = 0;

	assert_int_equal(connect(fd, (struct sockaddr *)&at, sizeof(at)), 0);
	assert_int_equal(send(fd, request, strlen(request), 0), strlen(request));
	for (ssize_t k = 1; k > 0; n += (size_t)(k > 0 ? k : 0))
		k = recv(fd, text + n, sizeof(text) - 1 - n, 0);
	text[n] = 0;
	close(fd);
}

static void test_http(void **state)
{
	char command[256];

	(void)state;
	http("GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
	assert_int_equal(strncmp(text, "HTTP/1.1 200 ", 13), 0);
	assert_non_null(strstr(text, "text/plain; version=0.0.4"));
	assert_non_null(strstr(text, "\nattnd_kv_usage_ratio "));
	http("POST /metrics HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
	assert_int_equal(strncmp(text, "HTTP/1.1 405 ", 13), 0);
	http("GET /other HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
	assert_int_equal(strncmp(text, "HTTP/1.1 404 ", 13), 0);
	snprintf(command, sizeof(command),
		 "%s --config /dev/null --check-config --metrics-listen 0.0.0.0:9464 2>/dev/null",
		 getenv("ATTND_DAEMON"));
	assert_int_equal(WEXITSTATUS(system(command)), 2);
	snprintf(command, sizeof(command), "%s --config /dev/null --check-config --metrics-listen '[::1]:9464'",
		 getenv("ATTND_DAEMON"));
	assert_int_equal(WEXITSTATUS(system(command)), 0);
}

/* A client that sends half a request and goes away, and one that asks and does not read. */
static void test_http_rude(void **state)
{
	struct sockaddr_in at = {.sin_family = AF_INET,
				 .sin_addr.s_addr = htonl(INADDR_LOOPBACK),
				 .sin_port = htons((uint16_t)atoi(port))};

	(void)state;
	for (int i = 0; i < 40; i++) {
		const char *const what = i % 2 ? "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n" : "GET /met";
		int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

		assert_int_equal(connect(fd, (struct sockaddr *)&at, sizeof(at)), 0);
		(void)!write(fd, what, strlen(what));
		close(fd);
	}
	for (int i = 0; i < 100; i++) {
		http("GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
		if (!strncmp(text, "HTTP/1.1 200 ", 13))
			return;
		sleep_ms(20); /* those that went may still count as connections */
	}
	fail();
}

static void test_top(void **state)
{
	json_t *now;

	(void)state;
	assert_int_equal(attnctl("top --once --interval 0.1 --stream 10"), 0);
	assert_non_null(strstr(text, "of stream (10 GB/s)"));
	for (char *line = text, *end; *line; line = end + 1) {
		end = line + strcspn(line, "\n");
		assert_in_range(end - line, 0, 80);
		if (!*end)
			break;
	}
	assert_int_equal(attnctl("top --once --json --interval 0.1 --stream 0"), 0);
	now = json_loads(text, 0, NULL);
	assert_true(number(now, "seconds") >= 0.1);
	assert_true(number(now, "jobs_per_s") == 0);
	assert_true(number(now, "pool.nodes.0.bytes") > 0);
	json_decref(now);
	assert_int_equal(attnctl("stat --stream 0"), 0);
	assert_non_null(strstr(text, "hit rate"));
	assert_int_equal(attnctl("top --interval 0"), 2);
}

/* What the terminal was sent has these words, within 20 s; what came before them is forgotten. */
static bool shows(int fd, const char *words)
{
	size_t n = 0;

	for (;;) {
		struct pollfd p = {.fd = fd, .events = POLLIN};
		ssize_t more = poll(&p, 1, 20000) > 0 ? read(fd, text + n, sizeof(text) - 1 - n) : 0;

		if (more <= 0)
			return false;
		n += (size_t)more;
		text[n] = 0;
		if (strstr(text, words))
			return true;
		if (n > sizeof(text) / 2)
			n = 0;
	}
}

/* On a terminal of 80 columns: it goes on while the daemon is away, and ends by a key with the terminal as it was. */
static void test_top_live(void **state)
{
	const char *const args[] = {"--pool-size", "16M", "--hugepages", "off", NULL};
	struct winsize size = {.ws_row = 24, .ws_col = 80};
	struct daemon d;
	char program[300];
	int fd, status;

	(void)state;
	assert_int_equal(daemon_start(&d, args), 0);
	snprintf(program, sizeof(program), "%s/attnctl", getenv("BUILD"));
	pid_t pid = forkpty(&fd, NULL, NULL, &size);
	if (pid == 0) {
		setenv("TERM", "xterm", 1);
		execl(program, program, "--socket", d.socket, "top", "--interval", "0.1", "--stream", "10", NULL);
		_exit(127);
	}
	assert_true(pid > 0);
	assert_true(shows(fd, "of stream (10 GB/s)"));
	daemon_end(&d, SIGKILL);
	assert_true(shows(fd, "trying"));
	assert_int_equal(daemon_again(&d, args), 0);
	assert_true(shows(fd, "attnd up"));
	assert_int_equal(write(fd, "q", 1), 1);
	assert_true(shows(fd, "\033[?1049l")); /* back from the screen of its own */
	while (read(fd, text, sizeof(text)) > 0)
		;
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_int_equal(status, 0);
	close(fd);
	daemon_end(&d, SIGTERM);
	daemon_clean(&d);
}

/* It stands still: ^C ends all the same, q within what it waits for an answer. */
static void test_top_frozen(void **state)
{
	const char keys[] = {'q', 3};
	struct winsize size = {.ws_row = 24, .ws_col = 80};
	char program[300];
	int fd, status;

	(void)state;
	snprintf(program, sizeof(program), "%s/attnctl", getenv("BUILD"));
	for (size_t i = 0; i < sizeof(keys); i++) {
		pid_t pid = forkpty(&fd, NULL, NULL, &size);

		if (pid == 0) {
			setenv("TERM", "xterm", 1);
			execl(program, program, "--socket", daemon_.socket, "top", "--interval", "0.1", "--stream",
			      "0", NULL);
			_exit(127);
		}
		assert_true(pid > 0);
		assert_true(shows(fd, "attnd up"));
		assert_int_equal(daemon_freeze(&daemon_), 0);
		assert_true(shows(fd, "trying"));
		assert_int_equal(write(fd, &keys[i], 1), 1);
		assert_true(shows(fd, "\033[?1049l"));
		daemon_thaw(&daemon_);
		while (read(fd, text, sizeof(text)) > 0)
			;
		assert_int_equal(waitpid(pid, &status, 0), pid);
		assert_int_equal(status, 0);
		close(fd);
	}
}

static void put(const char *root, const char *path, const char *content)
{
	char full[400], command[500];
	FILE *f;

	snprintf(full, sizeof(full), "%s%s", root, path);
	snprintf(command, sizeof(command), "mkdir -p \"$(dirname %s)\"", full);
	assert_int_equal(system(command), 0);
	f = fopen(full, "w");
	assert_non_null(f);
	fputs(content, f);
	fclose(f);
}

/* A machine that is made up: its files under a directory. */
static void test_doctor(void **state)
{
	char root[] = "/tmp/attnd-doctor-XXXXXX", words[128], path[64];

	(void)state;
	assert_non_null(mkdtemp(root));
	snprintf(path, sizeof(path), "/proc/%d/cgroup", (int)daemon_.pid);
	put(root, path, "0::/system.slice/attnd.service\n");
	put(root, "/sys/fs/cgroup/system.slice/attnd.service/memory.max", "1073741824\n");
	put(root, "/proc/meminfo", "MemTotal:       65536000 kB\nHugePages_Total:       0\n");
	put(root, "/proc/cpuinfo", "flags : fpu\n");
	snprintf(words, sizeof(words), "doctor --root %s", root);
	assert_int_equal(attnctl(words), 1);
	assert_non_null(strstr(text, "hugepages = auto instead of off; vm.nr_hugepages ="));
	assert_non_null(strstr(text, "wrong  MemoryMax: 1.0 GiB of /system.slice/attnd.service"));
	assert_non_null(strstr(text, "MemoryMax="));
	put(root, "/sys/fs/cgroup/system.slice/attnd.service/memory.max", "max\n");
	put(root, "/sys/fs/cgroup/system.slice/memory.max", "8589934592\n");
	snprintf(words, sizeof(words), "doctor --json --root %s", root);
	(void)attnctl(words);
	assert_non_null(strstr(text, "8.0 GiB covers"));
	put(root, "/sys/devices/system/node/has_memory", "0-1\n");
	assert_int_equal(attnctl(words), 1);
	assert_non_null(strstr(text, "the pool lies on one"));
	snprintf(words, sizeof(words), "rm -rf %s", root);
	assert_int_equal(system(words), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_counts),	    cmocka_unit_test(test_evictions), cmocka_unit_test(test_share),
		cmocka_unit_test(test_cardinality), cmocka_unit_test(test_text),      cmocka_unit_test(test_http),
		cmocka_unit_test(test_http_rude),   cmocka_unit_test(test_top),	      cmocka_unit_test(test_top_live),
		cmocka_unit_test(test_top_frozen),  cmocka_unit_test(test_doctor),
	};

	return cmocka_run_group_tests(tests, test_start, test_end);
}
