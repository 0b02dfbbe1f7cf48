# SPDX-License-Identifier: Apache-2.0
#
# What goes wrong: clients that take all they can get, and a machine that refuses what is asked of it.
$(foreach t,test_limits test_roles,$(eval $(call cmocka_test,tests/faults/$(t),$(integration))))
