# SPDX-License-Identifier: Apache-2.0
"""LoRA adapters as namespaces, the same in every engine.

In: where an engine has an adapter from. Out: bytes for a namespace's adapter. Next: the daemon.
Knows nothing of the engines.
"""

from __future__ import annotations

import logging
import secrets
from pathlib import Path

import attnd

logger = logging.getLogger(__name__)


def adapter_bytes(path: str | None) -> bytes:
    """What the adapter's files hold. Where they are not at hand: something that nobody else has."""
    try:
        return attnd.adapter_digest(_folder(path))
    except (ImportError, OSError, ValueError) as e:
        logger.warning("attnd: %s: what is computed with this adapter is shared with no other engine", e)
        return secrets.token_bytes(32)


def adapter_state(path: str | None) -> tuple[tuple[str, int, int], ...]:
    """What tells cheaply whether the files of a folder were written since: name, time and size of each."""
    if not path or not Path(path).is_dir():
        return ()  # a hub's files are not written again
    found = ((f.name, f.stat()) for f in sorted(Path(path).iterdir()) if f.is_file())
    return tuple((name, s.st_mtime_ns, s.st_size) for name, s in found)


def _folder(path: str | None) -> str:
    """Of a folder, or of a hub's name that has been fetched before."""
    if not path:
        raise FileNotFoundError("an adapter without files")
    if Path(path).is_dir():
        return path
    from huggingface_hub import snapshot_download

    return str(snapshot_download(path, local_files_only=True))
