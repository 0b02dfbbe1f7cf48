/* SPDX-License-Identifier: Apache-2.0 */
/*
 * In:   /proc/meminfo, /proc/self/statm, the control groups' limits (v2, or v1).
 * Out:  bytes. Next: config.c, status.c.
 */
#include "memory.h"

#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define MIB (UINT64_C(1) << 20)

/* The first number after `label` at a line's start. */
static uint64_t read_number(const char *path, const char *label, uint64_t otherwise)
{
	FILE *f = fopen(path, "re");
	uint64_t value = otherwise, found;
	char line[256];

	if (!f)
		return otherwise;
	while (fgets(line, sizeof(line), f)) {
		if (strncmp(line, label, strlen(label)) == 0) {
			if (sscanf(line + strlen(label), "%" SCNu64, &found) == 1)
				value = found;
			break;
		}
	}
	fclose(f);
	return value;
}

/* What one group leaves by these two files; UINT64_MAX without a limit ("max" is not a number). */
static uint64_t left_in(const char *group, const char *limit, const char *usage)
{
	char path[700];
	uint64_t max, now;

	snprintf(path, sizeof(path), "%s/%s", group, limit);
	max = read_number(path, "", UINT64_MAX);
	snprintf(path, sizeof(path), "%s/%s", group, usage);
	now = read_number(path, "", 0);
	return max == UINT64_MAX ? max : max > now ? max - now : 0;
}

/* The least of a group and all above it. `group` is below `root`, and is cut. */
static uint64_t left_up_to(char *group, size_t root, const char *limit, const char *usage)
{
	uint64_t least = UINT64_MAX, left;

	for (;;) {
		left = left_in(group, limit, usage);
		least = left < least ? left : least;
		if (strlen(group) <= root)
			return least;
		*strrchr(group, '/') = '\0';
	}
}

/* The path of this process's group after a label of /proc/self/cgroup. False: there is none. */
static bool group_path(const char *label, char *buf, size_t size)
{
	FILE *f = fopen("/proc/self/cgroup", "re");
	char line[512];
	bool found = false;

	while (f && !found && fgets(line, sizeof(line), f)) {
		const char *at = strchr(line, ':');

		if (!at || strncmp(at, label, strlen(label)) != 0)
			continue;
		line[strcspn(line, "\n")] = '\0';
		snprintf(buf, size, "%s", at + strlen(label));
		found = true;
	}
	if (f)
		fclose(f);
	return found;
}

uint64_t memory_group_left(void)
{
	static const char v2[] = "/sys/fs/cgroup", v1[] = "/sys/fs/cgroup/memory";
	char path[512], group[600];

	if (group_path(":memory:", path, sizeof(path))) {
		snprintf(group, sizeof(group), "%s%s", v1, path);
		return left_up_to(group, sizeof(v1) - 1, "memory.limit_in_bytes", "memory.usage_in_bytes");
	}
	if (!group_path("::", path, sizeof(path)))
		return UINT64_MAX;
	snprintf(group, sizeof(group), "%s%s", v2, path);
	return left_up_to(group, sizeof(v2) - 1, "memory.max", "memory.current");
}

uint64_t memory_available(void)
{
	uint64_t kib = read_number("/proc/meminfo", "MemAvailable:", UINT64_MAX);

	return kib < UINT64_MAX / 1024 ? kib * 1024 : UINT64_MAX;
}

uint64_t memory_default_pool(void)
{
	uint64_t available = memory_available(), group = memory_group_left();
	uint64_t pool = available == UINT64_MAX ? 0 : (available < group ? available : group) / 8;

	pool = pool < 16 * MIB ? 16 * MIB : pool > 2048 * MIB ? 2048 * MIB : pool;
	return pool - pool % (2 * MIB);
}

uint64_t memory_resident(void)
{
	FILE *f = fopen("/proc/self/statm", "re");
	uint64_t pages = 0;

	if (!f)
		return 0;
	if (fscanf(f, "%*u %" SCNu64, &pages) != 1)
		pages = 0;
	fclose(f);
	return pages * (uint64_t)sysconf(_SC_PAGESIZE);
}

void memory_format(uint64_t bytes, char *buf, size_t size)
{
	static const char units[] = "TGMK";

	for (int i = 0; i < 4 && bytes; i++) {
		int shift = 10 * (4 - i);

		if (bytes % (UINT64_C(1) << shift) == 0) {
			snprintf(buf, size, "%" PRIu64 "%c", bytes >> shift, units[i]);
			return;
		}
	}
	snprintf(buf, size, "%" PRIu64, bytes);
}
