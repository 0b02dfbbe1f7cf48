# SPDX-License-Identifier: Apache-2.0
"""What SGLang is told when it serves from attnd, and what is refused.

In: SGLang's arguments, before it has settled them. Out: the arguments that follow from
`--attention-backend attnd`, or a ValueError that says what to change. Next: backend.py, in the
scheduler's process.
"""

from __future__ import annotations

import logging
import os
from typing import Any

from . import NAME, TESTED

logger = logging.getLogger(__name__)

# What a CPU machine runs at once unless told otherwise: each holds up to two blocks beside its tokens.
MAX_RUNNING_REQUESTS = 64

# (argument, the values that are fine, why, what to do). An argument that this version lacks is fine.
_REFUSED: tuple[tuple[str, tuple[Any, ...], str, str], ...] = (
    ("device", ("cpu", None), "attnd computes attention on CPUs", "use --device cpu"),
    ("speculative_algorithm", (None,), "drafts are not supported", "drop --speculative-algorithm"),
    ("enable_hierarchical_cache", (False,), "attnd is the cache of all tiers", "drop --enable-hierarchical-cache"),
    ("hicache_storage_backend", (None,), "attnd is the cache of all tiers", "drop --hicache-storage-backend"),
    ("enable_lmcache", (False,), "attnd owns the KV", "drop --enable-lmcache"),
    ("enable_flexkv", (False,), "attnd owns the KV", "drop --enable-flexkv"),
    (
        "enable_unified_cache_external_linker",
        (False,),
        "attnd owns the KV",
        "drop --enable-unified-cache-external-linker",
    ),
    ("enable_unified_memory", (False,), "attnd owns the KV", "drop --enable-unified-memory"),
    ("disable_radix_cache", (False,), "attnd's tree is part of its KV", "drop --disable-radix-cache"),
    ("disaggregation_mode", ("null", None), "KV is not transferred between engines", "drop --disaggregation-mode"),
    ("page_size", (1, None), "attnd has blocks of its own and matches to the token", "drop --page-size"),
    ("pp_size", (1,), "pipeline parallelism is not supported", "use --pp-size 1"),
    ("dp_size", (1,), "data parallelism inside one engine is not supported", "start one engine for each replica"),
    ("dcp_size", (1,), "context parallelism is not supported", "use --dcp-size 1"),
    ("attn_cp_size", (1,), "context parallelism is not supported", "use --attn-cp-size 1"),
    ("enable_dp_attention", (False,), "attention is sharded by heads", "drop --enable-dp-attention"),
    ("enable_two_batch_overlap", (False,), "a step has one plan", "drop --enable-two-batch-overlap"),
    ("enable_pdmux", (False,), "a step has one plan", "drop --enable-pdmux"),
    ("enable_torch_compile", (False,), "its jobs are no torch operations", "drop --enable-torch-compile"),
    ("dllm_algorithm", (None,), "diffusion models are not supported", "drop --dllm-algorithm"),
    ("prefill_only_disable_kv_cache", (False,), "attnd owns the KV", "drop --prefill-only-disable-kv-cache"),
    ("kv_cache_dtype", ("auto", None), "it stores the model's own type", "drop --kv-cache-dtype"),
    ("enable_kv_cache_sharding", (False,), "attnd owns the KV", "drop --enable-kv-cache-sharding"),
    ("kv_events_config", (None,), "SGLang does not see attnd's tree", "subscribe to the daemon"),
    ("enable_streaming_session", (False,), "rows are not kept between requests", "drop --enable-streaming-session"),
    ("is_embedding", (False,), "only causal models are supported", "use another backend"),
)


def refuse(why: str, then: str) -> ValueError:
    return ValueError(f"--attention-backend {NAME}: {why}: {then}")


def apply(args: Any) -> None:
    """Check and complete SGLang's arguments."""
    for which in ("prefill", "decode"):
        if getattr(args, f"{which}_attention_backend") not in (None, NAME):
            raise refuse("it serves both prefill and decode", f"drop --{which}-attention-backend")
    if args.attention_backend != NAME:
        raise refuse("it serves both prefill and decode", f"use --attention-backend {NAME} alone")
    for name, fine, why, then in _REFUSED:
        value = getattr(args, name, fine[0])
        if value not in fine:
            raise refuse(f"{why} ({name}={value!r})", then)
    if args.radix_cache_backend not in (None, NAME):
        raise refuse("attnd's tree is the only one", "drop --radix-cache-backend")
    args.radix_cache_backend = NAME
    args.page_size = 1
    args.disable_hybrid_swa_memory = True  # windows are the daemon's
    args.disable_cuda_graph = True
    if args.max_running_requests is None:
        args.max_running_requests = MAX_RUNNING_REQUESTS
    # Of the processes to come: threads that spin keep the daemon's from running.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    _check_version()


def _check_version() -> None:
    from sglang.version import __version__

    if __version__ != TESTED:
        logger.warning("attnd: SGLang %s was not tested, %s was", __version__, TESTED)
