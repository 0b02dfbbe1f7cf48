#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The commands of docs/sglang.md and docs/routing.md, run: servers, a request, metrics, the router.

In: the pages' indented lines that begin with a program. Out: TAP. Next: prove.
"""

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import unittest
import urllib.request
from pathlib import Path

import kit
from kit import tap

PAGES = ("docs/sglang.md", "docs/routing.md")
# The tiny model has no tokenizer; the machine may be small.
MORE = "--skip-tokenizer-init --max-running-requests 8 --skip-server-warmup --sleep-on-idle --mem-fraction-static 0.3 --enable-metrics"


def commands(page):
    text = (tap.SRC / page).read_text()
    return re.findall(r"^    ((?:python|pip|curl|attnctl) .*)$", text, re.M)


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class Docs(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.daemon = kit.Daemon()
        cls.addClassCleanup(cls.daemon.close)
        cls.ports = [free_port(), free_port()]
        bin = Path(tempfile.mkdtemp())
        cls.addClassCleanup(shutil.rmtree, bin)
        (bin / "python").write_text(f"#!/bin/sh\nexec {sys.executable} \"$@\"\n")
        (bin / "python").chmod(0o755)
        (bin / "attnctl").write_text(f'#!/bin/sh\nexec "{tap.BUILD}/attnctl" --socket "{cls.daemon.socket}" "$@"\n')
        (bin / "attnctl").chmod(0o755)
        cls.env = kit.environment(ATTND_SOCKET=str(cls.daemon.socket), PATH=f"{bin}:{os.environ['PATH']}")
        found = [c for page in PAGES for c in commands(page)]
        cls.found = {c.split()[0] + " " + c.split()[1]: c for c in found}
        cls.count = len(found)
        server = cls.found["python -m"].replace("MODEL", str(kit.MODEL))
        cls.logs = [open(bin / f"server-{p}", "w+") for p in cls.ports]
        cls.servers = [
            subprocess.Popen(f"exec {server.replace('30000', str(p))} {MORE}", shell=True, env=cls.env, cwd=tap.SRC, stdout=log, stderr=log, start_new_session=True)
            for p, log in zip(cls.ports, cls.logs, strict=True)
        ]  # fmt: skip
        for started in zip(cls.servers, cls.logs, strict=True):
            cls.addClassCleanup(cls.end, *started)
        until = time.monotonic() + 2 * kit.PATIENCE
        for p in cls.ports:
            while cls.get(p, "/health") is None:
                if time.monotonic() > until or any(s.poll() is not None for s in cls.servers):
                    raise RuntimeError("".join(Path(log.name).read_text()[-3000:] for log in cls.logs))
                time.sleep(0.5)

    @classmethod
    def end(cls, server, log):
        os.killpg(server.pid, signal.SIGKILL)
        server.wait()
        log.close()

    @classmethod
    def get(cls, port, path):
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=20) as r:
                return r.read().decode()
        except OSError:
            return None

    def run_it(self, which):
        command = self.found[which].replace("MODEL", str(kit.MODEL))
        for said, port in zip(("30000", "30001"), self.ports, strict=True):
            command = command.replace(said, str(port))
        r = subprocess.run(command, shell=True, env=self.env, cwd=tap.SRC, capture_output=True, text=True)
        self.assertEqual(r.returncode, 0, r.stderr + r.stdout)
        return r.stdout

    def test_all_are_here(self):
        self.assertEqual(
            set(self.found),
            {"pip install", "python -m", "curl -s", "attnctl sessions", "python client/python/examples/route.py"},
        )
        self.assertEqual(len(self.found), self.count)

    def test_install(self):
        """As the page says, but beside the environment and from a copy."""
        with tempfile.TemporaryDirectory() as d:
            shutil.copytree(tap.SRC / "client/python", f"{d}/client/python")
            subprocess.run(
                f"{sys.executable} -m {self.found['pip install']} -q --no-deps --no-build-isolation --target {d}/to",
                shell=True,
                cwd=d,
                check=True,
            )
            self.assertTrue(list(Path(d).glob("to/attnd-*.dist-info/entry_points.txt")))

    def test_request(self):
        answer = json.loads(self.run_it("curl -s"))
        self.assertEqual(len(answer["output_ids"]), 8)
        self.assertIn("sglang", self.run_it("attnctl sessions"))

    def test_router_and_metrics(self):
        out = self.run_it("python client/python/examples/route.py")
        lines = re.findall(
            r"^(in turn|by work): first token after (\d+) ms, of nine in ten within (\d+) ms$", out, re.M
        )
        self.assertEqual([name for name, _, _ in lines], ["in turn", "by work"])
        print("#", out.replace("\n", "; "))
        metrics = self.get(self.ports[0], "/metrics")
        hits = sum(float(x) for x in re.findall(r"^sglang:cached_tokens_total\{.*\} (\S+)$", metrics, re.M))
        self.assertGreater(hits, 600)


if __name__ == "__main__":
    tap.main()
