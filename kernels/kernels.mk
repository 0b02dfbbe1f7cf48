# ISA flags per object file; the default build runs on any CPU of its architecture.
#
# A new ISA file kernels/<file>.c gets its flags here, as CFLAGS_kernels_<file> (added after the
# common ones), guarded by ifneq ($(filter x86_64%,$(shell $(CC) -dumpmachine)),) or riscv64%.

# The portable kernels are the reference: no contraction, no fast-math. -O3 vectorises the loops
# over tokens and dims, which changes no order of operations.
$(KERNELS_OBJS): override CFLAGS += -ffp-contract=off
CFLAGS_kernels_attend_c := -O3
CFLAGS_kernels_partial_c := -O3
