# SPDX-License-Identifier: Apache-2.0
#
# bench-kernels: the kernels beside the machine's roofs (P1, P2, P3, P5).

BENCH_KERNELS_OBJS := $(patsubst %,$(O)/tests/bench/%.o,bench-kernels report roof team)
CFLAGS_tests_bench_roof := -O3

$(O)/bench-kernels: $(BENCH_KERNELS_OBJS) $(KERNELS_OBJS) $(O)/flags
	$(call say,LD,$@)
	$(link) -ljansson -lm
