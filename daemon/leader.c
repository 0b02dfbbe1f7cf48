/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The leader's loop and its mail (leader.h).
 *
 * In:   mail from control; sessions' rings.
 * Out:  sessions' requests handed to intake.c; finished jobs answered.
 * Next: intake.c.
 *
 * It spins for a bounded time when nothing is to be done, then parks in epoll on the sessions'
 * wake sockets (R4): an idle daemon uses no CPU.
 */
#include <errno.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "../kernels/cpu.h"
#include "../shm/futex.h"
#include "collapse.h"
#include "events.h"
#include "lead.h"
#include "log.h"
#include "publish.h"
#include "scrub.h"

enum { CLOSE_SLICE = 64, COPY_KEEP = 4 << 20, PARK_EVENTS = 64, BLOCKED_MS = 1 };

/* ---- Sessions ---- */

static int watch(struct leader *l, int fd, void *what)
{
	struct epoll_event ev = {.events = EPOLLIN, .data.ptr = what};

	return epoll_ctl(l->park_fd, EPOLL_CTL_ADD, fd, &ev) ? -errno : 0;
}

/* They count as its engine's. */
static void free_params(struct lead_session *ls)
{
	for (uint32_t i = 0; i < ATTND_MAX_PARAMS; i++) {
		params_free(ls->params[i]);
		ls->params[i] = NULL;
	}
}

static void session_free(struct lead_session *ls)
{
	limits_leave(ls);
	free(ls->queue);
	free(ls);
}

/*
 * The client may have mapped its region already and may write all of it: the numbers of entries
 * are read once, and what is read has to be that region's size.
 */
static bool init_rings(struct lead_session *ls, const struct session *s)
{
	struct attnd_session_region *r = s->shared;
	uint32_t sq = *(volatile uint32_t *)&r->sq_entries, cq = *(volatile uint32_t *)&r->cq_entries;
	size_t sq_bytes = sq * sizeof(struct attnd_sqe), cq_bytes = cq * sizeof(struct attnd_cqe);
	char *base = (char *)r + sizeof(*r);

	if (sq > ATTND_MAX_ENTRIES || !sq || (sq & (sq - 1)) || cq > ATTND_MAX_ENTRIES || !cq || (cq & (cq - 1)) ||
	    sizeof(*r) + sq_bytes + cq_bytes > s->region.bytes)
		return false;
	attnd_ring_init(&ls->sq, base, sq, sizeof(struct attnd_sqe));
	attnd_ring_init(&ls->cq, base + sq_bytes, cq, sizeof(struct attnd_cqe));
	ls->cq_entries = cq;
	return true;
}

static int session_add(struct leader *l, struct session *s)
{
	struct lead_session *ls = calloc(1, sizeof(*ls));
	int r;

	if (!ls)
		return -ENOMEM;
	if (!init_rings(ls, s)) {
		session_free(ls);
		return -EPROTO;
	}
	ls->queue = calloc(ls->cq_entries, sizeof(*ls->queue));
	ls->session = s;
	/* What an unmapped uid does is counted where no client looks. */
	if (!ls->queue || limits_enter(l, ls) ||
	    realm_get(&l->realms, s->overflow_uid ? "overflow" : s->realm, &ls->realm)) {
		session_free(ls);
		return -ENOMEM;
	}
	r = watch(l, s->wake_fd, ls); /* or nobody would hear it */
	if (r) {
		session_free(ls);
		return r;
	}
	s->lead.priv = ls;
	ls->next = l->sessions;
	l->sessions = ls;
	realm_count(ls->realm, sessions, 1);
	return 0;
}

/*
 * Its rings are stopped already. First its job ends, then its plans, then, if it was the last of
 * its engine, the sequences, in slices. Returns true when nothing of it is left.
 */
