/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Whatever a client controls has a limit, of its session and of its uid: one that takes all it can
 * get is told which limit it met, and nobody else notices.
 *
 * In: clients that flood, hoard, claim and guess. Out: TAP. Next: daemon/limits.c, tenant.c, segments.c.
 */
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../../daemon/lead.h"
#include "../integration/raw.h"
#include "../integration/toy.h"
#include "../skip.h"

enum { OTHER_UID = 4242 };

static struct daemon daemon_;

static void start(const char *key, const char *value)
{
	const char *const args[] = {"--pool-size", "32M", "--hugepages", "off", "--socket-mode",
				    "0666",	   key,	  value,	 NULL};

	assert_int_equal(daemon_start(&daemon_, args), 0);
	assert_int_equal(chmod(daemon_.dir, 0755), 0);
}

/* Whatever happened: others are served, and nothing stays. */
static void end(void)
{
	struct in_use none = {0};

	daemon_wait_in_use(&daemon_, &none);
	daemon_clean(&daemon_);
}

/* Run something as another user, in a process of its own. */
static void as(uid_t uid, int (*what)(void))
{
	int status;
	pid_t pid = fork();

	if (pid == 0) {
		if (setgroups(0, NULL) || setresgid(uid, uid, uid) || setresuid(uid, uid, uid))
			_exit(99);
		_exit(what());
	}
	assert_int_equal(waitpid(pid, &status, 0), pid);
	if (!WIFEXITED(status) || WEXITSTATUS(status))
		fail_msg("as uid %d: line %d", (int)uid, WIFEXITED(status) ? WEXITSTATUS(status) : -status);
}

static int open_some(attnd_t *a, uint64_t first, unsigned n)
{
	struct attnd_open_info info;
	int e = 0;

	for (unsigned i = 0; e == 0 && i < n; i++)
		e = attnd_seq_open(a, first + i, 0, NULL, 0, 0, &info);
	return e;
}

/* ---- Sequences ---- */

static void test_sequences(void **state)
{
	struct toy s, t;

	(void)state;
	start("--max-sequences-per-uid", "6");
	attnd_t *a = daemon_connect(&daemon_), *b = daemon_connect(&daemon_);
	assert_int_equal(toy_open(&s, a, 1), 0);
	assert_int_equal(toy_open(&t, b, 1), 0);
	assert_int_equal(open_some(a, 1, 4), 0);
	assert_int_equal(open_some(b, 1, 2), 0);
	assert_int_equal(open_some(b, 10, 1), -EDQUOT);
	assert_non_null(strstr(attnd_strerror(b, -EDQUOT), "sequences"));
	assert_int_equal(open_some(b, 1, 2), 0); /* an answer that is repeated costs nothing */
	assert_int_equal(attnd_seq_fork(a, 1, 20, 0), -EDQUOT);
	assert_int_equal(attnd_seq_close(a, 1), 0);
	assert_int_equal(open_some(b, 10, 1), 0);
	attnd_disconnect(a);
	attnd_disconnect(b);
	end();
}

/* ---- Tokens ---- */

static int prefill(struct toy *t, uint64_t key, uint32_t n)
{
	uint64_t tokens[TOY_MAX_TOKENS], cached;

	toy_tokens(tokens, n, key * 10000);
	return toy_prefill(t, key, tokens, n, &cached);
}

static void test_tokens(void **state)
{
	struct toy t;

	(void)state;
	start("--max-tokens", "1000");
	attnd_t *a = daemon_connect(&daemon_);
	assert_int_equal(toy_open(&t, a, 1), 0);
	assert_int_equal(prefill(&t, 1, 400), 0);
	assert_int_equal(prefill(&t, 2, 400), 0);
	assert_int_equal(prefill(&t, 3, 400), -EDQUOT);
	assert_int_equal(attnd_seq_close(a, 1), 0);
	(void)attnd_seq_close(a, 3);
	assert_int_equal(prefill(&t, 4, 400), 0);
	/* The same tokens again are no more of them. */
	uint64_t tokens[400];
	toy_tokens(tokens, 400, 40000);
	struct attnd_row row = {.key = 4, .start = 300, .tokens = tokens + 300, .num_tokens = 100};
	assert_int_equal(toy_step(&t, 2, &row, 1, NULL), 0);
	/* One row too many: the others go on. */
	struct attnd_row_status status[2];
	struct attnd_row rows[2] = {{.key = 4, .start = 400, .tokens = tokens, .num_tokens = 10},
				    {.key = 2, .start = 400, .tokens = tokens, .num_tokens = 395}};
	assert_int_equal(toy_step(&t, 3, rows, 2, status), 0);
	assert_int_equal(status[0].status, 0);
	assert_int_equal(status[1].status, -EDQUOT);
	attnd_disconnect(a);
	end();
}

