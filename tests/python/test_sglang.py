#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""SGLang's session without SGLang: hits, rows, namespaces, epochs, a daemon that goes, ranks that agree.

In: a daemon of its own, a model of two layers whose q, k, v follow from token and position.
Out: TAP. Next: prove.
"""

import logging
import os
import subprocess
import tempfile
import threading
import time
import unittest

import tap

import numpy as np  # noqa: I001
from reference import attend

import attnd
from attnd.integrations.sglang.session import Fields, Session, Step, alone, salt_bytes

LAYERS, HEADS, KV_HEADS, DIM = 2, 4, 2, 16
NONE = Fields()
logging.disable(logging.WARNING)


def values(what, layer, token, position, heads):
    return np.random.default_rng([what, layer, token, position]).standard_normal((heads, DIM), np.float32)


class Model:
    """What backend.py does, with NumPy in the place of torch."""

    def __init__(self, socket, agree=alone, shard=0):
        self.connection = attnd.connect(socket, timeout=10)
        fingerprint = bytes([shard] * 16)
        shape = dict(num_layers=LAYERS, num_heads=HEADS, num_kv_heads=KV_HEADS, head_dim=DIM)
        self.cache = self.connection.cache("toy", fingerprint=fingerprint, **shape)
        self.session = Session(self.connection, self.cache, agree)
        params = self.cache.params(sm_scale=0.25)
        self.staging = attnd.Staging(params, 256)
        self.layers = [attnd.CopiedLayer(params, i, self.staging, last=i == LAYERS - 1) for i in range(LAYERS)]
        self.known = {}  # row: tokens
        self.computed = 0

    def admit(self, row, prompt, fields=NONE):
        n = self.session.match(row, fields, np.array(prompt, np.uint64), len(prompt) - 1)
        self.known[row] = list(prompt[:n])
        return n

    def make(self, rows, starts, counts):
        held = [self.session.bind((r, 0), r) for r in rows]
        tokens = [t for r, s, n in zip(rows, starts, counts) for t in self.known[r][s : s + n]]
        return Step(held, starts, counts, np.array(tokens, np.uint64))

    def run(self, step, rows):
        self.session.begin(step)
        outs = []
        at = [(r, s + i) for r, s, n in zip(rows, step.starts, step.counts) for i in range(n)]
        self.computed += len(at)
        for i, layer in enumerate(self.layers):
            q, k, v = (
                np.stack([values(w, i, self.known[r][p], p, h) for r, p in at])
                for w, h in ((0, HEADS), (1, KV_HEADS), (2, KV_HEADS))
            )
            out = np.zeros_like(q)
            self.session.run(step, layer.run, q, k, v, out)
            outs.append(out)
        self.session.end(step)
        return outs

    def forward(self, rows, new, before=None):
        """New tokens of rows; `before` is called once, after the first layer's plan."""
        starts = [len(self.known[r]) for r in rows]
        for r, tokens in zip(rows, new):
            self.known[r] += tokens
        while True:
            step = self.make(rows, starts, [len(t) for t in new])
            self.session.forget_all()
            if before:
                before()
                before = None
            if missing := self.session.missing(step):
                short = [rows[i] for i, _ in missing]
                again = self.make(short, [n for _, n in missing], [starts[i] - n for i, n in missing])
                self.run(again, short)
                self.session.settled(again)
                continue
            outs = self.run(step, rows)
            if self.session.settled(step):
                return outs

    def check(self, rows, new, outs):
        at = 0
        for r, tokens in zip(rows, new):
            n, all_of_it = len(tokens), self.known[r]
            for i in range(LAYERS):
                q, k, v = (
                    np.stack([values(w, i, t, p, h) for p, t in enumerate(all_of_it)])
                    for w, h in ((0, HEADS), (1, KV_HEADS), (2, KV_HEADS))
                )
                want, _ = attend(q[-n:], k, v, scale=0.25)
                np.testing.assert_allclose(outs[i][at : at + n], want, atol=1e-4)
            at += n

    def step(self, rows, new, before=None):
        self.check(rows, new, self.forward(rows, new, before))


