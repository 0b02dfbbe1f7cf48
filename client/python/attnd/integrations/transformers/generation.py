# SPDX-License-Identifier: Apache-2.0
"""`generate` with attnd: its cache is an AttndCache, its prefill begins where the daemon's ends.

In: GenerationMixin's two steps that know of the cache. Out: the same, for models whose attention is
attnd's; others are left alone. Next: cache.py.
"""

from __future__ import annotations

import warnings
from functools import wraps
from typing import Any

import transformers
from transformers.generation.utils import GenerationMixin

from .attention import NAME
from .cache import AttndCache, beside_tokens, counts_tokens

TESTED = "5.19"


def _is_ours(model: Any) -> bool:
    return getattr(model.config.get_text_config(decoder=True), "_attn_implementation", None) == NAME


def hook_generate() -> None:
    """Once a process."""
    if getattr(GenerationMixin, "_attnd_generates", False):
        return
    missing = [n for n in ("_prepare_cache_for_generation", "_prefill") if not hasattr(GenerationMixin, n)]
    if missing:
        raise ImportError(
            f"transformers {transformers.__version__} has no GenerationMixin.{missing[0]}; tested: {TESTED}"
        )
    if not transformers.__version__.startswith(TESTED + "."):
        warnings.warn(f"attnd was tested with transformers {TESTED}, not {transformers.__version__}", stacklevel=2)
    GenerationMixin._attnd_generates = True
    prepare, prefill = GenerationMixin._prepare_cache_for_generation, GenerationMixin._prefill

    @wraps(prepare)
    def prepare_cache(self: Any, generation_config: Any, model_kwargs: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        wanted = (
            _is_ours(self)
            and model_kwargs.get("past_key_values") is None
            and generation_config.use_cache is not False
            and generation_config.cache_implementation in (None, "dynamic")
        )
        if wanted:
            model_kwargs["past_key_values"] = AttndCache(self)
            return None
        return prepare(self, generation_config, model_kwargs, *args, **kwargs)

    @wraps(prefill)
    def open_first(
        self: Any, input_ids: Any, generation_config: Any, model_kwargs: dict[str, Any], *args: Any, **kwargs: Any
    ) -> Any:
        cache = model_kwargs.get("past_key_values")
        if isinstance(cache, AttndCache) and not cache.rows and not beside_tokens(model_kwargs):
            embeds = model_kwargs.get("inputs_embeds")
            attention_mask = model_kwargs.get("attention_mask")
            # A mask without padding is not passed on, but its length is; without either nothing is sliced.
            masked = attention_mask is not None or getattr(generation_config, "_mask_length", -1) == input_ids.shape[1]
            whole = generation_config.prefill_chunk_size is None and (masked or embeds is not None)
            if whole and counts_tokens(model_kwargs.get("position_ids"), attention_mask):
                cache.open(None if embeds is not None else input_ids, embeds, attention_mask, match=True)
        return prefill(self, input_ids, generation_config, model_kwargs, *args, **kwargs)

    GenerationMixin._prepare_cache_for_generation = prepare_cache
    GenerationMixin._prefill = open_first
