/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The fake daemon: one thread, one session at a time.
 *
 * In:   packets and entries of the library under test. Out: answers, and a log of all of them.
 * Next: fake.h says what it can do wrong.
 */
#include "fake.h"

#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "../../shm/futex.h"

/* ---- Packets ---- */

static void send_packet(int sock, const void *data, size_t bytes, const int *fds, size_t num_fds)
{
	union {
		struct cmsghdr header;
		char room[CMSG_SPACE(3 * sizeof(int))];
	} control = {0};
	struct iovec iov = {.iov_base = (void *)(uintptr_t)data, .iov_len = bytes};
	struct msghdr msg = {.msg_iov = &iov, .msg_iovlen = 1};

	if (num_fds) {
		msg.msg_control = &control;
		msg.msg_controllen = CMSG_SPACE(num_fds * sizeof(int));
		control.header.cmsg_len = CMSG_LEN(num_fds * sizeof(int));
		control.header.cmsg_level = SOL_SOCKET;
		control.header.cmsg_type = SCM_RIGHTS;
		memcpy(CMSG_DATA(&control.header), fds, num_fds * sizeof(int));
	}
	(void)!sendmsg(sock, &msg, MSG_NOSIGNAL);
}

static ssize_t receive_packet(int sock, void *data, size_t bytes, int *ret_fd)
{
	union {
		struct cmsghdr header;
		char room[CMSG_SPACE(sizeof(int))];
	} control;
	struct iovec iov = {.iov_base = data, .iov_len = bytes};
	struct msghdr msg = {
		.msg_iov = &iov, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof(control)};
	ssize_t n = recvmsg(sock, &msg, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);

	*ret_fd = -1;
	if (n > 0 && CMSG_FIRSTHDR(&msg))
		memcpy(ret_fd, CMSG_DATA(CMSG_FIRSTHDR(&msg)), sizeof(int));
	return n;
}

static struct fake_event *log_event(struct fake *f)
{
	struct fake_event *e = &f->log[f->num_log % FAKE_LOG];

	f->num_log++;
	*e = (struct fake_event){0};
	return e;
}

/* ---- The session ---- */

static void end_session(struct fake *f)
{
	if (f->sock < 0)
		return;
	close(f->sock);
	close(f->wake);
	f->sock = f->wake = -1;
	f->shared = NULL;
	attnd_region_destroy(&f->region);
	for (int i = 0; i < ATTND_MAX_SEGMENTS; i++)
		attnd_region_destroy(&f->segment[i]);
	f->num_held = 0;
	f->arena_bytes = 0;
}

static void make_region(struct fake *f, uint32_t sq, uint32_t cq)
{
	struct attnd_session_region *s;
	uint32_t sq_offset = sizeof(*s), cq_offset = sq_offset + sq * (uint32_t)sizeof(struct attnd_sqe);
	size_t bytes = cq_offset + cq * sizeof(struct attnd_cqe);

	if (attnd_region_create("fake", bytes, 0, ATTND_REGION_SEAL | ATTND_REGION_POPULATE, &f->region))
		abort();
	s = f->region.base;
	s->abi_major = ATTND_ABI_MAJOR;
	s->sq_entries = sq;
	s->cq_entries = f->how.bad_header ? 2 * cq : cq;
	s->sq_offset = sq_offset;
	s->cq_offset = cq_offset;
	s->magic = ATTND_WIRE_MAGIC;
	attnd_ring_init(&f->sq, (char *)s + sq_offset, sq, sizeof(struct attnd_sqe));
	attnd_ring_init(&f->cq, (char *)s + cq_offset, cq, sizeof(struct attnd_cqe));
	f->shared = s;
}

