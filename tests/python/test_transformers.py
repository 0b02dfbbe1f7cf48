#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Transformers on attnd against its eager attention: the same greedy tokens for all kinds of models,
batches, beams and continuations; a second process hits what the first has computed."""

import copy
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import unittest
import zipfile
from pathlib import Path
from unittest import mock

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
    Qwen2MoeConfig,
    Qwen2MoeForCausalLM,
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
        for layer in getattr(getattr(m, "model", None), "layers", ()):  # sinks that count
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

    def test_others(self):
        """Learned positions, fused projections, layers without positions, partial rotation, norms of q and k."""
        import transformers

        names = {"n_embd": 64, "n_layer": 2, "n_head": 4, "ffn_dim": 96, "word_embed_proj_dim": 64, "init_std": 0.2}
        for kind in ("GPT2LMHead", "OPT", "GPTNeoX", "Phi", "Phi3", "Cohere2", "Olmo2", "SmolLM3", "StableLm", "Starcoder2"):
            model = getattr(transformers, f"{kind}Model" if kind.endswith("Head") else f"{kind}ForCausalLM")
            heads = {} if kind in ("Phi3", "Cohere2", "SmolLM3", "Starcoder2") else {"num_key_value_heads": 4}
            KINDS["other"] = model, model.config_class, {**names, **heads, "num_hidden_layers": 2}
            self.addCleanup(KINDS.pop, "other", None)
            with self.subTest(kind=kind):
                self.check(pair("other"), prompt(2, 30, 1, (0, 11)))

    def test_logits(self):
        for kind in KINDS:
            eager, ours = pair(kind, 3)
            inputs = prompt(2, 50, 3, (0, 9))
            with self.subTest(kind=kind), torch.no_grad():
                a, b = (m(**inputs, use_cache=False).logits for m in (eager, ours))
                torch.testing.assert_close(a[inputs["attention_mask"] > 0], b[inputs["attention_mask"] > 0], rtol=1e-3, atol=1e-3)

    def test_window_of_the_mask(self):
        """A model whose layers are not told their window: it is in the mask alone."""
        KINDS["qwen2_moe"] = (
            Qwen2MoeForCausalLM,
            Qwen2MoeConfig,
            {
                "num_experts": 2,
                "num_experts_per_tok": 1,
                "moe_intermediate_size": 32,
                "shared_expert_intermediate_size": 32,
                "use_sliding_window": True,
                "sliding_window": 12,
                "max_window_layers": 3,
                "layer_types": ["sliding_attention"] * 3,
            },
        )
        self.addCleanup(KINDS.pop, "qwen2_moe")
        models = pair("qwen2_moe", 4)
        self.check(models, prompt(1, 40, 4))
        self.check(models, prompt(2, 40, 5, (0, 9)), use_cache=False)

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


class KeptApart(unittest.TestCase):
    """Different contents, or positions, of the same token ids are never one another's hits."""

    def cached(self, model, inputs):
        cache = hf.AttndCache(model)
        model.generate(**inputs, past_key_values=cache, max_new_tokens=1)
        return cache.cached

    def same(self, models, inputs, **how):
        a, b = (m.generate(**inputs, max_new_tokens=12, do_sample=False, **how).tolist() for m in models)
        self.assertEqual(a, b)

    def test_overridden_configuration(self):
        how = {"attn_implementation": "attnd", "dtype": torch.float32}
        plain = AutoModelForCausalLM.from_pretrained(MODEL, **how)
        other = AutoModelForCausalLM.from_pretrained(
            MODEL, **how, rope_parameters={"rope_type": "default", "rope_theta": 5.0}
        )
        self.assertNotEqual(hf.model_fingerprint(plain), hf.model_fingerprint(other))
        plain.config.rope_parameters["rope_theta"] *= 2
        self.assertNotEqual(hf.model_fingerprint(plain), attnd.checkpoint_fingerprint(MODEL, dtype="float32"))

    def test_adapters(self):
        """As PEFT keeps them: all in memory, one of them active, or none, with a scale."""

        class Tuned(torch.nn.Module):
            active_adapters = ["a"]
            disable_adapters = False
            scaling = {"a": 1.0, "b": 1.0}

        _, ours = pair("llama", 50)
        ours.add_module("tuned", Tuned())
        seen = {hf.model_fingerprint(ours)}
        inputs = prompt(1, 40, 50)
        self.assertEqual(self.cached(ours, inputs), 0)
        cache = hf.AttndCache(ours)
        for name, value in (("active_adapters", ["b"]), ("disable_adapters", True), ("scaling", {"b": 2.0})):
            setattr(ours.tuned, name, value)
            seen.add(hf.model_fingerprint(ours))
            self.assertEqual(self.cached(ours, inputs), 0)
        self.assertEqual(len(seen), 4)
        with torch.no_grad(), self.assertRaisesRegex(NotImplementedError, "weights that changed"):
            ours(**inputs, past_key_values=cache)

    def test_weights_by_data(self):
        _, ours = pair("llama", 51)
        inputs = prompt(1, 40, 51)
        self.assertEqual([self.cached(ours, inputs), self.cached(ours, inputs)], [0, 39])
        ours.model.layers[1].mlp.up_proj.weight.data.mul_(1.5)
        self.assertEqual(self.cached(ours, inputs), 0)

    def test_inputs_beside_tokens(self):
        """Token types and images change K and V: who gives them shares with nobody."""
        from transformers import CLIPVisionConfig, GPT2Config, GPT2LMHeadModel, LlavaConfig, LlavaForConditionalGeneration

        def twice(model, make):
            models = []
            for implementation in ("eager", "attnd"):
                torch.manual_seed(0)
                c = make()
                for part in (c, c.get_text_config()):
                    part._attn_implementation = implementation
                models.append(model(c).eval())
            return models

        def gpt2():
            small = {"vocab_size": 200, "n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 128}
            return GPT2Config(**small, initializer_range=0.3, bos_token_id=1, eos_token_id=None)

        def llava():
            sight = CLIPVisionConfig(
                hidden_size=32,
                intermediate_size=64,
                num_hidden_layers=2,
                num_attention_heads=2,
                image_size=8,
                patch_size=4,
                initializer_range=0.3,
            )
            return LlavaConfig(vision_config=sight, text_config=LlamaConfig(**SMALL), image_token_index=150)

        models, inputs = twice(GPT2LMHeadModel, gpt2), prompt(1, 30, 52)
        for kind in (0, 7):
            self.same(models, inputs, token_type_ids=torch.full((1, 30), kind))
        self.same(models, inputs)
        cache = hf.AttndCache(models[1])
        with torch.no_grad():
            models[1](**inputs, past_key_values=cache)
            with self.assertRaisesRegex(NotImplementedError, "token_type_ids after steps without"):
                models[1](torch.tensor([[3]]), token_type_ids=torch.tensor([[7]]), past_key_values=cache)
        models = twice(LlavaForConditionalGeneration, llava)
        inputs["input_ids"][inputs["input_ids"] == 150] = 3
        inputs["input_ids"][0, 5:9] = 150
        for seed in (1, 2):
            image = torch.randn(1, 3, 8, 8, generator=torch.Generator().manual_seed(seed)) * 3
            self.same(models, inputs, pixel_values=image)

    def test_positions_that_grow(self):
        """Where positions are scaled by the prompt's length, a prompt's beginning is no other's."""
        rope = {"rope_type": "dynamic", "rope_theta": 100.0, "factor": 4.0}
        models = pair("llama", 53, max_position_embeddings=32, rope_parameters=rope)
        for n in (20, 80):
            self.same(models, {k: v[:, :n] for k, v in prompt(1, 80, 53).items()})

    def test_positions_by_columns(self):
        """Without position ids a model counts columns, padding included: that is no prompt's position."""
        _, ours = pair("llama", 54)
        inputs = prompt(1, 20, 54)
        ids, holed = inputs["input_ids"], inputs["attention_mask"].clone()
        holed[0, 5] = 0
        with torch.no_grad():
            with self.assertRaisesRegex(NotImplementedError, "position ids that jump: give position_ids"):
                ours(ids, attention_mask=holed, past_key_values=hf.AttndCache(ours))
            positions = (holed.cumsum(1) - 1).clamp(min=0)
            ours(ids, attention_mask=holed, position_ids=positions, past_key_values=hf.AttndCache(ours))
        shorter = torch.cat([ids[:, :5], ids[:, 6:]], 1)
        self.assertEqual(self.cached(ours, {"input_ids": shorter, "attention_mask": torch.ones_like(shorter)}), 18)
        cache, padded = hf.AttndCache(ours), prompt(2, 20, 55, (0, 7))
        out = ours.generate(**padded, past_key_values=cache, max_new_tokens=2, do_sample=False)
        mask = torch.cat([padded["attention_mask"], torch.ones_like(out[:, 20:])], 1)
        with torch.no_grad():
            with self.assertRaisesRegex(NotImplementedError, "position ids that jump"):
                ours(out[:, -1:], attention_mask=mask, past_key_values=cache)
            ours(out[:, -1:], attention_mask=mask, position_ids=mask.sum(1, keepdim=True) - 1, past_key_values=cache)

    def test_what_a_cache_belongs_to(self):
        (_, one), (_, other) = pair("llama", 56), pair("llama", 57)
        inputs, cache = prompt(1, 20, 56), hf.AttndCache(one)
        hf.AttndCache(other)
        with torch.no_grad():
            with self.assertRaisesRegex(NotImplementedError, "a cache of another model"):
                other(**inputs, past_key_values=cache)
            one(**inputs, past_key_values=cache)
            masked = torch.ones(1, 21, dtype=torch.long)
            masked[0, 3:9] = 0
            with self.assertRaisesRegex(NotImplementedError, "mask other than that of the tokens before"):
                one(inputs["input_ids"][:, :1], attention_mask=masked, past_key_values=cache)
            one.model.layers[0].self_attn.v_proj.weight.mul_(2)
            with self.assertRaisesRegex(NotImplementedError, "weights that changed"):
                one(inputs["input_ids"][:, :1], past_key_values=cache)


class Copies(unittest.TestCase):
    def test_deepcopy(self):
        """A prompt's cache, copied for each of its continuations, as Transformers' guide does."""
        eager, ours = pair("qwen3", 60)
        start, cache = prompt(2, 20, 60, (0, 6)), hf.AttndCache(ours)
        with torch.no_grad():
            positions = (start["attention_mask"].cumsum(1) - 1).clamp(min=0)
            ours(**start, position_ids=positions, past_key_values=cache)
        for seed in (61, 62):
            ids = torch.cat([start["input_ids"], prompt(2, 6, seed)["input_ids"]], 1)
            mask = torch.cat([start["attention_mask"], torch.ones(2, 6, dtype=torch.long)], 1)
            inputs, how = {"input_ids": ids, "attention_mask": mask}, {"max_new_tokens": 10, "do_sample": False}
            copied = copy.deepcopy(cache)
            got = ours.generate(**inputs, **how, past_key_values=copied)
            self.assertEqual(got.tolist(), eager.generate(**inputs, **how).tolist())
            self.assertEqual((cache.get_seq_length(), copied.get_seq_length()), (20, 35))

    def test_cropped_to_nothing(self):
        eager, ours = pair("llama", 63)
        cache = hf.AttndCache(ours)
        with torch.no_grad():
            ours(**prompt(1, 10, 63), past_key_values=cache)
            cache.crop(-10)
            self.assertEqual(cache.get_seq_length(), 0)
            a, b = eager(**prompt(2, 12, 64)).logits, ours(**prompt(2, 12, 64), past_key_values=cache).logits
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-3)


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
            with torch.autocast("cpu", torch.bfloat16), self.assertRaisesRegex(NotImplementedError, "autocast"):
                ours(**inputs, use_cache=False)
            with self.assertRaisesRegex(NotImplementedError, "output_attentions"):
                ours(**inputs, output_attentions=True)
            windowed = pair("mistral", 42)[1]
            inputs = prompt(1, 40, 42)
            inputs["attention_mask"][0, 20:25] = 0
            positions = (inputs["attention_mask"].cumsum(1) - 1).clamp(min=0)
            for cache in ({"use_cache": False}, {"past_key_values": hf.AttndCache(windowed)}):
                with self.assertRaisesRegex(NotImplementedError, "padding between tokens with sliding windows"):
                    windowed(**inputs, position_ids=positions, **cache)
        with self.assertRaisesRegex(NotImplementedError, "chunked_attention"):
            hf.AttndCache(pair("llama", layer_types=["chunked_attention"] * 3)[1])

    def test_attention_of_its_own(self):
        """Models whose layers do not ask Transformers' interface, or add to the scores what it does not know."""
        from transformers import BloomConfig, BloomForCausalLM, T5Config, T5EncoderModel

        bloom = BloomConfig(vocab_size=200, hidden_size=64, n_layer=2, n_head=4)
        t5 = T5Config(vocab_size=200, d_model=64, d_kv=16, num_layers=2, num_heads=4, d_ff=64)
        for c in (bloom, t5):
            c._attn_implementation = "attnd"
        with self.assertRaisesRegex(RuntimeError, "an attention of its own"):
            BloomForCausalLM(bloom).eval().generate(**prompt(1, 10, 43), max_new_tokens=2)
        with torch.no_grad(), self.assertRaisesRegex(NotImplementedError, "position_bias"):
            T5EncoderModel(t5).eval()(**prompt(1, 10, 43))

    def test_shapes(self):
        """K and V of other heads than the configuration's are not read as if they were its."""
        _, ours = pair("llama", 45)
        for layer in ours.model.layers:
            layer.self_attn.v_proj = torch.nn.Linear(64, 16, bias=False)
        with torch.no_grad():
            for how in ({"past_key_values": hf.AttndCache(ours)}, {"use_cache": False}):
                with self.assertRaisesRegex(NotImplementedError, "different shapes"):
                    ours(**prompt(1, 10, 45), **how)

    def test_inference_mode(self):
        with torch.inference_mode():
            eager, ours = pair("llama", 46)
            how = {"max_new_tokens": 4, "do_sample": False}
            a, b = (m.generate(**prompt(1, 10, 46), **how).tolist() for m in (eager, ours))
        self.assertEqual(a, b)

    def test_nothing_is_left_open(self):
        """A step that is refused opens no sequences."""
        _, ours = pair("llama", 44)
        a, opened = hf.AttndCache(ours).served.connection, []
        jump = torch.arange(10).repeat(3, 1)
        jump[2, 5] = 20
        with mock.patch.object(a, "sequence", side_effect=lambda *_, **__: opened.append(1)), torch.no_grad():
            with self.assertRaisesRegex(NotImplementedError, "jump"):
                ours(**prompt(3, 10, 44), position_ids=jump, past_key_values=hf.AttndCache(ours))
        self.assertEqual(opened, [])

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
