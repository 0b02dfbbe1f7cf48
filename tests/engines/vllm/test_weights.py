#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Weights that are exchanged while an engine runs: what comes of them is nobody else's hit."""

import unittest

import kit
import tap
from kit import MIX, PRE, engine, llama, plain

FRESH = [(i * 41 + 7) % 253 + 3 for i in range(100)]


class Weights(unittest.TestCase):
    def test_reloaded(self):
        other = llama("llama-9", seed=9)
        want = plain(other, MIX)
        with kit.Daemon("--pool-size", "256M"), engine(llama()) as e:
            cache = e.scheduler.connector.admission.link.caches[0]
            e.generate([PRE])
            self.assertGreater(cache.peek(PRE), 100)
            e.llm.collective_rpc("reload_weights", kwargs={"weights_path": other})
            _, cached = e.generate([FRESH])
            self.assertEqual((cached, cache.peek(FRESH)), ([0], 0))
            self.assertTrue(e.llm.reset_prefix_cache())
            for _ in range(2):  # an epoch of its own, with hits
                got, cached = e.generate(MIX)
                self.assertEqual(got, want)
            self.assertGreater(min(cached), 0)
            self.assertEqual(cache.peek(MIX[3]), cache.peek(PRE))


if __name__ == "__main__":
    tap.main()
