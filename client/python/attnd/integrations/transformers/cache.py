# SPDX-License-Identifier: Apache-2.0
"""Transformers' Cache of a batch whose K and V are at the daemon: a sequence for each row.

In: a step's input ids and padding mask. Out: the step's plan, and for `generate` how many columns
of the batch need no computing. Next: attention.py, once a layer.

Transformers counts columns of a padded batch; attnd counts a row's tokens. `valid` says which
columns are tokens; padding is never sent.
"""

from __future__ import annotations

import hashlib
import sys
import weakref
from typing import Any

import numpy as np
import torch
from transformers.cache_utils import Cache, CacheLayerMixin

from ...plan import Plan
from ...sequence import Sequence
from .model import refuse, served


class AttndLayer(CacheLayerMixin):
    """What Transformers asks of a layer; the cache answers. `update` marks the keys for attention.py."""

    is_sliding = False  # the daemon keeps all tokens
    is_croppable = True
    supports_early_init = False

    def __init__(self, cache: AttndCache, index: int) -> None:
        super().__init__()
        self._cache = weakref.ref(cache)  # no cycle: its sequences are closed as soon as it is dropped
        self.index = index
        self.is_initialized = True

    @property
    def cache(self) -> AttndCache:
        found = self._cache()
        assert found is not None
        return found

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        pass

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *_: Any, **__: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        key_states.attnd = self.cache  # type: ignore[attr-defined]
        return key_states, value_states

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        # Asked within a step, whose columns begin() has counted already.
        return self.cache.columns + (0 if self.cache.step is not None else query_length), 0

    def get_seq_length(self) -> int:
        return self.cache.get_seq_length()

    def get_max_length(self) -> int:
        return -1

    def offload(self) -> None:
        pass

    def prefetch(self) -> None:
        pass


class Step:
    """One forward pass: its plan, and which columns of [batch, q_length] are tokens (None: all)."""

    def __init__(self, plan: Plan, tokens: torch.Tensor | None, num_tokens: int, begin: int) -> None:
        self.plan = plan
        self.tokens = tokens
        self.num_tokens = num_tokens
        self.begin = begin  # columns before it


