/* SPDX-License-Identifier: Apache-2.0 */
/* The team (team.h). */
#include "team.h"

#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "../shm/futex.h"

#define SLEEP_NS UINT64_C(1000000000)
#define SLICE_NS UINT64_C(100000)

bool member_reserve(void **p, size_t *have, size_t bytes)
{
	void *q;

	if (bytes <= *have)
		return true;
	if (posix_memalign(&q, 64, bytes))
		return false;
	free(*p);
	*p = q;
	*have = bytes;
	return true;
}

/* Tell members that sleep; pairs with the fence in rest(). */
static void call_members(struct team *t)
{
	atomic_fetch_add_explicit(&t->seq, 1, memory_order_seq_cst);
	if (atomic_load_explicit(&t->sleepers, memory_order_seq_cst))
		attnd_futex_wake(&t->seq, INT32_MAX);
}

static void call_leader(struct team *t)
{
	uint64_t one = 1;

	/* Pairs with the fence that the leader has between parking and its last look. */
	atomic_thread_fence(memory_order_seq_cst);
	if (atomic_load_explicit(&t->leader_parked, memory_order_relaxed))
		(void)!write(t->leader_fd, &one, sizeof(one));
}

static uint32_t phase_items(const struct team_job *job, uint32_t phase)
{
	return job->phases[phase].first[job->num_nodes];
}

/* The first phase from `phase` on that has items, or TEAM_PHASES. */
static uint32_t next_phase(const struct team_job *job, uint32_t phase)
{
	while (phase < TEAM_PHASES && !phase_items(job, phase))
		phase++;
	return phase;
}

static void open_phase(struct team_job *job, uint32_t phase)
{
	atomic_store_explicit(&job->done, 0, memory_order_relaxed);
	for (uint32_t n = 0; n < job->num_nodes; n++)
		atomic_store_explicit(&job->ticket[n], (uint64_t)phase << 32, memory_order_release);
}

/* Returns true if this was the job's last item. */
static bool finish_item(struct team *t, struct team_job *job, uint32_t phase)
{
	if (atomic_fetch_add_explicit(&job->done, 1, memory_order_acq_rel) + 1 < phase_items(job, phase))
		return false;
	phase = next_phase(job, phase + 1);
	if (phase == TEAM_PHASES) {
		atomic_store_explicit(&job->finished, true, memory_order_release);
		return true;
	}
	open_phase(job, phase);
	if (t) {
		call_members(t);
		call_leader(t); /* it may have parked while others had the last items of the phase before */
	}
	return false;
}

/* Take a ticket of a node; false: none is left. */
static bool take_item(struct team_job *job, uint32_t node, uint32_t *ret_phase, uint32_t *ret_item)
{
	uint64_t ticket = atomic_load_explicit(&job->ticket[node], memory_order_acquire);
	const uint32_t *first;

	for (int i = 0; i < 2; i++) { /* a look first, so that idle members do not count tickets up */
		uint32_t phase = (uint32_t)(ticket >> 32);

		if (phase >= TEAM_PHASES)
			return false;
		first = &job->phases[phase].first[node];
		if ((uint32_t)ticket >= first[1] - first[0])
			return false;
		if (!i)
			ticket = atomic_fetch_add_explicit(&job->ticket[node], 1, memory_order_acq_rel);
	}
	*ret_phase = (uint32_t)(ticket >> 32);
	*ret_item = *first + (uint32_t)ticket;
	return true;
}

/* The owner alone writes it, so load and store suffice. */
static void count_slice(struct member *m, uint64_t n)
{
	atomic_store_explicit(&m->slices, atomic_load_explicit(&m->slices, memory_order_relaxed) + n,
			      memory_order_relaxed);
}

