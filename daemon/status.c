/* SPDX-License-Identifier: Apache-2.0 */
/*
 * In:   the control thread's state, the leader's answer. Out: JSON. Next: admin.c.
 */
#include "status.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "../proto/wire.h"
#include "clients.h"
#include "memory.h"

static json_t *config_json(const struct config *cfg)
{
	static const char *const hugepages[] = {"auto", "off", "require"};

	return json_pack("{s:I s:I s:I s:I s:I s:s s:s}", "pool_bytes", (json_int_t)cfg->pool_size, "arena_max_bytes",
			 (json_int_t)cfg->arena_max, "max_sessions", (json_int_t)cfg->max_sessions,
			 "max_sessions_per_uid", (json_int_t)cfg->max_sessions_per_uid, "max_segment_mb",
			 (json_int_t)cfg->max_segment_mb, "share_group", cfg->share_group, "hugepages",
			 hugepages[cfg->hugepages]);
}

static json_t *status_json(const struct control *ctl)
{
	double uptime = (double)(loop_now(ctl->loop) - ctl->started_ns) / 1e9;
	char abi[16], instance[20];

	snprintf(abi, sizeof(abi), "%d.%d", ATTND_ABI_MAJOR, ATTND_ABI_MINOR);
	snprintf(instance, sizeof(instance), "%016" PRIx64, ctl->instance);
	return json_pack("{s:s s:s s:i s:s s:f s:b s:s s:s s:s s:I s:s s:I s:I s:o}", "version", ATTND_VERSION, "abi",
			 abi, "pid", (int)getpid(), "instance", instance, "uptime_s", uptime, "draining",
			 ctl->draining, "event_loop", loop_name(ctl->loop), "socket", ctl->cfg.socket, "admin_socket",
			 ctl->cfg.admin_socket, "rss_bytes", (json_int_t)memory_resident(), "events_socket",
			 ctl->cfg.events_socket, "sessions", (json_int_t)ctl->num_sessions, "arena_bytes",
			 (json_int_t)ctl->arena_bytes, "config", config_json(&ctl->cfg));
}

/* The entry of this id in the leader's list, or NULL. */
static json_t *find_session(const json_t *list, json_int_t id)
{
	json_t *entry;
	size_t i;

	json_array_foreach(list, i, entry) if (json_integer_value(json_object_get(entry, "id")) == id) return entry;
	return NULL;
}

static json_t *sessions_json(const struct control *ctl, const json_t *leader)
{
	json_t *all = clients_json(ctl), *entry;
	size_t i;

	json_array_foreach(all, i, entry)
	{
		json_int_t id = json_integer_value(json_object_get(entry, "id"));

		json_object_update_missing(entry, find_session(json_object_get(leader, "sessions"), id));
	}
	return json_pack("{s:o}", "sessions", all);
}

json_t *status_merge(const struct control *ctl, const char *command, json_t *leader)
{
	json_t *object;

	if (strcmp(command, "sessions") == 0) {
		object = sessions_json(ctl, leader);
	} else {
		object = strcmp(command, "status") == 0 ? status_json(ctl) : json_object();
		if (object && leader)
			json_object_update_missing(object, leader);
	}
	json_decref(leader);
	return object;
}
