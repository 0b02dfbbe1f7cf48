# SPDX-License-Identifier: Apache-2.0
"""A rank's side: a plan a step, a job a layer.

In: the scheduler's rows, vLLM's attention metadata, q, k, v of each layer. Out: attention outputs;
which requests the daemon could not serve. Next: the daemon, by attnd_plan_async and
attnd_attend_copied.

Decode costs one C call a layer. A prefill's rows are copied into the arena by torch, whose threads
share the work.
"""

from __future__ import annotations

import ctypes
import errno
import logging
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

import attnd
from attnd import _lib

from .checks import refuse
from .link import AWAY, PATIENCE_S, Link

if TYPE_CHECKING:
    from vllm.config import VllmConfig

    from .admission import Rows
    from .backend import AttndImpl, AttndMetadata

logger = logging.getLogger("vllm.attnd")

# Rows that are copied by one thread, inside the C call.
FEW_ROWS = 64
# The one plan of this session: a new one ends what is left of the last.
TAG = 1


@dataclass
class _Layer:
    job: Any  # attnd_copied, prepared
    ref: Any
    no_kv: bool


class Worker:
    def __init__(self, config: VllmConfig) -> None:
        from vllm.distributed.parallel_state import get_tensor_model_parallel_rank

        rank = get_tensor_model_parallel_rank()
        self.link = Link(config, f"vllm-{rank}")
        self.connection = self.link.connection
        self.cache = self.link.caches[rank]
        self._lib = self.connection._lib
        self._attend = self._lib.attnd_attend_copied
        self._capacity = config.scheduler_config.max_num_batched_tokens
        self._dtype = config.model_config.dtype
        self._away_since: float | None = None
        self._rows: Rows | None = None
        self._order: list[str] = []
        self._plan: attnd.Plan | None = None
        self._failure: str | None = None
        self._epoch = b""
        self._stale: bytes | None = None  # the epoch in which weights were exchanged
        self._renew = False  # sinks are weights, and parameter sets have copies
        self._buffers()
        self._modules = attention_layers(config.compilation_config.static_forward_context)
        self._sets: list[int] = []  # numbers of parameter sets
        self._layers = self._prepare()

    # ---- Once ----

    def _buffers(self) -> None:
        """Rows of one layer; every layer's job has been waited for before the next one's."""
        c, kind, n = self.cache, str(self._dtype).removeprefix("torch."), self._capacity
        self._q = self.connection.empty((n, c.num_heads, c.head_dim), kind)
        self._k = self.connection.empty((n, c.num_kv_heads, c.head_dim), kind)
        self._v = self.connection.empty((n, c.num_kv_heads, c.head_dim_v), kind)
        self._out = self.connection.empty((n, c.num_heads, c.head_dim_v), kind)
        self._views = tuple(a.torch() for a in (self._q, self._k, self._v, self._out))
        self._itemsize = self._q.dtype.itemsize

    def _prepare(self) -> dict[str, _Layer]:
        from vllm.model_executor.models.utils import extract_layer_index

        found = [(name, m.impl) for name, m in self._modules]
        found.sort(key=lambda item: extract_layer_index(item[0]))
        owners = [name for name, impl in found if impl.kv_sharing_target_layer_name is None]
        self._check(found, len(owners))
        number = {name: i for i, name in enumerate(owners)}
        sets: dict[Any, attnd.Params] = {}
        layers = {}
        for i, (name, impl) in enumerate(found):
            source = impl.kv_sharing_target_layer_name
            layers[name] = self._layer(impl, self._params(impl, sets), number[source or name], i == len(found) - 1)
        return layers

    def _check(self, found: list[tuple[str, AttndImpl]], owners: int) -> None:
        c = self.cache
        shapes = {(m.num_heads, m.num_kv_heads, m.head_size) for _, m in found}
        if shapes != {(c.num_heads, c.num_kv_heads, c.head_dim)} or owners != c.num_layers:
            raise refuse(
                f"this model has {owners} layers of shapes (heads, KV heads, head size) {sorted(shapes)}, one cache"
                f" holds {c.num_layers} layers of {(c.num_heads, c.num_kv_heads, c.head_dim)}",
                "serve this model with vLLM's own CPU backend",
            )

    def _params(self, impl: AttndImpl, sets: dict[Any, attnd.Params]) -> attnd.Params:
        sinks = None if impl.sinks is None else impl.sinks.detach().float().numpy()
        slopes = None if impl.alibi_slopes is None else np.asarray(impl.alibi_slopes, np.float32)
        kind = (
            impl.scale, impl.logits_soft_cap, impl.sliding_window,
            sinks is not None and sinks.tobytes(), slopes is not None and slopes.tobytes(),
        )  # fmt: skip
        if kind not in sets:
            sets[kind] = self.cache.params(
                sm_scale=impl.scale,
                logit_cap=impl.logits_soft_cap or 0.0,
                sliding_window=impl.sliding_window or 0,
                q_dtype=self._dtype,
                sinks=sinks,
                alibi=slopes,
                id=self._sets[len(sets)] if len(sets) < len(self._sets) else None,
            )
            if len(sets) > len(self._sets):
                self._sets.append(sets[kind].id)
        return sets[kind]

    def _layer(self, impl: AttndImpl, params: attnd.Params, number: int, last: bool) -> _Layer:
        no_kv = impl.kv_sharing_target_layer_name is not None
        job = _lib.Copied()
        job.job.plan, job.job.params, job.job.layer, job.job.src_layer = TAG, params.id, number, number
        job.job.flags = (_lib.LAST if last else 0) | (_lib.NO_KV if no_kv else 0)
        self._aim(job)
        return _Layer(job, ctypes.byref(job), no_kv)

    def _aim(self, job: Any) -> None:
        job.job.q, job.job.k, job.job.v, job.job.out = (a.address for a in (self._q, self._k, self._v, self._out))

    def weights_changed(self) -> None:
        """Until the prefix cache is reset nobody else sees what is computed: it is kept with the old weights' KV."""
        self._stale, self._renew = self._epoch, True
        logger.warning("attnd: new weights: nothing is shared until the prefix cache is reset")

    # ---- A step ----

    def begin(self, rows: Rows) -> None:
        """Send the plan; jobs follow without waiting for it."""
        from vllm.forward_context import get_forward_context

        self._rows, self._failure, self._plan = rows, None, None
        self._epoch = rows.epoch
        if self._renew:
            self._layers, self._renew = self._prepare(), False
        metadata = _first(get_forward_context().attn_metadata)
        if metadata is None:
            return
        place = {int(b): i for i, b in enumerate(rows.last_block)}
        order = np.array([place[int(b)] for b in metadata.last_block], np.int64)
        counts = rows.counts[order]
        if (counts != metadata.counts).any():
            raise AssertionError(f"attnd: vLLM's batch {metadata.counts} is not what was scheduled: {counts}")
        self._order = [rows.ids[i] for i in order]
        table = np.zeros(len(order), attnd.Plan.ROW)
        table["key"], table["start"], table["num_tokens"] = rows.keys[order], rows.starts[order], counts
        table["tokens"] = rows.tokens.ctypes.data + 8 * rows.offsets[order]
        table["publish_upto"] = 0 if rows.epoch == self._stale else rows.publish_upto[order]
        plan = attnd.Plan(self.cache, table, (rows.tokens,), tag=TAG)
        try:
            plan.submit(wait=False, strict=False, deadline=None)
            self._plan = plan
        except attnd.Error as e:
            self._fail(e)

    def attend(self, name: str, q: Any, k: Any, v: Any, out: Any, metadata: AttndMetadata) -> None:
        """One layer: rows of the whole batch, [tokens, heads, head_dim]."""
        n = metadata.num_tokens
        if self._failure is not None:
            out[:n].zero_()
            return
        layer = self._layers[name]
        try:
            if n <= FEW_ROWS and self._alike(layer, q, k, v, out):
                self._few(layer, q, k, v, out, n, metadata.decode)
            else:
                self._many(layer, q, k, v, out, n)
        except attnd.Error as e:
            self._fail(e)
            out[:n].zero_()

    def _alike(self, layer: _Layer, q: Any, k: Any, v: Any, out: Any) -> bool:
        """Whether bytes can be copied: some models compute q and k in another type than the rest."""
        kind = self._dtype
        return q.dtype is kind and out.dtype is kind and (layer.no_kv or (k.dtype is kind and v.dtype is kind))

    def _few(self, layer: _Layer, q: Any, k: Any, v: Any, out: Any, n: int, decode: bool) -> None:
        c, size = layer.job, self._itemsize
        c.num_tokens, c.decode = n, decode
        _rows(c.q, q, size)
        _rows(c.out, out, size)
        if not layer.no_kv:
            _rows(c.k, k, size)
            _rows(c.v, v, size)
        rc = self._attend(self.connection.pointer, layer.ref, None)
        if rc:
            raise self.connection.failure(rc)

    def _many(self, layer: _Layer, q: Any, k: Any, v: Any, out: Any, n: int) -> None:
        own_q, own_k, own_v, own_out = self._views
        own_q[:n].copy_(q[:n])
        if not layer.no_kv:
            own_k[:n].copy_(k[:n])
            own_v[:n].copy_(v[:n])
        job = self.connection.submit(self._lib.attnd_extend, ctypes.byref(layer.job.job))
        self.connection.wait(job)
        out[:n].copy_(own_out[:n])

    def finish(self) -> dict[str, str]:
        """Requests that have no output in this step, and why."""
        rows, plan, self._rows, self._plan = self._rows, self._plan, None, None
        if rows is None:
            return {}
        refused: dict[str, str] = {}
        if plan is not None and self._failure is None:
            try:
                refused = {self._order[i]: e.strerror or "" for i, e in self._statuses(plan)}
            except attnd.Error as e:
                self._fail(e)
        if self._failure is not None:
            return dict.fromkeys(rows.ids, self._failure)
        self._away_since = None
        return refused

    def _statuses(self, plan: attnd.Plan) -> list[tuple[int, attnd.Error]]:
        status = plan.wait(strict=False)["status"]
        return plan.refused() if status.any() else []

    def _fail(self, e: attnd.Error) -> None:
        """The step has no output; the requests begin again."""
        if e.errno not in AWAY:
            raise e
        now = time.monotonic()
        if self._away_since is None:
            self._away_since = now
        elif now - self._away_since > PATIENCE_S:
            raise RuntimeError(f"attnd: the daemon has been away for {PATIENCE_S} s") from e
        self._failure = e.strerror or str(e)
        if e.errno == errno.ETIMEDOUT:
            # The buffers are the daemon's until it has done with them.
            self._buffers()
            for layer in self._layers.values():
                self._aim(layer.job)


def attention_layers(context: dict[str, Any]) -> list[tuple[str, Any]]:
    """The layers that are served. vLLM's kinds beside the plain one have masks or KV of their own in the backend."""
    from vllm.model_executor.layers.attention import Attention
    from vllm.model_executor.layers.attention_layer_base import AttentionLayerBase

    found = [(name, m) for name, m in context.items() if isinstance(m, AttentionLayerBase)]
    for name, m in found:
        if type(m) is not Attention:
            raise refuse(f"{name} is a {type(m).__name__}", "serve this model with vLLM's own CPU backend")
        if m.head_size_v != m.head_size:
            raise refuse(f"K and V of {name} have different sizes", "serve this model with vLLM's own CPU backend")
    return found


def _rows(c: Any, t: Any, size: int) -> None:
    stride = t.stride()
    c.data, c.token_stride, c.head_stride = t.data_ptr(), stride[0] * size, stride[1] * size


def _first(metadata: Any) -> AttndMetadata | None:
    """All layers share one."""
    if isinstance(metadata, list):
        metadata = metadata[0] if metadata else None
    return next(iter(metadata.values()), None) if metadata else None
