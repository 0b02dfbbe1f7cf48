# SPDX-License-Identifier: Apache-2.0
#
# In: any Debian 12 or 13 machine. Out: make riscv64 (everything, cross-built into $(O)/riscv64),
# check-riscv (SHORT=1: a smaller share of the cases, for CI; check-long runs most of them) and
# count-riscv, under qemu-user. setup.sh installs and fetches what they need, once.

RISCV_O := $(O)/riscv64
RISCV_SYSROOT := $(or $(ATTND_CACHE),$(or $(XDG_CACHE_HOME),$(HOME)/.cache)/attnd)/riscv64/sysroot
RISCV_MAKE = $(MAKE) O='$(RISCV_O)' AR=llvm-ar-19 SAN= \
  CC='clang-19 --target=riscv64-linux-gnu --sysroot=$(RISCV_SYSROOT)' LDFLAGS='-fuse-ld=lld $(LDFLAGS)' MSGPACK=-lmsgpack-c

.PHONY: riscv64 riscv-setup check-riscv check-riscv-long count-riscv riscv-counted

riscv-setup: | deps
	$(Q)tests/riscv/setup.sh

riscv64: riscv-setup
	$(Q)+$(RISCV_MAKE) all tests

# What runs under qemu-user; the golden vectors run through the daemon there.
RISCV_UNITS := $(addprefix $(O)/tests/,shm/test_ring control/test_config control/test_mailbox control/test_loop \
  client/test_heap client/test_arena client/test_calls client/test_jobs client/test_restore daemon/test_exec)
.PHONY: riscv-units
riscv-units: $(O)/check-kernels $(O)/choice $(O)/attnd $(O)/run-vectors $(RISCV_UNITS)
$(O)/choice: $(O)/tests/riscv/choice.o $(KERNELS_OBJS)
	$(call say,LD,$@)
	$(link) -lm

check-riscv check-riscv-long: riscv-setup
	$(Q)+$(RISCV_MAKE) riscv-units
	$(Q)BUILD='$(abspath $(RISCV_O))' tests/riscv/check.sh $(if $(filter %-long,$@),--long,$(if $(SHORT),--short))

check-long: check-riscv-long

count-riscv: riscv-setup
	$(Q)+$(RISCV_MAKE) riscv-counted
	$(Q)BUILD='$(abspath $(RISCV_O))' tests/riscv/count.pl

# One decode step whose kernels stand in a section of their own; static, so that addresses are those of the file.
riscv-counted: $(O)/decode
$(O)/counted/%.o: $(O)/kernels/%.o
	@mkdir -p $(@D)
	$(Q)llvm-objcopy-19 --rename-section .text=rvv_text $< $@
$(O)/decode: $(O)/tests/riscv/decode.o $(RVV_OBJS:$(O)/kernels/%=$(O)/counted/%) $(filter-out $(RVV_OBJS),$(KERNELS_OBJS))
	$(call say,LD,$@)
	$(link) -static -lm
