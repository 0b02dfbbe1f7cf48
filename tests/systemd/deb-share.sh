#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# In: a directory of packages, a build (its clients), a directory. Out: in that directory what
# deb-install.sh and deb-inside.sh want, with the packages once more as a later version.
set -eu
debs=$1 build=$2 share=$3 arch=${4:-$(dpkg --print-architecture)}
here=$(cd "$(dirname "$0")" && pwd)
mkdir -p "$share/debs" "$share/newer"
for p in attnd libattnd0; do
	cp "$debs/$p"_*_"$arch".deb "$share/debs"
	dpkg-deb -R "$debs/$p"_*_"$arch".deb "$share/tree"
	sed -i 's/^Version: .*/&.1/' "$share/tree/DEBIAN/control"
	dpkg-deb --root-owner-group -Znone -b "$share/tree" "$share/newer" >/dev/null
	rm -rf "$share/tree"
done
cp "$build/tests/systemd/client" "$build/tests/sidecar/peer" "$here"/{steps,deb-install,deb-files,deb-inside}.sh "$share"
chmod 755 "$share"
