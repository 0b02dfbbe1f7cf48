# SPDX-License-Identifier: Apache-2.0
"""Engines on attnd. Importing one of these modules is what chooses it."""
