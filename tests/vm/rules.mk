# SPDX-License-Identifier: Apache-2.0
#
# make check-vm: the daemon in a riscv64 machine with two NUMA nodes (no KVM needed).
VM_VLENS ?= 256 1024

.PHONY: check-vm
check-vm: riscv64
	$(Q)tests/vm/setup.sh
	$(Q)for v in $(VM_VLENS); do echo "# VLEN $$v"; tests/vm/run.sh '$(abspath $(O))' $$v || exit 1; done
