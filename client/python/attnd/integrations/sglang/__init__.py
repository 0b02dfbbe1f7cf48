# SPDX-License-Identifier: Apache-2.0
"""SGLang served from attnd: `--attention-backend attnd`.

In: SGLang's plug-in loader, which calls `register` in every process before it parses arguments.
Out: an attention backend (backend.py), a prefix cache (tree.py), a KV pool that allocates nothing.
Next: options.py, when the backend was chosen; nothing otherwise.

attnd owns the tree and the KV. SGLang's slots are admission tickets: the scheduler counts them, no
slot number ever reaches attnd.
"""

from __future__ import annotations

from typing import Any

NAME = "attnd"
TESTED = "0.5.23"

_CPU = "sglang.srt.platforms.cpu.CpuSRTPlatform."
_ADDER = "sglang.srt.managers.schedule_policy.PrefillAdder."
_POOLS = "sglang.srt.mem_cache.kv_cache_configurator.KVCacheConfigurator."


def chosen() -> bool:
    """Whether this process serves from attnd."""
    from sglang.srt.runtime_context import get_exec

    try:
        return bool(get_exec().kernel.attention_backend == NAME)
    except (AttributeError, AssertionError, RuntimeError, ValueError):
        return False  # no configuration yet


def _defaults(original: Any, platform: Any, server_args: Any) -> None:
    original(platform, server_args)
    if NAME in (
        server_args.attention_backend,
        server_args.prefill_attention_backend,
        server_args.decode_attention_backend,
    ):
        from .options import apply

        apply(server_args)


def _pool_class(original: Any, platform: Any, *, kind: str) -> Any:
    if kind != "mha" or not chosen():
        return original(platform, kind=kind)
    from .backend import AttndKVPool

    return AttndKVPool


def _token_limit(original: Any, configurator: Any, capacity: int) -> int:
    limit = int(original(configurator, capacity))
    if not chosen():
        return limit
    from .backend import start

    return start(configurator, limit)


def _admit(original: Any, adder: Any, req: Any, *args: Any, **kwargs: Any) -> Any:
    if not chosen():
        return original(adder, req, *args, **kwargs)
    from .tree import admit

    return admit(original, adder, req, *args, **kwargs)


def _backend(runner: Any) -> Any:
    from .backend import AttndBackend

    return AttndBackend(runner)


def _tree(context: Any) -> Any:
    from .tree import AttndCache

    return AttndCache(context)


def register() -> None:
    """SGLang's entry point. Only registers: what goes wrong here SGLang logs and passes over."""
    from sglang.srt.arg_groups.choices import ATTENTION_BACKEND_CHOICES, add_attention_backend_choices
    from sglang.srt.layers.attention.attention_registry import register_attention_backend
    from sglang.srt.mem_cache.registry import register_radix_cache_backend
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    if NAME in ATTENTION_BACKEND_CHOICES:
        return
    add_attention_backend_choices([NAME])
    register_attention_backend(NAME)(_backend)
    register_radix_cache_backend(NAME, _tree)
    HookRegistry.register(_CPU + "apply_server_args_defaults", _defaults, HookType.AROUND)
    HookRegistry.register(_CPU + "get_kv_pool_cls", _pool_class, HookType.AROUND)
    HookRegistry.register(_ADDER + "add_one_req", _admit, HookType.AROUND)
    HookRegistry.register(_POOLS + "_apply_token_constraints", _token_limit, HookType.AROUND)
