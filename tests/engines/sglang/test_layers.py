#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The backend without an engine: what a layer may ask for, against attention in float64.

In: SGLang's RadixAttention layers, random q, k, v; V as a strided view. Out: TAP. Next: prove.
"""

import unittest
from types import SimpleNamespace

import kit
from kit import tap

kit.without_gpu_packages()

import numpy as np  # noqa: E402
import torch  # noqa: E402
from reference import attend  # noqa: E402
from sglang.srt.layers.radix_attention import RadixAttention  # noqa: E402
from sglang.srt.model_executor.forward_batch_info import ForwardMode  # noqa: E402

import attnd  # noqa: E402
from attnd.integrations.sglang import backend  # noqa: E402
from attnd.integrations.sglang.session import Fields, Session  # noqa: E402

HEADS, KV_HEADS, DIM, SCALE = 4, 2, 32, 32**-0.5
SINKS = torch.tensor([0.5, -1.0, 2.0, 0.0])


def layer(number, **more):
    return RadixAttention(HEADS, DIM, SCALE, KV_HEADS, number, **more)


# Each with what the reference is told: window in keys.
LAYERS = [
    (layer(0), {}, {}),
    (layer(1, sliding_window_size=8), {"window": 9}, {}),
    (layer(2, logit_cap=5.0), {"cap": 5.0}, {}),
    (layer(3, sliding_window_size=16), {"window": 17, "sinks": SINKS}, {"sinks": SINKS}),
    (layer(0, sliding_window_size=4), {"window": 5}, {}),  # reads the KV of layer 0
    (layer(4), {}, {}),
]
SHARED = 4


class Layers(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.connection = attnd.private(pool_size="64M", threads=2)
        cache = cls.connection.cache("layers", num_layers=5, num_heads=HEADS, num_kv_heads=KV_HEADS, head_dim=DIM)
        cls.session = Session.current = Session(cls.connection, cache)
        cls.runner = SimpleNamespace(
            req_to_token_pool=SimpleNamespace(req_generation=torch.zeros(8, dtype=torch.int64)),
            token_to_kv_pool=object.__new__(backend.AttndKVPool),
            model=torch.nn.ModuleList(m for m, _, _ in LAYERS),
            forward=cls.forward,
            weight_updater=None,
            lora_manager=None,
            dtype=torch.float32,
        )
        cls.backend = backend.AttndBackend(cls.runner)
        cls.random = np.random.default_rng(1)
        cls.kv = {}  # (row, layer): K and V so far
        cls.tokens = {0: [], 1: []}

    @classmethod
    def tearDownClass(cls):
        Session.current = None
        cls.connection.close()

    @classmethod
    def forward(cls, batch):
        """A model: its layers, each with q, k, v of its own."""
        cls.backend.init_forward_metadata(batch)
        n = len(batch.input_ids)
        got = []
        for i, (m, _, kwargs) in enumerate(LAYERS):
            # A fused projection, whose parts are views with the row's stride.
            qkv = torch.from_numpy(cls.random.standard_normal((n, (HEADS + 2 * KV_HEADS) * DIM), np.float32))
            q, k, v = qkv.split([HEADS * DIM, KV_HEADS * DIM, KV_HEADS * DIM], dim=-1)
            if i == SHARED:
                k = v = None
            out = cls.backend.forward(q, k, v, m, batch, save_kv_cache=k is not None, **kwargs)
            got.append((q, k, v, out))
        return got

    def step(self, rows, counts, mode=ForwardMode.EXTEND):
        """One forward of rows (by number) with so many new tokens each, checked layer by layer."""
        new = [[int(t) for t in self.random.integers(0, 1000, n)] for n in counts]
        starts = [len(self.tokens[r]) for r in rows]
        for r, start, tokens in zip(rows, starts, new, strict=True):
            if start == 0:
                self.session.match(f"r{r}", Fields(), np.array(tokens, np.uint64), len(tokens) - 1)
            self.tokens[r] += tokens
        batch = SimpleNamespace(
            forward_mode=mode,
            batch_size=len(rows),
            req_pool_indices=torch.tensor(rows),
            rids=[f"r{r}" for r in rows],
            input_ids=torch.tensor([t for tokens in new for t in tokens]),
            seq_lens=torch.tensor([len(self.tokens[r]) for r in rows]),
            extend_prefix_lens_cpu=starts,
            extend_seq_lens_cpu=list(counts),
        )
        for i, (q, k, v, out) in enumerate(self.runner.forward(batch)):
            at = 0
            for r, n in zip(rows, counts, strict=True):
                if k is not None:
                    for name, x in (("k", k), ("v", v)):
                        piece = x[at : at + n].reshape(n, KV_HEADS, DIM).numpy()
                        old = self.kv.get((r, i, name))
                        self.kv[r, i, name] = piece if old is None else np.concatenate([old, piece])
                source = 0 if i == SHARED else i
                want, _ = attend(
                    q[at : at + n].reshape(n, HEADS, DIM),
                    self.kv[r, source, "k"],
                    self.kv[r, source, "v"],
                    scale=SCALE,
                    **LAYERS[i][1],
                )
                got = out[at : at + n].reshape(n, HEADS, DIM).numpy()
                np.testing.assert_allclose(got, want, rtol=2e-5, atol=2e-5, err_msg=f"layer {i}, row {r}")
                at += n

    def test_steps(self):
        self.step([0, 1], [400, 7])  # more than the staging buffers have at first
        self.step([0, 1], [13, 1])  # mixed: a chunk, and a row that decodes
        for _ in range(3):
            self.step([1, 0], [1, 1], ForwardMode.DECODE)
        self.step([1], [80])
        self.session.release((0, 0))
        self.session.release((1, 0))
        self.assertEqual((self.session.rows, self.session.waiting), ({}, {}))

    def test_types(self):
        """Layers of bf16 whose q and k come in f32: converted, few rows as many."""
        params = self.session.cache.params(q_dtype="bf16")
        job = backend.LayerJob(params, 0, attnd.Staging(params, 256), b"")
        with self.connection.sequence() as s:
            for n in (7, 100):
                q, k, v = (torch.randn(n, h, DIM).bfloat16().float() for h in (HEADS, KV_HEADS, KV_HEADS))
                outs = []
                for kind in (torch.float32, torch.bfloat16):
                    out = torch.empty(n, HEADS, DIM, dtype=kind)
                    plan = self.session.cache.plan([attnd.Row(s, list(range(n)), 0, publish_upto=0)])
                    job.run(plan, q.to(kind), k.to(kind), v.bfloat16(), out)
                    outs.append(out.float())
                    plan.end()
                torch.testing.assert_close(*outs)

    def test_sinks_are_weights(self):
        """Others come with an update; a parameter set has a copy of them, and sets are few."""
        self.step([0], [20])
        used = {j.params.id for j in self.backend.jobs.values()}
        self.addCleanup(self.session.new_epoch)
        self.addCleanup(SINKS.data.copy_, SINKS.clone())
        for sink in (3.0, -2.0):
            SINKS.data.fill_(sink)
            self.session.new_epoch()
            self.step([0], [4])
        self.assertEqual({j.params.id for j in self.backend.jobs.values()}, used)
        self.session.release((0, 0))
        self.tokens[0].clear()
        self.kv.clear()

    def test_unknown(self):
        q = torch.zeros(1, HEADS * DIM)
        k = torch.zeros(1, KV_HEADS * DIM)
        with self.assertRaisesRegex(NotImplementedError, "k_rope"):
            self.backend.forward_decode(q, k, k, LAYERS[0][0], None, k_rope=k)

    def test_models(self):
        """What a model must not have is found before the first request."""
        text = SimpleNamespace(to_dict=dict)
        config = SimpleNamespace(
            is_encoder_decoder=False, is_multimodal=False, is_generation=True, hf_text_config=text, context_len=8192
        )
        configurator = SimpleNamespace(model_config=config, use_mla_backend=False, mambaish_config=None)
        backend._check_model(configurator, [layer(0)])
        from sglang.srt.layers.radix_attention import AttentionType

        cases = {
            "cross attention": [layer(0, is_cross_attention=True)],
            "encoder_only": [layer(0, attn_type=AttentionType.ENCODER_ONLY)],
            "different shapes": [layer(0), RadixAttention(HEADS, 16, SCALE, KV_HEADS, 1)],
            "irope": [layer(0, use_irope=True)],
            "positions by ALIBI": [layer(0, pos_encoding_mode="ALIBI")],
        }
        for text, layers in cases.items():
            with self.subTest(text), self.assertRaisesRegex(ValueError, text):
                backend._check_model(configurator, layers)
        for field, text in (("use_mla_backend", "latent"), ("mambaish_config", "state-space")):
            with self.subTest(field), self.assertRaisesRegex(ValueError, text):
                backend._check_model(SimpleNamespace(**{**vars(configurator), field: True}), [layer(0)])
        rope = {"rope_parameters": {"rope_type": "longrope", "original_max_position_embeddings": 4096}}
        long = SimpleNamespace(to_dict=lambda: rope)
        dual = SimpleNamespace(to_dict=dict, dual_chunk_attention_config={"chunk_size": 8})
        for more, why in (
            ({"is_generation": False}, "only models that generate"),
            ({"hf_text_config": long}, "use --context-length 4096"),
            ({"hf_text_config": dual}, "dual chunk"),
        ):
            with self.subTest(why), self.assertRaisesRegex(ValueError, why):
                configurator.model_config = SimpleNamespace(**vars(config) | more)
                backend._check_model(configurator, [layer(0)])
        configurator.model_config = SimpleNamespace(**vars(config) | {"hf_text_config": long, "context_len": 4096})
        backend._check_model(configurator, [layer(0)])

    def test_settings(self):
        """What decides K and V beside the checkpoint is in the fingerprint."""
        bare = {"json_model_override_args": "{}", "quantization": None, "quantize_and_serve": False}
        config = SimpleNamespace(hf_text_config=SimpleNamespace(to_dict=dict))
        self.assertEqual(backend._settings(SimpleNamespace(**bare), config), {})
        for more in ({"quantization": "fp8"}, {"modelopt_quant": "fp8"}, {"decrypted_config_file": "/x"}):
            self.assertEqual(backend._settings(SimpleNamespace(**bare | more), config), more)


if __name__ == "__main__":
    tap.main()
