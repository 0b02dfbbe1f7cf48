/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The daemon's log: one line to stderr for each decision.
 *
 * In:   a level and a text. Out: a line, with a journal priority where a journal or a file reads
 * it. Next: nothing. Any thread may call; lines do not mix.
 */
#ifndef ATTND_DAEMON_LOG_H
#define ATTND_DAEMON_LOG_H

enum log_level { LOG_LEVEL_ERR, LOG_LEVEL_WARN, LOG_LEVEL_INFO, LOG_LEVEL_DEBUG };

/** Lines above this level are dropped (start: LOG_LEVEL_INFO). May be called at any time. */
void log_set_level(enum log_level level);

__attribute__((format(printf, 2, 3))) void log_line(enum log_level level, const char *format, ...);

#define log_err(...)   log_line(LOG_LEVEL_ERR, __VA_ARGS__)
#define log_warn(...)  log_line(LOG_LEVEL_WARN, __VA_ARGS__)
#define log_info(...)  log_line(LOG_LEVEL_INFO, __VA_ARGS__)
#define log_debug(...) log_line(LOG_LEVEL_DEBUG, __VA_ARGS__)

#endif
