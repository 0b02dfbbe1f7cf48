#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# test_tree with ten times the steps.
ATTND_TREE_STEPS=1000000 exec "$BUILD/tests/daemon/test_tree"
