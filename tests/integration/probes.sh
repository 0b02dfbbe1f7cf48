#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# The USDT probes: what the daemon's file tells of them, what docs/probes.bt says, and that script on a
# live daemon where bpftrace and the kernel allow.
#
# In: this build, docs/probes.bt. Out: TAP. Next: prove.
set -u
tmp=$(mktemp -d)
daemon='' tracer=''
cleanup() {
	[ -z "$tracer" ] || kill -9 "$tracer" 2>/dev/null
	[ -z "$daemon" ] || { kill "$daemon" && wait "$daemon"; } 2>/dev/null
	rm -rf "$tmp"
}
trap cleanup EXIT

n=0
check() { # text, command...
	local text=$1
	shift
	n=$((n + 1))
	if "$@" >"$tmp/out" 2>&1; then echo "ok $n - $text"; else
		echo "not ok $n - $text"
		sed 's/^/# /' "$tmp/out"
	fi
}
script=$SRC/docs/probes.bt

# Name and number of arguments: of the script's comment, of the file's notes, of the script's probes.
sed -n 's,^//  *\([a-z_]*\)  *(\([^)]*\)).*,\1 \2,p' "$script" | awk '{ print $1, gsub(/,/, ",") + 1 }' | sort -u >"$tmp/said"
readelf -nW "$BUILD/attnd" | awk '/Provider: attnd/ { on = 1 } on && /Name:/ { name = $2 }
	on && /Arguments:/ { print name, NF - 1; on = 0 }' | sort -u >"$tmp/noted"
sed -n 's/^usdt:\*:attnd:\(.*\)$/\1/p' "$script" | sort >"$tmp/probed"
check 'the daemon has the probes that the script tells of' diff "$tmp/said" "$tmp/noted"
five() { cut -d' ' -f1 "$tmp/noted" | diff - "$tmp/probed" && [ "$(wc -l <"$tmp/noted")" = 5 ]; }
check 'and the script looks at each of the five' five

cat >"$tmp/numbers.c" <<-'C'
	#include "proto/wire.h"
	#include <stdio.h>
	int main(void)
	{
		printf("%d decode, %d extend, %d open, %d close, %d plan", ATTND_OP_DECODE, ATTND_OP_EXTEND,
		       ATTND_OP_SEQ_OPEN, ATTND_OP_SEQ_CLOSE, ATTND_OP_PLAN);
	}
C
numbers() { ${CC:-cc} -D_GNU_SOURCE -I"$SRC" -o "$tmp/numbers" "$tmp/numbers.c" && grep -F "($("$tmp/numbers"))" "$script"; }
check 'its opcodes are those of the wire' numbers

trace() {
	timeout 60 bpftrace "$script" -p "$daemon" >"$tmp/trace" 2>&1 &
	tracer=$!
	for _ in $(seq 300); do # it is there when the first request shows
		"$BUILD/tests/systemd/client" "$tmp/s" 50 /dev/null || return 1
		grep -q '^@took_us' "$tmp/trace" && break
		kill -0 "$tracer" 2>/dev/null || break
		sleep 0.1
	done
	"$BUILD/attnctl" --socket "$tmp/s.admin" flush >/dev/null # and computed again
	"$BUILD/tests/systemd/client" "$tmp/s" 50 /dev/null
	pkill -INT -P "$tracer" bpftrace # timeout's child; it prints what it has
	wait "$tracer"
	tracer=
}
live() {
	local map
	for map in '@waited_us\[15\]' '@took_us\[15\]' '@took_us\[8\]' '@took_us\[12\]' '@published: [1-9]' '@evicted\[2\]: [1-9]'; do
		grep -q "^$map" "$tmp/trace" || { echo "no $map"; cat "$tmp/trace"; return 1; }
	done
	! grep -q '^@taken' "$tmp/trace" || { echo 'what was taken is not cleared'; return 1; }
}
if [ "$(id -u)" != 0 ] || ! command -v bpftrace >/dev/null; then
	echo '# no bpftrace, or not root: the script is not run'
elif ! bpftrace -e "uprobe:$(command -v bash):main { } BEGIN { exit(); }" >"$tmp/can" 2>&1; then
	echo '# this kernel has no uprobes for bpftrace: the script is not run'
	sed 's/^/# /' "$tmp/can"
else
	"$BUILD/attnd" --config /dev/null --socket "$tmp/s" --pool-size 16M --hugepages off >"$tmp/log" 2>&1 &
	daemon=$!
	for _ in $(seq 300); do "$BUILD/attnctl" --socket "$tmp/s.admin" status >/dev/null 2>&1 && break; sleep 0.1; done
	trace
	check 'on a live daemon it tells what requests waited for and took, what was published and what evicted' live
fi
echo "1..$n"
