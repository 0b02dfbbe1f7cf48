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

# check-kernels-amx: the same with attend_amx.c on a C model of the tile instructions.
ifneq ($(filter x86_64%,$(shell $(CC) -dumpmachine)),)
$(O)/tests/kernels/amx_attend.o: kernels/attend_amx.c tests/kernels/amx_model.h $(O)/flags
	@mkdir -p $(@D)
	$(call say,CC,$@)
	$(Q)$(CC) $(CPPFLAGS) $(CFLAGS) -ffp-contract=off $(CFLAGS_kernels_attend_avx512bf16) \
	  -include tests/kernels/amx_model.h -MMD -MP -c -o $@ $<

$(O)/check-kernels-amx: $(CHECK_KERNELS_OBJS) $(filter-out %/attend_amx.o,$(KERNELS_OBJS)) $(O)/tests/kernels/amx_attend.o $(O)/flags
	$(call say,LD,$@)
	$(Q)$(CC) $(CFLAGS) $(LDFLAGS) -o $@ $(filter %.o,$^) -lm

CHECK_TESTS += tests/kernels/test_amx.sh
TEST_PROGRAMS += $(O)/check-kernels-amx
endif
