#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# Golden vectors through a daemon: in every layout, chunked and not, and with each ISA that this
# machine has, forced in turn by taking away the better ones. A TAP line a run, the folders' lines
# inside it.
# In: $BUILD/run-vectors, data/ and, if it is set, the folder $ATTND_VECTORS. TEST_LONG: every ISA
# at block sizes 16, 32, 64 and chunks of 1, 7, 32 and all. VECTORS_RUN: what runs the program
# (an emulator).
dir=${SRC:-.}/tests/vectors/data
count=0 bad=0

vectors() {
	# shellcheck disable=SC2086 # either may be absent, the command may have arguments
	${VECTORS_RUN:-} "$BUILD/run-vectors" "$@" "$dir" ${ATTND_VECTORS:+"$ATTND_VECTORS"} 2>&1
}

# The last run's output, and whether all holds.
report() { # 0: yes; what
	count=$((count + 1))
	printf '%s\n' "$output" | sed 's/^/    /'
	if [ "$1" -ne 0 ]; then
		bad=1
		printf 'not '
	fi
	echo "ok $count - golden vectors$2"
}

run() {
	output=$(vectors "$@")
	report $? "${*:+, $*}"
}

# What this machine has but for these.
without() {
	for f in $all; do
		case " $* " in *" $f "*) ;; *) echo "$f" ;; esac
	done | paste -sd ' '
}

# FEATURES: what the daemon must say that it has. MASK: what it takes for that; -: nothing.
forced() { # FEATURES MASK [options]
	features=$1 mask=$2
	shift 2
	if [ "$mask" = - ]; then output=$(vectors --log "$@"); else output=$(vectors --log --cpu-mask "$mask" "$@"); fi
	status=$?
	printf '%s\n' "$output" | grep -q "kernels: .*($features)" || status=1
	report $status " on ($features)${*:+, $*}"
}

# All that a run is made of, for one ISA.
isa() {
	if [ -z "${TEST_LONG:-}" ]; then
		forced "$@" --chunk 7
		return
	fi
	for size in 16 32 64; do
		forced "$@" --block-size $size
		for chunk in 1 7 32; do forced "$@" --block-size $size --chunk $chunk; done
	done
}

run
run --chunk 7
run --block-size 16
run --block-size 64 --chunk 50
for layout in bshd bhsd; do
	run --layout $layout --chunk 33
	[ -z "${TEST_LONG:-}" ] || for size in 16 32 64; do
		for chunk in 1 7 32; do run --layout $layout --block-size $size --chunk $chunk; done
	done
done
[ -z "${TEST_LONG:-}" ] || run --layout bshd --block-size 1

all=$(vectors --log | sed -n 's/.*kernels: .*(\(.*\))$/\1/p')
echo "# this machine: $all"
isa none none
case " $all " in *' rvv '*)
	isa "$(without zvfh zvfbfmin zvfbfwma)" zvfh,zvfbfmin
	[ "$all" = rvv ] || isa "$all" -
	;;
esac
case " $all " in *' avx2 '*) isa avx2 avx512 ;; esac
case " $all " in *' avx512 '*) isa "$(without avx512-bf16 slow-dpbf16 amx-bf16)" avx512-bf16,amx-bf16 ;; esac
# A CPU on which vdpbf16ps is slow takes these kernels only if it is not told so.
case " $all " in *' avx512-bf16 '*) isa "$(without slow-dpbf16 amx-bf16)" slow-dpbf16,amx-bf16 ;; esac
case " $all " in *' amx-bf16 '*) isa "$all" - ;; esac
echo "1..$count"
exit $bad
