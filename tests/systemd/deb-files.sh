#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# Out: every file that a package could leave behind, but dpkg's own records and caches, and the users.
find /etc /usr /var /run -xdev \( -path /var/lib/dpkg -o -path /var/cache -o -path /var/log -o -path /var/tmp \
	-o -path /run/systemd -o -path /run/credentials -o -path /run/mount -o -path /run/lock -o -path /run/user \) -prune -o \
	! -path '/etc/passwd*' ! -path '/etc/group*' ! -path '/etc/shadow*' ! -path '/etc/gshadow*' ! -path /etc/.pwd.lock \
	! -path /etc/ld.so.cache -print | sort
