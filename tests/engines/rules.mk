# SPDX-License-Identifier: Apache-2.0
#
# Engines served from attnd. In: their .mk files here, which add what they run to check-engines and
# bench-engines. Not part of `make check`: each makes a virtual environment of some GB under
# ~/.cache/attnd/engines and starts engines many times.

.PHONY: check-engines bench-engines
check-engines bench-engines: all

ENGINES ?= $(HOME)/.cache/attnd/engines
engines_env = $(test_env) ENGINES='$(ENGINES)'

include $(sort $(filter-out %/rules.mk,$(wildcard tests/engines/*.mk)))

# One engine of each make on one daemon: once both environments are there.
.PHONY: check-engines-both
check-engines: check-engines-both
check-engines-both: sglang-plugin vllm-plugin
	$(Q)$(sglang_env) prove --exec 'timeout -k 10 1800 $(ENGINES)/sglang/bin/python' --timer tests/engines/test_both.py
