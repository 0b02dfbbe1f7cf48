#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# Run by a systemd that is PID 1 (boot.sh, or the machine of tests/vm). In: /mnt with install/,
# attnctl, client, hang; WATCHDOG (2s), EVENT_LOOP. Out: TAP in /mnt/tap: start, notify, activation,
# access, reload, a hung engine, kill -9, restart under load, stop.
. /mnt/steps.sh

cp -a install/. /
mkdir -p /etc/systemd/system/attnd.service.d
# A short patience, and a file for the log: there is no journal here. Otherwise the unit as it is.
cat >/etc/systemd/system/attnd.service.d/test.conf <<-U
	[Service]
	WatchdogSec=${WATCHDOG:-2s}
	StandardError=append:/mnt/daemon.log
	Environment=LD_LIBRARY_PATH=/mnt/lib
	BindReadOnlyPaths=/mnt/lib
U
printf '[pool]\npool-size = 32M\nhugepages = off\n[engine]\nthreads = 2\n' >/etc/attnd/attnd.conf

check 'sysusers makes the user' systemd-sysusers attnd.conf
check 'tmpfiles makes the directory' systemd-tmpfiles --create attnd.conf
check 'which is its own' test "$(stat -c %U:%a /run/attnd)" = attnd:755
systemctl daemon-reload
check 'the sockets start' systemctl start attnd.socket attnd-admin.socket
check 'the service has not started' is ActiveState inactive
check 'a client is served: activation' ./client /run/attnd/attnd.sock 5
check 'it is ready' is ActiveState active
check 'as its own user' test "$(stat -c %U /proc/"$(show MainPID)")" = attnd
check 'through io_uring, within the filter of system calls' admin_says "\"event_loop\":[ ]*\"$EVENT_LOOP\""
check 'its status tells sessions, hit rate and pool' until_ status_has '0 sessions, hit rate'
check 'and the pool' status_has 'of 32 MiB used'
check 'clients: 0660, the group' test "$(stat -c %U:%G:%a /run/attnd/attnd.sock)" = attnd:attnd:660
check 'administrators: 0600, root' test "$(stat -c %U:%G:%a /run/attnd/attnd.sock.admin)" = root:root:600
one_of() { setpriv --reuid 65534 --regid 65534 "$@" ./client /run/attnd/attnd.sock 2; }
check 'a member of the group may connect' one_of --groups "$(getent group attnd | cut -d: -f3)"
no_member() { ! one_of --clear-groups; }
check 'another user may not' no_member
not_admin() { ! setpriv --reuid 65534 --regid 65534 --groups "$(getent group attnd | cut -d: -f3)" ./attnctl --socket /run/attnd/attnd.sock.admin status; }
check 'a member is no administrator' not_admin

printf '[limits]\nmax-sessions = 77\n' >>/etc/attnd/attnd.conf
check 'reload' systemctl reload attnd.service
check 'takes a key over' until_ admin_says '"max_sessions":[ ]*77'
check 'and is no restart' is NRestarts 0

./client /run/attnd/attnd.sock 0 load &
client=$!
check 'load' until_ more_than done 20
check 'its status counts it' until_ status_has '1 sessions, hit rate'
pid=$(show MainPID)
check 'the leader hangs until the watchdog ends the daemon' ./hang "$pid" attnd-leader
started_again() { [ "$(show ActiveState)" = active ] && [ "$(show MainPID)" != "$pid" ]; }
check 'which is started again' until_ started_again
check 'once' is NRestarts 1
check 'the client has met it' until_ more_than resets 0
check 'and goes on' goes_on
pid=$(show MainPID)
resets=$(count resets)
kill -9 "$pid"
check 'kill -9: started again' until_ started_again
check 'the client has met that' until_ more_than resets "$resets"
check 'and goes on' goes_on
pid=$(show MainPID)
resets=$(count resets)
check 'restart under load' systemctl restart attnd.service
check 'is another process' started_again
check 'the client has met it' until_ more_than resets "$resets"
check 'and goes on' goes_on
check 'no output was wrong' test "$(count wrong)" = 0
if [ "$(show NFileDescriptorStore)" -gt 0 ]; then # what was handed over is used
	check 'what was cached before the restart still is' more_than cached-after-reset 0
fi
check 'and lies where it belongs' admin_says '"pages_misplaced":[ ]*0'
kill $client
wait $client
result $? 'the client ends well'
check 'stop' systemctl stop attnd.service attnd.socket attnd-admin.socket
check 'is clean' is Result success
check 'with exit 0' is ExecMainStatus 0
check 'and leaves no socket' test ! -e /run/attnd/attnd.sock -a ! -e /run/attnd/attnd.sock.admin -a ! -e /run/attnd/attnd.sock.lock
printf '[pool]\npool-sise = 1\n' >/etc/attnd/attnd.conf
refused() { ! systemctl start attnd.service; }
check 'a wrong configuration' refused
check 'is not tried again' is NRestarts 0
end