static void welcome(struct fake *f, const struct attnd_msg_hello *hello)
{
	struct attnd_msg_welcome w = {.magic = ATTND_WIRE_MAGIC,
				      .type = ATTND_MSG_WELCOME,
				      .abi_major = f->how.abi_major ? f->how.abi_major : ATTND_ABI_MAJOR,
				      .abi_minor = f->how.first_minor ? 0 : ATTND_ABI_MINOR,
				      .status = f->how.status,
				      .session = 1,
				      .daemon_pid = (uint32_t)getpid(),
				      .max_segments = f->how.max_segments,
				      .max_segment_bytes = f->how.max_segment_bytes,
				      .instance = f->instance};
	struct attnd_lookup_region l = {.magic = ATTND_WIRE_MAGIC, .abi_major = ATTND_ABI_MAJOR};
	int ends[2], lookup;

	if (f->how.text)
		snprintf(w.text, sizeof(w.text), "%s", f->how.text);
	if (w.status || w.abi_major != ATTND_ABI_MAJOR) {
		send_packet(f->sock, &w, sizeof(w), NULL, 0);
		return;
	}
	w.sq_entries = f->how.sq_entries ? f->how.sq_entries : hello->sq_entries;
	w.cq_entries = f->how.cq_entries ? f->how.cq_entries : hello->cq_entries;
	make_region(f, w.sq_entries, w.cq_entries);
	w.session_bytes = f->region.bytes;
	w.lookup_bytes = 4096;
	lookup = memfd_create("lookup", MFD_CLOEXEC);
	if (lookup < 0 || ftruncate(lookup, 4096) || write(lookup, &l, sizeof(l)) != sizeof(l) ||
	    socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends))
		abort();
	f->wake = ends[0];
	if (f->how.sleepy)
		atomic_store(&f->shared->need_wakeup, 1);
	send_packet(f->sock, &w, sizeof(w), (int[]){f->region.fd, lookup, ends[1]}, f->how.no_fds ? 0 : 3);
	close(lookup);
	close(ends[1]);
}

static void add_segment(struct fake *f, const struct attnd_msg_segment *m, int fd)
{
	struct attnd_msg_reply r = {.type = ATTND_MSG_REPLY};

	if (f->how.silent_segment) {
		close(fd);
		return;
	}
	if (f->arena_bytes + m->bytes > f->how.arena_max) {
		r.status = -ENOSPC;
		r.field = ATTND_FIELD_ARENA_MAX;
		r.limit = f->how.arena_max;
	} else {
		r.status = attnd_region_map_segment(fd, m->bytes, &f->segment[m->index]);
	}
	if (r.status)
		close(fd);
	else
		f->arena_bytes += m->bytes;
	send_packet(f->sock, &r, sizeof(r), NULL, 0);
}

static void take_packet(struct fake *f)
{
	union {
		struct attnd_msg_hello hello;
		struct attnd_msg_segment segment;
	} m;
	struct fake_event *e;
	int fd;
	ssize_t n = receive_packet(f->sock, &m, sizeof(m), &fd);

	if (n <= 0) {
		if (!n || errno != EAGAIN)
			end_session(f);
		return;
	}
	e = log_event(f);
	e->fds = fd >= 0;
	if (n == (ssize_t)sizeof(m.hello)) {
		e->msg = ATTND_MSG_HELLO;
		e->hello = m.hello;
		if (fd >= 0)
			close(fd);
		if (!f->how.silent)
			welcome(f, &m.hello);
	} else {
		e->msg = m.segment.type;
		e->segment = m.segment;
		add_segment(f, &m.segment, fd);
	}
}

static void *fake_ptr(struct fake *f, uint64_t offset)
{
	return (char *)f->segment[offset >> ATTND_OFFSET_SHIFT].base + (offset & ATTND_OFFSET_MASK);
}

/* ---- Entries ---- */

static void put(struct fake *f, const struct attnd_cqe *cqe)
{
	uint32_t how;

	attnd_ring_put(&f->cq, cqe);
	atomic_thread_fence(memory_order_seq_cst);
	how = atomic_load(&f->shared->cq_waiting);
	if (how == 1) {
		atomic_fetch_add(&f->shared->cq_event, 1);
		attnd_futex_wake(&f->shared->cq_event, 1);
	} else if (how == 2) {
		(void)!send(f->wake, "", 1, MSG_NOSIGNAL | MSG_DONTWAIT);
	}
}

