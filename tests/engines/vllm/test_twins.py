# SPDX-License-Identifier: Apache-2.0
"""Requests whose prompt another request is computing wait for it; others go on; none waits for ever."""

import os
import time
import unittest
from unittest import mock

import kit
import tap
from kit import MIX, engine, llama, plain

PROMPT = [(i * 91 + 5) % 250 + 3 for i in range(120)]


class Other:
    """Another engine of the same weights, that has begun with a prompt and does not come on."""

    def __init__(self, e, prompt):
        import attnd

        c = e.scheduler.connector.admission.link.caches[0]
        self.a = attnd.connect(name="other")
        self.a.cache(
            c.name, fingerprint=c.fingerprint, num_layers=c.num_layers, num_heads=c.num_heads, num_kv_heads=c.num_kv_heads,
            head_dim=c.head_dim, kv_dtype=c.kv_dtype,
        )  # fmt: skip
        self.a.sequence(prompt)

    def end(self):
        self.a.close()


class Twins(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.daemon = kit.Daemon("--pool-size", "256M")
        cls.daemon.start()

    @classmethod
    def tearDownClass(cls):
        cls.daemon.stop()

    def none_left(self, e):
        admission = e.scheduler.connector.admission
        self.assertEqual((admission._held, len(admission.twins), admission.twins._since), ({}, 0, {}))

    def test_one_engine(self):
        """Two requests that come together: the second computes one token."""
        want = plain(llama(), [PROMPT, PROMPT], 8)
        for wait, cached in ("30", [0, 119]), ("0", [0, 0]):
            with mock.patch.dict(os.environ, {"ATTND_TWIN_WAIT": wait}), engine(llama()) as e:
                self.assertTrue(e.llm.reset_prefix_cache())  # shared with nobody
                self.assertEqual(e.generate([PROMPT, PROMPT], 8), (want, cached))
                self.none_left(e)

    def test_another_engine(self):
        prompts = [PROMPT[::-1], PROMPT[::-1] + [5], MIX[0]]
        want = plain(llama(), prompts, 8)
        with engine(llama()) as e:
            other = Other(e, prompts[0])
            for i, p in enumerate(prompts):
                e.add(str(i), p, 8)
            while len(e.tokens.get("2", ())) < 8:  # who has no twin goes on
                e.step()
            self.assertEqual(set(e.tokens), {"2"})
            for _ in range(20):
                e.step()
            self.assertEqual((len(e.scheduler.running), len(e.scheduler.connector.admission.twins)), (0, 2))
            other.end()
            e.run()
            self.assertEqual([e.tokens[str(i)] for i in range(3)], want)
            self.assertEqual([e.cached[str(i)] for i in range(2)], [0, 120])  # the second has waited for the first
            self.none_left(e)

    def test_no_progress(self):
        prompt = [7, *PROMPT]
        want = plain(llama(), [prompt], 8)
        with mock.patch.dict(os.environ, {"ATTND_TWIN_WAIT": "0.9"}), engine(llama()) as e:
            other = Other(e, prompt)
            begun = time.monotonic()
            self.assertEqual(e.generate([prompt], 8)[0], want)
            self.assertGreater(time.monotonic() - begun, 0.3)
            other.end()

    def test_aborted_while_it_waits(self):
        with engine(llama()) as e:
            prompt = [9, *PROMPT]
            other = Other(e, prompt)
            e.add("a", prompt, 8)
            e.step()
            self.assertEqual(len(e.scheduler.connector.admission.twins), 1)
            e.llm.abort_request(["a"])
            self.none_left(e)
            e.add("b", prompt, 8)
            e.step()
            self.assertTrue(e.llm.reset_prefix_cache())  # nobody is a twin any more
            e.run()
            self.assertEqual(len(e.tokens["b"]), 8)
            other.end()


if __name__ == "__main__":
    tap.main()
