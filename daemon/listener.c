/* SPDX-License-Identifier: Apache-2.0 */
/*
 * In:   paths, group and mode; sockets of systemd. Out: listening descriptors, an instance lock.
 * Next: control.c.
 */
#include "listener.h"

#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <systemd/sd-daemon.h>
#include <unistd.h>

#include "config.h"
#include "fdstore.h"
#include "log.h"
#include "peer.h"

#define BACKLOG	  128
#define PATH_SIZE (sizeof(((struct sockaddr_un *)0)->sun_path) + sizeof(".lock"))

/* ---- Sockets of systemd ---- */

static int take_socket(int fd, const char *name, int type, int *slot)
{
	if (*slot >= 0 || sd_is_socket_unix(fd, type, 1, NULL, 0) <= 0) {
		log_err("socket activation: \"%s\" is not one listening UNIX socket of type %s", name,
			type == SOCK_STREAM ? "stream" : "sequential packet");
		return -EINVAL;
	}
	fcntl(fd, F_SETFL, O_NONBLOCK);
	*slot = fd;
	return 0;
}

static int take_sockets(struct listener *l)
{
	char **names = NULL;
	int n = sd_listen_fds_with_names(1, &names), r = 0;

	for (int i = 0; i < n && r == 0; i++) {
		int fd = SD_LISTEN_FDS_START + i;

		if (strcmp(names[i], "attnd") == 0)
			r = take_socket(fd, names[i], SOCK_SEQPACKET, &l->shared);
		else if (strcmp(names[i], "admin") == 0)
			r = take_socket(fd, names[i], SOCK_STREAM, &l->admin);
		else if (fdstore_offer(names[i], fd))
			continue; /* the pool's memory, for keep.c */
		else
			log_warn("socket activation: \"%s\" is neither \"attnd\" nor \"admin\": left alone",
				 names[i]);
	}
	for (int i = 0; i < n; i++)
		free(names[i]);
	free(names);
	return r;
}

/* ---- The lock ---- */

static void lock_path(const struct listener *l, char path[PATH_SIZE])
{
	snprintf(path, PATH_SIZE, "%s.lock", l->cfg->socket);
}

static void socket_dir(const struct listener *l, char path[PATH_SIZE])
{
	snprintf(path, PATH_SIZE, "%s", l->cfg->socket);
	*strrchr(path, '/') = '\0';
}

static int locked_by_another(const struct listener *l, int fd)
{
	char pid[16] = "";
	ssize_t n = pread(fd, pid, sizeof(pid) - 1, 0);

	pid[n > 0 ? n : 0] = '\0';
	pid[strcspn(pid, "\n")] = '\0';
	log_err("another daemon%s%s serves %s (socket)", *pid ? ", pid " : "", pid, l->cfg->socket);
	return -EADDRINUSE;
}

/* A lock on a file that its last holder has just unlinked is worth nothing. */
static bool still_there(int fd, const char *path)
{
	struct stat a, b;

	return fstat(fd, &a) == 0 && stat(path, &b) == 0 && a.st_ino == b.st_ino && a.st_dev == b.st_dev;
}

static int try_lock(struct listener *l, const char *path)
{
	/* Nobody else may open it: a lock that one waits for is his when a daemon is killed, and keeps the next one
	 * out. */
	int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600), r = 0;

	if (fd < 0)
		return -errno;
	(void)fchmod(fd, 0600); /* whatever the umask, and what an older daemon left */
	if (flock(fd, LOCK_EX | LOCK_NB))
		r = errno == EWOULDBLOCK ? locked_by_another(l, fd) : -errno;
	else if (!still_there(fd, path))
		r = -EAGAIN;
	else if (ftruncate(fd, 0) || dprintf(fd, "%d\n", (int)getpid()) < 0) {
		r = -errno;
		unlink(path); /* ours: nobody waits for it */
	}
	if (r) {
		close(fd);
		return r;
	}
	l->lock = fd;
	return 0;
}

static int lock_instance(struct listener *l)
{
	char path[PATH_SIZE];
	int r;

	socket_dir(l, path);
	if (*path && mkdir(path, 0755) == 0)
		chmod(path, 0755); /* whatever the umask: clients pass through */
	lock_path(l, path);
	do
		r = try_lock(l, path);
	while (r == -EAGAIN);
	if (r == -ENOENT || r == -EACCES)
		log_err("socket: cannot make %s: %s: its directory must exist and be this user's to write in", path,
			strerror(-r));
	else if (r && r != -EADDRINUSE)
		log_err("socket: cannot make %s: %s", path, strerror(-r));
	return r;
}

