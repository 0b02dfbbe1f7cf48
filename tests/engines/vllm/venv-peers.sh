#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# The environment of bench-peers. In: where it goes, vLLM's environment. Out: one of its own, with
# OpenVINO, that finds vLLM and torch where they are. Next: peers.py.
set -eu

venv=$1 vllm=$2
openvino=2026.4.1

if [ ! -e "$venv/done-$openvino" ]; then
	rm -rf "$venv"
	python3 -m venv "$venv"
	# What it needs, numpy alone, is vLLM's.
	"$venv/bin/pip" install -q --no-deps "openvino==$openvino"
	purelib='import sysconfig; print(sysconfig.get_path("purelib"))'
	echo "import site; site.addsitedir('$("$vllm/bin/python" -c "$purelib")')" >"$("$venv/bin/python" -c "$purelib")/vllm.pth"
	"$venv/bin/python" -c 'import openvino, torch'
	touch "$venv/done-$openvino"
fi
