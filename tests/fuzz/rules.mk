# SPDX-License-Identifier: Apache-2.0
#
# Fuzzers. make check runs them over their seeds; make fuzz FUZZ_SECONDS=60 builds them with
# clang-19's libFuzzer, AddressSanitizer and UndefinedBehaviorSanitizer in $(O)-fuzz, and lets each
# look for so long, from the seeds and from what it found before ($(O)-fuzz/corpus). An input that
# fails stands in $(O)-fuzz as crash-*, and is run again by the same program: build-fuzz/... FILE.
FUZZERS := arguments config handshake entries meta
FUZZ_SECONDS ?= 60
fuzz_objs_handshake := $(addprefix $(O)/tests/control/,stub_leader.o peer.o)

ifeq ($(FUZZ),1)
fuzz_main := -fsanitize=fuzzer
else
fuzz_main := $(O)/tests/fuzz/replay.o
CHECK_TESTS += $(FUZZERS:%=$(O)/tests/fuzz/fuzz_%)
endif

define fuzzer
$(O)/tests/fuzz/fuzz_$(1): $(O)/tests/fuzz/fuzz_$(1).o $(fuzz_objs_$(1)) $(filter %.o,$(fuzz_main)) $(O)/libdaemon.a $(O)/flags
	$$(call say,LD,$$@)
	$$(link) $(filter -%,$(fuzz_main)) $$(DAEMON_LIBS)
endef
$(foreach f,$(FUZZERS),$(eval $(call fuzzer,$(f))))

.PHONY: fuzz fuzzers
fuzzers: $(FUZZERS:%=$(O)/tests/fuzz/fuzz_%)
fuzz:
	$(Q)$(MAKE) --no-print-directory CC=clang-19 O=$(O)-fuzz FUZZ=1 SAN=fuzzer-no-link,address,undefined fuzzers
	$(Q)tests/fuzz/run.sh '$(O)-fuzz' '$(FUZZ_SECONDS)' $(FUZZERS)
