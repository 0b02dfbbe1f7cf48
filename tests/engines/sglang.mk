# SPDX-License-Identifier: Apache-2.0
#
# SGLang on attnd. ENGINE_TESTS='restart' chooses some of the tests.

.PHONY: check-engines-sglang bench-engines-sglang
check-engines: check-engines-sglang
bench-engines: bench-engines-sglang

sglang_files = $(sort $(wildcard tests/engines/sglang/test_*.py))
sglang_tests = $(if $(ENGINE_TESTS),$(foreach t,$(sglang_files),$(if $(strip $(foreach p,$(ENGINE_TESTS),$(findstring $(p),$(t)))),$(t))),$(sglang_files))
sglang_env = $(engines_env) PLUGIN='$(abspath $(O))/engines/sglang'

# The package as it is installed, with its entry points, beside the environment.
.PHONY: sglang-plugin
sglang-plugin: all
	$(Q)tests/engines/sglang/venv.sh '$(ENGINES)/sglang' '$(abspath $(O))/engines/sglang'

check-engines-sglang: sglang-plugin
	$(Q)$(sglang_env) prove --exec 'timeout -k 10 1800 $(ENGINES)/sglang/bin/python' --timer $(sglang_tests)

# SGLang's own kits, as its package brings them, with the backend selected.
.PHONY: check-engines-own check-engines-own-sglang
check-engines-own: check-engines-own-sglang
sglang_own = $(sort $(wildcard tests/engines/sglang/own/test_*.py))
check-engines-own-sglang: sglang-plugin
	$(Q)$(sglang_env) OMP_WAIT_POLICY=passive prove --exec 'timeout -k 10 1800 $(ENGINES)/sglang/bin/python' --timer $(sglang_own)

bench-engines-sglang: sglang-plugin
	$(Q)$(sglang_env) $(ENGINES)/sglang/bin/python tests/engines/sglang/bench.py $(BENCH_FLAGS)
