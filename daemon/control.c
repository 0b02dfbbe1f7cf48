/* SPDX-License-Identifier: Apache-2.0 */
/*
 * In:   sockets, signals, letters. Out: calls of clients.c and admin.c; the orderly end.
 * Next: clients.c, admin.c; leader.c by mail.
 */
#include "control.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/signalfd.h>
#include <systemd/sd-daemon.h>
#include <unistd.h>

#include "../shm/futex.h"
#include "admin.h"
#include "clients.h"
#include "http.h"
#include "log.h"

#define MS	  UINT64_C(1000000) /* in nanoseconds */
#define ACCEPT_NS (100 * MS)
#define STATUS_NS (10000 * MS)

/* ---- The end ---- */

static void stop_now(struct control *c)
{
	loop_stop(c->loop);
}

/* First call: let the leader finish; second: end at once. */
static void stop(struct control *c, const char *why)
{
	const struct mail letter = {.type = MAIL_STOP};

	if (c->draining || !c->cfg.drain_on_term) {
		log_info("%s: ending at once", why);
		stop_now(c);
		return;
	}
	log_info("%s: draining %u sessions", why, c->num_sessions);
	sd_notify(0, "STOPPING=1\nSTATUS=draining");
	c->draining = true;
	loop_remove(c->loop, c->accept);
	loop_remove(c->loop, c->admin_accept);
	c->accept = c->admin_accept = NULL;
	loop_set_timer(c->loop, c->accept_again, UINT64_MAX);
	loop_set_timer(c->loop, c->drain_deadline, loop_now(c->loop) + c->cfg.drain_timeout * 1000 * MS);
	if (control_mail(c, &letter))
		stop_now(c);
}

static void on_drain_deadline(void *arg, uint32_t events)
{
	struct control *c = arg;

	(void)events;
	log_warn("not drained within %u s: ending", c->cfg.drain_timeout);
	stop_now(c);
}

/* ---- Signals and the starter's descriptor ---- */

static int load_rules(struct control *c)
{
	struct tenant_rules tenants;
	struct peer_rules rules;

	if (peer_list_parse(c->cfg.allow_users, PEER_USERS, &rules.users) ||
	    peer_list_parse(c->cfg.allow_groups, PEER_GROUPS, &rules.groups) ||
	    tenant_rules_parse(c->cfg.tenants, &tenants))
		return -EINVAL;
	c->rules = rules;
	c->tenants = tenants;
	return 0;
}

static void reload_config(struct control *c)
{
	struct config fresh;
	char text[600];

	if (config_load(&fresh, c->argv, environ, text, sizeof(text))) {
		log_err("not reloaded: %s", text);
		return;
	}
	config_reload(&c->cfg, &fresh, text, sizeof(text));
	config_free(&fresh);
	if (*text)
		log_warn("these wait for a restart: %s", text);
	if (load_rules(c))
		log_err("allow-users, allow-groups, tenants: a name is gone; the rules stay as they were");
	log_set_level((enum log_level)c->cfg.log_level);
	if (control_mail(c, &(struct mail){.type = MAIL_LIMITS, .limits = limits_of(&c->cfg), .rules = c->rules}))
		log_err("no memory to change the cache's limits");
	log_info("configuration reloaded");
}

static void reload(struct control *c)
{
	sd_notifyf(0, "RELOADING=1\nMONOTONIC_USEC=%llu", (unsigned long long)(attnd_now_ns() / 1000));
	reload_config(c);
	sd_notify(0, "READY=1");
}

static void on_signal(void *arg, uint32_t events)
{
	struct control *c = arg;
	struct signalfd_siginfo info;

	(void)events;
	if (read(c->signal_fd, &info, sizeof(info)) != sizeof(info))
		return;
	if (info.ssi_signo == SIGHUP)
		reload(c);
	else
		stop(c, strsignal((int)info.ssi_signo));
}

