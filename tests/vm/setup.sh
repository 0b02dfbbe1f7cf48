#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# In: what tests/riscv/setup.sh made. Out: qemu-system-riscv64, Debian 13's riscv64 kernel and a
# busybox initramfs under ~/.cache/attnd. Next: run.sh boots them.
#
# A second run finds everything and needs no network.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
. "$here/../riscv/setup.sh"
# shellcheck disable=SC2154
vm=$cache/vm

install_system_qemu() {
	local v
	v=$(qemu-system-riscv64 --version 2>/dev/null | sed -n 's/^QEMU emulator version \([0-9]*\).*/\1/p')
	[ "${v:-0}" -ge 9 ] || install_from_qemu qemu-system-riscv opensbi
	command -v cpio >/dev/null || as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -q cpio >&2 </dev/null
}

fetch() {
	local conf
	conf=$(apt_conf trixie trixie riscv64 "$cache/apt/trixie/status")
	mkdir -p "$vm/debs"
	APT_CONFIG=$conf apt-get update -q >&2
	(cd "$vm/debs" && APT_CONFIG=$conf apt-get download -q linux-image-riscv64 busybox-static >&2 &&
		APT_CONFIG=$conf apt-get download -q \
			"$(dpkg-deb -f linux-image-riscv64_*.deb Depends | grep -o 'linux-image-[^ ,]*' | head -1)" >&2)
}

# Built-in parts boot; only what a test mounts is a module, and nothing here is.
make_base() {
	local root=$vm/root
	rm -rf "$root" && mkdir -p "$root"/{usr/bin,usr/lib,dev,proc,sys,tmp,run,etc}
	for d in bin lib; do ln -s usr/$d "$root/$d"; done
	ln -s usr/bin "$root/sbin"
	dpkg-deb --fsys-tarfile "$vm"/debs/busybox-static_*.deb | tar -xO ./usr/bin/busybox >"$root/usr/bin/busybox"
	chmod 755 "$root/usr/bin/busybox"
	cp "$here/init" "$root/init"
	chmod 755 "$root/init"
	(cd "$root" && find . | cpio -o -H newc --quiet -R 0:0) >"$vm/base.cpio"
}

extract_kernel() {
	local deb
	deb=$(ls "$vm"/debs/linux-image-[0-9]*.deb | head -1)
	rm -rf "$vm/kernel" && mkdir "$vm/kernel"
	dpkg-deb --fsys-tarfile "$deb" | tar -x -C "$vm/kernel" ./boot
	cp "$vm"/kernel/boot/vmlinu[xz]-* "$vm/Image"
	rm -rf "$vm/kernel" "$deb"
}

mkdir -p "$vm"
exec 9>"$cache/lock"
flock 9
install_system_qemu
[ -s "$vm/Image" ] || { fetch && extract_kernel; }
make_base
