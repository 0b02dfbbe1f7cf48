# SPDX-License-Identifier: Apache-2.0
"""A rank's process, which says when its weights are exchanged.

In: vLLM's calls. Out: the same, done by vLLM. Next: worker.py publishes nothing of a model that the
cache's name does not tell.
"""

from __future__ import annotations

from typing import Any

from vllm.distributed.kv_transfer import get_kv_transfer_group, has_kv_transfer_group
from vllm.v1.worker.cpu_worker import CPUWorker


class AttndCPUWorker(CPUWorker):
    def _attnd_told(self) -> None:
        if has_kv_transfer_group() and (worker := getattr(get_kv_transfer_group(), "worker", None)) is not None:
            worker.weights_changed()

    def reload_weights(self, *args: Any, **kwargs: Any) -> None:
        self._attnd_told()
        super().reload_weights(*args, **kwargs)

    def update_weights(self, *args: Any, **kwargs: Any) -> None:
        self._attnd_told()
        super().update_weights(*args, **kwargs)