static void test_tokens_of_uid(void **state)
{
	struct toy s, t;

	(void)state;
	start("--max-tokens-per-uid", "1K");
	attnd_t *a = daemon_connect(&daemon_), *b = daemon_connect(&daemon_);
	assert_int_equal(toy_open(&s, a, 1), 0);
	assert_int_equal(toy_open(&t, b, 1), 0);
	assert_int_equal(prefill(&s, 1, 500), 0);
	assert_int_equal(prefill(&t, 1, 500), 0);
	assert_int_equal(prefill(&t, 2, 100), -EDQUOT);
	attnd_disconnect(a);
	struct in_use now;
	do
		daemon_in_use(&daemon_, &now);
	while (now.sessions > 1);
	(void)attnd_seq_close(b, 2);
	assert_int_equal(prefill(&t, 3, 100), 0);
	attnd_disconnect(b);
	end();
}

/* ---- Opens a second ---- */

static void flood_opens(attnd_t *a, uint64_t first, unsigned *ret_refused)
{
	*ret_refused = 0;
	for (unsigned i = 0; i < 100; i++) {
		int e = open_some(a, first + i, 1);

		*ret_refused += e == -EDQUOT;
		if (e == 0)
			assert_int_equal(attnd_seq_close(a, first + i), 0);
		else
			assert_int_equal(e, -EDQUOT);
	}
}

static void test_open_rate(void **state)
{
	static const char *const keys[] = {"--max-opens-per-second", "--max-opens-per-second-per-uid"};
	unsigned refused;
	struct toy t;

	(void)state;
	for (int k = 0; k < 2; k++) {
		start(keys[k], "4");
		attnd_t *a = daemon_connect(&daemon_);
		assert_int_equal(toy_open(&t, a, 1), 0);
		flood_opens(a, 1, &refused);
		assert_in_range(refused, 1, 96);
		assert_non_null(strstr(attnd_strerror(a, -EDQUOT), "second"));
		attnd_disconnect(a);
		/* Connecting again gives a session a new one, not its uid. */
		a = daemon_connect(&daemon_);
		assert_int_equal(toy_open(&t, a, 1), 0);
		flood_opens(a, 1000, &refused);
		assert_in_range(refused, k ? 50 : 1, 100);
		attnd_disconnect(a);
		end();
	}
}

/* ---- With a clock and counts that the test sets ---- */

static struct config config_;
static struct leader leader_;

static void enter(struct lead_session *ls, struct session *s, uid_t uid)
{
	s->uid = uid;
	ls->session = s;
	assert_int_equal(limits_enter(&leader_, ls), 0);
}

static void test_rate_by_the_clock(void **state)
{
	struct engine e = {.uid = 1};
	struct lead_session ls = {.engine = &e}, other = {.engine = &e};
	struct session s = {.id = 1}, t = {.id = 2};

	(void)state;
	config_ = (struct config){.max_opens_per_second = 3, .max_opens_per_second_per_uid = 5};
	leader_ = (struct leader){.cfg = &config_, .now = 1000};
	enter(&ls, &s, 1);
	enter(&other, &t, 1);
	for (int i = 0; i < 3; i++)
		assert_int_equal(limits_open(&leader_, &ls, 0).res, 0);
	assert_int_equal(limits_open(&leader_, &ls, 0).res, -EDQUOT);
	for (int i = 0; i < 2; i++)
		assert_int_equal(limits_open(&leader_, &other, 0).res, 0);
	struct answer a = limits_open(&leader_, &other, 0); /* its own rate would allow it */
	assert_int_equal(a.res, -EDQUOT);
	assert_int_equal(a.limit, 5);
	leader_.now += 200000001; /* one for the uid, none for the first session */
	assert_int_equal(limits_open(&leader_, &ls, 0).res, -EDQUOT);
	assert_int_equal(limits_open(&leader_, &other, 0).res, 0);
	assert_int_equal(limits_open(&leader_, &other, 0).res, -EDQUOT);
	leader_.now += UINT64_C(1) << 60; /* no more than a second's worth gathers */
	for (int i = 0; i < 3; i++)
		assert_int_equal(limits_open(&leader_, &ls, 0).res, 0);
	assert_int_equal(limits_open(&leader_, &ls, 0).res, -EDQUOT);
	limits_leave(&ls);
	limits_leave(&other);
	limits_destroy(&leader_);
}

