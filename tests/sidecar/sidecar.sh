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
sanitized=
! nm "$BUILD/attnd" 2>/dev/null | grep -qE '__(asan|tsan)_init' || sanitized=1
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
	"${around[@]}" "$BUILD/attnd" --config /dev/null --socket "$dir/s" --socket-mode 0666 --pool-size "${POOL:-16M}" \
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

# ---- A memory limit

# A control group (memory or hugetlb), a limit's file in either version, the limit: sets $group.
group=
groups=()
make_group() {
	local root
	for root in "/sys/fs/cgroup/$1" /sys/fs/cgroup /sys/fs/cgroup/unified; do
		group=$root/attnd-sidecar-$$-${#groups[@]}
		[ -e "$root/cgroup.procs" ] || continue
		[ ! -e "$root/cgroup.subtree_control" ] || echo "+$1" >"$root/cgroup.subtree_control" 2>/dev/null
		mkdir "$group" 2>/dev/null || continue
		groups+=("$group")
		{ echo "$4" >"$group/$2" || echo "$4" >"$group/$3"; } 2>/dev/null && return
	done
	return 1
}
# shellcheck disable=SC2016
inside=(bash -c 'echo $$ >"$0/cgroup.procs" && exec "$@"')
remove_groups() {
	local g
	for g in "${groups[@]}"; do
		for _ in $(seq 50); do rmdir "$g" 2>/dev/null && break; sleep 0.1; done
	done
	groups=()
}
lives() { kill -0 "$(pgrep -P "$daemon" | head -1)"; }
refused() { # words of the log, command...
	local want=$1
	shift
	! timeout 60 "$@" "$BUILD/attnd" --config /dev/null --socket "$dir/r" --pin false "${flags[@]}" >"$dir/refused" 2>&1 &&
		grep -q "$want" "$dir/refused" || { cat "$dir/refused"; false; }
}
if [ -z "$sanitized" ] && make_group memory memory.max memory.limit_in_bytes $(((16 + 4 + 64 + 64) << 20)); then
	# shellcheck disable=SC2086
	start "${inside[@]}" "$group" $own -- --hugepages off --meta-size 4M --arena-max 64M
	check 'pool, metadata, arena and 64 MiB: a memory limit of that serves' says 'cached 0' $own "$peer" "$dir/s"
	check 'and hits' says 'cached 63' $own "$peer" "$dir/s"
	check 'and nobody was killed for it' lives
	flags=(--pool-size 512M --hugepages off)
	# shellcheck disable=SC2086
	check 'a pool beyond the limit is refused with a message' refused 'the memory limit of the control group leaves' \
		"${inside[@]}" "$group" $own
else
	echo '# no memory control group is to be had here, or a sanitizer would need more: no limit is tried'
fi

# ---- Huge pages: of the host, reserved here and given back

# shellcheck disable=SC2086
start $own -- --hugepages off
check 'without huge pages: plain ones, which the status tells' status_has '"backing":[ ]*"plain"'
check 'served' says 'cached 0' "$peer" "$dir/s"

huge=/proc/sys/vm/nr_hugepages
free_huge() { sed -n 's/HugePages_Free: *//p' /proc/meminfo; }
exec 8>/tmp/attnd-hugepages.lock # others that run this test count, too
was=
if [ "$(sed -n 's/Hugepagesize: *\([0-9]*\) kB/\1/p' /proc/meminfo)" = 2048 ] && flock -w 60 8; then
	was=$(cat $huge)
	# shellcheck disable=SC2064
	trap "stop; remove_groups; echo $was >$huge; rm -rf '$dir'" EXIT
fi
# So many free ones: others' daemons (hugepages = auto) may take some, too.
reserve() {
	[ -n "$was" ] || return 1
	for _ in 1 2 3 4 5; do
		[ "$(free_huge)" -lt "$1" ] || return 0
		echo $(($(cat $huge) + $1)) >$huge 2>/dev/null || return 1
	done
	return 1
}
if reserve 32; then
	# shellcheck disable=SC2086
	POOL=64M start $own -- --hugepages require
	check 'huge pages of the host are used, without a mount' status_has '"backing":[ ]*"hugetlb"'
	check 'served' says 'cached 0' $own "$peer" "$dir/s"
	stop
	flags=(--pool-size 512G --hugepages require)
	# shellcheck disable=SC2086
	check 'more than there are is refused with a message' refused 'huge pages are not there (hugepages = require)' $own

	if [ -z "$sanitized" ] && make_group memory memory.max memory.limit_in_bytes $(((4 + 16 + 64) << 20)); then
		reserve 64
		# shellcheck disable=SC2086
		POOL=128M start "${inside[@]}" "$group" $own -- --hugepages require --meta-size 4M --arena-max 64M
		check 'they do not count against the memory limit' status_has '"backing":[ ]*"hugetlb"'
		check 'served' says 'cached 0' $own "$peer" "$dir/s"
		stop
	fi
	if make_group hugetlb hugetlb.2MB.max hugetlb.2MB.limit_in_bytes $((16 << 20)); then
		reserve 32
		flags=(--pool-size 64M --hugepages require)
		# shellcheck disable=SC2086
		check 'but against their own: beyond it require is refused' refused 'huge pages are not there (hugepages = require)' \
			"${inside[@]}" "$group" $own
		# shellcheck disable=SC2086
		POOL=64M start "${inside[@]}" "$group" $own -- --hugepages auto
		check 'and auto takes plain pages' status_has '"backing":[ ]*"\(plain\|collapsed\)"'
		check 'which the log tells' grep -q '32 huge pages of 2048 KiB are free, but not for us' "$dir/log"
		check 'served' says 'cached 0' $own "$peer" "$dir/s"
		reserve 8
		# shellcheck disable=SC2086
		POOL=16M start "${inside[@]}" "$group" $own -- --hugepages require
		check 'within it they are used' status_has '"backing":[ ]*"hugetlb"'
		check 'served' says 'cached 0' $own "$peer" "$dir/s"
		stop
	else
		echo '# no control group of huge pages is to be had here'
	fi

	# A volume of huge pages keeps the cache over the container's end.
	mkdir "$dir/volume"
	if reserve 16 && mount -t hugetlbfs -o mode=0700 none "$dir/volume"; then
		for want in 0 63; do
			# shellcheck disable=SC2086
			start $own -- --pool-path "$dir/volume"
			check "pool-path on a volume of huge pages: container $((want / 63 + 1))" status_has '"backing":[ ]*"hugetlb"'
			check "serves from what is there" says "cached $want" $own "$peer" "$dir/s"
			stop
		done
		umount "$dir/volume"
	fi
else
	echo '# no huge pages can be reserved here: not tried with them'
fi

# shellcheck disable=SC2086
start $own --
check 'served' says 'cached 0' "$peer" "$dir/s"
check 'it ends by itself' end
daemon=
check 'and leaves nothing in the shared directory' test -z "$(find "$dir" -name 's*')"
echo "1..$n"
