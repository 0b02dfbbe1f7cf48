# SPDX-License-Identifier: Apache-2.0
"""Plans and their jobs.

In: rows of tokens, addresses of q, k, v, out. Out: attention outputs. Next: libattnd.

A plan is made once a step, a `Layer` once a model: its struct is built beforehand, so that a job
costs two calls and no copies.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence as Seq
from contextlib import suppress
from ctypes import byref, c_uint64
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from . import _lib
from .connection import Job, microseconds
from .dtypes import DType, torch_dtype
from .errors import Error
from .memory import Array, address_of, as_tokens
from .sequence import Sequence

if TYPE_CHECKING:
    from .cache import Cache, Params


class Row(NamedTuple):
    """A sequence's tokens of this step.

    `sequence`: a Sequence, or the key of one (then `start` is needed). `start` is absolute: the
    sequence's length unless given; lower rolls back. `publish_upto`: others may see the tokens
    below once the plan has ended; all of the row unless given. `mask`: which of the row's own
    tokens each sees, bool [n, n] (tree drafts). `causal` False: for jobs that are not.
    """

    sequence: Sequence | int
    tokens: Any
    start: int | None = None
    publish_upto: int | None = None
    mask: Any = None
    causal: bool = True


def _mask_words(mask: Any, n: int) -> np.ndarray[Any, Any]:
    """bool [n, n] as rows of 64-bit words, LSB first."""
    m = np.asarray(mask, bool)
    if m.shape != (n, n):
        raise ValueError(f"a mask of {n} tokens is [{n}, {n}], not {list(m.shape)}")
    words = np.zeros((n, (n + 63) // 64 * 8), np.uint8)
    packed = np.packbits(m, axis=1, bitorder="little")
    words[:, : packed.shape[1]] = packed
    return words.view(np.uint64)


def rows_of(rows: Seq[Row]) -> tuple[np.ndarray[Any, Any], tuple[Any, ...]]:
    """The rows as the library's structs, and what they point to."""
    table = np.zeros(len(rows), Plan.ROW)
    keep: list[Any] = []
    for i, row in enumerate(rows):
        tokens = as_tokens(row.tokens)
        known = isinstance(row.sequence, Sequence)
        if row.start is None and not known:
            raise ValueError("a row that names its sequence by key needs a start")
        start = row.sequence.length if row.start is None else row.start  # type: ignore[union-attr]
        mask = None if row.mask is None else _mask_words(row.mask, len(tokens))
        keep += [tokens, mask]
        table[i] = (
            row.sequence.key if known else row.sequence,  # type: ignore[union-attr]
            start,
            tokens.ctypes.data,
            len(tokens),
            0 if row.causal else _lib.ROW_NONCAUSAL,
            start + len(tokens) if row.publish_upto is None else row.publish_upto,
            0 if mask is None else mask.ctypes.data,
        )
    return table, tuple(keep)


