# SPDX-License-Identifier: Apache-2.0
#
# Sourced by inside.sh and deb-inside.sh, in /mnt, under a systemd that is PID 1. Out: steps that end
# in TAP in /mnt/tap (TAP: elsewhere), and what they ask.
set -u
cd /mnt || exit 1
export LD_LIBRARY_PATH=/mnt/lib
exec 3>"${TAP:-tap}"
n=0
bad=0

end() {
	echo "1..$n" >&3
	exit $bad
}
result() { # status, text; each step stands on the one before: the first that fails is the last
	n=$((n + 1))
	if [ "$1" = 0 ]; then
		echo "ok $n - $2${TAP:+ ($SECONDS s)}" >&3
		return
	fi
	bad=1
	echo "not ok $n - $2" >&3
	{
		tail -20 out
		systemctl status attnd.service --no-pager
		tail -20 daemon.log
	} 2>&1 | sed 's/^/# /' >&3
	end
}
check() { # text, command...
	local text=$1
	shift
	"$@" >out 2>&1
	result $? "$text"
}
until_() { # a command that shall be true within PATIENCE s (20)
	for _ in $(seq $((${PATIENCE:-20} * 10))); do
		"$@" && return 0
		sleep 0.1
	done
	return 1
}
show() { systemctl show -P "$1" attnd.service; }
is() { [ "$(show "$1")" = "$2" ] || { echo "$1: $(show "$1"), not $2"; false; }; }
status_has() { case $(show StatusText) in *"$1"*) ;; *) echo "StatusText: $(show StatusText)"; false ;; esac; }
admin() { ${ATTNCTL:-./attnctl} --socket /run/attnd/attnd.sock.admin "$@"; }
admin_says() { admin --json status | grep -q "$1"; }
count() { sed -n "s/.*$1 *\([0-9]*\).*/\1/p" load; }
more_than() { [ "$(count "$1")" -gt "$2" ]; } 2>/dev/null
goes_on() { local before; before=$(count done); until_ more_than done $((before + 20)); }
