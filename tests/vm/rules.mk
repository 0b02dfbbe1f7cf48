# SPDX-License-Identifier: Apache-2.0
#
# make check-vm: the daemon in a riscv64 machine with two NUMA nodes (no KVM needed), then the units under
# Debian 13's riscv64 systemd as its PID 1.
VM_VLENS ?= 256 1024
VM_SYSTEMD ?= 1

.PHONY: check-vm check-vm-systemd
check-vm: riscv64
	$(Q)tests/vm/setup.sh
	$(Q)for v in $(VM_VLENS); do echo "# VLEN $$v"; tests/vm/run.sh '$(abspath $(O))' $$v || exit 1; done
ifeq ($(VM_SYSTEMD),1)
check-vm check-long: check-vm-systemd
endif

check-vm-systemd: riscv64
	$(Q)tests/vm/setup.sh
	$(Q)tests/systemd/setup.sh riscv64
	$(Q)+$(RISCV_MAKE) PREFIX=/usr/local DESTDIR='$(abspath $(RISCV_O))/install' install >/dev/null
	$(Q)echo '# systemd'; tests/vm/systemd.sh '$(abspath $(O))'
