#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# In: a build. Out: TAP of the hostile clients' test against a daemon without io_uring, as in a
# container whose seccomp profile forbids it. Next: prove.
exec env ATTND_EVENT_LOOP=epoll "$BUILD/tests/integration/test_hostile"
