# SPDX-License-Identifier: Apache-2.0
"""One scheduler process's session with attnd: its cache, its requests' sequences, its steps.

In: tokens of requests (tree.py), rows of a step (backend.py). Out: hits, plans, what is to be
computed again after the daemon went. Next: attnd's connection. Knows nothing of SGLang.

A request has one sequence from the match that admitted it until its row is released. Ranks of one
engine have sessions, sequences and caches of their own (a shard of the heads each); `agree` makes
them use the same hit and notice the same loss.
"""

from __future__ import annotations

import hashlib
import logging
import secrets
import time
from collections.abc import Callable, Hashable, Sequence as Seq
from typing import Any, NamedTuple

import numpy as np

import attnd

from ..adapters import adapter_bytes
from ..twins import Twins

logger = logging.getLogger(__name__)

Array = np.ndarray[Any, Any]
Agree = Callable[[Seq[int]], list[int]]
"""The least of each number over all ranks. Every rank calls it with as many."""

RECONNECT_SECONDS = 60.0  # that a step waits for a daemon that is being restarted
SALT_BYTES = 16
LONGEST_SALT = 1024
LOST = (attnd.ConnectionLost, attnd.NoDaemon, attnd.Stale)


def alone(numbers: Seq[int]) -> list[int]:
    """The agreement of one rank."""
    return list(numbers)


def salt_bytes(epoch: bytes, salt: str | None) -> bytes:
    """Epoch and salt, each with its length."""
    parts = (epoch, b"" if salt is None else b"\1" + salt.encode())
    whole = b"".join(len(p).to_bytes(4, "little") + p for p in parts)
    return whole if len(whole) <= LONGEST_SALT else hashlib.blake2b(whole).digest()


class Held:
    """A request's sequence. `length`: tokens that attnd holds, all layers written; `known`: their ids."""

    __slots__ = ("known", "length", "opaque", "publish", "sequence")

    def __init__(self, sequence: attnd.Sequence, known: Array, publish: bool, opaque: bool) -> None:
        self.sequence = sequence
        self.opaque = opaque  # its ids do not tell what its tokens are
        self.known = known
        self.length = sequence.cached
        self.publish = publish

    def learn(self, start: int, tokens: Array) -> None:
        """The ids of tokens [start, start + n); [0, start) are known."""
        end = start + len(tokens)
        if end > len(self.known):
            larger = np.empty(max(end, 2 * len(self.known), 256), np.uint64)
            larger[: len(self.known)] = self.known
            self.known = larger
        self.known[start:end] = tokens


class Step:
    """The rows of one forward: `tokens` one behind the other, `counts` of each from `starts` on."""

    def __init__(self, rows: list[Held], starts: list[int], counts: list[int], tokens: Array) -> None:
        self.rows = rows
        self.starts = starts
        self.counts = counts
        self.tokens = tokens
        self.plan: Any = None
        self.lost: Exception | None = None
        self.done = False


def adapter_field(extra: str | None, adapter: bytes | None) -> bytes | None:
    """A namespace's adapter: that of a LoRA alone is the one that other makes of engines use."""
    if not extra:
        return adapter
    text = extra.encode()
    return b"\1" + len(text).to_bytes(4, "little") + text + (adapter or b"")


class Fields(NamedTuple):
    """What keeps requests apart beside their tokens. `adapter`: a LoRA's content."""

    extra: str | None = None
    salt: str | None = None
    adapter: bytes | None = None


