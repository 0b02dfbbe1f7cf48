# SPDX-License-Identifier: Apache-2.0
"""The connection: one session with the daemon, its arena memory and its jobs.

In: a socket, or flags for a private daemon. Out: caches, sequences, arrays, completions.
Next: cache.py, sequence.py, plan.py; aio.py for event loops.

libattnd wants one thread at a time on a connection: every call takes the connection's lock, and a
wait keeps it. Threads that work at the same time want connections of their own, which share
sequences by `engine`.
"""

from __future__ import annotations

import ctypes
import errno
import itertools
import os
import secrets
import threading
from collections import deque
from collections.abc import Iterable, Sequence as Seq
from contextlib import contextmanager
from ctypes import byref, c_uint32, c_uint64, c_void_p
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from . import _lib
from .dtypes import DType, DTypeLike, as_dtype
from .errors import Error, NoDaemon, error
from .memory import Array, Block, as_tokens, size_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .aio import Completions
    from .cache import Cache
    from .sequence import Sequence, Wait

Job = int
"""Names one submitted job of a connection."""

MICROSECONDS = 1_000_000


def microseconds(seconds: float | None) -> int:
    """A deadline; None is the connection's default, which the library calls 0."""
    return 0 if seconds is None else max(1, round(seconds * MICROSECONDS))


class Handle:
    """The library's connection. Whoever looks at its arena holds it; the last one ends it."""

    __slots__ = ("garbage", "kept", "pointer", "_disconnect")

    def __init__(self, pointer: c_void_p) -> None:
        self.pointer = pointer
        self.garbage: deque[int] = deque()
        self.kept: dict[Job, Any] = {}  # what a job in flight writes to
        self._disconnect = _lib.lib().attnd_disconnect

    def __del__(self) -> None:
        if hasattr(self, "_disconnect"):  # not of one that was half made
            self._disconnect(self.pointer)


class EngineId(bytes):
    """16 bytes that name an engine: sessions that share sequences."""

    @classmethod
    def random(cls) -> Self:
        made = ctypes.create_string_buffer(16)
        rc = _lib.lib().attnd_engine_id(made)
        if rc:
            raise error(rc, os.strerror(-rc))
        return cls(made.raw)


def _options(
    socket: str | os.PathLike[str] | None,
    name: str | None,
    timeout: float | None,
    queue_entries: int,
    engine: bytes | None,
    create_engine: bool,
    owner_pidfd: int,
    deadline: float | None,
    spin: float | None,
) -> _lib.ConnectOptions:
    if engine is not None and len(engine) != 16:
        raise ValueError("an engine's id has 16 bytes")
    # A c_char_p would end at the first zero byte; the pointer does not.
    raw = ctypes.create_string_buffer(bytes(engine), 16) if engine is not None else None
    made = _lib.ConnectOptions(
        socket=os.fsencode(socket) if socket is not None else None,
        name=name.encode() if name is not None else None,
        timeout_us=microseconds(timeout),
        queue_entries=queue_entries,
        engine_id=ctypes.cast(raw, ctypes.c_char_p) if raw is not None else None,
        engine_create=int(create_engine),
        owner_pidfd=owner_pidfd,
        default_deadline_us=microseconds(deadline),
        spin_us=0 if spin is None else round(spin * MICROSECONDS) or -1,
    )
    made.keep = raw
    return made


def connect(
    socket: str | os.PathLike[str] | None = None,
    *,
    name: str | None = None,
    timeout: float | None = None,
    queue_entries: int = 0,
    engine: bytes | None = None,
    create_engine: bool = False,
    owner_pidfd: int = 0,
    deadline: float | None = None,
    spin: float | None = None,
) -> Connection:
    """Connect to the machine's daemon (or the one at `socket`).

    Times are seconds. `engine`: join this engine, or make it with `create_engine`; `owner_pidfd`
    names a process whose end ends the engine. `deadline`: of jobs and calls that give none.
    `spin`: that a wait looks before it sleeps, 0 never; None is the library's choice.
    """
    options = _options(socket, name, timeout, queue_entries, engine, create_engine, owner_pidfd, deadline, spin)
    pointer = c_void_p()
    rc = _lib.lib().attnd_connect(byref(pointer), byref(options))
    _check_first(rc)
    return Connection(Handle(pointer))


