# SPDX-License-Identifier: Apache-2.0
#
# SGLang on attnd. ENGINE_TESTS='restart' chooses some of the tests.

.PHONY: check-engines-sglang bench-engines-sglang
check-engines: check-engines-sglang
bench-engines: bench-engines-sglang

ENGINE_TESTS ?=
sglang_tests = $(call chosen_engine,$(sort $(wildcard tests/engines/sglang/test_*.py)))
chosen_engine = $(if $(ENGINE_TESTS),$(foreach t,$(1),$(if $(strip $(foreach p,$(ENGINE_TESTS),$(findstring $(p),$(t)))),$(t))),$(1))

check-engines-sglang: all
	$(Q)tests/engines/sglang/venv.sh '$(ENGINES)/sglang' client/python
	$(Q)$(engines_env) prove --exec 'timeout -k 10 1200 $(ENGINES)/sglang/bin/python' --timer $(sglang_tests)

bench-engines-sglang: all
	$(Q)tests/engines/sglang/venv.sh '$(ENGINES)/sglang' client/python
	$(Q)$(engines_env) $(ENGINES)/sglang/bin/python tests/engines/sglang/bench.py $(BENCH_FLAGS)
