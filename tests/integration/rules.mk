# SPDX-License-Identifier: Apache-2.0
integration := $(addprefix $(O)/tests/integration/,raw.o harness.o)
$(foreach t,test_wire,$(eval $(call cmocka_test,tests/integration/$(t),$(integration))))
CHECK_TESTS += tests/integration/install.sh
