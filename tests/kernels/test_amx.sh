#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# The AMX kernels' arithmetic on a C model of the tile instructions. In: $BUILD/check-kernels-amx.
# Out: TAP; skipped on CPUs without the vector instructions that these kernels use besides.
# Next: prove.
exec "$BUILD/check-kernels-amx" --isa amx --with amx-bf16 --thin 8
