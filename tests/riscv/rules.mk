# SPDX-License-Identifier: Apache-2.0
#
# In: any Debian 12 or 13 machine. Out: make riscv64 (everything, cross-built into
# $(O)/riscv64), check-riscv and count-riscv (under qemu-user). setup.sh fetches what they need.

RISCV_O := $(O)/riscv64
RISCV_SYSROOT := $(or $(ATTND_CACHE),$(or $(XDG_CACHE_HOME),$(HOME)/.cache)/attnd)/riscv64/sysroot
RISCV_MAKE = $(MAKE) O='$(RISCV_O)' AR=llvm-ar-19 SAN= \
  CC='clang-19 --target=riscv64-linux-gnu --sysroot=$(RISCV_SYSROOT)' LDFLAGS='-fuse-ld=lld $(LDFLAGS)'

.PHONY: riscv64 riscv-setup check-riscv count-riscv

riscv-setup: | deps
	$(Q)tests/riscv/setup.sh

riscv64: riscv-setup
	$(Q)+$(RISCV_MAKE) all tests
