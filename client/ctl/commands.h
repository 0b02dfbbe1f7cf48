/* SPDX-License-Identifier: Apache-2.0 */
/*
 * attnctl's commands and options: the one list that the program, its help, its manual page and the
 * shell's completion are made of.
 *
 * In:   nothing. Out: CTL_COMMANDS, CTL_OPTIONS. Next: attnctl.c, docs/man/generate.
 */
#ifndef ATTND_CLIENT_CTL_COMMANDS_H
#define ATTND_CLIENT_CTL_COMMANDS_H

/* X(command, arguments, who does it, help). ask: the daemon answers. */
#define CTL_COMMANDS(X)                                                                                  \
	X("status", "", ask, "the daemon, its memory and its work")                                      \
	X("sessions", "", ask, "the connected clients")                                                  \
	X("caches", "", ask, "the KV caches and what they hold")                                         \
	X("plan", "", ask, "the live plans in words: what is shared, how the work is cut")               \
	X("pins", "", ask, "what is pinned, and until when")                                             \
	X("tree", "cache=NAME [blocks=N]", ask,                                                          \
	  "what is cached: its tokens, who shares and holds it, what goes next")                         \
	X("pin", "cache=NAME seconds=N tokens=1,2,3|text=TEXT", ask,                                     \
	  "keep a cached prefix; text is for models whose tokens are bytes")                             \
	X("unpin", "[pin=N] [cache=NAME]", ask, "let go of one, of a cache's, or of all")                \
	X("evict", "cache=NAME blocks=N", ask, "free the blocks that would go next")                     \
	X("flush", "[cache=NAME]", ask, "free all that nobody holds, of one cache or of all")            \
	X("set", "[LIMIT=VALUE...]", ask,                                                                \
	  "change limits until the next restart or reload, or show them: pin-budget, namespace-quota, "  \
	  "session-quota, cache-shares, max-sequences, eviction")                                        \
	X("stat", "", stat, "rates, latencies, hit rate and pool since the daemon's start")              \
	X("top", "", top, "the same of the last second, live; q ends it")                                \
	X("metrics", "", ask, "all counters, gauges and histograms as Prometheus text")                  \
	X("events", "", events, "what is cached, and with --follow what comes and goes, block by block") \
	X("doctor", "", doctor, "is this machine set up well? What is not comes with what to do about it")

/* X(option, its letter, its argument or "", the only commands that it is for or "", help) */
#define CTL_OPTIONS(X)                                                                                              \
	X("socket", 's', "PATH", "",                                                                                \
	  "the daemon's socket, or its administrators' (PATH.admin); without it $ATTND_SOCKET, "                    \
	  "$XDG_RUNTIME_DIR/attnd.sock, /run/attnd/attnd.sock")                                                     \
	X("json", 'j', "", "", "for programs: what the daemon answers, unchanged, or what was worked out")          \
	X("text", 't', "", "tree", "tokens as bytes")                                                               \
	X("once", 'o', "", "top", "one interval, as plain text")                                                    \
	X("interval", 'i', "SECONDS", "top", "between two looks, 0.1 to 86400; 1 if not given")                     \
	X("stream", 'S', "GB/S", "top, stat",                                                                       \
	  "what this machine's memory can be read with, up to 100000; 0: unknown; not given: measured for a tenth " \
	  "of a second")                                                                                            \
	X("follow", 'f', "", "events", "go on until interrupted")                                                   \
	X("root", 'r', "DIR", "doctor", "look at the machine whose /sys and /proc are under DIR")                   \
	X("help", 'h', "", "", "this text")                                                                         \
	X("version", 'v', "", "", "the version")

#endif
