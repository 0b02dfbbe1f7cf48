#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Transformers on attnd against its eager attention: the same greedy tokens for all kinds of models,
batches, beams and continuations; a second process hits what the first has computed."""

import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import unittest
import zipfile
from pathlib import Path

import tap

tap.needs("torch", "transformers")

os.environ.setdefault("OMP_WAIT_POLICY", "passive")
os.environ["HF_HUB_OFFLINE"] = "1"

import torch
from transformers import AutoModelForCausalLM, logging
from transformers import (
    BertConfig,
    BertModel,
    Gemma2Config,
    Gemma2ForCausalLM,
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    GptOssConfig,
    GptOssForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

import attnd
import attnd.integrations.transformers as hf

logging.set_verbosity_error()
logging.disable_progress_bar()
torch.set_num_threads(1)
MODEL = tap.SRC / "client/examples/model"

SMALL = {
    "vocab_size": 200,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "initializer_range": 0.2,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": None,
}
KINDS = {
    "llama": (LlamaForCausalLM, LlamaConfig, {}),
    "mistral": (MistralForCausalLM, MistralConfig, {"sliding_window": 16, "head_dim": 16}),
    "qwen2": (
        Qwen2ForCausalLM,
        Qwen2Config,
        {"use_sliding_window": True, "sliding_window": 12, "max_window_layers": 1},
    ),
    "qwen3": (Qwen3ForCausalLM, Qwen3Config, {"head_dim": 32}),
    "gemma2": (
        Gemma2ForCausalLM,
        Gemma2Config,
        {"head_dim": 24, "sliding_window": 16, "attn_logit_softcapping": 3.0, "query_pre_attn_scalar": 30},
    ),
    "gemma3": (
        Gemma3ForCausalLM,
        Gemma3TextConfig,
        {"head_dim": 32, "sliding_window": 16, "layer_types": ["sliding_attention", "full_attention", "sliding_attention"]},
    ),
    "gpt_oss": (
        GptOssForCausalLM,
        GptOssConfig,
        {"head_dim": 16, "sliding_window": 16, "num_local_experts": 2, "num_experts_per_tok": 1},
    ),
}


def pair(kind, seed=0, dtype=torch.float32, **more):
    """The same random model twice: eager, attnd."""
    model, config, how = KINDS[kind]
    models = []
    for implementation in ("eager", "attnd"):
        torch.manual_seed(seed)
        c = config(**{**SMALL, **how, **more})
        c._attn_implementation = implementation
        m = model(c).to(dtype).eval()
        if models:
            m.load_state_dict(models[0].state_dict())
        models.append(m)
    for m in models:
        for layer in m.model.layers:  # sinks that count
            if hasattr(layer.self_attn, "sinks"):
                layer.self_attn.sinks.data = torch.linspace(-1, 2, 4).to(dtype)
    return models


def prompt(batch, length, seed=0, pads=()):
    """Random tokens [batch, length]; the first pads[i] of each row are padding."""
    g = torch.Generator().manual_seed(seed)
    ids = torch.randint(2, 200, (batch, length), generator=g)
    mask = torch.ones_like(ids)
    for i, n in enumerate(pads):
        ids[i, :n], mask[i, :n] = 0, 0
    return {"input_ids": ids, "attention_mask": mask}


def setUpModule():
    hf.configure(private_daemon={"pool_size": "64M", "hugepages": "off", "threads": 2, "log_level": "warn"})


def tearDownModule():
    hf.configure()


class SameTokens(unittest.TestCase):
    def check(self, models, inputs, **how):
        how = {"max_new_tokens": 24, "do_sample": False, **how}
        eager, ours = (m.generate(**inputs, **how) for m in models)
        self.assertEqual(ours.tolist(), eager.tolist())

    def test_kinds(self):
        for kind in KINDS:
            with self.subTest(kind=kind):
                models = pair(kind)
                self.check(models, prompt(1, 40))
                self.check(models, prompt(1, 40))  # all of it is cached
                self.check(models, prompt(3, 30, 1, (0, 11, 29)))

    def test_logits(self):
        for kind in KINDS:
            eager, ours = pair(kind, 3)
            inputs = prompt(2, 50, 3, (0, 9))
            with self.subTest(kind=kind), torch.no_grad():
                a, b = (m(**inputs, use_cache=False).logits for m in (eager, ours))
                torch.testing.assert_close(a[inputs["attention_mask"] > 0], b[inputs["attention_mask"] > 0], rtol=1e-3, atol=1e-3)

    def test_bf16(self):
        eager, ours = pair("llama", 4, torch.bfloat16)
        inputs = prompt(2, 50, 4)
        with torch.no_grad():
            a, b = (m(**inputs).logits.float() for m in (eager, ours))
            c = ours(**inputs, past_key_values=hf.AttndCache(ours)).logits.float()
        for x in (b, c):
            self.assertLess((a - x).abs().max().item(), 0.05 * a.abs().max().item())

    def test_beams(self):
        for kind in ("llama", "gemma2"):
            with self.subTest(kind=kind):
                self.check(pair(kind, 5), prompt(2, 30, 5, (0, 7)), num_beams=4, num_return_sequences=2)

    def test_assisted(self):
        models = pair("llama", 6)
        self.check(models, prompt(1, 30, 6), prompt_lookup_num_tokens=4)

    def test_chunked_prefill(self):
        self.check(pair("mistral", 7), prompt(2, 40, 7), prefill_chunk_size=16)

    def test_embeddings(self):
        models = pair("qwen2", 8)
        inputs = prompt(1, 30, 8)
        embeds = models[0].get_input_embeddings()(inputs.pop("input_ids"))
        self.check(models, {**inputs, "inputs_embeds": embeds})
        self.check(models, {**inputs, "inputs_embeds": embeds})

    def test_sampling_several(self):
        models = pair("llama", 9)
        inputs = prompt(1, 30, 9)
        outs = []
        for m in models:
            torch.manual_seed(1)
            outs.append(m.generate(**inputs, do_sample=True, num_return_sequences=3, max_new_tokens=10).tolist())
        self.assertEqual(*outs)

    def test_steps_by_hand(self):
        """Right padding, holes, a crop, rows chosen again, without generate."""
        eager, ours = pair("llama", 10)
        from transformers import DynamicCache

        caches = DynamicCache(config=eager.config), hf.AttndCache(ours)
        inputs = prompt(3, 20, 10)
        inputs["attention_mask"][1, 15:] = 0
        more = prompt(3, 4, 11)["input_ids"]
        mask = torch.cat([inputs["attention_mask"], torch.ones_like(more)], 1)
        seen = inputs["attention_mask"] > 0
        with torch.no_grad():
            a, b = (m(**inputs, past_key_values=c).logits[seen] for m, c in zip((eager, ours), caches, strict=True))
            torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-3)
            for c in caches:
                c.batch_select_indices(torch.tensor([2, 0, 2]))
            mask = mask[[2, 0, 2]]
            for _ in range(2):  # the second time over what was cropped
                a, b = (
                    m(input_ids=more, attention_mask=mask, past_key_values=c).logits
                    for m, c in zip((eager, ours), caches, strict=True)
                )
                torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-3)
                self.assertEqual(caches[0].get_seq_length(), caches[1].get_seq_length())
                for c in caches:
                    c.crop(-4)

    def test_continuing(self):
        eager, ours = pair("qwen3", 12)
        cache = hf.AttndCache(ours)
        inputs = prompt(1, 20, 12)
        first = ours.generate(**inputs, past_key_values=cache, max_new_tokens=10, do_sample=False)
        longer = torch.cat([first, prompt(1, 5, 13)["input_ids"]], 1)
        both = {"input_ids": longer, "attention_mask": torch.ones_like(longer)}
        second = ours.generate(**both, past_key_values=cache, max_new_tokens=10, do_sample=False)
        self.assertEqual(second.tolist(), eager.generate(**both, max_new_tokens=10, do_sample=False).tolist())


class Sharing(unittest.TestCase):
    def test_only_the_rest_is_computed(self):
        _, ours = pair("llama", 20)
        widths = []
        handle = ours.model.register_forward_pre_hook(
            lambda _, args, kwargs: widths.append(kwargs["input_ids"].shape[1]), with_kwargs=True
        )
        ours.generate(**prompt(1, 100, 20), max_new_tokens=1)
        ours.generate(**prompt(1, 100, 20), max_new_tokens=1)
        padded = prompt(2, 120, 20)
        for i, pad in enumerate((20, 40)):
            row = prompt(1, 100, 20)["input_ids"][0, : 120 - pad]
            padded["input_ids"][i] = torch.cat([torch.zeros(pad, dtype=torch.long), row])
            padded["attention_mask"][i, :pad] = 0
        ours.generate(**padded, max_new_tokens=1)
        handle.remove()
        self.assertEqual(widths, [100, 1, 1])

    def test_weights_keep_apart(self):
        one, other = pair("llama", 21)[1], pair("llama", 22)[1]
        self.assertNotEqual(hf.model_fingerprint(one), hf.model_fingerprint(other))
        self.assertEqual(hf.model_fingerprint(one), hf.model_fingerprint(pair("llama", 21)[1]))
        self.assertNotEqual(hf.model_fingerprint(one), hf.model_fingerprint(pair("llama", 21, rope_theta=5.0)[1]))
        self.assertNotEqual(hf.model_fingerprint(one), hf.model_fingerprint(one.to(torch.bfloat16)))
        eager, ours = pair("llama", 23)
        inputs = prompt(1, 40, 23)
        ours.generate(**inputs, max_new_tokens=2)
        with torch.no_grad():
            for m in (eager, ours):
                m.model.layers[0].self_attn.v_proj.weight.mul_(-1.5)
        how = {"max_new_tokens": 20, "do_sample": False}
        self.assertEqual(ours.generate(**inputs, **how).tolist(), eager.generate(**inputs, **how).tolist())

    def test_checkpoint_and_memory(self):
        """Of a checkpoint in another type than the model's: still the checkpoint's; changed weights are not."""
        m = AutoModelForCausalLM.from_pretrained(MODEL, attn_implementation="attnd", dtype=torch.float32)
        self.assertEqual(hf.model_fingerprint(m), attnd.checkpoint_fingerprint(MODEL, dtype="float32"))
        self.assertNotEqual(hf.model_fingerprint(m), attnd.checkpoint_fingerprint(MODEL, dtype="bfloat16"))
        self.assertNotEqual(
            attnd.checkpoint_fingerprint(MODEL, dtype="f16", shard=(0, 2)),
            attnd.checkpoint_fingerprint(MODEL, dtype="f16", shard=(1, 2)),
        )
        with torch.no_grad():
            m.model.norm.weight.add_(0.25)
        self.assertNotEqual(hf.model_fingerprint(m), attnd.checkpoint_fingerprint(MODEL, dtype="float32"))
        half = AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float16)
        config = json.loads((MODEL / "config.json").read_text())
        tensors = {k: v for k, v in half.state_dict().items() if k != "lm_head.weight"}  # tied: not in the file
        self.assertEqual(
            attnd.fingerprint(tensors, config, dtype="f16"), attnd.checkpoint_fingerprint(MODEL, dtype="f16")
        )

    def test_a_second_process(self):
        text = (MODEL / "prompts.jsonl").read_text().splitlines()
        ids = list(json.loads(text[0]).encode())
        code = f"""
