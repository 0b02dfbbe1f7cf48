#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What keeps requests and models of the engines apart, without the engines: keys of contents, adapters'
files, checkpoints.

In: a daemon of its own, files. Out: TAP. Next: prove.
"""

import json
import logging
import os
import pickle
import subprocess
import tempfile
import threading
import time
import unittest
import zipfile
from pathlib import Path
from types import SimpleNamespace

import tap

import numpy as np  # noqa: I001

import attnd
from attnd.integrations.checkpoints import checkpoint, long_rope
from attnd.integrations.vllm.admission import Admission, content_keys
from attnd.integrations.vllm.link import fingerprint

logging.disable(logging.WARNING)


def feature(name, at, length, modality="image"):
    return SimpleNamespace(modality=modality, identifier=name, mm_position=SimpleNamespace(offset=at, length=length))


def request(name, tokens, features=(), **more):
    made = {"cache_salt": None, "lora_request": None, "skip_reading_prefix_cache": False, **more}
    return SimpleNamespace(
        request_id=name, prompt_token_ids=list(tokens), all_token_ids=list(tokens), num_tokens=len(tokens),
        mm_features=list(features), **made,
    )  # fmt: skip


class Contents(unittest.TestCase):
    def test_keys(self):
        tokens = [1, 2, 9, 9, 9, 5]
        cat, dog = (content_keys(request("a", tokens, [feature(x, 2, 3)])) for x in ("cat", "dog"))
        self.assertEqual(cat[[0, 1, 5]].tolist(), [1, 2, 5])
        self.assertEqual(len({*cat[2:5].tolist(), *dog[2:5].tolist()}), 6)
        self.assertGreater(min(cat[2:5]), 1 << 61)

    def test_contents_that_overlap(self):
        """A video's frames and its sound stand at the same places: both count."""
        seen = set()
        for video in "ab":
            for sound in "cd":
                both = [feature(video, 1, 4, "video"), feature(sound, 1, 4, "audio")]
                seen.add(tuple(content_keys(request("a", [1, 9, 9, 9, 9, 3], both)).tolist()))
        twice = content_keys(request("a", [9, 9], [feature("x", 0, 2), feature("x", 0, 2)]))
        other = content_keys(request("a", [9, 9], [feature("y", 0, 2), feature("y", 0, 2)]))
        self.assertEqual(len(seen), 4)
        self.assertNotEqual(twice.tolist(), other.tolist())


class Admissions(unittest.TestCase):
    def setUp(self):
        self.connection = attnd.private(pool_size="8M", hugepages="off", log_level="warn")
        self.addCleanup(self.connection.close)
        self.admission = Admission(SimpleNamespace(connection=self.connection))

    def test_a_session_that_grows(self):
        """vLLM's streaming input adds to a request's prompt, images included."""
        r = request("a", [1, 9, 9, 2], [feature("cat", 1, 2)])
        first = self.admission._tokens(r, 0, 4).tolist()
        for tokens in (r.prompt_token_ids, r.all_token_ids):
            tokens += [9, 9, 3]
        r.mm_features.append(feature("dog", 4, 2))
        later = self.admission._tokens(r, 0, 7).tolist()
        self.assertEqual(later[:4], first)
        self.assertEqual(later[6], 3)
        self.assertGreater(min(later[4:6]), 1 << 61)

    def test_adapters_that_are_written_again(self):
        """Whether the old files are in use or the new ones cannot be told: no other engine has what comes of it."""
        with tempfile.TemporaryDirectory() as d:
            file = Path(d, "adapter_model.safetensors")
            file.write_bytes(b"one")

            def bytes_of(load_inplace=False):
                lora = SimpleNamespace(lora_path=d, lora_int_id=1, load_inplace=load_inplace)
                return self.admission._adapter(request("a", [1], lora_request=lora))

            first = bytes_of()
            self.assertEqual((first, bytes_of()), (attnd.adapter_digest(d),) * 2)
            os.utime(file, ns=(1, 1))  # the same content
            self.assertEqual(bytes_of(), first)
            file.write_bytes(b"three")
            changed = bytes_of()
            self.assertNotIn(changed, (first, attnd.adapter_digest(d)))
            self.assertEqual(bytes_of(), changed)
            file.write_bytes(b"seven")
            self.assertEqual(bytes_of(load_inplace=True), attnd.adapter_digest(d))
            self.admission.new_epoch()
            self.assertEqual(bytes_of(), attnd.adapter_digest(d))


class Away(unittest.TestCase):
    def test_prompts_that_are_computed_whole(self):
        """vLLM schedules a request for its prompt's log probabilities whatever it is answered: the answer waits."""
        d = self.enterContext(tempfile.TemporaryDirectory())
        env = {k: v for k, v in os.environ.items() if not k.startswith("ATTND_")}
        command = [os.environ["ATTND_DAEMON"], "--socket", f"{d}/s", "--pool-size", "8M", "--hugepages", "off"]

        def start():
            daemon = subprocess.Popen([*command, "--log-level", "err"], env=env)
            self.addCleanup(daemon.wait)
            self.addCleanup(daemon.kill)
            return daemon

        daemon = start()
        until = time.monotonic() + 30
        while True:
            try:
                connection = attnd.connect(f"{d}/s", timeout=0.1)
                break
            except (attnd.NoDaemon, attnd.ConnectionLost):
                self.assertLess(time.monotonic(), until)
                time.sleep(0.01)
        connection.cache("toy", num_layers=1, num_heads=2, num_kv_heads=1, head_dim=16)
        admission = Admission(SimpleNamespace(connection=connection))
        self.assertEqual(admission.open(request("a", range(40))), 0)
        daemon.kill()
        daemon.wait()
        self.assertIsNone(admission.open(request("c", range(40))))
        later = threading.Timer(0.5, start)
        later.start()
        self.addCleanup(later.join)
        whole = request("b", range(40), skip_reading_prefix_cache=True)
        self.assertEqual(admission.open(whole), 0)
        admission.admit(whole, 0)
        self.assertTrue(admission._held["b"].admitted)
        connection.close()


