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
