# SPDX-License-Identifier: Apache-2.0
"""Transformers' attention function: one layer's job.

In: q [batch, heads, length, head_dim], the new k and v. Out: [batch, length, heads, head_dim].
Next: the daemon.

With an AttndCache (it has marked the keys) the job belongs to the step's plan. Without a cache, as
in encoders or `use_cache=False`, each layer is a plan of its own that leaves nothing behind.
"""

from __future__ import annotations

import secrets
import threading
from typing import Any

import numpy as np
import torch
from transformers import AttentionInterface
from transformers.masking_utils import AttentionMaskInterface

from ... import Connection, ConnectionLost
from ...plan import Plan
from .cache import AttndCache, Step, has_holes
from .model import DTYPES, LayerJobs, check_layers, generation, new_connection, refuse

NAME = "attnd"

# What some models add to the scores, or choose of the keys: arguments that must not be passed over.
_UNKNOWN = ("position_bias", "attention_bias", "head_mask", "indices", "block_indices", "score_mod", "block_mask")


def register() -> None:
    AttentionInterface.register(NAME, attention)
    AttentionMaskInterface.register(NAME, mask)


def mask(
    *_: Any,
    attention_mask: torch.Tensor | None = None,
    batch_size: int = 1,
    kv_length: int = 0,
    local_size: int | None = None,
    use_vmap: bool = False,
    allow_is_causal_skip: bool = True,
    **kwargs: Any,
) -> torch.Tensor | None:
    """The padding mask [batch, kv_length], or None: the rest is in the parameter sets.

    A window shorter than the keys goes with it: not all models tell their layers.
    """
    bidirectional = "allow_is_bidirectional_skip" in kwargs
    if use_vmap or not (allow_is_causal_skip or bidirectional):
        raise refuse("masks other than causal, sliding and padding", 'use attn_implementation="sdpa"')
    window = local_size or 0
    if attention_mask is not None:
        attention_mask = attention_mask[:, -kv_length:]
        if attention_mask.all():
            attention_mask = None
    if 0 < window < kv_length:
        given = torch.ones(batch_size, kv_length, dtype=torch.bool) if attention_mask is None else attention_mask
        attention_mask = given.clone()
        attention_mask.attnd_window = window  # type: ignore[attr-defined]
    return attention_mask


