#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# In: a Debian 12 or 13 machine. Out: clang-19, lld-19, llvm-19 and qemu-user 10 installed, and a
# sysroot of Debian 13's riscv64 packages unpacked under ~/.cache/attnd (never installed).
# Next: rules.mk builds with it, check.sh and count.pl run under it.
#
# Packages for the sysroot, and qemu where the machine's own release has an old one, come through
# private apt configurations with the machine's own mirror; /etc/apt is not touched. A second run
# finds everything and needs no network.
set -eu
cd "$(dirname "${BASH_SOURCE[0]}")"
. ./env.sh

tools="clang-19 lld-19 llvm-19"
packages="libc6-dev linux-libc-dev liburing-dev libnuma-dev libhugetlbfs-dev libcmocka-dev
  libgcc-14-dev zlib1g-dev libsystemd-dev libsodium-dev libinih-dev libjansson-dev libopenblas-dev
  libmicrohttpd-dev libzmq3-dev libmsgpack-c-dev libncurses-dev systemtap-sdt-dev libxxhash-dev"
keys=/usr/share/keyrings/debian-archive-keyring.gpg

say() {
	printf '  %-8s %s\n' "$1" "$2" >&2
}

as_root() {
	if [ "$(id -u)" = 0 ]; then "$@"; else sudo "$@"; fi
}

# The machine's own Debian mirror: what apt fetched from, else the first one that its lists name.
mirror() {
	local uri
	uri=$(apt-get indextargets --format '$(REPO_URI) $(ORIGIN) $(COMPONENT)' 'Created-By: Packages' 2>/dev/null |
		awk '$2 == "Debian" && $3 == "main" && $1 !~ /security/ { print $1; exit }')
	[ -n "$uri" ] || uri=$(sed -n 's/^URIs: *//p' /etc/apt/sources.list.d/*.sources 2>/dev/null | grep -m1 'debian/*$')
	[ -n "$uri" ] || uri=$(sed -n 's/^deb \(\[[^]]*\] \)\{0,1\}\([^ ]*\) .*/\2/p' /etc/apt/sources.list 2>/dev/null |
		grep -m1 'debian/*$')
	echo "${uri:?no Debian mirror in /etc/apt}"
}

# A private apt configuration: NAME, suites, architecture; status: of what is installed.
apt_conf() {
	local dir=$cache/apt/$1 status=$4
	mkdir -p "$dir"/{sources.d,state,lists/partial,cache/archives/partial}
	: >>"$dir/status"
	printf 'Types: deb\nURIs: %s\nSuites: %s\nComponents: main\nArchitectures: %s\nSigned-By: %s\n' \
		"$(mirror)" "$2" "$3" $keys >"$dir/sources.d/debian.sources"
	cat >"$dir/apt.conf" <<-C
		APT::Architecture "$3";
		APT::Architectures { "$3"; };
		APT::Install-Recommends "false";
		APT::Sandbox::User "";
		Dir::Etc::sourcelist "/dev/null";
		Dir::Etc::sourceparts "$dir/sources.d";
		Dir::State "$dir/state";
		Dir::State::lists "$dir/lists";
		Dir::State::status "$status";
		Dir::Cache "$dir/cache";
	C
	echo "$dir/apt.conf"
}

# The tools of the host; only dpkg is asked when they are there.
install_tools() {
	# shellcheck disable=SC2086
	dpkg -s $tools >/dev/null 2>&1 && return
	say APT "$tools"
	# shellcheck disable=SC2086
	as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends $tools >&2 </dev/null ||
		{ as_root apt-get update -q >&2 && as_root env DEBIAN_FRONTEND=noninteractive \
			apt-get install -y -q --no-install-recommends $tools >&2 </dev/null; }
}

# qemu 7.2 (Debian 12's) knows neither Zvfh nor bf16.
qemu_ok() {
	local v
	v=$(qemu-riscv64 --version 2>/dev/null | sed -n 's/^qemu-riscv64 version \([0-9]*\).*/\1/p')
	[ "${v:-0}" -ge 9 ]
}

# Packages of a qemu that is new enough.
install_from_qemu() {
	local conf='' from=''
	say APT "$*"
	if . /etc/os-release && [ "${VERSION_ID:-}" = 12 ]; then
		conf=$(apt_conf backports 'bookworm bookworm-backports' "$(dpkg --print-architecture)" /var/lib/dpkg/status)
		from='-t bookworm-backports'
		as_root env APT_CONFIG="$conf" apt-get update -q >&2
	fi
	# shellcheck disable=SC2086
	as_root env ${conf:+APT_CONFIG="$conf"} DEBIAN_FRONTEND=noninteractive \
		apt-get install -y -q --no-install-recommends $from "$@" >&2 </dev/null
}

install_qemu() {
	qemu_ok || { install_from_qemu qemu-user && qemu_ok; }
}

# usr-merged, as the packages are. A new list of packages makes a new sysroot.
make_sysroot() {
	local conf new d
	[ "$(cat "$sysroot/.packages" 2>/dev/null)" = "$packages" ] && return
	say SYSROOT "$sysroot"
	conf=$(apt_conf trixie trixie riscv64 "$cache/apt/trixie/status")
	export APT_CONFIG=$conf
	apt-get update -q >&2
	# shellcheck disable=SC2086
	apt-get install -y -q --download-only $packages >&2 </dev/null
	new=$sysroot.new
	rm -rf "$new"
	mkdir -p "$new"/usr/{lib,bin,sbin}
	for d in lib bin sbin; do ln -s usr/$d "$new/$d"; done
	for d in "$cache"/apt/trixie/cache/archives/*.deb; do
		dpkg-deb --fsys-tarfile "$d" | tar -x --keep-directory-symlink --exclude='./usr/share/*' -C "$new"
	done
	# What the alternatives system would link.
	ln -s openblas-pthread/{cblas.h,openblas_config.h} "$new/usr/include/$target/"
	ln -s openblas-pthread/libopenblas.so{,.0} "$new/usr/lib/$target/"
	printf '%s\n' "$packages" >"$new/.packages"
	rm -rf "$sysroot"
	mv "$new" "$sysroot"
}

# The virtual machine's setup takes the functions from here.
[ "${BASH_SOURCE[0]}" = "$0" ] || return 0

mkdir -p "$cache"
exec 9>"$cache/lock"
flock 9
install_tools
install_qemu
make_sysroot
