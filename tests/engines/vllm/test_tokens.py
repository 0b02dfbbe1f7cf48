# SPDX-License-Identifier: Apache-2.0
"""One engine in this process: its greedy tokens are those of vLLM's own CPU attention."""

import os
import unittest
from unittest import mock

import kit
import tap
from kit import MANY, MIX, PRE, engine, llama, plain


def left(daemon):
    """What an engine that ended has left in the daemon."""
    return daemon.ask("sessions")["sessions"]


class Tokens(unittest.TestCase):
    maxDiff = 2000

    @classmethod
    def setUpClass(cls):
        cls.daemon = kit.Daemon("--pool-size", "256M")
        cls.daemon.start()

    @classmethod
    def tearDownClass(cls):
        cls.daemon.stop()

    def held(self):
        return sum(s.get("sequences", 0) for s in left(self.daemon))

    def same(self, model, prompts, n=16, rounds=2, e=None, **kw):
        want = plain(model, prompts, n, **kw)
        with engine(model, **kw) as e:
            for _ in range(rounds):
                got, cached = e.generate(prompts, n)
                self.assertEqual(got, want)
            self.assertEqual(e.scheduler.connector.admission._held, {})
        return cached

    def test_mix(self):
        cached = self.same(llama(), MIX)
        self.assertEqual(cached, [152, 104, 2, 192])

    def test_many_rows(self):
        self.same(llama(), MANY)

    def test_next_engine_hits(self):
        with engine(llama()) as e:
            _, cached = e.generate(MIX)
        self.assertEqual(cached, [152, 104, 2, 192])

    def test_preemption(self):
        """Room for two and a half of eight requests."""
        model = llama()
        want = plain(model, MANY, 64)
        with engine(model, num_gpu_blocks_override=40) as e:
            got, _ = e.generate(MANY, 64)
            self.assertEqual(got, want)

    def test_bf16(self):
        self.same(llama(), MIX[:3], 8, dtype="bfloat16")

    @unittest.skipUnless(os.environ.get("TEST_LONG"), "takes minutes to compile: TEST_LONG=1")
    def test_compiled(self):
        self.same(llama(), MIX, enforce_eager=False)

    def test_windows(self):
        self.same(kit.mistral(), MIX)

    def test_cap_and_windows(self):
        self.same(kit.gemma2(), MIX)

    def test_slopes(self):
        self.same(kit.bloom(), MIX)

    def altered(self, alter, name, **config):
        """A Llama whose attention layers are made otherwise, with weights of its own: they are how caches are told apart."""
        import torch
        from vllm.model_executor.layers.attention import Attention

        init = Attention.__init__

        def made(layer, *args, prefix="", **kw):
            init(layer, *args, prefix=prefix, **kw, **alter(torch, int(prefix.split(".")[2]), prefix))

        with mock.patch.object(Attention, "__init__", made):
            self.same(llama(f"{name}-8", seed=8, **config), MIX)

    def test_sinks(self):
        def sinks(torch, i, prefix):
            return {"sinks": torch.nn.Parameter(torch.tensor([3.0, -1.0, 2.0, 0.5]) + i, requires_grad=False)}

        self.altered(sinks, "sinks")
        self.assertNotEqual(plain(llama("sinks-8"), MIX), plain(llama("without-8", seed=8), MIX))

    def test_layers_that_share_kv(self):
        """The last two read what the second has stored."""

        def shared(torch, i, prefix):
            return {"kv_sharing_target_layer_name": prefix.replace(f".{i}.", ".1.") if i > 1 else None}

        self.altered(shared, "shared", num_kv_shared_layers=2)

    def test_ngram(self):
        model = llama()
        prompts = [p + [5, 6, 7, 8, 5, 6, 7, 8, 5, 6] for p in MIX]
        want = plain(model, prompts, 32)
        spec = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 3, "prompt_lookup_min": 1}
        with engine(model, speculative_config=spec) as e:
            for _ in range(2):
                got, _ = e.generate(prompts, 32)
                self.assertEqual(got, want)

    def test_abort(self):
        want = plain(llama(), MIX)
        with engine(llama()) as e:
            for i, p in enumerate(MIX):
                e.add(str(i), p)
            for _ in range(5):
                e.step()
            e.llm.abort_request(["1"])
            e.run()
            self.assertEqual([e.tokens[i] for i in "023"], [want[i] for i in (0, 2, 3)])
            self.assertEqual(e.scheduler.connector.admission._held, {})

    def test_abort_in_the_last_step(self):
        """After its last token is computed, before anybody has seen it: the request ends as aborted."""
        want = plain(llama(), MIX[:1])
        with engine(llama()) as e:
            connector, executor = e.scheduler.connector, e.core.model_executor
            execute = executor.execute_model

            def and_abort(*args, **kw):
                done = execute(*args, **kw)
                e.llm.abort_request(["a"])
                return done

            e.add("a", MIX[2], 1)  # one step
            ended = mock.Mock(wraps=connector.request_finished_all_groups)
            with (
                mock.patch.object(executor, "execute_model", and_abort),
                mock.patch.object(connector, "request_finished_all_groups", ended),
            ):
                e.run()
            self.assertEqual([c.args[0].status.name for c in ended.call_args_list], ["FINISHED_ABORTED"])
            self.assertEqual((connector.admission._held, self.held()), ({}, 0))
            self.assertEqual(e.generate(MIX[:1])[0], want)

    def test_reset(self):
        want = plain(llama(), MIX)
        with engine(llama()) as e:
            e.generate(MIX)
            self.assertTrue(e.llm.reset_prefix_cache())
            got, cached = e.generate(MIX[:1])
            self.assertEqual((got, cached), (want[:1], [0]))
            self.assertEqual(e.generate(MIX[:1])[1], [152])
            for i, p in enumerate(MIX):
                e.add(str(i), p)
            for _ in range(6):
                e.step()
            self.assertTrue(e.llm.reset_prefix_cache(reset_running_requests=True))
            e.run()
            self.assertEqual([e.tokens[str(i)] for i in range(4)], want)

    def test_restart(self):
        """The daemon is killed and comes back empty, in prefill and in decode."""
        want = plain(llama(), MIX, 32)
        with engine(llama()) as e:
            for round_, at in enumerate((1, 2, 5, 9, 20)):
                for i, p in enumerate(MIX):
                    e.add(f"{round_}.{i}", p, 32)
                for _ in range(at):
                    e.step()
                self.daemon.restart()
                e.run()
                self.assertEqual([e.tokens[f"{round_}.{i}"] for i in range(4)], want)

    def test_salt(self):
        want = plain(llama(), MIX[:1])
        with engine(llama()) as e:
            e.generate(MIX[:1])
            self.assertEqual(e.generate(MIX[:1], salt="a"), (want, [0]))
            self.assertEqual(e.generate(MIX[:1], salt="a"), (want, [152]))
            self.assertEqual(e.generate(MIX[:1], salt="b"), (want, [0]))

    def test_lora(self):
        from vllm.lora.request import LoRARequest

        kw = dict(enable_lora=True, max_loras=2, max_lora_rank=8)
        loras = [None] + [LoRARequest(f"l{i}", i, kit.adapter(f"lora{i}", i)) for i in (1, 2)]
        with engine(llama(), None, **kw) as e:
            want = [e.generate(MIX[:2], lora=x)[0] for x in loras]
        self.assertNotEqual(want[0], want[1])
        self.assertNotEqual(want[1], want[2])
        with engine(llama(), **kw) as e:
            for again in (False, True):
                for x, w in zip(loras, want, strict=True):
                    got, cached = e.generate(MIX[:2], lora=x)
                    self.assertEqual(got, w)
                    self.assertEqual(cached[0], 152 if again or x is None else 0)

    def test_real_model(self):
        """The model that the demo uses."""
        import json

        folder = kit.TINY
        prompts = [json.loads(x) for x in (folder / "prompts.jsonl").read_text().splitlines()][:6]
        expected = [json.loads(x) for x in (folder / "expected.jsonl").read_text().splitlines()][:6]
        with engine(str(folder), max_model_len=1024) as e:
            got, cached = e.generate([list(p.encode()) for p in prompts], 24)
        for tokens, x in zip(got, expected, strict=True):
            sure = next((i for i, m in enumerate(x["margins"]) if m < 0.002), 24)
            n = min(sure, 24)
            self.assertEqual(tokens[:n], x["tokens"][:n])


if __name__ == "__main__":
    tap.main()
