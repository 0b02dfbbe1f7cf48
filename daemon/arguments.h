/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What an administrator's commands take.
 *
 * In:   a request, in words or JSON. Out: an object whose members are all known to its command, of
 *       their kind and in their range; or what is wrong.
 * Next: admin.c asks the leader, manage.c does it.
 */
#ifndef ATTND_DAEMON_ARGUMENTS_H
#define ATTND_DAEMON_ARGUMENTS_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

enum { ARGUMENTS_PIN_SECONDS = 365 * 86400, ARGUMENTS_TREE_BLOCKS = 20000, ARGUMENTS_WHY = 240 };

/**
 * A request: "evict cache=llama blocks=10" or {"command": "evict", "cache": "llama", "blocks": 10}.
 * NULL: neither, and why (cut to `size`).
 */
json_t *arguments_parse(const char *text, char *why, size_t size);

/** Of a known command. False, and why: a member that the command does not take, or another kind of value. */
bool arguments_check(const char *command, const json_t *request, char *why, size_t size);

/** The answer to what is refused: {"error": text, "errno": status}. A '?' stands for what is no ASCII of it. */
json_t *arguments_refusal(int status, const char *text);

#endif
