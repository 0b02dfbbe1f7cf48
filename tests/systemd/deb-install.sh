#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# In: a root without attnd and without a running systemd, as who makes an image has it; /mnt/debs.
# Out: the packages installed by dpkg, /mnt/before (what stood there before). Next: deb-inside.sh,
# under that root's systemd.
set -e
# Somebody else's policy, and an index of manuals, are not looked at here.
rm -f /usr/sbin/policy-rc.d /var/lib/man-db/auto-update
: >/etc/fstab
dpkg --purge attnd attnd-bench libattnd-dev libattnd0 2>/dev/null || true
/mnt/deb-files.sh >/mnt/before
dpkg --force-unsafe-io -i /mnt/debs/*.deb
# A log without a journal, and a pool that suits a test: an administrator's file, which has to stay.
mkdir -p /etc/systemd/system/attnd.service.d
printf '[Service]\nStandardError=append:/mnt/daemon.log\n' >/etc/systemd/system/attnd.service.d/test.conf
printf '[pool]\npool-size = 32M\nhugepages = off\n[engine]\nthreads = 2\n' >/etc/attnd/attnd.conf
