/* SPDX-License-Identifier: Apache-2.0 */
/*
 * attnctl doctor: is this machine set up well for attnd?
 *
 * In:   /sys and /proc (or those under --root), the daemon's status if it runs. Out: one line a
 *       check, what is not well with what to do about it; exit code 1 if something is wrong.
 * Next: nothing.
 */
#include <dirent.h>
#include <errno.h>
#include <grp.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ctl.h"

enum level { OK, NOTE, WRONG };

struct doctor {
	const struct ctl *ctl;
	json_t *status; /* NULL: no daemon, or not for us */
	json_t *checks;
	bool wrong;
};

/* ---- What is found ---- */

/* `advice`: what to do, for all but OK. */
static void found(struct doctor *d, enum level level, const char *check, const char *advice, const char *format, ...)
	__attribute__((format(printf, 5, 6)));
static void found(struct doctor *d, enum level level, const char *check, const char *advice, const char *format, ...)
{
	static const char *const names[] = {"ok", "note", "wrong"};
	char text[512];
	va_list args;

	va_start(args, format);
	vsnprintf(text, sizeof(text), format, args);
	va_end(args);
	d->wrong |= level == WRONG;
	json_array_append_new(d->checks, json_pack("{s:s, s:s, s:s, s:s}", "check", check, "result", names[level],
						   "found", text, "advice", level == OK ? "" : advice));
}

/* ---- Files ---- */

__attribute__((format(printf, 4, 5))) static bool read_file(const struct doctor *d, char *buf, size_t size,
							    const char *format, ...)
{
	char path[512], full[1024];
	va_list args;
	size_t n;
	FILE *f;

	va_start(args, format);
	vsnprintf(path, sizeof(path), format, args);
	va_end(args);
	snprintf(full, sizeof(full), "%s%s", d->ctl->root, path);
	f = fopen(full, "re");
	if (!f)
		return false;
	n = fread(buf, 1, size - 1, f);
	fclose(f);
	buf[n] = 0;
	while (n && buf[n - 1] == '\n')
		buf[--n] = 0;
	return true;
}

/* The number behind a name at a line's beginning ("MemTotal: 123 kB"); -1: it is not there. */
static int64_t field(const char *text, const char *name)
{
	size_t n = strlen(name);

	for (const char *p = text; p; p = strchr(p, '\n') ? strchr(p, '\n') + 1 : NULL)
		if (!strncmp(p, name, n) && (p[n] == ':' || p[n] == ' ' || p[n] == '\t'))
			return strtoll(p + n + 1 + strspn(p + n + 1, " \t"), NULL, 10);
	return -1;
}

static double status_number(const struct doctor *d, const char *object, const char *name)
{
	const json_t *o = object ? json_object_get(d->status, object) : d->status;

	return json_number_value(json_object_get(o, name));
}

static const char *status_text(const struct doctor *d, const char *object, const char *name)
{
	const char *text =
		json_string_value(json_object_get(object ? json_object_get(d->status, object) : d->status, name));

	return text ? text : "";
}

static int daemon_pid(const struct doctor *d)
{
	return (int)status_number(d, NULL, "pid");
}

/* ---- The daemon and its sockets ---- */

static void check_daemon(struct doctor *d)
{
	json_t *request = json_pack("{s:s}", "command", "status");
	char path[256] = "";
	int error = 0;

	d->status = ctl_ask_quietly(d->ctl, request, &error, path, sizeof(path));
	json_decref(request);
	if (d->status && json_object_get(d->status, "error")) {
		json_decref(d->status);
		d->status = NULL;
		error = -EIO;
	}
	if (d->status && strcmp(status_text(d, NULL, "version"), ATTND_VERSION) != 0)
		found(d, WRONG, "daemon",
		      "restart the daemon (systemctl restart attnd): an older one is still running",
		      "version %s runs, attnctl is " ATTND_VERSION, status_text(d, NULL, "version"));
	else if (d->status)
		found(d, OK, "daemon", "", "version " ATTND_VERSION " answers at %s", path);
	else if (error == -EACCES || error == -EPERM)
		found(d, NOTE, "daemon", "run attnctl doctor as root, to see all of it",
		      "the administrators' socket beside %s is not for you", path);
	else if (error == -EAGAIN || error == -EIO)
		found(d, WRONG, "daemon", "journalctl -u attnd says what it is at; systemctl restart attnd",
		      "the daemon at %s does not answer", path);
	else
		found(d, WRONG, "daemon", "systemctl start attnd, then journalctl -u attnd says what is wrong",
		      "there is no daemon at %s", path);
}

