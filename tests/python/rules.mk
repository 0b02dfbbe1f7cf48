# SPDX-License-Identifier: Apache-2.0
#
# The Python package. In `make check`: what the interpreter at hand can import, the rest says why it
# is skipped. check-python makes a place of its own for torch and transformers and runs all of it.

CHECK_TESTS += $(wildcard tests/python/test_*.py)
