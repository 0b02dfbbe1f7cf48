# SPDX-License-Identifier: Apache-2.0
"""Transformers on attnd: `attn_implementation="attnd"`.

    import attnd.integrations.transformers

    model = AutoModelForCausalLM.from_pretrained(path, attn_implementation="attnd")
    model.generate(...)

Importing registers an attention function, its mask function, and makes `generate` of such models
use an `AttndCache`. K and V live in the daemon; a prompt's beginning that any process has computed
with the same weights is not computed again. docs/transformers.md says what can be served.

In: q, k, v of a model's layers. Out: attention outputs. Next: model.py (what a model has at the
daemon), cache.py (what a batch has), attention.py (one layer), generation.py (`generate`).
"""

from .attention import register
from .cache import AttndCache
from .generation import hook_generate
from .model import configure, model_fingerprint, socket

register()
hook_generate()

__all__ = ["AttndCache", "configure", "model_fingerprint", "socket"]
