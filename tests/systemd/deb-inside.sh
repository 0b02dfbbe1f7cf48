#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# Run by a systemd that is PID 1, in a root where deb-install.sh installed the packages and which has
# reached multi-user.target. In: /mnt with debs/, newer/ (the same as a later version), client, peer.
# Out: TAP in /mnt/tap: after boot, reinstallation, upgrade, removal, purge.
ATTNCTL=attnctl
. /mnt/steps.sh

units='attnd.service attnd.socket attnd-admin.socket'
all() { # what each unit shall be
	local u
	for u in $units; do [ "$(systemctl is-"$1" "$u")" = "$2" ] || { echo "$u is $(systemctl is-"$1" "$u"), not $2"; return 1; }; done
}
install_() { dpkg --force-unsafe-io -i "$@"; }
serves() { # cached tokens that a client shall find
	local got
	got=$(./peer /run/attnd/attnd.sock) && [ "$got" = "cached $1" ] || { echo "$got, not cached $1"; false; }
}
client_there() { admin sessions | grep -q systemd-test; } # an idle one connects again unnoticed
another() { until_ is ActiveState active && [ "$(show MainPID)" != "$pid" ]; }
mine() { grep -q '^pool-size = 32M' /etc/attnd/attnd.conf; }

check 'the packages are installed' dpkg -s attnd libattnd0
check 'service and sockets are enabled' all enabled enabled
check 'huge pages are for who asks' test "$(systemctl is-enabled attnd-hugepages.service)" = disabled
check 'after the boot all are active' all active active
check 'as a user of its own' test "$(stat -c %U /proc/"$(show MainPID)")" = attnd
check 'a client is served' serves 0
check 'and hits' serves 63
check 'attnctl is answered' admin_says '"version"'

./client /run/attnd/attnd.sock 0 load 20 & # not all of an emulated machine
client=$!
check 'load' until_ more_than done 20
for what in debs newer; do
	pid=$(show MainPID)
	check "$what: install over it" install_ $what/*.deb
	check 'the service is another process' another
	check 'sockets never went away' all active active
	check 'the client has met it' until_ client_there
	check 'and goes on' goes_on
	check 'what was cached still is' serves 63
	check 'the configuration is the administrator'\''s' mine
done
check 'the version is the newer one' test "$(dpkg-query -W -f '${Version}' attnd)" = "$(dpkg-deb -f newer/attnd_*.deb Version)"
kill $client
wait $client
result $? 'the client ends well, no output was wrong'

systemctl disable --quiet attnd.service 2>out
result $? 'disabled by the administrator'
check 'install again' install_ newer/*.deb
check 'it stays so' test "$(systemctl is-enabled attnd.service)" = disabled
check 'enabled again' systemctl enable --quiet attnd.service attnd.socket attnd-admin.socket

check 'start' systemctl start $units
check 'serves' serves 63
pid=$(show MainPID)
check 'remove' dpkg --remove attnd
check 'ends the daemon' test ! -e "/proc/$pid"
check 'and its sockets' test ! -e /run/attnd/attnd.sock
held() { [ "$(systemctl show -P NFileDescriptorStore attnd.service)" = 0 ]; }
check "and nothing holds the pool's memory" held
check 'the configuration stays until the purge' mine
mkdir -p /var/lib/attnd
rm -r /etc/systemd/system/attnd.service.d
check 'purge' dpkg --purge attnd libattnd0
left() { ./deb-files.sh >after; comm -13 before after | sed 's/^/left: /' >left; cat left; [ ! -s left ]; }
check 'leaves nothing behind' left
end
