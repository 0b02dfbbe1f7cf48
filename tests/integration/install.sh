#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# In: this build. Out: TAP: what `make install` puts where, and README's example, compiled against
# that by pkg-config alone and run with the installed daemon. Next: prove.
set -u
cd "$SRC" || exit 1
PREFIX=${PREFIX:-/usr/local}
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
n=0

result() { # status, text
	n=$((n + 1))
	if [ "$1" = 0 ]; then echo "ok $n - $2"; else echo "not ok $n - $2"; fi
}

run() { # text, command...
	local text=$1
	shift
	"$@" >"$tmp/log" 2>&1
	local status=$?
	result $status "$text"
	sed 's/^/# /' "$tmp/log"
}

make_() { # the flags of the make that runs this come along in the environment
	make --no-print-directory O="$BUILD" DESTDIR="$tmp/root" PREFIX="$PREFIX" "$@"
}

files() {
	local f status=0
	for f in sbin/attnd bin/attnctl include/attnd.h lib/libattnd.a lib/libattnd.so \
		lib/libattnd.so.0 lib/libattnd.so.0.1.0 lib/pkgconfig/attnd.pc \
		lib/systemd/system/attnd.service lib/systemd/system/attnd.socket lib/sysusers.d/attnd.conf \
		lib/systemd/system/attnd-admin.socket lib/systemd/system/attnd-hugepages.service \
		lib/tmpfiles.d/attnd.conf libexec/attnd-hugepages \
		share/doc/attnd/daemon.md; do
		[ -e "$tmp/root$PREFIX/$f" ] || { echo "missing: $f"; status=1; }
	done
	for f in attnd.conf hugepages.conf; do
		[ -e "$tmp/root/etc/attnd/$f" ] || { echo "missing: /etc/attnd/$f"; status=1; }
	done
	return $status
}

exported() { # only what the header declares
	nm -D --defined-only "$tmp/root$PREFIX/lib/libattnd.so" | awk '$2 == "T" { sub(/@.*/, "", $3); print $3 }' | sort >"$tmp/symbols"
	[ -s "$tmp/symbols" ] || return 1
	while read -r s; do
		grep -qw "$s" client/attnd.h || { echo "exported, but not in attnd.h: $s"; return 1; }
	done <"$tmp/symbols"
}

example() {
	export PKG_CONFIG_SYSROOT_DIR=$tmp/root PKG_CONFIG_LIBDIR=$tmp/root$PREFIX/lib/pkgconfig
	sed -n '/^```c$/,/^```$/p' README.md | sed '/^```/d' >"$tmp/example.c"
	# shellcheck disable=SC2046
	cc -std=c11 -Wall -Wextra -Werror -o "$tmp/example" "$tmp/example.c" $(pkg-config --cflags --libs attnd)
}

run_example() {
	ATTND_DAEMON=$tmp/root$PREFIX/sbin/attnd LD_LIBRARY_PATH=$tmp/root$PREFIX/lib "$tmp/example" >"$tmp/out" || return 1
	cat "$tmp/out"
	diff - "$tmp/out" <<-END
	sequence 1: 0 of 100 tokens cached
	sequence 2: 99 of 100 tokens cached
	END
}

if nm "$BUILD/attnd" 2>/dev/null | grep -qE '__(asan|tsan)_init'; then
	echo '1..0 # SKIP a library built with sanitizers cannot be used without'
	exit 0
fi

echo 1..9
run 'make install' make_ install
run 'every file is in its place' files
run 'the library exports what attnd.h declares' exported
run "README's example compiles against the installed library" example
run "README's example runs: the second request finds 99 tokens" run_example
echo '# changed' >>"$tmp/root/etc/attnd/attnd.conf"
run 'make install again' make_ install
run 'a changed configuration stays' grep -q '^# changed' "$tmp/root/etc/attnd/attnd.conf"
run 'make uninstall' make_ uninstall
left=$(find "$tmp/root" ! -type d ! -path "*/etc/attnd/*" | sed 's/^/# left: /')
[ -z "$left" ]
result $? 'nothing but /etc/attnd is left'
[ -z "$left" ] || echo "$left"
