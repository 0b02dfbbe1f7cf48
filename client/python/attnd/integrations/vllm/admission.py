# SPDX-License-Identifier: Apache-2.0
"""The scheduler's side: requests as sequences of the engine.

In: vLLM's requests, when it looks for cached prefixes, schedules, preempts, ends. Out: how much of
a prompt need not be computed, and each step's rows. Next: worker.py makes a plan of the rows.

A sequence is opened when vLLM asks what is cached, and held from then on. If vLLM finds no room for
the request in this step it is closed again: what it holds would not be in vLLM's budget. Where
another request, of any engine, is computing more of the same prompt, the answer is "ask again later"
(twins.py).
"""

from __future__ import annotations

import hashlib
import logging
import os
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

import attnd

from ..adapters import adapter_bytes, adapter_state
from ..twins import Twins
from .link import AWAY, PATIENCE_S, Link

if TYPE_CHECKING:
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.request import Request

logger = logging.getLogger("vllm.attnd")

AWAY_SECONDS = 0.05  # between looks for a daemon that is away


@dataclass
class Rows:
    """A step: one entry a request. `last_block` names a row in vLLM's block table."""

    ids: list[str]
    last_block: np.ndarray
    keys: np.ndarray
    starts: np.ndarray
    counts: np.ndarray
    publish_upto: np.ndarray
    offsets: np.ndarray  # of each row's tokens
    tokens: np.ndarray
    epoch: bytes


@dataclass
class Held:
    """A request's sequence."""

    request: Request
    key: int
    cached: int
    shared: bool = True  # others may see its tokens
    admitted: bool = False


