#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# In: this build; SYSTEMD_ROOT: a directory with another systemd (setup.sh), else this machine's own.
# Out: TAP of inside.sh, or why it is skipped. Next: prove.
set -u
cd "$SRC" || exit 1
PREFIX=${PREFIX:-/usr/local}

skip() {
	echo "1..0 # SKIP $1"
	exit 0
}

root=${SYSTEMD_ROOT:-/}
[ "$(id -u)" = 0 ] || skip 'namespaces and control groups need root'
[ -x "$root/lib/systemd/systemd" ] || skip "no systemd in $root"
unshare --mount --pid --fork --uts --ipc --net --cgroup true 2>/dev/null || skip 'no namespaces here'
groups=/sys/fs/cgroup/unified
[ -d $groups ] || groups=/sys/fs/cgroup
mkdir $groups/attnd-probe.$$ 2>/dev/null && rmdir $groups/attnd-probe.$$ || skip 'control groups are read-only here'
if nm "$BUILD/attnd" 2>/dev/null | grep -qE '__(asan|tsan)_init'; then
	skip 'memory limits and the filter of system calls do not go with sanitizers'
fi

share=$(mktemp -d)
trap 'rm -rf "$share"' EXIT
make --no-print-directory O="$BUILD" DESTDIR="$share/install" PREFIX="$PREFIX" install >"$share/log" 2>&1 ||
	{ sed 's/^/# /' "$share/log"; echo 'not ok 1 - make install'; exit 1; }
cp "$BUILD/attnctl" "$BUILD/tests/systemd/client" "$BUILD/tests/systemd/hang" tests/systemd/inside.sh tests/systemd/steps.sh "$share"
mkdir "$share/lib"
if [ "$root" != / ]; then # what we are linked with, but not the C library
	ldd "$BUILD/attnd" "$BUILD/attnctl" "$BUILD/tests/systemd/client" | awk '$2 == "=>" { print $3 }' | sort -u |
		grep -Ev '/(ld-linux|libc|libm|libpthread|libdl|librt|libresolv|libsystemd)[-.]' | xargs -I{} cp -L {} "$share/lib"
fi
loop=io_uring
[ "$(cat /proc/sys/kernel/io_uring_disabled 2>/dev/null || echo 0)" = 0 ] || loop=epoll
printf '#!/bin/bash\nEVENT_LOOP=%s exec ./inside.sh\n' "$loop" >"$share/start"
chmod 755 "$share" "$share/start"
tests/systemd/boot.sh "$root" "$share" start >"$share/boot.log" 2>&1
status=$?
cat "$share/tap" 2>/dev/null
if ! grep -q '^1\.\.' "$share/tap" 2>/dev/null; then
	sed 's/^/# /' "$share/boot.log" "$share/log"
	echo "Bail out! it ended before its time: $status"
fi
exit $status
