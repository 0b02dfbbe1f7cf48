#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""SGLang's own cases of dense attention, windows among them, run on attnd's backend.

In: its cases, modules and reference (sglang/test/kits/attention_unittest). Out: TAP. Next: prove.

Their backends are handed KV of tokens that came before in SGLang's pool; here it comes by a step of
its own. Pages are one token. Their other folders are of latent attention and state-space models,
which attnd refuses, and of CUDA graphs and drafts.
"""

import dataclasses
import sys
import unittest
from pathlib import Path
from types import SimpleNamespace

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import kit  # noqa: E402
from kit import tap  # noqa: E402

kit.without_gpu_packages()

import torch  # noqa: E402
from sglang.srt.layers.attention.attention_registry import ATTENTION_BACKENDS  # noqa: E402
from sglang.srt.model_executor.forward_batch_info import ForwardMode  # noqa: E402
from sglang.srt.model_executor.forward_context import ForwardContext, forward_context  # noqa: E402
from sglang.test.kits.attention_unittest.attention_methods import dense_attention as dense  # noqa: E402

import attnd  # noqa: E402
from attnd.integrations.sglang import NAME, backend  # noqa: E402
from attnd.integrations.sglang.session import Session  # noqa: E402

LAYOUTS = ("contiguous", "shuffled_pages")  # of slots, which are nothing to attnd
TYPES = (torch.float16, torch.bfloat16, torch.float32)


class Pool(backend.AttndKVPool):
    """Takes what the fixture would write into SGLang's pool, and does not write it."""

    def __init__(self):
        pass

    def set_kv_buffer(self, *_, **__):
        pass


def with_attnd(runner):
    runner.token_to_kv_pool = Pool()
    runner.weight_updater = runner.lora_manager = None
    return backend.AttndBackend(runner)


class Dense(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        ATTENTION_BACKENDS[NAME] = with_attnd
        cls.daemon = kit.Daemon()
        cls.addClassCleanup(cls.daemon.close)
        cls.connection = attnd.connect(str(cls.daemon.socket))
        cls.addClassCleanup(cls.connection.close)

    @classmethod
    def tearDownClass(cls):
        """It was attnd that computed them."""
        counters = cls.daemon.ctl("status")["counters"]
        assert counters["decode_jobs"] and counters["extend_jobs"] and not counters["failed_jobs"], counters

    def before(self, f):
        """The step that brings the rows' prefixes."""
        rows = [i for i, n in enumerate(f.case.prefix_lens) if n]
        if not rows:
            return
        lens = [f.case.prefix_lens[i] for i in rows]
        batch = SimpleNamespace(
            forward_mode=ForwardMode.EXTEND,
            batch_size=len(rows),
            req_pool_indices=torch.tensor(rows),
            rids=None,
            input_ids=torch.arange(sum(lens)),
            extend_prefix_lens_cpu=[0] * len(rows),
            extend_seq_lens_cpu=lens,
        )
        q, k, v = f.actual_module.project_qkv(torch.cat([f.prefix_hidden[i] for i in rows]))
        with forward_context(ForwardContext(attn_backend=f.backend)):
            f.backend.init_forward_metadata(batch)
            f.backend.forward_extend(q, k, v, f.actual_module.attn, batch)

    def case(self, case, dtype, layout):
        case = dataclasses.replace(case, backend=NAME, page_size=1)
        cache = self.connection.cache(
            f"{case.num_heads}-{case.num_kv_heads}-{dtype}",
            num_layers=1,
            num_heads=case.num_heads,
            num_kv_heads=case.num_kv_heads,
            head_dim=dense.DEFAULT_HEAD_DIM,
            kv_dtype=str(dtype).removeprefix("torch."),
        )
        Session.current = Session(self.connection, cache)
        try:
            with torch.no_grad():
                f = dense.build_dense_attention_fixture(self, case, dtype=dtype, device="cpu", loc_layout=layout)
                f.backend.layers = [f.actual_module.attn]
                self.before(f)
                got, want = dense.run_dense_fixture_eager(f), dense.expected_dense_fixture_output(f)
            torch.testing.assert_close(got, want, atol=dense.DENSE_ATOL, rtol=dense.DENSE_RTOL)
            Session.current.new_epoch()
            for row in list(Session.current.rows):
                Session.current.release(row)
        finally:
            Session.current = None

    def cases(self, made):
        for case in made(NAME):
            for dtype in TYPES:
                for layout in LAYOUTS:
                    with self.subTest(case.name, dtype=dtype, layout=layout):
                        self.case(case, dtype, layout)

    def test_input_layouts(self):
        self.cases(dense.make_dense_input_config_cases)

    def test_head_layouts(self):
        self.cases(dense.make_dense_attention_config_cases)

    def test_windows(self):
        self.cases(dense.make_swa_no_prefix_input_config_cases)
        self.cases(dense.make_swa_prefix_input_config_cases)


if __name__ == "__main__":
    tap.main()
