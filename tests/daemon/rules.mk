# SPDX-License-Identifier: Apache-2.0
#
# The leader's parts without a leader: tree, plans and engines against a flat model.
daemon_world := $(O)/tests/daemon/world.o
$(eval $(call cmocka_test,tests/daemon/test_tree,$(daemon_world) $(O)/tests/daemon/model.o $(O)/tests/daemon/oracle.o))
$(eval $(call cmocka_test,tests/daemon/test_radix,$(daemon_world)))
TEST_PROGRAMS += $(O)/tests/daemon/test_tree
CHECK_LONG_TESTS += tests/daemon/test_tree_long.sh
$(eval $(call cmocka_test,tests/daemon/test_team,$(daemon_world)))
$(eval $(call cmocka_test,tests/daemon/test_exec,$(daemon_world)))
$(eval $(call cmocka_test,tests/daemon/test_lifetime,$(daemon_world)))
$(eval $(call cmocka_test,tests/daemon/test_bounds,$(daemon_world)))
$(eval $(call cmocka_test,tests/daemon/test_events,$(daemon_world) $(O)/tests/daemon/model.o $(O)/tests/daemon/oracle.o))