static void answer_plan(struct fake *f, const struct attnd_sqe *e)
{
	struct attnd_wire_row_status *s = fake_ptr(f, e->plan.status);
	const struct attnd_wire_row *rows = fake_ptr(f, e->plan.rows);

	for (uint32_t i = 0; i < e->plan.num_rows; i++)
		s[i] = (struct attnd_wire_row_status){.status = i == 1 ? f->how.refuse_row : 0,
						      .cached = (uint32_t)rows[i].key};
}

/* As the protocol says, as far as the library can tell. */
static void answer(struct fake *f, const struct attnd_sqe *e, struct attnd_cqe *c)
{
	if (f->how.fail_op == e->opcode) {
		c->res = f->how.fail_status;
		c->field = f->how.fail_field;
		c->limit = f->how.fail_limit;
		return;
	}
	switch (e->opcode) {
	case ATTND_OP_ENGINE:
		if (f->has_engine != !(e->flags & ATTND_ENGINE_CREATE))
			c->res = f->has_engine ? -EEXIST : -ENOENT;
		else
			f->has_engine = true;
		break;
	case ATTND_OP_CACHE_OPEN:
		c->value = f->how.first_cache + f->caches++;
		c->value |= 64 << 16 | UINT64_C(512) << 32;
		c->limit = 123456;
		break;
	case ATTND_OP_NAMESPACE:
		c->value = f->how.first_namespace + f->namespaces++;
		break;
	case ATTND_OP_SEQ_OPEN:
		c->value = e->sequence.num_tokens;
		c->value = c->value < e->sequence.max_match ? c->value : e->sequence.max_match;
		c->value = c->value < f->how.cached ? c->value : f->how.cached;
		break;
	case ATTND_OP_PLAN:
		answer_plan(f, e);
		break;
	default:
		break;
	}
}

static void log_entry(struct fake *f, const struct attnd_sqe *sqe)
{
	struct fake_event *e = log_event(f);
	uint64_t offset = ATTND_OFFSET_NONE;
	const struct attnd_region *s;
	size_t room;

	e->sqe = *sqe;
	if (sqe->opcode == ATTND_OP_ENGINE || sqe->opcode == ATTND_OP_CACHE_OPEN ||
	    sqe->opcode == ATTND_OP_NAMESPACE || sqe->opcode == ATTND_OP_PARAMS)
		offset = sqe->obj.payload;
	else if (sqe->opcode == ATTND_OP_SEQ_OPEN || sqe->opcode == ATTND_OP_SEQ_CLOSE)
		offset = sqe->sequence.tokens;
	else if (sqe->opcode == ATTND_OP_PLAN)
		offset = sqe->plan.rows;
	if (offset == ATTND_OFFSET_NONE)
		return;
	s = &f->segment[offset >> ATTND_OFFSET_SHIFT];
	if (!s->base)
		return;
	room = s->bytes - (size_t)(offset & ATTND_OFFSET_MASK);
	memcpy(e->payload, fake_ptr(f, offset), room < FAKE_PAYLOAD ? room : FAKE_PAYLOAD);
}

static void take_entries(struct fake *f)
{
	struct attnd_sqe e;

	while (f->shared && attnd_ring_take(&f->sq, &e)) {
		struct attnd_cqe c = {.user_data = e.user_data};

		atomic_store(&f->shared->sq_head, f->sq.index);
		log_entry(f, &e);
		answer(f, &e, &c);
		c.seq = e.opcode; /* for fake_release_op; the ring puts its own */
		if (f->how.hold_op ? f->how.hold_op == e.opcode : f->how.hold)
			f->held[f->num_held++ % FAKE_HELD] = c;
		else
			put(f, &c);
	}
}

