/* SPDX-License-Identifier: Apache-2.0 */
/*
 * In: letters of control. Out: answers. Next: stub_leader.h's callers; with daemon/main.c, a daemon.
 */
#include "stub_leader.h"

#include <errno.h>
#include <jansson.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#define MAX_SESSIONS 512

struct leader {
	int flags;
	struct mailbox inbox, *to_control;
	struct attnd_region lookup;
	struct session *sessions[MAX_SESSIONS];
	uint32_t num_sessions;
	struct stub_counts counts;
	bool stopped;
	pthread_t thread;
};

static int read_flags(void)
{
	static const struct {
		const char *word;
		int flag;
	} words[] = {{"pumped", STUB_PUMPED}, {"refuse", STUB_REFUSE}, {"stuck", STUB_STUCK}};
	const char *text = getenv("STUB_LEADER");
	int flags = 0;

	for (size_t i = 0; text && i < sizeof(words) / sizeof(words[0]); i++)
		if (strstr(text, words[i].word))
			flags |= words[i].flag;
	return flags;
}

static void answer(struct leader *l, const struct mail *letter)
{
	if (mailbox_send(l->to_control, letter))
		abort();
}

static void forget(struct leader *l, const struct session *s)
{
	for (uint32_t i = 0; i < l->num_sessions; i++) {
		if (l->sessions[i] == s) {
			l->sessions[i] = l->sessions[--l->num_sessions];
			return;
		}
	}
	abort(); /* ended twice, or never added */
}

static json_t *admin_reply(const struct leader *l, const char *command)
{
	json_t *reply = json_object();

	if (strcmp(command, "status") == 0)
		json_object_set_new(reply, "stub", json_integer(l->num_sessions));
	if (strcmp(command, "caches") == 0)
		json_object_set_new(reply, "caches", json_array());
	if (strcmp(command, "sessions") == 0) {
		json_t *list = json_array();

		for (uint32_t i = 0; i < l->num_sessions; i++)
			json_array_append_new(list, json_pack("{s:i s:i}", "id", (int)l->sessions[i]->id, "jobs", 7));
		json_object_set_new(reply, "sessions", list);
	}
	return reply;
}

static void segment(struct leader *l, struct mail *letter)
{
	struct attnd_region *slot = &letter->session->lead.segments[letter->index];

	if (letter->type == MAIL_SEGMENT_DEL) {
		letter->region = *slot;
		*slot = ATTND_REGION_NONE;
		l->counts.segments--;
	} else if (l->flags & STUB_REFUSE) {
		letter->status = -ENOMEM;
	} else {
		*slot = letter->region;
		l->counts.segments++;
	}
	letter->type = MAIL_SEGMENT_DONE;
	answer(l, letter);
}

static void handle(struct leader *l, struct mail *letter)
{
	switch (letter->type) {
	case MAIL_SESSION_ADD:
		if (l->num_sessions == MAX_SESSIONS)
			abort();
		l->sessions[l->num_sessions++] = letter->session;
		l->counts.added++;
		break;
	case MAIL_SESSION_END:
		forget(l, letter->session);
		l->counts.ended++;
		letter->type = MAIL_SESSION_FREED;
		answer(l, letter);
		break;
	case MAIL_SEGMENT_ADD:
	case MAIL_SEGMENT_DEL:
		segment(l, letter);
		break;
	case MAIL_OWNER_GONE:
		l->counts.owners_gone++;
		break;
	case MAIL_ADMIN:
		letter->reply = admin_reply(l, letter->command);
		json_decref(letter->args);
		letter->args = NULL;
		letter->type = MAIL_ADMIN_DONE;
		answer(l, letter);
		break;
	case MAIL_BEAT:
		answer(l, &(struct mail){.type = MAIL_BEAT_DONE,
					 .beat = {.pool_bytes = 64 << 20, .used_bytes = 3 << 20}});
		break;
	case MAIL_LIMITS:
		break;
	case MAIL_STOP:
		l->counts.stops++;
		if (l->flags & STUB_STUCK)
			break;
		l->stopped = true;
		answer(l, &(struct mail){.type = MAIL_STOPPED});
		break;
	default:
		abort();
	}
}

void stub_step(struct leader *l)
{
	struct mail letter;
	char byte;

	while (mailbox_take(&l->inbox, &letter))
		handle(l, &letter);
	for (uint32_t i = 0; i < l->num_sessions; i++)
		if (recv(l->sessions[i]->wake_fd, &byte, 1, MSG_DONTWAIT) == 1)
			answer(l, &(struct mail){.type = MAIL_SESSION_BAD, .session = l->sessions[i]});
}

static void *run(void *arg)
{
	struct leader *l = arg;

	while (!l->stopped) {
		struct pollfd fds[MAX_SESSIONS + 1] = {{.fd = l->inbox.fd, .events = POLLIN}};

		for (uint32_t i = 0; i < l->num_sessions; i++)
			fds[i + 1] = (struct pollfd){.fd = l->sessions[i]->wake_fd, .events = POLLIN};
		poll(fds, l->num_sessions + 1, -1);
		stub_step(l);
	}
	return NULL;
}

int leader_start(const struct config *cfg, uint64_t instance, struct mailbox *to_control, struct leader **ret)
{
	struct leader *l = calloc(1, sizeof(*l));
	int r;

	(void)cfg;
	(void)instance;
	if (!l)
		return -ENOMEM;
	l->flags = read_flags();
	l->to_control = to_control;
	r = mailbox_init(&l->inbox);
	if (r == 0)
		r = attnd_region_create("stub-lookup", 4096, 0, 0, &l->lookup);
	if (r == 0 && !(l->flags & STUB_PUMPED))
		r = -pthread_create(&l->thread, NULL, run, l);
	if (r)
		abort();
	*ret = l;
	return 0;
}

struct mailbox *leader_mailbox(struct leader *l)
{
	return &l->inbox;
}

int leader_lookup_fd(struct leader *l, const char *realm, int *ret_fd, uint64_t *ret_bytes)
{
	(void)realm;
	*ret_fd = l->lookup.fd;
	*ret_bytes = l->lookup.bytes;
	return 0;
}

void leader_unlink(const struct leader *l)
{
	(void)l;
}

void leader_destroy(struct leader *l)
{
	if (!l)
		return;
	if (!(l->flags & STUB_PUMPED))
		pthread_join(l->thread, NULL);
	mailbox_destroy(&l->inbox);
	attnd_region_destroy(&l->lookup);
	free(l);
}

struct stub_counts stub_counts(const struct leader *l)
{
	return l->counts;
}

struct session *stub_last(const struct leader *l)
{
	return l->num_sessions ? l->sessions[l->num_sessions - 1] : NULL;
}
