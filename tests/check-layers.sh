#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# In: this build's dependency files, and small trees with one breach each. Out: TAP. Next: prove.
set -u
check=$SRC/tests/check-layers
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
n=0

result() { # status, text
	n=$((n + 1))
	if [ "$1" = 0 ]; then echo "ok $n - $2"; else echo "not ok $n - $2"; fi
}

# A tree whose every part keeps the rules.
tree() {
	rm -rf "$tmp/src" "$tmp/out"
	mkdir -p "$tmp"/{src,out}/{proto,shm,kernels,client/examples,daemon,tests}
	cd "$tmp/src" || exit 1
	touch proto/wire.h shm/ring.h shm/meta.h kernels/{kernels,cpu,tile}.h client/{attnd,conn}.h daemon/pool.h
	echo '#include "../proto/wire.h"' >shm/ring.h
	echo '#include "ring.h"' >shm/ring.c
	echo '#include "tile.h"' >kernels/avx.c
	printf '#include "../%s"\n' shm/ring.h client/conn.h >client/conn.c
	echo '#include "../attnd.h"' >client/examples/runner.c
	printf '#include "../%s"\n' shm/meta.h kernels/kernels.h kernels/cpu.h >daemon/pool.c
	printf '#include "../%s"\n' kernels/tile.h daemon/pool.h >tests/any.c
}

compile() {
	local f
	for f in */*.c client/examples/*.c; do
		cc -MMD -MP -c -o "$tmp/out/${f%.c}.o" "$f" || exit 1
	done
}

breach() { # file, header
	tree
	printf '#include "%s/%s"\n' "$tmp/src" "$2" >>"$1"
	compile
	"$check" "$tmp/out" . >"$tmp/log"
	[ $? = 1 ] && grep -q "^$1 includes $2: " "$tmp/log"
	result $? "found: $1 includes $2"
}

echo 1..10
"$check" "$BUILD" "$SRC" >"$tmp/log" 2>&1
result $? "this tree keeps its layers"
sed 's/^/# /' "$tmp/log"

tree
compile
"$check" "$tmp/out" . >/dev/null
result $? "a tree that keeps them passes"

breach shm/ring.c daemon/pool.h
breach kernels/avx.c proto/wire.h
breach client/conn.c kernels/kernels.h
breach client/conn.c daemon/pool.h
breach client/examples/runner.c client/conn.h
breach daemon/pool.c kernels/tile.h
breach daemon/pool.c client/attnd.h

tree
compile
rm "$tmp"/out/daemon/*.d
"$check" "$tmp/out" . >/dev/null
[ $? = 1 ]
result $? "a part that was not looked at fails"
