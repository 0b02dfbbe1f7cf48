#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# In: where the environment goes, where this tree's package is installed. Out: an environment with
# SGLang's CPU path, made again when a list of requirements changed, and the package with its entry
# points. Next: the tests.
set -eu
venv=$1 plugin=$2 here=$(dirname "$0")

want=$(cat "$here/requirements.txt" "$here/requirements-alone.txt" | cksum)
if [ "$(cat "$venv/made" 2>/dev/null)" != "$want" ]; then
	rm -rf "$venv"
	python3 -m venv "$venv"
	"$venv/bin/pip" install -q -r "$here/requirements.txt" "setuptools>=68" wheel
	"$venv/bin/pip" install -q --no-deps -r "$here/requirements-alone.txt"
	echo "$want" >"$venv/made"
fi

# From a copy: setuptools builds in the place of the sources.
copy=$(mktemp -d)
trap 'rm -rf "$copy"' EXIT
cp -R client/python/. "$copy/"
rm -rf "$plugin"
"$venv/bin/pip" install -q --no-deps --no-build-isolation --no-compile --target "$plugin" "$copy"
