# SPDX-License-Identifier: Apache-2.0
#
# The units: checked by systemd-analyze, and run by a systemd that is PID 1 in namespaces, which is
# this machine's own; make check-systemd fetches Debian 13's and does the same with that. make check-deb:
# the packages, built and installed (DEB_ARCH=riscv64: in the machine of tests/vm).
$(foreach p,client hang,$(eval $(call test_program,tests/systemd/$(p),$(integration))))
TEST_PROGRAMS += $(addprefix $(O)/tests/systemd/,client hang)
CHECK_TESTS += tests/systemd/units.sh tests/systemd/service.sh

.PHONY: check-systemd
check-systemd: all tests
	$(Q)tests/systemd/setup.sh
	$(Q)SYSTEMD_ROOT="$$(tests/systemd/setup.sh --where)" $(prove) tests/systemd/units.sh tests/systemd/service.sh

.PHONY: check-deb check-deb-riscv64
ifeq ($(DEB_ARCH),riscv64)
check-deb: check-deb-riscv64
else
check-deb: deb all tests
	$(Q)DEBS='$(abspath $(O))/deb' $(prove) tests/systemd/deb.sh
endif

check-deb-riscv64: riscv64
	$(Q)DEB_ARCH=riscv64 debian/build '$(abspath $(O))/deb-riscv64'
	$(Q)tests/vm/setup.sh
	$(Q)tests/systemd/setup.sh riscv64
	$(Q)tests/vm/systemd.sh '$(abspath $(O))' '$(abspath $(O))/deb-riscv64'

check-long: check-deb check-deb-riscv64
