#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# In: the sources of daemon, library and what they share. Out: TAP: no deadline, wait or age depends on
# a clock that somebody can set. Next: prove.
set -u
cd "$SRC" || exit 1
echo 1..1
found=$(grep -nE 'CLOCK_REALTIME|gettimeofday|\btime\(|pthread_mutex_timedlock|sem_timedwait' -r daemon client shm --include='*.[ch]' |
	grep -vE '^client/examples/|/\* wall clock: ')
if [ -z "$found" ]; then
	echo 'ok 1 - only the monotonic clock is read'
else
	echo 'not ok 1 - only the monotonic clock is read'
	echo "$found" | sed 's/^/# /'
fi
