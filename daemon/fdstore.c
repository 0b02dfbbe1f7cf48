/* SPDX-License-Identifier: Apache-2.0 */
/* The service manager's file-descriptor store (fdstore.h). */
#include "fdstore.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <systemd/sd-daemon.h>
#include <unistd.h>

enum { MAX_OFFERED = 32 };

static struct offered {
	char name[32];
	int fd;
} offered[MAX_OFFERED];
static int num_offered;

bool fdstore_offer(const char *name, int fd)
{
	if (strncmp(name, "attnd-", 6) != 0 || strlen(name) >= sizeof(offered->name))
		return false;
	if (num_offered == MAX_OFFERED) {
		close(fd);
		return true;
	}
	snprintf(offered[num_offered].name, sizeof(offered->name), "%s", name);
	offered[num_offered++].fd = fd;
	return true;
}

int fdstore_take(const char *name)
{
	int found = -1, fd;

	for (int i = 0; i < num_offered; i++) {
		if (offered[i].fd < 0 || strcmp(offered[i].name, name) != 0)
			continue;
		if (found >= 0)
			return -1;
		found = i;
	}
	if (found < 0)
		return -1;
	fd = offered[found].fd;
	offered[found].fd = -1;
	return fd;
}

int fdstore_put(const char *name, int fd)
{
	char text[80];

	snprintf(text, sizeof(text), "FDSTORE=1\nFDNAME=%s", name);
	return sd_pid_notify_with_fds(0, 0, text, &fd, 1);
}

void fdstore_drop(const char *name)
{
	sd_notifyf(0, "FDSTOREREMOVE=1\nFDNAME=%s", name);
}

void fdstore_free(int fd)
{
	struct stat st;

	if (fd >= 0 && !fstat(fd, &st) && S_ISREG(st.st_mode) && st.st_size)
		(void)fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, st.st_size);
}

void fdstore_end(void)
{
	for (int i = 0; i < num_offered; i++) {
		if (offered[i].fd < 0)
			continue;
		fdstore_drop(offered[i].name);
		fdstore_free(offered[i].fd);
		close(offered[i].fd);
	}
	num_offered = 0;
}
