# SPDX-License-Identifier: Apache-2.0
"""This process's session with the daemon, and the caches of the model: one for each rank.

In: vLLM's configuration. Out: a connection of the engine that all its processes join, the caches in
the order of their ranks. Next: budget.py and admission.py in the scheduler, worker.py in a rank.
"""

from __future__ import annotations

import errno
import hashlib
import logging
from typing import TYPE_CHECKING, Any

import attnd

from ..checkpoints import checkpoint, long_rope

if TYPE_CHECKING:
    from vllm.config import VllmConfig

logger = logging.getLogger("vllm.attnd")

# What a call may answer when the daemon has ended, is away or has just come back.
AWAY = frozenset((errno.ECONNRESET, errno.ECONNREFUSED, errno.ENOENT, errno.ESTALE, errno.ETIMEDOUT))
# How long requests wait for it before the engine gives up.
PATIENCE_S = 60


class Link:
    """A session and its caches. Every session opens all of them, so that their numbers agree."""

    def __init__(self, config: VllmConfig, name: str) -> None:
        self.connection = _join(config, name)
        self.size = config.parallel_config.tensor_parallel_size
        identity = _geometry(config)
        self.caches = [
            self.connection.cache(
                config.model_config.hf_config.model_type,
                fingerprint=fingerprint(config, (rank, self.size)),
                **identity,
            )
            for rank in range(self.size)
        ]

    def close(self) -> None:
        self.connection.close()


def _join(config: VllmConfig, name: str) -> attnd.Connection:
    """Whoever of the engine's processes comes first makes it."""
    transfer = config.kv_transfer_config
    assert transfer is not None and transfer.engine_id is not None
    engine = hashlib.blake2b(transfer.engine_id.encode(), digest_size=16).digest()
    try:
        return attnd.connect(name=name, engine=engine, create_engine=True)
    except attnd.NoDaemon as e:
        raise RuntimeError(
            f"no attnd daemon: {e.strerror}. Start it (systemctl start attnd.socket) or name its socket in ATTND_SOCKET"
        ) from e
    except attnd.Error as e:
        if e.errno != errno.EEXIST:
            raise
    return attnd.connect(name=name, engine=engine)


def _geometry(config: VllmConfig) -> dict[str, Any]:
    model, parallel = config.model_config, config.parallel_config
    shared = getattr(model.hf_text_config, "num_kv_shared_layers", None) or 0
    return {
        "num_layers": model.get_num_layers(parallel) - shared,
        "num_heads": model.get_num_attention_heads(parallel),
        "num_kv_heads": model.get_num_kv_heads(parallel),
        "head_dim": model.get_head_size(),
        "kv_dtype": kv_dtype(config),
    }


def kv_dtype(config: VllmConfig) -> str:
    named = config.cache_config.cache_dtype
    return str(config.model_config.dtype).removeprefix("torch.") if named == "auto" else named


def fingerprint(config: VllmConfig, shard: tuple[int, int]) -> bytes:
    """Who may share: the checkpoint's weights and settings, as every engine on attnd computes it."""
    model, load = config.model_config, config.load_config
    found = None
    if load.load_format != "dummy":
        found = checkpoint(
            model.model,
            model.revision,
            load.download_dir,
            load.load_format,
            dtype=str(model.dtype).removeprefix("torch."),
            shard=shard,
            settings=_settings(model),
        )
    # Weights of no file: nobody else has them.
    seed = f"{config.kv_transfer_config.engine_id}/{shard}"  # type: ignore[union-attr]
    return found or hashlib.blake2b(seed.encode(), digest_size=16).digest()


def _settings(model: Any) -> dict[str, Any]:
    """What decides K and V beside the checkpoint."""
    settings: dict[str, Any] = {}
    if model.quantization:
        settings["quantization"] = model.quantization
    if model.quantization_config:
        settings["quantization arguments"] = repr(model.quantization_config)
    if model.hf_overrides:
        settings["overrides"] = model.hf_overrides if isinstance(model.hf_overrides, dict) else repr(model.hf_overrides)
    if model.hf_config_path and model.hf_config_path != model.model:
        settings["configuration"] = model.hf_config.to_dict()
    original = long_rope(model.hf_text_config)
    if original is not None:  # vLLM takes the long prompts' factors for all, or for none
        auto = model.original_max_model_len == -1
        longest = model.hf_text_config.max_position_embeddings if auto else model.max_model_len
        settings["long positions"] = longest > original
    return settings