class Admission:
    def __init__(self, link: Link) -> None:
        self.link = link
        self.connection = link.connection
        self.twins = Twins(self.connection)
        self._held: dict[str, Held] = {}
        self._namespaces: dict[tuple[bytes | None, bytes], int] = {}
        self._adapters: dict[tuple[str, int], tuple[Any, bytes]] = {}
        self._prompts: dict[str, np.ndarray] = {}  # of multimodal requests
        self._epoch = b""
        self._away_since: float | None = None
        # For whoever comes when the engine has no further namespace.
        self._unshared = self.connection.namespace(salt=os.urandom(16))

    # ---- What is cached ----

    def open(self, request: Request) -> int | None:
        """Tokens of the request that need not be computed; None: ask again later."""
        while (cached := self._open(request)) is None and request.skip_reading_prefix_cache:
            time.sleep(AWAY_SECONDS)  # vLLM does not ask again for these
        return cached

    def _open(self, request: Request) -> int | None:
        self.close(request.request_id)
        tokens = self._tokens(request, 0, request.num_tokens)
        limit = 0 if request.skip_reading_prefix_cache else request.num_tokens - 1
        try:
            namespace = self._namespace(request)
            sequence = self.twins.open(request.request_id, tokens, namespace=namespace, limit=limit)
        except attnd.Error as e:
            return self._away(e)
        self._away_since = None
        if sequence is None:
            return None
        shared = namespace != self._unshared
        self._held[request.request_id] = Held(request, sequence.key, sequence.cached, shared)
        return sequence.cached

    def _away(self, e: attnd.Error) -> None:
        if e.errno not in AWAY:
            raise e
        now = time.monotonic()
        if self._away_since is None:
            self._away_since = now
            logger.warning("attnd: the daemon is away (%s), requests wait", e.strerror)
        elif now - self._away_since > PATIENCE_S:
            raise RuntimeError(f"attnd: the daemon has been away for {PATIENCE_S} s") from e

    def admit(self, request: Request, cached: int) -> None:
        """vLLM found room, and skips so many tokens."""
        self.twins.drop(request.request_id)
        held = self._held.get(request.request_id)
        if held is None:
            return  # the daemon went away since it was opened; its row will say so
        held.admitted = True
        if cached != held.cached:
            self._quietly(self.connection._lib.attnd_seq_trim, held.key, cached)

    def _quietly(self, function: Any, *arguments: Any) -> None:
        """A daemon that has gone has let go of everything."""
        try:
            self.connection.call(function, *arguments)
        except attnd.Error as e:
            if e.errno not in AWAY:
                raise

    def close(self, request_id: str) -> None:
        held = self._held.pop(request_id, None)
        if held is not None:
            self._quietly(self.connection._lib.attnd_seq_close, held.key)

    def finish(self, request_id: str) -> None:
        self.twins.drop(request_id)
        self.close(request_id)
        self._prompts.pop(request_id, None)

    # ---- Who may share ----

    def new_epoch(self) -> None:
        """Nothing computed so far is a hit from now on, nor what other engines compute."""
        self.twins.drop_all()
        self._epoch = os.urandom(16)
        self._namespaces.clear()
        logger.info("attnd: a new epoch: this engine shares with no other from now on")

    def _namespace(self, request: Request) -> int:
        adapter, salt = self._adapter(request), self._salt(request)
        found = self._namespaces.get((adapter, salt))
        if found is None and not adapter and not salt:
            found = 0
        if found is None:
            try:
                found = self.connection.namespace(adapter=adapter, salt=salt or None)
            except attnd.Error as e:
                if e.errno in AWAY:
                    raise
                logger.warning("attnd: %s: requests with further cache salts share nothing", e.strerror)
                return self._unshared
            self._namespaces[adapter, salt] = found
        return found

    def _salt(self, request: Request) -> bytes:
        """Epoch and salt, each with its length."""
        if not self._epoch and request.cache_salt is None:
            return b""
        parts = (self._epoch, b"" if request.cache_salt is None else b"\1" + request.cache_salt.encode())
        long = b"".join(len(p).to_bytes(4, "little") + p for p in parts)
        return long if len(long) <= 1024 else hashlib.blake2b(long).digest()

    def _adapter(self, request: Request) -> bytes | None:
        lora = request.lora_request
        if lora is None:
            return None
        name = lora.lora_path, lora.lora_int_id
        state, known = adapter_state(lora.lora_path), self._adapters.get(name)
        if known is None or known[0] != state:
            found = adapter_bytes(lora.lora_path)
            if known is not None and found != known[1] and not lora.load_inplace:
                found = os.urandom(32)  # the new files may be in use, or the old ones: nobody else has what comes of it
            known = self._adapters[name] = state, found
        return known[1]

    # ---- Tokens ----

    def _tokens(self, request: Request, start: int, end: int) -> np.ndarray:
        tokens = np.array(request.all_token_ids[start:end], np.int64)
        if request.mm_features:
            prompt = self._prompts.get(request.request_id)
            if prompt is None or len(prompt) != len(request.prompt_token_ids):  # a session's has grown
                prompt = self._prompts[request.request_id] = content_keys(request)
            n = max(min(end, len(prompt)) - start, 0)
            tokens[:n] = prompt[start : start + n]
        return tokens

    # ---- A step ----

    def rows(self, output: SchedulerOutput, block_size: int) -> Rows | None:
        self.twins.look()
        for request_id in [i for i, h in self._held.items() if not h.admitted]:
            self.close(request_id)
        for request_id in output.preempted_req_ids or ():
            if request_id not in output.num_scheduled_tokens:
                self.close(request_id)
        scheduled = output.num_scheduled_tokens
        if not scheduled:
            return None
        n = len(scheduled)
        made = Rows(
            list(scheduled), np.empty(n, np.int64), np.zeros(n, np.uint64), np.empty(n, np.uint64),
            np.fromiter(scheduled.values(), np.uint32, n), np.empty(n, np.uint64), np.zeros(n, np.uint64),
            np.empty(0, np.int64), self._epoch,
        )  # fmt: skip
        np.cumsum(made.counts[:-1], out=made.offsets[1:])
        tokens: list[Any] = []
        drafts, blocks = output.scheduled_spec_decode_tokens, output.kv_connector_block_state
        for i, (request_id, count) in enumerate(scheduled.items()):
            held = self._held[request_id]
            request = held.request
            start, known = request.num_computed_tokens, request.num_tokens
            made.keys[i], made.starts[i] = held.key, start
            made.publish_upto[i] = min(start + count, known) if held.shared else 0
            made.last_block[i] = blocks.get_block_ids(request_id)[0][(start + count - 1) // block_size]
            if count == 1 and start < known and not request.mm_features:
                tokens.append((request.all_token_ids[start],))
                continue
            own = self._tokens(request, start, min(start + count, known))
            tokens.append(own)
            if len(own) < count:
                tokens.append(drafts[request_id][: count - len(own)])
        made.tokens = np.concatenate(tokens).astype(np.int64, copy=False)
        return made


_MIX = np.uint64(0x9E3779B97F4A7C15)


def content_keys(request: Request) -> np.ndarray:
    """The prompt, with placeholders known by the content that stands for them.

    The place inside the content counts, too, and where contents overlap (a video and its sound) all of them.
    """
    keys = np.array(request.prompt_token_ids, np.int64).view(np.uint64)
    for feature in request.mm_features:
        at, n = feature.mm_position.offset, feature.mm_position.length
        name = f"{feature.modality}/{feature.identifier}".encode()
        own = np.frombuffer(hashlib.shake_128(name).digest(8 * n), np.uint64)
        # Beyond all token ids, and positive.
        keys[at : at + n] = ((keys[at : at + n] * _MIX + own) >> 2) | np.uint64(1 << 62)
    return keys.view(np.int64)
