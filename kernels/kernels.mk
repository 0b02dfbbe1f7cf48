# ISA flags per object file; the default build runs on any CPU of its architecture.
# The portable kernels are the reference: no contraction, no fast-math.
$(KERNELS_OBJS): override CFLAGS += -ffp-contract=off
