# SPDX-License-Identifier: Apache-2.0
#
# check-kernels: every registered kernel against float64 and against portable C.

CHECK_KERNELS_OBJS := $(patsubst %.c,$(O)/%.o,$(wildcard tests/kernels/check*.c))
# The reference must not be contracted either: its bounds count roundings.
$(CHECK_KERNELS_OBJS): override CFLAGS += -ffp-contract=off

$(O)/check-kernels: $(CHECK_KERNELS_OBJS) $(KERNELS_OBJS) $(O)/flags
	$(call say,LD,$@)
	$(Q)$(CC) $(CFLAGS) $(LDFLAGS) -o $@ $(filter %.o,$^) -lm

CHECK_TESTS += $(O)/check-kernels