class Plan:
    """One step of a batch; made by `Cache.plan`.

    `status` is a NumPy array with a field `status` (0 or a negative errno) and `cached` (of the
    row's tokens, how many were cached already: their k and v are ignored) of each row, valid once
    the plan was waited for.
    """

    ROW: np.dtype[Any] = np.dtype(
        [
            ("key", "u8"),
            ("start", "u8"),
            ("tokens", "u8"),
            ("num_tokens", "u4"),
            ("flags", "u4"),
            ("publish_upto", "u8"),
            ("mask", "u8"),
        ]
    )
    STATUS = np.dtype([("status", "i4"), ("cached", "u4")])

    __slots__ = ("cache", "connection", "job", "num_rows", "num_tokens", "rows", "status", "tag", "_keep", "_sequences")

    def __init__(
        self,
        cache: Cache,
        rows: np.ndarray[Any, Any],
        keep: tuple[Any, ...],
        *,
        tag: int | None = None,
        sequences: Seq[Sequence | int] = (),
    ) -> None:
        self.cache = cache
        self.connection = cache.connection
        self.tag = self.connection.new_tag() if tag is None else tag
        self.rows = rows
        self.num_rows = len(rows)
        self.num_tokens = int(rows["num_tokens"].sum())
        self.status = np.zeros(len(rows), Plan.STATUS)
        self.job: Job | None = None
        self._keep = keep
        self._sequences = sequences

    def __repr__(self) -> str:
        return f"attnd.Plan(tag={self.tag}, rows={self.num_rows}, tokens={self.num_tokens})"

    def submit(self, *, wait: bool, strict: bool, deadline: float | None) -> None:
        c = self.connection
        with c._lock:
            c.sweep()
            arguments = (
                self.tag,
                self.cache.id,
                self.rows.ctypes.data,
                self.num_rows,
                self.status.ctypes.data,
                microseconds(deadline),
            )
            if wait:
                c.call(c._lib.attnd_plan, *arguments)
                self._made(strict)
            else:
                self.job = c.submit(c._lib.attnd_plan_async, *arguments, keep=self)

    def wait(self, strict: bool = True) -> np.ndarray[Any, Any]:
        """The plan's outcome, if it was made without waiting; raises the first refused row's error if `strict`."""
        if self.job is not None:
            job, self.job = self.job, None
            self.connection.wait(job)
            self._accepted(strict)
        elif strict:
            self.raise_refused()
        return self.status

    def _made(self, strict: bool) -> None:
        """Of a call that hands the plan out, or raises: then nobody else can end it."""
        try:
            self._accepted(strict)
        except Error:
            with suppress(Error):
                self.end()
            raise

    def _accepted(self, strict: bool) -> None:
        refused = bool(self.status["status"].any())
        for i, s in enumerate(self._sequences):
            if isinstance(s, Sequence) and not (refused and self.status["status"][i]):
                row = self.rows[i]
                s.length = int(row["start"]) + int(row["num_tokens"])
        if refused and strict:
            self.raise_refused()

    def refused(self) -> list[tuple[int, Error]]:
        """Rows that have no place in this step: their number and why. Their out is zero."""
        return [
            (int(i), self.connection.failure(int(self.status["status"][i])))
            for i in np.flatnonzero(self.status["status"])
        ]

    def raise_refused(self) -> None:
        for i, failure in self.refused():
            failure.add_note(f"row {i} of the plan")
            raise failure

    @property
    def decodes(self) -> bool:
        """True if every row has one token."""
        return self.num_tokens == self.num_rows

    def end(self) -> None:
        """Drop it without its last job; sequences keep the length they had (or were rolled back to)."""
        self.connection.call(self.connection._lib.attnd_plan_end, self.tag)
        for i, s in enumerate(self._sequences):
            if isinstance(s, Sequence) and not self.status["status"][i]:
                s.length = int(self.rows[i]["start"])


UNKNOWN_ROOM = 1 << 62


class _Side(NamedTuple):
    """What q, k, v, out or lse has to be like: [tokens, heads, dim] of a type."""

    name: str
    heads: int
    dim: int
    dtype: DType
    size: int  # of a value


def _sides(params: Params) -> tuple[_Side, _Side, _Side, _Side]:
    """Of q, k, v and out."""
    c, q, kv, out = params.cache, params.q_dtype, params.kv_dtype, params.out_dtype
    return (
        _Side("q", c.num_heads, c.head_dim, q, q.itemsize),
        _Side("k", c.num_kv_heads, c.head_dim, kv, kv.itemsize),
        _Side("v", c.num_kv_heads, c.head_dim_v, kv, kv.itemsize),
        _Side("out", c.num_heads, c.head_dim_v, out, out.itemsize),
    )


def _room(x: Any, side: _Side, strided: bool) -> int:
    """Tokens that an Array has room for; of other memory nothing is known but its address."""
    if not isinstance(x, Array):
        return UNKNOWN_ROOM
    name, heads, dim, dtype, size = side
    if x.dtype != dtype if isinstance(x.dtype, DType) else x.dtype.itemsize != size:
        raise ValueError(f"{name} is {x!r}, the parameter set has {dtype.name.lower()}")
    if strided:
        return UNKNOWN_ROOM
    if x.shape[-2:] != (heads, dim) and x.shape[-1] != heads * dim:
        raise ValueError(f"{name} is [tokens, {heads}, {dim}], not {list(x.shape)}")
    return x.nbytes // (heads * dim * size)


