#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What is refused and says what to change, what follows from the one option, what happens without it.

In: SGLang's arguments; engines that do not start. Out: TAP. Next: prove.
"""

import json
import subprocess
import sys
import unittest

import kit
from kit import tap

REFUSED = {
    "speculation": ({"speculative_algorithm": "NGRAM"}, "drop --speculative-algorithm"),
    "tiers": ({"enable_hierarchical_cache": True}, "drop --enable-hierarchical-cache"),
    "another cache": ({"enable_lmcache": True}, "drop --enable-lmcache"),
    "another tree": ({"disable_radix_cache": True}, "drop --disable-radix-cache"),
    "prefill apart": ({"disaggregation_mode": "prefill"}, "drop --disaggregation-mode"),
    "pages": ({"page_size": 16}, "drop --page-size"),
    "two backends": ({"decode_attention_backend": "torch_native"}, "drop --decode-attention-backend"),
    "half of it": ({"attention_backend": "torch_native", "decode_attention_backend": "attnd"}, "use --attention-backend attnd alone"),
    "pipelines": ({"pp_size": 2}, "use --pp-size 1"),
    "replicas inside": ({"dp_size": 2}, "start one engine for each replica"),
    "torch.compile": ({"enable_torch_compile": True}, "drop --enable-torch-compile"),
    "small KV": ({"kv_cache_dtype": "fp8_e5m2"}, "drop --kv-cache-dtype"),
    "embeddings": ({"is_embedding": True}, "use another backend"),
}  # fmt: skip

# SGLang's arguments as its launcher settles them: an error, or what became of some.
SETTLE = """
import json, sys
from sglang.srt.plugins import load_plugins
load_plugins()
from sglang.srt.server_args import ServerArgs
for given in json.loads(sys.argv[1]):
    try:
        a = ServerArgs(**given)
        a.resolve_once()
        a = a.resolved_dict()
        out = {n: a[n] for n in ("attention_backend", "radix_cache_backend", "page_size", "max_running_requests")}
    except Exception as e:
        out = f"{type(e).__name__}: {e}"
    print("\\x1e" + json.dumps(out))
"""


def settle(*given):
    r = subprocess.run(
        [sys.executable, "-c", SETTLE, json.dumps(given)], env=kit.environment(), capture_output=True, text=True
    )
    return [json.loads(line[1:]) for line in r.stdout.split("\n") if line.startswith(kit.EVENT)], r.stderr


class Start(unittest.TestCase):
    def fails(self, daemon=None, **options):
        """The text of an engine that does not start."""
        e = kit.Engine(daemon, **options)
        try:
            with self.assertRaises(RuntimeError):
                e.up()
            return e.text()
        finally:
            e.close()

    def test_refused(self):
        answers, log = settle(*[kit.arguments(**more) for more, _ in REFUSED.values()])
        self.assertEqual(len(answers), len(REFUSED), log[-3000:])
        for (name, (_, advice)), said in zip(REFUSED.items(), answers, strict=True):
            with self.subTest(name):
                self.assertIn("ValueError: --attention-backend attnd:", said)
                self.assertIn(advice, said)

    def test_one_option(self):
        bare = {"model_path": str(kit.MODEL), "skip_tokenizer_init": True, "device": "cpu"}
        (with_it, without), _ = settle(
            {**bare, "attention_backend": "attnd"}, {**bare, "attention_backend": "torch_native"}
        )
        self.assertEqual(
            (with_it["radix_cache_backend"], with_it["page_size"], with_it["max_running_requests"]), ("attnd", 1, 64)
        )
        self.assertEqual((without["radix_cache_backend"], without["max_running_requests"]), (None, None))

    def test_no_daemon(self):
        log = self.fails(env={"ATTND_SOCKET": "/nonexistent/attnd.sock"})
        self.assertIn("--attention-backend attnd: no daemon", log)
        self.assertIn("start attnd, or set ATTND_SOCKET", log)

    def test_room(self):
        with kit.Daemon(pool="16M") as daemon:
            self.assertIn("lower --max-total-tokens", self.fails(daemon, max_total_tokens=100000))
            with kit.Engine(daemon, max_total_tokens=None) as a:  # half of it unless told otherwise
                self.assertEqual(len(a.wait(a.generate([1, 2, 3], 4))["tokens"]), 4)
                with kit.Engine(daemon, max_total_tokens=None) as b:  # and a second fits beside
                    self.assertEqual(b.wait(b.generate([1, 2, 3], 4))["cached"], 2)

    def test_inert(self):
        """Installed, but not chosen: no connection, SGLang as it is."""
        with kit.Daemon() as daemon, kit.Engine(daemon, attention_backend="torch_native") as e:
            self.assertEqual(len(e.wait(e.generate([1, 2, 3], 4))["tokens"]), 4)
            self.assertEqual(daemon.ctl("status")["sessions"], 0)
            self.assertNotIn("attnd:", e.text())

    def test_versions(self):
        check = "import sglang.version as v; v.__version__ = '9.9'; from attnd.integrations.sglang import options; options._check_version()"
        r = subprocess.run([sys.executable, "-c", check], env=kit.environment(), capture_output=True, text=True)
        self.assertIn("SGLang 9.9 was not tested, 0.5.23 was", r.stderr)


if __name__ == "__main__":
    tap.main()
