#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""One engine: greedy tokens with attnd equal those with SGLang's own attention, its books right at every step.

In: SGLang's own `torch_native`, the tiny model's expected continuations. Out: TAP. Next: prove.
"""

import json
import random
import unittest

import kit
from kit import tap


def scenario(engine):
    """Shared beginnings, all of it again, a flush, some of it again."""
    prompts, lengths = kit.cases()
    first = engine.batch(prompts, lengths)
    again = engine.batch(prompts[:6], [6] * 6)
    flushed = engine.do("flush")
    after = engine.batch(prompts[6:9], [6] * 3)
    return kit.tokens(first + again + after), [r["cached"] for r in again], flushed


def mix(engine, n=200, aborting=True):
    """Requests that come and go: prompts over shared beginnings, some aborted on the way."""
    rnd = random.Random(11)
    bases = [[rnd.randrange(250) for _ in range(100)] for _ in range(6)]
    results, tickets = {}, []
    for i in range(n):
        base = rnd.choice(bases)
        prompt = base[: rnd.randrange(5, 100)] + [rnd.randrange(250) for _ in range(rnd.randrange(0, 20))]
        length, abort = rnd.randrange(1, 30), rnd.random() < 0.15
        ticket = engine.generate(prompt, length, rid=f"mix-{i}")
        tickets.append((i, ticket, abort))
        if abort and aborting:
            engine.command("abort", rid=f"mix-{i}")
        if len(tickets) >= 24:
            j, t, _ = tickets.pop(rnd.randrange(len(tickets)))
            results[j] = engine.wait(t)
    for j, t, _ in tickets:
        results[j] = engine.wait(t)
    return {i: r["tokens"] for i, r in results.items() if r["finish"] == "length"}


class Tokens(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.daemon = kit.Daemon()
        with kit.Engine(attention_backend="torch_native", max_total_tokens=4000) as e:
            cls.want = scenario(e)
            cls.mixed = mix(e, aborting=False)

    @classmethod
    def tearDownClass(cls):
        cls.daemon.close()

    def same(self, mixed=0, env=None, **options):
        with kit.Engine(self.daemon, env={**kit.STRICT, **(env or {})}, **options) as e:
            tokens, again, flushed = scenario(e)
            self.assertEqual(tokens, self.want[0])
            self.assertEqual(again, [len(p) - 1 for p in kit.cases()[0][:6]])
            self.assertTrue(flushed)
            if mixed:
                got = mix(e, mixed)
                self.assertGreater(len(got), mixed // 2)
                self.assertEqual({i: t for i, t in got.items() if t != self.mixed[i]}, {})
            self.assertNotIn("a step is repeated", e.text())
            self.none_left()
            return e.text()

    def none_left(self):
        """Every request's sequence is closed."""
        self.assertEqual(self.daemon.held()[1:], (0, 0))

    def test_chunks_with_retraction(self):
        log = self.same(chunked_prefill_size=16, env=kit.RETRACT, mixed=60)
        self.assertIn("retract", log.lower())

    def test_mixed_chunks_longest_prefix_first(self):
        self.same(chunked_prefill_size=16, enable_mixed_chunk=True, schedule_policy="lpm", env=kit.RETRACT, mixed=60)

    def test_no_overlap(self):
        self.same(disable_overlap_schedule=True, mixed=200)

    def test_expected(self):
        """What PyTorch says the model says."""
        lines = [json.loads(x) for x in open(kit.MODEL / "expected.jsonl")]
        prompts = [list(json.loads(x).encode()) for x in open(kit.MODEL / "prompts.jsonl")]
        with kit.Engine(self.daemon, max_total_tokens=6000) as e:
            got = e.batch(prompts, [len(x["tokens"]) for x in lines])
        for r, x in zip(got, lines, strict=True):
            sure = next((i for i, m in enumerate(x["margins"]) if m < 0.002), len(x["tokens"]))
            self.assertEqual(r["tokens"][:sure], x["tokens"][:sure])

    def test_half_precision(self):
        """The model's own type, and bf16: the engine's attention rounds elsewhere, so it is near ties that differ."""
        prompts, lengths = kit.cases(seed=4, n=6)
        for dtype in ("float16", "bfloat16"):
            with self.subTest(dtype):
                with kit.Engine(attention_backend="torch_native", dtype=dtype, max_total_tokens=4000) as e:
                    want = kit.tokens(e.batch(prompts, lengths))
                with kit.Engine(self.daemon, dtype=dtype) as e:
                    got = kit.tokens(e.batch(prompts, lengths))
                equal = sum(a == b for x, y in zip(want, got) for a, b in zip(x, y))
                self.assertGreater(equal, 0.5 * sum(map(len, want)))


if __name__ == "__main__":
    tap.main()