class AttndCache(Cache):
    """Made by `generate` for models with `attn_implementation="attnd"`; make one yourself to go on with it later.

    `publish` False: nobody else sees what is computed here (hits are used all the same).
    """

    def __init__(self, model: Any, *, publish: bool = True) -> None:
        self.served = served(model)
        super().__init__(layers=[AttndLayer(self, i) for i in range(self.served.num_layers)])
        self.publish = publish
        self.rows: list[Sequence] = []
        self.valid = np.zeros((0, 0), bool)  # [batch, columns]
        self.columns = 0
        self.step: Step | None = None
        self.cached = 0  # tokens of the batch that were found when it was opened
        hook(model)

    def __del__(self) -> None:
        rows = getattr(self, "rows", None)
        if rows and not self.served.connection.closed and not sys.is_finalizing():
            try:
                self.served.connection.close_sequences(rows)
            except OSError:
                pass  # the daemon has gone, and the sequences with it

    # ---- Transformers asks ----

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return self.columns if self.step is None else self.step.begin

    @property
    def batch_size(self) -> int:
        return len(self.rows) or -1

    def reset(self) -> None:
        self.served.connection.close_sequences(self.rows)
        self.rows, self.columns, self.valid = [], 0, np.zeros((0, 0), bool)

    def crop(self, tokens_to_remove: int) -> None:
        if tokens_to_remove > 0:  # the length to keep
            tokens_to_remove = max(self.columns - tokens_to_remove, 0)
        columns = self.columns - abs(tokens_to_remove)
        if columns == self.columns:
            return
        self.columns, self.valid = columns, self.valid[:, :columns]
        for row, length in zip(self.rows, self.valid.sum(1).tolist(), strict=True):
            if length < row.length:
                row.trim(length)

    def reorder_cache(self, beam_idx: torch.Tensor) -> None:
        self._select(beam_idx.tolist())

    def batch_select_indices(self, indices: torch.Tensor) -> None:
        self._select(np.arange(len(self.rows))[indices.cpu().numpy()].tolist())

    def batch_repeat_interleave(self, repeats: int) -> None:
        self._select([i for i in range(len(self.rows)) for _ in range(repeats)])

    def _select(self, order: list[int]) -> None:
        """Rows by number; one that is named again is forked, one that is not is closed."""
        if order == list(range(len(self.rows))):
            return
        taken: set[int] = set()
        rows = []
        for i in order:
            rows.append(self.rows[i].fork() if i in taken else self.rows[i])
            taken.add(i)
        gone = [r for i, r in enumerate(self.rows) if i not in taken]
        self.rows, self.valid = rows, self.valid[order]
        self.served.connection.close_sequences(gone)

    # ---- A batch begins ----

    def open(self, ids: torch.Tensor | None, embeds: torch.Tensor | None, mask: torch.Tensor | None, match: bool) -> None:
        """Open a sequence for each row of a prompt; the columns that all rows have cached need no computing."""
        keys = _keys(ids, embeds)
        valid = _valid(mask, keys.shape)
        skip = keys.shape[1] - 1
        a = self.served.connection
        for tokens, row_valid in zip(keys, valid, strict=True):
            mine = tokens[row_valid]
            row = a.sequence(mine, namespace=self.served.namespace, max_match=None if match else 0)
            self.rows.append(row)
            self.cached += row.cached
            where = np.flatnonzero(row_valid)
            if row.cached < len(where):
                skip = min(skip, int(where[row.cached]))
        self.columns = max(skip, 0)
        self.valid = valid[:, : self.columns]
        for row, length in zip(self.rows, self.valid.sum(1).tolist(), strict=True):
            row.length = length  # a later start than what is held; the plan takes the rest over

    # ---- A step ----

    def begin(
        self,
        ids: torch.Tensor | None,
        embeds: torch.Tensor | None,
        mask: torch.Tensor | None,
        positions: torch.Tensor | None,
    ) -> None:
        """Plan a forward pass over these columns."""
        keys = _keys(ids, embeds)
        batch, width = keys.shape
        if self.rows and len(self.rows) != batch:
            raise ValueError(f"the cache has {len(self.rows)} rows, the input {batch}")
        new = _valid(None if mask is None else mask[:, -width:], keys.shape)
        if not self.rows:
            self.valid = np.zeros((batch, 0), bool)
            self.rows = self._rows_at(keys, new, positions)
        else:
            self._check_positions(new, positions)
        counts = new.sum(1)
        used = np.flatnonzero(counts)
        if not len(used):
            raise ValueError("a step without any token: the attention mask is zero")
        starts = np.array([r.length for r in self.rows], np.uint64)
        plan = self.served.cache.plan_arrays(
            np.array([self.rows[i].key for i in used], np.uint64),
            starts[used],
            counts[used],
            keys[new],
            None if self.publish else np.zeros(len(used), np.uint64),
        )
        for i in used:
            self.rows[i].length += int(counts[i])
        tokens = None if new.all() else torch.from_numpy(new)
        self.step = Step(plan, tokens, int(counts.sum()), self.columns)
        self.valid = np.concatenate([self.valid, new], 1)
        self.columns += width

    def end(self) -> None:
        """The last layer has run."""
        self.step = None

    def abandon(self) -> None:
        """The forward pass failed: as if it had not begun."""
        if self.step is None:
            return
        step, self.step = self.step, None
        self.columns, self.valid = step.begin, self.valid[:, : step.begin]
        for row, length in zip(self.rows, self.valid.sum(1).tolist(), strict=True):
            row.length = length
        try:
            step.plan.end()
        except OSError:
            pass  # it has ended already, or the daemon has

    def _rows_at(self, keys: np.ndarray, new: np.ndarray, positions: torch.Tensor | None) -> list[Sequence]:
        """Sequences for rows whose first token may stand at any position."""
        a = self.served.connection
        rows = []
        for i in range(len(keys)):
            where = np.flatnonzero(new[i])
            offset = int(_row(positions, i)[where[0]] if positions is not None else where[0]) if len(where) else 0
            _check_run(positions, i, where, offset)
            rows.append(a.sequence(namespace=self.served.shifted(offset)))
        return rows

    def _check_positions(self, new: np.ndarray, positions: torch.Tensor | None) -> None:
        if positions is None:
            return
        for i, row in enumerate(self.rows):
            where = np.flatnonzero(new[i])
            if len(where) and row.namespace == self.served.namespace:
                _check_run(positions, i, where, row.length)