static void check_socket(struct doctor *d)
{
	const char *path = status_text(d, NULL, "socket");
	const struct group *g;
	struct stat st;

	if (!d->status)
		return;
	if (stat(path, &st)) {
		found(d, WRONG, "socket", "restart the daemon: somebody has removed its socket", "%s: %s", path,
		      strerror(errno));
		return;
	}
	g = getgrgid(st.st_gid);
	if (st.st_mode & 0002)
		found(d, NOTE, "socket", "socket-mode = 0660 and socket-group = GROUP in /etc/attnd/attnd.conf",
		      "every user of this machine may connect to %s", path);
	else if (!(st.st_mode & 0020))
		found(d, NOTE, "socket", "socket-mode = 0660 lets the group's members connect",
		      "only the owner may connect to %s", path);
	else
		found(d, OK, "socket", "", "members of %s may connect to %s", g ? g->gr_name : "its group", path);
	if (access(path, W_OK) && errno == EACCES)
		found(d, NOTE, "socket rights", "usermod -a -G GROUP USER, then log in again",
		      "you may not connect to %s", path);
}

/* ---- Memory ---- */

static void check_pages(struct doctor *d)
{
	const char *backing = status_text(d, "pool", "backing");
	double bytes = status_number(d, "pool", "bytes");
	char text[8192] = "", thp[128] = "", advice[256];
	int64_t total;

	(void)read_file(d, text, sizeof(text), "/proc/meminfo");
	(void)read_file(d, thp, sizeof(thp), "/sys/kernel/mm/transparent_hugepage/shmem_enabled");
	total = field(text, "HugePages_Total");
	if (!d->status) {
		if (total > 0)
			found(d, OK, "huge pages", "", "%" PRId64 " are set aside", total);
		else
			found(d, NOTE, "huge pages",
			      "vm.nr_hugepages = (pool-size / 2 MiB) in /etc/sysctl.d, then sysctl --system",
			      "none are set aside");
		return;
	}
	snprintf(advice, sizeof(advice),
		 "%svm.nr_hugepages = %.0f in /etc/sysctl.d/attnd.conf, sysctl --system, systemctl restart attnd",
		 strcmp(status_text(d, "config", "hugepages"), "off") ? "" : "hugepages = auto instead of off; ",
		 bytes / (2 << 20) + 1);
	if (!strcmp(backing, "hugetlb"))
		found(d, OK, "huge pages", "", "the pool lies in huge pages");
	else if (!strcmp(backing, "collapsed"))
		found(d, NOTE, "huge pages", advice,
		      "the kernel has collapsed the pool's pages into huge ones, as far as it could");
	else
		found(d, WRONG, "huge pages", advice,
		      "the pool lies in plain pages: reading it costs up to a third more%s%s",
		      *thp ? "; transparent ones for shared memory: " : "", thp);
}

