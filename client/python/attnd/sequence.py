# SPDX-License-Identifier: Apache-2.0
"""A sequence: a growing list of tokens whose K and V the daemon keeps.

In: a prompt. Out: how much of it is cached; forks, trims; its K and V as data. Next: plan.py adds
tokens to it.
"""

from __future__ import annotations

from ctypes import byref
from typing import TYPE_CHECKING, Any, Self

from . import _lib
from .memory import as_tokens

if TYPE_CHECKING:
    from .connection import Connection

UNLIMITED = 0xFFFF_FFFF_FFFF_FFFF


class Sequence:
    """Made by `Connection.sequence` or `fork`; a context manager that closes it.

    Closing keeps in the cache what was published. `cached`: tokens found when it was opened.
    `length`: tokens that it holds, those of the plan under way included.
    """

    __slots__ = ("cached", "connection", "key", "length", "namespace", "_open")

    def __init__(self, connection: Connection, key: int, namespace: int, length: int) -> None:
        self.connection = connection
        self.key = key
        self.namespace = namespace
        self.cached = length
        self.length = length
        self._open = True

    def __repr__(self) -> str:
        return f"attnd.Sequence(key={self.key:#x}, length={self.length}{'' if self._open else ', closed'})"

    @classmethod
    def open(
        cls, connection: Connection, tokens: Any, key: int | None, namespace: int, max_match: int | None
    ) -> Self:
        array = as_tokens(tokens)
        limit = max(len(array) - 1, 0) if max_match is None else min(max_match, UNLIMITED)
        key = connection.new_key() if key is None else key
        info = _lib.OpenInfo()
        connection.call(
            connection._lib.attnd_seq_open, key, namespace, array.ctypes.data, len(array), limit, byref(info)
        )
        return cls(connection, key, namespace, info.cached)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if not self.connection.closed:
            self.close()

    def fork(self, length: int | None = None, *, key: int | None = None) -> Sequence:
        """Another sequence with the first `length` tokens of this one (all of them); copies nothing."""
        length = self.length if length is None else length
        key = self.connection.new_key() if key is None else key
        self.connection.call(self.connection._lib.attnd_seq_fork, self.key, key, length)
        return Sequence(self.connection, key, self.namespace, length)

    def trim(self, length: int) -> None:
        """Shorten to `length` tokens."""
        self.connection.call(self.connection._lib.attnd_seq_trim, self.key, length)
        self.length = length

    def close(self) -> None:
        """Unpublished tokens are gone, published ones stay cached. Closing again does nothing."""
        if self._open:
            self._open = False
            self.connection.call(self.connection._lib.attnd_seq_close, self.key)

    def forget(self) -> None:
        """It was closed by other means."""
        self._open = False
