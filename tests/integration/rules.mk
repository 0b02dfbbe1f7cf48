# SPDX-License-Identifier: Apache-2.0
integration := $(addprefix $(O)/tests/integration/,raw.o harness.o toy.o)
$(foreach t,test_handshake test_wire test_jobs test_share test_peek test_data test_admin test_watch test_kv_events test_hostile test_life test_soak,\
  $(eval $(call cmocka_test,tests/integration/$(t),$(integration))))
CHECK_TESTS += tests/integration/docs.sh tests/integration/install.sh tests/integration/epoll.sh
CHECK_LONG_TESTS += $(addprefix $(O)/tests/integration/,test_life test_soak)