static bool session_wind_down(struct leader *l, struct lead_session *ls)
{
	struct lead_session **p;

	if (ls->running)
		return false;
	if (ls->plans) {
		plan_end(ls->plans);
		return false;
	}
	if (ls->engine && ls->engine->sessions == 1 && engine_close_some(ls->engine, CLOSE_SLICE))
		return false;
	free_params(ls);
	if (ls->engine)
		engine_leave(&l->engines, ls->engine);
	for (p = &l->sessions; *p != ls; p = &(*p)->next)
		;
	*p = ls->next;
	realm_count(ls->realm, sessions, -1);
	epoll_ctl(l->park_fd, EPOLL_CTL_DEL, ls->session->wake_fd, NULL);
	ls->session->lead.priv = NULL;
	mailbox_send(l->control, &(struct mail){.type = MAIL_SESSION_FREED, .session = ls->session});
	session_free(ls);
	return true;
}

static void session_stop(struct lead_session *ls)
{
	ls->ending = true;
	ls->queue_num = 0;
	seq_open_abort(&ls->opening);
	wait_drop_all(ls);
	if (ls->running) {
		ls->job_request.give_up = -ECONNRESET;
		atomic_store_explicit(&ls->job.team.cancelled, true, memory_order_relaxed);
	}
}

/* ---- Mail ---- */

static void segment_drop(struct leader *l, struct lead_session *ls, uint32_t index)
{
	struct attnd_region *s = &ls->session->lead.segments[index];

	mailbox_send(l->control, &(struct mail){.type = MAIL_SEGMENT_DONE,
						.session = ls->session,
						.index = index,
						.region = *s,
						.status = s->base ? 0 : -ENOENT});
	*s = ATTND_REGION_NONE;
	ls->drop_segments &= ~(UINT32_C(1) << index);
}

static void segment_add(struct leader *l, const struct mail *m)
{
	struct attnd_region *s = &m->session->lead.segments[m->index];
	int status = s->base ? -EEXIST : 0;

	if (!status)
		*s = m->region;
	mailbox_send(l->control, &(struct mail){.type = MAIL_SEGMENT_DONE,
						.session = m->session,
						.index = m->index,
						.region = m->region,
						.status = status});
}

static void owner_gone(struct leader *l, const struct session *s)
{
	for (struct engine *e = l->engines.first; e; e = e->next)
		if (e->owner == s->id)
			e->dead = true;
}

static void read_mail(struct leader *l, const struct mail *m)
{
	struct lead_session *ls = m->session ? m->session->lead.priv : NULL;
	int r;

	switch (m->type) {
	case MAIL_SESSION_ADD:
		r = session_add(l, m->session);
		if (r) {
			log_warn("session %u: refused: %s", m->session->id, strerror(-r));
			mailbox_send(l->control, &(struct mail){.type = MAIL_SESSION_BAD, .session = m->session});
		}
		break;
	case MAIL_SESSION_END:
		if (ls)
			session_stop(ls);
		else
			mailbox_send(l->control, &(struct mail){.type = MAIL_SESSION_FREED, .session = m->session});
		break;
	case MAIL_SEGMENT_ADD:
		segment_add(l, m);
		break;
	case MAIL_SEGMENT_DEL:
		if (ls && ls->running)
			ls->drop_segments |= UINT32_C(1) << m->index;
		else if (ls)
			segment_drop(l, ls, m->index);
		break;
	case MAIL_OWNER_GONE:
		owner_gone(l, m->session);
		if (ls)
			ls->owner_gone = true;
		break;
	case MAIL_ADMIN:
		if (!manage_begin(l, m))
			mailbox_send(l->control, &(struct mail){.type = MAIL_ADMIN_DONE,
								.cookie = m->cookie,
								.command = m->command,
								.metrics = metrics_take(l, m->command),
								.reply = report_make(l, m->command)});
		json_decref(m->args);
		break;
	case MAIL_LIMITS:
		manage_limits(l, &m->limits);
		publisher_rules(l->publisher, &m->rules);
		break;
	case MAIL_STOP:
		l->stopping = true;
		break;
	case MAIL_BEAT: {
		struct mail beat = {.type = MAIL_BEAT_DONE};

		beat_take(l, &beat.beat);
		mailbox_send(l->control, &beat);
		break;
	}
	default:
		break;
	}
}

/* ---- One round ---- */

