#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""SGLang's own kits against servers on attnd, in the settings that its own tests give them.

In: sglang/test/kits of the installed SGLang; a model that knows what they ask. Out: TAP. Next: prove.

Not run, of what is in that folder:
- what loads a GPU's kernels or measures a GPU: dsa_metadata, fwd_occupancy, perf_bench, vlm_perf;
- what fetches weights or data sets to score a model: eval_accuracy, lm_eval, mmmu_vlm, reasoning, and
  test_gsm8k of unified_radix_cache;
- what attnd refuses (docs/sglang.md): pd_parity (prefill and decode apart), spec_decoding and spec_server
  (drafts), streaming_session, test_l3_prefetch of unified_radix_cache (hierarchical caches);
- what tests SGLang's own tree, which attnd's takes the place of: the folder unified_radix_cache;
- prefix_cache_branching: of state-space models, whose hits are whole chunks; attnd hits at any token;
- anthropic_messages: forms of the HTTP front end, with a client's package that SGLang's does not bring.
"""

import json
import random
import shutil
import sys
import tempfile
import unittest
from itertools import product
from pathlib import Path
from types import SimpleNamespace

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import kit  # noqa: E402
from kit import tap  # noqa: E402

kit.without_gpu_packages()
sys.modules["datasets"] = SimpleNamespace(load_dataset=None)  # imported beside what is used here

import heart  # noqa: E402
import openai  # noqa: E402
from servers import Server  # noqa: E402
from sglang.test import kl_test_utils  # noqa: E402
from sglang.test.kits.abort_timeout_kit import (  # noqa: E402
    AbortAllMixin,
    RunningTimeoutTwoWaveMixin,
    WaitingTimeoutMixin,
)
from sglang.test.kits.basic_api_contract_kit import BasicAPIContractMixin  # noqa: E402
from sglang.test.kits.basic_decode_correctness_kit import BasicDecodeCorrectnessMixin  # noqa: E402
from sglang.test.kits.basic_scheduler_stress_kit import BasicSchedulerStressMixin  # noqa: E402
from sglang.test.kits.cache_hit_kit import run_multiturn_cache_hit_test  # noqa: E402
from sglang.test.kits.ebnf_constrained_kit import EBNFConstrainedMixin  # noqa: E402
from sglang.test.kits.json_constrained_kit import JSONConstrainedMixin  # noqa: E402
from sglang.test.kits.json_mode_kit import JSONModeMixin  # noqa: E402
from sglang.test.kits.kl_divergence_kit import KLDivergenceMixin  # noqa: E402
from sglang.test.kits.matched_stop_kit import MatchedStopMixin  # noqa: E402
from sglang.test.kits.pause_generation_kit import PauseResumeInPlaceMixin  # noqa: E402
from sglang.test.kits.radix_cache_server_kit import run_radix_attention_test  # noqa: E402
from sglang.test.kits.regex_constrained_kit import RegexConstrainedMixin  # noqa: E402
from sglang.test.kits.unified_radix_cache_kit import UnifiedRadixTreeTestMixin  # noqa: E402
from sglang.test.test_utils import run_logprob_check  # noqa: E402
from transformers import AutoTokenizer  # noqa: E402

NEAR = 1e-8  # of KL divergence, between decode steps and the same tokens read at once, in f32


def setUpModule():
    for name, module in sys.modules.items():
        if name.startswith("sglang.test.kits.") and hasattr(module, "_REQUEST_TIMEOUT"):
            module._REQUEST_TIMEOUT = kit.PATIENCE
    folder = tempfile.mkdtemp(prefix="attnd-own-")
    unittest.addModuleCleanup(shutil.rmtree, folder)
    heart.make(folder)
    Server.model = folder
    Server.tokenizer = AutoTokenizer.from_pretrained(folder)


class Radix:
    def test_radix_attention(self):
        """A tree of 400 prompts at once."""
        random.seed(1)
        run_radix_attention_test(self.base_url)


class Multiturn:
    def test_multiturn_cache_hit(self):
        pairs = [{"conversations": [{"value": f"{q} {i}"}, {"value": a}]} for i in range(4) for q, a in heart.lessons()]
        with tempfile.NamedTemporaryFile("w", suffix=".json") as data:
            json.dump(pairs, data)
            data.flush()
            run_multiturn_cache_hit_test(self.base_url, self.model, dataset_path=data.name)


class Defaults(
    BasicAPIContractMixin,
    BasicDecodeCorrectnessMixin,
    BasicSchedulerStressMixin,
    MatchedStopMixin,
    PauseResumeInPlaceMixin,
    AbortAllMixin,
    EBNFConstrainedMixin,
    RegexConstrainedMixin,
    JSONConstrainedMixin,
    JSONModeMixin,
    Server,
):
    pause_ignore_eos = True

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.client = openai.Client(api_key="EMPTY", base_url=cls.base_url + "/v1")
        cls.addClassCleanup(cls.client.close)

    def test_logprobs(self):
        for arg in product((32, 300), (1, 20), (0, 0.7), (0, 10), (True, False), (0, 5)):
            with self.subTest(arg):
                run_logprob_check(self, arg)


class ChunksMixedRetracted(
    BasicDecodeCorrectnessMixin,
    BasicSchedulerStressMixin,
    MatchedStopMixin,
    Radix,
    Multiturn,
    Server,
):
    options = "--chunked-prefill-size 128 --enable-mixed-chunk --schedule-policy lpm"
    tokens = 20000
    env = kit.RETRACT

    @classmethod
    def tearDownClass(cls):
        super().tearDownClass()
        assert "retract" in cls.text().lower()


class NoOverlap(
    BasicDecodeCorrectnessMixin,
    BasicSchedulerStressMixin,
    AbortAllMixin,
    Radix,
    Multiturn,
    Server,
):
    options = "--chunked-prefill-size 32 --disable-overlap-schedule"
    tokens = 20000


class Logprobs(KLDivergenceMixin, UnifiedRadixTreeTestMixin, Server):
    """What is decoded over hits of all lengths is what the same tokens are worth when they are read at once."""

    options = "--chunked-prefill-size 256"
    kl_div_thres = kl_threshold = NEAR
    kl_div_prefill_max_new_tokens = kl_div_decode_max_new_tokens = max_new_tokens = 96
    test_gsm8k = None

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        rnd = random.Random(1)
        n, length = kl_test_utils.DEFAULT_NUM_SAMPLES, kl_test_utils.DEFAULT_PROMPT_TOKENS
        lengths = [rnd.randrange(600, 1200) for _ in range(n)]
        cls.input_ids = [[rnd.randrange(3, heart.VOCABULARY) for _ in range(m)] for m in lengths]
        # In the place of the texts that it would fetch.
        kl_test_utils._cached_input_ids[f"{cls.model}_{length}_{n}"] = cls.input_ids


class WaitingTimeout(WaitingTimeoutMixin, Server):
    rows = 1
    env = {"SGLANG_REQ_WAITING_TIMEOUT": "0.2"}


class RunningTimeout(RunningTimeoutTwoWaveMixin, Server):
    env = {"SGLANG_REQ_RUNNING_TIMEOUT": "2"}


if __name__ == "__main__":
    tap.main()
