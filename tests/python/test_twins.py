#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Requests that wait for a twin, as the engines' schedulers ask: never blocked, told when it is there, never for ever.

In: a daemon of its own, another engine that computes a prompt in chunks. Out: TAP. Next: prove.
"""

import json
import os
import signal
import subprocess
import time
import unittest
from unittest import mock

import tap

import numpy as np  # noqa: I001

import attnd
from attnd.integrations import twins
from attnd.integrations.twins import Twins

SHAPE = dict(num_layers=1, num_heads=2, num_kv_heads=1, head_dim=16)


def setUpModule():
    global daemon
    daemon = attnd.private(pool_size="16M", hugepages="off", threads=1, log_level="warn", timeout=30)


def tearDownModule():
    daemon.close()


def held(of):
    """Sequences of each session."""
    words = [tap.BUILD / "attnctl", "--socket", of.socket, "--json", "sessions"]
    until = time.monotonic() + 30
    while (told := subprocess.run(words, capture_output=True)).returncode:
        if time.monotonic() > until:  # until then it may be late on a machine that is busy
            raise AssertionError(told.stderr)
    return {s["name"]: s["sequences"] for s in json.loads(told.stdout)["sessions"]}


class Engine:
    """Another one, and how far it has come with its prompt."""

    def __init__(self, test):
        self.a = attnd.connect(daemon.socket)
        test.addCleanup(self.a.close)
        self.cache = self.a.cache("twins", **SHAPE)
        params = self.cache.params()
        self.layer = attnd.Layer(params, 0, last=True, **{x: self.a.empty((512, h, 16)) for x, h in (("q", 2), ("k", 1), ("v", 1), ("out", 2))})

    def begin(self, tokens):
        self.tokens = tokens
        self.sequence = self.a.sequence(tokens)

    def compute(self, n):
        at = self.sequence.length
        self.layer.run(self.cache.plan([(self.sequence, self.tokens[at : at + n], at)]))


class Waits(unittest.TestCase):
    def setUp(self):
        self.tokens = np.random.default_rng().integers(0, 1 << 40, 400)
        self.other = Engine(self)
        self.a = attnd.connect(daemon.socket, name="twins")
        self.addCleanup(self.a.close)
        self.cache = self.a.cache("twins", **SHAPE)
        self.twins = Twins(self.a)

    def open(self, name="r", tokens=None):
        tokens = self.tokens if tokens is None else tokens
        return self.twins.open(name, tokens, limit=len(tokens) - 1)

    def patiently(self, name="r", seconds=20):
        until = time.monotonic() + seconds
        while (s := self.open(name)) is None:
            self.assertLess(time.monotonic(), until)
            time.sleep(0.001)
        return s

    def nothing_left(self, sequences=0):
        """No job is unreported, no sequence of this session open but those that its requests have."""
        until = time.monotonic() + 10
        while self.twins._flying:
            self.twins.look()
            self.assertLess(time.monotonic(), until)
        self.assertEqual((len(self.twins), self.twins._waiting), (0, {}))
        self.assertEqual(held(daemon)["twins"], sequences)

    def test_until_it_is_there(self):
        self.other.begin(self.tokens)
        self.assertIsNone(self.open())
        for _ in range(3):
            self.other.compute(100)
            self.a.ping()
            self.assertIsNone(self.open())
        self.other.compute(100)
        s = self.patiently()
        self.assertEqual(s.cached, 399)
        self.nothing_left(1)

    def test_only_what_is_the_same(self):
        """A prompt that parts from the twin's waits for their common part."""
        mine = np.concatenate([self.tokens[:160], [1, 2, 3]])
        self.other.begin(self.tokens)
        self.assertIsNone(self.open(tokens=mine))
        self.other.compute(200)
        until = time.monotonic() + 20
        while (s := self.open(tokens=mine)) is None:
            self.assertLess(time.monotonic(), until)
        self.assertEqual(s.cached, 160)

    def test_nobody(self):
        self.assertEqual(self.open().cached, 0)
        # Not worth a wait: so few tokens are the same.
        self.other.begin(np.random.default_rng().integers(0, 1 << 40, 400))
        few = np.concatenate([self.other.tokens[:48], self.tokens[:300]])
        self.assertEqual(self.open("few", few).cached, 0)

    def test_two_that_wait_do_not_wait_for_each_other(self):
        self.other.begin(self.tokens)
        self.assertIsNone(self.open("r1"))
        self.assertIsNone(self.open("r2"))
        self.other.sequence.close()
        first = self.patiently("r1")  # it computes now
        self.assertEqual(first.cached, 0)
        self.assertIsNone(self.open("r2"))
        first.close()
        self.assertEqual(self.patiently("r2").cached, 0)
        self.nothing_left(1)

    def test_death(self):
        self.other.begin(self.tokens)
        self.assertIsNone(self.open())
        self.other.compute(100)
        self.other.a.close()
        self.assertEqual(self.patiently().cached, 100)
        self.nothing_left(1)

    def test_no_progress(self):
        """The request goes on after a while, and does not wait again."""
        self.twins = Twins(self.a, quiet=0.05)
        self.other.begin(self.tokens)
        self.assertIsNone(self.open())
        s = self.patiently()
        self.assertEqual(s.cached, 0)
        s.close()
        self.assertIsNotNone(self.open())

    def test_time_in_all(self):
        """Progress or not."""
        self.twins = Twins(self.a, seconds=0.2, quiet=10)
        self.other.begin(self.tokens)
        self.assertIsNone(self.open())
        self.other.compute(100)
        self.assertEqual(self.patiently().cached, 100)

    def test_dropped(self):
        self.other.begin(self.tokens)
        for name in ("r1", "r2", "r3"):
            self.assertIsNone(self.open(name))
        self.twins.drop("r1")
        self.twins.drop("never heard of")
        self.assertEqual(len(self.twins), 2)
        self.twins.drop_all()
        self.nothing_left()
        self.other.compute(400)
        self.assertEqual(self.open("r2").cached, 399)

    def test_many(self):
        """Beyond some they do not wait; the connection's jobs are not used up."""
        self.other.begin(self.tokens)
        with mock.patch.object(twins, "MOST", 3):
            self.assertEqual([self.open(str(i)) is None for i in range(5)], [True] * 3 + [False] * 2)
        with mock.patch.object(twins, "LOOK", 1e-3):
            for i in range(300):
                name = f"again-{i}"
                self.open(name)
                self.twins.drop(name)
        self.twins.drop_all()
        self.nothing_left(2)

    def test_daemon_gone(self):
        with attnd.private(pool_size="16M", hugepages="off", threads=1, log_level="warn") as away:
            a, b = attnd.connect(away.socket), attnd.connect(away.socket, timeout=0.2)
            self.addCleanup(a.close)
            self.addCleanup(b.close)
            for c in (a, b):
                c.cache("twins", **SHAPE)
            a.sequence(self.tokens)
            self.twins = Twins(b)
            self.assertIsNone(self.open())
        self.twins.look()
        self.twins.look()
        self.assertEqual((self.twins._flying, len(self.twins), self.twins._waiting), (0, 0, {}))
        self.twins.drop_all()
        with self.assertRaises((attnd.ConnectionLost, attnd.NoDaemon)):
            self.open()

    def test_daemon_late(self):
        """It does nothing for longer than the caller waits, then opens what nobody expects any more."""
        with attnd.private(pool_size="16M", hugepages="off", threads=1, log_level="warn") as late:
            a = attnd.connect(late.socket, timeout=1, deadline=1)
            self.addCleanup(a.close)
            a.cache("twins", **SHAPE)
            self.twins = Twins(a)
            tap.freeze(late.daemon_pid)
            with self.assertRaises(attnd.DeadlineExceeded):
                self.open()
            os.kill(late.daemon_pid, signal.SIGCONT)
            a.ping(30)
            self.twins.look()
            self.assertEqual(self.twins._late, [])
            self.assertEqual(held(late), {"python3": 0})

    def test_never(self):
        with mock.patch.dict(os.environ, {twins.VARIABLE: "0"}):
            self.twins = Twins(self.a)
        self.other.begin(self.tokens)
        self.assertEqual(self.open().cached, 0)
        for text in ("soon", "-1", "4000", "nan"):
            with mock.patch.dict(os.environ, {twins.VARIABLE: text}), self.assertRaisesRegex(ValueError, text):
                Twins(self.a)


if __name__ == "__main__":
    tap.main()
