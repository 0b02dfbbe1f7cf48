# SPDX-License-Identifier: Apache-2.0
#
# The tests. In: tests/NAME/rules.mk, which name their programs. Out: what `make check` and
# `make check-long` give to prove. Every test prints TAP.
#
# A rules.mk uses:
#
#   $(eval $(call cmocka_test,tests/shm/test_ring))
#       builds $(O)/tests/shm/test_ring from tests/shm/test_ring.c and adds it to CHECK_TESTS.
#   $(eval $(call cmocka_test,tests/shm/test_ring,$(O)/tests/shm/peer.o,-lfoo))
#       the same with more objects and more libraries.
#   $(eval $(call cmocka_long,tests/shm/test_ring_long))
#       the same for CHECK_LONG_TESTS.
#   $(eval $(call test_program,tests/shm/victim,[objects],[libraries]))
#       builds a program that other tests run; add it to TEST_PROGRAMS, which are built first.
#   CHECK_TESTS += tests/shm/test_names.sh
#       an executable script that prints TAP.
#
# Some alone: make check TESTS='shm/ test_wire' (parts of paths).
# The environment of a test: ATTND_DAEMON, BUILD and SRC (absolute), PREFIX (of this build: a test that
# installs with another one would link again what others run), the sanitizers' options, and in
# check-long TEST_LONG=1.

CHECK_TESTS := tests/check-layers.sh
CHECK_LONG_TESTS :=
TEST_PROGRAMS :=
TESTS ?=
TEST_SECONDS ?= 600
TEST_JOBS ?= 2

define test_program
$(O)/$(1): $(O)/$(1).o $(2) $(O)/libdaemon.a $(O)/libattnd.a $(O)/flags
	$$(call say,LD,$$@)
	$$(link) $(3) -lcmocka $$(DAEMON_LIBS) $$(CLIENT_LIBS)
endef

define cmocka_test
$(call test_program,$(1),$(2),$(3))
CHECK_TESTS += $(O)/$(1)
endef

define cmocka_long
$(call test_program,$(1),$(2),$(3))
CHECK_LONG_TESTS += $(O)/$(1)
endef

# What tests with real processes share, in whatever directory.
integration := $(addprefix $(O)/tests/integration/,raw.o harness.o toy.o)

-include $(sort $(wildcard tests/*/rules.mk))

test_env = CMOCKA_MESSAGE_OUTPUT=TAP ATTND_DAEMON='$(abspath $(O))/attnd' BUILD='$(abspath $(O))' SRC='$(CURDIR)' PREFIX='$(PREFIX)' \
  ASAN_OPTIONS=detect_leaks=1:detect_stack_use_after_return=1:abort_on_error=0:allocator_may_return_null=1 \
  UBSAN_OPTIONS=print_stacktrace=1:halt_on_error=1 \
  TSAN_OPTIONS=halt_on_error=1:second_deadlock_stack=1:die_after_fork=0:suppressions='$(CURDIR)/tests/tsan.supp' OPENBLAS_NUM_THREADS=1
prove = $(test_env) prove --exec 'timeout -k 10 $(TEST_SECONDS)' -j$(TEST_JOBS) --timer

chosen = $(if $(TESTS),$(foreach t,$(1),$(if $(strip $(foreach p,$(TESTS),$(findstring $(p),$(t)))),$(t))),$(1))

tests: $(filter $(O)/%,$(call chosen,$(CHECK_TESTS) $(CHECK_LONG_TESTS)) $(TEST_PROGRAMS))

# prove's own line stands last, so that the outcome is the end of the output.
check: all tests
	$(Q)$(prove) $(call chosen,$(CHECK_TESTS))

check-long: all tests
	$(Q)TEST_LONG=1 $(prove) $(call chosen,$(CHECK_LONG_TESTS))
