/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The control thread's sockets: messages of any kind, size and descriptor, in any order. The loop is
 * stepped here, the leader is the stub.
 *
 * In: records (see send_record). Out: afterwards nobody is connected and no byte is registered.
 * Next: daemon/clients.c, handshake.c, segments.c.
 */
#include <fcntl.h>
#include <poll.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/pidfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "../../daemon/clients.h"
#include "../../daemon/control.h"
#include "../../daemon/log.h"
#include "../control/peer.h"
#include "../control/stub_leader.h"
#include "fuzz.h"

enum { SEGMENT = 16384, RECORDS = 24, MESSAGE = 512 };

static struct {
	struct config cfg;
	struct listener listener;
	struct control *control;
	struct leader *leader;
	char socket[64];
} d;

static void start(void)
{
	char dir[] = "/tmp/attnd-fuzz-XXXXXX", socket[80], err[600];
	char *argv[] = {(char[]){"attnd"},
			(char[]){"--config=/dev/null"},
			(char[]){"--max-sessions=6"},
			(char[]){"--arena-max=1M"},
			(char[]){"--log-level=err"},
			socket,
			NULL};

	MUST(mkdtemp(dir));
	snprintf(d.socket, sizeof(d.socket), "%s/s", dir);
	snprintf(socket, sizeof(socket), "--socket=%s", d.socket);
	setenv("STUB_LEADER", "pumped", 1);
	log_set_level(LOG_LEVEL_ERR);
	MUST(config_load(&d.cfg, argv, (char *[]){NULL}, err, sizeof(err)) == 0);
	MUST(listener_claim(&d.cfg, &d.listener) == 0);
	MUST(control_create(&d.cfg, NULL, 4711, NULL, &d.control) == 0);
	MUST(leader_start(&d.cfg, 4711, control_mailbox(d.control), &d.leader) == 0);
	MUST(listener_open(&d.listener) == 0);
	MUST(control_start(d.control, d.leader, &d.listener) == 0);
	/* The names are not needed any more, and nobody ends this process in an orderly way. */
	unlink(d.cfg.admin_socket);
}

static void step(uint64_t ns)
{
	MUST(loop_run_once(d.control->loop, ns) == 0);
	stub_step(d.leader);
}

/* Helper threads have their say: until nothing is under way. */
static bool busy(void)
{
	for (const struct client *c = d.control->clients; c; c = c->next)
		if (c->jobs || c->state == CLIENT_ENDING)
			return true;
	return false;
}

static void settle(void)
{
	for (int i = 0; i < 4; i++)
		step(0);
	for (int i = 0; i < 5000 && busy(); i++)
		step(1000000);
}

static int make_fd(unsigned kind)
{
	int pipe_[2];

	switch (kind) {
	case 1:
		return peer_memfd(SEGMENT, F_SEAL_SHRINK | F_SEAL_GROW, 0);
	case 2:
		return peer_memfd(SEGMENT, 0, 0);
	case 3:
		return open("/dev/null", O_RDWR | O_CLOEXEC);
	case 4:
		return pidfd_open(getpid(), 0);
	case 5:
		if (pipe2(pipe_, O_CLOEXEC))
			return -1;
		close(pipe_[1]);
		return pipe_[0];
	default:
		return -1;
	}
}

static size_t base_message(unsigned kind, unsigned char *m)
{
	const struct attnd_msg_hello hello = peer_hello_message();
	const struct attnd_msg_segment add = {.type = ATTND_MSG_SEGMENT_ADD, .index = 1, .bytes = SEGMENT};
	const struct attnd_msg_segment del = {.type = ATTND_MSG_SEGMENT_DEL, .index = 1};

	memset(m, 0, MESSAGE);
	if (kind == 1)
		memcpy(m, &hello, sizeof(hello));
	else if (kind == 2)
		memcpy(m, &add, sizeof(add));
	else if (kind == 3)
		memcpy(m, &del, sizeof(del));
	return kind == 1 ? sizeof(hello) : kind ? sizeof(add) : 0;
}

/*
 * A record: what it is based on (2 bits), descriptor (3 bits), two of them (1 bit), of another size (1 bit:
 * the next byte); then pairs of position and value that are xored over it, up to a position of 255.
 */
static void send_record(int sock, struct input *in)
{
	unsigned char m[MESSAGE], control = next_byte(in), at;
	size_t bytes = base_message(control & 3, m);
	int fds[2], n = 0;

	if (control & 64)
		bytes = next_byte(in);
	while (in->at < in->end && (at = next_byte(in)) != 255)
		m[at] ^= next_byte(in);
	fds[0] = make_fd(control >> 2 & 7);
	n = fds[0] >= 0;
	if (n && control & 32)
		fds[n++] = dup(fds[0]);
	(void)peer_send(sock, m, bytes, fds, (size_t)n);
	peer_close_fds(fds, (size_t)n);
}

static void drain(int sock)
{
	unsigned char buf[1024];
	int fds[4];
	size_t n;

	while (peer_receive(sock, buf, sizeof(buf), fds, &n) > 0)
		peer_close_fds(fds, n);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
	struct input in = {data, data + bytes};
	int sock;

	if (!d.control)
		start();
	sock = peer_connect(d.socket, SOCK_SEQPACKET);
	for (int i = 0; i < RECORDS && in.at < in.end; i++) {
		if (*in.at & 128) { /* another connection */
			close(sock);
			sock = peer_connect(d.socket, SOCK_SEQPACKET);
		}
		send_record(sock, &in);
		settle();
		drain(sock);
	}
	close(sock);
	for (int i = 0; i < 5000 && d.control->clients; i++)
		step(1000000);
	MUST(!d.control->clients);
	MUST(d.control->arena_bytes == 0);
	MUST(d.control->num_sessions == 0);
	return 0;
}
