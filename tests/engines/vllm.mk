# SPDX-License-Identifier: Apache-2.0
#
# vLLM on attnd. ENGINE_TESTS='ngram' chooses some of the tests' files; each file takes names of its
# tests as arguments.

.PHONY: check-engines-vllm bench-engines-vllm
check-engines: check-engines-vllm
bench-engines: bench-engines-vllm

vllm_tests = $(if $(ENGINE_TESTS),$(foreach t,$(vllm_files),$(if $(strip $(foreach p,$(ENGINE_TESTS),$(findstring $(p),$(t)))),$(t))),$(vllm_files))
vllm_files = $(sort $(wildcard tests/engines/vllm/test_*.py))
vllm_env = $(engines_env) VENV='$(ENGINES)/vllm' PYTHONPATH='$(abspath $(O))/engines/vllm'

# The package as it is installed, with its entry points, beside the environment.
.PHONY: vllm-plugin
vllm-plugin: all
	$(Q)tests/engines/vllm/venv.sh '$(ENGINES)/vllm' '$(abspath $(O))/engines/vllm'

check-engines-vllm: vllm-plugin
	$(Q)$(vllm_env) prove --exec 'timeout -k 10 1800 $(ENGINES)/vllm/bin/python' --timer $(vllm_tests)

# Named tests of vLLM's own suite, with the plug-in inert and with the backend chosen; fetches its
# source distribution. TEST_LONG=1: the whole grid of its attention test.
.PHONY: check-engines-own
check-engines-own: vllm-plugin
	$(Q)$(engines_env) ATTND_LIBRARY='$(abspath $(O))/libattnd.so.0' tests/engines/vllm/own.sh '$(ENGINES)/vllm' '$(O)/engines/vllm'

bench-engines-vllm: vllm-plugin
	$(Q)$(vllm_env) $(ENGINES)/vllm/bin/python tests/engines/vllm/bench.py $(BENCH_FLAGS)

# The attention ops of others (P12), in an environment of its own; writes $(O)/bench-peers.json.
.PHONY: bench-peers
bench-peers: vllm-plugin
	$(Q)tests/engines/vllm/venv-peers.sh '$(ENGINES)/peers' '$(ENGINES)/vllm'
	$(Q)$(vllm_env) $(ENGINES)/peers/bin/python tests/engines/vllm/peers.py $(BENCH_FLAGS)
