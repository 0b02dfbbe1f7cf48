# SPDX-License-Identifier: Apache-2.0
"""200 random requests: shared beginnings, chunks, preemptions, aborts, speculation, salts, resets.

Every token must be one that vLLM's own attention gives, nothing may leak at any step.
"""

import os
import random
import unittest

import kit
import tap
from kit import engine, llama

REQUESTS = 200


class Random(unittest.TestCase):
    def test_mix(self):
        seed = int(os.environ.get("SEED", "20260301"))
        rng = random.Random(seed)
        roots = [[rng.randrange(3, 250) for _ in range(rng.randrange(20, 200))] for _ in range(6)]
        prompts, lengths = [], []
        for _ in range(REQUESTS):
            root = rng.choice(roots)
            tail = [rng.randrange(3, 250) for _ in range(rng.randrange(1, 40))]
            if rng.random() < 0.3:
                tail = (tail * 10)[:40]  # what speculation guesses
            prompts.append(root[: rng.randrange(1, len(root) + 1)] + tail)
            lengths.append(rng.randrange(1, 40))
        with engine(llama(), None) as e:
            want, _ = e.generate(prompts, 40)
        spec = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 3, "prompt_lookup_min": 2}
        aborted = set()
        with kit.Daemon("--pool-size", "64M") as daemon:
            with engine(llama(), speculative_config=spec, num_gpu_blocks_override=60) as e:
                waiting = list(range(REQUESTS))
                while waiting or e.llm.has_unfinished_requests():
                    while waiting and rng.random() < 0.4:
                        i = waiting.pop(0)
                        e.add(str(i), prompts[i], lengths[i], salt=rng.choice([None, None, None, "a", "b"]))
                    if rng.random() < 0.05 and e.scheduler.requests:
                        name = rng.choice(list(e.scheduler.requests)).split("-")[0]
                        aborted.add(name)
                        e.llm.abort_request([name])
                    if rng.random() < 0.01:
                        e.llm.reset_prefix_cache(reset_running_requests=True)
                    e.step()
                    self.nothing_leaks(e)
                self.assertGreater(self.preemptions, 0)
                admission = e.scheduler.connector.admission
                self.assertEqual((admission._held, len(admission.twins), admission.twins._since), ({}, 0, {}))
                got = {i: e.tokens.get(str(i), []) for i in range(REQUESTS)}
            caches = daemon.ask("caches")["caches"]
            self.assertEqual([(c["blocks_referenced"], c["blocks_granted"]) for c in caches], [(0, 0)])
        for i in range(REQUESTS):
            n = len(got[i])
            self.assertEqual(got[i], want[i][:n], f"request {i}, seed {seed}")
            if str(i) not in aborted:
                self.assertEqual(n, lengths[i])
        self.assertLess(len(aborted), REQUESTS / 2)

    preemptions = 0

    def nothing_leaks(self, e):
        s = e.scheduler
        running = {r.request_id for r in s.running}
        self.assertEqual(set(s.connector.admission._held), running)
        manager = s.kv_cache_manager
        used = sum(len(b) for i in running for b in manager.get_blocks(i).get_block_ids())
        self.assertEqual(manager.block_pool.get_num_free_blocks() + used + 1, manager.block_pool.num_gpu_blocks)
        self.preemptions += sum(r.num_preemptions for r in s.requests.values())


if __name__ == "__main__":
    tap.main()
