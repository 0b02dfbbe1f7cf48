#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# In: DEBS (a directory of packages for this machine: make deb), this build. Out: TAP of
# deb-inside.sh: the packages in a copy of this machine's root, installed by dpkg before it boots, under
# its own systemd as PID 1; or why it is skipped. Next: prove.
set -u
cd "$SRC" || exit 1

skip() {
	echo "1..0 # SKIP $1"
	exit 0
}
[ "$(id -u)" = 0 ] || skip 'namespaces and control groups need root'
[ -x /lib/systemd/systemd ] || skip 'no systemd here'
unshare --mount --pid --fork --uts --ipc --net --cgroup true 2>/dev/null || skip 'no namespaces here'
groups=/sys/fs/cgroup/unified
[ -d $groups ] || groups=/sys/fs/cgroup
mkdir $groups/attnd-probe.$$ 2>/dev/null && rmdir $groups/attnd-probe.$$ || skip 'control groups are read-only here'

share=$(mktemp -d)
trap 'rm -rf "$share"' EXIT
tests/systemd/deb-share.sh "$DEBS" "$BUILD" "$share" || { echo 'not ok 1 - packages'; exit 1; }
BOOT_SECONDS=300 BOOT_PREPARE=deb-install.sh BOOT_AFTER=multi-user.target tests/systemd/boot.sh / "$share" deb-inside.sh >"$share/boot.log" 2>&1
status=$?
cat "$share/tap" 2>/dev/null
if ! grep -q '^1\.\.' "$share/tap" 2>/dev/null; then
	sed 's/^/# /' "$share/boot.log" "$share/log"
	echo "Bail out! it ended before its time: $status"
fi
exit $status
