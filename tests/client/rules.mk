# SPDX-License-Identifier: Apache-2.0
$(foreach t,test_connect test_jobs test_arena test_calls test_restore,\
  $(eval $(call cmocka_test,tests/client/$(t),$(O)/tests/client/fake.o)))
$(eval $(call cmocka_test,tests/client/test_heap))
$(eval $(call cmocka_test,tests/client/test_private))
client_faults := malloc calloc realloc memfd_create ftruncate fallocate madvise epoll_create1 epoll_ctl socket sendmsg mmap
$(eval $(call cmocka_test,tests/client/test_faults,$(O)/tests/client/fake.o,$(client_faults:%=-Wl,--wrap=%)))
