#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# In: ROOT (a directory with systemd in it; /: this machine's), SHARE (a directory, seen as /mnt) and
# a program in it; BOOT_PREPARE: another one, which runs in ROOT before systemd does; BOOT_AFTER: a
# target that is reached before the program starts. Out: the program's exit status, run by ROOT's
# systemd as PID 1 in namespaces of its own; what it printed is in SHARE/log. What it changes in ROOT
# is gone afterwards. Needs root.
set -euo pipefail
root=${1:?usage: boot.sh ROOT SHARE PROGRAM} share=$2 program=$3

cgroups=/sys/fs/cgroup/unified
[ -d $cgroups ] || cgroups=/sys/fs/cgroup
cgroup=$cgroups/attnd-test.$$
mkdir "$cgroup"
work=$(mktemp -d /tmp/attnd-boot.XXXXXX)
cleanup() {
	for _ in 1 2 3 4 5 6 7 8 9 10; do
		find "$cgroup" -depth -type d -exec rmdir {} + 2>/dev/null || true
		[ -d "$cgroup" ] || break
		sleep 0.1
	done
	rmdir "$work"
}
trap cleanup EXIT

# In the new mount namespace: a copy-on-write root, then systemd.
# shellcheck disable=SC2016
inner='
set -e
root=$1 share=$2 work=$3 program=$4 prepare=$5 after=$6
mount --make-rprivate /
mount -t tmpfs -o size=1G none "$work"
mkdir "$work"/upper "$work"/work "$work"/root
mount -t overlay -o lowerdir="$root",upperdir="$work"/upper,workdir="$work"/work none "$work"/root
mkdir -p "$work"/root/mnt "$work"/root/run "$work"/root/sys "$work"/root/proc "$work"/root/dev "$work"/root/tmp
mount --bind "$share" "$work"/root/mnt
cd "$work"/root
mount -t proc proc proc
mount --bind proc/sys proc/sys
mount -o remount,ro,bind proc/sys
[ ! -e proc/sysrq-trigger ] || mount --bind /dev/null proc/sysrq-trigger
mount -t sysfs -o ro sysfs sys
mount -t cgroup2 cgroup2 sys/fs/cgroup
mount -t tmpfs run run
mount -t tmpfs tmp tmp
mount -t tmpfs -o mode=755 dev dev
for f in null zero full random urandom tty; do : >dev/$f; mount --bind /dev/$f dev/$f; done
mkdir dev/pts dev/shm dev/mqueue dev/hugepages
mount -t devpts -o newinstance,ptmxmode=666 devpts dev/pts
ln -s pts/ptmx dev/ptmx
ln -s /proc/self/fd dev/fd
mount -t tmpfs -o mode=1777 shm dev/shm
: >dev/console
ip link set lo up 2>/dev/null || true
# Nothing of this machine starts: only the target of the test, and what that needs.
rm -rf etc/systemd/system/*.wants etc/systemd/system/*.requires lib/systemd/system/*.wants
echo 0123456789abcdef0123456789abcdef >etc/machine-id
cat >etc/systemd/system/attnd-test.target <<-U
	[Unit]
	Requires=attnd-test.service
	${after:+Wants=$after}
	AllowIsolate=yes
	DefaultDependencies=no
U
cat >etc/systemd/system/attnd-test.service <<-U
	[Unit]
	DefaultDependencies=no
	${after:+After=$after}
	[Service]
	Type=oneshot
	WorkingDirectory=/mnt
	StandardOutput=append:/mnt/log
	StandardError=append:/mnt/log
	ExecStart=/bin/bash -c "/mnt/$program; systemctl exit \$\$?"
U
[ -z "$prepare" ] || env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin chroot . /bin/bash -c "/mnt/$prepare" >>"$share/log" 2>&1
exec env -i container=attnd-test PATH=/usr/sbin:/usr/bin:/sbin:/bin \
	chroot . /lib/systemd/systemd --system --unit=attnd-test.target --show-status=0 --log-target=null
'
rc=0
(
	echo $BASHPID >"$cgroup/cgroup.procs"
	exec timeout -k 5 "${BOOT_SECONDS:-120}" unshare --mount --pid --fork --kill-child --uts --ipc --net --cgroup \
		bash -c "$inner" _ "$root" "$share" "$work" "$program" "${BOOT_PREPARE:-}" "${BOOT_AFTER:-}"
) || rc=$?
exit $rc
