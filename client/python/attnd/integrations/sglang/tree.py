# SPDX-License-Identifier: Apache-2.0
"""SGLang's prefix cache over attnd: the daemon's tree is the only one, here are no nodes.

In: requests and their tokens. Out: hits, and tickets for the scheduler's books. Next: session.py.

A hit is answered as one on the host, so that SGLang copies nothing: at admission `init_load_back`
takes as many tickets from SGLang's allocator as the match holds in attnd. Publishing needs nothing
here: each step's plan makes its tokens visible to all engines when it ends.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import torch
from sglang.srt.beam_search.coordinator import BeamCoordinator
from sglang.srt.managers.schedule_policy import AddReqResult
from sglang.srt.mem_cache.base_prefix_cache import (
    BasePrefixCache,
    DecLockRefResult,
    EvictResult,
    IncLockRefResult,
    MatchResult,
)

from . import NAME
from .session import Array, Fields, Session


IDLE_SECONDS = 1e-3  # between looks when there is nothing else to do: the twin needs the cores


def _no_beams(*_: Any) -> str:
    """SGLang's answer to a request for beams, whose rows would copy slots that are none here."""
    return f"Beam search is not supported with --attention-backend {NAME}."


class Root:
    """The one node."""

    children: dict[Any, Any] = {}
    parent = None


def token_array(ids: Any) -> Array:
    """A copy: SGLang appends to its arrays later."""
    return np.array(ids, dtype=np.int64).view(np.uint64)


def admit(original: Any, adder: Any, req: Any, *args: Any, **kwargs: Any) -> Any:
    """A request that is held back stays in the queue, those behind it are looked at."""
    session = Session.current
    if session is None or req.rid not in session.held_back:
        return original(adder, req, *args, **kwargs)
    if adder.running_batch.is_empty() and not adder.can_run_list:
        time.sleep(IDLE_SECONDS)
    return AddReqResult.CONTINUE


class AttndCache(BasePrefixCache):
    disable = False

    def __init__(self, context: Any) -> None:
        if Session.current is None:
            raise RuntimeError("--radix-cache-backend attnd needs --attention-backend attnd")
        params = context.params
        self.session = Session.current
        self.req_to_token_pool = params.req_to_token_pool
        self.token_to_kv_pool_allocator = params.token_to_kv_pool_allocator
        self.page_size = params.page_size
        self.device = self.token_to_kv_pool_allocator.device
        self.root_node = Root()
        self.tickets: dict[str, torch.Tensor] = {}
        self.sliding_window_size = None
        if params.enable_metrics:
            self.init_metrics_collector()
        BeamCoordinator.validate_and_init = _no_beams

    def reset(self) -> None:
        self.tickets.clear()
        self.session.new_epoch()

    # ---- Matching and admission ----

    def match_prefix(self, params: Any) -> MatchResult:
        req, key, root = params.req, params.key, self.root_node
        fields = self._fields(key, req)
        if req is None or (key.limit is None and len(key.token_ids)):
            # Only to put the queue in order: nothing is held, nothing promised.
            n = self.session.peek(fields, token_array(key.token_ids))
            return MatchResult(n, root, root, root)
        if req.rid in self.tickets:
            self._give_back(req.rid)
        if not len(key.token_ids):
            self.session.match_privately(req.rid)
            return MatchResult(0, root, root, root)
        tokens = token_array(key.raw_token_ids())
        n = self.session.match(req.rid, fields, tokens, len(tokens), publish=not req.skip_radix_cache_insert)
        return MatchResult(0, root, root, root, host_hit_length=n)

    def _fields(self, key: Any, req: Any) -> Fields:
        lora = req.lora_id if req is not None else None
        if lora is None:
            return Fields(key.extra_key, key.cache_salt)
        # SGLang's name of an adapter, at the end of the key, is that of its path or a random one.
        extra = (key.extra_key or "").removesuffix(lora)
        return Fields(extra or None, key.cache_salt, self.session.adapter(lora))

    def init_load_back(self, params: Any) -> tuple[int, Any]:
        tickets = self.token_to_kv_pool_allocator.alloc(params.host_hit_length)
        if tickets is None:
            return 0, self.root_node
        self.tickets[params.req.rid] = tickets
        return params.host_hit_length, self.root_node

    def load_back_is_cache_owned(self) -> bool:
        return False

    def prefix_device_indices(self, req: Any) -> torch.Tensor:
        return self.tickets.pop(req.rid)[: req.prefix_len]

    def path_device_indices(self, node: Any) -> torch.Tensor:
        return torch.empty(0, dtype=torch.int64)

    # ---- Leaving ----

    def checkpoint(self, req: Any, *, up_to: int, **_: Any) -> None:
        """Plans publish."""

    def on_release(self, req: Any, *, checkpointed: bool) -> None:
        index = req.kv.req_pool_idx
        self.session.release((int(index), int(self.req_to_token_pool.req_generation[index])))

    def release_aborted_request(self, handle: Any) -> None:
        self._give_back(handle.rid)
        self.session.give_up(handle.rid)

    def _give_back(self, rid: str) -> None:
        tickets = self.tickets.pop(rid, None)
        if tickets is not None:
            self.token_to_kv_pool_allocator.free(tickets)

    # ---- Nothing of it is here ----

    def evict(self, params: Any) -> EvictResult:
        return EvictResult()

    def inc_lock_ref(self, node: Any) -> IncLockRefResult:
        return IncLockRefResult(delta=0)

    def dec_lock_ref(self, node: Any, params: Any = None) -> DecLockRefResult:
        return DecLockRefResult(delta=0)

    def total_size(self) -> int:
        return 0

    def all_values_flatten(self) -> torch.Tensor:
        return torch.empty(0, dtype=torch.int64)

    def pretty_print(self) -> None:
        s = self.session
        print(f"attnd: {s.hits} of {s.asked} tokens were hits, {s.recovered} steps repeated")