static void test_in_flight(void **state)
{
	struct lead_session ls = {.unanswered = 0}, other = {.unanswered = 0};
	struct session s = {.id = 1}, t = {.id = 2};

	(void)state;
	config_ = (struct config){.max_in_flight = 8};
	leader_ = (struct leader){.cfg = &config_};
	enter(&ls, &s, 1);
	enter(&other, &t, 1);
	assert_int_equal(limits_in_flight(&leader_, &ls, 64), 8);
	assert_int_equal(limits_in_flight(&leader_, &ls, 2), 2);
	ls.unanswered = 8;
	ls.user->in_flight = 8;
	assert_int_equal(limits_in_flight(&leader_, &ls, 64), 0);
	assert_int_equal(limits_in_flight(&leader_, &other, 64), 8);
	config_.max_in_flight_per_uid = 10;
	assert_int_equal(limits_in_flight(&leader_, &other, 64), 2);
	limits_leave(&ls); /* what it had in flight goes with it */
	assert_int_equal(limits_in_flight(&leader_, &other, 64), 8);
	limits_leave(&other);
	limits_destroy(&leader_);
}

/* More at once than may be in flight: taken bit by bit, all answered. */
static void test_flood_in_flight(void **state)
{
	struct attnd_sqe ping = {.opcode = ATTND_OP_PING, .deadline_us = RAW_DEADLINE_US};
	struct attnd_cqe c;
	struct raw r;

	(void)state;
	start("--max-in-flight", "3");
	assert_int_equal(raw_connect(&r, daemon_.socket), 0);
	assert_int_equal(raw_segment(&r, 0, 65536), 0);
	for (unsigned i = 0; i < 64; i++) {
		struct attnd_sqe s =
			i % 2 ? ping
			      : (struct attnd_sqe){.opcode = ATTND_OP_PLAN_END, .deadline_us = RAW_DEADLINE_US};

		s.user_data = i;
		raw_put(&r, &s);
	}
	for (unsigned i = 0; i < 64; i++)
		assert_int_equal(raw_wait(&r, &c), 0);
	raw_close(&r);
	end();
}

/* ---- Arena bytes ---- */

static void test_arena(void **state)
{
	struct raw r, q;

	(void)state;
	start("--arena-max-per-session", "1M");
	assert_int_equal(raw_connect(&r, daemon_.socket), 0);
	assert_int_equal(raw_connect(&q, daemon_.socket), 0);
	assert_int_equal(raw_segment(&r, 0, 512 << 10), 0);
	assert_int_equal(raw_segment(&r, 1, (512 << 10) + 4096), -EDQUOT);
	assert_int_equal(raw_segment(&r, 1, 512 << 10), 0);
	assert_int_equal(raw_segment(&r, 2, 4096), -EDQUOT);
	assert_int_equal(raw_segment(&q, 0, 1 << 20), 0);
	raw_close(&r);
	raw_close(&q);
	end();

	start("--arena-max-per-uid", "1M");
	assert_int_equal(raw_connect(&r, daemon_.socket), 0);
	assert_int_equal(raw_connect(&q, daemon_.socket), 0);
	assert_int_equal(raw_segment(&r, 0, 512 << 10), 0);
	assert_int_equal(raw_segment(&q, 0, (512 << 10) + 4096), -EDQUOT);
	assert_int_equal(raw_segment(&q, 0, 512 << 10), 0);
	raw_close(&r);
	raw_close(&q);
	end();
}

/* ---- Tenants ---- */

static int name_tenant(attnd_t *a, const char *tenant, uint32_t *ret)
{
	struct attnd_namespace ns = {
		.tenant = tenant, .tenant_bytes = (uint32_t)strlen(tenant), .adapter = "x", .adapter_bytes = 1};

	return attnd_namespace(a, &ns, ret);
}

/* What uid 4242 may and what not: 0, or the line that saw otherwise. */
static int be_other(void)
{
	struct attnd_connect_options options = {.socket = daemon_.socket, .name = "tenant"};
	uint32_t ns = 4711;
	struct toy t;
	attnd_t *a;

#define WANT(x)                                                        \
	do {                                                           \
		if (!(x))                                              \
			return (__LINE__ & 0xff) | !(__LINE__ & 0xff); \
	} while (0)
	WANT(attnd_connect(&a, &options) == 0);
	WANT(toy_open(&t, a, 1) == 0);
	WANT(name_tenant(a, "red", &ns) == 0);
	WANT(name_tenant(a, "blue", &ns) == 0);
	WANT(name_tenant(a, "green", &ns) == -EACCES);
	WANT(name_tenant(a, "re", &ns) == -EACCES);
	attnd_disconnect(a);
	return 0;
}