static void finish_job(struct leader *l, struct lead_session *ls)
{
	struct answer a;

	team_retire(&l->team, &ls->job.team);
	a = submit_done(ls);
	if (a.res == -EINPROGRESS)
		return;
	ls->running = false;
	watch_done(&l->watch, ls, &ls->job_request, &a);
	if (!ls->ending)
		reply_put(ls, ls->job_request.sqe.user_data, &a);
	for (uint32_t i = 0; ls->drop_segments; i++)
		if (ls->drop_segments >> i & 1)
			segment_drop(l, ls, i);
}

/* A running job: has it finished, or run out of time? */
static bool look_at_job(struct leader *l, struct lead_session *ls)
{
	if (atomic_load_explicit(&ls->job.team.finished, memory_order_acquire)) {
		finish_job(l, ls);
		return true;
	}
	if (l->now > ls->job_request.deadline_ns && !ls->job_request.give_up) {
		ls->job_request.give_up = -ETIMEDOUT;
		atomic_store_explicit(&ls->job.team.cancelled, true, memory_order_relaxed);
	}
	return false;
}

static bool serve(struct leader *l, struct lead_session *ls)
{
	bool did = ls->running && look_at_job(l, ls);

	if (ls->ending)
		return session_wind_down(l, ls) || did || !ls->running;
	if (l->stopping) {
		reply_wake(ls);
		return did;
	}
	if (!ls->bad) {
		did |= intake_take(l, ls) != 0;
		if (ls->bad)
			mailbox_send(l->control, &(struct mail){.type = MAIL_SESSION_BAD, .session = ls->session});
	}
	did |= intake_run(l, ls) != 0;
	did |= ls->waits && wait_look(l, ls);
	reply_wake(ls);
	return did;
}

static bool close_dead_engines(struct leader *l)
{
	bool did = false;

	for (struct engine *e = l->engines.first; e; e = e->next)
		if (e->dead)
			did |= engine_close_some(e, CLOSE_SLICE) != 0;
	return did;
}

/* Mail and rings. Returns true if there was anything to do. */
static bool look_around(struct leader *l)
{
	struct lead_session *next;
	struct mail m;
	bool did = false;

	l->now = attnd_now_ns();
	did = watch_round(&l->watch, l->now);
	manage_expire(l);
	while (atomic_load_explicit(&l->inbox.waiting, memory_order_acquire) && mailbox_take(&l->inbox, &m)) {
		read_mail(l, &m);
		did = true;
	}
	for (struct lead_session *ls = l->sessions; ls; ls = next) {
		next = ls->next;
		did |= serve(l, ls);
	}
	return close_dead_engines(l) || did;
}

/* Between two slices of a long item: this is inside team_help. */
static void poll_rings(void *ctx)
{
	(void)look_around(ctx);
}

/* When there is nothing else: a little of what may wait. */
static bool idle_slice(struct leader *l)
{
	for (uint32_t i = 0; i < ATTND_MAX_POOL_CACHES; i++)
		if (l->pool.caches[i] && (collapse_step(l->pool.caches[i]) || scrub_step(l->pool.caches[i]) ||
					  cache_shrink(l->pool.caches[i])))
			return true;
	return false;
}

static bool round_once(struct leader *l)
{
	bool did = look_around(l);

	did |= manage_slice(l);
	did |= cache_bury(&l->pool);
	did |= slabs_step(&l->pool);
	return team_help(&l->team) || did || idle_slice(l);
}

/* ---- Parking ---- */

static void set_parked(struct leader *l, uint32_t parked)
{
	for (struct lead_session *ls = l->sessions; ls; ls = ls->next)
		atomic_store_explicit(&ls->session->shared->need_wakeup, parked, memory_order_relaxed);
	atomic_store_explicit(&l->team.leader_parked, parked, memory_order_relaxed);
	/* R4: flags first, then the last look; pairs with the client's fence between entry and flag. */
	atomic_thread_fence(memory_order_seq_cst);
}

