# SPDX-License-Identifier: Apache-2.0
#
# The units: checked by systemd-analyze, and run by a systemd that is PID 1 in namespaces, which is
# this machine's own; make check-systemd fetches Debian 13's and does the same with that.
$(foreach p,client hang,$(eval $(call test_program,tests/systemd/$(p),$(integration))))
TEST_PROGRAMS += $(addprefix $(O)/tests/systemd/,client hang)
CHECK_TESTS += tests/systemd/units.sh tests/systemd/service.sh

.PHONY: check-systemd
check-systemd: all tests
	$(Q)tests/systemd/setup.sh
	$(Q)SYSTEMD_ROOT="$$(tests/systemd/setup.sh --where)" $(prove) tests/systemd/units.sh tests/systemd/service.sh