/* Its other end says nothing: what can be read is thrown away, the end of file ends us. */
static void on_private_fd(void *arg, uint32_t events)
{
	struct control *c = arg;
	int fd = c->cfg.private_fd, waiting = 0;
	char buf[256];

	if (ioctl(fd, FIONREAD, &waiting) == 0 && waiting > 0 && !(events & POLLERR)) {
		/* The descriptor may be shared: take what is there, wait for nothing. */
		if (read(fd, buf, (size_t)waiting < sizeof(buf) ? (size_t)waiting : sizeof(buf)) > 0)
			return;
	}
	loop_remove(c->loop, c->private_fd);
	c->private_fd = NULL;
	stop(c, "the starting process has ended");
}

/* ---- The heartbeat ---- */

/* Asked for by time, but the watchdog is fed by the engine's answer: leader and workers get on. */
static void on_heart(void *arg, uint32_t events)
{
	struct control *c = arg;

	(void)events;
	if (!c->beat_asked && control_mail(c, &(struct mail){.type = MAIL_BEAT}) == 0)
		c->beat_asked = true;
	loop_set_timer(c->loop, c->heart, loop_now(c->loop) + c->beat_ns);
}

static void on_beat(struct control *c, const struct beat *beat)
{
	c->beat_asked = false;
	c->beat = *beat;
	if (beat->stuck)
		log_warn("a worker has been in one piece of work since the last heartbeat");
	else if (c->watched)
		sd_notify(0, "WATCHDOG=1");
	control_notify(c);
}

static uint64_t percent(uint64_t part, uint64_t whole)
{
	return whole ? (uint64_t)((double)part / (double)whole * 100) : 0;
}

void control_notify(const struct control *c)
{
	const struct beat *b = &c->beat;

	if (!c->draining && c->beat_ns)
		sd_notifyf(0, "STATUS=%u sessions, hit rate %llu%%, pool %llu of %llu MiB used", c->num_sessions,
			   (unsigned long long)percent(b->hit_tokens, b->query_tokens),
			   (unsigned long long)(b->used_bytes >> 20), (unsigned long long)(b->pool_bytes >> 20));
}

/* Without a limit of systemd's the heartbeat only keeps its status line right. */
static void set_heart(struct control *c)
{
	uint64_t us = 0;

	c->watched = sd_watchdog_enabled(0, &us) > 0;
	if (c->watched)
		c->beat_ns = us * 1000 / 4;
	else if (getenv("NOTIFY_SOCKET"))
		c->beat_ns = STATUS_NS;
}

/* ---- Letters ---- */

static void on_mail(void *arg, uint32_t events)
{
	struct control *c = arg;
	struct mail letter;

	(void)events;
	while (mailbox_take(&c->inbox, &letter)) {
		if (letter.type == MAIL_STOPPED) {
			c->stopped = true;
			stop_now(c);
		} else if (letter.type == MAIL_ADMIN_DONE && http_mail(c->http, &letter)) {
			continue;
		} else if (letter.type == MAIL_ADMIN_DONE) {
			admin_mail(c->admin, &letter);
		} else if (letter.type == MAIL_BEAT_DONE) {
			on_beat(c, &letter.beat);
		} else {
			clients_mail(c, &letter);
		}
	}
}

int control_mail(struct control *c, const struct mail *letter)
{
	return mailbox_send(leader_mailbox(c->leader), letter);
}

/* ---- Accepting ---- */

static int watch_listeners(struct control *c)
{
	int r = 0;

	if (!c->accept)
		r = loop_add_fd(c->loop, c->listen_fd, POLLIN, clients_accept, c, &c->accept);
	if (r == 0 && !c->admin_accept)
		r = loop_add_fd(c->loop, c->admin_fd, POLLIN, admin_accept, c->admin, &c->admin_accept);
	return r;
}

static void on_accept_again(void *arg, uint32_t events)
{
	struct control *c = arg;

	(void)events;
	if (watch_listeners(c))
		loop_set_timer(c->loop, c->accept_again, loop_now(c->loop) + ACCEPT_NS);
}

