#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# The pages' commands: every ```sh block of docs/*.md is run, page by page, in one shell that stops at
# the first failure. What changes the system (sysctl, systemctl, apt, ...) meets stand-ins, files under
# /etc a directory of the test's. Manual pages: what is made of the tables, and that it is clean.
#
# In: docs/, this build. Out: TAP. Next: prove.
set -u
tmp=$(mktemp -d)
n=0
cleanup() {
	pkill -P $$ 2>/dev/null
	rm -rf "$tmp"
}
trap cleanup EXIT

result() { # status, text, log
	n=$((n + 1))
	if [ "$1" = 0 ]; then echo "ok $n - $2"; else echo "not ok $n - $2"; sed 's/^/# /' "$3" | tail -30; fi
}

mkdir -p "$tmp/bin" "$tmp/etc/sysctl.d" "$tmp/etc/systemd/system" "$tmp/docs"
for p in attnd attnctl attnd-runner; do ln -s "$BUILD/$p" "$tmp/bin/$p"; done
for p in sysctl systemctl usermod apt bpftrace cpupower; do
	printf '#!/bin/sh\n[ $# -gt 0 ] && echo "%s $*" >>"%s/called"\n' $p "$tmp" >"$tmp/bin/$p"
	chmod +x "$tmp/bin/$p"
done
cp "$SRC"/docs/probes.bt "$tmp/docs/"
export tmp PATH=$tmp/bin:$PATH MODEL=$SRC/client/examples/model OPENBLAS_NUM_THREADS=1 USER=${USER:-root}
unset ATTND_DAEMON ATTND_SOCKET

blocks() { # page
	awk '/^```sh$/ { on = 1; next } /^```$/ { on = 0 } on' "$1" |
		sed -e 's/ *# [a-z].*$//' -e "s,/etc/sysctl.d,$tmp/etc/sysctl.d,g" -e "s,/etc/systemd/system,$tmp/etc/systemd/system,g"
}

run_page() { # page: in a directory of its own
	local dir=$tmp/run.${1##*/}
	mkdir -p "$dir"
	blocks "$1" >"$dir/commands"
	[ -s "$dir/commands" ] || return 0
	(cd "$dir" && ln -s "$tmp/docs" docs && timeout 120 bash -emu -o pipefail commands) >"$tmp/log" 2>&1 </dev/null
}

# The operations' page has a daemon already.
attnd --config /dev/null --socket "$tmp/s" --pool-size 16M --hugepages off >"$tmp/daemon.log" 2>&1 &
daemon=$!
for _ in {1..300}; do
	[ -S "$tmp/s.admin" ] && attnctl --socket "$tmp/s" status >/dev/null 2>&1 && break
	sleep 0.1
done

pages=("$SRC"/docs/*.md)
echo 1..$((${#pages[@]} + 7))
for page in "${pages[@]}"; do
	case $page in
	*/tutorial.md) run_page "$page" ;;
	*) ATTND_SOCKET=$tmp/s run_page "$page" ;;
	esac
	result $? "the commands of docs/${page##*/} work" "$tmp/log"
done
kill $daemon
wait $daemon 2>/dev/null

made=$BUILD/man
: >"$tmp/log"
status=0
for key in $("$BUILD/attnd" --help | sed -n 's/^  --\([a-z-]*\) .*/\1/p'); do
	case $key in config | check-config | print-config | private-fd) continue ;; esac
	grep -qF ".It Cm ${key//-/\\-} = " "$made/attnd.conf.5" || { echo "not there: $key" >>"$tmp/log"; status=1; }
done
result $status 'attnd.conf(5) has every key' "$tmp/log"

: >"$tmp/log"
status=0
for command in $("$BUILD/attnctl" --help | sed -n '/^$/,/^  A cache/s/^  \([a-z]\{3,\}\)\( .*\)\{0,1\}$/\1/p'); do
	grep -q "^.It Cm $command" "$made/attnctl.1" || { echo "not there: $command" >>"$tmp/log"; status=1; }
done
[ "$(grep -c '^.It Cm ' "$made/attnctl.1")" -ge 14 ] || status=1
result $status 'attnctl(1) has every command' "$tmp/log"

: >"$tmp/log"
status=0
for f in $(grep -oE '\battnd_[a-z_]+\(' "$SRC/client/attnd.h" | sort -u); do
	grep -q "$f" "$made/libattnd.3" || { echo "not there: $f" >>"$tmp/log"; status=1; }
done
result $status 'libattnd(3) has every function' "$tmp/log"

if command -v mandoc >/dev/null; then
	mandoc -T lint -W warning "$made"/*.[1-8] >"$tmp/log" 2>&1
	! grep -v 'new sentence, new line' "$tmp/log" >"$tmp/log2"
	result $? 'the pages are clean' "$tmp/log2"
else
	n=$((n + 1))
	echo "ok $n # SKIP no mandoc"
fi

complete_words() { # words of a command line, the last to be completed
	bash -c '. "$1"; shift; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); compopt() { :; }; _$1; echo "${COMPREPLY[*]}"' \
		- "$made/attnctl.bash" "$@"
}
{
	[ "$(complete_words attnctl do)" = doctor ] && [ "$(complete_words attnctl pin se)" = seconds= ] &&
		[ "$(complete_words attnctl --js)" = --json ] && [ "$(complete_words attnctl tree cache=x b)" = blocks= ] &&
		[ "$(complete_words attnctl set ev)" = eviction= ] && [ -z "$(complete_words attnctl --socket '')" ] &&
		[ -z "$(complete_words attnd --pool-path '')" ] && [ "$(complete_words attnd --pool-p)" = --pool-path ]
} >"$tmp/log" 2>&1
result $? 'the shell completes commands, options and arguments' "$tmp/log"

# What a page shows of the configuration, as it would be copied: indented as it stands.
: >"$tmp/log"
status=0
shown=0
for page in "${pages[@]}"; do
	perl -0777 -ne 'my $n = 0; while (/^```ini\n(.*?)^```|((?:^    [^\n]*\n)+)/msg) {
		my $text = $1 // $2;
		next unless $text =~ /^\s*(#.*\n)?\s*\[(socket|pool|engine|limits|log|metrics|events)\]/;
		open my $to, ">", "$ENV{tmp}/shown." . $n++ or die; print $to $text; }' "$page"
	for f in "$tmp"/shown.*; do
		[ -e "$f" ] || continue
		shown=$((shown + 1))
		attnd --config "$f" --check-config >>"$tmp/log" 2>&1 || { echo "${page##*/}" >>"$tmp/log"; status=1; }
		rm "$f"
	done
done
[ $shown -ge 3 ] || { echo "only $shown" >>"$tmp/log"; status=1; }
result $status 'what pages show of the configuration is right' "$tmp/log"

bad=
for page in "$SRC"/*.md "$SRC"/docs/*.md; do
	for link in $(grep -oE '\]\([a-zA-Z][^)#:]*\)' "$page" | sed 's/^](//; s/)$//'); do
		[ -e "$(dirname "$page")/$link" ] || bad+="${page##*/}: $link "
	done
done
echo "$bad" >"$tmp/log"
[ -z "$bad" ]
result $? 'every page that pages refer to is there' "$tmp/log"
