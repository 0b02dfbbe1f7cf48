# SPDX-License-Identifier: Apache-2.0
"""What vLLM on attnd cannot do, said at the start.

In: vLLM's configuration. Out: a ValueError that says what to change, or a warning about an
untested version. Next: platform.py goes on.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

from . import NAME, TESTED

logger = logging.getLogger("vllm.attnd")

_MODEL = "serve this model with vLLM's own CPU backend"


def refuse(why: str, then: str) -> ValueError:
    return ValueError(f"--attention-backend {NAME}: {why}: {then}")


def check(config: Any) -> None:
    """Raise the first reason, if there is one."""
    for found, why, then in _reasons(config):
        if found:
            raise refuse(why, then)
    _check_version()


def _reasons(config: Any) -> Iterator[tuple[bool, str, str]]:
    """(true if it applies, what, what to change)."""
    yield from _model(config.model_config)
    yield from _parallel(config.parallel_config)
    cache, speculative, transfer = config.cache_config, config.speculative_config, config.kv_transfer_config
    yield (
        speculative is not None and speculative.method != "ngram",
        f"speculation by {getattr(speculative, 'method', None)} runs a model of its own whose tokens the scheduler does not know",
        'use --speculative-config with "method": "ngram", or none',
    )  # fmt: skip
    yield (
        transfer is not None and transfer.kv_connector is not None,
        f"KV is shared through the daemon, not transferred (prefill and decode apart, {getattr(transfer, 'kv_connector', None)})",
        "drop --kv-transfer-config",
    )  # fmt: skip
    yield config.ec_transfer_config is not None, "encoder caches are not transferred", "drop --ec-transfer-config"
    yield (
        config.kv_events_config is not None and config.kv_events_config.enable_kv_cache_events,
        "vLLM does not see what the daemon caches",
        "drop --kv-events-config",
    )
    yield cache.kv_sharing_fast_prefill, "all layers take part in prefill", "drop --kv-sharing-fast-prefill"
    yield (
        cache.cache_dtype not in ("auto", "float32", "float16", "bfloat16"),
        f"KV of type {cache.cache_dtype} was not tested",
        "drop --kv-cache-dtype",
    )
    yield cache.kv_offloading_size is not None, "attnd keeps all KV itself", "drop --kv-offloading-size"
    yield bool(config.attention_config.backend_per_kind), "it serves all layers", "drop backend_per_kind"
    yield (
        config.scheduler_config.scheduler_cls not in (None, SCHEDULER),
        "the scheduler must know when the daemon was restarted",
        "drop --scheduler-cls",
    )
    yield (
        config.use_v2_model_runner,
        "the V2 model runner was not tested",
        "unset VLLM_USE_V2_MODEL_RUNNER and what needs it",
    )


SCHEDULER = "attnd.integrations.vllm.scheduler.AttndScheduler"


def _model(model: Any) -> Iterator[tuple[bool, str, str]]:
    yield model.use_mla, "multi-head latent attention was not tested", _MODEL
    yield model.is_encoder_decoder, "encoder-decoder models attend to what is no sequence", _MODEL
    yield model.is_hybrid or model.has_inner_state, "state-space and linear-attention layers have no KV", _MODEL
    yield model.is_attention_free, "a model without attention has nothing to share", _MODEL
    yield model.is_diffusion, "diffusion models are not causal", _MODEL
    yield model.runner_type != "generate", f"models of runner {model.runner_type} are not supported", _MODEL
    yield model.enable_prompt_embeds, "embeddings have no token to be known by", "drop --enable-prompt-embeds"


def _parallel(parallel: Any) -> Iterator[tuple[bool, str, str]]:
    yield (
        parallel.pipeline_parallel_size > 1,
        "a cache holds all layers of a model",
        "use --tensor-parallel-size instead of --pipeline-parallel-size",
    )
    yield (
        parallel.data_parallel_size > 1,
        "replicas share through the daemon",
        "start one vLLM for each instead of --data-parallel-size",
    )
    yield parallel.decode_context_parallel_size > 1, "sequences are not split", "drop --decode-context-parallel-size"
    yield (
        getattr(parallel, "prefill_context_parallel_size", 1) > 1,
        "sequences are not split",
        "drop --prefill-context-parallel-size",
    )


def _check_version() -> None:
    from vllm.version import __version__

    if __version__.split("+")[0] != TESTED:
        logger.warning("attnd was tested with vLLM %s, this is %s", TESTED, __version__)
