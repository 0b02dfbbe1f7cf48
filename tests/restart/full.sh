#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# A pool's directory on a tmpfs that is too small: said at the start, with how much there is, and nothing is taken.
# In: $ATTND_DAEMON. Out: TAP. Next: prove.
set -u
if [ "${1:-}" != inside ]; then
	unshare -m true 2>/dev/null || { echo '1..0 # SKIP no mount namespace'; exit 0; }
	exec unshare -m "$0" inside
fi
tmp=$(mktemp -d)
trap 'umount "$tmp/pool" 2>/dev/null; rm -rf "$tmp"' EXIT
mkdir "$tmp/pool"
mount -t tmpfs -o size=8M none "$tmp/pool" || { echo '1..0 # SKIP no mount'; exit 0; }

echo 1..3
timeout 60 "$ATTND_DAEMON" --config /dev/null --socket "$tmp/s" --pool-size 16M --pool-path "$tmp/pool" >"$tmp/log" 2>&1
[ $? = 1 ] && echo 'ok 1 - it ends with 1' || echo 'not ok 1 - it ends with 1'
if grep -q '(pool-path) has room for [78] MiB, not for the [0-9]* MiB' "$tmp/log"; then
	echo 'ok 2 - and says how much room there is'
else
	echo 'not ok 2 - and says how much room there is'
	sed 's/^/# /' "$tmp/log"
fi
[ "$(du -sm "$tmp/pool" | cut -f1)" -le 1 ] && echo 'ok 3 - nothing is taken' || echo 'not ok 3 - nothing is taken'
