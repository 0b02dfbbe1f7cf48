# ISA flags per object file; the default build runs on any CPU of its architecture.
#
# A new ISA file kernels/<file>.c gets its flags here, as CFLAGS_kernels_<file> (added after the
# common ones), guarded by ifneq ($(filter x86_64%,$(shell $(CC) -dumpmachine)),) or riscv64%.

# The portable kernels are the reference: no contraction, no fast-math. -O3 vectorises the loops
# over tokens and dims, which changes no order of operations.
$(KERNELS_OBJS): override CFLAGS += -ffp-contract=off
CFLAGS_kernels_attend_c := -O3
CFLAGS_kernels_partial_c := -O3

# Sanitizers' checks inside fully unrolled loops cost minutes to compile above -O1.
SIMD_OPT := $(if $(SAN),-O1,-O3)

# x86-64: *_avx512*.c and attend_amx.c only compute; x86.c, which runs before, has no flags.
ifneq ($(filter x86_64%,$(shell $(CC) -dumpmachine)),)
AVX2_FLAGS := -mavx2 -mfma -mf16c
AVX512_FLAGS := $(AVX2_FLAGS) -mavx512f -mavx512bw -mavx512vl -mavx512dq
CFLAGS_kernels_attend_avx2 := $(SIMD_OPT) $(AVX2_FLAGS)
CFLAGS_kernels_partial_avx2 := $(SIMD_OPT) $(AVX2_FLAGS)
CFLAGS_kernels_tile_avx2 := $(SIMD_OPT) $(AVX2_FLAGS)
CFLAGS_kernels_attend_avx512 := $(SIMD_OPT) $(AVX512_FLAGS)
CFLAGS_kernels_partial_avx512 := $(SIMD_OPT) $(AVX512_FLAGS)
CFLAGS_kernels_tile_avx512 := $(SIMD_OPT) $(AVX512_FLAGS)
CFLAGS_kernels_attend_avx512bf16 := $(SIMD_OPT) $(AVX512_FLAGS) -mavx512vbmi -mavx512bf16
CFLAGS_kernels_attend_amx := $(CFLAGS_kernels_attend_avx512bf16) -mamx-tile -mamx-bf16
else
KERNELS_OBJS := $(filter-out $(O)/kernels/x86.o $(O)/kernels/attend_avx%.o $(O)/kernels/partial_avx%.o $(O)/kernels/tile_avx%.o $(O)/kernels/attend_amx.o,$(KERNELS_OBJS))
endif

# riscv64: base V, Zvfh and Zvfbfwma in files of their own; nothing is built for one VLEN. The RVV
# intrinsics are clang's (gcc 14 lacks those of bf16). The tunings only order instructions: with
# these, clang runs no accumulator's chain ahead of the others' and spills none.
RVV_OBJS := $(addprefix $(O)/kernels/,attend_rvv.o tiles_rvv.o tiles_rvv_f16.o tiles_rvv_bf16.o)
RVV_ROW_OBJS := $(addprefix $(O)/kernels/,rows_rvv.o partial_rvv.o)
ifneq ($(filter riscv64%,$(shell $(CC) -dumpmachine)),)
ifeq ($(findstring clang,$(CC)),)
$(RVV_OBJS) $(RVV_ROW_OBJS): CC := clang-19
endif
CFLAGS_kernels_attend_rvv := -march=rv64gcv
CFLAGS_kernels_rows_rvv := -march=rv64gcv
CFLAGS_kernels_partial_rvv := -march=rv64gcv
CFLAGS_kernels_tiles_rvv := -mtune=sifive-x280 -march=rv64gcv
CFLAGS_kernels_tiles_rvv_f16 := -mtune=sifive-p670 -march=rv64gcv_zvfh
CFLAGS_kernels_tiles_rvv_bf16 := -mtune=sifive-p670 -march=rv64gcv_zvfbfwma
else
KERNELS_OBJS := $(filter-out $(RVV_OBJS) $(RVV_ROW_OBJS),$(KERNELS_OBJS))
endif
