# SPDX-License-Identifier: Apache-2.0
#
# The Python package. In `make check`: what the interpreter at hand can import; the rest says why it
# is skipped. check-python makes a virtual environment with torch and transformers (once, under
# ~/.cache/attnd) and runs all of it; bench-python prints the figures.

PYTHON_TESTS := $(wildcard tests/python/test_*.py)
CHECK_TESTS += $(PYTHON_TESTS)

.PHONY: check-python bench-python
in_venv = $(Q)venv=$$(tests/python/venv.sh) && PATH="$$venv/bin:$$PATH" OMP_WAIT_POLICY=passive

check-python: all
	$(in_venv) $(prove) $(call chosen,$(PYTHON_TESTS))

# The package brings its own library; the symbols are found in that.
$(O)/tests/python/loop.so: $(O)/tests/python/loop.o $(O)/$(SO) $(O)/flags
	$(call say,LD,$@)
	$(Q)$(CC) $(CFLAGS) $(LDFLAGS) -shared -o $@ $< $(O)/$(SO)

bench-python: all $(O)/tests/python/loop.so
	$(in_venv) ATTND_DAEMON='$(abspath $(O))/attnd' BUILD='$(abspath $(O))' SRC='$(CURDIR)' tests/python/bench.py $(BENCH_FLAGS)
