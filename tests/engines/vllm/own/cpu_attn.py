# SPDX-License-Identifier: Apache-2.0
"""A pytest plug-in: the grid and reference of vLLM's own test of CPU attention, computed by attnd.

In: kernels/attention/test_cpu_attn.py. Out: its kernel is the backend's layer on a daemon, of its
cases those that attnd serves, a sample of them (all with TEST_LONG=1). Next: own.sh.

The test calls the kernel twice. The first time all rows are one step; the second they are rolled
back and come in chunks.
"""

import contextlib
import os
import random
import uuid
from types import SimpleNamespace as Thing
from unittest import mock

import numpy as np
import torch

FILE = "test_cpu_attn"
# A step's rows where a case has no say: what is in the cache already, the second call's chunks.
CONTEXT, CHUNK = 2048, 700
SAMPLE = 6  # cases of each of its tests
LAYER = "layers.0.attn"
ELSEWHERE = ("_amx", "_amx_fp8", "_neon", "_rvv", "_dynamic_causal")


class Layer:
    """One layer of a model of one layer, and the step that runs it: a session of the engine."""

    def __init__(self, engine, shape, dtype, rows, block_size, scale, **kw):
        from attnd.integrations.vllm.backend import AttndBuilder, AttndImpl
        from attnd.integrations.vllm.worker import Worker

        heads, kv_heads, dim = shape
        model = Thing(
            dtype=dtype, hf_config=Thing(model_type="grid"), hf_text_config=None,
            get_num_layers=lambda _: 1, get_num_attention_heads=lambda _: heads,
            get_num_kv_heads=lambda _: kv_heads, get_head_size=lambda: dim,
        )  # fmt: skip
        self.impl = AttndImpl(heads, dim, scale, kv_heads, **kw)
        self.layer = Thing(impl=self.impl, head_size=dim, head_size_v=dim, layer_name=LAYER)
        config = Thing(
            model_config=model, parallel_config=Thing(tensor_parallel_size=1), load_config=Thing(load_format="dummy"),
            scheduler_config=Thing(max_num_batched_tokens=rows), cache_config=Thing(cache_dtype="auto"),
            kv_transfer_config=Thing(engine_id=engine), compilation_config=Thing(static_forward_context={LAYER: self.layer}),
        )  # fmt: skip
        with (
            mock.patch("vllm.distributed.parallel_state.get_tensor_model_parallel_rank", lambda: 0),
            mock.patch("attnd.integrations.vllm.worker.attention_layers", lambda context: list(context.items())),
        ):
            self.worker = Worker(config)
        self.builder = Thing(kv_cache_spec=Thing(block_size=block_size))
        self.build = AttndBuilder.build

    def step(self, keys, starts, q, k, v, counts):
        """Rows of some sequences, one after another; their outputs."""
        from attnd.integrations.vllm.admission import Rows

        n, blocks = len(keys), np.arange(len(keys))
        offsets = np.concatenate(([0], np.cumsum(counts)))
        lens = torch.tensor(starts + counts, dtype=torch.int32)
        # A row is known by its last block.
        table = torch.tensor(blocks)[:, None].expand(n, int(lens.max()))
        common = Thing(
            causal=True, num_reqs=n, seq_lens=lens, query_start_loc_cpu=torch.tensor(offsets), block_table_tensor=table,
            num_actual_tokens=len(q),
        )  # fmt: skip
        metadata = self.build(self.builder, 0, common)
        tokens = np.concatenate([np.arange(s, s + c) for s, c in zip(starts, counts, strict=True)])
        rows = Rows([str(x) for x in keys], blocks, keys, starts.astype(np.uint64), counts.astype(np.uint32),
                    np.zeros(n, np.uint64), offsets[:-1].astype(np.uint64), tokens, b"")  # fmt: skip
        out = torch.full_like(q, torch.nan)
        forward = Thing(attn_metadata={LAYER: metadata})
        with (
            mock.patch("vllm.forward_context.get_forward_context", lambda: forward),
            mock.patch("attnd.integrations.vllm.backend.get_kv_transfer_group", lambda: self),
        ):
            self.worker.begin(rows)
            self.impl.forward(self.layer, q, k, v, None, metadata, out)
        lost = self.worker.finish()
        assert not lost, lost
        return out


