#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# attnd-runner on a daemon: the same text as without one, cold and cached, in any store; a runner
# that lives through the daemon's end and through one that does not come back.
# In: $BUILD/attnd-runner, $ATTND_DAEMON. Out: TAP. Next: prove.
set -u
runner=$BUILD/attnd-runner
examples=$SRC/client/examples
model=$examples/model
tmp=$(mktemp -d)
socket=$tmp/attnd.sock
kept=$(mktemp -d /dev/shm/attnd-test-XXXXXX)
daemon=
n=0

cleanup() {
	[ -z "$daemon" ] || kill -9 "$daemon" 2>/dev/null
	wait 2>/dev/null
	rm -rf "$tmp" "$kept"
}
trap cleanup EXIT

result() { # status, text
	n=$((n + 1))
	if [ "$1" = 0 ]; then echo "ok $n - $2"; else echo "not ok $n - $2"; fi
}

start_daemon() { # pool size, flags...
	local size=$1
	shift
	"$ATTND_DAEMON" --config /dev/null --socket "$socket" --admin-socket "$socket.admin" --pool-size "$size" --hugepages off \
		--log-level warn "$@" >>"$tmp/log" 2>&1 &
	daemon=$!
	for _ in {1..200}; do
		[ -S "$socket" ] && "$BUILD/attnctl" --socket "$socket.admin" status >"$tmp/status" 2>&1 && return
		sleep 0.05
	done
	echo 'Bail out! the daemon does not start'
	sed 's/^/# /' "$tmp/log"
	exit 1
}

end_daemon() { # signal
	kill "-$1" "$daemon" 2>/dev/null
	wait "$daemon" 2>/dev/null
	daemon=
	[ "$1" != KILL ] || rm -f "$socket" "$socket.admin"
}

# All prompts of the model, compared with its expected texts.
expected() { # text, options...
	local text=$1 said status
	shift
	said=$("$runner" --model "$model" --socket "$socket" --json "$@" --prompts "$model/prompts.jsonl" 2>&1 >"$tmp/got" &&
		"$examples/compare-runs" "$model/expected.jsonl" "$tmp/got" 2>&1)
	status=$?
	result $status "$text"
	[ -z "$said" ] || sed 's/^/# /' <<<"$said"
}

# reused_tokens of line $1 of the last run.
reused() {
	sed -n "$1p" "$tmp/got" | sed 's/.*"reused_tokens":\([0-9]*\).*/\1/'
}

start_daemon 32M
expected 'cold: the expected text'
[ "$(reused 1)" = 0 ] && [ "$(reused 2)" -ge 650 ]
result $? 'the second prompt found what the first had computed'
expected 'cached: the same text'
[ "$(reused 1)" = 683 ] && [ "$(reused 4)" = 19 ]
result $? 'all but the last token was reused'
expected 'an f16 store, in chunks of 100, three at a time' --kv-dtype f16 --chunk 100 --batch 3
[ "$(reused 1)" = 0 ]
result $? 'another dtype is another cache'
expected 'an f16 store, decoded alone' --kv-dtype f16 --batch 1

decode_jobs() {
	"$BUILD/attnctl" --socket "$socket.admin" --json status | sed -n 's/.*"decode_jobs": \([0-9]*\).*/\1/p'
}

# Start a long text in the background and come back when it is well on its way.
start_long() {
	local before
	before=$(decode_jobs)
	"$runner" "${long[@]}" --socket "$socket" >"$tmp/got" 2>"$tmp/err" &
	pid=$!
	for _ in {1..500}; do
		[ "$(decode_jobs)" -lt $((before + 200)) ] || return
		sleep 0.02
	done
}

# The daemon ends in the middle and starts again.
long=(--model "$model" --json --prompt 'The default is ' --max-new 1000)
"$runner" "${long[@]}" --local >"$tmp/expected"
for signal in KILL TERM; do
	start_long
	end_daemon $signal
	start_daemon 32M
	wait $pid
	result $? "SIG$signal: the runner goes on with the next daemon"
	sed 's/^/# /' "$tmp/err"
	"$examples/compare-runs" "$tmp/expected" "$tmp/got" | sed 's/^/# /'
	[ "${PIPESTATUS[0]}" = 0 ] && [ "$(decode_jobs)" -gt 0 ]
	result $? "SIG$signal: with the same text"
done

# Its pool is kept: the runner's sequence is still there.
end_daemon TERM
start_daemon 32M --pool-path "$kept"
start_long
end_daemon KILL
start_daemon 32M --pool-path "$kept"
wait $pid
result $? 'a pool that is kept: the runner goes on with the next daemon'
"$examples/compare-runs" "$tmp/expected" "$tmp/got" | sed 's/^/# /'
[ "${PIPESTATUS[0]}" = 0 ] &&
	[ "$("$BUILD/attnctl" --socket "$socket.admin" --json status | sed -n 's/.*"hit_tokens": \([0-9]*\).*/\1/p')" -gt 20 ]
result $? 'a pool that is kept: with the same text, from what is cached'

start_long
end_daemon KILL
wait $pid
[ $? = 1 ] && [ "$(wc -l <"$tmp/err")" = 1 ] && grep -q 'the daemon is gone' "$tmp/err"
result $? 'a daemon that does not come back: one line, exit 1'
sed 's/^/# /' "$tmp/err"

start_daemon 2M
"$runner" --model "$model" --socket "$socket" --prompts "$model/prompts.jsonl" >"$tmp/out" 2>"$tmp/err"
[ $? = 1 ] && [ "$(wc -l <"$tmp/err")" = 1 ] && grep -q 'pool is full' "$tmp/err"
result $? 'too small a pool: one line, exit 1'
sed 's/^/# /' "$tmp/err"
end_daemon TERM
echo "1..$n"
