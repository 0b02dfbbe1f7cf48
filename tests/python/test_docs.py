#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The examples of the package's README and of docs/transformers.md run as they stand."""

import os
import re
import subprocess
import sys
import unittest

import tap


def blocks(path):
    return re.findall(r"^```python\n(.*?)^```$", (tap.SRC / path).read_text(), re.S | re.M)


def run(text):
    env = {**os.environ, "OMP_WAIT_POLICY": "passive", "HF_HUB_OFFLINE": "1"}
    return subprocess.run([sys.executable, "-c", text], check=True, env=env, cwd=tap.SRC, capture_output=True, text=True)


class Examples(unittest.TestCase):
    def test_readme(self):
        found = blocks("client/python/README.md")
        self.assertTrue(found)
        for text in found:
            run(text)

    def test_transformers(self):
        for m in ("torch", "transformers"):
            if not tap.has(m):
                self.skipTest(f"{m} cannot be imported (make check-python)")
        found = blocks("docs/transformers.md")
        self.assertEqual(len(found), 3)
        said = run("\n".join(found)).stdout.splitlines()
        self.assertEqual(said[0], said[1])


if __name__ == "__main__":
    tap.main()
