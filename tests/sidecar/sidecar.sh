#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# In: this build. Out: TAP: what docs/sidecar.md promises of namespaces, users, seccomp and huge pages,
# with namespaces made here. Next: prove.
set -u
cd "$SRC" || exit 1
peer=$BUILD/tests/sidecar/peer
skip() {
	echo "1..0 # SKIP $1"
	exit 0
}
[ "$(id -u)" = 0 ] || skip 'namespaces need root'
own="unshare --mount --pid --fork --kill-child --ipc --net --uts" # what a container has of its own
$own true 2>/dev/null || skip 'no namespaces here'
if nm "$BUILD/attnd" 2>/dev/null | grep -q __asan_init; then # its shadow memory wants /proc as it was
	export ASAN_OPTIONS=${ASAN_OPTIONS:-}:detect_leaks=0
fi

dir=$(mktemp -d /tmp/attnd-sidecar.XXXXXX)
chmod 755 "$dir"
daemon=
end() { kill -TERM "$(pgrep -P "$daemon" | head -1)" && wait "$daemon"; } # unshare itself lets signals pass by
stop() {
	[ -z "$daemon" ] || end 2>/dev/null
	daemon=
	rm -f "$dir"/s "$dir"/s.*
}
trap 'stop; rm -rf "$dir"' EXIT

n=0
check() { # text, command...
	local text=$1
	shift
	n=$((n + 1))
	if "$@" >"$dir/out" 2>&1; then echo "ok $n - $text"; else
		echo "not ok $n - $text"
		sed 's/^/# /' "$dir/out" "$dir/log"
	fi
}
# The wrapper around the daemon, then --, then flags.
start() {
	local around=()
	while [ "$1" != -- ]; do around+=("$1"); shift; done
	shift
	stop
	"${around[@]}" "$BUILD/attnd" --config /dev/null --socket "$dir/s" --socket-mode 0666 --pool-size 16M \
		--pin false "$@" >"$dir/log" 2>&1 &
	daemon=$!
	for _ in $(seq 300); do "$BUILD/attnctl" --socket "$dir/s.admin" status >/dev/null 2>&1 && return; sleep 0.1; done
	echo "# the daemon does not come up"; sed "s/^/# /" "$dir/log"
}
status_has() { "$BUILD/attnctl" --socket "$dir/s.admin" --json status | grep -q "$1"; }
says() { # what a peer says, command...
	local want=$1 got
	shift
	got=$("$@" 2>&1)
	[ "$got" = "$want" ] || { echo "$got, not $want"; false; }
}
other() { setpriv --reuid "$1" --regid "$1" --clear-groups "${@:2}"; }
no_sessions() {
	for _ in $(seq 100); do status_has '"sessions":[ ]*0' && return; sleep 0.1; done
	return 1
}

# shellcheck disable=SC2086
start $own --
check 'a daemon with namespaces of its own serves a client outside' says 'cached 0' "$peer" "$dir/s"
check 'and one in namespaces of its own, which hits' says 'cached 63' $own "$peer" "$dir/s"
$own "$peer" "$dir/s" hold >"$dir/held" &
held=$!
for _ in $(seq 100); do grep -q cached "$dir/held" && break; sleep 0.1; done
check 'a client whose pid reads as 0 is a session' status_has '"sessions":[ ]*1'
kill -9 "$held"
wait "$held" 2>/dev/null
check 'and is gone when it is killed' no_sessions
check 'root of a user namespace is who made it' says 'cached 0' other 4242 unshare --user --map-root-user "$peer" "$dir/s"
check 'and hits what it had computed outside' says 'cached 63' other 4242 "$peer" "$dir/s"
check 'an unmapped one (65534) is served' says 'cached 0' other 4243 unshare --user "$peer" "$dir/s"

start $own --user --map-root-user --
check 'a daemon in a user namespace serves root' says 'cached 0' "$peer" "$dir/s"
check 'and users that it cannot name' says 'cached 0' other 4242 "$peer" "$dir/s"
check 'which share nothing, not even with themselves' says 'cached 0' other 4242 "$peer" "$dir/s"
start $own --user --map-root-user -- --share-group pod
check 'but with a share-group' says 'cached 0' other 4242 "$peer" "$dir/s"
check 'they do, whoever they are' says 'cached 63' other 4243 "$peer" "$dir/s"
check 'from user namespaces, too' says 'cached 63' other 4244 $own --user "$peer" "$dir/s"

# shellcheck disable=SC2086
start $own "$BUILD/tests/sidecar/nouring" --
check 'a seccomp profile without io_uring: epoll' status_has '"event_loop":[ ]*"epoll"'
check 'said in the log' grep -q 'io_uring is not to be had' "$dir/log"
check 'and served' says 'cached 0' "$BUILD/tests/sidecar/nouring" $own "$peer" "$dir/s"

free=$(sed -n 's/HugePages_Free: *//p' /proc/meminfo)
# shellcheck disable=SC2086
if [ "${free:-0}" -ge 8 ]; then
	start $own -- --hugepages require
	check 'huge pages of the host are used' status_has '"backing":[ ]*"hugetlb"'
else
	start $own -- --hugepages auto
	check 'without huge pages: plain ones, which the log and the status tell' status_has '"backing":[ ]*"\(plain\|collapsed\)"'
	echo "# no 8 huge pages are free here: not tried with them"
fi
check 'served' says 'cached 0' "$peer" "$dir/s"
check 'it ends by itself' end
daemon=
check 'and leaves nothing in the shared directory' test -z "$(find "$dir" -name 's*')"
echo "1..$n"
