#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The package as others get it: pip installs it from the tree without a compiler, with its types; a
type checker finds nothing; importing it needs neither library nor torch."""

import importlib.metadata
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

import tap


class Package(unittest.TestCase):
    def setUp(self):
        self.dir = Path(self.enterContext(tempfile.TemporaryDirectory()))
        self.tree = self.dir / "python"
        shutil.copytree(tap.SRC / "client/python", self.tree, ignore=shutil.ignore_patterns("__pycache__", ".mypy_cache"))

    def test_pip(self):
        for m in ("pip", "setuptools"):
            if importlib.util.find_spec(m) is None:
                self.skipTest(f"{m} cannot be imported")
        version = importlib.metadata.version("setuptools")
        if int(version.split(".")[0]) < 68:
            self.skipTest(f"setuptools {version} is older than 68")
        pip = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-build-isolation", "--no-index"]
        env = {**os.environ, "CC": "/bin/false"}
        subprocess.run([*pip, "--target", self.dir / "site", self.tree], check=True, env=env, stdout=subprocess.DEVNULL)
        env = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "ATTND_LIBRARY")}
        env.update(PYTHONPATH=str(self.dir / "site"))
        code = "import attnd, attnd.integrations, sys; print(attnd.__file__, 'torch' in sys.modules)"
        said = subprocess.run([sys.executable, "-c", code], env=env, cwd="/", check=True, capture_output=True, text=True)
        self.assertEqual(said.stdout.split(), [str(self.dir / "site/attnd/__init__.py"), "False"])
        self.assertTrue((self.dir / "site/attnd/py.typed").exists())
        # No library anywhere: the error says what to set.
        code = "import attnd\ntry:\n    attnd.connect()\nexcept OSError as e:\n    print(e)"
        said = subprocess.run(
            [sys.executable, "-c", code],
            env={**env, "ATTND_LIBRARY": "/nowhere/libattnd.so.0"},
            check=True,
            capture_output=True,
            text=True,
        )
        self.assertIn("set ATTND_LIBRARY", said.stdout)

    def test_types(self):
        if importlib.util.find_spec("mypy") is None:
            self.skipTest("mypy cannot be imported (make check-python)")
        run = subprocess.run(
            [sys.executable, "-m", "mypy", "--hide-error-context"], cwd=self.tree, capture_output=True, text=True
        )
        self.assertEqual(run.returncode, 0, run.stdout)


if __name__ == "__main__":
    tap.main()