import json, sys, torch
from transformers import AutoModelForCausalLM, logging
import attnd.integrations.transformers as hf
logging.set_verbosity_error(); logging.disable_progress_bar(); torch.set_num_threads(1)
hf.configure(socket=sys.argv[1])
m = AutoModelForCausalLM.from_pretrained({str(MODEL)!r}, attn_implementation="attnd", dtype=torch.float32)
ids = torch.tensor([{ids}])
cache = hf.AttndCache(m)
out = m.generate(ids, attention_mask=torch.ones_like(ids), past_key_values=cache, max_new_tokens=16, do_sample=False)
print(json.dumps([cache.cached, out[0, ids.shape[1]:].tolist()]))
"""
        expected = json.loads((MODEL / "expected.jsonl").read_text().splitlines()[0])
        said = []
        for _ in range(2):
            run = subprocess.run(
                [sys.executable, "-c", code, hf.socket()], capture_output=True, text=True, env=os.environ
            )
            self.assertEqual(run.returncode, 0, run.stderr)
            said.append(json.loads(run.stdout))
        self.assertEqual([s[0] for s in said], [0, len(ids) - 1])
        for s in said:
            self.assertEqual(s[1], expected["tokens"][:16])

    def test_sequences_are_closed(self):
        """Caches that are dropped hold nothing: the pool takes more than it could hold of live ones."""
        _, ours = pair("llama", 24)
        room = hf.AttndCache(ours).served.cache.capacity_tokens
        length = 400
        for i in range(4 * room // (8 * length) if room < 100_000 else 3):
            ours.generate(**prompt(8, length, 100 + i), max_new_tokens=1)


class Encoders(unittest.TestCase):
    def test_random(self):
        models = []
        for implementation in ("eager", "attnd"):
            torch.manual_seed(0)
            c = BertConfig(
                vocab_size=200,
                hidden_size=64,
                num_hidden_layers=2,
                num_attention_heads=4,
                intermediate_size=96,
                initializer_range=0.2,
            )
            c._attn_implementation = implementation
            models.append(BertModel(c).eval())
        inputs = prompt(3, 40, 30)
        inputs["attention_mask"][1, 25:] = 0
        inputs["attention_mask"][2, 3:] = 0
        with torch.no_grad():
            for _ in range(2):
                a, b = (m(**inputs).last_hidden_state[inputs["attention_mask"] > 0] for m in models)
                torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)

    def test_minilm(self):
        """The weights that a package ships."""
        found = importlib.util.find_spec("all_minilm_l6_v2")
        if found is None:
            self.skipTest("all_minilm_l6_v2 cannot be imported (make check-python makes a place where it can)")
        from transformers import AutoModel, AutoTokenizer

        d = self.enterContext(tempfile.TemporaryDirectory())
        zipfile.ZipFile(Path(found.origin).parent / "model.zip").extractall(d)
        folder = next(Path(d).rglob("model.safetensors")).parent
        tokenizer = AutoTokenizer.from_pretrained(folder)
        texts = ["The cache is shared.", "A prompt's beginning that any process has computed is not computed again."]
        inputs = tokenizer(texts, padding=True, return_tensors="pt")
        with torch.no_grad():
            a, b = (
                AutoModel.from_pretrained(folder, attn_implementation=i)(**inputs).last_hidden_state
                for i in ("eager", "attnd")
            )
        seen = inputs["attention_mask"] > 0
        torch.testing.assert_close(a[seen], b[seen], rtol=1e-4, atol=1e-4)


class Refusals(unittest.TestCase):
    def test_texts(self):
        _, ours = pair("llama", 40)
        inputs = prompt(2, 10, 40)
        with self.assertRaisesRegex(NotImplementedError, "gradients: run under torch.no_grad"):
            ours(**inputs)
        with torch.no_grad():
            from transformers import DynamicCache

            cache = DynamicCache(config=ours.config)
            ours(**inputs, past_key_values=cache)
            with self.assertRaisesRegex(NotImplementedError, "use an AttndCache"):
                ours(input_ids=inputs["input_ids"][:, :1], past_key_values=cache)
            with self.assertRaisesRegex(NotImplementedError, "two dimensions"):
                ours(input_ids=inputs["input_ids"], attention_mask=torch.zeros(2, 1, 10, 10), use_cache=False)
            cache = hf.AttndCache(ours)
            with self.assertRaisesRegex(NotImplementedError, "position ids that jump"):
                ours(**inputs, position_ids=torch.arange(0, 20, 2)[None], past_key_values=cache)
            ours(**inputs, past_key_values=cache)  # it is as good as new
            with self.assertRaisesRegex(ValueError, "2 rows, the input 1"):
                ours(input_ids=inputs["input_ids"][:1], past_key_values=cache)
            with self.assertRaisesRegex(RuntimeError, "forward pass that was planned"):
                ours.model(**inputs, past_key_values=cache)
        with self.assertRaisesRegex(NotImplementedError, "chunked_attention"):
            hf.AttndCache(pair("llama", layer_types=["chunked_attention"] * 3)[1])

    def test_pool_full(self):
        _, ours = pair("llama", 41)
        room = hf.AttndCache(ours).served.cache.capacity_tokens
        kept = []
        with self.assertRaises(attnd.PoolFull), torch.no_grad():
            for i in range(room // 500 + 2):
                kept.append(hf.AttndCache(ours, publish=False))
                inputs = prompt(1, 500, 200 + i)
                ours(**inputs, past_key_values=kept[-1], logits_to_keep=1)
        kept.clear()
        ours.generate(**prompt(1, 500, 999), max_new_tokens=1)


if __name__ == "__main__":
    tap.main()
