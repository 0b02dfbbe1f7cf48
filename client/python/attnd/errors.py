# SPDX-License-Identifier: Apache-2.0
"""Failures as exceptions.

In: a negative errno and the library's text. Out: an `Error`, or one of its kinds. Next: the caller.
"""

from __future__ import annotations

import errno


class Error(OSError):
    """A call of libattnd failed. `errno` is positive, `strerror` the library's text: field and limit included."""


class ConnectionLost(Error, ConnectionResetError):
    """ECONNRESET: the daemon ended or restarted. Call again; `Connection.reopen` says what is still cached."""


class NoDaemon(Error, ConnectionRefusedError):
    """ENOENT or ECONNREFUSED while connecting: nobody listens."""


class DeadlineExceeded(Error, TimeoutError):
    """ETIMEDOUT: the job may still be the daemon's; wait for it again."""


class QueueFull(Error, BlockingIOError):
    """EAGAIN: complete some job first."""


class NotFound(Error):
    """ENOENT: no such cache, sequence, engine, parameter set or job."""


class PoolFull(Error):
    """ENOMEM: the pool is full of what others hold."""


class QuotaExceeded(Error):
    """EDQUOT."""


class Stale(Error):
    """ESTALE: no live plan of this tag; plan again."""


class Invalid(Error, ValueError):
    """EINVAL or ERANGE: the text names the field and its limit."""


_KINDS: dict[int, type[Error]] = {
    errno.ECONNRESET: ConnectionLost,
    errno.ECONNREFUSED: NoDaemon,
    errno.ETIMEDOUT: DeadlineExceeded,
    errno.EAGAIN: QueueFull,
    errno.ENOENT: NotFound,
    errno.ENOMEM: PoolFull,
    errno.EDQUOT: QuotaExceeded,
    errno.ESTALE: Stale,
    errno.EINVAL: Invalid,
    errno.ERANGE: Invalid,
}


def error(code: int, text: str) -> Error:
    """The exception of a negative errno."""
    return _KINDS.get(-code, Error)(-code, text)
