# SPDX-License-Identifier: Apache-2.0
#
# What goes wrong: clients that take all they can get, and a machine that refuses what is asked of it.
$(foreach t,test_limits test_roles test_machine,$(eval $(call cmocka_test,tests/faults/$(t),$(integration))))

# attnd with everything passing through fail.c. A sanitizer's own wrappers stand behind it.
fail_wraps := malloc calloc realloc aligned_alloc posix_memalign strdup strndup fopen mmap madvise fallocate ftruncate \
  memfd_create socket socketpair bind listen accept4 getsockopt recvmsg sendmsg send recv eventfd epoll_create1 \
  epoll_ctl signalfd pidfd_open chmod fstat getrandom pthread_create io_uring_queue_init_params open fcntl
$(O)/tests/faults/attnd-faults: $(O)/daemon/main.o $(O)/tests/faults/fail.o $(O)/libdaemon.a $(O)/flags
	$(call say,LD,$@)
	$(link) $(fail_wraps:%=-Wl$(comma)--wrap=%) $(DAEMON_LIBS)
TEST_PROGRAMS += $(O)/tests/faults/attnd-faults
$(eval $(call cmocka_test,tests/faults/test_inject,$(integration)))
CHECK_LONG_TESTS += $(O)/tests/faults/test_inject
CHECK_TESTS += tests/faults/clock.sh