static void test_tenants(void **state)
{
	uint32_t ns = 4711;
	struct toy t;

	(void)state;
	if (geteuid())
		skip();
	start("--tenants", "*:blue, 4242:red, @4243:green");
	attnd_t *a = daemon_connect(&daemon_);
	assert_int_equal(toy_open(&t, a, 1), 0);
	assert_int_equal(name_tenant(a, "blue", &ns), 0);
	assert_int_equal(name_tenant(a, "red", &ns), -EACCES);
	assert_non_null(strstr(attnd_strerror(a, -EACCES), "tenant"));
	assert_int_equal(name_tenant(a, "", &ns), -EACCES); /* a name, too */
	struct attnd_namespace none = {.adapter = "x", .adapter_bytes = 1};
	assert_int_equal(attnd_namespace(a, &none, &ns), 0);
	as(OTHER_UID, be_other);
	attnd_disconnect(a);
	end();
}

/* ---- Others' things ---- */

static uint8_t engine_id_[16];

static int join_others_engine(void)
{
	struct attnd_connect_options options = {.socket = daemon_.socket, .name = "thief", .engine_id = engine_id_};
	attnd_t *a;

	WANT(attnd_connect(&a, &options) == -ENOENT);
	return 0;
}

/* Names of another session: sequence, plan, parameter set, engine. */
static void test_others_names(void **state)
{
	struct attnd_connect_options options = {
		.socket = daemon_.socket, .engine_id = engine_id_, .engine_create = 1};
	uint64_t tokens[40];
	struct toy mine, theirs;
	attnd_t *a;

	(void)state;
	start("--max-sessions", "20");
	assert_int_equal(attnd_engine_id(engine_id_), 0);
	assert_int_equal(attnd_connect(&a, &options), 0);
	assert_int_equal(toy_open(&mine, a, 1), 0);
	assert_int_equal(prefill(&mine, 7, 40), 0);
	toy_tokens(tokens, 40, 5);
	struct attnd_row row = {.key = 7, .start = 40, .tokens = tokens, .num_tokens = 4};
	assert_int_equal(toy_plan(&mine, 3, &row, 1, NULL), 0);

	attnd_t *b = daemon_connect(&daemon_);
	assert_int_equal(toy_open(&theirs, b, 1), 0);
	assert_int_equal(attnd_seq_close(b, 7), -ENOENT);
	assert_int_equal(attnd_seq_trim(b, 7, 0), -ENOENT);
	assert_int_equal(attnd_seq_fork(b, 7, 8, 10), -ENOENT);
	assert_int_equal(toy_layer(&theirs, 3, &row, 1, 0), -ESTALE);
	assert_int_equal(toy_plan(&theirs, 3, &row, 1, NULL), -ENOENT);
	attnd_disconnect(b);
	if (geteuid() == 0)
		as(OTHER_UID, join_others_engine);
	for (uint32_t layer = 0; layer < TOY_LAYERS; layer++) /* it has stayed as it was */
		assert_int_equal(toy_layer(&mine, 3, &row, 1, layer), 0);
	attnd_disconnect(a);
	end();
}

/* One that floods and never reads an answer; another one's steps all come through. */
static void test_flood(void **state)
{
	struct attnd_sqe ping = {.opcode = ATTND_OP_PING, .deadline_us = RAW_DEADLINE_US};
	struct raw r;
	struct toy t;

	(void)state;
	start("--max-sessions", "20");
	assert_int_equal(raw_connect(&r, daemon_.socket), 0);
	attnd_t *a = daemon_connect(&daemon_);
	assert_int_equal(toy_open(&t, a, 1), 0);
	for (unsigned i = 0; i < 200; i++) {
		for (unsigned n = 0; n < 64; n++)
			raw_put(&r, &ping); /* over what was never taken, too */
		if (i % 20 == 0)
			assert_int_equal(prefill(&t, i + 1, 50), 0);
	}
	raw_close(&r);
	attnd_disconnect(a);
	end();
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_sequences),
		cmocka_unit_test(test_tokens),
		cmocka_unit_test(test_tokens_of_uid),
		cmocka_unit_test(test_open_rate),
		cmocka_unit_test(test_rate_by_the_clock),
		cmocka_unit_test(test_in_flight),
		cmocka_unit_test(test_flood_in_flight),
		cmocka_unit_test(test_arena),
		cmocka_unit_test(test_tenants),
		cmocka_unit_test(test_others_names),
		cmocka_unit_test(test_flood),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
