/* SPDX-License-Identifier: Apache-2.0 */
/*
 * In:   /proc/meminfo, /proc/self/statm, the control group's memory.max and memory.current.
 * Out:  bytes. Next: config.c, status.c.
 */
#include "memory.h"

#include <inttypes.h>
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

/* What the control group leaves, v2; UINT64_MAX without a limit ("max" is not a number). */
static uint64_t group_available(void)
{
	FILE *f = fopen("/proc/self/cgroup", "re");
	char line[512], path[600];
	uint64_t max, now;

	if (!f)
		return UINT64_MAX;
	line[0] = '\0';
	while (fgets(line, sizeof(line), f) && strncmp(line, "0::", 3) != 0)
		line[0] = '\0';
	fclose(f);
	if (strncmp(line, "0::", 3) != 0)
		return UINT64_MAX;
	line[strcspn(line, "\n")] = '\0';
	snprintf(path, sizeof(path), "/sys/fs/cgroup%s/memory.max", line + 3);
	max = read_number(path, "", UINT64_MAX);
	snprintf(path, sizeof(path), "/sys/fs/cgroup%s/memory.current", line + 3);
	now = read_number(path, "", 0);
	return max == UINT64_MAX ? max : max > now ? max - now : 0;
}

uint64_t memory_default_pool(void)
{
	uint64_t available = read_number("/proc/meminfo", "MemAvailable:", 0) * 1024, group = group_available();
	uint64_t pool = (available < group ? available : group) / 8;

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