class Session:
    """Of one scheduler process."""

    current: Session | None = None
    """Of this process; made when SGLang sizes its pools, before backend and tree."""

    def __init__(self, connection: attnd.Connection, cache: attnd.Cache, agree: Agree = alone) -> None:
        self.connection = connection
        self.cache = cache
        self.agree = agree
        self.tokens = 0  # granted
        self.epoch = b""  # empty: that of the weights on disk, shared with other engines
        self.twins = Twins(connection)
        self.held_back: set[str] = set()  # requests whose twin is being computed, by the last match
        self.waiting: dict[str, Held] = {}  # by request, until a row is theirs
        self.rows: dict[Hashable, Held] = {}
        self.hits = self.asked = self.recovered = 0
        self.adapter_path: Callable[[str], str | None] = lambda lora: None
        self._adapters: dict[str, bytes] = {}
        self._namespaces: dict[Fields, int] = {}
        self._unshared = connection.namespace(salt=secrets.token_bytes(SALT_BYTES))  # nothing is published in it

    # ---- Matching ----

    def namespace(self, fields: Fields) -> int:
        number = self._namespaces.get(fields)
        if number is None:
            extra, salt, adapter = fields
            number = 0
            if extra or salt or adapter or self.epoch:
                try:
                    number = self.connection.namespace(
                        adapter=adapter_field(extra, adapter),
                        salt=salt_bytes(self.epoch, salt) if salt or self.epoch else None,
                    )
                except attnd.Error as e:
                    if isinstance(e, LOST):
                        raise
                    logger.warning("attnd: %s: requests with further salts and adapters share nothing", e)
                    number = self._unshared
            self._namespaces[fields] = number
        return number

    def adapter(self, lora: str) -> bytes:
        """What the files of the adapter of this name held when it was first asked for."""
        known = self._adapters.get(lora)
        if known is None:
            known = self._adapters[lora] = adapter_bytes(self.adapter_path(lora))
        return known

    def peek(self, fields: Fields, tokens: Array) -> int:
        """A hint of how much is cached, for ordering."""
        n = 0
        try:
            n = self.cache.peek(tokens, self.namespace(fields))
        except attnd.Error as e:
            logger.debug("attnd: no peek: %s", e)
        return self.agree([n])[0]

    def match(
        self, request: str, fields: Fields, tokens: Array, limit: int, publish: bool = True
    ) -> int:
        """Open a request's sequence: how many of its tokens are cached and held, at most `limit`.

        Where another request is computing more of them, on any rank, none is opened: it is held back.
        """
        self.forget(request)
        self.held_back.discard(request)
        held = self._patiently(lambda: self._open(self.namespace(fields), tokens, limit, publish, twin=request))
        n = self.agree([-1 if held is None else held.length])[0]
        if n < 0:
            self.held_back.add(request)
            if held is not None:
                self._close([held])
            return 0
        self.waiting[request] = held
        self.asked += len(tokens)
        self.hits += n
        return n

    def match_privately(self, request: str) -> None:
        """A sequence that shares with none: its ids do not tell what its tokens are."""
        self.forget(request)
        nothing = np.zeros(0, np.uint64)
        self.waiting[request] = self._patiently(lambda: self._open(self._unshared, nothing, 0, False, True))

    def _open(
        self, namespace: int, tokens: Array, limit: int, publish: bool, opaque: bool = False, twin: str | None = None
    ) -> Held | None:
        publish = publish and namespace != self._unshared
        if twin is None:
            sequence = self.connection.sequence(tokens, namespace=namespace, max_match=limit)
        else:
            sequence = self.twins.open(twin, tokens, namespace=namespace, limit=limit)
        return None if sequence is None else Held(sequence, tokens, publish, opaque)

    def forget(self, request: str) -> None:
        """A request that was matched and has no row will not get one by this match."""
        held = self.waiting.pop(request, None)
        if held is not None:
            self._close([held])

    def give_up(self, request: str) -> None:
        """It will not be matched again."""
        self.forget(request)
        self.held_back.discard(request)
        self.twins.drop(request)

    def forget_all(self) -> None:
        self.twins.look()
        held = list(self.waiting.values())
        self.waiting.clear()
        self._close(held)

    def bind(self, row: Hashable, request: str | None) -> Held:
        """The sequence of a row; its first step takes over the request's match."""
        held = self.rows.get(row)
        if held is None:
            if request not in self.waiting:
                self.match_privately(request or repr(row))
            held = self.waiting.pop(request or repr(row))
            self.twins.drop(request or "")
            self.rows[row] = held
        return held

    def release(self, row: Hashable) -> None:
        """A row is free. What it published stays cached."""
        held = self.rows.pop(row, None)
        if held is not None:
            self._close([held])

    def new_epoch(self) -> None:
        """Whatever is cached now is nobody's hit in this engine any more, nor is what runs shared on."""
        self.forget_all()
        self.twins.drop_all()
        for held in self.rows.values():
            held.publish = False
        self.epoch = secrets.token_bytes(SALT_BYTES)
        self._namespaces.clear()

    def _close(self, held: list[Held]) -> None:
        try:
            if held:
                self.connection.close_sequences([h.sequence for h in held])
        except (*LOST, attnd.DeadlineExceeded) as e:  # what the daemon does late it does all the same
            logger.debug("attnd: closed with the connection: %s", e)  # the library forgot them all the same

    # ---- Steps ----

    def missing(self, step: Step) -> list[tuple[int, int]]:
        """(row, from) of those that attnd does not hold up to where the step begins, for all ranks alike."""
        lengths = self.agree([h.length for h in step.rows])
        short = [(i, n) for i, (n, start) in enumerate(zip(lengths, step.starts, strict=True)) if n < start]
        if any(step.rows[i].opaque for i, _ in short):
            raise RuntimeError(
                "attnd: the KV of a request that overrides embeddings is lost, its tokens do not tell it"
            )
        return short

    def begin(self, step: Step) -> None:
        """Make the step's plan; jobs may follow at once."""
        rows = step.rows
        ends = [s + n for s, n in zip(step.starts, step.counts, strict=True)]
        try:
            step.plan = self.cache.plan_arrays(
                [h.sequence.key for h in rows],
                step.starts,
                step.counts,
                step.tokens,
                [end if h.publish else 0 for h, end in zip(rows, ends, strict=True)],
                wait=False,
            )
        except LOST as e:
            step.lost = e

    def run(self, step: Step, job: Callable[..., None], *tensors: Any) -> bool:
        """One layer's job. False: its output is not to be used, the step will be repeated."""
        if step.lost is None:
            try:
                job(step.plan, *tensors)
            except LOST as e:
                step.lost = e
        return step.lost is None

    def end(self, step: Step) -> None:
        """After the last layer's job."""
        step.done = True
        if step.lost is None:
            try:
                status = step.plan.wait(strict=False)["status"]
                if status.any():
                    step.lost = next(failure for _, failure in step.plan.refused())
            except LOST as e:
                step.lost = e
        if step.lost is not None:
            return
        at = 0
        for held, start, n in zip(step.rows, step.starts, step.counts, strict=True):
            held.learn(start, step.tokens[at : at + n])
            held.length = start + n
            at += n

    def settled(self, step: Step) -> bool:
        """Whether the step counts, on all ranks; if not, the sequences are open again and it is to be repeated."""
        if self.agree([step.lost is None])[0]:
            return True
        self._recover(step.lost)
        return False

    # ---- Losing the daemon ----

    def _recover(self, why: Exception | None) -> None:
        if why is not None and not isinstance(why, LOST + (attnd.PoolFull, attnd.NotFound)):
            raise why
        logger.warning("attnd: a step is repeated: %s", why or "another rank lost the daemon")
        if isinstance(why, attnd.PoolFull):
            time.sleep(0.05)  # others may let go of something
        self.forget_all()
        self.twins.drop_all()
        held = list(self.rows.values())
        before = sum(h.length for h in held)
        lengths = self._patiently(lambda: self._reopen(held))
        for h, n in zip(held, lengths, strict=True):
            h.length = n
        self.recovered += 1
        logger.warning("attnd: %d of %d tokens are still cached", sum(lengths), before)

    def _reopen(self, held: list[Held]) -> list[int]:
        self.connection.ping()
        return self.connection.reopen([h.sequence for h in held]) if held else []

    def _patiently(self, call: Callable[[], Any]) -> Any:
        """Again while the daemon is away."""
        until = time.monotonic() + RECONNECT_SECONDS
        while True:
            try:
                return call()
            except (*LOST, attnd.DeadlineExceeded) as e:
                if time.monotonic() > until:
                    raise
                logger.warning("attnd: waiting for the daemon: %s", e)
                time.sleep(0.1)
