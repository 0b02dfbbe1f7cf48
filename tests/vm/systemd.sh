#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# In: BUILD/riscv64 (make riscv64) with install/, what setup.sh and tests/systemd/setup.sh riscv64 fetched;
# a directory of riscv64 packages (make deb DEB_ARCH=riscv64), or nothing. Out: TAP of
# tests/systemd/inside.sh, or of deb-inside.sh, under a systemd that is PID 1 of a riscv64 machine of 4
# harts and 2 NUMA nodes under qemu. Next: make check-vm, make check-deb.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
. "$here/../riscv/env.sh"
build=${1:?usage: systemd.sh BUILD [PACKAGES]}/riscv64
debs=${2:-}
# shellcheck disable=SC2154
vm=$cache/vm
root=$("$here/../systemd/setup.sh" --where riscv64)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$work/etc/systemd/system" "$work/mnt/lib"
# shellcheck disable=SC2154
cp -L "$sysroot/usr/lib/riscv64-linux-gnu/libcmocka.so.0" "$work/mnt/lib" # the clients', nobody else's

# Nothing is slow but the machine: it has no watchdog's 2 seconds.
env='TAP=/dev/console PATIENCE=60 WATCHDOG=15s EVENT_LOOP=io_uring SYSTEMD_PAGER='
if [ -n "$debs" ]; then
	"$here/../systemd/deb-share.sh" "$debs" "$build" "$work/mnt" riscv64
	after=multi-user.target program=deb-inside.sh prepare="/mnt/deb-install.sh >/mnt/log 2>&1 || sed 's/^/# /' /mnt/log"
else
	cp "$here"/../systemd/{steps,inside}.sh "$build/attnctl" "$build"/tests/systemd/{client,hang} "$work/mnt"
	cp -a "$build/install" "$work/mnt/install"
	llvm-strip-19 "$work"/mnt/install/usr/local/*bin/*
	after='' program=inside.sh prepare=:
fi
for f in "$work"/mnt/*; do
	case $(file -b "$f") in ELF*) llvm-strip-19 "$f" ;; esac
done

# As in tests/systemd/boot.sh: nothing starts but the test's own target, and what that needs.
cat >"$work/etc/systemd/system/attnd-test.target" <<-U
	[Unit]
	Requires=attnd-test.service
	${after:+Wants=$after}
	AllowIsolate=yes
	DefaultDependencies=no
U
cat >"$work/etc/systemd/system/attnd-test.service" <<-U
	[Unit]
	DefaultDependencies=no
	${after:+After=$after}
	[Service]
	Type=oneshot
	WorkingDirectory=/mnt
	Environment=$env
	StandardOutput=append:/mnt/log
	StandardError=append:/mnt/log
	ExecStart=/bin/bash -c "/mnt/$program; systemctl poweroff --force --force"
U
cat >"$work/init" <<-I
	#!/bin/bash
	export PATH=/usr/sbin:/usr/bin TERM=dumb
	mount -t devtmpfs dev /dev
	mount -t tmpfs run /run
	exec </dev/console >/dev/console 2>&1
	rm -rf /etc/systemd/system/*.wants /etc/systemd/system/*.requires /usr/lib/systemd/system/*.wants
	echo 0123456789abcdef0123456789abcdef >/etc/machine-id
	: >/etc/fstab
	echo 'TAP version 13'
	$prepare
	umount /run
	exec /usr/lib/systemd/systemd
I
chmod 755 "$work/init"
(cd "$root" && find . | cpio -o -H newc --quiet -R 0:0) >"$work/initrd"
(cd "$work" && find init etc mnt | cpio -o -H newc --quiet -R 0:0) >"$work/ours"
cat "$work/ours" >>"$work/initrd"

timeout "${TIMEOUT:-900}" qemu-system-riscv64 -machine virt -accel tcg,thread=multi -nographic -no-reboot -monitor none \
	-cpu "$(qemu_cpu 256)" -smp 4 -m 2G \
	-object memory-backend-ram,id=m0,size=1G -object memory-backend-ram,id=m1,size=1G \
	-numa node,nodeid=0,cpus=0-1,memdev=m0 -numa node,nodeid=1,cpus=2-3,memdev=m1 -numa dist,src=0,dst=1,val=20 \
	-kernel "$vm/Image" -initrd "$work/initrd" \
	-append "console=ttyS0 quiet panic=-1 systemd.unit=attnd-test.target systemd.show_status=0 systemd.log_target=null" \
	</dev/null | sed -un 's/\r//g; s/^.*\x1b[][!?0-9]*[a-zA-Z]//; /^TAP version/,$p' | tee "$work/tap"
grep -q '^1\.\.' "$work/tap" && ! grep -q '^not ok' "$work/tap"
