/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A thousand chats of several turns in two processes: what is reused is, turn by turn, what a cache
 * with unlimited memory and the same rules would give.
 *
 * In:   a fixed seed. Out: TAP. Next: daemon/tree.c, plan.c, twin.c.
 *
 * This process makes the turns and hands them out. Its oracle is a trie of single tokens for each
 * namespace, without blocks, into which the tokens of a turn go once it is through. Two turns run at
 * once where the oracle gives the same answers whichever of them is first; where one would compute
 * what the other one is computing, it waits for it, or is given out when that one is through.
 */
#include <errno.h>
#include <signal.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "toy.h"

enum { CHATS = 1000, TURNS = 6, PROCESSES = 2, SYSTEMS = 6, QUESTIONS = 40, TENANTS = 2, UNIT = 16 };
enum { SYSTEM_LEN = 70, QUESTION_LEN = 18, ANSWER_LEN = 10, MOST = 400 };

/* ---- The oracle ---- */

struct node {
	uint64_t token;
	uint32_t child, sibling; /* 0: none */
};

/* Node t is tenant t's root. */
static struct node nodes[1 << 18];
static uint32_t num_nodes = TENANTS;

static uint32_t child_of(uint32_t at, uint64_t token)
{
	for (at = nodes[at].child; at && nodes[at].token != token; at = nodes[at].sibling)
		;
	return at;
}

/* Of tokens[from..n), which follow those before them, how many the trie has. */
static uint32_t trie_match(uint32_t tenant, const uint64_t *tokens, uint32_t from, uint32_t n)
{
	uint32_t at = tenant, i;

	for (i = 0; i < n; i++) {
		at = child_of(at, tokens[i]);
		if (!at)
			break;
	}
	return i > from ? i - from : 0;
}

static void trie_insert(uint32_t tenant, const uint64_t *tokens, uint32_t n)
{
	uint32_t at = tenant;

	for (uint32_t i = 0; i < n; i++) {
		uint32_t next = child_of(at, tokens[i]);

		if (!next) {
			assert_true(num_nodes < sizeof(nodes) / sizeof(*nodes));
			next = num_nodes++;
			nodes[next] = (struct node){.token = tokens[i], .sibling = nodes[at].child};
			nodes[at].child = next;
		}
		at = next;
	}
}

/* ---- What goes to and fro, in shared memory ---- */

/* A prompt: all that was said so far and a question; then its answer, which the runner "samples". */
struct turn {
	uint32_t tenant, chat, prompt, end; /* tokens[prompt..end) are the answer */
	uint32_t start;			    /* kept: what its sequence holds */
	uint32_t upto;			    /* published of it */
	bool kept;			    /* the sequence is open since the turn before */
	bool keep;			    /* leave it open */
	bool wait;			    /* for the twin */
	uint64_t tokens[MOST];
	/* What came of it: tokens found by the open, taken over by the prompt's row, by the answer's. */
	uint32_t opened, prompted, answered;
};

struct process {
	pid_t pid;
	int fd;		  /* a byte each way: go; opened; done */
	struct turn turn; /* the one under way */
};

static struct daemon daemon_;
static struct process *process;

/* ---- A runner ---- */

static void row_of(struct toy *t, uint64_t key, const struct turn *u, uint32_t start, uint32_t end,
		   uint32_t *ret_cached)
{
	const struct attnd_row row = {.key = key,
				      .start = start,
				      .tokens = u->tokens + start,
				      .num_tokens = end - start,
				      .publish_upto = u->upto};
	struct attnd_row_status status;

	if (toy_step(t, 1, &row, 1, &status) || status.status)
		_exit(11);
	*ret_cached = status.cached;
}

static uint32_t open_prompt(struct toy *t, uint64_t key, const struct turn *u)
{
	const struct attnd_wait_options options = {.max_match = u->prompt - 1, .want = UINT64_MAX};
	struct attnd_open_info info;
	struct attnd_wait_info waited;

	if (!u->wait) {
		if (attnd_seq_open(t->a, key, t->ns, u->tokens, u->prompt, u->prompt - 1, &info))
			_exit(12);
		return (uint32_t)info.cached;
	}
	if (attnd_seq_wait(t->a, key, t->ns, u->tokens, u->prompt, &options, &waited))
		_exit(13);
	return (uint32_t)waited.cached;
}

