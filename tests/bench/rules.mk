# SPDX-License-Identifier: Apache-2.0
#
# bench-kernels: the kernels beside the machine's roofs (P1, P2, P3, P5).

BENCH_KERNELS_OBJS := $(patsubst %,$(O)/tests/bench/%.o,bench-kernels report roof team)
CFLAGS_tests_bench_roof := -O3

$(O)/bench-kernels: $(BENCH_KERNELS_OBJS) $(KERNELS_OBJS) $(O)/flags
	$(call say,LD,$@)
	$(link) -ljansson -lm

# attnd-bench: the whole path (P4, P6, P7, P8, P10, P11, fairness, the cache's own figures).
ATTND_BENCH_OBJS := $(patsubst %.c,$(O)/%.o,$(wildcard tests/bench/attnd-bench*.c)) \
  $(patsubst %,$(O)/tests/bench/%.o,local peers plot remote report roof team)

$(O)/attnd-bench: $(ATTND_BENCH_OBJS) $(O)/libattnd.a $(O)/libdaemon.a $(O)/flags
	$(call say,LD,$@)
	$(link) $(DAEMON_LIBS) $(CLIENT_LIBS) -lopenblas

all: $(O)/attnd-bench
PROGRAMS += $(O)/attnd-bench $(O)/bench-kernels # for clean

CHECK_TESTS += tests/bench/options.sh

.PHONY: install-bench uninstall-bench
install: install-bench
install-bench: $(O)/attnd-bench
	$(Q)$(INSTALL) -D -m 755 $< $(DESTDIR)$(BINDIR)/attnd-bench
uninstall: uninstall-bench
uninstall-bench:
	$(Q)rm -f $(DESTDIR)$(BINDIR)/attnd-bench

# bench-service: what a restart and a client's death cost, and what fuzzers find in FUZZ_SECONDS each; writes
# build/bench-service.json.
$(O)/bench-service: $(O)/tests/bench/bench-service.o $(O)/tests/bench/report.o $(O)/tests/integration/harness.o \
  $(O)/tests/integration/toy.o $(O)/tests/restart/kept.o $(O)/libattnd.a $(O)/libdaemon.a $(O)/flags
	$(call say,LD,$@)
	$(link) -lcmocka $(DAEMON_LIBS) $(CLIENT_LIBS)
PROGRAMS += $(O)/bench-service
.PHONY: bench-service
bench-service: all $(O)/bench-service
	$(Q)rm -f $(O)-fuzz/figures
	$(Q)+$(MAKE) --no-print-directory fuzz FUZZ_SECONDS=$(if $(filter file,$(origin FUZZ_SECONDS)),10,$(FUZZ_SECONDS)) || true
	$(Q)$(test_env) $(O)/bench-service $(O)/bench-service.json $(O)-fuzz/figures
