# SPDX-License-Identifier: Apache-2.0
#
# attnd-runner, the example: alone, and on a daemon.

CHECK_TESTS += tests/runner/test_local.sh tests/runner/test_daemon.sh
