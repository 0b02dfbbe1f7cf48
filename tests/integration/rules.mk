# SPDX-License-Identifier: Apache-2.0
integration := $(addprefix $(O)/tests/integration/,raw.o harness.o toy.o)
$(foreach t,test_handshake test_wire test_jobs test_share test_peek test_data test_twin test_chats test_tenants test_admin test_watch test_kv_events test_hostile test_life test_soak,\
  $(eval $(call cmocka_test,tests/integration/$(t),$(integration))))
$(eval $(call cmocka_test,tests/integration/test_processes,$(integration) $(O)/tests/restart/kept.o))
CHECK_TESTS += tests/integration/docs.sh tests/integration/install.sh tests/integration/epoll.sh tests/integration/probes.sh
CHECK_LONG_TESTS += $(addprefix $(O)/tests/integration/,test_life test_soak test_processes)

# Ten minutes of all at once, in this build: plain, SAN=address,undefined or SAN=thread.
SOAK_SECONDS ?= 600
.PHONY: soak
soak: all $(O)/tests/integration/test_soak
	$(Q)SOAK_SECONDS=$(SOAK_SECONDS) $(subst timeout -k 10 $(TEST_SECONDS),timeout -k 10 $(shell expr $(SOAK_SECONDS) + 120),$(prove)) $(O)/tests/integration/test_soak