/* How long it may sleep: ms, -1 for ever, 0 if there is something to do after all. */
static int park_time(struct leader *l)
{
	uint64_t until = l->pins_until, now = attnd_now_ns();
	int64_t room;
	int most = -1;

	if (atomic_load_explicit(&l->inbox.waiting, memory_order_acquire))
		return 0;
	for (struct lead_session *ls = l->sessions; ls; ls = ls->next) {
		if (ls->running) {
			if (atomic_load_explicit(&ls->job.team.finished, memory_order_acquire))
				return 0;
			if (!ls->job_request.give_up && ls->job_request.deadline_ns < until)
				until = ls->job_request.deadline_ns;
		}
		if (ls->waits && ls->waits_seen != l->engines.twins.stirs)
			return 0;
		if (ls->waits && ls->waits_until < until)
			until = ls->waits_until;
		if (ls->queue_num)
			most = BLOCKED_MS; /* waits for another session's job */
		if (ls->bad || ls->ending || l->stopping || !attnd_ring_ready(&ls->sq))
			continue;
		room = reply_room(ls);
		if (room < 0 || limits_in_flight(l, ls, room) > 0)
			return 0;
		most = BLOCKED_MS; /* the client does not read its completions, or has enough in flight */
	}
	if (until != UINT64_MAX) {
		uint64_t ms = until > now ? (until - now) / 1000000 + 1 : 1;

		most = most >= 0 && (uint64_t)most < ms ? most : (int)(ms < 1000 ? ms : 1000);
	}
	return most;
}

/* A wake socket has bytes, or its other end is gone. */
static void drain(struct leader *l, struct lead_session *ls, uint32_t events)
{
	char buf[256];
	ssize_t n;
	int i = 0;

	do
		n = recv(ls->session->wake_fd, buf, sizeof(buf), MSG_DONTWAIT);
	while (n > 0 && ++i < 16);
	if (n == 0 || (events & (EPOLLHUP | EPOLLERR)))
		epoll_ctl(l->park_fd, EPOLL_CTL_DEL, ls->session->wake_fd, NULL);
}

static void park(struct leader *l)
{
	struct epoll_event ev[PARK_EVENTS];
	uint64_t count;
	int ms, n = 0;

	if (l->copy_bytes > COPY_KEEP) {
		free(l->copy);
		l->copy = NULL;
		l->copy_bytes = 0;
	}
	set_parked(l, 1);
	ms = park_time(l);
	if (ms)
		n = epoll_wait(l->park_fd, ev, PARK_EVENTS, ms);
	set_parked(l, 0);
	for (int i = 0; i < n; i++) {
		if (ev[i].data.ptr == &l->team_fd)
			(void)!read(l->team_fd, &count, sizeof(count));
		else if (ev[i].data.ptr != &l->inbox)
			drain(l, ev[i].data.ptr, ev[i].events);
	}
}

static bool any_running(const struct leader *l)
{
	for (const struct lead_session *ls = l->sessions; ls; ls = ls->next)
		if (ls->running)
			return true;
	return false;
}

static void *leader_main(void *arg)
{
	struct leader *l = arg;
	uint64_t spin = (uint64_t)l->cfg->spin_us * 1000, last = attnd_now_ns();

	pthread_setname_np(pthread_self(), "attnd-leader");
	team_pin(&l->team.members[0]);
	for (;;) {
		if (round_once(l)) {
			last = attnd_now_ns();
			continue;
		}
		if (l->stopping && !any_running(l))
			break;
		if (attnd_now_ns() - last < spin)
			attnd_pause();
		else
			park(l);
	}
	mailbox_send(l->control, &(struct mail){.type = MAIL_STOPPED});
	return NULL;
}

/* ---- Start and end ---- */

static int make_fds(struct leader *l)
{
	int r;

	l->park_fd = epoll_create1(EPOLL_CLOEXEC);
	l->team_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (l->park_fd < 0 || l->team_fd < 0)
		return -errno;
	r = watch(l, l->team_fd, &l->team_fd);
	return r ? r : watch(l, l->inbox.fd, &l->inbox);
}