static void take_bytes(struct fake *f)
{
	char bytes[64];
	ssize_t n;

	while ((n = recv(f->wake, bytes, sizeof(bytes), MSG_DONTWAIT)) > 0)
		f->doorbells += (uint32_t)n;
}

/* ---- The thread ---- */

static void step(struct fake *f, struct pollfd p[4])
{
	if (p[0].revents & POLLIN && f->sock < 0)
		f->sock = accept4(f->listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
	if (f->sock >= 0)
		take_packet(f);
	if (!f->shared)
		return;
	if (p[2].revents & POLLIN)
		take_bytes(f);
	if (!f->how.sleepy || p[2].revents & POLLIN)
		take_entries(f);
}

static void *run(void *arg)
{
	struct fake *f = arg;

	pthread_mutex_lock(&f->lock);
	while (!f->stop) {
		struct pollfd p[4] = {{.fd = f->sock < 0 ? f->listener : -1, .events = POLLIN},
				      {.fd = f->sock, .events = POLLIN},
				      {.fd = f->wake, .events = POLLIN},
				      {.fd = f->nudge[0], .events = POLLIN}};
		int timeout = f->how.sleepy ? 1000 : 1;

		pthread_mutex_unlock(&f->lock);
		poll(p, 4, timeout);
		pthread_mutex_lock(&f->lock);
		step(f, p);
	}
	pthread_mutex_unlock(&f->lock);
	return NULL;
}

void fake_init(struct fake *f)
{
	memset(f, 0, sizeof(*f));
	f->how.max_segment_bytes = 1 << 30;
	f->how.arena_max = 1 << 30;
	f->how.max_segments = ATTND_MAX_SEGMENTS;
	f->how.cached = UINT64_MAX;
	f->how.first_namespace = 1;
	f->sock = f->wake = f->listener = -1;
	f->region = ATTND_REGION_NONE;
	for (int i = 0; i < ATTND_MAX_SEGMENTS; i++)
		f->segment[i] = ATTND_REGION_NONE;
	pthread_mutex_init(&f->lock, NULL);
	strcpy(f->dir, "/tmp/attnd-fake-XXXXXX");
	if (!mkdtemp(f->dir) || pipe2(f->nudge, O_CLOEXEC))
		abort();
	snprintf(f->path, sizeof(f->path), "%s/sock", f->dir);
}

void fake_start(struct fake *f)
{
	struct sockaddr_un at = {.sun_family = AF_UNIX};

	strcpy(at.sun_path, f->path);
	f->listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (f->listener < 0 || bind(f->listener, (struct sockaddr *)&at, sizeof(at)) || listen(f->listener, 16))
		abort();
	f->instance++;
	f->stop = false;
	f->caches = f->namespaces = 0;
	if (pthread_create(&f->thread, NULL, run, f))
		abort();
	f->running = true;
}

void fake_kill(struct fake *f)
{
	char byte;

	if (!f->running)
		return;
	pthread_mutex_lock(&f->lock);
	f->stop = true;
	pthread_mutex_unlock(&f->lock);
	(void)!write(f->nudge[1], "", 1);
	pthread_join(f->thread, NULL);
	(void)!read(f->nudge[0], &byte, 1);
	f->running = false;
	f->has_engine = false;
	end_session(f);
	close(f->listener);
	f->listener = -1;
	unlink(f->path);
}

void fake_destroy(struct fake *f)
{
	fake_kill(f);
	close(f->nudge[0]);
	close(f->nudge[1]);
	rmdir(f->dir);
	pthread_mutex_destroy(&f->lock);
}

/* ---- What tests ask ---- */

void fake_read(struct fake *f, uint64_t offset, void *ret, size_t bytes)
{
	pthread_mutex_lock(&f->lock);
	memcpy(ret, fake_ptr(f, offset), bytes);
	pthread_mutex_unlock(&f->lock);
}

void fake_release(struct fake *f, bool backwards)
{
	pthread_mutex_lock(&f->lock);
	for (uint32_t i = 0; i < f->num_held; i++)
		put(f, &f->held[backwards ? f->num_held - 1 - i : i]);
	f->num_held = 0;
	pthread_mutex_unlock(&f->lock);
}

void fake_release_op(struct fake *f, uint8_t op)
{
	pthread_mutex_lock(&f->lock);
	for (uint32_t i = 0; i < f->num_held; i++) {
		if (f->held[i].seq != op)
			continue;
		put(f, &f->held[i]);
		memmove(&f->held[i], &f->held[i + 1], (f->num_held - i - 1) * sizeof(f->held[0]));
		f->num_held--;
		break;
	}
	pthread_mutex_unlock(&f->lock);
}

void fake_close_session(struct fake *f)
{
	pthread_mutex_lock(&f->lock);
	if (f->shared) {
		atomic_store(&f->shared->closed, 1);
		atomic_fetch_add(&f->shared->cq_event, 1);
		attnd_futex_wake(&f->shared->cq_event, 1);
	}
	pthread_mutex_unlock(&f->lock);
}

void fake_put_garbage(struct fake *f, uint32_t user_data)
{
	pthread_mutex_lock(&f->lock);
	put(f, &(struct attnd_cqe){.user_data = user_data});
	pthread_mutex_unlock(&f->lock);
}

uint32_t fake_log_count(struct fake *f)
{
	uint32_t n;

	pthread_mutex_lock(&f->lock);
	n = f->num_log;
	pthread_mutex_unlock(&f->lock);
	return n;
}

uint32_t fake_doorbells(struct fake *f)
{
	uint32_t n;

	pthread_mutex_lock(&f->lock);
	if (f->wake >= 0)
		take_bytes(f); /* of an entry that was taken before its byte was */
	n = f->doorbells;
	pthread_mutex_unlock(&f->lock);
	return n;
}

void fake_wait_log(struct fake *f, uint32_t count)
{
	for (int i = 0; i < 5000 && fake_log_count(f) < count; i++)
		usleep(1000);
	assert_true(fake_log_count(f) >= count);
}

void fake_log_clear(struct fake *f)
{
	pthread_mutex_lock(&f->lock);
	f->num_log = 0;
	pthread_mutex_unlock(&f->lock);
}

struct fake_event fake_find(struct fake *f, uint8_t op, uint32_t n)
{
	struct fake_event e = {0};
	bool found = false;

	pthread_mutex_lock(&f->lock);
	for (uint32_t i = 0; i < f->num_log && !found; i++) {
		found = !f->log[i].msg && f->log[i].sqe.opcode == op && !n--;
		if (found)
			e = f->log[i];
	}
	pthread_mutex_unlock(&f->lock);
	assert_true(found);
	return e;
}

void fake_log_order(struct fake *f, char *ret, size_t size)
{
	static const char *const names[] = {"", "hello", "", "segment"};
	size_t used = 0;

	ret[0] = 0;
	pthread_mutex_lock(&f->lock);
	for (uint32_t i = 0; i < f->num_log && used + 24 < size; i++) {
		const struct fake_event *e = &f->log[i];

		if (e->msg)
			used += (size_t)snprintf(ret + used, size - used, "%s ", names[e->msg]);
		else
			used += (size_t)snprintf(ret + used, size - used, "%u ", e->sqe.opcode);
	}
	pthread_mutex_unlock(&f->lock);
}

attnd_t *fake_connect(struct fake *f, const struct attnd_connect_options *options)
{
	struct attnd_connect_options o = options ? *options : (struct attnd_connect_options){0};
	attnd_t *a = NULL;

	o.socket = f->path;
	o.timeout_us = o.timeout_us ? o.timeout_us : 60000000;
	assert_int_equal(attnd_connect(&a, &o), 0);
	return a;
}

int fake_setup(void **state)
{
	struct fake *f = malloc(sizeof(*f));

	if (!f)
		return -1;
	fake_init(f);
	fake_start(f);
	*state = f;
	return 0;
}

int fake_teardown(void **state)
{
	fake_destroy(*state);
	free(*state);
	return 0;
}
