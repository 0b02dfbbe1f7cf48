#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# In: a directory with built fuzzers, seconds for each, their names. Out: each has looked for so long;
# DIRECTORY/figures: executions and findings of all together; exit 1 if there are findings. What
# failed is in DIRECTORY as crash-*, oom-*, leak-* or timeout-*. Next: make fuzz, make bench-service.
set -uo pipefail
dir=${1:?usage: run.sh DIRECTORY SECONDS FUZZER...} seconds=$2
shift 2
export ASAN_OPTIONS=detect_leaks=1:allocator_may_return_null=1 UBSAN_OPTIONS=print_stacktrace=1:halt_on_error=1
executions=0 findings=0
for f in "$@"; do
	echo "# fuzzing $f for $seconds s"
	mkdir -p "$dir/corpus/$f"
	"$dir/tests/fuzz/fuzz_$f" -max_total_time="$seconds" -max_len=4096 -len_control=0 -timeout=30 -rss_limit_mb=4096 \
		-print_final_stats=1 -verbosity=0 -artifact_prefix="$dir/" "$dir/corpus/$f" "tests/fuzz/seeds/$f" >"$dir/log.$f" 2>&1 || {
		findings=$((findings + 1))
		cat "$dir/log.$f"
	}
	grep -aE '^stat::(number|average)' "$dir/log.$f"
	n=$(sed -n 's/^stat::number_of_executed_units: *//p' "$dir/log.$f")
	executions=$((executions + ${n:-0}))
done
echo "# $executions executions, $findings findings"
printf 'executions %d\nfindings %d\n' $executions $findings >"$dir/figures"
[ $findings = 0 ]
