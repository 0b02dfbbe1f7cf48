# SPDX-License-Identifier: Apache-2.0
"""vLLM's scheduler, which computes again what the daemon lost.

In: a step's outputs with the requests whose rows the daemon did not have (worker.py). Out: these
requests are preempted and their tokens of this step dropped, as vLLM does when its own cache is
reset; they begin again from what is cached then. Next: connector.py opens them anew.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Any

from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.request import RequestStatus

from .connector import AttndConnector, Lost
from .link import PATIENCE_S

if TYPE_CHECKING:
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.outputs import DraftTokenIds, ModelRunnerOutput

logger = logging.getLogger("vllm.attnd")

PAUSE_S = 0.01  # before a request is tried once more: others may let go of something
TRIES = 32  # at least, before the engine gives up


class AttndScheduler(Scheduler):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._again: dict[str, tuple[float, int]] = {}  # since when a request's rows are refused, and how often

    def update_from_output(self, scheduler_output: SchedulerOutput, model_runner_output: ModelRunnerOutput) -> Any:
        answer = model_runner_output.kv_connector_output
        lost = answer.kv_connector_worker_meta if answer is not None else None
        if isinstance(lost, Lost):
            served = scheduler_output.num_scheduled_tokens.keys() - lost.rows.keys()
            self._again = {name: seen for name, seen in self._again.items() if name not in served}
            self._compute_again(lost)
        elif self._again:
            self._again.clear()
        return super().update_from_output(scheduler_output, model_runner_output)

    def _compute_again(self, lost: Lost) -> None:
        now = time.monotonic()
        count, once_more = 0, False
        assert isinstance(self.connector, AttndConnector)
        self.connector.admission.twins.drop_all()  # if there was no room: what they hold is in no budget
        for request_id, why in lost.rows.items():
            request = self.requests.get(request_id)
            if request is None or request.status != RequestStatus.RUNNING:
                continue
            since, tries = self._again.get(request_id, (now, 0))
            self._again[request_id] = since, tries + 1
            once_more |= tries > 0
            if tries >= TRIES and now - since > PATIENCE_S:
                raise RuntimeError(f"attnd: request {request_id} was refused for {PATIENCE_S} s: {why}")
            self.running.remove(request)
            self._preempt_request(request, now, drop_stale_output=True)
            count += 1
        # As after a reset of the prefix cache: whoever is scheduled again at once was not in the last step.
        self.prev_step_scheduled_req_ids.clear()
        if once_more:
            time.sleep(PAUSE_S)
        if count:
            logger.warning("attnd: %d requests begin again (%s)", count, next(iter(lost.rows.values())))

    def update_draft_token_ids(self, draft_token_ids: DraftTokenIds) -> None:
        super().update_draft_token_ids(draft_token_ids)
        for request_id in self._again:
            request = self.requests.get(request_id)
            if request is not None and request.status == RequestStatus.PREEMPTED:
                request.spec_token_ids = []

    def reset_prefix_cache(self, reset_running_requests: bool = False, reset_connector: bool = False) -> bool:
        """attnd's tree is the prefix cache: with vLLM's it is reset, whatever `reset_connector` says."""
        done = bool(super().reset_prefix_cache(reset_running_requests, False))
        if done:
            assert isinstance(self.connector, AttndConnector)
            self.connector.reset_cache()
        return done