def attention(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: torch.Tensor | None = None,
    is_causal: bool | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
    causal = causal and getattr(module.config, "is_causal", True) is not False
    sliding_window = sliding_window or getattr(attention_mask, "attnd_window", None)
    _check(query, attention_mask, dropout, causal, sliding_window, kwargs)
    cache = getattr(key, "attnd", None)
    settings = (
        query.dtype,
        query.shape[-1] ** -0.5 if scaling is None else float(scaling),
        float(softcap or 0.0),
        int(sliding_window or 0),
        bool(causal),
        s_aux,
    )
    if cache is None:
        if not getattr(module, "_attnd_checked", False):
            check_layers(module.config)
            module._attnd_checked = True
        try:
            return _alone(query, key, value, attention_mask, settings), None
        except ConnectionLost:  # nothing of it was kept: once more at the daemon that came back
            _shapes.made.clear()
            return _alone(query, key, value, attention_mask, settings), None
    assert isinstance(cache, AttndCache)
    if cache.step is None:
        raise RuntimeError(
            "attention outside of a forward pass that was planned: call the model that the cache was made of, "
            "with past_key_values by name"
        )
    if not causal:
        raise refuse("layers that are not causal with a cache", "use_cache=False")
    served = cache.served
    c = served.cache
    shapes = (query.shape[1], *key.shape[1::2], *value.shape[1::2])
    if shapes != (c.num_heads, c.num_kv_heads, c.head_dim, c.num_kv_heads, c.head_dim_v):
        raise refuse("layers of different shapes", 'use attn_implementation="sdpa"')
    if sliding_window and cache.step.holes:
        raise refuse("padding between tokens with sliding windows", "leave it out, or pad on the left")
    index = module.layer_idx
    out = _run(served.layers, index, cache.step, query, key, value, settings)
    cache.ran(index)
    return out, None


def _check(
    query: torch.Tensor, attention_mask: Any, dropout: float, causal: bool, window: int | None, kwargs: dict[str, Any]
) -> None:
    if query.requires_grad and torch.is_grad_enabled():
        raise refuse("gradients", "run under torch.no_grad()")
    if dropout:
        raise refuse("dropout", "call model.eval()")
    if query.dtype not in DTYPES:
        raise refuse(f"queries of {query.dtype}", "use float32, float16 or bfloat16")
    if query.device.type != "cpu":
        raise refuse(f"tensors on {query.device.type}", "attention runs on the CPU")
    if attention_mask is not None and attention_mask.ndim != 2:
        raise refuse("attention masks of more than two dimensions", "give the padding mask [batch, length]")
    if window and not causal:
        raise refuse("sliding windows that are not causal", 'use attn_implementation="sdpa"')
    if unknown := [name for name in _UNKNOWN if kwargs.get(name) is not None]:
        raise refuse(f"layers with {', '.join(unknown)}", 'use attn_implementation="eager"')
    if torch.is_autocast_enabled("cpu"):
        raise refuse("autocast", "load the model in the type to compute in")
    if kwargs.get("output_attentions"):
        raise refuse("output_attentions", 'use attn_implementation="eager"')


# ---- A job ----


def _run(
    jobs: LayerJobs,
    index: int,
    step: Step,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    settings: tuple[Any, ...],
) -> torch.Tensor:
    """The layer's output, [batch, length, heads, head_dim_v]; zeros where there is no token."""
    with jobs.lock:
        return _locked(jobs, index, step, query, key, value, settings)


def _locked(
    jobs: LayerJobs,
    index: int,
    step: Step,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    settings: tuple[Any, ...],
) -> torch.Tensor:
    _, params, copied, layer = jobs.get(index, *settings)
    batch, heads, length, _ = query.shape
    if step.tokens is None and (batch == 1 or length == 1):
        out = torch.empty((batch * length, heads, value.shape[-1]), dtype=query.dtype)
        copied.run(step.plan, *(_rows(x) for x in (query, key, value)), out)
        return out.view(batch, length, heads, -1)
    # Into the arena by torch, which has threads for it; out is arena memory of its own.
    a: Connection = params.cache.connection
    n = step.num_tokens
    assert jobs.staging is not None
    s = jobs.staging
    s.ensure(n)
    assert s.v is not None
    for to, x in ((s.q, query), (s.k, key), (s.v, value)):
        rows = x.transpose(1, 2)
        target = to.torch()[:n]
        if step.tokens is None:
            target.view(rows.shape).copy_(rows)
        else:
            target.copy_(rows[step.tokens])
    result = a.empty((n, heads, value.shape[-1]), params.out_dtype)
    layer.bind(s.q, s.k, s.v, result)
    try:
        layer.run(step.plan)
    finally:
        layer.bind()  # result is the caller's alone
    if step.tokens is None:
        return result.torch().view(batch, length, heads, -1)
    out = query.new_zeros((batch, length, heads, value.shape[-1]))
    out[step.tokens] = result.torch()
    return out


def _rows(x: torch.Tensor) -> torch.Tensor:
    """[batch, heads, length, dim] with one row or one token in each, as [tokens, heads, dim]; a view."""
    return x[:, :, 0] if x.shape[2] == 1 else x[0].transpose(0, 1)


# ---- Without a cache ----


class _Alone:
    """A connection and a one-layer cache for attention of this shape that nobody shares."""

    def __init__(self, heads: int, kv_heads: int, dim: int, dim_v: int, dtype: torch.dtype) -> None:
        self.generation = generation()
        self.connection = new_connection()
        self.cache = self.connection.cache(
            "hf-alone",
            fingerprint=secrets.token_bytes(16),
            num_layers=1,
            num_heads=heads,
            num_kv_heads=kv_heads,
            head_dim=dim,
            head_dim_v=dim_v,
            kv_dtype=dtype,
        )
        self.jobs = LayerJobs(self.cache, None)
        self.keys: list[int] = []

    def sequences(self, num: int) -> list[int]:
        while len(self.keys) < num:
            self.keys.append(self.connection.sequence().key)
        return self.keys[:num]


class _Shapes(threading.local):
    """Each thread's."""

    def __init__(self) -> None:
        self.made: dict[tuple[Any, ...], _Alone] = {}

    def get(self, shape: tuple[Any, ...]) -> _Alone:
        found = self.made.get(shape)
        if found is None or found.generation is not generation():
            found = self.made[shape] = _Alone(*shape)
        return found


_shapes = _Shapes()


def _alone(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    settings: tuple[Any, ...],
) -> torch.Tensor:
    batch, heads, length, dim = query.shape
    if key.shape[2] != length:
        raise refuse("another Cache or cross-attention", "use an AttndCache, or use_cache=False")
    if key.shape[:3] != value.shape[:3] or key.shape[-1] != dim:
        raise refuse("q, k and v of different shapes", 'use attn_implementation="eager"')
    alone = _shapes.get((heads, key.shape[1], dim, value.shape[-1], query.dtype))
    valid = np.ones((batch, length), bool) if attention_mask is None else attention_mask.numpy().astype(bool)
    counts = valid.sum(1)
    if settings[3] and has_holes(valid):
        raise refuse("padding between tokens with sliding windows", "leave it out, or pad on the left")
    used = np.flatnonzero(counts)
    if not len(used):
        return query.new_zeros((batch, length, heads, value.shape[-1]))
    n = int(counts.sum())
    keys = np.array(alone.sequences(batch), np.uint64)[used]
    plan: Plan = alone.cache.plan_arrays(
        keys,
        np.zeros(len(used)),
        counts[used],
        np.arange(n),
        np.zeros(len(used)),
        causal=settings[4],
    )
    step = Step(plan, None if valid.all() else torch.from_numpy(valid), n, 0)
    try:
        return _run(alone.jobs, 0, step, query, key, value, settings)
    finally:
        plan.end()


