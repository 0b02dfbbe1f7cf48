# SPDX-License-Identifier: Apache-2.0
"""What vLLM calls a KV connector: where its scheduler and its workers meet attnd.

In: vLLM's calls, in the scheduler's process and in every rank's. Out: what is cached, a step's
rows, what the daemon has lost. Next: admission.py, worker.py.

Nothing is transferred: hits are tokens that the daemon holds, ready as they are.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorMetadata,
    KVConnectorRole,
    KVConnectorWorkerMetadata,
    SupportsHMA,
)

from .admission import Admission, Rows
from .budget import take
from .worker import Worker

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.kv_cache_interface import KVCacheConfig
    from vllm.v1.request import Request


@dataclass
class Step(KVConnectorMetadata):
    rows: Rows | None


@dataclass
class Lost(KVConnectorWorkerMetadata):
    """Requests whose rows of this step have no output, and why."""

    rows: dict[str, str] = field(default_factory=dict)

    def aggregate(self, other: KVConnectorWorkerMetadata) -> Lost:
        assert isinstance(other, Lost)
        return Lost(self.rows | other.rows)


class AttndConnector(KVConnectorBase_V1, SupportsHMA):
    def __init__(self, vllm_config: VllmConfig, role: KVConnectorRole, kv_cache_config: KVCacheConfig) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        self._block_size = kv_cache_config.kv_cache_groups[0].kv_cache_spec.block_size
        self._admission: Admission | None = None
        self.worker: Worker | None = None
        if role == KVConnectorRole.SCHEDULER:
            self._admission = Admission(take(vllm_config))
        else:
            self.worker = Worker(vllm_config)

    @property
    def admission(self) -> Admission:
        assert self._admission is not None
        return self._admission

    @property
    def requires_kv_delivery(self) -> bool:
        return False

    # ---- Scheduler ----

    def get_num_new_matched_tokens(self, request: Request, num_computed_tokens: int) -> tuple[int | None, bool]:
        return self.admission.open(request), False

    def update_state_after_alloc(self, request: Request, blocks: Any, num_external_tokens: int) -> None:
        self.admission.admit(request, num_external_tokens)

    def build_connector_meta(self, scheduler_output: SchedulerOutput) -> Step:
        return Step(self.admission.rows(scheduler_output, self._block_size))

    def request_finished(self, request: Request, block_ids: list[int]) -> tuple[bool, None]:
        return self.request_finished_all_groups(request, (block_ids,))

    def request_finished_all_groups(self, request: Request, block_ids: tuple[Any, ...]) -> tuple[bool, None]:
        self.admission.finish(request.request_id)
        return False, None

    def reset_cache(self) -> bool:
        self.admission.new_epoch()
        return True

    # ---- Worker ----

    def bind_connector_metadata(self, connector_metadata: KVConnectorMetadata) -> None:
        """Before a forward, its attention metadata made: all that a plan needs is known."""
        super().bind_connector_metadata(connector_metadata)
        assert self.worker is not None and isinstance(connector_metadata, Step)
        if connector_metadata.rows is not None:
            self.worker.begin(connector_metadata.rows)

    def build_connector_worker_meta(self) -> Lost | None:
        assert self.worker is not None
        lost = self.worker.finish()
        return Lost(lost) if lost else None

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        pass

    def wait_for_layer_load(self, layer_name: str) -> None:
        pass

    def save_kv_layer(self, layer_name: str, kv_layer: Any, attn_metadata: Any, **kwargs: Any) -> None:
        pass

    def wait_for_save(self) -> None:
        pass

    def take_events(self) -> Iterable[Any]:
        return ()

    def shutdown(self) -> None:
        if self.worker is not None:
            self.worker.link.close()
        if self._admission is not None:
            self._admission.link.close()