def private(
    *flags: str,
    name: str | None = None,
    timeout: float = 60,
    queue_entries: int = 0,
    engine: bytes | None = None,
    create_engine: bool = False,
    deadline: float | None = None,
    spin: float | None = None,
    **settings: Any,
) -> Connection:
    """Start a daemon that ends with this connection or process, and connect to it.

    `flags` and `settings` are the daemon's: `private(pool_size="64M", threads=2)` is
    `attnd --pool-size 64M --threads 2`. The daemon is $ATTND_DAEMON, else the one that was built with
    the library, the installed one, or that of PATH.
    """
    options = _options(None, name, timeout, queue_entries, engine, create_engine, 0, deadline, spin)
    words = list(flags)
    for key, value in settings.items():
        words += ["--" + key.replace("_", "-"), str(value).lower() if isinstance(value, bool) else str(value)]
    argv = (ctypes.c_char_p * (len(words) + 1))(*[w.encode() for w in words], None)
    pointer = c_void_p()
    with _tree_daemon():
        rc = _lib.lib().attnd_private_start(byref(pointer), argv, byref(options))
    _check_first(rc)
    return Connection(Handle(pointer))


@contextmanager
def _tree_daemon() -> Iterator[None]:
    """In a source tree the daemon is the one that was built with the library."""
    tree = _lib.build_dir()
    if "ATTND_DAEMON" in os.environ or "ATTND_LIBRARY" in os.environ or not tree or not (tree / "attnd").exists():
        yield
        return
    os.environ["ATTND_DAEMON"] = str(tree / "attnd")
    try:
        yield
    finally:
        del os.environ["ATTND_DAEMON"]


def _check_first(rc: int) -> None:
    if not rc:
        return
    text = _lib.lib().attnd_strerror(None, rc).decode(errors="replace")
    if rc in (-errno.ENOENT, -errno.ECONNREFUSED):
        raise NoDaemon(-rc, text)
    raise error(rc, text)


