# SPDX-License-Identifier: Apache-2.0
"""vLLM served from attnd: `--attention-backend ATTND`.

In: vLLM's plug-in loader: `platform` when it looks for a platform, `register` in every process.
Out: a CPU platform that is vLLM's own unless the backend was chosen, and the backend's name.
Next: platform.py.

attnd owns the tree and the KV. vLLM's blocks are a budget: its scheduler counts them, no block
number ever reaches attnd, and its own cache has one byte a token.
"""

from __future__ import annotations

import os

NAME = "ATTND"
TESTED = "0.32.0"

BACKEND = "attnd.integrations.vllm.backend.AttndBackend"


def platform() -> str | None:
    """Entry point vllm.platform_plugins: only where vLLM itself would choose its CPU platform."""
    from vllm.platforms import cpu_platform_plugin

    if cpu_platform_plugin() is None:
        return None
    return "attnd.integrations.vllm.platform.AttndCpuPlatform"


def register() -> None:
    """Entry point vllm.general_plugins.

    With VLLM_TARGET_DEVICE=cpu vLLM passes over platform plug-ins, and its own platform would
    silently use another backend: the name stays unknown then, so that vLLM refuses it.
    """
    from vllm.v1.attention.backends.registry import AttentionBackendEnum, register_backend

    if os.environ.get("VLLM_TARGET_DEVICE", "").lower() != "cpu" and not hasattr(AttentionBackendEnum, NAME):
        register_backend(NAME, BACKEND)
