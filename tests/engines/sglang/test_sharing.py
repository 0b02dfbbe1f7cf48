#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Two engines on one daemon: what one computes is the other's hit, to the token, while the first still runs.

In: two SGLang processes. Out: TAP. Next: prove.
"""

import random
import unittest

import kit
from kit import tap


class Sharing(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.daemon = kit.Daemon()
        options = {"max_total_tokens": 4000, "chunked_prefill_size": 64, "schedule_policy": "lpm"}
        cls.a = kit.Engine(cls.daemon, env=kit.STRICT, **options)
        cls.b = kit.Engine(cls.daemon, env=kit.STRICT, **options)
        cls.a.up()
        cls.b.up()
        cls.rnd = random.Random(7)

    @classmethod
    def tearDownClass(cls):
        cls.a.close()
        cls.b.close()
        cls.daemon.close()

    def prompt(self, n):
        return [self.rnd.randrange(250) for _ in range(n)]

    def test_1_while_it_runs(self):
        prompt = self.prompt(153)
        long = self.a.generate(prompt, 700)
        self.assertEqual(self.a.first(long), 0)
        for n in (152, 131, 64, 17, 1):
            other = prompt[:n] + [250, 251]
            self.assertEqual(self.b.wait(self.b.generate(other, 4))["cached"], n)
        same = self.b.wait(self.b.generate(prompt, 10))
        self.assertEqual(same["cached"], len(prompt) - 1)
        first = self.a.wait(long)
        self.assertLess(same["end"], first["end"], "the first was to run on")
        self.assertEqual(same["tokens"], first["tokens"][:10])
        # What it generated is there, too; its last token was never computed.
        then = prompt + first["tokens"] + [3]
        self.assertEqual(self.b.wait(self.b.generate(then, 2))["cached"], len(then) - 2)

    def test_1_twins(self):
        """A prompt that one engine is computing is waited for, in the other and in itself, not computed again."""
        prompt = self.prompt(897)  # announced in steps of 16
        first = self.a.generate(prompt, 5)
        while not self.daemon.ctl("status")["counters"]["sequences"]:
            pass
        others = [e.generate(prompt, 5) for e in (self.b, self.b, self.a)]
        short = self.b.generate(self.prompt(20), 1)
        want = self.a.wait(first)["tokens"]
        for e, t in zip((self.b, self.b, self.a), others, strict=True):
            r = e.wait(t)
            self.assertEqual((r["cached"], r["tokens"]), (896, want))
        self.assertEqual(self.b.wait(short)["finish"], "length")
        self.assertEqual(self.daemon.held()[1:], (0, 0))

    def test_2_salts(self):
        prompt = self.prompt(80)
        self.a.wait(self.a.generate(prompt, 2))
        salted = {"extra": {"cache_salt": "s1"}}
        self.assertEqual(self.b.wait(self.b.generate(prompt, 2, **salted))["cached"], 0)
        self.assertEqual(self.a.wait(self.a.generate(prompt, 2, **salted))["cached"], 79)
        self.assertEqual(self.a.wait(self.a.generate(prompt, 2, extra={"cache_salt": "s2"}))["cached"], 0)
        self.assertEqual(self.b.wait(self.b.generate(prompt, 2))["cached"], 79)

    def test_3_longest_prefix_first(self):
        """While one long prompt is computed, of two that wait the one that the other engine has computed goes first."""
        hit, miss, long = self.prompt(300), self.prompt(300), self.prompt(700)
        self.b.wait(self.b.generate(hit, 1))
        busy = [self.a.generate(self.prompt(100), 100) for _ in range(8)]  # as many as run at once
        for t in busy:
            self.a.first(t)
        last = self.a.generate(miss, 60)
        first = self.a.generate(hit + [1], 60)
        self.assertEqual(self.a.first(first), 300)
        first, last = self.a.wait(first), self.a.wait(last)
        self.assertLess(
            first["end"] - first["total_s"] + first["first_s"], last["end"] - last["total_s"] + last["first_s"]
        )
        for t in busy:
            self.a.wait(t)
        self.assertEqual(len(long), 700)

    def test_4_one_pool(self):
        """The same prompts in both take the memory of one."""
        prompts = [self.prompt(400) for _ in range(4)]
        used = [self.used()]
        for e in (self.a, self.b):
            e.batch(prompts, [1] * 4)
            used.append(self.used())
        self.assertGreater(used[1] - used[0], 0)
        self.assertLessEqual(used[2] - used[0], 1.1 * (used[1] - used[0]))

    def used(self):
        pool = self.daemon.ctl("status")["pool"]
        return pool["bytes_cached"] + pool["bytes_referenced"]

    def test_5_aborted(self):
        """Requests that are given up, running, half computed or waiting, leave nothing held."""
        tickets = [self.a.generate(self.prompt(300), 300, rid=f"gone-{i}") for i in range(16)]
        self.a.first(tickets[0])
        for i in range(16):
            self.a.command("abort", rid=f"gone-{i}")
        for t in tickets:
            self.assertEqual(self.a.wait(t)["finish"], "abort")
        self.assertEqual(len(self.a.wait(self.a.generate([1, 2, 3], 5))["tokens"]), 5)
        self.assertEqual(self.daemon.held()[1:], (0, 0))

    def test_5_beams(self):
        r = self.a.wait(self.a.generate([1, 2, 3], 5, sampling={"beam_width": 2}))
        self.assertEqual(r["finish"], "abort")

    def test_6_epochs(self):
        prompt = self.prompt(90)
        want = self.a.wait(self.a.generate(prompt, 5))["tokens"]
        self.assertTrue(self.a.do("flush"))
        self.assertEqual(self.a.wait(self.a.generate(prompt, 5))["cached"], 0)
        self.assertEqual(self.a.wait(self.a.generate(prompt, 5))["cached"], 89)
        self.assertEqual(self.b.wait(self.b.generate(prompt, 5))["cached"], 89)
        self.assertTrue(self.a.do("update_weights", path=str(kit.MODEL)))
        again = self.a.wait(self.a.generate(prompt, 5))
        self.assertEqual((again["cached"], again["tokens"]), (0, want))
        # What it computes with those weights is not for others.
        other = self.prompt(50)
        self.a.wait(self.a.generate(other, 1))
        self.assertEqual(self.b.wait(self.b.generate(other, 1))["cached"], 0)

    def test_7_killed(self):
        """A killed engine leaves what it published, and holds nothing."""
        prompt = self.prompt(200)
        self.a.first(self.a.generate(prompt, 500))
        self.a.kill()
        self.assertEqual(self.b.wait(self.b.generate(self.prompt(30), 5))["finish"], "length")
        self.assertEqual(self.daemon.held(), (1, 0, 0))


if __name__ == "__main__":
    tap.main()
