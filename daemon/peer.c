/* SPDX-License-Identifier: Apache-2.0 */
/*
 * In:   a connected UNIX socket, the configuration's lists. Out: who it is, and whether it may.
 * Next: client.c, handshake.c.
 */
#include "peer.h"

#include <ctype.h>
#include <errno.h>
#include <grp.h>
#include <inttypes.h>
#include <pwd.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/pidfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "config.h"

#ifndef SO_PEERPIDFD /* Linux 6.5 */
#define SO_PEERPIDFD 77
#endif
#define MAX_GROUPS   1024 /* supplementary groups that are looked at */
#define OVERFLOW_UID 65534

int peer_of(int sock, struct peer *ret)
{
	struct ucred cred;
	socklen_t size = sizeof(cred);

	if (getsockopt(sock, SOL_SOCKET, SO_PEERCRED, &cred, &size))
		return -errno;
	*ret = (struct peer){
		.pid = cred.pid, .uid = cred.uid, .gid = cred.gid, .overflow_uid = cred.uid == OVERFLOW_UID};
	return 0;
}

int peer_pidfd(int sock, const struct peer *p)
{
	socklen_t size = sizeof(int);
	int fd;

	if (getsockopt(sock, SOL_SOCKET, SO_PEERPIDFD, &fd, &size) == 0)
		return fd;
	/* An older kernel. The pid may have been used again since connect(): then the socket's end tells. */
	return p->pid > 0 ? pidfd_open(p->pid, 0) : -1;
}

/* One entry of a list as a number; UINT32_MAX if there is none of this name. */
static uint32_t resolve(const char *name, enum peer_list kind)
{
	char *end;
	unsigned long n;

	if (isdigit((unsigned char)name[0])) {
		errno = 0;
		n = strtoul(name, &end, 10);
		return *end || errno || n >= UINT32_MAX ? UINT32_MAX : (uint32_t)n;
	}
	if (kind == PEER_USERS) {
		const struct passwd *pw = getpwnam(name);

		return pw ? pw->pw_uid : UINT32_MAX;
	}
	const struct group *gr = getgrnam(name);

	return gr ? gr->gr_gid : UINT32_MAX;
}

/* The next entry of a list into name; false at its end. */
static bool next_name(const char **list, char *name, size_t size)
{
	*list += strspn(*list, ", ");
	if (!**list)
		return false;
	snprintf(name, size, "%.*s", (int)strcspn(*list, ", "), *list);
	*list += strcspn(*list, ", ");
	return true;
}

const char *peer_list_parse(const char *list, enum peer_list kind, struct peer_ids *ret)
{
	static char name[64];
	struct peer_ids ids = {.n = 0};

	while (next_name(&list, name, sizeof(name))) {
		uint32_t id = resolve(name, kind);

		if (id == UINT32_MAX || ids.n == sizeof(ids.ids) / sizeof(ids.ids[0]))
			return name;
		ids.ids[ids.n++] = id;
	}
	*ret = ids;
	return NULL;
}

static bool has(const struct peer_ids *list, uint32_t id)
{
	for (uint32_t i = 0; i < list->n; i++)
		if (list->ids[i] == id)
			return true;
	return false;
}

bool peer_allowed(const struct peer_rules *rules, int sock, const struct peer *p)
{
	uint32_t groups[MAX_GROUPS];
	socklen_t size = sizeof(groups);

	if (rules->users.n == 0 && rules->groups.n == 0)
		return true;
	if (has(&rules->users, p->uid) || has(&rules->groups, p->gid))
		return true;
	if (rules->groups.n == 0 || getsockopt(sock, SOL_SOCKET, SO_PEERGROUPS, groups, &size))
		return false;
	for (size_t i = 0; i < size / sizeof(groups[0]); i++)
		if (has(&rules->groups, groups[i]))
			return true;
	return false;
}

void peer_realm(const struct config *cfg, const struct peer *p, char *buf, size_t size)
{
	if (*cfg->share_group)
		snprintf(buf, size, "group:%s", cfg->share_group);
	else
		snprintf(buf, size, "uid:%" PRIu32, (uint32_t)p->uid);
}

bool peer_is_pidfd(int fd)
{
	struct stat st;

	/* Signal 0 sends nothing. Directories under /proc pass here, too, but cannot be polled. */
	if (pidfd_send_signal(fd, 0, NULL, 0) && errno == EBADF)
		return false;
	return fstat(fd, &st) == 0 && !S_ISDIR(st.st_mode);
}