def _row(positions: torch.Tensor, i: int) -> np.ndarray:
    if positions.ndim != 2:
        raise refuse("position ids of several dimensions", 'use attn_implementation="sdpa"')
    return positions[i if positions.shape[0] > 1 else 0].numpy()


def _check_run(positions: torch.Tensor | None, i: int, where: np.ndarray, first: int) -> None:
    """A token's position is part of what it is in the cache: they run on from the row's first."""
    if positions is None or not len(where):
        return
    if not np.array_equal(_row(positions, i)[where], np.arange(first, first + len(where))):
        raise refuse("position ids that jump", "let generate make them, or begin with a new AttndCache")


def counts_tokens(positions: torch.Tensor | None, mask: torch.Tensor | None) -> bool:
    """True if a token's position is the number of tokens before it in its row."""
    if positions is None:
        return True
    valid = torch.ones(positions.shape, dtype=torch.bool) if mask is None else mask > 0
    if positions.ndim != 2 or positions.shape[1] != valid.shape[1]:
        return False
    return bool(((positions == valid.cumsum(1) - 1) | ~valid).all())


def _valid(mask: torch.Tensor | None, shape: tuple[int, ...]) -> np.ndarray:
    if mask is None:
        return np.ones(shape, bool)
    if mask.ndim != 2:
        raise refuse("attention masks of more than two dimensions", "give the padding mask [batch, length]")
    return mask.cpu().numpy().astype(bool)


def _keys(ids: torch.Tensor | None, embeds: torch.Tensor | None) -> np.ndarray:
    """A 64-bit key of each token: its id, or a hash of its embedding."""
    if ids is not None:
        return ids.cpu().numpy().astype(np.int64, copy=False)
    assert embeds is not None
    flat = embeds.detach().contiguous().view(torch.uint8).cpu().numpy().reshape(-1, embeds.shape[-1] * embeds.element_size())
    hashes = [int.from_bytes(hashlib.blake2b(row.tobytes(), digest_size=8).digest(), "little", signed=True) for row in flat]
    return np.array(hashes, np.int64).reshape(embeds.shape[:2])


# ---- The model's forward ----


def hook(model: Any) -> None:
    """Every forward pass of the model with such a cache begins with a plan."""
    if getattr(model, "_attnd_hooked", False):
        return
    model._attnd_hooked = True
    model.register_forward_pre_hook(_before, with_kwargs=True)
    model.register_forward_hook(_after, with_kwargs=True, always_call=True)


def _before(_: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    cache = kwargs.get("past_key_values")
    if isinstance(cache, AttndCache):
        ids = args[0] if args else kwargs.get("input_ids")
        cache.abandon()
        cache.begin(
            ids, kwargs.get("inputs_embeds"), kwargs.get("attention_mask"), kwargs.get("position_ids")
        )


def _after(_: Any, __: tuple[Any, ...], kwargs: dict[str, Any], ___: Any) -> None:
    cache = kwargs.get("past_key_values")
    if isinstance(cache, AttndCache):
        cache.abandon()  # nothing to do after a whole pass