static bool run_one(struct team *t, struct team_job *job, struct member *m)
{
	uint32_t phase = 0, item = 0, n;

	for (n = 0; n < job->num_nodes; n++) {
		uint32_t node = (m->node + n) % job->num_nodes;

		/* Alone, the leader does everything; else each node's own members, if it has any. */
		if (t && n && t->on_node[node])
			continue;
		if (take_item(job, node, &phase, &item))
			break;
	}
	if (n == job->num_nodes)
		return false;
	count_slice(m, m->depth ? 2 : 1);
	if (!atomic_load_explicit(&job->cancelled, memory_order_relaxed))
		job->run(job, phase, item, m);
	count_slice(m, m->depth ? 2 : 1);
	if (finish_item(t, job, phase) && t)
		call_leader(t);
	return true;
}

/* One item of a job of this kind. `users` keeps the job alive while we look. */
static bool work_on(struct team *t, struct member *m, bool urgent)
{
	bool did = false;

	for (uint32_t i = 0, first = m->look; i < TEAM_JOBS && !did; i++) {
		struct team_slot *s = &t->slots[(first + i) % TEAM_JOBS];
		struct team_job *job;

		if (!atomic_load_explicit(&s->job, memory_order_relaxed))
			continue;
		atomic_fetch_add_explicit(&s->users, 1, memory_order_seq_cst);
		job = atomic_load_explicit(&s->job, memory_order_seq_cst);
		if (job && job->urgent == urgent) {
			m->look = (first + i + 1) % TEAM_JOBS;
			did = run_one(t, job, m);
		}
		atomic_fetch_sub_explicit(&s->users, 1, memory_order_release);
	}
	return did;
}

static bool work_urgent(struct team *t, struct member *m)
{
	uint64_t before;
	bool did;

	if (!atomic_load_explicit(&t->urgent, memory_order_acquire))
		return false;
	m->slice_ns = before = attnd_now_ns();
	did = work_on(t, m, true);
	m->urgent_ns += attnd_now_ns() - before;
	return did;
}

static bool work_other(struct team *t, struct member *m)
{
	m->slice_ns = attnd_now_ns();
	if (!work_on(t, m, false))
		return false;
	m->urgent_ns = 0;
	return true;
}

static bool work(struct team *t, struct member *m)
{
	if (m->urgent_ns > 4 * SLICE_NS && work_other(t, m))
		return true;
	return work_urgent(t, m) || work_other(t, m);
}

void team_pause(struct member *m, const struct team_job *job)
{
	struct team *t = m->team;
	uint64_t now, slice;

	count_slice(m, 2);
	if (m->depth || (job->urgent && m->index))
		return;
	now = attnd_now_ns();
	slice = now - m->slice_ns;
	if (slice < SLICE_NS / 2)
		return; /* goes on: a slice may be several chunks */
	m->depth = 1;
	if (!m->index && t->poll)
		t->poll(t->poll_ctx);
	m->urgent_ns = 0;
	while (!job->urgent && m->urgent_ns < 4 * slice && work_urgent(t, m))
		;
	m->urgent_ns = 0;
	m->depth = 0;
	m->slice_ns = attnd_now_ns();
}

static void rest(struct team *t, uint32_t seq)
{
	uint64_t until = attnd_now_ns() + t->spin_ns;

	do {
		for (int i = 0; i < 32; i++) {
			if (atomic_load_explicit(&t->seq, memory_order_acquire) != seq)
				return;
			attnd_pause();
		}
	} while (attnd_now_ns() < until);
	atomic_fetch_add_explicit(&t->sleepers, 1, memory_order_seq_cst);
	if (atomic_load_explicit(&t->seq, memory_order_seq_cst) == seq)
		(void)attnd_futex_wait(&t->seq, seq, SLEEP_NS);
	atomic_fetch_sub_explicit(&t->sleepers, 1, memory_order_relaxed);
}

void team_pin(const struct member *m)
{
	cpu_set_t set;

	if (!m->team->pin)
		return;
	CPU_ZERO(&set);
	CPU_SET(m->cpu, &set);
	(void)pthread_setaffinity_np(pthread_self(), sizeof(set), &set);
}

