# SPDX-License-Identifier: Apache-2.0
"""vLLM's CPU platform; with --attention-backend ATTND attention and KV are attnd's.

In: vLLM's configuration, in the process that makes it. Out: the same with all that follows from the
one option: a scheduler, a connector, a budget of blocks. Next: backend.py for each layer,
budget.py once the weights are loaded.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from vllm.platforms import cpu_platform_plugin
from vllm.utils.import_utils import resolve_obj_by_qualname

from . import BACKEND, NAME, register
from .checks import SCHEDULER, check, refuse

if TYPE_CHECKING:
    from vllm.config import VllmConfig

register()

CpuPlatform: Any = resolve_obj_by_qualname(cpu_platform_plugin() or "vllm.platforms.cpu.CpuPlatform")

BLOCK_SIZE = 16
CPU_WORKER = "vllm.v1.worker.cpu_worker.CPUWorker"
# What vLLM may allocate for its own cache, which holds one byte a token and layer.
OWN_CACHE_BYTES = 1 << 20


def chosen(config: VllmConfig) -> bool:
    backend = config.attention_config.backend
    return backend is not None and backend.name == NAME


class AttndCpuPlatform(CpuPlatform):
    """Inert unless the backend was chosen."""

    @classmethod
    def get_attn_backend_cls(cls, selected_backend: Any, attn_selector_config: Any, num_heads: int | None = None) -> str:
        if selected_backend is None or selected_backend.name != NAME:
            return super().get_attn_backend_cls(selected_backend, attn_selector_config, num_heads)
        backend = selected_backend.get_class()
        why = backend.validate_configuration(device_capability=None, **attn_selector_config._asdict())
        if why:
            raise refuse("a layer of this model is not supported", "; ".join(why))
        return BACKEND

    @classmethod
    def check_and_update_config(cls, vllm_config: VllmConfig) -> None:
        mine = chosen(vllm_config) and vllm_config.model_config is not None
        if mine:
            # It is vLLM's choice where Triton has a CPU backend.
            os.environ.setdefault("VLLM_USE_V2_MODEL_RUNNER", "0")
        super().check_and_update_config(vllm_config)
        if not mine or _done(vllm_config):
            return
        check(vllm_config)
        cache = vllm_config.cache_config
        cache.enable_prefix_caching = False  # the daemon's tree is the only one
        if not cache.user_specified_block_size:
            cache.block_size = BLOCK_SIZE
        vllm_config.scheduler_config.scheduler_cls = SCHEDULER
        if vllm_config.parallel_config.worker_cls == CPU_WORKER:
            vllm_config.parallel_config.worker_cls = "attnd.integrations.vllm.process.AttndCPUWorker"
        _connect(vllm_config, cache.kv_cache_memory_bytes)
        cache.kv_cache_memory_bytes = OWN_CACHE_BYTES
        # Its threads must not spin where the daemon's workers want to run; read when a worker starts.
        os.environ.setdefault("OMP_WAIT_POLICY", "passive")

    @classmethod
    def register_custom_kv_cache_specs(cls, vllm_config: VllmConfig) -> None:
        """The engine's process, weights loaded, blocks not counted yet."""
        super().register_custom_kv_cache_specs(vllm_config)
        if vllm_config is not None and chosen(vllm_config):
            from .budget import settle

            settle(vllm_config)


def _done(config: VllmConfig) -> bool:
    transfer = config.kv_transfer_config
    return transfer is not None and transfer.kv_connector == "AttndConnector"


def _connect(config: VllmConfig, asked_bytes: int | None) -> None:
    from vllm.config import KVTransferConfig

    config.kv_transfer_config = KVTransferConfig(
        kv_connector="AttndConnector",
        kv_role="kv_both",
        kv_connector_module_path="attnd.integrations.vllm.connector",
        kv_connector_extra_config={"bytes": asked_bytes, "blocks": config.cache_config.num_gpu_blocks_override},
    )
