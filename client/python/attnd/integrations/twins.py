# SPDX-License-Identifier: Apache-2.0
"""Requests that another one, of any engine, is computing right now: they wait for it.

In: a scheduler's requests as it looks for what is cached of them. Out: an open sequence, or None: the
scheduler goes on with others and asks again. Next: the daemon, which tells when the tokens are there.
Knows nothing of the engines.

A wait never blocks the scheduler and ends by itself: with the twin's tokens, its death, after the time
that ATTND_TWIN_WAIT gives, or after a third of that without progress.
"""

from __future__ import annotations

import os
import time
from ctypes import byref
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import attnd
from attnd import _lib
from attnd.memory import as_tokens
from attnd.sequence import WAITED

if TYPE_CHECKING:
    from attnd.connection import Job

VARIABLE = "ATTND_TWIN_WAIT"
SECONDS = 30.0  # that a request waits, all in all
WORTH = 64  # tokens: for fewer it is not worth while
MOST = 64  # that wait at a time
LOOK = 1e-3  # a first look takes at most so many seconds from when the daemon gets to it


def patience() -> float:
    """Seconds, from the environment; 0: never wait."""
    text = os.environ.get(VARIABLE, "")
    try:
        seconds = float(text or SECONDS)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds <= 3600:
        raise ValueError(f"{VARIABLE} is a number of seconds from 0 to 3600, not {text!r}")
    return seconds


@dataclass
class _Wait:
    name: str
    key: int
    told: Any


class Twins:
    """Of one connection, all of whose completions that nobody waits for are these waits'."""

    def __init__(self, connection: attnd.Connection, seconds: float | None = None, quiet: float | None = None) -> None:
        self.connection = connection
        self.seconds = patience() if seconds is None else seconds
        self.quiet = self.seconds / 3 if quiet is None else quiet
        self._flying = 0  # jobs that have not been reported
        self._waits: dict[Job, _Wait] = {}
        self._waiting: dict[str, Job] = {}
        self._late: list[int] = []  # keys of sequences that the daemon had not opened in time
        self._since: dict[str, float] = {}  # of those that have waited and were not admitted yet

    def __len__(self) -> int:
        return len(self._waits)

    def open(self, name: str, tokens: Any, *, namespace: int = 0, limit: int) -> attnd.Sequence | None:
        """The request's sequence, or None while it is to wait."""
        if name in self._waiting:
            self.look()
            if name in self._waiting:
                return None
        left = self._since.get(name, time.monotonic()) + self.seconds - time.monotonic()
        if left > 0:
            sequence = self._open(tokens, namespace, limit, attnd.Wait(want=0, quiet=LOOK))
            return None if self._worth(sequence) and self._begin(name, sequence, tokens, limit, left) else sequence
        return self._open(tokens, namespace, limit)

    def _open(self, tokens: Any, namespace: int, limit: int, wait: attnd.Wait | None = None) -> attnd.Sequence:
        key = self.connection.new_key()
        try:
            return self.connection.sequence(tokens, key=key, namespace=namespace, max_match=limit, wait=wait)
        except attnd.DeadlineExceeded:
            self._late.append(key)  # it may still come to be open
            raise

    def _worth(self, sequence: attnd.Sequence) -> bool:
        found = sequence.waited in ("progress", "quiet") and sequence.expected >= sequence.cached + WORTH
        return found and len(self._waits) < MOST

    def _begin(self, name: str, sequence: attnd.Sequence, tokens: Any, limit: int, left: float) -> bool:
        """Wait on from what the first look holds."""
        array = as_tokens(tokens)
        wait = attnd.Wait(quiet=min(self.quiet, left), deadline=left).options(limit)
        told = _lib.WaitInfo()
        c = self.connection
        try:
            job = c.submit(
                c._lib.attnd_seq_wait_async, sequence.key, sequence.namespace, array.ctypes.data, len(array),
                byref(wait), byref(told), keep=told,
            )  # fmt: skip
        except attnd.QueueFull:
            return False
        self._flying += 1
        self._waits[job] = _Wait(name, sequence.key, told)
        self._waiting[name] = job
        self._since.setdefault(name, time.monotonic())
        return True

    def look(self) -> None:
        """Which waits are over. Nothing is held of them: their requests are opened anew when they are asked for."""
        late, self._late = self._late, []
        self._close(late)
        ended = []
        try:
            while self._flying and (completion := self.connection.next()) is not None:
                job, status, _ = completion
                self._flying -= 1
                wait = self._waits.pop(job, None)
                if wait is None:
                    continue  # dropped
                del self._waiting[wait.name]
                if status == 0:
                    ended.append(wait.key)
                    if WAITED[wait.told.why] in ("deadline", "quiet"):
                        self._since[wait.name] = float("-inf")
            self.connection.close_sequences(ended)
        except (attnd.ConnectionLost, attnd.NoDaemon):
            pass  # every job has been reported, and the daemon has let go of everything

    def drop(self, name: str) -> None:
        """The request was admitted, or does not want to be any more."""
        self._since.pop(name, None)
        job = self._waiting.pop(name, None)
        if job is not None:
            self._close([self._waits.pop(job).key])

    def drop_all(self) -> None:
        """What they hold is needed."""
        keys = [w.key for w in self._waits.values()]
        self._waits.clear()
        self._waiting.clear()
        self._close(keys)

    def _close(self, keys: list[int]) -> None:
        """Closing ends a wait; one that has failed has left nothing to close."""
        for key in keys:
            try:
                self.connection.close_sequences([key])
            except (attnd.NotFound, attnd.ConnectionLost, attnd.NoDaemon):
                pass
            except attnd.DeadlineExceeded:
                self._late.append(key)