static void answer(struct toy *t, int fd, struct turn *u, uint64_t *key_of, uint64_t *keys)
{
	uint32_t ns[TENANTS], start = u->start;
	uint64_t key = u->kept ? key_of[u->chat] : ++*keys;

	for (uint32_t i = 0; i < TENANTS; i++)
		if (attnd_namespace(t->a, &(struct attnd_namespace){.salt = &i, .salt_bytes = sizeof(i)}, &ns[i]))
			_exit(14);
	t->salt = u->tenant;
	t->ns = ns[u->tenant];
	if (!u->kept)
		start = u->opened = open_prompt(t, key, u);
	if (write(fd, "", 1) != 1)
		_exit(15);
	row_of(t, key, u, start, u->prompt, &u->prompted);
	row_of(t, key, u, u->prompt, u->end, &u->answered);
	key_of[u->chat] = key;
	if (!u->keep && attnd_seq_close(t->a, key))
		_exit(16);
}

static void run(struct process *p, int fd)
{
	static uint64_t key_of[CHATS];
	struct attnd_connect_options options = {.socket = daemon_.socket, .name = "chats"};
	uint64_t keys = 0;
	struct toy t;
	attnd_t *a;
	char byte;

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (attnd_connect(&a, &options) || toy_open(&t, a, 1))
		_exit(17);
	while (read(fd, &byte, 1) == 1) {
		answer(&t, fd, &p->turn, key_of, &keys);
		if (write(fd, "", 1) != 1)
			_exit(18);
	}
	attnd_disconnect(a);
	_exit(0);
}

static void tell(struct process *p)
{
	assert_int_equal(write(p->fd, "", 1), 1);
}

static void hear(struct process *p)
{
	int status = 0;
	char byte;

	if (read(p->fd, &byte, 1) == 1)
		return;
	waitpid(p->pid, &status, 0);
	fail_msg("a runner has ended with %d", WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status));
}

/* ---- Chats ---- */

struct chat {
	uint32_t tenant, turns, length, published;
	int at; /* the process that has its sequence open; -1: none */
	uint64_t tokens[MOST];
};

static struct chat chats[CHATS];
static uint64_t seed = 20;
static struct {
	uint32_t turns, at_once, waits, in_order, moved, kept;
	uint64_t opened, taken, computed;
} counts;

static uint32_t below(uint32_t n)
{
	return (uint32_t)(next_random(&seed) >> 33) % n;
}

/* The same text for the same number; a text's length is `least` and a half more. */
static uint32_t say(uint64_t *to, uint64_t number, uint32_t least)
{
	uint64_t state = (number + 1) * UINT64_C(0x9e3779b97f4a7c15);
	uint32_t n = least + (uint32_t)(next_random(&state) >> 33) % (least / 2);

	for (uint32_t i = 0; i < n; i++)
		to[i] = next_random(&state) >> 48;
	return n;
}

/* System prompts come in pairs that begin alike. */
static void begin(struct chat *c)
{
	uint32_t system = below(SYSTEMS);

	c->tenant = below(TENANTS);
	c->turns = 2 + below(TURNS - 2);
	c->at = -1;
	c->length = say(c->tokens, system / 2, SYSTEM_LEN);
	c->length -= 20;
	c->length += say(c->tokens + c->length, 100 + system, 20);
}

/* What this chat has so far as a number: with a small one chosen, equal for equal chats. */
static uint64_t so_far(const struct chat *c)
{
	uint64_t x = c->tenant;

	for (uint32_t i = 0; i < c->length; i++)
		x = (x ^ c->tokens[i]) * UINT64_C(0x9e3779b97f4a7c15) ^ x >> 29;
	return x;
}