void control_pause_accept(struct control *c, const char *why)
{
	log_warn("cannot accept a connection: %s", why);
	loop_remove(c->loop, c->accept);
	loop_remove(c->loop, c->admin_accept);
	c->accept = c->admin_accept = NULL;
	loop_set_timer(c->loop, c->accept_again, loop_now(c->loop) + ACCEPT_NS);
}

/* ---- Making and ending ---- */

static void signal_set(sigset_t *ret)
{
	sigemptyset(ret);
	sigaddset(ret, SIGTERM);
	sigaddset(ret, SIGINT);
	sigaddset(ret, SIGHUP);
}

void control_block_signals(void)
{
	sigset_t set;

	signal(SIGPIPE, SIG_IGN);
	signal_set(&set);
	pthread_sigmask(SIG_BLOCK, &set, NULL);
}

static int create_sources(struct control *c)
{
	sigset_t set;
	int r;

	signal_set(&set);
	c->signal_fd = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
	if (c->signal_fd < 0)
		return -errno;
	r = loop_add_fd(c->loop, c->signal_fd, POLLIN, on_signal, c, &c->signals);
	if (r == 0)
		r = loop_add_fd(c->loop, c->inbox.fd, POLLIN, on_mail, c, &c->mail);
	if (r == 0)
		r = loop_add_timer(c->loop, on_accept_again, c, &c->accept_again);
	if (r == 0)
		r = loop_add_timer(c->loop, on_drain_deadline, c, &c->drain_deadline);
	if (r == 0)
		r = loop_add_timer(c->loop, on_heart, c, &c->heart);
	if (r == 0 && c->cfg.private_fd >= 0)
		r = loop_add_fd(c->loop, c->cfg.private_fd, POLLIN, on_private_fd, c, &c->private_fd);
	return r;
}

int control_create(const struct config *cfg, char *const argv[], uint64_t instance, loop_clock_fn *clock,
		   struct control **ret)
{
	struct control *c = calloc(1, sizeof(*c));
	int r;

	if (!c)
		return -ENOMEM;
	c->argv = argv;
	c->instance = instance;
	c->signal_fd = c->listen_fd = c->admin_fd = -1;
	r = config_copy(&c->cfg, cfg);
	if (r == 0)
		r = load_rules(c);
	if (r == 0)
		r = mailbox_init(&c->inbox);
	if (r == 0)
		r = loop_create(cfg->event_loop, clock, &c->loop);
	if (r == 0)
		r = helpers_create(c->loop, &c->helpers);
	if (r == 0)
		r = admin_create(c, &c->admin);
	if (r == 0)
		r = create_sources(c);
	if (r) {
		control_destroy(c);
		return r;
	}
	c->started_ns = loop_now(c->loop);
	set_heart(c);
	*ret = c;
	return 0;
}

struct mailbox *control_mailbox(struct control *c)
{
	return &c->inbox;
}

int control_start(struct control *c, struct leader *leader, const struct listener *listener)
{
	int r;

	c->leader = leader;
	c->listen_fd = listener->shared;
	c->admin_fd = listener->admin;
	r = watch_listeners(c);
	if (r) {
		log_err("cannot watch the listening sockets: %s", strerror(-r));
		return r;
	}
	r = http_create(c, &c->http);
	if (r)
		return r;
	if (c->beat_ns)
		on_heart(c, 0);
	sd_notify(0, "READY=1");
	control_notify(c);
	return 0;
}

int control_run(struct control *c)
{
	int r = loop_run(c->loop);

	if (r)
		log_err("event loop: %s", strerror(-r));
	return r ? r : c->stopped ? 0 : -EINTR;
}

void control_destroy(struct control *c)
{
	if (!c)
		return;
	if (c->mail)
		on_mail(c, 0); /* what the leader still said */
	http_destroy(c->http);
	clients_destroy(c);
	helpers_destroy(c->helpers);
	admin_destroy(c->admin);
	loop_destroy(c->loop);
	mailbox_destroy(&c->inbox);
	if (c->signal_fd >= 0)
		close(c->signal_fd);
	config_free(&c->cfg);
	free(c);
}
