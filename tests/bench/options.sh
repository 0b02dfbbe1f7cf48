#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# The command line of attnd-bench: wrong usage ends with 2 before anything is measured, and names the option and
# what it may be.
# In: $BUILD. Out: TAP. Next: prove.
set -u
n=0

refused() { # words of the message, program, arguments...
	local words=$1 said status
	shift
	said=$(timeout 60 "$BUILD/$1" "${@:2}" 2>&1)
	status=$?
	n=$((n + 1))
	if [ $status = 2 ] && [[ $said == *"$words"* ]]; then echo "ok $n - $* is refused"; else
		echo "not ok $n - $* is refused"
		echo "# $status, not 2, or no \"$words\" in: $said"
	fi
}

echo 1..11
refused "'--nope'" attnd-bench --nope
refused '"X" is no goal' attnd-bench --only X
refused '"" is no goal' attnd-bench --only P4,
refused '--seconds: "0" is not a number from 0.1 to 86400' attnd-bench --seconds 0
refused '--seconds: "x"' attnd-bench --seconds x
refused '--threads: "2x" is not a number from 1 to 1024' attnd-bench --socket /x --threads 2x
refused '--threads is for --socket' attnd-bench --threads 2
refused 'run both' attnd-bench --only P4 --plot x.svg
refused '"foo": only cache or cores' attnd-bench foo
refused '"cores": only' attnd-bench cache cores
refused 'cache and --only exclude each other' attnd-bench --only P4 cache
