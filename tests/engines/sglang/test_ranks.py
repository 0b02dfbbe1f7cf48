#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Two tensor-parallel ranks, each with a cache of its heads: the same hits in both, the same tokens as one.

In: engines of one and of two ranks. Out: TAP. Next: prove.
"""

import unittest

import kit
from kit import tap

BIND = {"SGLANG_CPU_OMP_THREADS_BIND": "0|1"}


class Ranks(unittest.TestCase):
    def test_two(self):
        prompts, lengths = kit.cases()
        with kit.Engine(attention_backend="torch_native") as e:
            want = kit.tokens(e.batch(prompts, lengths))
        options = {"tp_size": 2, "chunked_prefill_size": 16, "schedule_policy": "lpm", "env": {**kit.STRICT, **BIND}}
        with kit.Daemon() as daemon:
            with kit.Engine(daemon, **{**options, "env": {**options["env"], **kit.RETRACT}}) as a:
                self.assertEqual(kit.tokens(a.batch(prompts, lengths)), want)
                caches = daemon.ctl("caches")["caches"]
                self.assertEqual([(c["num_heads"], c["num_kv_heads"]) for c in caches], [(2, 1), (2, 1)])
                self.assertEqual(len({c["fingerprint"] for c in caches}), 2)
            # Another engine of two ranks finds all of it.
            with kit.Engine(daemon, **options) as b:
                found = b.batch(prompts, lengths)
                self.assertEqual(kit.tokens(found), want)
                self.assertEqual([r["cached"] for r in found], [len(p) - 1 for p in prompts])
            self.assertEqual(daemon.held()[1:], (0, 0))


if __name__ == "__main__":
    tap.main()