class Checkpoints(unittest.TestCase):
    def setUp(self):
        self.folder = Path(self.enterContext(tempfile.TemporaryDirectory()))
        self.config(hidden_size=8)

    def config(self, **values):
        (self.folder / "config.json").write_text(json.dumps(values))

    def of(self, load_format="auto", **more):
        return checkpoint(str(self.folder), None, None, load_format, dtype="float32", **more)

    def safetensors(self, value):
        data = np.full(10, value, np.float32).tobytes()
        head = json.dumps({"w": {"dtype": "F32", "shape": [10], "data_offsets": [0, len(data)]}}).encode()
        (self.folder / "model.safetensors").write_bytes(len(head).to_bytes(8, "little") + head + data)

    def archive(self, name, small):
        """As torch.save lays it out: a large storage and a small one between places that are sampled of the whole."""
        with zipfile.ZipFile(self.folder / name, "w", zipfile.ZIP_STORED) as z:
            z.writestr("archive/data.pkl", b"names")
            z.writestr("archive/data/0", bytes(1 << 20))
            z.writestr("archive/data/1", bytes([small]) * 200)
            z.writestr("archive/data/2", bytes(1 << 20))

    def test_configuration(self):
        """An absent value is its class's default, null is none; the longest prompt scales some positions."""
        self.safetensors(1)
        seen = set()
        for values in ({}, {"sliding_window": None}, {"max_position_embeddings": 4096}, {"max_position_embeddings": 8192}):
            self.config(hidden_size=8, **values)
            seen.add(self.of())
        self.assertEqual(len(seen), 4)

    def test_files(self):
        for name in ("pytorch_model.bin", "model.pt"):
            self.archive(name, 1)
            one = self.of()
            self.assertEqual(one, self.of())
            self.archive(name, 2)
            self.assertNotEqual(one, self.of())
            (self.folder / name).unlink()
        seen = set()
        for value in (1, 2):  # what torch wrote before it wrote archives
            (self.folder / "pytorch_model.bin").write_bytes(pickle.dumps([bytes(1 << 20), bytes([value]) * 9, bytes(1 << 20)]))
            seen.add(self.of())
        self.assertEqual(len(seen), 2)

    def test_formats(self):
        """The files that are loaded count, not those that lie beside."""
        self.safetensors(1)
        self.archive("pytorch_model.bin", 1)
        auto, pt = self.of(), self.of("pt")
        self.assertNotEqual(auto, pt)
        self.assertEqual(auto, attnd.checkpoint_fingerprint(self.folder, dtype="float32"))
        self.archive("pytorch_model.bin", 2)
        self.assertEqual(self.of("safetensors"), auto)
        self.assertNotEqual(self.of("pt"), pt)
        self.assertIsNone(self.of("sharded_state"))
        self.assertIsNone(checkpoint(str(self.folder / "model.gguf"), None, None, "auto", dtype="float32"))

    def test_long_rope(self):
        rope = {"rope_type": "longrope", "original_max_position_embeddings": 4096, "short_factor": [1.0]}
        self.assertEqual(long_rope({"rope_parameters": rope}), 4096)
        outside = {"original_max_position_embeddings": 2048, "rope_scaling": {"type": "su"}}
        self.assertEqual(long_rope(outside), 2048)
        self.assertIsNone(long_rope({"rope_parameters": {"rope_type": "yarn", "original_max_position_embeddings": 4096}}))

    def vllm(self, **more):
        text = SimpleNamespace(max_position_embeddings=8192, to_dict=lambda: more.get("config", {}))
        model = {
            "model": str(self.folder), "revision": None, "dtype": "torch.float32", "quantization": None,
            "quantization_config": None, "hf_overrides": {}, "hf_config_path": None, "hf_config": text,
            "hf_text_config": text, "max_model_len": 4096, "original_max_model_len": None,
        }  # fmt: skip
        model |= {k: v for k, v in more.items() if k in model}
        return fingerprint(
            SimpleNamespace(
                model_config=SimpleNamespace(**model),
                load_config=SimpleNamespace(load_format=more.get("load_format", "auto"), download_dir=None),
                kv_transfer_config=SimpleNamespace(engine_id=more.get("engine", "e")),
            ),
            (0, 1),
        )

    def test_vllm(self):
        self.safetensors(1)
        plain = self.vllm()
        self.assertEqual(plain, self.of(shard=(0, 1), settings={}))
        for more in (
            {"quantization": "fp8"},
            {"quantization_config": {"linear": "fp8"}},
            {"hf_overrides": {"rope_theta": 5.0}},
            {"hf_config_path": "/elsewhere"},
        ):
            self.assertNotEqual(self.vllm(**more), plain)
        rope = {"rope_parameters": {"rope_type": "longrope", "original_max_position_embeddings": 4096}}
        short, long, auto = (
            self.vllm(config=rope, **more)
            for more in ({}, {"max_model_len": 8192}, {"max_model_len": 1000, "original_max_model_len": -1})
        )
        self.assertNotEqual(short, long)
        self.assertEqual(auto, long)  # settled when the model was made, whatever then fits
        for load_format in ("dummy", "tensorizer"):
            one, other = (self.vllm(load_format=load_format, engine=e) for e in "ab")
            self.assertNotEqual(one, other)
            self.assertEqual(one, self.vllm(load_format=load_format, engine="a"))


if __name__ == "__main__":
    tap.main()
