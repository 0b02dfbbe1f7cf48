#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# In: systemd/; SYSTEMD_ROOT: a directory with another systemd (setup.sh), else this machine's own.
# Out: TAP: systemd-analyze finds nothing to say about the units, and rates the service's exposure;
# the script that reserves huge pages, on a tree that stands for /sys. Next: prove.
set -u
cd "$SRC" || exit 1
PREFIX=${PREFIX:-/usr/local}
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
root=${SYSTEMD_ROOT:-}
most=2.0 # of systemd-analyze security, without PrivateUsers

n=0
result() { # status, text
	n=$((n + 1))
	if [ "$1" = 0 ]; then echo "ok $n - $2"; else echo "not ok $n - $2"; sed 's/^/# /' "$tmp/log"; fi
}
check() { # text, command...
	local text=$1
	shift
	"$@" >"$tmp/log" 2>&1
	result $? "$text"
}

make --no-print-directory O="$BUILD" DESTDIR="$tmp/install" PREFIX="$PREFIX" install >"$tmp/log" 2>&1 ||
	{ result 1 'make install'; exit 1; }
units=$tmp/install$PREFIX/lib/systemd/system

# The programs that the units name have to be there: a copy-on-write root, or a plain search path.
if [ -n "$root" ]; then
	analyze() {
		unshare --mount bash -c '
			set -e
			mount -t tmpfs none /media
			mkdir /media/u /media/w /media/r
			mount -t overlay -o lowerdir="$1",upperdir=/media/u,workdir=/media/w none /media/r
			cp -a "$2"/. /media/r
			mount -t proc proc /media/r/proc
			shift 2
			cd /media/r
			exec chroot . systemd-analyze "$@"' _ "$root" "$tmp/install" "$@"
	}
	where=$PREFIX/lib/systemd/system
else
	analyze() { systemd-analyze "$@"; }
	where=$units
	sed -i -e "s|=$PREFIX/|=$tmp/install$PREFIX/|" -e "s|file:$PREFIX/|file:$tmp/install$PREFIX/|" "$units"/*.service
fi

if command -v systemd-analyze >/dev/null; then
	version=$(analyze --version | sed -n '1s/^systemd \([0-9]*\).*/\1/p')
	echo "# systemd $version"
	verify() {
		# shellcheck disable=SC2046
		analyze verify --recursive-errors=no $(cd "$units" && printf "$where/%s " attnd*) >"$tmp/said" 2>&1
		local status=$?
		if [ "$version" -lt 254 ]; then # it passes this key by, and says so
			sed -i "/Unknown key .*FileDescriptorStorePreserve/d" "$tmp/said"
			status=0
		fi
		cat "$tmp/said"
		[ $status = 0 ] && [ ! -s "$tmp/said" ]
	}
	check 'verify says nothing' verify
	exposure() {
		analyze security --offline=true --no-pager "$where/attnd.service" >"$tmp/rated" 2>&1
		grep -v '✓' "$tmp/rated"
		sed -n 's/.*Overall exposure level.*: \([0-9.]*\) .*/\1/p' "$tmp/rated" |
			awk -v most=$most '{ n = 1; bad = $1 > most } END { exit !n || bad }'
	}
	check "the service's exposure is at most $most" exposure
	sed -n 's/.*\(Overall exposure level\)/# \1/p' "$tmp/rated"
	! grep -q '^PrivateUsers=' "$units/attnd.service"
	result $? 'without PrivateUsers, which would hide who the clients are'
else
	echo '# systemd-analyze is not here'
	n=$((n + 1))
	echo "ok $n # SKIP no systemd-analyze"
fi

# ---- Every directive has its reason: a comment right before it, or before the run that it stands in.
reasons() {
	awk '/^\[Install\]/ { exit } /^#/ { reason = 1 } /^$|^\[/ { reason = 0 }
		/^[A-Z][A-Za-z]*=/ && !/^(Description|Documentation)=/ { if (!reason) { print FILENAME ": " $0; bad = 1 } }
		END { exit bad }' systemd/attnd.service
}
check 'every directive of the service has its reason' reasons

# ---- Every key of the configuration stands in the commented file, with its default.
keys() {
	"$BUILD/attnd" --config /dev/null --print-config | sed -n 's/^\([a-z-]*\) = .*/\1/p' | while read -r key; do
		grep -q "^#$key =" systemd/attnd.conf || { echo "missing: $key"; exit 1; }
	done
}
check 'attnd.conf shows every key' keys
commented_out() { sed 's/^#\([a-z-]* =\)/\1/' systemd/attnd.conf >"$tmp/all.conf" && "$BUILD/attnd" --config "$tmp/all.conf" --check-config; }
check 'and all of it together is right' commented_out

# ---- Huge pages
for node in 0 1 2; do
	mkdir -p "$tmp/sys/devices/system/node/node$node/hugepages/hugepages-2048kB"
	echo 4 >"$tmp/sys/devices/system/node/node$node/hugepages/hugepages-2048kB/nr_hugepages"
	echo "Node $node MemTotal: $([ $node = 2 ] && echo 0 || echo 1024) kB" >"$tmp/sys/devices/system/node/node$node/meminfo"
done
pages() { cat "$tmp/sys/devices/system/node/node$1/hugepages/hugepages-2048kB/nr_hugepages"; }
check 'huge pages are reserved' systemd/attnd-hugepages 2048 10 "$tmp/sys"
[ "$(pages 0) $(pages 1) $(pages 2)" = '10 10 4' ]
result $? 'on each node that has memory'
check 'fewer take none away' systemd/attnd-hugepages 2048 3 "$tmp/sys"
[ "$(pages 0)" = 10 ]
result $? 'what is there stays'
no_such_size() { ! systemd/attnd-hugepages 1048576 1 "$tmp/sys"; }
check 'a size that the machine does not have is an error' no_such_size
echo "1..$n"
