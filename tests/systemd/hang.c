/* SPDX-License-Identifier: Apache-2.0 */
/*
 * In:   a pid, the name of one of its threads. Out: that thread alone stands still, as if it hung,
 *       until its process is gone; exit 0 then. Next: inside.sh.
 */
#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

static pid_t find_thread(const char *pid, const char *name)
{
	char path[64], comm[64] = "";
	DIR *dp;
	pid_t found = 0;

	snprintf(path, sizeof(path), "/proc/%.16s/task", pid);
	dp = opendir(path);
	for (struct dirent *e; dp && !found && (e = readdir(dp));) {
		snprintf(path, sizeof(path), "/proc/%.16s/task/%.16s/comm", pid, e->d_name);
		FILE *f = fopen(path, "re");
		if (f && fgets(comm, sizeof(comm), f) && !strncmp(comm, name, strlen(name)))
			found = (pid_t)atoi(e->d_name);
		if (f)
			fclose(f);
	}
	if (dp)
		closedir(dp);
	return found;
}

int main(int argc, char **argv)
{
	pid_t thread = argc == 3 ? find_thread(argv[1], argv[2]) : 0;
	int status = 0;

	if (!thread) {
		fprintf(stderr, "usage: hang PID THREAD (of this process)\n");
		return 2;
	}
	if (ptrace(PTRACE_SEIZE, thread, NULL, NULL) || ptrace(PTRACE_INTERRUPT, thread, NULL, NULL)) {
		fprintf(stderr, "hang: %s\n", strerror(errno));
		return 2;
	}
	alarm(60);
	/* Once it has died it is ours to bury: until then its process is not gone. */
	while (waitpid(thread, &status, __WALL) == thread && !WIFSIGNALED(status) && !WIFEXITED(status))
		;
	return WIFSIGNALED(status) ? 0 : 1;
}
