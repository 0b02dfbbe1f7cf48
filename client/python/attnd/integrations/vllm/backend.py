# SPDX-License-Identifier: Apache-2.0
"""vLLM's attention backend: each layer's q, k, v go to this process's worker.

In: vLLM's attention layers and the metadata of each batch. Out: outputs. Next: worker.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from vllm.distributed.kv_transfer import get_kv_transfer_group
from vllm.v1.attention.backend import (
    AttentionBackend,
    AttentionImpl,
    AttentionMetadata,
    AttentionMetadataBuilder,
    AttentionType,
)
from vllm.v1.kv_cache_interface import FullAttentionSpec

from . import NAME
from .checks import refuse


class AttndBackend(AttentionBackend):
    forward_includes_kv_cache_update = True
    supported_dtypes = [torch.float32, torch.bfloat16, torch.float16]
    supported_kv_cache_dtypes = ["auto", "float32", "float16", "bfloat16"]

    @staticmethod
    def get_name() -> str:
        return NAME

    @staticmethod
    def get_impl_cls() -> type[AttndImpl]:
        return AttndImpl

    @staticmethod
    def get_builder_cls() -> type[AttndBuilder]:
        return AttndBuilder

    @classmethod
    def supports_head_size(cls, head_size: int) -> bool:
        return 0 < head_size <= 576

    @classmethod
    def supports_sink(cls) -> bool:
        return True

    @classmethod
    def supports_sliding_window(cls) -> bool:
        return True

    @classmethod
    def customize_spec(cls, spec: Any) -> FullAttentionSpec:
        """One byte a token, and one group of all layers: vLLM's blocks are a budget, not a place."""
        return FullAttentionSpec(
            block_size=spec.block_size,
            num_kv_heads=1,
            head_size=1,
            head_size_v=1,
            dtype=torch.int8,
            num_head_slots=1,
            state_content_bytes=1,
            tokens_per_state=spec.block_size,
        )


@dataclass
class AttndMetadata(AttentionMetadata):
    num_tokens: int
    decode: bool  # every row has one token
    counts: np.ndarray
    last_block: np.ndarray


class AttndBuilder(AttentionMetadataBuilder[AttndMetadata]):
    def __init__(self, kv_cache_spec: Any, layer_names: list[str], vllm_config: Any, device: torch.device) -> None:
        super().__init__(kv_cache_spec, layer_names, vllm_config, device)

    def build(self, common_prefix_len: int, common_attn_metadata: Any, fast_build: bool = False) -> AttndMetadata:
        c = common_attn_metadata
        if c.causal is not True:
            raise refuse("a batch that is not causal", "serve this model with vLLM's own CPU backend")
        n = c.num_reqs
        lens = c.seq_lens[:n].numpy()
        starts = c.query_start_loc_cpu[: n + 1].numpy()
        # With vLLM's own prefix cache off, a row's last block is its alone: it names the request.
        last = c.block_table_tensor.numpy()[np.arange(n), (lens - 1) // self.kv_cache_spec.block_size]
        return AttndMetadata(c.num_actual_tokens, c.num_actual_tokens == n, np.diff(starts), last.copy())


class AttndImpl(AttentionImpl[AttndMetadata]):
    def __init__(
        self,
        num_heads: int,
        head_size: int,
        scale: float,
        num_kv_heads: int | None = None,
        alibi_slopes: list[float] | None = None,
        sliding_window: int | None = None,
        kv_cache_dtype: str = "auto",
        logits_soft_cap: float | None = None,
        attn_type: str = AttentionType.DECODER,
        kv_sharing_target_layer_name: str | None = None,
        sinks: torch.Tensor | None = None,
        **unknown: Any,
    ) -> None:
        asked = [name for name, value in unknown.items() if value]
        if asked:
            raise refuse(f"a layer asks for {', '.join(asked)}", "serve this model with vLLM's own CPU backend")
        if attn_type != AttentionType.DECODER:
            raise refuse(f"attention of type {attn_type}", "serve this model with vLLM's own CPU backend")
        self.num_heads = num_heads
        self.num_kv_heads = num_kv_heads or num_heads
        self.head_size = head_size
        self.scale = float(scale)
        self.alibi_slopes = alibi_slopes
        self.sliding_window = sliding_window
        self.kv_cache_dtype = kv_cache_dtype
        self.logits_soft_cap = logits_soft_cap
        self.kv_sharing_target_layer_name = kv_sharing_target_layer_name
        self.sinks = sinks

    def forward(
        self,
        layer: Any,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        kv_cache: torch.Tensor,
        attn_metadata: AttndMetadata | None,
        output: torch.Tensor,
        output_scale: torch.Tensor | None = None,
        output_block_scale: torch.Tensor | None = None,
    ) -> torch.Tensor:
        if attn_metadata is None:  # a run that warms up
            return output.fill_(0)
        worker = get_kv_transfer_group().worker
        worker.attend(layer.layer_name, query, key, value, output, attn_metadata)
        return output
