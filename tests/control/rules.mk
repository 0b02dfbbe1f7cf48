# SPDX-License-Identifier: Apache-2.0
#
# The control thread: each part alone; all of it in one process, with a leader that the test pumps;
# and as a daemon of its own (the program stub_leader) whose leader runs no attention.
$(foreach t,test_config test_loop test_mailbox,$(eval $(call cmocka_test,tests/control/$(t))))
$(eval $(call cmocka_test,tests/control/test_control,$(addprefix $(O)/tests/control/,stub_leader.o peer.o)))
$(eval $(call cmocka_test,tests/control/test_daemon,$(O)/tests/control/peer.o))
$(eval $(call test_program,tests/control/stub_leader,$(O)/daemon/main.o))
TEST_PROGRAMS += $(O)/tests/control/stub_leader
