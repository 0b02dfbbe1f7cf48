#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# Inside the virtual machine: 2 NUMA nodes, 4 harts, huge pages on both. TAP on the console.
#
# In: /t (programs, vectors). Out: is each node's memory and each thread where it belongs, are
# io_uring and huge pages really used, do vectors and integration tests pass. Exit 75: the kernel gave up
# on a hart, to which it gives a second to come up; a busy emulator may need longer.
cd /t || exit 1
[ "$(cat /sys/devices/system/cpu/online)" = 0-3 ] || exit 75
export LD_LIBRARY_PATH=/t/lib HOME=/tmp TMPDIR=/tmp ATTND_DAEMON=/t/attnd BUILD=/t SRC=/t CMOCKA_MESSAGE_OUTPUT=TAP
echo 'TAP version 13'
n=0
bad=0
check() { # name, then a command that decides
	n=$((n + 1))
	name=$1
	shift
	if "$@" >/tmp/out 2>&1; then
		echo "ok $n - $name"
	else
		sed 's/^/# /' /tmp/out
		echo "not ok $n - $name"
		bad=1
	fi
}

for node in 0 1; do
	echo 40 >/sys/devices/system/node/node$node/hugepages/hugepages-2048kB/nr_hugepages
done
free_before=$(grep HugePages_Free /proc/meminfo)

./attnd --socket /run/attnd.sock --pool-size 64M --hugepages require 2>/tmp/log &
daemon=$!
i=0
until ./attnctl --socket /run/attnd.sock --json status >/tmp/status 2>/dev/null; do
	i=$((i + 1))
	[ $i -lt 60 ] || break
	sleep 0.5
done
sed 's/^/# /' /tmp/log

has() { grep -q "$1" /tmp/status || { cat /tmp/status; false; }; }
# Threads of node N (named attnd-N.M, the leader on node 0) may run on its harts only.
threads_on() {
	found=0
	for t in /proc/$daemon/task/*; do
		case $(cat "$t/comm") in
		attnd-$1.*)
			found=1
			grep -q "^Cpus_allowed_list:	[$2]\$" "$t/status" || return 1
			;;
		esac
	done
	[ $found = 1 ]
}
# A thread names and pins itself when it first runs, which may take a while here.
threads_soon() {
	i=0
	until threads_on "$@"; do
		i=$((i + 1))
		if [ $i = 40 ]; then
			for t in /proc/$daemon/task/*; do
				echo "$(cat "$t/comm") $(grep Cpus_allowed_list "$t/status")"
			done
			return 1
		fi
		sleep 0.5
	done
}
huge_on() { # bytes of the pool that the kernel counts on the node
	awk -v n="N$1=" '/attnd-pool/ && /huge/ { for (i = 1; i <= NF; i++) if (index($i, n) == 1) s += substr($i, length(n) + 1) }
		END { exit s < 16 }' /proc/$daemon/numa_maps
}
only_on() { # some mapping of the pool lies on this node alone
	awk -v a="N$1=" -v b="N$2=" '/attnd-pool/ && index($0, a) && !index($0, b) { f = 1 } END { exit !f }' \
		/proc/$daemon/numa_maps
}
check 'the daemon serves' has '"version"'
check 'through io_uring' has '"event_loop": "io_uring"'
check 'with RVV kernels' has '"isa": "rvv"'
check 'from huge pages' has '"backing": "hugetlb"'
check 'on two nodes' has '"node": 1'
check 'and move_pages finds every page on its node' has '"pages_misplaced": 0'
check 'that were looked at' grep -q '"pages_looked_at": [1-9]' /tmp/status
for node in 0 1; do
	check "node $node has its part of the pool in huge pages" huge_on $node
	check "and a part of its own" only_on $node $((1 - node))
done
check 'threads of node 0 stay on harts 0 and 1' threads_soon 0 01
check 'threads of node 1 stay on harts 2 and 3' threads_soon 1 23
kill $daemon
wait $daemon
check 'the daemon ends with 0' test $? = 0
check 'and gives the huge pages back' test "$(grep HugePages_Free /proc/meminfo)" = "$free_before"
for program in $(cat tests.list); do
	check "$program" ./$program
done
check 'golden vectors' ./run-vectors $(cat vectors.list)
echo "1..$n"
exit $bad
