#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""LoRA adapters as namespaces: what is computed with one is no hit without it, and one for every engine that has it.

In: SGLang's own attention with the same adapters. Out: TAP. Next: prove.
"""

import json
import shutil
import tempfile
import unittest
from pathlib import Path

import kit
from kit import tap

MAKE = """
import json, sys, torch
from pathlib import Path
from safetensors.torch import save_file
config = json.loads(Path(sys.argv[1], "config.json").read_text())
hidden, dim = config["hidden_size"], config["head_dim"]
rows = {"q_proj": config["num_attention_heads"] * dim, "v_proj": config["num_key_value_heads"] * dim}
g = torch.Generator().manual_seed(int(sys.argv[3]))
w = {}
for i in range(config["num_hidden_layers"]):
    for m, n in rows.items():
        p = f"base_model.model.model.layers.{i}.self_attn.{m}."
        w[p + "lora_A.weight"] = torch.randn(8, hidden, generator=g) / 16
        w[p + "lora_B.weight"] = torch.randn(n, 8, generator=g) / 4
to = Path(sys.argv[2])
to.mkdir(parents=True, exist_ok=True)
save_file(w, to / "adapter_model.safetensors")
(to / "adapter_config.json").write_text(json.dumps(dict(
    peft_type="LORA", r=8, lora_alpha=16, target_modules=list(rows), bias="none", task_type="CAUSAL_LM")))
"""
PROMPT = list(b"Once upon a time there was a daemon that kept what others had read, word by word.")


class Adapters(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.dir = Path(tempfile.mkdtemp())
        for i in (1, 2):
            cls.make(f"l{i}", i)
        cls.daemon = kit.Daemon()

    @classmethod
    def tearDownClass(cls):
        cls.daemon.close()
        shutil.rmtree(cls.dir)

    @classmethod
    def make(cls, name, seed):
        kit.subprocess.run(
            [kit.sys.executable, "-c", MAKE, kit.MODEL, cls.dir / name, str(seed)], env=kit.environment(), check=True
        )

    def engine(self, daemon=None, **more):
        return kit.Engine(
            daemon, env={**kit.STRICT, "UNPINNED": "1"}, enable_lora=True, lora_paths=[f"l{i}={self.dir}/l{i}" for i in (1, 2)], max_loras_per_batch=3,
            lora_backend="torch_native", max_lora_rank=8, max_total_tokens=2000, **more,
        )  # fmt: skip

    def all(self, e):
        """Base and both adapters, at once."""
        tickets = [e.generate(PROMPT, 12, extra={"lora_path": x} if x else None) for x in (None, "l1", "l2")]
        results = [e.wait(t) for t in tickets]
        return kit.tokens(results), [r["cached"] for r in results]

    def test_all(self):
        with self.engine(attention_backend="torch_native") as e:
            want, _ = self.all(e)
        self.assertEqual(len({json.dumps(t) for t in want}), 3)
        most = [len(PROMPT) - 1] * 3
        with self.engine(self.daemon) as a:
            self.assertEqual(self.all(a), (want, [0, 0, 0]))
            self.assertEqual(self.all(a), (want, most))
            with self.engine(self.daemon) as b:  # the same adapters in another engine
                self.assertEqual(self.all(b), (want, most))
        self.make("l2", 3)  # another one in the same place
        with self.engine(self.daemon) as c:
            tokens, cached = self.all(c)
            self.assertEqual((tokens[:2], cached), (want[:2], [*most[:2], 0]))
            self.assertNotEqual(tokens[2], want[2])
        self.assertEqual(self.daemon.held()[1:], (0, 0))


if __name__ == "__main__":
    tap.main()
