# SPDX-License-Identifier: Apache-2.0
"""The checkpoint that an engine serves, as a fingerprint that all engines compute alike.

In: where an engine has its weights from, how it loads them, what it makes of them. Out: 16 bytes.
Next: the daemon. Knows nothing of the engines.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attnd
from attnd.fingerprint import FILES

logger = logging.getLogger(__name__)

# By what an engine calls a format of weights: the files that it reads.
_READS: dict[str, tuple[tuple[str, ...], ...]] = {
    **dict.fromkeys(("auto", "hf", "safetensors", "fastsafetensors", "instanttensor", "mistral", "bitsandbytes"), FILES),
    **dict.fromkeys(("layered", "runai_streamer"), FILES),
    **dict.fromkeys(("pt", "npcache"), ((".bin", ".pt"),)),
}


def checkpoint(
    model: str, revision: str | None, cache_dir: str | None, load_format: Any, **how: Any
) -> bytes | None:
    """Of a folder's files, or of a hub's that were fetched before; None where they do not tell the weights.

    `how`: what attnd.checkpoint_fingerprint takes.
    """
    load_format = str(getattr(load_format, "value", load_format))
    files = _READS.get(load_format)
    try:
        if files is None:
            raise ValueError(f"weights of the format {load_format} are not known by files")
        return attnd.checkpoint_fingerprint(_folder(model, revision, cache_dir), files=files, **how)
    except (ImportError, OSError, ValueError) as e:
        logger.warning("attnd: %s: what is computed with this model is shared with no other engine", e)
        return None


def _folder(model: str, revision: str | None, cache_dir: str | None) -> Path:
    if Path(model).exists():
        return Path(model)
    from huggingface_hub import snapshot_download

    return Path(snapshot_download(model, revision=revision, cache_dir=cache_dir, local_files_only=True))


def long_rope(config: Any) -> int | None:
    """The length beyond which a "longrope" model's positions are scaled by other factors; None for other models."""
    settings = config if isinstance(config, Mapping) else config.to_dict()
    for key, value in settings.items():
        if isinstance(value, Mapping) and (found := long_rope(value)) is not None:
            return found or int(settings.get("original_max_position_embeddings") or 0)
        if key in ("rope_type", "type") and value in ("longrope", "su"):
            return int(settings.get("original_max_position_embeddings") or 0)
    return None
