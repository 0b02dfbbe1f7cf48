#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# Golden vectors in every layout, chunked and not: a TAP line a run, the folders' lines inside it.
# In: $BUILD/run-vectors, data/ and, if it is set, the folder $ATTND_VECTORS.
dir=${SRC:-.}/tests/vectors/data
count=0

run() {
	count=$((count + 1))
	# shellcheck disable=SC2086 # the folder may be absent
	output=$("$BUILD/run-vectors" "$@" "$dir" ${ATTND_VECTORS:+"$ATTND_VECTORS"} 2>&1)
	status=$?
	printf '%s\n' "$output" | sed 's/^/    /'
	test $status -eq 0 || printf 'not '
	echo "ok $count - golden vectors${*:+, $*}"
}

echo 1..6
run
run --chunk 7
run --block-size 16
run --block-size 64 --chunk 50
run --layout bshd
run --layout bhsd --chunk 33
