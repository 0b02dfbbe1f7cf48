# SPDX-License-Identifier: Apache-2.0
"""A cache of one KV geometry, and the parameter sets of jobs on it.

In: the model's shape. Out: plans, peeks, K and V as data, block tables. Next: plan.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence as Seq
from ctypes import byref, c_size_t, c_uint8, c_uint32, c_uint64
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from . import _lib
from .connection import peek_arguments
from .dtypes import DType, DTypeLike, as_dtype
from .memory import Array, Block, as_tokens
from .plan import Plan, Row, rows_of
from .sequence import Sequence

if TYPE_CHECKING:
    from .connection import Connection

SCALE_MODES = {None: 0, "static": 1, "dynamic": 2}
LAYOUTS = {"packed": 0, "bshd": 1, "bhsd": 2}


def _choice(table: dict[Any, int], value: Any, what: str) -> int:
    if value not in table:
        raise ValueError(f"{what} is one of {', '.join(map(repr, table))}, not {value!r}")
    return table[value]


@dataclass(frozen=True)
class Params:
    """A registered parameter set: what is common to a kind of layer. Made by `Cache.params`."""

    cache: Cache
    id: int
    q_dtype: DType
    kv_dtype: DType
    out_dtype: DType
    strided: bool = False  # rows are not contiguous


@dataclass(frozen=True)
class Kv:
    """K and V of one layer of a run of tokens, as the cache stores them: [tokens, num_kv_heads, head_dim]."""

    k: Array
    v: Array | None
    k_scales: Array | None
    v_scales: Array | None
    data: Array

    @property
    def num_tokens(self) -> int:
        return self.k.shape[0]


@dataclass(frozen=True)
class SlotTable:
    """Block tables in other systems' words; see attnd_slot_table."""

    kv_indices: np.ndarray[Any, Any]
    seq_lens: np.ndarray[Any, Any]
    kv_indptr: np.ndarray[Any, Any]
    qo_indptr: np.ndarray[Any, Any]
    num_entries: int