int leader_start(const struct config *cfg, uint64_t instance, struct mailbox *to_control, struct leader **ret)
{
	struct leader *l = aligned_alloc(128, (sizeof(*l) + 127) / 128 * 128);
	uint64_t mask = UINT64_MAX;
	char text[256];
	int r;

	if (!l)
		return -ENOMEM;
	memset(l, 0, sizeof(*l));
	l->cfg = cfg;
	l->control = to_control;
	l->park_fd = l->team_fd = l->inbox.fd = -1;
	l->pins_until = UINT64_MAX;
	l->pool.meta_region = ATTND_REGION_NONE; /* so that a half-made leader closes nothing that is not its own */
	for (int i = 0; i < POOL_MAX_NODES; i++)
		l->pool.nodes[i] = ATTND_REGION_NONE;
	realm_table_init(&l->realms, instance);
	l->realms.peek_entries = cfg->peek_entries;
	l->engines.ns = &l->ns;
	if (cfg->cpu_mask && *cfg->cpu_mask)
		(void)attnd_features_parse_mask(cfg->cpu_mask, &mask);
	l->features = attnd_features() & mask;
	attnd_features_format(l->features, text, sizeof(text));
	log_info("kernels: %s (%s)", attnd_isa_name(l->features), text);
	topology_init(&l->topology, cfg->numa);
	r = mailbox_init(&l->inbox);
	if (!r)
		r = ns_init(&l->ns);
	if (!r)
		r = pool_init(&l->pool, cfg, &l->topology);
	if (!r) {
		const struct limits limits = limits_of(cfg);

		l->engines.heap.max = heap_max(l->pool.num_slabs * l->pool.slab_bytes * l->pool.num_nodes);
		manage_limits(l, &limits);
		r = restore_pool(&l->pool, &l->ns, &l->realms, l->features);
	}
	if (!r)
		r = make_fds(l);
	if (!r)
		r = team_init(&l->team, &l->topology, cfg->threads ? cfg->threads : topology_cpus(&l->topology),
			      cfg->pin, cfg->spin_us, l->team_fd);
	l->pool.watch = &l->watch;
	if (!r && strcmp(cfg->events_socket, "none"))
		r = events_create(&l->pool, cfg->events_queue, &l->watch.events);
	if (!r && l->watch.events)
		r = publisher_start(cfg, l->watch.events, &l->inbox, &l->publisher);
	l->team.poll = poll_rings;
	l->team.poll_ctx = l;
	if (!r)
		r = -pthread_create(&l->thread, NULL, leader_main, l);
	if (r) {
		if (r != -EINTR)
			log_err("leader: cannot start: %s", strerror(-r));
		leader_destroy(l);
		return r;
	}
	l->thread_started = true;
	*ret = l;
	return 0;
}

struct mailbox *leader_mailbox(struct leader *l)
{
	return &l->inbox;
}

int leader_lookup_fd(struct leader *l, const char *realm, int *ret_fd, uint64_t *ret_bytes)
{
	struct realm *m;
	int r = realm_get(&l->realms, realm, &m);

	if (r)
		return r;
	*ret_fd = m->client_fd;
	*ret_bytes = m->region.bytes;
	return 0;
}

void leader_unlink(const struct leader *l)
{
	publisher_unlink(l->publisher);
}

void leader_destroy(struct leader *l)
{
	if (!l)
		return;
	if (l->thread_started)
		pthread_join(l->thread, NULL);
	if (l->team.members)
		team_destroy(&l->team);
	while (l->sessions) {
		struct lead_session *ls = l->sessions;

		ls->running = false;
		while (!session_wind_down(l, ls))
			;
	}
	manage_end(l);
	publisher_stop(l->publisher);
	l->pool.watch = NULL;
	events_destroy(l->watch.events);
	limits_destroy(l);
	if (l->pool.restore.by)
		restore_leave(&l->pool);
	for (uint32_t i = 0; i < ATTND_MAX_POOL_CACHES; i++)
		cache_destroy(l->pool.caches[i]);
	pool_destroy(&l->pool);
	twin_table_destroy(&l->engines.twins);
	ns_destroy(&l->ns);
	realm_table_destroy(&l->realms);
	mailbox_destroy(&l->inbox);
	if (l->park_fd >= 0)
		close(l->park_fd);
	if (l->team_fd >= 0)
		close(l->team_fd);
	free(l->copy);
	free(l);
}