class Kernel:
    """What the test calls."""

    def __init__(self):
        self.kv = self.case = None
        self.open = contextlib.ExitStack()

    def reshape_and_cache(self, key, value, key_cache, value_cache, slot_mapping, isa):
        assert torch.equal(slot_mapping, torch.arange(len(key)))
        self.open.close()
        self.kv, self.case, self.block_size = (key, value), None, key_cache.shape[2]

    def attention(
        self, query, key_cache, value_cache, output, query_start_loc, seq_lens, scale, causal, alibi_slopes, sliding_window,
        block_table, softcap, scheduler_metadata, s_aux, dynamic_causal=None,
    ):  # fmt: skip
        assert causal and dynamic_causal is None
        again = self.case is not None
        if not again:
            self.begin(query, query_start_loc, seq_lens, block_table, scale=scale, sliding_window=max(sliding_window, 0),
                       logits_soft_cap=softcap, sinks=s_aux,
                       alibi_slopes=None if alibi_slopes is None else alibi_slopes.tolist())  # fmt: skip
        layer, keys, lens, counts, kv = self.case
        done = np.zeros_like(counts)
        ends = np.cumsum(counts)
        while (left := counts - done).any():
            some = np.flatnonzero(left)
            n = np.minimum(left, CHUNK)[some] if again else left[some]
            starts = (lens - left)[some]
            own = np.concatenate([np.arange(c) + ends[i] - left[i] for i, c in zip(some, n, strict=True)])
            at = [torch.arange(s, s + c) for s, c in zip(starts, n, strict=True)]
            k, v = (torch.cat([x[i][a] for i, a in zip(some, at, strict=True)]) for x in kv)
            output[own] = layer.step(keys[some], starts, query[own], k, v, n)
            done[some] += n

    def begin(self, query, query_start_loc, seq_lens, block_table, **kw):
        """Put what the case has in its cache into the daemon's, by a layer that looks at nothing else."""
        engine, (key, value) = str(uuid.uuid4()), self.kv
        shape = (query.shape[1], key.shape[1], query.shape[2])
        made = [
            Layer(engine, shape, query.dtype, rows, self.block_size, **arguments)
            for rows, arguments in ((len(query), kw), (CONTEXT, dict(scale=1.0, sliding_window=1)))
        ]
        for layer in made:
            self.open.callback(layer.worker.link.close)
        layer, filler = made
        lens, counts = seq_lens.numpy().astype(np.int64), np.diff(query_start_loc.numpy()).astype(np.int64)
        kv = [[], []]
        keys = np.empty(len(lens), np.uint64)
        for i, n in enumerate(lens):
            slots = (block_table[i].long()[:, None] * self.block_size + torch.arange(self.block_size)).flatten()[:n]
            for own, all_ in zip(kv, (key, value), strict=True):
                own.append(all_[slots])
            keys[i] = layer.worker.connection.sequence([], max_match=0).key
            for at in range(0, n - counts[i], CONTEXT):
                some = slice(at, min(at + CONTEXT, n - counts[i]))
                k, v = kv[0][i][some], kv[1][i][some]
                q = torch.zeros(len(k), *query.shape[1:], dtype=query.dtype)
                filler.step(keys[i : i + 1], np.array([at]), q, k, v, np.array([len(k)]))
        self.case = layer, keys, lens, counts, kv


def served(item):
    """Causal attention over KV of the computing type; tests of one instruction set repeat the grid of another."""
    name, kind = item.originalname, getattr(item, "callspec", Thing(params={})).params.get("kv_cache_dtype", "auto")
    return name.startswith("test_varlen_with_paged_kv") and not name.endswith(ELSEWHERE) and kind == "auto"


def pytest_collection_modifyitems(config, items):
    mine = [x for x in items if x.module.__name__.endswith(FILE)]
    if not mine:
        return
    chosen = [x for x in mine if served(x)]
    if not os.environ.get("TEST_LONG"):
        tests = {}
        for x in chosen:
            tests.setdefault(x.originalname, []).append(x)
        chosen = [x for all_ in tests.values() for x in random.Random(7).sample(all_, min(SAMPLE, len(all_)))]
    config.hook.pytest_deselected(items=[x for x in mine if x not in chosen])
    items[:] = [x for x in items if x not in mine or x in chosen]
    kernel, module = Kernel(), mine[0].module
    module.cpu_attn_reshape_and_cache = kernel.reshape_and_cache
    module.cpu_attention_with_kv_cache = kernel.attention
    module.cpu_attn_get_scheduler_metadata = lambda **_: None