class Cache:
    """Made by `Connection.cache`.

    `id` is the library's number, `chunk` and `step` the tokens of a split-KV chunk and of a kernel
    step, `capacity_tokens` what the pool could hold of this cache alone.
    """

    def __init__(self, connection: Connection, *, create: bool, **identity: Any) -> None:
        self.connection = connection
        self.name: str = identity["name"]
        self.fingerprint: bytes = bytes(identity["fingerprint"])
        self.num_layers: int = identity["num_layers"]
        self.num_heads: int = identity["num_heads"]
        self.num_kv_heads: int = identity["num_kv_heads"]
        self.head_dim: int = identity["head_dim"]
        self.head_dim_v: int = identity["head_dim_v"]
        self.kv_dtype: DType = identity["kv_dtype"]
        self.scale_mode: str | None = identity["scale_mode"]
        self.v_in_k: bool = identity["v_in_k"]
        if len(self.fingerprint) != 16:
            raise ValueError("a fingerprint has 16 bytes")
        desc = _lib.CacheDesc(
            name=self.name.encode(),
            fingerprint=(c_uint8 * 16)(*self.fingerprint),
            num_layers=self.num_layers,
            num_heads=self.num_heads,
            num_kv_heads=self.num_kv_heads,
            head_dim=self.head_dim,
            head_dim_v=self.head_dim_v,
            block_size=identity["block_size"],
            kv_dtype=int(self.kv_dtype),
            scale_mode=_choice(SCALE_MODES, self.scale_mode, "scale_mode"),
            layout=_choice(LAYOUTS, identity["layout"], "layout"),
            v_in_k=int(self.v_in_k),
        )
        info = _lib.CacheInfo()
        connection.call(connection._lib.attnd_cache_open, byref(desc), int(create), byref(info))
        self.id: int = info.cache
        self.chunk: int = info.chunk
        self.step: int = info.step
        self.capacity_tokens: int = info.capacity_tokens

    def __repr__(self) -> str:
        return f"attnd.Cache({self.name!r}, id={self.id}, fingerprint={self.fingerprint.hex()})"

    # ---- Settings ----

    def grant(self, tokens: int, sequences: int) -> None:
        """Guarantee room for so much to this engine until it leaves; 0, 0 gives it back."""
        self.connection.call(self.connection._lib.attnd_grant, self.id, tokens, sequences)

    def set_scales(self, layer: int, k_scale: float, v_scale: float) -> None:
        """Static scales of a layer, before its first write."""
        self.connection.call(self.connection._lib.attnd_scales_set, self.id, layer, k_scale, v_scale)

    def params(
        self,
        *,
        sm_scale: float | None = None,
        logit_cap: float = 0.0,
        sliding_window: int = 0,
        causal: bool = True,
        q_dtype: DTypeLike = DType.F32,
        out_dtype: DTypeLike | None = None,
        kv_in_dtype: DTypeLike | None = None,
        sinks: Any = None,
        alibi: Any = None,
        strides: dict[str, int] | None = None,
        id: int | None = None,
    ) -> Params:
        """Register what is common to a kind of layer.

        `sm_scale`: head_dim ** -0.5 unless given. `out_dtype` and `kv_in_dtype` follow `q_dtype`.
        `sinks`, `alibi`: floats, one a query head; copied. `strides`: bytes by attnd_params' names
        ("q_token_stride", ..., "k_scales_delta"), for rows that are not contiguous. `id` (0..1023)
        replaces a set; without it a new one is made.
        """
        q = as_dtype(q_dtype)
        out = q if out_dtype is None else as_dtype(out_dtype)
        kv = q if kv_in_dtype is None else as_dtype(kv_in_dtype)
        floats = {"sinks": self._floats(sinks, "sinks"), "alibi": self._floats(alibi, "alibi")}
        c = _lib.Params(
            cache=self.id,
            sm_scale=self.head_dim**-0.5 if sm_scale is None else sm_scale,
            logit_cap=logit_cap,
            sliding_window=sliding_window,
            causal=int(causal),
            q_dtype=int(q),
            out_dtype=int(out),
            kv_in_dtype=int(kv),
            sinks=floats["sinks"].ctypes.data if floats["sinks"] is not None else None,
            alibi=floats["alibi"].ctypes.data if floats["alibi"] is not None else None,
            **(strides or {}),
        )
        number = next(self.connection._params) if id is None else id
        self.connection.call(self.connection._lib.attnd_params_set, number, byref(c))
        return Params(self, number, q, kv, out, bool(strides))

    def _floats(self, x: Any, what: str) -> np.ndarray[Any, Any] | None:
        if x is None:
            return None
        if hasattr(x, "detach"):
            x = x.detach().float().cpu().numpy()
        a = np.ascontiguousarray(x, np.float32)
        if a.shape != (self.num_heads,):
            raise ValueError(f"{what} is [num_heads] = [{self.num_heads}], not {list(a.shape)}")
        return a

    # ---- Looking ----

    def peek(self, tokens: Any, namespace: int = 0) -> int:
        """How many tokens of a prompt are cached: whole blocks, a hint, without asking the daemon."""
        array = as_tokens(tokens)
        ret = c_uint64()
        self.connection.call(
            self.connection._lib.attnd_peek, self.id, namespace, array.ctypes.data, len(array), byref(ret)
        )
        return ret.value

    def peek_many(self, prompts: Seq[Any], namespace: int = 0) -> tuple[list[int], int]:
        """The same of many prompts, and which has the longest cached prefix."""
        c, arrays = peek_arguments(prompts)
        cached = np.zeros(len(arrays), np.uint64)
        longest = c_uint32()
        self.connection.call(
            self.connection._lib.attnd_peek_many,
            self.id,
            namespace,
            c,
            len(arrays),
            cached.ctypes.data,
            byref(longest),
        )
        return [int(n) for n in cached], longest.value

    # ---- Plans ----

    def plan(
        self,
        rows: Iterable[Row | tuple[Any, ...]],
        *,
        tag: int | None = None,
        wait: bool = True,
        strict: bool = True,
        deadline: float | None = None,
    ) -> Plan:
        """One step of a batch: rows of one and of many tokens.

        With `wait` it ends the plan and raises the first refused row's error, or without `strict` lets
        the other rows go on and leaves it to `Plan.status`. Without `wait` jobs may be submitted at once, and
        `Plan.wait` says what became of it.
        """
        listed = [r if isinstance(r, Row) else Row(*r) for r in rows]
        plan = Plan(self, *rows_of(listed), tag=tag, sequences=[r.sequence for r in listed])
        plan.submit(wait=wait, strict=strict, deadline=deadline)
        return plan

    def plan_arrays(
        self,
        keys: Any,
        starts: Any,
        counts: Any,
        tokens: Any,
        publish_upto: Any = None,
        *,
        causal: bool = True,
        tag: int | None = None,
        wait: bool = True,
        strict: bool = True,
        deadline: float | None = None,
    ) -> Plan:
        """The same from arrays: `tokens` of all rows one behind the other, `counts` of each row."""
        flat = as_tokens(tokens)
        counts = np.asarray(counts, np.uint32)
        if int(counts.sum()) != len(flat):
            raise ValueError(f"counts add up to {int(counts.sum())}, but there are {len(flat)} tokens")
        rows = np.zeros(len(counts), Plan.ROW)
        rows["key"] = keys
        rows["start"] = starts
        rows["num_tokens"] = counts
        rows["tokens"] = flat.ctypes.data + 8 * (np.cumsum(counts, dtype=np.uint64) - counts)
        rows["flags"] = 0 if causal else _lib.ROW_NONCAUSAL
        rows["publish_upto"] = rows["start"] + counts if publish_upto is None else publish_upto
        plan = Plan(self, rows, (flat,), tag=tag)
        plan.submit(wait=wait, strict=strict, deadline=deadline)
        return plan

    # ---- K and V as data ----

    def kv_empty(self, num_tokens: int) -> Kv:
        """Room for one layer's K and V of so many tokens."""
        size = c_size_t()
        self.connection.call(self.connection._lib.attnd_kv_bytes, self.id, num_tokens, byref(size))
        data = self.connection.empty(size.value, np.uint8)
        at = 0

        def part(width: int, dtype: DType) -> Array:
            nonlocal at
            nbytes = num_tokens * self.num_kv_heads * width * dtype.itemsize
            shape = (num_tokens, self.num_kv_heads, width) if width > 1 else (num_tokens, self.num_kv_heads)
            block = _Part(data._block, data.address + at, nbytes)
            at += (nbytes + 63) // 64 * 64
            return Array(block, shape, dtype)  # type: ignore[arg-type]

        k = part(self.head_dim, self.kv_dtype)
        v = None if self.v_in_k else part(self.head_dim_v, self.kv_dtype)
        scaled = self.scale_mode == "dynamic"
        k_scales = part(1, DType.F32) if scaled else None
        v_scales = part(1, DType.F32) if scaled and not self.v_in_k else None
        return Kv(k, v, k_scales, v_scales, data)

    def export(self, sequence: Sequence | int, layer: int, start: int, num_tokens: int) -> Kv:
        """Read tokens [start, start + num_tokens) of a sequence, bit for bit as they are stored."""
        kv = self.kv_empty(num_tokens)
        c = self._kv(kv, layer)
        c.key = sequence.key if isinstance(sequence, Sequence) else sequence
        c.start = start
        self.connection.call(self.connection._lib.attnd_export, byref(c))
        return kv

    def import_layer(self, plan: Plan, layer: int, kv: Kv, params_id: int, *, last: bool = False) -> None:
        """Store exported data as one layer of a live plan, without attention. Overwrites parameter set `params_id`."""
        c = self._kv(kv, layer)
        self.connection.call(
            self.connection._lib.attnd_import, plan.tag, params_id, _lib.LAST if last else 0, byref(c)
        )

    def _kv(self, kv: Kv, layer: int) -> _lib.Kv:
        return _lib.Kv(cache=self.id, layer=layer, num_tokens=kv.num_tokens, data=kv.data.address)

    def slot_table(
        self,
        of: Plan | Seq[Sequence | int],
        *,
        unit: str = "tokens",
        width: int = 0,
        capacity: int = 1 << 16,
    ) -> SlotTable:
        """Where the tokens of sequences, or of a live plan's rows, stand: token slots or blocks.

        `width` 0: one behind the other, by `kv_indptr`; else [num, width], filled up with -1.
        """
        keys = None
        if not isinstance(of, Plan):
            keys = np.array([s.key if isinstance(s, Sequence) else s for s in of], np.uint64)
        num = of.num_rows if isinstance(of, Plan) else len(of)
        entries = num * width if width else capacity
        indices, lens, indptr, qo = (
            self.connection.empty(n, np.int32) for n in (max(entries, 1), num, num + 1, num + 1)
        )
        c = _lib.SlotTable(
            unit=_choice({"tokens": 0, "blocks": 1}, unit, "unit"),
            width=width,
            plan=of.tag if isinstance(of, Plan) else 0,
            capacity=entries,
            kv_indices=indices.address,
            seq_lens=lens.address,
            kv_indptr=indptr.address,
            qo_indptr=qo.address,
        )
        ret = c_uint32()
        self.connection.call(
            self.connection._lib.attnd_slot_table,
            self.id,
            keys.ctypes.data if keys is not None else None,
            num,
            byref(c),
            byref(ret),
        )
        table = indices.numpy()
        table = table.reshape(num, width) if width else table[: ret.value]
        return SlotTable(table, lens.numpy(), indptr.numpy(), qo.numpy(), ret.value)


class _Part:
    """A piece of a block; holds it."""

    __slots__ = ("address", "nbytes", "whole")

    def __init__(self, whole: Block, address: int, nbytes: int) -> None:
        self.whole = whole
        self.address = address
        self.nbytes = nbytes


