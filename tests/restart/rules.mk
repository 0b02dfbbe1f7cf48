# SPDX-License-Identifier: Apache-2.0
#
# A daemon that ends, and the next one that takes its cache over.
restart := $(addprefix $(O)/tests/,integration/harness.o integration/toy.o restart/kept.o restart/prompts.o)
$(eval $(call cmocka_test,tests/restart/test_restart,$(restart)))
$(eval $(call cmocka_test,tests/restart/test_check,$(restart)))
CHECK_LONG_TESTS += $(addprefix $(O)/tests/restart/,test_restart test_check)