class Layer:
    """One layer's job, built once and run once a step.

    `q`, `k`, `v`, `out`, `lse` are arena memory: Arrays, views of them, or addresses. They may be
    exchanged between jobs (`bind`). `last`: ends the plan. `src_layer`: bring no k and v, attend to
    those of that layer, written in the same plan. Without `out` it only stores.
    """

    __slots__ = (
        "connection",
        "_c",
        "_decode",
        "_extend",
        "_flags",
        "_job",
        "_kept",
        "_lock",
        "_lse",
        "_pointer",
        "_ref",
        "_ret",
        "_room",
        "_sides",
        "_strided",
        "_wait",
        "_handle",
    )

    def __init__(
        self,
        params: Params,
        layer: int,
        *,
        q: Any = None,
        k: Any = None,
        v: Any = None,
        out: Any = None,
        lse: Any = None,
        last: bool = False,
        src_layer: int | None = None,
        deadline: float | None = None,
    ) -> None:
        self.connection = params.cache.connection
        self._sides, self._strided = _sides(params), params.strided
        self._lse = _Side("lse", params.cache.num_heads, 1, DType.F32, DType.F32.itemsize)
        self._flags = (_lib.LAST if last else 0) | (_lib.NO_KV if src_layer is not None else 0)
        self._c = _lib.Attend(
            params=params.id, layer=layer, src_layer=src_layer or 0, deadline_us=microseconds(deadline)
        )
        self._ref = byref(self._c)
        self._job = c_uint64()
        self._ret = byref(self._job)
        library = self.connection._lib
        self._decode = library.attnd_decode
        self._extend = library.attnd_extend
        self._wait = library.attnd_wait
        self._lock = self.connection._lock
        self._handle = self.connection.handle
        self._pointer = self._handle.pointer
        self.bind(q, k, v, out, lse)

    def bind(self, q: Any = None, k: Any = None, v: Any = None, out: Any = None, lse: Any = None) -> None:
        """Other memory for the jobs to come; it is kept until the next time."""
        c = self._c
        rooms = [_room(x, side, self._strided) for x, side in zip((q, k, v, out), self._sides, strict=True)]
        self._room = min(*rooms, _room(lse, self._lse, False))
        self._kept = q, k, v, out, lse
        c.q, c.k, c.v, c.out, c.lse = map(address_of, (q, k, v, out, lse))
        c.flags = self._flags | (0 if c.out else _lib.NO_OUT)

    def _submit(self, function: Any, plan: Plan | int) -> Job:
        connection = self.connection
        if not isinstance(plan, int) and plan.num_tokens > self._room:
            raise ValueError(f"the plan has {plan.num_tokens} tokens, the layer's arrays have room for {self._room}")
        with self._lock:
            connection.handle  # raises when it was closed
            self._c.plan = plan if isinstance(plan, int) else plan.tag
            rc = function(self._pointer, self._ref, self._ret)
            if rc:
                raise connection.failure(rc)
            if connection._async is not None:
                connection._async.touch()
            return self._job.value

    def decode(self, plan: Plan | int) -> Job:
        """Submit; every row of the plan has one token. `Connection.wait` waits for it."""
        return self._submit(self._decode, plan)

    def extend(self, plan: Plan | int) -> Job:
        """Submit; rows of any length."""
        return self._submit(self._extend, plan)

    def run(self, plan: Plan) -> None:
        """Submit and wait."""
        job = self._submit(self._decode if plan.num_tokens == plan.num_rows else self._extend, plan)
        connection = self.connection
        if connection._async is not None:
            connection.wait(job)
            return
        with self._lock:
            rc = self._wait(self._pointer, job, None)
            if rc:
                raise connection.failure(rc)


class Staging:
    """Arena buffers that the layers of a model copy through, one behind the other."""

    def __init__(self, params: Params, max_tokens: int) -> None:
        self.params = params
        self.max_tokens = 0
        self.ensure(max_tokens)

    def ensure(self, num_tokens: int) -> None:
        """Room for plans of so many tokens."""
        if num_tokens <= self.max_tokens:
            return
        p, c = self.params, self.params.cache
        a = c.connection
        self.q = a.empty((num_tokens, c.num_heads, c.head_dim), p.q_dtype)
        self.k = a.empty((num_tokens, c.num_kv_heads, c.head_dim), p.kv_dtype)
        self.v = None if c.v_in_k else a.empty((num_tokens, c.num_kv_heads, c.head_dim_v), p.kv_dtype)
        self.out = a.empty((num_tokens, c.num_heads, c.head_dim_v), p.out_dtype)
        self.max_tokens = num_tokens


