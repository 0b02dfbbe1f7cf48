# SPDX-License-Identifier: Apache-2.0
CHECK_TESTS += tests/model/run.sh