class Connection:
    """One session. Made by `attnd.connect` or `attnd.private`; a context manager that closes it."""

    def __init__(self, handle: Handle) -> None:
        self._handle: Handle | None = handle
        self._lib = _lib.lib()
        self._lock = threading.RLock()
        self._async: Completions | None = None
        self._keys = itertools.count(secrets.randbits(63))
        self._tags = itertools.count()
        self._params = itertools.count(1)
        self._c_next = self._lib.attnd_next
        self._c_wait = self._lib.attnd_wait

    # ---- Life ----

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the session: what it held is freed by the daemon. Arrays stay readable."""
        with self._lock:
            handle, self._handle = self._handle, None
            if self._async is not None:
                self._async.stop()
                self._async = None
            if handle is not None:
                self._lib.attnd_shutdown(handle.pointer)

    @property
    def closed(self) -> bool:
        return self._handle is None

    @property
    def handle(self) -> Handle:
        if self._handle is None:
            raise error(-errno.ESHUTDOWN, "the connection was closed")
        return self._handle

    @property
    def pointer(self) -> c_void_p:
        """The library's attnd_t."""
        return self.handle.pointer

    @property
    def socket(self) -> str:
        """Where others reach this connection's daemon."""
        return os.fsdecode(self._lib.attnd_socket(self.pointer))

    @property
    def daemon_pid(self) -> int:
        return int(self._lib.attnd_daemon_pid(self.pointer))

    def fileno(self) -> int:
        """A descriptor that polls readable when completions may be waiting; see `aio` for event loops."""
        fd = int(self._lib.attnd_fd(self.pointer))
        self.check(min(fd, 0))
        return fd

    def failure(self, rc: int) -> Error:
        """The exception of what a call answered."""
        return error(rc, self._lib.attnd_strerror(self.pointer, rc).decode(errors="replace"))

    def check(self, rc: int) -> None:
        if rc:
            raise self.failure(rc)

    def call(self, function: Any, *arguments: Any) -> None:
        """One call of the library on this connection; raises what it answers."""
        with self._lock:
            rc = function(self.pointer, *arguments)
            if rc:
                raise self.failure(rc)
            if self._async is not None:
                self._async.touch()

    def ping(self, timeout: float | None = None) -> None:
        """A round trip through the daemon."""
        self.call(self._lib.attnd_ping, microseconds(timeout))

    # ---- Arena ----

    def empty(self, shape: int | Seq[int], dtype: DTypeLike = DType.F32) -> Array:
        """Memory of this shape that jobs can use, not zeroed. `dtype`: one of attnd's, or an integer type of NumPy."""
        try:
            kind: Any = as_dtype(dtype)
        except ValueError:
            kind = np.dtype(dtype)
        dims, nbytes = size_of(shape, kind.itemsize)
        pointer = c_void_p()
        with self._lock:
            self.sweep()
            self.call(self._lib.attnd_alloc, nbytes, byref(pointer))
        assert pointer.value is not None
        return Array(Block(self.handle, pointer.value, nbytes), dims, kind)

    def reserve(self, nbytes: int) -> None:
        """Register a segment of this size now, so that arrays made later find room."""
        self.call(self._lib.attnd_reserve, nbytes)

    def in_arena(self, address: int, nbytes: int) -> bool:
        return bool(self._lib.attnd_in_arena(self.pointer, address, nbytes))

    def sweep(self) -> None:
        """Give back what finalizers left (with the lock)."""
        garbage = self.handle.garbage
        while garbage:
            self._lib.attnd_free(self.pointer, garbage.popleft())

    # ---- Objects ----

    def cache(
        self,
        name: str,
        *,
        num_layers: int,
        num_heads: int,
        num_kv_heads: int,
        head_dim: int,
        head_dim_v: int | None = None,
        fingerprint: bytes = bytes(16),
        kv_dtype: DTypeLike = DType.F32,
        block_size: int = 0,
        scale_mode: str | None = None,
        layout: str = "packed",
        v_in_k: bool = False,
        create: bool = True,
    ) -> Cache:
        """Join the cache of this identity, or create it: another value in any field is another cache.

        `scale_mode`: None, "static" (`Cache.set_scales` per layer) or "dynamic"; `layout`: "packed",
        "bshd" or "bhsd"; `fingerprint`: 16 bytes of the weights (`attnd.fingerprint`).
        """
        from .cache import Cache

        return Cache(
            self,
            name=name,
            fingerprint=fingerprint,
            num_layers=num_layers,
            num_heads=num_heads,
            num_kv_heads=num_kv_heads,
            head_dim=head_dim,
            head_dim_v=head_dim_v or head_dim,
            kv_dtype=as_dtype(kv_dtype),
            block_size=block_size,
            scale_mode=scale_mode,
            layout=layout,
            v_in_k=v_in_k,
            create=create,
        )

    def namespace(
        self, *, tenant: bytes | None = None, adapter: bytes | None = None, salt: bytes | None = None
    ) -> int:
        """The number of a namespace: requests of different ones never share a token. None differs from empty."""
        c = _lib.Namespace(
            tenant=tenant,
            adapter=adapter,
            salt=salt,
            tenant_bytes=len(tenant or b""),
            adapter_bytes=len(adapter or b""),
            salt_bytes=len(salt or b""),
        )
        ret = c_uint32()
        self.call(self._lib.attnd_namespace, byref(c), byref(ret))
        return ret.value

    def new_key(self) -> int:
        """A sequence's key that no other session of the engine has used (63 random bits begin the count)."""
        return next(self._keys) & 0xFFFF_FFFF_FFFF_FFFF

    def new_tag(self) -> int:
        """One of 32 in turn: a plan ends when the 32nd after it is made, if nothing has ended it before."""
        return next(self._tags) % 32

    def sequence(
        self,
        tokens: Any = (),
        *,
        key: int | None = None,
        namespace: int = 0,
        max_match: int | None = None,
        wait: Wait | None = None,
    ) -> Sequence:
        """Open a sequence on a prompt: `.cached` tokens of it need not be computed, and are held.

        By default one token is left to compute, for its logits; `max_match` sets another limit.
        `wait` (`attnd.Wait()`): for another sequence that is computing the same prompt.
        """
        from .sequence import Sequence

        return Sequence.open(self, tokens, key, namespace, max_match, wait)

    def close_sequences(self, sequences: Iterable[Sequence | int]) -> None:
        """Close many with one message."""
        from .sequence import Sequence

        listed = list(sequences)
        keys = np.array([s.key if isinstance(s, Sequence) else s for s in listed], np.uint64)
        if len(keys):
            self.call(self._lib.attnd_seq_close_many, keys.ctypes.data, len(keys))
        for s in listed:
            if isinstance(s, Sequence):
                s.forget()

    def reopen(self, sequences: Seq[Sequence]) -> list[int]:
        """After ConnectionLost: open them again; how many tokens of each are still cached. Extend from there."""
        keys = np.array([s.key for s in sequences], np.uint64)
        lengths = np.zeros(len(keys), np.uint64)
        self.call(self._lib.attnd_reopen, keys.ctypes.data, len(keys), lengths.ctypes.data)
        for s, n in zip(sequences, lengths.tolist(), strict=True):
            s.length = n
        return [int(n) for n in lengths]

    # ---- Completion ----

    def wait(self, job: Job) -> int:
        """Until the job has completed; its value (of an opened sequence: tokens cached), or its error."""
        if self._async is not None:
            found = self._async.take(job)
            if found is not None:
                return self.settle(*found)
        result = _lib.Result()
        with self._lock:
            rc = self._c_wait(self.pointer, job, byref(result))
            if rc:
                failure = self.failure(rc)
                if rc != -errno.ETIMEDOUT or result.job:
                    self.handle.kept.pop(job, None)
                raise failure
            self.handle.kept.pop(job, None)
        if self._async is not None:
            self._async.touch()
        return int(result.value)

    def settle(self, job: Job, status: int, value: int) -> int:
        """What a completion means."""
        self.handle.kept.pop(job, None)
        self.check(status)
        return value

    def next(self, timeout: float = 0) -> tuple[Job, int, int] | None:
        """The next completion that nobody waits for: (job, status, value); None if there is none."""
        result = _lib.Result()
        with self._lock:
            rc = self._c_next(self.pointer, byref(result), round(timeout * MICROSECONDS))
            if rc == -errno.EAGAIN:
                return None
            self.check(rc)
            self.handle.kept.pop(result.job, None)
        return result.job, result.status, result.value

    def cancel(self, job: Job) -> None:
        """Ask the daemon to give up a job; it completes with ECANCELED unless it was done."""
        self.call(self._lib.attnd_cancel, job)

    def submit(self, function: Any, *arguments: Any, keep: Any = None) -> Job:
        """One asynchronous call; `keep` lives until its completion was seen."""
        job = c_uint64()
        self.call(function, *arguments, byref(job))
        if keep is not None:
            self.handle.kept[job.value] = keep
        return job.value

    @property
    def aio(self) -> Completions:
        """The same for coroutines of the running event loop."""
        from .aio import Completions

        if self._async is None or not self._async.running:
            self._async = Completions(self)
        return self._async


def peek_arguments(prompts: Seq[Any]) -> tuple[Any, list[np.ndarray[Any, Any]]]:
    """An attnd_prompt of each, and what they point to."""
    arrays = [as_tokens(p) for p in prompts]
    return (_lib.Prompt * len(arrays))(*[_lib.Prompt(a.ctypes.data, len(a)) for a in arrays]), arrays
