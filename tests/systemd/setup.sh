#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# In: a Debian 12 or 13 machine; riscv64: for that architecture, with dpkg and attnd's libraries. Out:
# Debian 13's systemd and what it needs, unpacked (no script of a package is run) under
# ~/.cache/attnd/systemd[-riscv64]; --where prints that directory. A second run finds everything and
# needs no network. Next: boot.sh, units.sh, tests/vm/systemd.sh.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
. "$here/../riscv/setup.sh"
# shellcheck disable=SC2154
arch=$(dpkg --print-architecture) cache=${cache%/*}/systemd
packages="systemd systemd-sysv libsystemd-shared bash coreutils grep sed gawk util-linux mount procps libc-bin passwd"
if [ "${*: -1}" = riscv64 ]; then
	arch=riscv64 cache=$cache-riscv64
	packages="$packages dpkg diffutils findutils tar perl-base init-system-helpers libhugetlbfs0 libinih1 libjansson4
	  libmicrohttpd12t64 libmsgpack-c2 libncursesw6 libnuma1 libsodium23 liburing2 libzmq5"
fi
root=$cache/root
if [ "${1:-}" = --where ]; then
	echo "$root"
	exit
fi
[ "$(cat "$root/.packages" 2>/dev/null)" = "$packages" ] && exit
say SYSTEMD "$root"
mkdir -p "$cache"
exec 9>"$cache/lock"
flock 9
conf=$(apt_conf trixie trixie "$arch" "$cache/apt/trixie/status")
export APT_CONFIG=$conf
apt-get update -q >&2
# shellcheck disable=SC2086
apt-get install -y -q --download-only $packages >&2 </dev/null
rm -rf "$root.new"
mkdir -p "$root.new"/usr/{bin,sbin,lib,lib64} "$root.new"/{etc,dev,proc,sys,tmp,run,mnt,root,var/lib,var/log}
for d in bin sbin lib lib64; do ln -s usr/$d "$root.new/$d"; done
mkdir -p "$root.new"/var/lib/dpkg/{info,updates} "$root.new/var/log"
for deb in "$cache"/apt/trixie/cache/archives/*.deb; do
	{ dpkg-deb -f "$deb"; echo 'Status: install ok installed'; echo; } >>"$root.new/var/lib/dpkg/status"
	dpkg-deb --fsys-tarfile "$deb" | tar -t | sed 's,^\./$,/.,; s,^\.,,; s,\(.\)/$,\1,' >"$root.new/var/lib/dpkg/info/$(dpkg-deb -f "$deb" Package).list"
	dpkg-deb --fsys-tarfile "$deb" | tar -x --keep-directory-symlink --exclude='./usr/share/doc*' \
		--exclude='./usr/share/man*' --exclude='./usr/share/locale*' --exclude='./usr/lib/udev/hwdb.d/*' -C "$root.new"
done
ln -sf bash "$root.new/usr/bin/sh"
printf 'root:x:0:0:root:/root:/bin/bash\nnobody:x:65534:65534::/:/bin/false\n' >"$root.new/etc/passwd"
printf 'root:x:0:\ntty:x:5:\nadm:x:4:\nutmp:x:43:\nsystemd-journal:x:999:\nnogroup:x:65534:\n' >"$root.new/etc/group"
ldconfig -r "$root.new" 2>/dev/null || true
printf '%s\n' "$packages" >"$root.new/.packages"
rm -rf "$root"
mv "$root.new" "$root"
