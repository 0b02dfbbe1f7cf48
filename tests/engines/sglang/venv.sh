#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# In: a directory, the tree's Python package. Out: a virtual environment there with SGLang's CPU path
# and this tree's attnd in it, made again when a list of requirements changed. Next: the tests.
set -eu
venv=$1 package=$2 here=$(dirname "$0")

want=$(cat "$here/requirements.txt" "$here/requirements-alone.txt" | cksum)
if [ "$(cat "$venv/made" 2>/dev/null)" != "$want" ]; then
	rm -rf "$venv"
	python3 -m venv "$venv"
	"$venv/bin/pip" install -q -r "$here/requirements.txt" "setuptools>=68" wheel
	"$venv/bin/pip" install -q --no-deps -r "$here/requirements-alone.txt"
	echo "$want" >"$venv/made"
fi

# The package from the tree as it is, by its entry points: an editable one, for $PWD's sources.
root=$(cd "$package" && pwd)
if [ "$(cat "$venv/tree" 2>/dev/null)" != "$root $(cksum <"$package/pyproject.toml")" ]; then
	"$venv/bin/pip" install -q --no-deps --no-build-isolation -e "$package"
	echo "$root $(cksum <"$package/pyproject.toml")" >"$venv/tree"
fi
