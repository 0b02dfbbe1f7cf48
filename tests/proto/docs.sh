#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# In: proto/wire.h and the pages that describe it. Out: TAP: opcodes, sizes and files are as written.
# Next: prove.
set -u
cd "$SRC" || exit 1
n=0
bad=

result() { # text; what is wrong stands in $bad
	n=$((n + 1))
	if [ -z "$bad" ]; then echo "ok $n - $1"; else printf 'not ok %d - %s\n%b' $n "$1" "$bad"; fi
	bad=
}

echo 1..6

number=0
while read -r name; do
	number=$((number + 1))
	grep -q "^| $number $name |" proto/README.md || bad+="# no row: $number $name\n"
done < <(sed -n '/^enum attnd_opcode {/,/ATTND_OPS,/s/^\tATTND_OP_\([A-Z_]*\)\( = 1\)\{0,1\},.*/\1/p' proto/wire.h)
[ $number -ge 16 ] || bad+="# only $number opcodes read\n"
result 'every opcode has its row and number'

while read -r type size; do
	case $type in attnd_wire_*) grep -q "^| \`$type\` | $size " proto/README.md || bad+="# no row: $type, $size bytes\n" ;; esac
done < <(sed -n 's/^ATTND_WIRE_SIZE(struct \([a-z_]*\), \([0-9]*\));/\1 \2/p' proto/wire.h)
result 'every payload has its row and size'

while read -r field offset; do
	[ "$offset" -lt 128 ] || grep -qE "^    byte $offset +.*\\b$field\\b" proto/README.md ||
		bad+="# not drawn: $field at byte $offset\n"
done < <(sed -n 's/^ATTND_WIRE_AT(struct attnd_session_region, \([a-z_]*\), \([0-9]*\));/\1 \2/p' proto/wire.h)
result 'the session region is drawn as it is'

for page in README.md CONTRIBUTING.md proto/README.md shm/README.md; do
	for path in $(grep -oE '\b(proto|shm|kernels|daemon|client|tests|docs)/[a-z_/-]+\.(c|h|md|mk|sh)\b' "$page"); do
		[ -e "$path" ] || bad+="# $page names $path\n"
	done
done
result 'every file that the pages name is there'

for rule in $(grep -rhoE '\([RSB][0-9]+' --include='*.[ch]' client daemon shm tests | tr -d '(' | sort -u); do
	grep -q "^\*\*$rule\." shm/README.md || bad+="# cited, but not in shm/README.md: $rule\n"
done
result 'every rule that code cites is written down'

# The metrics that the dashboard draws, of histograms without their ending.
for name in $(grep -oE 'attnd_[a-z_]+' docs/grafana.json | sort -u); do
	name=${name#attnd_}
	grep -qE "\"(${name}|${name%_bucket}|${name%_count})\"" daemon/metrics.c ||
		{ [[ $name = *_total ]] && grep -q "X(${name%_total}," proto/wire.h; } ||
		bad+="# drawn, but not told: attnd_$name\n"
done
result 'every metric that the dashboard draws is told'
