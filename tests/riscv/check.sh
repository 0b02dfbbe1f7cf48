#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# In: BUILD, the directory of a riscv64 build; --short for a share of the cases that takes a few
# minutes on two idle cores, --long for many more (a quarter of an hour), --all for all (an hour).
# Out: TAP, one line for each program and emulated CPU, with the program's output where it fails.
# Next: make check-riscv.
#
# One binary runs at VLEN 128 to 1024, and golden vectors go through a daemon in the emulator (whose
# NUMA calls and io_uring answer ENOSYS); then with qemu's options that fill tails and masked
# elements with ones and split vectors where the specification allows it; then without the
# extensions for f16 and bf16, and without vectors. Unit tests run once: they use no vectors.
set -u
cd "$(dirname "$0")"
. ./env.sh
: "${BUILD:?}"
case ${1:-} in
--short) thin=150 ;;
--long) thin=4 ;;
--all) thin=1 ;;
*) thin=12 ;;
esac
SRC=$(cd ../.. && pwd)
# test_exec (in the short form at one VLEN): steps for each geometry, and rows of up to so many tokens.
export ATTND_EXEC_STEPS=$((12 / thin + 1)) ATTND_EXEC_ROW=16
export SRC QEMU_LD_PREFIX=$sysroot CMOCKA_MESSAGE_OUTPUT=TAP
log=$(mktemp -d)
trap 'rm -rf "$log"' EXIT

strict=rvv_ta_all_1s=true,rvv_ma_all_1s=true,rvv_vl_half_avl=true
bare=zvfh=false,zvfbfmin=false,zvfbfwma=false
cpus=("128" "256" "512" "1024" "128 $strict" "1024 $strict" "256 $bare" "512 zvfbfmin=false,zvfbfwma=false,$strict"
  "128 $bare,v=false")
[ $thin -lt 12 ] && cpus+=("256 $strict" "512 $strict" "128 $bare" "512 $bare" "1024 $bare,$strict")

# Those that need no daemon and no system call that qemu-user lacks.
unit_tests="shm/test_ring control/test_config control/test_mailbox control/test_loop client/test_heap
  client/test_arena client/test_calls client/test_jobs client/test_restore"

# What the CPU has, as choice.c takes it.
has() {
	local vlen=${1%% *} f16=f16 bf16=bf16
	case $1 in *zvfh=false*) f16=- ;; esac
	case $1 in *zvfbfwma=false*) bf16=- ;; esac
	case $1 in *,v=false*) vlen=0 ;; esac
	echo "$vlen $f16 $bf16"
}

# What is run: CPU and options, then the program with arguments; one job a line.
jobs() {
	local i=0 cpu isa t
	for cpu in "${cpus[@]}"; do
		i=$((i + 1))
		isa='--isa rvv'
		[ "${cpu%v=false}" = "$cpu" ] || isa=''
		echo "$cpu|choice $(has "$cpu")"
		echo "$cpu|check-kernels $isa --thin $thin --seed $i"
		[ $thin = 150 ] && [ "$cpu" != 256 ] || echo "$cpu|tests/daemon/test_exec"
		[ $thin = 150 ] && [ $i -gt 4 ] || echo "$cpu|vectors"
	done
	for t in $unit_tests; do
		echo "256|tests/$t"
	done
}

# Clients start the daemon by this.
printf '#!/bin/sh\nexec qemu-riscv64 "%s/attnd" "$@"\n' "$BUILD" >"$log/attnd"
chmod +x "$log/attnd"

run_job() { # number, line
	local cpu=${2%%|*} program=${2#*|} number=$1
	export ATTND_DAEMON=$log/attnd VECTORS_RUN=qemu-riscv64
	# shellcheck disable=SC2086
	if [ "$program" = vectors ]; then
		set -- "$SRC/tests/vectors/test_vectors.sh"
	else
		set -- qemu-riscv64 "$BUILD"/$program
	fi
	# shellcheck disable=SC2086
	QEMU_CPU=$(qemu_cpu $cpu) nice -n 10 timeout 3000 "$@" >"$log/$number" 2>&1
	echo $? >"$log/$number.status"
}
export -f run_job qemu_cpu
export log BUILD

mapfile -t list < <(jobs)
echo "1..${#list[@]}"
for i in "${!list[@]}"; do printf '%s\0%s\0' "$i" "${list[$i]}"; done |
	xargs -0 -n 2 -P "${RISCV_JOBS:-$(nproc)}" bash -c 'run_job "$@"' _ &
bad=0
for i in "${!list[@]}"; do
	until [ -s "$log/$i.status" ]; do sleep 0.2; done
	if [ "$(cat "$log/$i.status")" = 0 ]; then
		echo "ok $((i + 1)) - ${list[$i]}"
	else
		bad=1
		sed 's/^/# /' "$log/$i"
		echo "not ok $((i + 1)) - ${list[$i]}: status $(cat "$log/$i.status")"
	fi
done
wait
exit $bad
