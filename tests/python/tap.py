# SPDX-License-Identifier: Apache-2.0
"""What the Python tests share: unittest's cases as TAP, a private daemon, skips that say why.

In: BUILD and SRC (the tree's unless set). Out: TAP. Next: prove.
"""

import importlib.util
import os
import signal
import subprocess
import sys
import traceback
import unittest
from pathlib import Path

SRC = Path(os.environ.get("SRC") or Path(__file__).resolve().parents[2])
BUILD = Path(os.environ.get("BUILD") or SRC / "build")
sys.path.insert(0, str(SRC / "client/python"))
os.environ.setdefault("ATTND_LIBRARY", str(BUILD / "libattnd.so.0"))
os.environ.setdefault("ATTND_DAEMON", str(BUILD / "attnd"))
os.environ["PYTHONPATH"] = str(SRC / "client/python")  # of programs that tests start


def skip_all(why):
    print(f"1..0 # SKIP {why}")
    sys.exit(0)


def freeze(pid):
    """Stop a process; all its threads stand when this returns. SIGCONT lets it go on."""
    os.kill(pid, signal.SIGSTOP)
    stats = list(Path(f"/proc/{pid}/task").glob("*/stat"))
    while not all(p.read_text().rsplit(")", 1)[1].split()[0] == "T" for p in stats):
        os.sched_yield()


def has(module):
    return importlib.util.find_spec(module) is not None


def needs(*modules):
    """Skip the file where one of these cannot be imported."""
    for m in modules:
        if not has(m):
            skip_all(f"{m} cannot be imported (make check-python makes a place where it can)")


def _with_sanitizer():
    """A library with a sanitizer wants the sanitizer's own loaded first."""
    if os.environ.get("LD_PRELOAD"):
        return
    linked = subprocess.run(["ldd", os.environ["ATTND_LIBRARY"]], capture_output=True, text=True).stdout
    found = [w for line in linked.splitlines() for w in line.split() if w.startswith("/")]
    if any("libtsan" in w for w in found):
        skip_all("ThreadSanitizer does not know the interpreter's threads")
    first = [w for w in found if "libasan" in w]
    if first:
        options = os.environ.get("ASAN_OPTIONS", "") + ":detect_leaks=0"  # the interpreter's own
        os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, "LD_PRELOAD": first[0], "ASAN_OPTIONS": options})


if not Path(os.environ["ATTND_LIBRARY"]).exists():
    skip_all(f"no {os.environ['ATTND_LIBRARY']}")
_with_sanitizer()
needs("numpy")


class _Result(unittest.TestResult):
    def __init__(self):
        super().__init__()
        self.n = 0

    def _line(self, test, ok, more=""):
        self.n += 1
        print(f"{ok} {self.n} - {str(test).split()[0]}{more}", flush=True)

    def addSuccess(self, test):
        self._line(test, "ok")

    def addSkip(self, test, reason):
        self._line(test, "ok", f" # SKIP {reason}")

    def _bad(self, test, err):
        self._line(test, "not ok")
        for line in "".join(traceback.format_exception(*err)).splitlines():
            print("#", line)

    def addError(self, test, err):
        super().addError(test, err)
        self._bad(test, err)

    def addFailure(self, test, err):
        super().addFailure(test, err)
        self._bad(test, err)

    def addSubTest(self, test, subtest, err):
        super().addSubTest(test, subtest, err)
        if err is not None:
            self._bad(subtest, err)


def main():
    """Run the calling file's cases, or those named on the command line."""
    loader = unittest.defaultTestLoader
    module = sys.modules["__main__"]
    suite = loader.loadTestsFromNames(sys.argv[1:], module) if sys.argv[1:] else loader.loadTestsFromModule(module)
    result = _Result()
    suite.run(result)
    print(f"1..{result.n}")
    sys.exit(not result.wasSuccessful())
