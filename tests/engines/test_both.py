#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""One SGLang and one vLLM of the same weights: a prompt that one has read is a hit in the other, at any token.

In: an engine of each make on one daemon. Out: TAP. Next: prove.
"""

import json
import os
import queue
import random
import subprocess
import sys
import threading
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent / "sglang"))
import kit  # noqa: E402
from kit import tap  # noqa: E402

VLLM = Path(os.environ["ENGINES"]) / "vllm"
PLUGIN = tap.BUILD / "engines/vllm"


class Vllm:
    """tests/engines/vllm/runner.py, commanded."""

    def __init__(self, daemon):
        env = {**os.environ, "PYTHONPATH": str(PLUGIN), "KIT_WORK": str(daemon.dir)}  # its socket is in there
        self.log = open(daemon.dir / "vllm.log", "w+")
        self.process = subprocess.Popen(
            [VLLM / "bin/python", tap.SRC / "tests/engines/vllm/runner.py", json.dumps({"model": str(kit.MODEL), "dtype": "float32", "max_model_len": 1000})],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.log, text=True, env=env, start_new_session=True,
        )  # fmt: skip
        self.events = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self):
        for line in self.process.stdout:
            if kit.EVENT in line:
                self.events.put(json.loads(line.split(kit.EVENT, 1)[1]))
        self.events.put(None)

    def event(self, kind, name=None):
        while True:
            e = self.events.get(timeout=2 * kit.PATIENCE)
            if e is None:
                raise RuntimeError(Path(self.log.name).read_text()[-6000:])
            if e["event"] == kind and e.get("name") == name:
                return e

    def ask(self, name, prompt, n):
        self.process.stdin.write(json.dumps({"name": name, "prompt": prompt, "n": n}) + "\n")
        self.process.stdin.flush()

    def generate(self, name, prompt, n):
        self.ask(name, prompt, n)
        return self.event("end", name)

    close = kit.Engine.kill


class Both(unittest.TestCase):
    def test_both(self):
        rnd = random.Random(13)
        prompt, other = ([rnd.randrange(250) for _ in range(n)] for n in (200, 170))
        with kit.Daemon() as daemon:
            vllm = Vllm(daemon)
            sglang = kit.Engine(daemon, max_total_tokens=3000, env=kit.STRICT)
            try:
                sglang.up()
                vllm.event("ready")
                self.assertEqual(len(daemon.ctl("caches")["caches"]), 1, daemon.ctl("caches"))
                # SGLang reads, vLLM hits while SGLang still runs, and the other way round.
                long = sglang.generate(prompt, 600)
                sglang.first(long)
                hit = vllm.generate("hit", prompt[:151] + [251, 252], 4)
                self.assertEqual(hit["cached"], 151)
                same = vllm.generate("same", prompt, 12)
                self.assertEqual(same["cached"], len(prompt) - 1)
                self.assertEqual(same["tokens"], sglang.wait(long)["tokens"][:12])
                vllm.ask("long", other, 600)
                vllm.event("first", "long")
                back = sglang.wait(sglang.generate(other[:99] + [251], 4))
                self.assertEqual(back["cached"], 99)
                self.assertEqual(
                    sglang.wait(sglang.generate(other, 12))["tokens"], vllm.event("end", "long")["tokens"][:12]
                )
            finally:
                vllm.close()
                vllm.log.close()
                sglang.close()


if __name__ == "__main__":
    tap.main()