static void *member_main(void *arg)
{
	struct member *m = arg;
	struct team *t = m->team;
	char name[16];

	snprintf(name, sizeof(name), "attnd-%u.%u", m->node % 100, m->index % 1000);
	pthread_setname_np(pthread_self(), name);
	team_pin(m);
	while (!atomic_load_explicit(&t->stop, memory_order_acquire)) {
		uint32_t seq = atomic_load_explicit(&t->seq, memory_order_acquire);

		if (!work(t, m))
			rest(t, seq);
	}
	return NULL;
}

int team_init(struct team *t, const struct topology *topology, uint32_t threads, bool pin, uint64_t spin_us,
	      int leader_fd)
{
	t->members = calloc(threads, sizeof(*t->members));
	if (!t->members)
		return -ENOMEM;
	t->pin = pin;
	t->spin_ns = spin_us * 1000;
	t->leader_fd = leader_fd;
	for (uint32_t i = 0; i < threads; i++) {
		struct member *m = &t->members[i];

		m->team = t;
		m->index = i;
		topology_place(topology, i, &m->node, &m->cpu);
		t->on_node[m->node]++;
	}
	t->num_members = 1;
	while (t->num_members < threads) {
		struct member *m = &t->members[t->num_members];
		int r = pthread_create(&m->thread, NULL, member_main, m);

		if (r) {
			team_destroy(t);
			return -r;
		}
		t->num_members++;
	}
	return 0;
}

void team_destroy(struct team *t)
{
	atomic_store_explicit(&t->stop, true, memory_order_release);
	call_members(t);
	for (uint32_t i = 0; i < t->num_members; i++) {
		struct member *m = &t->members[i];

		if (i)
			pthread_join(m->thread, NULL);
		for (int d = 0; d < 2; d++) {
			free(m->memory[d].scratch);
			free(m->memory[d].partials);
			free(m->memory[d].blocks);
			free(m->memory[d].flags);
		}
	}
	free(t->members);
	t->members = NULL;
	t->num_members = 0;
}

static void job_start(struct team_job *job)
{
	uint32_t phase = next_phase(job, 0);

	atomic_store_explicit(&job->finished, phase == TEAM_PHASES, memory_order_relaxed);
	open_phase(job, phase);
}

bool team_has_room(const struct team *t)
{
	for (int i = 0; i < TEAM_JOBS; i++)
		if (!atomic_load_explicit(&t->slots[i].job, memory_order_relaxed))
			return true;
	return false;
}

bool team_submit(struct team *t, struct team_job *job)
{
	job_start(job);
	for (int i = 0; i < TEAM_JOBS; i++) {
		if (atomic_load_explicit(&t->slots[i].job, memory_order_relaxed))
			continue;
		if (job->urgent)
			atomic_fetch_add_explicit(&t->urgent, 1, memory_order_relaxed);
		atomic_store_explicit(&t->slots[i].job, job, memory_order_seq_cst);
		call_members(t);
		return true;
	}
	return false;
}

bool team_help(struct team *t)
{
	return work(t, &t->members[0]);
}

void team_retire(struct team *t, struct team_job *job)
{
	for (int i = 0; i < TEAM_JOBS; i++) {
		struct team_slot *s = &t->slots[i];

		if (atomic_load_explicit(&s->job, memory_order_relaxed) != job)
			continue;
		/* A member counts itself before it looks: after this store, users == 0 means nobody can. */
		if (job->urgent)
			atomic_fetch_sub_explicit(&t->urgent, 1, memory_order_relaxed);
		atomic_store_explicit(&s->job, NULL, memory_order_seq_cst);
		while (atomic_load_explicit(&s->users, memory_order_seq_cst))
			sched_yield(); /* a last look, some instructions: wait only for one that lost its CPU */
		return;
	}
}

void team_run_alone(struct team *t, struct team_job *job)
{
	struct member *m = &t->members[0];
	uint32_t depth = m->depth;

	job_start(job);
	m->depth = 1; /* no pause: the session it belongs to is in the middle of a request */
	while (!atomic_load_explicit(&job->finished, memory_order_relaxed))
		(void)run_one(NULL, job, m);
	m->depth = depth;
}