static void check_numa(struct doctor *d)
{
	const json_t *pool = json_object_get(d->status, "pool");
	size_t nodes = json_array_size(json_object_get(pool, "nodes"));
	char text[128] = "", balancing[16] = "";
	double misplaced = status_number(d, "pool", "pages_misplaced");
	unsigned last = 0, first;

	if (!read_file(d, text, sizeof(text), "/sys/devices/system/node/has_memory") ||
	    sscanf(text, "%u-%u", &first, &last) < 1)
		last = 0;
	if (d->status && last > 0 && nodes < 2)
		found(d, WRONG, "NUMA",
		      "numa = true in /etc/attnd/attnd.conf; in a container allow mbind and set cpuset.mems",
		      "nodes %s have memory, the pool lies on one", text);
	else if (d->status && misplaced > 0)
		found(d, WRONG, "NUMA",
		      "set huge pages aside on each node (/sys/devices/system/node/node*/hugepages), restart",
		      "%.0f of %.0f pages looked at lie on another node than their workers", misplaced,
		      status_number(d, "pool", "pages_looked_at"));
	else
		found(d, OK, "NUMA", "", "%s",
		      nodes > 1	 ? "the pool is spread over the nodes"
		      : last > 0 ? "several nodes have memory"
				 : "one node");
	if (last > 0 && read_file(d, balancing, sizeof(balancing), "/proc/sys/kernel/numa_balancing") &&
	    strcmp(balancing, "0"))
		found(d, NOTE, "NUMA balancing",
		      "kernel.numa_balancing = 0: the pool is placed already, moving pages only costs",
		      "the kernel looks for pages to move");
}

/* Bytes of the tightest memory.max from the daemon's control group up; 0: none. */
static double memory_max(const struct doctor *d, char *ret_group, size_t size)
{
	char text[4096], limit[64];
	double least = 0;
	char *path, *end;

	if (!read_file(d, text, sizeof(text), "/proc/%d/cgroup", daemon_pid(d)))
		return 0;
	path = strstr(text, "0::");
	if (!path)
		return 0;
	path += 3;
	path[strcspn(path, "\n")] = 0;
	while (*path) {
		if (read_file(d, limit, sizeof(limit), "/sys/fs/cgroup%.400s/memory.max", path) &&
		    strcmp(limit, "max") && (least <= 0 || strtod(limit, NULL) < least)) {
			least = strtod(limit, NULL);
			snprintf(ret_group, size, "%s", path);
		}
		end = strrchr(path, '/');
		if (!end)
			break;
		*end = 0;
	}
	return least;
}

static void check_memory(struct doctor *d)
{
	double pool = status_number(d, "pool", "bytes"), meta = status_number(d, "pool", "metadata_bytes"),
	       arena = status_number(d, "config", "arena_max_bytes"), need = pool + meta + arena, limit;
	char text[8192] = "", group[256] = "", all[32], has[32], advice[256];
	int64_t ram;

	if (!d->status)
		return;
	ctl_format_bytes(need, all, sizeof(all));
	limit = memory_max(d, group, sizeof(group));
	ctl_format_bytes(limit, has, sizeof(has));
	snprintf(advice, sizeof(advice),
		 "MemoryMax=%.0fM in a drop-in (systemctl edit attnd), or a smaller pool-size or arena-max",
		 need / (1 << 20) + 256);
	if (limit > 0 && limit < need)
		found(d, WRONG, "MemoryMax", advice,
		      "%s of %s is less than pool + metadata + arena-max = %s: clients can have the daemon killed",
		      has, group, all);
	else if (limit > 0)
		found(d, OK, "MemoryMax", "", "%s covers pool + metadata + arena-max = %s", has, all);
	else
		found(d, NOTE, "MemoryMax", advice, "there is no limit; pool + metadata + arena-max = %s", all);
	ram = read_file(d, text, sizeof(text), "/proc/meminfo") ? field(text, "MemTotal") * 1024 : 0;
	ctl_format_bytes((double)ram, has, sizeof(has));
	if (ram > 0 && (double)ram < need)
		found(d, WRONG, "memory", "a smaller pool-size or arena-max",
		      "the machine has %s, pool + metadata + arena-max are %s", has, all);
}

static void check_limit(struct doctor *d, const char *limits, const char *row, const char *key, double least)
{
	const char *at = strstr(limits, row);
	char soft[32] = "", advice[128];

	if (!at || sscanf(at + strlen(row), "%31s", soft) != 1)
		return;
	snprintf(advice, sizeof(advice), "%s in the unit, or ulimit before the daemon is started", key);
	if (strcmp(soft, "unlimited") && strtod(soft, NULL) < least)
		found(d, WRONG, "limits", advice, "%s is %s, the daemon may need %.0f", row, soft, least);
	else
		found(d, OK, "limits", "", "%s: %s", row, soft);
}