def _rows(x: Any, side: _Side, num_tokens: int) -> tuple[int, int, int]:
    """Where a tensor or array [tokens, heads, dim] has its rows: address, strides of a token and of a head."""
    if x is None:
        return (0, 0, 0)
    name, heads, dim, dtype, size = side
    try:
        tokens, its_heads, its_dim = x.shape
    except ValueError:
        its_heads = its_dim = -1
    if its_heads != heads or its_dim != dim:
        raise ValueError(f"{name} is [tokens, {heads}, {dim}], not {list(x.shape)}")
    if hasattr(x, "data_ptr"):
        if x.dtype is not torch_dtype(dtype):
            raise ValueError(f"{name} has values of {x.dtype}, the parameter set of {dtype.name.lower()}")
        at, (token, head, value) = x.data_ptr(), x.stride()
        token, head, value = token * size, head * size, value * size
    else:
        if x.itemsize != size:
            raise ValueError(f"{name} has values of {x.itemsize} bytes, the parameter set of {size}")
        at, (token, head, value) = x.__array_interface__["data"][0], x.strides
    if value != size:
        raise ValueError(f"{name}: the values of a head are contiguous")
    if tokens < num_tokens:
        raise ValueError(f"{name} has {tokens} tokens, the plan {num_tokens}")
    return at, token, head


class CopiedLayer:
    """One layer's job whose q, k, v and out are any memory: one call copies, runs, waits and copies back.

    For engines that do not choose where their tensors lie. `store_only`: no q, no out. `src_layer`:
    no k, no v.
    """

    __slots__ = ("params", "staging", "_c", "_call", "_connection", "_lock", "_pointer", "_ref", "_sides", "_staged")

    # What changes from step to step, from num_tokens on: one call writes it.
    _FORMAT = struct.Struct("=Ii12Q")
    _AT: int = _lib.Copied.num_tokens.offset
    _TAG = struct.Struct("=I")

    def __init__(
        self,
        params: Params,
        layer: int,
        staging: Staging,
        *,
        last: bool = False,
        src_layer: int | None = None,
        store_only: bool = False,
        deadline: float | None = None,
    ) -> None:
        self.params = params
        self.staging = staging
        self._c = _lib.Copied()
        job = self._c.job
        job.params, job.layer, job.src_layer = params.id, layer, src_layer or 0
        job.flags = (
            (_lib.LAST if last else 0)
            | (_lib.NO_KV if src_layer is not None else 0)
            | (_lib.NO_OUT if store_only else 0)
        )
        job.deadline_us = microseconds(deadline)
        self._sides = _sides(params)
        self._staged = 0
        self._ref = byref(self._c)
        self._connection = params.cache.connection
        self._call = self._connection._lib.attnd_attend_copied
        self._lock = self._connection._lock
        self._pointer = self._connection.pointer

    def _stage(self, num_tokens: int) -> None:
        s, job = self.staging, self._c.job
        s.ensure(num_tokens)
        job.q, job.k, job.v, job.out = map(address_of, (s.q, s.k, s.v, s.out))
        self._staged = s.max_tokens

    def run(self, plan: Plan, q: Any = None, k: Any = None, v: Any = None, out: Any = None) -> None:
        """Tensors or arrays [tokens, heads, dim] of the parameter set's types, in the plan's order of tokens."""
        n = plan.num_tokens
        q_side, k_side, v_side, out_side = self._sides
        connection = self._connection
        with self._lock:
            connection.handle  # raises when it was closed
            if n > self._staged or self._staged != self.staging.max_tokens:
                self._stage(n)
            self._TAG.pack_into(self._c, 0, plan.tag)
            self._FORMAT.pack_into(
                self._c,
                self._AT,
                n,
                n == plan.num_rows,
                *_rows(q, q_side, n),
                *_rows(k, k_side, n),
                *_rows(v, v_side, n),
                *_rows(out, out_side, n),
            )
            rc = self._call(self._pointer, self._ref, None)
            if rc:
                raise connection.failure(rc)
            if connection._async is not None:
                connection._async.touch()
