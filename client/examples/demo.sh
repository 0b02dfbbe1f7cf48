#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# The demo: three model runners, one cache. Runner A computes a long system prompt; B and C, at
# the same time, ask other questions under the same prompt and find it computed.
#
# In:   the build directory; ATTND_DAEMON may name another daemon.
# Out:  a table and what `attnctl status` shows; exit 1 unless B and C reused the whole shared
#       prompt and every text is the one that the same model writes without attnd.
#
# Everything happens in a temporary directory with a daemon of its own; no root, no huge pages.
set -u

build=${1:?usage: demo.sh BUILD_DIRECTORY}
here=$(dirname "$(readlink -f "$0")")
model=$here/model
max_new=64
names=(A B C)
system='PostgreSQL is a relational database management system. This chapter describes how queries are planned and executed, how tables and indexes are stored, and which server settings control memory and concurrency. Each section begins with a short description and ends with notes for administrators. The planner uses statistics gathered by ANALYZE to estimate how many rows each step will return. When the estimates are wrong, the chosen plan can be slow. An index can be used to find rows quickly, but it must be kept up to date whenever the table is changed. Transactions that are open for a long time prevent VACUUM from removing dead rows, so that tables grow.

'
questions=('The CREATE INDEX command' 'If a transaction is rolled back,' 'The default isolation level is')

tmp=$(mktemp -d "${TMPDIR:-/tmp}/attnd-demo.XXXXXX") || exit 1
socket=$tmp/attnd.sock
daemon=
runners=()

cleanup() {
	trap - EXIT
	[ ${#runners[@]} -eq 0 ] || kill "${runners[@]}" 2>/dev/null
	[ -z "$daemon" ] || kill "$daemon" 2>/dev/null
	wait 2>/dev/null
	rm -rf "$tmp"
}
trap cleanup EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP

fail() {
	echo "demo: $*" >&2
	[ ! -s "$tmp/log" ] || sed 's/^/  attnd: /' "$tmp/log" >&2
	exit 1
}

start_daemon() {
	# Not the machine's configuration: its pool and its ports are another daemon's.
	"${ATTND_DAEMON:-$build/attnd}" --config /dev/null --socket "$socket" --admin-socket "$socket.admin" \
		--pool-size 32M --hugepages off >"$tmp/log" 2>&1 &
	daemon=$!
	for _ in {1..200}; do
		[ -S "$socket.admin" ] && return
		kill -0 "$daemon" 2>/dev/null || break
		sleep 0.05
	done
	fail 'the daemon does not start'
}

prompt() { # number
	printf '%s%s' "$system" "${questions[$1]}"
}

run() { # number, where attention is...
	local i=$1
	shift
	"$build/attnd-runner" --model "$model" --prompt "$(prompt "$i")" --max-new $max_new --json "$@" \
		2>"$tmp/$i.err" || { sed "s/^/  runner ${names[$i]}: /" "$tmp/$i.err" >&2; return 1; }
}

# Start a runner on the daemon, in the background.
start() { # number
	run "$1" --socket "$socket" >"$tmp/$1.json" &
	runners+=($!)
}

finish() {
	local pid
	for pid in "${runners[@]}"; do
		wait "$pid" || fail 'a runner failed'
	done
	runners=()
}

ctl() {
	"$build/attnctl" --socket "$socket.admin" "$@" || fail "attnctl $* failed"
}

echo 'Starting attnd and runner A, then B and C together under the same system prompt.'
start_daemon
start 0
finish
ctl status --json >"$tmp/0.status"
start 1
start 2
finish
ctl status --json >"$tmp/1.status"
cp "$tmp/1.status" "$tmp/2.status"

echo 'Writing the same texts without attnd, to compare.'
for i in 0 1 2; do
	run $i --local >>"$tmp/expected" || fail 'the runner failed without the daemon'
	cat "$tmp/$i.json" >>"$tmp/got"
done

echo
"$here/demo-table" "$tmp" "${#system}" "${questions[@]}" || fail 'B or C did not reuse the whole shared prompt'
"$here/compare-runs" "$tmp/expected" "$tmp/got" >&2 || fail 'a text differs from the one written without attnd'
echo
ctl status
echo
echo "B and C reused the ${#system} tokens of the shared prompt; every text is the one written without attnd."
