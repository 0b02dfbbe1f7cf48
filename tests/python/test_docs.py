#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The examples of the package's README run as they stand."""

import os
import re
import subprocess
import sys
import unittest

import tap


def blocks(path):
    return re.findall(r"^```python\n(.*?)^```$", (tap.SRC / path).read_text(), re.S | re.M)


class Examples(unittest.TestCase):
    def test_readme(self):
        found = blocks("client/python/README.md")
        self.assertTrue(found)
        for text in found:
            subprocess.run([sys.executable, "-c", text], check=True, env=os.environ)


if __name__ == "__main__":
    tap.main()
