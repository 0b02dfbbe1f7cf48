# SPDX-License-Identifier: Apache-2.0
#
# The daemon in one container, its clients in others: namespaces made by the test.
$(foreach p,peer nouring,$(eval $(call test_program,tests/sidecar/$(p),$(integration))))
TEST_PROGRAMS += $(addprefix $(O)/tests/sidecar/,peer nouring)
CHECK_TESTS += tests/sidecar/sidecar.sh