/* The next turn of a chat, in process p. Few questions, few answers: chats say the same for a while. */
static void make_turn(const struct chat *c, int p, uint32_t question, struct turn *u)
{
	memset(u, 0, sizeof(*u));
	u->chat = (uint32_t)(c - chats);
	u->tenant = c->tenant;
	memcpy(u->tokens, c->tokens, sizeof(u->tokens));
	u->prompt = c->length + say(u->tokens + c->length, 1000 + question, QUESTION_LEN);
	u->end = u->prompt + say(u->tokens + u->prompt, so_far(c) + below(3), ANSWER_LEN);
	assert_true(u->end <= MOST);
	u->kept = c->at == p && c->published == c->length;
	u->start = c->length;
	u->keep = below(3) == 0;
	u->upto = u->keep || below(4) ? u->end : u->prompt + below(u->end - u->prompt);
}

/* What the oracle says of it now. */
static void expect(const struct turn *u, uint32_t ret[3])
{
	uint32_t from = u->start;

	ret[0] = 0;
	if (!u->kept) {
		ret[0] = trie_match(u->tenant, u->tokens, 0, u->prompt);
		ret[0] = ret[0] < u->prompt ? ret[0] : u->prompt - 1;
		from = ret[0];
	}
	ret[1] = trie_match(u->tenant, u->tokens, from, u->prompt);
	ret[2] = trie_match(u->tenant, u->tokens, u->prompt, u->end);
}

static void compare(const struct turn *u, const uint32_t want[3])
{
	if (u->opened != want[0] || u->prompted != want[1] || u->answered != want[2])
		fail_msg("chat %u at %u of %u tokens (%s): found %u, taken over %u and %u; the oracle: %u, %u and %u",
			 u->chat, u->prompt, u->end, u->kept ? "kept" : "opened", u->opened, u->prompted, u->answered,
			 want[0], want[1], want[2]);
}

/* It is through. */
static void note(const struct turn *u, int p)
{
	struct chat *c = &chats[u->chat];
	uint32_t n = u->end - (u->kept ? u->start : 0);

	trie_insert(u->tenant, u->tokens, u->upto);
	counts.turns++;
	counts.kept += u->kept;
	counts.moved += c->at >= 0 && c->at != p;
	counts.opened += u->opened;
	counts.taken += u->prompted + u->answered;
	counts.computed += n - u->opened - u->prompted - u->answered;
	memcpy(c->tokens, u->tokens, sizeof(c->tokens));
	c->length = u->end;
	c->published = u->upto;
	c->turns--;
	c->at = u->keep ? p : -1;
}

static bool same(const uint32_t a[3], const uint32_t b[3])
{
	return !memcmp(a, b, 3 * sizeof(*a));
}

static uint32_t agree(const struct turn *a, const struct turn *b)
{
	uint32_t n = 0;

	while (a->tenant == b->tenant && n < a->prompt && n < b->prompt && a->tokens[n] == b->tokens[n])
		n++;
	return n;
}

/* What the oracle would say if `first` had published its tokens up to `upto`; then it forgets them again. */
static void expect_after(const struct turn *first, uint32_t upto, const struct turn *u, uint32_t ret[3])
{
	uint32_t before = num_nodes, at = first->tenant, i = 0, next, was;

	upto = upto < first->upto ? upto : first->upto;
	while (i < upto && (next = child_of(at, first->tokens[i]))) {
		at = next;
		i++;
	}
	was = nodes[at].child;
	trie_insert(first->tenant, first->tokens, upto);
	expect(u, ret);
	nodes[at].child = was;
	num_nodes = before;
}

/* a is through before b begins. */
static void in_order(struct process *a, struct process *b)
{
	counts.in_order++;
	for (int i = 0; i < 2; i++) {
		tell(i ? b : a);
		hear(i ? b : a);
		hear(i ? b : a);
	}
}

static void at_once(struct process *a, struct process *b)
{
	counts.at_once++;
	tell(a);
	tell(b);
	for (int i = 0; i < 2; i++) {
		hear(a);
		hear(b);
	}
}

/* a has announced what it is going to compute when b asks for it. */
static void waiting(struct process *a, struct process *b)
{
	counts.waits++;
	b->turn.wait = true;
	tell(a);
	hear(a);
	tell(b);
	hear(b);
	hear(a);
	hear(b);
}

