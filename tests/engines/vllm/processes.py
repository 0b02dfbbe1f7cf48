# SPDX-License-Identifier: Apache-2.0
"""Engines in processes of their own: runner.py, commanded. In: arguments. Out: events. Next: tests, bench."""

import json
import os
import queue
import random
import signal
import subprocess
import sys
import threading
from pathlib import Path

import kit

EVENT = "\x1e"
HERE = Path(__file__).parent


class Runner:
    """runner.py and its events."""

    def __init__(self, model, ready=True, **arguments):
        self.process = subprocess.Popen(
            [sys.executable, HERE / "runner.py", json.dumps({"model": model, **arguments})],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=open(kit.WORK / "runner.log", "ab"), text=True,
            start_new_session=True,
        )  # fmt: skip
        self.events = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()
        if ready:
            self.wait_ready()

    def _read(self):
        for line in self.process.stdout:
            if EVENT in line:
                self.events.put(json.loads(line.split(EVENT, 1)[1]))
        self.events.put(None)

    def wait_ready(self):
        self.wait(lambda e: e["event"] == "ready", 300)

    def wait(self, wanted, seconds=120):
        while True:
            e = self.events.get(timeout=seconds)
            assert e is not None, (kit.WORK / "runner.log").read_text()[-4000:]
            if wanted(e):
                return e

    def ask(self, name, prompt, n=16):
        self.process.stdin.write(json.dumps({"name": name, "prompt": prompt, "n": n}) + "\n")
        self.process.stdin.flush()

    def end(self, name, seconds=120):
        return self.wait(lambda e: e["event"] == "end" and e.get("name") == name, seconds)

    def first(self, name):
        return self.wait(lambda e: e.get("name") == name)

    def generate(self, prompts, n=16, seconds=120):
        names = [str(random.random()) for _ in prompts]
        for name, p in zip(names, prompts, strict=True):
            self.ask(name, p, n)
        ends = {}
        while len(ends) < len(names):
            e = self.wait(lambda e: e["event"] == "end", seconds)
            ends[e["name"]] = e
        return [ends[x]["tokens"] for x in names], [ends[x]["cached"] for x in names]

    def bench(self, prompts, steps):
        """Seconds of each decode step of all prompts at once."""
        self.process.stdin.write(json.dumps({"bench": prompts, "steps": steps}) + "\n")
        self.process.stdin.flush()
        return self.wait(lambda e: e["event"] == "bench", 300)["seconds"]

    def close(self):
        if self.process.poll() is None:
            self.process.stdin.close()
            try:
                self.process.wait(60)
            except subprocess.TimeoutExpired:
                self.kill()

    def kill(self):
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
