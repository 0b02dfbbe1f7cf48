#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# In: ring.pml, spin and a C compiler. Out: TAP: the model holds; and with any one of its orders taken
# away it does not, so that it is about something. Next: prove.
set -u
cd "$SRC" || exit 1
if ! command -v spin >/dev/null; then
	echo '1..0 # SKIP spin is not installed (.ci/deps ci installs it)'
	exit 0
fi
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
cp tests/model/ring.pml "$tmp"
cd "$tmp" || exit 1

# Every state, or the first error. Assertions and deadlocks: a lost wake-up is one.
explore() { # BREAK
	spin -DBREAK="$1" -a ring.pml >log 2>&1 && cc -O0 -w -DSAFETY -DCOLLAPSE -DVECTORSZ=2048 -o pan pan.c >>log 2>&1 &&
		./pan -m200000 -w20 >>log 2>&1
}
errors() { sed -n 's/.*errors: \([0-9]*\).*/\1/p' log; }

echo 1..8
explore 0
[ "$(errors)" = 0 ] && ! grep -q 'max search depth too small' log && echo 'ok 1 - rings and sleeps: nothing lost, nothing stale' ||
	{ echo 'not ok 1 - rings and sleeps'; sed 's/^/# /' log; }
grep -q 'unreached in' log && ! grep -A3 'unreached in proctype' log | grep -q 'doorbell = 0'
[ $? = 0 ] && echo 'ok 2 - every sleep is reached' || echo 'not ok 2 - every sleep is reached'
sed -n 's/ *\([0-9.e+]*\) states, stored.*/# \1 states/p' log
n=2
for broken in 'R1: seq without release' 'R4: no fence after the entry' "R4: no fence before the leader's last look" \
	"R5: no fence before the client's last look" 'R5: no fence after the completion' \
	'R5: the event is read too late'; do
	n=$((n + 1))
	explore $((n - 2))
	[ "$(errors)" -gt 0 ] 2>/dev/null && echo "ok $n - it fails without $broken" ||
		{ echo "not ok $n - it should fail without $broken"; tail -30 log | sed 's/^/# /'; }
done
