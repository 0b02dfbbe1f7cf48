#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# In: BUILD/riscv64 (make riscv64), what setup.sh fetched, VLEN (256). Out: TAP of guest.sh, run in
# a riscv64 machine of 4 harts and 2 NUMA nodes under qemu, booted anew if a hart does not come up;
# its exit status.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
. "$here/../riscv/env.sh"
build=${1:?usage: run.sh BUILD [VLEN]}/riscv64
vlen=${2:-256}
# shellcheck disable=SC2154
vm=$cache/vm
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
t=$work/t
mkdir -p "$t/lib" "$t/tests"

tests='tests/integration/test_share tests/integration/test_handshake tests/integration/test_hostile'
cp "$build/attnd" "$build/attnctl" "$build/run-vectors" "$here/guest.sh" "$t/"
for p in $tests; do
	mkdir -p "$t/$(dirname "$p")"
	cp "$build/$p" "$t/$p"
done
echo "$tests" >"$t/tests.list"
cp -r "$here/../vectors/data" "$t/data"
(cd "$t" && ls -d data/*/) >"$t/vectors.list"
llvm-strip-19 "$t/attnd" "$t/attnctl" "$t/run-vectors" "$t"/tests/*/test_*

# Shared libraries, and theirs, from the sysroot.
needed() { llvm-readelf-19 -d "$@" 2>/dev/null | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p' | sort -u; }
libs=$sysroot/usr/lib/riscv64-linux-gnu
todo=$(needed "$t/attnd" "$t/attnctl" "$t/run-vectors" "$t"/tests/*/test_*)
while [ -n "$todo" ]; do
	next=
	for l in $todo; do
		[ ! -e "$t/lib/$l" ] || continue
		cp -L "$libs/$l" "$t/lib/$l"
		next+=" $(needed "$t/lib/$l")"
	done
	todo=$next
done
mkdir -p "$work/lib"
cp -L "$libs/ld-linux-riscv64-lp64d.so.1" "$work/lib/" 2>/dev/null || cp -L "$sysroot/usr/lib/ld-linux-riscv64-lp64d.so.1" "$work/lib/"
mkdir -p "$work/usr" && mv "$work/lib" "$work/usr/lib"
(cd "$work" && find t usr | cpio -o -H newc --quiet -R 0:0) >"$work/tests.cpio"
cat "$vm/base.cpio" "$work/tests.cpio" >"$work/initrd"

boot() {
	timeout "${TIMEOUT:-300}" qemu-system-riscv64 -machine virt -accel tcg,thread=multi -nographic -no-reboot -monitor none \
		-cpu "$(qemu_cpu "$vlen")" -smp 4 -m 2G \
		-object memory-backend-ram,id=m0,size=1G -object memory-backend-ram,id=m1,size=1G \
		-numa node,nodeid=0,cpus=0-1,memdev=m0 -numa node,nodeid=1,cpus=2-3,memdev=m1 -numa dist,src=0,dst=1,val=20 \
		-kernel "$vm/Image" -initrd "$work/initrd" -append 'console=ttyS0 quiet panic=-1' </dev/null |
		tr -d '\r' | awk '/^TAP version/ { on = 1 } on { print; fflush() }' # not the firmware's words
}
for try in 1 2 3; do
	rc=0
	boot || rc=$?
	[ $rc = 75 ] || exit $rc
	echo "# boot $try: a hart did not come up"
done
exit 1
