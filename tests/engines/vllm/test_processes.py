# SPDX-License-Identifier: Apache-2.0
"""Engines of several processes: sharing, ranks, `vllm serve`, killed engines, a daemon that is killed."""

import json
import os
import re
import signal
import subprocess
import sys
import time
import unittest
import urllib.request

import kit
import tap
from kit import MANY, MIX, llama, plain
from processes import Runner

class Processes(unittest.TestCase):
    maxDiff = 2000

    def setUp(self):
        self.daemon = kit.Daemon("--pool-size", "256M")
        self.daemon.start()
        self.addCleanup(self.daemon.stop)

    def runner(self, *args, **kw):
        r = Runner(*args, **kw)
        self.addCleanup(r.close)
        return r

    def nothing_left(self):
        until = time.monotonic() + 20
        while True:
            status, caches = self.daemon.ask("status"), self.daemon.ask("caches")["caches"]
            held = [(c["blocks_referenced"], c["blocks_granted"], c["engines"]) for c in caches]
            if status["sessions"] == 0 and all(h == (0, 0, 0) for h in held):
                return
            self.assertLess(time.monotonic(), until, (status, held))
            time.sleep(0.1)

    def test_two_engines(self):
        """The second hits the first's prompt, also while the first is at it; a killed one leaves nothing."""
        want = plain(llama(), MIX)
        a = self.runner(llama())
        self.assertEqual(a.generate(MIX)[0], want)
        b = self.runner(llama())
        got, cached = b.generate(MIX[:1])
        self.assertEqual((got, cached), (want[:1], [152]))
        long = [(i * 91 + 5) % 250 + 3 for i in range(200)]
        a.ask("long", long, 250)
        a.first("long")
        _, cached = b.generate([long + [7, 8, 9]], 4)
        self.assertGreaterEqual(cached[0], 200)
        a.kill()
        self.assertEqual(b.generate(MIX)[0], want)
        b.close()
        self.nothing_left()

    def test_twins(self):
        """A prompt that one engine is computing is waited for in the other, not computed again."""
        long = [(i * 77 + 5) % 250 + 3 for i in range(480)]
        want = plain(llama(), [long])
        a, b = (self.runner(llama(), max_num_batched_tokens=32) for _ in range(2))
        a.ask("long", long)
        while not sum(s.get("sequences", 0) for s in self.daemon.ask("sessions")["sessions"]):
            pass
        self.assertEqual(b.generate([long]), (want, [479]))
        self.assertEqual(a.end("long")["tokens"], want[0])

    def test_ranks(self):
        """Two tensor-parallel ranks, twice: the second engine hits in both."""
        want = plain(llama(), MIX)
        for cached in ([0, 100, 0, 150], [152, 104, 2, 192]):
            a = self.runner(llama(), tensor_parallel_size=2)
            got, found = a.generate(MIX)
            self.assertEqual(got, want)
            if cached[0]:
                self.assertEqual(found, cached)
            a.close()
        self.nothing_left()

    def test_daemon_killed(self):
        """Five times under load."""
        prompts = [MANY[i % 8] + [50 + i] for i in range(24)]
        want = plain(llama(), prompts, 48)
        a = self.runner(llama())
        for round_ in range(5):
            names = [f"{round_}.{i}" for i in range(len(prompts))]
            for name, p in zip(names, prompts, strict=True):
                a.ask(name, p, 48)
            a.wait(lambda e: e["event"] == "first")
            time.sleep(0.05 * round_)
            self.daemon.restart()
            got = {}
            while len(got) < len(names):
                e = a.wait(lambda e: e["event"] == "end")
                got[e["name"]] = e["tokens"]
            self.assertEqual([got[n] for n in names], want)

    def test_ranks_and_daemon_killed(self):
        want = plain(llama(), MANY, 48)
        a = self.runner(llama(), tensor_parallel_size=2)
        for p, name in zip(MANY, "abcdefgh", strict=True):
            a.ask(name, p, 48)
        a.wait(lambda e: e["event"] == "first")
        self.daemon.restart()
        got = {}
        while len(got) < 8:
            e = a.wait(lambda e: e["event"] == "end")
            got[e["name"]] = e["tokens"]
        self.assertEqual([got[n] for n in "abcdefgh"], want)

    def test_serve(self):
        """The command of docs/vllm.md; the metrics show the daemon's hits."""
        command = re.search(r"^    vllm (serve MODEL .*)$", (kit.SRC / "docs/vllm.md").read_text(), re.M).group(1)
        want = plain(llama(), MIX[:1], 8)
        log = open(kit.WORK / "serve.log", "wb")  # noqa: SIM115
        server = subprocess.Popen(
            [sys.executable, "-m", "vllm.entrypoints.cli.main", *command.replace("MODEL", llama()).split(),
             "--skip-tokenizer-init", "--tokens-only", "--enforce-eager", "--dtype", "float32", "--max-model-len", "512",
             "--max-num-seqs", "8", "--port", "8231", "--host", "127.0.0.1"],
            env=os.environ | {"VLLM_ENABLE_V1_MULTIPROCESSING": "1", "VLLM_LOGGING_LEVEL": "INFO"}, stdout=log, stderr=log,
            start_new_session=True,
        )  # fmt: skip
        self.addCleanup(lambda: (os.killpg(server.pid, signal.SIGTERM), server.wait(60)))

        def get(path, data=None):
            request = urllib.request.Request(
                f"http://127.0.0.1:8231{path}", json.dumps(data).encode() if data else None, {"content-type": "application/json"}
            )
            return urllib.request.urlopen(request, timeout=60).read().decode()

        until = time.monotonic() + 300
        while True:
            try:
                get("/health")
                break
            except OSError:
                self.assertIsNone(server.poll(), (kit.WORK / "serve.log").read_text()[-4000:])
                self.assertLess(time.monotonic(), until)
                time.sleep(0.3)
        sampling = {"temperature": 0, "max_tokens": 8, "ignore_eos": True, "detokenize": False}
        for _ in range(2):
            answer = json.loads(get("/inference/v1/generate", {"token_ids": MIX[0], "sampling_params": sampling}))
            self.assertEqual(answer["choices"][0]["token_ids"], want[0])
        metrics = get("/metrics")
        hits = [x for x in metrics.splitlines() if x.startswith("vllm:external_prefix_cache_hits_total")]
        self.assertEqual(float(hits[0].split()[-1]), 152)
        self.assertIn("tokens for this engine", (kit.WORK / "serve.log").read_text())


if __name__ == "__main__":
    tap.main()
