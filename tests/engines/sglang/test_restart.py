#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The daemon ends under load, by SIGKILL and by SIGTERM, and comes back: requests finish with the same tokens.

In: one engine, then one of two ranks. Out: TAP. Next: prove.
"""

import random
import signal
import time
import unittest

import kit
from kit import tap

PROMPTS, LENGTHS = kit.cases(seed=5, n=12, longest=120)


class Restart(unittest.TestCase):
    def five(self, longer=0, **options):
        lengths = [longer + n for n in LENGTHS]
        rnd = random.Random(9)
        with (
            kit.Daemon() as daemon,
            kit.Engine(daemon, chunked_prefill_size=32, max_total_tokens=2400, **options) as e,
        ):
            begun = time.monotonic()
            want = kit.tokens(e.batch(PROMPTS, lengths))
            took = time.monotonic() - begun
            for i in range(5):
                self.assertTrue(e.do("flush"))
                tickets = [e.generate(p, n) for p, n in zip(PROMPTS, lengths, strict=True)]
                e.first(tickets[0])
                time.sleep(rnd.random() * 0.5 * took)
                self.assertIsNone(daemon.process.poll())
                daemon.stop(signal.SIGKILL if i % 2 == 0 else signal.SIGTERM)
                time.sleep(rnd.random() * 0.5)
                daemon.start()
                self.assertEqual(kit.tokens([e.wait(t) for t in tickets]), want)
            self.assertGreater(e.text().count("a step is repeated"), 2)
            self.assertEqual(daemon.held()[1:], (0, 0))
            # And serves as before.
            e.do("flush")
            self.assertEqual(kit.tokens(e.batch(PROMPTS, lengths)), want)

    def test_one(self):
        self.five(120, env=kit.STRICT)

    def test_two_ranks(self):
        self.five(env={**kit.STRICT, "SGLANG_CPU_OMP_THREADS_BIND": "0|1"}, tp_size=2)


if __name__ == "__main__":
    tap.main()
