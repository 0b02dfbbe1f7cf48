# SPDX-License-Identifier: Apache-2.0
$(foreach t,test_handshake test_wire test_jobs test_share test_peek test_data test_admin test_hostile test_life test_soak,\
  $(eval $(call cmocka_test,tests/integration/$(t),$(integration))))
CHECK_TESTS += tests/integration/install.sh tests/integration/epoll.sh
CHECK_LONG_TESTS += $(addprefix $(O)/tests/integration/,test_life test_soak)