static void check_limits(struct doctor *d)
{
	char limits[4096];

	if (!d->status || !read_file(d, limits, sizeof(limits), "/proc/%d/limits", daemon_pid(d)))
		return;
	/* A session takes four descriptors and up to 16 segments. */
	check_limit(d, limits, "Max open files", "LimitNOFILE=65536",
		    20 * status_number(d, "config", "max_sessions") + 100);
	/* io_uring's rings of the control thread; older kernels count them. */
	check_limit(d, limits, "Max locked memory", "LimitMEMLOCK=infinity", 65536);
}

/* ---- Processors ---- */

static void check_cpu(struct doctor *d)
{
	static const struct {
		const char *isa, *flag;
	} better[] = {{"amx", " amx_bf16"}, {"avx512", " avx512bw"}, {"avx2", " avx2"}, {"rvv", "v_zve"}};
	const char *isa = status_text(d, NULL, "isa");
	char text[65536];

	if (!d->status || !read_file(d, text, sizeof(text), "/proc/cpuinfo"))
		return;
	for (size_t i = 0; i < sizeof(better) / sizeof(better[0]); i++) {
		if (!strncmp(isa, better[i].isa, strlen(better[i].isa)))
			break;
		if (strstr(text, better[i].flag)) {
			found(d, WRONG, "CPU features",
			      "remove cpu-mask from /etc/attnd/attnd.conf, or let the virtual machine see them",
			      "kernels for %s run, the CPU has%s", isa, better[i].flag);
			return;
		}
	}
	found(d, OK, "CPU features", "", "kernels for %s (%s)", isa, status_text(d, NULL, "cpu_features"));
}

static void check_clock(struct doctor *d)
{
	char text[64];

	if (!read_file(d, text, sizeof(text), "/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"))
		return;
	if (!strcmp(text, "powersave"))
		found(d, NOTE, "clock",
		      "cpupower frequency-set -g performance: a token's work is too short for the clock to rise",
		      "the CPUs' governor is powersave");
	else
		found(d, OK, "clock", "", "governor %s", text);
}

static void check_loop(struct doctor *d)
{
	if (!d->status)
		return;
	if (strcmp(status_text(d, NULL, "event_loop"), "io_uring") != 0)
		found(d, NOTE, "event loop",
		      "allow io_uring in the container's seccomp profile; only connecting and ending gain by it",
		      "%s", status_text(d, NULL, "event_loop"));
	else
		found(d, OK, "event loop", "", "io_uring");
}

/* ---- Printing ---- */

static int print_checks(const struct doctor *d)
{
	const json_t *c;
	size_t i;

	if (d->ctl->json) {
		json_t *all = json_pack("{s:b, s:O}", "well", !d->wrong, "checks", d->checks);

		json_dumpf(all, stdout, JSON_INDENT(2));
		putchar('\n');
		json_decref(all);
	}
	json_array_foreach(d->checks, i, c)
	{
		const char *advice = json_string_value(json_object_get(c, "advice"));

		if (d->ctl->json)
			break;
		printf("%-6s %s: %s\n", json_string_value(json_object_get(c, "result")),
		       json_string_value(json_object_get(c, "check")),
		       json_string_value(json_object_get(c, "found")));
		if (*advice)
			printf("         %s\n", advice);
	}
	return d->wrong ? CTL_ERROR : EXIT_SUCCESS;
}

int ctl_doctor(const struct ctl *c)
{
	static void (*const checks[])(struct doctor *d) = {check_daemon, check_socket, check_pages,
							   check_numa,	 check_memory, check_limits,
							   check_cpu,	 check_clock,  check_loop};
	struct doctor d = {.ctl = c, .checks = json_array()};
	int r;

	for (size_t i = 0; i < sizeof(checks) / sizeof(checks[0]); i++)
		checks[i](&d);
	r = print_checks(&d);
	json_decref(d.checks);
	json_decref(d.status);
	return r;
}
