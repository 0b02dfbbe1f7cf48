# SPDX-License-Identifier: Apache-2.0
"""Jobs as awaitables of asyncio.

In: the connection's descriptor. Out: futures. Next: the loop's readers.

The descriptor signals only completions that came after attnd_next had found none, and any other
call may take completions off the ring without a signal. So each call on the connection asks for one
more look, which the loop makes before it sleeps.
"""

from __future__ import annotations

import asyncio
import errno
from ctypes import byref
from typing import TYPE_CHECKING, Any

from . import _lib
from .connection import Job, microseconds
from .errors import ConnectionLost, Error
from .memory import as_tokens
from .plan import Layer, Plan, Row, rows_of
from .sequence import Sequence, Wait, match_limit

if TYPE_CHECKING:
    from collections.abc import Iterable

    from .cache import Cache
    from .connection import Connection

Completion = tuple[Job, int, int]


class Completions:
    """`Connection.aio`: belongs to the event loop that was running when it was made."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._loop = asyncio.get_running_loop()
        self._futures: dict[Job, asyncio.Future[Completion]] = {}
        self._done: dict[Job, Completion] = {}
        self._look: asyncio.Handle | None = None
        self._fd = connection.fileno()
        self._loop.add_reader(self._fd, self._pump)

    @property
    def running(self) -> bool:
        return not self._loop.is_closed() and self._fd >= 0

    def stop(self) -> None:
        if self._fd >= 0 and not self._loop.is_closed():
            self._loop.remove_reader(self._fd)
        self._fd = -1
        for f in self._futures.values():
            if not f.done():
                f.set_exception(ConnectionLost(errno.ECONNRESET, "the connection was closed"))
        self._futures.clear()

    def touch(self) -> None:
        """Another call was made: look again before the loop sleeps."""
        if self._look is None and self.running:
            self._look = self._loop.call_soon_threadsafe(self._pump)

    def take(self, job: Job) -> Completion | None:
        """A completion that was seen already."""
        return self._done.pop(job, None)

    def _pump(self) -> None:
        self._look = None
        connection = self._connection
        while not connection.closed:
            try:
                completion = connection.next()
            except ConnectionLost:  # every job has been reported; the next call connects again, with this descriptor
                return
            if completion is None:
                return
            future = self._futures.pop(completion[0], None)
            if future is None:
                self._done[completion[0]] = completion
            elif not future.done():
                future.set_result(completion)

    async def wait(self, job: Job) -> int:
        """`Connection.wait`."""
        if job not in self._done:
            self._pump()
        found = self._done.pop(job, None)
        if found is None:
            future = self._futures[job] = self._loop.create_future()
            found = await future
        return self._connection.settle(*found)

    async def ping(self, timeout: float | None = None) -> None:
        c = self._connection
        await self.wait(c.submit(c._lib.attnd_ping_async, microseconds(timeout)))

    async def sequence(
        self,
        tokens: Any = (),
        *,
        key: int | None = None,
        namespace: int = 0,
        max_match: int | None = None,
        wait: Wait | None = None,
    ) -> Sequence:
        """`Connection.sequence`."""
        c = self._connection
        array = as_tokens(tokens)
        limit = match_limit(len(array), max_match)
        key = c.new_key() if key is None else key
        prompt = key, namespace, array.ctypes.data, len(array)
        if wait is None or not limit:
            job = c.submit(c._lib.attnd_seq_open_async, *prompt, limit)
            return Sequence(c, key, namespace, await self._opened(key, job))
        told = _lib.WaitInfo()
        job = c.submit(c._lib.attnd_seq_wait_async, *prompt, byref(wait.options(limit)), byref(told), keep=told)
        return Sequence(c, key, namespace, await self._opened(key, job)).told(told)

    async def _opened(self, key: int, job: Job) -> int:
        """Who is cancelled meanwhile gets no sequence to close: it is closed here, which ends its wait, too."""
        try:
            return await self.wait(job)
        except asyncio.CancelledError:
            c = self._connection
            try:
                if not c.closed:
                    c.call(c._lib.attnd_seq_close, key)
            except Error:
                pass  # it was not opened, or is gone with the daemon
            raise

    async def plan(
        self,
        cache: Cache,
        rows: Iterable[Row | tuple[Any, ...]],
        *,
        tag: int | None = None,
        strict: bool = True,
        deadline: float | None = None,
    ) -> Plan:
        """`Cache.plan`."""
        listed = [r if isinstance(r, Row) else Row(*r) for r in rows]
        plan = Plan(cache, *rows_of(listed), tag=tag, sequences=[r.sequence for r in listed])
        plan.submit(wait=False, strict=strict, deadline=deadline)
        assert plan.job is not None
        await self.wait(plan.job)
        plan.job = None
        plan._made(strict)
        return plan

    async def run(self, layer: Layer, plan: Plan) -> None:
        """`Layer.run`."""
        await self.wait(layer.decode(plan) if plan.decodes else layer.extend(plan))