int listener_claim(const struct config *cfg, struct listener *ret)
{
	struct listener l = {.shared = -1, .admin = -1, .lock = -1, .cfg = cfg};
	int r = take_sockets(&l);

	if (r == 0)
		r = lock_instance(&l);
	if (r) {
		listener_close(&l, false);
		return r;
	}
	*ret = l;
	return 0;
}

/* ---- Binding ---- */

static int set_address(const char *path, struct sockaddr_un *ret)
{
	*ret = (struct sockaddr_un){.sun_family = AF_UNIX};
	if (strlen(path) >= sizeof(ret->sun_path))
		return -ENAMETOOLONG;
	memcpy(ret->sun_path, path, strlen(path) + 1);
	return 0;
}

/*
 * A killed daemon's listening socket takes connections for some more milliseconds: its io_uring
 * polls hold it until the kernel has taken the ring down. But its process is known to be dead.
 */
static bool is_dead(int connected)
{
	struct pollfd fd = {.events = POLLIN};
	struct peer peer;
	bool dead;

	if (peer_of(connected, &peer) || peer.pid <= 0)
		return false;
	fd.fd = peer_pidfd(connected, &peer);
	dead = fd.fd < 0 ? errno == ESRCH : poll(&fd, 1, 0) == 1;
	if (fd.fd >= 0)
		close(fd.fd);
	return dead;
}

int listener_remove_stale(const char *path, int type)
{
	struct sockaddr_un address;
	struct stat st;
	int fd, r = set_address(path, &address);

	if (r)
		return r;
	if (lstat(path, &st))
		return errno == ENOENT ? 0 : -errno;
	if (!S_ISSOCK(st.st_mode))
		return -EEXIST;
	fd = socket(AF_UNIX, type | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (fd < 0)
		return -errno;
	r = connect(fd, (const struct sockaddr *)&address, sizeof(address)) ? -errno : 0;
	if (r == 0 && is_dead(fd))
		r = -ECONNREFUSED;
	close(fd);
	if (r != -ECONNREFUSED)
		return -EADDRINUSE;
	log_info("removing the stale socket %s", path);
	return unlink(path) ? -errno : 0;
}

/* Nobody can connect before listen(), so owner and mode are right from the first client on. */
static int bind_to(int fd, const struct sockaddr_un *address, const char *group, mode_t mode)
{
	const struct group *gr = *group ? getgrnam(group) : NULL;

	if (*group && !gr)
		return -ENOENT;
	if (bind(fd, (const struct sockaddr *)address, sizeof(*address)))
		return -errno;
	if ((gr && chown(address->sun_path, (uid_t)-1, gr->gr_gid)) || chmod(address->sun_path, mode) ||
	    listen(fd, BACKLOG)) {
		int r = -errno;

		unlink(address->sun_path);
		return r;
	}
	return 0;
}

static int open_socket(const char *path, int type, const char *group, mode_t mode, int *slot, bool *own)
{
	struct sockaddr_un address;
	int fd = -1, r;

	if (*slot >= 0)
		return 0;
	r = set_address(path, &address);
	if (r == 0)
		r = listener_remove_stale(path, type);
	if (r == 0 && (fd = socket(AF_UNIX, type | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)) < 0)
		r = -errno;
	if (r == 0)
		r = bind_to(fd, &address, group, mode);
	if (r) {
		log_err("cannot listen at %s: %s", path,
			r == -EEXIST ? "the file there is not a socket" : strerror(-r));
		if (fd >= 0)
			close(fd);
		return r;
	}
	*slot = fd;
	*own = true;
	return 0;
}

int listener_open(struct listener *l)
{
	const struct config *cfg = l->cfg;
	int r = open_socket(cfg->admin_socket, SOCK_STREAM, "", 0600, &l->admin, &l->own_admin);

	if (r == 0)
		r = open_socket(cfg->socket, SOCK_SEQPACKET, cfg->socket_group, cfg->socket_mode, &l->shared,
				&l->own_shared);
	return r;
}

static void close_socket(int *fd, bool own, const char *path)
{
	if (*fd < 0)
		return;
	if (own)
		unlink(path);
	close(*fd);
	*fd = -1;
}

void listener_close(struct listener *l, bool remove_dir)
{
	char path[PATH_SIZE];

	close_socket(&l->shared, l->own_shared, l->cfg->socket);
	close_socket(&l->admin, l->own_admin, l->cfg->admin_socket);
	if (l->lock >= 0) {
		lock_path(l, path);
		unlink(path);
		close(l->lock);
		l->lock = -1;
	}
	if (remove_dir) {
		socket_dir(l, path);
		if (*path)
			rmdir(path);
	}
}
