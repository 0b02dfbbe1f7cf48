# SPDX-License-Identifier: Apache-2.0
$(eval $(call cmocka_test,tests/shm/test_region))
$(eval $(call cmocka_test,tests/shm/test_ring))
$(eval $(call cmocka_test,tests/shm/test_peek))
$(eval $(call cmocka_test,tests/shm/test_index))
