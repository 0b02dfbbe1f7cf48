# SPDX-License-Identifier: Apache-2.0
"""What is refused at the start, and that nothing changes for those who did not choose attnd."""

import os
import subprocess
import sys
import unittest
from types import SimpleNamespace
from unittest import mock

import kit
import tap
from kit import llama


def config(model=None, backend="ATTND", **kw):
    from vllm import EngineArgs

    return EngineArgs(**kit.arguments(model or llama(), backend, **kw)).create_engine_config()


class Checks(unittest.TestCase):
    def refused(self, why, then, **kw):
        with self.assertRaises(ValueError) as caught:
            config(**kw)
        self.assertIn("--attention-backend ATTND: ", str(caught.exception))
        self.assertIn(why, str(caught.exception))
        self.assertIn(then, str(caught.exception))

    def test_options(self):
        transfer = {"kv_connector": "ExampleConnector", "kv_role": "kv_both"}
        self.refused("not transferred", "drop --kv-transfer-config", kv_transfer_config=transfer)
        self.refused("all layers of a model", "--tensor-parallel-size", pipeline_parallel_size=2)
        self.refused("fp8", "drop --kv-cache-dtype", kv_cache_dtype="fp8_e5m2")
        self.refused("embeddings", "drop --enable-prompt-embeds", enable_prompt_embeds=True)
        self.refused("scheduler", "drop --scheduler-cls", scheduler_cls="vllm.v1.core.sched.scheduler.Scheduler")

    def test_v2_runner(self):
        import vllm.envs

        with mock.patch.dict(os.environ, {"VLLM_USE_V2_MODEL_RUNNER": "1"}):
            getattr(vllm.envs, "disable_envs_cache", lambda: None)()
            self.refused("V2 model runner", "unset VLLM_USE_V2_MODEL_RUNNER")

    def test_models(self):
        """By what vLLM says of a model."""
        from attnd.integrations.vllm.checks import check

        c = config()
        c.kv_transfer_config = None
        check(c)
        kind = type(c.model_config)
        for name, why in {
            "use_mla": "latent attention",
            "is_encoder_decoder": "encoder-decoder",
            "is_hybrid": "state-space",
            "has_inner_state": "state-space",
            "is_attention_free": "without attention",
            "is_diffusion": "diffusion",
        }.items():
            said = mock.patch.object(kind, name, new_callable=mock.PropertyMock, return_value=True)
            with said, self.assertRaisesRegex(ValueError, why):
                check(c)
        with mock.patch.object(c.model_config, "runner_type", "pooling"), self.assertRaisesRegex(ValueError, "pooling"):
            check(c)
        for method in ("eagle", "eagle3", "draft_model", "medusa", "mtp"):
            with mock.patch.object(c, "speculative_config", SimpleNamespace(method=method)):
                with self.assertRaisesRegex(ValueError, f"speculation by {method}.*ngram"):
                    check(c)

    def test_layers(self):
        from attnd.integrations.vllm.backend import AttndImpl

        with self.assertRaisesRegex(ValueError, "attention of type encoder_only"):
            AttndImpl(4, 64, 0.125, attn_type="encoder_only")
        with self.assertRaisesRegex(ValueError, "asks for novelty"):
            AttndImpl(4, 64, 0.125, novelty=1)

    def test_kinds_of_layers(self):
        """vLLM's attention beside the plain one: masks or KV of their own, which the backend would not see."""
        import torch
        from vllm.model_executor.layers import attention
        from vllm.model_executor.layers.attention import Attention
        from vllm.model_executor.layers.attention.rswa_attention import RSWAAttention

        from attnd.integrations.vllm.worker import attention_layers

        def made(kind, **more):
            m = kind.__new__(kind)
            torch.nn.Module.__init__(m)
            m.head_size, m.head_size_v = 64, 64
            for name, value in more.items():
                setattr(m, name, value)
            return m

        plain = made(Attention)
        self.assertEqual(attention_layers({"a": plain, "experts": object()}), [("a", plain)])
        for kind in (RSWAAttention, attention.ChunkedLocalAttention, attention.StaticSinkAttention):
            with self.assertRaisesRegex(ValueError, f"b is a {kind.__name__}"):
                attention_layers({"a": plain, "b": made(kind)})
        with self.assertRaisesRegex(ValueError, "different sizes"):
            attention_layers({"a": made(Attention, head_size_v=32)})

    def test_rows_that_are_refused(self):
        """For as long as others may need to let go, however many steps that is; then the engine says so and ends."""
        from vllm.v1.core.sched.scheduler import Scheduler
        from vllm.v1.request import RequestStatus

        from attnd.integrations.vllm import scheduler
        from attnd.integrations.vllm.connector import AttndConnector, Lost

        one = object.__new__(scheduler.AttndScheduler)
        one._again, one.prev_step_scheduled_req_ids = {}, set()
        one.connector = object.__new__(AttndConnector)
        one.connector._admission = mock.Mock()
        request = SimpleNamespace(status=RequestStatus.RUNNING)
        one.requests, one.running = {"a": request}, []
        step = SimpleNamespace(num_scheduled_tokens={"a": 1, "b": 1})

        def refused(*names):
            one.running.append(request)
            lost = Lost({name: "the pool is full" for name in names})
            one.update_from_output(step, SimpleNamespace(kv_connector_output=SimpleNamespace(kv_connector_worker_meta=lost)))

        clock = mock.patch.object(scheduler.time, "monotonic", side_effect=lambda: now)
        with (
            mock.patch.object(Scheduler, "update_from_output"), mock.patch.object(Scheduler, "_preempt_request"),
            mock.patch.object(scheduler.time, "sleep") as sleep, clock, self.assertLogs("vllm.attnd"),
        ):  # fmt: skip
            now = 0.0
            refused("a")
            self.assertEqual(sleep.call_count, 0)
            for _ in range(100):
                now += 0.5
                refused("a")
            self.assertEqual(sleep.call_count, 100)
            refused("b")  # a was served
            now += 30
            refused("a")
            self.assertEqual(one._again, {"a": (now, 1)})
            now += 61  # it has waited for something else
            for _ in range(scheduler.TRIES - 1):
                refused("a")
            with self.assertRaisesRegex(RuntimeError, "refused for 60 s: the pool is full"):
                refused("a")

    def test_weights_that_are_exchanged(self):
        """A rank's process says so before vLLM does it."""
        from vllm.v1.worker.cpu_worker import CPUWorker

        from attnd.integrations.vllm import process

        self.assertEqual(config().parallel_config.worker_cls, "attnd.integrations.vllm.process.AttndCPUWorker")
        told = mock.Mock()
        one = process.AttndCPUWorker.__new__(process.AttndCPUWorker)
        with (
            mock.patch.object(process, "has_kv_transfer_group", return_value=True),
            mock.patch.object(process, "get_kv_transfer_group", return_value=SimpleNamespace(worker=told)),
            mock.patch.object(CPUWorker, "reload_weights"),
            mock.patch.object(CPUWorker, "update_weights"),
        ):
            one.reload_weights()
            one.update_weights({})
        self.assertEqual(told.weights_changed.call_count, 2)

    def test_content(self):
        """An image's places are known by what it shows, wherever it stands."""
        from attnd.integrations.vllm.admission import content_keys

        def request(tokens, *images):
            features = [
                SimpleNamespace(modality="image", identifier=name, mm_position=SimpleNamespace(offset=at, length=3)) for at, name in images
            ]
            return SimpleNamespace(prompt_token_ids=tokens, mm_features=features)

        a = content_keys(request([1, 2, 9, 9, 9, 5], (2, "cat")))
        b = content_keys(request([1, 9, 9, 9, 5, 9, 9, 9], (1, "cat"), (5, "dog")))
        self.assertEqual(list(a[[0, 1, 5]]), [1, 2, 5])
        self.assertEqual(list(a[2:5]), list(b[1:4]))
        self.assertEqual(len({*a[2:5], *b[5:8]}), 6)
        self.assertGreater(min(a[2:5]), 1 << 40)

    def test_version(self):
        from attnd.integrations.vllm import checks

        with mock.patch("vllm.version.__version__", "0.99.0"), self.assertLogs("vllm.attnd", "WARNING") as logs:
            checks._check_version()
        self.assertIn("tested with vLLM 0.32.0, this is 0.99.0", logs.output[0])

    def test_chosen(self):
        c = config()
        self.assertEqual(c.kv_transfer_config.kv_connector, "AttndConnector")
        self.assertFalse(c.cache_config.enable_prefix_caching)
        self.assertEqual(c.cache_config.block_size, 16)

    def test_inert(self):
        """As if the package were not there."""
        from vllm.platforms import current_platform

        c = config(backend=None)
        self.assertIsNone(c.kv_transfer_config)
        self.assertIsNone(c.scheduler_config.scheduler_cls)
        self.assertTrue(c.cache_config.enable_prefix_caching)
        self.assertEqual(c.cache_config.kv_cache_memory_bytes, 64 << 20)
        self.assertEqual(type(current_platform).__mro__[1].__name__, "CpuPlatform")

    def test_passed_over(self):
        """Where vLLM takes no platform plug-ins it must not serve from elsewhere in silence."""
        code = "import kit, vllm; vllm.EngineArgs(**kit.arguments(kit.llama(), 'ATTND')).create_engine_config()"
        got = subprocess.run(
            [sys.executable, "-c", code], env=os.environ | {"VLLM_TARGET_DEVICE": "cpu"}, capture_output=True, text=True,
            cwd=os.path.dirname(kit.__file__),
        )  # fmt: skip
        self.assertNotEqual(got.returncode, 0)
        self.assertIn("ATTND", got.stderr.splitlines()[-1])

    def test_no_daemon(self):
        with self.assertRaisesRegex(RuntimeError, "no attnd daemon.*systemctl start attnd.socket.*ATTND_SOCKET"):
            kit.Engine(llama())

    def test_too_little(self):
        with kit.Daemon("--pool-size", "64M"):
            with self.assertRaisesRegex(ValueError, "cannot guarantee .*lower --kv-cache-memory-bytes"):
                kit.Engine(llama(), kv_cache_memory_bytes=1 << 30)
            with self.assertRaisesRegex(ValueError, "one request may need 16000: lower --max-model-len"):
                kit.Engine(llama(), kv_cache_memory_bytes=None, max_model_len=16000)

    def test_longest_that_fits(self):
        """--max-model-len auto: all of what was asked for, or half of the pool."""
        token = 2 * kit.LAYERS * kit.KV_HEADS * kit.DIM * 4
        with kit.Daemon("--pool-size", "64M"):
            for asked, longest in ((100 * token, 96), (None, 8192)):
                with kit.engine(llama(), max_model_len=-1, kv_cache_memory_bytes=asked) as e:
                    self.assertEqual(e.llm.model_config.max_model_len, longest)
                    self.assertEqual(len(e.generate([[5] * (longest - 1)], 1)[0][0]), 1)


if __name__ == "__main__":
    tap.main()