/* Two turns, one in each process. */
static void both(struct process *pa, struct process *pb)
{
	uint32_t want[2][3], after[2][3], prompt[3];
	const struct turn *a = &pa->turn, *b = &pb->turn;

	expect(a, want[0]);
	expect(b, want[1]);
	expect_after(b, b->end, a, after[0]);
	expect_after(a, a->end, b, after[1]);
	expect_after(a, a->prompt, b, prompt);
	if (same(want[0], after[0]) && same(want[1], after[1]))
		at_once(pa, pb);
	else if (!a->kept && !b->kept && agree(a, b) >= (want[1][0] / UNIT + 1) * UNIT && want[0][2] == after[0][2] &&
		 same(prompt, after[1])) /* a's prompt is first, and answers do not matter */
		waiting(pa, pb);
	else
		in_order(pa, pb);
	compare(a, want[0]);
	compare(b, after[1]);
}

/* Another chat with turns to come; `like`: one in which the same was said, if there is one. */
static struct chat *pick(const struct chat *other, bool like)
{
	for (uint32_t i = 0, k = below(CHATS); i < CHATS; i++) {
		struct chat *c = &chats[(i + k) % CHATS];

		if (c->turns && c != other &&
		    (!like || (c->tenant == other->tenant && c->length == other->length &&
			       !memcmp(c->tokens, other->tokens, c->length * sizeof(*c->tokens)))))
			return c;
	}
	return like ? pick(other, false) : NULL;
}

static void alone(const struct chat *c)
{
	struct process *p = &process[below(2)];
	uint32_t want[3];

	make_turn(c, (int)(p - process), below(QUESTIONS), &p->turn);
	expect(&p->turn, want);
	tell(p);
	hear(p);
	hear(p);
	compare(&p->turn, want);
	note(&p->turn, (int)(p - process));
}

static void test_chats(void **state)
{
	uint32_t question;

	(void)state;
	for (uint32_t i = 0; i < CHATS; i++)
		begin(&chats[i]);
	for (struct chat *a, *b; (a = pick(NULL, false));) {
		b = pick(a, below(3) == 0);
		if (!b) {
			alone(a);
			continue;
		}
		question = below(QUESTIONS);
		make_turn(a, 0, question, &process[0].turn);
		make_turn(b, 1, below(3) ? question : below(QUESTIONS), &process[1].turn);
		both(&process[0], &process[1]);
		note(&process[0].turn, 0);
		note(&process[1].turn, 1);
	}
	print_message("%u turns: pairs at once %u, waiting %u, in order %u; went on in a kept sequence %u, moved %u; "
		      "tokens found %llu, taken over %llu, computed %llu\n",
		      counts.turns, counts.at_once, counts.waits, counts.in_order, counts.kept, counts.moved,
		      (unsigned long long)counts.opened, (unsigned long long)counts.taken,
		      (unsigned long long)counts.computed);
	assert_true(counts.at_once && counts.waits && counts.in_order && counts.kept && counts.moved && counts.taken);
	assert_int_equal(daemon_number(&daemon_, "counters.hit_tokens"), counts.opened);
	assert_int_equal(daemon_number(&daemon_, "counters.evicted_blocks"), 0);
}

static int group_start(void **state)
{
	const char *const args[] = {"--pool-size", "256M", "--hugepages", "off", NULL};
	int pair[2], e = daemon_start(&daemon_, args);

	(void)state;
	process = mmap(NULL, PROCESSES * sizeof(*process), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (process == MAP_FAILED)
		return -1;
	for (int i = 0; e == 0 && i < PROCESSES; i++) {
		if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair))
			return -1;
		process[i].fd = pair[0];
		process[i].pid = fork();
		if (process[i].pid == 0) {
			for (int k = 0; k <= i; k++)
				close(process[k].fd);
			run(&process[i], pair[1]);
		}
		close(pair[1]);
	}
	return e;
}

static int group_end(void **state)
{
	(void)state;
	for (int i = 0; i < PROCESSES; i++) {
		close(process[i].fd);
		waitpid(process[i].pid, NULL, 0);
	}
	daemon_clean(&daemon_);
	munmap(process, PROCESSES * sizeof(*process));
	return 0;
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(test_chats)};

	return cmocka_run_group_tests(tests, group_start, group_end);
}
