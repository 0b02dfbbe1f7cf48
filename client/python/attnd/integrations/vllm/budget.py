# SPDX-License-Identifier: Apache-2.0
"""How much of the daemon's pool this engine is guaranteed, in vLLM's blocks.

In: vLLM's configuration, in the engine's process, weights loaded. Out: a grant for every rank's
cache, vLLM's number of blocks. Next: admission.py uses the same session.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import attnd

from .checks import refuse
from .link import Link

if TYPE_CHECKING:
    from vllm.config import VllmConfig

logger = logging.getLogger("vllm.attnd")

_links: dict[str, Link] = {}  # of this process's engines that are starting


def take(config: VllmConfig) -> Link:
    """The scheduler's session; made by `settle`."""
    return _links.pop(config.kv_transfer_config.engine_id)  # type: ignore[union-attr, arg-type]


def settle(config: VllmConfig) -> None:
    transfer = config.kv_transfer_config
    if transfer.engine_id in _links:  # type: ignore[union-attr]
        return
    link = Link(config, "vllm")
    tokens = _grant(link, config)
    config.cache_config.num_gpu_blocks_override = tokens // config.cache_config.block_size + 1  # one is vLLM's null block
    _links[transfer.engine_id] = link  # type: ignore[union-attr, index]
    cache = link.caches[0]
    logger.info(
        "attnd: daemon %d at %s, cache %s of %s%s: %d tokens for this engine, %d in the pool",
        link.connection.daemon_pid, link.connection.socket, cache.fingerprint.hex(), cache.name,
        f" and {link.size - 1} more" if link.size > 1 else "", tokens, cache.capacity_tokens // link.size,
    )  # fmt: skip


def token_bytes(link: Link) -> int:
    """Of one token in all ranks' caches."""
    c = link.caches[0]
    return link.size * c.num_layers * c.num_kv_heads * (c.head_dim + c.head_dim_v) * c.kv_dtype.itemsize


def _asked(link: Link, config: VllmConfig) -> int | None:
    extra = config.kv_transfer_config.kv_connector_extra_config  # type: ignore[union-attr]
    if extra.get("blocks"):
        return int(extra["blocks"]) * config.cache_config.block_size
    if extra.get("bytes"):
        return int(extra["bytes"]) // token_bytes(link)
    return None


def _grant(link: Link, config: VllmConfig) -> int:
    """What was asked for; else half of what the pool holds, and half of that until it fits beside others' grants."""
    model, block, rows = config.model_config, config.cache_config.block_size, config.scheduler_config.max_num_seqs
    whole = -(-model.max_model_len // block) * block
    # `--max-model-len auto`: vLLM makes of the grant what one request may have.
    least, longest = (block, 1) if model.original_max_model_len == -1 else (whole, model.max_model_len)
    asked = _asked(link, config)
    tokens = asked or min(rows * whole, link.caches[0].capacity_tokens // link.size // 2)
    while True:
        tokens -= tokens % block
        if tokens < least:
            raise refuse(
                f"{tokens} tokens of the daemon's pool are to be had, one request may need {longest}",
                "lower --max-model-len, stop other engines, or raise the daemon's pool-size",
            )
        failure = _try(link, tokens, rows, block)
        if failure is None:
            return tokens
        if asked:
            raise refuse(
                f"the daemon cannot guarantee {tokens} tokens ({failure.strerror})",
                "lower --kv-cache-memory-bytes (VLLM_CPU_KVCACHE_SPACE), or raise the daemon's pool-size",
            ) from failure
        tokens //= 2


def _try(link: Link, tokens: int, rows: int, block: int) -> attnd.PoolFull | None:
    # Beside its blocks a row holds one more while a step copies the block in which it leaves a shared
    # prefix. Few rows begin in one step; a row that finds no room is tried again.
    beginning = min(rows, max(8, tokens // block // 32))
    try:
        for cache in link.caches:
            cache.grant(tokens, beginning)
    except attnd.PoolFull as e:
        for cache in link.caches:
            cache.grant(0, 0)
        return e
    return None