class Sessions(unittest.TestCase):
    def setUp(self):
        self.dir = tempfile.TemporaryDirectory()
        self.socket = f"{self.dir.name}/s"
        self.start()
        self.addCleanup(self.dir.cleanup)
        self.addCleanup(self.kill)

    def start(self):
        env = {k: v for k, v in os.environ.items() if not k.startswith("ATTND_")}
        command = [os.environ["ATTND_DAEMON"], "--socket", self.socket, "--pool-size", "8M", "--hugepages", "off"]
        self.daemon = subprocess.Popen([*command, "--log-level", "warn"], env=env)
        until = time.monotonic() + 30
        while True:
            try:
                attnd.connect(self.socket).close()
                return
            except (attnd.NoDaemon, attnd.ConnectionLost):
                self.assertLess(time.monotonic(), until)
                time.sleep(0.01)

    def kill(self):
        self.daemon.kill()
        self.daemon.wait()

    def restart(self):
        self.kill()
        self.start()

    def test_rows(self):
        m = Model(self.socket)
        prompt = list(range(100, 150))
        self.assertEqual(m.admit("a", prompt), 0)
        m.step(["a"], [prompt])
        self.assertEqual(m.admit("b", prompt[:33] + [7, 8]), 33)  # while a runs
        m.step(["b", "a"], [[7, 8], [1]])
        m.step(["a", "b"], [[2], [3]])
        self.assertEqual(m.admit("c", prompt), 49)
        m.session.forget("c")
        m.session.release(("a", 0))
        m.session.release(("b", 0))
        self.assertEqual((m.session.rows, m.session.waiting), ({}, {}))
        self.assertEqual(m.admit("d", prompt + [1, 2, 9]), 52)
        self.assertEqual(m.session.peek(NONE, np.array(prompt, np.uint64)), 48)

    def test_namespaces_and_epochs(self):
        m, other = Model(self.socket), Model(self.socket)
        prompt = list(range(40))
        kinds = (NONE, Fields(None, "salt"), Fields("key"), Fields(adapter=b"key"), Fields("key", None, b"key"))
        for row, fields in zip("abcgh", kinds, strict=True):
            self.assertEqual(m.admit(row, prompt, fields), 0)
            m.step([row], [prompt])
            self.assertEqual(other.admit(row, prompt, fields), 39)
        m.session.new_epoch()
        self.assertEqual(m.admit("d", prompt), 0)
        m.step(["d"], [prompt])
        self.assertEqual(m.admit("e", prompt), 39)
        m.step(["a"], [[77]])  # what still runs is published no more
        self.assertEqual(other.admit("f", prompt + [77, 78]), 40)
        self.assertNotEqual(salt_bytes(b"", "x"), salt_bytes(b"x", None))

    def test_private(self):
        """Overridden embeddings: nothing is taken over, nothing found."""
        m = Model(self.socket)
        prompt = list(range(30))
        self.assertEqual(m.admit("a", prompt), 0)
        m.step(["a"], [prompt])
        m.session.match_privately("p")
        m.known["p"] = []
        m.step(["p"], [prompt])
        self.restart()
        with self.assertRaisesRegex(RuntimeError, "overrides embeddings"):
            m.forward(["p"], [[5]])

    def test_restarts(self):
        """Before the plan, between plan and jobs, while nothing runs: the step is right all the same."""
        m = Model(self.socket)
        prompts = {"a": list(range(60)), "b": list(range(30)) + [400, 401]}
        for row, prompt in prompts.items():
            m.step([row], [prompt[m.admit(row, prompt) :]])
        for i in range(3):
            m.step(["a", "b"], [[500 + i], [600 + i]], self.restart)
        self.assertEqual(m.session.recovered, 3)
        begin = m.session.begin

        def begin_and_lose(step):
            begin(step)
            m.session.begin = begin
            self.restart()

        m.session.begin = begin_and_lose
        m.step(["b"], [[9]])
        m.step(["a"], [[8]])
        self.restart()
        self.assertEqual(m.admit("c", prompts["a"]), 0)  # lost, and nothing of it is an error
        m.step(["c", "a"], [prompts["a"], [1]])

    def test_ranks(self):
        """Two ranks with caches of their own: the lesser hit counts, one's loss is both's."""
        barrier, numbers = threading.Barrier(2), [None, None]

        def agreement(rank):
            def least(mine):
                numbers[rank] = list(mine)
                barrier.wait(30)
                found = [min(x) for x in zip(*numbers, strict=True)]
                barrier.wait(30)
                return found

            return least

        models = [Model(self.socket, agreement(rank), shard=1 + rank) for rank in range(2)]
        prompt, failures, hits = list(range(50)), [], [[], []]
        # Rank 1's cache knows more than rank 0's.
        ahead = Model(self.socket, shard=2)
        ahead.admit("x", prompt)
        ahead.step(["x"], [prompt])

        def work(rank):
            try:
                m = models[rank]
                hits[rank].append(m.admit("a", prompt))
                m.step(["a"], [prompt[hits[rank][-1] :]])
                hits[rank].append(m.admit("b", prompt))
                m.step(["b", "a"], [prompt[hits[rank][-1] :], [7]])
                for token in (1, 2, 3):
                    m.step(["a", "b"], [[token], [token]], self.restart if rank == 0 and token == 2 else None)
            except BaseException as e:  # noqa: BLE001
                failures.append(e)
                barrier.abort()

        threads = [threading.Thread(target=work, args=(rank,)) for rank in range(2)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        if failures:
            raise failures[0]
        self.assertEqual(hits, [[0, 49], [0, 49]])
        self.assertEqual([m.session.recovered for m in models], [1, 1])


if __name__ == "__main__":
    tap.main()
